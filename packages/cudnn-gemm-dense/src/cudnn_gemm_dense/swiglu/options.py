"""What the SwiGLU epilogue stores, as far as it changes the generated code. Plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class SwigluOptions:
    """Output dtypes (names), the major of AB12 and C (``"n"`` or ``"m"``: the axis with stride 1), and where gate and up lie."""

    ab12_dtype: str
    c_dtype: str
    out_major: str = "n"
    glu_layout: str = "interleaved32"

    def as_dict(self) -> dict[str, str]:
        return asdict(self)
