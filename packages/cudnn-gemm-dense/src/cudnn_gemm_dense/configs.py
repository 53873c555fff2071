"""Which configurations a dense problem is built in, which of them runs for given extents, and which others a tuner may try.

``compile()`` builds the few configurations of ``default_configs``; which one runs is decided by extents at each new shape, with ``predicted_cost``. The constants were measured on an H200
(``docs/develop/kernel-notes.md``); results never depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product, zip_longest

from cudnn.cutedsl.gemm.config import SLAB_COLUMNS, GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem

GATED_COLUMNS = 2 * SLAB_COLUMNS  # a gated epilogue takes a gate and an up slab at a time

CANDIDATES = 64  # what a tuner compiles at most for one problem
HOPELESS = 2.0  # times the least predicted cost
CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4))

SMS = 132
TILE_OVERHEAD = 2500  # cycles of one tile besides its products: filling the pipeline, the epilogue's last slabs
SPLIT_OVERHEAD = 1500  # cycles of adding up a shared tile
LOAD_RATE = 56  # bytes a cycle that one SM takes in
PROMOTION = 300  # product cycles, for each 128 along K, that a tile's sums wait for the registers they are added to
CONVERT_STEP = 750  # cycles of a step of 64 along K whose weights are converted into shared memory
FRAGMENT_STEP, FRAGMENT_COLUMN = 640, 2  # the same for weights that are converted into registers: by itself, and for each row of activations beside them
COPY_RATE = 2400  # bytes a cycle that a kernel reads and writes which converts weights in front of the product
LAUNCH = 5000  # cycles of that kernel besides
PRODUCT_RATE = 2048  # multiply-adds a cycle of one SM, 16-bit operands


# Weights with scale factors converted inside the kernel: into shared memory beside any epilogue, into registers in a plain product, for few rows to many.
INSIDE = GemmConfig(64, 128, split_k=2, convert_b=True)
SWAPPED = (*(GemmConfig(128, tile_n, split_k=2, swap=True) for tile_n in (32, 64, 128)), GemmConfig(128, 256, swap=True))
# Of other operands, for up to 32 rows of D: what is read of A is half of what the least tile of 64 rows reads.
NARROW = GemmConfig(64, 32, k_atoms=2, swap=True)


def unfit_reason(problem: GemmProblem, config: GemmConfig, *, gated: bool) -> str | None:
    """None if the kernel can run ``problem`` this way, else the reason why not."""
    return config.supports(problem, columns_per_visit=GATED_COLUMNS if gated else SLAB_COLUMNS)


def default_configs(problem: GemmProblem, *, gated: bool = False, swaps: bool = False) -> tuple[GemmConfig, ...]:
    """The configurations ``compile()`` builds when the caller gives none: those ``choose`` can answer with. ``swaps``: of an operation that can compute the transpose of its result."""
    if problem.promotes:
        large = (GemmConfig(128, 192, 1, 1), GemmConfig(128, 128, 2, 1))
    else:
        # Two weight halves come in 32-row pieces, and 192 columns are three pairs of them: too few to deal out to two CTAs, so there A is shared instead.
        wide = GemmConfig(128, 192, 2, 1, pingpong=True) if problem.b_parts == "single" else GemmConfig(128, 192, 1, 2, pingpong=True)
        large = (wide, GemmConfig(128, 128, 2, 1, pingpong=True))
    atoms = 1 if problem.promotes else 2
    few = (replace(NARROW, k_atoms=atoms),) if swaps else ()
    split = () if problem.acc_dtype != "float32" else (GemmConfig(64, 128, split_k=2), GemmConfig(64, 64, split_k=4))
    candidates = (*large, GemmConfig(128, 64, k_atoms=atoms), *split, *few)
    fitting = tuple(c for c in candidates if unfit_reason(problem, c, gated=gated) is None)
    if not fitting:
        raise ValueError(f"no default configuration for {problem}: {unfit_reason(problem, candidates[0], gated=gated)}")
    return fitting


def predicted_cost(config: GemmConfig, m: int, n: int, k: int, batches: int, sms: int = SMS, *, promotes: bool = False, quantized: bool = False) -> float:
    """Estimated cycles: waves of tiles, each as long as the slower of its products and its reads. ``promotes``: 8-bit operands with full accumulation; ``quantized``: B has scale factors."""
    if config.swap:
        m, n = n, m
    clusters = -(-m // (config.tile_m * config.cluster_m)) * -(-n // (config.tile_n * config.cluster_n)) * batches
    waves = -(-clusters // max(sms // config.cluster_size, 1))
    products = config.tile_m * config.tile_n * k / PRODUCT_RATE
    if promotes:
        products += PROMOTION * k / 128
    if config.convert_b:
        products = max(products, CONVERT_STEP * k / 64)
    if config.swap and quantized:
        products = max(products, (FRAGMENT_STEP + FRAGMENT_COLUMN * config.tile_n) * k / 64)
    # What is multicast is read once for the cluster.
    read = (config.tile_m / config.cluster_n + config.tile_n / config.cluster_m) * 2 * k / LOAD_RATE
    overhead: float = TILE_OVERHEAD + (SPLIT_OVERHEAD if config.split_k > 1 else 0)
    if config.pingpong:
        # The epilogue runs beside the other consumer's products; a CTA with a single tile has nothing beside it, and half of its consumers idle.
        overhead = overhead / 4 if waves > 1 else overhead + products / 2
    return waves * (max(products, read) / config.split_k + overhead)


def choose(configs: Sequence[GemmConfig], m: int, n: int, k: int, batches: int, *, promotes: bool = False, bits: int = 0) -> GemmConfig:
    """The configuration out of ``configs`` that runs for these extents: the one with the least predicted cost.

    ``promotes``: as in ``predicted_cost``. ``bits``: of an element of B, if a kernel in front of all configurations but those that convert it inside makes 16 of them.
    """
    in_front = LAUNCH + n * k * batches * (bits / 8 + 2) / COPY_RATE if bits else 0.0
    return min(
        configs,
        key=lambda config: predicted_cost(config, m, n, k, batches, promotes=promotes, quantized=bits > 0) + (0.0 if config.converts_inside else in_front),
    )


def candidates(
    problem: GemmProblem, m: int, n: int, k: int, batches: int, *, fits: Callable[[GemmConfig], bool], limit: int = CANDIDATES, sms: int = SMS
) -> tuple[GemmConfig, ...]:
    """The configurations that a tuner tries for these extents, as far as ``fits`` allows.

    Tiles, schedules and clusters; where there are more tiles than ``sms``, both directions of the walk, else splits along K and longer steps. Clusters and tiles of which half would lie outside of the
    problem are left out, as is what is predicted to be HOPELESS. Of each tile and schedule comes first what has the least predicted cost, then the second of each, and so on up to ``limit``: predictions compare a tile's variants better than
    different tiles.
    """

    def cost(config: GemmConfig) -> float:
        return predicted_cost(config, m, n, k, batches, sms, promotes=problem.promotes)

    def rank(config: GemmConfig) -> tuple[float, bool, float]:
        # Equal costs: the direction of the walk matters least, and reading less is never worse.
        return cost(config), config.raster == "n", config.tile_m / config.cluster_n + config.tile_n / config.cluster_m

    found: list[list[GemmConfig]] = []
    for tile_m, tile_n, pingpong in product((64, 128, 256), range(64, 257, 32), (False, True)):
        tiles_m, tiles_n = -(-m // tile_m), -(-n // tile_n)
        if (tile_m > 64 and tile_m >= 2 * m) or (tile_n > 64 and tile_n >= 2 * n):
            continue
        few = tiles_m * tiles_n * batches <= sms
        clusters = [(cluster_m, cluster_n) for cluster_m, cluster_n in CLUSTERS if cluster_m <= tiles_m and cluster_n <= tiles_n]
        variants = product(clusters, ("m",) if few else ("m", "n"), (1, 2, 4) if few else (1,), (1, 2, 4, 8) if few else (1,))
        configs = (GemmConfig(tile_m, tile_n, *cluster, pingpong, split_k, raster, k_atoms=k_atoms) for cluster, raster, k_atoms, split_k in variants)
        found.append(sorted((config for config in configs if fits(config)), key=rank))
    found = sorted((configs for configs in found if configs), key=lambda configs: cost(configs[0]))
    worst = HOPELESS * cost(found[0][0]) if found else 0.0
    return tuple(config for row in zip_longest(*found) for config in row if config is not None and cost(config) <= worst)[:limit]
