"""GemmSwiglu's kernel on a Hopper GPU, against the reference engine and torch's own matmul."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.testing.ahead import build_ahead
from cudnn.testing.conformance import GemmConformanceCuda, same_bits
from cudnn_gemm_dense.operation import fitting_configs, unfit_reason
from cudnn_gemm_dense.swiglu import api
from cudnn_gemm_dense.swiglu.api import GemmSwiglu, gemm_swiglu_wrapper
from cudnn_gemm_dense.swiglu.conformance import SwigluHooks, random_compact
from cudnn_gemm_dense.swiglu.options import SwigluOptions
from cudnn_gemm_dense.swiglu.shapes import B_PARTS

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a CUDA device of compute capability 9.0")]

DTYPES = (torch.bfloat16, torch.float16)
LAYOUTS = ("interleaved32", "concatenated", "separate")
MAJORS = tuple(itertools.product("km", "kn", "nm"))
CONFIGS = [
    GemmConfig(tile_m=tile_m, tile_n=tile_n, cluster_m=cluster[0], cluster_n=cluster[1], pingpong=pingpong, raster=raster, group=group)
    for tile_m, tile_n, cluster, pingpong, raster, group in itertools.product(
        (64, 128, 256), (64, 128, 192, 256), ((1, 1), (2, 1), (1, 2), (2, 2)), (False, True), ("m", "n"), (1, 8)
    )
] + [GemmConfig(tile_m=tile_m, tile_n=tile_n, split_k=split) for tile_m, tile_n, split in itertools.product((64, 128), (64, 128), (2, 4))]


class TestConformance(SwigluHooks, GemmConformanceCuda):
    """bfloat16, the published layout."""

    device = "cuda"


class TestConformanceConcatenated(SwigluHooks, GemmConformanceCuda):
    device = "cuda"
    dtype = ab12_dtype = c_dtype = torch.float16
    glu_layout = "concatenated"
    n_step = 16
    a_major, b_major = "m", "n"
    m_step = 8


class TestConformanceSeparate(SwigluHooks, GemmConformanceCuda):
    device = "cuda"
    glu_layout = "separate"
    n_step = 16
    ab12_dtype = torch.float32
    out_major = "m"
    m_step = 8


class Case(SwigluHooks, GemmConformanceCuda):
    """The same hooks and helpers, for the tests below."""

    device = "cuda"


def case(**attributes) -> Case:
    hooks = Case()
    for name, value in attributes.items():
        setattr(hooks, name, value)
    return hooks


def problem_of(hooks: Case) -> tuple[GemmProblem, SwigluOptions]:
    names = [str(dtype).removeprefix("torch.") for dtype in (hooks.dtype, hooks.ab12_dtype, hooks.c_dtype)]
    problem = GemmProblem(names[0], names[0], "float32", hooks.a_major, hooks.b_major, B_PARTS[hooks.glu_layout])
    return problem, SwigluOptions(names[1], names[2], hooks.out_major, hooks.glu_layout)


DTYPE_CASES = tuple(itertools.product(DTYPES, (torch.float32, *DTYPES), DTYPES))
DTYPE_CONFIG = {"tile_m": 128, "tile_n": 128}


@pytest.fixture(scope="module", autouse=True)
def problems():
    """Every dtype x major x layout with a random tile and random output dtypes, and two sets of ragged extents each.

    These kernels and those of the other tests are built in parallel first.
    """
    import os

    from cudnn_gemm_dense.swiglu.kernel import swiglu_spec

    seed = int(os.environ.get("PYTEST_SEED") or int.from_bytes(os.urandom(4), "little"))
    print(f"PYTEST_SEED={seed}")
    rng = random.Random(seed)
    found = {}
    for dtype, majors, layout in itertools.product(DTYPES, MAJORS, LAYOUTS):
        hooks = case(dtype=dtype, a_major=majors[0], b_major=majors[1], out_major=majors[2], glu_layout=layout)
        hooks.ab12_dtype, hooks.c_dtype = rng.choice((torch.float32, *DTYPES)), rng.choice(DTYPES)
        hooks.alpha = rng.choice((1.0, -0.5, 1.75))
        problem, options = problem_of(hooks)
        hooks.config = rng.choice([config for config in CONFIGS if unfit_reason(problem, options.footprint, config) is None])
        m_step = 8 if hooks.a_major == "m" or hooks.out_major == "m" else 1
        n_step = 64 if layout == "interleaved32" else 16
        extents = [
            (m_step * rng.randint(1, 700 // m_step), n_step * rng.randint(1, 1100 // n_step), 8 * rng.randint(1, 130), rng.randint(1, 3)) for _ in range(2)
        ]
        found[dtype, majors, layout] = hooks, extents
    others = [TestConformance(), TestConformanceConcatenated(), TestConformanceSeparate(), case(glu_layout="concatenated"), case(glu_layout="separate")]
    others += [case(dtype=dtype, ab12_dtype=ab12, c_dtype=c, config=GemmConfig.of(DTYPE_CONFIG)) for dtype, ab12, c in DTYPE_CASES]
    specs = []
    for hooks in (*(hooks for hooks, _ in found.values()), *others):
        described = problem_of(hooks)
        specs += [swiglu_spec(*described, config) for config in ((hooks.config,) if hooks.config else fitting_configs(described[0], described[1].footprint))]
    build_ahead(specs)
    return seed, found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("majors", MAJORS, ids="".join)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_random_problems(problems, dtype, majors, layout):
    """96 problems: error at most twice that of torch's own matmul and SwiGLU in the same dtype, every element written, nothing around them."""
    seed, found = problems
    hooks, all_extents = found[dtype, majors, layout]
    for extents in all_extents:
        print(f"PYTEST_SEED={seed} {extents} {hooks.ab12_dtype} {hooks.c_dtype} alpha {hooks.alpha} {hooks.config}")
        inputs = hooks.inputs(*extents)
        poisoned = hooks.poisoned(*extents)
        outputs = {name: p.tensor for name, p in poisoned.items()}
        op = hooks.build(inputs, outputs)
        op.compile()
        op.execute(**inputs, **outputs, alpha=hooks.alpha)
        for name, p in poisoned.items():
            p.check(name)
        hooks.check(inputs, outputs)


@pytest.mark.parametrize(
    "layout, extents", [("interleaved32", (4096, 4096, 4096, 1)), ("concatenated", (4095, 4112, 4104, 1)), ("separate", (1000, 2064, 1032, 5))]
)
def test_large_problems_repeat_bit_for_bit(layout, extents):
    hooks = case(glu_layout=layout)
    inputs = hooks.inputs(*extents)
    first = hooks.wrapper(inputs)
    hooks.check(inputs, first)
    outputs = {name: torch.empty_strided(*layout[:2], dtype=layout[2], device="cuda") for name, layout in hooks.output_layouts(*extents).items()}
    op = hooks.build(inputs, outputs)
    op.compile()
    different = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(100):
        for t in outputs.values():
            t.fill_(float("nan"))
        op.execute(**inputs, **outputs)
        for name, t in outputs.items():
            different += (t.view(torch.int16) != first[name].view(torch.int16)).sum()
    assert different.item() == 0


def test_one_compile_from_one_row_to_five_thousand(monkeypatch, fresh):
    """M from 1 to 5000, several N, K, L and alpha: one set of kernels, built once."""
    from cudnn.cutedsl.compile import KernelSpec

    monkeypatch.setenv("CUDNN_KERNELS_TUNED", "0")  # tuned results would be further ones
    built = []
    build = KernelSpec.build
    monkeypatch.setattr(KernelSpec, "build", lambda spec: built.append(spec) or build(spec))
    fresh(api.CALLS)
    hooks = case()
    rows = sorted({1, 2, 7, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1023, 4999, 5000, *torch.randint(1, 5001, (25,)).tolist()})
    first = rows[len(rows) // 2]
    for i, m in enumerate([first, *rows]):
        inputs = hooks.inputs(m, 64 * (1 + i % 5), 8 * (1 + i % 30), 1 + i % 2)
        hooks.alpha = 1.0 + i % 3
        hooks.check(inputs, hooks.wrapper(inputs, alpha=hooks.alpha))
        if i == 0:
            after_first = len(built)
    assert len(built) == after_first == len(set(built)) == len(fitting_configs(built[0].problem, built[0].options.footprint))


@pytest.mark.parametrize("order", [1, -1])
def test_dtypes_in_both_orders(order):
    """Case 40."""
    for dtype, ab12_dtype, c_dtype in DTYPE_CASES[::order]:
        hooks = case(dtype=dtype, ab12_dtype=ab12_dtype, c_dtype=c_dtype, config=DTYPE_CONFIG)
        inputs = hooks.inputs(100, 128, 72, 1)
        hooks.check(inputs, hooks.wrapper(inputs))


def test_stride_zero_and_ordinary_strides_in_either_order():
    """Case 27: a unit axis of stride 0, or of any other stride, is the same call."""
    hooks = case()
    inputs = hooks.inputs(100, 128, 72, 1)
    expected = hooks.wrapper(inputs)
    hooks.check(inputs, expected)
    for stride in (0, 1, 2**33, 0):
        odd = {name: t.as_strided(t.shape, (*t.stride()[:2], stride)) for name, t in inputs.items()}
        for arguments in (odd, inputs):
            result = hooks.wrapper(arguments)
            assert all(same_bits(result[i], expected[i]) for i in (0, 1))
    row = hooks.inputs(1, 128, 72, 2)  # M = 1: the pitch of A's only row says nothing
    odd = {**row, "a_tensor": row["a_tensor"].as_strided((1, 72, 2), (5, 1, 72))}
    assert all(same_bits(hooks.wrapper(odd)[i], hooks.wrapper(row)[i]) for i in (0, 1))
    two = hooks.inputs(100, 128, 72, 2)
    with pytest.raises(ValueError, match=r"a_tensor: found strides \(72, 1, 0\)"):
        hooks.wrapper({**two, "a_tensor": two["a_tensor"][:, :, :1].expand(100, 72, 2)})
    hooks.check(two, hooks.wrapper(two))


def test_halves_in_every_layout_agree():
    """Case 61: halves that differ by sign, converted and not."""
    from cudnn_gemm_dense.swiglu.layout import deinterleave_gate_up, interleave_gate_up

    a = random_compact((300, 256, 1), 1, torch.bfloat16, "cuda")
    gate, up = random_compact((320, 256, 1), 1, torch.bfloat16, "cuda", 0.06).abs(), -random_compact((320, 256, 1), 1, torch.bfloat16, "cuda", 0.06).abs()
    whole = torch.cat([gate, up])
    options = {"ab12_dtype": "bfloat16", "c_dtype": "bfloat16"}
    concatenated = gemm_swiglu_wrapper(a, whole, glu_layout="concatenated", **options)
    separate = gemm_swiglu_wrapper(a, (gate, up), glu_layout="separate", **options)
    woven = gemm_swiglu_wrapper(a, interleave_gate_up(whole), **options)
    for other in (separate, woven):
        assert same_bits(other["c_tensor"], concatenated["c_tensor"])
    assert same_bits(separate["ab12_tensor"], concatenated["ab12_tensor"])
    assert same_bits(deinterleave_gate_up(woven["ab12_tensor"], dim=1), concatenated["ab12_tensor"])
    wrong = gemm_swiglu_wrapper(a, whole, **options)["c_tensor"].float() - concatenated["c_tensor"].float()
    assert wrong.norm() > 0.1 * concatenated["c_tensor"].float().norm()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_execute_allocates_nothing_and_waits_for_nothing():
    hooks = case()
    extents = (500, 256, 200, 2)
    inputs = hooks.inputs(*extents)
    outputs = hooks.outputs(*extents)
    op = hooks.build(inputs, outputs)
    op(**inputs, **outputs)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        for _ in range(5):
            op.execute(**inputs, **outputs)
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
        hooks.wrapper(inputs)
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == before + 2
    finally:
        torch.cuda.set_sync_debug_mode("default")
    hooks.check(inputs, outputs)


def test_refused_calls_keep_no_memory():
    """Case 68."""
    a, b = (torch.zeros(64, 64, 1, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    before = torch.cuda.memory_allocated()
    for _ in range(10000):
        with pytest.raises(NotImplementedError, match="ab12_tensor: float8_e4m3fn is not implemented with float32 sums"):
            gemm_swiglu_wrapper(a, b, ab12_dtype="float8_e4m3fn")
    assert torch.cuda.memory_allocated() == before
    hooks = case()
    inputs = hooks.inputs(40, 64, 64, 1)
    hooks.check(inputs, hooks.wrapper(inputs))


def test_backends():
    hooks = case()
    inputs = hooks.inputs(130, 128, 64, 1)
    hooks.backend = "sm90"
    kernel = hooks.wrapper(inputs)
    hooks.check(inputs, kernel)
    hooks.backend = "reference"
    reference = hooks.wrapper(inputs)
    hooks.check(inputs, reference)
    for dtype in (torch.float32, torch.float8_e4m3fn, torch.float8_e5m2):
        hooks.dtype = dtype
        narrow = hooks.inputs(130, 128, 64, 1)
        result, expected = hooks.wrapper(narrow), hooks.reference(narrow)
        torch.testing.assert_close(result["c_tensor"].float(), expected["c_tensor"], rtol=8e-3, atol=1e-3)
    with pytest.raises(RuntimeError, match='backend="sm90" needs CUDA tensors, found a_tensor on cpu'):
        gemm_swiglu_wrapper(inputs["a_tensor"].cpu(), inputs["b_tensor"].cpu(), backend="sm90")
    on_cpu = {name: t.cpu() for name, t in inputs.items()}
    outputs = {name: t.cpu() for name, t in hooks.outputs(130, 128, 64, 1).items()}
    op = GemmSwiglu(**{f"sample_{name.removesuffix('_tensor')}": t for name, t in {**on_cpu, **outputs}.items()})
    op(**on_cpu, **outputs)
    with pytest.raises(ValueError, match="a_tensor is on cuda, needs cpu, which the object was compiled for"):
        op.execute(**inputs, **hooks.outputs(130, 128, 64, 1))


def test_streams_of_another_kind_are_refused():
    hooks = case()
    inputs = hooks.inputs(40, 64, 64, 1)
    for stream, error in ((2, ValueError), (-1, ValueError), ("default", TypeError), (1.0, TypeError)):
        with pytest.raises(error, match="stream"):
            hooks.wrapper(inputs, stream=stream)
    hooks.check(inputs, hooks.wrapper(inputs))


def test_inductor():
    """A feed-forward block under torch.compile's own backend, fused with what surrounds it."""
    hooks = case()

    def block(x, b, down):
        normed = x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6).to(x.dtype)
        c = gemm_swiglu_wrapper(normed.unsqueeze(-1), b, ab12_dtype=torch.bfloat16, c_dtype=torch.bfloat16)["c_tensor"]
        return x + c.squeeze(-1) @ down

    b = hooks.inputs(1, 512, 256, 1)["b_tensor"]
    down = torch.randn(256, 256, device="cuda", dtype=torch.bfloat16) / 16
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, dynamic=True)
    for rows in (33, 128, 1000):
        x = torch.randn(rows, 256, device="cuda", dtype=torch.bfloat16)
        torch.testing.assert_close(compiled(x, b, down).float(), block(x, b, down).float(), rtol=3e-2, atol=3e-2)
