"""`cudnn.ops.grouped_gemm` and `cudnn.ops.grouped_gemm_glu`: grouped linear layers with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from cudnn.reference.grouped import GluScalars
from cudnn.torch_autocast import cast_inputs, needs_grad
from cudnn.torch_direct import DirectOperator, gradient_of, without_zeros
from cudnn_gemm_grouped.moe.checks import (
    DEFAULT_SCALARS,
    check_activation,
    check_bias,
    check_ends,
    check_layout,
    check_operands,
    check_shape,
    check_tensor,
    check_weight,
    row_factors,
)
from cudnn_gemm_grouped.moe.products import Form, check_features, column_sums, gated_linear, halves, linear, pair_gradient, weight_gradient
from cudnn_gemm_grouped.moe.rows import zero_tail

__all__ = ["grouped_gemm", "grouped_gemm_glu"]

OFFSET, ALPHA, HIGH, LOW = DEFAULT_SCALARS


def grouped_gemm(x: Tensor, w: Tensor, offsets: Tensor, *, bias: Tensor | None = None) -> Tensor:
    """out[m] = x[m] w[e]ᵀ + bias[e] for the rows m of each group e; zeros for rows of no group. Differentiable once in x, w and bias.

    Group e has the rows from ``offsets[e - 1]`` (0 for the first) up to ``offsets[e]``, which only the device needs to know. One kernel forward; backward one for each gradient that is asked for. Sums are in float32 and
    in a fixed order. Saved for the backward pass: x where w needs a gradient, w where x does.

    Under autocast x and w are cast as for ``torch.nn.functional.linear``. Under torch.compile these are the operators ``cudnn::grouped_linear`` and ``cudnn::grouped_linear_backward``, with any number of rows.

    Args:
        x: (T, K), bfloat16 or float16. CUDA tensors run on compute capability 9.0, CPU tensors through the reference.
        w: (E, N, K), contiguous along K or along N (such as the view ``stored.transpose(1, 2)`` of a stored (E, K, N)): read in place.
        offsets: (E,) int32, the ends of the groups; what lies between them may be no row at all.
        bias: (E, N), bfloat16, float16 or float32.

    Returns:
        (T, N) in x's dtype, contiguous.

    Raises:
        TypeError: a tensor of another dtype, or no tensor.
        ValueError: devices, ranks or shapes do not fit; K or N is no multiple of 8; E is not from 1 to 1024.
    """
    op = "grouped_gemm"
    for name, t in (("x", x), ("w", w)):
        check_tensor(op, name, t)
    x, w = cast_inputs(x.device.type, x, w)
    check_operands(op, x, [("w", w)])
    if x.dim() != 2:
        raise ValueError(f"{op}: x has shape {tuple(x.shape)}, needs two axes (T, K)")
    check_weight(op, "w", w, "(E, N, K)")
    experts, n, k = w.shape
    check_shape(op, "x", x, (x.shape[0], k), "(T, K)", ", with K of w")
    check_features(op, "x", "features", k)
    check_features(op, "w", "rows", n)
    check_bias(op, "bias", bias, experts, n, x)
    return _LINEAR(x, w, check_ends(op, "offsets", offsets, experts, x), bias)


def grouped_gemm_glu(
    x: Tensor,
    w: Tensor | Sequence[Tensor],
    offsets: Tensor,
    *,
    prob: Tensor | None = None,
    bias: Tensor | None = None,
    act_func: str = "swiglu",
    glu_layout: str = "interleaved32",
    linear_offset: float = OFFSET,
    geglu_alpha: float = ALPHA,
    glu_clamp_max: float = HIGH,
    glu_clamp_min: float = LOW,
) -> Tensor:
    """out[m] = prob[m] · act(gate, up) for the rows m of each group e, gate and up being the halves of x[m] w[e]ᵀ + bias[e] that ``glu_layout`` names; zeros for rows of no group.

    ``"swiglu"``: up · gate · sigmoid(gate). ``"geglu"``: (up' + linear_offset) · gate' · sigmoid(geglu_alpha · gate') with gate' = min(gate, glu_clamp_max) and up' = max(min(up, glu_clamp_max), glu_clamp_min), the form
    of the gpt-oss models.

    Differentiable once in x, w, prob and bias. Forward one kernel, which stores the pre-activation only where a gradient will need it; backward a pointwise kernel, which has the gradient of prob too, and a product
    for each gradient that is asked for. The activation is taken of the float32 sums; all sums are in a fixed order. Groups, autocast and torch.compile: as `grouped_gemm`, through the operators
    ``cudnn::grouped_linear_glu`` and ``cudnn::grouped_linear_glu_backward``.

    Args:
        x: (T, K), bfloat16 or float16.
        w: (E, N, K), gate and up together, contiguous along K or along N; or with ``glu_layout="separate"`` the pair (gate, up), each (E, N/2, K).
        offsets: (E,) int32, the ends of the groups.
        prob: (T,), a factor for each row; read in float32.
        bias: (E, N), in the order of w's rows, [gate | up] for a pair; bfloat16, float16 or float32.
        act_func: ``"swiglu"`` or ``"geglu"``.
        glu_layout: ``"interleaved32"`` (blocks of 32 rows of w in turn, gate first; N a multiple of 64), ``"concatenated"`` ([gate; up]), ``"separate"``, or ``"alternating"`` (row by row in turn, gate first).
        linear_offset, geglu_alpha, glu_clamp_max, glu_clamp_min: of geglu; numbers, and run-time values.

    Returns:
        (T, N/2) in x's dtype, contiguous.

    Raises:
        TypeError: a tensor of another dtype, or no tensor.
        ValueError: devices, ranks or shapes do not fit; K or N/2 is no multiple of 8; another layout or activation; E is not from 1 to 1024.
    """
    op = "grouped_gemm_glu"
    weights = named_weights(op, "w", w, glu_layout)
    check_tensor(op, "x", x)
    x, *given = cast_inputs(x.device.type, x, *(t for _, t in weights))
    weights = [(name, t) for (name, _), t in zip(weights, given, strict=True)]
    check_operands(op, x, weights)
    if x.dim() != 2:
        raise ValueError(f"{op}: x has shape {tuple(x.shape)}, needs two axes (T, K)")
    experts, features, k = check_gate_up(op, weights, "(E, N, K)")
    check_shape(op, "x", x, (x.shape[0], k), "(T, K)", f", with K of {weights[0][0]}")
    check_features(op, "x", "features", k)
    check_layout(op, glu_layout, features)
    check_bias(op, "bias", bias, experts, features, x)
    scalars = check_activation(op, act_func, (linear_offset, geglu_alpha, glu_clamp_max, glu_clamp_min))
    prob = row_factors(op, "prob", prob, (x.shape[0],), "(T,)", x)
    ends = check_ends(op, "offsets", offsets, experts, x)
    keep = needs_grad(x, *given, prob, bias)
    return _GLU(x, given[0], given[1] if len(given) == 2 else None, ends, prob, bias, act_func, scalars, glu_layout, keep)


def named_weights(op: str, name: str, w: Any, glu_layout: Any) -> list[tuple[str, Any]]:
    """The weight of gate and up, or the pair of them, with names. ValueError where the number does not suit the layout, TypeError for what is no tensor."""
    pair = isinstance(w, (tuple, list))
    if pair != (glu_layout == "separate") or (pair and len(w) != 2):
        found = f"{len(w)} tensors" if pair else f"one {type(w).__name__}"
        wanted = "the pair (gate, up)" if glu_layout == "separate" else "one tensor"
        raise ValueError(f"{op}: {name} is {found} with glu_layout={glu_layout!r}, needs {wanted}")
    weights = [(f"{name}[0] (gate)", w[0]), (f"{name}[1] (up)", w[1])] if pair else [(name, w)]
    for one, t in weights:
        check_tensor(op, one, t)
    return weights


def check_gate_up(op: str, weights: Sequence[tuple[str, Tensor]], axes: str) -> tuple[int, int, int]:
    """(E, features of gate and up together, K) of weights (E, N, K). ValueError unless a pair is of equal shapes."""
    for name, t in weights:
        check_weight(op, name, t, axes)
    name, first = weights[0]
    if len(weights) == 2 and tuple(weights[1][1].shape) != tuple(first.shape):
        raise ValueError(f"{op}: {weights[1][0]} has shape {tuple(weights[1][1].shape)} while {name} has {tuple(first.shape)}, needs equal shapes")
    return first.shape[0], first.shape[1] * len(weights), first.shape[2]


def like_weight(w: Tensor, left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """The gradient leftᵀ right of weights ``w`` (E, N, K), with w's axes in w's order in memory."""
    return weight_gradient(right, left, ends).transpose(1, 2) if n_major(w) else weight_gradient(left, right, ends)


def fake_like_weight(w: Tensor, n: Any, k: Any) -> Tensor:
    experts = w.shape[0]
    return w.new_empty(experts, k, n).transpose(1, 2) if n_major(w) else w.new_empty(experts, n, k)


def n_major(w: Tensor) -> bool:
    return w.stride(1) == 1 and w.stride(2) != 1


# torch.library reads these annotations, so they are spelled as it knows them.
def _linear(x: Tensor, w: Tensor, ends: Tensor, bias: Optional[Tensor]) -> Tensor:  # noqa: UP045
    """x w[e]ᵀ + bias[e], zeros in rows of no group."""
    return zero_tail(linear(x, w, ends, bias=bias), ends)


grouped_linear = torch.library.custom_op("cudnn::grouped_linear", _linear, mutates_args=())


@grouped_linear.register_fake
def _(x, w, ends, bias):
    return x.new_empty(x.shape[0], w.shape[1])


def _linear_backward(grad: Tensor, x: Optional[Tensor], w: Tensor, ends: Tensor, needs: Sequence[bool]) -> list[Tensor]:  # noqa: UP045
    """Gradients of x, w and bias (in float32), those that ``needs`` names."""
    need_x, need_w, need_bias = needs
    found = []
    if need_x:
        found.append(zero_tail(linear(grad, w.transpose(1, 2), ends), ends))
    if need_w:
        found.append(like_weight(w, grad, x, ends))
    if need_bias:
        found.append(column_sums(grad, ends).contiguous())
    return found


grouped_linear_backward = torch.library.custom_op("cudnn::grouped_linear_backward", _linear_backward, mutates_args=())


@grouped_linear_backward.register_fake
def _(grad, x, w, ends, needs):
    need_x, need_w, need_bias = needs
    found = []
    if need_x:
        found.append(grad.new_empty(grad.shape[0], w.shape[2]))
    if need_w:
        found.append(fake_like_weight(w, grad.shape[1], x.shape[1]))
    if need_bias:
        found.append(grad.new_empty(w.shape[0], grad.shape[1], dtype=torch.float32))
    return found


def _setup_linear(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, ends, bias = inputs
    # The weight tells how its gradient lies, and is alive anyway.
    ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, w, ends)
    ctx.bias_dtype = None if bias is None else bias.dtype


def _backward_linear(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, w, ends = ctx.saved_tensors
    needs = [ctx.needs_input_grad[i] for i in (0, 1, 3)]
    found = iter(_LINEAR_GRADIENTS(grad, x, w, ends, needs))
    d_x, d_w, d_bias = (next(found) if need else None for need in needs)
    return d_x, d_w, None, None if d_bias is None else d_bias.to(ctx.bias_dtype)


grouped_linear.register_autograd(_backward_linear, setup_context=_setup_linear)
_LINEAR = DirectOperator(grouped_linear, _linear, 4, _setup_linear, _backward_linear)
_LINEAR_GRADIENTS = DirectOperator(grouped_linear_backward, _linear_backward, 4)


def _linear_glu(
    x: Tensor,
    w: Tensor,
    up: Optional[Tensor],  # noqa: UP045
    ends: Tensor,
    prob: Optional[Tensor],  # noqa: UP045
    bias: Optional[Tensor],  # noqa: UP045
    activation: str,
    scalars: Sequence[float],
    glu_layout: str,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """(prob · act (T, N/2), pre-activation (T, N) or where not ``keep`` nothing (0,)); ``up``: the second of two separate weights."""
    weights = (w,) if up is None else (w, up)
    out, pre = gated_linear(x, weights, ends, bias=bias, prob=prob, form=Form(activation, GluScalars(*scalars), glu_layout), keep=keep)
    return zero_tail(out, ends), x.new_empty(0) if pre is None else pre


grouped_linear_glu = torch.library.custom_op("cudnn::grouped_linear_glu", _linear_glu, mutates_args=())


@grouped_linear_glu.register_fake
def _(x, w, up, ends, prob, bias, activation, scalars, glu_layout, keep):
    n = w.shape[1] * (1 if up is None else 2)
    return x.new_empty(x.shape[0], n // 2), x.new_empty(x.shape[0], n) if keep else x.new_empty(0)


def _linear_glu_backward(
    grad: Tensor,
    x: Optional[Tensor],  # noqa: UP045
    w: Tensor,
    up: Optional[Tensor],  # noqa: UP045
    ends: Tensor,
    prob: Optional[Tensor],  # noqa: UP045
    pre: Tensor,
    activation: str,
    scalars: Sequence[float],
    glu_layout: str,
    needs: Sequence[bool],
) -> list[Tensor]:
    """Gradients of x, w, up, prob and bias (in float32), those that ``needs`` names."""
    need_x, need_w, need_up, need_prob, need_bias = needs
    d_pre, d_prob = pair_gradient(pre, grad, ends, prob, Form(activation, GluScalars(*scalars), glu_layout))
    found = []
    if need_x:
        found.append(zero_tail(input_gradient(d_pre, w.transpose(1, 2), None if up is None else up.transpose(1, 2), ends), ends))
    if up is None:
        found += [like_weight(w, d_pre, x, ends)] if need_w else []
    else:
        found += [like_weight(one, part, x, ends) for one, part, need in zip((w, up), halves(d_pre), (need_w, need_up), strict=True) if need]
    if need_prob:
        found.append(d_prob)
    if need_bias:
        found.append(column_sums(d_pre, ends).contiguous())
    return found


def input_gradient(d_pre: Tensor, w: Tensor, up: Tensor | None, ends: Tensor) -> Tensor:
    """d_pre w[e]ᵀ, or of two separate weights the sum of both halves': w, up (E, K, N)."""
    if up is None:
        return linear(d_pre, w, ends)
    d_gate, d_up = halves(d_pre)
    return linear(d_up, up, ends, addend=linear(d_gate, w, ends))


grouped_linear_glu_backward = torch.library.custom_op("cudnn::grouped_linear_glu_backward", _linear_glu_backward, mutates_args=())


@grouped_linear_glu_backward.register_fake
def _(grad, x, w, up, ends, prob, pre, activation, scalars, glu_layout, needs):
    need_x, need_w, need_up, need_prob, need_bias = needs
    found = []
    if need_x:
        found.append(grad.new_empty(grad.shape[0], w.shape[2]))
    found += [fake_like_weight(one, one.shape[1], one.shape[2]) for one, need in ((w, need_w), (up, need_up)) if need]
    if need_prob:
        found.append(torch.empty_like(prob))
    if need_bias:
        found.append(grad.new_empty(w.shape[0], pre.shape[1], dtype=torch.float32))
    return found


def _setup_glu(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, w, up, ends, prob, bias, activation, scalars, glu_layout, _ = inputs
    need_w, need_up = ctx.needs_input_grad[1:3]
    ctx.save_for_backward(x if need_w or need_up else None, w, up, ends, prob, output[1])
    ctx.form = activation, scalars, glu_layout
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.mark_non_differentiable(output[1])
    without_zeros(ctx, output[0])


def _backward_glu(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    needs = [ctx.needs_input_grad[i] for i in (0, 1, 2, 4, 5)]
    found = iter(_GLU_GRADIENTS(gradient_of(ctx, grad), *ctx.saved_tensors, *ctx.form, needs))
    d_x, d_w, d_up, d_prob, d_bias = (next(found) if need else None for need in needs)
    return d_x, d_w, d_up, None, d_prob, None if d_bias is None else d_bias.to(ctx.bias_dtype), None, None, None, None


grouped_linear_glu.register_autograd(_backward_glu, setup_context=_setup_glu)
_GLU = DirectOperator(grouped_linear_glu, _linear_glu, 6, _setup_glu, _backward_glu, kept=True)
_GLU_GRADIENTS = DirectOperator(grouped_linear_glu_backward, _linear_glu_backward, 7)
