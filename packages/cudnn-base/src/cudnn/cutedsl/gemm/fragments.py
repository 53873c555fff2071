"""A in a block-scaled format, converted by its consumers from shared memory into the registers from which the matrix instructions take it.

A stage has A as it lies in memory, 8 or 4 bits an element, a word of four scale factors for each of its rows, and B. Nothing of A is written back, and one barrier tells of all that a stage holds: there are no roles and no barriers
beside those of operands that need no conversion. This pays where A is the weights: of a tile of 128 x 256 each is converted once for 256 rows of activations (`GemmConfig.swap`).

A matrix instruction takes 16 elements along K, a *block*, from registers: a thread has those at 2 c, 2 c + 1, 2 c + 8 and 2 c + 9 of two rows that are eight apart, c being its place among the four threads of these rows. Its pairs of
neighbours, in the order of the registers, are the first pair of the row, that of the row eight below, and the second pair of either.

A pair is two bytes of 8-bit elements or one of 4-bit ones, and four reads of so much are a block's. A warp's rows are in different parts of the banks, and what threads share of a word is read once.

A step's bytes and factors are read at once; then, block by block, the products of the step before that had a block's registers are waited for, and the block is converted and multiplied. So all blocks but one are being multiplied while
one is converted.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32, Uint8, Uint16, Uint32

from cudnn.block_scale import FORMATS, FP4, Format
from cudnn.cutedsl import block_scale, layout
from cudnn.cutedsl.epilogue.op import TensorSpec
from cudnn.cutedsl.gemm.config import SLAB_ROWS, GemmConfig
from cudnn.cutedsl.gemm.convert import ATOM_WORDS, WORD, atom_at, atoms, elements, staged_words
from cudnn.cutedsl.gemm.operands import Strided, StridedLoader
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.cutedsl.invariant import LoopInvariant

BLOCK = 16  # elements along K that a matrix instruction takes
HELD = 8  # elements of a block that a thread has
CHUNK, LINE = 16, 128  # bytes that swizzles move as one, and that they move within


class QuantizedA(Strided):
    """A as bytes, (M, K, L) of 8-bit or (M, K/2, L) of 4-bit elements, contiguous along K; B (N, K, L) as ever; the bytes of A's blocked scale factors."""

    def __init__(self, problem: GemmProblem, config: GemmConfig, a_dtype, b_dtype, stages: int):
        super().__init__(problem, config, a_dtype, b_dtype, stages)
        self.format: Format = FORMATS[problem.a_format]  # type: ignore[index]
        self.raw_k = self.tile_k // self.format.packed  # bytes of a row of one step
        self.a_stored = Uint8

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return TensorSpec(Uint8, ("m", "bytes of k", "l"), 1), super().specs[1], TensorSpec(Uint8, ("factors of a",), 0)

    @cute.jit
    def extents(self, tensors) -> tuple[Int32, Int32, Int32, Int32]:
        a, b, _ = tensors
        return a.shape[0], b.shape[0], b.shape[1], b.shape[2]

    def smem_layouts(self):
        """Staged layouts of A's bytes (tile_m, raw_k) and of B (tile_n, tile_k)."""
        return layout.swizzled(Uint8, (self.config.tile_m, self.raw_k), True, self.stages), super().smem_layouts()[1]

    def stage_bytes(self) -> int:
        c = self.config
        return c.tile_m * (self.raw_k + WORD) + c.tile_n * self.b_dtype.width * self.tile_k // 8

    def raw_bytes(self) -> int:
        return self.config.tile_m * WORD

    @cute.jit
    def descriptors(self, tensors):
        c = self.config
        a_layout, b_layout = self.smem_layouts()
        a = self._load(layout.for_tma(tensors[0], True), cute.slice_(a_layout, (None, None, 0)), (c.tile_m, self.raw_k), 1, 1)
        b = self._load(layout.for_tma(tensors[1], self.b_k_major), cute.slice_(b_layout, (None, None, 0)), (c.tile_n, self.tile_k), c.cluster_m, c.cluster_m)
        return a, b, self._load(atoms(tensors[2]), cute.make_layout((1, ATOM_WORDS), stride=(ATOM_WORDS, 1)), (1, ATOM_WORDS), 1, 1)

    def table(self, tensors):
        """M and K."""
        return tensors[0].shape[0], tensors[1].shape[1]

    def staged(self, storage) -> cute.Tensor:
        """Words of scale factors in shared memory, (1, words, stages)."""
        return staged_words(storage.data_ptr(), self.stages)

    def loader(self, descriptors, table, sA, loaded, cta_layout, cta_m, cta_n):
        sB, words = loaded
        return QuantizedLoader(self, descriptors, table, sA, sB, cta_layout, cta_m, cta_n, words)

    def fragments(self, pointer, words, table, thread: Int32, consumer: Int32) -> Fragments:
        """``pointer``: to A's bytes of all stages; ``thread``: within warpgroup ``consumer``."""
        return Fragments(self, pointer, words, table[1], thread, consumer)


class QuantizedLoader(StridedLoader):
    def __init__(self, source: QuantizedA, descriptors, table, sA, sB, cta_layout, cta_m, cta_n, words):
        super().__init__(source, descriptors, table, sA, sB, cta_layout, cta_m, cta_n)
        self.words = cute.group_modes(words, 0, 2)

    def load_a(self, tile, k_tile, stage, barrier):
        source, c = self.source, self.source.config
        row, k, plane = source.a_at(tile)
        self._copy(0, self.sA, stage, (c.tile_m, source.raw_k), row, k // source.format.packed, (0, k_tile, plane), 0, 1, barrier, self.hints[0])
        atom = atom_at(*self.table, source.format.vec, row // ATOM_WORDS, plane, k + k_tile * source.tile_k)
        self._copy(2, self.words, stage, (1, ATOM_WORDS), 0, 0, (atom, 0, 0), 0, 1, barrier, self.hints[0])


class Fragments(LoopInvariant):
    """A of one thread, in registers. ``pointer``: to A's bytes of all stages; ``words``: of ``QuantizedA.staged``; ``k``: K; ``thread``: within warpgroup ``consumer``."""

    def __init__(self, source: QuantizedA, pointer, words, k: Int32, thread: Int32, consumer: Int32):
        self.source, self.words, self.format = source, words, source.format
        self.four_bits = self.format.element == FP4
        self.blocks = source.tile_k // BLOCK
        self.factors_of_k = cute.ceil_div(k, self.format.vec)
        self.row, self.column = consumer * SLAB_ROWS + thread // 32 * 16 + thread % 32 // 4, thread % 4
        unit = Uint8 if self.four_bits else Uint16  # of a pair
        self.unit = unit.width // 8
        self.places = [self.place(block) for block in range(self.blocks)]
        stages = cute.make_layout((source.config.tile_m * source.raw_k // self.unit, source.stages))
        self.raw = cute.make_tensor(cute.recast_ptr(pointer, dtype=unit), stages)
        self.values = [cute.make_rmem_tensor((HELD,), source.a_dtype) for _ in range(self.blocks)]

    def place(self, block: int) -> Int32:
        """Where a stage has the first pair that this thread takes of ``block``, in units of one read: chunks of 16 bytes lie at their number xor the number of their line of 128, as far as a row has chunks."""
        pitch = self.source.raw_k
        chunk, within = divmod(block * BLOCK // self.format.packed, CHUNK)
        moved = (self.row * pitch // LINE % (pitch // CHUNK)) ^ chunk
        return (self.row * pitch + moved * CHUNK + within) // self.unit + self.column

    def read(self, tile, k_tile: Int32, stage: Int32):
        """Bytes and factors of step ``k_tile``, which is in ``stage``: what ``convert`` takes of each block."""
        below = 8 * self.source.raw_k // self.unit
        at = [offset + row for offset in (0, HELD // 2) for row in (0, below)]
        raw = [[self.raw[place + offset, stage] for offset in at] for place in self.places]
        words = [self.words[0, (self.row % 32 + i * 8) * (ATOM_WORDS // 32) + self.row // 32, stage] for i in range(2)]
        first = (tile.k + k_tile * self.source.tile_k) // self.format.vec
        several = self.source.tile_k // self.format.vec
        if several < WORD:
            # A word has the factors of more than one step.
            words = [word >> ((first & (WORD - 1)) * 8).to(Uint32) for word in words]
        # Elements behind K are 0: so may their factors' bytes be, whatever the word has there.
        behind = 32 - 8 * cutlass.min(self.factors_of_k - first, several)
        scales = [self.factors(word & (Uint32(0xFFFFFFFF) >> behind.to(Uint32)), several) for word in words]
        return raw, scales

    def factors(self, word: Uint32, count: int) -> list[Float32]:
        """The first ``count`` of a word's scale factors."""
        if self.format.scale == "float8_e4m3fn":
            codes = cute.make_rmem_tensor((1,), Uint32)
            codes[0] = word
            values = block_scale.hardware_fp8(codes, self.format.scale)
            return [values[i] for i in range(count)]
        return [block_scale.scale_value(word >> 8 * i & 255, self.format.scale) for i in range(count)]

    def convert(self, held, block: int) -> cute.Tensor:
        """``block`` as a matrix instruction takes it, from what ``read`` returned: pair by pair."""
        raw, scales = held
        if self.four_bits:
            exact = block_scale.e2m1_elements([pair.to(Uint32) for pair in raw[block]])
        else:
            words = cute.make_rmem_tensor((HELD // 4,), Uint32)
            halves = cute.recast_tensor(words, Uint16)
            for i, half in enumerate(raw[block]):
                halves[i] = half
            exact = elements(words, self.format)
        target = self.values[block]
        factors = cute.make_rmem_tensor((HELD,), BFloat16 if target.element_type is BFloat16 else Float32)
        for i in range(HELD):
            factors[i] = scales[i // 2 % 2][block * BLOCK // self.format.vec].to(factors.element_type)
        if target.element_type is BFloat16:
            # As in `convert.widen`: two at a time, and rounded once.
            target.store(exact.load() * factors.load())
        else:
            target.store((exact.load().to(Float32) * factors.load()).to(target.element_type))
        return cute.make_tensor(target.iterator, cute.make_layout(((2, 2, 2), 1)))
