"""The device side of ``rows``: rows of matrices taken by index, at the speed of memory.

One row a block, 16 bytes of it a thread at a time. What is read and written is read and written once, so nothing passes through shared memory; rows are found by 64-bit offsets. An index outside of the matrix is no
row: it reads as zeros, and is not written.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from cudnn.cutedsl.pointwise_kernel import THREADS, add_up

TAIL_ROWS = 64  # rows a block of ``ZeroTail`` answers for


@cute.jit
def chunk(matrix: cute.Tensor, row: Int32, column: Int32, width: cutlass.Constexpr) -> cute.Tensor:
    """``width`` elements of ``matrix`` from ``column``, which starts on 16 bytes."""
    offset = cute.assume(Int64(row) * matrix.stride[0] + column, divby=128 // matrix.element_type.width)
    return cute.make_tensor(matrix.iterator + offset, cute.make_layout(width))


@cute.jit
def fetch(matrix: cute.Tensor, row: Int32, column: Int32, width: cutlass.Constexpr) -> cute.Tensor:
    """The chunk in registers, in the matrix's dtype."""
    raw = cute.make_rmem_tensor((width,), matrix.element_type)
    cute.autovec_copy(chunk(matrix, row, column, width), raw)
    return raw


@cute.jit
def widened(raw: cute.Tensor) -> cute.Tensor:
    """The registers in float32."""
    values = cute.make_rmem_tensor(raw.shape, Float32)
    values.store(raw.load().to(Float32))
    return values


@cute.jit
def put(values: cute.Tensor, matrix: cute.Tensor, row: Int32, column: Int32, width: cutlass.Constexpr):
    """Write registers, rounded to the matrix's dtype, to the chunk."""
    raw = cute.make_rmem_tensor((width,), matrix.element_type)
    raw.store(values.load().to(matrix.element_type))
    cute.autovec_copy(raw, chunk(matrix, row, column, width))


def is_row(row, matrix):
    return (row >= 0) & (row < matrix.shape[0])


class GatherRows:
    """out[r] = (scale[r] *) source[index[r]]; and dot[r] = the sum over n of source[index[r], n] * other[s, n], where s is r, or ``other_index[r]``."""

    def __init__(self, scaled: bool, dot: bool, other_index: bool):
        self.scaled, self.dot, self.other_index = scaled, dot, other_index

    @cute.jit
    def __call__(self, tensors, stream):
        self.kernel(tensors).launch(grid=[tensors[2].shape[0], 1, 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, tensors):
        source, index, out, *rest = tensors
        thread, _, _ = cute.arch.thread_idx()
        row, _, _ = cute.arch.block_idx()
        width = 128 // source.element_type.width
        scale = Float32(1.0)
        if cutlass.const_expr(self.scaled):
            scale = rest[0][row]
            rest = rest[1:]
        taken = index[row]
        other_row = row
        if cutlass.const_expr(self.other_index):
            other_row = rest[1][row]
        total = Float32(0.0)
        if is_row(taken, source):
            for column in cutlass.range(thread * width, source.shape[1], THREADS * width):
                raw = fetch(source, taken, column, width)
                if cutlass.const_expr(self.scaled or self.dot):
                    values = widened(raw)
                    if cutlass.const_expr(self.dot):
                        if is_row(other_row, rest[0]):
                            others = widened(fetch(rest[0], other_row, column, width))
                            for i in cutlass.range_constexpr(width):
                                total += values[i] * others[i]
                    if cutlass.const_expr(self.scaled):
                        for i in cutlass.range_constexpr(width):
                            values[i] = values[i] * scale
                    put(values, out, row, column, width)
                else:
                    cute.autovec_copy(raw, chunk(out, row, column, width))
        else:
            zeros = cute.make_rmem_tensor((width,), Float32)
            zeros.fill(0.0)
            for column in cutlass.range(thread * width, source.shape[1], THREADS * width):
                put(zeros, out, row, column, width)
        if cutlass.const_expr(self.dot):
            add_up(total, rest[-1], row, thread)


class ScatterRows:
    """out[index[r]] = source[r]."""

    @cute.jit
    def __call__(self, tensors, stream):
        self.kernel(tensors).launch(grid=[tensors[0].shape[0], 1, 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, tensors):
        source, index, out = tensors
        thread, _, _ = cute.arch.thread_idx()
        row, _, _ = cute.arch.block_idx()
        width = 128 // source.element_type.width
        target = index[row]
        if is_row(target, out):
            for column in cutlass.range(thread * width, source.shape[1], THREADS * width):
                cute.autovec_copy(fetch(source, row, column, width), chunk(out, target, column, width))


class SumRows:
    """out[t] = the sum over i of (weight[i] *) source[index[i]], in float32 and in the order of i, from first[t] up to first[t + 1], or where not ``ragged`` from t * count up to (t + 1) * count."""

    def __init__(self, weighted: bool, ragged: bool):
        self.weighted, self.ragged = weighted, ragged

    @cute.jit
    def __call__(self, tensors, count: Int32, stream):
        self.kernel(tensors, count).launch(grid=[tensors[2].shape[0], 1, 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, tensors, count: Int32):
        source, index, out, *rest = tensors
        thread, _, _ = cute.arch.thread_idx()
        row, _, _ = cute.arch.block_idx()
        width = 128 // source.element_type.width
        first, end = row * count, row * count + count
        if cutlass.const_expr(self.ragged):
            first, end = rest[-1][row], rest[-1][row + 1]
        sums = cute.make_rmem_tensor((width,), Float32)
        for column in cutlass.range(thread * width, source.shape[1], THREADS * width):
            sums.fill(0.0)
            for i in cutlass.range(first, end):
                taken = index[i]
                if is_row(taken, source):
                    values = widened(fetch(source, taken, column, width))
                    factor = Float32(1.0)
                    if cutlass.const_expr(self.weighted):
                        factor = rest[0][i]
                    for j in cutlass.range_constexpr(width):
                        sums[j] = sums[j] + factor * values[j]
            put(sums, out, row, column, width)


class ZeroTail:
    """out[r] = 0 for the rows of no group: from the last of ``ends`` on."""

    @cute.jit
    def __call__(self, tensors, stream):
        self.kernel(tensors).launch(grid=[cute.ceil_div(tensors[0].shape[0], TAIL_ROWS), 1, 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, tensors):
        out, ends = tensors
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        width = 128 // out.element_type.width
        first = cutlass.max(ends[ends.shape[0] - 1], block * TAIL_ROWS)
        last = cutlass.min(out.shape[0], (block + 1) * TAIL_ROWS)
        zeros = cute.make_rmem_tensor((width,), Float32)
        zeros.fill(0.0)
        for row in cutlass.range(first, last):
            for column in cutlass.range(thread * width, out.shape[1], THREADS * width):
                put(zeros, out, row, column, width)
