"""Outputs in 8 and 4 bits with a scale factor for every block of neighbours in a row, and packed 4-bit outputs.

A row of a slab is 32 columns in four neighbouring lanes, eight each, so the largest magnitude of a block is a maximum over registers and two shuffles.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint8

from cudnn.block_scale.layout import blocked_offset
from cudnn.cutedsl.block_scale import as_bits, block_scale, e2m1_from_bits
from cudnn.cutedsl.epilogue.op import SLAB_VALUES, BoundStore, StoreOp, TensorSpec
from cudnn.cutedsl.epilogue.parts import BoundPart, Part, absolute, has_row, row_of
from cudnn.cutedsl.gemm.config import SLAB_COLUMNS, SLAB_ROWS, GemmConfig

BYTES = TensorSpec(Uint8, ("scale bytes",))
ONE_VALUE = TensorSpec(Float32, (1,))


def block_registers(which: int, block: int, vec: int) -> list[int]:
    """Registers of a slab that belong to row ``which`` (0 or 1) of a thread's two and to block ``block`` of the slab's, ``vec`` columns wide."""
    return [4 * j + 2 * which + c for j in range(block * vec // 8, (block + 1) * vec // 8) for c in range(2)]


class BlockScales(Part):
    """Scale factors of a quantised (M, N, L) output, a byte for each row and ``vec`` (16 or 32) columns, in the blocked layout.

    ``tensor``: their memory, bytes without gaps; ``norm``: the tensor of one float32 with c. ``limit``: what the largest element of a block becomes; ``scale``: dtype of the factors, a name.
    """

    def __init__(self, tensor: int, norm: int, vec: int, limit: float, scale: str):
        super().__init__(tensor)
        self.norm, self.vec, self.limit, self.scale = norm, vec, limit, scale

    def argument(self, tensors):
        return tensors[self.tensor], tensors[self.norm]

    def bind(self, argument, config: GemmConfig, buffer, thread, barrier_id):
        return BoundBlockScales(self, argument, thread)


class BoundBlockScales(BoundPart):
    def __init__(self, part: BlockScales, argument, thread):
        self.part, self.thread = part, thread
        self.bytes, norm = argument
        self.norm = norm[0]

    def apply(self, visit, values: cute.Tensor) -> None:
        """Multiply a slab's 16 float32 ``values`` so that they only have to be rounded, and write the factors of its blocks. What lies outside of the matrix has no part in them."""
        vec, place = self.part.vec, visit.place
        self._cut(visit.position, place.columns, values)
        for which in range(2):
            for block in range(SLAB_COLUMNS // vec):
                registers = block_registers(which, block, vec)
                largest = Float32(0.0)
                for r in registers:
                    largest = cute.arch.fmax(largest, absolute(values[r]), nan=True)
                for distance in (1, 2):
                    largest = cute.arch.fmax(largest, cute.arch.shuffle_sync_bfly(largest, distance), nan=True)
                byte, factor = block_scale(largest, self.norm, self.part.limit, self.part.scale)
                for r in registers:
                    values[r] = values[r] * factor
                self._write(place, row_of(place, self.thread, which), visit.position * (SLAB_COLUMNS // vec) + block, byte)

    @cute.jit
    def _cut(self, slab: Int32, columns: Int32, values: cute.Tensor):
        """Zeros in columns that do not exist. The products there are 0 only where a row of A is finite: infinity times nothing is NaN."""
        if (slab + 1) * SLAB_COLUMNS > columns:
            for r in cutlass.range_constexpr(SLAB_VALUES):
                if slab * SLAB_COLUMNS + r // 4 * 8 + self.thread % 4 * 2 + r % 2 >= columns:
                    values[r] = Float32(0.0)

    @cute.jit
    def _write(self, place, row: Int32, block: Int32, byte):
        # Entries of rows and blocks that do not exist are left alone.
        blocks = cute.ceil_div(place.columns, self.part.vec)
        if (self.thread % 4 == 0) & has_row(place, row) & (block < blocks):
            offset = blocked_offset(row, block, Int64(place.plane), Int64(cute.ceil_div(place.rows, 128)), cute.ceil_div(blocks, 4))
            self.bytes[offset] = Uint8(byte)


class Fp4StoreOp(StoreOp):
    """A row-contiguous matrix of 4-bit floats, two to a byte: ``tensor`` is that of the bytes, (M, N/2, L). Values are rounded to nearest even and saturate."""

    box = (SLAB_ROWS, SLAB_COLUMNS // 2)

    def __init__(self, tensor: int = 0):
        super().__init__(Uint8, True, tensor)

    @property
    def bytes(self) -> int:
        return SLAB_ROWS * SLAB_COLUMNS // 2

    def bind(self, descriptor, rows, buffer, slots: int, slot_bytes: int, thread):
        return BoundFp4Store(self, descriptor, rows, buffer, slots, slot_bytes, thread)


class BoundFp4Store(BoundStore):
    def __init__(self, op: Fp4StoreOp, descriptor, rows, buffer, slots: int, slot_bytes: int, thread):
        self._bind(op, descriptor, rows, buffer, slots, slot_bytes)
        self.thread = thread

    def put(self, values: cute.Tensor, slot: int) -> None:
        """Neighbouring columns, which a byte shares, are neighbouring registers of one thread."""
        row, column = self.thread // 32 * 16 + self.thread % 32 // 4, self.thread % 4
        for which in range(2):
            for j in range(SLAB_COLUMNS // 8):
                low, high = (e2m1_from_bits(as_bits(values[4 * j + 2 * which + c])) for c in range(2))
                self.shared[slot][row + 8 * which, 4 * j + column] = Uint8(low | (high << 4))
