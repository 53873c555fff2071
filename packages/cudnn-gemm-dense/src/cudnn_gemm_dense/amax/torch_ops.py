"""GEMM + amax as the torch operators `cudnn::gemm_amax` and `cudnn::gemm_amax_out`."""

from __future__ import annotations

from cudnn.torch_operators import register
from cudnn_gemm_dense.amax.api import CALLS

gemm_amax, gemm_amax_out = register(CALLS)
