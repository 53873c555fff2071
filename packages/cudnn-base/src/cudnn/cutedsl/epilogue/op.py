"""What an epilogue is made of, and the contract between a fusion and the kernel.

A *slab* is 64 rows x 32 columns of a matrix: what one warpgroup holds in 16 registers a thread, and one TMA copy moves. Every matrix that a fusion stores or loads goes in
slabs through a small ring of shared memory per warpgroup, so a fusion adds no buffers, no barriers and no pipeline of its own. What is no matrix (a factor per row, a bias, a
row sum, a largest magnitude) is a *part*, see ``cudnn.cutedsl.epilogue.parts``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import OperandMajorMode, cpasync
from cutlass.cute.nvgpu.common import CopyUniversalOp
from cutlass.cute.nvgpu.warp import LdMatrix8x8x16bOp, StMatrix8x8x16bOp
from cutlass.utils import hopper_helpers

from cudnn.cutedsl import layout
from cudnn.cutedsl.epilogue.size import slab_bytes
from cudnn.cutedsl.gemm.config import SLAB_COLUMNS, SLAB_ROWS
from cudnn.cutedsl.invariant import LoopInvariant

SLAB = (SLAB_ROWS, SLAB_COLUMNS)
SLAB_VALUES = SLAB_ROWS * SLAB_COLUMNS // 128  # accumulators one thread holds of a slab


class TensorSpec(NamedTuple):
    """A tensor that the caller passes beside the operands.

    ``axes``: its extents, by name (``"m"``, ``"n"``, ``"n/2"``, ``"2n"``, ``"l"``; equal names are equal extents) or as numbers. ``contiguous``: the axis with stride 1, whose
    lines then start at multiples of 16 bytes; None where every stride is free and only the element's own alignment holds.
    """

    dtype: Any
    axes: tuple[str | int, ...]
    contiguous: int | None = None


def matrix(dtype, row_contiguous: bool, columns: str = "n") -> TensorSpec:
    """(M, columns, L), contiguous along a row or along a column."""
    return TensorSpec(dtype, ("m", columns, "l"), 1 if row_contiguous else 0)


class Place(NamedTuple):
    """Where 64 rows of a tile lie.

    - ``row``: their first, counted from where the problem's rows begin; ``rows``: how many the problem has. A block may reach past the end.
    - ``n``: the tile's index along N; ``columns``: N.
    - ``group``: the batch or expert; ``plane``: third coordinate of tensors that have rows: the group, or where groups are rows the one at which it begins.
    """

    row: Int32
    rows: Int32
    n: Int32
    columns: Int32
    group: Int32
    plane: Int32


class SlabOp:
    """One matrix (rows, columns, L) that is moved in slabs: which of the caller's tensors it is, or which half of that tensor's columns, and its layout in shared memory.

    ``box``: rows and elements of a slab.
    """

    box = SLAB

    def __init__(self, dtype, row_contiguous: bool, tensor: int = 0, half: int | None = None):
        self.dtype, self.row_contiguous, self.tensor, self.half = dtype, row_contiguous, tensor, half

    @property
    def bytes(self) -> int:
        return slab_bytes(self.dtype.width)

    def smem_layout(self, slots: int = 1):
        return layout.swizzled(self.dtype, self.box, self.row_contiguous, slots)

    @cute.jit
    def view(self, tensors) -> cute.Tensor:
        """Host side: the matrix among the caller's tensors."""
        tensor = tensors[self.tensor]
        return tensor if cutlass.const_expr(self.half is None) else layout.half(tensor, self.half, 1)

    def _atom(self, copy_op, matrix):
        box = cute.slice_(self.smem_layout(), (None, None, 0))
        atom, view = cpasync.make_tiled_tma_atom(copy_op, layout.for_tma(matrix, self.row_contiguous), box, self.box)
        return atom, view


class StoreOp(SlabOp):
    """A matrix that is stored to. ``adds``: what is stored is rounded to the matrix's dtype and added to what is there, in that dtype, by the copy engine."""

    def __init__(self, dtype, row_contiguous: bool, tensor: int = 0, half: int | None = None, adds: bool = False):
        super().__init__(dtype, row_contiguous, tensor, half)
        self.adds = adds

    def _copy_op(self):
        return cpasync.CopyReduceBulkTensorTileS2GOp() if self.adds else cpasync.CopyBulkTensorTileS2GOp()

    def descriptor(self, tensors, rows, extents):
        """Host side: (TMA atom, TMA tensor). ``extents``: M and N."""
        return self._atom(self._copy_op(), rows.stored(self.view(tensors)))

    def beforehand(self, tensors, descriptor, extents, stream) -> None:
        """Host side: launches in front of the kernel's."""

    def bind(self, descriptor, rows, buffer, slots: int, slot_bytes: int, thread):
        """Device side: partition ``buffer`` (bytes of one warpgroup's ring) and the matrix for ``thread`` of the warpgroup. ``rows`` finds its rows."""
        return BoundStore(self, descriptor, rows, buffer, slots, slot_bytes, thread)


class LoadOp(SlabOp):
    """A matrix that the epilogue reads. Rows and columns outside it read as zeros."""

    def descriptor(self, tensors, rows):
        """Host side: (TMA atom, TMA tensor)."""
        return self._atom(cpasync.CopyBulkTensorTileG2SOp(), rows.loaded(self.view(tensors)))

    def bind(self, descriptor, rows, buffer, slots: int, slot_bytes: int, thread):
        """Device side, as ``StoreOp.bind``."""
        return BoundLoad(self, descriptor, rows, buffer, slots, slot_bytes, thread)


class _BoundSlabs(LoopInvariant):
    """Slots of one ring seen as slabs of one matrix: as a thread's registers see them, and as the copy engine does."""

    def __init__(self, op: SlabOp, copy_op, descriptor, rows, buffer, slots: int, slot_bytes: int, thread):
        self._bind(op, descriptor, rows, buffer, slots, slot_bytes)
        # The accumulator layout of one 64 x 32 matrix instruction names which thread holds what of a slab.
        mma = hopper_helpers.make_trivial_tiled_mma(cutlass.Float16, cutlass.Float16, OperandMajorMode.K, OperandMajorMode.K, cutlass.Float32, (1, 1, 1), SLAB)
        self.tiled_copy = cute.make_tiled_copy_C(cute.make_copy_atom(copy_op if op.dtype.width == 16 else CopyUniversalOp(), op.dtype), mma)
        self.thread_copy = self.tiled_copy.get_slice(thread)
        self.fragment = cute.make_rmem_tensor(((2, 2, SLAB_COLUMNS // 8), 1, 1), op.dtype)
        self.registers = self.tiled_copy.retile(self.fragment)

    def _bind(self, op: SlabOp, descriptor, rows, buffer, slots: int, slot_bytes: int) -> None:
        self.op, self.rows = op, rows
        self.atom, self.view = descriptor
        one = cute.slice_(op.smem_layout(), (None, None, 0))
        self.shared = []
        for slot in range(slots):
            pointer = cute.recast_ptr(buffer + slot * slot_bytes, one.inner, dtype=op.dtype)
            self.shared.append(cute.make_tensor(pointer, one.outer))

    def _boxes(self, slot: int, at: tuple[Int32, Int32], column: Int32):
        """(slot, slab ``column`` of the 64 rows from ``at``, a row and a plane) as the copy engine takes them."""
        row, plane = at
        slab = cute.local_tile(cute.domain_offset((row, 0, 0), self.view), self.op.box, (0, column, plane))
        return cpasync.tma_partition(self.atom, 0, cute.make_layout(1), cute.group_modes(self.shared[slot], 0, 2), cute.group_modes(slab, 0, 2))


class BoundStore(_BoundSlabs):
    """``StoreOp`` on the device: ``put`` writes a slab to shared memory, ``issue`` sends it off."""

    def __init__(self, op: StoreOp, descriptor, rows, buffer, slots: int, slot_bytes: int, thread):
        super().__init__(op, StMatrix8x8x16bOp(not op.row_contiguous, 4), descriptor, rows, buffer, slots, slot_bytes, thread)
        self.targets = [self.thread_copy.partition_D(s) for s in self.shared]

    def begin(self, place: Place) -> None:
        """By the issuing warp, before the first ``issue`` of a tile."""

    def put(self, values: cute.Tensor, slot: int) -> None:
        """Convert 16 float32 ``values`` and write them to ``slot``."""
        self.fragment.store(values.load().to(self.op.dtype).reshape(self.fragment.shape))
        cute.copy(self.tiled_copy, self.registers, self.targets[slot])

    def issue(self, slot: int, place: Place, column: Int32) -> None:
        """Store ``slot`` to slab ``column`` of the rows at ``place``; rows and columns outside the matrix are dropped by the copy engine."""
        source, target = self._boxes(slot, self.rows.store_at(place), column)
        cute.copy(self.atom, source, target)


class BoundLoad(_BoundSlabs):
    """``LoadOp`` on the device: ``issue`` requests a slab, ``get`` reads one that has arrived."""

    def __init__(self, op: LoadOp, descriptor, rows, buffer, slots: int, slot_bytes: int, thread):
        super().__init__(op, LdMatrix8x8x16bOp(not op.row_contiguous, 4), descriptor, rows, buffer, slots, slot_bytes, thread)
        self.sources = [self.thread_copy.partition_S(s) for s in self.shared]

    def issue(self, slot: int, place: Place, column: Int32, barrier) -> None:
        """Request slab ``column`` of the rows at ``place`` into ``slot``; its arrival completes on ``barrier``."""
        target, source = self._boxes(slot, self.rows.load_at(place), column)
        cute.copy(self.atom, source, target, tma_bar_ptr=barrier)

    def get(self, slot: int, values: cute.Tensor) -> None:
        """Read ``slot`` and widen it to 16 float32 ``values``, in the order of the accumulators."""
        cute.copy(self.tiled_copy, self.sources[slot], self.registers)
        values.store(self.fragment.load().to(Float32).reshape(values.shape))


class Epilogue(LoopInvariant):
    """A fusion: what becomes of S = A Bᵀ before it reaches memory.

    - ``slabs``: how many neighbouring slabs of a row block one ``visit`` takes; a gated pair takes two.
    - ``tensors``: a ``TensorSpec`` for each tensor the caller passes, in order.
    - ``stores``, ``loads``: the matrices among them. A visit stores ``stores_per_visit`` slabs and reads those that ``requests`` names.
    - ``parts``: what is no matrix.
    - ``scalar_count``: how many float32 run-time scalars it takes.
    """

    slabs = 1
    tensors: Sequence[TensorSpec] = ()
    stores: Sequence[StoreOp] = ()
    loads: Sequence[LoadOp] = ()
    parts: Sequence[Any] = ()
    scalar_count = 0
    stores_per_visit = 1

    def requests(self, position) -> Sequence[tuple[int, Any]]:
        """The slabs that visit ``position`` of a row block reads, in the order in which it does: (index into ``loads``, slab of the row). As many for every visit."""
        return ()

    def visit(self, v: Any) -> None:
        """Device side, once per row block and ``slabs`` neighbouring slabs of S. ``v`` is a ``cudnn.cutedsl.epilogue.driver.Visit``."""
        raise TypeError(f"{type(self).__name__} defines no visit")

    @cute.jit
    def arguments(self, tensors, scalars, rows, extents):
        """Host side: what of the caller's tensors the kernel is given. ``rows`` finds their rows; ``extents``: M and N."""
        stores = tuple(op.descriptor(tensors, rows, extents) for op in self.stores)
        loads = tuple(op.descriptor(tensors, rows) for op in self.loads)
        parts = tuple(part.argument(tensors) for part in self.parts)
        return stores, loads, parts, scalars

    @cute.jit
    def beforehand(self, tensors, arguments, extents, stream):
        """Host side, before the kernel's launch: the small kernels that write tensor maps."""
        for op, descriptor in zip(self.stores, arguments[0]):
            op.beforehand(tensors, descriptor, extents, stream)

    @cute.jit
    def afterwards(self, tensors, offsets, stream):
        """Host side, after the kernel's launch: the small kernels that complete reductions. ``offsets``: ends of the groups, None without groups."""
        for part in self.parts:
            part.afterwards(tensors, offsets, stream)
