"""Shared memory of an epilogue, as plain arithmetic: for the kernel, and for support checks that must not import the DSL."""

from __future__ import annotations

from typing import NamedTuple

from cudnn.cutedsl.gemm.config import SLAB_COLUMNS, SLAB_ROWS, GemmConfig

RING_SLOTS = 4  # stored slabs on their way
LOAD_SLOTS = 4  # loaded slabs on their way, at most


def slab_bytes(bits: int) -> int:
    return SLAB_ROWS * SLAB_COLUMNS * bits // 8


class Footprint(NamedTuple):
    """What of an epilogue decides its shared memory.

    ``slabs``: slabs of S in one visit; ``store_bits``, ``load_bits``: widest element stored and loaded; ``loads``: slabs a visit loads; ``column_values``: float32 values a warpgroup keeps for each
    column of the tile.
    """

    slabs: int
    store_bits: int
    load_bits: int = 0
    loads: int = 0
    column_values: int = 0

    def visits(self, config: GemmConfig) -> int:
        """Visits of one warpgroup in a tile."""
        return config.rows_per_warpgroup // SLAB_ROWS * (config.tile_n // (SLAB_COLUMNS * self.slabs))

    def load_slots(self, config: GemmConfig) -> int:
        """Slots of the ring that loaded slabs arrive in."""
        return min(LOAD_SLOTS, self.loads * self.visits(config))

    def bytes(self, config: GemmConfig) -> int:
        """Of all warpgroups; a warpgroup's share is a multiple of 1024 bytes."""
        columns = -(-4 * self.column_values * config.tile_n // 1024) * 1024
        return config.consumer_warpgroups * (RING_SLOTS * slab_bytes(self.store_bits) + self.load_slots(config) * slab_bytes(self.load_bits) + columns)
