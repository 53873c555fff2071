# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a stand-in for libcudnn in a process of its own, and a real libcudnn in this one.

``GRAPH_REPORT=file.json`` in the environment writes the outcome of every GPU test to a file: counts, the library, and what tests recorded.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_outcomes: dict[str, dict[str, Any]] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "gpu" in report.keywords and (report.when == "call" or report.outcome != "passed"):
        reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else None
        _outcomes[report.nodeid] = {"outcome": report.outcome, **({"reason": reason} if reason else {}), **dict(report.user_properties)}


def pytest_sessionfinish() -> None:
    path = os.environ.get("GRAPH_REPORT")
    if not path or not _outcomes:
        return
    from cudnn_graph import library

    by_test: dict[str, dict[str, int]] = {}
    for name, entry in _outcomes.items():
        counts = by_test.setdefault(name.split("::")[-1].split("[")[0], {})
        counts[entry["outcome"]] = counts.get(entry["outcome"], 0) + 1
    total = {outcome: sum(counts.get(outcome, 0) for counts in by_test.values()) for outcome in ("passed", "failed", "skipped")}
    summary = {"libcudnn": library.describe(), "total": total, "by test": by_test, "tests": _outcomes}
    Path(path).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


_PRELUDE = """
import ctypes, json, os
from cudnn_graph import library
ext = library.loaded()
fake = ctypes.CDLL(ext.loaded_path())
fake.fake_log.restype = ctypes.c_char_p
fake.fake_alive.restype = ctypes.c_int64
def log():
    return [json.loads(line) for line in fake.fake_log().decode().splitlines()]
def failure(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Exception as error:
        return [[kind.__name__ for kind in type(error).__mro__], str(error)]
    return None
import cudnn_graph.enums as e
from cudnn_graph.graph import pygraph
from cudnn_graph.handle import *
def matmul_graph(**options):
    g = pygraph("mm", io_data_type=e.data_type.HALF, intermediate_data_type=e.data_type.FLOAT, compute_data_type=e.data_type.FLOAT, backend="cudnn", **options)
    a, b = g.tensor([2, 64, 32], name="a"), g.tensor([2, 32, 48], name="b")
    c = g.matmul(a, b)
    c.set_output(True).set_name("c")
    return g
"""


class FakeCudnn:
    """A folder with a libcudnn.so.9 that only records; scripts that use it run in a fresh interpreter, because a process keeps the first libcudnn it loads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, script: str, **environment: str) -> Any:
        """Run ``script`` (after a prelude: ext, fake, log(), failure(), pygraph, e, matmul_graph()) and return what it put into ``result``, through JSON."""
        code = f"{_PRELUDE}\n{script}\nprint('RESULT' + json.dumps(result))\n"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "LD_LIBRARY_PATH": str(self.folder), **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
        line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
        assert not done.stderr, done.stderr
        return json.loads(line.removeprefix("RESULT"))


def _require_extension() -> None:
    from cudnn_graph import library

    try:
        library.extension()
    except library.LibraryError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def fake_cudnn(tmp_path_factory: pytest.TempPathFactory) -> FakeCudnn:
    """The stand-in, compiled once per session."""
    _require_extension()
    compiler = os.environ.get("CXX") or next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
    if compiler is None:
        pytest.skip("needs a C++ compiler to build the stand-in for libcudnn")
    folder = tmp_path_factory.mktemp("fake_cudnn")
    source = Path(__file__).with_name("fake_cudnn.cpp")
    command = [*compiler.split(), "-O1", "-std=c++17", "-shared", "-fPIC", str(source), "-o", str(folder / "libcudnn.so.9")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return FakeCudnn(folder)


@pytest.fixture(scope="session")
def real_cudnn() -> Any:
    """The extension with the machine's own libcudnn; no GPU is needed to make most descriptors."""
    from cudnn_graph import library

    _require_extension()
    try:
        return library.loaded()
    except library.LibraryError as error:
        pytest.skip(f"needs a libcudnn: {error}")


@pytest.fixture
def recorder() -> Callable[[], Any]:
    """Makes a factory of descriptors that record what they are given instead of calling libcudnn."""

    class Recorded:
        def __init__(self, kind: int) -> None:
            self.kind = kind
            self.attributes: dict[int, tuple[int, Any]] = {}
            self.finalized = False

        def set(self, name: int, attribute_type: int, value: Any) -> None:
            assert not self.finalized
            assert name not in self.attributes, f"attribute {name} is set twice"
            self.attributes[name] = (attribute_type, value)

        def finalize(self, context: int = 0) -> Recorded:
            self.finalized = True
            return self

        def __getitem__(self, name: int) -> Any:
            return self.attributes[name][1]

    return Recorded
