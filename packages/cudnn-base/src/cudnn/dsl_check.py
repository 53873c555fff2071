"""Is the CuTe DSL installed, and do its parts belong together?

The DSL comes as several distributions (`nvidia-cutlass-dsl` and `nvidia-cutlass-dsl-libs-*`). An upgrade that stops half-way, or two of them that wrote the same
files, leaves an install whose version number looks right and whose kernels fail with an AttributeError far from the cause. Everything here but the probe reads
package metadata and file sizes only; `cutlass` is not imported.
"""

from __future__ import annotations

import csv
import functools
import importlib
import os
import re

from cudnn.errors import KernelUnavailableError

FLOOR = "4.8.1"
"""The oldest DSL the kernels compile with; the extra `cutedsl` of cudnn-base asks for the same."""

CEILING = "5"
"""The first DSL the extra `cutedsl` excludes."""

KNOWN_BAD: dict[str, str] = {}
"""Versions inside the range that must not be used, each with the reason."""

INSTALL = 'pip install "cudnn-base[cutedsl]"'

_MAIN = "nvidia-cutlass-dsl"
_CUDA_LIBRARIES = f"{_MAIN}-libs-cu"
_PARTS = (_MAIN, *(f"{_MAIN}-libs-{part}" for part in ("base", "core", "cu12", "cu13")))
# One attribute of each part of the DSL that the kernels stand on; the compiler itself (libs-base) and its Python side (libs-core) are different distributions.
_PROBES = (
    ("cutlass", "Float32", "nvidia-cutlass-dsl-libs-core"),
    ("cutlass.cute", "compile", "nvidia-cutlass-dsl-libs-core"),
    ("cutlass.cute.arch", "mbarrier_init", "nvidia-cutlass-dsl-libs-core"),
    ("cutlass.cute.nvgpu.warpgroup", "MmaF16BF16Op", "nvidia-cutlass-dsl-libs-core"),
    ("cutlass.cute.nvgpu.cpasync", "CopyBulkTensorTileG2SOp", "nvidia-cutlass-dsl-libs-core"),
    ("cutlass._mlir.ir", "Context", "nvidia-cutlass-dsl-libs-base"),
)


def dsl_distributions() -> dict[str, str]:
    """The installed distributions of the DSL and their versions."""
    import importlib_metadata

    found: dict[str, str] = {}
    # By name: reading the metadata of everything that is installed takes a good part of a first call.
    for name in _PARTS:
        try:
            found[name] = importlib_metadata.version(name)
        except importlib_metadata.PackageNotFoundError:
            continue
    return found


def dsl_problem() -> str | None:
    """What is wrong with the installed DSL and how to repair it, or None. Not installed at all is a problem too. Metadata and file sizes only."""
    found = dsl_distributions()
    if not found:
        return f"The CuTe DSL (nvidia-cutlass-dsl) is not installed. Install it with: {INSTALL}"
    version = found.get(_MAIN)
    if version is None:
        listed = ", ".join(f"{name} {number}" for name, number in found.items())
        return f"{_MAIN} is missing although its libraries are installed ({listed}). {_reinstall(max(found.values(), key=_release))}"
    odd = [f"{name} {number}" for name, number in found.items() if number != version]
    if odd:
        return f"The CuTe DSL is mixed from several versions: {_MAIN} is {version}, but {' and '.join(odd)}. {_reinstall(version)}"
    if version in KNOWN_BAD:
        return f"{_MAIN} {version} cannot be used: {KNOWN_BAD[version]}. Install another version with: {INSTALL} --upgrade"
    if not _release(FLOOR) <= _release(version) < _release(CEILING):
        return (
            f'Found {_MAIN} {version}, the kernels need >= {FLOOR} and < {CEILING}. Install one with: pip install --upgrade "{_MAIN}[cu13]>={FLOOR},<{CEILING}"'
        )
    missing = _missing_libraries(found)
    if missing:
        return f"{_MAIN} {version} is installed without {' and '.join(missing)}. {_reinstall(version)}"
    changed = _changed_files(found)
    if changed:
        listed = "; ".join(f"{name}: {path} {what}" for name, (path, what) in changed.items())
        return f"The files of {' and '.join(changed)} are not those that were installed with {version} ({listed}). {_reinstall(version)}"
    return None


def require_dsl(operation: str, *, probe: bool = False) -> None:
    """Raise unless the DSL can be used. Called before a compile; the answer without a probe is remembered while the process runs.

    Args:
        operation: who needs it, for the message, such as "GemmSwiglu.compile".
        probe: import the DSL too and look for what the kernels use, for an install whose metadata is in order and whose content is not.

    Raises:
        KernelUnavailableError: an ImportError that names the inconsistent distribution, what was found, and the pip line.
    """
    problem = _remembered_problem() or (_probe() if probe else None)
    if problem:
        raise KernelUnavailableError(f"{operation} needs the CuTe DSL. {problem}", name="cutlass", distribution=_MAIN)


@functools.lru_cache(maxsize=1)
def _remembered_problem() -> str | None:
    return dsl_problem()


def _probe() -> str | None:
    version = dsl_distributions().get(_MAIN, FLOOR)
    for module, attribute, distribution in _PROBES:
        try:
            getattr(importlib.import_module(module), attribute)
        except Exception as error:
            # The DSL's own libraries raise many types here: ImportError for a missing symbol, TypeError for bindings of another version.
            return f"{module}.{attribute}, a part of {distribution} {version}, cannot be used ({type(error).__name__}: {error}). {_reinstall(version)}"
    return None


def _missing_libraries(found: dict[str, str]) -> list[str]:
    """Libraries that the installed ones declare as needed. Those of an extra are not declared, and one compiler library per CUDA major version is enough."""
    import importlib_metadata

    needed = set()
    for name in found:
        for requirement in importlib_metadata.requires(name) or ():
            required = re.match(r"[A-Za-z0-9._-]+", requirement)
            if required and "extra ==" not in requirement:
                needed.add(re.sub(r"[-_.]+", "-", required.group()).lower())
    if any(name.startswith(_CUDA_LIBRARIES) for name in found):
        needed = {name for name in needed if not name.startswith(_CUDA_LIBRARIES)}
    return sorted(name for name in needed if name.startswith(f"{_MAIN}-libs-") and name not in found)


def _changed_files(found: dict[str, str]) -> dict[str, tuple[str, str]]:
    """For each distribution the first of its files that is gone or has another size than when it was installed."""
    import importlib_metadata

    changed = {}
    for name in found:
        distribution = importlib_metadata.distribution(name)
        # Read directly: Distribution.files leaves out the files that are gone.
        for row in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
            if len(row) != 3 or not row[2] or not row[0].endswith((".py", ".so", ".pth")):
                continue
            path = str(distribution.locate_file(row[0]))
            size = os.path.getsize(path) if os.path.exists(path) else None
            if size != int(row[2]):
                changed[name] = (row[0], "is missing" if size is None else f"has {size} bytes instead of {row[2]}")
                break
    return changed


def _reinstall(version: str) -> str:
    # All parts at once and by file content: pip keeps a part whose version already fits, damaged or not.
    return f"Reinstall all of it with: pip install --force-reinstall --no-cache-dir --no-deps {' '.join(f'{part}=={version}' for part in _PARTS)}"


def _release(version: str) -> tuple[int, ...]:
    """The numbers at the start of a version; a pre-release counts as its release."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else (0,)
