"""What the benchmarks of grouped operations share: sizes, group lengths, and the peers that multiply.

A shape is (E, T, N, K): experts, rows of all groups (tokens before they are rounded up where groups are multiples of 128), columns of a weight, and the extent of the sum. Operands are a (T, K), w (E, N, K) and
ends (E,).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cudnn.bench import dense, peers
from cudnn.bench.spec import Candidate, Inputs, Shape

if TYPE_CHECKING:
    import torch

Call = Callable[[], Any]

AXES = ("E", "T", "N", "K")
UNEVEN: tuple[Shape, ...] = ((8, 16384, 4096, 7168), (32, 32768, 4096, 7168), (128, 16384, 1536, 4096), (64, 1024, 4096, 7168))
# Mixtral-8x7B, Qwen3-30B-A3B and DeepSeek-V3 with 8192 tokens: gate and up of the first weight together, then the second.
TOKENS = 8192
MODELS: Mapping[str, tuple[int, int, int, int]] = {
    "mixtral-8x7b": (8, 2, 4096, 14336),
    "qwen3-30b-a3b": (128, 8, 2048, 768),
    "deepseek-v3": (256, 8, 7168, 2048),
}
GATE_UP: tuple[Shape, ...] = tuple((e, TOKENS * top_k, 2 * inner, hidden) for e, top_k, hidden, inner in MODELS.values())
DOWN: tuple[Shape, ...] = tuple((e, TOKENS * top_k, hidden, inner) for e, top_k, hidden, inner in MODELS.values())
# In the backward pass the gradient of the hidden states comes in, and meets the second weight transposed.
DOWN_BACKWARD: tuple[Shape, ...] = tuple((e, TOKENS * top_k, inner, hidden) for e, top_k, hidden, inner in MODELS.values())
ALIGN = 128


def counts(shape: Shape) -> torch.Tensor:
    """Rows of each group: skewed as routing is for the models' sizes, without alignment and some of them 0; else of uniform weights in [0.2, 1.2), rounded up to 128."""
    import torch

    experts, rows = shape[0], shape[1]
    generator = torch.Generator().manual_seed(0)
    if shape in (*GATE_UP, *DOWN, *DOWN_BACKWARD):
        weights = 1.0 / torch.arange(1, experts + 1).double() ** 1.2
        order = torch.randperm(experts, generator=generator)
        chosen = torch.multinomial((weights / weights.sum())[order], rows, replacement=True, generator=generator)
        return torch.bincount(chosen, minlength=experts)
    weights = torch.rand(experts, generator=generator) + 0.2
    return ((weights / weights.sum() * rows).long() + ALIGN - 1) // ALIGN * ALIGN


def total(shape: Shape) -> int:
    """Rows of all groups together."""
    return int(counts(shape).sum())


def ends(shape: Shape, device: Any) -> torch.Tensor:
    import torch

    return counts(shape).cumsum(0).to(device=device, dtype=torch.int32)


def operands(shape: Shape, dtype: str, device: Any, generator: torch.Generator) -> dict[str, Any]:
    """a (T, K), w (E, N, K) scaled so that products are of unit size, and ends."""
    experts, _, n, k = shape
    w = dense.random_matrix(experts * n, k, dtype, device, generator, scale=k**-0.5).view(experts, n, k)
    return {"a": dense.random_matrix(total(shape), k, dtype, device, generator), "w": w, "ends": ends(shape, device)}


def flops(shape: Shape) -> float:
    """2 T N K."""
    return 2.0 * total(shape) * shape[2] * shape[3]


def traffic(shape: Shape, columns: float) -> float:
    """Bytes of A, of the weights of groups that have rows, and of ``columns`` 16-bit columns of outputs."""
    _, _, n, k = shape
    return 2.0 * (total(shape) * (k + columns) + int((counts(shape) > 0).sum()) * n * k)


def starts_and(found: torch.Tensor) -> torch.Tensor:
    """Ends with the 0 in front that some packages want."""
    import torch

    return torch.cat((torch.zeros(1, dtype=torch.int32, device=found.device), found))


def torch_products(a: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """torch's grouped matmul; where it does not take these (on a CPU, in float16) a loop over the groups."""
    import torch

    if a.is_cuda and a.dtype == torch.bfloat16:
        return torch._grouped_mm(a, w.transpose(1, 2), offs=offsets)
    result, start = torch.empty(a.shape[0], w.shape[1], dtype=a.dtype, device=a.device), 0
    for group, end in enumerate(offsets.tolist()):
        result[start:end] = a[start:end] @ w[group].t()
        start = end
    return result


def torch_grouped(output: str, weight: str = "w") -> Candidate:
    def bind(inputs: Inputs) -> Call:
        a, w, offsets = inputs["a"], inputs[weight], inputs["ends"]
        return lambda: torch_products(a, w, offsets)

    return Candidate("torch", "torch._grouped_mm", bind, lambda d: {output: d})


def quack(output: str, weight: str = "w", name: str = "quack") -> Candidate:
    def bind(inputs: Inputs) -> Call:
        gemm = peers.quack().gemm
        a, w, cu = inputs["a"], inputs[weight].transpose(1, 2), starts_and(inputs["ends"])
        return lambda: gemm(a, w, cu_seqlens_m=cu, tuned=True)

    return Candidate(name, "QuACK grouped GEMM, tuned", bind, lambda d: {output: d}, peers.quack_missing)


def deep_gemm(output: str, weight: str = "w") -> Candidate:
    def bind(inputs: Inputs) -> Call:
        import torch

        gemm = peers.deep_gemm().m_grouped_bf16_gemm_nt_contiguous
        a, w = inputs["a"], inputs[weight]
        if a.dtype != torch.bfloat16:
            raise ValueError(f"DeepGEMM's grouped GEMM takes bfloat16, these operands are {a.dtype}")
        sizes = torch.diff(starts_and(inputs["ends"]))
        if (sizes % ALIGN).any():
            raise ValueError(f"DeepGEMM takes groups of multiples of {ALIGN} rows, these are not")
        owners = torch.repeat_interleave(torch.arange(len(sizes), device=a.device), sizes).int()
        d = torch.empty(a.shape[0], w.shape[1], device=a.device, dtype=a.dtype)

        def call() -> torch.Tensor:
            gemm(a, w, d, owners)
            return d

        return call

    return Candidate("deepgemm", "DeepGEMM, contiguous groups", bind, lambda d: {output: d}, peers.deep_gemm_missing, in_place=True)
