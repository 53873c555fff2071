"""Outputs whose addresses only the device knows: one matrix per group, anywhere."""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.cute.nvgpu import cpasync

from cudnn.cutedsl import layout
from cudnn.cutedsl.epilogue.op import BoundStore, Place, StoreOp
from cudnn.cutedsl.gemm.tensormap import MapWriter, map_pointer


class PointerStoreOp(StoreOp):
    """A row-contiguous compact matrix (M, N) of each group. ``tensor``: which of the caller's tensors has the addresses, int64 (L,); ``table``: which has room for the tensor maps, int64 (L, 1, MAP_WORDS)."""

    def __init__(self, dtype, tensor: int, table: int, adds: bool = False):
        super().__init__(dtype, True, tensor, None, adds)
        self.table = table

    def _matrix(self, address, extents) -> cute.Tensor:
        m, n = extents
        pointer = cute.make_ptr(self.dtype, address, cute.AddressSpace.gmem, assumed_align=16)
        return layout.for_tma(cute.make_tensor(pointer, cute.make_layout((m, n, 1), stride=(Int64(n), 1, Int64(0)))), True)

    def descriptor(self, tensors, rows, extents):
        # What a pattern's address is does not matter.
        atom, view = self._atom(self._copy_op(), self._matrix(tensors[self.tensor].iterator.toint(), extents))
        return atom, view, tensors[self.table]

    @cute.jit
    def beforehand(self, tensors, descriptor, extents, stream):
        MapWriter((self._group_matrix,))((descriptor[0],), ((tensors[self.tensor], extents),), tensors[self.table], stream)

    @cute.jit
    def _group_matrix(self, arguments, group: Int32) -> cute.Tensor:
        pointers, extents = arguments
        return self._matrix(pointers[group], extents)

    def bind(self, descriptor, rows, buffer, slots: int, slot_bytes: int, thread):
        return BoundPointerStore(self, descriptor, rows, buffer, slots, slot_bytes, thread)


class BoundPointerStore(BoundStore):
    def __init__(self, op: PointerStoreOp, descriptor, rows, buffer, slots: int, slot_bytes: int, thread):
        atom, view, self.maps = descriptor
        super().__init__(op, (atom, view), rows, buffer, slots, slot_bytes, thread)

    def begin(self, place: Place) -> None:
        cpasync.fence_tma_desc_acquire(map_pointer(self.maps, place.group, 0))

    def issue(self, slot: int, place: Place, column: Int32) -> None:
        source, target = self._boxes(slot, (place.row, Int32(0)), column)
        cute.copy(self.atom, source, target, tma_desc_ptr=map_pointer(self.maps, place.group, 0))
