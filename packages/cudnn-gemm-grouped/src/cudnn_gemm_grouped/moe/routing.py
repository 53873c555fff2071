"""`cudnn.ops.moe_route`, `moe_gather` and `moe_combine`: which rows go to which expert, and the tokens' way there and back, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from cudnn import checks
from cudnn.grouped.checks import MAX_EXPERTS
from cudnn.torch_direct import DirectOperator
from cudnn_gemm_grouped.moe.checks import DTYPES, INTEGERS, check_device, check_shape, check_tensor, row_factors
from cudnn_gemm_grouped.moe.products import check_features
from cudnn_gemm_grouped.moe.rows import gather_rows, sum_rows

__all__ = ["Routing", "moe_combine", "moe_gather", "moe_route"]


class Routing(NamedTuple):
    """Which row is whose, for T tokens with k experts each, S = T k rows in all, sorted by expert. All int32, on the device; nothing of it is known to the host.

    Attributes:
        token: (S,) the token of each row; -1 for rows of no expert, which come last.
        pair: (S,) the row's place in the flattened (T, k) choice.
        position: (T, k) the row of each choice; -1 where that was no expert.
        ends: (E,) the end of each expert's rows, the ``offsets`` of the grouped operations.
    """

    token: Tensor
    pair: Tensor
    position: Tensor
    ends: Tensor


def moe_route(top_k_index: Tensor, num_experts: int) -> Routing:
    """Sort the choices of T tokens by expert. The host learns nothing and waits for nothing, so it goes into CUDA graphs, and under torch.compile it is part of the graph.

    Rows of one expert are in the order of their tokens. What is no expert (a number below 0, or E and above, as expert parallelism uses for experts on other devices) goes to no group.

    Args:
        top_k_index: (T, k) integers, the experts of each token.
        num_experts: E, from 1 to 1024.

    Returns:
        Routing.

    Raises:
        TypeError: ``top_k_index`` is no tensor of int64, int32 or int16.
        ValueError: it has not two axes, or E is out of range.
    """
    check_tensor("moe_route", "top_k_index", top_k_index)
    if top_k_index.dtype not in INTEGERS:
        raise TypeError(f"moe_route: top_k_index is {top_k_index.dtype}, needs torch.int64, torch.int32 or torch.int16")
    if top_k_index.dim() != 2:
        raise ValueError(f"moe_route: top_k_index has shape {tuple(top_k_index.shape)}, needs two axes (T, k)")
    experts = num_experts if isinstance(num_experts, int) else checks.as_integer("num_experts", num_experts)
    if not 1 <= experts <= MAX_EXPERTS:
        raise ValueError(f"moe_route: num_experts is {experts}, needs 1 to {MAX_EXPERTS}")
    return route(top_k_index, experts)


def route(index: Tensor, experts: int) -> Routing:
    """As `moe_route`, without checks."""
    # Keys of 16 bits are sorted in two passes where 64 bits take eight. What is written over is new: each operator of torch costs the host some microseconds, and those that allocate cost more.
    keys = index.reshape(-1).clamp(-1, experts).to(torch.int16)
    ordered, order = torch.sort(keys.remainder_(experts + 1), stable=True)
    ends = torch.searchsorted(ordered, torch.arange(experts, dtype=torch.int16, device=index.device), right=True, out_int32=True)
    nobody = ordered >= experts
    pair = order.to(torch.int32)
    token = torch.div(pair, max(index.shape[1], 1), rounding_mode="floor").masked_fill_(nobody, -1)
    rows = torch.arange(pair.shape[0], dtype=torch.int32, device=index.device).masked_fill_(nobody, -1)
    position = torch.empty_like(pair).scatter_(0, order, rows)
    return Routing(token, pair, position.view(index.shape), ends)


def moe_gather(x: Tensor, routing: Routing) -> Tensor:
    """out[r] = x[token of row r]: the tokens in the order of their experts; zeros in rows of no expert. Differentiable in x, whose gradient is `moe_combine` of the rows' gradients.

    On Hopper a kernel of its own: it reads and writes S H elements at the speed of memory. `moe_mlp` does the same inside.

    Args:
        x: (T, H), bfloat16 or float16, H a multiple of 8.
        routing: of `moe_route`.

    Returns:
        (S, H) in x's dtype.

    Raises:
        TypeError: x of another dtype.
        ValueError: shapes or devices do not fit.
    """
    _check_rows("moe_gather", "x", x)
    check_shape("moe_gather", "x", x, (routing.position.shape[0], x.shape[1]), "(T, H)", ", with T of the routing")
    check_device("moe_gather", "the routing", routing.token, x)
    return _GATHER(x, routing.token, routing.position)


def moe_combine(y: Tensor, routing: Routing, weights: Tensor | None = None) -> Tensor:
    """out[t] = Σ_j weights[t, j] · y[row of choice j of token t], in float32 and in the order of j, rounded once. Choices that were no expert do not count. Differentiable once in y and weights.

    The same bits every time. On Hopper a kernel of its own: it reads S H elements and writes T H at the speed of memory. `moe_mlp` does the same inside, with the weights applied to the activations before.

    Args:
        y: (S, H), bfloat16 or float16, H a multiple of 8.
        routing: of `moe_route`.
        weights: (T, k), read in float32; None for ones.

    Returns:
        (T, H) in y's dtype.

    Raises:
        TypeError: y of another dtype, weights of none of the floating-point ones.
        ValueError: shapes or devices do not fit.
    """
    _check_rows("moe_combine", "y", y)
    check_shape("moe_combine", "y", y, (routing.token.shape[0], y.shape[1]), "(S, H)", ", with S of the routing")
    check_device("moe_combine", "the routing", routing.token, y)
    weights = row_factors("moe_combine", "weights", weights, routing.position.shape, "(T, k)", y)
    return _COMBINE(y, weights, *routing[:3])


def _check_rows(op: str, name: str, t: Any) -> None:
    check_tensor(op, name, t)
    if t.dtype not in DTYPES:
        raise TypeError(f"{op}: {name} is {t.dtype}, needs torch.bfloat16 or torch.float16; cast it")
    if t.dim() != 2:
        raise ValueError(f"{op}: {name} has shape {tuple(t.shape)}, needs two axes")
    check_features(op, name, "features", t.shape[1])


# torch.library reads these annotations, so they are spelled as it knows them.
def _gathered(x: Tensor, token: Tensor, position: Tensor) -> Tensor:
    """x[token], zeros where that is no row."""
    return gather_rows(x, token)[0]


gathered_rows = torch.library.custom_op("cudnn::moe_gather", _gathered, mutates_args=())


@gathered_rows.register_fake
def _(x, token, position):
    return x.new_empty(token.shape[0], x.shape[1])


def _setup_gather(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1], inputs[2])


def _backward_gather(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    token, position = ctx.saved_tensors
    # Where rows go is not asked for by a sum without weights.
    return _COMBINE(grad, None, token, token, position), None, None


gathered_rows.register_autograd(_backward_gather, setup_context=_setup_gather)
_GATHER = DirectOperator(gathered_rows, _gathered, 3, _setup_gather, _backward_gather)


def _combined(y: Tensor, weights: Optional[Tensor], token: Tensor, pair: Tensor, position: Tensor) -> Tensor:  # noqa: UP045
    """The sum over j of weights[t, j] y[position[t, j]]."""
    return sum_rows(y, position.view(-1), (position.shape[0], y.shape[1]), weight=None if weights is None else weights.view(-1))


combined_rows = torch.library.custom_op("cudnn::moe_combine", _combined, mutates_args=())


@combined_rows.register_fake
def _(y, weights, token, pair, position):
    return y.new_empty(position.shape[0], y.shape[1])


def _combined_backward(
    grad: Tensor, y: Optional[Tensor], weights: Optional[Tensor], token: Tensor, pair: Tensor, position: Tensor, needs: Sequence[bool]  # noqa: UP045
) -> list[Tensor]:
    """Gradients of y and weights, those that ``needs`` names: one kernel for both."""
    need_y, need_weights = needs
    d_y, dots = gather_rows(grad, token, scale=pair_factors(weights, pair), other=y if need_weights else None)
    found = [d_y] if need_y else []
    if need_weights:
        found.append(of_choices(dots, position))
    return found


combined_rows_backward = torch.library.custom_op("cudnn::moe_combine_backward", _combined_backward, mutates_args=())


@combined_rows_backward.register_fake
def _(grad, y, weights, token, pair, position, needs):
    need_y, need_weights = needs
    found = [grad.new_empty(token.shape[0], grad.shape[1])] if need_y else []
    return [*found, *([grad.new_empty(position.shape, dtype=torch.float32)] if need_weights else [])]


def pair_factors(weights: Tensor | None, pair: Tensor | None) -> Tensor | None:
    """Factors of rows, from those of choices (T, k); factors that are those of rows already, where there is no ``pair``, stay."""
    return weights if weights is None or pair is None else weights.reshape(-1).index_select(0, pair)


def of_choices(rows: Tensor, position: Tensor) -> Tensor:
    """(T, k) from values of rows (S,), 0 where a choice has no row."""
    if rows.shape[0] == 0:
        return rows.new_zeros(position.shape)
    return torch.where(position >= 0, rows.index_select(0, position.clamp(min=0).view(-1)).view(position.shape), 0)


def _setup_combine(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    y, weights, token, pair, position = inputs
    ctx.save_for_backward(y if ctx.needs_input_grad[1] else None, weights, token, pair, position)


def _backward_combine(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    y, weights, token, pair, position = ctx.saved_tensors
    need_y, need_weights = ctx.needs_input_grad[:2]
    if need_y and weights is None:
        return _GATHER(grad, token, position), None, None, None, None
    found = iter(_COMBINE_GRADIENTS(grad, y, weights, token, pair, position, [need_y, need_weights]))
    d_y, d_weights = (next(found) if need else None for need in (need_y, need_weights))
    return d_y, d_weights, None, None, None


combined_rows.register_autograd(_backward_combine, setup_context=_setup_combine)
_COMBINE = DirectOperator(combined_rows, _combined, 5, _setup_combine, _backward_combine)
_COMBINE_GRADIENTS = DirectOperator(combined_rows_backward, _combined_backward, 6)
