# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""Building the extension: wheels, sdists and editable installs, from a copy of the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1]
VERSION = PACKAGE.parent / "cudnn-base" / "src" / "cudnn" / "_version.py"
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package as a checkout has it, without anything that was built there."""
    for module in ("hatchling", "pybind11", "editables"):
        pytest.importorskip(module, reason=f"building needs {module}")
    if not (PACKAGE / "hatch_build.py").is_file() or not VERSION.is_file():
        pytest.skip("needs the package's sources beside the tests")
    target = tmp_path / "packages" / "cudnn-graph"
    shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("*.so", "__pycache__", ".*", "tests"))
    (tmp_path / VERSION.relative_to(PACKAGE.parents[1])).parent.mkdir(parents=True)
    shutil.copy(VERSION, tmp_path / VERSION.relative_to(PACKAGE.parents[1]))
    return target


def backend(folder: Path, call: str, **environment: str) -> subprocess.CompletedProcess:
    """One call of the build backend, in a process whose working directory is the project, as installers do it."""
    code = f"import hatchling.build as backend; print('MADE', backend.{call})"
    return subprocess.run([sys.executable, "-c", code], cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300)


def made(done: subprocess.CompletedProcess) -> str:
    assert done.returncode == 0, done.stderr
    return next(line for line in done.stdout.splitlines() if line.startswith("MADE ")).removeprefix("MADE ")


def imports_from(folder: Path, elsewhere: Path) -> str:
    code = "import cudnn_graph._ext as ext; print(ext.__file__, ext.Descriptor.__name__)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {code}"], cwd=elsewhere, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[0]


@pytest.mark.slow
def test_an_editable_install_imports_from_anywhere(copy: Path, tmp_path: Path) -> None:
    name = made(backend(copy, f"build_editable({str(tmp_path)!r})"))
    extension = copy / "src" / "cudnn_graph" / f"_ext{SUFFIX}"
    assert extension.is_file()
    with zipfile.ZipFile(tmp_path / name) as wheel:
        (path_file,) = (entry for entry in wheel.namelist() if entry.endswith(".pth"))
        folder = Path(wheel.read(path_file).decode().strip())
        assert not [entry for entry in wheel.namelist() if entry.endswith(".so")]
        assert "Root-Is-Purelib: false" in wheel.read(next(entry for entry in wheel.namelist() if entry.endswith("WHEEL"))).decode()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert imports_from(folder, elsewhere) == str(extension)
    # Installers call the backend twice; nothing is compiled again while the sources are older.
    before = extension.stat().st_mtime_ns
    made(backend(copy, f"build_editable({str(tmp_path)!r})", CXX="/nonexistent/compiler"))
    assert extension.stat().st_mtime_ns == before
    os.utime(copy / "cpp" / "library.hpp")
    assert backend(copy, f"build_editable({str(tmp_path)!r})", CXX="/nonexistent/compiler").returncode != 0


@pytest.mark.slow
def test_a_wheel_made_from_the_sdist_holds_the_extension(copy: Path, tmp_path: Path) -> None:
    stale = copy / "src" / "cudnn_graph" / "_ext.cpython-39-x86_64-linux-gnu.so"
    stale.write_bytes(b"left by another interpreter")
    sdist = made(backend(copy, f"build_sdist({str(tmp_path)!r})"))
    # Early releases of 3.10 and 3.11 know no filter=, and later ones warn where there is none.
    subprocess.run([sys.executable, "-m", "tarfile", "-e", str(tmp_path / sdist), str(tmp_path / "unpacked")], check=True)
    (root,) = (tmp_path / "unpacked").iterdir()
    assert not list(root.rglob("*.so"))
    assert {path.name for path in (root / "cpp").iterdir()} == {path.name for path in (copy / "cpp").iterdir()}
    name = made(backend(root, f"build_wheel({str(tmp_path)!r})"))
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{tag}-{tag}-linux_" in name
    with zipfile.ZipFile(tmp_path / name) as wheel:
        assert [entry for entry in wheel.namelist() if entry.endswith((".so", ".cpp", ".hpp"))] == [f"cudnn_graph/_ext{SUFFIX}"]
        wheel.extractall(tmp_path / "site")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert imports_from(tmp_path / "site", elsewhere) == str(tmp_path / "site" / "cudnn_graph" / f"_ext{SUFFIX}")


def test_without_a_compiler_the_error_says_what_to_install(copy: Path, tmp_path: Path) -> None:
    done = backend(copy, f"build_wheel({str(tmp_path)!r})", PATH="", CXX="")
    assert done.returncode != 0
    assert (
        "building cudnn-graph needs a C++17 compiler: none of c++, g++, clang++ is on PATH and CXX is not set (for example: apt-get install g++)" in done.stderr
    )


def test_a_failing_compiler_is_quoted(copy: Path, tmp_path: Path) -> None:
    (copy / "cpp" / "broken.cpp").write_text("#error made to fail\n", encoding="utf-8")
    for name in ("context", "descriptor", "library", "module", "prepared_plan"):
        (copy / "cpp" / f"{name}.cpp").unlink()
    done = backend(copy, f"build_wheel({str(tmp_path)!r})")
    assert done.returncode != 0
    assert "building cudnn_graph._ext failed" in done.stderr and "made to fail" in done.stderr and "-std=c++17" in done.stderr
    assert not list(tmp_path.glob("*.whl"))


def test_no_header_of_cuda_or_cudnn_is_used() -> None:
    sources = [*(PACKAGE / "cpp").glob("*.cpp"), *(PACKAGE / "cpp").glob("*.hpp")]
    if not sources:
        pytest.skip("needs the package's sources beside the tests")
    included = {line.split()[1].strip('<>"') for path in sources for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#include")}
    assert {"dlfcn.h", "pybind11/pybind11.h"} <= included
    assert not [name for name in included if name.lower().startswith(("cuda", "cudnn", "nv"))]
