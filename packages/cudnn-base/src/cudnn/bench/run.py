"""Measuring one operation: inputs, correctness, interleaved times, ratios. The result is JSON data; ``report`` and ``plot`` show it."""

from __future__ import annotations

import datetime
import gc
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cudnn.bench.spec import Benchmark, Candidate, HostPath, Inputs, Shape, label
from cudnn.bench.timing import Prepared, Timer

if TYPE_CHECKING:
    import torch

SCHEMA = 1
OURS = "ours"
MAX_SETS = 32
_SETS_MEMORY = 0.35  # share of the free device memory that rotated inputs may take


def is_ours(name: str) -> bool:
    """Whether a candidate is the operation itself, in its default or a given configuration."""
    return name == OURS or name.startswith(f"{OURS}[")


class UnknownCandidate(ValueError):
    """``--against`` names something the benchmark does not have."""


def choose(bench: Benchmark, against: Sequence[str] | None, configs: Sequence[Mapping[str, object]] = ()) -> tuple[list[Candidate], dict[str, str]]:
    """Our candidates (one per config, or the default rule) and the peers, and why the others are left out.

    ``against`` None is every peer that can run here; one that is named and cannot raises RuntimeError with the reason, one that does not
    exist UnknownCandidate.
    """
    names = [peer.name for peer in bench.peers]
    for name in against or ():
        if name not in names:
            raise UnknownCandidate(f"--against: found {name!r}, {bench.op} has {', '.join(names)}")
    chosen, left_out = [bench.ours(config) for config in configs] or [bench.ours(None)], {}
    for peer in bench.peers:
        if against is not None and peer.name not in against:
            continue
        reason = peer.missing()
        if reason is None:
            chosen.append(peer)
        elif against is not None:
            raise RuntimeError(f"--against {peer.name}: {reason}")
        else:
            left_out[peer.name] = reason
    return chosen, left_out


def measure_shape(
    bench: Benchmark,
    group: str,
    shape: Shape,
    dtype: str,
    candidates: Sequence[Candidate],
    timer: Timer,
    *,
    device: Any,
    repeats: int,
    rates: Mapping[str, float],
    seed: int,
    state: Callable[[], Mapping[str, Any]] = dict,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """One row of a result: every candidate at one shape, interleaved.

    A candidate that is wrong, or raises, is in the row with its ``status`` and without a time.
    """
    import torch

    sets = [bench.inputs(shape, dtype, device, _generator(device, seed + i)) for i in range(_set_count(bench, shape, dtype, device))]
    expected = bench.reference(sets[0])
    limits = {name: 2.0 * _error(got, expected[name])["norm"] for name, got in bench.baseline(sets[0]).items()}
    entries: dict[str, dict[str, Any]] = {}
    ready, calls = {}, {}
    for candidate in candidates:
        say(f"{label(shape)} {candidate.name}")
        entry: dict[str, Any] = {"title": candidate.title, "whole": candidate.whole}
        entries[candidate.name] = entry
        try:
            bound = [candidate.bind(inputs) for inputs in sets]
            entry.update(_judge(candidate.outputs(bound[0]()), expected, limits))
            if entry["status"] == "ok":
                ready[candidate.name] = timer.prepare(candidate.name, bound)
                calls[candidate.name] = bound
        except Exception as error:  # one peer's failure is a fact about that peer
            entry.update(status="failed", reason=f"{type(error).__name__}: {error}")
    times = timer.measure(ready, repeats) if ready else {}
    load: Mapping[str, Any] = {}
    if times:
        slowest = max(times, key=lambda name: statistics.median(times[name]))
        timer.keep_busy(ready[slowest], statistics.median(times[slowest]))
        load = state()
    for candidate in candidates:
        name = candidate.name
        if name not in times:
            continue
        entries[name].update(_statistics(times[name], ready[name], bench.flops(shape), bench.bytes(shape, dtype), rates))
        if candidate.in_place:
            after = _judge(_timed_outputs(candidate, calls[name][0], ready[name]), expected, limits)
            if after["status"] != "ok":
                entries[name] = {"title": candidate.title, "whole": candidate.whole, **after, "reason": f"after the timed calls: {after['reason']}"}
    row = {
        "set": group,
        "shape": list(shape),
        "dtype": dtype,
        "flops": bench.flops(shape),
        "bytes": bench.bytes(shape, dtype),
        "floor_us": floor_us(bench.flops(shape), bench.bytes(shape, dtype), rates),
        "input_sets": len(sets),
        "candidates": entries,
        "ratios": _ratios(entries),
        "gpu": dict(load),
    }
    del sets, expected, ready, calls
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
    return row


def floor_us(flops: float, count: float, rates: Mapping[str, float]) -> float:
    """The time below which no kernel can be here: the longer of computing at the measured rate and moving the bytes at the measured one."""
    return max(flops / rates["matmul_tflops"] / 1e6, count / rates["copy_tb_s"] / 1e6)


def measure_host(paths: Sequence[HostPath], inputs: Inputs, timer: Timer) -> list[dict[str, Any]]:
    """Host cost of each call path: median and least microseconds per call over blocks of calls."""
    rows: list[dict[str, Any]] = []
    for path in paths:
        reason = path.missing()
        if reason is not None:
            continue
        try:
            times = timer.host(path.name, path.bind(inputs))
        except Exception as error:
            rows.append({"path": path.name, "status": "failed", "reason": f"{type(error).__name__}: {error}"})
            continue
        rows.append({"path": path.name, "status": "ok", "us": statistics.median(times), "us_min": min(times)})
    return rows


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Geometric mean of our speed-up over each whole peer, per set of shapes and over all: {set: {peer: ratio}}."""
    found: dict[str, dict[str, list[float]]] = {**{row["set"]: {} for row in rows}, "all": {}}
    for row in rows:
        for peer, ratio in row["ratios"].items():
            if row["candidates"][peer]["whole"]:
                for group in (row["set"], "all"):
                    found[group].setdefault(peer, []).append(ratio)
    return {group: {peer: math.exp(statistics.fmean(map(math.log, ratios))) for peer, ratios in peers.items()} for group, peers in found.items() if peers}


def result(
    bench: Benchmark,
    rows: Sequence[Mapping[str, Any]],
    host: Sequence[Mapping[str, Any]],
    *,
    device: Mapping[str, Any],
    versions: Mapping[str, str],
    rates: Mapping[str, Mapping[str, float]],
    repeats: int,
    left_out: Mapping[str, str],
    command: str,
    source: str | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Everything about one run, as JSON data."""
    return {
        "schema": SCHEMA,
        "op": bench.op,
        "title": bench.title,
        "axes": list(bench.axes),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": command,
        "source": source,
        "device": dict(device),
        "versions": dict(versions),
        "method": {"repeats": repeats, "seed": seed, "statistic": "median", "inputs": "random, rotated", "order": "interleaved, a random order each round"},
        "rates": {dtype: dict(values) for dtype, values in rates.items()},
        "rows": list(rows),
        "summary": summarise(rows),
        "host": list(host),
        "left_out": dict(left_out),
    }


def merge(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """``new`` with the rows of ``old`` that it has not measured again; every row stays what one process measured.

    Raises ValueError when they are of different operations, devices or versions, whose rows do not belong in one file.
    """
    for name, get in (
        ("op", lambda r: r["op"]),
        ("device", lambda r: r["device"].get("name")),
        ("versions", lambda r: r["versions"]),
        ("source", lambda r: r.get("source")),
    ):
        if get(old) != get(new):
            raise ValueError(f"--merge: the file has {name} {get(old)}, this run {get(new)}; write another file")
    key = lambda row: (tuple(row["shape"]), row["dtype"])  # noqa: E731
    measured = {key(row) for row in new["rows"]}
    rows = [row for row in old["rows"] if key(row) not in measured] + list(new["rows"])
    host = list(new["host"]) + [row for row in old["host"] if row["path"] not in {r["path"] for r in new["host"]}]
    return {
        **new,
        "rates": {**old["rates"], **new["rates"]},
        "rows": rows,
        "summary": summarise(rows),
        "host": host,
        "command": f"{old['command']}\n{new['command']}",
    }


def wrong(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each candidate that was wrong or failed."""
    return [
        f"{label(tuple(row['shape']))} {row['dtype']} {name}: {entry['status']}, {entry['reason']}"
        for row in rows
        for name, entry in row["candidates"].items()
        if entry["status"] != "ok"
    ]


def _generator(device: Any, seed: int) -> torch.Generator:
    import torch

    return torch.Generator(device=device).manual_seed(seed)


def _set_count(bench: Benchmark, shape: Shape, dtype: str, device: Any) -> int:
    """How many sets of inputs to rotate, so that between two uses of one at least three times the L2 cache has passed."""
    import torch

    device = torch.device(device)
    if device.type != "cuda":
        return 2
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    free, _ = torch.cuda.mem_get_info(device)
    # Each candidate may hold its own arrangement of the weights, and its outputs.
    fit = int(free * _SETS_MEMORY / (4 * bench.bytes(shape, dtype)))
    return max(1, min(MAX_SETS, fit, max(2, math.ceil(3 * cache / bench.bytes(shape, dtype)))))


def _error(got: torch.Tensor, expected: torch.Tensor) -> dict[str, float]:
    """Relative error by norm, and the largest one of an element by the root mean square of the expected values."""
    import torch

    difference = got.to(torch.float32).reshape(expected.shape) - expected
    scale = torch.linalg.vector_norm(expected).clamp_min(1e-30)
    return {
        "norm": float(torch.linalg.vector_norm(difference) / scale),
        "max": float(difference.abs().max() * math.sqrt(expected.numel()) / scale) if expected.numel() else 0.0,
    }


def _judge(outputs: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], limits: Mapping[str, float]) -> dict[str, Any]:
    unknown = sorted(set(outputs) - set(expected))
    if unknown or not outputs:
        raise RuntimeError(f"outputs {unknown or 'none'}: the reference has {', '.join(expected)}")
    errors = {name: _error(tensor, expected[name]) for name, tensor in outputs.items()}
    # `not <=` and not `>`: a NaN has to fail.
    bad = [f"{name} has a relative error of {e['norm']:.2e}, the limit is {limits[name]:.2e}" for name, e in errors.items() if not e["norm"] <= limits[name]]
    worst = max(errors.values(), key=lambda e: e["norm"])
    found = {"status": "wrong" if bad else "ok", "error": worst["norm"], "error_max": worst["max"], "error_limit": max(limits[name] for name in errors)}
    return {**found, "reason": "; ".join(bad)} if bad else found


def _timed_outputs(candidate: Candidate, call: Callable[[], Any], prepared: Prepared) -> Mapping[str, Any]:
    """What the timed calls themselves write: the outputs of ``call``, poisoned, after one more turn."""
    import torch

    outputs = call()
    for tensor in outputs if isinstance(outputs, (tuple, list)) else [outputs]:
        if isinstance(tensor, torch.Tensor):
            tensor.fill_(math.nan if tensor.dtype.is_floating_point else 255)
    for name, value in candidate.merged.items():
        candidate.outputs(outputs)[name].fill_(value)
    prepared.run()
    return candidate.outputs(outputs)


def _statistics(times: Sequence[float], prepared: Prepared, flops: float, count: float, rates: Mapping[str, float]) -> dict[str, Any]:
    ordered = sorted(times)
    us = statistics.median(ordered)
    found = {
        "us": us,
        "us_p10": ordered[len(ordered) // 10],
        "us_p90": ordered[-1 - len(ordered) // 10],
        "tflops": flops / us / 1e6,
        "tb_s": count / us / 1e6,
        "floor_share": floor_us(flops, count, rates) / us,
        "timed": prepared.method,
        "calls": prepared.calls,
    }
    return {**found, "note": prepared.note} if prepared.note else found


def _ratios(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Peer's time over ours: above 1 we are faster. Several configurations of ours: the fastest."""
    ours = [entry["us"] for name, entry in entries.items() if is_ours(name) and "us" in entry]
    return {name: entry["us"] / min(ours) for name, entry in entries.items() if not is_ours(name) and "us" in entry} if ours else {}
