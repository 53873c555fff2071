"""What the plain epilogue stores and reads, as far as it changes the generated code. Plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from cudnn.cutedsl.compile import KernelSpec
from cudnn.cutedsl.epilogue.size import Footprint
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.datatypes import itemsize_bits


@dataclass(frozen=True)
class GemmOptions:
    """Dtypes (names; None where there is no such tensor), the major of D and the addend (``"n"`` or ``"m"``: the axis with stride 1), ranks of the bias and of amax (0: none). ``transposed``: of the transpose of a product, whose bias goes along M."""

    d_dtype: str
    out_major: str = "n"
    addend_dtype: str | None = None
    bias_dtype: str | None = None
    bias_rank: int = 1
    amax_rank: int = 0
    transposed: bool = False

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    @property
    def swapped(self) -> GemmOptions:
        """Of the transposes of D and the addend."""
        return replace(self, out_major="m" if self.out_major == "n" else "n", transposed=not self.transposed)

    @property
    def footprint(self) -> Footprint:
        load_bits = 0 if self.addend_dtype is None else itemsize_bits(self.addend_dtype)
        # Packed 4-bit floats are handled as bytes.
        return Footprint(1, max(itemsize_bits(self.d_dtype), 8), load_bits, int(load_bits > 0), int(self.bias_dtype is not None and not self.transposed))


def gemm_spec(problem: GemmProblem, options: GemmOptions, config: GemmConfig, op: str = "gemm") -> KernelSpec:
    return KernelSpec(op, "cudnn_gemm_dense.gemm.epilogue:plain", problem, options, config)
