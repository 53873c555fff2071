"""A Hugging Face Llama whose feed-forward layers are `cudnn.torch.SwigluMLP`, trained next to the original.

Both models start from the same random weights and see the same batches, bytes of this repository's own text. `use_swiglu_mlp` swaps the layers in two lines; the weights, their names and the optimizer
stay. The losses of the two differ by rounding alone: the run fails where they part by more than 2e-3 of their value.

    python examples/llama_swiglu_mlp.py [--steps N] [--batch N] [--context N] [--hidden N] [--intermediate N] [--layers N] [--compile] [--device cpu|cuda]

Needs transformers. On a CPU the reference engine computes; on a Hopper GPU the kernels.
"""

from __future__ import annotations

import argparse
import copy
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cudnn.torch import SwigluMLP

BOUND = 2e-3  # relative difference of the losses, at every step


def use_swiglu_mlp(model: LlamaForCausalLM) -> None:
    """Swap every feed-forward layer, around the same weights."""
    for layer in model.model.layers:
        layer.mlp = SwigluMLP.from_linears(layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)


def batches(count: int, rows: int, context: int, device: str) -> list[torch.Tensor]:
    """Random windows of the repository's Markdown and Python files, as bytes."""
    root = Path(__file__).resolve().parents[1]
    files = [root / "README.md", *sorted(root.glob("docs/**/*.md")), *sorted(root.glob("packages/*/src/**/*.py")), Path(__file__)]
    text = torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in files if path.is_file())), dtype=torch.uint8)
    starts = torch.randint(len(text) - context, (count, rows))
    return [torch.stack([text[start : start + context] for start in row.tolist()]).long().to(device) for row in starts]


def train(model: LlamaForCausalLM, data: list[torch.Tensor], compiled: bool) -> tuple[list[float], float]:
    """Losses of one step per batch, and seconds per step without the first."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = torch.compile(model) if compiled else model
    losses, started = [], time.perf_counter()
    for i, tokens in enumerate(data):
        loss = step(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if i == 0:
            started = time.perf_counter()
    return losses, (time.perf_counter() - started) / max(len(data) - 1, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("steps", 20), ("batch", 4), ("context", 128), ("hidden", 128), ("intermediate", 352), ("layers", 2), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--compile", action="store_true", help="torch.compile both models")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    o = parser.parse_args()
    torch.manual_seed(o.seed)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=o.hidden,
        intermediate_size=o.intermediate,
        num_hidden_layers=o.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=o.context,
    )
    original = LlamaForCausalLM(config).to(o.device, torch.bfloat16)
    ours = copy.deepcopy(original)
    use_swiglu_mlp(ours)
    print(
        f"{sum(p.numel() for p in ours.parameters()):,} parameters in bfloat16 on {o.device}, {o.layers} layers, {o.steps} steps of {o.batch} x {o.context} bytes"
    )
    data = batches(o.steps, o.batch, o.context, o.device)
    (expected, seconds), (found, our_seconds) = train(original, data, o.compile), train(ours, data, o.compile)
    print("step   original   SwigluMLP   difference")
    for i, (one, other) in enumerate(zip(expected, found, strict=True)):
        print(f"{i:4} {one:10.4f} {other:11.4f} {abs(other - one) / one:12.2e}")
    worst = max(abs(other - one) / one for one, other in zip(expected, found, strict=True))
    print(f"largest relative difference of the losses {worst:.2e}, bound {BOUND:g}; {seconds * 1e3:.1f} ms a step, with SwigluMLP {our_seconds * 1e3:.1f} ms")
    if worst > BOUND:
        raise SystemExit("the losses part")


if __name__ == "__main__":
    main()
