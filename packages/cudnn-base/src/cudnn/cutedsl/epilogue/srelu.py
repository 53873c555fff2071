"""Squared ReLU with a factor per row, and its gradient."""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float32

from cudnn.cutedsl.epilogue.activation import relu
from cudnn.cutedsl.epilogue.op import SLAB_VALUES, Epilogue, LoadOp, StoreOp, TensorSpec, matrix
from cudnn.cutedsl.epilogue.parts import Amax, RowSum, RowVector


class Srelu(Epilogue):
    """s = alpha · S; C = s; D = prob[m] · relu(s)²; amax = max(amax, max |D before rounding|).

    ``c_dtype``: None where s is not kept; ``prob``, ``amax``: whether there is such a tensor. Scalars: (alpha,). Tensors: D (M, N, L), then C (M, N, L), prob (M, 1, L), amax (1,), as far
    as they are there, prob and amax in float32.
    """

    scalar_count = 1

    def __init__(self, d_dtype, c_dtype, row_contiguous: bool, prob: bool = True, amax: bool = False):
        tensors = [matrix(d_dtype, row_contiguous)]
        stores = [StoreOp(d_dtype, row_contiguous)]
        parts = []
        self.prob = self.amax = None
        if c_dtype is not None:
            stores.append(StoreOp(c_dtype, row_contiguous, len(tensors)))
            tensors.append(matrix(c_dtype, row_contiguous))
        if prob:
            self.prob = len(parts)
            parts.append(RowVector(len(tensors)))
            tensors.append(TensorSpec(Float32, ("m", 1, "l")))
        if amax:
            self.amax = len(parts)
            parts.append(Amax(len(tensors)))
            tensors.append(TensorSpec(Float32, (1,)))
        self.tensors, self.stores, self.parts = tuple(tensors), tuple(stores), tuple(parts)
        self.stores_per_visit = len(stores)

    def visit(self, v) -> None:
        (slab,) = v.values
        slab.store(slab.load() * v.scalars[0])
        if len(self.stores) > 1:
            v.store(1, slab, v.position)
        for r in range(SLAB_VALUES):
            positive = relu(slab[r])
            slab[r] = positive * positive if self.prob is None else positive * positive * v.parts[self.prob].at(v, r)
        if self.amax is not None:
            v.parts[self.amax].add(slab)
        v.store(0, slab, v.position)


class Dsrelu(Epilogue):
    """g = alpha · S; D = 2 relu(g) · C · prob[m]; dprob[m] += sum over n of relu(g)² · C; amax = max(amax, max |D before rounding|).

    Scalars: (alpha,). Tensors: C (M, N, L) to read, D (M, N, L), prob and dprob (M, 1, L); where ``deterministic`` partial sums (tiles along N, M, L); where ``amax`` (1,). All but C and D in float32.
    """

    scalar_count = 1

    def __init__(self, c_dtype, d_dtype, row_contiguous: bool, deterministic: bool, amax: bool = False):
        vector = TensorSpec(Float32, ("m", 1, "l"))
        tensors = [matrix(c_dtype, row_contiguous), matrix(d_dtype, row_contiguous), vector, vector]
        self.loads = (LoadOp(c_dtype, row_contiguous, 0),)
        self.stores = (StoreOp(d_dtype, row_contiguous, 1),)
        partials = None
        if deterministic:
            partials = len(tensors)
            tensors.append(TensorSpec(Float32, ("tiles", "m", "l"), 1))
        parts = [RowVector(2), RowSum(3, partials)]
        if amax:
            parts.append(Amax(len(tensors)))
            tensors.append(TensorSpec(Float32, (1,)))
        self.tensors, self.parts = tuple(tensors), tuple(parts)

    def requests(self, position):
        return ((0, position),)

    def visit(self, v) -> None:
        (slab,) = v.values
        prob, dprob = v.parts[:2]
        c = v.load()
        result = cute.make_rmem_tensor((SLAB_VALUES,), Float32)
        for r in range(SLAB_VALUES):
            positive = relu(slab[r] * v.scalars[0])
            weighted = positive * c[r]
            dprob.add(v, r, positive * weighted)
            result[r] = Float32(2.0) * weighted * prob.at(v, r)
        if len(v.parts) > 2:
            v.parts[2].add(result)
        v.store(0, result, v.position)
