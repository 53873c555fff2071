"""Which kernel families are installed, what they provide, and the object behind each public name.

A distribution announces itself with one entry point in the group `cudnn.kernels`, pointing at a `cudnn.family.Family`. The generated catalogue
(`cudnn._catalog`) lists every name of the project's own distributions, so that a name whose distribution is missing is answered with the pip line, and so that
nobody else can take it. Looking up `cudnn.X`:

1. X in the catalogue: that one family is loaded. Not installed, disabled, incompatible, broken, or lacking a dependency: `KernelUnavailableError`, an
   ImportError that says what was found and what is needed, with the cause chained.
2. else the manifests of other distributions. Provided by two of them: neither wins, ImportError naming both. By none: AttributeError with close matches.

Loading a family reads its manifest only; its modules are imported when a name is used. A family that fails never affects another one. Everything here may be
called from several threads.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import threading
import warnings
from dataclasses import replace
from types import ModuleType

from cudnn._catalog import DISTRIBUTIONS, NAMES
from cudnn._discovery import DISABLE_VARIABLE, Discovery, FamilyStatus, distribution_version, minor
from cudnn._family import FAMILY as _BASE
from cudnn._namespaces import base_modules
from cudnn._version import __version__
from cudnn.errors import KernelUnavailableError

__all__ = ["FamilyStatus", "available", "families", "missing_distributions", "operations", "refresh"]

# Namespaces that can always be imported, whatever is installed: they are where anyone may add names.
_STANDING = ("jax", "ops", "torch")
_NAMESPACES = frozenset(".".join(path.split(".")[:depth]) for path in (*NAMES, *_STANDING) if path for depth in range(1, path.count(".") + 2))

# What to install for a missing module. A module that is not here is a dependency of the family itself.
_EXTRAS = {"torch": "torch", "jax": "jax", "jaxlib": "jax", "rich": "cli", "matplotlib": "bench", "cutlass": "cutedsl", "tvm_ffi": "cutedsl", "cuda": "cutedsl"}
# Their absence is told as a missing extra and not by the module's name, which nobody can pip install.
_DSL_MODULES = frozenset({"cutlass", "tvm_ffi", "nvidia_cutlass_dsl", "cudnn"})

_lock = threading.RLock()
_discovery = Discovery()
_stored: list[tuple[ModuleType, str]] = []
_failures: dict[tuple[str, str], FamilyStatus] = {}
_frontend_checked = False


def families() -> list[FamilyStatus]:
    """Every installed family with its state, the project's own first. A failure that only showed when a name was used is included."""
    failed = {(status.name, status.distribution): status for status in _failures.values()}
    return [failed.get((status.name, status.distribution), status) for status in _by_manifest()]


def missing_distributions() -> list[str]:
    """The project's own distributions that are not installed."""
    return [distribution for name, distribution in DISTRIBUTIONS.items() if name != "base" and _discovery.first_party(name) is None]


def available(name: str) -> bool:
    """Whether a public name can be used here and now: "GemmSwiglu", or dotted below cudnn, "ops.interleave_gate_up".

    Never raises for a name, which `hasattr(cudnn, name)` does when the name is known and its distribution missing. The name is resolved for that, so the module
    behind it is imported.
    """
    path, _, last = name.rpartition(".")
    try:
        module = importlib.import_module(f"cudnn.{path}" if path else "cudnn")
        getattr(module, last)
    except (ImportError, AttributeError):
        return False
    return True


def operations() -> list[tuple[str, str]]:
    """(family, module) for every operation of the usable families, and last those of base itself; each module exports `precompile_specs()`."""
    found = [(status.name, module) for status in _by_manifest() if status.state == "ok" for module in status.family.operations]
    return [*found, *((_BASE.name, module) for module in _BASE.operations)]


def refresh() -> None:
    """Look again at what is installed: for a session in which something was installed or removed. Objects already imported stay as they are."""
    global _discovery
    importlib.invalidate_caches()
    with _lock:
        _discovery = Discovery()
        _failures.clear()
        while _stored:
            module, name = _stored.pop()
            module.__dict__.pop(name, None)


def resolve(path: str, name: str, module: ModuleType) -> object:
    """The object behind `cudnn.<path>.<name>`, kept in `module` so that this runs once per name.

    Args:
        path: namespace below cudnn, "" for cudnn itself.
        name: the public name; callers turn names with an underscore away.
        module: the module whose attribute was asked for.

    Raises:
        KernelUnavailableError: the name is known and cannot be used here.
        AttributeError: nobody provides the name.
    """
    child = f"{path}.{name}" if path else name
    owner = NAMES.get(path, {}).get(name)
    if owner is None and child in _NAMESPACES:
        return importlib.import_module(f"cudnn.{child}")
    if owner == "base" or child in base_modules():
        return _store(module, name, _load_target(_base_status(), path, name, _BASE.targets().get(path, {}).get(name, f"cudnn.{child}")))
    _warn_about_frontend()
    discovery = _discovery
    if owner is not None:
        return _store(module, name, _load_first_party(discovery.first_party(owner), owner, path, name))
    owners = discovery.other_owners(path, name)
    if len(owners) > 1:
        both = sorted(f"{status.distribution} {status.version}" for status in owners)
        message = f"cudnn.{child} is provided by {' and by '.join(both)}; neither is used. Uninstall one of them, or hide one with {DISABLE_VARIABLE}."
        raise KernelUnavailableError(message, name=child)
    if owners:
        status = owners[0]
        if status.state != "ok":
            raise _unavailable(path, name, status, status.reason)
        return _store(module, name, _load_target(status, path, name, status.targets()[path][name]))
    if is_namespace(child):
        return importlib.import_module(f"cudnn.{child}")
    close = difflib.get_close_matches(name, {*NAMES.get(path, {}), *usable_names(path)}, n=3)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    unread = [f"{status.name!r} of {status.distribution} ({status.state})" for status in discovery.others() if status.family is None]
    hint += f"; the names of these kernel families are not known: {', '.join(unread)}" if unread else ""
    raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}{hint}")


def resolve_all() -> None:
    """Resolve every name of every installed family, and raise what the first failing one raises."""
    for status in families():
        if status.state == "disabled":
            continue
        if status.state != "ok":
            raise KernelUnavailableError(
                f"kernel family {status.name!r} of {status.distribution} {status.version}: {status.reason}", distribution=status.distribution
            )
        for path, names in status.targets().items():
            module = importlib.import_module(f"cudnn.{path}" if path else "cudnn")
            for name in names:
                getattr(module, name)


def usable_names(path: str) -> set[str]:
    """The names of a namespace that resolve here, with the non-empty namespaces below it, as far as can be told without importing their modules."""
    found = set()
    for status in [_base_status(), *_by_manifest()]:
        if status.state != "ok":
            continue
        for other, names in status.targets().items():
            if other == path:
                found |= {name for name in names if _belongs_to(status, path, name) and (path, name) not in _failures}
            elif names and (not path or other.startswith(f"{path}.")):
                found.add(other[len(path) :].lstrip(".").partition(".")[0])
    return found


def is_namespace(path: str) -> bool:
    """Whether `cudnn.<path>` is a module made of manifests, or a parent of one. Manifests of others are read only when the catalogue does not know it."""
    if path in _NAMESPACES:
        return True
    return any(other == path or other.startswith(f"{path}.") for status in _discovery.others() if status.state == "ok" for other in status.targets())


def require_namespace(path: str) -> None:
    """Raise KernelUnavailableError where the one distribution that fills a namespace is missing or unusable, so that importing it says what to install.

    A namespace that several fill, in it or below it, is there whoever is missing: its own names say what to install.
    """
    owners = {owner for other, names in NAMES.items() if other == path or other.startswith(f"{path}.") for owner in names.values()}
    if path not in NAMES or path in _STANDING or len(owners) != 1 or any(path in status.targets() for status in _discovery.others() if status.state == "ok"):
        return
    (owner,) = owners
    status = _discovery.first_party(owner)
    if status is None:
        raise _not_installed(path, owner)
    if status.state != "ok":
        raise _unavailable("", path, status, status.reason)


def _by_manifest() -> list[FamilyStatus]:
    """Every installed family in the state that its manifest gives it."""
    found = [status for name in DISTRIBUTIONS if name != "base" and (status := _discovery.first_party(name)) is not None]
    return sorted([*found, *_discovery.others()], key=lambda status: (not status.first_party, status.name, status.distribution))


def _base_status() -> FamilyStatus:
    return FamilyStatus("base", "cudnn-base", __version__, "ok", "", True, _BASE)


def _belongs_to(status: FamilyStatus, path: str, name: str) -> bool:
    if status.first_party:
        return NAMES.get(path, {}).get(name) == status.name
    return [owner.distribution for owner in _discovery.other_owners(path, name)] == [status.distribution]


def _store(module: ModuleType, name: str, value: object) -> object:
    with _lock:
        _stored.append((module, name))
        return module.__dict__.setdefault(name, value)


def _load_first_party(status: FamilyStatus | None, owner: str, path: str, name: str) -> object:
    if status is None:
        raise _not_installed(f"{path}.{name}" if path else name, owner)
    if status.state != "ok":
        raise _unavailable(path, name, status, status.reason)
    target = status.targets().get(path, {}).get(name)
    if target is None:
        raise _unavailable(path, name, status, f"that version does not provide the name; cudnn-base {__version__} expects it")
    return _load_target(status, path, name, target)


def _load_target(status: FamilyStatus, path: str, name: str, target: str) -> object:
    module_name, _, attribute = target.partition(":")
    try:
        module = importlib.import_module(module_name)
        value = getattr(module, attribute) if attribute else module
    except KernelUnavailableError:
        raise
    except Exception as error:
        raise _load_failure(status, path, name, target, error) from error
    with _lock:
        _failures.pop((path, name), None)
    return value


def _load_failure(status: FamilyStatus, path: str, name: str, target: str, error: Exception) -> KernelUnavailableError:
    """What to raise when the object behind a name cannot be imported; remembered for families()."""
    label = f"cudnn.{path}.{name}" if path else f"cudnn.{name}"
    original = f"{type(error).__name__}: {error}"
    missing = _missing_module(error)
    top = missing.partition(".")[0] if missing else ""
    own = {target.partition(":")[0].partition(".")[0], "cudnn"}
    dsl = _dsl_problem() if top in _DSL_MODULES or isinstance(error, (ImportError, AttributeError)) else None
    state = "missing-dependency"
    if distribution_version(status.distribution) is None:
        state = "broken"
        message = f"{label} cannot be loaded: {status.distribution} was removed while this process ran. Call cudnn.registry.refresh(). ({original})"
    elif isinstance(error, ValueError) and str(error).startswith("CUDNN_KERNELS_"):
        state = "broken"
        message = f"{label} cannot be loaded: {error}"
    elif missing and top not in _DSL_MODULES | own:
        extra = _EXTRAS.get(top)
        install = f'pip install "cudnn-base[{extra}]"' if extra else f"pip install --upgrade {status.distribution}"
        message = f"{label} requires the {missing!r} module, which is not installed. Install it with: {install} ({original})"
    elif missing and top not in own:
        detail = f" {dsl}" if dsl else ' Install them with: pip install "cudnn-base[cutedsl]"'
        message = f"{label} requires optional dependencies.{detail} ({original})"
    elif dsl:
        message = f"{label} requires optional dependencies that work together. {dsl} ({original})"
    else:
        state = "broken"
        repair = f"pip install --force-reinstall --no-deps {status.distribution}"
        message = (
            f"{label} requires optional dependencies or a repaired installation: loading {target} of {status.distribution} {status.version} failed with "
            f"{original}. Reinstall it with: {repair}"
        )
    with _lock:
        _failures[path, name] = replace(status, state=state, reason=message, cause=error)
    return KernelUnavailableError(message, name=label, distribution=status.distribution)


def _missing_module(error: BaseException | None) -> str:
    """The module that the first ModuleNotFoundError along the chain of causes names, or ""."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, ModuleNotFoundError) and error.name:
            return error.name
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return ""


def _dsl_problem() -> str | None:
    from cudnn.dsl_check import dsl_problem

    return dsl_problem() if distribution_version("nvidia-cutlass-dsl") else None


def _not_installed(name: str, owner: str) -> KernelUnavailableError:
    distribution = DISTRIBUTIONS[owner]
    message = f"cudnn.{name} is provided by {distribution}, which is not installed. Install it with: pip install {distribution}"
    return KernelUnavailableError(message, name=f"cudnn.{name}", distribution=distribution)


def _unavailable(path: str, name: str, status: FamilyStatus, reason: str) -> KernelUnavailableError:
    label = f"cudnn.{path}.{name}" if path else f"cudnn.{name}"
    pin = f"{status.distribution}=={minor(__version__)}.*" if status.first_party else status.distribution
    found, remedy = "cannot be used", f'Install a matching version with: pip install --upgrade "{pin}"'
    if status.state == "disabled":
        found, remedy = "is disabled", f"Take {status.name!r} out of {DISABLE_VARIABLE} and call cudnn.registry.refresh()"
    elif status.state == "missing-dependency":
        found, remedy = "lacks a dependency", f"Install it with: pip install {' '.join(_requirements(status))}"
    elif status.state == "duplicate":
        found, remedy = "clashes with another distribution", "Uninstall one of them"
    elif status.state != "ok":
        found = f"is {status.state}"
    error = KernelUnavailableError(
        f"{label} is provided by {status.distribution} {status.version}, which {found}: {reason}. {remedy}", name=label, distribution=status.distribution
    )
    error.__cause__ = status.cause
    return error


def _requirements(status: FamilyStatus) -> list[str]:
    modules = status.family.requires if status.family else ()
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    return [f'"cudnn-base[{_EXTRAS[module]}]"' if module in _EXTRAS else module for module in missing]


def _warn_about_frontend() -> None:
    """Say once that nvidia-cudnn-frontend is installed as well: it owns the import name `cudnn` too, and one overwrote files of the other."""
    global _frontend_checked
    if _frontend_checked:
        return
    with _lock:
        if _frontend_checked:
            return
        _frontend_checked = True
    version = distribution_version("nvidia-cudnn-frontend")
    if version is not None:
        warnings.warn(frontend_warning(version), RuntimeWarning, stacklevel=5)


def frontend_warning(version: str) -> str:
    """The text about nvidia-cudnn-frontend standing beside cudnn-base."""
    return (
        f"nvidia-cudnn-frontend {version} and cudnn-base {__version__} are both installed. Both own the import name 'cudnn', so files of one have replaced files of "
        "the other. Keep one: pip uninstall nvidia-cudnn-frontend cudnn-base, then install the one you want."
    )
