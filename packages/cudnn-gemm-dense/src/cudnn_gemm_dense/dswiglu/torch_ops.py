"""The torch operators `cudnn::gemm_dswiglu` and `cudnn::gemm_dswiglu_out`."""

from __future__ import annotations

from cudnn.torch_operators import register
from cudnn_gemm_dense.dswiglu.api import CALLS

gemm_dswiglu, gemm_dswiglu_out = register(CALLS)
