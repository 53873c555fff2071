"""GEMM + SwiGLU in plain torch: what the kernel computes, any strides, any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cudnn.reference import cast, matmul, merge_amax, split_gate_up, swiglu

if TYPE_CHECKING:
    import torch


def gemm_swiglu_reference(
    a: torch.Tensor,
    b: torch.Tensor | Sequence[torch.Tensor],
    alpha: float = 1.0,
    *,
    glu_layout: str = "interleaved32",
    acc_dtype: str = "float32",
    compute_dtype: torch.dtype | str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """s = alpha * A Bᵀ and c = up * gate * sigmoid(gate), up and gate being the halves of s that ``glu_layout`` names.

    Args:
        a: (M, K, L).
        b: (N, K, L); with ``glu_layout="separate"`` the pair (gate, up), each (N/2, K, L).
        alpha: factor on the product.
        glu_layout: ``"interleaved32"`` (blocks of 32 columns in turn, up first), ``"concatenated"`` or ``"separate"`` (gate, then up).
        acc_dtype: ``"float16"`` rounds the product, and alpha times it, to float16 before the activation, as float16 accumulators do.
        compute_dtype: dtype of products, sums and results: float32 (None) or float64. float32 operands are used in full (the TF32 matrix units
            would drop 13 bits of them).

    Returns:
        (s, c) of shapes (M, N, L) and (M, N/2, L) in ``compute_dtype``, not rounded to any output dtype.

    Raises:
        ValueError: the shapes do not fit each other or the layout.
    """
    import torch

    halves = [b] if isinstance(b, torch.Tensor) else b
    parts = [matmul(a, half, compute_dtype=compute_dtype) for half in halves]
    s = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
    if acc_dtype == "float16":
        s = (s.half() * alpha).to(s.dtype)
    else:
        s *= alpha
    gate, up = split_gate_up(s, glu_layout, order="up_first")
    return s, swiglu(gate, up)


def run_reference(
    a: torch.Tensor,
    b: torch.Tensor | Sequence[torch.Tensor],
    ab12: torch.Tensor,
    c: torch.Tensor,
    alpha: float,
    *,
    glu_layout: str,
    acc_dtype: str,
    amax: torch.Tensor | None = None,
) -> None:
    """Writes the reference, rounded, into ``ab12`` (M, N, L) and ``c`` (M, N/2, L), and merges the largest magnitude of C, not rounded, into ``amax``."""
    import torch

    with torch.no_grad():
        s, activated = gemm_swiglu_reference(a, b, alpha, glu_layout=glu_layout, acc_dtype=acc_dtype)
        ab12.copy_(cast(s, ab12.dtype))
        c.copy_(cast(activated, c.dtype))
        if amax is not None:
            merge_amax(amax, activated)
