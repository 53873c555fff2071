"""How the rows of a tile are found in the matrices of an epilogue."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from cudnn.cutedsl import layout
from cudnn.cutedsl.epilogue.op import Place, TensorSpec
from cudnn.cutedsl.gemm.config import SLAB_ROWS
from cudnn.cutedsl.invariant import LoopInvariant


class EqualRows(LoopInvariant):
    """L problems of M rows each: a matrix is (M, columns, L)."""

    def caller_axes(self, spec: TensorSpec) -> TensorSpec:
        """``spec`` of the epilogue as the caller passes it."""
        return spec

    def planes_of(self, spec: TensorSpec, tensor: cute.Tensor) -> cute.Tensor:
        """Host side: the caller's ``tensor`` with the axes that ``spec`` names."""
        return tensor

    def stored(self, matrix: cute.Tensor) -> cute.Tensor:
        """Host side: ``matrix`` as a descriptor for stores sees it."""
        return matrix

    def loaded(self, matrix: cute.Tensor) -> cute.Tensor:
        """Host side: ``matrix`` as a descriptor for loads sees it."""
        return matrix

    def store_at(self, place: Place) -> tuple[Int32, Int32]:
        """(row, plane) of the 64 rows at ``place`` in what ``stored`` returns; what does not exist of them lies outside."""
        return place.row, place.plane

    def load_at(self, place: Place) -> tuple[Int32, Int32]:
        """(row, plane) of the 64 rows at ``place`` in what ``loaded`` returns."""
        return place.row, place.plane


class SwappedRows(EqualRows):
    """The kernel makes the transpose of the caller's matrices: their rows are its columns."""

    def caller_axes(self, spec: TensorSpec) -> TensorSpec:
        if spec.axes != ("m", "n", "l"):
            return spec
        return TensorSpec(spec.dtype, ("n", "m", "l"), None if spec.contiguous is None else 1 - spec.contiguous)

    def planes_of(self, spec: TensorSpec, tensor: cute.Tensor) -> cute.Tensor:
        return layout.permuted(tensor, (1, 0, 2)) if spec.axes == ("m", "n", "l") else tensor


class GroupedRows(EqualRows):
    """Groups of rows, one behind the other: a matrix is (T, columns), and ``Place.plane`` the row where the group begins.

    The last block of a group must not write into the next one. So a matrix is stored to through a view (64, columns, T + 64) of which both the first and the last axis step row by row, and that begins
    64 rows in front of the matrix: a block of v <= 64 rows that begins at row f has the coordinates (64 - v, f + v), and the copy engine drops what passes 64. The address in front of the matrix
    is never accessed. NOTE: a negative coordinate would say the same more simply and works in loads; in stores it is an illegal instruction on compute capability 9.0.

    Loads take the rows behind a group as they are. Nobody uses them.

    ``unit_axes``: the caller's tensors keep a third axis of one element.
    """

    def __init__(self, unit_axes: bool):
        self.unit_axes = unit_axes

    def caller_axes(self, spec: TensorSpec) -> TensorSpec:
        if not _has_rows(spec):
            return spec
        if self.unit_axes and spec.axes[0] == "m":
            return spec._replace(axes=(*spec.axes[:2], 1))
        axes = tuple(axis for axis in spec.axes if axis not in ("l", 1))
        return TensorSpec(spec.dtype, axes, None if spec.contiguous is None else axes.index(spec.axes[spec.contiguous]))

    def planes_of(self, spec: TensorSpec, tensor: cute.Tensor) -> cute.Tensor:
        if not _has_rows(spec):
            return tensor
        given = self.caller_axes(spec).axes
        shape = tuple(tensor.shape[given.index("m" if axis == "l" else axis)] if axis != 1 else 1 for axis in spec.axes)
        stride = tuple(tensor.stride[given.index("m" if axis == "l" else axis)] if axis != 1 else 0 for axis in spec.axes)
        return cute.make_tensor(tensor.iterator, cute.make_layout(shape, stride=stride))

    @cute.jit
    def stored(self, matrix: cute.Tensor) -> cute.Tensor:
        step = 128 // matrix.element_type.width
        rows, columns, _ = matrix.shape
        pitch = matrix.stride[0]
        if rows == 1:
            # The stride of an axis with one element means nothing.
            pitch = Int64(step)
        pitch = cute.assume(pitch, divby=step)
        early = matrix.iterator - cute.assume(pitch * SLAB_ROWS, divby=step)
        return cute.make_tensor(early, cute.make_layout((SLAB_ROWS, columns, rows + SLAB_ROWS), stride=(pitch, 1, pitch)))

    def loaded(self, matrix: cute.Tensor) -> cute.Tensor:
        rows, columns, _ = matrix.shape
        return cute.make_tensor(matrix.iterator, cute.make_layout((rows, columns, 1), stride=matrix.stride))

    def store_at(self, place: Place) -> tuple[Int32, Int32]:
        present = cutlass.min(cutlass.max(place.rows - place.row, Int32(0)), Int32(SLAB_ROWS))
        return SLAB_ROWS - present, place.plane + place.row + present

    def load_at(self, place: Place) -> tuple[Int32, Int32]:
        return place.plane + place.row, Int32(0)


def _has_rows(spec: TensorSpec) -> bool:
    return "m" in spec.axes and "l" in spec.axes
