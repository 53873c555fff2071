"""Rows of tokens brought to their experts and back: the kernels of ``cudnn.cutedsl.rows`` for CUDA tensors, plain torch for others. Not differentiable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from cudnn.datatypes import dtype_name
from cudnn.reference import rows as reference
from cudnn_gemm_grouped.moe.products import as_rows, launch, on_gpu

if TYPE_CHECKING:
    import torch


@lru_cache(maxsize=128)
def _kernel(kind: str, dtype: str, **options: Any) -> Callable[..., None]:
    from cudnn.cutedsl import rows

    return getattr(rows, kind)(dtype, **options).build()


def gather_rows(
    source: torch.Tensor,
    index: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
    other: torch.Tensor | None = None,
    other_index: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """out[r] = scale[r] · source[index[r]] in source's dtype, zeros where that is no row; and dot[r] = Σ_n source[index[r], n] · other[s, n], s being r or other_index[r], in float32, None without ``other``.

    source (S, H), index (R,) int32, scale (R,) float32, other (Q, H), other_index (R,) int32.
    """
    if not on_gpu(source):
        return reference.gather_rows(source, index, scale, other, other_index)
    import torch

    rows = index.shape[0]
    out = source.new_empty(rows, source.shape[1])
    dot = None if other is None else torch.empty(rows, dtype=torch.float32, device=source.device)
    if rows:
        options = {} if other is None else {"dot": True, "other_index": other_index is not None, "other_dtype": dtype_name(other.dtype)}
        kernel = _kernel("GatherRowsSpec", dtype_name(source.dtype), scaled=scale is not None, **options)
        more = [t for t in (scale, None if other is None else as_rows(other), other_index, dot) if t is not None]
        launch(source, kernel, (as_rows(source), index, out, *more))
    return out, dot


def scatter_rows(source: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> None:
    """out[index[r]] = source[r], where index[r] is a row of ``out``, a contiguous (T, H); source (R, H), index (R,) int32."""
    if not on_gpu(source):
        reference.scatter_rows(source, index, out)
    elif source.shape[0]:
        launch(source, _kernel("ScatterRowsSpec", dtype_name(source.dtype)), (as_rows(source), index, out))


def sum_rows(
    source: torch.Tensor, index: torch.Tensor, shape: Sequence[int], *, weight: torch.Tensor | None = None, first: torch.Tensor | None = None
) -> torch.Tensor:
    """A new tensor of ``shape`` (..., H), whose T rows are out[t] = Σ weight[i] · source[index[i]] in float32 and in order, rounded once: over the equal shares of the T rows in ``index`` (P,), or from first[t] up to
    first[t + 1].

    source (S, H), index int32, weight (P,) float32, first (T + 1,) int32. What ``index`` names no row of does not count.
    """
    rows = prod(shape[:-1])
    count = index.shape[0] // rows if rows and first is None else 0
    out = source.new_empty(shape)
    if not on_gpu(source):
        out.copy_(reference.sum_rows(source, index, count, rows, weight, first).view(shape))
        return out
    if rows:
        kernel = _kernel("SumRowsSpec", dtype_name(source.dtype), weighted=weight is not None, ragged=first is not None)
        more = [t for t in (weight, first) if t is not None]
        launch(source, kernel, (as_rows(source), index, out.view(-1, shape[-1]), *more), count)
    return out


def zero_tail(out: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """``out`` (M, N), contiguous, with zeros in the rows of no group, those from the last of ``ends`` on."""
    if not on_gpu(out):
        reference.zero_tail(out, ends)
    elif out.numel():
        launch(out, _kernel("ZeroTailSpec", dtype_name(out.dtype)), (out, ends))
    return out
