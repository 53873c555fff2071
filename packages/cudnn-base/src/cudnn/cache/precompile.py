"""Compiling every kernel of the installed families ahead of time: ``cudnn.precompile(...)`` and ``python -m cudnn precompile``."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from cudnn.cache import engine, pool, settings
from cudnn.cache.pool import Outcome
from cudnn.datatypes import dtype_name

DEFAULT_ARCH = "sm_90a"


@dataclass(frozen=True)
class PrecompileReport:
    """What a precompile did. ``bytes`` is what all stored kernels take on disk afterwards, ``added_bytes`` how much of that is new."""

    arch: str
    outcomes: list[Outcome] = field(repr=False)
    seconds: float
    jobs: int
    bytes: int
    added_bytes: int
    directory: str | None

    def count(self, status: str) -> int:
        """Number of kernels that were "compiled", "cached" or "failed"."""
        return sum(outcome.status == status for outcome in self.outcomes)

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.status == "failed"]

    def rows(self) -> list[tuple[str, str, int, int, int, int, float]]:
        """One row per operation and dtype: op, dtype, kernels, compiled, cached, failed, seconds of compiling."""
        groups: dict[tuple[str, str], list[Outcome]] = {}
        for outcome in self.outcomes:
            groups.setdefault((outcome.spec.op, outcome.spec.dtype), []).append(outcome)
        rows: list[tuple[str, str, int, int, int, int, float]] = []
        for (op, dtype), group in sorted(groups.items()):
            compiled, cached, failed = (sum(outcome.status == status for outcome in group) for status in ("compiled", "cached", "failed"))
            seconds = sum(outcome.seconds for outcome in group if outcome.status == "compiled")
            rows.append((op, dtype, len(group), compiled, cached, failed, seconds))
        return rows

    def as_dict(self) -> dict[str, Any]:
        """JSON data: the totals and every kernel."""
        kernels = [
            {
                "op": o.spec.op,
                "dtype": o.spec.dtype,
                "label": o.spec.label,
                "status": o.status,
                "seconds": round(o.seconds, 3),
                **({"error": o.error} if o.error else {}),
            }
            for o in self.outcomes
        ]
        totals = {status: self.count(status) for status in ("compiled", "cached", "failed")}
        return {
            "arch": self.arch,
            "jobs": self.jobs,
            "seconds": round(self.seconds, 2),
            **totals,
            "bytes": self.bytes,
            "added_bytes": self.added_bytes,
            "directory": self.directory,
            "kernels": kernels,
        }


def specs(*, arch: str = DEFAULT_ARCH, op: str | Iterable[str] | None = None, dtype: str | Iterable[str] | None = None) -> list[Any]:
    """What the installed families list for ``arch``: for each of their operations what its ``precompile_specs()`` returns, and the same in the configurations of tuned results that the family ships.

    ``op`` and ``dtype`` (names, or several) keep those alone. Raises ValueError for an operation, dtype or architecture that no
    installed family has, naming those there are; what an operation's ``precompile_specs()`` raises passes through.
    """
    from cudnn import registry
    from cudnn.tuning.shipped import with_shipped

    found: list[Any] = []
    for _, module in registry.operations():
        found += with_shipped(module.partition(".")[0], importlib.import_module(module).precompile_specs())
    known_archs = sorted({spec.arch for spec in found})
    if not found:
        raise ValueError("no installed family has kernels to compile; install one, for example: pip install cudnn-gemm-dense")
    chosen = [spec for spec in found if spec.arch == arch]
    if not chosen:
        raise ValueError(f"arch: found {arch!r}, the installed families have kernels for {', '.join(known_archs)}")
    for what, wanted in (("op", op), ("dtype", dtype)):
        if wanted is None:
            continue
        names = {wanted} if isinstance(wanted, str) else set(wanted)
        if what == "dtype":
            names = {dtype_name(name) or name for name in names}
        known = sorted({getattr(spec, what) for spec in chosen})
        unknown = sorted(names - set(known))
        if unknown:
            raise ValueError(f"{what}: found {', '.join(map(repr, unknown))}, there is {', '.join(known)} for {arch}")
        chosen = [spec for spec in chosen if getattr(spec, what) in names]
    return list(dict.fromkeys(chosen))


def precompile(
    op: str | Iterable[str] | None = None,
    *,
    arch: str = DEFAULT_ARCH,
    dtype: str | Iterable[str] | None = None,
    jobs: int | None = None,
    load: bool = True,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> PrecompileReport:
    """Compile every listed kernel that is not on disk yet, in parallel processes; no GPU is needed.

    - ``op``, ``dtype``: names or several; None is all.
    - ``jobs``: number of processes; None is one per core.
    - ``load``: also load them into this process, so that the first call that needs one finds it in memory (a warm-up before traffic).
      Kernels that failed are left out.
    - ``on_outcome``: called for each kernel as it ends.

    Returns a report; kernels that failed are in ``report.failed`` with their reason. Raises ValueError for names nobody has, RuntimeError
    when the disk store is off, since what other processes compile reaches this one through it.
    """
    if settings.directory() is None:
        raise RuntimeError(f"precompile keeps its results on disk, and {settings.DIRECTORY_VARIABLE}=0 turns that off; unset it or name a directory")
    report = _run(specs(arch=arch, op=op, dtype=dtype), arch, jobs, {}, on_outcome)
    if load:
        for outcome in report.outcomes:
            if outcome.status != "failed":
                outcome.spec.build()
    return report


def _run(chosen: list[Any], arch: str, jobs: int | None, environment: dict[str, str], on_outcome: Callable[[Outcome], None] | None) -> PrecompileReport:
    before = engine.info()
    started = time.perf_counter()
    outcomes = pool.build_all(chosen, arch=arch, jobs=jobs, environment=environment, on_outcome=on_outcome)
    seconds = time.perf_counter() - started
    after = engine.info()
    used = min(jobs or pool.default_jobs(), len(chosen))
    return PrecompileReport(arch, outcomes, seconds, used, after.bytes, after.bytes - before.bytes, after.directory)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[Outcome], None]]:
    """Something to call with each outcome: a bar on a terminal where rich is installed, else one line each."""
    done = 0
    bar = None
    if sys.stdout.isatty():
        with contextlib.suppress(ImportError):
            from rich import progress

            columns = (
                progress.TextColumn("compiling"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TimeElapsedColumn(),
                progress.TextColumn("{task.description}"),
            )
            bar = progress.Progress(*columns)
    if bar is None:

        def line(outcome: Outcome) -> None:
            nonlocal done
            done += 1
            print(f"[{done:{len(str(total))}}/{total}] {outcome.status:8} {outcome.seconds:6.1f} s  {outcome.spec.label}", flush=True)

        yield line
        return
    with bar:
        task = bar.add_task("", total=total)
        yield lambda outcome: bar.update(task, advance=1, description=outcome.spec.label)


def _print_table(report: PrecompileReport) -> None:
    heads = ("operation", "dtype", "kernels", "compiled", "cached", "failed", "seconds")
    body: list[tuple[str, ...]] = [(op, dtype, str(n), str(c), str(h), str(f), f"{s:.1f}") for op, dtype, n, c, h, f, s in report.rows()]
    total: tuple[str, ...] = (
        "total",
        "",
        *(str(n) for n in (len(report.outcomes), report.count("compiled"), report.count("cached"), report.count("failed"))),
        f"{sum(r[-1] for r in report.rows()):.1f}",
    )
    if sys.stdout.isatty():
        with contextlib.suppress(ImportError):
            from rich.console import Console
            from rich.table import Table

            table = Table(title=f"Kernels for {report.arch}", show_footer=True)
            for head, foot in zip(heads, total, strict=True):
                table.add_column(head, foot, justify="left" if head in ("operation", "dtype") else "right")
            for row in body:
                table.add_row(*row)
            Console().print(table)
            return
    widths = [max(len(row[i]) for row in (heads, *body, total)) for i in range(len(heads))]
    for row in (heads, *body, total):
        print("  ".join(text.ljust(width) if i < 2 else text.rjust(width) for i, (text, width) in enumerate(zip(row, widths, strict=True))).rstrip())


def _names(values: list[str] | None) -> list[str] | None:
    return [name for value in values for name in value.split(",") if name] if values else None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0, 1 when a kernel failed, 2 for a request that cannot be met."""
    parser = argparse.ArgumentParser(
        prog="python -m cudnn precompile", description="Compile the kernels of the installed families ahead of time. Needs no GPU."
    )
    parser.add_argument("--arch", default=DEFAULT_ARCH, help=f"architecture to compile for (default {DEFAULT_ARCH})")
    parser.add_argument("--op", action="append", metavar="NAME[,NAME]", help="these operations alone")
    parser.add_argument("--dtype", action="append", metavar="NAME[,NAME]", help="these operand dtypes alone")
    parser.add_argument("--jobs", type=int, help="processes at once (default: one per core)")
    parser.add_argument("--no-cache", action="store_true", help="compile everything and store nothing: a check that it compiles")
    parser.add_argument("--list", action="store_true", help="print what would be compiled")
    parser.add_argument("--json", metavar="FILE", help="write the outcome of every kernel")
    parser.add_argument("--verbose", action="store_true", help="print whole tracebacks of failures")
    arguments = parser.parse_args(argv)
    if arguments.jobs is not None and arguments.jobs < 1:
        parser.error(f"--jobs: found {arguments.jobs}, needs at least 1")
    if settings.directory() is None and not (arguments.no_cache or arguments.list):
        print(
            f"error: the disk store is off ({settings.DIRECTORY_VARIABLE}=0), so nothing would be kept; unset it, or say --no-cache to check alone",
            file=sys.stderr,
        )
        return 2
    try:
        engine.info()  # a wrong setting is told before anything is listed
        chosen = specs(arch=arguments.arch, op=_names(arguments.op), dtype=_names(arguments.dtype))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        traceback.print_exc()
        print(f"error: an operation could not list its kernels: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    if arguments.list:
        for spec in chosen:
            print(spec.label)
        return 0
    environment = {settings.DIRECTORY_VARIABLE: "0"} if arguments.no_cache else {}
    with _progress(len(chosen)) as on_outcome:
        report = _run(chosen, arguments.arch, arguments.jobs, environment, on_outcome)
    _print_table(report)
    place = (
        "nothing stored (--no-cache)"
        if arguments.no_cache
        else f"{engine.human_bytes(report.added_bytes)} added, {engine.human_bytes(report.bytes)} in all in {report.directory}"
    )
    print(f"{len(report.outcomes)} kernels in {report.seconds:.1f} s with {report.jobs} processes; {place}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(report.as_dict(), file, indent=1)
            file.write("\n")
    unstored = [outcome for outcome in report.outcomes if not outcome.stored]
    if unstored:
        print(
            f"error: {len(unstored)} kernels were compiled and could not be stored in {report.directory}; is it full or not writable, or did sources change meanwhile?",
            file=sys.stderr,
        )
    reasons: dict[str, list[Outcome]] = {}
    for outcome in report.failed:
        reasons.setdefault(outcome.traceback if arguments.verbose and outcome.traceback else outcome.error, []).append(outcome)
    for reason, outcomes in reasons.items():
        more = f" and {len(outcomes) - 1} more" if len(outcomes) > 1 else ""
        print(f"failed: {outcomes[0].spec.label}{more}\n  {reason.strip().replace(os.linesep, os.linesep + '  ')}", file=sys.stderr)
    return 1 if report.failed or unstored else 0


if __name__ == "__main__":
    raise SystemExit(main())
