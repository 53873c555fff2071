"""The kernels that convert block-scaled operands, in front of every dense operation."""

from __future__ import annotations

from cudnn.block_scale import FORMATS
from cudnn.cutedsl.dequantize import DequantizeSpec

__all__ = ["precompile_specs"]


def precompile_specs() -> list[DequantizeSpec]:
    """The kernels worth having before the first call: each format to bfloat16, contiguous along K and where that may be along rows."""
    return [
        DequantizeSpec(fmt.element, fmt.scale, fmt.vec, k_major=k_major) for fmt in FORMATS.values() for k_major in (True, False) if k_major or fmt.packed == 1
    ]
