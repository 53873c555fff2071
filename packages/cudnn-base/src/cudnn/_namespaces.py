"""Lazy modules below `cudnn`: the finder that synthesises them, and the hooks through which every public name is resolved.

`cudnn.ops`, `cudnn.torch`, `cudnn.jax` and the import paths that the manifests name (such as `cudnn.gemm.cutedsl.dense.swiglu`) have no file: they are made here
when they are first imported. This module is part of `import cudnn`, so it imports nothing that is not loaded anyway; the registry comes in at the first lookup.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

_base_modules: frozenset[str] | None = None


class _NamespaceLoader:
    """Makes a module without a file whose attributes come from the registry."""

    def create_module(self, spec: ModuleSpec) -> None:
        return None  # the import system's own default module

    def exec_module(self, module: ModuleType) -> None:
        path = module.__name__.partition(".")[2]
        _registry().require_namespace(path)

        def __getattr__(name: str) -> object:
            if name.startswith("_"):
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            return resolve(module, path, name)

        module.__doc__ = f"Names that the installed kernel families provide under {module.__name__}."
        module.__dict__["__getattr__"] = __getattr__
        module.__dict__["__dir__"] = lambda: listing(module, path)


class NamespaceFinder:
    """Finds the modules below `cudnn` that exist only in manifests. Stands last, so that a real file always wins."""

    @staticmethod
    def find_spec(fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not fullname.startswith("cudnn.") or fullname == "cudnn.registry" or not _registry().is_namespace(fullname[len("cudnn.") :]):
            return None
        return ModuleSpec(fullname, _NamespaceLoader(), origin="kernel family manifests", is_package=True)  # type: ignore[arg-type]


def install() -> None:
    """Put the finder in place, once, also when `cudnn` is imported anew."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "__module__", None) != __name__]
    sys.meta_path.append(NamespaceFinder)


def base_modules() -> frozenset[str]:
    """The public modules of base, by what lies beside this file."""
    global _base_modules
    if _base_modules is None:
        with os.scandir(os.path.dirname(__file__)) as entries:
            names = {entry.name.removesuffix(".py") for entry in entries if entry.name.endswith(".py") or entry.is_dir()}
        _base_modules = frozenset(name for name in names if name.isidentifier() and not name.startswith("_"))
    return _base_modules


def resolve(module: ModuleType, path: str, name: str) -> object:
    """The object behind `name` of the namespace `path`; kept in the module, so that this runs once per name."""
    if not path and name in base_modules():
        # Not the registry's business: `from cudnn import tensors` in base's own modules comes here first and must not load it.
        try:
            return import_module(f"cudnn.{name}")
        except ImportError:
            pass  # told by the registry, with the pip line
    return _registry().resolve(path, name, module)


def listing(module: ModuleType, path: str) -> list[str]:
    """What dir() shows: the module's own names and the usable ones of the families."""
    own = (name for name in module.__dict__ if name.startswith("__") and name not in ("__getattr__", "__dir__"))
    return sorted({*own, *_registry().usable_names(path)})


def resolve_all() -> None:
    """Resolve every name of every installed family, for CUDNN_KERNELS_EAGER."""
    _registry().resolve_all()


def _registry() -> ModuleType:
    # Not `from cudnn import registry`: that asks cudnn.__getattr__, which comes here.
    return sys.modules.get("cudnn.registry") or import_module("cudnn.registry")
