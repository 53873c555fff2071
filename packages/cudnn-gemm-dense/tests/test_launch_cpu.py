"""From a call to kernels, on a device that is not there: CPU tensors go the way of CUDA tensors, and kernels compute with plain torch.

What the kernels are given is checked here: transposed operands, scratch memory, and the configurations that the default rule and the tuner choose.
"""

from __future__ import annotations

import json
import types

import pytest
import torch

import cudnn
from cudnn.bench.timing import Prepared
from cudnn.cutedsl.compile import KernelSpec
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.cutedsl.transpose import TransposeSpec, pitch
from cudnn.tuning import table, tuner
from cudnn.workspace import ws_align
from cudnn_gemm_dense.configs import candidates, choose
from cudnn_gemm_dense.conformance import random_compact
from cudnn_gemm_dense.gemm import api as gemm_api
from cudnn_gemm_dense.gemm.reference import gemm_reference
from cudnn_gemm_dense.operation import fitting_configs, unfit_reason
from cudnn_gemm_dense.swiglu import api as swiglu_api
from cudnn_gemm_dense.swiglu.conformance import SwigluHooks
from cudnn_gemm_dense.swiglu.options import SwigluOptions
from cudnn_gemm_dense.swiglu.reference import run_reference

DEVICE = "NVIDIA H200"


@pytest.fixture
def device(pretend, monkeypatch, tmp_path, fresh):
    """Yields what was built and what ran: ("gemm", config, operands) or ("transpose", shape)."""
    log = types.SimpleNamespace(built=[], ran=[], wrong=set())

    def build(spec):
        log.built.append(spec)

        def kernel(operands, others, scalars, clusters, handle):
            assert clusters == spec.config.resident_clusters(132) and handle == 0
            log.ran.append((spec.op, spec.config, operands))
            for t, major in zip(operands, (spec.problem.a_major, *[spec.problem.b_major] * (len(operands) - 1)), strict=True):
                assert t.stride(1 if major == "k" else 0) == 1, "an operand is contiguous along the axis that the kernel was built for"
            if spec.op == "gemm":
                d = gemm_reference(*operands, scalars[0])
                others[0].copy_(2 * d if spec.config.tile_n in log.wrong else d)
            else:
                a, *halves = operands
                layout, acc = spec.options.glu_layout, spec.problem.acc_dtype
                run_reference(a, halves if len(halves) == 2 else halves[0], *others, scalars[0], glu_layout=layout, acc_dtype=acc)

        return kernel

    def build_transpose(spec):
        log.built.append(spec)

        def kernel(source, target, handle):
            assert handle == 0 and source.shape == target.shape and source.stride(0) == 1 and target.stride(1) == 1
            assert str(source.dtype) == str(target.dtype) == f"torch.{spec.dtype}"
            unit = 16 // source.dtype.itemsize
            assert all(step % unit == 0 for step in (target.stride(0), target.stride(2))) and target.data_ptr() % 16 == 0
            log.ran.append(("transpose", tuple(source.shape)))
            bits = torch.uint8 if source.dtype.itemsize == 1 else torch.int32
            target.view(bits).copy_(source.view(bits))

        return kernel

    monkeypatch.setattr(table, "shipped_paths", lambda package: sorted((tmp_path / "tuned").glob("*.json")))
    monkeypatch.setattr(tuner, "device_name", lambda ordinal: DEVICE)
    monkeypatch.setattr("cudnn.tuning.api.require_gpu", lambda who: None)
    monkeypatch.setattr(KernelSpec, "build", build)
    monkeypatch.setenv("CUDNN_KERNELS_COMPILE_JOBS", "1")
    monkeypatch.setattr(TransposeSpec, "build", build_transpose)
    fresh(gemm_api.CALLS, swiglu_api.CALLS)
    log.shipped = tmp_path / "tuned" / "nvidia-h200.json"
    return log


def ran(log, kind):
    return [entry for entry in log.ran if entry[0] == kind]


# Operands that are transposed


@pytest.mark.parametrize("layout", ["interleaved32", "concatenated", "separate"])
@pytest.mark.parametrize("majors", ["kk", "mk", "kn", "mn"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float32], ids=str)
def test_swiglu_in_every_major(device, dtype, majors, layout):
    """8-bit and 32-bit operands reach the kernel k-major, through scratch memory of the size that the formula says; 16-bit ones as they are."""
    hooks = SwigluHooks()
    hooks.dtype, hooks.glu_layout, (hooks.a_major, hooks.b_major) = dtype, layout, majors
    m, n, k, batches = 32, 128, 41 if majors == "mn" else 64, 2  # where K is contiguous nowhere it may be anything
    inputs = hooks.inputs(m, n, k, batches)
    outputs = {name: torch.empty_strided(shape, stride, dtype=kind) for name, (shape, stride, kind) in hooks.output_layouts(m, n, k, batches).items()}
    op = hooks.build(inputs, outputs)
    op(**inputs, **outputs)
    expected, norm = hooks.reference(inputs), torch.linalg.vector_norm
    for name, t in outputs.items():
        assert norm(t.double() - expected[name]) <= 2**-7 * norm(expected[name]), name
    turned = [] if dtype == torch.bfloat16 else [rows for rows, major in ((m, majors[0]), (n, majors[1])) if major != "k"]
    if layout == "separate" and dtype != torch.bfloat16 and majors[1] == "n":
        turned = [*turned[:-1], n // 2, n // 2]
    assert [entry[1] for entry in ran(device, "transpose")] == [(rows, k, batches) for rows in turned]
    line = pitch(k, 8 * dtype.itemsize) * dtype.itemsize
    assert op.workspace_bytes() == op.scratch_workspace_bytes() == sum(ws_align(rows * line * batches) for rows in turned)
    assert sum(isinstance(spec, TransposeSpec) for spec in device.built) == bool(turned)


def test_a_workspace_of_the_caller(device):
    """The copies lie in it; nothing is allocated, and a wrong one is refused by what is wrong with it."""
    m, n, k = 64, 48, 80
    a, b = random_compact((m, k, 1), 0, torch.float8_e4m3fn, "cpu"), random_compact((n, k, 1), 0, torch.float8_e4m3fn, "cpu")
    d = torch.empty(m, n, 1, dtype=torch.float32)
    op = cudnn.Gemm(a, b, d)
    op.compile()
    assert op.workspace_bytes() == ws_align(m * 80) + ws_align(n * 80)
    workspace = torch.empty(op.workspace_bytes(), dtype=torch.uint8)
    op.execute(a, b, d, workspace=workspace)
    _, _, operands = ran(device, "gemm")[0]
    start, end = workspace.data_ptr(), workspace.data_ptr() + workspace.numel()
    assert all(start <= t.data_ptr() < end for t in operands) and operands[1].data_ptr() - operands[0].data_ptr() == ws_align(m * 80)
    torch.testing.assert_close(d, gemm_reference(a, b), rtol=1e-6, atol=1e-6)
    for wrong, message in (
        (workspace[:-1], f"Gemm: workspace has {workspace.numel() - 1} bytes, needs {workspace.numel()}"),
        (torch.empty(2 * workspace.numel(), dtype=torch.uint8)[::2], "workspace is not contiguous"),
        (torch.empty(workspace.numel() + 1, dtype=torch.uint8)[1:], "needs 16-byte alignment"),
        (torch.empty(workspace.numel(), dtype=torch.uint8, device="meta"), "workspace is on meta, needs cpu, the device of the operands"),
    ):
        with pytest.raises(ValueError, match=message):
            op.execute(a, b, d, workspace=wrong)
    # Another size is other scratch memory, of the same object.
    a, d = random_compact((512, k, 1), 0, torch.float8_e4m3fn, "cpu"), torch.empty(512, n, 1, dtype=torch.float32)
    with pytest.raises(ValueError, match="workspace has"):
        op.execute(a, b, d, workspace=workspace)
    op.execute(a, b, d)
    torch.testing.assert_close(d, gemm_reference(a, b), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_float16_sums_are_the_kernels_own(device, dtype):
    hooks = SwigluHooks()
    hooks.dtype, hooks.acc_dtype, hooks.ab12_dtype = dtype, "float16", torch.float16
    result = hooks.wrapper(hooks.inputs(48, 128, 64, 1))
    assert result["ab12_tensor"].dtype == torch.float16
    specs = [spec for spec in device.built if isinstance(spec, KernelSpec)]
    assert {spec.problem.acc_dtype for spec in specs} == {"float16"} and all(spec.config.split_k == 1 for spec in specs)


# The choice of a configuration


SHAPES = {
    "large": (8192, 8192, 8192, 1),
    "one row": (1, 8192, 8192, 1),
    "sixteen rows": (16, 8192, 8192, 1),
    "one tile of rows": (128, 8192, 8192, 1),
    "a wave": (1536, 1408, 4096, 1),
    "many batches": (256, 256, 256, 64),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float32"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_default_rule_chooses_sensibly(shape, dtype):
    m, n, k, batches = SHAPES[shape]
    problem, footprint = GemmProblem(dtype, dtype), SwigluOptions("bfloat16", "bfloat16").footprint
    chosen = choose(fitting_configs(problem, footprint), m, n, k, batches)
    assert unfit_reason(problem, footprint, chosen) is None
    tiles = -(-m // chosen.tile_m) * -(-n // chosen.tile_n) * batches * chosen.split_k
    if shape == "large":
        assert chosen.tile_m * chosen.tile_n >= 128 * 128 and chosen.split_k == 1 and chosen.pingpong == (dtype != "float8_e4m3fn")
    elif shape in ("one row", "sixteen rows"):
        # A tile of 64 rows, and enough CTAs to read the weights with.
        assert chosen.tile_m == 64 and tiles >= 96
    elif shape == "one tile of rows":
        assert tiles >= 96
    elif shape == "many batches":
        assert chosen.split_k == 1 and tiles >= 128
    else:
        assert 100 <= tiles <= 264


def test_every_default_configuration_is_chosen_for_something():
    """One that never is would be compiled for nothing."""
    for dtype in ("bfloat16", "float8_e4m3fn"):
        configs = fitting_configs(GemmProblem(dtype, dtype), SwigluOptions("bfloat16", "bfloat16").footprint)
        sizes = [1 << i for i in range(15)]
        found = {choose(configs, m, n, k, 1) for m in sizes for n in sizes[6:] for k in sizes[6:]}
        assert found == set(configs)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float32"])
@pytest.mark.parametrize("shape", SHAPES)
def test_candidates_fit_and_cover(shape, dtype):
    problem, footprint = GemmProblem(dtype, dtype), SwigluOptions("bfloat16", "bfloat16").footprint
    m, n, k, batches = SHAPES[shape]
    found = candidates(problem, m, n, k, batches, fits=lambda config: unfit_reason(problem, footprint, config) is None)
    assert 4 <= len(found) <= 64 and len(set(found)) == len(found)
    assert all(unfit_reason(problem, footprint, config) is None for config in found)
    assert all(config.tile_m < 2 * max(m, 33) for config in found)
    if shape == "large":
        assert {(c.tile_m, c.tile_n) for c in found} >= {(128, 128), (256, 64), (128, 64)} and any(c.raster == "n" for c in found)
        assert {(c.cluster_m, c.cluster_n) for c in found} >= {(2, 1), (1, 2), (2, 2)} and {c.split_k for c in found} == {1}
    if shape in ("one row", "one tile of rows"):
        assert {c.split_k for c in found} >= {1, 2} and (dtype == "float8_e4m3fn" or any(c.k_atoms > 1 for c in found))
    few = candidates(problem, m, n, k, batches, fits=lambda config: unfit_reason(problem, footprint, config) is None, limit=5)
    assert few == found[:5]
    assert candidates(problem, m, n, k, batches, fits=lambda config: False) == ()


# Tuned results


TUNED = GemmConfig(128, 96, 1, 2)


def entry(config=TUNED, extents=(256, 320, 64, 1), **options):
    problem, chosen = GemmProblem("bfloat16", "bfloat16"), gemm_api.GemmOptions("bfloat16", **options)
    described = table.described(problem), table.described(chosen)
    return table.Entry("gemm", *described, table.bucket(*extents), config, 10.0, GemmConfig(128, 128), 11.0)


def operands(m=256, n=320, k=64, dtype=torch.bfloat16):
    return torch.randn(m, k, 1).to(dtype), torch.randn(n, k, 1).to(dtype), torch.empty(m, n, 1, dtype=dtype)


def config_used(log):
    return ran(log, "gemm")[-1][1]


def test_shipped_results_are_compiled_and_used(device, monkeypatch):
    table.write(device.shipped, DEVICE, [entry()], lock=False)
    a, b, d = operands()
    op = cudnn.Gemm(a, b, d)
    op(a, b, d)
    assert config_used(device) == TUNED
    rule = set(fitting_configs(GemmProblem("bfloat16", "bfloat16"), gemm_api.GemmOptions("bfloat16").footprint, swaps=True))
    assert {spec.config for spec in device.built} == rule | {TUNED}
    other = operands(m=4096)
    op.execute(*other)
    assert config_used(device) in rule
    op.execute(*operands(m=250))  # the same bucket
    assert config_used(device) == TUNED
    # A wrapper's object, other options, a configuration of the caller's own, and no results at all.
    cudnn.gemm_wrapper(a, b)
    assert config_used(device) == TUNED
    cudnn.gemm_wrapper(a, b, d_dtype="float32")
    assert config_used(device) in rule
    cudnn.gemm_wrapper(a, b, config={"tile_m": 64, "tile_n": 64})
    assert config_used(device) == GemmConfig(64, 64)
    monkeypatch.setenv(table.VARIABLE, "0")
    cudnn.Gemm(a, b, d)(a, b, d)
    assert config_used(device) in rule
    monkeypatch.setenv(table.VARIABLE, "1")
    table.remember(DEVICE, entry(GemmConfig(64, 128)))
    cudnn.Gemm(a, b, d)(a, b, d)
    assert config_used(device) == GemmConfig(64, 128)


def test_results_that_no_longer_fit_are_left_out(device):
    table.write(device.shipped, DEVICE, [entry(GemmConfig(256, 256))], lock=False)
    a, b, d = operands()
    cudnn.Gemm(a, b, d)(a, b, d)
    assert config_used(device) in set(fitting_configs(GemmProblem("bfloat16", "bfloat16"), gemm_api.GemmOptions("bfloat16").footprint, swaps=True))


class Clock:
    """``times`` by tile_n, 100 us for others."""

    def __init__(self, log, times):
        self.log, self.times = log, times

    def estimate(self, calls):
        calls[0]()
        return self.times.get(self.log.ran[-1][1].tile_n, 100.0) + self.log.ran[-1][1].cluster_size / 1000

    def prepare(self, name, calls):
        us = self.estimate(calls)
        return Prepared(lambda: us, len(calls), "graph", 0.0)

    def measure(self, prepared, repeats):
        return {name: [p.run()] * repeats for name, p in prepared.items()}


def test_tuning_a_wrapper_and_a_class(device, monkeypatch):
    monkeypatch.setattr(tuner, "_cuda_timer", lambda ordinal: Clock(device, {160: 40.0, 96: 1.0}))
    device.wrong.add(96)
    a, b, d = operands()
    for _ in range(3):  # a repeated call takes a shorter way
        result = cudnn.gemm_wrapper(a, b)
    before = config_used(device)
    (tuned,) = cudnn.tune(cudnn.gemm_wrapper, a, b)
    assert tuned.default == before and tuned.best.tile_n == 160 and tuned.best_us < 41 < tuned.default_us
    wrong = [c for c in tuned.candidates if c.config.tile_n == 96]
    assert wrong and all(
        c.reason.startswith("wrong: ") and c.reason.endswith("of 81920 elements differ from those of the default configuration") for c in wrong
    )
    for _ in range(3):
        again = cudnn.gemm_wrapper(a, b)
        assert config_used(device) == tuned.best and torch.equal(again["d_tensor"], result["d_tensor"])
    assert json.loads(json.dumps(tuned.as_dict()))["op"] == "gemm"
    # Objects that are compiled later know it, those from before once autotune meets them; another size is another problem.
    op = cudnn.Gemm(a, b, d)
    op(a, b, d)
    assert config_used(device) == tuned.best
    large = operands(m=4096)
    builds = len(device.built)
    op.execute(*large)
    assert config_used(device) == choose(op._choices(*op._bound[:2]), 4096, 320, 64, 1) and len(device.built) == builds
    with cudnn.autotune() as results:
        op.execute(a, b, d)
        op.execute(*large)
        op.execute(*large)
    op.execute(*large)
    assert [r.extents for r in results] == [(4096, 320, 64, 1)] and config_used(device) == results[0].best
    torch.testing.assert_close(large[2].float(), gemm_reference(*large[:2]), rtol=1e-2, atol=1e-2)


def test_what_cannot_be_tuned_runs_all_the_same(device):
    a, b, d = operands()
    with pytest.raises(ValueError, match=r"Gemm: nothing to tune: Gemm: it was built with config=\.\.\., which leaves nothing to choose"):
        cudnn.tune(cudnn.Gemm(a, b, d, config=TUNED), a, b, d)
    torch.testing.assert_close(d.float(), gemm_reference(a, b), rtol=1e-2, atol=1e-2)
    empty = operands(m=0)
    with pytest.raises(ValueError, match="nothing to tune: Gemm: the call runs no kernel: its tensors are empty"):
        cudnn.tune(cudnn.gemm_wrapper, *empty[:2])


def test_tuning_includes_the_transposes(device, monkeypatch):
    monkeypatch.setattr(tuner, "_cuda_timer", lambda ordinal: Clock(device, {64: 10.0}))
    a, b = random_compact((64, 96, 1), 0, torch.float8_e4m3fn, "cpu"), random_compact((64, 96, 1), 1, torch.float8_e4m3fn, "cpu")
    (tuned,) = cudnn.tune(cudnn.gemm_wrapper, a, b)
    assert tuned.best.tile_n == 64 and len(ran(device, "transpose")) >= len(ran(device, "gemm")) > 10
    result = cudnn.gemm_wrapper(a, b)
    torch.testing.assert_close(result["d_tensor"].float(), gemm_reference(a, b), rtol=1e-2, atol=1e-1)


# What is shipped


def test_the_shipped_results_are_in_order():
    paths = table.shipped_paths("cudnn_gemm_dense")
    assert [path.name for path in paths] == ["nvidia-h200.json"]
    data = json.loads(paths[0].read_text())
    assert data["device"] == DEVICE and data["schema"] == table.SCHEMA
    entries = table.read(paths[0])
    assert len(entries) == len(data["entries"]) == len({entry.key for entry in entries})
    for entry in entries:
        assert entry.config.supports(GemmProblem(**entry.problem)) is None and entry.us <= entry.default_us * 1.01


def test_precompiling_covers_shipped_results(device, tmp_path):
    from cudnn.tuning.shipped import with_shipped

    table.write(device.shipped, DEVICE, [entry(), entry(GemmConfig(64, 128), (1, 64, 64, 1)), entry(extents=(8192, 64, 64, 1))], lock=False)
    listed = gemm_api.precompile_specs()
    more = with_shipped("cudnn_gemm_dense", listed)
    assert more[: len(listed)] == listed and len(set(more)) == len(more)
    added = more[len(listed) :]
    assert {spec.config for spec in added} <= {TUNED, GemmConfig(64, 128)} and TUNED in {spec.config for spec in added}
    assert {(spec.op, spec.problem, spec.options) for spec in added} == {("gemm", GemmProblem("bfloat16", "bfloat16"), gemm_api.GemmOptions("bfloat16"))}
