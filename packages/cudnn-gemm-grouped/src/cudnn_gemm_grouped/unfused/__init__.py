"""Grouped GEMM: D = prob * alpha * A Bᵀ, expert by expert."""

from __future__ import annotations

from cudnn_gemm_grouped.unfused.api import GroupedGemm, GroupedGemmSm100, grouped_gemm_wrapper, grouped_gemm_wrapper_sm100

__all__ = ["GroupedGemm", "GroupedGemmSm100", "grouped_gemm_wrapper", "grouped_gemm_wrapper_sm100"]
