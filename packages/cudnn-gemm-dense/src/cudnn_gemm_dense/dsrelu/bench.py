"""How the gradient of GEMM + squared ReLU is measured: C read and D stored in the operands' dtype, dprob added up atomically and, as a yardstick, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn.bench import Benchmark, Candidate, HostPath, Shape, dense
from cudnn.bench.spec import Inputs
from cudnn_gemm_dense.gemm.bench import Call, Config, compiled, name_of, operands, ours_plain_before

if TYPE_CHECKING:
    import torch

NAMES = ("a", "b", "c", "prob")


def _inputs(shape: Shape, dtype: str, device: torch.device, generator: torch.Generator) -> dict[str, Any]:
    import torch

    m, n, _ = shape
    prob = torch.rand(m, 1, device=device, generator=generator) + 0.5
    return {**operands(shape, dtype, device, generator), "c": dense.random_matrix(m, n, dtype, device, generator), "prob": prob}


def _bind(inputs: Inputs, config: Config = None, deterministic: bool = False) -> Call:
    import torch

    from cudnn_gemm_dense.dsrelu.api import GemmDsrelu

    a, b, c, prob = (inputs[name].unsqueeze(-1) for name in NAMES)
    d, dprob = torch.empty_like(c), torch.zeros_like(prob)
    operation = compiled(GemmDsrelu(a, b, c, d, dprob, sample_prob=prob, deterministic=deterministic, config=config))
    workspace = torch.empty(operation.workspace_bytes(), dtype=torch.uint8, device=a.device)

    def call() -> tuple[torch.Tensor, torch.Tensor]:
        dprob.zero_()
        operation.execute(a, b, c, d, dprob, prob_tensor=prob, workspace=workspace)
        return d, dprob

    return call


def _outputs(result: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"d": result[0].squeeze(-1), "dprob": result[1].squeeze(-1)}


def _ours(config: Config) -> Candidate:
    return Candidate(name_of(config), "cudnn gemm_dsrelu, one kernel and dprob's zeros", lambda inputs: _bind(inputs, config), _outputs, in_place=True)


def _finish(g: torch.Tensor, c: torch.Tensor, prob: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    g = g.float().relu()
    weighted = g * c
    return (2 * weighted * prob).to(c.dtype), (g * weighted).sum(-1, keepdim=True)


def _unfused(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, prob: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    return _finish(torch.matmul(a, b.t()), c, prob)


def _named(result: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
    return dict(zip(("d", "dprob"), result, strict=True))


def _reference(inputs: Inputs) -> dict[str, torch.Tensor]:
    from cudnn_gemm_dense.srelu.reference import gemm_dsrelu_reference

    return _outputs(gemm_dsrelu_reference(*(inputs[name].unsqueeze(-1) for name in NAMES)))


def _baseline(inputs: Inputs) -> dict[str, torch.Tensor]:
    return _named(_unfused(*(inputs[name] for name in NAMES)))


def _bind_compiled(inputs: Inputs) -> Call:
    import torch

    # Else the compiler gives up on one function after eight shapes, and runs it eagerly.
    torch.compiler.reset()
    fused = torch.compile(_unfused, dynamic=False)
    arguments = [inputs[name] for name in NAMES]
    return lambda: fused(*arguments)


def _bind_wrapper(inputs: Inputs) -> Call:
    from cudnn_gemm_dense.dsrelu.api import gemm_dsrelu_wrapper

    a, b, c, prob = (inputs[name].unsqueeze(-1) for name in NAMES)
    return lambda: gemm_dsrelu_wrapper(a, b, c, prob_tensor=prob, d_dtype=a.dtype)


BENCH = Benchmark(
    op="gemm_dsrelu",
    title="GEMM + gradient of squared ReLU",
    axes=dense.AXES,
    shapes=dense.SHAPES,
    inputs=_inputs,
    ours=_ours,
    peers=(
        ours_plain_before(lambda g, inputs: _named(_finish(g, inputs["c"], inputs["prob"]))),
        Candidate(
            "ours-deterministic", "cudnn gemm_dsrelu, dprob summed in order", lambda inputs: _bind(inputs, None, True), _outputs, whole=False, in_place=True
        ),
        Candidate("torch-compile", "cuBLAS matmul, then torch.compile'd gradient", _bind_compiled, _named),
    ),
    reference=_reference,
    baseline=_baseline,
    flops=dense.gemm_flops,
    bytes=lambda shape, dtype: 2.0 * (shape[0] * shape[2] + shape[1] * shape[2] + 2 * shape[0] * shape[1]),
    host_paths=(HostPath("GemmDsrelu.execute", _bind), HostPath("gemm_dsrelu_wrapper", _bind_wrapper)),
    host_shape=(128, 128, 128),
)
