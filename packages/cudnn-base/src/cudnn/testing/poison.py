"""Outputs that show what was written: NaN inside (bytes: 255), and guards before and behind that nothing may touch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

GUARD_BYTES = 4096


class Poisoned:
    """A tensor of NaN in the middle of a larger buffer; of 255, as a scale factor NaN, where its elements are bytes.

    Args:
        shape, stride: as of the tensor wanted; it starts on 16 bytes.
        dtype: a floating dtype, or uint8.
        device: where.
    """

    def __init__(self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device | str) -> None:
        import torch

        guard = GUARD_BYTES // dtype.itemsize
        span = 0 if 0 in shape else 1 + sum((extent - 1) * step for extent, step in zip(shape, stride, strict=True))
        self._fill = float("nan") if dtype.is_floating_point else 255
        self._buffer = torch.full((2 * guard + span,), self._fill, dtype=dtype, device=device)
        self._inside = slice(guard, guard + span)
        self.tensor = self._buffer.as_strided(tuple(shape), tuple(stride), guard)

    def check(self, name: str) -> None:
        """AssertionError if a guard was written, or an element of the tensor was not."""
        outside = self._buffer.clone()
        outside[self._inside] = self._fill
        touched, unwritten = ~self._poisoned(outside), self._poisoned(self.tensor)
        assert not touched.any(), f"{name}: {int(touched.sum())} elements outside the tensor were written"
        assert not unwritten.any(), f"{name}: {int(unwritten.sum())} of {self.tensor.numel()} elements were not written, or are NaN"

    def _poisoned(self, t: torch.Tensor) -> torch.Tensor:
        return t.isnan() if t.dtype.is_floating_point else t == self._fill
