"""Fused GEMM kernels and a graph API, as one package made of separately installed distributions.

Importing it loads no framework, no compiler and no kernel family. A public name is resolved when it is first used: `cudnn.registry` says which distribution
provides it, and raises an ImportError with the pip line when that distribution is missing. `cudnn.registry.available(name)` asks without raising.
"""

from __future__ import annotations

import os as _os
import sys as _sys

from cudnn import _namespaces
from cudnn._version import __version__ as __version__

_namespaces.install()


def __getattr__(name: str) -> object:
    if name.startswith("_"):
        raise AttributeError(f"module 'cudnn' has no attribute {name!r}")
    return _namespaces.resolve(_sys.modules[__name__], "", name)


def __dir__() -> list[str]:
    return _namespaces.listing(_sys.modules[__name__], "")


if _os.environ.get("CUDNN_KERNELS_EAGER", "0") not in ("", "0"):
    _namespaces.resolve_all()
