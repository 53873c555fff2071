"""The tables of measured speeds are those of the committed results."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_measurements", ROOT / "tools/generate_measurements.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_have_what_the_results_give(tool):
    found = 0
    for page in (ROOT / "docs").rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert tool.filled(text) == text, f"{page.relative_to(ROOT)}: run: python tools/generate_measurements.py"
        found += text.count("<!-- measured: ")
        assert text.count("<!-- measured: ") == text.count("<!-- end of measured -->") == len(tool.PLACE.findall(text))
    assert found >= 5


def entry(us: float, whole: bool = True) -> dict:
    return {"us": us, "tflops": 500.4, "tb_s": 3.014, "floor_share": 0.876, "whole": whole, "status": "ok"}


def test_what_a_table_says(tool):
    result = {
        "axes": ["M", "N"],
        "rows": [
            {
                "shape": [8, 16],
                "dtype": "bfloat16",
                "flops": 1e6,
                "bytes": 1e3,
                "candidates": {"ours": entry(10.04), "cublas": entry(12.0), "half": entry(7.0, whole=False)},
                "ratios": {"cublas": 1.195, "half": 0.697},
            },
            {
                "shape": [9, 16],
                "dtype": "bfloat16",
                "flops": 1e6,
                "bytes": 1e3,
                "candidates": {"ours": {"status": "wrong", "whole": True}, "cublas": entry(12.0)},
                "ratios": {},
            },
        ],
        "summary": {"large": {"cublas": 1.195}, "all": {"cublas": 1.195}},
        "host": [{"path": "Op.execute", "status": "ok", "us": 9.94}, {"path": "op", "status": "failed", "reason": "no"}],
        "device": {"name": "a GPU"},
        "date": "2026-12-01T01:02:03Z",
        "versions": {"torch": "2", "cudnn-base": "1"},
        "method": {"repeats": 20, "order": "interleaved"},
    }
    lines = tool.section(result, "here.json").splitlines()
    assert lines[0] == "| M x N | us | TFLOP/s | of floor | cublas | half (part) |"
    assert lines[2] == "| 8 x 16 | 10.0 | 500 | 88 % | 1.20 | 0.70 |"
    assert lines[3] == "| 9 x 16 | wrong |  |  | - | - |"
    assert "- Geometric means, large: 1.20 of cublas." in lines and "- Host cost of a call: Op.execute 9.9 us." in lines
    assert lines[-1] == "- a GPU, 2026-12-01, torch 2; medians of 20, interleaved. `here.json`."
    for row in result["rows"]:
        row["bytes"] = 1e6
    lines = tool.section(result, "here.json").splitlines()
    assert lines[0].startswith("| M x N | us | TB/s |") and lines[2].startswith("| 8 x 16 | 10.0 | 3.01 |")
