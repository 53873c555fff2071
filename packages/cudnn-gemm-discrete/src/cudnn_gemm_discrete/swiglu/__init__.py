"""Grouped GEMM + gated activation with weights by pointers."""

from __future__ import annotations

from cudnn_gemm_discrete.swiglu.api import (
    DiscreteGroupedGemmSwiglu,
    DiscreteGroupedGemmSwigluSm100,
    discrete_grouped_gemm_swiglu_wrapper,
    discrete_grouped_gemm_swiglu_wrapper_sm100,
)

__all__ = [
    "DiscreteGroupedGemmSwiglu",
    "DiscreteGroupedGemmSwigluSm100",
    "discrete_grouped_gemm_swiglu_wrapper",
    "discrete_grouped_gemm_swiglu_wrapper_sm100",
]
