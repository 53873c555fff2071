"""Which configurations a grouped problem is built in, and which of them runs.

The choice sees what the host knows: the number of groups and the extents, not how long each group is. Rules from measurements on an H200 (``docs/develop/kernel-notes.md``); results never depend on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from cudnn.cutedsl.epilogue.size import Footprint
from cudnn.cutedsl.gemm.config import SLAB_COLUMNS, GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.gemm_layout import Extents

LONG = 512  # rows (or steps) of an average group from which on the epilogue is worth hiding behind the other consumer's products
SHORT = 160
FEW = 32  # rows of an average group up to which most of a 128-row tile would be empty

# NOTE: 128x128 pingpong is 1 to 2 % ahead of 128x256 for groups of 1000 rows and more, 7 % behind it for groups of 200 (2026-11-30). For weight gradients, whose sums are as long as groups, short ones are bound by
# what they store.
_ROWS = {
    "long": GemmConfig(128, 128, 1, 2, pingpong=True),
    "short": GemmConfig(128, 256, 1, 2, group=16),
    "few": GemmConfig(64, 128, k_atoms=2),
}
_STEPS = {
    "long": GemmConfig(128, 128, 2, 1, pingpong=True),
    "short": GemmConfig(128, 192, 1, 2, pingpong=True),
    "few": GemmConfig(128, 256, 2, 1),
}


def unfit_reason(problem: GemmProblem, footprint: Footprint, config: GemmConfig) -> str | None:
    """None if the kernel can run ``problem`` this way beside the epilogue, else the reason why not."""
    return config.supports(problem, epilogue_bytes=footprint.bytes(config), columns_per_visit=SLAB_COLUMNS * footprint.slabs)


def default_configs(problem: GemmProblem, footprint: Footprint) -> tuple[GemmConfig, ...]:
    """The configurations ``compile()`` builds when the caller gives none: those ``choose`` can answer with."""
    candidates = tuple((_ROWS if problem.grouping == "rows" else _STEPS).values())
    fitting = tuple(config for config in candidates if unfit_reason(problem, footprint, config) is None)
    if not fitting:
        raise ValueError(f"no default configuration for {problem}: {unfit_reason(problem, footprint, candidates[0])}")
    return fitting


def candidates(problem: GemmProblem, footprint: Footprint) -> tuple[GemmConfig, ...]:
    """The configurations that a tuner tries."""
    tiles = ((128, 128, True), (128, 160, True), (128, 192, True), (64, 256, True), (128, 256, False), (256, 128, False), (64, 128, False), (64, 256, False))
    found = [
        GemmConfig(tile_m, tile_n, *cluster, pingpong, raster=raster, group=group)
        for (tile_m, tile_n, pingpong), cluster, (raster, group) in product(tiles, ((1, 1), (2, 1), (1, 2)), (("m", 8), ("m", 16), ("n", 8)))
    ]
    found += [GemmConfig(64, tile_n, k_atoms=2) for tile_n in (64, 128, 256)]
    return tuple(config for config in dict.fromkeys((*default_configs(problem, footprint), *found)) if unfit_reason(problem, footprint, config) is None)


def choose(problem: GemmProblem, configs: Sequence[GemmConfig], extents: Extents) -> GemmConfig:
    """The configuration out of ``configs`` that runs for these extents."""
    if problem.grouping == "rows":
        average = extents.m / extents.batches
        wanted = _ROWS["long" if average >= LONG else "short" if average > FEW else "few"]
    else:
        average = extents.k / extents.batches
        wanted = _STEPS["long" if average >= LONG else "short" if average > SHORT else "few"]
    return wanted if wanted in configs else configs[0]
