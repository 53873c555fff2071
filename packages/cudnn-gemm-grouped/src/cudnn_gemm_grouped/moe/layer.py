"""`cudnn.ops.moe_mlp` and `cudnn.gemm.ops.swiglu_moe`: whole layers of experts with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from cudnn.determinism import resolve
from cudnn.memo import Memo
from cudnn.reference.grouped import GluScalars, group_of_rows
from cudnn.torch_autocast import cast_inputs, needs_grad
from cudnn.torch_direct import DirectOperator, gradient_of, released, without_zeros
from cudnn_gemm_grouped.moe.checks import (
    DEFAULT_SCALARS,
    check_activation,
    check_bias,
    check_device,
    check_ends,
    check_factors,
    check_layout,
    check_operands,
    check_shape,
    check_tensor,
)
from cudnn_gemm_grouped.moe.ops import check_gate_up, input_gradient, named_weights
from cudnn_gemm_grouped.moe.products import Form, as_rows, check_features, column_sums, gated_linear, gated_linear_gradient, halves, linear, weight_gradient
from cudnn_gemm_grouped.moe.routing import moe_route, pair_factors, route
from cudnn_gemm_grouped.moe.rows import gather_rows, sum_rows, zero_tail

__all__ = ["moe_mlp", "swiglu_moe"]

OFFSET, ALPHA, HIGH, LOW = DEFAULT_SCALARS


def moe_mlp(
    x: Tensor,
    gate_up: Tensor | Sequence[Tensor],
    down: Tensor,
    *,
    top_k_index: Tensor | None = None,
    top_k_weights: Tensor | None = None,
    offsets: Tensor | None = None,
    prob: Tensor | None = None,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    act_func: str = "swiglu",
    glu_layout: str = "concatenated",
    transposed: bool = False,
    linear_offset: float = OFFSET,
    geglu_alpha: float = ALPHA,
    glu_clamp_max: float = HIGH,
    glu_clamp_min: float = LOW,
    deterministic: bool | None = None,
) -> Tensor:
    """The gated feed-forward layers of E experts: out[t] = Σ_j p[t, j] · (act(x[t] · gate_up[e]ᵀ + gate_up_bias[e]) · down[e]ᵀ + down_bias[e]) over the experts e = top_k_index[t, j] of each token, p being top_k_weights.

    Or, where the rows are sorted by expert already, with ``offsets`` instead of ``top_k_index``: out[m] = prob[m] · (...) for the rows m of each group; zeros for rows of no group.

    Differentiable once in x, all weights and biases, top_k_weights and prob; products whose gradient nobody asks for are left out. Nothing is copied to the host, weights are read in place.

    ======== ==============================================================================================================
    pass     kernels
    ======== ==============================================================================================================
    forward  rows of tokens by expert; both products and the activation, times p, in one; the product with down; the sum over a token's experts
    backward gradients of rows by expert; the gradient of the activation with its product in one, which has those of p and of gate_up_bias and the activation over again; one product for each weight, for which x is
             brought to the experts once more; one for x, and the sum over a token's experts
    ======== ==============================================================================================================

    Saved for the backward pass, as far as a gradient needs it: x, the pre-activation (S, 2 I), the weights, and the routing. Neither the sorted tokens nor the activations are.

    The activation is taken of float32 sums, p multiplies it before it is rounded, and a token's experts are added in float32. Under autocast x and the weights are cast as for ``torch.nn.functional.linear``. Under
    torch.compile these are the operators ``cudnn::moe_mlp`` and ``cudnn::moe_mlp_backward``, with any number of tokens.

    Args:
        x: (..., H), bfloat16 or float16; (S, H) with ``offsets``. CUDA tensors run on compute capability 9.0, CPU tensors through the reference.
        gate_up: (E, 2 I, H), or with ``transposed`` (E, H, 2 I); with ``glu_layout="separate"`` the pair (gate, up), each (E, I, H) or (E, H, I).
        down: (E, H, I), or with ``transposed`` (E, I, H).
        top_k_index: (..., k) integers, the experts of each token. Numbers that are no expert count as none.
        top_k_weights: (..., k), read in float32; None for ones. Those of no expert have a gradient of 0.
        offsets: (E,) int32, the ends of the groups.
        prob: (S,), read in float32; None for ones. With ``offsets`` only.
        gate_up_bias: (E, 2 I), in the order of gate_up's features, [gate | up] for a pair; bfloat16, float16 or float32.
        down_bias: (E, H); bfloat16, float16 or float32.
        act_func, glu_layout, linear_offset, geglu_alpha, glu_clamp_max, glu_clamp_min: as in `grouped_gemm_glu`.
        transposed: whether weights are stored with their inputs as rows.
        deterministic: whether the gradient of p is summed in a fixed order too; None follows ``torch.use_deterministic_algorithms``. All else is in a fixed order anyway.

    Returns:
        x's shape and dtype, contiguous.

    Raises:
        TypeError: a tensor of another dtype, or no tensor.
        ValueError: devices, ranks or shapes do not fit; H or I is no multiple of 8; another layout or activation; E is not from 1 to 1024; both or neither of ``top_k_index`` and ``offsets``.
    """
    weights = named_weights("moe_mlp", "gate_up", gate_up, glu_layout)
    for name, t in (("x", x), ("down", down)):
        check_tensor("moe_mlp", name, t)
    x, *given = cast_inputs(x.device.type, x, *[t for _, t in weights], down)
    weights = [(name, t) for (name, _), t in zip(weights, given[:-1], strict=True)]
    down = given[-1]
    activation = (act_func, (linear_offset, geglu_alpha, glu_clamp_max, glu_clamp_min))
    rest = (gate_up_bias, down_bias, top_k_index, top_k_weights, offsets, prob)
    key = _key((x, *given, *rest), glu_layout, transposed)
    experts = None if key is None else _CHECKED.get(key)
    seen = experts is not None
    if not seen:
        experts = _check(x, weights, down, *rest, activation, glu_layout, transposed)
    # Of what is checked only the numbers are not in the key: they are looked at anyway.
    scalars = check_activation("moe_mlp", *activation)
    if offsets is not None:
        ends, token, pair, position = offsets.to(torch.int32).contiguous(), None, None, None
        factors = None if prob is None else prob.float().contiguous()
    else:
        choices = top_k_index.reshape(-1, top_k_index.shape[-1])
        token, pair, position, ends = (route if seen else moe_route)(choices, experts)
        factors = None if top_k_weights is None else top_k_weights.float().contiguous().view(choices.shape)
    if key is not None and not seen:
        _CHECKED.keep(key, experts)
    tensors = (*given[:-1], *([] if len(given) == 3 else [None]), down, gate_up_bias, down_bias, factors)
    first = needs_grad(x, *given[:-1], gate_up_bias, factors)
    keep = (first, not first and needs_grad(down))
    form = (act_func, scalars, glu_layout, bool(transposed), resolve(deterministic))
    return _DIRECT(x, *tensors, ends, token, pair, position, *form, *keep)


# What calls that have passed all checks were given, and their number of experts.
_CHECKED: Memo = Memo(1024)


def _key(tensors: tuple[Any, ...], glu_layout: Any, transposed: Any) -> tuple[Any, ...] | None:
    """What the checks of a call look at. None where it is traced, or nothing to be remembered."""
    if torch.compiler.is_compiling():
        return None
    try:
        key = (*[None if t is None else (t.shape, t.dtype, t.device) for t in tensors], glu_layout, transposed)
        hash(key)
    except (AttributeError, TypeError):
        return None  # no tensors, or extents that are symbols
    return key


def _check(
    x: Tensor,
    weights: Sequence[tuple[str, Tensor]],
    down: Tensor,
    gate_up_bias: Any,
    down_bias: Any,
    top_k_index: Any,
    top_k_weights: Any,
    offsets: Any,
    prob: Any,
    activation: tuple[Any, tuple[Any, ...]],
    glu_layout: Any,
    transposed: Any,
) -> int:
    """The number of experts. TypeError or ValueError for what `moe_mlp` does not take."""
    op = "moe_mlp"
    check_operands(op, x, [*weights, ("down", down)])
    views = [(name, t.transpose(1, 2) if transposed and t.dim() == 3 else t) for name, t in weights]
    experts, features, hidden = check_gate_up(op, views, "(E, H, 2 I)" if transposed else "(E, 2 I, H)")
    check_layout(op, glu_layout, features)
    check_features(op, "x", "features", hidden)
    shape, axes = ((experts, features // 2, hidden), "(E, I, H)") if transposed else ((experts, hidden, features // 2), "(E, H, I)")
    check_shape(op, "down", down, shape, axes, f", as {weights[0][0]} has it")
    if x.dim() < 2 or x.shape[-1] != hidden:
        raise ValueError(f"{op}: x has shape {tuple(x.shape)}, needs (..., H) with H = {hidden} of {weights[0][0]}")
    check_bias(op, "gate_up_bias", gate_up_bias, experts, features, x)
    check_bias(op, "down_bias", down_bias, experts, hidden, x)
    check_activation(op, *activation)
    if (top_k_index is None) == (offsets is None):
        raise ValueError(
            f"{op}: found {'neither' if offsets is None else 'both'} of top_k_index and offsets, needs one: top_k_index for tokens in their own order, offsets for rows sorted by expert"
        )
    if offsets is not None:
        if x.dim() != 2 or top_k_weights is not None:
            raise ValueError(
                f"{op}: found x of shape {tuple(x.shape)}{'' if top_k_weights is None else ' and top_k_weights'} with offsets, needs (S, H), and prob for factors of rows"
            )
        check_ends(op, "offsets", offsets, experts, x)
        check_factors(op, "prob", prob, (x.shape[0],), "(S,)", x)
        return experts
    if prob is not None:
        raise ValueError(f"{op}: found prob with top_k_index, needs top_k_weights")
    check_tensor(op, "top_k_index", top_k_index)
    check_device(op, "top_k_index", top_k_index, x)
    if top_k_index.dim() != x.dim() or any(a != b for a, b in zip(top_k_index.shape[:-1], x.shape[:-1], strict=True)):
        raise ValueError(f"{op}: top_k_index has shape {tuple(top_k_index.shape)}, needs (..., k) with the leading axes {tuple(x.shape[:-1])} of x")
    check_factors(op, "top_k_weights", top_k_weights, top_k_index.shape, "(..., k)", x)
    return experts


def swiglu_moe(routed_x: Tensor, Wg: Tensor, Wu: Tensor, Wd: Tensor, first_token_offset: Tensor) -> Tensor:  # noqa: N803
    """out[s] = (up · gate · sigmoid(gate)) Wd[e]ᵀ with gate = x[s] Wg[e]ᵀ and up = x[s] Wu[e]ᵀ, for the rows s of each expert e; zeros for rows of none. Differentiable once in routed_x, Wg, Wu and Wd.

    Kernels, what is saved, autocast and torch.compile: as `cudnn.ops.moe_mlp` with ``offsets``, which has more layouts of weights.

    Args:
        routed_x: (1, S, H), bfloat16 or float16, rows sorted by expert.
        Wg, Wu: (E, I, H).
        Wd: (E, H, I).
        first_token_offset: (E + 1,) or (E + 1, 1, 1) int32, boundaries of the groups: starts at 0 and never decreases. Rows from the last on belong to nobody.

    Returns:
        (1, S, H) in routed_x's dtype, contiguous.

    Raises:
        TypeError: a tensor is neither bfloat16 nor float16, or not of routed_x's dtype.
        ValueError: devices, ranks or shapes do not fit; H or I is no multiple of 8; ``first_token_offset`` is not contiguous int32 of E + 1 numbers.
    """
    op = "swiglu_moe"
    names = ("routed_x", "Wg", "Wu", "Wd")
    for name, t in zip(names, (routed_x, Wg, Wu, Wd), strict=True):
        check_tensor(op, name, t)
    routed_x, Wg, Wu, Wd = cast_inputs(routed_x.device.type, routed_x, Wg, Wu, Wd)  # noqa: N806
    check_operands(op, routed_x, [("Wg", Wg), ("Wu", Wu), ("Wd", Wd)], "routed_x")
    if routed_x.dim() != 3 or routed_x.shape[0] != 1:
        raise ValueError(f"{op}: routed_x has shape {tuple(routed_x.shape)}, needs (1, S, H)")
    experts, features, hidden = check_gate_up(op, [("Wg", Wg), ("Wu", Wu)], "(E, I, H)")
    check_shape(op, "routed_x", routed_x, (1, routed_x.shape[1], hidden), "(1, S, H)", ", with H of Wg")
    check_shape(op, "Wd", Wd, (experts, hidden, features // 2), "(E, H, I)", ", as Wg has it")
    check_features(op, "routed_x", "features", hidden)
    check_features(op, "Wg", "rows", features // 2)
    ends = boundaries(op, first_token_offset, experts, routed_x)
    first = needs_grad(routed_x, Wg, Wu)
    form = ("swiglu", list(DEFAULT_SCALARS), "separate", False, False)
    nothing = (None, None, None)
    out = _DIRECT(routed_x[0], Wg, Wu, Wd, *nothing, ends, *nothing, *form, first, not first and needs_grad(Wd))
    return out.unsqueeze(0)


def boundaries(op: str, offsets: Any, experts: int, x: Tensor) -> Tensor:
    """Ends of the groups (E,) from contiguous boundaries of E + 1 numbers. ValueError for anything else."""
    check_tensor(op, "first_token_offset", offsets)
    if offsets.dtype != torch.int32 or offsets.numel() != experts + 1 or not offsets.is_contiguous():
        raise ValueError(
            f"{op}: first_token_offset is {offsets.dtype} of shape {tuple(offsets.shape)} and strides {offsets.stride()}, needs contiguous torch.int32 of E + 1 = {experts + 1} boundaries"
        )
    check_device(op, "first_token_offset", offsets, x)
    # A copy, so that it starts on 16 bytes: calls with such tensors alone need not be looked at twice.
    return offsets.view(-1)[1:].clone()


# torch.library reads these annotations, so they are spelled as it knows them.
def _mlp(
    x: Tensor,
    gate_up: Tensor,
    up: Optional[Tensor],  # noqa: UP045
    down: Tensor,
    gate_up_bias: Optional[Tensor],  # noqa: UP045
    down_bias: Optional[Tensor],  # noqa: UP045
    factors: Optional[Tensor],  # noqa: UP045
    ends: Tensor,
    token: Optional[Tensor],  # noqa: UP045
    pair: Optional[Tensor],  # noqa: UP045
    position: Optional[Tensor],  # noqa: UP045
    activation: str,
    scalars: Sequence[float],
    glu_layout: str,
    transposed: bool,
    deterministic: bool,
    keep_pre: bool,
    keep_activated: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(out of x's shape (..., H), pre-activation (S, 2 I), activations (S, I)), the last two nothing (0,) where not kept. Without ``position`` the rows of x (S, H) are sorted; ``factors`` are those of choices (T, k), or of rows."""
    rows = x if token is None else gather_rows(_rows(x), token)[0]
    prob = pair_factors(factors, pair)
    weights = [as_features(w, transposed) for w in (gate_up, up) if w is not None]
    form = Form(activation, GluScalars(*scalars), glu_layout)
    activated, pre = gated_linear(rows, weights, ends, bias=gate_up_bias, prob=prob, form=form, keep=keep_pre)
    del rows
    y = linear(activated, as_features(down, transposed), ends, bias=down_bias, prob=prob)
    out = zero_tail(y, ends) if position is None else sum_rows(y, position.view(-1), x.shape)
    return out, x.new_empty(0) if pre is None else pre, activated if keep_activated else x.new_empty(0)


experts_mlp = torch.library.custom_op("cudnn::moe_mlp", _mlp, mutates_args=())


@experts_mlp.register_fake
def _(
    x,
    gate_up,
    up,
    down,
    gate_up_bias,
    down_bias,
    factors,
    ends,
    token,
    pair,
    position,
    activation,
    scalars,
    glu_layout,
    transposed,
    deterministic,
    keep_pre,
    keep_activated,
):
    rows = x.shape[0] if token is None else token.shape[0]
    inner = down.shape[1 if transposed else 2]
    pre = x.new_empty(rows, 2 * inner) if keep_pre else x.new_empty(0)
    return x.new_empty(x.shape), pre, x.new_empty(rows, inner) if keep_activated else x.new_empty(0)


def _rows(x: Tensor) -> Tensor:
    """(rows, H) of (..., H)."""
    return x if x.dim() == 2 else x.reshape(-1, x.shape[-1])


def as_features(w: Tensor, transposed: bool) -> Tensor:
    """Stored weights as (E, features, inputs)."""
    return w.transpose(1, 2) if transposed else w


def _mlp_backward(*arguments: Any) -> list[Tensor]:
    return _gradients([*arguments])


def _gradients(arguments: list[Any]) -> list[Tensor]:
    """Gradients of x, gate_up, up, down, gate_up_bias, down_bias (both in float32) and factors, those that ``needs`` names. What none of them needs may be None, or empty. The arguments, in the order of the
    operator's schema, are taken out of the list: gate and up, the largest of them, are let go before the weights' gradients are made."""
    (
        grad,
        x,
        gate_up,
        up,
        down,
        down_bias,
        factors,
        pre,
        activated,
        ends,
        token,
        pair,
        position,
        activation,
        scalars,
        glu_layout,
        transposed,
        deterministic,
        needs,
    ) = arguments
    arguments.clear()
    need_x, need_gate, need_up, need_down, need_gate_bias, need_down_bias, need_factors = needs
    prob = pair_factors(factors, pair)
    d_y, dprob = _gradient_of_rows(grad, token, down_bias if need_factors else None, ends)
    d_pre = d_gate_bias = None
    if need_x or need_gate or need_up or need_gate_bias or need_factors:
        if dprob is None and prob is not None:
            dprob = torch.zeros_like(prob)
        made = gated_linear_gradient(
            d_y,
            as_features(down, transposed),
            pre,
            ends,
            prob=prob,
            dprob=dprob,
            form=Form(activation, GluScalars(*scalars), glu_layout),
            bias=need_gate_bias,
            activated=need_down,
            deterministic=deterministic,
        )
        d_pre, d_gate_bias = made.pre, made.bias
        activated = made.activated if need_down else activated
        del made
    del pre
    d_down = weight_as_stored(d_y, activated, ends, transposed) if need_down else None
    d_down_bias = column_sums(d_y, ends, prob).contiguous() if need_down_bias else None
    del d_y, activated
    d_weights: list[Tensor] = []
    if need_gate or need_up:
        rows = x if token is None else gather_rows(_rows(x), token)[0]
        parts = (d_pre,) if glu_layout != "separate" else halves(d_pre)
        d_weights = [weight_as_stored(part, rows, ends, transposed) for part, need in zip(parts, (need_gate, need_up), strict=False) if need]
        del rows
    d_x = None
    if need_x:
        d_rows = input_gradient(d_pre, as_features(gate_up, not transposed), None if up is None else as_features(up, not transposed), ends)
        d_x = zero_tail(d_rows, ends) if position is None else sum_rows(d_rows, position.view(-1), grad.shape)
    d_factors = None
    if need_factors:
        # Rows of no expert are the last, and their sums 0: -1 takes one where there are choices of none.
        d_factors = dprob if position is None else torch.take(dprob, position.long())
    return [t for t in (d_x, *d_weights, d_down, d_gate_bias, d_down_bias, d_factors) if t is not None]


def _gradient_of_rows(grad: Tensor, token: Tensor | None, down_bias: Tensor | None, ends: Tensor) -> tuple[Tensor, Tensor | None]:
    """(the gradient of the experts' outputs, a row for each; its products with the rows of ``down_bias``, (S,), None without one)."""
    if token is None and down_bias is None:
        return as_rows(grad), None
    grad = _rows(grad)
    if down_bias is None:
        return gather_rows(grad, token)[0], None
    rows = grad.shape[0] if token is None else token.shape[0]
    index = torch.arange(rows, dtype=torch.int32, device=grad.device) if token is None else token
    return gather_rows(grad, index, other=down_bias.contiguous(), other_index=group_of_rows(ends, rows).to(torch.int32))


def weight_as_stored(features: Tensor, inputs: Tensor, ends: Tensor, transposed: bool) -> Tensor:
    """The gradient of a weight as it is stored, from that of its features (S, n) and its inputs (S, k)."""
    return weight_gradient(inputs, features, ends) if transposed else weight_gradient(features, inputs, ends)


experts_mlp_backward = torch.library.custom_op(
    "cudnn::moe_mlp_backward",
    _mlp_backward,
    mutates_args=(),
    schema="(Tensor grad, Tensor? x, Tensor? gate_up, Tensor? up, Tensor? down, Tensor? down_bias, Tensor? factors, Tensor pre, Tensor activated, Tensor ends, Tensor? token, Tensor? pair, Tensor? position,"
    " str activation, float[] scalars, str glu_layout, bool transposed, bool deterministic, bool[] needs) -> Tensor[]",
)


@experts_mlp_backward.register_fake
def _(grad, *arguments):
    *_, factors, pre, activated, ends = arguments[:9]
    glu_layout, transposed, _, needs = arguments[-4:]
    need_x, need_gate, need_up, need_down, need_gate_bias, need_down_bias, need_factors = needs
    experts, hidden = ends.shape[0], grad.shape[-1]

    def weight(features, inputs):
        return grad.new_empty((experts, inputs, features) if transposed else (experts, features, inputs))

    found = [grad.new_empty(grad.shape)] if need_x else []
    features = pre.shape[1] if pre.dim() == 2 else 0
    of_one = features // 2 if glu_layout == "separate" else features
    found += [weight(of_one, hidden) for need in (need_gate, need_up) if need]
    if need_down:
        found.append(weight(hidden, features // 2 if features else activated.shape[1]))
    if need_gate_bias:
        found.append(grad.new_empty(experts, features, dtype=torch.float32))
    if need_down_bias:
        found.append(grad.new_empty(experts, hidden, dtype=torch.float32))
    if need_factors:
        found.append(torch.empty_like(factors))
    return found


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, gate_up, up, down, gate_up_bias, down_bias, factors, ends, token, pair, position, activation, scalars, glu_layout, transposed, deterministic, *_ = inputs
    _, pre, activated = output
    need_x, need_gate, need_up, need_down, need_gate_bias, need_down_bias, need_factors = ctx.needs_input_grad[:7]
    first = need_x or need_gate or need_up or need_gate_bias or need_factors
    ctx.save_for_backward(
        x if need_gate or need_up else None,
        gate_up if need_x else None,
        up if need_x else None,
        down if first else None,
        down_bias if need_factors else None,
        factors if first or need_down_bias else None,
        pre,
        activated,
        ends,
        token,
        pair,
        position,
    )
    ctx.form = activation, scalars, glu_layout, transposed, deterministic
    ctx.bias_dtypes = [None if bias is None else bias.dtype for bias in (gate_up_bias, down_bias)]
    ctx.mark_non_differentiable(pre, activated)
    without_zeros(ctx, output[0])


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    needs = list(ctx.needs_input_grad[:7])
    made = iter(_DIRECT_BACKWARD.consume([gradient_of(ctx, grad), *released(ctx), *ctx.form, needs]))
    found = [next(made) if need else None for need in needs]
    for i, dtype in zip((4, 5), ctx.bias_dtypes, strict=True):
        found[i] = None if found[i] is None else found[i].to(dtype)
    return *found, *[None] * 11


experts_mlp.register_autograd(_backward, setup_context=_setup_context)
_DIRECT = DirectOperator(experts_mlp, _mlp, 11, _setup_context, _backward, kept=True)
_DIRECT_BACKWARD = DirectOperator(experts_mlp_backward, _mlp_backward, 13, consumer=_gradients)
