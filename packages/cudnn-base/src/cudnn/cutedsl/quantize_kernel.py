"""The device side of ``quantize``: one reading of the matrix, whatever is made of it."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint8, Uint32
from cutlass.memory import SmemAllocator

from cudnn.block_scale import ATOM, FP4, LIMITS, atom_offset
from cudnn.cutedsl import block_scale
from cudnn.datatypes import cutlass_dtype

THREADS, WARP = 256, 32
TILE = 128  # rows and columns: the rows of one atom of scale factors in either direction
UNIT = 8  # rows and columns of a thread
GRID_LIMIT = 65535  # of the second and third dimension
ACROSS = 8  # threads of a warp side by side: a warp is 32 rows x 64 columns


class Quantize:
    """Elements and scale factors of x (rows, columns, L) with blocks along columns (``along_rows``), along rows (``along_columns``), or both.

    A thread holds 8 x 8 elements from 16-byte loads that are all under way before the first is used. A block of 32 is four threads of a warp, one of 16 two: side by side for a row's blocks, one above
    the other for a column's, and the same steps serve both. Each finds the largest of its eight lines' parts; shuffles complete them; each thread of a group makes the scale factors of its share
    of the eight, and shuffles give the group the factors to multiply by. Scale factors of the tile are collected in shared memory in the blocked layout. What does not exist is read as zeros, so
    that padding of scale factors becomes zero as well.
    """

    def __init__(self, dtype: str, element: str, scale: str, vec: int, along_rows: bool, along_columns: bool, blocked: bool, norm: bool):
        self.dtype, self.element, self.scale, self.vec = dtype, element, scale, vec
        self.along_rows, self.along_columns, self.blocked, self.norm = along_rows, along_columns, blocked, norm
        self.wide = dtype == "float32"
        self.words = UNIT if self.wide else UNIT // 2  # of a thread in one line
        self.group = vec // UNIT  # threads of a block
        self.share = UNIT // self.group  # scale factors that each of them makes
        self.tile_atoms = TILE // vec // 4

    @cute.jit
    def __call__(self, tensors, stream):
        rows, columns, batches = tensors[0].shape
        self.kernel(tensors).launch(grid=grid_of(cute.ceil_div(rows, TILE), cute.ceil_div(columns, TILE), batches), block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, tensors):
        thread, _, _ = cute.arch.thread_idx()
        rows, columns, batches = tensors[0].shape
        tile_r, tile_c, batch = tile_here(cute.ceil_div(columns, TILE))
        if batch < batches:
            self.work(tensors, tile_r, tile_c, batch, thread)

    @cute.jit
    def work(self, tensors, tile_r: Int32, tile_c: Int32, batch: Int32, thread: Int32):
        """What one thread does for one tile."""
        x = tensors[0]
        rows, columns, _ = x.shape
        warp, lane = thread // WARP, thread % WARP
        row, column = warp // 2 * 32 + lane // ACROSS * UNIT, warp % 2 * 64 + lane % ACROSS * UNIT
        place = tile_r * TILE + row, tile_c * TILE + column, batch
        raw = self.read(x, place)
        c = tensors[len(tensors) - 1][0] if cutlass.const_expr(self.norm) else Float32(1.0)
        scales = self.shared_bytes()
        if cutlass.const_expr(self.along_rows):
            factors = self.block_scales(self.row_maxima(raw), c, lane, lane % ACROSS % self.group, 1, scales, row, column // self.vec, 0)
            self.write_rows(tensors[1], raw, factors, None, place, rows, columns)
        if cutlass.const_expr(self.along_columns):
            which = 3 if cutlass.const_expr(self.along_rows) else 1
            first = self.tile_atoms * ATOM if cutlass.const_expr(self.along_rows) else 0
            factors = self.block_scales(self.column_maxima(raw), c, lane, lane // ACROSS % self.group, ACROSS, scales, column, row // self.vec, first)
            if cutlass.const_expr(self.element == FP4):
                self.write_packed_columns(tensors[which], raw, factors, place, rows, columns)
            else:
                self.write_rows(tensors[which], raw, None, factors, place, rows, columns)
        self.barrier()
        if cutlass.const_expr(self.along_rows):
            self.write_scales(tensors[2], scales, 0, thread, tile_r, tile_c, batch, rows, columns, True)
        if cutlass.const_expr(self.along_columns):
            which = 4 if cutlass.const_expr(self.along_rows) else 2
            first = self.tile_atoms * ATOM if cutlass.const_expr(self.along_rows) else 0
            self.write_scales(tensors[which], scales, first, thread, tile_c, tile_r, batch, columns, rows, False)

    @cute.jit
    def read(self, x: cute.Tensor, place) -> cute.Tensor:
        """The thread's elements as words, a line of ``words`` for each of 8 rows; zeros where there are none."""
        row, column, _ = place
        raw = cute.make_rmem_tensor(cute.make_layout((UNIT, self.words), stride=(self.words, 1)), Uint32)
        if (row + UNIT <= x.shape[0]) & (column < x.shape[1]):
            # Nearly always: loads without conditions of their own, one behind the other.
            for i in cutlass.range_constexpr(UNIT):
                self.read_row(x, place, i, raw)
        else:
            raw.fill(0)
            for i in cutlass.range_constexpr(UNIT):
                if (row + i < x.shape[0]) & (column < x.shape[1]):
                    self.read_row(x, place, i, raw)
        return raw

    @cute.jit
    def read_row(self, x: cute.Tensor, place, i: cutlass.Constexpr, raw: cute.Tensor):
        row, column, batch = place
        offset = cute.assume(offset_of(x, row + i, column, batch), divby=128 // x.element_type.width)
        source = cute.make_tensor(cute.recast_ptr(x.iterator + offset, dtype=Uint32), cute.make_layout(self.words))
        cute.autovec_copy(source, raw[(i, None)])

    def magnitude(self, word: Uint32) -> Uint32:
        """A word without the signs of its elements."""
        return word & (0x7FFFFFFF if self.wide else 0x7FFF7FFF)

    def row_maxima(self, raw: cute.Tensor) -> list[Uint32]:
        """The largest magnitude in each of the thread's 8 rows, in as many words as a line has."""
        found = []
        for i in range(UNIT):
            largest = self.magnitude(raw[(i, 0)])
            for w in range(1, self.words):
                largest = self.larger(largest, self.magnitude(raw[(i, w)]))
            found.append(largest)
        if self.wide:
            return found
        # Two numbers of one row to a word so far, and two rows to a word from here on.
        return [
            self.larger(block_scale.permuted_bytes(found[i], found[i + 1], 0x5410), block_scale.permuted_bytes(found[i], found[i + 1], 0x7632))
            for i in range(0, UNIT, 2)
        ]

    def column_maxima(self, raw: cute.Tensor) -> list[Uint32]:
        """The largest magnitude in each of the thread's 8 columns."""
        found = []
        for w in range(self.words):
            largest = self.magnitude(raw[(0, w)])
            for i in range(1, UNIT):
                largest = self.larger(largest, self.magnitude(raw[(i, w)]))
            found.append(largest)
        return found

    def block_scales(
        self, maxima: list[Uint32], c: Float32, lane: Int32, member: Int32, distance: int, scales: cute.Tensor, line: Int32, block: Int32, first: int
    ) -> list[Float32]:
        """Factors on the elements of the thread's 8 lines, of which ``maxima`` are the parts. The scale factors go to ``scales`` from entry ``first``: line ``line`` + j and block ``block`` of the tile.

        The threads of a block are ``distance`` lanes apart, and this one is number ``member``.
        """
        step = distance
        while step < distance * self.group:
            maxima = [self.larger(own, other) for own, other in zip(maxima, self.exchanged(maxima, step))]
            step *= 2
        count = self.share if self.wide else self.share // 2
        chosen = maxima[:count]
        for m in range(1, self.group):
            chosen = [block_scale.where(member == m, new, old) for new, old in zip(maxima[m * count : (m + 1) * count], chosen)]
        # The share's lines lie within 8 that begin at a multiple of 8: 16 entries from one to the next.
        entry = first + (block >> 2) * ATOM + atom_offset(line + member * self.share, block)
        factors = []
        for j, largest in enumerate(self.floats(chosen)):
            byte, factor = block_scale.block_scale(largest, c, LIMITS[self.element], self.scale)
            scales[entry + 16 * j] = Uint8(byte)
            factors.append(factor)
        return self.gathered(factors, [lane + (m - member) * distance for m in range(self.group)])

    @cute.jit
    def write_rows(self, data: cute.Tensor, raw: cute.Tensor, row_factors, column_factors, place, rows: Int32, columns: Int32):
        """Elements in the order of x, times a factor for each row or for each column."""
        row, column, _ = place
        if (row + UNIT <= rows) & (column < columns):
            for i in cutlass.range_constexpr(UNIT):
                self.write_row(data, raw, i, row_factors, column_factors, place)
        else:
            for i in cutlass.range_constexpr(UNIT):
                if (row + i < rows) & (column < columns):
                    self.write_row(data, raw, i, row_factors, column_factors, place)

    @cute.jit
    def write_row(self, data: cute.Tensor, raw: cute.Tensor, i: cutlass.Constexpr, row_factors, column_factors, place):
        row, column, batch = place
        packed = 2 if cutlass.const_expr(self.element == FP4) else 1
        words = self.row_words(raw, i, row_factors, column_factors)
        offset = cute.assume(offset_of(data, row + i, column // packed, batch), divby=UNIT // packed)
        cute.autovec_copy(words, cute.make_tensor(cute.recast_ptr(data.iterator + offset, dtype=Uint32), cute.make_layout(2 // packed)))

    def row_words(self, raw: cute.Tensor, i: int, row_factors, column_factors) -> cute.Tensor:
        """Row i of the thread's elements in the format's."""
        line = [raw[(i, w)] for w in range(self.words)]
        factors = [row_factors[i]] * UNIT if column_factors is None else column_factors
        if self.element == FP4:
            words = cute.make_rmem_tensor((1,), Uint32)
            values = [cute.math.abs(value) * factor for value, factor in zip(self.floats(line), factors)]
            signs = block_scale.signs_of_floats(line) if self.wide else block_scale.signs_of_halves(line)
            words[0] = block_scale.e2m1_word(values, signs)
            return words
        values = cute.make_rmem_tensor((UNIT,), Float32)
        for j, (value, factor) in enumerate(zip(self.floats(line), factors)):
            values[j] = value * factor
        return self.to_fp8(values)

    @cute.jit
    def write_packed_columns(self, data: cute.Tensor, raw: cute.Tensor, factors, place, rows: Int32, columns: Int32):
        """4-bit elements in the order of x transposed, (columns, rows): eight of a column to a word."""
        row, column, batch = place
        if (row < rows) & (column < columns):
            for j in cutlass.range_constexpr(UNIT):
                words = self.column_words(raw, j, factors[j])
                offset = cute.assume(offset_of(data, column + j, row // 2, batch), divby=UNIT // 2)
                cute.autovec_copy(words, cute.make_tensor(cute.recast_ptr(data.iterator + offset, dtype=Uint32), cute.make_layout(1)))

    def column_words(self, raw: cute.Tensor, j: int, factor: Float32) -> cute.Tensor:
        """Column j of the thread's elements as e2m1 codes."""
        w, half = (j, 0) if self.wide else (j // 2, j % 2)
        line = [raw[(i, w)] for i in range(UNIT)]
        values = [cute.math.abs(self.floats([word])[half]) * factor for word in line]
        words = cute.make_rmem_tensor((1,), Uint32)
        words[0] = block_scale.e2m1_word(values, block_scale.signs_of_words(line, 3 if self.wide or half else 1))
        return words

    @cute.jit
    def write_scales(
        self,
        target: cute.Tensor,
        scales: cute.Tensor,
        first: int,
        thread: Int32,
        tile_r: Int32,
        tile_c: Int32,
        batch: Int32,
        rows: Int32,
        columns: Int32,
        row_major: cutlass.Constexpr,
    ):
        """The tile's scale factors, from entry ``first`` of shared memory, to those of a (rows, columns) matrix with blocks along columns. ``row_major``: a row's factors are neighbours where they are plain."""
        blocks = cute.ceil_div(columns, self.vec)
        if cutlass.const_expr(self.blocked):
            row_atoms, block_atoms = cute.ceil_div(rows, TILE), cute.ceil_div(blocks, 4)
            atom = tile_c * self.tile_atoms + thread // 32
            if (thread < self.tile_atoms * 32) & (atom < block_atoms):
                offset = ((Int64(batch) * row_atoms + tile_r) * block_atoms + atom) * ATOM + thread % 32 * 16
                four = cute.make_rmem_tensor((4,), Uint32)
                source = cute.recast_ptr(scales.iterator + cute.assume(first + thread * 16, divby=16), dtype=Uint32)
                cute.autovec_copy(cute.make_tensor(source, cute.make_layout(4)), four)
                cute.autovec_copy(four, cute.make_tensor(cute.recast_ptr(target.iterator + cute.assume(offset, divby=16), dtype=Uint32), cute.make_layout(4)))
        else:
            tile_blocks = self.tile_atoms * 4
            for step in cutlass.range_constexpr(TILE * tile_blocks // THREADS):
                entry = step * THREADS + thread
                if cutlass.const_expr(row_major):
                    row, block = entry // tile_blocks, entry % tile_blocks
                else:
                    row, block = entry % TILE, entry // TILE
                if (tile_r * TILE + row < rows) & (tile_c * tile_blocks + block < blocks):
                    byte = scales[first + (block // 4) * ATOM + atom_offset(row, block)]
                    offset = offset_of(target, tile_r * TILE + row, tile_c * tile_blocks + block, batch)
                    cute.make_tensor(target.iterator + offset, cute.make_layout(1))[0] = byte

    def floats(self, words: list[Uint32]) -> list[Float32]:
        """The elements in words, in float32."""
        if self.wide:
            return [block_scale.as_float(word) for word in words]
        if self.dtype == "bfloat16":
            return [block_scale.as_float(half) for word in words for half in (word << 16, word & Uint32(0xFFFF0000))]
        found = []
        for word in words:
            # Two words: a tensor of one is not widened to two of half the width.
            memory, values = cute.make_rmem_tensor((2,), Uint32), cute.make_rmem_tensor((4,), Float32)
            memory.fill(word)
            values.store(cute.recast_tensor(memory, cutlass_dtype(self.dtype)).load().to(Float32))
            found += [values[0], values[1]]
        return found

    def larger(self, x: Uint32, y: Uint32) -> Uint32:
        """The larger magnitudes of two words, element by element: as integers, among which NaN is the largest."""
        if self.wide:
            return block_scale.where(x > y, x, y)
        return cute.arch.inline_ptx("max.u16x2 {$w0}, {$r0}, {$r1};", write_only_types=[Uint32], read_only_args=[x, y])

    def exchanged(self, values: list[Uint32], distance: int) -> list[Uint32]:
        """Those of the thread ``distance`` lanes further or back."""
        return [cute.arch.shuffle_sync_bfly(value, distance) for value in values]

    def gathered(self, values: list[Float32], lanes: list[Int32]) -> list[Float32]:
        """The values of each of ``lanes`` in turn."""
        return [cute.arch.shuffle_sync(value, source) for source in lanes for value in values]

    def to_fp8(self, values: cute.Tensor) -> cute.Tensor:
        """8 floats as two words of the format's elements, by the hardware: to nearest even, saturating."""
        found = cute.make_rmem_tensor((UNIT,), cutlass_dtype(self.element))
        found.store(values.load().to(cutlass_dtype(self.element)))
        return cute.recast_tensor(found, Uint32)

    def shared_bytes(self) -> cute.Tensor:
        """Shared memory for the tile's scale factors."""
        directions = int(self.along_rows) + int(self.along_columns)
        return SmemAllocator().allocate_tensor(Uint8, cute.make_layout(directions * self.tile_atoms * ATOM), byte_alignment=16)

    def barrier(self) -> None:
        cute.arch.sync_threads()


def grid_of(tiles_r: Int32, tiles_c: Int32, batches: Int32) -> list[Int32]:
    """Blocks for all tiles of all batches, and up to one dimension's limit more. Neighbours in a row of tiles follow each other."""
    return [tiles_r * tiles_c, cutlass.min(batches, Int32(GRID_LIMIT)), cute.ceil_div(batches, GRID_LIMIT)]


def tile_here(tiles_c: Int32) -> tuple[Int32, Int32, Int32]:
    """(tile along rows, tile along columns, batch) of this block."""
    # One division, and no loop over batches: the compiler would keep every address of the next round in registers (224 of them, measured).
    tile, batch, more = cute.arch.block_idx()
    tile_r = tile // tiles_c
    return tile_r, tile - tile_r * tiles_c, more * GRID_LIMIT + batch


def offset_of(tensor: cute.Tensor, row: Int32, column: Int32, batch: Int32) -> Int64:
    """Elements from the beginning of a (rows, columns, L) tensor. A framework may give an axis of one element any stride, but its only coordinate is 0."""
    return Int64(row) * tensor.stride[0] + Int64(column) * tensor.stride[1] + Int64(batch) * tensor.stride[2]
