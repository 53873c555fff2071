"""Drives an epilogue over one warpgroup's accumulators."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from cudnn.cutedsl.epilogue.op import SLAB_VALUES, Epilogue, Place
from cudnn.cutedsl.epilogue.size import RING_SLOTS, Footprint, slab_bytes
from cudnn.cutedsl.gemm.config import SLAB_COLUMNS, SLAB_ROWS, GemmConfig
from cudnn.cutedsl.invariant import LoopInvariant


def footprint(epilogue: Epilogue, config: GemmConfig) -> Footprint:
    parts = sum(part.shared_bytes(config) for part in epilogue.parts)
    widths = [max((op.dtype.width for op in ops), default=0) for ops in (epilogue.stores, epilogue.loads)]
    return Footprint(epilogue.slabs, *widths, len(epilogue.requests(0)), -(-parts // (4 * config.tile_n)))


def shared_bytes(epilogue: Epilogue, config: GemmConfig) -> int:
    """Shared memory of all warpgroups' epilogues."""
    return footprint(epilogue, config).bytes(config)


def barrier_count(epilogue: Epilogue, config: GemmConfig) -> int:
    """mbarriers of all warpgroups' epilogues: one for each slab that can be on its way in."""
    return config.consumer_warpgroups * footprint(epilogue, config).load_slots(config)


@cute.jit
def init_barriers(barriers, count: cutlass.Constexpr):
    """By one warp, before the barriers' first use and the fence that goes with it."""
    with cute.arch.elect_one():
        for i in cutlass.range_constexpr(count):
            cute.arch.mbarrier_init(barriers + i, 1)


class Visit:
    """What a fusion's ``visit`` works on: one row block's ``slabs`` neighbouring slabs of S.

    - ``values``: their accumulators, 16 float32 of this thread for each slab. Register r of a slab belongs to row ``(r // 2) % 2`` of the two rows that the thread has in the
      block, and to column ``2 * (r // 4) + r % 2`` of the eight that it has in the slab.
    - ``position``: which visit of the row this is; ``index``: which of the tile's row.
    - ``scalars``: the run-time scalars; ``parts``: the bound parts, in the fusion's order.
    """

    def __init__(self, driver: EpilogueDriver, block: int, index: int):
        self._driver, self.block, self.index = driver, block, index
        self.place = driver.places[block]
        self.values = driver.values
        self.scalars = driver.scalars
        self.parts = driver.parts
        self.position = self.place.n * driver.visits + index

    def load(self) -> cute.Tensor:
        """The next slab of those that ``requests`` names: 16 float32 in the order of the accumulators. Call it for every slab before the first ``store``."""
        return self._driver.load_next()

    def store(self, output: int, values: cute.Tensor, slab) -> None:
        """Send 16 float32 ``values`` on to slab ``slab`` of the row block in ``stores[output]``."""
        self._driver.store(output, values, self.place, slab)


class EpilogueDriver(LoopInvariant):
    """One warpgroup's rings, and the loop that feeds them.

    *Stores.* Stored slab i of a tile goes to slot i mod RING_SLOTS. Before its store is issued the issuing warp waits until slot i + 1's last reader is through, and one barrier of the
    warpgroup tells everybody both that slab i is complete and that the next slot is free: one barrier a slab. The number of slabs a tile stores is a multiple of the ring, or
    the ring is drained between tiles, so that slot numbers are known when the kernel is compiled.

    *Loads.* Slab i that a tile reads arrives in slot i mod R and completes on that slot's mbarrier. The first R are requested before the tile's mainloop (``prepare``), the others
    each after the barrier of the first store that follows the last read of their slot, by the warp that issues the stores. Slot numbers begin anew with each tile, as all that
    was requested has been read by then; a slot that is used an odd number of times a tile changes its phase from tile to tile, hence ``turn``, the parity of the tile.
    """

    def __init__(self, epilogue: Epilogue, config: GemmConfig, arguments, rows, buffer, barriers, thread, barrier_id):
        self.epilogue, self.config = epilogue, config
        self.warp, self.barrier_id, self.barriers = cute.arch.make_warp_uniform(thread // 32), barrier_id, barriers
        stores, loads, parts, self.scalars = arguments
        size = footprint(epilogue, config)
        slots, bytes_out, bytes_in = size.load_slots(config), slab_bytes(size.store_bits), slab_bytes(size.load_bits)
        self.stores = [op.bind(d, rows, buffer, RING_SLOTS, bytes_out, thread) for op, d in zip(epilogue.stores, stores)]
        buffer = buffer + RING_SLOTS * bytes_out
        self.loads = [op.bind(d, rows, buffer, slots, bytes_in, thread) for op, d in zip(epilogue.loads, loads)]
        buffer = buffer + slots * bytes_in
        self.parts = []
        for part, argument in zip(epilogue.parts, parts):
            self.parts.append(part.bind(argument, config, buffer, thread, barrier_id))
            buffer = buffer + part.shared_bytes(config)
        self.values = [cute.make_rmem_tensor((SLAB_VALUES,), Float32) for _ in range(epilogue.slabs)]
        self.loaded = [cute.make_rmem_tensor((SLAB_VALUES,), Float32) for _ in range(size.loads)]
        self.visits = config.tile_n // (SLAB_COLUMNS * epilogue.slabs)
        self.load_slots, self.loads_per_visit = slots, size.loads
        self.loads_per_tile = config.rows_per_warpgroup // SLAB_ROWS * self.visits * self.loads_per_visit
        self.places: tuple[Place, ...] = ()
        self.turn = None
        self.next_slot = self.requested = self.read = 0

    def prepare(self, places: tuple[Place, ...]) -> None:
        """Before a tile's mainloop: fetch ahead. ``places``: where each of this warpgroup's 64-row blocks of the tile lies."""
        self.places = places
        for part in self.parts:
            part.prepare(places)
        self.requested = self.read = 0
        if self.load_slots:
            self._request_first()

    def run(self, accumulators: cute.Tensor, places: tuple[Place, ...], turn: Int32) -> None:
        """The epilogue of the tile that ``prepare`` was told of. ``turn``: 0 for this warpgroup's first tile, then 1, 0, 1, ..."""
        self.places, self.turn, self.next_slot = places, turn, 0
        slabs = self.epilogue.slabs
        per_block = self.config.tile_n // 2
        for part in self.parts:
            part.begin()
        self._begin_stores()
        for block in range(len(self.places)):
            for index in range(self.visits):
                for i in range(slabs):
                    base = block * per_block + (index * slabs + i) * SLAB_VALUES
                    for r in range(SLAB_VALUES):
                        self.values[i][r] = accumulators[base + r]
                visit = Visit(self, block, index)
                self.epilogue.visit(visit)
            for part in self.parts:
                part.end_block(self.places[block], block)
        if (len(self.places) * self.visits * self.epilogue.stores_per_visit) % RING_SLOTS:
            self.drain()

    @cute.jit
    def _begin_stores(self):
        if self.warp == 0:
            for store in self.stores:
                store.begin(self.places[0])

    @cute.jit
    def _request_first(self):
        if self.warp == 0:
            for i in cutlass.range_constexpr(self.load_slots):
                self._request(i)
        self.requested = self.load_slots

    @cute.jit
    def _request(self, i: cutlass.Constexpr):
        """Ask for slab ``i`` of the tile."""
        block, in_block = divmod(i, self.visits * self.loads_per_visit)
        visit, which = divmod(in_block, self.loads_per_visit)
        place = self.places[block]
        load, column = self.epilogue.requests(place.n * self.visits + visit)[which]
        barrier = self.barriers + i % self.load_slots
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, self.loads[load].op.bytes)
        self.loads[load].issue(i % self.load_slots, place, column, barrier)

    def load_next(self) -> cute.Tensor:
        """Wait for the next slab and read it."""
        i = self.read
        slot, use = i % self.load_slots, i // self.load_slots
        uses = -(-(self.loads_per_tile - slot) // self.load_slots)
        phase = Int32(use % 2) if uses % 2 == 0 else self.turn ^ (use % 2)
        cute.arch.mbarrier_wait(self.barriers + slot, phase)
        load, _ = self.epilogue.requests(0)[i % self.loads_per_visit]
        values = self.loaded[i % self.loads_per_visit]
        self.loads[load].get(slot, values)
        self.read = i + 1
        return values

    @cute.jit
    def store(self, output: cutlass.Constexpr, values, place, slab):
        store, slot = self.stores[output], self.next_slot
        store.put(values, slot)
        cute.arch.fence_proxy("async.shared", space="cta")
        if self.warp == 0:
            cute.arch.cp_async_bulk_wait_group(RING_SLOTS - 2, read=True)
        cute.arch.barrier(barrier_id=self.barrier_id, number_of_threads=128)
        free = min(self.read + self.load_slots, self.loads_per_tile)
        if self.warp == 0:
            for i in cutlass.range_constexpr(self.requested, free):
                self._request(i)
            store.issue(slot, place, slab)
            cute.arch.cp_async_bulk_commit_group()
        self.requested = free
        self.next_slot = (slot + 1) % RING_SLOTS

    @cute.jit
    def drain(self):
        """Wait until shared memory of every issued store has been read."""
        if self.warp == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)
        cute.arch.barrier(barrier_id=self.barrier_id, number_of_threads=128)

    def finish(self) -> None:
        """After the last tile: complete the parts, and wait until every issued store is complete."""
        for part in self.parts:
            part.finish()
        self._finish_stores()

    @cute.jit
    def _finish_stores(self):
        if self.warp == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=False)
