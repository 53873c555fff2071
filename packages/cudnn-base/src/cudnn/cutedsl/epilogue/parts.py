"""Parts of an epilogue that are no matrices: factors per row, vectors along columns, sums over rows and columns, the largest magnitude.

A part has a host half, which names the caller's tensors, and a bound half on the device, whose hooks the driver calls in this order: ``prepare`` before a tile's mainloop, ``begin`` after it,
``end_block`` after the last visit of each of its 64-row blocks, and once, after the last tile, ``finish``. The fusion's ``visit`` calls what else the bound half has.

A thread of a warpgroup holds 2 rows of a 64-row block (register r of a slab: row ``r // 2 % 2``) and 8 columns of a slab (column ``2 * (r // 4) + r % 2``).
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from cudnn.cutedsl.epilogue.reduce import SumParts
from cudnn.cutedsl.gemm.config import SLAB_COLUMNS, SLAB_ROWS, GemmConfig
from cudnn.cutedsl.invariant import LoopInvariant

WARPS = 4


def row_of(place, thread, which: int) -> Int32:
    """Row number ``which`` (0 or 1) of ``thread`` in the block at ``place``."""
    return place.row + thread // 32 * 16 + thread % 32 // 4 + 8 * which


def has_row(place, row):
    return (row >= 0) & (row < place.rows)


def of_halves(column, columns):
    """(column, whether it exists) in a tensor of ``columns`` whose halves take turns in blocks of 32, the last of which may be shorter, to give what number ``column`` is counted in."""
    within, half = column // 64 * 32 + column % 32, columns // 2
    return within + column // 32 % 2 * half, within < half


@cute.jit
def read_if(tensor, coordinate, exists) -> Float32:
    """``tensor[coordinate]`` in float32 where it ``exists``, else 0."""
    value = Float32(0.0)
    if exists:
        value = tensor[coordinate].to(Float32)
    return value


class Part(LoopInvariant):
    """Host half of a part that reads the caller's tensor number ``tensor`` and nothing else."""

    def __init__(self, tensor: int):
        self.tensor = tensor

    def shared_bytes(self, config: GemmConfig) -> int:
        """Shared memory of one warpgroup."""
        return 0

    def argument(self, tensors):
        """Host side: what of the caller's tensors the kernel is given."""
        return tensors[self.tensor]

    def afterwards(self, tensors, offsets, stream) -> None:
        """Host side: launches that follow the kernel's. ``offsets``: ends of the groups, None without groups."""

    def bind(self, argument, config: GemmConfig, buffer, thread, barrier_id):
        """Device side. ``buffer``: this warpgroup's shared memory; ``thread``: within the warpgroup."""
        raise TypeError(f"{type(self).__name__} defines no bind")


class BoundPart(LoopInvariant):
    """Device half: hooks that do nothing."""

    def prepare(self, places) -> None:
        pass

    def begin(self) -> None:
        pass

    def end_block(self, place, block: int) -> None:
        pass

    def finish(self) -> None:
        pass


class RowVector(Part):
    """A value per row, tensor (M, 1, L), (M, L) or (M,): read before the mainloop, 0 for rows that do not exist."""

    def bind(self, argument, config, buffer, thread, barrier_id):
        return BoundRowVector(argument, config, thread)


class BoundRowVector(BoundPart):
    def __init__(self, tensor, config: GemmConfig, thread):
        self.tensor, self.thread = tensor, thread
        self.held = cute.make_rmem_tensor((config.rows_per_warpgroup // SLAB_ROWS * 2,), Float32)

    def prepare(self, places) -> None:
        rank = cute.rank(self.tensor)
        for block, place in enumerate(places):
            for which in range(2):
                row = row_of(place, self.thread, which)
                coordinate = (row, 0, place.plane) if rank == 3 else (row, place.plane)[:rank]
                self.held[2 * block + which] = read_if(self.tensor, coordinate, has_row(place, row))

    def at(self, visit, register: int) -> Float32:
        """The value of register ``register`` of the visit's slabs."""
        return self.held[2 * visit.block + register // 2 % 2]


class ColumnVector(Part):
    """A vector along N, tensor (N,) or (N, L): staged in shared memory before the mainloop, 0 for columns that do not exist.

    ``halves``: the columns of S take turns in blocks of 32 from the two halves of the vector, as a tile's do from two weight halves.
    """

    def __init__(self, tensor: int, halves: bool = False):
        super().__init__(tensor)
        self.halves = halves

    def shared_bytes(self, config: GemmConfig) -> int:
        return config.tile_n * 4

    def bind(self, argument, config, buffer, thread, barrier_id):
        return BoundColumnVector(self, argument, config, buffer, thread, barrier_id)


class BoundColumnVector(BoundPart):
    def __init__(self, part: ColumnVector, tensor, config: GemmConfig, buffer, thread, barrier_id):
        self.part, self.tensor, self.config, self.thread, self.barrier_id = part, tensor, config, thread, barrier_id
        self.staged = cute.make_tensor(cute.recast_ptr(buffer, dtype=Float32), cute.make_layout(config.tile_n))
        self.held = cute.make_rmem_tensor((2, SLAB_COLUMNS // 8), Float32)

    @cute.jit
    def prepare(self, places):
        # The last barrier of the tile before came after everybody's last read.
        place = places[0]
        for i in cutlass.range_constexpr(cute.ceil_div(self.config.tile_n, 128)):
            local = self.thread + i * 128
            column = place.n * self.config.tile_n + local
            if local < self.config.tile_n:
                source, exists = column, column < place.columns
                if cutlass.const_expr(self.part.halves):
                    source, exists = of_halves(column, place.columns)
                self.staged[local] = read_if(self.tensor, (source, place.group)[: cute.rank(self.tensor)], exists)

    def begin(self) -> None:
        cute.arch.barrier(barrier_id=self.barrier_id, number_of_threads=128)

    def of(self, visit, slab: int = 0) -> cute.Tensor:
        """The vector along slab ``slab`` of the visit: (2, 4) values, register r's is ``[r % 2, r // 4]``."""
        first = (visit.index * len(visit.values) + slab) * SLAB_COLUMNS
        source = cute.make_tensor(self.staged.iterator + first, cute.make_layout((2, 4, SLAB_COLUMNS // 8), stride=(1, 2, 8)))[(None, self.thread % 4, None)]
        cute.autovec_copy(source, self.held)
        return self.held


class RowSum(Part):
    """target[m, 0, l] += sum over n of what ``add`` is given, tensor (M, 1, L) in float32.

    Without ``partials`` by atomic additions, in whatever order the tiles finish. With it, the index of a tensor (tiles along N, M, L) whose content does not matter, each tile writes its own sum there,
    and a second kernel adds them up in order: the same bits every time.
    """

    def __init__(self, tensor: int, partials: int | None = None):
        super().__init__(tensor)
        self.partials = partials

    def argument(self, tensors):
        return tensors[self.tensor if self.partials is None else self.partials]

    @cute.jit
    def afterwards(self, tensors, offsets, stream):
        if cutlass.const_expr(self.partials is not None):
            SumParts()(tensors[self.partials], tensors[self.tensor], stream)

    def bind(self, argument, config, buffer, thread, barrier_id):
        return BoundRowSum(self, argument, config, thread)


class BoundRowSum(BoundPart):
    def __init__(self, part: RowSum, tensor, config: GemmConfig, thread):
        self.part, self.tensor, self.thread = part, tensor, thread
        self.sums = cute.make_rmem_tensor((config.rows_per_warpgroup // SLAB_ROWS * 2,), Float32)

    def begin(self) -> None:
        self.sums.fill(0.0)

    def add(self, visit, register: int, value: Float32) -> None:
        """Add ``value`` to the sum of the row of register ``register``."""
        i = 2 * visit.block + register // 2 % 2
        self.sums[i] = self.sums[i] + value

    def end_block(self, place, block: int) -> None:
        for which in range(2):
            self._write(place, row_of(place, self.thread, which), self.sums[2 * block + which])

    @cute.jit
    def _write(self, place, row, value):
        # Four neighbouring lanes share a row.
        value += cute.arch.shuffle_sync_bfly(value, 1)
        value += cute.arch.shuffle_sync_bfly(value, 2)
        if (self.thread % 4 == 0) & has_row(place, row):
            if cutlass.const_expr(self.part.partials is None):
                cute.arch.atomic_add(element(self.tensor, (row, 0, place.plane)), value)
            else:
                # A cluster may reach past the last tile.
                if place.n < self.tensor.shape[0]:
                    self.tensor[(place.n, row, place.plane)] = value


class ColumnSum(Part):
    """target[n, l] += sum over m of what ``add`` is given, tensor (columns, L) in float32.

    ``slabs``: how many slabs of columns a visit adds to; ``visit_slabs``: how many slabs of S it takes. ``halves``: the slabs of a visit are one of each half of the target's columns,
    instead of neighbours. ``partials``: as in ``RowSum``, a tensor (64-row blocks along M, columns, L); without it sums are added atomically.
    """

    def __init__(self, tensor: int, slabs: int = 1, visit_slabs: int = 1, halves: bool = False, partials: int | None = None):
        super().__init__(tensor)
        self.slabs, self.visit_slabs, self.halves, self.partials = slabs, visit_slabs, halves, partials

    def columns(self, config: GemmConfig) -> int:
        """Columns of sums of one tile."""
        return config.tile_n * self.slabs // self.visit_slabs

    def shared_bytes(self, config: GemmConfig) -> int:
        return WARPS * self.columns(config) * 4

    def partial_at(self, place, column):
        """Where the sum of the block at ``place`` goes in ``partials``."""
        return (place.row // SLAB_ROWS, column, place.group)

    def argument(self, tensors):
        return tensors[self.tensor if self.partials is None else self.partials]

    @cute.jit
    def afterwards(self, tensors, offsets, stream):
        if cutlass.const_expr(self.partials is not None):
            SumParts()(tensors[self.partials], tensors[self.tensor], stream)

    def bind(self, argument, config, buffer, thread, barrier_id):
        return BoundColumnSum(self, argument, config, buffer, thread, barrier_id)


class BoundColumnSum(BoundPart):
    def __init__(self, part: ColumnSum, tensor, config: GemmConfig, buffer, thread, barrier_id):
        self.part, self.tensor, self.thread, self.barrier_id = part, tensor, thread, barrier_id
        self.columns = part.columns(config)
        # One line of sums for each warp's 16 rows.
        self.staged = cute.make_tensor(cute.recast_ptr(buffer, dtype=Float32), cute.make_layout((WARPS, self.columns), stride=(self.columns, 1)))

    def add(self, visit, slab: int, values: cute.Tensor) -> None:
        """Add 16 float32 ``values`` to the columns of slab ``slab`` of the visit, once for each. Those of rows that do not exist have to be 0."""
        sums = [values[4 * j + c] + values[4 * j + 2 + c] for j in range(SLAB_COLUMNS // 8) for c in range(2)]
        # Eight lanes share eight columns: each exchange halves the columns that a lane answers for.
        for distance in (16, 8, 4):
            upper = (self.thread // distance) % 2 == 1
            half = len(sums) // 2
            sums = [
                cutlass.select_(upper, sums[half + i], sums[i]) + cute.arch.shuffle_sync_bfly(cutlass.select_(upper, sums[i], sums[half + i]), distance)
                for i in range(half)
            ]
        own = self.thread // 16 % 2 * 4 + self.thread // 8 % 2 * 2 + self.thread // 4 % 2
        column = own // 2 * 8 + self.thread % 4 * 2 + own % 2
        self.staged[self.thread // 32, (visit.index * self.part.slabs + slab) * SLAB_COLUMNS + column] = sums[0]

    @cute.jit
    def end_block(self, place, block: cutlass.Constexpr):
        cute.arch.barrier(barrier_id=self.barrier_id, number_of_threads=128)
        for i in cutlass.range_constexpr(cute.ceil_div(self.columns, 128)):
            local = self.thread + i * 128
            column, columns = place.n * self.columns + local, place.columns * self.part.slabs // self.part.visit_slabs
            exists = column < columns
            if cutlass.const_expr(self.part.halves):
                column, exists = of_halves(column, columns)
            if (local < self.columns) & exists:
                total = (self.staged[0, local] + self.staged[1, local]) + (self.staged[2, local] + self.staged[3, local])
                if cutlass.const_expr(self.part.partials is None):
                    cute.arch.atomic_add(element(self.tensor, (column, place.group)), total)
                else:
                    if place.row < place.rows:
                        self.tensor[self.part.partial_at(place, column)] = total
        # The next block writes where this one is read.
        cute.arch.barrier(barrier_id=self.barrier_id, number_of_threads=128)


class Amax(Part):
    """buffer[0] = max(buffer[0], the largest magnitude that ``add`` is given), tensor of one float32 and any rank. Exact and the same in any order."""

    def bind(self, argument, config, buffer, thread, barrier_id):
        return BoundAmax(argument, thread)


class BoundAmax(BoundPart):
    def __init__(self, tensor, thread):
        self.tensor, self.thread = tensor, thread
        self.largest = cute.make_rmem_tensor((1,), Float32)
        self.largest.fill(0.0)

    def add(self, values: cute.Tensor) -> None:
        """Take 16 float32 ``values`` into account."""
        largest = self.largest[0]
        for r in range(cute.size(values)):
            largest = cute.arch.fmax(largest, absolute(values[r]))
        self.largest[0] = largest

    @cute.jit
    def finish(self):
        largest = cute.arch.warp_reduction_max(self.largest[0])
        if self.thread % 32 == 0:
            # Of floats that are not negative the bits, as integers, are in the same order; and those of every negative float, -inf among them, are negative.
            cute.arch.atomic_fmax(element(self.tensor, (0,) * cute.rank(self.tensor)), largest, sign_bit=False)


def absolute(x: Float32) -> Float32:
    return cute.math.abs(x)


def element(tensor: cute.Tensor, coordinate):
    """Address of one element."""
    return cute.domain_offset(coordinate, tensor).iterator
