"""``python -m cudnn tune``: measure the operations that have a benchmark at its problem sizes, and keep the results."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cudnn.bench import spec
from cudnn.bench.cli import benchmark
from cudnn.cache import pool, settings
from cudnn.tuning import table
from cudnn.tuning.api import require_gpu, visiting
from cudnn.tuning.case import Result
from cudnn.tuning.progress import progress
from cudnn.tuning.tuner import REPEATS, Collector, Tuner, device_name


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0, 1 when nothing was tuned, 2 for a request that cannot be met."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if not arguments.op and not (arguments.show or arguments.forget):
        parser.error("needs an operation, or --show or --forget; `python -m cudnn bench list` names the operations")
    try:
        if arguments.show or arguments.forget:
            return _kept(arguments)
        return _compile(arguments) if arguments.compile_only else _tune(arguments)
    except (ValueError, RuntimeError, ImportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cudnn tune", description="Find the fastest configurations on this GPU and keep them for later processes.")
    parser.add_argument("op", nargs="*", help="operations, as `python -m cudnn bench list` names them")
    parser.add_argument("--shapes", help="sets and sizes of the operations' benchmarks, joined by commas: large,small-m,4096x4096x4096 (default: all sets)")
    parser.add_argument("--dtype", help="operand dtypes, joined by commas (default: each operation's first)")
    parser.add_argument("--device", default="cuda:0", help="device (default cuda:0)")
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"timed rounds of the best configurations (default {REPEATS})")
    parser.add_argument("--jobs", type=int, help="processes that compile (default: one per core)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random inputs")
    parser.add_argument("--json", metavar="FILE", help="write what every candidate took")
    parser.add_argument("--export", metavar="FILE", help="also add the results to FILE, in the form in which a family ships them")
    parser.add_argument("--compile-only", action="store_true", help="put the candidates' kernels into the compile cache and measure nothing; needs no GPU")
    parser.add_argument("--show", action="store_true", help="print what is kept for this device")
    parser.add_argument("--forget", action="store_true", help="remove what is kept for this device")
    return parser


def _work(arguments: argparse.Namespace) -> list[tuple[spec.Benchmark, str, spec.Shape]]:
    """Every (benchmark, dtype, shape) that was asked for; ValueError for what there is not."""
    work = []
    for op in arguments.op:
        bench = benchmark(op)
        dtypes = arguments.dtype.split(",") if arguments.dtype else [bench.dtypes[0]]
        for dtype in dtypes:
            if dtype not in bench.dtypes:
                raise ValueError(f"--dtype: found {dtype!r}, {op} is measured in {', '.join(bench.dtypes)}")
            shapes = bench.parse_shapes(arguments.shapes or ",".join(bench.shapes))
            work += [(bench, dtype, shape) for _, shape in shapes]
    return work


def _calls(arguments: argparse.Namespace, device: Any) -> Iterator[Any]:
    """A call of the operation for each piece of work; its inputs live until the next one."""
    from cudnn.bench.run import _generator

    for bench, dtype, shape in _work(arguments):
        yield bench.ours(None).bind(bench.inputs(shape, dtype, device, _generator(device, arguments.seed)))


def _tune(arguments: argparse.Namespace) -> int:
    work = _work(arguments)
    require_gpu("tune")
    import torch

    if arguments.repeats < 5:
        raise ValueError(f"--repeats: found {arguments.repeats}, needs at least 5")
    device = torch.device(arguments.device)
    torch.cuda.set_device(device)

    def say(result: Result) -> None:
        print(result, flush=True)
        for candidate in result.skipped:
            print(f"  skipped {candidate.config}: {candidate.reason}", flush=True)

    with progress() as bar:
        tuner = Tuner(again=True, repeats=arguments.repeats, jobs=arguments.jobs, progress=bar, on_result=say)
        for call in _calls(arguments, device):
            with visiting(tuner):
                call()
            del call
            torch.cuda.empty_cache()
    for reason in tuner.left_out:
        print(f"not tuned: {reason}", file=sys.stderr)
    name = device_name(torch.cuda.current_device())
    kept = {result.kept for result in tuner.results} - {None}
    print(f"{len(tuner.results)} of {len(work)} problems tuned for {name}; kept in {', '.join(map(str, kept)) or 'this process alone'}")
    if arguments.json:
        data = {"device": name, "results": [result.as_dict() for result in tuner.results]}
        _write(Path(arguments.json), json.dumps(data, indent=1) + "\n")
    if arguments.export:
        count = table.write(Path(arguments.export), name, tuner.entries, lock=False)
        print(f"{arguments.export} has {count} results")
    return 0 if tuner.results else 1


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _compile(arguments: argparse.Namespace) -> int:
    if settings.directory() is None:
        raise RuntimeError(f"--compile-only keeps its results on disk, and {settings.DIRECTORY_VARIABLE}=0 turns that off; unset it or name a directory")
    collector = Collector()
    for call in _calls(arguments, "cpu"):
        with visiting(collector):
            call()
    specs = list(dict.fromkeys(collector.specs))
    if not specs:
        raise RuntimeError("the operations made no call that can be tuned")
    with progress() as bar:
        bar.phase("compiling", len(specs))
        outcomes = pool.build_all(specs, arch=specs[0].arch, jobs=arguments.jobs, on_outcome=lambda outcome: bar.step())
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    for outcome in failed:
        print(f"skipped {outcome.spec.label}: {outcome.error}")
    counts = ", ".join(f"{sum(outcome.status == status for outcome in outcomes)} {status}" for status in ("compiled", "cached", "failed"))
    print(f"{len(specs)} kernels: {counts}; in {settings.directory()}")
    return 1 if len(failed) == len(specs) else 0


def _kept(arguments: argparse.Namespace) -> int:
    require_gpu("tune")
    import torch

    name = device_name(torch.device(arguments.device).index or 0)
    if arguments.forget:
        print(f"{table.forget(name)} results for {name} removed")
        return 0
    entries = [entry for entry in table.kept(name) if not arguments.op or entry.op in arguments.op]
    for entry in entries:
        print(
            f"{entry.op} {' '.join(str(value) for value in entry.problem.values())} {'x'.join(map(str, entry.extents))}: "
            f"{entry.config} {entry.us:.1f} us, default {entry.default} {entry.default_us:.1f} us"
        )
    print(f"{len(entries)} results for {name} in {table.kept_path(name) or 'this process alone'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
