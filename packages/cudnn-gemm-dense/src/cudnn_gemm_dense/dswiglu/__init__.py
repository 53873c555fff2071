"""GEMM + gradient of SwiGLU."""

from __future__ import annotations

from cudnn_gemm_dense.dswiglu.api import GemmDswiglu, gemm_dswiglu_wrapper

__all__ = ["GemmDswiglu", "gemm_dswiglu_wrapper"]
