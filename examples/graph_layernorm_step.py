"""Training steps of a layer norm: forward and backward as two graphs, and the same through `cudnn.ops.layer_norm`.

    forward:  y, mean, inv_var = layernorm(x, scale, bias)
    backward: dx, dscale, dbias = layernorm_backward(dy, x, scale, mean, inv_var)

The two graphs share nothing but the statistics. The operator does the same behind autograd: built once for each shape, kept, and run on torch's current stream.
cuDNN runs both on a Hopper GPU, the reference engine on a CPU.

    python examples/graph_layernorm_step.py [--rows N] [--hidden N] [--steps N] [--device cpu|cuda]
"""

from __future__ import annotations

import argparse

import torch

import cudnn

TRAINING = cudnn.norm_forward_phase.TRAINING


class LayerNormGraphs:
    """Forward and backward of one layer norm over rows of ``hidden`` values, in bfloat16 with float32 parameters."""

    def __init__(self, rows: int, hidden: int, device: str) -> None:
        options = {"io_data_type": torch.bfloat16, "compute_data_type": torch.float32, "backend": "reference" if device == "cpu" else "cudnn"}
        row_dim, scale_dim, stat_dim = [rows, hidden, 1, 1], [1, hidden, 1, 1], [rows, 1, 1, 1]

        self.forward = graph = cudnn.pygraph(name="layernorm", **options)
        x = graph.tensor(name="x", dim=row_dim)
        scale = graph.tensor(name="scale", dim=scale_dim, data_type=torch.float32)
        bias = graph.tensor(name="bias", dim=scale_dim, data_type=torch.float32)
        outputs = graph.layernorm(norm_forward_phase=TRAINING, input=x, scale=scale, bias=bias, epsilon=1e-5)
        for tensor, name in zip(outputs, ("y", "mean", "inv_var"), strict=True):
            tensor.set_output(True).set_name(name)
        graph.build()

        self.backward = graph = cudnn.pygraph(name="layernorm_backward", **options)
        dy, x = graph.tensor(name="dy", dim=row_dim), graph.tensor(name="x", dim=row_dim)
        scale = graph.tensor(name="scale", dim=scale_dim, data_type=torch.float32)
        mean, inv_var = (graph.tensor(name=name, dim=stat_dim, data_type=torch.float32) for name in ("mean", "inv_var"))
        dx, dscale, dbias = graph.layernorm_backward(grad=dy, input=x, scale=scale, mean=mean, inv_variance=inv_var)
        dx.set_output(True).set_name("dx")
        dscale.set_output(True).set_name("dscale").set_data_type(torch.float32)
        dbias.set_output(True).set_name("dbias").set_data_type(torch.float32)
        graph.build()

    def step(self, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, target: torch.Tensor) -> tuple[float, torch.Tensor, torch.Tensor]:
        """(loss, dscale, dbias) of mean((y - target)² / 2)."""
        statistics = {name: torch.empty(x.shape[0], device=x.device) for name in ("mean", "inv_var")}
        y, dx, dscale, dbias = torch.empty_like(x), torch.empty_like(x), torch.empty_like(scale), torch.empty_like(bias)
        self.forward.execute({"x": x, "scale": scale, "bias": bias, "y": y, **statistics})
        difference = y.float() - target
        dy = (difference / difference.numel()).to(x.dtype)
        self.backward.execute({"dy": dy, "x": x, "scale": scale, **statistics, "dx": dx, "dscale": dscale, "dbias": dbias})
        return 0.5 * difference.square().mean().item(), dscale, dbias


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=int, default=None, help="default: 16384 on a GPU, 256 on a CPU")
    parser.add_argument("--hidden", type=int, default=None, help="default: 4096 on a GPU, 128 on a CPU")
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    device = options.device
    rows = options.rows or (16384 if device == "cuda" else 256)
    hidden = options.hidden or (4096 if device == "cuda" else 128)

    wanted_scale, wanted_bias = torch.randn(hidden, device=device), torch.randn(hidden, device=device)
    by_hand = {"scale": torch.ones(hidden, device=device), "bias": torch.zeros(hidden, device=device)}
    by_operator = {name: value.clone().requires_grad_() for name, value in by_hand.items()}
    graphs = LayerNormGraphs(rows, hidden, device)
    rate = 0.5 * hidden

    print(f"{rows} rows of {hidden} values, bfloat16 on {device}")
    print(f"{'step':>4}{'loss, two graphs':>20}{'loss, cudnn.ops':>20}")
    for step in range(options.steps):
        x = torch.randn(rows, hidden, device=device).bfloat16()
        target = torch.nn.functional.layer_norm(x.float(), (hidden,), wanted_scale, wanted_bias)
        loss, dscale, dbias = graphs.step(x, by_hand["scale"], by_hand["bias"], target)
        by_hand["scale"] -= rate * dscale
        by_hand["bias"] -= rate * dbias

        y = cudnn.ops.layer_norm(x, hidden, by_operator["scale"], by_operator["bias"])
        operator_loss = 0.5 * (y.float() - target).square().mean()
        operator_loss.backward()
        with torch.no_grad():
            for value in by_operator.values():
                value -= rate * value.grad
                value.grad = None
        print(f"{step:4}{loss:20.6f}{operator_loss.item():20.6f}")


if __name__ == "__main__":
    main()
