"""Tables, CSV and comparisons of results."""

from __future__ import annotations

import csv
import io
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from cudnn.bench.spec import label

_COLUMNS = ("shape", "dtype", "candidate", "us", "TFLOP/s", "TB/s", "of floor", "ours is faster by", "rel. error")


def rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """One row of text per shape and candidate, under ``_COLUMNS``."""
    table: list[tuple[str, ...]] = []
    for row in result["rows"]:
        first = (label(tuple(row["shape"])), row["dtype"])
        for name, entry in row["candidates"].items():
            shown = name if entry["whole"] else f"{name} (part)"
            if "us" not in entry:
                table.append((*first, shown, entry["status"], "", "", "", "", f"{entry['error']:.1e}" if "error" in entry else ""))
                continue
            ratio = row["ratios"].get(name)
            numbers = (f"{entry['us']:.1f}", f"{entry['tflops']:.0f}", f"{entry['tb_s']:.2f}", f"{100 * entry['floor_share']:.0f} %")
            table.append((*first, shown, *numbers, "" if ratio is None else f"{ratio:.3f} x", f"{entry['error']:.1e}"))
        table.append((*first, "floor", f"{row['floor_us']:.1f}", *("",) * 5))
    return table


def facts(result: Mapping[str, Any]) -> list[str]:
    """Lines about where, when and how, the measured rates, the means and the host costs."""
    device, versions = result["device"], result["versions"]
    lines = [f"{result['title']} on {device.get('name', 'an unnamed device')}, {result['date'][:10]}, driver {device.get('driver', '?')}"]
    lines.append(", ".join(f"{name} {version}" for name, version in versions.items()))
    for dtype, rates in result["rates"].items():
        lines.append(
            f"measured in this run: torch.matmul {dtype} {rates['matmul_tflops']:.0f} TFLOP/s, copy {rates['copy_tb_s']:.2f} TB/s; the floor is the longer of both"
        )
    for group, means in result["summary"].items():
        if means:
            lines.append(f"geometric mean of ours over {group}: " + ", ".join(f"{ratio:.3f} x {peer}" for peer, ratio in means.items()))
    for row in result["host"]:
        lines.append(
            f"host cost of {row['path']}: " + (f"{row['us']:.1f} us (least {row['us_min']:.1f})" if row["status"] == "ok" else f"failed, {row['reason']}")
        )
    for name, reason in result["left_out"].items():
        lines.append(f"left out: {name}, {reason}")
    return lines


def text(result: Mapping[str, Any], *, color: bool | None = None) -> str:
    """The table and the facts; through rich on a terminal (or with ``color``), else plain."""
    table = rows(result)
    if color is None:
        color = sys.stdout.isatty()
    if color:
        try:
            return _rich(result, table)
        except ImportError:
            pass
    return "\n".join([*_plain(_COLUMNS, table), "", *facts(result)])


def markdown(result: Mapping[str, Any]) -> str:
    """The table for a docs page."""
    lines = ["| " + " | ".join(_COLUMNS) + " |", "|" + "|".join(" --- " if i < 3 else " ---: " for i in range(len(_COLUMNS))) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows(result)]
    return "\n".join([*lines, "", *(f"- {line}" for line in facts(result))])


def csv_text(result: Mapping[str, Any]) -> str:
    """One line per shape and candidate with plain numbers; times in microseconds."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    fields = ("us", "us_p10", "us_p90", "tflops", "tb_s", "floor_share", "error", "error_limit", "timed", "status")
    writer.writerow(["op", "device", "date", "set", *result["axes"], "dtype", "candidate", *fields, "floor_us", "ours_is_faster_by", "sm_mhz"])
    for row in result["rows"]:
        for name, entry in row["candidates"].items():
            start = [result["op"], result["device"].get("name", ""), result["date"], row["set"], *row["shape"], row["dtype"], name]
            writer.writerow([*start, *(entry.get(field, "") for field in fields), row["floor_us"], row["ratios"].get(name, ""), row["gpu"].get("sm_mhz", "")])
    return out.getvalue()


def compare(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """What changed from ``a`` to ``b`` in the rows and candidates that both have: times, and ours relative to the peers, whose drift is the device's.

    Raises ValueError when the results are of different operations or have no row in common.
    """
    if a["op"] != b["op"]:
        raise ValueError(f"compare: one file is of {a['op']}, the other of {b['op']}")
    key = lambda row: (tuple(row["shape"]), row["dtype"])  # noqa: E731
    before = {key(row): row for row in a["rows"]}
    table: list[tuple[str, ...]] = []
    speedups: dict[str, list[float]] = {}
    relative: list[float] = []
    for row in b["rows"]:
        old = before.get(key(row))
        if old is None:
            continue
        drift = []
        for name, entry in row["candidates"].items():
            was = old["candidates"].get(name, {})
            if "us" not in entry or "us" not in was:
                continue
            ratio = was["us"] / entry["us"]
            speedups.setdefault(name, []).append(ratio)
            if not name.startswith("ours"):
                drift.append(ratio)
            table.append((label(tuple(row["shape"])), row["dtype"], name, f"{was['us']:.1f}", f"{entry['us']:.1f}", f"{ratio:.3f} x"))
        ours = [
            (old["candidates"][n]["us"] / e["us"]) for n, e in row["candidates"].items() if n == "ours" and "us" in e and "us" in old["candidates"].get(n, {})
        ]
        if ours and drift:
            relative.append(ours[0] / _mean(drift))
    if not table:
        raise ValueError("compare: no shape and dtype is in both files")
    lines = _plain(("shape", "dtype", "candidate", "us before", "us after", "faster by"), table)
    lines += ["", "geometric means: " + ", ".join(f"{name} {_mean(ratios):.3f} x" for name, ratios in speedups.items())]
    if relative:
        lines.append(f"ours, with the peers' drift taken out: {_mean(relative):.3f} x")
    for what, get in (("device", lambda r: r["device"].get("name")), ("driver", lambda r: r["device"].get("driver"))):
        if get(a) != get(b):
            lines.append(f"note: different {what}: {get(a)} and {get(b)}")
    changed = [
        f"{name} {a['versions'].get(name, '-')} -> {b['versions'].get(name, '-')}"
        for name in sorted({*a["versions"], *b["versions"]})
        if a["versions"].get(name) != b["versions"].get(name)
    ]
    if changed:
        lines.append("note: different versions: " + ", ".join(changed))
    return "\n".join(lines)


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


def _plain(heads: Sequence[str], table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in (heads, *table)) for i in range(len(heads))]
    lines = []
    last: Any = None
    for row in (heads, *table):
        if last is not None and row[:2] != last and last != heads[:2]:
            lines.append("")
        last = row[:2]
        lines.append("  ".join(cell.ljust(width) if i < 3 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip())
    return lines


def _rich(result: Mapping[str, Any], table: Sequence[Sequence[str]]) -> str:
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=facts(result)[0])
    for i, head in enumerate(_COLUMNS):
        shown.add_column(head, justify="left" if i < 3 else "right", no_wrap=True)
    last = None
    for row in table:
        if last is not None and row[:2] != last:
            shown.add_section()
        first = row[:2] != last
        last = row[:2]
        style = "bold green" if row[2].startswith("ours") else "dim" if row[2] == "floor" else None
        shown.add_row(*(row if first else ("", "", *row[2:])), style=style)
    console = Console(record=True, file=io.StringIO(), width=140, force_terminal=True)
    console.print(shown)
    for line in facts(result)[1:]:
        console.print(line, highlight=False)
    return console.export_text(styles=True).rstrip("\n")
