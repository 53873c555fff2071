"""The benchmarks of the dense operations: every candidate computes what the reference says, or a part of it."""

from __future__ import annotations

import importlib

import pytest
import torch

from cudnn.bench import run
from cudnn.testing.clock import OneCall
from cudnn_gemm_dense.gemm import bench as gemm_bench

OPERATIONS = ("amax", "block_scaled", "dsrelu", "dswiglu", "gemm", "mlp", "srelu")
SHAPE = (48, 128, 64)


@pytest.fixture(autouse=True)
def eager_compile(monkeypatch):
    """torch.compile without the compiler."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)


@pytest.fixture(params=OPERATIONS)
def bench(request):
    return importlib.import_module(f"cudnn_gemm_dense.{request.param}.bench").BENCH


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_candidate_is_right(bench, dtype):
    if dtype not in bench.dtypes:
        pytest.skip(f"not measured in {dtype}")
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


@pytest.mark.parametrize("further", gemm_bench.BENCHES[1:], ids=lambda bench: bench.op)
def test_products_in_other_majors_and_dtypes(further):
    """The operands lie in memory as the benchmark says, and every candidate is right."""
    inputs = further.inputs(SHAPE, further.dtypes[0], torch.device("cpu"), torch.Generator().manual_seed(1))
    contiguous = {"gemm_nn": (1, 0), "gemm_tn": (0, 0), "gemm_fp8": (1, 1)}[further.op]
    assert tuple(t.stride().index(1) for t in inputs.values()) == contiguous and inputs["a"].shape == (48, 64)
    chosen = [further.ours(None), *(peer for peer in further.peers if peer.missing() is None)]
    rates = {"matmul_tflops": 1.0, "copy_tb_s": 1.0}
    row = run.measure_shape(further, "custom", SHAPE, further.dtypes[0], chosen, OneCall(), device="cpu", repeats=20, rates=rates, seed=3)
    assert {entry["status"] for entry in row["candidates"].values()} == {"ok"}, run.wrong([row])


def test_host_paths(bench):
    inputs = bench.inputs(bench.host_shape, "bfloat16", "cpu", torch.Generator().manual_seed(0))
    assert {row["status"] for row in run.measure_host(bench.host_paths, inputs, OneCall())} == {"ok"}


def test_work_and_traffic(bench):
    m, n, k = 4096, 8192, 7168
    if bench.op == "swiglu_mlp":
        assert bench.flops((m, n, k)) == 9 * 2 * m * n * k
        assert bench.bytes((m, n, k), "bfloat16") == 2 * (4 * m * n + 9 * n * k)
        return
    assert bench.flops((m, n, k)) == 2 * m * n * k
    if bench.op == "gemm_block_scaled":
        assert bench.bytes((m, n, k), "bfloat16") == 2 * (m * k + m * n) + n * k + n * k / 32
        return
    stored = {"gemm": 1, "gemm_amax": 1, "gemm_srelu": 2, "gemm_dsrelu": 2, "gemm_dswiglu": 4}[bench.op]
    assert bench.bytes((m, n, k), "bfloat16") == 2 * (m * k + n * k + stored * m * n)
