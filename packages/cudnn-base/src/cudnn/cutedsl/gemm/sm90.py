"""The Hopper GEMM kernel: persistent, warp-specialised, TMA in, WGMMA, TMA out. The only mainloop in the project for this architecture."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
from cutlass import Int32
from cutlass.cute.nvgpu import warpgroup
from cutlass.memory import SmemAllocator

from cudnn.cutedsl.epilogue.driver import EpilogueDriver, barrier_count, init_barriers, shared_bytes
from cudnn.cutedsl.epilogue.op import Epilogue, Place
from cudnn.cutedsl.gemm import mma
from cudnn.cutedsl.gemm.config import SLAB_ROWS, GemmConfig
from cudnn.cutedsl.gemm.exchange import Exchange, Join
from cudnn.cutedsl.gemm.operands import source_for
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.cutedsl.gemm.scheduler import DenseScheduler, GroupedScheduler, step_at
from cudnn.cutedsl.invariant import LoopInvariant

WARPGROUP, WARPS = 128, 4
PRODUCER_REGISTERS = 40
MOST_REGISTERS = 232  # that a consumer asks for
# Named barriers; 0 is sync_threads.
EPILOGUE_BARRIER, ORDER_BARRIER = 1, 3


def consumer_registers(consumers: int, converters: int) -> int:
    """Registers of a consumer's threads: what a launch of so many warpgroups gives each, and its share of what the producer gives back. Converters keep theirs. Who asks for more than is given back waits forever."""
    launched = min(65536 // ((1 + consumers + converters) * WARPGROUP), 255) // 8 * 8
    return min(launched + (launched - PRODUCER_REGISTERS) // consumers // 8 * 8, MOST_REGISTERS)


class GemmSm90(LoopInvariant):
    """S = A Bᵀ on compute capability 9.0, tile by tile, every tile handed to an epilogue.

    | role | who | does |
    |---|---|---|
    | producer | warp 0 of warpgroup 0 | waits for an empty stage, issues the copies of one step along K |
    | consumer | warpgroups 1 and 2 (1 alone for 64-row tiles; 3 and 4 too with ``k_groups`` 2, for every other step) | waits for a full stage, issues WGMMA, releases the stage before; then the epilogue |

    Cooperative: both consumers work on one tile, 64 rows (or blocks of 64 rows in turn) each. Pingpong: consumer w takes every second tile of the CTA's list and the matrix
    cores are passed on between the two in list order, so that one's epilogue runs while the other multiplies.

    | pipeline | stages | producer arrives | consumer arrives |
    |---|---|---|---|
    | operands | what shared memory holds | 1, plus the bytes of A and B | one lane per warp that reads the stage, per CTA that shares A or B with this one |
    | stored slabs (per consumer) | RING_SLOTS | bulk groups of the warpgroup's warp 0 | named barrier of the warpgroup |
    | loaded slabs (per consumer) | LOAD_SLOTS at most | 1, plus the bytes of the slab | named barrier of the warpgroup |
    """

    def __init__(self, problem: GemmProblem, config: GemmConfig, epilogue: Epilogue, a_dtype, b_dtype, acc_dtype):
        self.problem, self.config, self.epilogue = problem, config, epilogue
        self.a_dtype, self.b_dtype, self.acc_dtype = a_dtype, b_dtype, acc_dtype
        self.epilogue_bytes, self.epilogue_barriers = shared_bytes(epilogue, config), barrier_count(epilogue, config)
        reason = config.supports(problem, epilogue_bytes=self.epilogue_bytes, columns_per_visit=32 * epilogue.slabs)
        if reason is not None:
            raise ValueError(f"config {config}: {reason}")
        self.stages = config.stages_for(problem, self.epilogue_bytes)
        self.operands = source_for(problem)(problem, config, a_dtype, b_dtype, self.stages)
        self.converters = config.converter_warpgroups
        if problem.grouping == "dense":
            self.scheduler = DenseScheduler(config, self.operands.tile_k)
        else:
            # A group of no steps has nothing to add.
            self.scheduler = GroupedScheduler(config, problem.grouping, self.operands.tile_k, skip_empty=any(op.adds for op in epilogue.stores))
        self.consumers = config.consumer_warpgroups
        self.k_groups = config.k_groups
        self.threads = (1 + self.consumers * self.k_groups + self.converters) * WARPGROUP
        self.cluster = config.cluster_size
        self.consumer_registers = consumer_registers(self.consumers * self.k_groups, self.converters)
        self.exchange_values = config.exchange_bytes // 4
        self.join_values = config.join_bytes // 4
        self.raw_bytes = self.stages * self.operands.raw_bytes()

    @cute.jit
    def __call__(self, operands, tensors, scalars, max_clusters: Int32, stream):
        """Build descriptors and launch. ``operands``: the source's, in the caller's order; ``tensors``, ``scalars``: what the epilogue takes; ``max_clusters``: clusters that fit on the device at once."""
        source = self.operands
        operands = source.placed(operands)
        m, n, k, batches = source.extents(operands)
        schedule = self.scheduler.arguments(m, n, batches, cute.ceil_div(k, source.tile_k), source.offsets(operands))
        loads = source.descriptors(operands)
        tensors = tuple(source.rows.planes_of(spec, tensor) for spec, tensor in zip(self.epilogue.tensors, tensors))
        fusion = self.epilogue.arguments(tensors, scalars, source.rows, (m, n))
        a_layout, b_layout = source.smem_layouts()

        @cute.struct
        class Storage:
            barriers: cute.struct.MemRange[cutlass.Int64, self.stages * (3 if self.converters else 2)]
            a: cute.struct.Align[cute.struct.MemRange[source.a_stored, cute.cosize(a_layout)], 1024]
            b: cute.struct.Align[cute.struct.MemRange[self.b_dtype, cute.cosize(b_layout)], 1024]
            ring: cute.struct.Align[cute.struct.MemRange[cutlass.Uint8, self.epilogue_bytes], 1024]
            ring_barriers: cute.struct.MemRange[cutlass.Int64, self.epilogue_barriers]
            exchange_barriers: cute.struct.MemRange[cutlass.Int64, 2 * self.consumers]
            exchange: cute.struct.Align[cute.struct.MemRange[cutlass.Float32, self.exchange_values], 128]
            join: cute.struct.Align[cute.struct.MemRange[cutlass.Float32, self.join_values], 128]
            raw: cute.struct.Align[cute.struct.MemRange[cutlass.Uint8, self.raw_bytes], 1024 if self.converters else 128]

        self.storage = Storage
        clusters = cutlass.min(self.scheduler.most_tiles(schedule), max_clusters)
        source.write_maps(operands, loads, stream)
        self.epilogue.beforehand(tensors, fusion, (m, n), stream)
        self.kernel(loads, source.table(operands), fusion, a_layout, b_layout, schedule, n).launch(
            grid=[clusters * self.cluster, 1, 1],
            block=[self.threads, 1, 1],
            cluster=[self.cluster, 1, 1],
            min_blocks_per_mp=1,
            stream=stream,
        )
        self.epilogue.afterwards(tensors, source.offsets(operands), stream)

    @cute.kernel
    def kernel(
        self,
        loads,
        table,
        fusion,
        a_layout: cute.ComposedLayout,
        b_layout: cute.ComposedLayout,
        schedule,
        columns: Int32,
    ):
        config = self.config
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        group = cute.arch.make_warp_uniform(thread // WARPGROUP)
        if warp == 0:
            self.operands.prefetch(loads)

        cta_layout = cute.make_layout((config.cluster_m, config.cluster_n, 1))
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster()) if cutlass.const_expr(self.cluster > 1) else Int32(0)
        part, cta_m, cta_n = Int32(0), Int32(0), Int32(0)
        if cutlass.const_expr(config.split_k > 1):
            part = rank
        else:
            cta_n = rank // config.cluster_m
            cta_m = rank - cta_n * config.cluster_m

        storage = SmemAllocator().allocate(self.storage)
        readers = 1 if cutlass.const_expr(config.pingpong) else self.consumers
        ab = pipeline.PipelineTmaAsync.create(
            barrier_storage=storage.barriers.data_ptr(),
            num_stages=self.stages,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 1 + WARPS * self.converters),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, (config.cluster_m + config.cluster_n - 1) * readers * 4),
            tx_count=self.operands.stage_bytes(),
            cta_layout_vmnk=cute.make_layout((1, config.cluster_m, config.cluster_n, config.split_k)),
            defer_sync=True,
        )
        if cutlass.const_expr(self.epilogue_barriers > 0):
            if warp == 0:
                init_barriers(storage.ring_barriers.data_ptr(), self.epilogue_barriers)
        staged = None
        if cutlass.const_expr(self.converters > 0):
            arrival = storage.barriers.data_ptr() + 2 * self.stages
            staged = self.operands.staged(storage.raw, arrival)
            if warp == 0:
                init_barriers(arrival, self.stages)
        exchange = None
        if cutlass.const_expr(config.split_k > 1):
            exchange = Exchange(self, storage.exchange.data_ptr(), storage.exchange_barriers.data_ptr(), part)
            exchange.init(warp)
        join = Join(self, storage.join.data_ptr()) if cutlass.const_expr(self.k_groups > 1) else None
        # The cluster's shape here only says whether to wait for this CTA or for all of the cluster.
        pipeline.pipeline_init_arrive(cluster_shape_mn=(self.cluster, 1), is_relaxed=True)
        sA = storage.a.get_tensor(a_layout.outer, swizzle=a_layout.inner)
        sB = storage.b.get_tensor(b_layout.outer, swizzle=b_layout.inner)
        pipeline.pipeline_init_wait(cluster_shape_mn=(self.cluster, 1))

        loaded = staged if cutlass.const_expr(self.converters > 0) else sB
        if cutlass.const_expr(self.problem.a_format is not None):
            staged = self.operands.staged(storage.raw)
            loaded = (sB, staged)

        block, _, _ = cute.arch.block_idx()
        grid, _, _ = cute.arch.grid_dim()
        first, step = block // self.cluster, grid // self.cluster

        if group == 0:
            cute.arch.setmaxregister_decrease(PRODUCER_REGISTERS)
            if warp == 0:
                self.produce(ab, self.operands.loader(loads, table, sA, loaded, cta_layout, cta_m, cta_n), schedule, first, step, cta_m, cta_n, part)
        else:
            consumer = group - 1
            in_group = thread % WARPGROUP
            if cutlass.const_expr(self.converters > 0):
                if group > self.consumers:
                    converting = thread - (1 + self.consumers) * WARPGROUP
                    self.operands.converter(staged, sB, table, converting).run(ab, self.scheduler, schedule, first, step, part)
                else:
                    cute.arch.setmaxregister_increase(self.consumer_registers)
                    driver = self.driver(storage, fusion, in_group, consumer)
                    self.consume(ab, sA, sB, driver, schedule, columns, first, step, cta_m, cta_n, part, exchange, in_group, consumer)
            else:
                cute.arch.setmaxregister_increase(self.consumer_registers)
                k_group = 0
                if cutlass.const_expr(self.k_groups > 1):
                    k_group = consumer // self.consumers
                    consumer = consumer - k_group * self.consumers
                driver = self.driver(storage, fusion, in_group, consumer)
                a = sA
                if cutlass.const_expr(self.problem.a_format is not None):
                    a = self.operands.fragments(storage.a.data_ptr(), staged, table, in_group, consumer)
                self.consume(ab, a, sB, driver, schedule, columns, first, step, cta_m, cta_n, part, exchange, in_group, consumer, join, k_group)

    def driver(self, storage, fusion, thread: Int32, consumer: Int32) -> EpilogueDriver:
        """The epilogue of warpgroup ``consumer``."""
        ring = storage.ring.data_ptr() + cute.assume(consumer * (self.epilogue_bytes // self.consumers), divby=1024)
        ring_barriers = storage.ring_barriers.data_ptr() + consumer * (self.epilogue_barriers // self.consumers)
        return EpilogueDriver(self.epilogue, self.config, fusion, self.operands.rows, ring, ring_barriers, thread, EPILOGUE_BARRIER + consumer)

    @cute.jit
    def produce(self, ab, loader, schedule, first: Int32, step: Int32, cta_m: Int32, cta_n: Int32, part: Int32):
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.stages)
        loader.hold(self.scheduler.cache_policies(schedule))
        place = self.scheduler.start(schedule, first)
        while self.scheduler.more(schedule, place):
            tile = self.scheduler.tile(schedule, place, cta_m, cta_n, part)
            loader.begin(tile)
            for i in cutlass.range(tile.k_tiles, unroll=1):
                ab.producer_acquire(state)
                loader.load(tile, step_at(tile, i), state.index, ab.producer_get_barrier(state))
                state.advance()
            place = self.scheduler.advance(schedule, place, step)
        # A CTA must not leave while a peer still has to release stages into its shared memory.
        ab.producer_tail(state)

    @cute.jit
    def consume(
        self,
        ab,
        sA,
        sB,
        driver,
        schedule,
        columns: Int32,
        first: Int32,
        step: Int32,
        cta_m: Int32,
        cta_n: Int32,
        part: Int32,
        exchange,
        in_group: Int32,
        consumer: Int32,
        join=None,
        k_group: Int32 | int = 0,
    ):
        config = self.config
        # One instruction overwrites the accumulators, the other adds to them: two objects, because device loops may not change one.
        fresh, adding = self.tiled_mma(), self.tiled_mma()
        adding.set(warpgroup.Field.ACCUMULATE, True)
        tiled_mma = (fresh, adding)
        thread_mma = fresh.get_slice(Int32(0) if cutlass.const_expr(config.pingpong) else consumer * WARPGROUP)
        # An A that is converted into registers comes as what does that.
        tCrA = sA if cutlass.const_expr(self.problem.a_format is not None) else fresh.make_fragment_A(thread_mma.partition_A(sA))
        tCrB = fresh.make_fragment_B(thread_mma.partition_B(sB))
        accumulators = cute.make_rmem_tensor(fresh.partition_shape_C((config.tile_m, config.tile_n)), self.acc_dtype)
        partial = cute.make_rmem_tensor(accumulators.shape, self.acc_dtype) if cutlass.const_expr(self.problem.promotes) else None

        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.stages)
        place, turn, parity = self.scheduler.start(schedule, first), Int32(0), Int32(0)
        if cutlass.const_expr(config.pingpong):
            if consumer == 1:
                # Consumer 0 has the first turn.
                cute.arch.barrier_arrive(barrier_id=ORDER_BARRIER, number_of_threads=2 * WARPGROUP)
                state.advance(self.scheduler.steps(schedule, place))
                place = self.scheduler.advance(schedule, place, step)
        while self.scheduler.more(schedule, place):
            tile = self.scheduler.tile(schedule, place, cta_m, cta_n, part)
            places = self.places(tile, columns, consumer)
            if cutlass.const_expr(config.split_k * self.k_groups > 1):
                if part + k_group == 0:
                    driver.prepare(places)
            else:
                driver.prepare(places)
            if cutlass.const_expr(config.pingpong):
                cute.arch.barrier(barrier_id=ORDER_BARRIER + consumer, number_of_threads=2 * WARPGROUP)
            if cutlass.const_expr(self.k_groups > 1):
                accumulators.fill(0.0)
                if k_group < tile.k_tiles:
                    self.multiply_converted(tiled_mma, ab, state.clone(), tCrA, tCrB, accumulators, tile, k_group)
                state.advance(tile.k_tiles)
            elif cutlass.const_expr(config.split_k > 1):
                accumulators.fill(0.0)
                if tile.k_tiles > 0:
                    state = self.multiply_tile(tiled_mma, ab, state, tCrA, tCrB, accumulators, partial, tile, consumer)
            else:
                state = self.multiply_tile(tiled_mma, ab, state, tCrA, tCrB, accumulators, partial, tile, consumer)
            if cutlass.const_expr(config.pingpong and self.scheduler.equal_steps):
                state.advance(tile.k_tiles)
                place = self.scheduler.advance(schedule, place, step * 2)
            else:
                place = self.scheduler.advance(schedule, place, step)
                if cutlass.const_expr(config.pingpong):
                    state.advance(self.scheduler.steps(schedule, place))
                    place = self.scheduler.advance(schedule, place, step)
            if cutlass.const_expr(self.k_groups > 1):
                join.reduce(accumulators, in_group, consumer, k_group)
            if cutlass.const_expr(config.split_k * self.k_groups > 1):
                if k_group == 0:
                    if cutlass.const_expr(config.split_k > 1):
                        turn = exchange.reduce(accumulators, in_group, consumer, turn)
                    if part == 0:
                        driver.run(accumulators, places, parity)
            else:
                driver.run(accumulators, places, parity)
            parity ^= 1
        if cutlass.const_expr(self.k_groups > 1):
            if k_group == 0:
                driver.finish()
        else:
            driver.finish()
        if cutlass.const_expr(config.split_k > 1):
            exchange.finish()

    def places(self, tile, columns: Int32, consumer: Int32) -> tuple[Place, ...]:
        """Where each of this consumer's 64-row blocks of ``tile`` lies."""
        blocks = self.config.rows_per_warpgroup // SLAB_ROWS
        first, step = (tile.row, SLAB_ROWS) if self.config.pingpong else (tile.row + consumer * SLAB_ROWS, self.consumers * SLAB_ROWS)
        return tuple(Place(first + i * step, tile.rows, tile.n, columns, tile.group, tile.plane) for i in range(blocks))

    @cute.jit
    def multiply_tile(self, tiled_mma, ab, state, tCrA, tCrB, accumulators, partial, tile, consumer: Int32):
        if cutlass.const_expr(self.problem.a_format is not None):
            state = self.multiply_converted(tiled_mma, ab, state, tCrA, tCrB, accumulators, tile)
        elif cutlass.const_expr(self.problem.promotes):
            state = self.multiply_promoted(tiled_mma, ab, state, tCrA, tCrB, accumulators, partial, tile.k_tiles)
        else:
            state = self.multiply(tiled_mma, ab, state, tCrA, tCrB, accumulators, tile.k_tiles, consumer)
        return state

    @cute.jit
    def multiply(self, tiled_mma, ab, state, tCrA, tCrB, accumulators, k_tiles: Int32, consumer: Int32):
        """accumulators = sum over ``k_tiles`` steps (at least one). One step's WGMMAs stay in flight while the next is issued."""
        released = state.clone()
        ab.consumer_wait(state)
        warpgroup.fence()
        self.issue(tiled_mma, tCrA, tCrB, accumulators, state.index, True)
        state.advance()
        for _ in cutlass.range(k_tiles - 1, unroll=1):
            ab.consumer_wait(state)
            warpgroup.fence()
            self.issue(tiled_mma, tCrA, tCrB, accumulators, state.index, False)
            warpgroup.wait_group(1)
            ab.consumer_release(released)
            released.advance()
            state.advance()
        if cutlass.const_expr(self.config.pingpong):
            cute.arch.barrier_arrive(barrier_id=ORDER_BARRIER + 1 - consumer, number_of_threads=2 * WARPGROUP)
        warpgroup.wait_group(0)
        ab.consumer_release(released)
        return state

    @cute.jit
    def multiply_promoted(self, tiled_mma, ab, state, tCrA, tCrB, accumulators, partial, k_tiles: Int32):
        """As ``multiply``, with each step's sum taken into float32 registers: the matrix cores add 8-bit products with fewer bits. While one warpgroup adds, the other multiplies."""
        accumulators.fill(0.0)
        for _ in cutlass.range(k_tiles, unroll=1):
            ab.consumer_wait(state)
            warpgroup.fence()
            self.issue(tiled_mma, tCrA, tCrB, partial, state.index, True)
            warpgroup.wait_group(0)
            ab.consumer_release(state)
            accumulators.store(accumulators.load() + partial.load())
            state.advance()
        return state

    @cute.jit
    def multiply_converted(self, tiled_mma, ab, state, fragments, tCrB, accumulators, tile, first=0):
        """As ``multiply``, with A in registers that each step converts anew: block by block along K, each as soon as the products that last had its registers are done. From step ``first`` on, which there must be, and of the steps
        behind it those that this set of consumers takes."""
        stride = self.k_groups
        if cutlass.const_expr(stride > 1):
            state.advance(first)
        released = state.clone()
        ab.consumer_wait(state)
        self.issue_converted(tiled_mma, fragments, tCrB, accumulators, tile, Int32(first), state.index, True)
        for _ in cutlass.range_constexpr(stride):
            state.advance()
        for i in cutlass.range(first + stride, tile.k_tiles, stride, unroll=1):
            ab.consumer_wait(state)
            self.issue_converted(tiled_mma, fragments, tCrB, accumulators, tile, i, state.index, False)
            # The products of the step before were waited for on the way.
            ab.consumer_release(released)
            for _ in cutlass.range_constexpr(stride):
                released.advance()
                state.advance()
        warpgroup.wait_group(0)
        ab.consumer_release(released)
        return state

    @cute.jit
    def issue_converted(self, tiled_mma, fragments, tCrB, accumulators, tile, i: Int32, stage: Int32, first: cutlass.Constexpr):
        """Step ``i`` of ``tile``, which is in ``stage``, a group of WGMMAs for each block; the first step's overwrite ``accumulators``."""
        fresh, adding = tiled_mma
        held = fragments.read(tile, step_at(tile, i), stage)
        for block in cutlass.range_constexpr(fragments.blocks):
            if cutlass.const_expr(not first):
                warpgroup.wait_group(fragments.blocks - 1)
            a = fragments.convert(held, block)
            warpgroup.fence()
            cute.gemm(fresh if first and block == 0 else adding, accumulators, a, tCrB[(None, None, block, stage)], accumulators)
            warpgroup.commit_group()

    @cute.jit
    def issue(self, tiled_mma, tCrA, tCrB, accumulators, stage: Int32, first: cutlass.Constexpr):
        """WGMMAs of one step, committed as one group; the first step's overwrite ``accumulators``."""
        fresh, adding = tiled_mma
        for step in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
            coordinate = (None, None, step, stage)
            cute.gemm(fresh if first and step == 0 else adding, accumulators, tCrA[coordinate], tCrB[coordinate], accumulators)
        warpgroup.commit_group()

    def tiled_mma(self) -> cute.TiledMma:
        p, c = self.problem, self.config
        warpgroups = 1 if c.pingpong else self.consumers
        return mma.tiled_mma(self.a_dtype, self.b_dtype, self.acc_dtype, p.a_major == "k", p.b_major == "k", warpgroups, c.tile_n, p.a_format is not None)
