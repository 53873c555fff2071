"""`cudnn.gemm.ops.moe_grouped_matmul`: the experts' product, with tokens gathered before or results scattered behind it, and gradients."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from cudnn.grouped.checks import MAX_EXPERTS
from cudnn.reference.grouped import grouped_matmul, grouped_wgrad
from cudnn.torch_autocast import cast_inputs
from cudnn.torch_direct import DirectOperator
from cudnn_gemm_grouped.moe.checks import DTYPES, check_device, check_shape, check_tensor
from cudnn_gemm_grouped.moe.ops import fake_like_weight, like_weight, n_major
from cudnn_gemm_grouped.moe.products import as_weights, check_features, linear, weight_gradient
from cudnn_gemm_grouped.moe.rows import gather_rows, scatter_rows, sum_rows, zero_tail

__all__ = ["moe_grouped_matmul"]

MODES = ("none", "gather", "scatter")
OP = "moe_grouped_matmul"


def moe_grouped_matmul(
    token: Tensor,
    weight: Tensor,
    first_token_offset: Tensor,
    token_index: Tensor | None = None,
    token_ks: Tensor | None = None,
    mode: str = "none",
    top_k: int = 1,
) -> Tensor:
    """The rows r of group g times the weights of expert g mod E:

        none:    out[r] = token[r] W[e(r)]
        gather:  out[r] = token[token_index[r]] W[e(r)]
        scatter: out[token_index[r] top_k + token_ks[r]] = token[r] W[e(r)]

    Differentiable once in token and weight, also where a token is gathered several times: its rows' gradients are added in float32, in a fixed order. Rows outside of the groups, and rows that nothing is scattered to, hold
    anything; their gradients are 0. Products whose gradient nobody asks for are left out. Under autocast token and weight are cast as for ``torch.nn.functional.linear``.

    One product, with `moe_gather` or a scatter of rows as a kernel of its own. With more groups than experts the weights are found by address. Under torch.compile this is the operator ``cudnn::moe_grouped_matmul``.

    Args:
        token: (1, R, K), with gather (1, T, K); bfloat16 or float16, on CPU tensors float32 too.
        weight: (E, K, N) in token's dtype, contiguous along K or along N: read in place.
        first_token_offset: (G + 1, 1, 1) int32 boundaries of G groups, a multiple of E; or, deprecated and for E > 1 alone, (G, 1, 1) starts.
        token_index, token_ks: (1, R, 1) int32. With gather the first, with scatter both. An index that is no row counts as none.
        mode: ``"none"``, ``"gather"`` or ``"scatter"``.
        top_k: with scatter.

    Returns:
        (1, R, N) in token's dtype.

    Raises:
        KeyError: another dtype.
        ValueError: an unknown mode, an index that is missing, shapes, offsets or devices that do not fit; K or N is no multiple of 8; more than 1024 groups.
        NotImplementedError: float32 on a CUDA device.
    """
    for name, t in (("token", token), ("weight", weight), ("first_token_offset", first_token_offset)):
        check_tensor(OP, name, t)
    token, weight = cast_inputs(token.device.type, token, weight)
    return _MATMUL(token, weight, first_token_offset, token_index, token_ks, mode, top_k)


def _check(token: Tensor, weight: Tensor, offsets: Tensor, index: Tensor | None, ks: Tensor | None, mode: str) -> None:
    if mode not in MODES:
        raise ValueError(f"{OP}: mode is {mode!r}, needs one of {', '.join(map(repr, MODES))}")
    missing = [name for name, t, modes in (("token_index", index, MODES[1:]), ("token_ks", ks, MODES[2:])) if t is None and mode in modes]
    if missing:
        raise ValueError(f"{OP}: {' and '.join(missing)} missing, needed with mode={mode!r}")
    if offsets.dim() != 3 or offsets.shape[1:] != (1, 1) or offsets.dtype != torch.int32:
        raise ValueError(f"{OP}: first_token_offset is {offsets.dtype} of shape {tuple(offsets.shape)}, needs torch.int32 of shape (G + 1, 1, 1)")
    if weight.dim() != 3 or token.dim() != 3 or token.shape[0] != 1:
        raise ValueError(f"{OP}: token has shape {tuple(token.shape)} and weight {tuple(weight.shape)}, needs (1, R, K) and (E, K, N)")
    experts, count = weight.shape[0], offsets.shape[0]
    fits = count >= 2 if experts == 1 else count > 0 and (count % experts == 0 or (count > 1 and (count - 1) % experts == 0))
    if not fits:
        raise ValueError(f"{OP}: first_token_offset has {count} numbers, needs G + 1 boundaries of G groups, a multiple of the {experts} experts")
    if token.dtype not in (*DTYPES, torch.float32):
        raise KeyError(f"{OP}: token is {token.dtype}, needs torch.bfloat16, torch.float16 or torch.float32")
    if weight.dtype != token.dtype:
        raise KeyError(f"{OP}: weight is {weight.dtype} while token is {token.dtype}, needs equal dtypes; cast one, or call under torch.autocast")
    if token.dtype == torch.float32 and token.is_cuda:
        raise NotImplementedError(f"{OP}: token is torch.float32 on {token.device}, needs torch.bfloat16 or torch.float16 there; cast token and weight")
    if weight.shape[1] != token.shape[2]:
        raise ValueError(f"{OP}: weight has shape {tuple(weight.shape)}, needs (E, K, N) with K = {token.shape[2]} of token")
    groups = _groups(experts, count)
    if groups > MAX_EXPERTS:
        raise ValueError(f"{OP}: found {groups} groups, needs {MAX_EXPERTS} at most")
    check_features(OP, "weight", "rows (K)", weight.shape[1])
    check_features(OP, "weight", "columns (N)", weight.shape[2])
    for name, t in (("weight", weight), ("first_token_offset", offsets), ("token_index", index), ("token_ks", ks)):
        if t is not None:
            check_device(OP, name, t, token)
    rows = token.shape[1] if index is None or mode != "gather" else index.shape[1] if index.dim() == 3 else -1
    for name, t, modes in (("token_index", index, MODES[1:]), ("token_ks", ks, MODES[2:])):
        if t is not None and mode in modes:
            if t.dtype != torch.int32:
                raise ValueError(f"{OP}: {name} is {t.dtype}, needs torch.int32")
            check_shape(OP, name, t, (1, rows, 1), "(1, R, 1)", "")


def _groups(experts: int, count: int) -> int:
    """Groups of ``count`` offsets: explicit boundaries have one more. Of what would do as either, starts are deprecated, but what they were."""
    return count - 1 if experts == 1 or count % experts else count


def _ends(offsets: Tensor, experts: int, rows: int) -> Tensor:
    flat = offsets.reshape(-1)
    if _groups(experts, flat.shape[0]) == flat.shape[0]:
        return torch.cat((flat[1:], flat.new_full((1,), rows)))
    return flat[1:].clone()


def _product(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    """x (R, K) times w (E, N, K), group g with expert g mod E."""
    experts, groups = w.shape[0], ends.shape[0]
    if x.dtype == torch.float32:
        return grouped_matmul(x, [w[g % experts] for g in range(groups)], ends)
    if groups == experts:
        return linear(x, w, ends)
    view, major = as_weights(w)
    # Addresses need matrices without gaps.
    view = view if view[0].is_contiguous() else view.contiguous()
    step = view.stride(0) * view.itemsize
    addresses = view.data_ptr() + step * (torch.arange(groups, dtype=torch.int64, device=x.device) % experts)
    return linear(x, None, ends, pointers=(addresses, w.shape[1], major))


def _weight_gradient(w: Tensor, grad: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    """Of w (E, N, K), its axes in w's order in memory."""
    experts, groups = w.shape[0], ends.shape[0]
    if x.dtype == torch.float32 or groups != experts:
        left, right = (x, grad) if n_major(w) else (grad, x)
        found = grouped_wgrad(left.t(), right, ends) if x.dtype == torch.float32 else weight_gradient(left, right, ends, torch.float32)
        found = found.view(groups // experts, experts, *found.shape[1:]).sum(0).to(w.dtype)
        return found.transpose(1, 2) if n_major(w) else found
    return like_weight(w, grad, x, ends)


def _masked(index: Tensor, ends: Tensor) -> Tensor:
    """An index of rows (R,), -1 for those of no group."""
    return torch.where(torch.arange(index.shape[0], dtype=torch.int32, device=index.device) < ends[-1], index, -1)


def _targets(index: Tensor, ks: Tensor, top_k: int, ends: Tensor) -> Tensor:
    flat = index.reshape(-1)
    places = flat * top_k + ks.reshape(-1)
    return _masked(torch.where(flat >= 0, places, -1), ends)


# torch.library reads these annotations, so they are spelled as it knows them.
def _matmul(
    token: Tensor,
    weight: Tensor,
    first_token_offset: Tensor,
    token_index: Optional[Tensor] = None,  # noqa: UP045
    token_ks: Optional[Tensor] = None,  # noqa: UP045
    mode: str = "none",
    top_k: int = 1,
) -> Tensor:
    """As `moe_grouped_matmul`."""
    _check(token, weight, first_token_offset, token_index, token_ks, mode)
    rows = token[0]
    ends = _ends(first_token_offset, weight.shape[0], token_index.shape[1] if mode == "gather" else rows.shape[0])
    if mode == "gather":
        rows, _ = gather_rows(rows, _masked(token_index.reshape(-1), ends))
    y = _product(rows, weight.transpose(1, 2), ends)
    if mode == "scatter":
        out = torch.empty_like(y)
        scatter_rows(y, _targets(token_index, token_ks, top_k, ends), out)
        y = out
    return y.unsqueeze(0)


expert_matmul = torch.library.custom_op("cudnn::moe_grouped_matmul", _matmul, mutates_args=())


@expert_matmul.register_fake
def _(token, weight, first_token_offset, token_index=None, token_ks=None, mode="none", top_k=1):
    rows = token_index.shape[1] if mode == "gather" else token.shape[1]
    return token.new_empty(1, rows, weight.shape[2])


def _matmul_backward(
    grad: Tensor,
    token: Optional[Tensor],  # noqa: UP045
    weight: Tensor,
    first_token_offset: Tensor,
    token_index: Optional[Tensor],  # noqa: UP045
    token_ks: Optional[Tensor],  # noqa: UP045
    mode: str,
    top_k: int,
    tokens: int,
    need_token: bool,
    need_weight: bool,
) -> list[Tensor]:
    """Gradients of token (1, ``tokens``, K) and weight, as far as they are needed."""
    d_y = grad[0]
    ends = _ends(first_token_offset, weight.shape[0], d_y.shape[0])
    turned = weight.transpose(1, 2)
    if mode == "scatter":
        d_y, _ = gather_rows(d_y, _targets(token_index, token_ks, top_k, ends))
    index = _masked(token_index.reshape(-1), ends) if mode == "gather" else None
    found = []
    if need_token:
        d_rows = _product(d_y, weight, ends)
        d_token = zero_tail(d_rows, ends) if index is None else _summed(d_rows, index, tokens)
        found.append(d_token.unsqueeze(0))
    if need_weight:
        rows = token[0] if index is None else gather_rows(token[0], index)[0]
        found.append(_weight_gradient(turned, d_y, rows, ends).transpose(1, 2))
    return found


def _summed(rows: Tensor, index: Tensor, tokens: int) -> Tensor:
    """(tokens, K), the sum of the rows that ``index`` says are of each, in their order."""
    ordered, order = torch.sort(index, stable=True)
    bounds = torch.arange(tokens + 1, dtype=torch.int32, device=index.device)
    return sum_rows(rows, order.to(torch.int32), (tokens, rows.shape[1]), first=torch.searchsorted(ordered, bounds, out_int32=True))


expert_matmul_backward = torch.library.custom_op("cudnn::moe_grouped_matmul_backward", _matmul_backward, mutates_args=())


@expert_matmul_backward.register_fake
def _(grad, token, weight, first_token_offset, token_index, token_ks, mode, top_k, tokens, need_token, need_weight):
    found = [grad.new_empty(1, tokens, weight.shape[1])] if need_token else []
    turned = weight.transpose(1, 2)
    return [*found, *([fake_like_weight(turned, *turned.shape[1:]).transpose(1, 2)] if need_weight else [])]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    token, weight, offsets, index, ks, ctx.mode, ctx.top_k = inputs
    ctx.tokens = token.shape[1]
    ctx.save_for_backward(token if ctx.needs_input_grad[1] else None, weight, offsets, index, ks)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    need_token, need_weight = ctx.needs_input_grad[:2]
    found = iter(_MATMUL_GRADIENTS(grad, *ctx.saved_tensors, ctx.mode, ctx.top_k, ctx.tokens, need_token, need_weight))
    d_token, d_weight = (next(found) if need else None for need in (need_token, need_weight))
    return d_token, d_weight, None, None, None, None, None


expert_matmul.register_autograd(_backward, setup_context=_setup_context)
_MATMUL = DirectOperator(expert_matmul, _matmul, 5, _setup_context, _backward)
_MATMUL_GRADIENTS = DirectOperator(expert_matmul_backward, _matmul_backward, 6)
