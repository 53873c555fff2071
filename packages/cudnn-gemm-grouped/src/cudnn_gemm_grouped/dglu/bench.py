"""How the gradient of grouped GEMM + SwiGLU is measured: C [gate | up] read, D stored in the operands' dtype, dprob summed.

N is the extent of one half: a (T, K), w (E, N, K), C and D (T, 2 N).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn.bench import Benchmark, Candidate, HostPath, Shape, dense, grouped, peers
from cudnn.bench.spec import Inputs
from cudnn_gemm_grouped.bench_common import Call, Config, compiled, factors, name_of
from cudnn_gemm_grouped.unfused.bench import bind as bind_unfused

if TYPE_CHECKING:
    import torch


def _inputs(shape: Shape, dtype: str, device: torch.device, generator: torch.Generator) -> dict[str, Any]:
    found = grouped.operands(shape, dtype, device, generator)
    return {**found, "c": dense.random_matrix(found["a"].shape[0], 2 * shape[2], dtype, device, generator)}


def _bind(inputs: Inputs, config: Config = None, layout: str = "concatenated", deterministic: bool = False, dbias: bool = False) -> Call:
    import torch

    from cudnn_gemm_grouped.dglu.api import GroupedGemmDglu

    a, w, ends, c = (inputs[name] for name in ("a", "w", "ends", "c"))
    one, prob = factors(a, ends)
    d, dprob = torch.empty_like(c), torch.zeros(a.shape[0], device=a.device)
    sums = torch.zeros(len(ends), c.shape[1], 1, device=a.device, dtype=torch.bfloat16) if dbias else None
    operation = compiled(
        GroupedGemmDglu(a, c, d, None, None, ends, one, one, prob, dprob, w, sample_dbias=sums, _deterministic=deterministic, glu_layout=layout, config=config)
    )
    # With one allocation for all calls, as a training loop would have it.
    workspace = torch.empty(operation.scratch_workspace_bytes(), dtype=torch.uint8, device=a.device) if operation.scratch_workspace_bytes() else None

    def call() -> torch.Tensor:
        operation.execute(a, c, d, None, None, ends, one, one, prob, dprob, w, dbias_tensor=sums, workspace=workspace)
        return d

    return call


def _ours(config: Config) -> Candidate:
    return Candidate(name_of(config), "cudnn grouped_gemm_dglu", lambda inputs: _bind(inputs, config), lambda d: {"d": d}, in_place=True)


def _reference(inputs: Inputs) -> dict[str, torch.Tensor]:
    """``d``, and ``g``, the product that it begins with."""
    from cudnn.reference.grouped import grouped_gemm_dglu, grouped_matmul

    a, w, ends, c = (inputs[name] for name in ("a", "w", "ends", "c"))
    one, prob = factors(a, ends)
    return {"d": grouped_gemm_dglu(a, w, c, ends, one, None, prob, glu_layout="concatenated").d, "g": grouped_matmul(a, w, ends)}


def _unfused(a: torch.Tensor, w: torch.Tensor, ends: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    import torch

    from cudnn.reference import swiglu_backward

    gate, up = c.float().chunk(2, -1)
    d_gate, d_up, _ = swiglu_backward(gate, up, grouped.torch_products(a, w, ends).float())
    return torch.cat((d_gate, d_up), -1).to(c.dtype)


def _baseline(inputs: Inputs) -> dict[str, torch.Tensor]:
    a, w, ends, c = (inputs[name] for name in ("a", "w", "ends", "c"))
    return {"d": _unfused(a, w, ends, c), "g": grouped.torch_products(a, w, ends)}


def _bind_compiled(inputs: Inputs) -> Call:
    import torch

    # Else the compiler gives up on one function after eight shapes, and runs it eagerly.
    torch.compiler.reset()
    fused = torch.compile(_unfused, dynamic=False)
    return lambda: fused(*(inputs[name] for name in ("a", "w", "ends", "c")))


def _bind_quack(inputs: Inputs) -> Call:
    gemm_dact = peers.quack().gemm_dact
    # Its gate and up columns alternate.
    c = inputs["c"].unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2).contiguous()
    a, w, cu = inputs["a"], inputs["w"].transpose(1, 2), grouped.starts_and(inputs["ends"])
    return lambda: gemm_dact(a, w, c, activation="swiglu", cu_seqlens_m=cu, tuned=True)


def _quack_outputs(result: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    import torch

    d = result[0]
    return {"d": torch.cat((d[..., ::2], d[..., 1::2]), -1)}


def _bind_wrapper(inputs: Inputs) -> Call:
    import torch

    from cudnn_gemm_grouped.dglu.api import grouped_gemm_dglu_wrapper

    a, w, ends, c = (inputs[name] for name in ("a", "w", "ends", "c"))
    one, prob = factors(a, ends)
    dprob = torch.zeros(a.shape[0], device=a.device)
    return lambda: grouped_gemm_dglu_wrapper(a, c, None, ends, one, one, prob, dprob, w, glu_layout="concatenated")


BENCH = Benchmark(
    op="grouped_gemm_dglu",
    title="Gradient of grouped GEMM + SwiGLU",
    axes=grouped.AXES,
    shapes={"uneven": grouped.UNEVEN, "down-backward": grouped.DOWN_BACKWARD},
    inputs=_inputs,
    ours=_ours,
    peers=(
        Candidate(
            "ours-deterministic", "cudnn grouped_gemm_dglu, dprob in a fixed order", lambda i: _bind(i, deterministic=True), lambda d: {"d": d}, in_place=True
        ),
        Candidate("ours-dbias", "cudnn grouped_gemm_dglu with dbias", lambda i: _bind(i, dbias=True), lambda d: {"d": d}, in_place=True),
        Candidate("ours-unfused", "cudnn grouped_gemm alone", bind_unfused, lambda g: {"g": g}, whole=False, in_place=True),
        Candidate("torch-compile", "torch._grouped_mm, then torch.compile'd gradient", _bind_compiled, lambda d: {"d": d}),
        Candidate("quack", "QuACK fused grouped dSwiGLU, tuned", _bind_quack, _quack_outputs, peers.quack_missing),
    ),
    reference=_reference,
    baseline=_baseline,
    flops=grouped.flops,
    bytes=lambda shape, dtype: grouped.traffic(shape, 4 * shape[2]),
    host_paths=(HostPath("GroupedGemmDglu.execute", _bind), HostPath("grouped_gemm_dglu_wrapper", _bind_wrapper)),
    host_shape=(4, 512, 128, 128),
)
