"""Finding the installed families and loading their manifests. The lookup of names is in `cudnn.registry`."""

from __future__ import annotations

import importlib.util
import os
import re
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cudnn._catalog import DISTRIBUTIONS, NAMES
from cudnn._namespaces import base_modules
from cudnn._version import __version__
from cudnn.family import FAMILY_API, Family

GROUP = "cudnn.kernels"
DISABLE_VARIABLE = "CUDNN_KERNELS_DISABLE"


@dataclass(frozen=True)
class FamilyStatus:
    """One installed family as the registry sees it.

    Attributes:
        name: the family's name.
        distribution: the distribution that provides it.
        version: the version of that distribution.
        state: "ok", "missing-dependency", "incompatible", "broken", "disabled" or "duplicate".
        reason: why it is not "ok"; for one that is "ok", names of it that are ignored, if any.
        first_party: whether it is one of the project's own distributions.
        family: its manifest, or None when that was not or could not be loaded.
        cause: the exception behind the state, if there is one.
    """

    name: str
    distribution: str
    version: str
    state: str
    reason: str
    first_party: bool
    family: Family | None = field(default=None, repr=False)
    cause: BaseException | None = field(default=None, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The public names it brings to `cudnn` itself."""
        return tuple(self.family.names) if self.family else ()

    def targets(self) -> Mapping[str, Mapping[str, str]]:
        """Its names by namespace path; empty when its manifest could not be loaded."""
        return self.family.targets() if self.family else {}


@dataclass(frozen=True)
class Entry:
    """One entry point of the group, before its manifest is loaded."""

    point: Any
    name: str
    distribution: str
    version: str

    @property
    def first_party(self) -> bool:
        return normalized(self.distribution) == DISTRIBUTIONS.get(self.name)


class Discovery:
    """What has been found out about the installed families. `cudnn.registry.refresh()` replaces the whole object, so every thread sees a consistent one.

    No lock is held while a manifest is imported: the import lock of another thread could be waiting for ours. Two threads may load one manifest at the same time;
    the first to publish wins and alone emits the warnings.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: tuple[Entry, ...] | None = None
        self._first_party: dict[str, FamilyStatus | None] = {}
        self._others: tuple[FamilyStatus, ...] | None = None
        self._owners: dict[tuple[str, str], tuple[FamilyStatus, ...]] = {}
        self._disabled = frozenset(filter(None, re.split(r"[,\s]+", os.environ.get(DISABLE_VARIABLE, ""))))

    def entries(self) -> tuple[Entry, ...]:
        """The entry points of the group, one per family and distribution."""
        if self._entries is None:
            self._entries = _read_entries()
        return self._entries

    def first_party(self, name: str) -> FamilyStatus | None:
        """The status of one of the project's own families; None when its distribution is not installed."""
        if name not in self._first_party:
            found = next((entry for entry in self.entries() if entry.name == name and entry.first_party), None)
            status = self._load(found) if found else _without_entry(name)
            with self._lock:
                self._first_party.setdefault(name, status)
        return self._first_party[name]

    def others(self) -> tuple[FamilyStatus, ...]:
        """The families that are not the project's own. Broken ones and refused names are warned about once."""
        if self._others is None:
            statuses = [self._load(entry) for entry in self.entries() if not entry.first_party]
            statuses = [_checked_family_name(status, statuses) for status in statuses]
            owners: dict[tuple[str, str], tuple[FamilyStatus, ...]] = {}
            for status in statuses:
                for path, names in status.targets().items():
                    for name in names:
                        if protected_by(path, name) is None:
                            owners[path, name] = (*owners.get((path, name), ()), status)
            statuses, messages = _with_refused_names(statuses, owners)
            with self._lock:
                publish = self._others is None
                if publish:
                    self._owners = owners
                    self._others = tuple(statuses)
            if publish:
                for message in messages:
                    warnings.warn(message, RuntimeWarning, stacklevel=2)
        return self._others

    def other_owners(self, path: str, name: str) -> tuple[FamilyStatus, ...]:
        """The other families that claim a name; a name with two owners belongs to neither."""
        self.others()
        return self._owners.get((path, name), ())

    def _load(self, entry: Entry) -> FamilyStatus:
        status = FamilyStatus(entry.name, entry.distribution, entry.version, "ok", "", entry.first_party)
        if self._disabled & {entry.name, entry.distribution, normalized(entry.distribution)}:
            return replace(status, state="disabled", reason=f"disabled by {DISABLE_VARIABLE}={os.environ.get(DISABLE_VARIABLE, '')}")
        if entry.first_party and minor(entry.version) != minor(__version__):
            reason = f"found {entry.distribution} {entry.version}, this cudnn-base {__version__} needs {entry.distribution} {minor(__version__)}.*"
            return replace(status, state="incompatible", reason=reason)
        try:
            family = entry.point.load()
        except Exception as error:
            reason = f"its manifest {entry.point.value} cannot be loaded: {type(error).__name__}: {error}"
            return replace(status, state="broken", reason=reason, cause=error)
        if not isinstance(family, Family):
            return replace(status, state="broken", reason=f"its manifest {entry.point.value} is a {type(family).__name__}, needs a cudnn.family.Family")
        if family.api != FAMILY_API:
            reason = f"it is written for family API {family.api}, this cudnn-base {__version__} has family API {FAMILY_API}"
            return replace(status, state="incompatible", reason=reason)
        if family.name != entry.name or normalized(family.distribution) != normalized(entry.distribution):
            reason = f"its manifest says {family.name!r} of {family.distribution}, its entry point {entry.name!r} of {entry.distribution}; they must agree"
            return replace(status, state="broken", reason=reason)
        missing = [module for module in family.requires if importlib.util.find_spec(module) is None]
        if missing:
            reason = (
                f"it needs {', '.join(missing)}, which is not installed" if len(missing) == 1 else f"it needs {', '.join(missing)}, which are not installed"
            )
            return replace(status, state="missing-dependency", reason=reason, family=family)
        return replace(status, family=family)


def normalized(distribution: str) -> str:
    """A distribution's name in the form in which two spellings of it are equal."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def minor(version: str) -> str:
    """ "0.1" of "0.1.3"."""
    return ".".join(version.split(".")[:2])


def distribution_version(distribution: str) -> str | None:
    """The installed version of a distribution, or None. Reads metadata only."""
    import importlib_metadata

    try:
        return importlib_metadata.version(distribution)
    except importlib_metadata.PackageNotFoundError:
        return None


def protected_by(path: str, name: str) -> str | None:
    """The project's own distribution that a name belongs to, or None. Nobody else can take such a name."""
    owner = NAMES.get(path, {}).get(name)
    if owner is not None:
        return DISTRIBUTIONS[owner]
    first = (path or name).partition(".")[0]
    return DISTRIBUTIONS["base"] if first in base_modules() else None


def _read_entries() -> tuple[Entry, ...]:
    import importlib_metadata

    found: dict[tuple[str, str], Entry] = {}
    for point in importlib_metadata.entry_points(group=GROUP):
        distribution = point.dist.metadata["Name"] if point.dist else "(unknown)"
        # A distribution that is on the path twice is listed once by the metadata reader, the first on the path.
        found.setdefault((point.name, normalized(distribution)), Entry(point, point.name, distribution, point.dist.version if point.dist else "(unknown)"))
    return tuple(found[key] for key in sorted(found))


def _without_entry(name: str) -> FamilyStatus | None:
    distribution = DISTRIBUTIONS[name]
    version = distribution_version(distribution)
    if version is None:
        return None
    return FamilyStatus(name, distribution, version, "broken", f"it is installed without its entry point in the group {GROUP}", True)


def _checked_family_name(status: FamilyStatus, others: list[FamilyStatus]) -> FamilyStatus:
    if status.state == "disabled":
        return status
    if status.name in DISTRIBUTIONS:
        return replace(status, state="duplicate", reason=f"the family name {status.name!r} belongs to {DISTRIBUTIONS[status.name]}; ignored", family=None)
    rivals = sorted(other.distribution for other in others if other.name == status.name and other is not status and other.state != "disabled")
    if rivals:
        return replace(status, state="duplicate", reason=f"the family name {status.name!r} is also used by {', '.join(rivals)}; neither is used")
    return status


def _with_refused_names(statuses: list[FamilyStatus], owners: dict[tuple[str, str], tuple[FamilyStatus, ...]]) -> tuple[list[FamilyStatus], list[str]]:
    """The statuses with the names that were refused in their reasons, and what to warn about."""
    checked = []
    messages = []
    for status in statuses:
        notes = []
        for path, names in status.targets().items():
            for name in names:
                label = f"cudnn.{path}.{name}" if path else f"cudnn.{name}"
                guardian = protected_by(path, name)
                rivals = sorted(other.distribution for other in owners.get((path, name), ()) if other.distribution != status.distribution)
                if guardian:
                    notes.append(f"{label} belongs to {guardian} and is not taken from {status.distribution}")
                elif rivals and status.state != "duplicate":
                    notes.append(f"{label} is also provided by {', '.join(rivals)}; neither is used")
        reason = "; ".join(filter(None, [status.reason, *notes]))
        checked.append(replace(status, reason=reason))
        if reason and status.state not in ("disabled", "missing-dependency"):
            messages.append(f"kernel family {status.name!r} of {status.distribution} {status.version}: {reason}")
    return checked, messages
