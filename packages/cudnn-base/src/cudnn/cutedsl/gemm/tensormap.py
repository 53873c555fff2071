"""Tensor maps that the device writes: one per group, for matrices whose address or extent only the device knows.

The maps are written anew in front of every launch, so that addresses and extents may change between the replays of a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.nvgpu import cpasync
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import TensorMapManager, TensorMapUpdateMode

MAP_BYTES = 128
MAP_WORDS = MAP_BYTES // 8  # int64 words of one map in a table
WARP = 32


def map_pointer(table: cute.Tensor, group: Int32, slot: int) -> cute.Pointer:
    """Address of map ``slot`` of ``group`` in ``table``, int64 (groups, slots, MAP_WORDS)."""
    pointer = table.iterator + (group * table.shape[1] + slot) * MAP_WORDS
    return TensorMapManager(TensorMapUpdateMode.SMEM, MAP_BYTES).get_tensormap_ptr(pointer, cute.AddressSpace.generic)


class MapWriter:
    """Writes ``table``, one warp for each group.

    ``tensors``: of each slot a function ``(arguments, group) -> tensor`` that finds the group's matrix on the device. A slot's atom was made from a matrix of the same rank and order of strides, and says how boxes look.
    """

    def __init__(self, tensors: Sequence[Callable[[Any, Int32], cute.Tensor]]):
        self.tensors = tensors

    @cute.jit
    def __call__(self, atoms, arguments, table: cute.Tensor, stream):
        self.kernel(atoms, arguments, table).launch(grid=[table.shape[0], 1, 1], block=[WARP, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, atoms, arguments, table: cute.Tensor):
        group, _, _ = cute.arch.block_idx()
        slots = len(self.tensors)
        smem = SmemAllocator().allocate_array(cutlass.Int32, num_elems=slots * MAP_BYTES // 4, byte_alignment=MAP_BYTES)
        # NOTE: the replacements are issued by the whole warp. From a branch of one lane they trap on compute capability 9.0.
        for slot in cutlass.range_constexpr(slots):
            words = smem + slot * (MAP_BYTES // 4)
            with cute.arch.elect_one():
                cpasync.copy_tensormap(atoms[slot], words)
            # The upper half of a map is not used; it is zero in maps made on the host.
            upper = cute.make_tensor(words + MAP_BYTES // 8, cute.make_layout(MAP_BYTES // 8))
            lane = cute.arch.lane_idx()
            if lane < MAP_BYTES // 8:
                upper[lane] = Int32(0)
            cute.arch.sync_warp()
            cpasync.update_tma_descriptor(atoms[slot], self.tensors[slot](arguments[slot], group), words)
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                # The pattern's own extent decided how far behind the matrix the copy engine may look ahead; nothing is known of what lies behind this one.
                flags = cute.make_tensor(words + 2, cute.make_layout(1))
                flags[0] = flags[0] & Int32(~(1 << 21))
            cute.arch.sync_warp()
            cpasync.cp_fence_tma_desc_release(map_pointer(table, group, slot), words)
