"""How grouped GEMM + SwiGLU is measured: C and D in the operands' dtype, as a forward pass that will be differentiated needs them.

N counts both halves: w is [gate; up] (E, N, K), C (T, N), D (T, N/2). Every candidate gets the weights in the arrangement it likes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn.bench import Benchmark, Candidate, HostPath, dense, grouped, peers
from cudnn.bench.spec import Inputs
from cudnn_gemm_grouped.bench_common import Call, Config, compiled, factors, name_of
from cudnn_gemm_grouped.unfused.bench import bind as bind_unfused

if TYPE_CHECKING:
    import torch


def _bind(inputs: Inputs, config: Config = None, layout: str = "interleaved32", keep: bool = True) -> Call:
    import torch

    from cudnn.reference import interleave_gate_up
    from cudnn_gemm_grouped.glu.api import GroupedGemmGlu

    a, w, ends = inputs["a"], inputs["w"], inputs["ends"]
    if layout == "interleaved32":
        w = interleave_gate_up(w, dim=1, order="gate_first")
    alpha, prob = factors(a, ends)
    rows, n = a.shape[0], w.shape[1]
    c = torch.empty(rows, n, device=a.device, dtype=a.dtype) if keep else None
    d = torch.empty(rows, n // 2, device=a.device, dtype=a.dtype)
    operation = compiled(GroupedGemmGlu(a, c, d, None, ends, alpha, sample_b=w, sample_prob=prob, generate_c=keep, glu_layout=layout, config=config))

    def call() -> tuple[Any, torch.Tensor]:
        operation.execute(a, c, d, None, ends, alpha, w, prob_tensor=prob)
        return c, d

    return call


def _interleaved(result: tuple[Any, torch.Tensor]) -> dict[str, torch.Tensor]:
    from cudnn.reference import deinterleave_gate_up

    c, d = result
    return {"d": d} if c is None else {"c": deinterleave_gate_up(c, dim=1, order="gate_first"), "d": d}


def _named(result: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
    return dict(zip(("c", "d"), result, strict=True))


def _ours(config: Config) -> Candidate:
    return Candidate(name_of(config), "cudnn grouped_gemm_glu", lambda inputs: _bind(inputs, config), _interleaved, in_place=True)


def _reference(inputs: Inputs) -> dict[str, torch.Tensor]:
    import torch

    from cudnn.reference.grouped import grouped_gemm_glu

    alpha = torch.ones(len(inputs["ends"]), device=inputs["a"].device)
    return _named(grouped_gemm_glu(inputs["a"], inputs["w"], inputs["ends"], alpha, glu_layout="concatenated"))


def _unfused(a: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    c = grouped.torch_products(a, w, ends)
    gate, up = c.chunk(2, -1)
    return c, up * torch.nn.functional.silu(gate)


def _baseline(inputs: Inputs) -> dict[str, torch.Tensor]:
    return _named(_unfused(inputs["a"], inputs["w"], inputs["ends"]))


def _bind_compiled(inputs: Inputs) -> Call:
    import torch

    # Else the compiler gives up on one function after eight shapes, and runs it eagerly.
    torch.compiler.reset()
    fused = torch.compile(_unfused, dynamic=False)
    return lambda: fused(inputs["a"], inputs["w"], inputs["ends"])


def _bind_quack(inputs: Inputs) -> Call:
    gemm_act = peers.quack().gemm_act
    # Its gate and up columns alternate.
    w = inputs["w"].unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2).contiguous().transpose(1, 2)
    a, cu = inputs["a"], grouped.starts_and(inputs["ends"])
    return lambda: gemm_act(a, w, activation="swiglu", cu_seqlens_m=cu, store_preact=True, tuned=True)


def _quack_outputs(result: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
    import torch

    c, d = result
    return {"c": torch.cat((c[..., ::2], c[..., 1::2]), -1), "d": d}


def _bind_wrapper(inputs: Inputs) -> Call:
    from cudnn_gemm_grouped.glu.api import grouped_gemm_glu_wrapper

    a, w, ends = inputs["a"], inputs["w"], inputs["ends"]
    alpha, prob = factors(a, ends)
    return lambda: grouped_gemm_glu_wrapper(a, None, ends, alpha, w, prob_tensor=prob, generate_c=True)


BENCH = Benchmark(
    op="grouped_gemm_glu",
    title="Grouped GEMM + SwiGLU with the pre-activation stored",
    axes=grouped.AXES,
    shapes={"uneven": grouped.UNEVEN, "gate-up": grouped.GATE_UP},
    inputs=grouped.operands,
    ours=_ours,
    peers=(
        Candidate(
            "ours-concatenated", "cudnn grouped_gemm_glu, [gate; up] weights", lambda inputs: _bind(inputs, layout="concatenated"), _named, in_place=True
        ),
        Candidate(
            "ours-inference", "cudnn grouped_gemm_glu, no pre-activation", lambda inputs: _bind(inputs, keep=False), _interleaved, whole=False, in_place=True
        ),
        Candidate("ours-unfused", "cudnn grouped_gemm alone", bind_unfused, lambda d: {"c": d}, whole=False, in_place=True),
        Candidate("torch-compile", "torch._grouped_mm, then torch.compile'd SwiGLU", _bind_compiled, _named),
        dense.part(grouped.torch_grouped("c")),
        Candidate("quack", "QuACK fused grouped SwiGLU, tuned, pre-activation stored", _bind_quack, _quack_outputs, peers.quack_missing),
        dense.part(grouped.quack("c", name="quack-unfused")),
        dense.part(grouped.deep_gemm("c")),
    ),
    reference=_reference,
    baseline=_baseline,
    flops=grouped.flops,
    bytes=lambda shape, dtype: grouped.traffic(shape, 1.5 * shape[2]),
    host_paths=(HostPath("GroupedGemmGlu.execute", _bind), HostPath("grouped_gemm_glu_wrapper", _bind_wrapper)),
    host_shape=(4, 512, 128, 128),
)
