"""From a SwiGLU problem to its kernel."""

from __future__ import annotations

from cudnn.cutedsl.compile import KernelSpec
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn_gemm_dense.swiglu.options import SwigluOptions


def swiglu_spec(problem: GemmProblem, options: SwigluOptions, config: GemmConfig) -> KernelSpec:
    return KernelSpec("gemm_swiglu", "cudnn_gemm_dense.swiglu.epilogue:swiglu", problem, options, config)
