"""Sums over a cluster: the CTAs that share a tile's steps along K add their parts in one CTA's shared memory."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from cudnn.cutedsl.invariant import LoopInvariant

EXCHANGE_BARRIER = 5  # named barriers, one per consumer warpgroup
VECTOR = 4  # float32 values of one remote store


def share(steps: Int32, part: Int32, parts: int) -> tuple[Int32, Int32]:
    """(first, count) of the steps along K that CTA ``part`` of ``parts`` takes; count may be 0."""
    if parts == 1:
        return Int32(0), steps
    first = steps * part // parts
    return first, steps * (part + 1) // parts - first


class Exchange(LoopInvariant):
    """Part 0 of a cluster collects what parts 1, 2, ... have accumulated and adds it in that order, so that a sum is the same every time.

    Each consumer warpgroup has its own two barriers: *full*, in part 0, completes when all parts' bytes of a tile have arrived (remote stores count them); *free*, in every other part, completes when part 0
    has read the tile before. No memory outside the cluster, no atomics.
    """

    def __init__(self, kernel, buffer, barriers, part: Int32):
        config = kernel.config
        self.parts, self.part = config.split_k, part
        self.consumers = kernel.consumers
        self.values = config.rows_per_warpgroup * config.tile_n // 128  # of one thread
        self.buffer, self.barriers = buffer, barriers

    @cute.jit
    def init(self, warp: Int32):
        if warp == 0:
            with cute.arch.elect_one():
                for i in cutlass.range_constexpr(2 * self.consumers):
                    cute.arch.mbarrier_init(self.barriers + i, 1)
        cute.arch.mbarrier_init_fence()

    def _at(self, part, chunk: int, thread: Int32, consumer: Int32):
        """Where thread ``thread`` of warpgroup ``consumer`` of ``part`` (from 1) leaves values 4 chunk ... 4 chunk + 3: neighbouring threads side by side, so no bank conflicts."""
        chunks = self.values // VECTOR
        index = (((part - 1) * self.consumers + consumer) * chunks + chunk) * 128 + thread
        return self.buffer + cute.assume(index * VECTOR, divby=VECTOR)

    @cute.jit
    def reduce(self, accumulators: cute.Tensor, thread: Int32, consumer: Int32, turn: Int32) -> Int32:
        """Part 0: ``accumulators`` become the sum over the parts. Others: theirs are sent. ``turn`` counts tiles; returns the next."""
        full, free = self.barriers + consumer, self.barriers + self.consumers + consumer
        if self.part == 0:
            if thread == 0:
                cute.arch.mbarrier_arrive_and_expect_tx(full, (self.parts - 1) * self.values * 128 * 4)
            cute.arch.mbarrier_wait(full, turn & 1)
            received = cute.make_rmem_tensor((VECTOR,), Float32)
            for part in cutlass.range_constexpr(1, self.parts):
                for chunk in cutlass.range_constexpr(self.values // VECTOR):
                    cute.autovec_copy(cute.make_tensor(self._at(part, chunk, thread, consumer), cute.make_layout(VECTOR)), received)
                    for v in cutlass.range_constexpr(VECTOR):
                        accumulators[chunk * VECTOR + v] = accumulators[chunk * VECTOR + v] + received[v]
            # All of the warpgroup must have read before any part may write again.
            cute.arch.barrier(barrier_id=EXCHANGE_BARRIER + consumer, number_of_threads=128)
            if thread > 0 and thread < self.parts:
                cute.arch.mbarrier_arrive(free, thread)
        else:
            # The first wait is for the phase before the first, which counts as complete.
            cute.arch.mbarrier_wait(free, (turn & 1) ^ 1)
            bits = cute.recast_tensor(accumulators, Int32)
            for chunk in cutlass.range_constexpr(self.values // VECTOR):
                base = chunk * VECTOR
                cute.arch.store_async_dsmem(self._at(self.part, chunk, thread, consumer), (bits[base], bits[base + 1], bits[base + 2], bits[base + 3]), full, 0)
        return turn + 1

    @cute.jit
    def finish(self, consumer: Int32, turn: Int32):
        """A part stays until part 0 has read its last values: part 0 signals in this CTA's shared memory then."""
        if self.part > 0:
            cute.arch.mbarrier_wait(self.barriers + self.consumers + consumer, (turn & 1) ^ 1)
