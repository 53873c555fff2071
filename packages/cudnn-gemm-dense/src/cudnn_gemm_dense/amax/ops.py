"""`cudnn.ops.gemm_amax`: a linear layer that tells the largest magnitude in its output, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cudnn.torch_autocast import cast_inputs
from cudnn_gemm_dense.linear import check_linear
from cudnn_gemm_dense.products import check_features, product, product_with_amax

__all__ = ["gemm_amax"]


def gemm_amax(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """(x wᵀ, the largest magnitude in it before it is rounded). The product is differentiable once in x and w, the magnitude is not.

    One kernel forward, and a product for each gradient that is asked for. Under autocast x and w are cast as for ``torch.nn.functional.linear``. Under torch.compile these are the operators
    ``cudnn::linear_amax`` and ``cudnn::linear_amax_backward``.

    Args:
        x: (..., K), bfloat16 or float16. CUDA tensors run on compute capability 9.0, CPU tensors through the reference.
        w: (N, K), row-major as ``torch.nn.Linear`` keeps it.

    Returns:
        The product (..., N) in x's dtype, contiguous, and amax, of shape () in float32: -inf where the product is empty.

    Raises:
        TypeError: a tensor is neither bfloat16 nor float16, or w is not of x's dtype.
        ValueError: devices, ranks or shapes do not fit; K or N is no multiple of 8.
    """
    x, w = cast_inputs(x.device.type, x, w) if isinstance(x, Tensor) else (x, w)
    check_linear("gemm_amax", x, [("w", w)])
    check_features("gemm_amax", "w", "rows", w.shape[0])
    out, amax = linear_amax(x.reshape(-1, x.shape[-1]), w)
    return out.view(*x.shape[:-1], w.shape[0]), amax


@torch.library.custom_op("cudnn::linear_amax", mutates_args=())
def linear_amax(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """(x wᵀ (M, N), amax ()) of x (M, K)."""
    return product_with_amax(x, w)


@linear_amax.register_fake
def _(x, w):
    return x.new_empty((x.shape[0], w.shape[0])), x.new_empty((), dtype=torch.float32)


@torch.library.custom_op("cudnn::linear_amax_backward", mutates_args=())
def linear_amax_backward(grad: Tensor, x: Tensor, w: Tensor, needs: Sequence[bool]) -> list[Tensor]:
    """Gradients of x and w, those that ``needs`` names. What a gradient does not need may be empty."""
    need_x, need_w = needs
    return [*([product(grad, w.t())] if need_x else []), *([product(grad.t(), x.t())] if need_w else [])]


@linear_amax_backward.register_fake
def _(grad, x, w, needs):
    need_x, need_w = needs
    d_x = [grad.new_empty((grad.shape[0], w.shape[1]))] if need_x else []
    return [*d_x, *([grad.new_empty((grad.shape[1], x.shape[1]))] if need_w else [])]


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    x, w = inputs
    need_x, need_w = ctx.needs_input_grad[:2]
    nothing = x.new_empty(0)
    ctx.save_for_backward(x if need_w else nothing, w if need_x else nothing)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    needs = list(ctx.needs_input_grad[:2])
    found = iter(linear_amax_backward(grad, *ctx.saved_tensors, needs))
    return tuple(next(found) if needed else None for needed in needs)


linear_amax.register_autograd(_backward, setup_context=_setup_context)
