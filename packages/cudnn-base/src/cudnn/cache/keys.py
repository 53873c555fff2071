"""What identifies a compiled kernel: its fields, the versions of everything that generates code, and the sources it is generated from."""

from __future__ import annotations

import functools
import hashlib
import json
import numbers
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cudnn._version import __version__
from cudnn.cache import sources as source_hashes

SCHEMA = 1

_DISTRIBUTIONS = ("nvidia-cutlass-dsl", "apache-tvm-ffi")  # every distribution whose normalised name starts so
# Settings of the DSL that leave the generated code alone. The architecture is a field of the key; libraries are found by path at load.
_DSL_HARMLESS = re.compile(
    r"CUTE_DSL_(ARCH|LIBS|KEEP.*|DUMP_DIR|CACHE_DIR|NO_CACHE|DISABLE_FILE_CACHING|LOG_.*|PRINT_.*|JIT_.*|SHOW_STACKTRACE|FILTER_STACKTRACE|WARNINGS_IGNORE|ENABLE_TVM_FFI|DEBUG_LEAVES)"
)


def plain(value: Any, where: str = "fields") -> Any:
    """``value`` as JSON data: None, bool, int, float, str, and lists, tuples and str-keyed mappings of these.

    NumPy scalars become Python numbers. Anything else raises TypeError naming where it was found: an object that hashes by identity, or
    a tensor given where a number belongs, would make a new key at every call.
    """
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise TypeError(f"{where}: found the key {name!r} of type {type(name).__name__}, needs strings as keys")
        return {str(name): plain(item, f"{where}[{name!r}]") for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"{where}: found {value}, needs a finite number")
        return float(value)
    if type(value).__name__ in ("bool_", "bool") and hasattr(value, "item"):  # numpy.bool_ is no numbers.Integral
        return bool(value)
    raise TypeError(
        f"{where}: found {type(value).__name__}, needs None, bool, int, float, str, or a list or dict of these; pass the number itself, a dtype by its name"
    )


def encode(value: Any) -> str:
    """One text for one value: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


@functools.lru_cache(maxsize=8)
def _distributions(path: tuple[str, ...]) -> dict[str, str]:
    # Listing directories finds these in a millisecond or two; importlib.metadata would open the metadata of everything installed.
    found: dict[str, str] = {}
    for directory in path:
        try:
            names = os.listdir(directory or ".")
        except OSError:
            continue
        here: dict[str, list[str]] = {}
        for entry in names:
            match = re.fullmatch(r"(.+?)-([^-]+)(?:-py[^-]*)?\.(?:dist|egg)-info", entry)
            if match:
                name = re.sub(r"[-_.]+", "-", match[1]).lower()
                if name.startswith(_DISTRIBUTIONS):
                    here.setdefault(name, []).append(match[2])
        for name, versions in here.items():
            found.setdefault(name, ",".join(sorted(versions)))
    return dict(sorted(found.items()))


def versions() -> dict[str, str]:
    """Versions of everything that takes part in generating or loading code: ours, Python's, every DSL distribution's, TVM-FFI's, the host."""
    result = {
        "cudnn-base": __version__,
        "python": f"{sys.implementation.name}-{sys.version_info[0]}.{sys.version_info[1]}",
        "host": f"{platform.system().lower()}-{platform.machine()}",
    }
    result.update(_distributions(tuple(sys.path)))
    return result


def dsl_settings() -> dict[str, str]:
    """Environment variables of the DSL that are set and can change the code it generates."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith("CUTE_DSL_") and not _DSL_HARMLESS.fullmatch(name)}


def memory_key(fields: Mapping[str, Any], sources: Sequence[str]) -> tuple[str, tuple[str, ...], str]:
    """The key within one process, where versions and sources cannot differ."""
    return encode(plain(fields)), tuple(sources), encode(dsl_settings())


def identity(fields: Mapping[str, Any], sources: Sequence[str], *, memo: Path | None = None) -> dict[str, Any]:
    """Everything that makes two kernels different, as JSON data. Holds no path, time or process."""
    return {
        "schema": SCHEMA,
        "fields": plain(fields),
        "versions": versions(),
        "dsl_settings": dsl_settings(),
        "sources": source_hashes.hashes(sources, memo=memo),
    }


def file_key(what: Mapping[str, Any]) -> str:
    """The name of an identity's files: 16 digits for the fields, 32 for all of it, so that entries that differ in version or source sort together."""
    fields = hashlib.sha256(encode(what["fields"]).encode()).hexdigest()[:16]
    return f"{fields}-{hashlib.sha256(encode(what).encode()).hexdigest()[:32]}"


def difference(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Why ``found``, stored for the same fields, does not serve ``wanted``."""
    parts = []
    for group, word in (("versions", "version of"), ("dsl_settings", "setting"), ("sources", "source of")):
        old, new = found.get(group, {}), wanted.get(group, {})
        changed = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
        if changed:
            shown = [f"{n} {old.get(n, 'absent')} -> {new.get(n, 'absent')}" for n in changed] if group != "sources" else changed
            parts.append(f"{word} {', '.join(shown[:4])}{f' and {len(shown) - 4} more' if len(shown) > 4 else ''}")
    return "; ".join(parts) or "schema"
