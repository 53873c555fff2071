"""Which tile next. A scheduler is consulted by every role of the kernel for itself, so all of them walk the same list without talking.

A role holds a *place* in the list, plain registers that it carries through its loop: ``start`` makes the first, ``more`` says whether there is a tile, ``tile`` what it is,
``advance`` moves on.
"""

from __future__ import annotations

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.exchange import share
from cudnn.cutedsl.invariant import LoopInvariant

WARP = 32
FEW_ROWS = 32

# How long L2 holds a line: what the `createpolicy` instruction gives for all of the accesses of these kinds (cute::TMA::CacheHintSm90 has the same words).
EVICT_NORMAL, EVICT_FIRST, EVICT_LAST = 0x1000000000000000, 0x12F0000000000000, 0x14F0000000000000


class Tile(NamedTuple):
    """One CTA's tile.

    - ``row``: its first row in the outputs, counted from where its group begins; ``rows``: how many the group has.
    - ``n``: its index along N, in tiles.
    - ``group``: the batch or expert.
    - ``start``: where the group begins along the ragged axis, 0 without one.
    - ``plane``: third coordinate of the outputs: the group, or in ragged rows ``start``.
    - ``k``: first element along K, counted from where the group begins; negative where a group of steps is no multiple of a step: its first step reaches in front of it,
      where loads read zeros.
    - ``k_tiles``: steps along K, at least one.
    - ``turn``: the step that is taken first; behind the last one comes step 0.
    """

    row: Int32
    rows: Int32
    n: Int32
    group: Int32
    start: Int32
    plane: Int32
    k: Int32
    k_tiles: Int32
    turn: Int32


@cute.jit
def step_at(tile: Tile, i: Int32) -> Int32:
    """The step along K that ``tile`` takes as number ``i``."""
    step = tile.turn + i
    return cutlass.select_(step < tile.k_tiles, step, step - tile.k_tiles)


@cute.jit
def strip_order(config: cutlass.Constexpr, rest: Int32, tiles_m: Int32, tiles_n: Int32) -> tuple[Int32, Int32]:
    """Cluster tile ``rest`` of a problem of ``tiles_m x tiles_n``: a strip of ``config.group`` tiles along the raster direction, then one step along the other."""
    along, across = (tiles_m, tiles_n) if cutlass.const_expr(config.raster == "m") else (tiles_n, tiles_m)
    strip = rest // (config.group * across)
    first = strip * config.group
    width = cutlass.min(along - first, Int32(config.group))
    rest = rest - strip * (config.group * across)
    row = rest // width
    column = first + rest - row * width
    return (column, row) if cutlass.const_expr(config.raster == "m") else (row, column)


class DenseScheduler(LoopInvariant):
    """Persistent walk over the tiles of L equal problems.

    A cluster of CTAs takes ``cluster_m x cluster_n`` neighbouring tiles; cluster i of P takes the cluster tiles i, i + P, i + 2P, ... of a list that
    runs through a strip of ``group`` cluster tiles along the raster direction before it moves one step along the other: the CTAs at work together then
    read few distinct rows of A and of B, which L2 holds. A place is the index in the list.

    With few rows (``FEW_ROWS``, of A, or of B where operands are swapped) every cluster reads the same few lines of them: each begins with another step along K, or all would ask L2 for the same line at the same time. (With more rows that is
    what L2 serves best.) The order depends on the tile alone, so results are the same on any device.
    """

    equal_steps = True

    def __init__(self, config: GemmConfig, tile_k: int):
        self.config, self.tile_k = config, tile_k

    @cute.jit
    def arguments(self, m: Int32, n: Int32, batches: Int32, k_tiles: Int32, offsets) -> tuple[Int32, Int32, Int32, Int32, Int32, Int32]:
        """Host side: cluster tiles along M, along N, and all together; steps along K; rows; how many lines all tiles have in common."""
        c = self.config
        tiles_m = cute.ceil_div(m, c.tile_m * c.cluster_m)
        tiles_n = cute.ceil_div(n, c.tile_n * c.cluster_n)
        return tiles_m, tiles_n, tiles_m * tiles_n * batches, k_tiles, m, n if c.swap else m

    def most_tiles(self, arguments) -> Int32:
        """Host side: how many cluster tiles there are at most."""
        return arguments[2]

    @cute.jit
    def cache_policies(self, arguments) -> tuple[Int64, Int64]:
        """How long L2 is to hold lines of A and of B. Where one row or one column of cluster tiles is all there is, one operand is read by every cluster, and each line of the other by a single one: that one is not to
        drive out the first. Else L2 knows best."""
        tiles_m, tiles_n = arguments[0], arguments[1]
        normal, once, again = Int64(EVICT_NORMAL), Int64(EVICT_FIRST), Int64(EVICT_LAST)
        a = cutlass.select_(tiles_m == 1, again, cutlass.select_(tiles_n == 1, once, normal))
        b = cutlass.select_(tiles_m == 1, once, cutlass.select_(tiles_n == 1, again, normal))
        return Int64(a), Int64(b)

    def start(self, arguments, index: Int32) -> Int32:
        return index

    def more(self, arguments, place: Int32):
        return place < arguments[2]

    def advance(self, arguments, place: Int32, step: Int32) -> Int32:
        return place + step

    def steps(self, arguments, place: Int32) -> Int32:
        """Steps along K of the tile at ``place``; any number where there is none."""
        return arguments[3]

    @cute.jit
    def tile(self, arguments, place: Int32, cta_m: Int32, cta_n: Int32, part: Int32) -> Tile:
        """This CTA's part of the cluster tile at ``place``; with split K, of its steps along K, which can be none."""
        tiles_m, tiles_n, _, k_tiles, rows, common = arguments
        c = self.config
        batch = place // (tiles_m * tiles_n)
        tile_m, tile_n = strip_order(c, place - batch * (tiles_m * tiles_n), tiles_m, tiles_n)
        begin, k_tiles = share(k_tiles, part, c.split_k)
        turn = Int32(0)
        if common <= FEW_ROWS:
            turn = (tile_m if cutlass.const_expr(c.swap) else tile_n) % cutlass.max(k_tiles, Int32(1))
        return Tile((tile_m * c.cluster_m + cta_m) * c.tile_m, rows, tile_n * c.cluster_n + cta_n, batch, Int32(0), batch, begin * self.tile_k, k_tiles, turn)


@cute.jit
def group_bounds(offsets: cute.Tensor, group: Int32, extent: Int32) -> tuple[Int32, Int32]:
    """(first, one past the last) of ``group``, both from 0 to ``extent`` and in order whatever ``offsets`` holds."""
    start = Int32(0)
    if group > 0:
        start = offsets[group - 1]
    start = cutlass.min(cutlass.max(start, Int32(0)), extent)
    return start, cutlass.min(cutlass.max(offsets[group], start), extent)


class Window(NamedTuple):
    """Place in the list of a ``GroupedScheduler``: the groups ``first .. first + 31``, one per lane of the warp."""

    index: Int32  # in the list
    first: Int32  # first group of the window
    before: Int32  # cluster tiles of all groups in front of the window
    total: Int32  # cluster tiles of the window
    running: Int32  # this lane's group and those in front of it in the window
    start: Int32  # first row of this lane's group
    end: Int32  # one past its last


class GroupedScheduler(LoopInvariant):
    """Persistent walk over the tiles of groups whose ends, ``offsets`` (E,), only the device knows.

    The list is group after group, and within a group strip after strip as in ``DenseScheduler``, so that CTAs at work together share an expert's weights and rows. Each warp holds 32 groups, one per
    lane: a tile is found by one ballot and four shuffles, and offsets are read once per 32 groups. All 32 lanes must take part in every call.

    ``grouping`` is ``"rows"`` where groups are rows of A and the outputs, ``"steps"`` where they are steps of the sum. Groups of rows are cut into tiles from their beginning; the last tile may be incomplete.
    Groups of steps are cut from their end, the incomplete step comes first: its coordinates are negative in front of the group, where the copy engine reads zeros. So nothing past a group's end is read, and what
    lies in front of it is never seen.

    Offsets that decrease or pass the end of the tensor are read as if cut to what is left: no address outside the tensors results from them.
    """

    def __init__(self, config: GemmConfig, grouping: str, tile_k: int, skip_empty: bool = False):
        self.config, self.rows, self.tile_k, self.skip_empty = config, grouping == "rows", tile_k, skip_empty
        self.equal_steps = self.rows

    @cute.jit
    def cache_policies(self, arguments) -> tuple[None, None]:
        """As those of ``DenseScheduler``: L2 knows best."""
        return None, None

    def arguments(self, m: Int32, n: Int32, groups: Int32, k_tiles: Int32, offsets: cute.Tensor):
        """Host side. ``m``: rows of A; ``k_tiles``: steps along K, over all groups where they divide K."""
        c = self.config
        tiles_m = cute.ceil_div(m, c.tile_m * c.cluster_m)
        tiles_n = cute.ceil_div(n, c.tile_n * c.cluster_n)
        extent = m if cutlass.const_expr(self.rows) else k_tiles * self.tile_k
        return tiles_m, tiles_n, groups, k_tiles, extent, offsets, m

    @cute.jit
    def most_tiles(self, arguments) -> Int32:
        tiles_m, tiles_n, groups = arguments[:3]
        if cutlass.const_expr(self.rows):
            return (tiles_m + groups) * tiles_n
        return tiles_m * tiles_n * groups

    @cute.jit
    def start(self, arguments, index: Int32) -> Window:
        return self._settle(arguments, self._window(arguments, index, Int32(0), Int32(0)))

    def more(self, arguments, place: Window):
        return place.index - place.before < place.total

    @cute.jit
    def advance(self, arguments, place: Window, step: Int32) -> Window:
        return self._settle(arguments, place._replace(index=place.index + step))

    @cute.jit
    def steps(self, arguments, place: Window) -> Int32:
        if cutlass.const_expr(self.equal_steps):
            return arguments[3]
        lane, _ = self._find(place)
        length = cute.arch.shuffle_sync(place.end, lane) - cute.arch.shuffle_sync(place.start, lane)
        return cutlass.max(cute.ceil_div(length, self.tile_k), Int32(1))

    @cute.jit
    def tile(self, arguments, place: Window, cta_m: Int32, cta_n: Int32, part: Int32) -> Tile:
        c = self.config
        lane, rest = self._find(place)
        start = cute.arch.shuffle_sync(place.start, lane)
        length = cute.arch.shuffle_sync(place.end, lane) - start
        group = place.first + lane
        tiles_m = self._tiles_m(arguments, length)
        tile_m, tile_n = strip_order(c, rest, tiles_m, arguments[1])
        row = (tile_m * c.cluster_m + cta_m) * c.tile_m
        column = tile_n * c.cluster_n + cta_n
        if cutlass.const_expr(self.rows):
            return Tile(row, length, column, group, start, start, Int32(0), arguments[3], Int32(0))
        steps = cutlass.max(cute.ceil_div(length, self.tile_k), Int32(1))
        return Tile(row, arguments[6], column, group, start, group, length - steps * self.tile_k, steps, Int32(0))

    @cute.jit
    def _tiles_m(self, arguments, length: Int32) -> Int32:
        if cutlass.const_expr(self.rows):
            return cute.ceil_div(length, self.config.tile_m * self.config.cluster_m)
        return arguments[0]

    @cute.jit
    def _find(self, place: Window) -> tuple[Int32, Int32]:
        """Lane whose group holds the tile, and the tile's index within the group."""
        rest = place.index - place.before
        lane = cute.arch.popc(cute.arch.vote_ballot_sync(place.running <= rest))
        # Lane 0 takes a value it does not use: the running total in front of it is 0.
        in_front = cute.arch.shuffle_sync(place.running, cutlass.max(lane - 1, Int32(0)))
        return lane, rest - (in_front if lane > 0 else Int32(0))

    @cute.jit
    def _window(self, arguments, index: Int32, first: Int32, before: Int32) -> Window:
        """The groups ``first .. first + 31``, of which ``before`` cluster tiles lie in front."""
        _, tiles_n, groups, _, extent, offsets, _ = arguments
        lane = cute.arch.lane_idx()
        group = first + lane
        start, end = Int32(0), Int32(0)
        if group < groups:
            start, end = group_bounds(offsets, group, extent)
        count = self._tiles_m(arguments, end - start) * tiles_n
        if group >= groups:
            count = Int32(0)
        if cutlass.const_expr(self.skip_empty):
            if end == start:
                count = Int32(0)
        running = count
        for i in cutlass.range_constexpr(5):
            other = cute.arch.shuffle_sync_up(running, 1 << i, mask_and_clamp=0)
            if lane >= 1 << i:
                running += other
        return Window(index, first, before, cute.arch.shuffle_sync(running, WARP - 1), running, start, end)

    @cute.jit
    def _settle(self, arguments, place: Window) -> Window:
        """Move the window on until it holds the index, or there are no groups left."""
        groups = arguments[2]
        while place.index - place.before >= place.total and place.first + WARP < groups:
            place = self._window(arguments, place.index, place.first + WARP, place.before + place.total)
        return place
