"""The epilogues of squared ReLU and of its gradient."""

from __future__ import annotations

from cudnn.cutedsl.epilogue.srelu import Dsrelu, Srelu
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.datatypes import cutlass_dtype
from cudnn_gemm_dense.srelu.options import DsreluOptions, SreluOptions


def srelu(problem: GemmProblem, options: SreluOptions) -> Srelu:
    c_dtype = None if options.c_dtype is None else cutlass_dtype(options.c_dtype)
    return Srelu(c_dtype, cutlass_dtype(options.d_dtype), options.out_major == "n", options.prob, options.amax_rank)


def dsrelu(problem: GemmProblem, options: DsreluOptions) -> Dsrelu:
    return Dsrelu(cutlass_dtype(options.c_dtype), cutlass_dtype(options.d_dtype), options.out_major == "n", options.deterministic, options.amax_rank)
