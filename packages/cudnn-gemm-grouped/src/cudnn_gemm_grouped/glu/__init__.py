"""Grouped GEMM + gated activation: C = alpha * A Bᵀ + bias and D = prob * act(gate, up), expert by expert."""

from __future__ import annotations

from cudnn_gemm_grouped.glu.api import GroupedGemmGlu, GroupedGemmGluSm100, grouped_gemm_glu_wrapper, grouped_gemm_glu_wrapper_sm100

__all__ = ["GroupedGemmGlu", "GroupedGemmGluSm100", "grouped_gemm_glu_wrapper", "grouped_gemm_glu_wrapper_sm100"]
