"""The torch operator `cudnn::grouped_gemm_wgrad`."""

from __future__ import annotations

from cudnn.grouped.torch_operator import register
from cudnn_gemm_grouped.wgrad.api import CALLS

grouped_gemm_wgrad = register(CALLS)
