"""``python -m cudnn bench list | run | show | compare``."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cudnn.bench import environment, report, spec


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0, 1 when a candidate was wrong or failed, 2 for a request that cannot be met."""
    arguments = _parser().parse_args(argv)
    given = sys.argv[2:] if argv is None else list(argv)
    # Of output files the name alone: a result says how it was measured, not where somebody keeps it.
    named = [Path(word).name if i and given[i - 1] in ("--json", "--csv", "--plot", "--markdown") else word for i, word in enumerate(given)]
    arguments.command_line = shlex.join(["python", "-m", "cudnn", "bench", *named])
    try:
        return {"list": _list, "run": _run, "show": _show, "compare": _compare}[arguments.command](arguments)
    except (ValueError, RuntimeError, ImportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cudnn bench", description="Measure operations against what people would use instead.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="list|run|show|compare")
    commands.add_parser("list", help="operations that can be measured, their shapes and peers")
    run = commands.add_parser("run", help="measure one operation on this GPU")
    run.add_argument("op", help="operation, as `list` names it")
    run.add_argument("--shapes", help="sets and sizes, joined by commas: large,small-m,4096x4096x4096 (default: the first set)")
    run.add_argument("--against", help="peers, joined by commas, or none (default: all that can run here)")
    run.add_argument("--dtype", default=None, help="operand dtypes, joined by commas (default: the operation's first)")
    run.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="FIELD=VALUE,...",
        help="measure ours in this configuration instead of the default rule; may be repeated",
    )
    run.add_argument("--repeats", type=int, default=30, help="rounds of interleaved measurements, at least 20 (default 30)")
    run.add_argument("--device", default="cuda:0", help="device (default cuda:0)")
    run.add_argument("--seed", type=int, default=0, help="seed of the random inputs")
    run.add_argument("--no-host", action="store_true", help="leave the host cost out")
    run.add_argument("--json", metavar="FILE", help="write the result")
    run.add_argument("--merge", action="store_true", help="keep the rows of FILE that this run does not measure again")
    _outputs(run)
    show = commands.add_parser("show", help="print a result again, or write its table or plot; needs no GPU")
    show.add_argument("file")
    show.add_argument("--markdown", metavar="FILE", help="write the table for a docs page")
    _outputs(show)
    compare = commands.add_parser("compare", help="what changed between two results")
    compare.add_argument("before")
    compare.add_argument("after")
    return parser


def _outputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--csv", metavar="FILE", help="write the rows as CSV")
    parser.add_argument("--plot", metavar="FILE", help="write a picture: .png, .svg or .pdf")


def _list(arguments: argparse.Namespace) -> int:
    found, broken = spec.find()
    if not found and not broken:
        print("No installed family has a benchmark; install one, for example: pip install cudnn-gemm-dense")
    for op, bench in found.items():
        print(f"{op}: {bench.title}; {', '.join(bench.dtypes)}")
        for name, shapes in bench.shapes.items():
            print(f"  {name:14} {' x '.join(bench.axes)}: {', '.join(map(spec.label, shapes))}")
        for peer in bench.peers:
            reason = peer.missing()
            print(f"  {peer.name:14} {peer.title}{'' if peer.whole else ' (part of the work)'}{f'; cannot run here: {reason}' if reason else ''}")
    for module, reason in broken.items():
        print(f"{module}: {reason}", file=sys.stderr)
    return 1 if broken else 0


def benchmark(op: str) -> spec.Benchmark:
    """The benchmark of ``op``; ValueError naming those there are."""
    found, broken = spec.find()
    if op in found:
        return found[op]
    reasons = "".join(f"; {module} could not be loaded: {reason}" for module, reason in broken.items())
    raise ValueError(f"found {op!r}, there are benchmarks of {', '.join(found) or 'nothing'}{reasons}")


def parse_config(text: str) -> dict[str, object]:
    """``tile_m=128,pingpong=true,stages=none`` as a dict; ValueError for what is no FIELD=VALUE."""
    words: Mapping[str, object] = {"true": True, "false": False, "none": None}
    found: dict[str, object] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or not name or not value:
            raise ValueError(f"--config: found {part!r}, needs FIELD=VALUE,...")
        found[name] = words[value.lower()] if value.lower() in words else int(value) if value.lstrip("-").isdigit() else value
    return found


def _require_gpu(device: str) -> None:
    try:
        import torch
    except ImportError as error:
        raise RuntimeError('bench measures kernels on a GPU through torch, which is not installed; pip install "cudnn-base[torch]"') from error
    if not torch.cuda.is_available():
        raise RuntimeError(f"bench measures kernels on a GPU, and torch {torch.__version__} sees none here; `bench list`, `show` and `compare` work without")
    torch.cuda.set_device(torch.device(device))


def _run(arguments: argparse.Namespace) -> int:
    bench = benchmark(arguments.op)
    shapes = bench.parse_shapes(arguments.shapes)
    dtypes = arguments.dtype.split(",") if arguments.dtype else [bench.dtypes[0]]
    for dtype in dtypes:
        if dtype not in bench.dtypes:
            raise ValueError(f"--dtype: found {dtype!r}, {bench.op} is measured in {', '.join(bench.dtypes)}")
    if arguments.repeats < 20:
        raise ValueError(f"--repeats: found {arguments.repeats}, needs at least 20 for a median that means something")
    if arguments.merge and not arguments.json:
        raise ValueError("--merge needs --json FILE, the file to add to")
    configs = [parse_config(text) for text in arguments.config]
    against = None if arguments.against is None else [] if arguments.against == "none" else arguments.against.split(",")
    if arguments.plot:
        import matplotlib  # noqa: F401  # before minutes of measuring, not after
    _require_gpu(arguments.device)
    _make_folders(arguments)
    result, faults = measure(bench, shapes, dtypes, against, configs, arguments)
    print(report.text(result))
    _write(result, arguments)
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    return 1 if faults else 0


def measure(
    bench: spec.Benchmark,
    shapes: Sequence[tuple[str, spec.Shape]],
    dtypes: Sequence[str],
    against: Sequence[str] | None,
    configs: Sequence[Mapping[str, object]],
    arguments: argparse.Namespace,
) -> tuple[dict[str, Any], list[str]]:
    """Measure on ``arguments.device``; returns the result (merged, where asked) and a line for each fault in what was measured now."""
    from cudnn.bench import run, timing

    device = arguments.device
    timer = timing.CudaTimer(device)
    candidates, left_out = run.choose(bench, against, configs)
    rates: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    about_device, versions, source = environment.describe_device(device), environment.versions(), environment.source_revision()

    def result(host: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        return run.result(
            bench,
            rows,
            host,
            device=about_device,
            versions=versions,
            rates=rates,
            repeats=arguments.repeats,
            left_out=left_out,
            command=arguments.command_line,
            source=source,
            seed=arguments.seed,
        )

    def say(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    for dtype in dtypes:
        say(f"measuring what {device} does in {dtype}")
        rates[dtype] = timing.measure_rates(timer, dtype, device)
        for group, shape in shapes:
            row = run.measure_shape(
                bench,
                group,
                shape,
                dtype,
                candidates,
                timer,
                device=device,
                repeats=arguments.repeats,
                rates=rates[dtype],
                seed=arguments.seed,
                state=lambda: environment.gpu_state(device),
                say=say,
            )
            rows.append(row)
            _save_part(result(), arguments)
    host: list[dict[str, Any]] = []
    if bench.host_paths and not arguments.no_host:
        say("host cost")
        host = run.measure_host(bench.host_paths, bench.inputs(bench.host_shape, dtypes[0], device, run._generator(device, arguments.seed)), timer)
    say("")
    whole = result(host)
    if arguments.merge and os.path.exists(arguments.json):
        whole = run.merge(_load(arguments.json), whole)
    return whole, run.wrong(rows)


def _save_part(result: Mapping[str, Any], arguments: argparse.Namespace) -> None:
    # A long run that is cut off keeps what it has, a result of fewer rows: it goes beside the result, which is written at the end.
    if arguments.json:
        with open(f"{arguments.json}.part", "w") as file:
            json.dump(result, file, indent=1)


def _load(path: str) -> dict[str, Any]:
    with open(path) as file:
        try:
            found = json.load(file)
        except ValueError as error:
            raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict) or "rows" not in found or "summary" not in found:
        raise ValueError(f"{path} is no result of `bench run`")
    return found


def _make_folders(arguments: argparse.Namespace) -> None:
    for path in (getattr(arguments, "json", None), arguments.csv, arguments.plot, getattr(arguments, "markdown", None)):
        if path and os.path.dirname(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)


def _write(result: Mapping[str, Any], arguments: argparse.Namespace) -> None:
    _make_folders(arguments)
    if getattr(arguments, "json", None):
        with open(arguments.json, "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
        if os.path.exists(f"{arguments.json}.part"):
            os.unlink(f"{arguments.json}.part")
    if arguments.csv:
        with open(arguments.csv, "w") as file:
            file.write(report.csv_text(result))
    if getattr(arguments, "markdown", None):
        with open(arguments.markdown, "w") as file:
            file.write(report.markdown(result) + "\n")
    if arguments.plot:
        from cudnn.bench.plot import plot

        plot(result, arguments.plot)


def _show(arguments: argparse.Namespace) -> int:
    result = _load(arguments.file)
    print(report.text(result))
    _write(result, arguments)
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    print(report.compare(_load(arguments.before), _load(arguments.after)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
