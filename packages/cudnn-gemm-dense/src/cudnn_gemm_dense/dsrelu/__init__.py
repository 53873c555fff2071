"""GEMM + gradient of squared ReLU."""

from __future__ import annotations

from cudnn_gemm_dense.dsrelu.api import GemmDsrelu, GemmDsreluSm100, gemm_dsrelu_wrapper, gemm_dsrelu_wrapper_sm100

__all__ = ["GemmDsrelu", "GemmDsreluSm100", "gemm_dsrelu_wrapper", "gemm_dsrelu_wrapper_sm100"]
