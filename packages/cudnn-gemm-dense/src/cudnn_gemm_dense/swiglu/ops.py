"""`cudnn.ops.gemm_swiglu`: a linear layer and SwiGLU, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from cudnn import checks
from cudnn.torch_autocast import cast_inputs, needs_grad
from cudnn.torch_direct import DirectOperator, gradient_of, without_zeros
from cudnn_gemm_dense.linear import check_linear
from cudnn_gemm_dense.mlp.products import gated_product
from cudnn_gemm_dense.products import check_features, gated_gradient, product
from cudnn_gemm_dense.swiglu.shapes import check_columns, check_glu_layout, named_b

__all__ = ["gemm_swiglu"]


def gemm_swiglu(x: Tensor, w: Tensor | Sequence[Tensor], *, alpha: float = 1.0, glu_layout: str = "interleaved32") -> Tensor:
    """up * gate * sigmoid(gate), where gate and up are the halves of alpha * x wᵀ that ``glu_layout`` names. Differentiable once in x and w.

    Forward one kernel, which stores the pre-activation only where a gradient will need it; backward a pointwise kernel and a product for each gradient that is asked for. Under autocast x and w are
    cast as for ``torch.nn.functional.linear``. Under torch.compile these are the operators ``cudnn::linear_swiglu`` and ``cudnn::linear_swiglu_backward``.

    Args:
        x: (..., K), bfloat16 or float16. CUDA tensors run on compute capability 9.0, CPU tensors through the reference.
        w: (N, K), row-major as ``torch.nn.Linear`` keeps it; or with ``glu_layout="separate"`` the pair (gate, up), each (N/2, K).
        alpha: factor on the product, a number.
        glu_layout: ``"interleaved32"`` (blocks of 32 rows of w in turn, up first; N a multiple of 64), ``"concatenated"`` ([gate; up]) or ``"separate"``.

    Returns:
        (..., N/2) in x's dtype, contiguous.

    Raises:
        TypeError: a tensor is neither bfloat16 nor float16, or not of x's dtype.
        ValueError: devices, ranks or shapes do not fit; K or N/2 is no multiple of 8; another layout.
    """
    check_glu_layout(glu_layout)
    names = ("w",) if glu_layout != "separate" else ("w[0] (gate)", "w[1] (up)")
    weights = [t for _, t in named_b(w, glu_layout)]
    x, *weights = cast_inputs(x.device.type, x, *weights) if isinstance(x, Tensor) else (x, *weights)
    check_linear("gemm_swiglu", x, list(zip(names, weights, strict=True)))
    if len(weights) == 2 and weights[0].shape != weights[1].shape:
        raise ValueError(f"gemm_swiglu: w[1] (up) has shape {tuple(weights[1].shape)} while w[0] (gate) has {tuple(weights[0].shape)}, needs equal shapes")
    n = sum(weight.shape[0] for weight in weights)
    check_columns(n, glu_layout)
    if n % 2:
        raise ValueError(f"gemm_swiglu: w has {n} rows, needs an even number: a gate and an up row for each output")
    check_features("gemm_swiglu", "each half of w", "rows", n // 2)
    rows = x.reshape(-1, x.shape[-1])
    out = _DIRECT(rows, weights[0], weights[1] if len(weights) == 2 else None, checks.as_scalar("alpha", alpha), glu_layout, needs_grad(x, *weights))
    return out.view(*x.shape[:-1], n // 2)


# torch.library reads these annotations, so they are spelled as it knows them.
def _linear_swiglu(x: Tensor, w: Tensor, up: Optional[Tensor], alpha: float, glu_layout: str, keep: bool) -> tuple[Tensor, Tensor]:  # noqa: UP045
    """(activated (M, N/2), pre-activation (M, N) or where not ``keep`` nothing (0,)) of x (M, K); ``up``: the second of two separate weights."""
    activated, pre = gated_product(x, (w,) if up is None else (w, up), alpha=alpha, glu_layout=glu_layout, keep=keep)
    return activated, x.new_empty(0) if pre is None else pre


linear_swiglu = torch.library.custom_op("cudnn::linear_swiglu", _linear_swiglu, mutates_args=())


@linear_swiglu.register_fake
def _(x, w, up, alpha, glu_layout, keep):
    n = w.shape[0] * (1 if up is None else 2)
    return x.new_empty((x.shape[0], n // 2)), x.new_empty((x.shape[0], n)) if keep else x.new_empty(0)


def _linear_swiglu_backward(
    grad: Tensor,
    x: Tensor,
    w: Tensor,
    up: Optional[Tensor],  # noqa: UP045
    pre: Tensor,
    alpha: float,
    glu_layout: str,
    needs: Sequence[bool],
) -> list[Tensor]:
    """Gradients of x, w and up, those that ``needs`` names, of two separate weights as one tensor where it names both. What a gradient does not need may be empty."""
    need_x, need_w, need_up = needs
    d_pre = gated_gradient(pre, grad, glu_layout)
    halves = d_pre.chunk(2, 1)
    found = []
    if need_x and up is None:
        found.append(product(d_pre, w.t(), alpha=alpha))
    elif need_x:
        found.append(product(halves[1], up.t(), alpha=alpha, addend=product(halves[0], w.t(), alpha=alpha)))
    if need_w or need_up:
        wanted = d_pre if up is None or (need_w and need_up) else halves[0] if need_w else halves[1]
        found.append(product(wanted.t(), x.t(), alpha=alpha))
    return found


linear_swiglu_backward = torch.library.custom_op("cudnn::linear_swiglu_backward", _linear_swiglu_backward, mutates_args=())


@linear_swiglu_backward.register_fake
def _(grad, x, w, up, pre, alpha, glu_layout, needs):
    need_x, need_w, need_up = needs
    found = []
    if need_x:
        found.append(grad.new_empty((grad.shape[0], w.shape[1])))
    if need_w or need_up:
        n = pre.shape[1]
        found.append(grad.new_empty((n if up is None or (need_w and need_up) else n // 2, x.shape[1])))
    return found


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, w, up, alpha, glu_layout, _ = inputs
    need_x, need_w, need_up = ctx.needs_input_grad[:3]
    nothing = x.new_empty(0)
    ctx.pair = up is not None
    ctx.save_for_backward(x if need_w or need_up else nothing, w if need_x else nothing, *((up if need_x else nothing,) if ctx.pair else ()), output[1])
    ctx.alpha, ctx.glu_layout = alpha, glu_layout
    ctx.mark_non_differentiable(output[1])
    without_zeros(ctx, output[0])


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    x, w, *up, pre = ctx.saved_tensors
    needs = list(ctx.needs_input_grad[:3])
    need_x, need_w, need_up = needs
    found = iter(_DIRECT_BACKWARD(gradient_of(ctx, grad), x, w, up[0] if ctx.pair else None, pre, ctx.alpha, ctx.glu_layout, needs))
    d_x = next(found) if need_x else None
    d_w = d_up = None
    if need_w and need_up:
        d_w, d_up = next(found).chunk(2)
    elif need_w or need_up:
        d_w, d_up = (next(found), None) if need_w else (None, next(found))
    return d_x, d_w, d_up, None, None, None


linear_swiglu.register_autograd(_backward, setup_context=_setup_context)
_DIRECT = DirectOperator(linear_swiglu, _linear_swiglu, 3, _setup_context, _backward, kept=True)
_DIRECT_BACKWARD = DirectOperator(linear_swiglu_backward, _linear_swiglu_backward, 5)
