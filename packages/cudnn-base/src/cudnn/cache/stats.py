"""Counters of the compile cache: how often it was asked, what it answered, and what that took."""

from __future__ import annotations

import threading


class Stats:
    """Counts since the process started, or since ``reset()``. Read the attributes, or all at once with ``snapshot()``.

    - ``memory_hits``, ``disk_hits``: answers from this process's table and from the disk store.
    - ``builds``, ``build_seconds``: kernels compiled in this process, and the seconds that took.
    - ``load_seconds``: seconds spent loading stored objects.
    - ``invalid_entries``: stored entries found damaged, foreign or not loadable.
    - ``store_failures``: results that could not be stored (full or unwritable directory) and serve this process alone.
    - ``evictions``: stored entries removed because the store had reached its bound.
    """

    NAMES = ("memory_hits", "disk_hits", "builds", "build_seconds", "load_seconds", "invalid_entries", "store_failures", "evictions")

    memory_hits: int
    disk_hits: int
    builds: int
    build_seconds: float
    load_seconds: float
    invalid_entries: int
    store_failures: int
    evictions: int

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Set every counter to zero."""
        with self._lock:
            for name in self.NAMES:
                setattr(self, name, 0.0 if name.endswith("_seconds") else 0)

    def add(self, **amounts: float) -> None:
        """Add ``amounts`` to the counters they name."""
        with self._lock:
            for name, amount in amounts.items():
                setattr(self, name, getattr(self, name) + amount)

    def snapshot(self) -> dict[str, float]:
        """All counters at one moment, by name."""
        with self._lock:
            return {name: getattr(self, name) for name in self.NAMES}

    def __repr__(self) -> str:
        return "Stats(" + ", ".join(f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}" for name, value in self.snapshot().items()) + ")"
