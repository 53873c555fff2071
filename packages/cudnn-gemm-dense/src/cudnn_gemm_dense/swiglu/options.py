"""What the SwiGLU epilogue stores, as far as it changes the generated code. Plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from cudnn.cutedsl.epilogue.size import Footprint
from cudnn.datatypes import itemsize_bits


@dataclass(frozen=True)
class SwigluOptions:
    """Output dtypes (names; AB12 None where it is not kept), the major of AB12 and C (``"n"`` or ``"m"``: the axis with stride 1), where gate and up lie, the activation, and the rank
    of amax (0: none)."""

    ab12_dtype: str | None
    c_dtype: str
    out_major: str = "n"
    glu_layout: str = "interleaved32"
    activation: str = "swiglu"
    amax_rank: int = 0

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    @property
    def footprint(self) -> Footprint:
        return Footprint(2, max(itemsize_bits(dtype) for dtype in (self.ab12_dtype, self.c_dtype) if dtype is not None))
