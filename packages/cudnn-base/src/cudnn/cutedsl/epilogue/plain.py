"""The product itself, with what is commonly done to it at once."""

from __future__ import annotations

from cutlass import Float32, Uint8

from cudnn.cutedsl.epilogue.op import SLAB_COLUMNS, Epilogue, LoadOp, StoreOp, TensorSpec, matrix
from cudnn.cutedsl.epilogue.parts import Amax, ColumnVector, RowVector
from cudnn.cutedsl.epilogue.quantized import Fp4StoreOp


class Plain(Epilogue):
    """D = alpha · S + bias + addend, and amax = max(amax, max |D before rounding|).

    ``addend_dtype``, ``bias_dtype``: dtype of a matrix laid out as D, and of a vector along N, or along M with ``bias_along_m``; None where there is none. ``amax_rank``: rank of the tensor of one float32 that keeps the largest
    magnitude, 0 where there is none; not with a bias. A 4-bit D is (M, N/2, L) bytes. Scalars: (alpha,). Tensors: D (M, N, L), then addend (M, N, L), bias (N,) or where ``bias_rank`` is 2 (N, L), M for N along M, amax, as far as they are there.
    """

    scalar_count = 1

    def __init__(self, d_dtype, row_contiguous: bool, addend_dtype=None, bias_dtype=None, bias_rank: int = 1, amax_rank: int = 0, bias_along_m: bool = False):
        if bias_dtype is not None and amax_rank:
            raise ValueError("Plain: a bias and amax exclude each other; rows that do not exist would count with the bias alone")
        if d_dtype.width == 4:
            if not row_contiguous:
                raise ValueError("Plain: 4-bit outputs are contiguous along a row")
            tensors, self.stores = [matrix(Uint8, True, "n/2")], (Fp4StoreOp(),)
        else:
            tensors, self.stores = [matrix(d_dtype, row_contiguous)], (StoreOp(d_dtype, row_contiguous),)
        self.bias = self.amax = None
        self.bias_along_m = bias_along_m
        parts = []
        if addend_dtype is not None:
            self.loads = (LoadOp(addend_dtype, row_contiguous, len(tensors)),)
            tensors.append(matrix(addend_dtype, row_contiguous))
        if bias_dtype is not None:
            self.bias = len(parts)
            parts.append((RowVector if bias_along_m else ColumnVector)(len(tensors)))
            tensors.append(TensorSpec(bias_dtype, ("m" if bias_along_m else "n", "l")[:bias_rank]))
        if amax_rank:
            self.amax = len(parts)
            parts.append(Amax(len(tensors)))
            tensors.append(TensorSpec(Float32, (1,) * amax_rank))
        self.tensors, self.parts = tuple(tensors), tuple(parts)

    def requests(self, position):
        return ((0, position),) if self.loads else ()

    def visit(self, v) -> None:
        (slab,) = v.values
        slab.store(slab.load() * v.scalars[0])
        if self.bias is not None and self.bias_along_m:
            for r in range(4 * (SLAB_COLUMNS // 8)):
                slab[r] = slab[r] + v.parts[self.bias].at(v, r)
        elif self.bias is not None:
            bias = v.parts[self.bias].of(v)
            for j in range(SLAB_COLUMNS // 8):
                for r in range(4):
                    slab[4 * j + r] = slab[4 * j + r] + bias[r % 2, j]
        if self.loads:
            slab.store(slab.load() + v.load().load())
        if self.amax is not None:
            v.parts[self.amax].add(slab)
        v.store(0, slab, v.position)
