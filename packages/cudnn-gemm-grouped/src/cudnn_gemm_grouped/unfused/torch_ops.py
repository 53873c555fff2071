"""The torch operator `cudnn::grouped_gemm`."""

from __future__ import annotations

from cudnn.grouped.torch_operator import register
from cudnn_gemm_grouped.unfused.api import CALLS

grouped_gemm = register(CALLS)
