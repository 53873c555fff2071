"""B in a block-scaled format, converted between its arrival in shared memory and the matrix instructions.

| who | does |
|---|---|
| producer (warp 0 of warpgroup 0) | waits for an empty stage; copies A's tile, and B's as it lies in memory, 8 or 4 bits an element |
| converters (the warpgroups behind the consumers) | take turns, a step each: wait for B's bytes; widen them, multiply them with their scale factors, write them as the matrix instructions read them |
| consumer | as ever: waits for a full stage, multiplies, releases it |

A stage has room for A, for B's bytes and for B. Its *full* barrier completes when A's bytes have arrived and every warp of converters has passed the step, those whose turn it is with their part of B written and visible to the
asynchronous proxy; one more barrier says that B's bytes have arrived. An empty stage is empty in all three: who converts is done before anybody can multiply, and release. That all of them pass every step keeps them within one use
of a stage: more than two neighbouring uses a barrier does not tell apart.

Scale factors come along: a row's word of four, of which a step needs two or all, so a step copies the blocked layout's 512 bytes for each 128 rows. (Read by the converting threads themselves they were waited for at every
step, however early they were asked for: the fence between a step's writes and the matrix instructions waits for what a thread reads, too.)

A thread reads its bytes of a step before it writes any value, since nothing tells the compiler that the two are apart.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
from cutlass import BFloat16, Float32, Int32, Uint8, Uint32
from cutlass.cute.nvgpu.common import CopyUniversalOp

from cudnn.block_scale import FORMATS, FP4, Format
from cudnn.cutedsl import block_scale, layout
from cudnn.cutedsl.epilogue.op import TensorSpec
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.operands import Strided, StridedLoader
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.cutedsl.gemm.scheduler import step_at
from cudnn.cutedsl.invariant import LoopInvariant

RUN = 16  # neighbours along K that a thread converts at once: never more than a block
LANES = 4  # threads that share a row of a step
WORD = 4  # scale factors of a row that lie side by side
ATOM_WORDS = 128  # words of an atom of the blocked layout: one for each row of a tile
PASS_ROWS = 128 // LANES  # rows that a warpgroup converts at once; those of an atom that are so far apart have their words side by side


class QuantizedB(Strided):
    """A (M, K, L) as ever; B as bytes, (N, K, L) of 8-bit or (N, K/2, L) of 4-bit elements, contiguous along K; the bytes of its blocked scale factors."""

    def __init__(self, problem: GemmProblem, config: GemmConfig, a_dtype, b_dtype, stages: int):
        super().__init__(problem, config, a_dtype, b_dtype, stages)
        self.format: Format = FORMATS[problem.b_format]  # type: ignore[index]
        self.raw_k = self.tile_k // self.format.packed  # bytes of a row of one step

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return super().specs[0], TensorSpec(Uint8, ("n", "bytes of k", "l"), 1), TensorSpec(Uint8, ("factors of b",), 0)

    @cute.jit
    def views(self, tensors):
        return tensors[0], tensors[1:2]

    def stage_bytes(self) -> int:
        return self.config.tile_m * self.a_dtype.width * self.tile_k // 8

    def raw_bytes(self) -> int:
        """Bytes of B and of its scale factors that a step copies."""
        return self.config.tile_n * (self.raw_k + WORD)

    def raw_layout(self):
        return layout.swizzled(Uint8, (self.config.tile_n, self.raw_k), True, self.stages)

    def staged(self, storage, barriers):
        """B's bytes in shared memory, (tile_n, raw_k, stages); the words of scale factors, (1, words, stages); the barriers that tell of their arrival."""
        c, raw = self.config, self.raw_layout()
        behind = self.stages * c.tile_n * self.raw_k
        return storage.get_tensor(raw.outer, swizzle=raw.inner), staged_words(storage.data_ptr() + behind, self.stages), barriers

    @cute.jit
    def descriptors(self, tensors):
        c = self.config
        a_layout, _ = self.smem_layouts()
        a = self._load(layout.for_tma(tensors[0], self.a_k_major), cute.slice_(a_layout, (None, None, 0)), (c.tile_m, self.tile_k), 1, 1)
        raw = cute.slice_(self.raw_layout(), (None, None, 0))
        b = self._load(layout.for_tma(tensors[1], True), raw, (c.tile_n, self.raw_k), 1, 1)
        return a, b, self._load(atoms(tensors[2]), cute.make_layout((1, ATOM_WORDS), stride=(ATOM_WORDS, 1)), (1, ATOM_WORDS), 1, 1)

    def table(self, tensors):
        """N and K."""
        return tensors[1].shape[0], tensors[0].shape[1]

    def atom(self, table, tile, k_tile: Int32) -> Int32:
        """Which 128 words of the blocked layout have the scale factors of step ``k_tile``."""
        return atom_at(*table, self.format.vec, tile.n, tile.group, tile.k + k_tile * self.tile_k)

    def loader(self, descriptors, table, sA, staged, cta_layout, cta_m, cta_n):
        return QuantizedLoader(self, descriptors, table, sA, staged)

    def converter(self, staged, sB, table, thread: Int32) -> Converter:
        return Converter(self, staged, sB, *table, thread)


def atoms(factors: cute.Tensor) -> cute.Tensor:
    """Host side: bytes of blocked scale factors as (atoms, words, 1)."""
    words = cute.make_layout((factors.shape[0] // (WORD * ATOM_WORDS), ATOM_WORDS, 1), stride=(ATOM_WORDS, 1, ATOM_WORDS))
    return cute.make_tensor(cute.recast_ptr(factors.iterator, dtype=Uint32), words)


def atom_at(rows: Int32, k: Int32, vec: int, row_tile: Int32, group: Int32, first: Int32) -> Int32:
    """Which atom of the blocked layout of (rows, k, L) has the scale factors of 128 rows, number ``row_tile`` of matrix ``group``, at element ``first`` along K."""
    row_atoms, block_atoms = cute.ceil_div(rows, ATOM_WORDS), cute.ceil_div(k, vec * WORD)
    return (group * row_atoms + row_tile) * block_atoms + first // (vec * WORD)


def staged_words(pointer, stages: int) -> cute.Tensor:
    """Words of scale factors in shared memory, (1, words, stages)."""
    words = cute.make_layout((1, ATOM_WORDS, stages), stride=(ATOM_WORDS, 1, ATOM_WORDS))
    return cute.make_tensor(cute.recast_ptr(pointer, dtype=Uint32), words)


class QuantizedLoader(StridedLoader):
    def __init__(self, source: QuantizedB, descriptors, table, sA, staged):
        raw, words, self.barriers = staged
        self.source, self.descriptors, self.table = source, descriptors, table
        self.sA, self.raw, self.words = (cute.group_modes(shared, 0, 2) for shared in (sA, raw, words))

    def begin(self, tile):
        pass

    def load(self, tile, k_tile, stage, barrier):
        source, c = self.source, self.source.config
        row, k, plane = source.a_at(tile)
        self._copy(0, self.sA, stage, (c.tile_m, source.tile_k), row, k, (0, k_tile, plane), 0, 1, barrier, self.hints[0])
        self._expect(stage)
        k, plane = source.b_at(tile)
        at = (tile.n, k_tile, plane)
        self._copy(1, self.raw, stage, (c.tile_n, source.raw_k), 0, k // source.format.packed, at, 0, 1, self.barriers + stage, self.hints[1])
        self._copy(2, self.words, stage, (1, ATOM_WORDS), 0, 0, (source.atom(self.table, tile, k_tile), 0, 0), 0, 1, self.barriers + stage, self.hints[1])

    @cute.jit
    def _expect(self, stage: Int32):
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(self.barriers + stage, self.source.raw_bytes())


class Converter(LoopInvariant):
    """The converting warpgroups. ``staged``: what ``QuantizedB.staged`` gives; ``columns``: N; ``k``: K; ``thread``: among those of all of them."""

    def __init__(self, source: QuantizedB, staged, sB, columns: Int32, k: Int32, thread: Int32):
        self.source, self.columns = source, columns
        self.warpgroups = source.config.converter_warpgroups
        self.warpgroup, thread = thread // 128, thread % 128
        raw, self.words, self.barriers = staged
        self.format = source.format
        self.passes = source.config.tile_n // PASS_ROWS
        self.row, self.chunk = thread // LANES, thread % LANES
        self.blocks = cute.ceil_div(k, self.format.vec)
        threads = cute.make_layout((PASS_ROWS, LANES), stride=(LANES, 1))
        taken = RUN // self.format.packed
        read = cute.make_tiled_copy_tv(cute.make_copy_atom(CopyUniversalOp(), Uint8, num_bits_per_copy=8 * taken), threads, cute.make_layout((1, taken)))
        write = cute.make_tiled_copy_tv(cute.make_copy_atom(CopyUniversalOp(), source.b_dtype, num_bits_per_copy=128), threads, cute.make_layout((1, RUN)))
        self.read, self.write = read, write
        self.sources = read.get_slice(thread).partition_S(raw)
        self.targets = write.get_slice(thread).partition_D(sB)
        self.bytes = [cute.make_rmem_tensor(self.sources[(None, 0, 0, 0)].shape, Uint8) for _ in range(self.passes)]
        self.values = cute.make_rmem_tensor(self.targets[(None, 0, 0, 0)].shape, source.b_dtype)

    @cute.jit
    def run(self, ab, scheduler, schedule, first: Int32, step: Int32, part: Int32):
        """Convert this warpgroup's steps of every tile of the CTA's list, in the order in which they are loaded."""
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.source.stages)
        place = scheduler.start(schedule, first)
        while scheduler.more(schedule, place):
            tile = scheduler.tile(schedule, place, Int32(0), Int32(0), part)
            for i in cutlass.range(tile.k_tiles, unroll=1):
                cute.arch.mbarrier_wait(self.barriers + state.index, state.phase)
                if i % self.warpgroups == self.warpgroup:
                    self.convert(tile, step_at(tile, i), state.index)
                    # What this thread has written is visible to the matrix instructions before its warp says so.
                    cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(ab.producer_get_barrier(state))
                state.advance()
            place = scheduler.advance(schedule, place, step)

    def convert(self, tile, k_tile: Int32, stage: Int32) -> None:
        """This thread's part of step ``k_tile``, which is in ``stage``."""
        for i in range(self.passes):
            cute.copy(self.read, self.sources[(None, i, 0, stage)], self.bytes[i])
        words = [self.words[(0, self.row * self.passes + i, stage)] for i in range(self.passes)]
        block = (tile.k + k_tile * self.source.tile_k + self.chunk * RUN) // self.format.vec
        shift = (block % WORD * 8).to(Uint32)
        for i in range(self.passes):
            # Elements behind K and rows behind N are 0: so may their factor's byte be, whatever the word has there.
            inside = (block < self.blocks) & (tile.n * self.source.config.tile_n + i * PASS_ROWS + self.row < self.columns)
            code = Uint32(cutlass.select_(inside, words[i] >> shift & 255, Uint32(0)))
            widen(self.bytes[i], self.values, block_scale.scale_value(code, self.format.scale), self.format)
            cute.copy(self.write, self.values, self.targets[(None, i, 0, stage)])


def widen(raw: cute.Tensor, values: cute.Tensor, factor: Float32, fmt: Format) -> None:
    """``values`` (16 elements) = those of ``raw`` (their bytes) times ``factor``, rounded once."""
    words = cute.recast_tensor(cute.make_tensor(raw.iterator, cute.make_layout(RUN // fmt.packed)), Uint32)
    flat = cute.make_tensor(values.iterator, cute.make_layout(RUN))
    exact = elements(words, fmt)
    if values.element_type is BFloat16:
        # bfloat16 holds elements and factors exactly, so that its product is rounded as that of float32 would be; two at a time.
        flat.store(exact.load() * factor.to(BFloat16))
    else:
        flat.store((exact.load().to(Float32) * factor).to(values.element_type))


def elements(words: cute.Tensor, fmt: Format) -> cute.Tensor:
    """The elements in ``words``, (n,) of Uint32, in bfloat16, which holds all of them."""
    if fmt.element == FP4:
        return block_scale.e2m1_elements([words[i // 4] >> 8 * (i % 4) & 255 for i in range(4 * cute.size(words))])
    exact = cute.make_rmem_tensor((cute.size(words) * 4,), BFloat16)
    exact.store(block_scale.hardware_fp8(words, fmt.element).to(BFloat16))
    return exact
