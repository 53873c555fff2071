"""GEMM + squared ReLU and its gradient in plain torch: what the kernels compute, any strides, any device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudnn.reference import matmul

if TYPE_CHECKING:
    import torch


def gemm_srelu_reference(
    a: torch.Tensor, b: torch.Tensor, prob: torch.Tensor | None = None, alpha: float = 1.0, *, compute_dtype: torch.dtype | str | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """s = alpha * A Bᵀ and y = prob * relu(s)².

    Args:
        a: (M, K, L).
        b: (N, K, L).
        prob: (M, 1, L), a factor per row; None for 1.
        alpha: factor on the product.
        compute_dtype: dtype of products, sums and results: float32 (None) or float64.

    Returns:
        (s, y), each (M, N, L) in ``compute_dtype``, not rounded to any output dtype. amax is ``y.abs().amax()``.
    """
    s = matmul(a, b, alpha, compute_dtype=compute_dtype)
    y = s.relu().square()
    return s, y if prob is None else y * prob.to(s.dtype)


def gemm_dsrelu_reference(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, prob: torch.Tensor, alpha: float = 1.0, *, compute_dtype: torch.dtype | str | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """With g = alpha * A Bᵀ: y = 2 relu(g) * c * prob, and dprob = the sum over n of relu(g)² * c.

    Where c is the gradient of ``prob * relu(g)²``, y is the gradient of g and dprob that of prob.

    Args:
        a: (M, K, L).
        b: (N, K, L).
        c: (M, N, L).
        prob: (M, 1, L).
        alpha: factor on the product.
        compute_dtype: dtype of products, sums and results: float32 (None) or float64.

    Returns:
        (y, dprob) of shapes (M, N, L) and (M, 1, L) in ``compute_dtype``.
    """
    g = matmul(a, b, alpha, compute_dtype=compute_dtype).relu()
    weighted = g * c.to(g.dtype)
    return 2 * weighted * prob.to(g.dtype), (g * weighted).sum(1, keepdim=True)
