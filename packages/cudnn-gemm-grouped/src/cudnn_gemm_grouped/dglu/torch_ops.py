"""The torch operator `cudnn::grouped_gemm_dglu`."""

from __future__ import annotations

from cudnn.grouped.torch_operator import register
from cudnn_gemm_grouped.dglu.api import CALLS

grouped_gemm_dglu = register(CALLS)
