"""Drives an epilogue over one warpgroup's accumulators."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from cudnn.cutedsl.epilogue.op import SLAB_VALUES, Epilogue
from cudnn.cutedsl.gemm.config import SLAB_COLUMNS, GemmConfig
from cudnn.cutedsl.invariant import LoopInvariant

RING_SLOTS = 4


def ring_bytes(epilogue: Epilogue, config: GemmConfig) -> int:
    """Shared memory of all warpgroups' rings."""
    return config.consumer_warpgroups * RING_SLOTS * slot_bytes(epilogue)


def slot_bytes(epilogue: Epilogue) -> int:
    return max(op.bytes for op in epilogue.outputs)


class EpilogueDriver(LoopInvariant):
    """One warpgroup's ring of ``RING_SLOTS`` slabs, and the loop that feeds it.

    Slab i goes to slot i mod RING_SLOTS. Before its store is issued the issuing warp waits until slot i + 1's last reader is through, and one barrier of the warpgroup tells everybody both that slab i is complete and
    that the next slot is free: one barrier a slab. The number of slabs a tile stores is a multiple of the ring, or the ring is drained between tiles, so that slot numbers are known when the kernel is compiled.
    """

    def __init__(self, epilogue: Epilogue, config: GemmConfig, descriptors, buffer, thread, warp_in_group, barrier_id):
        self.epilogue, self.config = epilogue, config
        self.warp, self.barrier_id = warp_in_group, barrier_id
        self.stores = [op.bind(d, buffer, RING_SLOTS, slot_bytes(epilogue), thread) for op, d in zip(epilogue.outputs, descriptors)]
        self.values = [cute.make_rmem_tensor((SLAB_VALUES,), Float32) for _ in range(epilogue.slabs)]
        self.result = cute.make_rmem_tensor((SLAB_VALUES,), Float32)
        self.next_slot = 0

    def run(self, accumulators: cute.Tensor, scalars, row_blocks, column: Int32, batch: Int32) -> None:
        """``row_blocks``: index of the 64-row block each of this warpgroup's accumulator blocks belongs to; ``column``: first slab of the tile."""
        self.next_slot = 0
        visits = self.config.tile_n // (SLAB_COLUMNS * self.epilogue.slabs)
        per_block = self.config.tile_n // 2
        for block, row in enumerate(row_blocks):
            for visit in range(visits):
                for i in range(self.epilogue.slabs):
                    base = block * per_block + (visit * self.epilogue.slabs + i) * SLAB_VALUES
                    for v in range(SLAB_VALUES):
                        self.values[i][v] = accumulators[base + v]

                def store(output: int, values, slab: Int32, row=row) -> None:
                    self._store(output, values, row, slab, batch)

                self.epilogue.visit(self.values, column // self.epilogue.slabs + visit, scalars, store)
        if (len(row_blocks) * visits * self.epilogue.stores_per_visit) % RING_SLOTS:
            self.drain()

    @cute.jit
    def _store(self, output: cutlass.Constexpr, values, row, slab, batch):
        store, slot = self.stores[output], self.next_slot
        store.put(values, slot)
        cute.arch.fence_proxy("async.shared", space="cta")
        if self.warp == 0:
            cute.arch.cp_async_bulk_wait_group(RING_SLOTS - 2, read=True)
        cute.arch.barrier(barrier_id=self.barrier_id, number_of_threads=128)
        if self.warp == 0:
            store.issue(slot, row, slab, batch)
            cute.arch.cp_async_bulk_commit_group()
        self.next_slot = (slot + 1) % RING_SLOTS

    @cute.jit
    def drain(self):
        """Wait until shared memory of every issued store has been read."""
        if self.warp == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)
        cute.arch.barrier(barrier_id=self.barrier_id, number_of_threads=128)

    @cute.jit
    def finish(self):
        """Wait until every issued store is complete."""
        if self.warp == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=False)
