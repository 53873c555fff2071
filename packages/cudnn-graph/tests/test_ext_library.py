# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""Finding libcudnn: the order of the search, what a failure says, and that nothing needs the library before it is used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cudnn_graph import library


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders as the search looks for them, all empty."""
    monkeypatch.setattr(library, "mapped_libraries", lambda: [])
    monkeypatch.setattr(library, "package_roots", lambda: [str(tmp_path / "site")])
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path / 'one'}:{tmp_path / 'two'}:")
    return tmp_path


def make(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return str(path)


def test_the_order_of_the_search(places: Path) -> None:
    jit = make(places / "site/nvidia/cudnn_jit/lib/libcudnn.so.9")
    wheel = make(places / "site/nvidia/cudnn/lib/libcudnn.so.9")
    make(places / "site/nvidia/cudnn/lib/libcudnn_graph.so.9")
    two = make(places / "two/libcudnn.so.9")
    plain = make(places / "one/libcudnn.so")
    soname = make(places / "one/libcudnn.so.9")
    assert [path for path, _ in library.candidates()] == [soname, plain, two, wheel, jit, "libcudnn.so.9", "libcudnn.so"]


def test_a_library_that_the_process_has_already_comes_first(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = make(places / "torch/lib/libcudnn.so.9")
    first = make(places / "one/libcudnn.so.9")
    monkeypatch.setattr(library, "mapped_libraries", lambda: [loaded])
    assert [path for path, _ in library.candidates()][:2] == [loaded, first]


def test_a_file_found_in_two_ways_is_tried_once(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(places / "one/libcudnn.so.9")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{places / 'one'}:{places / 'one'}")
    assert [candidate for candidate, _ in library.candidates()].count(path) == 1


def test_the_wheels_of_another_major_version_come_last(places: Path) -> None:
    nine = make(places / "site/nvidia/cudnn/lib/libcudnn.so.9")
    eight = make(places / "site/nvidia/cudnn/lib/libcudnn.so.8")
    make(places / "site/nvidia/cudnn/lib/libcudnn.so.9.debug")
    assert [path for path, _ in library.candidates()][:2] == [nine, eight]


@pytest.mark.parametrize("version, text", [(91901, "9.19.1"), (90000, "9.0.0"), (92801, "9.28.1"), (100203, "10.2.3")])
def test_version_string(version: int, text: str) -> None:
    assert library.version_string(version) == text


def run(code: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120)


ISOLATED = """
import sys
from cudnn_graph import library
library.package_roots = lambda: []
library.mapped_libraries = lambda: []
"""


def test_without_a_library_everything_imports_and_the_error_names_what_was_searched(tmp_path: Path) -> None:
    try:
        library.extension()
    except library.LibraryError as error:
        pytest.skip(str(error))
    broken = make(tmp_path / "libcudnn.so.9")
    code = f"""{ISOLATED}
library.SONAMES = ("libcudnn.so.9", "no_such_libcudnn.so")
library._candidates = lambda found=library._candidates: (pair for pair in found() if pair[0].startswith({str(tmp_path)!r}) or pair[0].startswith("no_such"))
import cudnn_graph.engines.backend, cudnn_graph.kernel_cache, cudnn_graph.device_properties, cudnn_graph.graph
from cudnn_graph.handle import create_handle
calls = [library.backend_version, library.backend_version_string, library.get_last_error_string, create_handle, cudnn_graph.kernel_cache.create_kernel_cache,
         lambda: cudnn_graph.device_properties.create_device_properties(0)]
for call in calls:
    try:
        call()
    except RuntimeError as error:
        print(type(error).__name__, str(error).replace(chr(10), "|"))
print(library.describe()["libcudnn"], library.is_loaded(), cudnn_graph.engines.backend.BackendEngine().unavailable()[:30])
"""
    done = run(code, LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    *calls, last = done.stdout.splitlines()
    assert len(calls) == 6
    for line in calls:
        assert line.startswith("LibraryError libcudnn.so.9 was not found. Searched:|")
        # Both candidates with where they came from and the loader's own reason.
        assert f"{broken} (LD_LIBRARY_PATH): {broken}: file too short" in line
        assert "no_such_libcudnn.so (the dynamic loader's search): no_such_libcudnn.so: cannot open shared object file" in line
        assert "pip install nvidia-cudnn-cu13, or nvidia-cudnn-cu12 for CUDA 12" in line
    assert last == "not available False libcudnn.so.9 was not found. S"


def test_a_library_that_lacks_a_function_is_passed_over_and_named(tmp_path: Path, fake_cudnn) -> None:
    source = tmp_path / "half.cpp"
    source.write_text('extern "C" unsigned long cudnnGetVersion() { return 91900; }\n', encoding="utf-8")
    subprocess.run(["c++", "-shared", "-fPIC", str(source), "-o", str(tmp_path / "libcudnn.so.9")], check=True)
    code = "from cudnn_graph import library; print(library.describe()['libcudnn']); print(library.extension().loaded_path())"
    done = run(code, LD_LIBRARY_PATH=f"{tmp_path}:{fake_cudnn.folder}")
    assert done.stdout.split() == [str(fake_cudnn.folder / "libcudnn.so.9")] * 2, done.stderr


def test_another_major_version_is_refused(fake_cudnn) -> None:
    done = run("from cudnn_graph import library; library.backend_version()", LD_LIBRARY_PATH=str(fake_cudnn.folder), FAKE_CUDNN_VERSION="100001")
    assert done.returncode != 0
    assert f"LibraryError: {fake_cudnn.folder / 'libcudnn.so.9'} is cuDNN 10.0.1; cudnn-graph needs a cuDNN 9" in done.stderr


def test_the_functions_of_a_loaded_library(fake_cudnn) -> None:
    result = fake_cudnn.run("""
result = [library.backend_version(), library.backend_version_string(), library.get_last_error_string(), library.describe(), failure(ext.load, "elsewhere.so"),
          failure(library.require, 92000, "a thing")]
ext.load(ext.loaded_path())
""")
    assert result[:3] == [91900, "9.19.0", ""]
    assert result[3] == {"libcudnn": str(fake_cudnn.folder / "libcudnn.so.9"), "version": "9.19.0"}
    assert result[4][1].startswith("libcudnn is already loaded from") and "elsewhere.so" in result[4][1]
    assert result[5][0][0] == "RuntimeError" and result[5][1] == "a thing needs cuDNN 9.20.0 or newer; the loaded library is 9.19.0"


class Stub:
    """Stands for the extension."""

    def __init__(self, path: Path, cudart: int) -> None:
        self.path = path
        self.cudart = cudart

    def cudart_version(self) -> int:
        return self.cudart

    def loaded_path(self) -> str:
        return str(self.path)


@pytest.mark.parametrize("layout", ["site/nvidia/cu99/lib", "site/nvidia/cublas/lib", "one", None])
def test_the_library_of_matrix_products_is_opened_or_missed(places: Path, monkeypatch: pytest.MonkeyPatch, layout: str | None) -> None:
    cudnn = make(places / ("one" if layout == "one" else "site/nvidia/cudnn/lib") / "libcudnn.so.9")
    monkeypatch.setattr(library, "loaded", lambda: Stub(Path(cudnn), 99010))
    opened = []

    def open_library(path: str) -> None:
        if not Path(path).is_file():
            raise OSError("no such file")
        opened.append(path)

    monkeypatch.setattr(library.ctypes, "CDLL", open_library)
    library.missing_companion.cache_clear()
    try:
        if layout is None:
            reason = library.missing_companion()
            assert reason == (
                f"{cudnn} needs libcublasLt.so.99, which cannot be opened (libcublasLt.so.99: no such file); "
                "install it with pip install nvidia-cublas (nvidia-cublas-cu12 for CUDA 12)"
            )
        else:
            file = make(places / layout / "libcublasLt.so.99")
            assert library.missing_companion() is None
            assert [os.path.realpath(path) for path in opened] == [os.path.realpath(file)]
    finally:
        library.missing_companion.cache_clear()


def test_libraries_that_do_without_it(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, cudart in ((places / "site/nvidia/cudnn_jit/lib/libcudnn.so.9", 99010), (places / "one/libcudnn.so.9", 0)):
        monkeypatch.setattr(library, "loaded", lambda path=path, cudart=cudart: Stub(path, cudart))
        library.missing_companion.cache_clear()
        assert library.missing_companion() is None
    library.missing_companion.cache_clear()


def test_importing_the_modules_opens_no_library_and_no_framework() -> None:
    code = """
import sys
import cudnn_graph.engines.backend, cudnn_graph.handle, cudnn_graph.kernel_cache, cudnn_graph.device_properties, cudnn_graph.lowering
heavy = [name for name in ("torch", "numpy", "jax", "cutlass", "cudnn_graph._ext") if name in sys.modules]
print(heavy, cudnn_graph.library.is_loaded(), any("libcudnn" in line for line in open("/proc/self/maps")))
"""
    done = run(code)
    assert done.stdout.split("\n")[0] == "[] False False", done.stdout + done.stderr
