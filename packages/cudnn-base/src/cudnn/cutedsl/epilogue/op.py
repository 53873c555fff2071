"""What an epilogue is made of: outputs written slab by slab, and the contract between a fusion and the kernel.

A *slab* is 64 rows x 32 columns of an output tile: what one warpgroup holds in 16 registers a thread and one TMA store writes. Every output of every fusion goes out in slabs
through one small ring of shared memory per warpgroup, so a fusion adds no buffers, no barriers and no pipeline of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.cute.nvgpu.common import CopyUniversalOp
from cutlass.cute.nvgpu.warp import StMatrix8x8x16bOp
from cutlass.utils import hopper_helpers

from cudnn.cutedsl import layout
from cudnn.cutedsl.gemm.config import SLAB_COLUMNS, SLAB_ROWS
from cudnn.cutedsl.invariant import LoopInvariant

SLAB = (SLAB_ROWS, SLAB_COLUMNS)
SLAB_VALUES = SLAB_ROWS * SLAB_COLUMNS // 128  # accumulators one thread holds of a slab


def slab_bytes(dtype_bits: int) -> int:
    return SLAB_ROWS * SLAB_COLUMNS * dtype_bits // 8


class StoreOp:
    """One output tensor (rows, columns, L): its TMA descriptor, its slab layout and the way from registers to it."""

    def __init__(self, dtype, row_contiguous: bool):
        self.dtype, self.row_contiguous = dtype, row_contiguous

    @property
    def bytes(self) -> int:
        return slab_bytes(self.dtype.width)

    def smem_layout(self, slots: int = 1):
        return layout.swizzled(self.dtype, SLAB, self.row_contiguous, slots)

    def descriptor(self, tensor: cute.Tensor):
        """Host side: (TMA atom, TMA tensor) for ``tensor``."""
        box = cute.slice_(self.smem_layout(), (None, None, 0))
        atom, view = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), layout.for_tma(tensor, self.row_contiguous), box, SLAB)
        return atom, view

    def bind(self, descriptor, buffer, slots: int, slot_bytes: int, thread):
        """Device side: partition ``buffer`` (bytes of one warpgroup's ring) and the output for ``thread`` of the warpgroup."""
        return BoundStore(self, descriptor, buffer, slots, slot_bytes, thread)


class BoundStore(LoopInvariant):
    """``StoreOp`` on the device: ``put`` writes a slab to shared memory, ``issue`` sends it off."""

    def __init__(self, op: StoreOp, descriptor, buffer, slots: int, slot_bytes: int, thread):
        self.op = op
        self.atom, view = descriptor
        one = cute.slice_(op.smem_layout(), (None, None, 0))
        self.slots = []
        # The accumulator layout of one 64 x 32 matrix instruction names which thread holds what of a slab.
        mma = hopper_helpers.make_trivial_tiled_mma(
            cutlass.Float16, cutlass.Float16, warpgroup.OperandMajorMode.K, warpgroup.OperandMajorMode.K, cutlass.Float32, (1, 1, 1), SLAB
        )
        copy_op = StMatrix8x8x16bOp(not op.row_contiguous, 4) if op.dtype.width == 16 else CopyUniversalOp()
        self.tiled_copy = cute.make_tiled_copy_C(cute.make_copy_atom(copy_op, op.dtype), mma)
        thread_copy = self.tiled_copy.get_slice(thread)
        gD = cute.local_tile(view, SLAB, (None, None, None))
        for slot in range(slots):
            pointer = cute.recast_ptr(buffer + slot * slot_bytes, one.inner, dtype=op.dtype)
            sD = cute.make_tensor(pointer, one.outer)
            tDsD, self.tDgD = cpasync.tma_partition(self.atom, 0, cute.make_layout(1), cute.group_modes(sD, 0, 2), cute.group_modes(gD, 0, 2))
            self.slots.append((thread_copy.partition_D(sD), tDsD))
        self.fragment = cute.make_rmem_tensor(((2, 2, SLAB_COLUMNS // 8), 1, 1), op.dtype)
        self.source = self.tiled_copy.retile(self.fragment)

    def put(self, values: cute.Tensor, slot: int) -> None:
        """Convert 16 float32 ``values`` and write them to ``slot``."""
        self.fragment.store(values.load().to(self.op.dtype).reshape(self.fragment.shape))
        cute.copy(self.tiled_copy, self.source, self.slots[slot][0])

    def issue(self, slot: int, row: cutlass.Int32, column: cutlass.Int32, batch: cutlass.Int32) -> None:
        """Store ``slot`` to slab (row, column) of problem ``batch``; rows and columns outside the tensor are dropped by the copy engine."""
        cute.copy(self.atom, self.slots[slot][1], self.tDgD[(None, row, column, batch)])


class Epilogue(LoopInvariant):
    """A fusion: what becomes of S = A Bᵀ before it reaches memory.

    - ``slabs``: how many neighbouring slabs of a row block one ``visit`` takes; a gated pair takes two.
    - ``tensors``: for each tensor the caller passes, (dtype, row_contiguous, columns) with columns ``"n"`` or ``"n/2"``.
    - ``outputs``: the ``StoreOp`` of every tensor that is stored to, in the order of ``views(tensors)``, which maps the caller's tensors to them on the host side.
    - ``scalar_count``: how many float32 run-time scalars it takes; ``stores_per_visit``: how many slabs a visit stores.
    """

    slabs = 1
    tensors: Sequence[tuple[object, bool, str]] = ()
    outputs: Sequence[StoreOp] = ()
    scalar_count = 0
    stores_per_visit = 1

    def views(self, tensors):
        return tensors

    def visit(self, slabs, position, scalars, store) -> None:
        """Device side, once per row block and ``slabs`` neighbouring slabs of S.

        ``slabs``: their accumulators, 16 float32 of this thread each. ``position``: which visit of the row this is. ``store(output, values, slab)`` sends 16 float32 values on to slab
        ``slab`` of the row in ``outputs[output]``.
        """
        raise TypeError(f"{type(self).__name__} defines no visit")
