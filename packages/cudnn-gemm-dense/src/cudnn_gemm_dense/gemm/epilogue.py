"""The epilogue of plain GEMM and of GEMM + amax."""

from __future__ import annotations

from cudnn.cutedsl.epilogue.plain import Plain
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.datatypes import cutlass_dtype
from cudnn_gemm_dense.gemm.options import GemmOptions


def plain(problem: GemmProblem, options: GemmOptions) -> Plain:
    addend, bias = (None if dtype is None else cutlass_dtype(dtype) for dtype in (options.addend_dtype, options.bias_dtype))
    return Plain(cutlass_dtype(options.d_dtype), options.out_major == "n", addend, bias, options.bias_rank, options.amax_rank, options.transposed)
