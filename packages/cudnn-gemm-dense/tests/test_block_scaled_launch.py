"""What the kernels of block-scaled problems are given, on a device that is not there: they compute with plain torch."""

from __future__ import annotations

import itertools
import types

import pytest
import torch

from cudnn.block_scale import FORMATS, FP4, ScaleLayout, format_of
from cudnn.cutedsl.compile import KernelSpec
from cudnn.cutedsl.dequantize import DequantizeSpec
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.fp4 import encode_e2m1, pack_fp4
from cudnn.gemm_layout import Extents
from cudnn.reference import cast, dequantize_operand, merge_amax
from cudnn.testing.conformance import GemmConformance, same_bits
from cudnn.tuning import table
from cudnn.tuning.shipped import with_shipped
from cudnn_gemm_dense.amax import api as amax_api
from cudnn_gemm_dense.amax.conformance import AmaxHooks
from cudnn_gemm_dense.configs import SWAPPED
from cudnn_gemm_dense.conformance_scaled import QuantizedHooks, ScaledHooks, ScaledSwigluHooks
from cudnn_gemm_dense.dsrelu import api as dsrelu_api
from cudnn_gemm_dense.dsrelu.conformance import DsreluHooks
from cudnn_gemm_dense.gemm import api as gemm_api
from cudnn_gemm_dense.gemm.conformance import GemmHooks
from cudnn_gemm_dense.gemm.reference import gemm_reference
from cudnn_gemm_dense.srelu import api as srelu_api
from cudnn_gemm_dense.srelu.conformance import SreluHooks
from cudnn_gemm_dense.srelu.outputs import quantize_rows
from cudnn_gemm_dense.srelu.reference import gemm_dsrelu_reference, gemm_srelu_reference
from cudnn_gemm_dense.swiglu import api as swiglu_api
from cudnn_gemm_dense.swiglu.reference import run_reference

HOOKS = {"gemm": GemmHooks, "amax": AmaxHooks, "srelu": SreluHooks, "dsrelu": DsreluHooks, "swiglu": None}


def case(op: str, quantized: bool = False, **attributes):
    bases = (ScaledSwigluHooks,) if op == "swiglu" else (ScaledHooks, *((QuantizedHooks,) if quantized else ()), HOOKS[op])
    hooks = type(op, (*bases, GemmConformance), {})()
    for name, value in attributes.items():
        setattr(hooks, name, value)
    return hooks


@pytest.fixture
def log(pretend, monkeypatch, fresh):
    """Yields what was built and what ran."""
    found = types.SimpleNamespace(built=[], ran=[])

    def build(spec):
        found.built.append(spec)

        def kernel(operands, others, scalars, clusters, handle):
            assert clusters == spec.config.resident_clusters(132) and handle == 0
            found.ran.append((spec, operands))
            # A kernel that swaps operands is given them in the caller's order.
            problem, options = (spec.problem.swapped, spec.options.swapped) if spec.config.swap else (spec.problem, spec.options)
            if problem.b_format is not None:
                operands = widened(FORMATS[problem.b_format], *operands)
            dtypes = (problem.a_dtype, *[problem.b_dtype] * (len(operands) - 1))
            for t, dtype, major in zip(operands, dtypes, (problem.a_major, *[problem.b_major] * (len(operands) - 1)), strict=True):
                assert t.stride(1 if major == "k" else 0) == 1 and str(t.dtype) == f"torch.{dtype}" and t.data_ptr() % 16 == 0
            KERNELS[spec.op](options, operands, others, scalars)

        return kernel

    def build_dequantize(spec):
        found.built.append(spec)

        def kernel(source, scales, target, handle):
            assert source.dtype == scales.dtype == torch.uint8 and scales.dim() == 1 and handle == 0 and scales.data_ptr() % 16 == 0
            inner = 1 if spec.k_major else 0
            assert source.stride(inner) == target.stride(inner) == 1 and all(
                t.stride(axis) * t.itemsize % 16 == 0 for t in (source, target) for axis in (1 - inner, 2)
            )
            found.ran.append((spec, (source, target)))
            rows, columns, batches = target.shape
            layout = ScaleLayout(rows, columns, batches, spec.vec)
            assert scales.numel() == layout.entries
            factors = scales.view(getattr(torch, spec.scale)).as_strided(layout.physical_shape, layout.physical_stride)
            data = source if spec.element == FP4 else source.view(getattr(torch, spec.element))
            target.copy_(dequantize_operand(data, factors, spec.vec))

        return kernel

    monkeypatch.setattr(KernelSpec, "build", build)
    monkeypatch.setattr(DequantizeSpec, "build", build_dequantize)
    fresh(*(api.CALLS for api in (amax_api, dsrelu_api, gemm_api, srelu_api, swiglu_api)))
    return found


def widened(fmt, a, b, scales):
    """(A, B in A's dtype) of a kernel that converts B."""
    assert b.dtype == scales.dtype == torch.uint8 and scales.dim() == 1 and b.stride(1) == 1 and scales.data_ptr() % 16 == 0
    layout = ScaleLayout(b.shape[0], b.shape[1] * fmt.packed, b.shape[2], fmt.vec)
    factors = scales.view(getattr(torch, fmt.scale)).as_strided(layout.physical_shape, layout.physical_stride)
    data = b if fmt.packed == 2 else b.view(getattr(torch, fmt.element))
    return a, dequantize_operand(data, factors, fmt.vec).to(a.dtype).permute(2, 0, 1).contiguous().permute(1, 2, 0)


def plain(options, operands, others, scalars):
    d = gemm_reference(*operands, scalars[0])
    if options.d_dtype == FP4:
        assert others[0].dtype == torch.uint8
        others[0].copy_(pack_fp4(encode_e2m1(d), 1))
    else:
        others[0].copy_(cast(d, others[0].dtype))
    if options.amax_rank:
        merge_amax(others[1], d)


def finish(options, y, d, rest):
    if options.amax_rank:
        merge_amax(rest.pop(0), y)
    if options.scale_dtype is None:
        d.copy_(cast(y, d.dtype))
        return
    factors, norm = rest[:2]
    assert factors.dtype == torch.uint8 and factors.dim() == 1 and norm.shape == (1,)
    quantize_rows(y, d, factors.view(getattr(torch, options.scale_dtype)), norm, options.scale_vec)


def srelu(options, operands, others, scalars):
    c, d, prob, *rest = others
    s, y = gemm_srelu_reference(*operands, prob, scalars[0])
    c.copy_(cast(s, c.dtype))
    finish(options, y, d, rest)


def dsrelu(options, operands, others, scalars):
    c, d, prob, dprob, *rest = others
    y, sums = gemm_dsrelu_reference(*operands, c, prob, scalars[0])
    dprob.add_(sums)
    finish(options, y, d, rest)


def swiglu(options, operands, others, scalars):
    a, *b = operands
    ab12, c, *amax = others
    assert len(amax) == bool(options.amax_rank)
    layout = {"glu_layout": options.glu_layout, "acc_dtype": "float32"}
    run_reference(a, b if len(b) == 2 else b[0], ab12, c, scalars[0], **layout, amax=amax[0] if amax else None)


KERNELS = {"gemm": plain, "gemm_amax": plain, "gemm_srelu": srelu, "gemm_dsrelu": dsrelu, "gemm_swiglu": swiglu}


def is_right(hooks, inputs, outputs) -> None:
    reference, baseline = hooks.reference(inputs), hooks.baseline(inputs)
    for name, t in reference.items():
        error, allowed = (torch.linalg.vector_norm(x.double() - t.double()) for x in (outputs[name], baseline[name]))
        assert error <= 2 * allowed + 2**-20 * torch.linalg.vector_norm(t.double()), name


IN_FRONT = {"tile_m": 64, "tile_n": 64}  # a configuration that takes weights in 16 bits


@pytest.mark.parametrize("mixed", [False, True], ids=["both", "weights"])
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("op", HOOKS)
def test_operands_reach_the_kernel_in_bfloat16(log, op, kind, mixed):
    """One converting kernel for each quantised operand, in its own order of axes, into scratch memory of the size that the formula says; the GEMM is the one that 16-bit operands have."""
    majors = ["kk"] if FORMATS[kind].element == FP4 else ["kk", "mn"]
    for (a_major, b_major), batches in itertools.product(majors, (1, 2)):
        hooks = case(op, format=kind, mixed=mixed, a_major=a_major, b_major=b_major, config=IN_FRONT)
        extents = (48, 192, 96, batches)
        inputs, outputs = hooks.inputs(*extents), {}
        for name, (shape, stride, dtype) in hooks.output_layouts(*extents).items():
            outputs[name] = torch.empty_strided(shape, stride, dtype=dtype).fill_(hooks.initial.get(name, 0.0))
        operation = hooks.build(inputs, outputs)
        log.ran.clear()
        operation(**inputs, **outputs)
        is_right(hooks, inputs, outputs)
        conversions, (spec, operands) = [spec for spec, _ in log.ran[:-1]], log.ran[-1]
        expected = [("n", b_major)] if mixed else [("m", a_major), ("n", b_major)]
        assert [(one.element, one.scale, one.vec, one.target, one.k_major) for one in conversions] == [
            (FORMATS[kind].element, FORMATS[kind].scale, FORMATS[kind].vec, "bfloat16", major == "k") for _, major in expected
        ]
        assert (spec.problem.a_dtype, spec.problem.b_dtype, spec.problem.a_major, spec.problem.b_major) == ("bfloat16", "bfloat16", a_major, b_major)
        assert operands[0].data_ptr() == inputs["a_tensor"].data_ptr() or not mixed
        hooks.device = "nowhere"
        partials = (
            0
            if op != "dsrelu"
            else max(operation._scratch_bytes(c, operation._layout.extents(operation._samples)) for c in operation._compiled_kernel)
            - hooks.scratch_bytes(*extents)
        )
        assert operation.workspace_bytes() == hooks.scratch_bytes(*extents) + partials


@pytest.mark.parametrize("op", ["srelu", "dsrelu"])
@pytest.mark.parametrize("major", ["n", "m"])
def test_quantised_outputs_reach_the_kernel_as_bytes(log, op, major):
    """Both forms of scale factors, and any rank of norm_const: the kernel finds them by address, dtype and extents."""
    for logical, rank in itertools.product((True, False), (1, 3)):
        hooks = case(op, quantized=True, out_major=major, norm=2.5)
        extents = (144, 160, 64, 2)
        inputs = hooks.inputs(*extents)
        inputs["norm_const_tensor"] = inputs["norm_const_tensor"].view((1,) * rank)
        outputs = {name: t.clone() for name, t in hooks.outputs(*extents).items()}
        if not logical:
            outputs["sfd_tensor"] = outputs["sfd_tensor"].permute(5, 2, 4, 0, 1, 3)
            assert outputs["sfd_tensor"].is_contiguous()
        operation = hooks.build(inputs, outputs)
        operation(**inputs, **outputs)
        hooks.compare = lambda *_: None
        hooks.check(inputs, outputs)
        spec, _ = log.ran[-1]
        assert (spec.options.scale_dtype, spec.options.scale_vec) == ("float8_e8m0fnu", 32)


def test_a_call_like_an_earlier_one_goes_straight_to_the_kernels(log):
    """The wrapper's second call of the same shapes checks nothing again, and converts again."""
    cases = (("gemm", {"mixed": True}), ("srelu", {"quantized": True}), ("swiglu", {"format": "nvfp4"}), ("amax", {"format": "mxfp4"}))
    for (op, attributes), config in itertools.product(cases, (None, IN_FRONT)):
        hooks = case(op, **attributes, config=config)
        inputs = hooks.inputs(48, 192, 96, 1)
        first = hooks.wrapper(inputs)
        calls = {"gemm": gemm_api, "srelu": srelu_api, "swiglu": swiglu_api, "amax": amax_api}[op].CALLS
        plan = next(reversed(calls._plans.values()))
        for _ in range(3):
            count = len(log.ran)
            again = hooks.wrapper(inputs)
            assert len(log.ran) - count == 1 + (not hooks.mixed) + (config is not None)
            assert all(t is None or same_bits(t, first[name]) for name, t in again.items())
        assert plan.repeat is not None


@pytest.mark.parametrize("mixed", [False, True], ids=["both", "weights"])
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("op", HOOKS)
def test_weights_converted_in_the_kernel(log, op, kind, mixed):
    """By configuration alone: B reaches the kernel as it comes, without scratch memory; the same numbers."""
    hooks = case(op, format=kind, mixed=mixed, config={"tile_m": 64, "tile_n": 128, "convert_b": True})
    extents = (48, 192, 96, 2)
    inputs = hooks.inputs(*extents)
    result = hooks.wrapper(inputs)
    is_right(hooks, inputs, {name: t for name, t in result.items() if t is not None})
    assert len(log.ran) == (1 if mixed else 2)
    spec, operands = log.ran[-1]
    assert spec.problem.b_format == kind and spec.problem.b_dtype == "bfloat16" and len(operands) == 3
    assert operands[1].data_ptr() == inputs["b_tensor"].data_ptr() and operands[2].data_ptr() == inputs["sfb_tensor"].data_ptr()
    expected = case(op, format=kind, mixed=mixed).wrapper(inputs)
    assert all(t is None or same_bits(t, expected[name]) for name, t in result.items())
    if op == "gemm" and mixed:
        operation = hooks.build(inputs, {name: result[name] for name in hooks.output_layouts(*extents)})
        assert operation.check_support() and operation.workspace_bytes() == 0


def test_where_weights_cannot_be_converted_in_the_kernel(log):
    convert = {"tile_m": 64, "tile_n": 128, "convert_b": True}
    for attributes, message in (
        ({"config": {**convert, "tile_m": 128}}, "config: convert_b: needs tiles of 64x128"),
        ({"config": {**convert, "swap": True}}, "convert_b and swap: two ways to convert the same B; give one"),
        ({"config": {**convert, "cluster_n": 2}}, "clusters of 1x1"),
        ({"config": {**convert, "k_atoms": 2}}, "k_atoms 1"),
        ({"config": convert, "b_major": "n"}, "convert_b: needs an operand B with scale factors, contiguous along K"),
    ):
        hooks = case("gemm", mixed=True, **attributes)
        with pytest.raises(ValueError, match=message):
            hooks.wrapper(hooks.inputs(48, 192, 96, 1))
    plain = GemmHooks()
    with pytest.raises(ValueError, match="convert_b: needs an operand B with scale factors"):
        plain.config = convert
        plain.more = {}
        gemm_api.gemm_wrapper(**plain.inputs(48, 192, 96, 1), config=convert)


SWAP = {"tile_m": 128, "tile_n": 256, "swap": True}


@pytest.mark.parametrize("mixed", [False, True], ids=["both", "weights"])
@pytest.mark.parametrize("kind", FORMATS)
def test_weights_take_the_place_of_a(log, kind, mixed):
    """By configuration alone: the kernel of the transpose is given A, and B as it comes."""
    for out_major, d_dtype, a_major, extents in (("n", None, "k", (48, 192, 96, 2)), ("m", torch.float32, "m" if mixed else "k", (144, 64, 416, 1))):
        hooks = case("gemm", format=kind, mixed=mixed, config=SWAP, out_major=out_major, d_dtype=d_dtype or torch.bfloat16, a_major=a_major)
        inputs = hooks.inputs(*extents)
        count = len(log.ran)
        result = hooks.wrapper(inputs)
        is_right(hooks, inputs, dict(result.items()))
        assert len(log.ran) - count == (1 if mixed else 2)
        spec, operands = log.ran[-1]
        assert (spec.problem.a_format, spec.problem.b_format, spec.options.out_major) == (kind, None, "m" if out_major == "n" else "n")
        assert (spec.problem.a_major, spec.problem.b_major) == ("k", "k" if a_major == "k" else "n")
        a, b, factors = operands
        assert b.data_ptr() == inputs["b_tensor"].data_ptr() and factors.data_ptr() == inputs["sfb_tensor"].data_ptr()
        assert not mixed or a.data_ptr() == inputs["a_tensor"].data_ptr()
        if mixed:
            operation = hooks.build(inputs, {name: result[name] for name in hooks.output_layouts(*extents)})
            assert operation.check_support() and operation.workspace_bytes() == 0
        assert same_bits(hooks.wrapper(inputs)["d_tensor"], result["d_tensor"])


def test_where_weights_cannot_take_the_place_of_a(log):
    for op, attributes, message in (
        ("gemm", {"config": {**SWAP, "tile_m": 64}}, "config: swap: weights with scale factors need tiles of 128 of them"),
        ("gemm", {"config": {**SWAP, "cluster_n": 2}}, "cluster_n 1"),
        ("gemm", {"config": {**SWAP, "k_atoms": 2}}, "k_atoms 1"),
        ("gemm", {"config": {**SWAP, "tile_n": 128, "pingpong": True}}, "the cooperative schedule"),
        ("srelu", {"config": SWAP}, "config: swap: needs a plain product; what GemmSrelu does"),
    ):
        hooks = case(op, mixed=True, **attributes)
        with pytest.raises(ValueError, match=message):
            hooks.wrapper(hooks.inputs(48, 192, 96, 1))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("quantized", [False, True])
def test_a_swapped_product_takes_what_the_other_takes(log, quantized, bias):
    """Operands that are converted in front, or need no conversion, and a bias."""
    hooks = case("gemm", mixed=True, config=SWAP, b_major="n") if quantized else GemmHooks()
    inputs = hooks.inputs(48, 192, 96, 1)
    vector = {"bias_tensor": torch.randn(192)} if bias else {}
    found = gemm_api.gemm_wrapper(**inputs, **vector, config=SWAP)["d_tensor"]
    spec, operands = log.ran[-1]
    assert spec.config.swap and len(operands) == 2 and spec.problem.a_format is None and spec.options.out_major == "m"
    assert same_bits(found, gemm_api.gemm_wrapper(**inputs, **vector)["d_tensor"])


def test_what_the_default_rule_chooses(log):
    """Up to some thousand rows a kernel in front reads and writes more than it saves. Into registers where the product can be swapped, into shared memory elsewhere."""
    hooks = case("gemm", format="mxfp8", mixed=True)
    operation = hooks.build(hooks.inputs(48, 192, 96, 1), hooks.outputs(48, 192, 96, 1))
    operation.compile()
    chosen = {m: operation._choose(tuple(operation._compiled_kernel), Extents(m, 8192, 8192, 1)) for m in (1, 16, 64, 128, 256, 2048, 16384)}
    assert [(config.tile_n, config.split_k) for config in chosen.values() if config.swap] == [(32, 2), (32, 2), (64, 2), (128, 2), (128, 2), (256, 1)]
    assert not chosen[16384].converts_inside and not any(config.convert_b for config in chosen.values())
    assert operation._choose(tuple(operation._compiled_kernel), Extents(16, 128, 128, 1)).swap
    for mixed in (False, True):
        hooks = case("gemm", format="mxfp8", mixed=mixed, b_major="n")
        hooks.wrapper(hooks.inputs(16, 192, 96, 1))
        assert log.ran[-1][0].problem.a_format is log.ran[-1][0].problem.b_format is None
    inputs = case("gemm", format="mxfp8", mixed=True).inputs(16, 192, 96, 1)
    gemm_api.gemm_wrapper(**inputs, bias_tensor=torch.zeros(192, dtype=torch.bfloat16))
    assert log.ran[-1][0].problem.a_format == "mxfp8"
    hooks = case("srelu", format="mxfp8", mixed=True)
    hooks.wrapper(hooks.inputs(16, 192, 96, 1))
    assert log.ran[-1][0].config.convert_b


def test_the_tuner_tries_what_the_rule_chooses_from(log):
    """Ways to convert weights inside the kernel among them, which the problem of the 16-bit kernels does not show; results are kept for the format."""
    hooks = case("gemm", format="mxfp8", mixed=True)
    inputs, outputs = hooks.inputs(48, 192, 96, 1), hooks.outputs(48, 192, 96, 1)
    operation = hooks.build(inputs, outputs)
    operation.compile()
    given = {**inputs, **outputs}
    tuned = operation._case(tuple(given[name] for name in operation._layout.names), (1.0,))
    assert set(SWAPPED) < set(tuned.candidates) and tuned.default in SWAPPED and tuned.problem.b_format == "mxfp8"
    swapped, front = tuned.spec(SWAPPED[0]), tuned.spec(GemmConfig(128, 64))
    assert (swapped.problem.a_format, swapped.options.out_major) == ("mxfp8", "m") and front.problem.b_format is front.problem.a_format is None


def test_a_shipped_result_is_precompiled_as_its_kernel_sees_the_problem(log, monkeypatch):
    results = {"gemm": [GemmConfig(128, 192), SWAPPED[3]], "gemm_amax": [GemmConfig(128, 192), GemmConfig(64, 128, split_k=4, convert_b=True)]}

    def shipped(package, op, problem, options):
        return results[op] if (problem.b_format, problem.a_format, options.out_major) == ("mxfp8", None, "n") else []

    monkeypatch.setattr(table, "shipped_configs", shipped)
    for api in (gemm_api, amax_api):
        listed = [spec for spec in api.precompile_specs() if "mxfp8" in (spec.problem.a_format, spec.problem.b_format)][:1]
        *_, front, inside = with_shipped("cudnn_gemm_dense", listed)
        assert (front.config, front.problem.a_format, front.problem.b_format, front.options.out_major) == (GemmConfig(128, 192), None, None, "n")
        assert inside.config == results[inside.op][1]
        assert (inside.problem.a_format, inside.problem.b_format) == (("mxfp8", None) if inside.config.swap else (None, "mxfp8"))
        assert inside.options.out_major == ("m" if inside.config.swap else "n")


def test_float16_activations_make_float16_weights(log):
    hooks = case("gemm", format="mxfp8", mixed=True)
    inputs = hooks.inputs(48, 64, 96, 1)
    inputs["a_tensor"] = inputs["a_tensor"].half()
    d = gemm_api.gemm_wrapper(**inputs, d_dtype="float32", config=IN_FRONT)["d_tensor"]
    assert log.ran[0][0].target == "float16" and log.ran[1][0].problem.a_dtype == log.ran[1][0].problem.b_dtype == "float16"
    torch.testing.assert_close(d.double(), hooks.product(inputs), rtol=1e-5, atol=1e-4)


def test_packed_outputs(log):
    """Decided for the published gap: the wrapper's 4-bit C is packed, and what a class writes is the same."""
    hooks = case("amax", format="nvfp4", c_dtype=torch.float4_e2m1fn_x2)
    inputs = hooks.inputs(48, 64, 96, 2)
    found = hooks.wrapper(inputs)
    assert found["c_tensor"].shape == (48, 32, 2) and found["c_tensor"].stride() == (32, 1, 48 * 32) and found["c_tensor"].dtype == torch.float4_e2m1fn_x2
    exact = hooks.product(inputs)
    assert torch.equal(found["c_tensor"].view(torch.uint8), pack_fp4(encode_e2m1(exact.float()), 1).view(torch.uint8))
    for dtype in (torch.float4_e2m1fn_x2, torch.uint8):
        c, amax = torch.zeros(2, 48, 32, dtype=torch.uint8).permute(1, 2, 0).view(dtype), torch.full((1, 1, 1), float("-inf"))
        samples = {f"sample_{name.removesuffix('_tensor')}": t for name, t in inputs.items()}
        amax_api.GemmAmax(**samples, sample_c=c, sample_amax=amax, sf_vec_size=16)(**inputs, c_tensor=c, amax_tensor=amax)
        assert torch.equal(c.view(torch.uint8), found["c_tensor"].view(torch.uint8)) and torch.equal(amax, found["amax_tensor"])


def test_bytes_stand_for_packed_operands(log):
    hooks = case("gemm", format="mxfp4")
    inputs = hooks.inputs(48, 64, 96, 1)
    expected = hooks.wrapper(inputs)["d_tensor"]
    bytes_ = {name: t.view(torch.uint8) if name in ("a_tensor", "b_tensor") else t for name, t in inputs.items()}
    assert same_bits(hooks.wrapper(bytes_)["d_tensor"], expected)


def test_what_a_call_may_not_change(log):
    hooks = case("gemm", format="mxfp8")
    inputs, d = hooks.inputs(48, 64, 96, 1), torch.zeros(48, 64, 1, dtype=torch.bfloat16)
    operation = hooks.build(inputs, {"d_tensor": d})
    operation.compile()
    for name in ("sfa_tensor", "sfb_tensor"):
        with pytest.raises(ValueError, match=f"{name}: found None, needs one as in the samples"):
            operation.execute(**{**inputs, name: None}, d_tensor=d)
        buffer = torch.zeros(ScaleLayout(128, 96, 1, 32).entries + 16, dtype=torch.uint8)
        start = (-buffer.data_ptr()) % 16 + 8
        moved = buffer[start : start + 512].view(torch.float8_e8m0fnu).view(1, 1, 1, 32, 4, 4)
        with pytest.raises(ValueError, match=rf"{name}.*needs 16-byte alignment"):
            operation.execute(**{**inputs, name: moved}, d_tensor=d)
        with pytest.raises(ValueError, match=f"{name}: found shape"):
            operation.execute(**{**inputs, name: inputs[name].repeat(1, 1, 2, 1, 1, 1)}, d_tensor=d)
        with pytest.raises(ValueError, match=f"{name}: found dtype float8_e4m3fn, needs float8_e8m0fnu"):
            operation.execute(**{**inputs, name: inputs[name].view(torch.float8_e4m3fn)}, d_tensor=d)
    with pytest.raises(ValueError, match="a_tensor: found K = 88"):
        short = {name: t[:, :88] if name in ("a_tensor", "b_tensor") else t for name, t in inputs.items()}
        operation.execute(**short, d_tensor=d)
    assert format_of("float8_e4m3fn", "float8_e8m0fnu", 32) is FORMATS["mxfp8"]
