"""The few kernels of one operation, compiled side by side."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from cudnn.cache import engine, pool, settings
from cudnn.cache.pool import Spec
from cudnn.cache.store import Store
from cudnn.logs import get_logger

# A process that compiles takes about two seconds to start, in which this one has compiled a kernel.
WORTH = 3

log = get_logger("cudnn.cache")


class Stored(Spec, Protocol):
    """A spec that knows whether the cache has its kernel."""

    def stored(self) -> bool: ...


def build_together(specs: Sequence[Stored]) -> list[Callable[..., Any]]:
    """``spec.build()`` of each.

    Where three or more of them would be compiled, processes that end with their work compile from the end of the list while this one compiles from its beginning; whoever comes second to a kernel takes
    the first one's result from the disk store. ``CUDNN_KERNELS_COMPILE_JOBS`` bounds the processes, this one included. Nothing is started where the store is off or cannot be written.
    """
    jobs = settings.compile_jobs()
    if jobs > 1 and len(specs) >= WORTH:
        missing = [spec for spec in specs if not spec.stored()]
        if len(missing) >= WORTH and not engine.refusing() and _writable():
            threading.Thread(target=_help, args=(missing[:0:-1], jobs - 1), daemon=True).start()
    return [spec.build() for spec in specs]


def _help(specs: Sequence[Stored], jobs: int) -> None:
    try:
        for outcome in pool.build_all(specs, arch=specs[0].arch, jobs=min(jobs, len(specs))):
            if outcome.status == "failed":
                log.debug("%s: failed in another process: %s", outcome.spec.label, outcome.error)
    except Exception as error:  # no process could be started, say: the kernels are compiled here all the same
        log.debug("no help with compiling: %s: %s", type(error).__name__, error)


def _writable() -> bool:
    root = settings.directory()
    if root is None:
        return False
    try:
        store = Store(root)
        store.open()
    except OSError:
        return False
    return os.access(store.directory, os.W_OK)
