"""The torch operators `cudnn::gemm_srelu` and `cudnn::gemm_srelu_out`."""

from __future__ import annotations

from cudnn.torch_operators import register
from cudnn_gemm_dense.srelu.api import CALLS

gemm_srelu, gemm_srelu_out = register(CALLS)
