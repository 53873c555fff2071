"""Hashes of the modules a kernel is generated from: found by reading their import statements, without importing anything.

A module counts when it belongs to this project (``cudnn``, ``cudnn_*``) or to the distribution of one of the modules asked for, so that a
third party's fusion is covered as well. ``from package import module`` reaches the module alone; a package's ``__init__`` counts only
where something in it is imported by name. Imports under ``if TYPE_CHECKING:`` generate no code and do not count.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# These store kernels, and say what went wrong; nothing in them can change the generated code.
_NOT_HASHED = ("cudnn.cache", "cudnn.dsl_check", "cudnn.errors", "cudnn.logs")
_MEMO_ENTRIES = 4000
# This module is loaded before the kernels are.
_STARTED_NS = time.time_ns()

# One import: (module, names imported from it). Relative imports are written out before they come here.
_Import = tuple[str, tuple[str, ...]]


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING")


def _statements(source: bytes) -> list[tuple[int, str, tuple[str, ...]]]:
    """Every import of a module's source as (level, module, names); ``import a.b`` has no names."""
    found: list[tuple[int, str, tuple[str, ...]]] = []
    stack: list[ast.AST] = [ast.parse(source)]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Import):
            found += [(0, alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.level, node.module or "", tuple(alias.name for alias in node.names)))
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            stack.extend(node.orelse)
        elif not isinstance(node, ast.expr):  # an expression holds no statement
            stack.extend(ast.iter_child_nodes(node))
    return sorted(found)


class _Finder:
    """Specs of modules, each looked for once. importlib's own find_spec would import parent packages; this walks their directories instead.

    ``places``: the directories that were looked into; ``tops``: where top-level modules are, None for those that are nowhere.
    """

    def __init__(self) -> None:
        self._found: dict[str, importlib.machinery.ModuleSpec | None] = {}
        self.places: set[str] = set()
        self.tops: dict[str, tuple[str | None, ...] | None] = {}

    def find(self, name: str) -> importlib.machinery.ModuleSpec | None:
        if name not in self._found:
            self._found[name] = self._look_for(name)
        return self._found[name]

    def _look_for(self, name: str) -> importlib.machinery.ModuleSpec | None:
        package = name.rpartition(".")[0]
        if not package:
            try:
                spec = importlib.util.find_spec(name)
            except ValueError:  # loaded by hand, without a spec
                spec = None
            self.tops[name] = None if spec is None else (spec.origin, *(spec.submodule_search_locations or ()))
            return spec
        parent = self.find(package)
        if parent is None or parent.submodule_search_locations is None:
            return None
        locations = list(parent.submodule_search_locations)
        self.places.update(locations)
        return importlib.machinery.PathFinder.find_spec(name, locations) or getattr(sys.modules.get(name), "__spec__", None)


class _Closure(NamedTuple):
    """What was found once, and what it stands on: files and directories as they were, and top-level modules where they were."""

    hashes: dict[str, str]
    signatures: dict[str, tuple[int, int]]
    tops: dict[str, tuple[str | None, ...] | None]

    def stands(self) -> bool:
        finder = _Finder()
        for name in self.tops:
            finder.find(name)
        return finder.tops == self.tops and all(_signature(path) == known for path, known in self.signatures.items())


def _signature(path: str) -> tuple[int, int] | None:
    """Time and size of a file or directory; None where there is none, as in a zip archive."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


class SourceIndex:
    """Finds, reads and hashes modules; keeps what it learnt for as long as times and sizes of files and directories stay as they were."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, tuple[tuple[str, tuple[int, int] | None], str, list[_Import]]] = {}  # module -> (file and its signature, sha256, imports)
        self._closures: dict[tuple[str, ...], _Closure] = {}
        self._memo: dict[str, list] = {}  # sha256 of a source -> its import statements, as _statements gives them
        self._memo_path: Path | None = None
        self._memo_new = False

    def hashes(self, modules: Sequence[str], *, memo: Path | None = None) -> dict[str, str]:
        """sha256 of every module in the transitive closure of ``modules``, by module name.

        ``memo`` names a file that keeps the import statements of sources by their hash: parsing the kernels' sources takes longer than
        everything else on the way to a stored object, and a content hash never goes stale. A missing, damaged or unwritable memo only
        costs time. Raises ModuleNotFoundError when one of ``modules`` does not exist.
        """
        with self._lock:
            self._open_memo(memo)
            known = self._closures.get(tuple(modules))
            if known is None or not known.stands():
                known = self._closure(modules)
                if None not in known.signatures.values():
                    self._closures[tuple(modules)] = known
            self.save_memo()
            return dict(known.hashes)

    def _closure(self, modules: Sequence[str]) -> _Closure:
        finder = _Finder()
        tops = {name.partition(".")[0] for name in modules}
        result: dict[str, str] = {}
        signatures: dict[str, Any] = {}
        pending = list(modules)
        while pending:
            name = pending.pop()
            if name in result:
                continue
            spec = finder.find(name)
            if spec is None:
                if name in modules:
                    raise ModuleNotFoundError(f"cache sources: found no module named {name!r}", name=name)
                result[name] = "not installed"
                continue
            result[name], imports = self._read(name, spec)
            if name in self._files:
                path, signature = self._files[name][0]
                signatures[path] = signature
            pending += [n for n in self._targets(imports, tops, finder) if n not in result]
        for place in finder.places:
            signatures.setdefault(place, _signature(place))
        return _Closure(dict(sorted(result.items())), signatures, finder.tops)

    def edited(self, modules: Iterable[str]) -> list[str]:
        """Those of ``modules``, hashed before, that are loaded here from a file which has changed since this process began.

        What is compiled from them may not be what their hash says, so it must not be stored under that.
        """
        with self._lock:
            known = ((name, self._files[name][0][1]) for name in modules if name in self._files and name in sys.modules)
            return [name for name, signature in known if signature is not None and signature[0] > _STARTED_NS]

    def _targets(self, imports: Iterable[_Import], tops: set[str], finder: _Finder) -> Iterable[str]:
        for module, names in imports:
            top = module.partition(".")[0]
            if not (top == "cudnn" or top.startswith("cudnn_") or top in tops) or _skipped(module):
                continue
            submodules = [f"{module}.{n}" for n in names if n != "*" and not _skipped(f"{module}.{n}") and finder.find(f"{module}.{n}") is not None]
            yield from submodules
            if not names or len(submodules) < sum(not _skipped(f"{module}.{n}") for n in names):
                yield module

    def _read(self, name: str, spec: importlib.machinery.ModuleSpec) -> tuple[str, list[_Import]]:
        if not spec.has_location or spec.origin is None:  # a namespace package has no source of its own
            return "no source", []
        signature = (spec.origin, _signature(spec.origin))
        known = self._files.get(name)
        if known is not None and known[0] == signature and signature[1] is not None:
            return known[1], known[2]
        data = spec.loader.get_data(spec.origin)  # type: ignore[union-attr, attr-defined]
        sha = hashlib.sha256(data).hexdigest()
        statements = self._memo.get(sha)
        if statements is None:
            statements = _statements(data) if spec.origin.endswith(".py") else []
            self._memo[sha] = statements
            self._memo_new = True
        package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
        imports = [(_absolute(level, module, package), tuple(names)) for level, module, names in statements]
        self._files[name] = (signature, sha, imports)
        return sha, imports

    def _open_memo(self, path: Path | None) -> None:
        if path is None or path == self._memo_path:
            return
        self._memo_path = path
        stored: dict[str, list] = {}
        with contextlib.suppress(OSError, ValueError):
            content = json.loads(path.read_bytes())
            if isinstance(content, dict):
                stored = {sha: statements for sha, statements in content.items() if _is_statements(statements)}
        self._memo_new = not self._memo.keys() <= stored.keys()
        self._memo = {**stored, **self._memo}

    def save_memo(self) -> None:
        """Write what has been learnt to the memo last given; where that fails, the next call tries again."""
        if self._memo_path is None or not self._memo_new:
            return
        text = json.dumps(dict(list(self._memo.items())[-_MEMO_ENTRIES:]), separators=(",", ":"))
        temporary = self._memo_path.with_name(f"{self._memo_path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
        with contextlib.suppress(OSError):
            try:
                temporary.write_text(text)
                os.replace(temporary, self._memo_path)
                self._memo_new = False
            finally:
                temporary.unlink(missing_ok=True)


def _is_statements(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(s, list) and len(s) == 3 and isinstance(s[0], int) and isinstance(s[1], str) and isinstance(s[2], list) for s in value
    )


def _skipped(module: str) -> bool:
    return any(module == prefix or module.startswith(f"{prefix}.") for prefix in _NOT_HASHED)


def _absolute(level: int, module: str, package: str) -> str:
    if not level:
        return module
    base = package.split(".")
    base = base[: len(base) - level + 1]
    return ".".join([*base, module] if module else base)


_index = SourceIndex()


def hashes(modules: Sequence[str], *, memo: Path | None = None) -> dict[str, str]:
    """``SourceIndex.hashes`` of the process's one index."""
    return _index.hashes(modules, memo=memo)


def edited(modules: Iterable[str]) -> list[str]:
    """``SourceIndex.edited`` of the process's one index."""
    return _index.edited(modules)


def save_memo() -> None:
    """``SourceIndex.save_memo`` of the process's one index: for when the memo's directory has just been made."""
    _index.save_memo()
