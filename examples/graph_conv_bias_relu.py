"""Convolution + bias + ReLU with `cudnn.Graph`: torch tensors in, torch tensors out.

    y = relu(conv2d(x, w) + b), channels-last

The graph is described with torch calls inside a `with` block and called like a function afterwards. cuDNN runs it as one kernel on a Hopper GPU, the reference
engine in plain torch on a CPU.

    python examples/graph_conv_bias_relu.py [--batch N] [--channels N] [--size N] [--device cpu|cuda]
"""

from __future__ import annotations

import argparse

import torch

import cudnn


def fused_layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> cudnn.Graph:
    """relu(conv(x, weight) + bias) for tensors like these; their values are not kept."""
    with cudnn.Graph(
        io_data_type=x.dtype,
        intermediate_data_type=torch.float32,
        compute_data_type=torch.float32,
        inputs=["conv::image", "conv::weight", "bias::1"],
        outputs=["relu::OUT_0"],
    ) as graph:
        y = graph.conv_fprop(image=x, weight=weight, padding=[1, 1], stride=[1, 1], dilation=[1, 1], name="conv")
        y = graph.bias(y, bias, name="bias")
        graph.relu(y, name="relu").set_output(True)
    return graph


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=None, help="default: 32 on a GPU, 2 on a CPU")
    parser.add_argument("--channels", type=int, default=None, help="default: 256 on a GPU, 32 on a CPU")
    parser.add_argument("--size", type=int, default=None, help="height and width of the images; default: 56 on a GPU, 28 on a CPU")
    options = parser.parse_args()
    device = options.device
    batch = options.batch or (32 if device == "cuda" else 2)
    channels = options.channels or (256 if device == "cuda" else 32)
    size = options.size or (56 if device == "cuda" else 28)

    def channels_last(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape, device=device) * scale).half().contiguous(memory_format=torch.channels_last)

    weight = channels_last(channels, channels, 3, 3, scale=(9 * channels) ** -0.5)
    bias = torch.randn(1, channels, 1, 1, device=device).half()
    layer = fused_layer(channels_last(batch, channels, size, size), weight, bias)
    engine = layer.selected_engine
    print(f"{batch} x {channels} x {size} x {size} float16 on {device}, run by {'cuDNN' if engine is None else f'the engine {engine.name!r}'}")

    for step in range(3):
        x = channels_last(batch, channels, size, size)
        y = layer(x, weight, bias)
        want = torch.relu(torch.nn.functional.conv2d(x.double(), weight.double(), padding=1) + bias.double())
        error = ((y.double() - want).norm() / want.norm()).item()
        print(f"batch {step}: output {tuple(y.shape)}, channels-last {y.is_contiguous(memory_format=torch.channels_last)}, error against float64 {error:.2e}")


if __name__ == "__main__":
    main()
