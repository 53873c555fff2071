"""Grouped products of a mixture of experts: consecutive groups of rows, each with weights of its own, and the fusions around them.

``offsets`` (E,) are the ends of the groups: group e has the rows from ``offsets[e - 1]`` (0 for the first) up to ``offsets[e]``. Rows from the last end on belong to nobody.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cudnn.reference.gated import join_gate_up, split_gate_up, swiglu, swiglu_backward
from cudnn.reference.gemm import _compute_dtype, full_float32

if TYPE_CHECKING:
    import torch

GATED_ACTIVATIONS = ("swiglu", "geglu")


class GluScalars(NamedTuple):
    """What "geglu" is told: (min(max(u, low), high) + linear_offset) * g * sigmoid(alpha * g) with g cut off above ``high``."""

    linear_offset: float = 1.0
    alpha: float = 1.702
    high: float = 7.0
    low: float = -7.0


def offset_problem(ends: Sequence[int], extent: int) -> str | None:
    """None if the ends are in order and inside ``extent``, else what is wrong, with the group's number."""
    before = 0
    for group, end in enumerate(ends):
        if end < before:
            what = "is negative" if end < 0 else f"is below {before}, the end of group {group - 1}"
            return (
                f"found {end} as the end of group {group}, which {what}; needs ends (not sizes) that never decrease, for example torch.cumsum(sizes, 0).int()"
            )
        if end > extent:
            return f"found {end} as the end of group {group}, needs {extent} at most, the number of rows"
        before = end
    return None


def group_of_rows(offsets: torch.Tensor, rows: int) -> torch.Tensor:
    """(rows,) the group of each row, E for rows of none. Nothing is read from the device."""
    import torch

    return torch.searchsorted(offsets, torch.arange(rows, device=offsets.device, dtype=offsets.dtype), right=True)


def tensor_at(address: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The compact tensor at an address of the host or of a CUDA device. It keeps nothing alive."""
    import torch

    count = 1
    for extent in shape:
        count *= extent
    if device.type == "cpu":
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        memory = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
        return torch.frombuffer(memory, dtype=dtype).view(shape)

    class Memory:
        __cuda_array_interface__ = {"shape": (count * dtype.itemsize,), "typestr": "|u1", "data": (address, False), "version": 3}

    return torch.as_tensor(Memory(), device=device).view(dtype).view(shape)


def grouped_matmul(
    a: torch.Tensor, b: torch.Tensor | Sequence[torch.Tensor], offsets: torch.Tensor, *, compute_dtype: torch.dtype | str | None = None
) -> torch.Tensor:
    """S[m, n] = sum over k of A[m, k] B[e][n, k] for the rows m of each group e.

    Args:
        a: (M, K).
        b: (E, N, K), or E matrices (N, K).
        offsets: (E,), ends of the groups.
        compute_dtype: dtype of products, sums and result: float32 (None) or float64.

    Returns:
        (M, N) in ``compute_dtype``; zeros in rows of no group.

    Raises:
        ValueError: CPU tensors with offsets that decrease or pass M.
    """
    import torch

    dtype = _compute_dtype(compute_dtype)
    n, k = b[0].shape
    result = torch.zeros(a.shape[0], n, dtype=dtype, device=a.device)
    check_offsets("padded_offsets", offsets, a.shape[0])
    if k == 0 or a.shape[0] == 0:
        return result
    start = 0
    with torch.no_grad(), full_float32():
        for group, end in enumerate(offsets.tolist()):
            if end > start:
                result[start:end] = a[start:end].to(dtype) @ b[group].to(dtype).t()
                start = end
    return result


def check_offsets(name: str, offsets: torch.Tensor, extent: int) -> None:
    """ValueError naming the group unless offsets on the CPU are in order and inside ``extent``. Those on a device are not read."""
    if offsets.device.type == "cpu":
        problem = offset_problem(offsets.tolist(), extent)
        if problem is not None:
            raise ValueError(f"{name}: {problem}")


def grouped_gemm(
    a: torch.Tensor,
    b: torch.Tensor | Sequence[torch.Tensor],
    offsets: torch.Tensor,
    alpha: torch.Tensor | None,
    prob: torch.Tensor | None,
    bias: torch.Tensor | None = None,
    *,
    addend: torch.Tensor | None = None,
    compute_dtype: torch.dtype | str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """c = alpha[e] * S + addend and d = prob[m] * c; with a bias c = d = alpha[e] * S + addend + prob[m] * bias[n, e].

    Args:
        a, b, offsets, compute_dtype: as in ``grouped_matmul``.
        alpha: (E,); None for ones.
        prob: (M,); None for ones.
        bias: (N, E).
        addend: (M, N).

    Returns:
        (c, d), each (M, N), not rounded to any output dtype.
    """
    s = grouped_matmul(a, b, offsets, compute_dtype=compute_dtype)
    owner = group_of_rows(offsets, a.shape[0]).clamp(max=offsets.shape[0] - 1)
    c = s if alpha is None else s * alpha.to(s.dtype)[owner][:, None]
    if addend is not None:
        c = c + addend.to(s.dtype)
    if bias is None:
        return c, c if prob is None else c * prob.to(s.dtype)[:, None]
    more = bias.to(s.dtype).t()[owner]
    c = c + (more if prob is None else more * prob.to(s.dtype)[:, None])
    return c, c


def gated(gate: torch.Tensor, up: torch.Tensor, activation: str, scalars: GluScalars) -> torch.Tensor:
    """act(gate, up) of a grouped gated pair: "swiglu" or "geglu"."""
    import torch

    if activation == "swiglu":
        return swiglu(gate, up)
    gate, up = torch.clamp(gate, max=scalars.high), torch.clamp(up, max=scalars.high).clamp(min=scalars.low)
    return (up + scalars.linear_offset) * gate * torch.sigmoid(scalars.alpha * gate)


def gated_backward(
    gate: torch.Tensor, up: torch.Tensor, grad: torch.Tensor, activation: str, scalars: GluScalars
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(gradient of gate, gradient of up, act(gate, up)) from the gradient of act."""
    import torch

    if activation == "swiglu":
        return swiglu_backward(gate, up, grad)
    cut_gate, cut_up = torch.clamp(gate, max=scalars.high), torch.clamp(up, max=scalars.high).clamp(min=scalars.low)
    s = torch.sigmoid(scalars.alpha * cut_gate)
    linear = cut_up + scalars.linear_offset
    d_gate = grad * s * (1 + scalars.alpha * cut_gate * (1 - s)) * linear
    d_up = grad * cut_gate * s
    return torch.where(gate <= scalars.high, d_gate, 0), torch.where((up <= scalars.high) & (up >= scalars.low), d_up, 0), cut_gate * s * linear


def grouped_gemm_glu(
    a: torch.Tensor,
    b: torch.Tensor | Sequence[torch.Tensor],
    offsets: torch.Tensor,
    alpha: torch.Tensor | None,
    prob: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    activation: str = "swiglu",
    scalars: GluScalars | None = None,
    glu_layout: str = "interleaved32",
    compute_dtype: torch.dtype | str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """c = alpha[e] * S + bias[n, e] and d = prob[m] * act(gate, up), gate and up being the halves of c that ``glu_layout`` names.

    Args:
        a, b, offsets, alpha, bias, compute_dtype: as in ``grouped_gemm``; with two weight halves ``b`` has their rows one behind the other, gate first.
        prob: (M,); None for ones.
        activation: "swiglu" or "geglu".
        scalars: those of "geglu".
        glu_layout: ``"interleaved32"`` (blocks of 32 columns in turn, gate first), ``"concatenated"`` or ``"separate"`` (gate, then up), ``"alternating"`` (column by column, gate first).

    Returns:
        (c, d), (M, N) and (M, N / 2), not rounded to any output dtype.
    """
    s = grouped_matmul(a, b, offsets, compute_dtype=compute_dtype)
    owner = group_of_rows(offsets, a.shape[0]).clamp(max=offsets.shape[0] - 1)
    c = s if alpha is None else s * alpha.to(s.dtype)[owner][:, None]
    if bias is not None:
        c = c + bias.to(s.dtype).t()[owner]
    gate, up = split_gate_up(c, glu_layout, order="gate_first")
    d = gated(gate, up, activation, scalars or GluScalars())
    return c, d if prob is None else d * prob.to(s.dtype)[:, None]


class GluGradients(NamedTuple):
    """What ``grouped_gemm_dglu`` returns: d (M, 2N), the sums for dprob (M,) and for dbias (E, 2N), and prob * act (M, N)."""

    d: Any
    dprob: Any
    dbias: Any
    activation: Any


def grouped_gemm_dglu(
    a: torch.Tensor,
    b: torch.Tensor | Sequence[torch.Tensor],
    c: torch.Tensor,
    offsets: torch.Tensor,
    alpha: torch.Tensor | None,
    beta: torch.Tensor | None,
    prob: torch.Tensor | None,
    *,
    activation: str = "swiglu",
    scalars: GluScalars | None = None,
    glu_layout: str = "interleaved32",
    round_to: torch.dtype | None = None,
    compute_dtype: torch.dtype | str | None = None,
) -> GluGradients:
    """The gradient of ``grouped_gemm_glu``: G = alpha[e]^2 * S is that of d / prob, and the result's d that of c, in c's order.

    Args:
        a, b, offsets, alpha, prob, compute_dtype: as in ``grouped_gemm``.
        c: (M, 2N), what the forward pass kept.
        beta: (E,), factors on c; None for ones.
        activation, scalars, glu_layout: as in ``grouped_gemm_glu``.
        round_to: dtype that G is rounded to first.
    """
    import torch

    g = grouped_matmul(a, b, offsets, compute_dtype=compute_dtype)
    experts = offsets.shape[0]
    owner = group_of_rows(offsets, a.shape[0])
    present = (owner < experts)[:, None]
    owner = owner.clamp(max=experts - 1)
    if alpha is not None:
        g = g * alpha.to(g.dtype).square()[owner][:, None]
    if round_to is not None:
        g = g.to(round_to).to(g.dtype)
    saved = c.to(g.dtype) if beta is None else c.to(g.dtype) * beta.to(g.dtype)[owner][:, None]
    gate, up = split_gate_up(saved, glu_layout, order="gate_first")
    weight = 1 if prob is None else prob.to(g.dtype)[:, None]
    d_gate, d_up, value = gated_backward(gate, up, g * weight, activation, scalars or GluScalars())
    d = torch.where(present, join_gate_up(d_gate, d_up, glu_layout, order="gate_first"), 0)
    dprob = torch.where(present, g * value, 0).sum(1)
    dbias = torch.zeros(experts, d.shape[1], dtype=g.dtype, device=a.device).index_add_(0, owner, d)
    return GluGradients(d, dprob, dbias, value * weight)


def grouped_wgrad(
    a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor, *, step_blocks: bool = False, compute_dtype: torch.dtype | str | None = None
) -> torch.Tensor:
    """W[e] = A[:, t0:t1] B[t0:t1, :] for the steps t0 to t1 of each group.

    Args:
        a: (m, T).
        b: (T, n).
        offsets: (E,), ends of the groups along T.
        step_blocks: an operand whose T axis is contiguous holds each group as a matrix of its own, one behind the other.
        compute_dtype: as in ``grouped_matmul``.

    Returns:
        (E, m, n) in ``compute_dtype``; zeros for groups of no steps.
    """
    import torch

    dtype = _compute_dtype(compute_dtype)
    m, steps = a.shape
    n = b.shape[1]
    check_offsets("offsets_tensor", offsets, steps)
    result = torch.zeros(offsets.shape[0], m, n, dtype=dtype, device=a.device)
    if 0 in (m, n, steps):
        return result
    left = _steps_of(a.t(), step_blocks)
    right = _steps_of(b, step_blocks)
    start = 0
    with torch.no_grad(), full_float32():
        for group, end in enumerate(offsets.tolist()):
            if end > start:
                result[group] = left(start, end).to(dtype).t() @ right(start, end).to(dtype)
                start = end
    return result


def _steps_of(t: torch.Tensor, step_blocks: bool) -> Any:
    """A function of (start, end) that gives the steps of a group, (steps, rows), of an operand seen as (T, rows)."""
    steps, rows = t.shape
    if not step_blocks or not t.t().is_contiguous() or t.is_contiguous():
        return lambda start, end: t[start:end]
    flat = t.t().reshape(-1)
    return lambda start, end: flat[rows * start : rows * end].view(rows, end - start).t()
