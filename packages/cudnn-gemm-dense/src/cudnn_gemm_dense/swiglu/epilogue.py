"""The SwiGLU epilogue of the dense family: the shared gated pair, in this family's order of gate and up."""

from __future__ import annotations

from cudnn.cutedsl.epilogue.gated import Gated
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.datatypes import cutlass_dtype
from cudnn_gemm_dense.swiglu.options import SwigluOptions


def swiglu(problem: GemmProblem, options: SwigluOptions) -> Gated:
    """interleaved32 has up first, the published order; whole halves (concatenated, separate) have the gate first."""
    interleaved = options.glu_layout == "interleaved32"
    return Gated(
        None if options.ab12_dtype is None else cutlass_dtype(options.ab12_dtype),
        cutlass_dtype(options.c_dtype),
        row_contiguous=options.out_major == "n",
        gate_first=not interleaved,
        split=not interleaved,
        activation=options.activation,
        amax_rank=options.amax_rank,
    )
