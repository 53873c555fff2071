"""The product itself, with what is commonly done to it at once."""

from __future__ import annotations

from cudnn.cutedsl.epilogue.op import SLAB_COLUMNS, Epilogue, LoadOp, StoreOp, TensorSpec, matrix
from cudnn.cutedsl.epilogue.parts import Amax, ColumnVector


class Plain(Epilogue):
    """D = alpha · S + bias + addend, and amax = max(amax, max |D before rounding|).

    ``bias_dtype``, ``addend_dtype``: dtype of a vector (N, L) and of a matrix laid out as D; None where there is none. ``amax``: whether the largest magnitude is kept, without a bias.
    Scalars: (alpha,). Tensors: D (M, N, L), then bias (N, L), addend (M, N, L), amax (1,), as far as they are there.
    """

    scalar_count = 1

    def __init__(self, d_dtype, row_contiguous: bool, bias_dtype=None, addend_dtype=None, amax_dtype=None):
        if bias_dtype is not None and amax_dtype is not None:
            raise ValueError("Plain: a bias and amax exclude each other; rows that do not exist would count with the bias alone")
        tensors = [matrix(d_dtype, row_contiguous)]
        self.stores = (StoreOp(d_dtype, row_contiguous),)
        self.bias = self.amax = None
        parts = []
        if bias_dtype is not None:
            self.bias = len(parts)
            parts.append(ColumnVector(len(tensors)))
            tensors.append(TensorSpec(bias_dtype, ("n", "l")))
        if addend_dtype is not None:
            self.loads = (LoadOp(addend_dtype, row_contiguous, len(tensors)),)
            tensors.append(matrix(addend_dtype, row_contiguous))
        if amax_dtype is not None:
            self.amax = len(parts)
            parts.append(Amax(len(tensors)))
            tensors.append(TensorSpec(amax_dtype, (1,)))
        self.tensors, self.parts = tuple(tensors), tuple(parts)

    def requests(self, position):
        return ((0, position),) if self.loads else ()

    def visit(self, v) -> None:
        (slab,) = v.values
        slab.store(slab.load() * v.scalars[0])
        if self.bias is not None:
            bias = v.parts[self.bias].of(v)
            for j in range(SLAB_COLUMNS // 8):
                for r in range(4):
                    slab[4 * j + r] = slab[4 * j + r] + bias[r % 2, j]
        if self.loads:
            slab.store(slab.load() + v.load().load())
        if self.amax is not None:
            v.parts[self.amax].add(slab)
        v.store(0, slab, v.position)
