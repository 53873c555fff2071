"""The torch operator `cudnn::discrete_grouped_gemm_dswiglu`."""

from __future__ import annotations

from cudnn.grouped.torch_operator import register
from cudnn_gemm_discrete.dswiglu.api import CALLS

discrete_grouped_gemm_dswiglu = register(CALLS)
