"""Fusions of groups of rows: what is done to a mixture of experts' products.

Each group has a factor of its own, alpha[e]; rows have the weight of the routed token, prob[m]. Names of axes: M rows of all groups, N columns of S, L groups.
"""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float32, Int64

from cudnn.cutedsl import layout
from cudnn.cutedsl.epilogue.activation import GATED
from cudnn.cutedsl.epilogue.gated import store_pair
from cudnn.cutedsl.epilogue.groups import GroupColumnSum, GroupRowSum, GroupScalar
from cudnn.cutedsl.epilogue.op import SLAB_VALUES, Epilogue, LoadOp, StoreOp, TensorSpec, matrix
from cudnn.cutedsl.epilogue.parts import ColumnVector, RowVector
from cudnn.cutedsl.epilogue.pointers import PointerStoreOp
from cudnn.cutedsl.gemm.tensormap import MAP_WORDS

PROB = TensorSpec(Float32, ("m", 1, "l"))
FACTOR = TensorSpec(Float32, ("l",))


class GroupedProduct(Epilogue):
    """x = alpha[e] · S, or with a bias x = alpha[e] · S + prob[m] · bias[n, e]; C = x; D = prob[m] · x, or with a bias D = x.

    ``c_dtype``, ``bias_dtype``: None where there is none. Tensors: D (M, N), C (M, N) where kept, alpha (L,), prob (M,), bias (N, L) where there is one. No scalars.
    """

    def __init__(self, d_dtype, c_dtype=None, bias_dtype=None):
        outputs = [dtype for dtype in (d_dtype, c_dtype) if dtype is not None]
        self.stores = tuple(StoreOp(dtype, True, i) for i, dtype in enumerate(outputs))
        self.stores_per_visit = len(outputs)
        tensors = [*(matrix(dtype, True) for dtype in outputs), FACTOR, PROB]
        parts = [GroupScalar(len(outputs)), RowVector(len(outputs) + 1)]
        self.has_bias = bias_dtype is not None
        if self.has_bias:
            parts.append(ColumnVector(len(tensors)))
            tensors.append(TensorSpec(bias_dtype, ("n", "l")))
        self.tensors, self.parts = tuple(tensors), tuple(parts)

    def visit(self, v) -> None:
        (slab,) = v.values
        alpha, prob = v.parts[:2]
        slab.store(slab.load() * alpha.value)
        if self.has_bias:
            bias = v.parts[2].of(v)
            for r in range(SLAB_VALUES):
                slab[r] = slab[r] + prob.at(v, r) * bias[r % 2, r // 4]
        if len(self.stores) > 1:
            v.store(1, slab, v.position)
        if not self.has_bias:
            for r in range(SLAB_VALUES):
                slab[r] = slab[r] * prob.at(v, r)
        v.store(0, slab, v.position)


class GroupedGated(Epilogue):
    """x = alpha[e] · S + bias[n, e]; C = x; D = prob[m] · act(gate, up) of the pair's gate and up, taken of x before it is rounded.

    ``activation``: a name in ``GATED``. ``gate_first``, ``split``: as in ``Gated``, with C in the place of AB12. ``c_dtype``, ``bias_dtype``: None where there is none. Scalars: the activation's.
    Tensors: D (M, N/2), C (M, N) where kept, alpha (L,), prob (M,) where ``prob``, bias (N, L) where there is one.
    """

    slabs = 2

    def __init__(self, d_dtype, c_dtype, bias_dtype, activation: str, gate_first: bool, split: bool, prob: bool = True):
        self.gate_first, self.split = gate_first, split
        self.activation = GATED[activation]()
        self.scalar_count = self.activation.scalar_count
        tensors = [matrix(d_dtype, True, "n/2")]
        stores = [StoreOp(d_dtype, True, 0)]
        if c_dtype is not None:
            stores = [*(StoreOp(c_dtype, True, 1, half) for half in ((0, 1) if split else (None,))), *stores]
            tensors.append(matrix(c_dtype, True))
        self.keeps_c = c_dtype is not None
        self.stores_per_visit = 3 if self.keeps_c else 1
        parts = [GroupScalar(len(tensors))]
        tensors.append(FACTOR)
        self.prob = self.bias = None
        if prob:
            self.prob = len(parts)
            parts.append(RowVector(len(tensors)))
            tensors.append(PROB)
        if bias_dtype is not None:
            self.bias = len(parts)
            parts.append(ColumnVector(len(tensors), halves=split))
            tensors.append(TensorSpec(bias_dtype, ("n", "l")))
        self.tensors, self.stores, self.parts = tuple(tensors), tuple(stores), tuple(parts)

    def visit(self, v) -> None:
        alpha = v.parts[0]
        for i, slab in enumerate(v.values):
            slab.store(slab.load() * alpha.value)
            if self.bias is not None:
                bias = v.parts[self.bias].of(v, i)
                for r in range(SLAB_VALUES):
                    slab[r] = slab[r] + bias[r % 2, r // 4]
        first, second = v.values
        if self.keeps_c:
            store_pair(v, self.split, first, second)
        gate, up = (first, second) if self.gate_first else (second, first)
        result = cute.make_rmem_tensor((SLAB_VALUES,), Float32)
        for r in range(SLAB_VALUES):
            y = self.activation.forward(gate[r], up[r], v.scalars)
            result[r] = y if self.prob is None else y * v.parts[self.prob].at(v, r)
        v.store(len(self.stores) - 1, result, v.position)


class GroupedGatedGradient(Epilogue):
    """G = alpha[e]² · S is the gradient of D / prob of ``GroupedGated``; D the gradient of its C, in C's order.

    D = prob[m] · G times the derivatives of act at the gate and up of beta[e] · C (of C itself where not ``scaled_c``); dprob[m] += sum over n of G · act; dbias[n, e] += sum over the group's rows
    of D before it is rounded; activation = prob[m] · act.

    ``round_dtype``: what G is rounded to first, None where it is not. ``activation_dtype``, ``dbias_dtype``: None where there is none. ``partials``: whether dprob is summed in a fixed order. ``gate_first``,
    ``split``: as in ``GroupedGated``. Scalars: the activation's. Tensors: C (M, 2N) to read, D (M, 2N), activation (M, N) where wanted, alpha and beta (L,), prob and dprob (M,), dbias (L, 2N, 1) where wanted;
    then, as scratch memory in float32, where ``partials`` (tiles along N, M), and where there is dbias (M // 64 + L, 2N).
    """

    def __init__(
        self,
        c_dtype,
        d_dtype,
        activation: str,
        gate_first: bool,
        split: bool,
        activation_dtype=None,
        dbias_dtype=None,
        round_dtype=None,
        scaled_c: bool = True,
        partials: bool = False,
    ):
        self.gate_first, self.split, self.round_dtype, self.scaled_c = gate_first, split, round_dtype, scaled_c
        self.activation = GATED[activation]()
        self.scalar_count = self.activation.scalar_count
        halves = (0, 1) if split else (None,)
        tensors = [matrix(c_dtype, True, "2n"), matrix(d_dtype, True, "2n")]
        self.loads = tuple(LoadOp(c_dtype, True, 0, half) for half in halves)
        stores = [StoreOp(d_dtype, True, 1, half) for half in halves]
        self.keeps_activation = activation_dtype is not None
        if self.keeps_activation:
            stores.append(StoreOp(activation_dtype, True, len(tensors)))
            tensors.append(matrix(activation_dtype, True))
        self.stores_per_visit = 3 if self.keeps_activation else 2
        alpha = len(tensors)
        tensors += [FACTOR, FACTOR, PROB, PROB]
        dbias = len(tensors)
        if dbias_dtype is not None:
            tensors.append(TensorSpec(dbias_dtype, ("l", "2n", 1)))
        parts = [GroupScalar(alpha), GroupScalar(alpha + 1), RowVector(alpha + 2), GroupRowSum(alpha + 3, len(tensors) if partials else None)]
        if partials:
            tensors.append(TensorSpec(Float32, ("tiles", "m", "l"), 1))
        if dbias_dtype is not None:
            parts.append(GroupColumnSum(dbias, len(tensors), slabs=2, halves=split))
            tensors.append(TensorSpec(Float32, ("blocks", "2n"), 1))
        self.tensors, self.stores, self.parts = tuple(tensors), tuple(stores), tuple(parts)

    def requests(self, position):
        return ((0, position), (1, position)) if self.split else ((0, 2 * position), (0, 2 * position + 1))

    def visit(self, v) -> None:
        alpha, beta, prob, dprob = v.parts[:4]
        (slab,) = v.values
        slab.store(slab.load() * (alpha.value * alpha.value))
        if self.round_dtype is not None:
            slab.store(slab.load().to(self.round_dtype).to(Float32))
        first, second = v.load(), v.load()
        if self.scaled_c:
            first.store(first.load() * beta.value)
            second.store(second.load() * beta.value)
        gate, up = (first, second) if self.gate_first else (second, first)
        for r in range(SLAB_VALUES):
            weight = prob.at(v, r)
            grad = slab[r]
            gate[r], up[r], activated = self.activation.backward(gate[r], up[r], grad * weight, v.scalars)
            dprob.add(v, r, grad * activated)
            slab[r] = activated * weight
        if len(v.parts) > 4:
            v.parts[4].add(v, 0, first)
            v.parts[4].add(v, 1, second)
        store_pair(v, self.split, first, second)
        if self.keeps_activation:
            v.store(len(self.stores) - 1, slab, v.position)


class GroupStoreOp(StoreOp):
    """A matrix (M, N) for each group in a tensor (L, M, N)."""

    @cute.jit
    def view(self, tensors) -> cute.Tensor:
        return layout.permuted(tensors[self.tensor], (1, 2, 0))


class WeightGradient(Epilogue):
    """D[e] = S[e], or where ``adds`` D[e] += S[e], rounded to D's dtype and added in it. ``pointers``: whether each D[e] (M, N) is somewhere else.

    Tensors: D (L, M, N) with N contiguous; with ``pointers`` the addresses, int64 (L,), and room for tensor maps, int64 (L, 1, 16), instead. No scalars.
    """

    def __init__(self, d_dtype, adds: bool, pointers: bool):
        if pointers:
            self.tensors = (TensorSpec(Int64, ("l",)), TensorSpec(Int64, ("l", 1, MAP_WORDS), 2))
            self.stores = (PointerStoreOp(d_dtype, 0, 1, adds),)
        else:
            self.tensors = (TensorSpec(d_dtype, ("l", "m", "n"), 2),)
            self.stores = (GroupStoreOp(d_dtype, True, adds=adds),)

    def visit(self, v) -> None:
        (slab,) = v.values
        v.store(0, slab, v.position)
