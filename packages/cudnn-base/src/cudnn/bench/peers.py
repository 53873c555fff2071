"""The packages we are measured against, as far as they are installed, and what they need to run."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType

# QuACK refuses its fused epilogues when one of them refers to an object its cache key has no rule for, which the objects of newer DSL releases are.
_QUACK_FILE = ("gemm_runtime", "identity.py")
_QUACK_REFUSAL = '    raise TypeError(\n        f"epilogue fn depends on '
_QUACK_RULE = '    return ("opaque", type(value).__module__, type(value).__qualname__, str(getattr(value, "__name__", getattr(value, "name", ""))))\n'


def _missing(module: str, distribution: str) -> str | None:
    try:
        found = importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        found = False
    return None if found else f"not installed (pip install {distribution})"


def quack_missing() -> str | None:
    """None where QuACK can be imported, else why not."""
    return _missing("quack", "quack-kernels") or _import_error(quack)


def deep_gemm_missing() -> str | None:
    """None where DeepGEMM can be imported, else why not."""
    return _missing("deep_gemm", "sgl-deep-gemm") or _import_error(deep_gemm)


def _import_error(load) -> str | None:
    try:
        load()
    except Exception as error:  # a peer may fail in any way while it is imported
        return f"import failed: {type(error).__name__}: {error}"
    return None


@functools.lru_cache(maxsize=1)
def quack() -> ModuleType:
    """QuACK's GEMM interface.

    Where the installed QuACK has the refusal described above, a copy of it in which such objects are keyed by type and name is imported
    instead. The copy is on the path of this process's children too, since QuACK compiles in some; the installed files stay as they are.
    """
    if "quack" not in sys.modules:
        spec = importlib.util.find_spec("quack")
        if spec is None or not spec.submodule_search_locations:
            raise ImportError("quack is not installed; pip install quack-kernels")
        copy = quack_copy(Path(next(iter(spec.submodule_search_locations))))
        if copy is not None:
            sys.path.insert(0, str(copy))
            os.environ["PYTHONPATH"] = os.pathsep.join([str(copy), *filter(None, [os.environ.get("PYTHONPATH")])])
            importlib.invalidate_caches()
    return importlib.import_module("quack.gemm_interface")


def quack_copy(installed: Path, root: Path | None = None) -> Path | None:
    """The directory (below ``root``, by default a private one of this user) of a copy of QuACK that keys unknown objects; None where none is needed."""
    file = installed.joinpath(*_QUACK_FILE)
    if not file.is_file():
        return None
    text = file.read_text()
    if text.count(_QUACK_REFUSAL) != 1:
        return None
    patched = text.replace(_QUACK_REFUSAL, _QUACK_RULE + _QUACK_REFUSAL)
    name = hashlib.sha256(f"{installed}{installed.stat().st_mtime_ns}{patched}".encode()).hexdigest()[:16]
    target = (root or _private_directory()) / f"quack-{name}"
    if not target.is_dir():
        # Made beside and renamed, so that another process never sees half of it.
        making = Path(tempfile.mkdtemp(prefix="making-", dir=target.parent))
        try:
            shutil.copytree(installed, making / "quack", ignore=shutil.ignore_patterns("__pycache__"))
            (making / "quack").joinpath(*_QUACK_FILE).write_text(patched)
            try:
                making.rename(target)
            except OSError:
                if not target.is_dir():
                    raise
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return target


def _private_directory() -> Path:
    from cudnn.cache import settings

    root = settings.directory()
    if root is None:
        root = Path(tempfile.gettempdir()) / f"cudnn-kernels-{os.getuid()}"
    directory = root / "bench-peers"
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    return directory


@functools.lru_cache(maxsize=1)
def deep_gemm() -> ModuleType:
    """DeepGEMM. It compiles with nvcc on first use, which it finds through CUDA_HOME."""
    if "CUDA_HOME" not in os.environ and (nvcc := shutil.which("nvcc")):
        os.environ["CUDA_HOME"] = str(Path(nvcc).resolve().parent.parent)
    return importlib.import_module("deep_gemm")
