"""The torch operators `cudnn::gemm_swiglu` and `cudnn::gemm_swiglu_out`."""

from __future__ import annotations

from cudnn.torch_operators import register
from cudnn_gemm_dense.swiglu.api import CALLS

gemm_swiglu, gemm_swiglu_out = register(CALLS)
