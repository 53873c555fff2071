"""The pages as a whole: every page can be reached from the navigation, and every setting is on its page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_page_is_in_the_navigation() -> None:
    navigation = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]))
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert pages == navigation


def test_the_picture_of_scale_factors_is_that_of_the_layout() -> None:
    done = subprocess.run([sys.executable, "tools/draw_scale_factors.py", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_setting_is_documented_and_they_are_few() -> None:
    sources = [path.read_text() for path in (ROOT / "packages").glob("*/src/**/*.py")]
    used = {name for text in sources for name in re.findall(r"\bCUDNN_KERNELS_[A-Z_]*[A-Z]\b", text)}
    documented = set(re.findall(r"^\| `(CUDNN_KERNELS_[A-Z_]+)`", (ROOT / "docs/settings.md").read_text(), re.MULTILINE))
    assert used == documented
    assert len(documented) < 10


def test_the_one_prefix_is_kept() -> None:
    pattern = re.compile(r"""environ(?:\.get\(|\[)["']([A-Z_]+)["']""")
    read = {(path.name, name) for path in (ROOT / "packages").glob("*/src/**/*.py") for name in pattern.findall(path.read_text())}
    others = {name for _, name in read if not name.startswith("CUDNN_KERNELS_")}
    # Of others, and read to find things: libraries, devices, the terminal.
    assert others <= {"LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUDA_PATH", "CUTE_DSL_ARCH", "LOCAL_WORLD_SIZE", "PYTHONPATH"}, others
