"""The device side of ``dequantize``: 16 bytes of the result at a time, side by side in memory."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32

from cudnn.block_scale import FP4, atom_offset
from cudnn.cutedsl import block_scale
from cudnn.cutedsl.quantize_kernel import grid_of, tile_here

THREADS, WARP = 256, 32
WARPS = THREADS // WARP
UNIT = 8  # elements of a thread in one line
LINE = UNIT * WARP  # of a warp
AT_ONCE = 8  # lines that a thread has requested before it uses the first


class Dequantize:
    """target[r, k, l] = source[r, k, l] * scale(r, k // vec, l) / norm.

    A warp reads 256 neighbouring elements of a line, and writes as many. Along K a tile is 128 rows of one atom of scale factors: a warp takes the rows r, r + 32, r + 64 and r + 96 for four r, whose
    factors of four blocks are 16 bytes side by side. Along rows it is 256 rows and 8 blocks, a block a warp, so that a thread reads its 8 scale factors once for 32 columns. Rows and columns that do
    not exist are read where the last one is, and not written.
    """

    def __init__(self, element: str, scale: str, vec: int, k_major: bool, blocked: bool):
        if element == FP4 and not k_major:
            raise ValueError("4-bit elements are packed along K")
        self.element, self.scale, self.vec, self.k_major, self.blocked = element, scale, vec, k_major, blocked
        self.bytes = UNIT // 2 if element == FP4 else UNIT
        self.tile_rows = 128 if k_major else LINE
        self.tile_columns = LINE if k_major else WARPS * vec

    @cute.jit
    def __call__(self, source: cute.Tensor, scales: cute.Tensor, target: cute.Tensor, stream):
        self.kernel(source, scales, target, None).launch(grid=self.grid(target), block=[THREADS, 1, 1], stream=stream)

    @cute.jit
    def with_norm(self, source: cute.Tensor, scales: cute.Tensor, target: cute.Tensor, norm: cute.Tensor, stream):
        self.kernel(source, scales, target, norm).launch(grid=self.grid(target), block=[THREADS, 1, 1], stream=stream)

    def grid(self, target: cute.Tensor) -> list[Int32]:
        rows, columns, batches = target.shape
        return grid_of(cute.ceil_div(rows, self.tile_rows), cute.ceil_div(columns, self.tile_columns), batches)

    @cute.kernel
    def kernel(self, source: cute.Tensor, scales: cute.Tensor, target: cute.Tensor, norm):
        thread, _, _ = cute.arch.thread_idx()
        _, columns, batches = target.shape
        tile_r, tile_c, batch = tile_here(cute.ceil_div(columns, self.tile_columns))
        if batch < batches:
            self.work(source, scales, target, norm, tile_r, tile_c, batch, thread)

    @cute.jit
    def work(self, source: cute.Tensor, scales: cute.Tensor, target: cute.Tensor, norm, tile_r: Int32, tile_c: Int32, batch: Int32, thread: Int32):
        """What one thread does for one tile."""
        rows, columns, _ = target.shape
        warp, lane = thread // WARP, thread % WARP
        c = Float32(1.0) if cutlass.const_expr(norm is None) else norm[0]
        if cutlass.const_expr(self.k_major):
            column = tile_c * LINE + lane * UNIT
            if column < columns:
                for half in cutlass.range_constexpr(2):
                    self.rows_of_an_atom(source, scales, target, norm is not None, c, tile_r, warp * 4 + half * 2, column, batch)
        else:
            row, first = tile_r * LINE + lane * UNIT, (tile_c * WARPS + warp) * self.vec
            if (row < rows) & (first < columns):
                self.columns_of_a_block(source, scales, target, norm is not None, c, row, first, batch)

    @cute.jit
    def rows_of_an_atom(self, source, scales, target, has_norm: cutlass.Constexpr, c: Float32, tile_r: Int32, first: Int32, column: Int32, batch: Int32):
        """Rows ``first`` and ``first`` + 1 of the tile, and those 32, 64 and 96 behind each."""
        rows, columns, _ = target.shape
        read = cute.make_rmem_tensor(cute.make_layout((AT_ONCE, self.bytes // 4), stride=(self.bytes // 4, 1)), Uint32)
        for j in cutlass.range_constexpr(AT_ONCE):
            row = self.row_of(tile_r, first, j)
            if row >= rows:
                row = rows - 1
            cute.autovec_copy(self.words(source, row, column // (UNIT // self.bytes), batch), read[(j, None)])
        kb = column // self.vec
        codes = cute.make_rmem_tensor((AT_ONCE,), Uint32)
        if cutlass.const_expr(self.blocked):
            row_atoms, block_atoms = cute.ceil_div(rows, 128), cute.ceil_div(cute.ceil_div(columns, self.vec), 4)
            atom = (Int64(batch) * row_atoms + tile_r) * block_atoms + kb // 4
            four = cute.make_rmem_tensor((4,), Uint32)
            for i in cutlass.range_constexpr(AT_ONCE // 4):
                offset = cute.assume(atom * 512 + atom_offset(first + i, 0), divby=16)
                cute.autovec_copy(cute.make_tensor(cute.recast_ptr(scales.iterator + offset, dtype=Uint32), cute.make_layout(4)), four)
                for j in cutlass.range_constexpr(4):
                    codes[i * 4 + j] = (four[j] >> (kb % 4 * 8).to(Uint32)) & 255
        else:
            for j in cutlass.range_constexpr(AT_ONCE):
                row = self.row_of(tile_r, first, j)
                if row >= rows:
                    row = rows - 1
                codes[j] = self.plain_scale(scales, row, kb, batch)
        for j in cutlass.range_constexpr(AT_ONCE):
            row = self.row_of(tile_r, first, j)
            factor = self.factor(codes[j], has_norm, c)
            values = self.widened(read[(j, None)])
            for i in cutlass.range_constexpr(UNIT):
                values[i] = values[i] * factor
            if row < rows:
                self.write(target, row, column, batch, values)

    @cute.jit
    def columns_of_a_block(self, source, scales, target, has_norm: cutlass.Constexpr, c: Float32, row: Int32, first: Int32, batch: Int32):
        """8 rows from ``row``, and the columns of one block from ``first``."""
        rows, columns, _ = target.shape
        kb = first // self.vec
        row_atoms, block_atoms = cute.ceil_div(rows, 128), cute.ceil_div(cute.ceil_div(columns, self.vec), 4)
        factors = cute.make_rmem_tensor((UNIT,), Float32)
        for i in cutlass.range_constexpr(UNIT):
            if cutlass.const_expr(self.blocked):
                atom = (Int64(batch) * row_atoms + row // 128) * block_atoms + kb // 4
                code = scales[atom * 512 + atom_offset(row + i, kb)].to(Uint32)
            else:
                code = self.plain_scale(scales, row + i, kb, batch)
            factors[i] = self.factor(code, has_norm, c)
        read = cute.make_rmem_tensor(cute.make_layout((AT_ONCE, self.bytes // 4), stride=(self.bytes // 4, 1)), Uint32)
        for chunk in cutlass.range_constexpr(self.vec // AT_ONCE):
            for j in cutlass.range_constexpr(AT_ONCE):
                column = first + chunk * AT_ONCE + j
                if column >= columns:
                    column = columns - 1
                cute.autovec_copy(self.words(source, row, column, batch), read[(j, None)])
            for j in cutlass.range_constexpr(AT_ONCE):
                column = first + chunk * AT_ONCE + j
                values = self.widened(read[(j, None)])
                for i in cutlass.range_constexpr(UNIT):
                    values[i] = values[i] * factors[i]
                if column < columns:
                    self.write(target, row, column, batch, values)

    def row_of(self, tile_r: Int32, first: Int32, j: int) -> Int32:
        """Row ``j`` of those that ``rows_of_an_atom`` takes together: four of ``first``, then four of ``first`` + 1."""
        return tile_r * 128 + first + j // 4 + j % 4 * 32

    @cute.jit
    def plain_scale(self, scales: cute.Tensor, row: Int32, kb: Int32, batch: Int32) -> Uint32:
        offset = Int64(row) * scales.stride[0] + Int64(kb) * scales.stride[1] + Int64(batch) * scales.stride[2]
        return cute.make_tensor(scales.iterator + offset, cute.make_layout(1))[0].to(Uint32)

    def factor(self, code: Uint32, has_norm: bool, c: Float32) -> Float32:
        value = block_scale.scale_value(code, self.scale)
        return value / c if has_norm else value

    @cute.jit
    def widened(self, words: cute.Tensor) -> cute.Tensor:
        """8 elements in float32."""
        values = cute.make_rmem_tensor((UNIT,), Float32)
        if cutlass.const_expr(self.element == FP4):
            values.store(block_scale.e2m1_elements([words[0] >> 8 * i & 255 for i in range(UNIT // 2)]).load().to(Float32))
        else:
            raw = cute.make_rmem_tensor((UNIT // 4,), Uint32)
            for i in cutlass.range_constexpr(UNIT // 4):
                raw[i] = words[i]
            values.store(block_scale.hardware_fp8(raw, self.element))
        return values

    @cute.jit
    def words(self, source: cute.Tensor, row: Int32, column: Int32, batch: Int32) -> cute.Tensor:
        """The bytes of 8 elements from ``column`` (in bytes), as words."""
        offset = cute.assume(self.offset(source, row, column, batch), divby=self.bytes)
        return cute.make_tensor(cute.recast_ptr(source.iterator + offset, dtype=Uint32), cute.make_layout(self.bytes // 4))

    @cute.jit
    def write(self, target: cute.Tensor, row: Int32, column: Int32, batch: Int32, values: cute.Tensor):
        raw = cute.make_rmem_tensor((UNIT,), target.element_type)
        raw.store(values.load().to(target.element_type))
        offset = cute.assume(self.offset(target, row, column, batch), divby=128 // target.element_type.width)
        cute.autovec_copy(raw, cute.make_tensor(target.iterator + offset, cute.make_layout(UNIT)))

    def offset(self, tensor: cute.Tensor, row: Int32, column: Int32, batch: Int32) -> Int64:
        # A framework may give an axis of one element any stride, but its only coordinate is 0.
        return Int64(row) * tensor.stride[0] + Int64(column) * tensor.stride[1] + Int64(batch) * tensor.stride[2]
