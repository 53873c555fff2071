"""Editable installs: all five side by side, imported from another folder, and following the tree without a new install."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

for needed in ("virtualenv", "hatchling", "editables", "pybind11"):
    pytest.importorskip(needed, reason="an editable install is made here without a network")

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ["cudnn-base", "cudnn-gemm-dense", "cudnn-gemm-grouped", "cudnn-gemm-discrete", "cudnn-graph"]


@pytest.fixture(scope="module")
def editable(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The Python of a new environment with the five packages installed editable from a copy of the tree, and that copy."""
    folder = tmp_path_factory.mktemp("editable")
    tree = folder / "packages"
    shutil.copytree(ROOT / "packages", tree, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    subprocess.run([sys.executable, "-m", "virtualenv", "-q", "--no-pip", str(folder / "venv")], check=True)
    python = str(folder / "venv" / "bin" / "python")
    purelib = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True, check=True
    ).stdout.strip()
    # The build backend and what base needs come from the environment that runs the tests.
    Path(purelib, "zz_tools.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    done = subprocess.run([*pip, *(part for name in PACKAGES for part in ("-e", str(tree / name)))], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return python, tree


def run(python: str, code: str, folder: Path) -> str:
    done = subprocess.run([python, "-W", "error", "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_they_import_from_another_folder(editable: tuple[str, Path], tmp_path: Path) -> None:
    python, tree = editable
    code = """
import cudnn, cudnn_gemm_dense, cudnn_gemm_grouped, cudnn_gemm_discrete, cudnn_graph
from cudnn import registry
print(cudnn.__file__)
print(sorted((status.distribution, status.state) for status in registry.families()), registry.missing_distributions())
print(cudnn.GemmSwigluSm100.__module__)
"""
    lines = run(python, code, tmp_path).splitlines()
    assert lines[0] == str(tree / "cudnn-base/src/cudnn/__init__.py")
    assert lines[1] == f"{[(name, 'ok') for name in sorted(PACKAGES[1:])]} []"
    assert lines[2] == "cudnn_gemm_dense.swiglu.api"


def test_the_extension_lies_where_it_is_imported_from(editable: tuple[str, Path], tmp_path: Path) -> None:
    python, tree = editable
    where = run(python, "import cudnn_graph._ext as extension; print(extension.__file__)", tmp_path)
    assert Path(where).parent == tree / "cudnn-graph/src/cudnn_graph"


def test_a_new_name_needs_no_new_install(editable: tuple[str, Path], tmp_path: Path) -> None:
    python, tree = editable
    manifest = tree / "cudnn-gemm-grouped/src/cudnn_gemm_grouped/_family.py"
    manifest.write_text(
        'from cudnn.family import Family\nFAMILY = Family("gemm_grouped", "cudnn-gemm-grouped", names={"fresh": "cudnn_gemm_grouped.fresh:fresh"})\n'
    )
    manifest.with_name("fresh.py").write_text("fresh = 'fresh'\n")
    catalogue = tree / "cudnn-base/src/cudnn/_catalog.py"
    catalogue.write_text(catalogue.read_text().replace('    "": {\n', '    "": {\n        "fresh": "gemm_grouped",\n', 1))
    assert run(python, "from cudnn import fresh; print(fresh)", tmp_path) == "fresh"
