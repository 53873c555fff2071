"""The torch operators `cudnn::gemm_proj_rope_mxfp8_bf16_in`, `cudnn::gemm_proj_rope_mxfp8_mxfp8_in`, and both with `_out`."""

from __future__ import annotations

from cudnn.torch_operators import register
from cudnn_gemm_dense.proj_rope_mxfp8.api import BF16_CALLS, MXFP8_CALLS

bf16_in, bf16_in_out = register(BF16_CALLS)
mxfp8_in, mxfp8_in_out = register(MXFP8_CALLS)
