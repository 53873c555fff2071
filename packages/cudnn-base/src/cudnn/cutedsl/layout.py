"""Shared-memory layouts and global views that the operands and the epilogue have in common."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int64
from cutlass.cute.nvgpu import warpgroup
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers


def layout_enum(row_contiguous: bool) -> LayoutEnum:
    """The DSL's name for "mode 1 has stride 1" (``row_contiguous``) or "mode 0 has stride 1"."""
    return LayoutEnum.ROW_MAJOR if row_contiguous else LayoutEnum.COL_MAJOR


def swizzled(dtype, shape: tuple[int, int], row_contiguous: bool, stages: int, contiguous: int | None = None):
    """Layout of ``stages`` tiles of ``shape`` in shared memory, in the widest swizzle that ``contiguous`` elements (default: the whole contiguous extent) allow."""
    extent = contiguous or (shape[1] if row_contiguous else shape[0])
    atom = warpgroup.make_smem_layout_atom(hopper_helpers.get_smem_layout_atom(layout_enum(row_contiguous), dtype, extent), dtype)
    return cute.tile_to_shape(atom, (*shape, stages), order=(0, 1, 2) if row_contiguous else (1, 0, 2))


@cute.jit
def for_tma(tensor: cute.Tensor, row_contiguous: bool) -> cute.Tensor:
    """``tensor`` (rows, columns, L) with strides a TMA descriptor takes.

    The caller's strides hold where an axis has more than one element; of an axis with one they mean nothing (a framework may put any number there), while a descriptor
    still wants a multiple of 16 bytes.
    """
    step = 128 // tensor.element_type.width
    rows, columns, batches = tensor.shape
    pitch, plane = (tensor.stride[0] if row_contiguous else tensor.stride[1]), tensor.stride[2]
    if (rows if cutlass.const_expr(row_contiguous) else columns) == 1:
        pitch = Int64(step)
    if batches == 1:
        plane = Int64(step)
    pitch = cute.assume(pitch, divby=step)
    plane = cute.assume(plane, divby=step)
    stride = (pitch, 1, plane) if cutlass.const_expr(row_contiguous) else (1, pitch, plane)
    return cute.make_tensor(tensor.iterator, cute.make_layout(tensor.shape, stride=stride))


@cute.jit
def half(tensor: cute.Tensor, which: int, axis: int) -> cute.Tensor:
    """First or second half of ``tensor`` along ``axis``, as a view."""
    extent = tensor.shape[axis] // 2
    shape = tuple(extent if i == axis else s for i, s in enumerate(tensor.shape))
    offset = Int64(extent) * tensor.stride[axis] * which
    step = 128 // tensor.element_type.width
    pointer = tensor.iterator + cute.assume(offset, divby=step)
    return cute.make_tensor(pointer, cute.make_layout(shape, stride=tensor.stride))


@cute.jit
def plane(tensor: cute.Tensor) -> cute.Tensor:
    """``tensor`` (rows, columns) with a third axis of one element."""
    return cute.make_tensor(tensor.iterator, cute.make_layout((*tensor.shape, 1), stride=(*tensor.stride, Int64(0))))


@cute.jit
def permuted(tensor: cute.Tensor, order: cutlass.Constexpr) -> cute.Tensor:
    """``tensor`` with its axes in ``order``."""
    return cute.make_tensor(tensor.iterator, cute.select(tensor.layout, mode=list(order)))


@cute.jit
def ragged(tensor: cute.Tensor, axis: cutlass.Constexpr, at: cutlass.Constexpr) -> cute.Tensor:
    """``tensor`` with one more axis, in position ``at``, that steps as ``axis`` does: coordinates (r, s) along the two are element r + s."""
    shape, stride = list(tensor.shape), list(tensor.stride)
    shape.insert(at, tensor.shape[axis])
    stride.insert(at, tensor.stride[axis])
    return cute.make_tensor(tensor.iterator, cute.make_layout(tuple(shape), stride=tuple(stride)))
