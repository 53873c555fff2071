"""A Llama-style feed-forward block on this repository's own text, with GEMM + SwiGLU as one kernel.

    x = bytes of the text, embedded;  h = RMSNorm(x);  y = x + W_down (up * silu(gate)),  gate = W_gate h,  up = W_up h

The fused version computes gate, up and the activation with one call of `gemm_swiglu_wrapper`, on weights as a checkpoint has them (gate and up
apart). It is compared with the same block in plain torch: error against float64, and time. On a Hopper GPU the layer has the widths of Llama 3
8B; elsewhere an eighth of them, and the reference engine computes.

    python examples/swiglu_mlp.py [--tokens N] [--hidden N] [--intermediate N] [--dtype bfloat16|float16] [--device cpu|cuda]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from cudnn import GemmSwiglu, gemm_swiglu_wrapper

LLAMA_3_8B = 4096, 14336  # hidden and intermediate width


class Block(NamedTuple):
    """The weights: an embedding of bytes, the norm's scale, gate, up and down projections, each (outputs, inputs)."""

    embedding: torch.Tensor
    norm: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor

    @classmethod
    def random(cls, hidden: int, intermediate: int, dtype: torch.dtype, device: str) -> Block:
        def matrix(outputs: int, inputs: int) -> torch.Tensor:
            return (torch.randn(outputs, inputs, device=device) * inputs**-0.5).to(dtype)

        embedding = torch.randn(256, hidden, device=device).to(dtype)
        norm = (1 + 0.1 * torch.randn(hidden, device=device)).to(dtype)
        return cls(embedding, norm, matrix(intermediate, hidden), matrix(intermediate, hidden), matrix(hidden, intermediate))


def repository_text(count: int) -> bytes:
    """The first ``count`` bytes of the repository's Markdown and Python files, repeated where that is too few."""
    root = Path(__file__).resolve().parents[1]
    files = [root / "README.md", *sorted(root.glob("docs/**/*.md")), *sorted(root.glob("packages/*/src/**/*.py")), Path(__file__)]
    text = b"".join(path.read_bytes() for path in files if path.is_file())
    return (text * (count // len(text) + 1))[:count]


def embed(text: bytes, block: Block) -> torch.Tensor:
    return block.embedding[torch.tensor(list(text), device=block.embedding.device)]


def rms_norm(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    wide = x if x.dtype == torch.float64 else x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * scale


def unfused(x: torch.Tensor, block: Block) -> torch.Tensor:
    h = rms_norm(x, block.norm)
    return x + (torch.nn.functional.silu(h @ block.gate.t()) * (h @ block.up.t())) @ block.down.t()


def fused(x: torch.Tensor, block: Block) -> torch.Tensor:
    h = rms_norm(x, block.norm)
    # Three axes (rows, K, L) with L = 1. AB12, the pre-activation, is what a backward pass would need.
    result = gemm_swiglu_wrapper(
        h.unsqueeze(-1), (block.gate.unsqueeze(-1), block.up.unsqueeze(-1)), ab12_dtype=x.dtype, c_dtype=x.dtype, glu_layout="separate"
    )
    return x + result["c_tensor"].squeeze(-1) @ block.down.t()


def backend_of(x: torch.Tensor, block: Block) -> str:
    """What the fused call runs on here, asked of the class without running it."""
    rows, width = x.shape[0], block.gate.shape[0]
    ab12, c = (torch.empty(rows, columns, 1, dtype=x.dtype, device=x.device) for columns in (2 * width, width))
    op = GemmSwiglu(x.unsqueeze(-1), (block.gate.unsqueeze(-1), block.up.unsqueeze(-1)), ab12, c, glu_layout="separate")
    op.check_support()
    return {"sm90": "the Hopper kernel (sm90)", "reference": "the reference engine (plain torch)"}[op.selected_backend]


def milliseconds(function: Callable[[], object], device: str, repeats: int) -> float:
    """Median time of a call, after two that warm up."""
    times = []
    for i in range(repeats + 2):
        if device == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            function()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        else:
            began = time.perf_counter()
            function()
            times.append((time.perf_counter() - began) * 1e3)
        if i == 1:
            times.clear()
    return statistics.median(times)


def table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def main() -> None:
    hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if hopper else "cpu")
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--hidden", type=int)
    parser.add_argument("--intermediate", type=int)
    arguments = parser.parse_args()

    device, dtype = arguments.device, getattr(torch, arguments.dtype)
    scale = 1 if device == "cuda" else 8
    hidden, intermediate = (given or width // scale for given, width in zip((arguments.hidden, arguments.intermediate), LLAMA_3_8B, strict=True))
    tokens = arguments.tokens or 4096 // scale

    torch.manual_seed(0)
    block = Block.random(hidden, intermediate, dtype, device)
    x = embed(repository_text(tokens), block)
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"Feed-forward block, {tokens} tokens of this repository's text, hidden {hidden}, intermediate {intermediate}, {arguments.dtype}, {name}")
    print(f"gate, up and SwiGLU in one call, by {backend_of(x, block)}\n")

    exact = unfused(x.double(), Block(*(weight.double() for weight in block)))
    rows = [("version", "error against float64", "ms", "speed-up")]
    timed = {"unfused (torch)": unfused, "gemm_swiglu": fused}
    times = {label: milliseconds(lambda version=version: version(x, block), device, 20 if device == "cuda" else 5) for label, version in timed.items()}
    for label, version in timed.items():
        # Of what the block adds to x: the residual itself is exact.
        error = ((version(x, block).double() - exact).norm() / (exact - x.double()).norm()).item()
        rows.append((label, f"{error:.2e}", f"{times[label]:.3f}", f"{times['unfused (torch)'] / times[label]:.2f}"))
    print(table(rows))
    if device == "cpu":
        print("\nOn a CPU the reference engine computes in float32: its time says nothing about the kernel.")


if __name__ == "__main__":
    main()
