"""The record by which a distribution tells `cudnn` what it brings.

A distribution puts one entry point into the group `cudnn.kernels`, pointing at one `Family`. The record is plain data: importing the module that holds it must
import nothing but this one, so that listing what is installed costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

FAMILY_API = 1
"""Version of the contract between base and the families. A family made for another one is reported as incompatible and not loaded."""


class Family:
    """What one distribution adds to `cudnn`. Immutable.

    Args:
        name: the family's own name, equal to the name of its entry point, for example "gemm_dense".
        distribution: the name to pip install, for example "cudnn-gemm-dense".
        names: public name -> "module:attribute" (or "module" for a module); reached as `cudnn.<public name>`. Two public names may point at one target.
        namespaces: dotted path below `cudnn` -> names in the same form. "ops" is reached as `cudnn.ops`, "torch" as `cudnn.torch`, and any other path, such as
            "gemm.cutedsl.dense.swiglu", becomes an importable module of that name.
        operations: modules that export `precompile_specs()`, which the precompile command and the compile tests walk.
        archs: the architectures that have kernels, for example ("sm_90a",).
        requires: top-level modules that every name of the family needs; while one is missing the family is in the state "missing-dependency".
        doc: page about the family, a path below docs/ or an address.
        api: the contract this record was written for.

    Raises:
        TypeError: a field has the wrong type.
        ValueError: a public name is no identifier or starts with an underscore, a path is malformed, or a target is not "module:attribute".
    """

    __slots__ = ("api", "archs", "distribution", "doc", "name", "names", "namespaces", "operations", "requires")

    name: str
    distribution: str
    names: Mapping[str, str]
    namespaces: Mapping[str, Mapping[str, str]]
    operations: tuple[str, ...]
    archs: tuple[str, ...]
    requires: tuple[str, ...]
    doc: str
    api: int

    def __init__(
        self,
        name: str,
        distribution: str,
        *,
        names: Mapping[str, str] | None = None,
        namespaces: Mapping[str, Mapping[str, str]] | None = None,
        operations: tuple[str, ...] = (),
        archs: tuple[str, ...] = (),
        requires: tuple[str, ...] = (),
        doc: str = "",
        api: int = FAMILY_API,
    ) -> None:
        for field, value in (("name", name), ("distribution", distribution), ("doc", doc)):
            if not isinstance(value, str):
                raise TypeError(f"Family {field} must be a str, found {type(value).__name__}")
        for field, values in (("operations", operations), ("archs", archs), ("requires", requires)):
            if not isinstance(values, tuple) or not all(isinstance(value, str) for value in values):
                raise TypeError(f"Family {name!r}: {field} must be a tuple of str, found {values!r}")
        if not isinstance(api, int):
            raise TypeError(f"Family {name!r}: api must be an int, found {type(api).__name__}")
        frozen_namespaces = {}
        for path, entries in (namespaces or {}).items():
            if not path or not all(part.isidentifier() and not part.startswith("_") for part in path.split(".")):
                raise ValueError(f"Family {name!r}: namespace path {path!r} must be public identifiers joined by dots, such as 'ops' or 'gemm.ops'")
            frozen_namespaces[path] = _checked_names(name, path, entries)
        set_field = object.__setattr__
        set_field(self, "name", name)
        set_field(self, "distribution", distribution)
        set_field(self, "names", _checked_names(name, "", names or {}))
        set_field(self, "namespaces", MappingProxyType(frozen_namespaces))
        set_field(self, "operations", operations)
        set_field(self, "archs", archs)
        set_field(self, "requires", requires)
        set_field(self, "doc", doc)
        set_field(self, "api", api)

    def __setattr__(self, field: str, value: Any) -> None:
        raise AttributeError(f"Family is immutable; cannot set {field!r}")

    def __delattr__(self, field: str) -> None:
        raise AttributeError(f"Family is immutable; cannot delete {field!r}")

    def __repr__(self) -> str:
        return f"Family({self.name!r}, {self.distribution!r}, {len(self.names)} names)"

    def targets(self) -> Mapping[str, Mapping[str, str]]:
        """All names by namespace path, with the names of `cudnn` itself under ""."""
        return {"": self.names, **self.namespaces}


def _checked_names(family: str, path: str, entries: Mapping[str, str]) -> Mapping[str, str]:
    where = f"cudnn.{path}" if path else "cudnn"
    if not isinstance(entries, Mapping):
        raise TypeError(f"Family {family!r}: the names of {where} must be a mapping of public name to 'module:attribute', found {type(entries).__name__}")
    for public, target in entries.items():
        if not isinstance(public, str) or not public.isidentifier() or public.startswith("_"):
            raise ValueError(f"Family {family!r}: {public!r} in {where} must be an identifier that does not start with an underscore")
        module, colon, attribute = target.partition(":") if isinstance(target, str) else ("", "", "")
        if not all(part.isidentifier() for part in module.split(".")) or (colon and not attribute.isidentifier()):
            raise ValueError(f"Family {family!r}: {public!r} in {where} must point at 'module:attribute' or 'module', found {target!r}")
    return MappingProxyType(dict(entries))
