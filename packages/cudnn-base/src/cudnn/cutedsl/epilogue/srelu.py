"""Squared ReLU with a factor per row, and its gradient."""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float32

from cudnn.cutedsl.epilogue.activation import relu
from cudnn.cutedsl.epilogue.op import SLAB_VALUES, Epilogue, LoadOp, StoreOp, TensorSpec, matrix
from cudnn.cutedsl.epilogue.parts import Amax, RowSum, RowVector
from cudnn.cutedsl.epilogue.quantized import BYTES, ONE_VALUE, BlockScales


class Srelu(Epilogue):
    """s = alpha · S; C = s; D = prob[m] · relu(s)²; amax = max(amax, max |D before rounding|).

    ``c_dtype``: None where s is not kept; ``prob``: whether there are factors; ``amax_rank``: as in ``Plain``; ``scales``: (columns of a block, limit, dtype) where D is quantised. Scalars: (alpha,). Tensors:
    C (M, N, L) where kept, D (M, N, L), prob (M, 1, L) and amax as far as they are there, both in float32; where D is quantised bytes of scale factors and c (1,).
    """

    scalar_count = 1

    def __init__(self, c_dtype, d_dtype, row_contiguous: bool, prob: bool = True, amax_rank: int = 0, scales: tuple[int, float, str] | None = None):
        kept = [dtype for dtype in (c_dtype, d_dtype) if dtype is not None]
        tensors = [matrix(dtype, row_contiguous) for dtype in kept]
        parts = []
        self.prob = self.amax = self.scales = None
        if prob:
            self.prob = len(parts)
            parts.append(RowVector(len(tensors)))
            tensors.append(TensorSpec(Float32, ("m", 1, "l")))
        if amax_rank:
            self.amax = len(parts)
            parts.append(Amax(len(tensors)))
            tensors.append(TensorSpec(Float32, (1,) * amax_rank))
        if scales is not None:
            self.scales = len(parts)
            parts.append(BlockScales(len(tensors), len(tensors) + 1, *scales))
            tensors += [BYTES, ONE_VALUE]
        self.stores = tuple(StoreOp(dtype, row_contiguous, i) for i, dtype in enumerate(kept))
        self.tensors, self.parts = tuple(tensors), tuple(parts)
        self.stores_per_visit = len(self.stores)

    def visit(self, v) -> None:
        (slab,) = v.values
        slab.store(slab.load() * v.scalars[0])
        if len(self.stores) > 1:
            v.store(0, slab, v.position)
        for r in range(SLAB_VALUES):
            positive = relu(slab[r])
            slab[r] = positive * positive if self.prob is None else positive * positive * v.parts[self.prob].at(v, r)
        if self.amax is not None:
            v.parts[self.amax].add(slab)
        if self.scales is not None:
            v.parts[self.scales].apply(v, slab)
        v.store(len(self.stores) - 1, slab, v.position)


class Dsrelu(Epilogue):
    """g = alpha · S; D = 2 relu(g) · C · prob[m]; dprob[m] += sum over n of relu(g)² · C; amax = max(amax, max |D before rounding|).

    Scalars: (alpha,). Tensors: C (M, N, L) to read, D (M, N, L), prob and dprob (M, 1, L); amax where ``amax_rank`` says; scale factors and c where ``scales`` says, as in ``Srelu``; where
    ``deterministic`` partial sums (tiles along N, M, L). All but C, D and scale factors in float32.
    """

    scalar_count = 1

    def __init__(self, c_dtype, d_dtype, row_contiguous: bool, deterministic: bool, amax_rank: int = 0, scales: tuple[int, float, str] | None = None):
        vector = TensorSpec(Float32, ("m", 1, "l"))
        tensors = [matrix(c_dtype, row_contiguous), matrix(d_dtype, row_contiguous), vector, vector]
        self.loads = (LoadOp(c_dtype, row_contiguous, 0),)
        self.stores = (StoreOp(d_dtype, row_contiguous, 1),)
        parts = [RowVector(2), RowSum(3)]
        self.amax = self.scales = None
        if amax_rank:
            self.amax = len(parts)
            parts.append(Amax(len(tensors)))
            tensors.append(TensorSpec(Float32, (1,) * amax_rank))
        if scales is not None:
            self.scales = len(parts)
            parts.append(BlockScales(len(tensors), len(tensors) + 1, *scales))
            tensors += [BYTES, ONE_VALUE]
        if deterministic:
            parts[1] = RowSum(3, len(tensors))
            tensors.append(TensorSpec(Float32, ("tiles", "m", "l"), 1))
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
        if self.amax is not None:
            v.parts[self.amax].add(result)
        if self.scales is not None:
            v.parts[self.scales].apply(v, result)
        v.store(0, result, v.position)
