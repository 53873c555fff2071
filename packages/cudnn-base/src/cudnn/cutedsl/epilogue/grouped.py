"""Fusions of groups of rows: what is done to a mixture of experts' products.

Each group has a factor of its own, alpha[e]; rows have the weight of the routed token, prob[m]. Names of axes: M rows of all groups, N columns of S, L groups.
"""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float32, Int64

from cudnn.cutedsl import layout
from cudnn.cutedsl.epilogue.activation import GATED
from cudnn.cutedsl.epilogue.alternating import PAIRS, to_pairs, to_slab
from cudnn.cutedsl.epilogue.gated import store_pair
from cudnn.cutedsl.epilogue.groups import GroupColumnSum, GroupRowSum, GroupScalar
from cudnn.cutedsl.epilogue.op import SLAB_VALUES, Epilogue, LoadOp, StoreOp, TensorSpec, matrix
from cudnn.cutedsl.epilogue.parts import ColumnVector, RowVector
from cudnn.cutedsl.epilogue.pointers import PointerStoreOp
from cudnn.cutedsl.gemm.tensormap import MAP_WORDS

PROB = TensorSpec(Float32, ("m", 1, "l"))
FACTOR = TensorSpec(Float32, ("l",))


class _Parts:
    """Tensors and parts of a fusion as they are listed, with what is left out remembered as None."""

    def __init__(self, tensors):
        self.tensors, self.parts = list(tensors), []

    def add(self, present: bool, part, *specs: TensorSpec) -> int | None:
        """Index of a part made by ``part(index of its first tensor)``, whose tensors are ``specs``; None where it is not ``present``."""
        if not present:
            return None
        self.parts.append(part(len(self.tensors)))
        self.tensors += specs
        return len(self.parts) - 1


class GroupedProduct(Epilogue):
    """x = alpha[e] · S + addend, or with a bias x = alpha[e] · S + addend + prob[m] · bias[n, e]; C = x; D = prob[m] · x, or with a bias D = x.

    ``c_dtype``, ``bias_dtype``, ``addend_dtype``: None where there is none; ``alpha``, ``prob``: whether there are factors, 1 otherwise. The addend may be D itself. Tensors: D (M, N), C (M, N) where kept, addend (M, N),
    alpha (L,), prob (M,) and bias (N, L), as far as they are there. No scalars.
    """

    def __init__(self, d_dtype, c_dtype=None, bias_dtype=None, addend_dtype=None, alpha: bool = True, prob: bool = True):
        outputs = [dtype for dtype in (d_dtype, c_dtype) if dtype is not None]
        self.stores = tuple(StoreOp(dtype, True, i) for i, dtype in enumerate(outputs))
        self.stores_per_visit = len(outputs)
        found = _Parts(matrix(dtype, True) for dtype in outputs)
        if addend_dtype is not None:
            self.loads = (LoadOp(addend_dtype, True, len(outputs)),)
            found.tensors.append(matrix(addend_dtype, True))
        self.alpha = found.add(alpha, GroupScalar, FACTOR)
        self.prob = found.add(prob, RowVector, PROB)
        self.bias = found.add(bias_dtype is not None, ColumnVector, TensorSpec(bias_dtype, ("n", "l")))
        self.tensors, self.parts = tuple(found.tensors), tuple(found.parts)

    def requests(self, position):
        return ((0, position),) if self.loads else ()

    def visit(self, v) -> None:
        (slab,) = v.values
        if self.alpha is not None:
            slab.store(slab.load() * v.parts[self.alpha].value)
        if self.loads:
            slab.store(slab.load() + v.load().load())
        prob = None if self.prob is None else v.parts[self.prob]
        if self.bias is not None:
            bias = v.parts[self.bias].of(v)
            for r in range(SLAB_VALUES):
                more = bias[r % 2, r // 4]
                slab[r] = slab[r] + (more if prob is None else prob.at(v, r) * more)
        if len(self.stores) > 1:
            v.store(1, slab, v.position)
        if self.bias is None and prob is not None:
            for r in range(SLAB_VALUES):
                slab[r] = slab[r] * prob.at(v, r)
        v.store(0, slab, v.position)


class GroupedGated(Epilogue):
    """x = alpha[e] · S + bias[n, e]; C = x; D = prob[m] · act(gate, up) of the pair's gate and up, taken of x before it is rounded.

    ``activation``: a name in ``GATED``. ``gate_first``, ``split``: as in ``Gated``, with C in the place of AB12. ``alternating``: gate and up are neighbouring columns instead, gate first. ``c_dtype``, ``bias_dtype``:
    None where there is none. Scalars: the activation's. Tensors: D (M, N/2), C (M, N) where kept, alpha (L,) where ``alpha``, prob (M,) where ``prob``, bias (N, L) where there is one.
    """

    slabs = 2

    def __init__(
        self, d_dtype, c_dtype, bias_dtype, activation: str, gate_first: bool, split: bool, prob: bool = True, alpha: bool = True, alternating: bool = False
    ):
        self.gate_first, self.split, self.alternating = gate_first, split, alternating
        self.activation = GATED[activation]()
        self.scalar_count = self.activation.scalar_count
        found = _Parts([matrix(d_dtype, True, "n/2")])
        stores = [StoreOp(d_dtype, True, 0)]
        if c_dtype is not None:
            stores = [*(StoreOp(c_dtype, True, 1, half) for half in ((0, 1) if split else (None,))), *stores]
            found.tensors.append(matrix(c_dtype, True))
        self.keeps_c = c_dtype is not None
        self.stores_per_visit = 3 if self.keeps_c else 1
        self.alpha = found.add(alpha, GroupScalar, FACTOR)
        self.prob = found.add(prob, RowVector, PROB)
        self.bias = found.add(bias_dtype is not None, lambda tensor: ColumnVector(tensor, halves=split), TensorSpec(bias_dtype, ("n", "l")))
        self.tensors, self.stores, self.parts = tuple(found.tensors), tuple(stores), tuple(found.parts)

    def visit(self, v) -> None:
        for i, slab in enumerate(v.values):
            if self.alpha is not None:
                slab.store(slab.load() * v.parts[self.alpha].value)
            if self.bias is not None:
                bias = v.parts[self.bias].of(v, i)
                for r in range(SLAB_VALUES):
                    slab[r] = slab[r] + bias[r % 2, r // 4]
        first, second = v.values
        if self.keeps_c:
            store_pair(v, self.split, first, second)
        result = cute.make_rmem_tensor((SLAB_VALUES,), Float32)
        if self.alternating:
            values = cute.make_rmem_tensor((PAIRS,), Float32)
            for p in range(PAIRS):
                slab, r = v.values[p // 8], 2 * (p % 8)
                values[p] = self._activated(v, slab[r], slab[r + 1], r)
            to_slab(values, result)
        else:
            gate, up = (first, second) if self.gate_first else (second, first)
            for r in range(SLAB_VALUES):
                result[r] = self._activated(v, gate[r], up[r], r)
        v.store(len(self.stores) - 1, result, v.position)

    def _activated(self, v, gate: Float32, up: Float32, register: int) -> Float32:
        """What a pair in the row of ``register`` gives."""
        y = self.activation.forward(gate, up, v.scalars)
        return y if self.prob is None else y * v.parts[self.prob].at(v, register)


class GroupedGatedGradient(Epilogue):
    """G = alpha[e]² · S is the gradient of D / prob of ``GroupedGated``; D the gradient of its C, in C's order.

    D = prob[m] · G times the derivatives of act at the gate and up of beta[e] · C (of C itself where not ``scaled_c``); dprob[m] += sum over n of G · act; dbias[n, e] += sum over the group's rows
    of D before it is rounded; activation = prob[m] · act.

    ``round_dtype``: what G is rounded to first, None where it is not. ``activation_dtype``, ``dbias_dtype``: None where there is none. ``partials``: whether dprob is summed in a fixed order. ``gate_first``,
    ``split``, ``alternating``: as in ``GroupedGated``. ``alpha``: whether there are alpha and beta, 1 otherwise; ``prob``: whether there are prob and dprob. Scalars: the activation's. Tensors: C (M, 2N) to read,
    D (M, 2N), activation (M, N) where wanted, alpha and beta (L,), prob and dprob (M,), dbias (L, 2N, 1) where wanted; then, as scratch memory in float32, where ``partials`` (tiles along N, M), and where there is
    dbias (M // 64 + L, 2N).
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
        prob: bool = True,
        alpha: bool = True,
        alternating: bool = False,
    ):
        self.gate_first, self.split, self.alternating, self.round_dtype, self.scaled_c = gate_first, split, alternating, round_dtype, scaled_c
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
        found = _Parts(tensors)
        self.alpha = found.add(alpha, GroupScalar, FACTOR)
        self.beta = found.add(alpha, GroupScalar, FACTOR)
        self.prob = found.add(prob, RowVector, PROB)
        # Scratch memory comes behind the tensors of the caller.
        behind = len(found.tensors) + int(prob) + int(dbias_dtype is not None)
        partials = partials and prob
        self.dprob = found.add(prob, lambda tensor: GroupRowSum(tensor, behind if partials else None), PROB)
        self.dbias = found.add(
            dbias_dtype is not None,
            lambda tensor: GroupColumnSum(tensor, behind + int(partials), slabs=2, halves=split),
            TensorSpec(dbias_dtype, ("l", "2n", 1)),
        )
        if partials:
            found.tensors.append(TensorSpec(Float32, ("tiles", "m", "l"), 1))
        if dbias_dtype is not None:
            found.tensors.append(TensorSpec(Float32, ("blocks", "2n"), 1))
        self.tensors, self.stores, self.parts = tuple(found.tensors), tuple(stores), tuple(found.parts)

    def requests(self, position):
        return ((0, position), (1, position)) if self.split else ((0, 2 * position), (0, 2 * position + 1))

    def visit(self, v) -> None:
        (slab,) = v.values
        if self.alpha is not None:
            alpha = v.parts[self.alpha].value
            slab.store(slab.load() * (alpha * alpha))
        if self.round_dtype is not None:
            slab.store(slab.load().to(self.round_dtype).to(Float32))
        first, second = v.load(), v.load()
        if self.scaled_c and self.beta is not None:
            beta = v.parts[self.beta].value
            first.store(first.load() * beta)
            second.store(second.load() * beta)
        if self.alternating:
            values = cute.make_rmem_tensor((PAIRS,), Float32)
            to_pairs(slab, values)
            for p in range(PAIRS):
                loaded, r = (first, second)[p // 8], 2 * (p % 8)
                loaded[r], loaded[r + 1], values[p] = self._gradient(v, loaded[r], loaded[r + 1], values[p], r)
            if self.keeps_activation:
                to_slab(values, slab)
        else:
            gate, up = (first, second) if self.gate_first else (second, first)
            for r in range(SLAB_VALUES):
                gate[r], up[r], slab[r] = self._gradient(v, gate[r], up[r], slab[r], r)
        if self.dbias is not None:
            v.parts[self.dbias].add(v, 0, first)
            v.parts[self.dbias].add(v, 1, second)
        store_pair(v, self.split, first, second)
        if self.keeps_activation:
            v.store(len(self.stores) - 1, slab, v.position)

    def _gradient(self, v, gate: Float32, up: Float32, grad: Float32, register: int) -> tuple[Float32, Float32, Float32]:
        """(gradient of the gate, gradient of up, prob · act) of a pair in the row of ``register``, whose share of dprob is added."""
        if self.prob is None:
            return self.activation.backward(gate, up, grad, v.scalars)
        weight = v.parts[self.prob].at(v, register)
        d_gate, d_up, activated = self.activation.backward(gate, up, grad * weight, v.scalars)
        v.parts[self.dprob].add(v, register, grad * activated)
        return d_gate, d_up, activated * weight


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
