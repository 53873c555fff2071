"""The epilogues of squared ReLU and of its gradient."""

from __future__ import annotations

from cudnn.block_scale import LIMITS
from cudnn.cutedsl.epilogue.srelu import Dsrelu, Srelu
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.datatypes import cutlass_dtype
from cudnn_gemm_dense.srelu.options import DsreluOptions, SreluOptions


def srelu(problem: GemmProblem, options: SreluOptions) -> Srelu:
    c_dtype = None if options.c_dtype is None else cutlass_dtype(options.c_dtype)
    return Srelu(c_dtype, cutlass_dtype(options.d_dtype), options.out_major == "n", options.prob, options.amax_rank, quantization(options))


def dsrelu(problem: GemmProblem, options: DsreluOptions) -> Dsrelu:
    dtypes = cutlass_dtype(options.c_dtype), cutlass_dtype(options.d_dtype)
    return Dsrelu(*dtypes, options.out_major == "n", options.deterministic, options.amax_rank, quantization(options))


def quantization(options: SreluOptions | DsreluOptions) -> tuple[int, float, str] | None:
    """How D is quantised: (columns of a block, what its largest element becomes, dtype of scale factors)."""
    return None if options.scale_dtype is None else (options.scale_vec, LIMITS[options.d_dtype], options.scale_dtype)
