"""Projection + RoPE + MXFP8: heads of 192 features out of x Wᵀ, the last 64 of each rotated, quantised along features and along tokens."""

from __future__ import annotations

from cudnn_gemm_dense.proj_rope_mxfp8.api import (
    GemmProjRopeMxfp8Bf16In,
    GemmProjRopeMxfp8Bf16InSm100,
    GemmProjRopeMxfp8Mxfp8In,
    GemmProjRopeMxfp8Mxfp8InSm100,
    gemm_proj_rope_mxfp8_reference,
    gemm_proj_rope_mxfp8_wrapper,
    gemm_proj_rope_mxfp8_wrapper_sm100,
)

__all__ = [
    "GemmProjRopeMxfp8Bf16In",
    "GemmProjRopeMxfp8Bf16InSm100",
    "GemmProjRopeMxfp8Mxfp8In",
    "GemmProjRopeMxfp8Mxfp8InSm100",
    "gemm_proj_rope_mxfp8_reference",
    "gemm_proj_rope_mxfp8_wrapper",
    "gemm_proj_rope_mxfp8_wrapper_sm100",
]
