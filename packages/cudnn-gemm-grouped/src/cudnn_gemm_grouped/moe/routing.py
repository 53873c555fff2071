"""`cudnn.ops.moe_route`, `moe_gather` and `moe_combine`: which rows go to which expert, and the tokens' way there and back, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from cudnn import checks
from cudnn.grouped.checks import MAX_EXPERTS
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
    count = top_k_index.shape[1]
    # Keys of 16 bits are sorted in two passes where 64 bits take eight.
    keys = top_k_index.reshape(-1).clamp(-1, experts).remainder(experts + 1).to(torch.int16)
    ordered, order = torch.sort(keys, stable=True)
    ends = torch.searchsorted(ordered, torch.arange(experts, dtype=torch.int16, device=keys.device), right=True, out_int32=True)
    pair = order.to(torch.int32)
    rows = torch.arange(keys.shape[0], dtype=torch.int32, device=keys.device)
    taken = ordered < experts
    position = torch.empty_like(pair).scatter(0, order, torch.where(taken, rows, -1))
    token = torch.where(taken, pair // max(count, 1), -1)
    return Routing(token, pair, position.view(top_k_index.shape), ends)


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
    return gathered_rows(x, routing.token, routing.position)


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
    return combined_rows(y, weights, *routing[:3])


def _check_rows(op: str, name: str, t: Any) -> None:
    check_tensor(op, name, t)
    if t.dtype not in DTYPES:
        raise TypeError(f"{op}: {name} is {t.dtype}, needs torch.bfloat16 or torch.float16; cast it")
    if t.dim() != 2:
        raise ValueError(f"{op}: {name} has shape {tuple(t.shape)}, needs two axes")
    check_features(op, name, "features", t.shape[1])


# torch.library reads these annotations, so they are spelled as it knows them.
@torch.library.custom_op("cudnn::moe_gather", mutates_args=())
def gathered_rows(x: Tensor, token: Tensor, position: Tensor) -> Tensor:
    """x[token], zeros where that is no row."""
    return gather_rows(x, token)[0]


@gathered_rows.register_fake
def _(x, token, position):
    return x.new_empty(token.shape[0], x.shape[1])


def _setup_gather(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1], inputs[2])


def _backward_gather(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    token, position = ctx.saved_tensors
    # Where rows go is not asked for by a sum without weights.
    return combined_rows(grad, None, token, token, position), None, None


gathered_rows.register_autograd(_backward_gather, setup_context=_setup_gather)


@torch.library.custom_op("cudnn::moe_combine", mutates_args=())
def combined_rows(y: Tensor, weights: Optional[Tensor], token: Tensor, pair: Tensor, position: Tensor) -> Tensor:  # noqa: UP045
    """The sum over j of weights[t, j] y[position[t, j]]."""
    return sum_rows(y, position.view(-1), (position.shape[0], y.shape[1]), weight=None if weights is None else weights.view(-1))


@combined_rows.register_fake
def _(y, weights, token, pair, position):
    return y.new_empty(position.shape[0], y.shape[1])


@torch.library.custom_op("cudnn::moe_combine_backward", mutates_args=())
def combined_rows_backward(
    grad: Tensor, y: Optional[Tensor], weights: Optional[Tensor], token: Tensor, pair: Tensor, position: Tensor, needs: Sequence[bool]  # noqa: UP045
) -> list[Tensor]:
    """Gradients of y and weights, those that ``needs`` names: one kernel for both."""
    need_y, need_weights = needs
    d_y, dots = gather_rows(grad, token, scale=pair_factors(weights, pair), other=y if need_weights else None)
    found = [d_y] if need_y else []
    if need_weights:
        found.append(of_choices(dots, position))
    return found


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
        return gathered_rows(grad, token, position), None, None, None, None
    found = iter(combined_rows_backward(grad, y, weights, token, pair, position, [need_y, need_weights]))
    d_y, d_weights = (next(found) if need else None for need in (need_y, need_weights))
    return d_y, d_weights, None, None, None


combined_rows.register_autograd(_backward_combine, setup_context=_setup_combine)
