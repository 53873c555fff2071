"""The block-scaled formats as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

E4M3, E5M2, E8M0, FP4 = "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn"
FP8 = (E4M3, E5M2)

LIMITS = {E4M3: 448.0, E5M2: 128.0, FP4: 6.0}
"""What the largest element of a block is scaled to: the largest value of e4m3 and e2m1; for e5m2 128, as published, far below its largest."""


@dataclass(frozen=True)
class Format:
    """One block-scaled format.

    - ``name``: as `cudnn.ops.block_scale_quantize` takes it.
    - ``element``, ``scale``: dtypes of elements and of scale factors, by their canonical names.
    - ``vec``: how many elements share a scale factor.
    """

    name: str
    element: str
    scale: str
    vec: int

    @property
    def limit(self) -> float:
        """What the largest element of a block is scaled to."""
        return LIMITS[self.element]

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return 4 if self.element == FP4 else 8

    @property
    def packed(self) -> int:
        """Elements of a stored byte."""
        return 8 // self.bits


MXFP8 = Format("mxfp8", E4M3, E8M0, 32)
MXFP8_E5M2 = Format("mxfp8_e5m2", E5M2, E8M0, 32)
MXFP4 = Format("mxfp4", FP4, E8M0, 32)
MXFP4_V16 = Format("mxfp4_v16", FP4, E8M0, 16)
NVFP4 = Format("nvfp4", FP4, E4M3, 16)

FORMATS = {f.name: f for f in (MXFP8, MXFP8_E5M2, MXFP4, MXFP4_V16, NVFP4)}


def named_format(value: Any) -> Format:
    """The format called ``value``; a `Format` comes back as it is. ValueError for an unknown one."""
    if isinstance(value, Format):
        return value
    found = FORMATS.get(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"format: found {value!r}, needs one of {', '.join(map(repr, FORMATS))}")
    return found


def format_of(element: str | None, scale: str | None, vec: int) -> Format | None:
    """The format with these elements, scale factors and this block length; None where there is none."""
    return next((f for f in FORMATS.values() if (f.element, f.scale, f.vec) == (element, scale, vec)), None)
