"""How plain GEMM is measured, and our plain GEMM as a yardstick for the fused operations: d = a bᵀ, all in one dtype, both operands K-major."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cudnn.bench import Benchmark, Candidate, HostPath, Shape, dense
from cudnn.bench.spec import Inputs

if TYPE_CHECKING:
    import torch

Call = Callable[[], Any]
Config = Mapping[str, object] | None


def operands(shape: Shape, dtype: str, device: torch.device, generator: torch.Generator) -> dict[str, Any]:
    """a (M, K) and b (N, K), scaled so that the product is of unit size."""
    m, n, k = shape
    return {"a": dense.random_matrix(m, k, dtype, device, generator), "b": dense.random_matrix(n, k, dtype, device, generator, scale=k**-0.5)}


def name_of(config: Config) -> str:
    return "ours" if config is None else f"ours[{','.join(f'{k}={v}' for k, v in config.items())}]"


def compiled(operation: Any) -> Any:
    """The operation, checked and built."""
    operation.check_support()
    operation.compile()
    return operation


def bind_gemm(inputs: Inputs, config: Config = None) -> Call:
    import torch

    from cudnn_gemm_dense.gemm.api import Gemm

    a, b = inputs["a"].unsqueeze(-1), inputs["b"].unsqueeze(-1)
    d = torch.empty(a.shape[0], b.shape[0], 1, device=a.device, dtype=a.dtype if a.dtype.itemsize > 1 else torch.bfloat16)
    operation = compiled(Gemm(a, b, d, config=config))

    def call() -> torch.Tensor:
        operation.execute(a, b, d)
        return d

    return call


def ours_plain(output: str) -> Candidate:
    """Our plain GEMM as a part of a fused operation, giving ``output``."""
    return Candidate("ours-plain", "cudnn's own GEMM alone, default configuration", bind_gemm, lambda d: {output: d.squeeze(-1)}, whole=False, in_place=True)


def ours_plain_before(finish: Callable[[torch.Tensor, Inputs], Mapping[str, torch.Tensor]]) -> Candidate:
    """Our plain GEMM as a part of an operation that does not store the product: what is checked is ``finish`` of it, which is not timed."""

    def bind(inputs: Inputs) -> Call:
        multiply = bind_gemm(inputs)
        return lambda: (multiply(), inputs)

    def outputs(result: tuple[torch.Tensor, Inputs]) -> Mapping[str, torch.Tensor]:
        return finish(result[0].squeeze(-1), result[1])

    return Candidate("ours-plain", "cudnn's own GEMM alone, default configuration", bind, outputs, whole=False, in_place=True)


def _ours(config: Config) -> Candidate:
    return Candidate(name_of(config), "cudnn gemm", lambda inputs: bind_gemm(inputs, config), lambda d: {"d": d.squeeze(-1)}, in_place=True)


def _reference(inputs: Inputs) -> dict[str, torch.Tensor]:
    from cudnn_gemm_dense.gemm.reference import gemm_reference

    return {"d": gemm_reference(inputs["a"].unsqueeze(-1), inputs["b"].unsqueeze(-1)).squeeze(-1)}


def _baseline(inputs: Inputs) -> dict[str, torch.Tensor]:
    import torch

    a, b = (t if t.dtype.itemsize > 1 else t.bfloat16() for t in (inputs["a"], inputs["b"]))
    return {"d": torch.matmul(a, b.t())}


def _operands_nn(shape: Shape, dtype: str, device: torch.device, generator: torch.Generator) -> dict[str, Any]:
    """b contiguous along N: the gradient of a linear layer's input, from its weight as it lies there."""
    found = operands(shape, dtype, device, generator)
    return {**found, "b": found["b"].t().contiguous().t()}


def _operands_tn(shape: Shape, dtype: str, device: torch.device, generator: torch.Generator) -> dict[str, Any]:
    """a contiguous along M and b along N: the gradient of a linear layer's weight, summed over tokens."""
    found = operands(shape, dtype, device, generator)
    return {name: t.t().contiguous().t() for name, t in found.items()}


def _operands_fp8(shape: Shape, dtype: str, device: torch.device, generator: torch.Generator) -> dict[str, Any]:
    """Both of unit size: smaller numbers would fall below what 8 bits hold."""
    m, n, k = shape
    return {"a": dense.random_matrix(m, k, dtype, device, generator), "b": dense.random_matrix(n, k, dtype, device, generator)}


def _bind_wrapper(inputs: Inputs) -> Call:
    from cudnn_gemm_dense.gemm.api import gemm_wrapper

    a, b = inputs["a"].unsqueeze(-1), inputs["b"].unsqueeze(-1)
    return lambda: gemm_wrapper(a, b)


BENCH = Benchmark(
    op="gemm",
    title="Plain GEMM",
    axes=dense.AXES,
    shapes={**dense.SHAPES, "models": dense.MODELS},
    inputs=operands,
    ours=_ours,
    peers=(dense.cublas("d"), dense.quack("d"), dense.deep_gemm("d")),
    reference=_reference,
    baseline=_baseline,
    flops=dense.gemm_flops,
    bytes=lambda shape, dtype: 2.0 * (shape[0] * shape[2] + shape[1] * shape[2] + shape[0] * shape[1]),
    host_paths=(
        HostPath("Gemm.execute", bind_gemm),
        HostPath("gemm_wrapper", _bind_wrapper),
        HostPath("torch matmul", dense.cublas("d").bind),
    ),
    host_shape=(128, 128, 128),
)

BENCHES = (
    BENCH,
    replace(
        BENCH,
        op="gemm_nn",
        title="Plain GEMM, B contiguous along N (gradient of an input)",
        shapes={"large": dense.LARGE},
        inputs=_operands_nn,
        peers=(dense.cublas("d"), dense.quack("d")),
        host_paths=(),
    ),
    replace(
        BENCH,
        op="gemm_tn",
        title="Plain GEMM, A contiguous along M and B along N (gradient of a weight)",
        shapes={"large": dense.LARGE},
        inputs=_operands_tn,
        peers=(dense.cublas("d"), dense.quack("d")),
        host_paths=(),
    ),
    replace(
        BENCH,
        op="gemm_fp8",
        title="Plain GEMM, 8-bit operands, full accumulation",
        shapes={**dense.SHAPES, "long-sums": ((4096, 4096, 16384),)},
        inputs=_operands_fp8,
        peers=(dense.cublaslt_fp8("d"),),
        dtypes=("float8_e4m3fn",),
        bytes=lambda shape, dtype: 1.0 * (shape[0] * shape[2] + shape[1] * shape[2] + 2 * shape[0] * shape[1]),
        host_paths=(),
    ),
)
