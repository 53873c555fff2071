"""Plain GEMM as the torch operators `cudnn::gemm` and `cudnn::gemm_out`."""

from __future__ import annotations

from cudnn.torch_operators import register
from cudnn_gemm_dense.gemm.api import CALLS

gemm, gemm_out = register(CALLS)
