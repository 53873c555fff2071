"""Which tile next. A scheduler is consulted by every role of the kernel for itself, so all of them walk the same list without talking."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.invariant import LoopInvariant


class DenseScheduler(LoopInvariant):
    """Persistent walk over the tiles of L equal problems.

    A cluster of CTAs takes ``cluster_m x cluster_n`` neighbouring tiles; cluster i of P takes the cluster tiles i, i + P, i + 2P, ... of a list that
    runs through a strip of ``group`` cluster tiles along the raster direction before it moves one step along the other: the CTAs at work together then
    read few distinct rows of A and of B, which L2 holds.
    """

    def __init__(self, config: GemmConfig):
        self.config = config

    @cute.jit
    def arguments(self, m: Int32, n: Int32, batches: Int32) -> tuple[Int32, Int32, Int32]:
        """Host side: cluster tiles along M, along N, and all together."""
        c = self.config
        tiles_m = cute.ceil_div(m, c.tile_m * c.cluster_m)
        tiles_n = cute.ceil_div(n, c.tile_n * c.cluster_n)
        return tiles_m, tiles_n, tiles_m * tiles_n * batches

    @cute.jit
    def tile(self, arguments, index: Int32, cta_m: Int32, cta_n: Int32) -> tuple[Int32, Int32, Int32]:
        """Tile coordinates (m, n, l) of this CTA's part of cluster tile ``index``."""
        tiles_m, tiles_n, _ = arguments
        c = self.config
        along, across = (tiles_m, tiles_n) if cutlass.const_expr(c.raster == "m") else (tiles_n, tiles_m)
        batch = index // (tiles_m * tiles_n)
        rest = index - batch * (tiles_m * tiles_n)
        strip = rest // (c.group * across)
        first = strip * c.group
        width = cutlass.min(along - first, Int32(c.group))
        rest = rest - strip * (c.group * across)
        row = rest // width
        column = first + rest - row * width
        tile_m, tile_n = (column, row) if cutlass.const_expr(c.raster == "m") else (row, column)
        return tile_m * c.cluster_m + cta_m, tile_n * c.cluster_n + cta_n, batch
