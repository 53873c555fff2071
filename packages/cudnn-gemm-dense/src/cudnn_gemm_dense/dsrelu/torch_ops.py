"""The torch operators `cudnn::gemm_dsrelu` and `cudnn::gemm_dsrelu_out`."""

from __future__ import annotations

from cudnn.torch_operators import register
from cudnn_gemm_dense.dsrelu.api import CALLS

gemm_dsrelu, gemm_dsrelu_out = register(CALLS)
