"""What the benchmarks of dense GEMM operations share: sizes, and the peers that multiply.

Operands here are a (M, K) and b (N, K), both K-major; C = a bᵀ.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cudnn.bench import peers
from cudnn.bench.spec import Candidate, Inputs, Shape

if TYPE_CHECKING:
    import torch

AXES = ("M", "N", "K")
LARGE: tuple[Shape, ...] = ((4096, 4096, 4096), (8192, 8192, 8192), (8192, 28672, 8192), (16384, 4096, 7168))
SMALL_M: tuple[Shape, ...] = tuple((m, 8192, 8192) for m in (1, 16, 64, 128))
SHAPES = {"large": LARGE, "small-m": SMALL_M}
# The products of a layer at 8192 tokens; Llama-3 8B and 70B: qkv, o, gate and up, down (70B's o is among LARGE); Qwen2.5 7B: qkv, gate and up, down; DeepSeek-V3: q_b and o.
MODELS: tuple[Shape, ...] = tuple(
    (8192, n, k)
    for n, k in (
        *((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),
        *((10240, 8192), (57344, 8192), (8192, 28672)),
        *((4608, 3584), (37888, 3584), (3584, 18944)),
        *((24576, 1536), (7168, 16384)),
    )
)


def random_matrix(rows: int, columns: int, dtype: str, device: Any, generator: torch.Generator, scale: float = 1.0) -> torch.Tensor:
    """(rows, columns) of normal numbers with standard deviation ``scale``. Random, because zeros draw less power and run 13 % faster."""
    import torch

    return (torch.randn(rows, columns, device=device, generator=generator) * scale).to(getattr(torch, dtype))


def gemm_flops(shape: Shape) -> float:
    """2 M N K."""
    m, n, k = shape
    return 2.0 * m * n * k


def cublas(output: str, operand: str = "b") -> Candidate:
    """torch's matmul, giving ``output`` from ``a`` and ``operand``; where the operation does more than multiply this is a part of it."""

    def bind(inputs: Inputs) -> Any:
        import torch

        a, b = inputs["a"], inputs[operand]
        return lambda: torch.matmul(a, b.t())

    return Candidate("cublas", "cuBLAS matmul (torch)", bind, lambda d: {output: d})


def cublaslt_fp8(output: str, operand: str = "b") -> Candidate:
    """cuBLASLt's product of 8-bit operands with full accumulation, giving ``output`` in bfloat16."""

    def bind(inputs: Inputs) -> Any:
        import torch

        a, b = inputs["a"], inputs[operand]
        one = torch.ones((), device=a.device)
        if not a.is_cuda:
            return lambda: (a.float() @ b.float().t()).bfloat16()
        return lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=False)

    return Candidate("cublaslt", "cuBLASLt fp8, full accumulation (torch)", bind, lambda d: {output: d})


def quack(output: str, operand: str = "b", name: str = "quack") -> Candidate:
    """QuACK's tuned GEMM."""

    def bind(inputs: Inputs) -> Any:
        gemm = peers.quack().gemm
        a, b = inputs["a"], inputs[operand].t()
        return lambda: gemm(a, b, tuned=True)

    return Candidate(name, "QuACK GEMM, tuned", bind, lambda d: {output: d}, peers.quack_missing)


def deep_gemm(output: str, operand: str = "b") -> Candidate:
    """DeepGEMM's bfloat16 GEMM."""

    def bind(inputs: Inputs) -> Any:
        import torch

        gemm = peers.deep_gemm().bf16_gemm_nt
        a, b = inputs["a"], inputs[operand]
        if a.dtype != torch.bfloat16:
            raise ValueError(f"DeepGEMM's GEMM takes bfloat16, these operands are {a.dtype}")
        d = torch.empty(a.shape[0], b.shape[0], device=a.device, dtype=a.dtype)

        def call() -> torch.Tensor:
            gemm(a, b, d)
            return d

        return call

    return Candidate("deepgemm", "DeepGEMM", bind, lambda d: {output: d}, peers.deep_gemm_missing, in_place=True)


def part(candidate: Candidate) -> Candidate:
    """``candidate`` as a yardstick: it does a part of the operation's work and enters no mean."""
    return replace(candidate, title=f"{candidate.title}, alone", whole=False)
