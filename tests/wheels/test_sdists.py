"""Source distributions: what is in them, and that a wheel built from one equals the wheel built from the tree. `nox -s sdists` builds both."""

from __future__ import annotations

import os
import re
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DIST = Path(os.environ.get("CUDNN_DIST", ROOT / "dist"))
SDISTS = DIST / "from-sdist"
PACKAGES = ["cudnn-base", "cudnn-gemm-dense", "cudnn-gemm-grouped", "cudnn-gemm-discrete", "cudnn-graph"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not list(SDISTS.glob("*.tar.gz")), reason=f"there are no source distributions in {SDISTS}; run: nox -s sdists"),
]
each_package = pytest.mark.parametrize("distribution", PACKAGES)


def only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    assert len(found) == 1, f"found {found}, needs one {pattern} in {folder}"
    return found[0]


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@each_package
def test_the_wheel_from_the_sdist_equals_the_one_from_the_tree(distribution: str) -> None:
    pattern = f"{distribution.replace('-', '_')}-*.whl"
    tree, sdist = contents(only(DIST, pattern)), contents(only(SDISTS, pattern))
    assert set(tree) == set(sdist)
    for name, content in tree.items():
        # The compiler writes no two extensions alike, and RECORD has their hashes.
        if not name.endswith((".so", "RECORD")):
            assert sdist[name] == content, name


@each_package
def test_the_sdist_can_be_built_and_tested(distribution: str) -> None:
    with tarfile.open(only(SDISTS, f"{distribution.replace('-', '_')}-*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        text = archive.extractfile(next(name for name in archive.getnames() if name.endswith("/PKG-INFO"))).read().decode()
    assert {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO"} <= names
    assert any(name.startswith("src/") and name.endswith("/_family.py") for name in names)
    assert any(re.fullmatch(r"tests/(.*/)?test_\w+\.py", name) for name in names)
    assert not any("__pycache__" in name or name.endswith(".so") for name in names)
    assert f"Name: {distribution}\n" in text
