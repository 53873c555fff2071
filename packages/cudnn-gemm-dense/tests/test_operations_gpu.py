"""The kernels of the dense operations besides GEMM + SwiGLU on a Hopper GPU, against the reference engine and torch's own matmul."""

from __future__ import annotations

import importlib
import itertools
import os
import random

import pytest
import torch

from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.reference import cast
from cudnn.testing.ahead import build_ahead
from cudnn.testing.conformance import GemmConformanceCuda, same_bits
from cudnn.testing.numeric import relative_error
from cudnn_gemm_dense.amax.api import GemmAmax
from cudnn_gemm_dense.amax.conformance import AmaxHooks
from cudnn_gemm_dense.conformance import random_compact
from cudnn_gemm_dense.dsrelu.api import gemm_dsrelu_wrapper
from cudnn_gemm_dense.dsrelu.conformance import DsreluHooks
from cudnn_gemm_dense.dswiglu.api import gemm_dswiglu_wrapper
from cudnn_gemm_dense.dswiglu.conformance import DswigluHooks
from cudnn_gemm_dense.gemm.api import Gemm, gemm_wrapper
from cudnn_gemm_dense.gemm.conformance import GemmHooks
from cudnn_gemm_dense.operation import unfit_reason
from cudnn_gemm_dense.products import gated_gradient, srelu_gradient
from cudnn_gemm_dense.srelu.api import GemmSrelu
from cudnn_gemm_dense.srelu.conformance import SreluHooks

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a CUDA device of compute capability 9.0")]

BF16, F16, F32, E4M3, E5M2 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2
HOOKS = {"gemm": GemmHooks, "amax": AmaxHooks, "srelu": SreluHooks, "dsrelu": DsreluHooks, "dswiglu": DswigluHooks}
CONFIGS = [
    GemmConfig(tile_m, tile_n, cluster[0], cluster[1], pingpong, raster=raster)
    for tile_m, tile_n, cluster, pingpong, raster in itertools.product(
        (64, 128, 256), (64, 128, 160, 192, 256), ((1, 1), (2, 1), (1, 2)), (False, True), ("m", "n")
    )
] + [GemmConfig(tile_m, tile_n, split_k=split) for tile_m, tile_n, split in itertools.product((64, 128), (64, 128), (2, 4))]


class TestGemm(GemmHooks, GemmConformanceCuda):
    device = "cuda"
    n_step = 8


class TestGemmBiasAddend(GemmHooks, GemmConformanceCuda):
    device = "cuda"
    dtype = F16
    d_dtype = F32
    bias = F16
    addend = BF16
    a_major, b_major, out_major = "m", "n", "m"
    m_step = n_step = 8
    unaligned = ("bias_tensor",)


class TestGemmFp8(GemmHooks, GemmConformanceCuda):
    device = "cuda"
    dtype = E4M3
    n_step, k_step = 16, 16

    # torch cannot fill or compare fp8 parameters as these tests do.
    test_parameters_that_require_grad = None
    test_graph_capture_and_replay_with_other_values = None


class TestGemmFloat32(GemmHooks, GemmConformanceCuda):
    device = "cuda"
    dtype = d_dtype = F32
    n_step, k_step = 4, 4


class TestAmax(AmaxHooks, GemmConformanceCuda):
    device = "cuda"
    n_step = 8


class TestSrelu(SreluHooks, GemmConformanceCuda):
    device = "cuda"
    n_step = 8


class TestSreluColumns(SreluHooks, GemmConformanceCuda):
    device = "cuda"
    dtype = c_dtype = F16
    d_dtype = F32
    a_major, out_major = "m", "m"
    m_step = n_step = 8


class TestDsrelu(DsreluHooks, GemmConformanceCuda):
    device = "cuda"
    n_step = 8
    config = {"tile_m": 128, "tile_n": 128}

    def scratch_bytes(self, m: int, n: int, k: int, batches: int) -> int:
        return -(-4 * -(-n // 128) * m * batches // 128) * 128


class TestDswiglu(DswigluHooks, GemmConformanceCuda):
    device = "cuda"
    n_step = 32


class TestDswigluConcatenated(DswigluHooks, GemmConformanceCuda):
    device = "cuda"
    dtype = d_dtype = F16
    ab12_dtype = F32
    c_dtype = None
    glu_layout = "concatenated"
    b_major, out_major = "n", "m"
    m_step = n_step = 8


def case(op: str, **attributes):
    kind = type(op, (HOOKS[op], GemmConformanceCuda), {"device": "cuda"})
    hooks = kind()
    for name, value in attributes.items():
        setattr(hooks, name, value)
    return hooks


def api(op: str):
    return importlib.import_module(f"cudnn_gemm_dense.{op}.api")


# Dtypes of the tensors beside A and B, as far as a kernel takes them; None where there may be none.
CHOICES = {
    "gemm": {"d_dtype": (BF16, F16, F32), "bias": (None, BF16, F16, F32), "addend": (None, BF16, F16, F32)},
    "amax": {"c_dtype": (BF16, F16, F32)},
    "srelu": {"c_dtype": (BF16, F16, F32), "d_dtype": (BF16, F16, F32)},
    "dsrelu": {"c_dtype": (BF16, F16, F32), "d_dtype": (BF16, F16, F32), "deterministic": (True, False)},
    "dswiglu": {
        "ab12_dtype": (BF16, F16, F32),
        "d_dtype": (BF16, F16, F32),
        "c_dtype": (None, BF16, F16, F32),
        "glu_layout": ("interleaved32", "concatenated", "separate"),
    },
}


def specs_of(hooks) -> list:
    """The kernels that a call with these hooks builds."""
    extents = (16 * hooks.m_step, hooks.n_step, 2 * hooks.k_step, 1)
    inputs = hooks.inputs(*extents)
    op = hooks.build(inputs, hooks.outputs(*extents))
    op.check_support()
    problem, options = op._bound.kernel_problem, op._bound.options
    return [op._spec(problem, options, config) for config in op._configs(problem, options)]


@pytest.fixture(scope="module", autouse=True)
def problems():
    """Every operation x 16-bit dtype x majors with random dtypes of the other tensors and a random configuration, and two sets of ragged extents each. All kernels are built in parallel first."""
    seed = int(os.environ.get("PYTEST_SEED") or int.from_bytes(os.urandom(4), "little"))
    print(f"PYTEST_SEED={seed}")
    rng = random.Random(seed)
    found = {}
    for op, dtype, majors in itertools.product(HOOKS, (BF16, F16), itertools.product("km", "kn", "nm")):
        hooks = case(op, dtype=dtype, a_major=majors[0], b_major=majors[1], out_major=majors[2])
        for name, values in CHOICES[op].items():
            setattr(hooks, name, rng.choice(values))
        hooks.alpha = 1.0 if op == "amax" else rng.choice((1.0, -0.5, 1.75))
        hooks.m_step = 8 if hooks.a_major == "m" or hooks.out_major == "m" else 1
        hooks.n_step = 32 if getattr(hooks, "glu_layout", "") == "interleaved32" else 8
        first, *_ = specs_of(hooks)
        fitting = [config for config in CONFIGS if unfit_reason(first.problem, first.options.footprint, config) is None]
        hooks.config = rng.choice(fitting)
        extents = [
            (hooks.m_step * rng.randint(1, 700 // hooks.m_step), hooks.n_step * rng.randint(1, 900 // hooks.n_step), 8 * rng.randint(1, 130), rng.randint(1, 3))
            for _ in range(2)
        ]
        found[op, dtype, majors] = hooks, extents
    classes = (TestGemm, TestGemmBiasAddend, TestGemmFp8, TestAmax, TestSrelu, TestSreluColumns, TestDsrelu, TestDswiglu, TestDswigluConcatenated)
    others = [cls() for cls in classes] + [case(op) for op in HOOKS]
    specs = [spec for hooks in (*(hooks for hooks, _ in found.values()), *others) for spec in specs_of(hooks)]
    build_ahead(specs)
    return seed, found


@pytest.mark.parametrize("majors", list(itertools.product("km", "kn", "nm")), ids="".join)
@pytest.mark.parametrize("dtype", (BF16, F16), ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("op", HOOKS)
def test_random_problems(problems, op, dtype, majors):
    """160 problems: error at most twice that of torch's own matmul and pointwise operations in the same dtype, every element written, nothing around them."""
    seed, found = problems
    hooks, all_extents = found[op, dtype, majors]
    scalars = {} if op == "amax" else {"alpha": hooks.alpha}
    for extents in all_extents:
        print(f"PYTEST_SEED={seed} {extents} {vars(hooks)}")
        inputs = hooks.inputs(*extents)
        poisoned = hooks.poisoned(*extents)
        outputs = {name: p.tensor for name, p in poisoned.items()}
        operation = hooks.build(inputs, outputs)
        operation.compile()
        operation.execute(**inputs, **outputs, **scalars)
        for name, p in poisoned.items():
            p.check(name)
        hooks.check(inputs, outputs)


@pytest.mark.parametrize("extents", [(4096, 4096, 4096, 1), (1000, 2080, 1032, 5)])
@pytest.mark.parametrize("op", HOOKS)
def test_large_problems_repeat_bit_for_bit(op, extents):
    hooks = case(op)
    inputs = hooks.inputs(*extents)
    first = hooks.wrapper(inputs)
    hooks.check(inputs, first)
    outputs = hooks.outputs(*extents)
    operation = hooks.build(inputs, outputs)
    operation.compile()
    for _ in range(50):
        for name, t in outputs.items():
            t.fill_(hooks.initial.get(name, float("nan")))
        operation.execute(**inputs, **outputs)
        assert all(same_bits(t, first[name]) for name, t in outputs.items())


@pytest.mark.parametrize("deterministic", [True, False])
def test_dprob_both_ways(deterministic):
    """Decisions 23: in order and by atomic additions, on top of what is there, with a workspace of the caller's and without, and nothing beyond the last row."""
    for m, n, batches in ((1, 72, 1), (77, 1032, 3), (1000, 520, 2)):
        hooks = case("dsrelu", deterministic=deterministic)
        inputs = hooks.inputs(m, n, 136, batches)
        around = torch.full((batches, m + 200, 2), float("nan"), device="cuda")
        dprob = around[:, 100 : 100 + m, :1].permute(1, 2, 0)
        start = torch.randn(m, 1, batches, device="cuda")
        d = torch.empty_like(inputs["c_tensor"])
        operation = hooks.build(inputs, {"d_tensor": d, "dprob_tensor": dprob})
        operation.compile()
        expected = start + hooks.reference(inputs)["dprob_tensor"].float()
        seen = []
        for own in (False, True, False):
            dprob.copy_(start)
            workspace = torch.full((operation.workspace_bytes(),), 255, dtype=torch.uint8, device="cuda") if own else None  # NaN in every part
            operation.execute(**inputs, d_tensor=d, dprob_tensor=dprob, workspace=workspace)
            torch.testing.assert_close(dprob, expected, rtol=2e-5, atol=2e-4)
            seen.append(dprob.clone())
        assert around.isnan().sum() == around.numel() - dprob.numel()
        if deterministic:
            assert all(same_bits(seen[0], one) for one in seen)


def test_a_workspace_that_does_not_do():
    hooks = case("dsrelu")
    inputs = hooks.inputs(100, 264, 64, 1)
    outputs = hooks.outputs(100, 264, 64, 1)
    operation = hooks.build(inputs, outputs)
    operation.compile()
    need = operation.workspace_bytes()
    assert need > 0
    for workspace, message in (
        (torch.empty(need - 1, dtype=torch.uint8, device="cuda"), "workspace has"),
        (torch.empty(need, dtype=torch.uint8), "workspace is on cpu, needs cuda:0"),
        (torch.empty(2 * need, dtype=torch.uint8, device="cuda")[::2], "workspace is not contiguous"),
    ):
        with pytest.raises(ValueError, match=message):
            operation.execute(**inputs, **outputs, workspace=workspace)


@pytest.mark.parametrize("held", [float("-inf"), 0.0, -3.0, 1e6, float("nan")])
def test_amax_is_merged(held):
    """Case 59, and a buffer that holds more already, or NaN, which stays; rows and columns that do not exist count for nothing."""
    for m, n in ((1, 8), (77, 200), (1000, 1032)):
        hooks = case("amax")
        inputs = hooks.inputs(m, n, 72, 2)
        inputs["a_tensor"][m // 2] *= -30
        outputs = hooks.outputs(m, n, 72, 2)
        outputs["amax_tensor"].fill_(held)
        hooks.build(inputs, outputs)(**inputs, **outputs)
        expected = max(held, hooks.product(inputs).abs().max().item())
        assert outputs["amax_tensor"].item() == pytest.approx(expected, rel=1e-5, nan_ok=True)
        assert hooks.wrapper(inputs)["amax_tensor"].item() == pytest.approx(hooks.product(inputs).abs().max().item(), rel=1e-5)


def test_amax_beside_other_fusions():
    for op, cls in (("srelu", GemmSrelu), ("dsrelu", api("dsrelu").GemmDsrelu)):
        hooks = case(op)
        inputs, outputs = hooks.inputs(300, 520, 136, 2), hooks.outputs(300, 520, 136, 2)
        amax = torch.full((1,), float("-inf"), device="cuda")
        samples = {f"sample_{name.removesuffix('_tensor')}": t for name, t in {**inputs, **outputs}.items()}
        cls(**samples, sample_amax=amax)(**inputs, **outputs, amax_tensor=amax)
        assert amax.item() == pytest.approx(hooks.reference(inputs)["d_tensor"].abs().max().item(), rel=1e-5)
        hooks.check(inputs, outputs)


def test_what_is_read_may_lie_among_nan():
    """Operands and inputs in padded pitches: nothing between or behind their rows is read into a result, in memory where each value would show."""

    def among_nan(t):
        rows, columns, batches = t.shape
        big = torch.full((batches, rows + 3, columns + 16), float("nan"), dtype=t.dtype, device="cuda")
        return big[:, 1 : rows + 1, :columns].permute(1, 2, 0).copy_(t)

    for m, n, k in ((100, 136, 72), (257, 520, 200)):
        a, b = random_compact((m, k, 2), 1, BF16, "cuda"), random_compact((n, k, 2), 1, BF16, "cuda", k**-0.5)
        c, pre, prob = random_compact((m, n, 2), 1, BF16, "cuda"), random_compact((m, 2 * n, 2), 1, BF16, "cuda"), torch.rand(m, 1, 2, device="cuda")
        padded = [among_nan(t) for t in (a, b, c, pre)]
        for function in (
            lambda a, b, c, pre: [gemm_wrapper(a, b, addend_tensor=c)["d_tensor"]],
            lambda a, b, c, pre: list(gemm_dsrelu_wrapper(a, b, c, prob_tensor=prob, deterministic=True))[:2],  # noqa: B023
            lambda a, b, c, pre: list(gemm_dswiglu_wrapper(a, b, pre, generate_c=True, glu_layout="concatenated")),
        ):
            for one, other in zip(function(a, b, c, pre), function(*padded), strict=True):
                assert one.isfinite().all() and same_bits(one, other)


def test_in_place():
    a, b = random_compact((300, 200, 1), 1, BF16, "cuda"), random_compact((520, 200, 1), 1, BF16, "cuda", 0.07)
    addend = random_compact((300, 520, 1), 1, BF16, "cuda")
    expected = gemm_wrapper(a, b, addend_tensor=addend)["d_tensor"]
    Gemm(a, b, addend, sample_addend=addend)(a, b, addend, addend_tensor=addend)
    assert same_bits(addend, expected)
    pre = random_compact((300, 1040, 1), 1, BF16, "cuda")
    expected = gemm_dswiglu_wrapper(a, b, pre, glu_layout="concatenated")["d_ab12_tensor"]
    api("dswiglu").GemmDswiglu(a, b, pre, pre, glu_layout="concatenated")(a, b, pre, pre)
    assert same_bits(pre, expected)


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("out_major", ["n", "m"])
@pytest.mark.parametrize("op, output", [("gemm", "d"), ("amax", "c"), ("srelu", "c")])
def test_fp8_outputs(op, output, out_major, dtype):
    """Rounded to nearest even and saturating: what torch's cast makes of the product, but where another order of its sum crosses a boundary."""
    for extents, scale in (((48, 80, 72, 2), 1.0), ((272, 544, 200, 1), 300.0)):
        hooks = case(op, out_major=out_major, **{f"{output}_dtype": dtype})
        inputs = hooks.inputs(*extents)
        inputs["a_tensor"] *= scale
        result = hooks.wrapper(inputs)[f"{output}_tensor"].float()
        expected = cast(hooks.product(inputs), dtype).float()
        limit = torch.finfo(dtype).max
        assert result.abs().max() <= limit and (scale == 1.0 or dtype == E5M2 or (result.abs() == limit).any())
        assert (result == expected).float().mean() > 0.99
        assert ((result - expected).abs() <= torch.finfo(dtype).eps * expected.abs() + 2.0**-9).all()


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("majors", list(itertools.product("km", "kn")), ids="".join)
def test_fp8_operands(dtype, majors):
    """Of either major, with full accumulation."""
    for op in HOOKS:
        # The matrix units add 8-bit products, 128 at a time, with an error of about 1.3e-4: several times that in a single sum over a row.
        hooks = case(op, dtype=dtype, a_major=majors[0], b_major=majors[1], slack=2e-3)
        for extents in ((64, 96, 48, 1), (272, 544, 1104, 2)):
            inputs = hooks.inputs(*extents)
            hooks.check(inputs, hooks.wrapper(inputs))


def test_classes_of_one_object_serve_every_amax_rank():
    a, b = random_compact((64, 64, 1), 1, BF16, "cuda"), random_compact((64, 64, 1), 1, BF16, "cuda")
    c = torch.empty(64, 64, 1, device="cuda")
    exact = torch.einsum("mkl,nkl->mnl", a.float(), b.float()).abs().max().item()
    for rank in range(4):
        amax = torch.zeros((1,) * rank, device="cuda")
        GemmAmax(a, b, None, None, c, amax)(a, b, c_tensor=c, amax_tensor=amax)
        assert amax.item() == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("glu_layout", ["interleaved32", "concatenated"])
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_pointwise_gradient_of_swiglu(dtype, glu_layout):
    """Against the reference, with a padded gradient, for rows shorter and longer than a block takes at once."""
    for rows, half in ((1, 32), (77, 96), (300, 2304)):
        pre = torch.randn(rows, 2 * half, device="cuda").to(dtype)
        grad = torch.full((rows, half + 8), float("nan"), device="cuda", dtype=dtype)[:, :half].copy_(torch.randn(rows, half, device="cuda"))
        expected = gated_gradient(pre.cpu(), grad.cpu(), glu_layout)
        assert relative_error(gated_gradient(pre, grad, glu_layout).cpu(), expected) < 1e-3
    assert gated_gradient(pre[:0], grad[:0], glu_layout).shape == (0, 2 * half)


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_pointwise_gradient_of_squared_relu(dtype):
    for rows, columns in ((1, 8), (77, 96), (300, 4608)):
        s, grad, prob = (
            torch.randn(rows, columns, device="cuda").to(dtype),
            torch.randn(rows, columns, device="cuda").to(dtype),
            torch.rand(rows, device="cuda"),
        )
        for factors in (prob, None):
            found = srelu_gradient(s, grad, factors)
            expected = srelu_gradient(s.cpu(), grad.cpu(), None if factors is None else factors.cpu())
            assert relative_error(found[0].cpu(), expected[0]) < 1e-3
            assert (found[1] is None) == (expected[1] is None)
            if factors is not None:
                torch.testing.assert_close(found[1].cpu(), expected[1], rtol=2e-5, atol=1e-4)
                assert same_bits(found[1], srelu_gradient(s, grad, factors)[1])


def test_more_than_2_to_the_31_elements():
    m, n, k = 2**31 // 8192 + 40, 8192, 64
    a, b = random_compact((m, k, 1), 1, BF16, "cuda"), random_compact((n // 2, k, 1), 1, BF16, "cuda", k**-0.5)
    pre = torch.empty(m, n, 1, dtype=BF16, device="cuda").normal_()
    found = gemm_dswiglu_wrapper(a, b, pre, glu_layout="concatenated")["d_ab12_tensor"]
    assert found.numel() > 2**31
    hooks = case("dswiglu", glu_layout="concatenated", c_dtype=None)
    for rows in (slice(0, 130), slice(m // 2, m // 2 + 130), slice(m - 130, m)):
        hooks.check({"a_tensor": a[rows], "b_tensor": b, "ab12_tensor": pre[rows]}, {"d_ab12_tensor": found[rows]})
