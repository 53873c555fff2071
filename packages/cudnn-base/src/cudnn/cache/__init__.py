"""The compile cache: every kernel is compiled once per machine, and the next process loads it from disk in milliseconds.

``info()`` and ``clear()`` look at it and empty it, ``stats`` counts hits, builds and seconds, ``refuse_builds()`` turns a compile into an
error, ``fetch(...)`` is what kernels are made through, ``stored(...)`` whether it would compile. ``CUDNN_KERNELS_CACHE`` (``0`` or a directory) and
``CUDNN_KERNELS_CACHE_MAX_BYTES`` set it up; ``python -m cudnn cache info|clear|path`` is the same on the command line.
"""

from __future__ import annotations

from cudnn.cache.engine import BuildRefusedError, CacheInfo, clear, fetch, info, refuse_builds, stats, stored

__all__ = ["BuildRefusedError", "CacheInfo", "clear", "fetch", "info", "refuse_builds", "stats", "stored"]
