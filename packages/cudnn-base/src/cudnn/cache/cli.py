"""``python -m cudnn cache info|clear|path``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from cudnn.cache import engine, settings


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cudnn cache", description="Look at the compiled kernels on disk, or remove them.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="info|clear|path")
    show = commands.add_parser("info", help="directory, number of kernels, bytes and bound")
    show.add_argument("--json", action="store_true", help="print JSON")
    commands.add_parser("clear", help="remove every stored kernel")
    commands.add_parser("path", help="print the directory alone")
    arguments = parser.parse_args(argv)
    if arguments.command == "path":
        root = settings.directory()
        if root is None:
            print(f"off ({settings.DIRECTORY_VARIABLE}=0)")
            return 1
        print(root)
        return 0
    try:
        state = engine.info()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if arguments.command == "info":
        if arguments.json:
            print(json.dumps({name: value for name, value in state.as_dict().items() if name not in ("stats", "memory_entries")}))
        elif state.directory is None:
            print(f"The disk store is off ({settings.DIRECTORY_VARIABLE}=0).")
        else:
            bound = f"at most {engine.human_bytes(state.max_bytes)}" if state.max_bytes else "no bound"
            print(
                f"directory  {state.directory}\nkernels    {state.entries}\nsize       {engine.human_bytes(state.bytes)} ({bound}, {settings.MAX_BYTES_VARIABLE})"
            )
        return 0
    print(
        "The disk store is off; nothing to clear."
        if state.directory is None
        else f"Removed {engine.clear()} kernels ({engine.human_bytes(state.bytes)}) from {state.directory}."
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
