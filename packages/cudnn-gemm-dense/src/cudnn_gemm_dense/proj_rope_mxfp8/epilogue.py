"""The epilogue of projection + RoPE + MXFP8: a visit takes one head of 64 tokens, 192 columns."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float8E4M3FN, Float32, Int32, Int64, Uint8, Uint32

from cudnn.cutedsl import layout
from cudnn.cutedsl.block_scale import as_bits, e8m0_from_bits, e8m0_reciprocal, e8m0_value
from cudnn.cutedsl.epilogue.op import SLAB_VALUES, Epilogue, LoadOp, StoreOp, TensorSpec
from cudnn.cutedsl.epilogue.parts import WARPS, BoundPart, Part, has_row, row_of
from cudnn.cutedsl.gemm.config import SLAB_COLUMNS, SLAB_ROWS
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn_gemm_dense.proj_rope_mxfp8.lanes import BLOCK, BLOCKS, HEAD, ROPE, SLABS, column_maximum, every_second, row_maximum
from cudnn_gemm_dense.proj_rope_mxfp8.options import ProjRopeOptions

HALVES = SLAB_ROWS // BLOCK  # blocks of 32 tokens in 64
THREADS = 128
INVERSE_LIMIT = 1.0 / 448.0  # in float32: 448 times a power of two, times this, is that power


class ProjRopeMxfp8(Epilogue):
    """q = S rounded to bfloat16; the last 64 columns of every head of 192 are rotated, interleaved pairs in and halves out; e4m3 values and e8m0 scales for blocks of 32 features and for blocks of 32 tokens.

    Tensors: cos, sin (T, 64) to read; values and scales by rows (T, H, 192), (T, H, 6); values and scales by columns (T, H, 192), (T/32, H, 192).
    """

    slabs = SLABS
    stores_per_visit = 2 * SLABS

    def __init__(self):
        table, heads = TensorSpec(BFloat16, ("m", ROPE), 1), TensorSpec(Float8E4M3FN, ("m", "h", HEAD), 2)
        self.tensors = (table, table, heads, TensorSpec(Uint8, ("m", "h", BLOCKS)), heads, TensorSpec(Uint8, ("m/32", "h", HEAD)))
        self.loads = (TableLoad(BFloat16, True, 0), TableLoad(BFloat16, True, 1))
        self.stores = (HeadStore(Float8E4M3FN, True, 2), HeadStore(Float8E4M3FN, True, 4))
        self.parts = (RowScales(3), ColumnScales(5))

    def requests(self, position):
        # In the order in which ``rotate`` uses them: cos and sin for the first half of the result, then for the second.
        return ((0, 0), (1, 0), (1, 1), (0, 1))

    def visit(self, v) -> None:
        rows, columns = v.parts
        for slab in v.values:
            slab.store(slab.load().to(BFloat16).to(Float32))
        self.rotate(v, rows.lane)
        for i, slab in enumerate(v.values):
            columns.add(i, slab)
        columns.complete(v.place)
        scaled = cute.make_rmem_tensor((SLAB_VALUES,), Float32)
        for i, slab in enumerate(v.values):
            factors = rows.factors(v.place, i, slab)
            for r in range(SLAB_VALUES):
                scaled[r] = slab[r] * factors[r // 2 % 2]
            v.store(0, scaled, v.position * SLABS + i)
            factors = columns.factors(i)
            for r in range(SLAB_VALUES):
                scaled[r] = slab[r] * factors[r % 2, r // 4]
            v.store(1, scaled, v.position * SLABS + i)

    def rotate(self, v, lane) -> None:
        """(p, r) -> p cos - r sin in the second last slab, and p sin + r cos of the tables' second half in the last. Products of bfloat16 are exact, so each result is rounded once."""
        first, second = v.values[-2:]
        p, r = (every_second((first, second), which, lane, Warp) for which in range(2))
        cos, sin = v.load(), v.load()
        for i in range(SLAB_VALUES):
            first[i] = p[i] * cos[i] - r[i] * sin[i]
        sin, cos = v.load(), v.load()
        for i in range(SLAB_VALUES):
            second[i] = p[i] * sin[i] + r[i] * cos[i]


class TableLoad(LoadOp):
    """A table (T, 64), read as a matrix."""

    def view(self, tensors) -> cute.Tensor:
        return layout.plane(tensors[self.tensor])


class HeadStore(StoreOp):
    """An output (T, H, 192), stored as a matrix of 192 H columns."""

    @cute.jit
    def view(self, tensors) -> cute.Tensor:
        tensor = tensors[self.tensor]
        rows, heads, columns = tensor.shape
        return cute.make_tensor(tensor.iterator, cute.make_layout((rows, heads * columns, 1), stride=(tensor.stride[0], 1, Int64(0))))


class RowScales(Part):
    """Scales of 32 columns of one row: bytes (T, H, 6)."""

    def bind(self, argument, config, buffer, thread, barrier_id):
        return BoundRowScales(argument, thread)


class BoundRowScales(BoundPart):
    def __init__(self, tensor, thread):
        self.tensor, self.thread, self.lane = tensor, thread, thread % 32

    def factors(self, place, slab: int, values: cute.Tensor) -> list[Float32]:
        """What to multiply the thread's two rows of a slab with; their scales are stored."""
        found = []
        for which in range(2):
            byte, factor = scale_of(row_maximum(values, which, Warp))
            self.store(row_of(place, self.thread, which), place, slab, byte)
            found.append(factor)
        return found

    @cute.jit
    def store(self, row: Int32, place, slab: cutlass.Constexpr, byte: Uint32):
        # All four lanes of a row know the byte: they take turns.
        if (self.thread % 4 == slab % 4) & has_row(place, row) & (place.n < self.tensor.shape[1]):
            self.tensor[(row, place.n, slab)] = Uint8(byte)


class ColumnScales(Part):
    """Scales of 32 rows of one column: bytes (T/32, H, 192).

    Shared memory: what each warp found for its 16 rows, then, for each 32 rows, what to multiply with. The barriers of the stores that follow keep one visit's reads and the next one's writes apart.
    """

    def shared_bytes(self, config) -> int:
        return (WARPS + HALVES) * HEAD * 4

    def bind(self, argument, config, buffer, thread, barrier_id):
        return BoundColumnScales(argument, buffer, thread, barrier_id)


class BoundColumnScales(BoundPart):
    def __init__(self, tensor, buffer, thread, barrier_id):
        self.tensor, self.thread, self.barrier_id = tensor, thread, barrier_id
        self.maxima = cute.make_tensor(cute.recast_ptr(buffer, dtype=Float32), cute.make_layout((WARPS, HEAD), stride=(HEAD, 1)))
        self.scales = cute.make_tensor(cute.recast_ptr(buffer + WARPS * HEAD * 4, dtype=Float32), cute.make_layout((HALVES, HEAD), stride=(HEAD, 1)))
        self.held = cute.make_rmem_tensor((2, SLAB_COLUMNS // 8), Float32)

    def add(self, slab: int, values: cute.Tensor) -> None:
        """Take a slab of the head into account."""
        largest, column = column_maximum(values, self.thread % 32, Warp)
        self.maxima[self.thread // 32, slab * SLAB_COLUMNS + column] = largest

    @cute.jit
    def complete(self, place):
        """After the head's last ``add``: join the maxima of two warps each, and store the scales."""
        cute.arch.barrier(barrier_id=self.barrier_id, number_of_threads=THREADS)
        for i in cutlass.range_constexpr(HALVES * HEAD // THREADS):
            local = self.thread + i * THREADS
            half = local // HEAD
            column = local - half * HEAD
            byte, factor = scale_of(Warp.largest(self.maxima[2 * half, column], self.maxima[2 * half + 1, column]))
            self.scales[half, column] = factor
            row = place.row + half * BLOCK
            if has_row(place, row) & (place.n < self.tensor.shape[1]):
                self.tensor[(row // BLOCK, place.n, column)] = Uint8(byte)
        cute.arch.barrier(barrier_id=self.barrier_id, number_of_threads=THREADS)

    def factors(self, slab: int) -> cute.Tensor:
        """What to multiply the thread's columns of a slab with: (2, 4) values, register r's is ``[r % 2, r // 4]``."""
        columns = cute.make_layout((2, 4, SLAB_COLUMNS // 8, SLABS, HALVES), stride=(1, 2, 8, SLAB_COLUMNS, HEAD))
        source = cute.make_tensor(self.scales.iterator, columns)[(None, self.thread % 4, None, slab, self.thread // (THREADS // HALVES))]
        cute.autovec_copy(source, self.held)
        return self.held


class Warp:
    """The device's lanes, for ``cudnn_gemm_dense.proj_rope_mxfp8.lanes``."""

    shuffle = staticmethod(cute.arch.shuffle_sync)
    across = staticmethod(cute.arch.shuffle_sync_bfly)
    select = staticmethod(cutlass.select_)
    magnitude = staticmethod(cute.math.abs)

    @staticmethod
    def largest(a: Float32, b: Float32) -> Float32:
        return cute.arch.fmax(a, cute.math.abs(b), nan=True)


def scale_of(largest: Float32) -> tuple[Uint32, Float32]:
    """The e8m0 byte for a block with this largest magnitude, and what to multiply the block with: 2^(127 - byte). Both are NaN where the magnitude is."""
    byte = e8m0_from_bits(as_bits(largest * Float32(INVERSE_LIMIT)))
    return byte, e8m0_value(e8m0_reciprocal(byte))


def proj_rope_mxfp8(problem: GemmProblem, options: ProjRopeOptions) -> ProjRopeMxfp8:
    return ProjRopeMxfp8()
