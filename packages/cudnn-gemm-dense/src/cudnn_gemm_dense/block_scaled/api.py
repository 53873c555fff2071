"""The kernels that convert block-scaled operands, in front of every dense operation."""

from __future__ import annotations

from cudnn.block_scale import MXFP4, MXFP4_V16, MXFP8, NVFP4
from cudnn.cutedsl.dequantize import DequantizeSpec

__all__ = ["precompile_specs"]


def precompile_specs() -> list[DequantizeSpec]:
    """The kernels worth having before the first call, besides those to bfloat16 that `cudnn.ops.block_scale_dequantize` lists: FP4 with e8m0 factors for 16, and weights beside float16 activations."""
    weights = [DequantizeSpec(fmt.element, fmt.scale, fmt.vec, "float16") for fmt in (MXFP8, MXFP4, NVFP4)]
    return [DequantizeSpec(MXFP4_V16.element, MXFP4_V16.scale, MXFP4_V16.vec), *weights]
