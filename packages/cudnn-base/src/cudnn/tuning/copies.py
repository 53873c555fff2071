"""Copies of a call's tensors: rotated, so that no call finds its inputs in the cache, and compared, so that a fast kernel that is wrong is found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MAX_SETS = 32
_MEMORY = 0.35  # share of the free device memory that copies may take
_OUTLIERS = 1e-3  # share of elements of one byte that may be off: a scale at the edge of a power of two moves its whole block


def span(t: torch.Tensor) -> int:
    """Elements from the first to the last of a tensor, gaps included."""
    return 0 if 0 in t.shape else 1 + sum((extent - 1) * step for extent, step in zip(t.shape, t.stride(), strict=True))


def flat(t: torch.Tensor) -> torch.Tensor:
    """All of the memory between a tensor's first and last element, as a vector."""
    return t.detach().as_strided((span(t),), (1,), t.storage_offset())


def copy_of(t: torch.Tensor) -> torch.Tensor:
    """The same values and strides in memory of its own; what lies in the gaps is copied as well."""
    return flat(t).clone().as_strided(t.shape, t.stride())


def set_count(tensors: Sequence[torch.Tensor]) -> int:
    """How many sets of copies to rotate, so that at least three times the L2 cache passes between two uses of one, as far as memory allows."""
    import torch

    device = tensors[0].device
    if device.type != "cuda":
        return 2
    size = max(sum(span(t) * t.element_size() for t in tensors), 1)
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(MAX_SETS, int(free * _MEMORY / size), max(2, math.ceil(3 * cache / size))))


def can_poison(t: torch.Tensor) -> bool:
    """Whether a kernel that reads what ``poison`` writes does no harm: wide integers may be indices."""
    return t.dtype.is_floating_point or t.dtype.itemsize == 1


def poison(t: torch.Tensor) -> None:
    """Fill with what no result looks like: NaN, or where that is not sure to exist 0x7f in every byte."""
    import torch

    values = flat(t)
    if t.dtype.is_floating_point and t.dtype.itemsize > 1:
        values.fill_(math.nan)
    else:
        values.view(torch.uint8).fill_(0x7F)


def disagreement(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> str | None:
    """None where two configurations computed the same, else how they differ.

    An element may be off by twice the precision of its dtype, or by ``tolerance`` where that is more, relative to its size and to the root mean square of all.
    """
    import torch

    if not expected.numel():
        return None
    allowed = 0.0
    if expected.dtype.itemsize == 1:
        allowed = _OUTLIERS
    if not expected.dtype.is_floating_point or str(expected.dtype) in ("torch.float8_e8m0fnu", "torch.float4_e2m1fn_x2"):
        # Packed numbers and exponents; other integers are the same or wrong.
        bytes_found, bytes_expected = (t.contiguous().view(torch.uint8) for t in (found, expected))
        bad = bytes_found != bytes_expected
    else:
        wide = torch.float64 if expected.dtype.itemsize > 4 else torch.float32
        f, e = found.to(wide), expected.to(wide)
        eps = max(2 * torch.finfo(expected.dtype).eps, tolerance)
        finite = e.isfinite()
        size = e.where(finite, 0).square().mean().sqrt()
        # `not <=`: a NaN has to be bad where none is expected.
        bad = ~(((f - e).abs() <= eps * (e.abs() + size)) | (f == e) | (f.isnan() & e.isnan()))
    count = int(bad.sum())
    if count <= allowed * bad.numel():
        return None
    return f"{count} of {bad.numel()} elements differ from those of the default configuration"
