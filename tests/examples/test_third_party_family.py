"""The distribution in examples/third_party_family, installed and used as its users would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the example's operation is written with torch")
pytest.importorskip("hatchling", reason="the example is built here")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "third_party_family"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the distribution in it, beside whatever this environment has."""
    target = tmp_path_factory.mktemp("site")
    command = [
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--disable-pip-version-check",
        "--target",
        str(target),
        str(EXAMPLE),
    ]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return target


def python(*arguments: str, site: Path | None = None) -> subprocess.CompletedProcess:
    path = os.pathsep.join(filter(None, [str(site) if site else "", os.environ.get("PYTHONPATH", "")]))
    return subprocess.run([sys.executable, *arguments], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300)


def test_it_is_short() -> None:
    sources = [*EXAMPLE.rglob("*.py"), EXAMPLE / "pyproject.toml"]
    assert len(sources) == 4 and sum(len(path.read_text().splitlines()) for path in sources) < 100


def test_its_operation_computes_what_it_says(installed: Path) -> None:
    code = """
import torch
import cudnn
from cudnn import GemmBiasGelu, gemm_bias_gelu_wrapper
assert "gemm_bias_gelu_wrapper" in dir(cudnn)
for dtype, unit in ((torch.float32, 2**-20), (torch.bfloat16, 2**-8), (torch.float16, 2**-11)):
    for m, n, k, batch in ((37, 24, 40, 2), (1, 8, 16, 1), (0, 8, 16, 1)):
        a, b, bias = (torch.randn(*shape).to(dtype) for shape in ((m, k, batch), (n, k, batch), (n,)))
        result = gemm_bias_gelu_wrapper(a, b, bias, alpha=0.5)
        x = 0.5 * torch.einsum("mkl,nkl->mnl", a.double(), b.double()) + bias.double()[None, :, None]
        expected = 0.5 * x * (1 + torch.erf(x / 2**0.5))
        assert list(result.keys()) == ["d_tensor"] and result["d_tensor"].dtype is dtype and result["d_tensor"].shape == (m, n, batch)
        assert ((result["d_tensor"].double() - expected).abs() <= unit * (1 + expected.abs())).all()
op = GemmBiasGelu(a, b, bias, torch.empty(m, n, batch, dtype=dtype))
print(op.check_support())
try:
    gemm_bias_gelu_wrapper(a, b, bias[:-1])
except ValueError as error:
    print(error)
"""
    done = python("-W", "error", "-c", code, site=installed)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "True"
    assert lines[1].startswith("bias_tensor tensor shape mismatch")


def test_it_is_listed_with_the_others(installed: Path) -> None:
    done = python("-W", "error", "-m", "cudnn", site=installed)
    assert done.returncode == 0, done.stderr
    assert ["acme", "acme-kernels", "1.0.0", "ok", "2"] in [line.split() for line in done.stdout.splitlines()]


def test_without_it_the_name_is_unknown(installed: Path) -> None:
    code = "import cudnn; print(hasattr(cudnn, 'gemm_bias_gelu_wrapper'))"
    assert python("-c", code).stdout.strip() == "False"
    assert python("-c", code, site=installed).stdout.strip() == "True"
