"""GEMM + gradient of SwiGLU in plain torch: what the kernel computes, any strides, any device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudnn.reference import join_gate_up, matmul, split_gate_up, swiglu_backward

if TYPE_CHECKING:
    import torch


def gemm_dswiglu_reference(
    a: torch.Tensor,
    b: torch.Tensor,
    ab12: torch.Tensor,
    alpha: float = 1.0,
    *,
    glu_layout: str = "interleaved32",
    compute_dtype: torch.dtype | str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """With g = alpha * A Bᵀ, the gradient of up * silu(gate): the gradient of AB12, and up * silu(gate) itself.

    Args:
        a: (M, K, L).
        b: (N, K, L).
        ab12: (M, 2 N, L), the pre-activation, whose halves gate and up ``glu_layout`` names.
        alpha: factor on the product.
        glu_layout: ``"interleaved32"`` (blocks of 32 columns in turn, up first), ``"concatenated"`` or ``"separate"`` (gate, then up).
        compute_dtype: dtype of products, sums and results: float32 (None) or float64.

    Returns:
        (d_ab12, c) of shapes (M, 2 N, L) and (M, N, L) in ``compute_dtype``, not rounded to any output dtype.
    """
    g = matmul(a, b, alpha, compute_dtype=compute_dtype)
    gate, up = split_gate_up(ab12.to(g.dtype), glu_layout, order="up_first")
    d_gate, d_up, c = swiglu_backward(gate, up, g)
    return join_gate_up(d_gate, d_up, glu_layout, order="up_first"), c
