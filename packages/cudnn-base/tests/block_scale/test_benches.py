"""The benchmarks of the quantisers: every candidate computes what the reference says, and the bytes are those that have to move."""

from __future__ import annotations

import pytest

from cudnn.bench import run, spec
from cudnn.block_scale.bench import BENCHES
from cudnn.testing.clock import OneCall

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(autouse=True)
def eager_compile(monkeypatch):
    """torch.compile without the compiler."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)


@pytest.mark.parametrize("bench", BENCHES, ids=lambda b: b.op)
def test_every_candidate_is_right(bench):
    peers = [peer for peer in bench.peers if peer.missing() is None]
    row = run.measure_shape(
        bench,
        "custom",
        (64, 128),
        "bfloat16",
        [bench.ours(None), *peers],
        OneCall(),
        device="cpu",
        repeats=20,
        rates={"matmul_tflops": 1.0, "copy_tb_s": 1.0},
        seed=int(torch.randint(2**31, ())),
    )
    assert {entry["status"] for entry in row["candidates"].values()} == {"ok"}, run.wrong([row])
    assert row["candidates"]["ours"]["whole"]


@pytest.mark.parametrize("bench", BENCHES, ids=lambda b: b.op)
def test_host_paths(bench):
    inputs = bench.inputs(bench.host_shape, "bfloat16", "cpu", torch.Generator().manual_seed(0))
    assert {row["status"] for row in run.measure_host(bench.host_paths, inputs, OneCall())} == {"ok"}


def test_no_configuration():
    for bench in BENCHES:
        with pytest.raises(ValueError, match="found a configuration"):
            bench.ours({"tile_m": 128}).bind({})


def test_what_has_to_move():
    found, broken = spec.find()
    assert {bench.op for bench in BENCHES} <= set(found) and "cudnn.block_scale.bench" not in broken
    m, k = 4096, 8192
    expected = {
        "quantize_mxfp8_row": m * k * 2 + m * k + m * k // 32,
        "quantize_mxfp8_both": m * k * 2 + 2 * (m * k + m * k // 32),
        "quantize_nvfp4_row": m * k * 2 + m * k // 2 + m * k // 16,
        "dequantize_mxfp4": m * k * 2 + m * k // 2 + m * k // 32,
    }
    assert {name: found[name].bytes((m, k), "bfloat16") for name in expected} == expected
    assert found["quantize_mxfp8_row"].bytes((m, k), "float32") - expected["quantize_mxfp8_row"] == 2 * m * k
