"""The tables of what block-scaled operands go with are what check_support says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the operations are checked with torch installed")
pytest.importorskip("cudnn_gemm_dense", reason="the tables are about the dense family")

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_what_check_support_gives() -> None:
    spec = importlib.util.spec_from_file_location("generate_support_tables", ROOT / "tools/generate_support_tables.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    page = tool.PAGE.read_text()
    assert tool.generated(page) == page, "run: python tools/generate_support_tables.py"
    found = [line for line in page.splitlines() if line.startswith("| ") and "MXFP8, e4m3" in line]
    assert len(found) >= len(tool.OPERATIONS)
