"""The CUDA driver and runtime of this process, through ctypes. Loading either touches no device and creates no context."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

__all__ = ["cuda_driver", "driver_version", "runtime_version"]


@lru_cache(maxsize=1)
def cuda_driver() -> Any:
    """libcuda, initialised, or None where there is no driver or no usable device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return driver if driver.cuInit(0) == 0 else None


def driver_version() -> int:
    """CUDA version that the installed driver supports, as 1000 * major + 10 * minor; 0 without a driver."""
    try:
        return _ask_version(ctypes.CDLL("libcuda.so.1").cuDriverGetVersion)
    except OSError:
        return 0


def runtime_version() -> int:
    """Version of the CUDA runtime library, as 1000 * major + 10 * minor: the one this process has loaded, else the one it would find; 0 without one."""
    for loaded_only in (True, False):
        for path in _runtime_candidates():
            try:
                return _ask_version(ctypes.CDLL(path, mode=os.RTLD_NOLOAD if loaded_only else ctypes.DEFAULT_MODE).cudaRuntimeGetVersion)
            except (OSError, AttributeError):
                continue
    return 0


def _ask_version(function: Any) -> int:
    version = ctypes.c_int(0)
    return version.value if function(ctypes.byref(version)) == 0 else 0


def _runtime_candidates() -> list[str]:
    names = ["libcudart.so.13", "libcudart.so.12"]
    wheels = [
        str(path)
        for root in sys.path
        if root
        for pattern in ("nvidia/cu1*/lib", "nvidia/cuda_runtime/lib")
        for path in Path(root).glob(f"{pattern}/libcudart.so.1*")
    ]
    return names + sorted(wheels, reverse=True)
