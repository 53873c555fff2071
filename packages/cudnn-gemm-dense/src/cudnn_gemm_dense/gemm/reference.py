"""Plain GEMM in plain torch: what the kernel computes, any strides, any device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudnn.reference import matmul

if TYPE_CHECKING:
    import torch


def gemm_reference(
    a: torch.Tensor,
    b: torch.Tensor,
    alpha: float = 1.0,
    *,
    bias: torch.Tensor | None = None,
    addend: torch.Tensor | None = None,
    compute_dtype: torch.dtype | str | None = None,
) -> torch.Tensor:
    """d = alpha * A Bᵀ + bias + addend.

    Args:
        a: (M, K, L).
        b: (N, K, L).
        alpha: factor on the product.
        bias: (N,) or (N, L), added to every row.
        addend: (M, N, L).
        compute_dtype: dtype of products, sums and result: float32 (None) or float64.

    Returns:
        (M, N, L) in ``compute_dtype``, not rounded to any output dtype.
    """
    d = matmul(a, b, alpha, compute_dtype=compute_dtype)
    if bias is not None:
        d = d + (bias if bias.dim() == 2 else bias.unsqueeze(-1)).to(d.dtype)
    return d if addend is None else d + addend.to(d.dtype)
