"""The disk store: one object file and one JSON per key in one directory, shared by any number of processes.

The JSON is written last and holds the size and hash of the object, so that an entry is either whole or not there. Both files get their
names by an atomic rename. A reader needs no lock: what does not fit together is an invalid entry, and whoever holds the key's lock
rebuilds it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cudnn.cache.keys import SCHEMA, difference
from cudnn.cache.locks import process_lock

_STALE_SECONDS = 3600.0  # no compile takes this long: a temporary file this old has lost its writer
_LOCK_DAYS = 7.0
_KEY = re.compile(r"[0-9a-f]{16}-[0-9a-f]{32}")


@dataclass(frozen=True)
class Entry:
    """A whole entry: where its object is, and its JSON."""

    object_path: Path
    record: dict[str, Any]


@dataclass(frozen=True)
class Miss:
    """No usable entry: why, and whether something unusable lies there."""

    reason: str
    invalid: bool = False


class Store:
    """The entries under ``root``. Methods that write raise OSError; those that read report a ``Miss``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = root / f"v{SCHEMA}"

    @property
    def memo(self) -> Path:
        """The file in which ``sources.hashes`` keeps import statements."""
        return self.directory / "imports.json"

    def object_path(self, key: str) -> Path:
        return self.directory / f"{key}.o"

    def record_path(self, key: str) -> Path:
        return self.directory / f"{key}.json"

    def open(self) -> None:
        """Make the directories. Only the owner may enter them: what is in them is run."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.directory / "locks").mkdir(parents=True, exist_ok=True, mode=0o700)

    @contextlib.contextmanager
    def lock(self, key: str, *, on_wait: Callable[[float], None] | None = None, wait: bool = True) -> Iterator[bool]:
        with process_lock(self.directory / "locks" / f"{key}.lock", on_wait=on_wait, wait=wait) as held:
            yield held

    def read(self, key: str, identity: Mapping[str, Any]) -> Entry | Miss:
        """The entry of ``key`` if it is whole and was stored for exactly ``identity``."""
        try:
            text = self.record_path(key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return Miss("no entry")
        except OSError as error:
            return Miss(f"entry not readable: {error}")
        try:
            record = json.loads(text)
            size, sha, stored = record["object"]["size"], record["object"]["sha256"], record["identity"]
        except (ValueError, KeyError, TypeError):
            return Miss("damaged JSON", invalid=True)
        if stored != identity:
            return Miss("entry of another kernel, architecture or version under this name", invalid=True)
        path = self.object_path(key)
        try:
            data = path.read_bytes()
        except OSError as error:
            return Miss(f"object not readable: {error.strerror or error}", invalid=True)
        if len(data) != size:
            return Miss(f"object has {len(data)} bytes, its JSON says {size}", invalid=True)
        if hashlib.sha256(data).hexdigest() != sha:
            return Miss("object does not match its hash", invalid=True)
        return Entry(path, record)

    def touch(self, key: str) -> None:
        """Mark as used now. The object's modification time is the time of last use; a read-only store keeps the old one."""
        with contextlib.suppress(OSError):
            os.utime(self.object_path(key))

    def write(self, key: str, identity: Mapping[str, Any], dump: Callable[[str], None], *, label: str, build_seconds: float, max_bytes: int) -> str | None:
        """Store an object that ``dump(path)`` writes. Returns None, or why it was not stored although nothing failed.

        Raises what ``dump`` raises, and OSError when the directory is full or not writable; either leaves no file behind.
        """
        temporary = self.directory / f"{key}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
        made = temporary.with_suffix(".tmp.o")
        try:
            dump(str(made))
            data = made.read_bytes()
            if not data:
                raise OSError("the object file came out empty")
            record = {
                "label": label,
                "identity": identity,
                "object": {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()},
                "build_seconds": round(build_seconds, 3),
                "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            text = json.dumps(record, indent=1, sort_keys=True)
            if max_bytes and len(data) + len(text) > max_bytes:
                return f"{len(data)} bytes are more than the whole cache may hold ({max_bytes} bytes)"
            _sync(made)
            temporary.write_text(text)
            _sync(temporary)
            self.record_path(key).unlink(missing_ok=True)  # an older JSON must not vouch for the new object
            os.replace(made, self.object_path(key))
            try:
                os.replace(temporary, self.record_path(key))
            except OSError:
                self.object_path(key).unlink(missing_ok=True)
                raise
            return None
        finally:
            for path in (made, temporary):
                with contextlib.suppress(OSError):
                    path.unlink()

    def sweep(self, key: str) -> None:
        """Remove what a killed writer of ``key`` left. For the holder of the key's lock."""
        for path in self._files():
            if path.name.startswith(f"{key}.") and ".tmp" in path.name:
                with contextlib.suppress(OSError):
                    path.unlink()

    def relatives(self, key: str) -> Iterator[dict[str, Any]]:
        """The identities of other entries with the same fields."""
        prefix = key.partition("-")[0]
        for path in self._files():
            if path.suffix == ".json" and path.name.startswith(prefix) and path.stem != key:
                with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                    yield json.loads(path.read_bytes())["identity"]

    def explain(self, key: str, identity: Mapping[str, Any]) -> str:
        """Why there is no entry: never built, or built with other versions or sources."""
        differences = [difference(identity, other) for other in self.relatives(key)]
        return f"stored for another {differences[-1]}" if differences else "never built for this directory"

    def usage(self) -> tuple[int, int]:
        """(number of entries, bytes of all their files)."""
        sizes = self._entries()
        return len(sizes), sum(size for _, size in sizes.values())

    def evict(self, limit: int, *, keep: str) -> list[str]:
        """Remove the entries used longest ago until the rest has ``limit`` bytes at most; never ``keep``. Returns the removed keys.

        One process at a time does this; another one that comes meanwhile leaves it to the first.
        """
        with self.lock("evict", wait=False) as held:
            if not held:
                return []
            self._remove_leftovers()
            entries = self._entries()
            total = sum(size for _, size in entries.values())
            removed: list[str] = []
            for key, (_, size) in sorted(entries.items(), key=lambda item: item[1][0]):
                if total <= limit:
                    break
                if key != keep:
                    self._remove(key)
                    total -= size
                    removed.append(key)
            return removed

    def clear(self) -> int:
        """Remove every entry and what killed writers left; returns how many entries there were. Files of others in the directory stay."""
        entries = self._entries()
        for key in entries:
            self._remove(key)
        for path in self._files():
            if ".tmp" in path.name:
                key = path.name.partition(".")[0]
                with contextlib.suppress(OSError):
                    if _KEY.fullmatch(key):
                        with self.lock(key, wait=False) as held:  # a live writer keeps its file
                            if held:
                                path.unlink(missing_ok=True)
                    elif _age(path) > _STALE_SECONDS:
                        path.unlink()
            elif _KEY.fullmatch(path.stem) and path.suffix in (".o", ".json"):
                with contextlib.suppress(OSError):
                    path.unlink()
        with contextlib.suppress(OSError):
            self.memo.unlink()
        return len(entries)

    def _files(self) -> list[Path]:
        try:
            with os.scandir(self.directory) as listing:
                return [Path(item.path) for item in listing if not item.is_dir(follow_symlinks=False)]
        except OSError:
            return []

    def _entries(self) -> dict[str, tuple[int, int]]:
        """key -> (time of last use in ns, bytes of both files)."""
        result: dict[str, tuple[int, int]] = {}
        for path in self._files():
            if path.suffix == ".json" and _KEY.fullmatch(path.stem):
                with contextlib.suppress(OSError):
                    used = self.object_path(path.stem).stat()
                    result[path.stem] = (used.st_mtime_ns, used.st_size + path.stat().st_size)
        return result

    def _remove(self, key: str) -> None:
        for path in (self.record_path(key), self.object_path(key)):  # the JSON first: without it there is no entry
            with contextlib.suppress(OSError):
                path.unlink()

    def _remove_leftovers(self) -> None:
        for path in self._files():
            orphan = path.suffix == ".o" and _KEY.fullmatch(path.stem) and not self.record_path(path.stem).exists()
            if (".tmp" in path.name or orphan) and _age(path) > _STALE_SECONDS:
                with contextlib.suppress(OSError):
                    path.unlink()
        with contextlib.suppress(OSError), os.scandir(self.directory / "locks") as listing:
            for item in listing:
                if _age(Path(item.path)) > _LOCK_DAYS * 86400 and not self.record_path(item.name.removesuffix(".lock")).exists():
                    with contextlib.suppress(OSError):
                        os.unlink(item.path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0
