"""The gradient of grouped GEMM + gated activation."""

from __future__ import annotations

from cudnn_gemm_grouped.dglu.api import GroupedGemmDglu, GroupedGemmDgluSm100, grouped_gemm_dglu_wrapper, grouped_gemm_dglu_wrapper_sm100

__all__ = ["GroupedGemmDglu", "GroupedGemmDgluSm100", "grouped_gemm_dglu_wrapper", "grouped_gemm_dglu_wrapper_sm100"]
