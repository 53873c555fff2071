"""Gated pairs: S holds two 32-column blocks for every 32 columns of output, the gate and what it gates ("up")."""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float32

from cudnn.cutedsl.epilogue.activation import silu
from cudnn.cutedsl.epilogue.op import SLAB_VALUES, Epilogue, StoreOp, matrix


class Swiglu(Epilogue):
    """C = up · silu(gate), with alpha · S kept as AB12.

    ``gate_first``: which of a pair's two slabs is the gate. ``split``: AB12 is [first | second], halves of its columns, instead of the 32-column interleave the tile has.
    Scalars: (alpha,). Tensors: (AB12 (M, N, L), C (M, N/2, L)).
    """

    slabs = 2
    scalar_count = 1
    stores_per_visit = 3

    def __init__(self, ab12_dtype, c_dtype, row_contiguous: bool, gate_first: bool, split: bool):
        self.gate_first, self.split = gate_first, split
        self.tensors = (matrix(ab12_dtype, row_contiguous), matrix(c_dtype, row_contiguous, "n/2"))
        halves = (0, 1) if split else (None,)
        self.stores = (*(StoreOp(ab12_dtype, row_contiguous, 0, half) for half in halves), StoreOp(c_dtype, row_contiguous, 1))

    def visit(self, v) -> None:
        (alpha,) = v.scalars
        first, second = v.values
        for slab in v.values:
            slab.store(slab.load() * alpha)
        if self.split:
            v.store(0, first, v.position)
            v.store(1, second, v.position)
        else:
            v.store(0, first, 2 * v.position)
            v.store(0, second, 2 * v.position + 1)
        gate, up = (first, second) if self.gate_first else (second, first)
        result = cute.make_rmem_tensor((SLAB_VALUES,), Float32)
        for r in range(SLAB_VALUES):
            result[r] = up[r] * silu(gate[r])
        v.store(len(self.stores) - 1, result, v.position)
