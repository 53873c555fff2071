"""Block-scaled formats: a small float for each element and one scale factor for every 16 or 32 neighbours along the axis that a product sums over.

Plain data and index arithmetic, shared by checks, reference and kernels: the formats (`formats`), where their scale factors lie (`layout`), and checks of tensors that hold them (`checks`).
"""

from __future__ import annotations

from cudnn.block_scale.formats import E4M3, E5M2, E8M0, FORMATS, FP4, FP8, LIMITS, MXFP4, MXFP4_V16, MXFP8, MXFP8_E5M2, NVFP4, Format, format_of, named_format
from cudnn.block_scale.layout import ATOM, ATOM_BLOCKS, ATOM_ROWS, ScaleLayout, atom_offset, blocked_offset

__all__ = [
    "ATOM",
    "ATOM_BLOCKS",
    "ATOM_ROWS",
    "E4M3",
    "E5M2",
    "E8M0",
    "FORMATS",
    "FP4",
    "FP8",
    "LIMITS",
    "MXFP4",
    "MXFP4_V16",
    "MXFP8",
    "MXFP8_E5M2",
    "NVFP4",
    "Format",
    "ScaleLayout",
    "atom_offset",
    "blocked_offset",
    "format_of",
    "named_format",
]
