"""Parts of epilogues of groups of rows: a factor per group, and sums over the rows of each."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from cudnn.cutedsl.epilogue.parts import BoundColumnSum, BoundPart, ColumnSum, Part, RowSum, row_of
from cudnn.cutedsl.gemm.config import SLAB_ROWS, GemmConfig
from cudnn.cutedsl.gemm.scheduler import group_bounds

THREADS = 256


class GroupScalar(Part):
    """A factor per group, tensor (L,)."""

    def bind(self, argument, config, buffer, thread, barrier_id):
        return BoundGroupScalar(argument)


class BoundGroupScalar(BoundPart):
    def __init__(self, tensor):
        self.tensor = tensor
        self.held = cute.make_rmem_tensor((1,), Float32)

    def prepare(self, places) -> None:
        self.held[0] = self.tensor[places[0].group].to(Float32)

    @property
    def value(self) -> Float32:
        """The factor of the tile's group."""
        return self.held[0]


class GroupRowSum(RowSum):
    """``RowSum`` whose partial sums, tensor (tiles along N, M), are added for rows of groups alone: behind the last group nothing is read or written."""

    @cute.jit
    def afterwards(self, tensors, offsets, stream):
        if cutlass.const_expr(self.partials is not None):
            SumRows()(tensors[self.partials], tensors[self.tensor], offsets, stream)


class SumRows:
    """target[m] += sum over p, in order, of parts[p, m], one thread for each row of a group. Third axes are those of groups of rows."""

    @cute.jit
    def __call__(self, parts: cute.Tensor, target: cute.Tensor, offsets: cute.Tensor, stream):
        self.kernel(parts, target, offsets).launch(grid=[cute.ceil_div(parts.shape[1], THREADS), 1, 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, parts: cute.Tensor, target: cute.Tensor, offsets: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        row = block * THREADS + thread
        _, end = group_bounds(offsets, offsets.shape[0] - 1, parts.shape[1])
        if row < end:
            total = Float32(0.0)
            for p in cutlass.range(parts.shape[0], unroll=8):
                total += parts[(p, row, 0)]
            target[(row, 0, 0)] = target[(row, 0, 0)] + total


class GroupColumnSum(ColumnSum):
    """target[l, n, 0] += sum over the rows of group l of what ``add`` is given, tensor (L, columns, 1) of any dtype.

    Each 64-row block writes its own sum to ``partials``, a tensor (blocks, columns) in float32, and a second kernel adds them up in order, in float32: the same bits every time, rounded once. Block i of a group
    that begins at row s is number s // 64 + l + i, which no two groups share; there are M // 64 + L of them at most.
    """

    def __init__(self, tensor: int, partials: int, slabs: int = 1, visit_slabs: int = 1, halves: bool = False):
        super().__init__(tensor, slabs, visit_slabs, halves, partials)

    def partial_at(self, place, column):
        return (first_block(place.plane, place.group) + place.row // SLAB_ROWS, column)

    @cute.jit
    def afterwards(self, tensors, offsets, stream):
        SumBlocks()(tensors[self.partials], tensors[self.tensor], offsets, stream)

    def bind(self, argument, config, buffer, thread, barrier_id):
        return BoundGroupColumnSum(self, argument, config, buffer, thread, barrier_id)


def first_block(start: Int32, group: Int32) -> Int32:
    """Number of the first 64-row block of ``group``, which begins at row ``start``."""
    return start // SLAB_ROWS + group


class BoundGroupColumnSum(BoundColumnSum):
    def __init__(self, part: GroupColumnSum, tensor, config: GemmConfig, buffer, thread, barrier_id):
        super().__init__(part, tensor, config, buffer, thread, barrier_id)
        self.masked = cute.make_rmem_tensor((16,), Float32)

    def add(self, visit, slab: int, values: cute.Tensor) -> None:
        """Add 16 float32 ``values`` to the columns of slab ``slab`` of the visit. What rows behind the group have, which may be anything, does not count."""
        exists = [row_of(visit.place, self.thread, which) < visit.place.rows for which in range(2)]
        for r in range(16):
            self.masked[r] = cutlass.select_(exists[r // 2 % 2], values[r], Float32(0.0))
        super().add(visit, slab, self.masked)


class SumBlocks:
    """target[l, n, 0] += sum over the blocks of group l, in order, of parts[block, n], one thread for each (l, n)."""

    @cute.jit
    def __call__(self, parts: cute.Tensor, target: cute.Tensor, offsets: cute.Tensor, stream):
        self.kernel(parts, target, offsets).launch(grid=[cute.ceil_div(target.shape[1], THREADS), target.shape[0], 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, parts: cute.Tensor, target: cute.Tensor, offsets: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        block, group, _ = cute.arch.block_idx()
        column = block * THREADS + thread
        start, end = group_bounds(offsets, group, parts.shape[0] * SLAB_ROWS)
        if column < target.shape[1] and end > start:
            total = Float32(0.0)
            first = first_block(start, group)
            for i in cutlass.range(cute.ceil_div(end - start, SLAB_ROWS), unroll=8):
                total += parts[(first + i, column)]
            target[(group, column, 0)] = (target[(group, column, 0)].to(Float32) + total).to(target.element_type)
