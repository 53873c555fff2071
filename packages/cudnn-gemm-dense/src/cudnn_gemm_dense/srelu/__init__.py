"""GEMM + squared ReLU: C = alpha * A Bᵀ and D = prob * relu(alpha * A Bᵀ)²."""

from __future__ import annotations

from cudnn_gemm_dense.srelu.api import GemmSrelu, GemmSreluSm100, gemm_srelu_wrapper, gemm_srelu_wrapper_sm100

__all__ = ["GemmSrelu", "GemmSreluSm100", "gemm_srelu_wrapper", "gemm_srelu_wrapper_sm100"]
