"""Rows of matrices taken by index, and how tokens find their experts: what the kernels of ``cudnn.cutedsl.rows`` compute. An index outside of the matrix is no row."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def taken_rows(source: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(source[index], zeros where there is no such row; whether there is, (R, 1))."""
    import torch

    exists = ((index >= 0) & (index < source.shape[0])).unsqueeze(-1)
    if source.shape[0] == 0:
        return source.new_zeros(index.shape[0], source.shape[1]), exists
    rows = source[index.clamp(0, source.shape[0] - 1).long()]
    return torch.where(exists, rows, torch.zeros((), dtype=rows.dtype, device=rows.device)), exists


def gather_rows(
    source: torch.Tensor,
    index: torch.Tensor,
    scale: torch.Tensor | None = None,
    other: torch.Tensor | None = None,
    other_index: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """out[r] = scale[r] * source[index[r]], and dot[r] = the sum over n of source[index[r], n] * other[s, n], s being r or other_index[r].

    Args:
        source: (S, H).
        index: (R,).
        scale: (R,); None for ones.
        other: (Q, H); None where no dot is wanted.
        other_index: (R,).

    Returns:
        (out (R, H) in source's dtype, dot (R,) in float32 or None).
    """
    import torch

    rows, _ = taken_rows(source, index)
    dot = None
    if other is not None:
        places = torch.arange(index.shape[0], device=index.device) if other_index is None else other_index
        others, exist = taken_rows(other, places)
        dot = torch.where(exist, rows.float() * others.float(), 0).sum(-1)
    return rows if scale is None else (rows.float() * scale.float().unsqueeze(-1)).to(source.dtype), dot


def scatter_rows(source: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> None:
    """out[index[r]] = source[r], where index[r] is a row of ``out``."""
    exists = (index >= 0) & (index < out.shape[0])
    out[index[exists].long()] = source[exists]


def sum_rows(
    source: torch.Tensor, index: torch.Tensor, count: int | None, rows: int, weight: torch.Tensor | None = None, first: torch.Tensor | None = None
) -> torch.Tensor:
    """out[t] = the sum over i of weight[i] * source[index[i]] in float32, from first[t] up to first[t + 1], or where ``first`` is None from t * count up to (t + 1) * count.

    Args:
        source: (S, H).
        index: (P,).
        count: places of each row of the result; not looked at where there is ``first``.
        rows: T.
        weight: (P,); None for ones.
        first: (T + 1,).

    Returns:
        (T, H) in source's dtype.
    """
    import torch

    taken, _ = taken_rows(source, index)
    taken = taken.float() if weight is None else taken.float() * weight.float().unsqueeze(-1)
    if first is None:
        # One by one, so that the order is that of the kernel.
        total = source.new_zeros(rows, source.shape[1], dtype=torch.float32)
        for place in taken.view(rows, count, source.shape[1]).unbind(1) if count else ():
            total = total + place
    else:
        # Row 0 here is for what lies in front of the first, row T + 1 for what lies behind the last.
        owner = torch.searchsorted(first, torch.arange(index.shape[0], device=index.device, dtype=first.dtype), right=True)
        total = source.new_zeros(rows + 2, source.shape[1], dtype=torch.float32).index_add_(0, owner, taken)[1:-1]
    return total.to(source.dtype)


def zero_tail(out: torch.Tensor, ends: torch.Tensor) -> None:
    """out[r] = 0 for the rows from the last of ``ends`` on."""
    import torch

    out.masked_fill_((torch.arange(out.shape[0], device=out.device) >= ends[-1]).unsqueeze(-1), 0)
