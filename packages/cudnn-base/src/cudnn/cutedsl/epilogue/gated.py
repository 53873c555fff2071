"""Gated pairs: S holds two 32-column blocks for every 32 columns of output, the gate and what it gates ("up")."""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float32

from cudnn.cutedsl.epilogue.activation import GATED
from cudnn.cutedsl.epilogue.op import SLAB_VALUES, Epilogue, LoadOp, StoreOp, TensorSpec, matrix
from cudnn.cutedsl.epilogue.parts import Amax


class Gated(Epilogue):
    """AB12 = alpha · S, and C = what the pair's gate and up give, taken of alpha · S before it is rounded.

    ``activation``: a name in ``GATED``. ``ab12_dtype``: None where AB12 is not kept. ``gate_first``: which of a pair's two slabs is the gate. ``split``: AB12 is [first | second], halves of its columns, instead
    of the 32-column interleave the tile has. ``amax_rank``: as in ``Plain``, of C before it is rounded. Scalars: alpha, then the activation's. Tensors: (AB12 (M, N, L) where kept, C (M, N/2, L), amax
    where there is one).
    """

    slabs = 2

    def __init__(self, ab12_dtype, c_dtype, row_contiguous: bool, gate_first: bool, split: bool, activation: str = "swiglu", amax_rank: int = 0):
        self.gate_first, self.split = gate_first, split
        self.activation = GATED[activation]()
        self.scalar_count = 1 + self.activation.scalar_count
        c = matrix(c_dtype, row_contiguous, "n/2")
        if ab12_dtype is None:
            self.tensors, self.stores = (c,), (StoreOp(c_dtype, row_contiguous),)
        else:
            self.tensors = (matrix(ab12_dtype, row_contiguous), c)
            self.stores = (*(StoreOp(ab12_dtype, row_contiguous, 0, half) for half in ((0, 1) if split else (None,))), StoreOp(c_dtype, row_contiguous, 1))
        self.stores_per_visit = 1 if ab12_dtype is None else 3
        if amax_rank:
            self.parts = (Amax(len(self.tensors)),)
            self.tensors = (*self.tensors, TensorSpec(Float32, (1,) * amax_rank))

    def visit(self, v) -> None:
        alpha, *scalars = v.scalars
        first, second = v.values
        for slab in v.values:
            slab.store(slab.load() * alpha)
        if self.stores_per_visit == 3:
            store_pair(v, self.split, first, second)
        gate, up = (first, second) if self.gate_first else (second, first)
        result = cute.make_rmem_tensor((SLAB_VALUES,), Float32)
        for r in range(SLAB_VALUES):
            result[r] = self.activation.forward(gate[r], up[r], scalars)
        if self.parts:
            v.parts[0].add(result)
        v.store(len(self.stores) - 1, result, v.position)


class GatedGradient(Epilogue):
    """G = alpha · S is the gradient of a gated pair's result; dAB12 its gradient with regard to the pre-activation AB12, in AB12's order, and C the result, recomputed.

    ``c_dtype``: None where C is not wanted; the others as in ``Gated``. Scalars: alpha, then the activation's. Tensors: (AB12 (M, 2 N, L) to read, dAB12 (M, 2 N, L), C (M, N, L) where wanted).
    """

    def __init__(self, ab12_dtype, d_dtype, c_dtype, row_contiguous: bool, gate_first: bool, split: bool, activation: str = "swiglu"):
        self.gate_first, self.split = gate_first, split
        self.activation = GATED[activation]()
        self.scalar_count = 1 + self.activation.scalar_count
        halves = (0, 1) if split else (None,)
        self.tensors = (matrix(ab12_dtype, row_contiguous, "2n"), matrix(d_dtype, row_contiguous, "2n"))
        self.loads = tuple(LoadOp(ab12_dtype, row_contiguous, 0, half) for half in halves)
        self.stores = tuple(StoreOp(d_dtype, row_contiguous, 1, half) for half in halves)
        self.stores_per_visit = 2
        self.keeps_c = c_dtype is not None
        if self.keeps_c:
            self.tensors = (*self.tensors, matrix(c_dtype, row_contiguous))
            self.stores = (*self.stores, StoreOp(c_dtype, row_contiguous, 2))
            self.stores_per_visit = 3

    def requests(self, position):
        return ((0, position), (1, position)) if self.split else ((0, 2 * position), (0, 2 * position + 1))

    def visit(self, v) -> None:
        alpha, *scalars = v.scalars
        (slab,) = v.values
        first, second = v.load(), v.load()
        gate, up = (first, second) if self.gate_first else (second, first)
        for r in range(SLAB_VALUES):
            gate[r], up[r], slab[r] = self.activation.backward(gate[r], up[r], slab[r] * alpha, scalars)
        store_pair(v, self.split, first, second)
        if self.keeps_c:
            v.store(len(self.stores) - 1, slab, v.position)


def store_pair(v, split: bool, first: cute.Tensor, second: cute.Tensor) -> None:
    """Store a pair's two slabs: to two halves (outputs 0 and 1), or to neighbouring slabs of output 0."""
    if split:
        v.store(0, first, v.position)
        v.store(1, second, v.position)
    else:
        v.store(0, first, 2 * v.position)
        v.store(0, second, 2 * v.position + 1)
