"""What the quantisers need before their first call. The operations are in `cudnn.block_scale.torch_ops`, which imports torch; this module does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudnn.block_scale.formats import MXFP4, MXFP8, MXFP8_E5M2, NVFP4

if TYPE_CHECKING:
    from cudnn.cutedsl.dequantize import DequantizeSpec
    from cudnn.cutedsl.quantize import QuantizeSpec

__all__ = ["precompile_specs"]


def precompile_specs() -> list[QuantizeSpec | DequantizeSpec]:
    """bfloat16 to each format along rows, columns and both, with blocked scale factors; NVFP4 also with a norm constant; and back to bfloat16. Others are compiled when they are first used."""
    from cudnn.cutedsl.dequantize import DequantizeSpec
    from cudnn.cutedsl.quantize import QuantizeSpec

    found: list[QuantizeSpec | DequantizeSpec] = []
    for fmt in (MXFP8, MXFP4, NVFP4):
        for rows, columns in ((True, False), (False, True), (True, True)):
            for norm in (False, True) if fmt is NVFP4 else (False,):
                found.append(QuantizeSpec("bfloat16", fmt.element, fmt.scale, fmt.vec, rows, columns, True, norm))
    for fmt in (MXFP8, MXFP8_E5M2, MXFP4, NVFP4):
        for k_major in (True, False) if fmt.packed == 1 else (True,):
            found.append(DequantizeSpec(fmt.element, fmt.scale, fmt.vec, "bfloat16", k_major))
    return found
