"""Where the compile cache lives and how large it may grow, and how many processes compile, from environment variables that are read at every use."""

from __future__ import annotations

import os
import re
from pathlib import Path

DIRECTORY_VARIABLE = "CUDNN_KERNELS_CACHE"
MAX_BYTES_VARIABLE = "CUDNN_KERNELS_CACHE_MAX_BYTES"
DEFAULT_MAX_BYTES = 4 << 30
JOBS_VARIABLE = "CUDNN_KERNELS_COMPILE_JOBS"
MOST_JOBS = 8  # by default: no operation has many more kernels, and other ranks of a machine start theirs at the same time

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def directory() -> Path | None:
    """The root directory of the disk store, or None when ``CUDNN_KERNELS_CACHE=0`` turns it off.

    Unset, empty or ``1`` is the user's cache directory (``~/.cache/cudnn-kernels`` on Linux); anything else is a directory, made when
    something is first stored in it.
    """
    value = os.environ.get(DIRECTORY_VARIABLE, "").strip()
    if value == "0":
        return None
    if value in ("", "1"):
        import platformdirs

        return Path(platformdirs.user_cache_dir("cudnn-kernels", appauthor=False))
    return Path(value).expanduser().absolute()


def max_bytes() -> int:
    """The most bytes the disk store may hold: ``CUDNN_KERNELS_CACHE_MAX_BYTES``, 4 GiB when unset, 0 for no bound.

    The value is a whole number of bytes, or of K, M, G or T (powers of 1024): ``500M``. Anything else raises ValueError.
    """
    value = os.environ.get(MAX_BYTES_VARIABLE, "").strip()
    if not value:
        return DEFAULT_MAX_BYTES
    match = re.fullmatch(r"(\d+)\s*([KMGT]?)(?:i?B)?", value, re.IGNORECASE)
    if match is None:
        raise ValueError(
            f"{MAX_BYTES_VARIABLE}: found {value!r}, needs a whole number of bytes, or one with K, M, G or T behind it such as 500M; 0 means no bound"
        )
    return int(match[1]) * _UNITS[match[2].upper()]


def compile_jobs() -> int:
    """How many processes, this one included, compile the kernels of one operation: ``CUDNN_KERNELS_COMPILE_JOBS``; unset, half the cores this process may use, 8 at most.

    Processes that torchrun has started on this machine (``LOCAL_WORLD_SIZE``) share the cores.

    Raises ValueError for anything but a positive whole number.
    """
    value = os.environ.get(JOBS_VARIABLE, "").strip()
    if not value:
        from cudnn.cache.pool import default_jobs

        ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
        return max(min(default_jobs() // 2 // (int(ranks) if ranks.isdecimal() and int(ranks) else 1), MOST_JOBS), 1)
    if not value.isdecimal() or not int(value):
        raise ValueError(f"{JOBS_VARIABLE}: found {value!r}, needs a whole number from 1 on; 1 compiles in this process alone")
    return int(value)
