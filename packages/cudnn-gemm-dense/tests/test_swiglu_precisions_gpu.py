"""GemmSwiglu's kernel on a Hopper GPU with fp8 and float32 operands and with float16 sums, in every major: what is transposed, and how accurate the sums are."""

from __future__ import annotations

import itertools
import os
import random

import pytest
import torch

from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.cutedsl.transpose import TransposeSpec
from cudnn.testing.ahead import build_ahead
from cudnn.testing.conformance import GemmConformanceCuda, same_bits
from cudnn.testing.numeric import relative_error
from cudnn_gemm_dense.conformance import random_compact, tf32
from cudnn_gemm_dense.gemm.api import gemm_wrapper
from cudnn_gemm_dense.operation import fitting_configs, unfit_reason
from cudnn_gemm_dense.swiglu.api import gemm_swiglu_wrapper
from cudnn_gemm_dense.swiglu.conformance import SwigluHooks
from cudnn_gemm_dense.swiglu.kernel import swiglu_spec
from cudnn_gemm_dense.swiglu.options import SwigluOptions
from cudnn_gemm_dense.swiglu.shapes import B_PARTS

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a CUDA device of compute capability 9.0")]

# What sums may add to the rounding of an element, beside the bound on the whole, which is the sharp one. An error of S of 1 shows up as one of 30 in the worst element of the activation, where the gate is
# large. The matrix units add 8-bit products, 128 at a time, with an error of about 1.3e-4; forty sums that are rounded to float16 have one of 1e-3.
FP8_SLACK = 1e-2
FLOAT16_SLACK = 4e-2


class Hooks(SwigluHooks, GemmConformanceCuda):
    device = "cuda"


class TestE4M3(Hooks):
    """B is transposed. (These tests have M that a transposed A could not have; the random problems have others.)"""

    dtype = torch.float8_e4m3fn
    b_major = "n"
    k_step = 16
    slack = FP8_SLACK
    test_parameters_that_require_grad = None  # torch cannot fill or compare fp8 parameters as this test does


class TestE5M2Separate(Hooks):
    """Two weights, both transposed."""

    dtype = torch.float8_e5m2
    ab12_dtype = c_dtype = torch.float16
    glu_layout = "separate"
    b_major, out_major = "n", "m"
    m_step, n_step, k_step = 8, 32, 16
    slack = FP8_SLACK
    test_parameters_that_require_grad = None


class TestFloat32(Hooks):
    dtype = ab12_dtype = torch.float32
    c_dtype = torch.float16
    a_major = "m"
    m_step, k_step = 4, 4


class TestFloat32Concatenated(Hooks):
    dtype = torch.float32
    glu_layout = "concatenated"
    b_major, out_major = "n", "m"
    m_step, n_step, k_step = 8, 16, 4


class TestFloat16Sums(Hooks):
    dtype = ab12_dtype = c_dtype = torch.float16
    acc_dtype = "float16"
    a_major = "m"
    m_step = 8
    slack = FLOAT16_SLACK


def case(**attributes) -> Hooks:
    hooks = Hooks()
    for name, value in attributes.items():
        setattr(hooks, name, value)
    return hooks


NARROW = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float32)
HALF = (torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
LAYOUTS = ("interleaved32", "concatenated", "separate")
MAJORS = tuple(itertools.product("km", "kn", "nm"))
CONFIGS = [
    GemmConfig(tile_m, tile_n, *cluster, pingpong, k_atoms=k_atoms)
    for tile_m, tile_n, cluster, pingpong, k_atoms in itertools.product((64, 128, 256), (64, 128, 192, 256), ((1, 1), (2, 1), (1, 2)), (False, True), (1, 2))
] + [GemmConfig(64, tile_n, split_k=split) for tile_n, split in itertools.product((64, 128), (2, 4))]


def problem_of(hooks: Hooks) -> tuple[GemmProblem, SwigluOptions]:
    """As the kernel sees it."""
    names = [str(dtype).removeprefix("torch.") for dtype in (hooks.dtype, hooks.ab12_dtype, hooks.c_dtype)]
    majors = (hooks.a_major, hooks.b_major) if hooks.dtype.itemsize == 2 else ("k", "k")
    return GemmProblem(names[0], names[0], hooks.acc_dtype, *majors, B_PARTS[hooks.glu_layout]), SwigluOptions(*names[1:], hooks.out_major, hooks.glu_layout)


def random_cases() -> tuple[int, dict]:
    """For each dtype, sums, layout and major of the outputs one configuration, as the kernel sees no other majors; for each pair of majors of the operands two sets of ragged extents."""
    seed = int(os.environ.get("PYTEST_SEED") or int.from_bytes(os.urandom(4), "little"))
    rng = random.Random(seed)
    configs, found = {}, {}
    for dtype, acc_dtype, majors, layout in [
        *itertools.product(NARROW, ("float32",), MAJORS, LAYOUTS),
        *itertools.product(HALF, ("float16",), MAJORS, ("interleaved32",)),
    ]:
        hooks = case(dtype=dtype, acc_dtype=acc_dtype, a_major=majors[0], b_major=majors[1], out_major=majors[2], glu_layout=layout)
        hooks.ab12_dtype, hooks.c_dtype = (torch.float16, torch.bfloat16)[:: rng.choice((1, -1))]
        if acc_dtype == "float16":
            hooks.slack, hooks.ab12_dtype = FLOAT16_SLACK, torch.float16
        elif dtype != torch.float32:
            hooks.slack = FP8_SLACK
        problem, options = problem_of(hooks)
        fitting = [config for config in CONFIGS if unfit_reason(problem, options.footprint, config) is None]
        hooks.config = configs.setdefault((problem, options), rng.choice(fitting))
        unit = 16 // dtype.itemsize
        m_step = max(unit if majors[0] == "m" else 1, 8 if majors[2] == "m" else 1)
        n_step = 64 if layout == "interleaved32" else max(2 * unit if majors[1] == "n" else 16, 16)
        k_step = unit if "k" in majors[:2] else 1
        most = 640 if acc_dtype == "float16" else 1200
        extents = [
            (m_step * rng.randint(1, 700 // m_step), n_step * rng.randint(1, 900 // n_step), k_step * rng.randint(1, most // k_step), rng.randint(1, 3))
            for _ in range(2)
        ]
        found[dtype, acc_dtype, "".join(majors), layout] = hooks, extents
    return seed, found


SEED, CASES = random_cases()


@pytest.fixture(scope="module", autouse=True)
def kernels():
    """What the tests of this module run is built in parallel first."""
    specs = [TransposeSpec(str(dtype).removeprefix("torch.")) for dtype in NARROW]
    for hooks in (*(hooks for hooks, _ in CASES.values()), TestE4M3(), TestE5M2Separate(), TestFloat32(), TestFloat32Concatenated(), TestFloat16Sums()):
        problem, options = problem_of(hooks)
        specs += [swiglu_spec(problem, options, config) for config in ((hooks.config,) if hooks.config else fitting_configs(problem, options.footprint))]
    build_ahead(specs)


@pytest.mark.parametrize("key", CASES, ids=lambda key: f"{str(key[0]).removeprefix('torch.')}-{key[1]}-{key[2]}-{key[3]}")
def test_random_problems(key):
    """96 arrangements, two problems each: as accurate as torch in the next wider dtype, every element written, nothing around them."""
    hooks, all_extents = CASES[key]
    for extents in all_extents:
        print(f"PYTEST_SEED={SEED} {extents} {hooks.ab12_dtype} {hooks.c_dtype} {hooks.config}")
        inputs = hooks.inputs(*extents)
        poisoned = hooks.poisoned(*extents)
        outputs = {name: p.tensor for name, p in poisoned.items()}
        op = hooks.build(inputs, outputs)
        op(**inputs, **outputs)
        for name, p in poisoned.items():
            p.check(name)
        hooks.check(inputs, outputs)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_majors_agree_bit_for_bit(dtype):
    """A transposed operand is the same operand."""
    a, b = random_compact((144, 208, 2), 1, dtype, "cuda"), random_compact((192, 208, 2), 1, dtype, "cuda", 208**-0.5)
    results = []
    for a_major, b_major in itertools.product("km", "kn"):
        moved = [torch.empty_strided(t.shape, (1, t.shape[0], t.shape[0] * t.shape[1]), dtype=dtype, device="cuda") for t in (a, b)]
        for target, source in zip(moved, (a, b), strict=True):
            target.copy_(source)
        both = [t if major == "k" else turned for t, turned, major in zip((a, b), moved, (a_major, b_major), strict=True)]
        results.append(gemm_swiglu_wrapper(*both, ab12_dtype="float32", c_dtype="bfloat16"))
    for result in results[1:]:
        assert same_bits(result["ab12_tensor"], results[0]["ab12_tensor"]) and same_bits(result["c_tensor"], results[0]["c_tensor"])


def test_a_workspace_of_the_caller_is_enough():
    """Poisoned, exactly as large as asked for, in a graph that is replayed."""
    hooks = case(dtype=torch.float8_e4m3fn, a_major="m", b_major="n", slack=FP8_SLACK)
    extents = (160, 128, 100, 2)
    inputs, outputs = hooks.inputs(*extents), hooks.outputs(*extents)
    op = hooks.build(inputs, outputs)
    op.compile()
    size = op.workspace_bytes()
    guarded = torch.full((256 + size + 256,), 0x7F, dtype=torch.uint8, device="cuda")
    workspace = guarded[256:-256]
    op.execute(**inputs, **outputs, workspace=workspace)
    hooks.check(inputs, outputs)
    # torch allocates the state of its generators for a capture while no other graph is alive.
    alive, graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(alive):
        workspace.zero_()
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    with torch.cuda.graph(graph):
        op.execute(**inputs, **outputs, workspace=workspace)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    for _ in range(3):
        fresh = hooks.inputs(*extents)
        for name, t in inputs.items():
            t.copy_(fresh[name])
        workspace.fill_(0x7F)
        graph.replay()
        torch.cuda.synchronize()
        hooks.check(inputs, outputs)
    assert (guarded[:256] == 0x7F).all() and (guarded[-256:] == 0x7F).all()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_fp8_sums_are_as_accurate_as_those_of_cublaslt(dtype):
    """K = 16384, no fast accumulation on either side; cuBLASLt has no e5m2 times e5m2."""
    m, n, k = 256, 512, 16384
    a, b = random_compact((m, k, 1), 1, dtype, "cuda"), random_compact((n, k, 1), 1, dtype, "cuda", k**-0.5 * 64)
    exact = a.squeeze(-1).double() @ b.squeeze(-1).double().t()
    error = relative_error(gemm_wrapper(a, b, d_dtype="float32")["d_tensor"].squeeze(-1), exact)
    assert error < 2.5e-4
    ab12 = gemm_swiglu_wrapper(a, b, 1 / 64, ab12_dtype="float32", c_dtype="bfloat16")["ab12_tensor"].squeeze(-1)
    assert relative_error(ab12 * 64, exact) < 2.5e-4
    if dtype == torch.float8_e4m3fn:
        one = torch.ones((), device="cuda")
        theirs = torch._scaled_mm(a.squeeze(-1), b.squeeze(-1).t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=False)
        ours = gemm_wrapper(a, b, d_dtype="bfloat16")["d_tensor"].squeeze(-1)
        assert relative_error(ours, exact) <= 1.02 * relative_error(theirs, exact)


def test_float32_operands_are_taken_as_tf32():
    """The matrix units look at the upper 19 bits: with operands that have no more, products are exact; with others the error is that of the bits that are dropped."""
    m, n, k = 256, 512, 2048
    a, b = random_compact((m, k, 1), 1, torch.float32, "cuda"), random_compact((n, k, 1), 1, torch.float32, "cuda", k**-0.5)
    exact = a.squeeze(-1).double() @ b.squeeze(-1).double().t()
    error = relative_error(pre_activation(a, b), exact)
    assert 1e-5 < error < 1.5e-3
    a, b = tf32(a.clone()), tf32(b.clone())
    exact = a.squeeze(-1).double() @ b.squeeze(-1).double().t()
    assert relative_error(pre_activation(a, b), exact) < 1e-5


def pre_activation(a, b):
    return gemm_swiglu_wrapper(a, b, ab12_dtype="float32", c_dtype="bfloat16")["ab12_tensor"].squeeze(-1)


def test_nan_and_infinity_travel():
    """They stay in their row and column, through the transpose as well."""
    for dtype in NARROW:
        a, b = random_compact((64, 96, 1), 0, dtype, "cuda"), random_compact((64, 96, 1), 0, dtype, "cuda")
        a[5, 7, 0] = float("nan")
        s = gemm_swiglu_wrapper(a, b, ab12_dtype="float32")["ab12_tensor"].squeeze(-1)
        assert s[5].isnan().all() and not s[:5].isnan().any() and not s[6:].isnan().any()
