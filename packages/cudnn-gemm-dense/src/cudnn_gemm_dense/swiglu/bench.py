"""How GEMM + SwiGLU is measured: AB12 and C stored in the operands' dtype, as a forward pass that will be differentiated needs them.

N counts both halves: a (M, K), weights [gate; up] (N, K), AB12 (M, N), C (M, N/2). Every candidate gets the weights in the arrangement it likes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cudnn.bench import Benchmark, Candidate, HostPath, Shape, dense, peers
from cudnn.bench.spec import Inputs
from cudnn_gemm_dense.gemm.bench import ours_plain

if TYPE_CHECKING:
    import torch

Call = Callable[[], Any]


def _inputs(shape: Shape, dtype: str, device: torch.device, generator: torch.Generator) -> dict[str, Any]:
    m, n, k = shape
    # Weights scaled so that the pre-activations are of unit size, where the sigmoid has its bend.
    return {"a": dense.random_matrix(m, k, dtype, device, generator), "b": dense.random_matrix(n, k, dtype, device, generator, scale=k**-0.5)}


def _reference(inputs: Inputs) -> dict[str, torch.Tensor]:
    """float32: ``ab12`` as [gate | up], ``c`` = up * silu(gate) of the unrounded halves."""
    from cudnn_gemm_dense.swiglu.reference import gemm_swiglu_reference

    s, c = gemm_swiglu_reference(inputs["a"].unsqueeze(-1), inputs["b"].unsqueeze(-1), glu_layout="concatenated")
    return {"ab12": s.squeeze(-1), "c": c.squeeze(-1)}


def _unfused(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    ab12 = torch.matmul(a, b.t())
    gate, up = ab12.chunk(2, -1)
    return ab12, up * torch.nn.functional.silu(gate)


def _named(result: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
    return dict(zip(("ab12", "c"), result, strict=True))


def _baseline(inputs: Inputs) -> dict[str, torch.Tensor]:
    return _named(_unfused(inputs["a"], inputs["b"]))


def _interleaved(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B of our operation: three axes, gate and up in blocks of 32."""
    from cudnn.reference import interleave_gate_up

    return inputs["a"].unsqueeze(-1), interleave_gate_up(inputs["b"]).unsqueeze(-1)


def _operation(a: torch.Tensor, b: torch.Tensor, config: Mapping[str, object] | None) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """The compiled class, and its outputs."""
    import torch

    from cudnn_gemm_dense.swiglu.api import GemmSwiglu

    ab12 = torch.empty(a.shape[0], b.shape[0], 1, device=a.device, dtype=a.dtype)
    c = torch.empty(a.shape[0], b.shape[0] // 2, 1, device=a.device, dtype=a.dtype)
    operation = GemmSwiglu(a, b, ab12, c, config=config)
    operation.check_support()
    operation.compile()
    return operation, ab12, c


def _ours(config: Mapping[str, object] | None) -> Candidate:
    def bind(inputs: Inputs) -> Call:
        a, b = _interleaved(inputs)
        operation, ab12, c = _operation(a, b, config)

        def call() -> tuple[torch.Tensor, torch.Tensor]:
            operation.execute(a, b, ab12, c)
            return ab12, c

        return call

    def outputs(result: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
        from cudnn.reference import deinterleave_gate_up

        ab12, c = result
        return {"ab12": deinterleave_gate_up(ab12, dim=1).squeeze(-1), "c": c.squeeze(-1)}

    name = "ours" if config is None else f"ours[{','.join(f'{k}={v}' for k, v in config.items())}]"
    return Candidate(name, "cudnn gemm_swiglu, one kernel", bind, outputs, in_place=True)


def _bind_compiled(inputs: Inputs) -> Call:
    import torch

    # Else the compiler gives up on one function after eight shapes, and runs it eagerly.
    torch.compiler.reset()
    a, b = inputs["a"], inputs["b"]
    fused = torch.compile(_unfused, dynamic=False)
    return lambda: fused(a, b)


def _bind_quack(inputs: Inputs) -> Call:
    gemm_act = peers.quack().gemm_act
    # Its gate and up columns alternate.
    a, b = inputs["a"], inputs["b"].unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1).contiguous().t()
    return lambda: gemm_act(a, b, activation="swiglu", store_preact=True, tuned=True)


def _quack_outputs(result: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
    import torch

    preact, c = result
    return {"ab12": torch.cat([preact[..., ::2], preact[..., 1::2]], -1), "c": c}


def _bind_execute(inputs: Inputs) -> Call:
    return _ours(None).bind(inputs)


def _bind_wrapper(inputs: Inputs) -> Call:
    from cudnn_gemm_dense.swiglu.api import gemm_swiglu_wrapper

    a, b = _interleaved(inputs)
    return lambda: gemm_swiglu_wrapper(a, b, 1.0, ab12_dtype=a.dtype, c_dtype=a.dtype)


BENCH = Benchmark(
    op="gemm_swiglu",
    title="GEMM + SwiGLU with the pre-activation stored",
    axes=dense.AXES,
    shapes=dense.SHAPES,
    inputs=_inputs,
    ours=_ours,
    peers=(
        ours_plain("ab12"),
        dense.part(dense.cublas("ab12")),
        Candidate("torch-compile", "cuBLAS matmul, then torch.compile'd SwiGLU", _bind_compiled, _named),
        Candidate("quack", "QuACK fused SwiGLU, tuned, pre-activation stored", _bind_quack, _quack_outputs, peers.quack_missing),
        dense.part(dense.quack("ab12", name="quack-plain")),
        dense.part(dense.deep_gemm("ab12")),
    ),
    reference=_reference,
    baseline=_baseline,
    flops=dense.gemm_flops,
    bytes=lambda shape, dtype: 2.0 * (shape[0] * shape[2] + shape[1] * shape[2] + 1.5 * shape[0] * shape[1]),
    host_paths=(
        HostPath("GemmSwiglu.execute", _bind_execute),
        HostPath("gemm_swiglu_wrapper", _bind_wrapper),
        HostPath("torch matmul + torch.compile'd SwiGLU", _bind_compiled),
        HostPath("quack gemm_act", _bind_quack, peers.quack_missing),
    ),
    host_shape=(128, 128, 128),
)
