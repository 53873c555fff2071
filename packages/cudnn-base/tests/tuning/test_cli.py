"""`python -m cudnn tune`."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from cudnn.bench import Benchmark, Candidate, spec
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.tuning import cli, table


@pytest.fixture
def toys(toy, gpu, monkeypatch):
    """The toy as a benchmark called toy, on a device that is not there."""
    gpu({64: 5.0, 96: 1.0, 128: 20.0, 256: 30.0})
    operation, _, _ = toy(candidates=(GemmConfig(128, 64), GemmConfig(128, 96), GemmConfig(128, 256)))

    def ours(config):
        assert config is None
        return Candidate("ours", "the toy", lambda inputs: lambda: operation(inputs["x"], torch.empty_like(inputs["x"])), lambda out: {})

    bench = Benchmark(
        op="toy",
        title="Doubling",
        axes=("M", "K"),
        shapes={"large": ((640, 32), (320, 64)), "small-m": ((1, 64),)},
        inputs=lambda shape, dtype, device, generator: {"x": torch.randn(*shape, generator=generator, device=device).to(getattr(torch, dtype))},
        ours=ours,
        peers=(),
        reference=dict,
        baseline=dict,
        flops=lambda shape: 1.0,
        bytes=lambda shape, dtype: 1.0,
        dtypes=("float32", "bfloat16"),
    )
    monkeypatch.setattr(spec, "find", lambda: ({"toy": bench}, {}))
    for name, function in {"set_device": lambda device: None, "current_device": lambda: 0, "empty_cache": lambda: None}.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(cli, "device_name", lambda ordinal: "NVIDIA H200")
    return SimpleNamespace(operation=operation)


def run(capsys, *argv):
    code = cli.main(["--device", "cpu", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def test_every_size_of_the_benchmark(toys, capsys, tmp_path):
    result, shipped = tmp_path / "new" / "result.json", tmp_path / "tuned" / "nvidia-h200.json"
    code, out, err = run(capsys, "toy", "--json", str(result), "--export", str(shipped), "--repeats", "9")
    assert code == 0 and err == ""
    lines = out.splitlines()
    for extents in ("640x32x8", "320x64x8", "1x64x8"):
        assert any(
            line.startswith(f"toy {extents}: 128x64-cluster1x1-m8 5.0 us, default 128x128-cluster1x1-m8 20.0 us (4.000x; 3 tried, 1 skipped") for line in lines
        )
    assert lines.count("  skipped 128x96-cluster1x1-m8: ValueError: no room for two pipeline stages") == 3
    assert f"3 of 3 problems tuned for NVIDIA H200; kept in {table.kept_path('NVIDIA H200')}" in lines
    assert [r["speedup"] for r in json.loads(result.read_text())["results"]] == [4.0] * 3
    assert [e.config for e in table.read(shipped)] == [GemmConfig(128, 64)] * 3 and [path.name for path in shipped.parent.iterdir()] == ["nvidia-h200.json"]
    code, out, _ = run(capsys, "--show")
    assert code == 0 and out.count("toy") == 3 and "3 results for NVIDIA H200 in" in out
    assert "0 results" in run(capsys, "--show", "other")[1]
    assert run(capsys, "--forget")[1] == "3 results for NVIDIA H200 removed\n"
    assert "0 results" in run(capsys, "--show")[1]


def test_chosen_sizes_and_dtypes(toys, capsys):
    code, out, _ = run(capsys, "toy", "--shapes", "small-m,77x9", "--dtype", "bfloat16,float32")
    assert code == 0
    # The toy knows no dtypes: the second is the same problem, and has a result.
    assert [line.split(":")[0] for line in out.splitlines() if line.startswith("toy")] == ["toy 1x64x8", "toy 77x9x8"]
    assert "2 of 4 problems tuned" in out


@pytest.mark.parametrize(
    "argv, message",
    [
        (["nothing"], "error: found 'nothing', there are benchmarks of toy"),
        (["toy", "--shapes", "huge"], "error: --shapes: found 'huge', needs large or small-m, or MxK with positive numbers"),
        (["toy", "--dtype", "int8"], "error: --dtype: found 'int8', toy is measured in float32, bfloat16"),
        (["toy", "--repeats", "1"], "error: --repeats: found 1, needs at least 5"),
    ],
)
def test_requests_that_cannot_be_met(toys, capsys, argv, message):
    code, out, err = run(capsys, *argv)
    assert code == 2 and out == "" and err.startswith(message)
    with pytest.raises(SystemExit, match="2"):
        cli.main([])
    assert "needs an operation, or --show or --forget" in capsys.readouterr().err


def test_operations_with_nothing_to_choose(toys, capsys):
    toys.operation.why_not = "nothing to choose from"
    code, out, err = run(capsys, "toy", "--shapes", "small-m")
    assert code == 1 and "not tuned: Toy: nothing to choose from" in err and "0 of 1 problems tuned" in out


def test_compiling_alone(toys, capsys, monkeypatch):
    from cudnn.cache import stats

    code, out, _ = run(capsys, "toy", "--compile-only", "--jobs", "1")
    assert code == 0 and toys.operation.ran == []
    assert "skipped toy 128x96-cluster1x1-m8: ValueError: no room for two pipeline stages" in out and "4 kernels: 3 compiled, 0 cached, 1 failed" in out
    assert "3 cached" in run(capsys, "toy", "--compile-only")[1]
    stats.reset()
    toys.operation.candidates = (GemmConfig(128, 64), GemmConfig(128, 256))
    assert run(capsys, "toy", "--shapes", "small-m")[0] == 0
    assert stats.builds == 0
    monkeypatch.setenv("CUDNN_KERNELS_CACHE", "0")
    code, _, err = run(capsys, "toy", "--compile-only")
    assert code == 2 and "--compile-only keeps its results on disk, and CUDNN_KERNELS_CACHE=0 turns that off" in err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(capsys):
    from cudnn.__main__ import main

    assert main(["tune", "--show"]) == 2
    assert "error: tune measures kernels on a GPU, and torch" in capsys.readouterr().err
