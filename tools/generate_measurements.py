"""Write the tables of measured speeds in docs/ from the committed results.

    python tools/generate_measurements.py            write the pages
    python tools/generate_measurements.py --check    write nothing; exit 1 and name the pages that differ

A page says where a table goes, and from which result of which device, with two comments: `<!-- measured: nvidia-h200/gemm -->` and `<!-- end of measured -->`. What is between them is replaced. Needs only the standard library.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PLACE = re.compile(r"(<!-- measured: (\S+) -->\n).*?(<!-- end of measured -->)", re.DOTALL)
VERSIONS = ("torch", "nvidia-cublas", "nvidia-cutlass-dsl")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args(argv).check
    different = 0
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        wanted = filled(text)
        if text == wanted:
            continue
        different += 1
        if check:
            print(f"{page.relative_to(ROOT)} is not what the results give; run: python tools/generate_measurements.py")
        else:
            page.write_text(wanted, encoding="utf-8")
            print(f"wrote {page.relative_to(ROOT)}")
    return 1 if check and different else 0


def filled(text: str) -> str:
    """A page with its tables."""

    def table(match: re.Match[str]) -> str:
        begin, name, end = match.groups()
        path = f"benchmarks/results/{name}.json"
        result = json.loads((ROOT / path).read_text(encoding="utf-8"))
        return f"{begin}\n{section(result, path)}\n{end}"

    return PLACE.sub(table, text)


def section(result: Mapping[str, Any], path: str) -> str:
    """The table of one result and what has to be known about it."""
    rows = result["rows"]
    peers = list(dict.fromkeys(name for row in rows for name, entry in row["candidates"].items() if name != "ours"))
    parts = {name for row in rows for name, entry in row["candidates"].items() if not entry["whole"]}
    by_bytes = all(row["flops"] / (row["bytes"] or 1) < 10 for row in rows)
    rate, unit = ("tb_s", "TB/s") if by_bytes else ("tflops", "TFLOP/s")
    several = len({row["dtype"] for row in rows}) > 1
    lines = ["| " + " | ".join([" x ".join(result["axes"]), "us", unit, "of floor", *(f"{name} (part)" if name in parts else name for name in peers)]) + " |"]
    lines.append("|---|" + "---:|" * (3 + len(peers)))
    for row in rows:
        ours, ratios = row["candidates"]["ours"], row["ratios"]
        shape = " x ".join(map(str, row["shape"])) + (f" {row['dtype']}" if several else "")
        cells = (
            [f"{ours['us']:.1f}", f"{ours[rate]:.{2 if by_bytes else 0}f}", f"{100 * ours['floor_share']:.0f} %"] if "us" in ours else [ours["status"], "", ""]
        )
        lines.append("| " + " | ".join([shape, *cells, *(f"{ratios[name]:.2f}" if ratios.get(name) else "-" for name in peers)]) + " |")
    lines += ["", "Columns of peers: how many times as long they take as ours" + (" (part: they do a part of the work)." if parts else "."), ""]
    means = [
        f"{group}: " + ", ".join(f"{ratio:.2f} of {peer}" for peer, ratio in found.items())
        for group, found in result["summary"].items()
        if found and group != "all"
    ]
    lines += [f"- Geometric means, {'; '.join(means)}."] if means else []
    host = [f"{row['path']} {row['us']:.1f} us" for row in result["host"] if row["status"] == "ok"]
    lines += [f"- Host cost of a call: {', '.join(host)}."] if host else []
    versions = ", ".join(f"{name} {result['versions'][name]}" for name in VERSIONS if name in result["versions"])
    lines.append(
        f"- {result['device']['name']}, {result['date'][:10]}, {versions}; medians of {result['method']['repeats']}, {result['method']['order']}. `{path}`."
    )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
