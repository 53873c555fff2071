"""The graph pages' Python and the graph examples run as they stand, on a CPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the snippets are written with torch")
pytest.importorskip("cudnn_graph", reason="the snippets use the graph package")

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs/graph").glob("*.md"))
CPU = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}


def run(*arguments: str, cwd: Path = ROOT) -> str:
    done = subprocess.run([sys.executable, "-W", "error", *arguments], capture_output=True, text=True, timeout=300, cwd=cwd, env=CPU)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", [page.name for page in PAGES])
def test_page(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/graph" / page).read_text(), re.MULTILINE | re.DOTALL)
    assert blocks, f"{page} has no Python"
    script = tmp_path / "page.py"
    script.write_text("\n\n".join(f"# block {i} of {page}\n{block}" for i, block in enumerate(blocks, 1)))
    run(str(script), cwd=tmp_path)


def test_matmul_bias_gelu() -> None:
    output = run("examples/graph_matmul_bias_gelu.py", "--device", "cpu", "--rows", "33", "--width", "64", "--hidden", "80")
    assert "33 x 64 x 80 bfloat16 on cpu: plan gemm_reference of 1" in output
    errors = {name: float(value) for name, value in re.findall(r"^(unfused \(torch\)|graph) +([\d.e+-]+)", output, re.MULTILINE)}
    assert 0 < errors["graph"] <= 1.1 * errors["unfused (torch)"] < 1e-2


def test_conv_bias_relu() -> None:
    output = run("examples/graph_conv_bias_relu.py", "--device", "cpu", "--size", "9", "--channels", "8")
    found = re.findall(r"output \(2, 8, 9, 9\), channels-last True, error against float64 ([\d.e+-]+)", output)
    assert len(found) == 3 and all(0 < float(error) < 1e-3 for error in found)
    assert "run by the engine 'reference'" in output


def test_layernorm_step() -> None:
    output = run("examples/graph_layernorm_step.py", "--device", "cpu", "--steps", "6")
    rows = [[float(value) for value in line.split()] for line in output.splitlines()[2:]]
    assert len(rows) == 6
    for (_, first, second), (_, later, _) in zip(rows, rows[1:], strict=False):
        assert first == pytest.approx(second, rel=1e-3) and later < 0.5 * first
