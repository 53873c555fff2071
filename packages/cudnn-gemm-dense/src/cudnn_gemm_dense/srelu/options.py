"""What the squared ReLU epilogues store and read, as far as it changes the generated code. Plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from cudnn.cutedsl.compile import KernelSpec
from cudnn.cutedsl.epilogue.size import Footprint
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.datatypes import itemsize_bits


@dataclass(frozen=True)
class SreluOptions:
    """Dtypes (names; C None where it is not kept), the major of C and D (``"n"`` or ``"m"``: the axis with stride 1), whether there are factors per row, the rank of amax (0: none), and of
    a quantised D the dtype of its scale factors and the columns for each."""

    c_dtype: str | None
    d_dtype: str
    out_major: str = "n"
    prob: bool = True
    amax_rank: int = 0
    scale_dtype: str | None = None
    scale_vec: int = 0

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    @property
    def footprint(self) -> Footprint:
        return Footprint(1, max(itemsize_bits(dtype) for dtype in (self.c_dtype, self.d_dtype) if dtype is not None))


@dataclass(frozen=True)
class DsreluOptions:
    """As ``SreluOptions``, with C read; ``deterministic``: whether dprob is summed in order, through partial sums in scratch memory."""

    c_dtype: str
    d_dtype: str
    out_major: str = "n"
    deterministic: bool = False
    amax_rank: int = 0
    scale_dtype: str | None = None
    scale_vec: int = 0

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    @property
    def footprint(self) -> Footprint:
        return Footprint(1, itemsize_bits(self.d_dtype), itemsize_bits(self.c_dtype), 1)


def srelu_spec(problem: GemmProblem, options: SreluOptions, config: GemmConfig) -> KernelSpec:
    return KernelSpec("gemm_srelu", "cudnn_gemm_dense.srelu.epilogue:srelu", problem, options, config)


def dsrelu_spec(problem: GemmProblem, options: DsreluOptions, config: GemmConfig) -> KernelSpec:
    return KernelSpec("gemm_dsrelu", "cudnn_gemm_dense.srelu.epilogue:dsrelu", problem, options, config)
