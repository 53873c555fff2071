"""Block-scaled operands and quantised outputs of the dense operations on CPU tensors, where the reference engine computes."""

from __future__ import annotations

import itertools

import pytest
import torch

from cudnn.block_scale import FORMATS, FP4, ScaleLayout, format_of
from cudnn.datatypes import dtype_name
from cudnn.reference import cast, quantize_blocks
from cudnn.testing.conformance import GemmConformance, same_bits
from cudnn_gemm_dense.amax.api import gemm_amax_wrapper
from cudnn_gemm_dense.amax.conformance import AmaxHooks
from cudnn_gemm_dense.conformance import random_compact
from cudnn_gemm_dense.conformance_scaled import QuantizedHooks, ScaledHooks, ScaledSwigluHooks, as_form, check_quantized, entries, exact_scaled, random_scaled
from cudnn_gemm_dense.dsrelu.api import gemm_dsrelu_wrapper
from cudnn_gemm_dense.dsrelu.conformance import DsreluHooks
from cudnn_gemm_dense.gemm.api import Gemm, gemm_wrapper
from cudnn_gemm_dense.gemm.conformance import GemmHooks
from cudnn_gemm_dense.srelu.api import GemmSrelu, gemm_srelu_wrapper
from cudnn_gemm_dense.srelu.conformance import SreluHooks
from cudnn_gemm_dense.swiglu.api import gemm_swiglu_wrapper


class Scaled(ScaledHooks):
    n_step, k_step = 16, 32
    # torch makes no parameters of packed and 8-bit numbers as these tests compare.
    test_parameters_that_require_grad = None


class TestGemm(Scaled, GemmHooks, GemmConformance):
    format = "nvfp4"


class TestGemmWeights(Scaled, GemmHooks, GemmConformance):
    """bfloat16 activations."""

    format = "mxfp4"
    mixed = True
    bias = torch.bfloat16
    test_torch_compile_of_the_wrapper = test_torch_compile_of_the_class = None


class TestAmax(Scaled, AmaxHooks, GemmConformance):
    format = "mxfp8_e5m2"
    b_major = "n"


class TestSrelu(Scaled, QuantizedHooks, SreluHooks, GemmConformance):
    norm = 3.0


class TestDsrelu(Scaled, QuantizedHooks, DsreluHooks, GemmConformance):
    d_dtype = torch.float8_e5m2
    test_torch_compile_of_the_wrapper = None


class TestSwiglu(Scaled, ScaledSwigluHooks, GemmConformance):
    n_step = 64
    c_dtype = torch.float32


HOOKS = {"gemm": (GemmHooks,), "amax": (AmaxHooks,), "srelu": (SreluHooks,), "dsrelu": (DsreluHooks,), "swiglu": ()}


def case(op: str, quantized: bool = False, **attributes):
    scaled = ScaledSwigluHooks if op == "swiglu" else ScaledHooks
    hooks = type(op, (scaled, *((QuantizedHooks,) if quantized else ()), *HOOKS[op], GemmConformance), {})()
    for name, value in attributes.items():
        setattr(hooks, name, value)
    return hooks


@pytest.mark.parametrize("mixed", [False, True], ids=["both", "weights"])
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("op", HOOKS)
def test_formats_majors_and_ragged_sizes(op, kind, mixed):
    """Against the dequantised operands in float64, rows and blocks that end anywhere, and NaN wherever a scale factor belongs to no row or block."""
    fp4 = FORMATS[kind].element == FP4
    for a_major, b_major in ("kk",) if fp4 else itertools.product("km", "kn"):
        for out_major in ("n",) if op == "swiglu" and fp4 else ("n", "m"):
            for m, n, k in ((144, 192, 96), (16, 64, 160)) if "m" in (a_major, out_major) else ((1, 64, 32), (131, 192, 160)):
                hooks = case(op, format=kind, mixed=mixed, a_major=a_major, b_major=b_major, out_major=out_major, logical=out_major == "n")
                inputs = hooks.inputs(m, n, k, 2 if m > 100 else 1)
                hooks.check(inputs, hooks.wrapper(inputs))


@pytest.mark.parametrize("d_dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("op", ["srelu", "dsrelu"])
def test_quantised_outputs(op, d_dtype):
    """D and its scale factors are those of the product, of every kind of operands, whatever the norm constant, and ragged blocks are those of the columns that there are."""
    for kind, out_major, norm in (("mxfp8", "n", 1.0), ("mxfp8_e5m2", "m", 2.0**-20), ("mxfp8", "n", 1000.0)):
        for mixed, (m, n, k) in ((False, (144, 176, 64)), (True, (32, 48, 96))):
            hooks = case(op, quantized=True, format=kind, mixed=mixed, out_major=out_major, d_dtype=d_dtype, norm=norm)
            inputs = hooks.inputs(m, n, k, 2)
            result = hooks.wrapper(inputs)
            hooks.check(inputs, result)
            padding = torch.ones(result["sfd_tensor"].numel(), dtype=torch.bool)
            padding[entries(m, n, 2, 32).flatten()] = False
            assert not result["sfd_tensor"].as_strided((padding.numel(),), (1,)).view(torch.uint8)[padding].any()


@pytest.mark.parametrize("d_dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_quantised_outputs_bit_for_bit(d_dtype):
    """Sums that are exact in any order give the bits of the quantiser on what they give."""
    for norm in (1.0, 3.0, 2.0**-30):
        (a, sfa), (b, sfb) = exact_scaled(144, 64, 2, "cpu"), exact_scaled(176, 64, 2, "cpu")
        s = torch.einsum("mkl,nkl->mnl", a.float(), b.float())
        prob, c = torch.full((144, 1, 2), 0.5), torch.full((144, 176, 2), 2.0).permute(2, 0, 1).contiguous().permute(1, 2, 0)
        common = {"sfa_tensor": sfa, "sfb_tensor": sfb, "prob_tensor": prob, "norm_const_tensor": torch.tensor([norm]), "sf_vec_size": 32, "d_dtype": d_dtype}
        for result, y in (
            (gemm_srelu_wrapper(a, b, **common), s.relu().square() * 0.5),
            (gemm_dsrelu_wrapper(a, b, c, **common), 2 * s.relu() * (2.0 * 0.5)),
        ):
            data, scales = quantize_blocks(y.permute(2, 0, 1), format_of(dtype_name(d_dtype), "float8_e8m0fnu", 32), norm)
            assert same_bits(result["d_tensor"].permute(2, 0, 1).contiguous(), data)
            found = result["sfd_tensor"].view(torch.uint8).as_strided((result["sfd_tensor"].numel(),), (1,))[entries(144, 176, 2, 32)]
            assert torch.equal(found, scales.view(torch.uint8).permute(1, 2, 0))


def test_the_check_of_quantised_outputs_sees_what_is_wrong():
    y = torch.randn(64, 96, 1, dtype=torch.float64)
    data, scales = quantize_blocks(y.permute(2, 0, 1).float(), FORMATS["mxfp8"], 1.0)
    data, layout = data.permute(1, 2, 0), ScaleLayout(64, 96, 1, 32)
    buffer = torch.zeros(layout.entries, dtype=torch.uint8)
    buffer[entries(64, 96, 1, 32)] = scales.view(torch.uint8).permute(1, 2, 0)
    form = as_form(buffer, layout)
    check_quantized(y, data, form, 1.0, 32)
    for wrong in ((y * 1.5, data, form), (y.flip(1), data, form), (y, data, as_form(buffer + 1, layout)), (y, data.roll(1, 0), form)):
        with pytest.raises(AssertionError):
            check_quantized(*wrong, 1.0, 32)


def test_what_is_none():
    """Of every wrapper, in the published order."""
    fp8, fp4, weights = (case("gemm", format=kind, mixed=mixed).inputs(16, 64, 64, 1) for kind, mixed in (("mxfp8", False), ("nvfp4", False), ("mxfp8", True)))
    prob, one = torch.ones(16, 1, 1), torch.ones(1)
    found = gemm_srelu_wrapper(**fp4, prob_tensor=prob)
    assert list(found.keys()) == ["c_tensor", "d_tensor", "amax_tensor", "sfd_tensor"]
    assert found["amax_tensor"].shape == (1,) and found["sfd_tensor"] is None and found["amax_tensor"].item() > 0
    for inputs in (fp8, weights):
        found = gemm_srelu_wrapper(**inputs, prob_tensor=prob, sf_vec_size=32)
        assert found["amax_tensor"] is found["sfd_tensor"] is None
        found = gemm_srelu_wrapper(**inputs, prob_tensor=prob, sf_vec_size=32, norm_const_tensor=one, d_dtype="float8_e4m3fn")
        assert found["amax_tensor"] is None and found["sfd_tensor"].shape == (32, 4, 1, 4, 1, 1) and found["sfd_tensor"].dtype == torch.float8_e8m0fnu
    with pytest.raises(ValueError, match="d_tensor: found dtype float8_e4m3fn without norm_const_tensor"):
        gemm_srelu_wrapper(**fp8, prob_tensor=prob, sf_vec_size=32, d_dtype="float8_e4m3fn")
    c = random_compact((16, 64, 1), 1, torch.bfloat16, "cpu")
    found = gemm_dsrelu_wrapper(
        fp8["a_tensor"], fp8["b_tensor"], c, fp8["sfa_tensor"], fp8["sfb_tensor"], prob, norm_const_tensor=one, sf_vec_size=32, d_dtype="float8_e5m2"
    )
    assert list(found.keys()) == ["d_tensor", "dprob_tensor", "amax_tensor", "sfd_tensor"] and found["amax_tensor"] is None and found["sfd_tensor"] is not None
    found = gemm_swiglu_wrapper(**fp4, c_dtype="bfloat16")
    assert (
        list(found.keys()) == ["ab12_tensor", "c_tensor", "sfc_tensor", "amax_tensor"]
        and found["sfc_tensor"] is None
        and found["amax_tensor"].shape == (1, 1, 1)
    )
    for inputs, vec in ((fp8, 32), (weights, 32)):
        found = gemm_swiglu_wrapper(**inputs, ab12_dtype="bfloat16", c_dtype="bfloat16", sf_vec_size=vec)
        assert found["sfc_tensor"] is found["amax_tensor"] is None
    assert gemm_amax_wrapper(**fp8)["amax_tensor"].shape == (1, 1, 1)
    assert list(gemm_wrapper(**weights).keys()) == ["d_tensor"] and gemm_wrapper(**fp4, sf_vec_size=16)["d_tensor"].dtype == torch.bfloat16


def test_scale_factors_without_a_quantised_output_are_left_alone():
    """The published rule: SFD and norm_const belong to an fp8 D."""
    hooks = case("srelu", quantized=True, format="mxfp8")
    inputs = hooks.inputs(48, 64, 64, 1)
    outputs = hooks.outputs(48, 64, 64, 1)
    outputs["d_tensor"] = torch.empty_like(outputs["c_tensor"])
    before = outputs["sfd_tensor"].clone()
    hooks.build(inputs, outputs)(**inputs, **outputs)
    assert same_bits(outputs["sfd_tensor"], before)
    plain = {name: t for name, t in inputs.items() if name != "norm_const_tensor"}
    assert same_bits(outputs["d_tensor"], gemm_srelu_wrapper(**plain, sf_vec_size=32)["d_tensor"])


@pytest.mark.parametrize("glu_layout", ["interleaved32", "concatenated", "separate"])
def test_layouts_of_gate_and_up(glu_layout):
    """Also under torch.compile, where a pair of weights has a pair of scale factors."""
    import torch._dynamo

    torch._dynamo.reset()
    for kind, mixed in (("nvfp4", False), ("mxfp8", True)):
        hooks = case("swiglu", format=kind, mixed=mixed, glu_layout=glu_layout)
        inputs = hooks.inputs(48, 192, 96, 2)
        result = hooks.wrapper(inputs)
        hooks.check(inputs, result)
        outputs = hooks.outputs(48, 192, 96, 2)
        op = hooks.build(inputs, outputs)
        op.compile()
        torch.compile(lambda inputs, outputs, op=op: op.execute(**inputs, **outputs), fullgraph=True, backend="aot_eager")(inputs, outputs)
        assert all(same_bits(t, result[name]) for name, t in outputs.items())


def test_results_of_configurations_are_compared_byte_by_byte():
    """Packed 4-bit outputs and e8m0 factors, as the tuner has them."""
    from cudnn.tuning.copies import disagreement

    for dtype in (torch.float4_e2m1fn_x2, torch.float8_e8m0fnu):
        found = torch.randint(0, 255, (64, 32), dtype=torch.uint8)
        assert disagreement(found.view(dtype), found.clone().view(dtype), 0.0) is None
        assert disagreement((found ^ 1).view(dtype), found.view(dtype), 0.0) == "2048 of 2048 elements differ from those of the default configuration"


def test_a_quantised_output_of_16_bit_operands():
    """No operand has scale factors: what leaves has."""
    for dtype in (torch.bfloat16, torch.float16):
        a, b = random_compact((48, 64, 2), 1, dtype, "cpu"), random_compact((80, 64, 2), 1, dtype, "cpu", 0.125)
        prob, norm = torch.rand(48, 1, 2) + 0.5, torch.tensor([2.0])
        found = gemm_srelu_wrapper(a, b, prob_tensor=prob, norm_const_tensor=norm, sf_vec_size=32, d_dtype="float8_e4m3fn")
        y = torch.einsum("mkl,nkl->mnl", a.double(), b.double()).relu().square() * prob.double()
        check_quantized(y, found["d_tensor"], found["sfd_tensor"], 2.0, 32)


@pytest.mark.parametrize("kind", FORMATS)
def test_amax_is_of_magnitudes_before_rounding(kind):
    """Case 59: the largest magnitude is that of a negative number, and C's rounding does not change it, in every dtype of C."""
    dtypes = [torch.float32, torch.bfloat16, torch.float16]
    dtypes += [torch.float8_e4m3fn, torch.float8_e5m2, torch.float4_e2m1fn_x2] if FORMATS[kind].element == FP4 else []
    hooks = case("amax", format=kind)
    inputs = hooks.inputs(16, 64, 64, 1)
    a, b = hooks.wide(inputs)
    exact = torch.einsum("mkl,nkl->mnl", a, b)
    if exact.min().abs() < exact.max():
        # The largest row of A with its sign turned.
        worst = int(exact.amax((1, 2)).argmax())
        bytes_ = inputs["a_tensor"].view(torch.uint8)
        bytes_[worst] ^= 0x88 if FORMATS[kind].element == FP4 else 0x80
        exact[worst] = -exact[worst]
    assert exact.min().abs() >= exact.max()
    for dtype in dtypes:
        found = gemm_amax_wrapper(**inputs, c_dtype=dtype, sf_vec_size=FORMATS[kind].vec)
        assert found["amax_tensor"].item() == pytest.approx(exact.abs().max().item(), rel=1e-6)
        if dtype != torch.float4_e2m1fn_x2:
            assert (found["c_tensor"].float() - cast(exact.float(), dtype).float()).abs().max() <= torch.finfo(dtype).eps * exact.abs().max()


def test_dtypes_in_any_order():
    """Case 40: problems of equal shapes and other dtypes, in both orders."""
    problems = []
    for kind, mixed, d_dtype in itertools.product(("mxfp8", "mxfp8_e5m2", "mxfp4", "nvfp4"), (False, True), (torch.bfloat16, torch.float32)):
        hooks = case("gemm", format=kind, mixed=mixed, d_dtype=d_dtype)
        problems.append((hooks, hooks.inputs(48, 64, 64, 1)))
    plain = GemmHooks()
    problems += [(plain, plain.inputs(48, 64, 64, 1))]
    for hooks, inputs in (*problems, *reversed(problems)):
        result = hooks.wrapper(inputs)
        error = (result["d_tensor"].double() - hooks.product(inputs)).abs().max()
        assert error <= 2.0**-7 * hooks.product(inputs).abs().max()


def test_scale_factors_are_found_by_address():
    """Both forms are the same bytes; what belongs to no row or block is not looked at."""
    hooks = case("gemm", format="nvfp4")
    inputs = hooks.inputs(131, 48, 96, 2)
    expected = gemm_wrapper(**inputs, sf_vec_size=16)["d_tensor"]
    assert expected.isfinite().all() and inputs["sfa_tensor"].view(torch.uint8).eq(0x7F).any()
    physical = {name: t.permute(5, 2, 4, 0, 1, 3) if t.shape[0] == 32 else t for name, t in inputs.items() if name.startswith("sf")}
    assert all(t.is_contiguous() for t in physical.values())
    assert same_bits(gemm_wrapper(**{**inputs, **physical}, sf_vec_size=16)["d_tensor"], expected)


def test_operands_of_one_object_are_bound_to_their_format():
    hooks = case("gemm", format="mxfp8")
    inputs, d = hooks.inputs(32, 64, 64, 1), torch.empty(32, 64, 1, dtype=torch.bfloat16)
    op = hooks.build(inputs, {"d_tensor": d})
    op(**inputs, d_tensor=d)
    other = case("gemm", format="mxfp8_e5m2").inputs(32, 64, 64, 1)
    with pytest.raises(ValueError, match="a_tensor: found dtype float8_e5m2, needs float8_e4m3fn"):
        op.execute(**other, d_tensor=d)
    with pytest.raises(ValueError, match="sfa_tensor: found None, needs one as in the samples"):
        op.execute(**{**inputs, "sfa_tensor": None}, d_tensor=d)
    with pytest.raises(ValueError, match="sfb_tensor: found one, needs None as in the samples"):
        plain = {name: t.bfloat16() for name, t in inputs.items() if name in ("a_tensor", "b_tensor")}
        Gemm(plain["a_tensor"], plain["b_tensor"], d)(**plain, d_tensor=d, sfb_tensor=inputs["sfb_tensor"])
    with pytest.raises(ValueError, match="sf_vec_size: found 8, needs 16 or 32"):
        gemm_wrapper(**inputs, sf_vec_size=8)
    with pytest.raises(ValueError, match="sfa_tensor: found shape"):
        gemm_wrapper(**{**inputs, "sfa_tensor": random_scaled(200, 64, 1, FORMATS["mxfp8"], "cpu")[1]})
    with pytest.raises(ValueError, match="sfa_tensor: found None while another argument"):
        GemmSrelu(inputs["a_tensor"], inputs["b_tensor"], d, d, None, inputs["sfb_tensor"], torch.ones(32, 1, 1), sf_vec_size=32).check_support()
