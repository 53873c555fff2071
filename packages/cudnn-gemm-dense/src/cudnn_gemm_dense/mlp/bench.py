"""How a feed-forward layer is measured: forward and backward through autograd, gradients of the input and of all three weights.

T tokens, hidden width H, intermediate width I: x (T, H), Wg and Wu (I, H), Wd (H, I).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cudnn.bench import Benchmark, Candidate, HostPath, Shape, dense
from cudnn.bench.spec import Inputs
from cudnn_gemm_dense.gemm.bench import Call, Config

if TYPE_CHECKING:
    import torch

WEIGHTS = ("gate", "up", "down")
OUTPUTS = ("out", "d_x", "d_gate", "d_up", "d_down")
LLAMA: tuple[Shape, ...] = ((4096, 4096, 14336), (16384, 4096, 14336), (4096, 8192, 28672), (16384, 8192, 28672))  # Llama 3 8B and 70B


def _inputs(shape: Shape, dtype: str, device: torch.device, generator: torch.Generator) -> dict[str, Any]:
    tokens, hidden, inner = shape

    def matrix(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        return dense.random_matrix(rows, columns, dtype, device, generator, scale)

    weights = {"gate": matrix(inner, hidden, hidden**-0.5), "up": matrix(inner, hidden, hidden**-0.5), "down": matrix(hidden, inner, inner**-0.5)}
    return {"x": matrix(tokens, hidden), **weights, "grad": matrix(tokens, hidden)}


def _plain(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    import torch

    return (torch.nn.functional.silu(x @ gate.t()) * (x @ up.t())) @ down.t()


def _step(layer: Callable[..., torch.Tensor], inputs: Inputs) -> Call:
    """Forward and backward of ``layer`` on leaves of its own."""
    import torch

    leaves = [inputs[name].detach().requires_grad_() for name in ("x", *WEIGHTS)]

    def call() -> tuple[torch.Tensor, ...]:
        out = layer(*leaves)
        return out.detach(), *torch.autograd.grad(out, leaves, inputs["grad"])

    return call


def _named(result: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    return dict(zip(OUTPUTS, result, strict=True))


def _reference(inputs: Inputs) -> dict[str, torch.Tensor]:
    """In float32, by autograd."""
    from cudnn.reference import full_float32

    wide = {name: t.float() for name, t in inputs.items()}
    with full_float32():
        return _named(_step(_plain, wide)())


def _baseline(inputs: Inputs) -> dict[str, torch.Tensor]:
    return _named(_step(_plain, inputs)())


def _bind(inputs: Inputs) -> Call:
    from cudnn_gemm_dense.mlp.ops import swiglu_mlp

    return _step(swiglu_mlp, inputs)


def _ours(config: Config) -> Candidate:
    def bind(inputs: Inputs) -> Call:
        if config is not None:
            raise ValueError("swiglu_mlp: the layer takes no configuration; tune gemm_swiglu, gemm_dswiglu and gemm")
        return _bind(inputs)

    return Candidate("ours", "cudnn swiglu_mlp, forward and backward", bind, _named)


def _bind_compiled(inputs: Inputs) -> Call:
    import torch

    # Else the compiler gives up on one function after eight shapes, and runs it eagerly.
    torch.compiler.reset()
    return _step(torch.compile(_plain, dynamic=False), inputs)


def _bind_eager(inputs: Inputs) -> Call:
    return _step(_plain, inputs)


def _bind_forward(inputs: Inputs) -> Call:
    import torch

    from cudnn_gemm_dense.mlp.ops import swiglu_mlp

    def call() -> torch.Tensor:
        with torch.no_grad():
            return swiglu_mlp(inputs["x"], *(inputs[name] for name in WEIGHTS))

    return call


BENCH = Benchmark(
    op="swiglu_mlp",
    title="Feed-forward layer, forward and backward",
    axes=("T", "H", "I"),
    shapes={"llama": LLAMA},
    inputs=_inputs,
    ours=_ours,
    peers=(
        Candidate("torch-compile", "the layer in plain torch, torch.compile'd", _bind_compiled, _named),
        Candidate("torch", "the layer in plain torch", _bind_eager, _named),
    ),
    reference=_reference,
    baseline=_baseline,
    # Three products forward, two for each of them backward.
    flops=lambda shape: 18.0 * shape[0] * shape[1] * shape[2],
    # x, the gradient of the output, the output and the gradient of x once; the weights in both passes, and their gradients.
    bytes=lambda shape, dtype: 2.0 * (4 * shape[0] * shape[1] + 9 * shape[1] * shape[2]),
    host_paths=(
        HostPath("swiglu_mlp forward, no gradients", _bind_forward),
        HostPath("swiglu_mlp forward and backward", _bind),
        HostPath("torch.compile'd forward and backward", _bind_compiled),
    ),
    host_shape=(128, 128, 128),
)
