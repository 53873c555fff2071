"""What the gradient of a gated pair stores and reads, as far as it changes the generated code. Plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from cudnn.cutedsl.compile import KernelSpec
from cudnn.cutedsl.epilogue.size import Footprint
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.datatypes import itemsize_bits


@dataclass(frozen=True)
class DswigluOptions:
    """Dtypes (names; C None where it is not wanted), the major of AB12, dAB12 and C (``"n"`` or ``"m"``: the axis with stride 1), where gate and up lie, and the activation."""

    ab12_dtype: str
    d_dtype: str
    c_dtype: str | None = None
    out_major: str = "n"
    glu_layout: str = "interleaved32"
    activation: str = "swiglu"

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    @property
    def footprint(self) -> Footprint:
        return Footprint(1, max(itemsize_bits(dtype) for dtype in (self.d_dtype, self.c_dtype) if dtype is not None), itemsize_bits(self.ab12_dtype), 2)


def dswiglu_spec(problem: GemmProblem, options: DswigluOptions, config: GemmConfig) -> KernelSpec:
    return KernelSpec("gemm_dswiglu", "cudnn_gemm_dense.dswiglu.epilogue:dswiglu", problem, options, config)
