"""matmul + bias + GELU as one graph: described once, executed on as many inputs as wanted.

    y = gelu(x W + b)

On a Hopper GPU cuDNN compiles the three nodes into one kernel; on a CPU the reference engine runs them in plain torch. The result is compared with float64, and
the time with the same three steps in torch.

    python examples/graph_matmul_bias_gelu.py [--rows N] [--width N] [--hidden N] [--device cpu|cuda]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

import cudnn


def describe(rows: int, width: int, hidden: int, device: str) -> tuple[cudnn.pygraph, dict[str, cudnn.Tensor]]:
    """The graph and its tensors by name. Nothing here holds data."""
    graph = cudnn.pygraph(
        name="matmul_bias_gelu",
        io_data_type=torch.bfloat16,
        intermediate_data_type=torch.float32,
        compute_data_type=torch.float32,
        backend="reference" if device == "cpu" else "cudnn",
    )
    x = graph.tensor(name="x", dim=[1, rows, width])
    weight = graph.tensor(name="weight", dim=[1, width, hidden])
    bias = graph.tensor(name="bias", dim=[1, 1, hidden])
    y = graph.matmul(x, weight, name="project")
    y = graph.bias(y, bias, name="add_bias")
    y = graph.gelu(y, name="activate").set_output(True).set_name("y")
    return graph, {"x": x, "weight": weight, "bias": bias, "y": y}


def milliseconds(call: Callable[[], object], device: str) -> float:
    times = []
    for _ in range(12):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[2:])


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got.double() - want).norm() / want.norm()).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=int, default=None, help="default: 8192 on a GPU, 256 on a CPU")
    parser.add_argument("--width", type=int, default=None, help="default: 4096 on a GPU, 512 on a CPU")
    parser.add_argument("--hidden", type=int, default=None, help="default: 4 times the width")
    options = parser.parse_args()
    device = options.device
    rows = options.rows or (8192 if device == "cuda" else 256)
    width = options.width or (4096 if device == "cuda" else 512)
    hidden = options.hidden or 4 * width

    graph, tensors = describe(rows, width, hidden, device)
    started = time.perf_counter()
    graph.build()
    built = time.perf_counter() - started

    x = torch.randn(1, rows, width, device=device).bfloat16()
    weight = (torch.randn(1, width, hidden, device=device) * width**-0.5).bfloat16()
    bias = torch.randn(1, 1, hidden, device=device).bfloat16()
    y = torch.empty(1, rows, hidden, device=device, dtype=torch.bfloat16)
    buffers = {tensors["x"]: x, "weight": weight, tensors["bias"].get_uid(): bias, "y": y}  # by tensor, name or uid
    graph.execute(buffers)

    def unfused() -> torch.Tensor:
        return torch.nn.functional.gelu(x @ weight + bias)

    want = torch.nn.functional.gelu(x.double() @ weight.double() + bias.double())
    plan = graph.get_plan_name_at_index(graph.inspect()["selected_plan"])
    print(f"{rows} x {width} x {hidden} bfloat16 on {device}: plan {plan} of {graph.get_execution_plan_count()}, built in {built:.2f} s")
    print(f"{'':16}{'error against float64':>24}{'ms':>10}")
    print(f"{'unfused (torch)':16}{relative_error(unfused(), want):24.2e}{milliseconds(unfused, device):10.3f}")
    print(f"{'graph':16}{relative_error(y, want):24.2e}{milliseconds(lambda: graph.execute(buffers), device):10.3f}")


if __name__ == "__main__":
    main()
