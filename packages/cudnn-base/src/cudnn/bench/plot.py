"""A picture of a result: one panel per set of shapes, bars by candidate, the floor as a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Okabe and Ito's palette, which stays apart for colour-blind readers; a peer keeps its colour in every picture.
COLORS = {
    "ours": "#D55E00",
    "ours-plain": "#E69F00",
    "cublas": "#7F7F7F",
    "cublaslt": "#B5B5B5",
    "torch-compile": "#0072B2",
    "quack": "#009E73",
    "quack-plain": "#8FD3BF",
    "deepgemm": "#CC79A7",
    "torch": "#56B4E9",
}
_SPARE = ("#F0E442", "#4B0082", "#8C564B", "#000000")


def color(name: str, spare: dict[str, str]) -> str:
    """The candidate's fixed colour; ours in several configurations get shades of it, unknown names a spare one each."""
    if name in COLORS:
        return COLORS[name]
    if name.startswith("ours"):
        return ("#A34700", "#FF9A56", "#7A3500", "#FFC499")[len([n for n in spare if n.startswith("ours")]) % 4] if name not in spare else spare[name]
    return spare.setdefault(name, _SPARE[len(spare) % len(_SPARE)])


def plot(result: Mapping[str, Any], path: str) -> None:
    """Write a picture of ``result`` to ``path`` (PNG, SVG or PDF by its ending).

    Panels whose shapes are bound by computing show TFLOP/s, those bound by memory TB/s; a black line is the floor. Raises ImportError without matplotlib.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError('plots need matplotlib; pip install "cudnn-base[bench]"') from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in result["rows"]:
        groups.setdefault((row["set"], row["dtype"]), []).append(row)
    names = list(dict.fromkeys(name for row in result["rows"] for name, entry in row["candidates"].items() if "us" in entry))
    titles = {name: entry["title"] for row in result["rows"] for name, entry in row["candidates"].items()}
    parts = {name for row in result["rows"] for name, entry in row["candidates"].items() if not entry["whole"]}
    spare: dict[str, str] = {}
    palette = {}
    for name in names:
        palette[name] = color(name, spare)
        spare.setdefault(name, palette[name])
    width = max(7.0, 1.5 + max(len(rows) for rows in groups.values()) * (0.45 + 0.38 * len(names)))
    figure, axes = pyplot.subplots(len(groups), 1, figsize=(width, 1.3 + 3.4 * len(groups)), squeeze=False, layout="constrained")
    for axis, ((group, dtype), rows) in zip(axes[:, 0], groups.items(), strict=True):
        _panel(axis, group, dtype, rows, names, palette, parts, result)
    handles: list[Any] = [pyplot.Rectangle((0, 0), 1, 1, color=palette[name], alpha=0.55 if name in parts else 1.0) for name in names]
    handles.append(pyplot.Line2D([], [], color="black", linewidth=1.2))
    texts = [titles[name] + (" (part of the work)" if name in parts else "") for name in names] + ["floor measured in the same run"]
    figure.legend(handles, texts, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    device = result["device"].get("name", "an unnamed device")
    about = ", ".join(f"{name} {result['versions'][name]}" for name in ("torch", "cuda", "nvidia-cutlass-dsl", "cudnn-base") if name in result["versions"])
    figure.suptitle(f"{result['title']} on {device}\n", fontsize=12, fontweight="bold")
    figure.text(
        0.5,
        1.0 - 0.42 / figure.get_figheight(),
        f"{result['date'][:10]}, {about}; median of {result['method']['repeats']}, interleaved, cold cache",
        ha="center",
        fontsize=8,
        color="#444444",
    )
    figure.savefig(path, dpi=160)
    pyplot.close(figure)


def _panel(
    axis: Any, group: str, dtype: str, rows: list[Mapping[str, Any]], names: list[str], palette: Mapping[str, str], parts: set[str], result: Mapping[str, Any]
) -> None:
    rates = result["rates"][dtype]
    bound_by_memory = sum(row["bytes"] / rates["copy_tb_s"] > row["flops"] / rates["matmul_tflops"] for row in rows) * 2 > len(rows)
    field, unit, amount = ("tb_s", "TB/s of the bytes that have to move", "bytes") if bound_by_memory else ("tflops", "TFLOP/s", "flops")
    step = 0.82 / len(names)
    top = 0.0
    for index, row in enumerate(rows):
        for place, name in enumerate(names):
            entry = row["candidates"].get(name, {})
            if "us" not in entry:
                continue
            x = index - 0.41 + (place + 0.5) * step
            axis.bar(x, entry[field], 0.92 * step, color=palette[name], alpha=0.55 if name in parts else 1.0, zorder=2)
            # On a white ground and above the floor's line, which often runs through the numbers.
            ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.6}
            number = f"{entry[field]:.2f}" if bound_by_memory else f"{entry[field]:.0f}"
            axis.annotate(number, (x, entry[field]), (0, 3), textcoords="offset points", ha="center", fontsize=7, zorder=4, bbox=ground)
            top = max(top, entry[field])
        floor = row[amount] / row["floor_us"] / 1e6
        axis.hlines(floor, index - 0.43, index + 0.43, color="black", linewidth=1.2, zorder=3)
        top = max(top, floor)
    axis.set_xticks(range(len(rows)), ["x".join(map(str, row["shape"])) for row in rows])
    axis.set_xlabel(" x ".join(result["axes"]), fontsize=9)
    axis.set_ylabel(unit, fontsize=9)
    axis.set_ylim(0, 1.14 * top if top else 1)
    axis.set_title(f"{group}, {dtype}", fontsize=10, loc="left")
    axis.grid(axis="y", color="#DDDDDD", linewidth=0.6, zorder=0)
    axis.spines[["top", "right"]].set_visible(False)
