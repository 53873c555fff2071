"""Where a tile's operands are and how they reach shared memory.

An operand source has two halves: on the host side it builds TMA descriptors and shared-memory layouts; on the device it issues, for one stage of the pipeline, the copies of one step along K. The
kernel knows neither how many tensors there are nor how a tile's rows are found.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.cute.nvgpu import cpasync

from cudnn.cutedsl import layout
from cudnn.cutedsl.epilogue.op import TensorSpec
from cudnn.cutedsl.epilogue.rows import EqualRows, GroupedRows, SwappedRows
from cudnn.cutedsl.gemm.config import SLAB_COLUMNS, TILE_K_BYTES, GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.cutedsl.gemm.scheduler import Tile, group_bounds
from cudnn.cutedsl.gemm.tensormap import MAP_WORDS, MapWriter, map_pointer
from cudnn.cutedsl.invariant import LoopInvariant


class Strided(LoopInvariant):
    """Operands of L equal problems, addressed by strides: A (M, K, L), B (N, K, L) as one tensor or as two halves side by side.

    ``halves`` and ``pair`` fill a tile's B rows with 32 of the first half, then 32 of the second: the tile the epilogue sees is the 32-column interleave, whatever the
    memory looks like, and nothing is copied beforehand. Each 32-row piece is a TMA box of its own; with multicast along M the pieces are dealt out to the cluster's CTAs.
    """

    rows = EqualRows()  # how the epilogue finds the rows of its matrices
    mapped: tuple[int, ...] = ()  # which of the descriptors are patterns of tensor maps that the device writes, one per group

    def __init__(self, problem: GemmProblem, config: GemmConfig, a_dtype, b_dtype, stages: int):
        self.problem, self.config, self.stages = problem, config, stages
        self.a_dtype, self.b_dtype = a_dtype, b_dtype
        self.a_stored = a_dtype  # what A's stages in shared memory hold
        self.tile_k = TILE_K_BYTES * 8 // a_dtype.width * config.k_atoms
        self.a_k_major, self.b_k_major = problem.a_major == "k", problem.b_major == "k"
        self.pieces = 1 if problem.b_parts == "single" else config.tile_n // SLAB_COLUMNS
        self.parts = 1 if problem.b_parts == "single" else 2
        self.b_tensors = 2 if problem.b_parts == "pair" else 1
        if config.swap:
            self.rows = SwappedRows()

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """The operands that the caller passes."""
        rows = "n/2" if self.b_tensors == 2 else "n"
        a = TensorSpec(self.a_dtype, ("m", "k", "l"), 1 if self.a_k_major else 0)
        return (a, *(TensorSpec(self.b_dtype, (rows, "k", "l"), 1 if self.b_k_major else 0) for _ in range(self.b_tensors)))

    def placed(self, operands):
        """The caller's ``operands`` where the kernel has them, and its own where the caller has them."""
        return (operands[1], operands[0], *operands[2:]) if self.config.swap else operands

    def offsets(self, tensors):
        """Host side: ends of the groups, None without groups."""
        return None

    def smem_layouts(self):
        """Staged layouts of A (tile_m, tile_k) and B (tile_n, tile_k)."""
        c = self.config
        a = layout.swizzled(self.a_dtype, (c.tile_m, self.tile_k), self.a_k_major, self.stages)
        # A piece of 32 rows in a row-contiguous-along-N tile must own whole swizzle rows, or no TMA box could write it.
        narrow = SLAB_COLUMNS if self.pieces > 1 and not self.b_k_major else None
        b = layout.swizzled(self.b_dtype, (c.tile_n, self.tile_k), self.b_k_major, self.stages, narrow)
        return a, b

    def stage_bytes(self) -> int:
        return (self.config.tile_m * self.a_dtype.width + self.config.tile_n * self.b_dtype.width) * self.tile_k // 8

    def raw_bytes(self) -> int:
        """Bytes of a stage beside those that the matrix instructions read."""
        return 0

    @cute.jit
    def views(self, tensors):
        """Host side: A (M, K, planes) and the tensors of B (N, K, planes)."""
        return tensors[0], tensors[1:]

    @cute.jit
    def extents(self, tensors) -> tuple[Int32, Int32, Int32, Int32]:
        """(M, N, K, L) of the problem."""
        a, b = self.views(tensors)
        return a.shape[0], b[0].shape[0] * self.b_tensors, a.shape[1], b[0].shape[2]

    @cute.jit
    def descriptors(self, tensors):
        """Host side: (TMA atom, TMA tensor) of A and of each part of B."""
        c = self.config
        a_layout, b_layout = self.smem_layouts()
        a_view, b_views = self.views(tensors)
        a = layout.for_tma(a_view, self.a_k_major)
        result = [self._load(a, cute.slice_(a_layout, (None, None, 0)), (c.tile_m, self.tile_k), c.cluster_n, c.cluster_n)]
        if cutlass.const_expr(self.parts == 1):
            b = layout.for_tma(b_views[0], self.b_k_major)
            result.append(self._load(b, cute.slice_(b_layout, (None, None, 0)), (c.tile_n, self.tile_k), c.cluster_m, c.cluster_m))
        else:
            whole = layout.for_tma(b_views[0], self.b_k_major)
            if cutlass.const_expr(self.problem.b_parts == "pair"):
                parts = (whole, layout.for_tma(b_views[1], self.b_k_major))
            else:
                parts = (layout.half(whole, 0, 0), layout.half(whole, 1, 0))
            piece = cute.slice_(layout.swizzled(self.b_dtype, (SLAB_COLUMNS, self.tile_k), self.b_k_major, 1), (None, None, 0))
            for part in parts:
                result.append(self._load(part, piece, (SLAB_COLUMNS, self.tile_k), c.cluster_m, 1))
        return tuple(result)

    def _load(self, tensor, smem_layout, box, multicast: int, split: int):
        op = cpasync.CopyBulkTensorTileG2SOp() if multicast == 1 else cpasync.CopyBulkTensorTileG2SMulticastOp()
        atom, view = cpasync.make_tiled_tma_atom(op, tensor, smem_layout, box, num_multicast=split)
        return atom, view

    def table(self, tensors):
        """Host side: where the device writes tensor maps, () without any."""
        return ()

    def write_maps(self, tensors, descriptors, stream) -> None:
        """Host side: launch what writes them."""

    @cute.jit
    def prefetch(self, descriptors):
        for i, (atom, _) in enumerate(descriptors):
            if cutlass.const_expr(i not in self.mapped):
                cpasync.prefetch_descriptor(atom)

    def a_at(self, tile: Tile) -> tuple[Int32, Int32, Int32]:
        """First row of A, first element along K, and plane."""
        return tile.row, tile.k, tile.group

    def b_at(self, tile: Tile) -> tuple[Int32, Int32]:
        """First element of B along K, and plane."""
        return tile.k, tile.group

    def loader(self, descriptors, table, sA, sB, cta_layout, cta_m, cta_n):
        return StridedLoader(self, descriptors, table, sA, sB, cta_layout, cta_m, cta_n)


class RaggedRows(Strided):
    """Groups of A's rows, each with a B of its own: A (T, K) with K contiguous, B (E, N, K) as one tensor or as two halves, ends of the groups (E,) int32.

    A tile's rows are read as they follow one another: what lies behind its group belongs to the next one, or reads as zeros behind the last. The rows it makes are never stored.
    """

    def __init__(self, problem: GemmProblem, config: GemmConfig, a_dtype, b_dtype, stages: int):
        super().__init__(problem, config, a_dtype, b_dtype, stages)
        self.rows = GroupedRows(problem.unit_axes)

    @property
    def a_spec(self) -> TensorSpec:
        return TensorSpec(self.a_dtype, ("m", "k", 1) if self.problem.unit_axes else ("m", "k"), 1)

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        rows = "n/2" if self.b_tensors == 2 else "n"
        contiguous = "k" if self.b_k_major else rows
        axes = (rows, "k", "l") if self.problem.unit_axes else ("l", rows, "k")
        b = TensorSpec(self.b_dtype, axes, axes.index(contiguous))
        return (self.a_spec, *(b for _ in range(self.b_tensors)), TensorSpec(cutlass.Int32, ("l",)))

    @cute.jit
    def a_view(self, tensors) -> cute.Tensor:
        return tensors[0] if cutlass.const_expr(self.problem.unit_axes) else layout.plane(tensors[0])

    def offsets(self, tensors):
        return tensors[-1]

    @cute.jit
    def views(self, tensors):
        b = tensors[1:-1]
        return self.a_view(tensors), b if cutlass.const_expr(self.problem.unit_axes) else tuple(layout.permuted(t, (1, 2, 0)) for t in b)

    def a_at(self, tile: Tile) -> tuple[Int32, Int32, Int32]:
        return tile.start + tile.row, tile.k, Int32(0)


class PointerRows(RaggedRows):
    """``RaggedRows`` with the address of each group's B (N, K), compact, in an int64 tensor (E,), or in two, one for each half. A small kernel writes a tensor map for each in front of every launch."""

    @property
    def specs(self) -> tuple[TensorSpec | None, ...]:
        pointers = TensorSpec(cutlass.Int64, ("l",))
        table = TensorSpec(cutlass.Int64, ("l", self.parts, MAP_WORDS), 2)
        return (self.a_spec, *(pointers for _ in range(self.b_tensors)), None, table, TensorSpec(cutlass.Int32, ("l",)))

    @property
    def mapped(self) -> tuple[int, ...]:
        return tuple(range(1, 1 + self.parts))

    def table(self, tensors):
        return tensors[-2]

    @cute.jit
    def extents(self, tensors) -> tuple[Int32, Int32, Int32, Int32]:
        return tensors[0].shape[0], tensors[-3], tensors[0].shape[1], tensors[-1].shape[0]

    @cute.jit
    def views(self, tensors):
        # What a pattern's address is does not matter.
        address = tensors[0].iterator.toint()
        rows, columns = tensors[-3] // self.b_tensors, tensors[0].shape[1]
        return self.a_view(tensors), tuple(self._matrix(address, rows, columns) for _ in range(self.b_tensors))

    def _matrix(self, address, rows: Int32, columns: Int32) -> cute.Tensor:
        """(rows, columns, 1) at ``address``."""
        pointer = cute.make_ptr(self.b_dtype, address, cute.AddressSpace.gmem, assumed_align=16)
        stride = (Int64(columns), 1, Int64(0)) if self.b_k_major else (1, Int64(rows), Int64(0))
        return cute.make_tensor(pointer, cute.make_layout((rows, columns, 1), stride=stride))

    @cute.jit
    def write_maps(self, tensors, descriptors, stream):
        arguments = []
        functions = []
        for part in cutlass.range_constexpr(self.parts):
            functions.append(lambda a, group, part=part: self._part(a, group, part))
            arguments.append((tensors[1 + part % self.b_tensors], tensors[-3], tensors[0].shape[1]))
        atoms = tuple(descriptors[1 + part][0] for part in range(self.parts))
        MapWriter(functions)(atoms, tuple(arguments), tensors[-2], stream)

    @cute.jit
    def _part(self, arguments, group: Int32, part: cutlass.Constexpr) -> cute.Tensor:
        """Device side: B of ``group``, or of its two halves number ``part``."""
        pointers, n, k = arguments
        matrix = layout.for_tma(self._matrix(pointers[group], n // self.b_tensors, k), self.b_k_major)
        return matrix if cutlass.const_expr(self.problem.b_parts != "halves") else layout.half(matrix, part, 0)

    def b_at(self, tile: Tile) -> tuple[Int32, Int32]:
        return tile.k, Int32(0)


class RaggedSteps(Strided):
    """Groups of steps along K: A (M, T) with M contiguous, B (T, N) with N contiguous, ends of the groups (E,) int32. One (M, N) result for each group.

    The third axis of both steps along K as their own does: coordinate (r, k, s) is step s + k, for a group that begins at s. Its k is bounded by 0, so that the copy engine cuts at the beginning of the group: a
    group's steps are laid from its end, and what lies in front of it reads as zeros in both operands (in one alone would not do, as 0 times NaN is NaN). A group of no steps takes one, which is all zeros.
    """

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return TensorSpec(self.a_dtype, ("m", "k"), 0), TensorSpec(self.b_dtype, ("k", "n"), 1), TensorSpec(cutlass.Int32, ("l",))

    def offsets(self, tensors):
        return tensors[-1]

    @cute.jit
    def extents(self, tensors) -> tuple[Int32, Int32, Int32, Int32]:
        a, b, offsets = tensors
        return a.shape[0], b.shape[1], a.shape[1], offsets.shape[0]

    @cute.jit
    def views(self, tensors):
        a, b, _ = tensors
        return layout.ragged(a, 1, 2), (layout.ragged(layout.permuted(b, (1, 0)), 1, 2),)

    def a_at(self, tile: Tile) -> tuple[Int32, Int32, Int32]:
        return tile.row, tile.k, tile.start

    def b_at(self, tile: Tile) -> tuple[Int32, Int32]:
        return tile.k, tile.start


class MappedSteps(RaggedSteps):
    """Groups of steps where A (M, T) or B (T, N) is contiguous along T and holds each group as a matrix of its own: group e of an operand of R rows starts at element R * start, with lines of as many elements as the
    group has steps, a multiple of 16 bytes. Each group gets tensor maps of its own, written in front of every launch: its steps are laid from its beginning, and what lies behind them reads as zeros.

    NOTE: groups within one matrix (T contiguous, ``step_blocks`` not set) cannot be had so: they start anywhere, and the innermost coordinate of a copy must be a multiple of 16 bytes.
    """

    mapped = (0, 1)

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        a = TensorSpec(self.a_dtype, ("m", "k"), 1 if self.a_k_major else 0)
        b = TensorSpec(self.b_dtype, ("k", "n"), 0 if self.b_k_major else 1)
        return a, b, TensorSpec(cutlass.Int64, ("l", 2, MAP_WORDS), 2), TensorSpec(cutlass.Int32, ("l",))

    def table(self, tensors):
        return tensors[-2]

    @cute.jit
    def extents(self, tensors) -> tuple[Int32, Int32, Int32, Int32]:
        a, b, _, offsets = tensors
        return a.shape[0], b.shape[1], a.shape[1], offsets.shape[0]

    @cute.jit
    def views(self, tensors):
        return layout.plane(tensors[0]), (layout.plane(layout.permuted(tensors[1], (1, 0))),)

    @cute.jit
    def write_maps(self, tensors, descriptors, stream):
        a, (b,) = self.views(tensors)
        functions = (lambda x, group: self._steps(x, group, self.a_k_major), lambda x, group: self._steps(x, group, self.b_k_major))
        MapWriter(functions)((descriptors[0][0], descriptors[1][0]), ((a, tensors[-1]), (b, tensors[-1])), tensors[-2], stream)

    @cute.jit
    def _steps(self, arguments, group: Int32, k_major: cutlass.Constexpr) -> cute.Tensor:
        """Device side: one operand (rows, T, 1) cut to the steps of ``group``."""
        whole, offsets = arguments
        tensor = layout.for_tma(whole, k_major)
        rows, extent, _ = tensor.shape
        start, end = group_bounds(offsets, group, extent)
        unit = 128 // tensor.element_type.width
        stride = tensor.stride
        offset = Int64(start) * tensor.stride[1]
        if cutlass.const_expr(k_major):
            offset = Int64(start) * rows
            pitch = cute.assume(Int64(cutlass.max(end - start, Int32(unit))), divby=unit)
            stride = (pitch, 1, pitch)
        pointer = tensor.iterator + cute.assume(offset, divby=unit)
        # A group without steps starts behind the one element that its map must have.
        shape = (rows, cutlass.max(end - start, Int32(1)), 1)
        return cute.make_tensor(pointer, cute.make_layout(shape, stride=stride))

    def _first(self, tile: Tile) -> Int32:
        return cutlass.select_(tile.k == -self.tile_k, Int32(self.tile_k), Int32(0))

    def a_at(self, tile: Tile) -> tuple[Int32, Int32, Int32]:
        return tile.row, self._first(tile), Int32(0)

    def b_at(self, tile: Tile) -> tuple[Int32, Int32]:
        return self._first(tile), Int32(0)


def source_for(problem: GemmProblem) -> type[Strided]:
    """The operand source of ``problem``."""
    if problem.a_format is not None:
        from cudnn.cutedsl.gemm.fragments import QuantizedA

        return QuantizedA
    if problem.b_format is not None:
        from cudnn.cutedsl.gemm.convert import QuantizedB

        return QuantizedB
    if problem.grouping == "dense":
        return Strided
    if problem.grouping == "rows":
        return PointerRows if problem.b_pointers else RaggedRows
    return MappedSteps if problem.step_blocks else RaggedSteps


class StridedLoader(LoopInvariant):
    """Device side of ``Strided``: partitioned views, and one call per pipeline stage."""

    def __init__(self, source: Strided, descriptors, table, sA, sB, cta_layout, cta_m, cta_n):
        c = source.config
        self.source, self.table, self.cta_m, self.cta_n = source, table, cta_m, cta_n
        coord = (cta_m, cta_n, 0)
        self.a_mask = cute.make_layout_image_mask(cta_layout, coord, mode=1) if c.cluster_n > 1 else None
        self.b_mask = cute.make_layout_image_mask(cta_layout, coord, mode=0) if c.cluster_m > 1 else None
        self.descriptors = descriptors
        self.sA = cute.group_modes(sA, 0, 2)
        if source.parts == 1:
            self.sB = cute.group_modes(sB, 0, 2)
        else:
            divided = cute.zipped_divide(sB, (SLAB_COLUMNS, source.tile_k))
            self.sB = cute.group_modes(divided[((None, None), (None, 0, None))], 0, 2)

    def hold(self, policies):
        """How long L2 is to hold A and B: ``DenseScheduler.cache_policies``; None leaves it to L2."""
        self.hints = tuple({} if policy is None else {"cache_policy": policy} for policy in policies)

    def begin(self, tile):
        """Before the first copy of ``tile``: see what the device has written of its maps."""
        for slot in range(len(self.source.mapped)):
            cpasync.fence_tma_desc_acquire(map_pointer(self.table, tile.group, slot))

    def load(self, tile, k_tile, stage, barrier):
        """Issue the copies of step ``k_tile`` of ``tile`` into ``stage``; they complete on ``barrier``."""
        self.load_a(tile, k_tile, stage, barrier)
        self.load_b(tile, k_tile, stage, barrier)

    def load_a(self, tile, k_tile, stage, barrier):
        c, tile_k = self.source.config, self.source.tile_k
        row, a_k, a_plane = self.source.a_at(tile)
        masked = {} if self.a_mask is None else {"mcast_mask": self.a_mask}
        self._copy(
            0, self.sA, stage, (c.tile_m, tile_k), row, a_k, (0, k_tile, a_plane), self.cta_n, c.cluster_n, barrier, masked | self._map(tile, 0) | self.hints[0]
        )

    def load_b(self, tile, k_tile, stage, barrier):
        c, tile_k = self.source.config, self.source.tile_k
        b_k, b_plane = self.source.b_at(tile)
        masked = self.hints[1] if self.b_mask is None else {"mcast_mask": self.b_mask} | self.hints[1]
        if self.source.parts == 1:
            self._copy(1, self.sB, stage, (c.tile_n, tile_k), 0, b_k, (tile.n, k_tile, b_plane), self.cta_m, c.cluster_m, barrier, masked | self._map(tile, 1))
        else:
            pairs = self.source.pieces // 2
            for i in range(pairs // c.cluster_m):
                pair = i * c.cluster_m + self.cta_m if c.cluster_m > 1 else i
                for part in range(2):
                    at = (tile.n * pairs + pair, k_tile, b_plane)
                    self._copy(
                        1 + part, self.sB, (2 * pair + part, stage), (SLAB_COLUMNS, tile_k), 0, b_k, at, 0, 1, barrier, masked | self._map(tile, 1 + part)
                    )

    def _map(self, tile, descriptor: int) -> dict:
        """The map to use instead of ``descriptor``, as an argument."""
        mapped = self.source.mapped
        return {"tma_desc_ptr": map_pointer(self.table, tile.group, mapped.index(descriptor))} if descriptor in mapped else {}

    def _copy(self, descriptor: int, shared, target, box, row, k, coordinate, cta, ctas: int, barrier, options):
        """One box: the one at ``coordinate`` (in boxes, and the plane) counted from element (row, k)."""
        atom, view = self.descriptors[descriptor]
        part = cute.local_tile(cute.domain_offset((row, k, 0), view), box, coordinate)
        to, source = cpasync.tma_partition(atom, cta, cute.make_layout(ctas), shared, cute.group_modes(part, 0, 2))
        target = target if isinstance(target, tuple) else (target,)
        cute.copy(atom, source, to[(None, *target)], tma_bar_ptr=barrier, **options)
