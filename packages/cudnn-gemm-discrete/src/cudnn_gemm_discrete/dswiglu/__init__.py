"""The gradient of grouped GEMM + gated activation with weights by pointers."""

from __future__ import annotations

from cudnn_gemm_discrete.dswiglu.api import (
    DiscreteGroupedGemmDswiglu,
    DiscreteGroupedGemmDswigluSm100,
    discrete_grouped_gemm_dswiglu_wrapper,
    discrete_grouped_gemm_dswiglu_wrapper_sm100,
)

__all__ = [
    "DiscreteGroupedGemmDswiglu",
    "DiscreteGroupedGemmDswigluSm100",
    "discrete_grouped_gemm_dswiglu_wrapper",
    "discrete_grouped_gemm_dswiglu_wrapper_sm100",
]
