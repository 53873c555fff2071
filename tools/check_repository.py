"""What must be equal, or bounded, across the repository and no other tool looks at. Prints every violation; exit status 1 if there is one."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = sorted((ROOT / "packages").iterdir())
VERSION_FILE = ROOT / "packages/cudnn-base/src/cudnn/_version.py"
KERNEL_LINES = 1500
MODULE_LINES = 800


def main() -> int:
    problems = [*licences(), *versions(), *requirements(), *lengths()]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


def licences() -> list[str]:
    """Each distribution carries its own copy: a path out of its folder would be written into the wheel."""
    text = (ROOT / "LICENSE").read_bytes()
    return [f"{package.name}/LICENSE is not the LICENSE of the repository" for package in PACKAGES if (package / "LICENSE").read_bytes() != text]


def versions() -> list[str]:
    """One version file, and pins that follow it."""
    version = re.search(r'__version__ = "([^"]+)"', VERSION_FILE.read_text()).group(1)
    minor = ".".join(version.split(".")[:2])
    problems = []
    for package in PACKAGES:
        text = (package / "pyproject.toml").read_text()
        path = re.search(r'\[tool\.hatch\.version\]\npath = "([^"]+)"', text)
        if path is None or (package / path.group(1)).resolve() != VERSION_FILE:
            problems.append(f"{package.name}/pyproject.toml does not take its version from {VERSION_FILE.relative_to(ROOT)}")
        pin = re.search(r'"cudnn-base(?:\[cutedsl\])? == ([^"]+)"', text)
        if package.name != "cudnn-base" and (pin is None or pin.group(1) != f"{minor}.*"):
            problems.append(f"{package.name}/pyproject.toml must depend on cudnn-base == {minor}.*")
    if f"## {version}" not in (ROOT / "CHANGELOG.md").read_text():
        problems.append(f"CHANGELOG.md has no section for {version}")
    return problems


def requirements() -> list[str]:
    """Numbers that stand in the metadata and in code."""
    text = (ROOT / "packages/cudnn-base/pyproject.toml").read_text()
    dsl_check = (ROOT / "packages/cudnn-base/src/cudnn/dsl_check.py").read_text()
    noxfile = (ROOT / "noxfile.py").read_text()
    problems = []
    low, high = (re.search(rf'^{name} = "([^"]+)"', dsl_check, re.MULTILINE).group(1) for name in ("FLOOR", "CEILING"))
    if f'"nvidia-cutlass-dsl[cu13]>={low},<{high}"' not in text:
        problems.append(f"the extra cutedsl of cudnn-base must ask for nvidia-cutlass-dsl[cu13]>={low},<{high}, as cudnn.dsl_check does")
    dependencies = re.search(r"^dependencies = (\[.*\])", text, re.MULTILINE).group(1)
    if f"BASE_REQUIREMENTS = {dependencies}" not in noxfile:
        problems.append(f"BASE_REQUIREMENTS of noxfile.py must be the dependencies of cudnn-base, {dependencies}")
    return problems


def lengths() -> list[str]:
    """No module longer than a reader can hold in mind."""
    problems = []
    for path in sorted((ROOT / "packages").glob("*/src/**/*.py")):
        if path.name == "_catalog.py":
            continue
        limit = KERNEL_LINES if "cutedsl" in path.parts or path.name == "kernel.py" else MODULE_LINES
        count = len(path.read_text().splitlines())
        if count > limit:
            problems.append(f"{path.relative_to(ROOT)} has {count} lines, more than {limit}")
    return problems


if __name__ == "__main__":
    sys.exit(main())
