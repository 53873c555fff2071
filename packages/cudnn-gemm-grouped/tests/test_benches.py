"""The benchmarks of the grouped operations: every candidate computes what the reference says, or a part of it."""

from __future__ import annotations

import importlib

import pytest
import torch

from cudnn.bench import grouped, run
from cudnn.testing.clock import OneCall

OPERATIONS = ("unfused", "glu", "dglu", "wgrad")
SHAPE = (3, 48, 128, 64)


@pytest.fixture(autouse=True)
def eager_compile(monkeypatch):
    """torch.compile without the compiler."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)


@pytest.fixture(params=OPERATIONS)
def bench(request):
    return importlib.import_module(f"cudnn_gemm_grouped.{request.param}.bench").BENCH


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_candidate_is_right(bench, dtype):
    chosen = [bench.ours(None), *(peer for peer in bench.peers if peer.missing() is None and "deepgemm" not in peer.name)]
    row = run.measure_shape(
        bench,
        "custom",
        SHAPE,
        dtype,
        chosen,
        OneCall(),
        device="cpu",
        repeats=20,
        rates={"matmul_tflops": 1.0, "copy_tb_s": 1.0},
        seed=int(torch.randint(2**31, ())),
    )
    assert {entry["status"] for entry in row["candidates"].values()} == {"ok"}, run.wrong([row])
    assert row["candidates"]["ours"]["whole"] and 0 < row["candidates"]["ours"]["error"] < 0.01


def test_host_paths(bench):
    inputs = bench.inputs(bench.host_shape, "bfloat16", "cpu", torch.Generator().manual_seed(0))
    assert {row["status"] for row in run.measure_host(bench.host_paths, inputs, OneCall())} == {"ok"}


def test_group_lengths():
    """The uneven ones are multiples of 128, those of the models' routing are not, and always the same."""
    totals = [grouped.total(shape) for shape in grouped.UNEVEN]
    assert totals == [16640, 34560, 24704, 8192]
    for shape in grouped.UNEVEN:
        assert not (grouped.counts(shape) % 128).any()
    for shape in (*grouped.GATE_UP, *grouped.DOWN, *grouped.DOWN_BACKWARD):
        found = grouped.counts(shape)
        assert found.sum() == shape[1] and len(found) == shape[0] and (found % 128).any() and torch.equal(found, grouped.counts(shape))


def test_work_and_traffic(bench):
    shape = grouped.UNEVEN[0]
    experts, _, n, k = shape
    rows = grouped.total(shape)
    assert bench.flops(shape) == 2 * rows * n * k
    if bench.op == "grouped_gemm_wgrad":
        assert bench.bytes(shape, "bfloat16") == 2 * (rows * (n + k) + experts * n * k)
    else:
        stored = {"grouped_gemm": 1, "grouped_gemm_glu": 1.5, "grouped_gemm_dglu": 4}[bench.op]
        assert bench.bytes(shape, "bfloat16") == 2 * (rows * (k + stored * n) + experts * n * k)


@pytest.mark.parametrize("seed", range(3))
def test_a_layer_of_experts(seed):
    """Every candidate is right in all gradients, in a layer where some experts have no token; and routing is skewed."""
    bench, shape = importlib.import_module("cudnn_gemm_grouped.moe.bench").BENCH, (12, 2, 40, 64, 32)
    chosen = [bench.ours(None), *(peer for peer in bench.peers if peer.missing() is None)]
    rates = {"matmul_tflops": 1.0, "copy_tb_s": 1.0}
    row = run.measure_shape(bench, "custom", shape, "bfloat16", chosen, OneCall(), device="cpu", repeats=20, rates=rates, seed=seed)
    assert {entry["status"] for entry in row["candidates"].values()} == {"ok"}, run.wrong([row])
    inputs = bench.inputs((64, 4, 512, 8, 8), "bfloat16", "cpu", torch.Generator().manual_seed(seed))
    counts = inputs["index"].flatten().bincount(minlength=64)
    assert counts.sum() == 4 * 512 and counts.max() > 4 * counts.float().mean() and all(len(set(row)) == 4 for row in inputs["index"].tolist())
    host = bench.inputs(bench.host_shape, "bfloat16", "cpu", torch.Generator().manual_seed(seed))
    assert {found["status"] for found in run.measure_host(bench.host_paths, host, OneCall())} == {"ok"}
    assert bench.flops(shape) == 9 * 2 * 40 * 2 * 64 * 32
