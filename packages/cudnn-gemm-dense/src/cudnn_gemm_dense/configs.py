"""Which configurations a dense problem is built in, and which of them runs for given extents."""

from __future__ import annotations

from collections.abc import Sequence

from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem

GATED_COLUMNS = 64  # a gated epilogue takes a gate and an up slab of 32 columns each at a time


def unfit_reason(problem: GemmProblem, config: GemmConfig, *, gated: bool) -> str | None:
    """None if the kernel can run ``problem`` this way, else the reason why not."""
    return config.supports(problem, columns_per_visit=GATED_COLUMNS) if gated else config.supports(problem)


def default_configs(problem: GemmProblem, *, gated: bool = False) -> tuple[GemmConfig, ...]:
    """The configurations ``compile()`` builds when the caller gives none: those ``choose`` can answer with."""
    config = GemmConfig(tile_m=128, tile_n=192 if not gated else 128)
    reason = unfit_reason(problem, config, gated=gated)
    if reason is not None:
        raise ValueError(f"no default configuration for {problem}: {reason}")
    return (config,)


def choose(configs: Sequence[GemmConfig], m: int, n: int, k: int, batches: int) -> GemmConfig:
    """The configuration out of ``configs`` that runs for these extents."""
    return configs[0]
