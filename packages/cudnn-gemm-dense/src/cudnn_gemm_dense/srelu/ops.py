"""`cudnn.ops.gemm_srelu`: a linear layer and squared ReLU, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from cudnn import checks
from cudnn.torch_autocast import cast_inputs, needs_grad
from cudnn.torch_direct import DirectOperator, gradient_of, without_zeros
from cudnn_gemm_dense.linear import check_linear
from cudnn_gemm_dense.products import check_features, product, srelu_gradient
from cudnn_gemm_dense.srelu.products import srelu_product

__all__ = ["gemm_srelu"]


def gemm_srelu(x: Tensor, w: Tensor, *, prob: Tensor | None = None, alpha: float = 1.0) -> Tensor:
    """prob * relu(alpha * x wᵀ)². Differentiable once in x, w and prob.

    Forward one kernel, which stores the pre-activation only where a gradient will need it; backward a pointwise kernel, whose sums for prob are the same bits every time, and a product for each
    gradient that is asked for. Under autocast x and w are cast as for ``torch.nn.functional.linear``. Under torch.compile these are the operators ``cudnn::linear_srelu`` and
    ``cudnn::linear_srelu_backward``.

    Args:
        x: (..., K), bfloat16 or float16. CUDA tensors run on compute capability 9.0, CPU tensors through the reference.
        w: (N, K), row-major as ``torch.nn.Linear`` keeps it.
        prob: (...) or (..., 1), a factor for each row of x, in float32; None for 1.
        alpha: factor on the product, a number.

    Returns:
        (..., N) in x's dtype, contiguous.

    Raises:
        TypeError: x or w is neither bfloat16 nor float16, w is not of x's dtype, prob is not float32.
        ValueError: devices, ranks or shapes do not fit; K or N is no multiple of 8.
    """
    x, w = cast_inputs(x.device.type, x, w) if isinstance(x, Tensor) else (x, w)
    check_linear("gemm_srelu", x, [("w", w)])
    check_features("gemm_srelu", "w", "rows", w.shape[0])
    rows = x.reshape(-1, x.shape[-1])
    factors = None
    if prob is not None:
        if prob.dtype != torch.float32:
            raise TypeError(f"gemm_srelu: prob is {prob.dtype}, needs torch.float32")
        if prob.device != x.device:
            raise ValueError(f"gemm_srelu: prob is on {prob.device} while x is on {x.device}, needs one device; move prob")
        if tuple(prob.shape) not in (tuple(x.shape[:-1]), (*x.shape[:-1], 1)):
            raise ValueError(f"gemm_srelu: prob has shape {tuple(prob.shape)}, needs {tuple(x.shape[:-1])} or {(*x.shape[:-1], 1)}, a factor for each row of x")
        factors = prob.reshape(-1)
    out = _DIRECT(rows, w, factors, checks.as_scalar("alpha", alpha), needs_grad(x, w, prob))
    return out.view(*x.shape[:-1], w.shape[0])


# torch.library reads these annotations, so they are spelled as it knows them.
def _linear_srelu(x: Tensor, w: Tensor, prob: Optional[Tensor], alpha: float, keep: bool) -> tuple[Tensor, Tensor]:  # noqa: UP045
    """(prob * relu(s)² (M, N), s = alpha * x wᵀ or where not ``keep`` nothing (0,)) of x (M, K) and prob (M,)."""
    activated, pre = srelu_product(x, w, prob, alpha=alpha, keep=keep)
    return activated, x.new_empty(0) if pre is None else pre


linear_srelu = torch.library.custom_op("cudnn::linear_srelu", _linear_srelu, mutates_args=())


@linear_srelu.register_fake
def _(x, w, prob, alpha, keep):
    shape = (x.shape[0], w.shape[0])
    return x.new_empty(shape), x.new_empty(shape) if keep else x.new_empty(0)


def _linear_srelu_backward(
    grad: Tensor,
    x: Tensor,
    w: Tensor,
    prob: Optional[Tensor],  # noqa: UP045
    pre: Tensor,
    alpha: float,
    needs: Sequence[bool],
) -> list[Tensor]:
    """Gradients of x, w and prob, those that ``needs`` names. What a gradient does not need may be empty."""
    need_x, need_w, need_prob = needs
    d_pre, d_prob = srelu_gradient(pre, grad, prob)
    found = []
    if need_x:
        found.append(product(d_pre, w.t(), alpha=alpha))
    if need_w:
        found.append(product(d_pre.t(), x.t(), alpha=alpha))
    if need_prob:
        found.append(d_prob)
    return found


linear_srelu_backward = torch.library.custom_op("cudnn::linear_srelu_backward", _linear_srelu_backward, mutates_args=())


@linear_srelu_backward.register_fake
def _(grad, x, w, prob, pre, alpha, needs):
    need_x, need_w, need_prob = needs
    found = []
    if need_x:
        found.append(grad.new_empty((grad.shape[0], w.shape[1])))
    if need_w:
        found.append(grad.new_empty((pre.shape[1], x.shape[1])))
    if need_prob:
        found.append(prob.new_empty(prob.shape[0]))
    return found


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, w, prob, alpha, _ = inputs
    need_x, need_w, _ = ctx.needs_input_grad[:3]
    nothing = x.new_empty(0)
    ctx.has_prob = prob is not None
    ctx.save_for_backward(x if need_w else nothing, w if need_x else nothing, *((prob,) if ctx.has_prob else ()), output[1])
    ctx.alpha = alpha
    ctx.mark_non_differentiable(output[1])
    without_zeros(ctx, output[0])


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    x, w, *prob, pre = ctx.saved_tensors
    needs = list(ctx.needs_input_grad[:3])
    found = iter(_DIRECT_BACKWARD(gradient_of(ctx, grad), x, w, prob[0] if ctx.has_prob else None, pre, ctx.alpha, needs))
    return *(next(found) if needed else None for needed in needs), None, None


linear_srelu.register_autograd(_backward, setup_context=_setup_context)
_DIRECT = DirectOperator(linear_srelu, _linear_srelu, 3, _setup_context, _backward, kept=True)
_DIRECT_BACKWARD = DirectOperator(linear_srelu_backward, _linear_srelu_backward, 5)
