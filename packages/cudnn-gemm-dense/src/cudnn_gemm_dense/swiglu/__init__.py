"""GEMM + SwiGLU: AB12 = alpha * A Bᵀ and C = up * gate * sigmoid(gate)."""

from __future__ import annotations

from cudnn_gemm_dense.swiglu.api import GemmSwiglu, GemmSwigluSm100, gemm_swiglu_wrapper, gemm_swiglu_wrapper_sm100

__all__ = ["GemmSwiglu", "GemmSwigluSm100", "gemm_swiglu_wrapper", "gemm_swiglu_wrapper_sm100"]
