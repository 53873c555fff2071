"""What the epilogues of grouped operations read and store, as far as it changes the generated code. Plain data, and the kernels it names."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cudnn.cutedsl.compile import KernelSpec
from cudnn.cutedsl.epilogue.size import Footprint
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.datatypes import itemsize_bits

B_PARTS = {"interleaved32": "single", "concatenated": "halves", "separate": "pair", "alternating": "single"}
HALVES = ("concatenated", "separate")  # layouts whose pre-activation is [gate | up]


def _bits(*dtypes: str | None) -> int:
    return max(itemsize_bits(dtype) for dtype in dtypes if dtype is not None)


@dataclass(frozen=True)
class Options:
    """Base: dtypes are names, None where the tensor does not exist."""

    @property
    def footprint(self) -> Footprint:
        """What of the epilogue decides its shared memory."""
        raise TypeError(f"{type(self).__name__} defines no footprint")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ProductOptions(Options):
    """D, C and the bias of the product alone. ``alpha``, ``prob``: whether groups and rows have factors; ``addend_dtype``: of what is added to the product."""

    d_dtype: str
    c_dtype: str | None = None
    bias_dtype: str | None = None
    alpha: bool = True
    prob: bool = True
    addend_dtype: str | None = None

    @property
    def footprint(self) -> Footprint:
        loads = {} if self.addend_dtype is None else {"load_bits": _bits(self.addend_dtype), "loads": 1}
        return Footprint(1, _bits(self.d_dtype, self.c_dtype), column_values=int(self.bias_dtype is not None), **loads)


@dataclass(frozen=True)
class GluOptions(Options):
    """A gated pair: the activation, where gate and up lie, whether rows and groups have factors."""

    d_dtype: str
    c_dtype: str | None = None
    bias_dtype: str | None = None
    activation: str = "swiglu"
    glu_layout: str = "interleaved32"
    prob: bool = True
    alpha: bool = True

    @property
    def footprint(self) -> Footprint:
        return Footprint(2, _bits(self.d_dtype, self.c_dtype), column_values=int(self.bias_dtype is not None))


@dataclass(frozen=True)
class DgluOptions(Options):
    """The gradient of a gated pair. ``round_dtype``: what the incoming gradient is rounded to; ``scaled_c``: whether beta counts; ``partials``: whether dprob is summed in a fixed order; ``prob``, ``alpha``: whether
    rows have factors, whose gradient is dprob, and groups.
    """

    c_dtype: str
    d_dtype: str
    activation: str = "swiglu"
    glu_layout: str = "interleaved32"
    activation_dtype: str | None = None
    dbias_dtype: str | None = None
    round_dtype: str | None = None
    scaled_c: bool = True
    partials: bool = False
    prob: bool = True
    alpha: bool = True

    @property
    def footprint(self) -> Footprint:
        # The sums of dbias: a line for each of a warpgroup's four warps, two slabs of columns for each of S.
        return Footprint(1, _bits(self.d_dtype, self.activation_dtype), _bits(self.c_dtype), 2, 8 if self.dbias_dtype is not None else 0)


@dataclass(frozen=True)
class WgradOptions(Options):
    """The weight gradient: its dtype, whether it is added to what is there, whether each is somewhere else."""

    d_dtype: str
    adds: bool = False
    pointers: bool = False

    @property
    def footprint(self) -> Footprint:
        return Footprint(1, _bits(self.d_dtype))


_FUSIONS = {ProductOptions: "product", GluOptions: "glu", DgluOptions: "dglu", WgradOptions: "wgrad"}


def kernel_spec(op: str, problem: GemmProblem, options: Options, config: GemmConfig) -> KernelSpec:
    """The kernel of operation ``op``."""
    return KernelSpec(op, f"cudnn.grouped.fusions:{_FUSIONS[type(options)]}", problem, options, config)
