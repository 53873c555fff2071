"""The benchmark of GEMM + SwiGLU: every candidate computes the same thing, in its own arrangement."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

torch = pytest.importorskip("torch", reason="benchmarks work on torch tensors")

from cudnn.bench import peers, run, spec  # noqa: E402
from cudnn.testing.clock import OneCall  # noqa: E402
from cudnn_gemm_dense.swiglu.bench import BENCH  # noqa: E402

SHAPE = (48, 128, 64)


@pytest.fixture
def eager_compile(monkeypatch):
    """torch.compile without the compiler."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)


@pytest.fixture
def fake_quack(monkeypatch):
    """QuACK's convention as its own reference has it: gate in even, up in odd columns."""
    module = ModuleType("quack.gemm_interface")

    def gemm_act(a, b, *, activation, store_preact, tuned):
        assert activation == "swiglu" and store_preact and tuned
        preact = a @ b
        return preact, torch.nn.functional.silu(preact[..., ::2]) * preact[..., 1::2]

    module.gemm_act, module.gemm = gemm_act, lambda a, b, tuned: a @ b
    monkeypatch.setattr(peers, "quack", lambda: module)
    return module


def rows(names, dtype="bfloat16", shape=SHAPE, seed=11):
    chosen = [BENCH.ours(None), *(peer for peer in BENCH.peers if peer.name in names)]
    return run.measure_shape(
        BENCH, "custom", shape, dtype, chosen, OneCall(), device="cpu", repeats=20, rates={"matmul_tflops": 1.0, "copy_tb_s": 1.0}, seed=seed
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_candidate_is_right(dtype, eager_compile, fake_quack):
    row = rows(["cublas", "torch-compile", "quack", "quack-plain"], dtype)
    entries = row["candidates"]
    assert {name: (entry["status"], entry["whole"]) for name, entry in entries.items()} == {
        "ours": ("ok", True),
        "cublas": ("ok", False),
        "torch-compile": ("ok", True),
        "quack": ("ok", True),
        "quack-plain": ("ok", False),
    }, run.wrong([row])
    assert 0 < entries["ours"]["error"] < entries["torch-compile"]["error"] * 1.01
    assert set(row["ratios"]) == set(entries) - {"ours"}


def test_an_arrangement_that_is_off_is_seen(eager_compile, fake_quack):
    fake_quack.gemm_act = lambda a, b, **options: ((a @ b), torch.nn.functional.silu((a @ b)[..., 1::2]) * (a @ b)[..., ::2])
    entry = rows(["quack"])["candidates"]["quack"]
    assert entry["status"] == "wrong" and "c has a relative error" in entry["reason"] and "ab12" not in entry["reason"]


def test_a_configuration_that_does_not_fit_is_told():
    row = run.measure_shape(
        BENCH,
        "custom",
        SHAPE,
        "bfloat16",
        [BENCH.ours({"tile_m": 100})],
        OneCall(),
        device="cpu",
        repeats=20,
        rates={"matmul_tflops": 1.0, "copy_tb_s": 1.0},
        seed=0,
    )
    (entry,) = row["candidates"].values()
    assert entry["status"] == "failed" and "tile_m: found 100" in entry["reason"]


def test_work_and_traffic():
    m, n, k = 4096, 8192, 7168
    assert BENCH.flops((m, n, k)) == 2 * m * n * k
    assert BENCH.bytes((m, n, k), "bfloat16") == 2 * (m * k + n * k + m * n + m * n // 2)


def test_inputs_are_random_of_unit_scale_and_halves_differ():
    generator = torch.Generator().manual_seed(5)
    inputs = BENCH.inputs((256, 512, 384), "bfloat16", "cpu", generator)
    expected = BENCH.reference(inputs)
    assert 0.9 < float(expected["ab12"].std()) < 1.1
    gate, up = expected["ab12"].chunk(2, -1)
    assert float((gate - up).norm() / gate.norm()) > 1
    torch.testing.assert_close(expected["c"], up * gate * torch.sigmoid(gate))


def test_shapes_fit_the_operation():
    assert list(BENCH.shapes) == ["large", "small-m"]
    assert all(n % 64 == 0 and k % 8 == 0 for shapes in BENCH.shapes.values() for _, n, k in shapes)
    assert [shape[0] for shape in BENCH.shapes["small-m"]] == [1, 16, 64, 128]


def test_host_paths_run_on_the_reference(eager_compile, fake_quack):
    inputs = BENCH.inputs(BENCH.host_shape, "bfloat16", "cpu", torch.Generator().manual_seed(0))
    measured = run.measure_host(BENCH.host_paths, inputs, OneCall())
    assert {row["path"]: row["status"] for row in measured}["GemmSwiglu.execute"] == "ok"
    assert {row["path"]: row["status"] for row in measured}["gemm_swiglu_wrapper"] == "ok"


def test_is_found_through_the_manifest(monkeypatch):
    from cudnn import registry

    monkeypatch.setattr(registry, "operations", lambda: [("gemm_dense", "cudnn_gemm_dense.swiglu.api")])
    found, broken = spec.find()
    assert broken == {} and found["gemm_swiglu"] is BENCH


def test_importing_it_imports_no_framework():
    import subprocess

    code = "import sys, cudnn_gemm_dense.swiglu.bench; print(sorted({m.partition('.')[0] for m in sys.modules} & {'torch', 'jax', 'cutlass', 'quack', 'deep_gemm', 'matplotlib'}))"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(p for p in sys.path if p), "PATH": "/usr/bin"}
    )
    assert out.stdout.strip() == "[]"
