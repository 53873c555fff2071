"""Gated pairs: S holds two 32-column blocks for every 32 columns of output, the gate and what it gates ("up")."""

from __future__ import annotations

from collections.abc import Sequence

import cutlass.cute as cute
from cutlass import Float32

from cudnn.cutedsl import layout
from cudnn.cutedsl.epilogue.activation import silu
from cudnn.cutedsl.epilogue.op import SLAB_VALUES, Epilogue, StoreOp


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
        self.tensors = ((ab12_dtype, row_contiguous, "n"), (c_dtype, row_contiguous, "n/2"))
        ab12, c = StoreOp(ab12_dtype, row_contiguous), StoreOp(c_dtype, row_contiguous)
        self.outputs: Sequence[StoreOp] = (ab12, ab12, c) if split else (ab12, c)

    @cute.jit
    def views(self, tensors):
        ab12, c = tensors
        return (layout.half(ab12, 0, 1), layout.half(ab12, 1, 1), c) if self.split else (ab12, c)

    def visit(self, slabs, position, scalars, store) -> None:
        (alpha,) = scalars
        first, second = slabs
        for slab in slabs:
            slab.store(slab.load() * alpha)
        if self.split:
            store(0, first, position)
            store(1, second, position)
        else:
            store(0, first, 2 * position)
            store(0, second, 2 * position + 1)
        gate, up = (first, second) if self.gate_first else (second, first)
        result = cute.make_rmem_tensor((SLAB_VALUES,), Float32)
        for v in range(SLAB_VALUES):
            result[v] = up[v] * silu(gate[v])
        store(len(self.outputs) - 1, result, position)
