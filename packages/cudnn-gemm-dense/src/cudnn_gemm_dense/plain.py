"""D = alpha * A Bᵀ through the same kernel as the fused operations: what their epilogues are measured against."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from cudnn.cutedsl.gemm.problem import GemmProblem

if TYPE_CHECKING:
    from cudnn.cutedsl.epilogue.plain import Plain


@dataclass(frozen=True)
class PlainOptions:
    """D's dtype (a name) and its major: ``"n"`` or ``"m"``, the axis with stride 1."""

    d_dtype: str
    out_major: str = "n"

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def plain(problem: GemmProblem, options: PlainOptions) -> Plain:
    """The epilogue that stores D."""
    from cudnn.cutedsl.epilogue.plain import Plain
    from cudnn.datatypes import cutlass_dtype

    return Plain(cutlass_dtype(options.d_dtype), row_contiguous=options.out_major == "n")
