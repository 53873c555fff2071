"""GEMM + amax: C = A Bᵀ and the largest magnitude in it."""

from __future__ import annotations

from cudnn_gemm_dense.amax.api import GemmAmax, GemmAmaxSm100, gemm_amax_wrapper, gemm_amax_wrapper_sm100

__all__ = ["GemmAmax", "GemmAmaxSm100", "gemm_amax_wrapper", "gemm_amax_wrapper_sm100"]
