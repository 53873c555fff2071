"""How GEMM + amax is measured: C and the largest magnitude in it, in one dtype. amax is reset outside of what is timed; merging does not depend on what it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn.bench import Benchmark, Candidate, HostPath, dense
from cudnn.bench.spec import Inputs
from cudnn_gemm_dense.gemm.bench import Call, Config, compiled, name_of, operands, ours_plain

if TYPE_CHECKING:
    import torch


def _bind(inputs: Inputs, config: Config = None) -> Call:
    import torch

    from cudnn_gemm_dense.amax.api import GemmAmax

    a, b = inputs["a"].unsqueeze(-1), inputs["b"].unsqueeze(-1)
    c = torch.empty(a.shape[0], b.shape[0], 1, device=a.device, dtype=a.dtype)
    amax = torch.full((1, 1, 1), float("-inf"), device=a.device)
    operation = compiled(GemmAmax(a, b, None, None, c, amax, config=config))

    def call() -> tuple[torch.Tensor, torch.Tensor]:
        operation.execute(a, b, c_tensor=c, amax_tensor=amax)
        return c, amax

    return call


def _ours(config: Config) -> Candidate:
    return Candidate(
        name_of(config),
        "cudnn gemm_amax, one kernel",
        lambda inputs: _bind(inputs, config),
        lambda result: {"c": result[0].squeeze(-1), "amax": result[1].view(1)},
        in_place=True,
        merged={"amax": float("-inf")},
    )


def _unfused(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    c = torch.matmul(a, b.t())
    return c, c.float().abs().amax().view(1)


def _named(result: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
    return dict(zip(("c", "amax"), result, strict=True))


def _reference(inputs: Inputs) -> dict[str, torch.Tensor]:
    from cudnn_gemm_dense.gemm.reference import gemm_reference

    c = gemm_reference(inputs["a"].unsqueeze(-1), inputs["b"].unsqueeze(-1)).squeeze(-1)
    return {"c": c, "amax": c.abs().amax().view(1)}


def _bind_compiled(inputs: Inputs) -> Call:
    import torch

    # Else the compiler gives up on one function after eight shapes, and runs it eagerly.
    torch.compiler.reset()
    fused = torch.compile(_unfused, dynamic=False)
    return lambda: fused(inputs["a"], inputs["b"])


def _bind_wrapper(inputs: Inputs) -> Call:
    from cudnn_gemm_dense.amax.api import gemm_amax_wrapper

    a, b = inputs["a"].unsqueeze(-1), inputs["b"].unsqueeze(-1)
    return lambda: gemm_amax_wrapper(a, b, c_dtype=a.dtype)


def _baseline(inputs: Inputs) -> dict[str, Any]:
    return _named(_unfused(inputs["a"], inputs["b"]))


BENCH = Benchmark(
    op="gemm_amax",
    title="GEMM + amax",
    axes=dense.AXES,
    shapes=dense.SHAPES,
    inputs=operands,
    ours=_ours,
    peers=(
        ours_plain("c"),
        dense.part(dense.cublas("c")),
        Candidate("torch-compile", "cuBLAS matmul, then torch.compile'd amax", _bind_compiled, _named),
        dense.part(dense.quack("c", name="quack-plain")),
        dense.part(dense.deep_gemm("c")),
    ),
    reference=_reference,
    baseline=_baseline,
    flops=dense.gemm_flops,
    bytes=lambda shape, dtype: 2.0 * (shape[0] * shape[2] + shape[1] * shape[2] + shape[0] * shape[1]),
    host_paths=(HostPath("GemmAmax.execute", _bind), HostPath("gemm_amax_wrapper", _bind_wrapper)),
    host_shape=(128, 128, 128),
)
