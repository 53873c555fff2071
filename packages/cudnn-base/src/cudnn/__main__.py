"""`python -m cudnn`: the installed kernel families, their versions and the devices. Subcommands do the rest; `python -m cudnn --help` lists them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import textwrap

import cudnn
from cudnn import collect_env, registry

_COMMANDS = {
    "collect-env": ("cudnn.collect_env", "print a report of the environment for a bug report"),
    "cache": ("cudnn.cache.cli", "show or clear the cache of compiled kernels"),
    "precompile": ("cudnn.cache.precompile", "compile kernels ahead of use; needs no GPU"),
    "bench": ("cudnn.bench.cli", "measure operations against baselines"),
    "tune": ("cudnn.tuning.cli", "find the fastest configurations on this GPU"),
}


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand, or print the overview. Returns the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    commands = available_commands()
    if not arguments:
        print(overview())
        return 0
    if arguments[0] in ("-h", "--help"):
        print(usage(commands))
        return 0
    if arguments[0] in ("-V", "--version"):
        print(cudnn.__version__)
        return 0
    if arguments[0] not in commands:
        print(f"python -m cudnn: unknown command {arguments[0]!r}\n\n{usage(commands)}", file=sys.stderr)
        return 2
    module = importlib.import_module(commands[arguments[0]][0])
    return int(module.main(arguments[1:]) or 0)


def available_commands() -> dict[str, tuple[str, str]]:
    """The subcommands whose modules this version has: name -> (module, what it does)."""
    return {name: entry for name, entry in _COMMANDS.items() if _exists(entry[0])}


def usage(commands: dict[str, tuple[str, str]]) -> str:
    """The help text."""
    lines = ["usage: python -m cudnn [command] [options]", "", "Without a command: the installed kernel families, their versions and the devices.", ""]
    return "\n".join([*lines, *(f"  {name:<12} {entry[1]}" for name, entry in commands.items())])


def overview() -> str:
    """The table of families and the devices."""
    rows = [("family", "distribution", "version", "state", "names")]
    notes = []
    for status in registry.families():
        rows.append((status.name, status.distribution, status.version, status.state, str(len(status.names))))
        if status.reason:
            notes.append(textwrap.fill(f"{status.name}: {status.reason}", 120, subsequent_indent="  "))
    for distribution in registry.missing_distributions():
        rows.append(("-", distribution, "-", "not installed", "-"))
        notes.append(f"to install: pip install {distribution}")
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    devices = collect_env.describe_devices() or ["no CUDA device: operations run on CPU tensors through the reference engine"]
    return "\n".join([f"cudnn {cudnn.__version__}", "", *table, *notes, "", *devices])


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


if __name__ == "__main__":
    sys.exit(main())
