"""The way of a kernel into this process: the table in memory, the disk store, or the compiler, one thread of one process at a time per key."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cudnn.cache import keys, settings
from cudnn.cache import sources as source_hashes
from cudnn.cache.locks import KeyLocks
from cudnn.cache.stats import Stats
from cudnn.cache.store import Entry, Miss, Store
from cudnn.logs import get_logger

SLOW_SECONDS = 2.0  # a compile longer than this is worth a line
MEMORY_ENTRIES = 1024  # kernels of one process; each is some hundred KB of host and device code at most

log = get_logger("cudnn.cache")
stats = Stats()


class BuildRefusedError(RuntimeError):
    """A kernel would have been compiled inside ``refuse_builds()``."""


@dataclass(frozen=True)
class CacheInfo:
    """State of the cache: the disk store's directory (None when off), entries, bytes and bound (0 = none), kernels in memory, counters."""

    directory: str | None
    entries: int
    bytes: int
    max_bytes: int
    memory_entries: int
    stats: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        bound = f"of {human_bytes(self.max_bytes)}" if self.max_bytes else "without a bound"
        place = f"{self.directory}: {self.entries} kernels, {human_bytes(self.bytes)} {bound}" if self.directory else f"off ({settings.DIRECTORY_VARIABLE}=0)"
        counters = ", ".join(f"{name} {value:.2f}" if isinstance(value, float) else f"{name} {value}" for name, value in self.stats.items())
        return f"disk     {place}\nmemory   {self.memory_entries} kernels\nprocess  {counters}"


def human_bytes(count: float) -> str:
    """``count`` bytes as a short text: 45.2 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


class _Table:
    """Kernels of this process by key; the one used longest ago leaves when it is full."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._kernels: OrderedDict[Any, Callable] = OrderedDict()

    def get(self, key: Any) -> Callable | None:
        with self._guard:
            kernel = self._kernels.get(key)
            if kernel is not None:
                self._kernels.move_to_end(key)
            return kernel

    def put(self, key: Any, kernel: Callable) -> None:
        with self._guard:
            self._kernels[key] = kernel
            self._kernels.move_to_end(key)
            while len(self._kernels) > MEMORY_ENTRIES:
                self._kernels.popitem(last=False)

    def clear(self) -> None:
        with self._guard:
            self._kernels.clear()

    def __len__(self) -> int:
        return len(self._kernels)


_table = _Table()
_flights = KeyLocks()
_refusals = 0
_refusals_guard = threading.Lock()
_warned: set[str] = set()


def fetch(
    fields: Mapping[str, Any],
    sources: Sequence[str],
    *,
    build: Callable[[], Any],
    dump: Callable[[Any, str], None],
    load: Callable[[str], Callable],
    label: str,
) -> Callable:
    """The kernel that ``fields`` describe: from memory, from disk, or built now and stored for the next process.

    - ``fields``: what changes the generated code, as JSON data: family, fusion, problem, config, architecture, ... Extents, scalars and
      pointers are run-time values and have no place here. A tensor or another object raises TypeError.
    - ``sources``: names of the modules the kernel is generated from. They and all modules of ours they import, directly or not, are part
      of the key by their content; none is imported for that. Versions of Python, of the DSL and of this package are added here.
    - ``build()`` compiles and returns the callable; ``dump(built, path)`` writes it to ``path`` (ending in ``.o``); ``load(path)`` makes
      a callable of such a file.
    - ``label`` names operation and configuration in log lines.

    One thread of one process builds; others that want the same key wait for it and take its result, other keys go on. A stored object
    that is damaged, or that ``load`` refuses, is built anew. Where storing fails (directory full or not writable) one warning is logged
    and the result serves this process. What ``build`` raises passes through. Inside ``refuse_builds()`` a build raises BuildRefusedError.
    """
    memory_key = keys.memory_key(fields, sources)
    kernel = _table.get(memory_key)
    if kernel is None:
        with _flights.hold(memory_key):
            kernel = _table.get(memory_key)
            if kernel is None:
                kernel = _from_disk_or_build(fields, sources, build, dump, load, label)
                _table.put(memory_key, kernel)
                return kernel
    stats.add(memory_hits=1)
    log.debug("%s: memory hit", label)
    return kernel


def stored(fields: Mapping[str, Any], sources: Sequence[str]) -> bool:
    """Whether ``fetch`` would find the kernel in memory or on disk. What is on disk may still be refused by the loader."""
    if _table.get(keys.memory_key(fields, sources)) is not None:
        return True
    root = settings.directory()
    if root is None:
        return False
    store = Store(root)
    identity = keys.identity(fields, sources, memo=store.memo)
    return isinstance(store.read(keys.file_key(identity), identity), Entry)


def _from_disk_or_build(
    fields: Mapping[str, Any], sources: Sequence[str], build: Callable[[], Any], dump: Callable[[Any, str], None], load: Callable[[str], Callable], label: str
) -> Callable:
    root = settings.directory()
    if root is None:
        return _build(build, label, f"the disk store is off ({settings.DIRECTORY_VARIABLE}=0)")[0]
    limit = settings.max_bytes()
    store = Store(root)
    identity = keys.identity(fields, sources, memo=store.memo)
    key = keys.file_key(identity)
    edited = source_hashes.edited(identity["sources"])
    if edited:
        _warn_not_stored(root, f"{', '.join(edited)} changed while this process runs", "Start a new process for results that are kept")
        return _build(build, label, "its sources changed while this process runs")[0]
    found = _load(store, key, identity, load, label)
    if not isinstance(found, Miss):
        return found
    if _refusals:
        _refuse(label, found.reason if found.invalid else store.explain(key, identity))
    with contextlib.ExitStack() as stack:
        writable = _lock(stack, store, key, label)
        if writable:
            again = _load(store, key, identity, load, label, known=found)  # another process may have built it meanwhile
            if not isinstance(again, Miss):
                return again
            store.sweep(key)
        reason = found.reason
        if log.isEnabledFor(logging.DEBUG) and not found.invalid:
            reason = store.explain(key, identity)
        built, seconds = _build(build, label, reason)
        if writable:
            _save(store, key, identity, built, dump, label, seconds, limit)
        return built


def _load(store: Store, key: str, identity: Mapping[str, Any], load: Callable[[str], Callable], label: str, known: Miss | None = None) -> Callable | Miss:
    """The stored kernel, or why there is none. ``known`` is an earlier answer, whose fault is not counted and told twice."""
    entry = store.read(key, identity)
    if isinstance(entry, Entry):
        started = time.perf_counter()
        try:
            kernel = load(str(entry.object_path))
        except Exception as error:  # whatever the loader does not like: the kernel can be built anew
            entry = Miss(f"stored object refused by the loader: {type(error).__name__}: {error}", invalid=True)
        else:
            seconds = time.perf_counter() - started
            stats.add(disk_hits=1, load_seconds=seconds)
            store.touch(key)
            log.debug("%s: disk hit, loaded in %.1f ms from %s", label, seconds * 1e3, entry.object_path)
            return kernel
    if entry.invalid and entry != known:
        stats.add(invalid_entries=1)
        log.warning("%s: %s in %s; building it anew", label, entry.reason, store.record_path(key))
    return entry


def _lock(stack: contextlib.ExitStack, store: Store, key: str, label: str) -> bool:
    """Hold the key's lock for as long as ``stack`` lives. False where the directory cannot be written."""

    def waiting(seconds: float) -> None:
        log.info("%s: another process has been compiling it for %.0f s; waiting for its result", label, seconds)

    try:
        store.open()
        stack.enter_context(store.lock(key, on_wait=waiting))
        return True
    except OSError as error:
        _warn_not_stored(store.root, error)
        return False


def _build(build: Callable[[], Any], label: str, reason: str) -> tuple[Any, float]:
    _refuse(label, reason)
    log.debug("%s: miss (%s), compiling", label, reason)
    started = time.perf_counter()
    built = build()
    seconds = time.perf_counter() - started
    stats.add(builds=1, build_seconds=seconds)
    if seconds > SLOW_SECONDS:
        # A warning, so that it is seen without any logging set up: this is why the first call took so long.
        log.warning("compiled %s in %.1f s", label, seconds)
    else:
        log.debug("%s: compiled in %.2f s", label, seconds)
    return built, seconds


def _save(store: Store, key: str, identity: Mapping[str, Any], built: Any, dump: Callable[[Any, str], None], label: str, seconds: float, limit: int) -> None:
    try:
        refused = store.write(key, identity, lambda path: dump(built, path), label=label, build_seconds=seconds, max_bytes=limit)
    except Exception as error:  # a full disk reaches us as OSError or as what the compiler's writer makes of it
        _warn_not_stored(store.root, error)
        return
    if refused is not None:
        log.debug("%s: not stored, %s", label, refused)
        return
    log.debug("%s: stored as %s", label, store.object_path(key))
    source_hashes.save_memo()
    if limit:
        with contextlib.suppress(OSError):
            removed = store.evict(limit, keep=key)
            stats.add(evictions=len(removed))
            if removed:
                log.debug("removed %d kernels used longest ago to stay under %d bytes", len(removed), limit)


def _warn_not_stored(root: Path, reason: Exception | str, remedy: str = "") -> None:
    stats.add(store_failures=1)
    level = logging.DEBUG if str(root) in _warned else logging.WARNING
    _warned.add(str(root))
    remedy = remedy or f"Free some space there, or set {settings.DIRECTORY_VARIABLE} to a writable directory, or to 0 to turn storing off"
    log.log(level, "compiled kernels cannot be stored in %s (%s); they serve this process alone. %s", root, reason, remedy)


def _refuse(label: str, reason: str) -> None:
    if _refusals:
        raise BuildRefusedError(f"{label} would be compiled ({reason}), inside cudnn.cache.refuse_builds()")


def refusing() -> bool:
    """Whether ``refuse_builds()`` is active."""
    return _refusals > 0


@contextlib.contextmanager
def refuse_builds() -> Iterator[None]:
    """While this is active, in any thread of the process, whatever would compile raises BuildRefusedError instead."""
    global _refusals
    with _refusals_guard:
        _refusals += 1
    try:
        yield
    finally:
        with _refusals_guard:
            _refusals -= 1


def _directory_to_look_at() -> Path | None:
    """The store's directory, made or not yet; ValueError where something else stands in its place, since that is a mistake in the variable."""
    root = settings.directory()
    if root is not None and root.exists() and not root.is_dir():
        raise ValueError(f"{settings.DIRECTORY_VARIABLE}: {root} is not a directory; name one, or unset the variable")
    return root


def info() -> CacheInfo:
    """Where the disk store is, what it holds, and this process's counters. ValueError when the variable names what is no directory."""
    root = _directory_to_look_at()
    entries, size = Store(root).usage() if root is not None else (0, 0)
    return CacheInfo(None if root is None else str(root), entries, size, settings.max_bytes(), len(_table), stats.snapshot())


def clear(*, memory: bool = True, disk: bool = True) -> int:
    """Forget the kernels in memory and remove those on disk; returns the number of entries removed from disk.

    Kernels that compiled objects already hold stay usable. Files in the directory that are not the cache's stay.
    """
    root = _directory_to_look_at()
    if memory:
        _table.clear()
    return Store(root).clear() if disk and root is not None else 0
