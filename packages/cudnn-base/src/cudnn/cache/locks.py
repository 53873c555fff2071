"""One lock per key: among the threads of a process, and among the processes that share a directory."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path

_POLL_SECONDS = 0.02  # a waiter sees the result of another process this late at most
_REPORT_SECONDS = 5.0  # a wait this long is worth a line


class KeyLocks:
    """Locks by key, made when first wanted and forgotten when nobody holds or awaits them. Different keys never wait for each other."""

    def __init__(self) -> None:
        self._reset()
        # A child forked while a thread compiled would inherit that thread's locked lock and wait for ever.
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[Hashable, list] = {}  # key -> [lock, number of holders and waiters]

    @contextlib.contextmanager
    def hold(self, key: Hashable) -> Iterator[None]:
        with self._guard:
            entry = self._locks.setdefault(key, [threading.Lock(), 0])
            entry[1] += 1
        try:
            with entry[0]:
                yield
        finally:
            with self._guard:
                entry[1] -= 1
                if not entry[1]:
                    self._locks.pop(key, None)

    def __len__(self) -> int:
        return len(self._locks)


@contextlib.contextmanager
def process_lock(path: Path, *, on_wait: Callable[[float], None] | None = None, wait: bool = True) -> Iterator[bool]:
    """Hold the file lock at ``path``; yields whether it is held.

    With ``wait=False`` a lock that another process holds yields False at once. ``on_wait(seconds)`` is called about every five seconds
    of waiting. The operating system releases the lock when its holder dies. Raises OSError where the lock file cannot be made or the
    file system has no locks.
    """
    import filelock

    lock = filelock.FileLock(str(path))
    waited = 0.0
    while True:
        try:
            lock.acquire(timeout=_REPORT_SECONDS if wait else 0, poll_interval=_POLL_SECONDS)
            break
        except filelock.Timeout:
            if not wait:
                yield False
                return
            waited += _REPORT_SECONDS
            if on_wait is not None:
                on_wait(waited)
        except NotImplementedError as error:
            raise OSError(f"this file system has no locks: {error}") from error
    try:
        yield True
    finally:
        lock.release()
