"""What a layer of experts, forward and backward, takes of a GPU's memory beyond its operands, next to the same layer in torch.

    python benchmarks/moe_memory.py [--tokens 8192] [--models qwen3-30b-a3b,mixtral-8x7b] [--json FILE]

Rows of each model's sizes, bfloat16, in MiB: the most that is allocated at once while a second step runs, less what was before it (tokens, weights, gradient of the output). Gradients of both weights are in all rows, and once more by themselves.

- `cudnn`: `cudnn.ops.moe_mlp`;
- `transformers grouped_mm`, `transformers eager`: transformers' experts in these implementations;
- `torch.compile`: the layer on torch._grouped_mm, compiled.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from functools import partial
from typing import Any

MIB = 2**20


def peak(bind: Any, inputs: Any) -> int:
    """Bytes that a step has allocated at most, on top of ``inputs``. The first step compiles, and fills torch's caches."""
    import torch

    before = torch.cuda.memory_allocated()
    call = bind(inputs)
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def measure(models: list[str], tokens: int) -> list[dict[str, Any]]:
    """One row for each of ``models``."""
    import torch

    from cudnn.bench import grouped
    from cudnn_gemm_grouped.moe.bench import BENCH, bind_transformers

    ways = {
        "cudnn": BENCH.ours(None).bind,
        "transformers grouped_mm": bind_transformers,
        "transformers eager": partial(bind_transformers, implementation="eager"),
    }
    ways["torch.compile"] = next(peer.bind for peer in BENCH.peers if peer.name == "torch-compile")
    rows = []
    for model in models:
        experts, top_k, hidden, inner = grouped.MODELS[model]
        generator = torch.Generator(device="cuda").manual_seed(1)
        inputs = BENCH.inputs((experts, top_k, tokens, hidden, inner), "bfloat16", torch.device("cuda"), generator)
        found = {name: round(peak(bind, inputs) / MIB, 1) for name, bind in ways.items()}
        gradients = 2 * (inputs["gate_up"].numel() + inputs["down"].numel()) / MIB
        rows.append({"model": model, "shape": [experts, top_k, tokens, hidden, inner], "weight_gradients_mib": round(gradients, 1), "peak_mib": found})
        del inputs
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--models", default="qwen3-30b-a3b,mixtral-8x7b")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    import torch

    from cudnn.bench import environment

    if not torch.cuda.is_available():
        print("error: this measures memory of a GPU, and there is none", file=sys.stderr)
        return 2
    rows = measure(arguments.models.split(","), arguments.tokens)
    for row in rows:
        print(f"{row['model']}, {arguments.tokens} tokens; gradients of the weights {row['weight_gradients_mib']:.0f} MiB")
        for name, mib in row["peak_mib"].items():
            print(f"  {name:24} {mib:9.0f} MiB")
    if arguments.json:
        result = {
            "what": "memory of a layer of experts, forward and backward, beyond its operands",
            "command": " ".join(["python", *sys.argv]),
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "rows": rows,
            "device": environment.describe_device("cuda:0"),
            "versions": environment.versions(),
        }
        with open(arguments.json, "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
