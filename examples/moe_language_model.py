"""A small mixture-of-experts language model, trained from scratch on this repository's own text with `cudnn.torch.GroupedSwigluMLP`, next to the same model with its experts in plain torch.

Both start from the same random weights and see the same batches of bytes. Parameters are float32, the layers compute in bfloat16 under autocast. The two curves part by rounding alone: the run fails where the means over
20 steps differ by more than 2 % anywhere.

    python examples/moe_language_model.py [--steps N] [--batch N] [--context N] [--hidden N] [--intermediate N] [--experts N] [--top-k N] [--layers N] [--compile] [--device cpu|cuda] [--json F] [--plot F.png]

On a CPU the reference engine computes; on a Hopper GPU the kernels.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cudnn.torch import GroupedSwigluMLP

BOUND, WINDOW = 0.02, 20


class PlainExperts(GroupedSwigluMLP):
    """The same parameters, one expert after another in plain torch."""

    def forward(self, x: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:  # type: ignore[override]
        out = torch.zeros_like(x)
        for expert in range(self.num_experts):
            token, choice = torch.where(top_k_index == expert)
            gate, up = functional.linear(x[token], self.gate_up_proj[expert]).chunk(2, -1)
            rows = functional.linear(functional.silu(gate) * up, self.down_proj[expert])
            out = out.index_add(0, token, (rows * top_k_weights[token, choice, None]).to(out.dtype))
        return out


class Mixture(nn.Module):
    """A router, which picks the most probable experts of each token, and the experts."""

    def __init__(self, options: argparse.Namespace, experts: type[GroupedSwigluMLP]) -> None:
        super().__init__()
        self.top_k = options.top_k
        self.router = nn.Linear(options.hidden, options.experts, bias=False)
        self.experts = experts(options.experts, options.hidden, options.intermediate)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        with torch.autocast(x.device.type, enabled=False):
            # In float32, so that rounding does not send a token to another expert in one of the two models.
            weights, index = functional.linear(rows.float(), self.router.weight).softmax(-1).topk(self.top_k)
        return self.experts(rows, index, weights / weights.sum(-1, keepdim=True)).view(x.shape)


class Block(nn.Module):
    """Causal attention and a mixture, each behind a norm and beside a residual."""

    def __init__(self, options: argparse.Namespace, experts: type[GroupedSwigluMLP]) -> None:
        super().__init__()
        self.heads = options.heads
        self.norms = nn.ModuleList([nn.RMSNorm(options.hidden, eps=1e-6) for _ in range(2)])
        self.qkv, self.out = nn.Linear(options.hidden, 3 * options.hidden, bias=False), nn.Linear(options.hidden, options.hidden, bias=False)
        self.mixture = Mixture(options, experts)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))
        return x + self.mixture(self.norms[1](x))


class Model(nn.Module):
    def __init__(self, options: argparse.Namespace, experts: type[GroupedSwigluMLP]) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, options.hidden), nn.Embedding(options.context, options.hidden)
        self.blocks = nn.ModuleList([Block(options, experts) for _ in range(options.layers)])
        self.norm, self.head = nn.RMSNorm(options.hidden, eps=1e-6), nn.Linear(options.hidden, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Mean loss of predicting each byte from those before it."""
        x = self.bytes(tokens[:, :-1]) + self.places(torch.arange(tokens.shape[1] - 1, device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), tokens[:, 1:].flatten())


def batches(options: argparse.Namespace) -> list[Tensor]:
    """Random windows of the repository's Markdown and Python files."""
    root = Path(__file__).resolve().parents[1]
    files = [root / "README.md", *sorted(root.glob("docs/**/*.md")), *sorted(root.glob("packages/*/src/**/*.py")), Path(__file__)]
    text = torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in files if path.is_file())), dtype=torch.uint8)
    starts = torch.randint(len(text) - options.context, (options.steps, options.batch))
    return [torch.stack([text[start : start + options.context] for start in row.tolist()]).long().to(options.device) for row in starts]


def train(model: Model, data: list[Tensor], options: argparse.Namespace) -> dict[str, Any]:
    """Losses of one step per batch, milliseconds per step without the first, and the peak of device memory."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    step = torch.compile(model) if options.compile else model
    losses, cuda = [], options.device == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    for i, tokens in enumerate(data):
        with torch.autocast(options.device, torch.bfloat16):
            loss = step(tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if i == 0:
            started = time.perf_counter()
    milliseconds = (time.perf_counter() - started) / max(len(data) - 1, 1) * 1e3
    return {"losses": losses, "ms_per_step": milliseconds, **({"peak_bytes": torch.cuda.max_memory_allocated()} if cuda else {})}


def smooth(losses: list[float]) -> list[float]:
    """Means over WINDOW steps, or over all of them where they are fewer."""
    size = min(WINDOW, len(losses))
    return [sum(losses[i : i + size]) / size for i in range(len(losses) - size + 1)]


def plot(path: str, results: dict[str, Any], title: str) -> None:
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for (name, result), color in zip(results.items(), ("#0072B2", "#D55E00"), strict=True):
        axis.plot(result["losses"], label=name, color=color, linewidth=1.6 if name == "cudnn" else 3, alpha=1 if name == "cudnn" else 0.45)
    axis.set(xlabel="step", ylabel="loss (nats per byte)", title=title)
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    figure.savefig(path, dpi=140)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = {"steps": 200, "batch": 8, "context": 128, "hidden": 128, "intermediate": 128, "experts": 8, "top-k": 2, "layers": 2, "heads": 4, "seed": 0}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--compile", action="store_true", help="torch.compile both models")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--json", help="file for the losses")
    parser.add_argument("--plot", help="file for the curves; needs matplotlib")
    o = parser.parse_args()
    torch.manual_seed(o.seed)
    plain = Model(o, PlainExperts).to(o.device)
    ours = Model(o, GroupedSwigluMLP).to(o.device)
    ours.load_state_dict(plain.state_dict())
    parameters = sum(p.numel() for p in ours.parameters())
    what = f"{parameters:,} parameters, {o.layers} layers, {o.experts} experts, {o.top_k} of them for each byte"
    print(f"{what}; {o.steps} steps of {o.batch} x {o.context} bytes on {o.device}")
    data = batches(o)
    results = {"plain torch": train(plain, data, o), "cudnn": train(ours, data, o)}
    (_, expected), (_, found) = ((name, smooth(result["losses"])) for name, result in results.items())
    worst = max(abs(other - one) / one for one, other in zip(expected, found, strict=True))
    for name, result in results.items():
        memory = f", peak memory {result['peak_bytes'] / 2**20:.0f} MiB" if "peak_bytes" in result else ""
        print(f"{name:12} loss {result['losses'][0]:.4f} to {smooth(result['losses'])[-1]:.4f}, {result['ms_per_step']:.1f} ms a step{memory}")
    print(f"largest difference of means over {min(WINDOW, o.steps)} steps {worst:.2%}, bound {BOUND:.0%}")
    if o.json:
        device = torch.cuda.get_device_name() if o.device == "cuda" else "CPU"
        Path(o.json).write_text(
            json.dumps({"what": what, "options": vars(o), "device": device, "torch": torch.__version__, "worst": worst, "bound": BOUND, **results}, indent=1)
            + "\n"
        )
    if o.plot:
        plot(o.plot, results, f"Mixture of experts from scratch\n{what}")
    if worst > BOUND:
        raise SystemExit("the losses part")


if __name__ == "__main__":
    main()
