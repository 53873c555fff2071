"""Operands that a kernel cannot take as they are, and what is made of them in scratch memory in front of it: one launch for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cudnn.block_scale import E8M0, FP4, ScaleLayout, format_of
from cudnn.cutedsl.dequantize import DequantizeSpec
from cudnn.cutedsl.transpose import TransposeSpec, pitch
from cudnn.datatypes import itemsize_bits, torch_dtype
from cudnn.tensors import Metadata
from cudnn.workspace import WorkspaceCarver


class Scaled(NamedTuple):
    """An operand that comes with scale factors. ``operand``, ``scale``: which of the call's tensors it and they are; ``vec``: elements along K for each factor. ``plain``: factors are (rows, K / vec) and the operand is (rows, K), instead of (rows, K, L) and the blocked layout."""

    operand: int
    scale: int
    vec: int
    plain: bool = False


@dataclass(frozen=True)
class Transposed:
    """Operand number ``operand``, of 8-bit or 32-bit elements, copied to be contiguous along K."""

    operand: int
    dtype: str

    @property
    def spec(self) -> TransposeSpec:
        return TransposeSpec(self.dtype)

    def bytes(self, rows: int, k: int, batches: int) -> int:
        """Scratch memory for (rows, K, L)."""
        bits = itemsize_bits(self.dtype)
        return rows * pitch(k, bits) * batches * bits // 8

    def run(self, kernel: Callable[..., None], tensors: Sequence[Any], carver: WorkspaceCarver, handle: int) -> Any:
        """Launch ``kernel``; the operand as the kernel behind it takes it."""
        source = tensors[self.operand]
        target = _lines(carver, source.shape, source.dtype, 8 * source.itemsize, True)
        kernel(source, target, handle)
        return target


@dataclass(frozen=True)
class Converted:
    """Operand number ``operand`` times its scale factors, tensor number ``scale``, in ``target`` (a 16-bit dtype) and in the same order of axes. ``dtype``, ``scale_dtype``: names; ``vec``: elements along K
    for each factor; ``plain``: as in ``Scaled``."""

    operand: int
    scale: int
    dtype: str
    scale_dtype: str
    vec: int
    target: str
    k_major: bool
    plain: bool = False

    @property
    def spec(self) -> DequantizeSpec:
        return DequantizeSpec(
            self.dtype, E8M0 if self.scale_dtype in ("int8", "uint8") else self.scale_dtype, self.vec, self.target, self.k_major, not self.plain
        )

    @property
    def format(self) -> str:
        """Name of the block-scaled format."""
        return format_of(self.dtype, self.spec.scale, self.vec).name  # type: ignore[union-attr]

    def bytes(self, rows: int, k: int, batches: int) -> int:
        """As ``Transposed.bytes``."""
        outer, inner = (rows, k) if self.k_major else (k, rows)
        return 2 * outer * pitch(inner, 16) * batches

    def run(self, kernel: Callable[..., None], tensors: Sequence[Any], carver: WorkspaceCarver, handle: int) -> Any:
        """As ``Transposed.run``."""
        source = as_bytes(tensors[self.operand])
        rows, k, batches = source.shape
        target = _lines(carver, (rows, k * 2 if self.dtype == FP4 else k, batches), torch_dtype(self.target), 16, self.k_major)
        kernel(source, tensors[self.scale].unsqueeze(-1) if self.plain else dense_bytes(tensors[self.scale]), target, handle)
        return target

    def dequantized(self, tensors: Sequence[Any]) -> Any:
        """The operand times its scale factors in float32, in plain torch."""
        from cudnn.reference.block_scale import dequantize_blocks, dequantize_operand

        data = tensors[self.operand]
        if self.plain:
            return dequantize_blocks(data, tensors[self.scale], self.vec)
        rows, k, batches = data.shape
        layout = ScaleLayout(rows, 2 * k if self.dtype == FP4 else k, batches, self.vec)
        return dequantize_operand(data, physical(tensors[self.scale], layout), self.vec)


Preparation = Transposed | Converted  # of one operand


def as_bytes(t: Any) -> Any:
    """A tensor of one-byte elements, packed 4-bit ones included, as uint8: every kernel takes those."""
    import torch

    return t.view(torch.uint8)


def dense_bytes(t: Any) -> Any:
    """The memory of scale factors, which has no gaps, as a vector of bytes."""
    import torch

    return t.as_strided((t.numel(),), (1,)).view(torch.uint8)


def physical(scales: Any, layout: ScaleLayout) -> Any:
    """Scale factors in their physical form, whatever strides they came with: they are found by the address of the first."""
    return scales.as_strided(layout.physical_shape, layout.physical_stride)


def byte_span(meta: Metadata) -> int:
    """Elements from the first to the last of a tensor, gaps included."""
    return 1 + sum((extent - 1) * step for extent, step in zip(meta.shape, meta.stride, strict=True))


def _lines(carver: WorkspaceCarver, shape: Sequence[int], dtype: Any, bits: int, k_major: bool) -> Any:
    """(rows, K, L) in scratch memory, contiguous along K or along rows, with lines that start on 16 bytes."""
    rows, k, batches = shape
    outer, inner = (rows, k) if k_major else (k, rows)
    line = pitch(inner, bits)
    lines = carver.take(outer * line * batches, dtype).view(batches, outer, line)[:, :, :inner]
    return lines.permute(1, 2, 0) if k_major else lines.permute(2, 1, 0)
