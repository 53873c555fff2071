"""`cudnn.gemm.ops.swiglu_mlp` and `cudnn.gemm.ops.situ_mlp`: whole feed-forward layers with gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cudnn.torch_autocast import cast_inputs, needs_grad
from cudnn.torch_direct import DirectOperator, gradient_of, released, without_zeros
from cudnn_gemm_dense.mlp.products import gated_gradient_product, gated_product
from cudnn_gemm_dense.products import check_features, product

__all__ = ["situ_mlp", "swiglu_mlp"]

DTYPES = (torch.bfloat16, torch.float16)


def swiglu_mlp(x: Tensor, Wg: Tensor, Wu: Tensor, Wd: Tensor) -> Tensor:  # noqa: N803
    """out = (up * gate * sigmoid(gate)) Wdᵀ with gate = x Wgᵀ and up = x Wuᵀ: the feed-forward layer of Llama and its relatives.

    Two kernels forward: both products and the activation in one, which reads the two weights where they are, and the product with Wd. Four or five backward, of which one ends in the gradient of
    the activation; products whose gradient nobody asks for are left out. The activation is taken of the unrounded sums. Differentiable once in all four tensors.

    Saved for the backward pass, as far as a gradient needs it: x, gate and up, the activated product, the weights.

    Under autocast all tensors are cast as for ``torch.nn.functional.linear``. Under torch.compile these are the operators ``cudnn::gated_mlp`` and ``cudnn::gated_mlp_backward``.

    Args:
        x: (..., H), bfloat16 or float16. CUDA tensors run on compute capability 9.0, CPU tensors through the reference.
        Wg, Wu: (I, H), as ``torch.nn.Linear`` keeps them.
        Wd: (H, I).

    Returns:
        (..., H) in x's dtype, contiguous.

    Raises:
        TypeError: a tensor is neither bfloat16 nor float16, or not of x's dtype.
        ValueError: devices, ranks or shapes do not fit; H or I is no multiple of 8.
    """
    return _mlp("swiglu_mlp", x, Wg, Wu, Wd, "swiglu", ())


def situ_mlp(x: Tensor, Wg: Tensor, Wu: Tensor, Wd: Tensor, *, beta: float = 4.0, linear_beta: float = 25.0) -> Tensor:  # noqa: N803
    """out = (beta tanh(gate / beta) sigmoid(gate) * lambda tanh(up / lambda)) Wdᵀ with gate = x Wgᵀ, up = x Wuᵀ and lambda = ``linear_beta``: `swiglu_mlp` with a bounded activation.

    Args:
        x, Wg, Wu, Wd: as for `swiglu_mlp`.
        beta, linear_beta: positive and finite.

    Returns:
        (..., H) in x's dtype, contiguous.

    Raises:
        TypeError: ``beta`` or ``linear_beta`` is no int or float; as `swiglu_mlp`.
        ValueError: one of them is not finite or not positive; as `swiglu_mlp`.
    """
    for name, value in (("beta", beta), ("linear_beta", linear_beta)):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"situ_mlp: {name} is a {type(value).__name__}, needs an int or a float")
        if not 0 < value < math.inf:
            raise ValueError(f"situ_mlp: {name} is {value}, needs a positive finite number")
    return _mlp("situ_mlp", x, Wg, Wu, Wd, "situ", (float(beta), float(linear_beta)))


def _mlp(op: str, x: Any, Wg: Any, Wu: Any, Wd: Any, activation: str, constants: tuple[float, ...]) -> Tensor:  # noqa: N803
    named = (("x", x), ("Wg", Wg), ("Wu", Wu), ("Wd", Wd))
    for name, t in named:
        if not isinstance(t, Tensor):
            raise TypeError(f"{op}: {name} is a {type(t).__name__}, needs a torch tensor")
    x, Wg, Wu, Wd = cast_inputs(x.device.type, x, Wg, Wu, Wd)  # noqa: N806
    _check(op, (("x", x), ("Wg", Wg), ("Wu", Wu), ("Wd", Wd)))
    rows = x.reshape(-1, x.shape[-1])
    out = _DIRECT(rows, Wg, Wu, Wd, activation, list(constants), needs_grad(x, Wg, Wu))
    return out.view(x.shape)


def _check(op: str, named: Sequence[tuple[str, Tensor]]) -> None:
    (_, x), (_, Wg), (_, Wu), (_, Wd) = named  # noqa: N806
    for name, t in named:
        if t.dtype not in DTYPES:
            raise TypeError(f"{op}: {name} is {t.dtype}, needs torch.bfloat16 or torch.float16; cast it, or call under torch.autocast")
        if t.dtype != x.dtype:
            raise TypeError(f"{op}: {name} is {t.dtype} while x is {x.dtype}, needs equal dtypes; cast one, or call under torch.autocast")
    for name, t in named[1:]:
        if t.device != x.device:
            raise ValueError(f"{op}: {name} is on {t.device} while x is on {x.device}, needs one device; move {name}")
    if x.dim() < 2:
        raise ValueError(f"{op}: x has shape {tuple(x.shape)}, needs at least two axes (..., H)")
    for name, t in named[1:]:
        if t.dim() != 2:
            raise ValueError(f"{op}: {name} has shape {tuple(t.shape)}, needs two axes")
    hidden, inner = x.shape[-1], Wg.shape[0]
    for name, t, shape, axes in (("Wg", Wg, (inner, hidden), "(I, H)"), ("Wu", Wu, (inner, hidden), "(I, H)"), ("Wd", Wd, (hidden, inner), "(H, I)")):
        if tuple(t.shape) != shape:
            raise ValueError(f"{op}: {name} has shape {tuple(t.shape)}, needs {axes} = {shape} for x with H = {hidden} and Wg with I = {inner}")
    check_features(op, "x", "features", hidden)
    check_features(op, "Wg", "rows", inner)


# torch.library reads these annotations, so they are spelled as it knows them.
def _gated_mlp(
    x: Tensor, gate_weight: Tensor, up_weight: Tensor, down_weight: Tensor, activation: str, constants: Sequence[float], keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """(out (M, H), [gate | up] (M, 2 I) or where not ``keep`` nothing (0,), activated (M, I)) of x (M, H)."""
    activated, pre = gated_product(x, (gate_weight, up_weight), keep=keep, activation=activation, constants=tuple(constants))
    return product(activated, down_weight), x.new_empty(0) if pre is None else pre, activated


gated_mlp = torch.library.custom_op("cudnn::gated_mlp", _gated_mlp, mutates_args=())


@gated_mlp.register_fake
def _(x, gate_weight, up_weight, down_weight, activation, constants, keep):
    inner = gate_weight.shape[0]
    pre = x.new_empty((x.shape[0], 2 * inner)) if keep else x.new_empty(0)
    return x.new_empty(x.shape), pre, x.new_empty((x.shape[0], inner))


def _gated_mlp_backward(*arguments: Any) -> list[Tensor]:
    return _gradients([*arguments])


def _gradients(arguments: list[Any]) -> list[Tensor]:
    """Gradients of x (M, H), of [Wg; Wu] (2 I, H) or of one of them, and of Wd, those that ``needs`` (x, Wg, Wu, Wd) names. What a gradient does not need may be empty. The arguments, in the order of the operator's
    schema, are taken out of the list: gate and up, the largest of them, are let go before the other gradients are made."""
    grad, x, gate_weight, up_weight, down_weight, pre, activated, activation, constants, needs = arguments
    arguments.clear()
    need_x, need_gate, need_up, need_down = needs
    found = []
    if need_x or need_gate or need_up:
        d_pre = gated_gradient_product(grad, down_weight.t(), pre, activation=activation, constants=tuple(constants))
        del pre
        d_gate, d_up = d_pre.chunk(2, 1)
        if need_x:
            found.append(product(d_up, up_weight.t(), addend=product(d_gate, gate_weight.t())))
        if need_gate or need_up:
            wanted = d_pre if need_gate and need_up else d_gate if need_gate else d_up
            found.append(product(wanted.t(), x.t()))
    if need_down:
        found.append(product(grad.t(), activated.t()))
    return found


gated_mlp_backward = torch.library.custom_op(
    "cudnn::gated_mlp_backward",
    _gated_mlp_backward,
    mutates_args=(),
    schema="(Tensor grad, Tensor x, Tensor gate_weight, Tensor up_weight, Tensor down_weight, Tensor pre, Tensor activated, str activation, float[] constants, bool[] needs) -> Tensor[]",
)


@gated_mlp_backward.register_fake
def _(grad, x, gate_weight, up_weight, down_weight, pre, activated, activation, constants, needs):
    need_x, need_gate, need_up, need_down = needs
    hidden, found = grad.shape[1], []
    if need_x:
        found.append(grad.new_empty(grad.shape))
    if need_gate or need_up:
        inner = pre.shape[1] // 2
        found.append(grad.new_empty((2 * inner if need_gate and need_up else inner, hidden)))
    if need_down:
        found.append(grad.new_empty((hidden, activated.shape[1])))
    return found


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, gate_weight, up_weight, down_weight, activation, constants, keep = inputs
    _, pre, activated = output
    need_x, need_gate, need_up, need_down = ctx.needs_input_grad[:4]
    first = need_x or need_gate or need_up
    nothing = x.new_empty(0)
    ctx.save_for_backward(
        x if need_gate or need_up else nothing,
        gate_weight if need_x else nothing,
        up_weight if need_x else nothing,
        down_weight if first else nothing,
        pre if first else nothing,
        activated if need_down else nothing,
    )
    ctx.activation, ctx.constants = activation, constants
    ctx.mark_non_differentiable(pre, activated)
    without_zeros(ctx, output[0])


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    needs = list(ctx.needs_input_grad[:4])
    found = iter(_DIRECT_BACKWARD.consume([gradient_of(ctx, grad), *released(ctx), ctx.activation, ctx.constants, needs]))
    need_x, need_gate, need_up, need_down = needs
    d_x = next(found) if need_x else None
    d_gate = d_up = None
    if need_gate and need_up:
        d_gate, d_up = next(found).chunk(2)
    elif need_gate or need_up:
        d_gate, d_up = (next(found), None) if need_gate else (None, next(found))
    return d_x, d_gate, d_up, next(found) if need_down else None, None, None, None


gated_mlp.register_autograd(_backward, setup_context=_setup_context)
_DIRECT = DirectOperator(gated_mlp, _gated_mlp, 4, _setup_context, _backward, kept=True)
_DIRECT_BACKWARD = DirectOperator(gated_mlp_backward, _gated_mlp_backward, 7, consumer=_gradients)
