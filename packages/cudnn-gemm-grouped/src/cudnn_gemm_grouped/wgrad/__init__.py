"""Weight gradients of grouped GEMMs: W[e] = A[:, group e] B[group e, :]."""

from __future__ import annotations

from cudnn_gemm_grouped.wgrad.api import (
    GroupedGemmWgrad,
    GroupedGemmWgradSm100,
    WGradInputOrder,
    get_grouped_gemm_wgrad_workspace_size,
    get_grouped_gemm_wgrad_workspace_size_sm100,
    grouped_gemm_wgrad_wrapper,
    grouped_gemm_wgrad_wrapper_sm100,
)

__all__ = [
    "GroupedGemmWgrad",
    "GroupedGemmWgradSm100",
    "WGradInputOrder",
    "get_grouped_gemm_wgrad_workspace_size",
    "get_grouped_gemm_wgrad_workspace_size_sm100",
    "grouped_gemm_wgrad_wrapper",
    "grouped_gemm_wgrad_wrapper_sm100",
]
