"""Products of matrices (rows, K) for the differentiable operations: what their operators call, forward and backward, with whatever strides their inputs have."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from cudnn.datatypes import dtype_name
from cudnn.streams import launch_handle

if TYPE_CHECKING:
    import torch

FEATURES = 8  # rows of 16-bit elements have to be multiples of 16 bytes


def as_operand(t: torch.Tensor) -> torch.Tensor:
    """``t`` (rows, columns) if the copy engine can step through it as it is, else a copy: one axis contiguous, the other in steps of 16 bytes, from an address on 16 bytes."""
    unit = 16 // t.itemsize
    for inner, outer in ((1, 0), (0, 1)):
        step, pitch = t.stride(inner), t.stride(outer)
        if (step == 1 or t.shape[inner] == 1) and (t.shape[outer] <= 1 or (pitch % unit == 0 and pitch >= t.shape[inner])) and t.data_ptr() % 16 == 0:
            return t
    if t.shape[1] % unit and t.shape[0] % unit == 0:
        return t.t().contiguous().t()
    line = -(-t.shape[1] // unit) * unit
    return t.new_empty(t.shape[0], line)[:, : t.shape[1]].copy_(t)


def product(a: torch.Tensor, b: torch.Tensor, *, alpha: float = 1.0, addend: torch.Tensor | None = None) -> torch.Tensor:
    """alpha * a bᵀ + addend, rounded once to a's dtype: a (M, K), b (N, K), addend (M, N) row-major; (M, N) row-major."""
    from cudnn_gemm_dense.gemm.api import gemm_wrapper

    a, b = as_operand(a), as_operand(b)
    more = None if addend is None else addend.unsqueeze(-1)
    return gemm_wrapper(a.unsqueeze(-1), b.unsqueeze(-1), alpha=alpha, addend_tensor=more)["d_tensor"].squeeze(-1)


def product_with_amax(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(a bᵀ in a's dtype, the largest magnitude in it before rounding, of shape (), float32)."""
    from cudnn_gemm_dense.amax.api import gemm_amax_wrapper

    # The published operation takes compact operands alone.
    a, b = (t if t.is_contiguous() or t.t().is_contiguous() else t.contiguous() for t in (as_operand(a), as_operand(b)))
    c, amax = gemm_amax_wrapper(a.unsqueeze(-1), b.unsqueeze(-1), c_dtype=a.dtype)
    return c.squeeze(-1), amax.view(())


def check_features(op: str, name: str, what: str, features: int) -> None:
    """ValueError unless rows of ``features`` 16-bit elements are multiples of 16 bytes."""
    if features % FEATURES:
        raise ValueError(f"{op}: {name} has {features} {what}, needs a multiple of {FEATURES}: rows of whole 16 bytes; pad with zeros")


@lru_cache(maxsize=64)
def _gated_gradient_kernel(dtype: str, activation: str, interleaved: bool) -> Any:
    from cudnn.cutedsl.pointwise import GatedGradientSpec

    return GatedGradientSpec(dtype, activation, interleaved, gate_first=not interleaved).build()


@lru_cache(maxsize=16)
def _srelu_gradient_kernel(dtype: str, prob: bool) -> Any:
    from cudnn.cutedsl.pointwise import SreluGradientSpec

    return SreluGradientSpec(dtype, prob).build()


def gated_gradient(pre: torch.Tensor, grad: torch.Tensor, glu_layout: str) -> torch.Tensor:
    """Gradient of the pre-activation of SwiGLU: pre (M, 2 I) row-major, grad (M, I); (M, 2 I)."""
    import torch

    from cudnn.reference import cast, join_gate_up, split_gate_up, swiglu_backward

    if not pre.is_cuda:
        gate, up = split_gate_up(pre.float(), glu_layout)
        d_gate, d_up, _ = swiglu_backward(gate, up, grad.float())
        return cast(join_gate_up(d_gate, d_up, glu_layout), pre.dtype)
    out = torch.empty_like(pre)
    if out.numel():
        kernel = _gated_gradient_kernel(dtype_name(pre.dtype), "swiglu", glu_layout == "interleaved32")
        with torch.cuda.device(pre.device):
            kernel((pre, _rows(grad), out), (1.0,), launch_handle(None, "torch", pre.device))
    return out


def srelu_gradient(s: torch.Tensor, grad: torch.Tensor, prob: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(gradient of s, gradient of prob) where y = prob * relu(s)²: s (M, N) row-major, grad (M, N), prob (M,) in float32."""
    import torch

    if not s.is_cuda:
        positive, wide = s.float().relu(), grad.float()
        weighted = 2 * positive * wide
        d_prob = None if prob is None else (positive.square() * wide).sum(-1)
        return (weighted if prob is None else weighted * prob.unsqueeze(-1)).to(s.dtype), d_prob
    out = torch.empty_like(s)
    d_prob = None if prob is None else torch.zeros(s.shape[0], dtype=torch.float32, device=s.device)
    if out.numel():
        kernel = _srelu_gradient_kernel(dtype_name(s.dtype), prob is not None)
        tensors = (s, _rows(grad), out) if prob is None else (s, _rows(grad), out, prob, d_prob)
        with torch.cuda.device(s.device):
            kernel(tensors, launch_handle(None, "torch", s.device))
    return out, d_prob


def _rows(t: torch.Tensor) -> torch.Tensor:
    """``t`` with contiguous rows that start on 16 bytes."""
    unit = 16 // t.itemsize
    whole = t.stride(1) == 1 and t.stride(0) % unit == 0 and t.data_ptr() % 16 == 0
    return t if whole else t.contiguous()
