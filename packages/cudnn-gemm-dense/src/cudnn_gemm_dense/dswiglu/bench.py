"""How the gradient of GEMM + SwiGLU is measured: AB12 [gate | up] read and dAB12 stored in the operands' dtype, as in the backward pass of a feed-forward layer.

N is the extent of one half: a (M, K), b (N, K), AB12 and dAB12 (M, 2 N).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn.bench import Benchmark, Candidate, HostPath, Shape, dense
from cudnn.bench.spec import Inputs
from cudnn_gemm_dense.gemm.bench import Call, Config, compiled, name_of, operands, ours_plain_before

if TYPE_CHECKING:
    import torch


def _inputs(shape: Shape, dtype: str, device: torch.device, generator: torch.Generator) -> dict[str, Any]:
    return {**operands(shape, dtype, device, generator), "ab12": dense.random_matrix(shape[0], 2 * shape[1], dtype, device, generator)}


def _bind(inputs: Inputs, config: Config = None) -> Call:
    import torch

    from cudnn_gemm_dense.dswiglu.api import GemmDswiglu

    a, b, ab12 = (inputs[name].unsqueeze(-1) for name in ("a", "b", "ab12"))
    d = torch.empty_like(ab12)
    operation = compiled(GemmDswiglu(a, b, ab12, d, glu_layout="concatenated", config=config))

    def call() -> torch.Tensor:
        operation.execute(a, b, ab12, d)
        return d

    return call


def _ours(config: Config) -> Candidate:
    return Candidate(
        name_of(config), "cudnn gemm_dswiglu, one kernel", lambda inputs: _bind(inputs, config), lambda d: {"d_ab12": d.squeeze(-1)}, in_place=True
    )


def _finish(g: torch.Tensor, ab12: torch.Tensor) -> torch.Tensor:
    import torch

    from cudnn.reference import swiglu_backward

    gate, up = ab12.float().chunk(2, -1)
    d_gate, d_up, _ = swiglu_backward(gate, up, g.float())
    return torch.cat((d_gate, d_up), -1).to(ab12.dtype)


def _unfused(a: torch.Tensor, b: torch.Tensor, ab12: torch.Tensor) -> torch.Tensor:
    import torch

    return _finish(torch.matmul(a, b.t()), ab12)


def _reference(inputs: Inputs) -> dict[str, torch.Tensor]:
    from cudnn_gemm_dense.dswiglu.reference import gemm_dswiglu_reference

    d, _ = gemm_dswiglu_reference(*(inputs[name].unsqueeze(-1) for name in ("a", "b", "ab12")), glu_layout="concatenated")
    return {"d_ab12": d.squeeze(-1)}


def _baseline(inputs: Inputs) -> dict[str, torch.Tensor]:
    return {"d_ab12": _unfused(inputs["a"], inputs["b"], inputs["ab12"])}


def _bind_compiled(inputs: Inputs) -> Call:
    import torch

    # Else the compiler gives up on one function after eight shapes, and runs it eagerly.
    torch.compiler.reset()
    fused = torch.compile(_unfused, dynamic=False)
    return lambda: fused(inputs["a"], inputs["b"], inputs["ab12"])


def _bind_wrapper(inputs: Inputs) -> Call:
    from cudnn_gemm_dense.dswiglu.api import gemm_dswiglu_wrapper

    a, b, ab12 = (inputs[name].unsqueeze(-1) for name in ("a", "b", "ab12"))
    return lambda: gemm_dswiglu_wrapper(a, b, ab12, glu_layout="concatenated")


BENCH = Benchmark(
    op="gemm_dswiglu",
    title="GEMM + gradient of SwiGLU",
    axes=dense.AXES,
    shapes=dense.SHAPES,
    inputs=_inputs,
    ours=_ours,
    peers=(
        ours_plain_before(lambda g, inputs: {"d_ab12": _finish(g, inputs["ab12"])}),
        Candidate("torch-compile", "cuBLAS matmul, then torch.compile'd gradient", _bind_compiled, lambda d: {"d_ab12": d}),
    ),
    reference=_reference,
    baseline=_baseline,
    flops=dense.gemm_flops,
    bytes=lambda shape, dtype: 2.0 * (shape[0] * shape[2] + shape[1] * shape[2] + 4 * shape[0] * shape[1]),
    host_paths=(HostPath("GemmDswiglu.execute", _bind), HostPath("gemm_dswiglu_wrapper", _bind_wrapper)),
    host_shape=(128, 128, 128),
)
