"""The Python of the documentation's pages runs as it stands: the blocks of a page in order, in one process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the snippets are written with torch")
pytest.importorskip("cudnn_gemm_dense", reason="the snippets use the dense family")
pytest.importorskip("cudnn_gemm_grouped", reason="the snippets use the grouped family")
pytest.importorskip("cudnn_gemm_discrete", reason="the snippets use the discrete family")

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "README.md",
    "docs/index.md",
    "docs/quickstart.md",
    "docs/lifecycle.md",
    "docs/formats.md",
    *(
        f"docs/{family}/{path.name}"
        for family in ("dense", "grouped", "discrete")
        for path in sorted((ROOT / "docs" / family).glob("*.md"))
        if "```python" in path.read_text()
    ),
]


@pytest.mark.parametrize("page", PAGES)
def test_page(page: str, tmp_path: Path) -> None:
    text = (ROOT / page).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks, f"{page} has no Python"
    script = tmp_path / "page.py"
    script.write_text("\n\n".join(f"# block {i} of {page}\n{block}" for i, block in enumerate(blocks, 1)))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, timeout=300, cwd=tmp_path, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    )
    assert done.returncode == 0, done.stderr
