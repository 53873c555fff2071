"""The grouped kernels on a Hopper GPU, against the reference and torch's own matmul."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.reference.grouped import GluScalars, grouped_matmul, grouped_wgrad
from cudnn.testing.ahead import build_ahead
from cudnn.testing.conformance import GemmConformanceCuda, same_bits
from cudnn_gemm_grouped.conformance import DgluHooks, GluHooks, ProductHooks, WgradHooks
from cudnn_gemm_grouped.dglu.api import grouped_gemm_dglu_wrapper
from cudnn_gemm_grouped.glu.api import grouped_gemm_glu_wrapper
from cudnn_gemm_grouped.unfused.api import GroupedGemm, grouped_gemm_wrapper
from cudnn_gemm_grouped.wgrad.api import GroupedGemmWgrad, grouped_gemm_wgrad_wrapper

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a CUDA device of compute capability 9.0")]

BF = torch.bfloat16
CONFIGS = [
    GemmConfig(128, 128, 1, 2, pingpong=True),
    GemmConfig(128, 128, 2, 1, pingpong=True),
    GemmConfig(128, 192, 1, 2, pingpong=True),
    GemmConfig(128, 256, 1, 2, group=16),
    GemmConfig(128, 256, 2, 1),
    GemmConfig(64, 128, k_atoms=2),
    GemmConfig(256, 128, 1, 2, raster="n"),
]


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    """Build the default kernels of the classes below in parallel first."""
    specs = []
    for hooks in (cls() for cls in CLASSES):
        op = hooks.build(hooks.inputs(64, 2 * hooks.n_step, 64, 2), hooks.outputs(64, 2 * hooks.n_step, 64, 2))
        op.check_support()
        problem, options = op._bound.kernel_problem, op._bound.options
        specs += [op._spec(problem, options, config) for config in op._configs(problem, options)]
    specs += [op._spec(op._bound.problem, op._bound.options, config) for op in (example(GroupedGemm), example(GroupedGemmWgrad)) for config in CONFIGS]
    build_ahead(specs)


def ends(counts: list[int]) -> torch.Tensor:
    return torch.tensor(counts, device="cuda").cumsum(0).int()


def random(*shape: int, dtype: torch.dtype = BF, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape, device="cuda") * scale).to(dtype)


def example(cls: type) -> Any:
    if cls is GroupedGemm:
        a, d = random(16, 64), random(16, 64)
        op = GroupedGemm(a, None, d, ends([8, 8]), torch.ones(2, device="cuda"), random(2, 64, 64), sample_prob=torch.ones(16, device="cuda"))
    else:
        op = GroupedGemmWgrad(random(16, 64).t(), random(16, 64), None, None, ends([8, 8]), random(2, 64, 64))
    op.check_support()
    return op


class TestProduct(ProductHooks, GemmConformanceCuda):
    pass


class TestProductLegacy(ProductHooks, GemmConformanceCuda):
    legacy = True
    dtype, d_dtype, c_dtype, bias_dtype = torch.float16, torch.float32, torch.float16, torch.float32


class TestProductByPointers(ProductHooks, GemmConformanceCuda):
    by_pointers = True
    b_major, c_dtype = "n", None


class TestGlu(GluHooks, GemmConformanceCuda):
    bias_dtype = BF


class TestGluConcatenated(GluHooks, GemmConformanceCuda):
    glu_layout, n_step, activation, legacy, bias_dtype = "concatenated", 16, "geglu", True, BF
    scalars = GluScalars()


class TestGluAlternating(GluHooks, GemmConformanceCuda):
    glu_layout, n_step, activation, bias_dtype = "alternating", 16, "geglu", BF


class TestGluSeparateByPointers(GluHooks, GemmConformanceCuda):
    glu_layout, n_step, by_pointers, c_dtype = "separate", 16, True, None
    dtype = d_dtype = torch.float16


class DgluConformance(DgluHooks, GemmConformanceCuda):
    def test_workspace_of_the_caller(self) -> None:
        extents = (300, 3 * self.n_step, 8 * self.k_step, 3)
        inputs, outputs, own = self.inputs(*extents), self.outputs(*extents), self.outputs(*extents)
        op = self.build(inputs, outputs)
        op(**inputs, **outputs)
        size = op.scratch_workspace_bytes()
        assert size > 0
        workspace = torch.full((size,), 255, dtype=torch.uint8, device="cuda")
        op.execute(**inputs, **own, workspace=workspace)
        assert all(same_bits(outputs[name], own[name]) for name in outputs)
        for bad, words in (
            (workspace[: size // 2], "needs"),
            (torch.empty(size + 64, dtype=torch.uint8, device="cuda")[64:], "128-byte alignment"),
            (workspace.cpu(), "workspace"),
        ):
            with pytest.raises(ValueError, match=words):
                op.execute(**inputs, **own, workspace=bad)


class TestDglu(DgluConformance):
    pass


class TestDgluGeglu(DgluConformance):
    activation, glu_layout, n_step, legacy = "geglu", "concatenated", 8, True
    activation_output = round_dgrad = True


class TestDgluAlternating(DgluConformance):
    activation, glu_layout, n_step = "geglu", "alternating", 8
    activation_output = True


class TestDgluByPointers(DgluConformance):
    by_pointers, b_major = True, "n"
    dtype, c_dtype, d_dtype = torch.float16, torch.float32, torch.float16


class TestWgrad(WgradHooks, GemmConformanceCuda):
    pass


class TestWgradTokensContiguous(WgradHooks, GemmConformanceCuda):
    a_major, b_major, adds, d_dtype = "k", "k", True, torch.float32


class TestWgradRagged(WgradHooks, GemmConformanceCuda):
    a_major, step_blocks, dtype = "k", True, torch.float16


class TestWgradRaggedBoth(WgradHooks, GemmConformanceCuda):
    a_major, b_major, step_blocks, adds, d_dtype = "k", "k", True, True, torch.float32


CLASSES = [
    TestProduct,
    TestProductLegacy,
    TestProductByPointers,
    TestGlu,
    TestGluConcatenated,
    TestGluAlternating,
    TestGluSeparateByPointers,
    TestDglu,
    TestDgluGeglu,
    TestDgluAlternating,
    TestDgluByPointers,
    TestWgrad,
    TestWgradTokensContiguous,
    TestWgradRagged,
    TestWgradRaggedBoth,
]

SPLITS = {
    "uneven": [300, 1, 0, 129, 64, 0, 513],
    "64-row packing": [128, 130, 65],  # case 11
    "one row": [1],
    "one expert": [700],
    "empty": [0, 0, 0],
    "last one only": [0, 0, 37],
    "many": None,
    "1024 experts": None,
}


def split(name: str) -> list[int]:
    found = SPLITS[name]
    if found is not None:
        return found
    return torch.randint(0, 9 if name == "many" else 3, (512 if name == "many" else 1024,)).tolist()


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """As near as the rounding of ``found``'s dtype allows, by norm and element by element."""
    if not wanted.numel():
        return True
    eps = torch.finfo(found.dtype).eps
    size = wanted.float().square().mean().sqrt()
    difference = (found.float() - wanted.float()).abs()
    return bool((difference <= 0.6 * eps * wanted.float().abs() + 2e-4 * size + 1e-30).all()) and bool(found.isfinite().all())


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_groups_of_any_length(name: str, config: GemmConfig) -> None:
    """Cases 8, 11 and 35: every group right, whatever its neighbours; NaN behind the last one neither read nor written."""
    counts, tail, n, k = split(name), 77, 192, 136
    rows = sum(counts)
    a, b = random(rows + tail, k), random(len(counts), n, k, scale=k**-0.5)
    a[rows:] = float("nan")
    alpha, prob = torch.rand(len(counts), device="cuda") + 0.5, torch.rand(rows + tail, device="cuda") + 0.5
    guarded = torch.full((rows + tail + 256, n), float("nan"), dtype=BF, device="cuda")
    d = guarded[128 : 128 + rows + tail]
    offsets = ends(counts)
    op = GroupedGemm(a, None, d, offsets, alpha, b, sample_prob=prob, config=config)
    op(a, None, d, offsets, alpha, b, prob_tensor=prob)
    owner = torch.repeat_interleave(torch.arange(len(counts), device="cuda"), torch.tensor(counts, device="cuda"))
    wanted = grouped_matmul(a, b, offsets)[:rows] * (alpha[owner] * prob[:rows])[:, None]
    assert close(d[:rows], wanted)
    assert guarded[:128].isnan().all() and guarded[128 + rows :].isnan().all()


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_weight_gradients_of_groups_of_any_length(name: str, config: GemmConfig) -> None:
    """Cases 1, 3, 4, 10 and 36: any start, exact zeros for groups of no tokens, NaN behind the last one not read."""
    counts, tail, m, n = split(name), 33, 136, 192
    tokens = sum(counts)
    a, b = random(tokens + tail, m), random(tokens + tail, n)
    a[tokens:] = b[tokens:] = float("nan")
    offsets = ends(counts)
    w = torch.full((len(counts), m, n), float("nan"), dtype=BF, device="cuda")
    op = GroupedGemmWgrad(a.t(), b, None, None, offsets, w, config=config)
    op(a.t(), b, offsets_tensor=offsets, wgrad_tensor=w)
    wanted = grouped_wgrad(a.t(), b, offsets)
    assert close(w, wanted)
    assert all(not w[group].any() for group, count in enumerate(counts) if count == 0)


@pytest.mark.parametrize(
    ("counts", "m", "n"),
    [
        ([162, 0, 2577, 446, 0, 83], 2048, 768),  # case 1
        ([8, 8, 0, 8, 0], 16, 16),  # case 3
        ([8, 1000, 1552], 512, 1536),  # case 10
        ([128, 256], 192, 3072),  # case 35
        ([32] * 128, 2048, 768),  # case 36
        ([32] * 128, 2048, 1536),
    ],
)
def test_reported_weight_gradients(counts: list[int], m: int, n: int) -> None:
    a, b, offsets = random(sum(counts), m), random(sum(counts), n), ends(counts)
    found = grouped_gemm_wgrad_wrapper(a.t(), b, offsets_tensor=offsets, wgrad_dtype=torch.float32)["wgrad_tensor"]
    wanted = grouped_wgrad(a.t(), b, offsets)
    for group, count in enumerate(counts):
        if count == 0:
            assert not found[group].any()
        else:
            error = (found[group] - wanted[group]).norm() / wanted[group].norm()
            assert error < 1e-5, f"group {group}: {error}"


@pytest.mark.parametrize("majors", ["kn", "mk", "kk"])
def test_copied_operands_give_the_same_bits(majors: str) -> None:
    """Tokens along the contiguous axis, groups that start anywhere, NaN in the tail."""
    counts, m, n, tokens = [61, 3, 0, 131, 200], 136, 192, 400
    a, b, offsets = random(tokens, m), random(tokens, n), ends(counts)
    a[sum(counts) :] = b[sum(counts) :] = float("nan")
    wanted = grouped_gemm_wgrad_wrapper(a.t(), b, offsets_tensor=offsets)["wgrad_tensor"]
    left = a.t().contiguous() if majors[0] == "k" else a.t()
    right = b.t().contiguous().t() if majors[1] == "k" else b
    assert same_bits(grouped_gemm_wgrad_wrapper(left, right, offsets_tensor=offsets)["wgrad_tensor"], wanted)


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("config", [None, *CONFIGS], ids=str)
def test_weight_gradients_by_pointers(name: str, adds: bool, config: GemmConfig | None) -> None:
    """As into one tensor, bit for bit, each where it belongs; what lies between is left alone."""
    counts, tail, m, n, between = split(name), 33, 136, 192, 4
    tokens, dtype = sum(counts), torch.float32 if adds else BF
    a, b, offsets = random(tokens + tail, m), random(tokens + tail, n), ends(counts)
    a[tokens:] = b[tokens:] = float("nan")
    order = torch.randperm(len(counts), device="cuda")
    held = torch.full((len(counts), m + between, n), float("nan"), dtype=dtype, device="cuda")
    found = held[:, :m]
    found.copy_(random(*found.shape, dtype=dtype))
    wanted = found[order].contiguous()
    pointers = held.data_ptr() + held.stride(0) * held.element_size() * order
    options = {"offsets_tensor": offsets, "accumulate_on_output": adds, "config": config}
    assert grouped_gemm_wgrad_wrapper(a.t(), b, output_mode="discrete", wgrad_ptrs=pointers, wgrad_dtype=dtype, **options)["wgrad_tensor"] is None
    grouped_gemm_wgrad_wrapper(a.t(), b, wgrad_tensor=wanted, **options)
    assert same_bits(found[order], wanted)
    assert held[:, m:].isnan().all()


@pytest.mark.parametrize("counts", [[72, 8, 200], [64, 0, 128], [8, 0, 0, 16, 0], [4096, 8, 3000], [0, 0, 8], [8 * (i % 5) for i in range(512)]], ids=str)
@pytest.mark.parametrize("majors", ["kn", "mk", "kk"])
@pytest.mark.parametrize("pointers", [False, True])
def test_weight_gradients_of_blocks_of_tokens(counts: list[int], majors: str, pointers: bool) -> None:
    """Each group a matrix of its own with its tokens contiguous: as of activations and gradients as they are, bit for bit where sums are exact. (Steps are laid from the groups' other ends.)"""
    m, n, tokens, tail = 1000, 264, sum(counts), 24
    (a, b), offsets = (torch.randint(-8, 9, (tokens + tail, columns), device="cuda").to(BF) for columns in (m, n)), ends(counts)
    a[tokens:] = b[tokens:] = float("nan")
    wanted = grouped_gemm_wgrad_wrapper(a.t(), b, offsets_tensor=offsets)["wgrad_tensor"]

    def blocks(t: torch.Tensor) -> torch.Tensor:
        lengths = [*counts, tail]
        return torch.cat([group.t().reshape(-1) for group in t.split(lengths)]).view(t.shape[1], t.shape[0])

    left = blocks(a) if majors[0] == "k" else a.t()
    right = blocks(b).t() if majors[1] == "k" else b
    found = torch.full_like(wanted, float("nan"))
    target = {"output_mode": "discrete", "wgrad_ptrs": torch.tensor([w.data_ptr() for w in found], device="cuda")} if pointers else {"wgrad_tensor": found}
    for _ in range(20):
        grouped_gemm_wgrad_wrapper(left, right, offsets_tensor=offsets, input_order="tensor_ragged", **target)
        assert same_bits(found, wanted)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("dtype", [BF, torch.float16, torch.float32])
def test_accumulation_leaves_groups_of_no_tokens_alone(adds: bool, dtype: torch.dtype) -> None:
    """Case 4, bit for bit, negative zeros included."""
    counts = [70, 0, 129, 0]
    # Sums are exact, so that there is one value to be rounded before the addition.
    (a, b), offsets = (torch.randint(-8, 9, (199, columns), device="cuda").to(BF) for columns in (64, 128)), ends(counts)
    w = random(4, 64, 128, dtype=dtype)
    w[1, 0] = -0.0
    before = w.clone()
    grouped_gemm_wgrad_wrapper(a.t(), b, offsets_tensor=offsets, wgrad_tensor=w, accumulate_on_output=adds)
    value = grouped_wgrad(a.t(), b, offsets)
    for group in (1, 3):
        assert same_bits(w[group], before[group] if adds else torch.zeros_like(before[group]))
    for group in (0, 2):
        value_of_group = value[group].to(dtype)
        assert same_bits(w[group], before[group] + value_of_group if adds else value_of_group)


def test_two_thousand_weight_gradients_are_the_same_bits() -> None:
    """Case 34."""
    counts = [128, 128, 256, 256, 128, 256, 256, 256]
    a, b, offsets = random(sum(counts), 768), random(sum(counts), 2048), ends(counts)
    first = grouped_gemm_wgrad_wrapper(a.t(), b, offsets_tensor=offsets)["wgrad_tensor"]
    wanted = grouped_wgrad(a.t(), b, offsets)
    assert ((first.float() - wanted).norm() / wanted.norm()).item() < 3e-3
    w = torch.empty_like(first)
    different = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(2000):
        w.fill_(float("nan"))
        grouped_gemm_wgrad_wrapper(a.t(), b, offsets_tensor=offsets, wgrad_tensor=w)
        different += (w.view(torch.int16) != first.view(torch.int16)).sum()
    assert different.item() == 0


def test_graph_replays_follow_changed_offsets_and_pointers() -> None:
    """Cases 31 and 33."""
    e, m, n, k = 5, 600, 256, 192
    a, alpha, prob = random(m, k), torch.ones(e, device="cuda"), torch.ones(m, device="cuda")
    weights = [random(n, k) for _ in range(2 * e)]
    addresses = [w.data_ptr() for w in weights]
    pointers, places = torch.tensor(addresses[:e], device="cuda"), torch.arange(e, device="cuda")
    stacked = random(e, n, k)
    offsets = ends([100, 0, 250, 50, 200])
    b2 = random(m, n)
    call = {
        "rows": lambda: grouped_gemm_wrapper(a, offsets, alpha, stacked, prob_tensor=prob)["d_tensor"],
        "pointers": lambda: grouped_gemm_wrapper(a, offsets, alpha, b_ptrs=pointers, n=n, b_dtype=BF, prob_tensor=prob)["d_tensor"],
        "steps": lambda: grouped_gemm_wgrad_wrapper(a.t(), b2, offsets_tensor=offsets)["wgrad_tensor"],
        "steps into pointers": lambda: into_pointers(torch.zeros(2 * e, k, n, dtype=BF, device="cuda")),
    }

    def into_pointers(w: torch.Tensor) -> torch.Tensor:
        # The replay's pointers are made of the places in ``places``, and where they lead is what is compared.
        step = w.stride(0) * w.element_size()
        grouped_gemm_wgrad_wrapper(a.t(), b2, offsets_tensor=offsets, output_mode="discrete", wgrad_ptrs=w.data_ptr() + step * places)
        return w

    for one in call.values():
        one()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = {name: one() for name, one in call.items()}
    for counts in ([100, 0, 250, 50, 200], [0, 0, 600, 0, 0], [1, 2, 3, 4, 590], [600, 0, 0, 0, 0]):
        offsets.copy_(ends(counts))
        places.copy_(torch.randperm(2 * e, device="cuda")[:e])
        pointers.copy_(torch.tensor(addresses, device="cuda")[places])
        a.copy_(random(m, k))
        graph.replay()
        torch.cuda.synchronize()
        for name, one in call.items():
            assert same_bits(captured[name], one()), name


def test_one_object_serves_every_total() -> None:
    """Case 39: no kernel is built after the first call."""
    from cudnn.cache import stats

    e, n, k = 6, 128, 64
    b, alpha = random(e, n, k), torch.ones(e, device="cuda")
    counts = []
    for _ in range(20):
        sizes = torch.randint(0, 700, (e,)).tolist()
        rows = max(sum(sizes), 1)
        a = random(rows, k)
        d = grouped_gemm_wrapper(a, ends(sizes), alpha, b, prob_tensor=torch.ones(rows, device="cuda"))["d_tensor"]
        assert close(d[: sum(sizes)], grouped_matmul(a, b, ends(sizes))[: sum(sizes)])
        found = stats.snapshot()
        counts.append((found["builds"], found["disk_hits"]))
    assert len(set(counts)) == 1


@pytest.mark.parametrize("tokens", [65535, 65536])
def test_many_tokens(tokens: int) -> None:
    """Case 20: no extent sits on a grid axis with a limit of 65535."""
    counts = [tokens // 2, tokens - tokens // 2]
    a, b = random(tokens, 16), random(2, 32, 16)
    d = grouped_gemm_wrapper(a, ends(counts), torch.ones(2, device="cuda"), b, prob_tensor=torch.ones(tokens, device="cuda"))["d_tensor"]
    assert close(d, grouped_matmul(a, b, ends(counts)))


@pytest.mark.parametrize(("rows", "k"), [(525312, 4096), (131072, 16384), (4194305, 512)])
def test_operands_beyond_2_to_31_elements(rows: int, k: int) -> None:
    """Cases 14 and 15, on rows at the beginning, in the middle and at the end."""
    need(2.5 * rows * k * 2)
    counts = [rows // 3, 1, 0, rows - rows // 3 - 1]
    a, b = torch.empty(rows, k, dtype=torch.float16, device="cuda").normal_(), random(4, 64, k, dtype=torch.float16, scale=k**-0.5)
    d = grouped_gemm_wrapper(a, ends(counts), torch.ones(4, device="cuda"), b, prob_tensor=torch.ones(rows, device="cuda"))["d_tensor"]
    starts = [0, *ends(counts).tolist()]
    for group, (start, end) in enumerate(zip(starts, starts[1:], strict=False)):
        for at in {start, (start + end) // 2, max(end - 300, start)} if end > start else ():
            piece = slice(at, min(at + 300, end))
            assert close(d[piece], a[piece].float() @ b[group].float().t())


def test_pre_activations_beyond_2_to_31_elements() -> None:
    """Case 19."""
    rows, n, k = 1079839, 2048, 64
    need(3.0 * rows * n * 2)
    counts = [500000, 0, 79839, 500000]
    a, b = random(rows, k), random(4, n, k, scale=k**-0.5)
    result = grouped_gemm_glu_wrapper(a, None, ends(counts), torch.ones(4, device="cuda"), b, prob_tensor=torch.ones(rows, device="cuda"), generate_c=True)
    starts = [0, *ends(counts).tolist()]
    for group, (start, end) in enumerate(zip(starts, starts[1:], strict=False)):
        for at in {start, (start + end) // 2, max(end - 100, start)} if end > start else ():
            piece = slice(at, min(at + 100, end))
            wanted = a[piece].float() @ b[group].float().t()
            assert close(result["c_tensor"][piece], wanted)
            blocks = wanted.unflatten(1, (n // 64, 2, 32))
            gate, up = blocks[:, :, 0].flatten(1), blocks[:, :, 1].flatten(1)
            assert close(result["d_tensor"][piece], up * torch.nn.functional.silu(gate))


def need(bytes: float) -> None:
    free, _ = torch.cuda.mem_get_info()
    if free < bytes:
        pytest.skip(f"needs {bytes / 2**30:.0f} GiB of device memory, {free / 2**30:.0f} are free")


def test_empty_calls_leave_no_error_behind() -> None:
    """Cases 5 and 6."""
    e, n, k = 3, 128, 64
    b, alpha, zero = random(e, n, k), torch.ones(e, device="cuda"), torch.zeros(e, dtype=torch.int32, device="cuda")
    none = torch.ones(0, device="cuda")
    assert grouped_gemm_wrapper(random(0, k), zero, alpha, b, prob_tensor=none)["d_tensor"].shape == (0, n)
    result = grouped_gemm_dglu_wrapper(random(0, k), random(0, 2 * n), None, zero, alpha, alpha, none, none.clone(), b, generate_dbias=True)
    assert result["d_row_tensor"].shape == (0, 2 * n) and not result["dbias_tensor"].any()
    w = grouped_gemm_wgrad_wrapper(random(0, k).t(), random(0, n), offsets_tensor=zero)["wgrad_tensor"]
    assert w.shape == (e, k, n) and not w.any()
    a = random(30, k)
    d = grouped_gemm_wrapper(a, ends([10, 0, 20]), alpha, b, prob_tensor=torch.ones(30, device="cuda"))["d_tensor"]
    assert close(d, grouped_matmul(a, b, ends([10, 0, 20])))


def test_wrong_offsets_stay_inside_the_tensors() -> None:
    """Nothing is promised of the values, but no other memory is touched."""
    buffer = torch.full((4000, 128), 7.0, dtype=BF, device="cuda")
    a, b = random(300, 64), random(4, 128, 64)
    offsets = torch.tensor([-8, 5000, 100, 2**31 - 1], dtype=torch.int32, device="cuda")
    op = GroupedGemm(a, None, buffer[1000:1300], offsets, torch.ones(4, device="cuda"), b, sample_prob=torch.ones(300, device="cuda"))
    op(a, None, buffer[1000:1300], offsets, torch.ones(4, device="cuda"), b, prob_tensor=torch.ones(300, device="cuda"))
    torch.cuda.synchronize()
    assert (buffer[:1000] == 7).all() and (buffer[1300:] == 7).all()


def test_validation_reads_what_the_device_knows() -> None:
    """CUDNN_KERNELS_VALIDATE=1 names the offending group, and is refused under capture."""
    code = """
import torch
from cudnn_gemm_grouped.unfused.api import grouped_gemm_wrapper
from cudnn_gemm_grouped.wgrad.api import grouped_gemm_wgrad_wrapper
e, m, n, k = 3, 24, 64, 64
a, b = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(e, n, k, device="cuda").bfloat16()
one, prob = torch.ones(e, device="cuda"), torch.ones(m, device="cuda")
def call(*ends, **kw): return grouped_gemm_wrapper(a, torch.tensor(ends, dtype=torch.int32, device="cuda"), one, **(kw or {"b_tensor": b}), prob_tensor=prob)
def message(f):
    try: f()
    except (ValueError, RuntimeError) as error: return f"{type(error).__name__}: {error}"
    return "nothing"
print(message(lambda: call(8, 8, 24)))
print(message(lambda: call(8, 4, 24)))
print(message(lambda: call(8, 8, 25)))
pointers = [x.data_ptr() for x in b]
for bad in (0, pointers[1] + 2):
    given = torch.tensor([pointers[0], bad, pointers[2]], device="cuda")
    print(message(lambda: call(8, 8, 24, b_ptrs=given, n=n, b_dtype="bfloat16")))
print(message(lambda: grouped_gemm_wgrad_wrapper(a.t(), a, offsets_tensor=torch.tensor([30, 24], dtype=torch.int32, device="cuda"))))
offsets = torch.tensor([8, 8, 24], dtype=torch.int32, device="cuda")
def captured():
    with torch.cuda.graph(torch.cuda.CUDAGraph()): grouped_gemm_wrapper(a, offsets, one, b, prob_tensor=prob)
print(message(captured))
"""
    import os

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env={**os.environ, "CUDNN_KERNELS_VALIDATE": "1"})
    lines = done.stdout.splitlines()
    assert len(lines) == 7, done.stderr
    assert lines[0] == "nothing"
    assert "ValueError: padded_offsets: found 4 as the end of group 1, which is below 8" in lines[1]
    assert "ValueError: padded_offsets: found 25 as the end of group 2, needs 24 at most" in lines[2]
    assert "ValueError: b_ptrs: found a null pointer for group 1" in lines[3]
    assert "ValueError: b_ptrs:" in lines[4] and "2 bytes past a multiple of 16 for group 1" in lines[4]
    assert "ValueError: offsets_tensor: found 30 as the end of group 0" in lines[5]
    assert "RuntimeError" in lines[6] and "captured" in lines[6]


def test_dprob_in_a_fixed_order_and_in_any() -> None:
    """The fixed order gives the same bits; both give the same sums."""
    counts, n, k = [300, 0, 77, 1000], 2048, 128
    m = sum(counts)
    a, c, b = random(m, k), random(m, 2 * n), random(4, n, k, scale=k**-0.5)
    one, prob = torch.rand(4, device="cuda") + 0.5, torch.rand(m, device="cuda")

    def run(deterministic: bool) -> Any:
        dprob = torch.zeros(m, device="cuda")
        result = grouped_gemm_dglu_wrapper(a, c, None, ends(counts), one, one, prob, dprob, b, generate_dbias=True, deterministic=deterministic)
        return dprob, result["dbias_tensor"], result["d_row_tensor"]

    first = run(True)
    for _ in range(50):
        assert all(same_bits(x, y) for x, y in zip(run(True), first, strict=True))
    other = run(False)
    torch.testing.assert_close(other[0], first[0], rtol=1e-4, atol=1e-3)
    assert same_bits(other[1], first[1]) and same_bits(other[2], first[2])
