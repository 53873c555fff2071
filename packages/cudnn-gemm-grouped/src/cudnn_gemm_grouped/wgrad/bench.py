"""How the weight gradient is measured: W (E, N, K) of gradients dy (T, N) and activations a (T, K), in the operands' dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn.bench import Benchmark, Candidate, HostPath, Shape, dense, grouped, peers
from cudnn.bench.spec import Inputs
from cudnn_gemm_grouped.bench_common import Call, Config, compiled, name_of

if TYPE_CHECKING:
    import torch


def _inputs(shape: Shape, dtype: str, device: torch.device, generator: torch.Generator) -> dict[str, Any]:
    rows = grouped.total(shape)
    found = {"a": dense.random_matrix(rows, shape[3], dtype, device, generator), "ends": grouped.ends(shape, device)}
    return {**found, "dy": dense.random_matrix(rows, shape[2], dtype, device, generator)}


def _bind(inputs: Inputs, config: Config = None, adds: bool = False) -> Call:
    import torch

    from cudnn_gemm_grouped.wgrad.api import GroupedGemmWgrad

    a, dy, ends = inputs["a"], inputs["dy"], inputs["ends"]
    w = torch.zeros(len(ends), dy.shape[1], a.shape[1], device=a.device, dtype=a.dtype)
    operation = compiled(GroupedGemmWgrad(dy.t(), a, None, None, ends, w, accumulate_on_output=adds, config=config))
    transposed = dy.t()

    def call() -> torch.Tensor:
        operation.execute(transposed, a, offsets_tensor=ends, wgrad_tensor=w)
        return w

    return call


def _ours(config: Config) -> Candidate:
    return Candidate(name_of(config), "cudnn grouped_gemm_wgrad", lambda inputs: _bind(inputs, config), lambda w: {"w": w}, in_place=True)


def _reference(inputs: Inputs) -> dict[str, torch.Tensor]:
    from cudnn.reference.grouped import grouped_wgrad

    return {"w": grouped_wgrad(inputs["dy"].t(), inputs["a"], inputs["ends"])}


def _torch(a: torch.Tensor, dy: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    import torch

    if a.is_cuda and a.dtype == torch.bfloat16:
        return torch._grouped_mm(dy.t(), a, offs=ends)
    starts = [0, *ends.tolist()]
    return torch.stack([dy[start:end].t() @ a[start:end] for start, end in zip(starts, starts[1:], strict=False)])


def _baseline(inputs: Inputs) -> dict[str, torch.Tensor]:
    return {"w": _torch(inputs["a"], inputs["dy"], inputs["ends"])}


def _bind_torch(inputs: Inputs) -> Call:
    return lambda: _torch(inputs["a"], inputs["dy"], inputs["ends"])


def _bind_quack(inputs: Inputs) -> Call:
    gemm = peers.quack().gemm
    dy, a, cu = inputs["dy"].t(), inputs["a"], grouped.starts_and(inputs["ends"])
    return lambda: gemm(dy, a, cu_seqlens_k=cu, tuned=True)


def _bind_wrapper(inputs: Inputs) -> Call:
    from cudnn_gemm_grouped.wgrad.api import grouped_gemm_wgrad_wrapper

    a, dy, ends = inputs["a"], inputs["dy"].t(), inputs["ends"]
    return lambda: grouped_gemm_wgrad_wrapper(dy, a, offsets_tensor=ends)


BENCH = Benchmark(
    op="grouped_gemm_wgrad",
    title="Weight gradient of grouped GEMM",
    axes=grouped.AXES,
    shapes={"uneven": grouped.UNEVEN, "gate-up": grouped.GATE_UP, "down": grouped.DOWN},
    inputs=_inputs,
    ours=_ours,
    peers=(
        Candidate("ours-adding", "cudnn grouped_gemm_wgrad, added to what is there", lambda i: _bind(i, adds=True), lambda w: {"w": w}, whole=False),
        Candidate("torch", "torch._grouped_mm", _bind_torch, lambda w: {"w": w}),
        Candidate("quack", "QuACK grouped GEMM along K, tuned", _bind_quack, lambda w: {"w": w}, peers.quack_missing),
    ),
    reference=_reference,
    baseline=_baseline,
    flops=grouped.flops,
    bytes=lambda shape, dtype: 2.0 * (grouped.total(shape) * (shape[2] + shape[3]) + shape[0] * shape[2] * shape[3]),
    host_paths=(
        HostPath("GroupedGemmWgrad.execute", _bind),
        HostPath("grouped_gemm_wgrad_wrapper", _bind_wrapper),
        HostPath("torch._grouped_mm", _bind_torch),
    ),
    host_shape=(4, 512, 128, 128),
)
