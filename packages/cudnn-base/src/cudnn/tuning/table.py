"""What the tuner found, and which of it an operation may use.

Results are kept per device and version in one JSON file each, beside the compile cache; families ship results for some devices in the same form. An entry belongs to an operation, a problem, options of the
fusion, and a bucket of extents.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cudnn._version import __version__
from cudnn.cache import settings
from cudnn.cache.keys import encode, plain
from cudnn.cache.locks import process_lock
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.logs import get_logger

VARIABLE = "CUDNN_KERNELS_TUNED"
SCHEMA = 1
MAX_ENTRIES = 4096  # of one file
MAX_CONFIGS = 4  # that an object is compiled in besides its default ones

log = get_logger("cudnn.tuning")


class Bucket(NamedTuple):
    """Extents that are taken to be alike: each rounded up."""

    m: int
    n: int
    k: int
    batches: int


def bucket(m: int, n: int, k: int, batches: int) -> Bucket:
    """The bucket of a problem.

    M up to 64 is rounded up to a power of two, beyond that, and N, to a multiple of 64 and then to four significant bits; K and L to three.
    """
    rows = 1 << (m - 1).bit_length() if m <= 64 else _round(-(-m // 64) * 64, 4)
    return Bucket(rows, _round(-(-n // 64) * 64, 4), _round(k, 3), _round(batches, 3))


def _round(value: int, bits: int) -> int:
    step = 1 << max(value.bit_length() - bits, 0)
    return -(-value // step) * step


def enabled() -> bool:
    """Whether operations look at results at all: ``CUDNN_KERNELS_TUNED=0`` leaves the choice to the default rule. ValueError for other values than 0 and 1."""
    value = os.environ.get(VARIABLE, "").strip()
    if value not in ("", "0", "1"):
        raise ValueError(f"{VARIABLE}: found {value!r}, needs 0 (the default rule alone) or 1 (tuned results where there are any)")
    return value != "0"


def described(value: Any) -> dict[str, Any]:
    """The fields of a frozen dataclass that differ from their defaults: a field that a later version adds leaves old entries valid."""
    return plain({field.name: getattr(value, field.name) for field in dataclasses.fields(value) if getattr(value, field.name) != field.default})


@dataclasses.dataclass(frozen=True)
class Entry:
    """One result. ``extents``: the bucket; ``default`` is the configuration of the default rule and ``default_us`` its time; ``about``: exact extents, date, versions."""

    op: str
    problem: Mapping[str, Any]
    options: Mapping[str, Any]
    extents: Bucket
    config: GemmConfig
    us: float
    default: GemmConfig
    default_us: float
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def key(self) -> tuple[str, Bucket]:
        return problem_key(self.op, self.problem, self.options), self.extents

    def as_dict(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "problem": dict(self.problem),
            "options": dict(self.options),
            "extents": list(self.extents),
            "config": self.config.as_dict(),
            "us": round(self.us, 2),
            "default": self.default.as_dict(),
            "default_us": round(self.default_us, 2),
            "about": dict(self.about),
        }

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Entry:
        """The inverse of ``as_dict``; KeyError, TypeError or ValueError for anything else."""
        return cls(
            str(data["op"]),
            dict(data["problem"]),
            dict(data["options"]),
            Bucket(*map(int, data["extents"])),
            GemmConfig.of(data["config"]),
            float(data["us"]),
            GemmConfig.of(data["default"]),
            float(data["default_us"]),
            dict(data.get("about", {})),
        )


def problem_key(op: str, problem: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """One text for one operation, problem and options."""
    return encode([op, plain(problem), plain(options)])


def slug(device_name: str) -> str:
    """A device's name as part of a file name: "NVIDIA H200" is nvidia-h200."""
    return re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")


def kept_path(device_name: str) -> Path | None:
    """Where results of this version on such a device are kept; None where the disk store is off."""
    root = settings.directory()
    return None if root is None else root / "tuned" / f"{slug(device_name)}-{__version__}.json"


def shipped_path(package: str, device_name: str) -> Path | None:
    """The results for such a device that ``package`` brings along; None without."""
    return next((path for path in shipped_paths(package) if path.stem == slug(device_name)), None)


def shipped_paths(package: str) -> list[Path]:
    """The files of results that ``package`` brings along, one for each device."""
    spec = importlib.util.find_spec(package)
    folders = [Path(folder) / "tuned" for folder in (spec.submodule_search_locations or ())] if spec is not None else []
    return sorted(path for folder in folders if folder.is_dir() for path in folder.glob("*.json"))


_files: dict[Path, tuple[tuple[int, int], tuple[Entry, ...]]] = {}
_session: dict[str, dict[tuple[str, Bucket], Entry]] = {}
_guard = threading.Lock()


def read(path: Path | None) -> tuple[Entry, ...]:
    """The entries of a file, none where there is no file. A file that is none of ours is told once and counts as empty; so does an entry."""
    if path is None:
        return ()
    try:
        state = path.stat()
    except OSError:
        return ()
    stamp = (state.st_mtime_ns, state.st_size)
    with _guard:
        known = _files.get(path)
    if known is not None and known[0] == stamp:
        return known[1]
    entries: list[Entry] = []
    try:
        data = json.loads(path.read_bytes())
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']}, needs {SCHEMA}")
        for item in data["entries"]:
            try:
                entries.append(Entry.of(item))
            except (KeyError, TypeError, ValueError) as error:
                log.warning("%s: an entry is left out: %s", path, error)
    except (OSError, KeyError, TypeError, ValueError) as error:
        log.warning("%s holds no tuned results and is not looked at: %s: %s", path, type(error).__name__, error)
    with _guard:
        _files[path] = (stamp, tuple(entries))
    return tuple(entries)


def write(path: Path, device_name: str, entries: Iterable[Entry], *, lock: bool = True) -> int:
    """Add ``entries`` to the file, each in place of an older one of the same key, and return how many it has then. Raises OSError.

    The newest come last; beyond MAX_ENTRIES the oldest leave. Other processes that write the file wait, unless ``lock`` is False; one that reads it sees the old or the new.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with process_lock(path.with_suffix(".lock")) if lock else contextlib.nullcontext():
        merged = {entry.key: entry for entry in read(path)}
        for entry in entries:
            merged.pop(entry.key, None)
            merged[entry.key] = entry
        kept = list(merged.values())[-MAX_ENTRIES:]
        data = {"schema": SCHEMA, "device": device_name, "version": __version__, "entries": [entry.as_dict() for entry in kept]}
        temporary = path.with_suffix(f".{os.getpid()}-{os.urandom(4).hex()}.tmp")
        try:
            temporary.write_text(json.dumps(data, indent=1) + "\n")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    return len(kept)


def remember(device_name: str, entry: Entry) -> Path | None:
    """Keep a result for this process, and on disk for the next ones. Returns the file; None where the store is off or cannot be written, which is told."""
    with _guard:
        results = _session.setdefault(device_name, {})
        results.pop(entry.key, None)
        results[entry.key] = entry
    path = kept_path(device_name)
    if path is None:
        return None
    try:
        write(path, device_name, [entry])
    except OSError as error:
        log.warning("tuned results cannot be kept in %s (%s); they serve this process alone", path, error)
        return None
    return path


def kept(device_name: str) -> list[Entry]:
    """Results of this machine's own measurements, the newest first."""
    found = {entry.key: entry for entry in read(kept_path(device_name))}
    with _guard:
        for key, entry in _session.get(device_name, {}).items():
            found.pop(key, None)
            found[key] = entry
    return list(found.values())[::-1]


def forget(device_name: str) -> int:
    """Remove what is kept for a device, and return how many results that were. What families ship stays."""
    count = len(kept(device_name))
    with _guard:
        _session.pop(device_name, None)
    path = kept_path(device_name)
    if path is not None:
        path.unlink(missing_ok=True)
    return count


def lookup(
    package: str,
    device_name: str,
    op: str,
    problem: Any,
    options: Any,
    *,
    fits: Callable[[GemmConfig], bool],
    known: Iterable[GemmConfig] = (),
    first: Bucket | None = None,
) -> dict[Bucket, GemmConfig]:
    """The configuration to use in each bucket for which there is a result; own measurements before shipped ones.

    Args:
        package: whose shipped results count.
        problem, options: frozen dataclasses.
        fits: whether the kernel can be built so; a result that cannot is left out.
        known: configurations that are built anyway. Others are limited to MAX_CONFIGS, and buckets that would need more have no result.
        first: the bucket that must not suffer from the limit.
    """
    if not enabled():
        return {}
    wanted = problem_key(op, described(problem), described(options))
    found: dict[Bucket, GemmConfig] = {}
    for entry in (*kept(device_name), *read(shipped_path(package, device_name))):
        if entry.key[0] == wanted and entry.extents not in found and fits(entry.config):
            found[entry.extents] = entry.config
    others: list[GemmConfig] = []
    result: dict[Bucket, GemmConfig] = {}
    known = set(known)
    for place, config in sorted(found.items(), key=lambda item: item[0] != first):
        if config not in known and config not in others:
            if len(others) == MAX_CONFIGS:
                continue
            others.append(config)
        result[place] = config
    return result


def shipped_configs(package: str, op: str, problem: Any, options: Any) -> list[GemmConfig]:
    """The configurations that any shipped result has for a problem, without repeats."""
    wanted = problem_key(op, described(problem), described(options))
    entries = (entry for path in shipped_paths(package) for entry in read(path))
    return list(dict.fromkeys(entry.config for entry in entries if entry.key[0] == wanted))
