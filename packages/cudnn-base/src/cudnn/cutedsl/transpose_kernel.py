"""The device side of ``transpose``: blocks of 16 bytes by 16 bytes are turned in registers."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint8

THREADS = 128
WARP = 32
WORDS = 4  # 32-bit words of one access to memory
ACROSS, ALONG = 4, 8  # lanes of a warp along rows and along columns: 64 bytes are read side by side, and 128 written


class Transpose:
    """target[r, k, l] = source[r, k, l], with source contiguous along r and target along k.

    A thread reads ``unit`` vectors of 16 bytes, neighbours along k, and writes as many, neighbours along r: 16 x 16 elements of 8 bits, 4 x 4 of 32. Nothing passes through shared memory: the vectors
    that a warp reads or writes at once lie in lines of 64 bytes or more. The four warps of a block lie side by side along r, so a block reads 256 bytes of every line.

    Lines of source behind the last column count as zeros, and the last vector of a row of target is written whole. Where rows end inside of a vector, the block is read element by element.
    """

    def __init__(self, bits: int):
        if bits not in (8, 32):
            raise ValueError(f"bits: found {bits}, needs 8 or 32: the matrix cores read 16-bit elements in either order")
        self.bits = bits
        self.unit = 128 // bits
        self.tile_rows = self.unit * ACROSS * (THREADS // WARP)
        self.tile_columns = self.unit * ALONG

    @cute.jit
    def __call__(self, source: cute.Tensor, target: cute.Tensor, stream):
        rows, columns, batches = source.shape
        tiles = cute.ceil_div(rows, self.tile_rows) * cute.ceil_div(columns, self.tile_columns)
        self.kernel(source, target).launch(grid=[tiles * batches, 1, 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, source: cute.Tensor, target: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        rows, columns, _ = source.shape
        tiles_r, tiles_c = cute.ceil_div(rows, self.tile_rows), cute.ceil_div(columns, self.tile_columns)
        batch = block // (tiles_r * tiles_c)
        rest = block - batch * (tiles_r * tiles_c)
        tile_c = rest // tiles_r
        tile_r = rest - tile_c * tiles_r
        warp, lane = thread // WARP, thread % WARP
        row = tile_r * self.tile_rows + (warp * ACROSS + lane // ALONG) * self.unit
        column = tile_c * self.tile_columns + lane % ALONG * self.unit
        if column < columns:
            if row + self.unit <= rows:
                self.turn(source, target, row, column, batch)
            else:
                for r in cutlass.range(row, rows, unroll=1):
                    self.gather(source, target, r, column, batch)

    @cute.jit
    def turn(self, source: cute.Tensor, target: cute.Tensor, row: Int32, column: Int32, batch: Int32):
        """A whole block, of which columns may be missing."""
        unit = self.unit
        columns = source.shape[1]
        read = cute.make_rmem_tensor(cute.make_layout((unit, WORDS), stride=(WORDS, 1)), Int32)
        read.fill(0)
        for j in cutlass.range_constexpr(unit):
            if column + j < columns:
                cute.autovec_copy(self.vector(source, row, column + j, batch), read[(j, None)])
        line = cute.make_rmem_tensor((WORDS,), Int32)
        if cutlass.const_expr(self.bits == 32):
            for r in cutlass.range_constexpr(unit):
                for k in cutlass.range_constexpr(WORDS):
                    line[k] = read[(k, r)]
                cute.autovec_copy(line, self.vector(target, row + r, column, batch))
        else:
            turned = cute.make_rmem_tensor(cute.make_layout((unit, WORDS), stride=(WORDS, 1)), Int32)
            for w in cutlass.range_constexpr(WORDS):
                for q in cutlass.range_constexpr(WORDS):
                    words = turn_bytes(*[read[(4 * q + i, w)] for i in range(4)])
                    for i in cutlass.range_constexpr(4):
                        turned[(4 * w + i, q)] = words[i]
            for r in cutlass.range_constexpr(unit):
                cute.autovec_copy(turned[(r, None)], self.vector(target, row + r, column, batch))

    @cute.jit
    def gather(self, source: cute.Tensor, target: cute.Tensor, row: Int32, column: Int32, batch: Int32):
        """One vector of target, element by element."""
        columns = source.shape[1]
        line = cute.make_rmem_tensor((WORDS,), Int32)
        line.fill(0)
        kind = Uint8 if cutlass.const_expr(self.bits == 8) else Int32
        values = cute.recast_tensor(line, kind)
        for k in cutlass.range_constexpr(self.unit):
            if column + k < columns:
                at = cute.recast_ptr(source.iterator + self.offset(source, row, column + k, batch), dtype=kind)
                values[k] = cute.make_tensor(at, cute.make_layout(1))[0]
        cute.autovec_copy(line, self.vector(target, row, column, batch))

    @cute.jit
    def vector(self, tensor: cute.Tensor, row: Int32, column: Int32, batch: Int32) -> cute.Tensor:
        """The 16 bytes of ``tensor`` that begin at an element, as words."""
        offset = cute.assume(self.offset(tensor, row, column, batch), divby=self.unit)
        return cute.make_tensor(cute.recast_ptr(tensor.iterator + offset, dtype=Int32), cute.make_layout(WORDS))

    def offset(self, tensor: cute.Tensor, row: Int32, column: Int32, batch: Int32) -> Int64:
        # A framework may give an axis of one element any stride, but its only coordinate is 0.
        return Int64(row) * tensor.stride[0] + Int64(column) * tensor.stride[1] + Int64(batch) * tensor.stride[2]


def turn_bytes(a, b, c, d) -> list[Int32]:
    """The 4 x 4 bytes of four words with rows and columns exchanged: word i of the result is byte i of ``a``, ``b``, ``c``, ``d``."""

    def pick(x, y, selector: int) -> Int32:
        return Int32(cute.arch.prmt(x, y, selector))

    # Selectors name bytes from the lowest: 0 to 3 of the first word, 4 to 7 of the second.
    low = pick(a, b, 0x5140), pick(c, d, 0x5140)
    high = pick(a, b, 0x7362), pick(c, d, 0x7362)
    return [pick(*low, 0x5410), pick(*low, 0x7632), pick(*high, 0x5410), pick(*high, 0x7632)]
