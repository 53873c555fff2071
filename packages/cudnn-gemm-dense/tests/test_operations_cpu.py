"""What the dense operations besides GEMM + SwiGLU compute and return, on CPU tensors, where the reference engine computes; and what of the kernel's host side a stub can show."""

from __future__ import annotations

import importlib
import itertools

import pytest
import torch

from cudnn import gemm_operation, wrapper_calls
from cudnn.gemm_operation import GemmOperation
from cudnn.testing.conformance import same_bits
from cudnn.testing.numeric import assert_as_accurate
from cudnn.tuple_dict import TupleDict
from cudnn_gemm_dense.amax.api import GemmAmax, gemm_amax_wrapper
from cudnn_gemm_dense.amax.conformance import AmaxHooks
from cudnn_gemm_dense.conformance import random_compact
from cudnn_gemm_dense.dsrelu.api import GemmDsrelu, gemm_dsrelu_wrapper
from cudnn_gemm_dense.dsrelu.conformance import DsreluHooks
from cudnn_gemm_dense.dswiglu.api import GemmDswiglu, gemm_dswiglu_wrapper
from cudnn_gemm_dense.dswiglu.conformance import DswigluHooks
from cudnn_gemm_dense.gemm.api import Gemm, gemm_wrapper
from cudnn_gemm_dense.gemm.conformance import GemmHooks
from cudnn_gemm_dense.operation import fitting_configs, unfit_reason
from cudnn_gemm_dense.srelu.api import GemmSrelu, gemm_srelu_wrapper
from cudnn_gemm_dense.srelu.conformance import SreluHooks

HOOKS = {"gemm": GemmHooks, "amax": AmaxHooks, "srelu": SreluHooks, "dsrelu": DsreluHooks, "dswiglu": DswigluHooks}
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def case(op: str, **attributes):
    hooks = HOOKS[op]()
    for name, value in attributes.items():
        setattr(hooks, name, value)
    return hooks


def api(op: str):
    return importlib.import_module(f"cudnn_gemm_dense.{op}.api")


@pytest.fixture(autouse=True)
def forget(fresh):
    fresh(*(api(op).CALLS for op in HOOKS))


def agree(hooks, inputs, result) -> None:
    reference, baseline = hooks.reference(inputs), hooks.baseline(inputs)
    for name in reference:
        assert_as_accurate(name, result[name], reference[name], baseline[name])


@pytest.mark.parametrize("op", HOOKS)
@pytest.mark.parametrize("majors", ["".join(majors) for majors in itertools.product("km", "kn", "nm")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, E4M3, E5M2], ids=str)
def test_dtypes_and_majors(op, majors, dtype):
    hooks = case(op, dtype=dtype, a_major=majors[0], b_major=majors[1], out_major=majors[2])
    for batches in (1, 3):
        inputs = hooks.inputs(16, 32, 48, batches)
        agree(hooks, inputs, hooks.wrapper(inputs))


@pytest.mark.parametrize("majors", ["kk", "mk", "kn", "mn"])
def test_gemm_of_float32(majors):
    hooks = case("gemm", dtype=torch.float32, d_dtype=torch.float32, a_major=majors[0], b_major=majors[1], bias=torch.float32)
    inputs = hooks.inputs(16, 32, 48, 2)
    agree(hooks, inputs, hooks.wrapper(inputs))
    assert gemm_wrapper(inputs["a_tensor"], inputs["b_tensor"])["d_tensor"].dtype == torch.float32


@pytest.mark.parametrize("alpha", [2.0, -0.5, 0.0, 3])
@pytest.mark.parametrize("op", [op for op in HOOKS if op != "amax"])
def test_alpha_is_a_run_time_value(op, alpha):
    hooks = case(op, alpha=alpha)
    inputs = hooks.inputs(9, 32, 40, 1)
    agree(hooks, inputs, hooks.wrapper(inputs, alpha=alpha))
    objects = len(api(op).CALLS._objects)
    hooks.wrapper(inputs, alpha=alpha + 1)
    assert len(api(op).CALLS._objects) == objects
    # The class's own alpha holds where execute is given none.
    outputs = {name: torch.zeros_like(t) for name, t in hooks.wrapper(inputs).items() if t is not None}
    samples = {f"sample_{name.removesuffix('_tensor')}": t for name, t in {**inputs, **outputs}.items()}
    built = type(hooks.build(inputs, outputs))(**samples, alpha=alpha)
    built(**inputs, **outputs)
    agree(hooks, inputs, outputs)
    with pytest.raises(ValueError, match="alpha: found a Tensor, needs a number on the host"):
        built.execute(**inputs, **outputs, alpha=torch.ones(()))


def test_results_in_their_documented_order():
    found = {op: case(op).wrapper(case(op).inputs(16, 32, 48, 2)) for op in HOOKS}
    assert {type(result) for result in found.values()} == {TupleDict}
    assert {op: list(result.keys()) for op, result in found.items()} == {
        "gemm": ["d_tensor"],
        "amax": ["c_tensor", "amax_tensor"],
        "srelu": ["c_tensor", "d_tensor", "amax_tensor", "sfd_tensor"],
        "dsrelu": ["d_tensor", "dprob_tensor", "amax_tensor", "sfd_tensor"],
        "dswiglu": ["d_ab12_tensor", "c_tensor"],
    }
    assert found["srelu"][2] is found["srelu"][3] is found["dsrelu"][2] is found["dsrelu"][3] is None
    assert found["amax"]["amax_tensor"].shape == (1, 1, 1)
    assert found["dsrelu"]["dprob_tensor"].stride() == (2, 2, 1)
    inputs = case("dswiglu").inputs(16, 32, 48, 2)
    assert gemm_dswiglu_wrapper(**inputs)["c_tensor"] is None


def test_published_defaults_and_names():
    a, b, prob = torch.randn(8, 16, 1).half(), torch.randn(16, 16, 1).half(), torch.ones(8, 1, 1)
    assert gemm_amax_wrapper(a, b)["c_tensor"].dtype == torch.float32
    srelu = gemm_srelu_wrapper(a, b, None, None, prob)
    assert srelu["c_tensor"].dtype == srelu["d_tensor"].dtype == torch.bfloat16
    assert gemm_dsrelu_wrapper(a, b, torch.randn(8, 16, 1), None, None, prob)["d_tensor"].dtype == torch.bfloat16
    assert gemm_wrapper(a, b)["d_tensor"].dtype == torch.float16
    assert gemm_wrapper(a.to(E4M3), b.to(E4M3))["d_tensor"].dtype == torch.bfloat16
    for op, cls in (("amax", GemmAmax), ("srelu", GemmSrelu), ("dsrelu", GemmDsrelu)):
        module = api(op)
        assert getattr(module, f"{cls.__name__}Sm100") is cls
        assert getattr(module, f"gemm_{op}_wrapper_sm100") is getattr(module, f"gemm_{op}_wrapper")


@pytest.mark.parametrize("op", HOOKS)
def test_hints_change_nothing(op):
    hooks = case(op)
    inputs = hooks.inputs(40, 64, 64, 2)
    expected = hooks.wrapper(inputs)
    hints = [{"mma_tiler_mn": (128, 256), "cluster_shape_mn": (2, 1)}, {"mma_tiler_mn": [128, 128]}, {"config": {"tile_m": 128, "tile_n": 64}}]
    for options in hints:
        result = hooks.wrapper(inputs, **options)
        assert all(t is None and result[name] is None or same_bits(result[name], t) for name, t in expected.items())
    assert len(api(op).CALLS._objects) <= 2  # one for the config; hints share


# amax


def test_amax_is_of_magnitudes_before_rounding():
    """Case 59: the largest magnitude may be negative, and C's rounding does not change it."""
    a, b = torch.zeros(8, 16, 1).bfloat16(), torch.zeros(16, 16, 1).bfloat16()
    a[3, 0], b[5, 0] = -3.0, 1.0078125
    b[5, 1], a[3, 1] = 2.0**-7, 2.0**-6  # the sum has more digits than bfloat16
    result = gemm_amax_wrapper(a, b, c_dtype="bfloat16")
    exact = 3.0 * 1.0078125 - 2.0**-13
    assert result["amax_tensor"].item() == exact and result["c_tensor"].abs().max().item() != exact
    assert result["c_tensor"].min().item() == torch.tensor(-exact).bfloat16().item()


@pytest.mark.parametrize("held, expected", [(float("-inf"), 2.0), (0.0, 2.0), (-1.0, 2.0), (7.5, 7.5), (float("nan"), float("nan"))])
def test_amax_is_merged_into_what_is_there(held, expected):
    """NaN among the results does not count, and one that is there stays."""
    a, b = torch.zeros(8, 16, 1).bfloat16(), torch.zeros(16, 16, 1).bfloat16()
    a[0, 0], b[0, 0] = -2.0, 1.0
    a[1, 0] = float("nan")
    for shape in ((), (1,), (1, 1), (1, 1, 1)):
        c, amax = torch.empty(8, 16, 1), torch.full(shape, held)
        GemmAmax(a, b, None, None, c, amax)(a, b, c_tensor=c, amax_tensor=amax)
        assert torch.equal(amax.isnan(), torch.full(shape, held).isnan()) and amax.shape == shape
        assert amax.isnan() or amax.item() == expected


def test_amax_of_a_class_with_one_and_without():
    for op, cls in (("srelu", GemmSrelu), ("dsrelu", GemmDsrelu)):
        hooks = case(op)
        inputs = hooks.inputs(16, 32, 48, 2)
        outputs = {name: torch.zeros_like(t) for name, t in hooks.wrapper(inputs).items() if t is not None}
        amax = torch.full((1,), float("-inf"))
        samples = {f"sample_{name.removesuffix('_tensor')}": t for name, t in {**inputs, **outputs}.items()}
        cls(**samples, sample_amax=amax)(**inputs, **outputs, amax_tensor=amax)
        torch.testing.assert_close(amax.double(), hooks.reference(inputs)["d_tensor"].abs().amax().view(1), rtol=1e-5, atol=0)
        with pytest.raises(ValueError, match="amax_tensor: found one, needs None as in the samples"):
            cls(**samples)(**inputs, **outputs, amax_tensor=amax)
        with pytest.raises(ValueError, match="amax_tensor: found None, needs one as in the samples"):
            cls(**samples, sample_amax=amax)(**inputs, **outputs)


# Squared ReLU


def test_srelu_takes_the_unrounded_product():
    """D is the square of S, not of what C keeps of it, and prob is a factor of any strides."""
    hooks = case("srelu", c_dtype=E4M3, d_dtype=torch.float32)
    inputs = hooks.inputs(16, 32, 48, 2)
    inputs["prob_tensor"] = torch.randn(2, 16, 5).permute(1, 2, 0)[:, 2:3]
    s = torch.einsum("mkl,nkl->mnl", inputs["a_tensor"].double(), inputs["b_tensor"].double())
    result = gemm_srelu_wrapper(**inputs, c_dtype=E4M3, d_dtype="float32")
    torch.testing.assert_close(result["d_tensor"].double(), s.relu() ** 2 * inputs["prob_tensor"].double(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(result["c_tensor"].double(), s, rtol=0.07, atol=0.002)


def test_fp8_saturates():
    a, b = torch.full((8, 16, 1), 100.0).bfloat16(), torch.full((16, 16, 1), 100.0).bfloat16()
    assert gemm_srelu_wrapper(a, -b, prob_tensor=torch.ones(8, 1, 1), c_dtype=E4M3)["c_tensor"].float().unique().tolist() == [-448.0]
    assert gemm_wrapper(a, b, d_dtype=E5M2)["d_tensor"].float().unique().tolist() == [57344.0]
    assert gemm_amax_wrapper(a, b, c_dtype=E4M3)["c_tensor"].float().unique().tolist() == [448.0]


def test_dsrelu_is_the_gradient_of_srelu():
    """With C the gradient of D, D is the gradient of S and dprob that of prob: against autograd in float64."""
    m, n, k = 24, 40, 56
    a, b = random_compact((m, k, 2), 1, torch.float16, "cpu"), random_compact((n, k, 2), 1, torch.float16, "cpu", k**-0.5)
    c = random_compact((m, n, 2), 1, torch.float32, "cpu")
    prob = torch.rand(m, 1, 2) + 0.5
    s = (0.5 * torch.einsum("mkl,nkl->mnl", a.double(), b.double())).requires_grad_()
    factors = prob.double().requires_grad_()
    d_s, d_prob = torch.autograd.grad(s.relu() ** 2 * factors, (s, factors), c.double())
    for deterministic in (True, False, None):
        result = gemm_dsrelu_wrapper(a, b, c, prob_tensor=prob, alpha=0.5, d_dtype="float32", deterministic=deterministic)
        torch.testing.assert_close(result["d_tensor"].double(), d_s, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(result["dprob_tensor"].double(), d_prob, rtol=1e-5, atol=1e-5)


def test_dprob_is_added_to_what_is_there():
    hooks = case("dsrelu")
    inputs = hooks.inputs(16, 32, 48, 2)
    once = hooks.wrapper(inputs)
    start = torch.randn(16, 1, 2)
    d, dprob = torch.empty_like(once["d_tensor"]), torch.as_strided(torch.full((200,), 9.0), (16, 1, 2), (7, 1, 3), 1)
    dprob.copy_(start)
    op = hooks.build(inputs, {"d_tensor": d, "dprob_tensor": dprob})
    op(**inputs, d_tensor=d, dprob_tensor=dprob)
    torch.testing.assert_close(dprob, start + once["dprob_tensor"])
    op(**inputs, d_tensor=d, dprob_tensor=dprob)
    torch.testing.assert_close(dprob, start + 2 * once["dprob_tensor"])


# SwiGLU's gradient, plain GEMM


def test_dswiglu_layouts_agree():
    """Case 61: halves that differ by sign, in every layout."""
    from cudnn_gemm_dense.swiglu.layout import deinterleave_gate_up, interleave_gate_up

    a, b = random_compact((20, 48, 1), 1, torch.bfloat16, "cpu"), random_compact((64, 48, 1), 0, torch.bfloat16, "cpu", 0.2)
    gate, up = torch.randn(20, 64, 1).abs().bfloat16(), -torch.randn(20, 64, 1).abs().bfloat16()
    whole = torch.cat([gate, up], 1)
    expected = gemm_dswiglu_wrapper(a, b, whole, generate_c=True, glu_layout="concatenated")
    assert torch.equal(expected["c_tensor"], gemm_dswiglu_wrapper(a, b, whole, generate_c=True, glu_layout="separate")["c_tensor"])
    woven = gemm_dswiglu_wrapper(a, b, interleave_gate_up(whole, dim=1), generate_c=True)
    assert torch.equal(deinterleave_gate_up(woven["d_ab12_tensor"], dim=1), expected["d_ab12_tensor"])
    assert torch.equal(woven["c_tensor"], expected["c_tensor"]) and (expected["c_tensor"] <= 0).all()


def test_dswiglu_in_place():
    hooks = case("dswiglu")
    inputs = hooks.inputs(24, 64, 48, 2)
    expected = hooks.wrapper(inputs)
    outputs = {"d_ab12_tensor": inputs["ab12_tensor"], "c_tensor": torch.empty_like(expected["c_tensor"])}
    hooks.build(inputs, outputs)(**inputs, **outputs)
    assert same_bits(inputs["ab12_tensor"], expected["d_ab12_tensor"])


@pytest.mark.parametrize("rank", [1, 2])
def test_gemm_bias_of_either_rank(rank):
    a, b = random_compact((24, 48, 2), 1, torch.bfloat16, "cpu"), random_compact((40, 48, 2), 1, torch.bfloat16, "cpu", 0.2)
    bias = torch.randn(40, 3)[:, 0] if rank == 1 else torch.randn(2, 40).t()
    exact = torch.einsum("mkl,nkl->mnl", a.double(), b.double()) * 0.5 + bias.double().view(1, 40, -1)
    result = gemm_wrapper(a, b, bias_tensor=bias, alpha=0.5, d_dtype="float32")
    torch.testing.assert_close(result["d_tensor"].double(), exact, rtol=1e-5, atol=1e-5)
    with pytest.raises(
        ValueError, match="addend_tensor, bias_tensor: found addend_tensor None and bias_tensor None, needs them given or None as the samples were"
    ):
        op = Gemm(a, b, result["d_tensor"], bias)
        op(a, b, result["d_tensor"])


def test_gemm_into_its_addend():
    a, b = random_compact((24, 48, 1), 1, torch.bfloat16, "cpu"), random_compact((40, 48, 1), 1, torch.bfloat16, "cpu", 0.2)
    addend = torch.randn(24, 40, 1).bfloat16()
    expected = gemm_wrapper(a, b, addend_tensor=addend)["d_tensor"]
    Gemm(a, b, addend, sample_addend=addend)(a, b, addend, addend_tensor=addend)
    assert same_bits(addend, expected)


# The kernel's host side, with a stub in its place


@pytest.mark.parametrize("op", HOOKS)
def test_one_compile_for_every_m(op, stub):
    """Cases 38 and 39: extents, alpha and hints never compile; dtypes and majors do."""
    built, launched = stub
    hooks = case(op)
    for i, m in enumerate((1, 2, 3, 64, 127, 128, 129, 500, 1024, 3000)):
        inputs = hooks.inputs(m, 32 * (1 + i % 3), 8 * (1 + i % 5), 1 + i % 2)
        agree(hooks, inputs, hooks.wrapper(inputs))
    expected = fitting_configs(built[0].problem, built[0].options.footprint, swaps=op == "gemm")
    assert [spec.config for spec in built] == list(expected) and len(launched) == 10
    hooks.dtype = torch.float16
    hooks.wrapper(hooks.inputs(24, 32, 16, 1))
    assert len(built) == 2 * len(expected)
    hooks.out_major = "m"
    hooks.wrapper(hooks.inputs(24, 32, 16, 1))
    assert len(built) == 3 * len(expected) and built[2 * len(expected)].options.out_major == "m"
    hooks.wrapper(hooks.inputs(40, 32, 16, 1), config={"tile_m": 128, "tile_n": 64})
    assert len(built) == 3 * len(expected) + 1 and (built[-1].config.tile_m, built[-1].config.tile_n) == (128, 64)


@pytest.mark.parametrize("op", HOOKS)
def test_no_launch_for_empty_problems(op, stub):
    _, launched = stub
    hooks = case(op)
    for extents in ((0, 32, 16, 1), (8, 0, 16, 1), (8, 32, 16, 0), (8, 32, 0, 2)):
        hooks.wrapper(hooks.inputs(*extents))
    assert launched == []
    hooks.wrapper(hooks.inputs(8, 32, 16, 1))
    assert len(launched) == 1


def test_deterministic_follows_torch(stub):
    """Decisions 23: None follows torch's flag at each call of the wrapper, True and False hold against it."""
    built, _ = stub
    hooks = case("dsrelu", deterministic=None)
    inputs = hooks.inputs(24, 32, 16, 1)
    hooks.wrapper(inputs)
    assert {spec.options.deterministic for spec in built} == {False}
    torch.use_deterministic_algorithms(True)
    try:
        hooks.wrapper(inputs)
        assert built[-1].options.deterministic is True
        hooks.deterministic = False
        count = len(built)
        hooks.wrapper(inputs)
        assert len(built) == count
    finally:
        torch.use_deterministic_algorithms(False)


def test_scratch_of_a_deterministic_dprob(stub):
    """4 * M * L bytes for each tile along N, each tensor on 128 bytes; nothing without it."""
    hooks = case("dsrelu", config={"tile_m": 128, "tile_n": 128})
    inputs = hooks.inputs(24, 320, 16, 2)
    outputs = {name: torch.zeros_like(t) for name, t in hooks.wrapper(inputs).items() if t is not None}
    op = hooks.build(inputs, outputs)
    op.compile()
    assert op.workspace_bytes() == op.scratch_workspace_bytes() == 3 * 24 * 2 * 4 + 64
    hooks.deterministic = False
    assert hooks.build(inputs, outputs).workspace_bytes() == 0


@pytest.mark.parametrize("majors", [("m", "k"), ("k", "n"), ("m", "n")])
def test_scratch_of_transposed_operands(stub, majors):
    """fp8 operands that are not contiguous along K are seen by the kernel as if they were, with rows of whole 16 bytes."""
    built, _ = stub
    hooks = case("gemm", dtype=E4M3, a_major=majors[0], b_major=majors[1])
    inputs = hooks.inputs(32, 64, 40 if majors == ("m", "n") else 48, 2)
    outputs = {"d_tensor": torch.zeros(2, 32, 64).bfloat16().permute(1, 2, 0)}
    op = hooks.build(inputs, outputs)
    op.compile()
    assert {(spec.problem.a_major, spec.problem.b_major) for spec in built if hasattr(spec, "problem")} == {("k", "k")}
    rows = (32 if majors[0] == "m" else 0) + (64 if majors[1] == "n" else 0)
    assert op.workspace_bytes() == rows * 48 * 2


@pytest.mark.parametrize("op", HOOKS)
def test_what_the_kernel_is_called_with(op, monkeypatch, stub):
    """Operands, then the epilogue's tensors in the order of its description, then scratch."""
    seen = []
    hooks = case(op, config={"tile_m": 128, "tile_n": 64})

    def launch_for(self, extents, device_index):
        def run(tensors, scalars, stream):
            seen.append((self, tensors, scalars))

        return gemm_operation.Launch(None, otherwise=run)

    monkeypatch.setattr(GemmOperation, "_launch_for", launch_for)
    inputs = hooks.inputs(24, 96, 16, 2)
    made = hooks.wrapper(inputs)
    operation, tensors, scalars = seen[0]
    names = {id(t): name for name, t in {**inputs, **made}.items() if t is not None}
    assert [names[id(t)] for t in tensors] == {
        "gemm": ["a_tensor", "b_tensor", "d_tensor"],
        "amax": ["a_tensor", "b_tensor", "c_tensor", "amax_tensor"],
        "srelu": ["a_tensor", "b_tensor", "c_tensor", "d_tensor", "prob_tensor"],
        "dsrelu": ["a_tensor", "b_tensor", "c_tensor", "d_tensor", "prob_tensor", "dprob_tensor"],
        "dswiglu": ["a_tensor", "b_tensor", "ab12_tensor", "d_ab12_tensor", "c_tensor"],
    }[op]
    assert scalars == (1.0,) and operation._layout.matrices == tuple(range({"gemm": 3, "amax": 3, "srelu": 4, "dsrelu": 4, "dswiglu": 5}[op]))
    described = pytest.importorskip("cutlass", reason="the epilogue's description needs the DSL") and epilogue_of(operation)
    partials = operation._partials(operation._bound.options, operation.config, gemm_operation.Extents(24, 96, 16, 2))
    assert len(described.tensors) == len(tensors) - 2 + len(partials)
    for spec, t in zip(described.tensors, (*tensors[2:], *(torch.empty(shape) for shape in partials)), strict=True):
        assert len(spec.axes) == t.dim() and spec.dtype.width == 8 * t.itemsize
    assert partials == ({"dsrelu": ((2, 24, 2),)}.get(op, ()))


@pytest.fixture
def kernels(monkeypatch, stub, fresh):
    """CPU tensors go to kernels that record what they are given: (spec, tensors, scalars)."""
    from cudnn.cutedsl.compile import KernelSpec
    from cudnn_gemm_dense.mlp import products

    fresh(products._FORWARD, products._BACKWARD)

    seen = []

    def build(spec):
        return lambda operands, rest, scalars, clusters, handle: seen.append((spec, (*operands, *rest), scalars))

    monkeypatch.setattr(KernelSpec, "build", build)
    monkeypatch.setenv("CUDNN_KERNELS_COMPILE_JOBS", "1")
    monkeypatch.setattr(GemmOperation, "_launch_for", LAUNCH_FOR)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: -1)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: -1, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0, raising=False)
    return seen


LAUNCH_FOR = GemmOperation._launch_for


@pytest.mark.parametrize("op", HOOKS)
def test_repeated_calls_give_the_kernel_the_same(op, kernels):
    """The first call checks, later ones go a short way; the kernel is given as many tensors and scalars as its description has, in the same order."""
    pytest.importorskip("cutlass", reason="the epilogue's description needs the DSL")
    hooks = case(op, alpha=0.5)
    inputs = hooks.inputs(24, 96, 16, 2)
    scalars = {} if op == "amax" else {"alpha": 0.5}
    for _ in range(4):
        hooks.wrapper(inputs, **scalars)
    assert len(kernels) == 4
    for spec, tensors, given in kernels:
        module, attribute = spec.fusion.split(":")
        epilogue = getattr(importlib.import_module(module), attribute)(spec.problem, spec.options)
        assert len(tensors) - 2 == len(epilogue.tensors) and len(given) == epilogue.scalar_count
        assert given == ((1.0,) if op == "amax" else (0.5,))
        assert [t.dtype.itemsize * 8 for t in tensors[2:]] == [spec.dtype.width for spec in epilogue.tensors]
        assert [tuple(t.shape) for t in tensors] == [tuple(t.shape) for t in kernels[0][1]]


def test_repeated_products_of_feed_forward_layers(kernels):
    from cudnn_gemm_dense.mlp.products import gated_gradient_product, gated_product

    x, w, pre = torch.randn(24, 64).bfloat16(), torch.randn(96, 64).bfloat16(), torch.randn(24, 192).bfloat16()
    for activation, constants, more in (("swiglu", (), ()), ("situ", (4.0, 25.0), (4.0, 0.25, 25.0, 0.04)), ("situ", (2.0, 8.0), (2.0, 0.5, 8.0, 0.125))):
        for _ in range(3):
            gated_product(x, (w, w), alpha=0.5, keep=True, activation=activation, constants=constants)
            gated_gradient_product(x, w, pre, activation=activation, constants=constants)
        assert [scalars for _, _, scalars in kernels] == [(0.5, *more), (1.0, *more)] * 3
        kernels.clear()


def epilogue_of(operation):
    spec = operation._spec(operation._bound.kernel_problem, operation._bound.options, operation.config)
    module, attribute = spec.fusion.split(":")
    return getattr(importlib.import_module(module), attribute)(spec.problem, spec.options)


@pytest.mark.parametrize("op", HOOKS)
def test_the_footprint_is_what_the_kernel_takes(op):
    """Support checks compute shared memory without the DSL: as much as the kernel itself."""
    pytest.importorskip("cutlass", reason="the kernel's own count needs the DSL")
    from cudnn.cutedsl.epilogue import driver

    for spec in api(op).precompile_specs():
        if not hasattr(spec, "fusion"):
            continue
        module, attribute = spec.fusion.split(":")
        epilogue = getattr(importlib.import_module(module), attribute)(spec.problem, spec.options)
        assert driver.footprint(epilogue, spec.config) == spec.options.footprint
        assert driver.shared_bytes(epilogue, spec.config) == spec.options.footprint.bytes(spec.config)


@pytest.mark.parametrize("op", HOOKS)
def test_precompile_specs(op):
    specs = api(op).precompile_specs()
    assert len(set(specs)) == len(specs) >= 4
    assert {spec.op for spec in specs} == {"gemm" if op == "gemm" else f"gemm_{op}"}
    assert {spec.problem.a_dtype for spec in specs} == {"bfloat16", "float16"}
    assert all(unfit_reason(spec.problem, spec.options.footprint, spec.config) is None for spec in specs)


# torch


@pytest.mark.parametrize("op", HOOKS)
def test_opcheck(op):
    from cudnn.torch_operators import encode

    calls = api(op).CALLS
    functional, writing = calls.operators()
    hooks = case(op)
    inputs = hooks.inputs(24, 64, 16, 2)
    names, flat = wrapper_calls.flatten(inputs)
    given = {"dswiglu": {"d_dtype": None, "generate_c": True, "c_dtype": "float16", "d_major": "n"}}.get(
        op, {"d_major" if op in ("gemm", "dsrelu") else "c_major": "n"}
    )
    dtypes = {
        "gemm": {"d_dtype": None},
        "amax": {"c_dtype": "float32"},
        "srelu": {"c_dtype": "bfloat16", "d_dtype": "bfloat16"},
        "dsrelu": {"d_dtype": "bfloat16"},
    }
    torch.library.opcheck(functional, (flat, 0.5 if op != "amax" else 1.0, encode(tuple(names), tuple({**given, **dtypes.get(op, {})}.items()))))
    outputs = {name: torch.zeros_like(t) for name, t in hooks.wrapper(inputs).items() if t is not None}
    operation = hooks.build(inputs, outputs)
    operation.compile()
    arguments = encode((tuple(names), tuple(outputs)), operation._traced_arguments)
    torch.library.opcheck(writing, (flat, list(outputs.values()), 0.5 if op != "amax" else 1.0, arguments))


@pytest.mark.parametrize("cls", [Gemm, GemmAmax, GemmSrelu, GemmDsrelu, GemmDswiglu], ids=lambda cls: cls.__name__)
def test_executing_with_other_dtypes_is_refused(cls):
    op = {Gemm: "gemm", GemmAmax: "amax", GemmSrelu: "srelu", GemmDsrelu: "dsrelu", GemmDswiglu: "dswiglu"}[cls]
    hooks = case(op)
    inputs = hooks.inputs(24, 64, 16, 2)
    outputs = {name: torch.zeros_like(t) for name, t in hooks.wrapper(inputs).items() if t is not None}
    operation = hooks.build(inputs, outputs)
    operation.compile()
    with pytest.raises(ValueError, match="b_tensor: found dtype float16, needs bfloat16, which the object was compiled for"):
        operation.execute(**{**inputs, "b_tensor": inputs["b_tensor"].half()}, **outputs)
    with pytest.raises(ValueError, match=rf"{cls.__name__}.execute: b_tensor is None, needs a torch tensor"):
        operation.execute(**{**inputs, "b_tensor": None}, **outputs)


def test_precompile_specs_of_feed_forward_layers():
    """What the layers build is listed, here or with the operations that they share kernels with, but for majors that contiguous tensors do not have."""
    specs = {spec for op in (*HOOKS, "swiglu", "mlp") for spec in api(op).precompile_specs()}
    from cudnn_gemm_dense.mlp import products

    x, w, down, pre = torch.zeros(64, 64).bfloat16(), torch.zeros(96, 64).bfloat16(), torch.zeros(64, 96).bfloat16(), torch.zeros(64, 192).bfloat16()
    for keep, activation, constants in itertools.product((True, False), ("swiglu", "situ"), ((),)):
        constants = (4.0, 25.0) if activation == "situ" else constants
        tensors = {"a_tensor": x.unsqueeze(-1), "b_tensor": (w.unsqueeze(-1), w.unsqueeze(-1))}
        options = {"glu_layout": "separate", "keep": keep, "activation": activation, "constants": constants}
        forward = products._forward_build(tensors, products_outputs(products._forward_outputs(tensors, options)), options)
        backward = products.GatedGradientProduct(
            x.unsqueeze(-1), down.t().unsqueeze(-1), pre.unsqueeze(-1), pre.unsqueeze(-1), activation=activation, constants=constants
        )
        for operation in (forward, backward):
            problem, described, _ = operation._check()
            for config in operation._default_configs(problem, described):
                assert operation._spec(problem, described, config) in specs


def products_outputs(outputs):
    return {name: wrapper_calls.describe(output, name, torch.device("cpu")) for name, output in outputs.items()}
