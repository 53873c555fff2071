"""From a SwiGLU problem to a kernel that takes the operation's tensors."""

from __future__ import annotations

from collections.abc import Callable

from cudnn.cutedsl.compile import KernelSpec
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn_gemm_dense.swiglu.options import SwigluOptions


def swiglu_spec(problem: GemmProblem, options: SwigluOptions, config: GemmConfig) -> KernelSpec:
    return KernelSpec("gemm_swiglu", "cudnn_gemm_dense.swiglu.epilogue:swiglu", problem, options, config)


def build_swiglu(problem: GemmProblem, options: SwigluOptions, config: GemmConfig) -> Callable[..., None]:
    """``kernel(a, b, ab12, c, alpha, stream)`` for tensors on the current device; ``b`` is (gate, up) where the weights are separate."""
    kernel = swiglu_spec(problem, options, config).build()
    clusters: dict[int | None, int] = {}

    def launch(a, b, ab12, c, alpha: float, stream: int) -> None:
        device = a.device.index
        fit = clusters.get(device)
        if fit is None:
            from cudnn.device import device_info

            fit = clusters[device] = config.resident_clusters(device_info(device).sm_count)
        kernel((a, *b) if type(b) is tuple else (a, b), (ab12, c), (alpha,), fit, stream)

    return launch
