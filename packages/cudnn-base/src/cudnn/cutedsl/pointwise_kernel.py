"""The device side of ``pointwise``: one row a block, 16 bytes of it a thread at a time, so that every access is as wide as memory likes it."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.memory import SmemAllocator

from cudnn.cutedsl.epilogue.activation import relu

THREADS = 256
WARPS = THREADS // 32


@cute.jit
def chunk(matrix: cute.Tensor, row: Int32, column: Int32) -> cute.Tensor:
    """16 bytes of ``matrix`` from ``column``, which starts on 16 bytes."""
    width = 128 // matrix.element_type.width
    pointer = matrix.iterator + cute.assume(row * matrix.stride[0] + column, divby=width)
    return cute.make_tensor(pointer, cute.make_layout(width))


@cute.jit
def read(matrix: cute.Tensor, row: Int32, column: Int32) -> cute.Tensor:
    """The chunk in float32."""
    source = chunk(matrix, row, column)
    raw = cute.make_rmem_tensor(source.shape, matrix.element_type)
    cute.autovec_copy(source, raw)
    values = cute.make_rmem_tensor(source.shape, Float32)
    values.store(raw.load().to(Float32))
    return values


@cute.jit
def write(matrix: cute.Tensor, row: Int32, column: Int32, values: cute.Tensor):
    raw = cute.make_rmem_tensor(values.shape, matrix.element_type)
    raw.store(values.load().to(matrix.element_type))
    cute.autovec_copy(raw, chunk(matrix, row, column))


@cute.jit
def add_up(total: Float32, target: cute.Tensor, row: Int32, thread: Int32):
    """target[row] = the sum of the block's ``total``, always in the same order."""
    sums = SmemAllocator().allocate_tensor(Float32, cute.make_layout(WARPS))
    total = cute.arch.warp_reduction_sum(total)
    if thread % 32 == 0:
        sums[thread // 32] = total
    cute.arch.sync_threads()
    if thread == 0:
        whole = sums[0]
        for w in cutlass.range_constexpr(1, WARPS):
            whole += sums[w]
        target[row] = whole


class GatedGradient:
    """out = the gradient of pre = gate and up, from that of what the activation makes of them, times prob[m]; and dprob[m] = the sum over a row of what it makes times its gradient."""

    def __init__(self, activation, interleaved: bool, gate_first: bool, alternating: bool, prob: bool):
        self.activation, self.interleaved, self.gate_first, self.alternating, self.prob = activation, interleaved, gate_first, alternating, prob

    @cute.jit
    def __call__(self, tensors, scalars, stream):
        self.kernel(tensors, scalars).launch(grid=[tensors[0].shape[0], 1, 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, tensors, scalars):
        pre, grad, out = tensors[:3]
        thread, _, _ = cute.arch.thread_idx()
        row, _, _ = cute.arch.block_idx()
        width = 128 // grad.element_type.width
        columns = grad.shape[1]
        scale, factor, total = scalars[0], Float32(1.0), Float32(0.0)
        if cutlass.const_expr(self.prob):
            ends = tensors[5]
            factor = tensors[3][row]
            if row >= ends[ends.shape[0] - 1]:
                columns = Int32(0)
        for column in cutlass.range(thread * width, columns, THREADS * width):
            grads = read(grad, row, column)
            if cutlass.const_expr(self.alternating):
                pairs = (read(pre, row, 2 * column), read(pre, row, 2 * column + width))
                for i in cutlass.range_constexpr(width):
                    both, at = pairs[2 * i // width], 2 * i % width
                    both[at], both[at + 1], value = self.activation.backward(both[at], both[at + 1], grads[i] * scale * factor, scalars[1:])
                    total += grads[i] * scale * value
                write(out, row, 2 * column, pairs[0])
                write(out, row, 2 * column + width, pairs[1])
            else:
                first, second = column, grad.shape[1] + column
                if cutlass.const_expr(self.interleaved):
                    first = column // 32 * 64 + column % 32
                    second = first + 32
                gate_at, up_at = (first, second) if cutlass.const_expr(self.gate_first) else (second, first)
                gate, up = read(pre, row, gate_at), read(pre, row, up_at)
                for i in cutlass.range_constexpr(width):
                    gate[i], up[i], value = self.activation.backward(gate[i], up[i], grads[i] * scale * factor, scalars[1:])
                    total += grads[i] * scale * value
                write(out, row, gate_at, gate)
                write(out, row, up_at, up)
        if cutlass.const_expr(self.prob):
            add_up(total, tensors[4], row, thread)


class SreluGradient:
    """out = 2 relu(s) * grad * prob, and dprob = the sum over a row of relu(s)² * grad."""

    def __init__(self, prob: bool):
        self.prob = prob

    @cute.jit
    def __call__(self, tensors, stream):
        self.kernel(tensors).launch(grid=[tensors[0].shape[0], 1, 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, tensors):
        s, grad, out = tensors[0], tensors[1], tensors[2]
        thread, _, _ = cute.arch.thread_idx()
        row, _, _ = cute.arch.block_idx()
        width = 128 // s.element_type.width
        factor, total = Float32(2.0), Float32(0.0)
        if cutlass.const_expr(self.prob):
            factor = Float32(2.0) * tensors[3][row]
        for column in cutlass.range(thread * width, s.shape[1], THREADS * width):
            values, grads = read(s, row, column), read(grad, row, column)
            for i in cutlass.range_constexpr(width):
                positive = relu(values[i])
                weighted = positive * grads[i]
                total += positive * weighted
                values[i] = factor * weighted
            write(out, row, column, values)
        if cutlass.const_expr(self.prob):
            add_up(total, tensors[4], row, thread)
