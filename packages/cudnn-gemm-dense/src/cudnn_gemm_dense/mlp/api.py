"""What feed-forward layers need before their first call. Their operations are in `cudnn_gemm_dense.mlp.ops`, which imports torch; this module does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn_gemm_dense.dswiglu.options import DswigluOptions, dswiglu_spec
from cudnn_gemm_dense.operation import fitting_configs
from cudnn_gemm_dense.swiglu.kernel import swiglu_spec
from cudnn_gemm_dense.swiglu.options import SwigluOptions

if TYPE_CHECKING:
    from cudnn.cutedsl.compile import KernelSpec

__all__ = ["precompile_specs"]


def precompile_specs() -> list[KernelSpec]:
    """What no other operation lists: both products and the activation without the pre-activation kept, and the bounded activation forward and backward."""
    found: list[KernelSpec] = []
    for dtype in ("float16", "bfloat16"):
        forward, backward = GemmProblem(dtype, dtype, b_parts="pair"), GemmProblem(dtype, dtype, "float32", "k", "n")
        for pre, activation in ((None, "swiglu"), (None, "situ"), (dtype, "situ")):
            options = SwigluOptions(pre, dtype, "n", "separate", activation)
            found += [swiglu_spec(forward, options, config) for config in fitting_configs(forward, options.footprint)]
        gradient = DswigluOptions(dtype, dtype, None, "n", "concatenated", "situ")
        found += [dswiglu_spec(backward, gradient, config) for config in fitting_configs(backward, gradient.footprint)]
    return found
