"""Plain GEMM: D = alpha * A Bᵀ + bias."""

from __future__ import annotations

from cudnn_gemm_dense.gemm.api import Gemm, gemm_wrapper

__all__ = ["Gemm", "gemm_wrapper"]
