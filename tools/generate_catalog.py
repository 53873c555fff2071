"""Write what is derived from the manifests: `cudnn/_catalog.py` and the type stubs.

    python tools/generate_catalog.py            write the files
    python tools/generate_catalog.py --check    write nothing; exit 1 and name the files that differ

Reads the source tree, nothing installed. Needs only the standard library.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudnn.family import Family

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("cudnn", "cudnn_gemm_dense", "cudnn_gemm_grouped", "cudnn_gemm_discrete", "cudnn_graph")
HEADER = "Generated from the manifests by tools/generate_catalog.py (nox -s stubs). Do not edit."


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args(argv).check
    base = ROOT / "packages/cudnn-base/src/cudnn"
    families = load_families()
    wanted = {base / "_catalog.py": catalog(families), base / "__init__.pyi": stub(families, "")}
    for path in sorted({path for family in families for path in family.namespaces if "." not in path}):
        # Stubs of deeper paths would need folders, which would turn into importable namespace packages.
        wanted[base / f"{path}.pyi"] = stub(families, path)
    stale = [path for path in base.glob("*.pyi") if path not in wanted]
    different = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    if check:
        for path in [*different, *stale]:
            print(f"{path.relative_to(ROOT)} is not what the manifests give; run: nox -s stubs")
        return 1 if different or stale else 0
    for path in different:
        path.write_text(wanted[path])
        print(f"wrote {path.relative_to(ROOT)}")
    for path in stale:
        path.unlink()
        print(f"removed {path.relative_to(ROOT)}")
    return 0


def load_families() -> list[Family]:
    """The manifest of each distribution, base first. A name that two of them give to different targets is an error."""
    for source in sorted(ROOT.glob("packages/*/src")):
        sys.path.insert(0, str(source))
    # The generator must work when the catalogue that `import cudnn` reads is not there yet, and then imports cudnn.family alone.
    families = [importlib.import_module(f"{package}._family").FAMILY for package in PACKAGES]
    seen: dict[tuple[str, str], str] = {}
    for family in families:
        for path, names in family.targets().items():
            for name in names:
                other = seen.setdefault((path, name), family.name)
                if other != family.name:
                    raise SystemExit(f"cudnn.{path}.{name} is in the manifests of both {other} and {family.name}")
    return families


def catalog(families: list[Family]) -> str:
    names: dict[str, dict[str, str]] = {}
    for family in families:
        for path, entries in family.targets().items():
            if entries:
                names.setdefault(path, {}).update(dict.fromkeys(entries, family.name))
    names = {path: dict(sorted(names[path].items())) for path in sorted(names)}
    return (
        f'"""The public names of the project\'s own distributions.\n\n{HEADER}\n"""\n\n'
        "from __future__ import annotations\n\n"
        f"DISTRIBUTIONS = {literal({family.name: family.distribution for family in families})}\n"
        '"""Family -> the distribution to install."""\n\n'
        f"NAMES: dict[str, dict[str, str]] = {literal(names)}\n"
        '"""Namespace below cudnn ("" is cudnn itself) -> public name -> family."""\n'
    )


def literal(value: Mapping[str, object], indent: int = 0) -> str:
    """A literal in the form the formatter leaves alone: one entry a line, trailing commas."""
    if not value:
        return "{}"
    inner = " " * (indent + 4)
    lines = [f'{inner}"{key}": {literal(entry, indent + 4) if isinstance(entry, dict) else chr(34) + str(entry) + chr(34)},' for key, entry in value.items()]
    return "\n".join(["{", *lines, " " * indent + "}"])


def stub(families: list[Family], path: str) -> str:
    """A stub that re-exports from the packages: the exact type where the package is installed, Any where it is not."""
    imports: list[str] = []
    aliases: list[str] = []
    modules: list[str] = []
    for family in families:
        for name, target in family.targets().get(path, {}).items():
            module, _, attribute = target.partition(":")
            if not attribute:
                modules.append(f"from {module.rpartition('.')[0]} import {module.rpartition('.')[2]} as {name}")
            elif attribute == name:
                imports.append(f"from {module} import {name} as {name}")
            else:
                aliases.append(f"{name} = {attribute}")
                imports.append(f"from {module} import {attribute} as {attribute}")
    lines = [f"# {HEADER}", ""]
    lines += sorted(set(imports) | set(modules))
    if not path:
        lines += ["", "__version__: str"]
    if aliases:
        lines += ["", *sorted(aliases)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
