# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""Finds and opens libcudnn.so.9, once per process and only when something needs it.

Order of the search:

1. a libcudnn that the process has mapped already (torch loads one): two of them in one process would share sub-libraries by name and fail
   with a version mismatch;
2. every directory of ``LD_LIBRARY_PATH``: ``libcudnn.so.9``, then ``libcudnn.so``;
3. ``nvidia/cudnn/lib`` beside the installed packages (the wheels ``nvidia-cudnn-cu12`` and ``nvidia-cudnn-cu13``);
4. ``nvidia/cudnn_jit/lib`` likewise;
5. the dynamic loader's own search for ``libcudnn.so.9``, then ``libcudnn.so``.

A candidate that does not open is passed over; when none opens, the error lists each with the loader's reason.
"""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig
import threading
from collections.abc import Iterator
from functools import cache
from typing import Any

SONAMES = ("libcudnn.so.9", "libcudnn.so")
MAJOR = 9

_lock = threading.Lock()
_loaded: Any = None


class LibraryError(RuntimeError):
    """libcudnn is not there or cannot be used; the text says what was searched."""


def extension() -> Any:
    """The module ``cudnn_graph._ext``, without opening libcudnn. LibraryError when the package was installed without it."""
    try:
        from cudnn_graph import _ext
    except ImportError as error:
        raise LibraryError(
            f"the compiled extension cudnn_graph._ext cannot be imported ({error}); install cudnn-graph from its wheel, or with a C++17 compiler from source"
        ) from error
    return _ext


def loaded() -> Any:
    """The extension with libcudnn opened. LibraryError naming every place searched when there is no usable library."""
    if _loaded is not None:
        return _loaded
    return _load()


def is_loaded() -> bool:
    """Whether something opened libcudnn already."""
    return _loaded is not None


def _load() -> Any:
    global _loaded
    with _lock:
        if _loaded is not None:
            return _loaded
        ext = extension()
        tried: list[str] = []
        for path, origin in candidates():
            try:
                ext.load(path)
            except RuntimeError as error:
                tried.append(f"  {path} ({origin}): {error}")
                continue
            version = ext.version()
            if version // 10000 != MAJOR:
                raise LibraryError(f"{path} is cuDNN {version_string(version)}; cudnn-graph needs a cuDNN {MAJOR}")
            _loaded = ext
            return ext
        raise LibraryError(
            "libcudnn.so.9 was not found. Searched:\n"
            + "\n".join(tried or ["  nothing: no candidate exists"])
            + "\nInstall one (pip install nvidia-cudnn-cu13, or nvidia-cudnn-cu12 for CUDA 12), or put its directory on LD_LIBRARY_PATH."
        )


def candidates() -> Iterator[tuple[str, str]]:
    """Pairs (what to open, why it is tried) in the order of the search."""
    seen = set()
    for path, origin in _candidates():
        if path not in seen:
            seen.add(path)
            yield path, origin


def _candidates() -> Iterator[tuple[str, str]]:
    for path in mapped_libraries():
        yield path, "already loaded in this process"
    for directory in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        for name in SONAMES:
            path = os.path.join(directory, name)
            if directory and os.path.isfile(path):
                yield path, "LD_LIBRARY_PATH"
    for folder in ("cudnn", "cudnn_jit"):
        for root in package_roots():
            for path in _wheel_libraries(os.path.join(root, "nvidia", folder, "lib")):
                yield path, f"package nvidia/{folder}"
    for name in SONAMES:
        yield name, "the dynamic loader's search"


def mapped_libraries() -> list[str]:
    """Files named libcudnn.so* that the process has mapped."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = {line.rstrip("\n").split(maxsplit=5)[5] for line in maps if "/libcudnn.so" in line}
    except OSError:
        return []
    return sorted(path for path in paths if os.path.isfile(path))


def package_roots() -> list[str]:
    """Folders that may hold the package `nvidia`: the interpreter's own first, then the rest of sys.path."""
    roots = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path]
    return list(dict.fromkeys(root for root in roots if root and os.path.isdir(root)))


def _wheel_libraries(directory: str) -> list[str]:
    """Files libcudnn.so.* ending in a digit, major version 9 first."""
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    matching = sorted(name for name in names if name.startswith("libcudnn.so.") and name[-1].isdigit())
    matching.sort(key=lambda name: name != SONAMES[0])
    return [os.path.join(directory, name) for name in matching]


def version_string(version: int) -> str:
    """``91901`` -> ``"9.19.1"``."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def backend_version() -> int:
    """Version of the loaded libcudnn, for example 91901. LibraryError (a RuntimeError) when there is none."""
    return loaded().version()


def backend_version_string() -> str:
    """Version of the loaded libcudnn, for example "9.19.1". LibraryError (a RuntimeError) when there is none."""
    return version_string(backend_version())


def get_last_error_string() -> str:
    """cuDNN's own text about its last error in this thread, empty when it has none. LibraryError (a RuntimeError) without a library."""
    return loaded().last_error_string()


def describe() -> dict[str, str]:
    """File, version and build of the library as the search finds it, or the reason why there is none. Never raises."""
    try:
        ext = loaded()
    except LibraryError as error:
        return {"libcudnn": "not available", "reason": str(error)}
    cudart = ext.cudart_version()
    report = {"libcudnn": real_file(ext.loaded_path()), "version": version_string(ext.version())}
    if cudart:
        report["built for CUDA"] = f"{cudart // 1000}.{cudart // 10 % 100}"
    return report


def real_file(name: str) -> str:
    """The file behind the name the library was opened by."""
    for path in mapped_libraries():
        if os.path.basename(path).startswith(os.path.basename(name)):
            return path
    return name


@cache
def missing_companion() -> str | None:
    """Why libcudnn cannot plan although it opened, or None. Opens libcublasLt where libcudnn's own search would not find it.

    libcudnn opens libcublasLt when it first plans a matmul, and ends the process when there is none. The build that only compiles at run time
    (nvidia-cudnn-jit) does without.
    """
    ext = loaded()
    cuda = ext.cudart_version() // 1000
    file = real_file(ext.loaded_path())
    if not cuda or f"{os.sep}cudnn_jit{os.sep}" in file:
        return None
    name = f"libcublasLt.so.{cuda}"
    beside = os.path.dirname(file)
    folders = [beside, *(os.path.join(beside, "..", "..", folder, "lib") for folder in ("cublas", f"cu{cuda}"))]
    folders += [os.path.join(root, "nvidia", folder, "lib") for root in package_roots() for folder in ("cublas", f"cu{cuda}")]
    tried = []
    for path in [*(path for path in (os.path.join(folder, name) for folder in folders) if os.path.isfile(path)), name]:
        try:
            # A library that is open is found by its name, whoever opened it.
            ctypes.CDLL(path)
        except OSError as error:
            tried.append(f"{path}: {error}")
        else:
            return None
    return f"{file} needs {name}, which cannot be opened ({'; '.join(tried)}); install it with pip install nvidia-cublas (nvidia-cublas-cu12 for CUDA 12)"


def require(version: int, what: str) -> None:
    """RuntimeError when the loaded library is older than ``version`` (for example 92100), which ``what`` needs."""
    found = backend_version()
    if found < version:
        raise RuntimeError(f"{what} needs cuDNN {version_string(version)} or newer; the loaded library is {version_string(found)}")
