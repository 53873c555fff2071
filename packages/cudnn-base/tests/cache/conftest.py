"""A kernel of a make-believe distribution and a compiler that writes text, so that every path of the cache runs without the DSL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cudnn.cache import engine

# What the cache is asked to build, in this process (the `compiler` fixture) and in children (`run_child`). Every build and every load leaves a line in
# `journal`, which processes can share: short appends are atomic.
STUB = '''
import os, time

JOURNAL = os.environ["STUB_JOURNAL"]

def note(what):
    with open(JOURNAL, "ab", buffering=0) as f:
        f.write(what.encode() + b"\\n")

class Kernel:
    def __init__(self, text, origin):
        self.text, self.origin = text, origin
    def __call__(self):
        return self.text

def text_of(fields):
    return "code for " + repr(sorted(fields.items()))

def request(fields, *, seconds=0.0, size=2000, build=None, dump=None, load=None, sources=("thirdparty_gemm.relu.epilogue",), label="relu 128x128"):
    """Keyword arguments of cudnn.cache.fetch."""
    text = text_of(fields)
    def default_build():
        note("build")
        time.sleep(seconds)
        return Kernel(text, "built")
    def default_dump(kernel, path):
        data = (kernel.text + "\\n").encode()
        with open(path, "wb") as f:
            f.write(data + b"x" * max(0, size - len(data)))
    def default_load(path):
        with open(path, "rb") as f:
            head, _, padding = f.read().partition(b"\\n")
        assert padding.strip(b"x") == b""
        note("load")
        return Kernel(head.decode(), "loaded")
    return dict(fields=fields, sources=list(sources), build=build or default_build, dump=dump or default_dump, load=load or default_load, label=label)
'''


def write_package(root: Path) -> Path:
    """thirdparty_gemm: two fusions over one shared module, as a third party would lay them out."""
    package = root / "thirdparty_gemm"
    for name, text in {
        "__init__.py": "from thirdparty_gemm.api import everything\n",
        "api.py": "import thirdparty_gemm.relu.epilogue\neverything = 1\n",
        "shared.py": "from __future__ import annotations\n\nFACTOR = 2\n",
        "relu/__init__.py": "",
        "relu/epilogue.py": "from thirdparty_gemm.shared import FACTOR\nfrom cudnn.cutedsl.gemm import config\n\nSLOPE = 0.0\n",
        "gelu/__init__.py": "",
        "gelu/epilogue.py": "from thirdparty_gemm import shared\n\n\ndef late():\n    from cudnn.cutedsl.gemm.problem import GemmProblem\n\n    return GemmProblem\n",
    }.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (1.7e9, 1.7e9))  # installed before this process began
    return package


@pytest.fixture
def package(tmp_path, monkeypatch):
    root = tmp_path / "site"
    made = write_package(root)
    monkeypatch.syspath_prepend(str(root))
    return made


@pytest.fixture
def cache_dir(tmp_path, monkeypatch):
    """An empty cache directory and a process that knows nothing."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("CUDNN_KERNELS_CACHE", str(directory))
    monkeypatch.delenv("CUDNN_KERNELS_CACHE_MAX_BYTES", raising=False)
    forget()
    yield directory
    engine.clear(disk=False)


def forget() -> None:
    """Make this process as ignorant as a fresh one."""
    engine.clear(disk=False)
    engine.stats.reset()
    engine._warned.clear()


@pytest.fixture
def compiler(tmp_path, package, cache_dir, monkeypatch):
    """The stub in this process: `compiler.request(fields, ...)`, `compiler.journal()`, `compiler.child(script)`, `compiler.forget()`."""
    journal = tmp_path / "journal"
    journal.touch()
    monkeypatch.setenv("STUB_JOURNAL", str(journal))
    scope: dict = {}
    exec(STUB, scope)

    def child(script: str, **popen) -> subprocess.Popen:
        """A fresh interpreter with the stub defined; PYTHONPATH carries this one's way to the packages."""
        paths = [str(package.parent), *(p for p in sys.path if p)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **popen.pop("env", {})}
        return subprocess.Popen(
            [sys.executable, "-c", STUB + "\nimport cudnn.cache as cache\n" + script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def files() -> list[str]:
        """Names of all files of the store but the locks and the import memo."""
        return sorted(p.name for p in (cache_dir / "v1").iterdir() if p.is_file() and p.name != "imports.json") if (cache_dir / "v1").exists() else []

    return SimpleNamespace(
        request=scope["request"],
        text_of=scope["text_of"],
        journal=lambda: journal.read_text().split(),
        child=child,
        files=files,
        forget=forget,
        directory=cache_dir,
    )


def finish(process: subprocess.Popen, timeout: float = 60.0) -> str:
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, err
    return out


@pytest.fixture(name="finish")
def finish_fixture():
    return finish
