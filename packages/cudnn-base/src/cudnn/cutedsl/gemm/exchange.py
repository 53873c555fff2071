"""Sums of what shares a tile's steps along K: of the CTAs of a cluster, and of the sets of consumers of a CTA, which leave their parts in one CTA's shared memory."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from cudnn.cutedsl.invariant import LoopInvariant

EXCHANGE_BARRIER = 5  # named barriers, one per consumer warpgroup
JOIN_BARRIER = 7  # two per consumer warpgroup of a set
VECTOR = 4  # float32 values of one remote store


def share(steps: Int32, part: Int32, parts: int) -> tuple[Int32, Int32]:
    """(first, count) of the steps along K that CTA ``part`` of ``parts`` takes; count may be 0."""
    if parts == 1:
        return Int32(0), steps
    first = steps * part // parts
    return first, steps * (part + 1) // parts - first


def place_of(buffer, values: int, chunk: int, thread: Int32, consumer: Int32):
    """Where thread ``thread`` of warpgroup ``consumer`` leaves its values 4 chunk ... 4 chunk + 3 of ``values``: neighbouring threads side by side, so no bank conflicts."""
    index = (consumer * (values // VECTOR) + chunk) * 128 + thread
    return buffer + cute.assume(index * VECTOR, divby=VECTOR)


class Exchange(LoopInvariant):
    """Part 0 of a cluster ends with the sum of what its parts have accumulated, added in the same order every time: parts one apart, then parts two apart, then four.

    A part has room for one sum. It is sent one in each round, until it sends its own to the part in front, with remote stores. Each consumer warpgroup has its own two barriers: *full* completes when a sum's bytes
    have arrived (remote stores count them), once for each sum; *free* completes when the part in front has read what was there, once for each tile. No memory outside the cluster, no atomics.
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

    def _sums(self) -> Int32:
        """How many sums this part is sent for a tile."""
        count = Int32(0)
        for rounds in range(1, self.parts.bit_length()):
            count = cutlass.select_(self.part % (1 << rounds) == 0, Int32(rounds), count)
        return count

    @cute.jit
    def reduce(self, accumulators: cute.Tensor, thread: Int32, consumer: Int32, turn: Int32) -> Int32:
        """Part 0: ``accumulators`` become the sum over the parts. Others: theirs are sent. ``turn`` counts tiles; returns the next."""
        sums = self._sums()
        for index in cutlass.range_constexpr(self.parts.bit_length() - 1):
            distance = 1 << index
            if self.part % (2 * distance) == 0:
                self._receive(accumulators, thread, consumer, turn * sums + index)
                # The next sum comes from twice as far, or it is the next tile's first.
                following = cutlass.select_(sums > index + 1, self.part + 2 * distance, self.part + 1)
                if thread == 0:
                    cute.arch.mbarrier_arrive(self.barriers + self.consumers + consumer, following)
            elif self.part % (2 * distance) == distance:
                # For the first round the phase before the first counts as complete: there is room when the kernel begins.
                self._send(accumulators, thread, consumer, self.part - distance, (turn & 1) ^ (1 if distance == 1 else 0))
        return turn + 1

    @cute.jit
    def _receive(self, accumulators: cute.Tensor, thread: Int32, consumer: Int32, count: Int32):
        """Add sum number ``count`` of those that this part is ever sent."""
        full = self.barriers + consumer
        if thread == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(full, self.values * 128 * 4)
        cute.arch.mbarrier_wait(full, count & 1)
        received = cute.make_rmem_tensor((VECTOR,), Float32)
        for chunk in cutlass.range_constexpr(self.values // VECTOR):
            cute.autovec_copy(cute.make_tensor(place_of(self.buffer, self.values, chunk, thread, consumer), cute.make_layout(VECTOR)), received)
            for v in cutlass.range_constexpr(VECTOR):
                accumulators[chunk * VECTOR + v] = accumulators[chunk * VECTOR + v] + received[v]
        # All of the warpgroup must have read before anybody may write there again.
        cute.arch.barrier(barrier_id=EXCHANGE_BARRIER + consumer, number_of_threads=128)

    @cute.jit
    def _send(self, accumulators: cute.Tensor, thread: Int32, consumer: Int32, to: Int32, parity: Int32):
        cute.arch.mbarrier_wait(self.barriers + self.consumers + consumer, parity)
        bits = cute.recast_tensor(accumulators, Int32)
        for chunk in cutlass.range_constexpr(self.values // VECTOR):
            base = chunk * VECTOR
            cute.arch.store_async_dsmem(
                place_of(self.buffer, self.values, chunk, thread, consumer),
                (bits[base], bits[base + 1], bits[base + 2], bits[base + 3]),
                self.barriers + consumer,
                to,
            )

    @cute.jit
    def finish(self):
        """Nobody leaves while somebody may still write to its shared memory."""
        cute.arch.cluster_arrive_relaxed()
        cute.arch.cluster_wait()


class Join(LoopInvariant):
    """The sum of two sets of consumers of one CTA, of which each has taken every other step: the second leaves its own in shared memory, and the first adds it. A warpgroup of one set and the one of the other that has the same rows
    of the tile meet at two named barriers: when the sum is there, and when it has been read."""

    def __init__(self, kernel, buffer):
        config = kernel.config
        self.consumers, self.buffer = kernel.consumers, buffer
        self.values = config.rows_per_warpgroup * config.tile_n // 128  # of one thread

    @cute.jit
    def reduce(self, accumulators: cute.Tensor, thread: Int32, consumer: Int32, k_group: Int32):
        there, read = JOIN_BARRIER + consumer, JOIN_BARRIER + self.consumers + consumer
        vector = cute.make_rmem_tensor((VECTOR,), Float32)
        if k_group == 1:
            for chunk in cutlass.range_constexpr(self.values // VECTOR):
                for v in cutlass.range_constexpr(VECTOR):
                    vector[v] = accumulators[chunk * VECTOR + v]
                cute.autovec_copy(vector, self._at(chunk, thread, consumer))
            cute.arch.barrier_arrive(barrier_id=there, number_of_threads=256)
            cute.arch.barrier(barrier_id=read, number_of_threads=256)
        else:
            cute.arch.barrier(barrier_id=there, number_of_threads=256)
            for chunk in cutlass.range_constexpr(self.values // VECTOR):
                cute.autovec_copy(self._at(chunk, thread, consumer), vector)
                for v in cutlass.range_constexpr(VECTOR):
                    accumulators[chunk * VECTOR + v] = accumulators[chunk * VECTOR + v] + vector[v]
            cute.arch.barrier_arrive(barrier_id=read, number_of_threads=256)

    def _at(self, chunk: int, thread: Int32, consumer: Int32) -> cute.Tensor:
        return cute.make_tensor(place_of(self.buffer, self.values, chunk, thread, consumer), cute.make_layout(VECTOR))
