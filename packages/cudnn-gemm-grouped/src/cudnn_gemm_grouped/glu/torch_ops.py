"""The torch operator `cudnn::grouped_gemm_glu`."""

from __future__ import annotations

from cudnn.grouped.torch_operator import register
from cudnn_gemm_grouped.glu.api import CALLS

grouped_gemm_glu = register(CALLS)
