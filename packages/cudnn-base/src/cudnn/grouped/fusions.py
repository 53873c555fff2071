"""From the options of a grouped operation to its epilogue. Called when a kernel is built."""

from __future__ import annotations

from typing import Any

from cudnn.cutedsl.epilogue.grouped import GroupedGated, GroupedGatedGradient, GroupedProduct, WeightGradient
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.datatypes import cutlass_dtype
from cudnn.grouped.options import HALVES, DgluOptions, GluOptions, ProductOptions, WgradOptions


def _dtype(name: str | None) -> Any:
    return None if name is None else cutlass_dtype(name)


def product(problem: GemmProblem, options: ProductOptions) -> GroupedProduct:
    return GroupedProduct(
        _dtype(options.d_dtype), _dtype(options.c_dtype), _dtype(options.bias_dtype), _dtype(options.addend_dtype), options.alpha, options.prob
    )


def glu(problem: GemmProblem, options: GluOptions) -> GroupedGated:
    """In every layout the gate comes first: the published order of the interleave, that of whole halves, and that of columns that take turns."""
    return GroupedGated(
        _dtype(options.d_dtype),
        _dtype(options.c_dtype),
        _dtype(options.bias_dtype),
        options.activation,
        gate_first=True,
        split=options.glu_layout in HALVES,
        prob=options.prob,
        alpha=options.alpha,
        alternating=options.glu_layout == "alternating",
    )


def dglu(problem: GemmProblem, options: DgluOptions) -> GroupedGatedGradient:
    """As ``glu``."""
    return GroupedGatedGradient(
        _dtype(options.c_dtype),
        _dtype(options.d_dtype),
        options.activation,
        gate_first=True,
        split=options.glu_layout in HALVES,
        activation_dtype=_dtype(options.activation_dtype),
        dbias_dtype=_dtype(options.dbias_dtype),
        round_dtype=_dtype(options.round_dtype),
        scaled_c=options.scaled_c,
        partials=options.partials,
        prob=options.prob,
        alpha=options.alpha,
        alternating=options.glu_layout == "alternating",
    )


def wgrad(problem: GemmProblem, options: WgradOptions) -> WeightGradient:
    return WeightGradient(_dtype(options.d_dtype), options.adds, options.pointers)
