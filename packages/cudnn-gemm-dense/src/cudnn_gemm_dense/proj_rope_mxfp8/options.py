"""The kernel of projection + RoPE + MXFP8, and what of it decides its shared memory. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from cudnn.cutedsl.compile import KernelSpec
from cudnn.cutedsl.epilogue.size import Footprint
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem

# A head at a time, 8-bit values out, four 32-column slabs of 16-bit tables in, and six float32 values for each column of the head: the maxima of four warps and the factors of two token blocks.
FOOTPRINT = Footprint(slabs=6, store_bits=8, load_bits=16, loads=4, column_values=6)

CONFIGS = (
    GemmConfig(128, 192, 2, 1, pingpong=True),
    GemmConfig(128, 192, 2, 1),
    GemmConfig(64, 192, k_atoms=2),
    GemmConfig(64, 192, split_k=2),
)
"""What ``compile()`` builds when the caller gives no configuration: large problems, those with a tile or two for each CTA, and few tiles with a short and a long K."""


@dataclass(frozen=True)
class ProjRopeOptions:
    """Nothing but the problem changes the generated code."""

    def as_dict(self) -> dict[str, object]:
        return {}


def proj_rope_spec(problem: GemmProblem, options: ProjRopeOptions, config: GemmConfig) -> KernelSpec:
    return KernelSpec("gemm_proj_rope_mxfp8", "cudnn_gemm_dense.proj_rope_mxfp8.epilogue:proj_rope_mxfp8", problem, options, config)
