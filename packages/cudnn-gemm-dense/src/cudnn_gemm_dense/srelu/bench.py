"""How GEMM + squared ReLU is measured: C and D stored in the operands' dtype, a factor per row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn.bench import Benchmark, Candidate, HostPath, Shape, dense, peers
from cudnn.bench.spec import Inputs
from cudnn_gemm_dense.gemm.bench import Call, Config, compiled, name_of, operands, ours_plain

if TYPE_CHECKING:
    import torch


def _inputs(shape: Shape, dtype: str, device: torch.device, generator: torch.Generator) -> dict[str, Any]:
    import torch

    return {**operands(shape, dtype, device, generator), "prob": torch.rand(shape[0], 1, device=device, generator=generator) + 0.5}


def _bind(inputs: Inputs, config: Config = None) -> Call:
    import torch

    from cudnn_gemm_dense.srelu.api import GemmSrelu

    a, b, prob = (inputs[name].unsqueeze(-1) for name in ("a", "b", "prob"))
    c, d = (torch.empty(a.shape[0], b.shape[0], 1, device=a.device, dtype=a.dtype) for _ in range(2))
    operation = compiled(GemmSrelu(a, b, c, d, sample_prob=prob, config=config))

    def call() -> tuple[torch.Tensor, torch.Tensor]:
        operation.execute(a, b, c, d, prob_tensor=prob)
        return c, d

    return call


def _ours(config: Config) -> Candidate:
    return Candidate(
        name_of(config),
        "cudnn gemm_srelu, one kernel",
        lambda inputs: _bind(inputs, config),
        lambda result: {"c": result[0].squeeze(-1), "d": result[1].squeeze(-1)},
        in_place=True,
    )


def _unfused(a: torch.Tensor, b: torch.Tensor, prob: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    c = torch.matmul(a, b.t())
    return c, (c.float().relu().square() * prob).to(c.dtype)


def _named(result: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
    return dict(zip(("c", "d"), result, strict=True))


def _reference(inputs: Inputs) -> dict[str, torch.Tensor]:
    from cudnn_gemm_dense.srelu.reference import gemm_srelu_reference

    s, y = gemm_srelu_reference(*(inputs[name].unsqueeze(-1) for name in ("a", "b", "prob")))
    return {"c": s.squeeze(-1), "d": y.squeeze(-1)}


def _baseline(inputs: Inputs) -> dict[str, torch.Tensor]:
    return _named(_unfused(inputs["a"], inputs["b"], inputs["prob"]))


def _bind_compiled(inputs: Inputs) -> Call:
    import torch

    # Else the compiler gives up on one function after eight shapes, and runs it eagerly.
    torch.compiler.reset()
    fused = torch.compile(_unfused, dynamic=False)
    return lambda: fused(inputs["a"], inputs["b"], inputs["prob"])


def _bind_quack(inputs: Inputs) -> Call:
    gemm_act = peers.quack().gemm_act
    a, b = inputs["a"], inputs["b"].t()
    return lambda: gemm_act(a, b, activation="relu_sq", store_preact=True, tuned=True)


def _bind_wrapper(inputs: Inputs) -> Call:
    from cudnn_gemm_dense.srelu.api import gemm_srelu_wrapper

    a, b, prob = (inputs[name].unsqueeze(-1) for name in ("a", "b", "prob"))
    return lambda: gemm_srelu_wrapper(a, b, prob_tensor=prob, c_dtype=a.dtype, d_dtype=a.dtype)


BENCH = Benchmark(
    op="gemm_srelu",
    title="GEMM + squared ReLU with the pre-activation stored",
    axes=dense.AXES,
    shapes=dense.SHAPES,
    inputs=_inputs,
    ours=_ours,
    peers=(
        ours_plain("c"),
        dense.part(dense.cublas("c")),
        Candidate("torch-compile", "cuBLAS matmul, then torch.compile'd squared ReLU", _bind_compiled, _named),
        dense.part(
            Candidate(
                "quack", "QuACK fused squared ReLU without factors, tuned, pre-activation stored", _bind_quack, lambda r: {"c": r[0]}, peers.quack_missing
            )
        ),
        dense.part(dense.deep_gemm("c")),
    ),
    reference=_reference,
    baseline=_baseline,
    flops=dense.gemm_flops,
    bytes=lambda shape, dtype: 2.0 * (shape[0] * shape[2] + shape[1] * shape[2] + 2 * shape[0] * shape[1]),
    host_paths=(HostPath("GemmSrelu.execute", _bind), HostPath("gemm_srelu_wrapper", _bind_wrapper)),
    host_shape=(128, 128, 128),
)
