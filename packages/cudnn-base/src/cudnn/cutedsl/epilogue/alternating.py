"""Gate and up in neighbouring columns: how the accumulators of a thread become pairs, and what is made of pairs becomes a slab.

Of every eight columns of a slab, lane q of a quad (four neighbouring lanes) holds 2 q and 2 q + 1: a gate and its up. So the activation needs no exchange; but its results, one for each pair, are then column q of
each four in lane q, where a slab has to have columns 2 q and 2 q + 1 of each eight. Two shuffles for every two values turn one into the other: in each, every lane of a quad gives one of its values and takes one.

*Pair order*, of 16 values of a thread over two slabs: value p belongs to the registers 2 (p mod 8) and one more of slab p / 8, to row p mod 2 of the thread's two, and to column 4 (p / 2) + q of 32.

The arithmetic is that of plain integers, with ``select(condition, x, y)`` and ``shuffle(value, lane)``, the value of another lane, handed in: tests run it on a warp of NumPy.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

PAIRS = 16


def turned(lane: Any) -> Any:
    """The lane of the same quad whose number has its two bits exchanged."""
    return lane - lane % 4 + lane % 2 * 2 + lane // 2 % 2


def columns_of_pairs(low: Any, high: Any, lane: Any, select: Any, shuffle: Any) -> tuple[Any, Any]:
    """Columns 2 q and 2 q + 1 of eight, from columns q (``low``) and 4 + q (``high``)."""
    odd, upper = lane % 2 == 1, lane // 2 % 2 == 1
    one = shuffle(select(odd, high, low), turned(lane))
    other = shuffle(select(odd, low, high), turned(lane) ^ 1)
    return select(upper, other, one), select(upper, one, other)


def pairs_of_columns(first: Any, second: Any, lane: Any, select: Any, shuffle: Any) -> tuple[Any, Any]:
    """The inverse of ``columns_of_pairs``."""
    odd, upper = lane % 2 == 1, lane // 2 % 2 == 1
    one = shuffle(select(upper, second, first), turned(lane))
    other = shuffle(select(upper, first, second), turned(lane ^ 1))
    return select(odd, other, one), select(odd, one, other)


def slab_of_pairs(values: Any, slab: Any, lane: Any, select: Any, shuffle: Any) -> None:
    """Write 16 ``values`` in pair order to the 16 registers of ``slab``."""
    for block in range(4):
        for row in range(2):
            columns = columns_of_pairs(values[4 * block + row], values[4 * block + 2 + row], lane, select, shuffle)
            slab[4 * block + 2 * row], slab[4 * block + 2 * row + 1] = columns


def pairs_of_slab(slab: Any, values: Any, lane: Any, select: Any, shuffle: Any) -> None:
    """The inverse of ``slab_of_pairs``."""
    for block in range(4):
        for row in range(2):
            pairs = pairs_of_columns(slab[4 * block + 2 * row], slab[4 * block + 2 * row + 1], lane, select, shuffle)
            values[4 * block + row], values[4 * block + 2 + row] = pairs


def to_slab(values: cute.Tensor, slab: cute.Tensor) -> None:
    """``slab_of_pairs`` on the device, by all lanes of a warp."""
    slab_of_pairs(values, slab, cute.arch.lane_idx(), cutlass.select_, cute.arch.shuffle_sync)


def to_pairs(slab: cute.Tensor, values: cute.Tensor) -> None:
    """``pairs_of_slab`` on the device, by all lanes of a warp."""
    pairs_of_slab(slab, values, cute.arch.lane_idx(), cutlass.select_, cute.arch.shuffle_sync)
