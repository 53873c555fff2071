"""The benchmark of projection + RoPE + MXFP8: every candidate computes what the reference says."""

from __future__ import annotations

import pytest
import torch

from cudnn.bench import run
from cudnn.testing.clock import OneCall
from cudnn_gemm_dense.proj_rope_mxfp8.bench import BENCH


@pytest.fixture(autouse=True)
def eager_compile(monkeypatch):
    """torch.compile without the compiler."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)


@pytest.mark.parametrize("dtype", BENCH.dtypes)
def test_every_candidate_is_right(dtype):
    row = run.measure_shape(
        BENCH,
        "custom",
        (128, 2, 96),
        dtype,
        [BENCH.ours(None), *BENCH.peers],
        OneCall(),
        device="cpu",
        repeats=20,
        rates={"matmul_tflops": 1.0, "copy_tb_s": 1.0},
        seed=int(torch.randint(2**31, ())),
    )
    assert {entry["status"] for entry in row["candidates"].values()} == {"ok"}, run.wrong([row])
    # Of four significant bits, an element is off by a sixteenth at most.
    assert row["candidates"]["ours"]["whole"] and 0.01 < row["candidates"]["ours"]["error"] < 2**-4


@pytest.mark.parametrize("dtype", BENCH.dtypes)
def test_host_paths(dtype):
    inputs = BENCH.inputs(BENCH.host_shape, dtype, "cpu", torch.Generator().manual_seed(0))
    assert {row["status"] for row in run.measure_host(BENCH.host_paths, inputs, OneCall())} == {"ok"}


def test_work_and_traffic():
    t, h, k = 4096, 128, 1536
    assert BENCH.flops((t, h, k)) == 2 * t * h * 192 * k
    outputs = 2 * t * h * 192 + t * h * 6 + t // 32 * h * 192
    assert BENCH.bytes((t, h, k), "bfloat16") == 2 * (t * k + h * 192 * k + 2 * t * 64) + outputs
    assert BENCH.bytes((t, h, k), "float8_e4m3fn") == (t + h * 192) * (k + k // 32) + 4 * t * 64 + outputs
