"""Projection + RoPE + MXFP8 on a Hopper GPU: bit for bit where sums are exact, elsewhere within what rounding can do; every configuration, repeats, MXFP8 operands, the tuner."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import cudnn
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.testing.ahead import build_ahead
from cudnn.testing.conformance import GemmConformanceCuda, same_bits
from cudnn.testing.poison import Poisoned
from cudnn.tuning import table
from cudnn_gemm_dense.operation import unfit_reason
from cudnn_gemm_dense.proj_rope_mxfp8 import GemmProjRopeMxfp8Bf16In, gemm_proj_rope_mxfp8_reference, gemm_proj_rope_mxfp8_wrapper
from cudnn_gemm_dense.proj_rope_mxfp8.conformance import ProjRopeHooks, ProjRopeMxfp8Hooks
from cudnn_gemm_dense.proj_rope_mxfp8.options import FOOTPRINT, ProjRopeOptions, proj_rope_spec
from cudnn_gemm_dense.proj_rope_mxfp8.reference import dequantized, proj_rope_mxfp8, widened

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a CUDA device of compute capability 9.0")]

PROBLEM = GemmProblem("bfloat16", "bfloat16")
CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4))
EVERY = [
    GemmConfig(tile_m, 192, *cluster, pingpong, raster=raster)
    for (tile_m, cluster, pingpong), raster in zip(itertools.product((64, 128, 256), CLUSTERS, (False, True)), itertools.cycle(("m", "n")), strict=False)
]
EVERY += [GemmConfig(64, 192, split_k=2), GemmConfig(64, 192, split_k=4), GemmConfig(128, 192, split_k=2), GemmConfig(64, 192, k_atoms=2)]
EVERY = [config for config in EVERY if unfit_reason(PROBLEM, FOOTPRINT, config) is None]
# One for each way through the kernel.
SCHEDULES = [
    GemmConfig(128, 192, 2, 1, pingpong=True),
    GemmConfig(64, 192, pingpong=True, raster="n"),
    GemmConfig(128, 192, 1, 2),
    GemmConfig(256, 192),
    GemmConfig(64, 192, k_atoms=2),
    GemmConfig(64, 192, split_k=2),
]


@pytest.fixture(scope="module", autouse=True)
def kernels():
    """All of them, built in parallel."""
    build_ahead(proj_rope_spec(PROBLEM, ProjRopeOptions(), config) for config in (*EVERY, *SCHEDULES))


class TestProjRope(ProjRopeHooks, GemmConformanceCuda):
    device = "cuda"


class TestProjRopeInOut(ProjRopeHooks, GemmConformanceCuda):
    device = "cuda"
    w_out_in = False


class TestProjRopeMxfp8(ProjRopeMxfp8Hooks, GemmConformanceCuda):
    device = "cuda"

    # torch cannot fill or compare fp8 parameters as these tests do.
    test_parameters_that_require_grad = None
    test_graph_capture_and_replay_with_other_values = None


def exact(tokens: int, heads: int, k: int) -> tuple[torch.Tensor, ...]:
    """x, w, cos, sin whose products and sums are whole numbers below 2^24, so that no order of summation matters."""
    x, w = (torch.randint(-15, 16, (rows, k), device="cuda").bfloat16() for rows in (tokens, 192 * heads))
    angles = torch.rand(tokens, 64, device="cuda") * 2 * math.pi
    return x, w, angles.cos().bfloat16(), angles.sin().bfloat16()


def run_poisoned(x, w, cos, sin, **options) -> list[torch.Tensor]:
    """The outputs of the class, every element written and nothing around them."""
    hooks = ProjRopeHooks()
    hooks.device = "cuda"
    outputs = {name: Poisoned(*layout, "cuda") for name, layout in hooks.output_layouts(x.shape[0], w.shape[0], x.shape[1], 1).items()}
    tensors = [p.tensor for p in outputs.values()]
    op = GemmProjRopeMxfp8Bf16In(x, w, cos, sin, *tensors, w_out_in=True, **options)
    op(x, w, cos, sin, *tensors)
    for name, p in outputs.items():
        p.check(name)
    return tensors


def assert_same(found, expected, what="") -> None:
    for name, f, e in zip(("out_fp8_row", "out_scales_row", "out_fp8_col", "out_scales_col"), found, expected, strict=True):
        different = (f.view(torch.uint8) != e.view(torch.uint8)).nonzero()
        assert not len(
            different
        ), f"{what} {name}: {len(different)} bytes of {f.numel()} differ, first at {different[0].tolist()}, last at {different[-1].tolist()}"


@pytest.mark.parametrize(("tokens", "heads", "k"), [(128, 1, 8), (128, 2, 64), (384, 3, 200), (640, 7, 1000), (2048, 16, 1536), (128, 133, 64)])
def test_exact_sums_bit_for_bit(tokens, heads, k):
    x, w, cos, sin = exact(tokens, heads, k)
    expected = proj_rope_mxfp8(*(t.cpu() for t in (x, w, cos, sin)), True)
    expected = [t.cuda() for t in expected]
    assert_same(run_poisoned(x, w, cos, sin), expected)
    for w_out_in in (True, False):
        assert_same(gemm_proj_rope_mxfp8_wrapper(x, w if w_out_in else w.t().contiguous(), cos, sin, w_out_in=w_out_in), expected)


def test_every_configuration_bit_for_bit():
    """Tiles and clusters that reach past the last token and the last head."""
    x, w, cos, sin = exact(640, 5, 456)
    expected = [t.cuda() for t in proj_rope_mxfp8(*(t.cpu() for t in (x, w, cos, sin)), True)]
    assert len(EVERY) > 20
    for config in EVERY:
        assert_same(run_poisoned(x, w, cos, sin, config=config), expected, str(config))


def test_sizes_far_apart_zeros_and_the_edges_of_powers_of_two():
    """x picks a column of w for each token, so that q is any number of bfloat16."""
    features = 192 * 3
    q = (torch.randn(128, features) * torch.ldexp(torch.ones(128, features), torch.randint(-60, 61, (128, features)))).bfloat16()
    q[:64, :192] = 0
    q[64:96, 192:224] = torch.ldexp(torch.full((32, 32), 1.75), torch.randint(-20, 20, (32, 32))).bfloat16()
    q[96:128, 224:256] = torch.ldexp(torch.ones(32, 32), torch.randint(-125, -110, (32, 32))).bfloat16()
    q[0, 300], q[1, 301] = 3e38, -3e38
    _, _, cos, sin = exact(128, 1, 8)
    expected = proj_rope_mxfp8(torch.eye(128).bfloat16(), q.t().contiguous(), cos.cpu(), sin.cpu(), True)
    assert_same(run_poisoned(torch.eye(128, device="cuda").bfloat16(), q.t().contiguous().cuda(), cos, sin), [t.cuda() for t in expected])


def test_nan_stays_in_its_blocks():
    x, w, cos, sin = exact(256, 2, 64)
    clean = gemm_proj_rope_mxfp8_wrapper(x, w, cos, sin)
    x[70, 3] = float("nan")
    found = gemm_proj_rope_mxfp8_wrapper(x, w, cos, sin)
    assert (found["out_scales_row"][70] == 255).all() and (found["out_scales_col"][2] == 255).all()
    assert found["out_fp8_row"][70].isnan().all() and found["out_fp8_col"][64:96].isnan().all()
    for name, t in found.items():
        nan_rows = {"out_fp8_row": slice(70, 71), "out_scales_row": slice(70, 71), "out_fp8_col": slice(64, 96), "out_scales_col": slice(2, 3)}[name]
        mask = torch.ones(t.shape[0], dtype=torch.bool, device="cuda")
        mask[nan_rows] = False
        assert same_bits(t[mask], clean[name][mask])


@pytest.mark.parametrize("tokens", [2048, 4096])
@pytest.mark.parametrize("w_out_in", [True, False])
def test_published_sizes(tokens, w_out_in):
    hooks = ProjRopeHooks()
    hooks.device, hooks.w_out_in = "cuda", w_out_in
    inputs = hooks.inputs(tokens, 192 * 128, 1536, 1)
    found = hooks.wrapper(inputs)
    reference = dequantized(*gemm_proj_rope_mxfp8_reference(**inputs, w_out_in=w_out_in))
    for got, expected in zip(dequantized(*found.values()), reference, strict=True):
        assert ((got - expected).abs() <= 0.1 + 0.1 * expected.abs()).double().mean() >= 0.95
    # All of it in float64 takes much memory: a stretch of tokens with all heads, and all tokens of some.
    rows = slice(tokens - 256, tokens)
    part = {name: t if name == "w" else t[rows] for name, t in inputs.items()}
    hooks.check(part, {name: t[rows.start // 32 :] if name == "out_scales_col" else t[rows] for name, t in found.items()})
    heads = slice(125, 128)
    w = inputs["w"][192 * 125 :] if w_out_in else inputs["w"][:, 192 * 125 :]
    hooks.check({**inputs, "w": w}, {name: t[:, heads] for name, t in found.items()})


@pytest.mark.parametrize("tokens", [256, 2048])
def test_mxfp8_operands_give_what_their_bfloat16_values_do(tokens):
    hooks = ProjRopeMxfp8Hooks()
    hooks.device = "cuda"
    inputs = hooks.inputs(tokens, 192 * 6, 1536 + 32, 1)
    x, w = (widened(inputs[f"{name}_code"], inputs[f"{name}_scale"]) for name in "xw")
    found = hooks.wrapper(inputs)
    assert_same(found.values(), gemm_proj_rope_mxfp8_wrapper(x, w, inputs["cos"], inputs["sin"]).values())
    hooks.check(inputs, found)
    turned = gemm_proj_rope_mxfp8_wrapper(
        inputs["x_code"], inputs["w_code"].t(), inputs["cos"], inputs["sin"], inputs["x_scale"], inputs["w_scale"].t().contiguous(), w_out_in=False
    )
    assert_same(turned.values(), found.values())


def test_mxfp8_operands_in_a_graph():
    """The scratch memory belongs to the graph, and a replay converts what the operands hold by then."""
    hooks = ProjRopeMxfp8Hooks()
    hooks.device = "cuda"
    inputs = hooks.inputs(384, 192 * 4, 1536, 1)
    hooks.wrapper(inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = hooks.wrapper(inputs)
    for _ in range(5):
        fresh = hooks.inputs(384, 192 * 4, 1536, 1)
        for name, t in inputs.items():
            t.copy_(fresh[name])
        graph.replay()
        torch.cuda.synchronize()
        assert_same(found.values(), hooks.wrapper(fresh).values())


def test_weights_are_turned_on_the_launch_stream():
    """The current stream is held back: what waits for it would come too late."""
    hooks = ProjRopeMxfp8Hooks()
    hooks.device = "cuda"
    inputs = hooks.inputs(256, 192 * 8, 1536, 1)
    expected = hooks.wrapper(inputs)
    w, w_scale = (inputs[name].t().contiguous() for name in ("w_code", "w_scale"))
    torch.cuda.synchronize()
    for side in (torch.cuda.Stream(), torch.cuda.Stream().cuda_stream):
        torch.cuda._sleep(10**8)
        found = gemm_proj_rope_mxfp8_wrapper(inputs["x_code"], w, inputs["cos"], inputs["sin"], inputs["x_scale"], w_scale, False, side)
        torch.cuda.synchronize()
        assert_same(found.values(), expected.values())


@pytest.mark.parametrize("config", SCHEDULES, ids=str)
def test_a_thousand_repeats_are_equal_in_every_bit(config):
    hooks = ProjRopeHooks()
    hooks.device, hooks.config = "cuda", config
    extents = (1152, 192 * 19, 264, 1)
    inputs, outputs = hooks.inputs(*extents), hooks.output_layouts(*extents)
    outputs = {name: torch.empty_strided(shape, stride, dtype=dtype, device="cuda") for name, (shape, stride, dtype) in outputs.items()}
    op = hooks.build(inputs, outputs)
    op(**inputs, **outputs)
    hooks.check(inputs, outputs)
    first = {name: t.clone() for name, t in outputs.items()}
    different = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(1000):
        for t in outputs.values():
            t.view(torch.uint8).fill_(255)
        op.execute(**inputs, **outputs)
        for name, t in outputs.items():
            different += (t.view(torch.uint8) != first[name].view(torch.uint8)).sum()
    assert different.item() == 0


def test_tuning_finds_a_configuration(tmp_path, monkeypatch):
    """Nothing is skipped: all candidates agree with the default one."""
    monkeypatch.setattr(table, "_session", {})
    monkeypatch.setattr(table, "kept_path", lambda device: tmp_path / "results.json")
    x, w, cos, sin = exact(512, 8, 512)
    outputs = list(gemm_proj_rope_mxfp8_wrapper(x, w, cos, sin).values())
    expected = [t.clone() for t in outputs]
    op = GemmProjRopeMxfp8Bf16In(x, w, cos, sin, *outputs, w_out_in=True)
    monkeypatch.setattr(op, "_candidates", lambda *_: tuple(SCHEDULES))
    (result,) = cudnn.tune(op, x, w, cos, sin, *outputs)
    assert not result.skipped, [f"{c.config}: {c.reason}" for c in result.skipped]
    assert {c.config for c in result.candidates} >= set(SCHEDULES)
    op.execute(x, w, cos, sin, *outputs)
    assert_same(outputs, expected)
