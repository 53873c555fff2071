"""What the lanes of a warp hold of a head, and how they exchange it.

A slab is 64 rows x 32 columns, a warp's part of it 16 rows. Lane i holds rows i // 4 and i // 4 + 8 of the 16, and of each row the columns 8 j + 2 (i % 4) + b: register r is row ``r // 2 % 2`` of the
two, j = r // 4 and b = r % 2.

No module of the DSL is needed here: ``warp`` is what the device has, or 32 lanes side by side in arrays. Its ``shuffle(value, lane)`` is the value that another lane passes, ``across(value, distance)``
the one of the lane whose number differs in one bit, ``select(condition, a, b)``, ``magnitude(a)`` and ``largest(a, |b|)`` are arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

NOPE, ROPE, BLOCK = 128, 64, 32  # columns of a head without and with rotation, values that share a scale
HEAD = NOPE + ROPE
SLABS, BLOCKS = HEAD // 32, HEAD // BLOCK

Values = Sequence[Any]


def every_second(slabs: tuple[Values, Values], which: int, lane: Any, warp: Any) -> list[Any]:
    """One slab out of two neighbouring ones: its column n is their column 2 n + ``which``.

    Column n = 8 J + 2 C + b is wanted in lane C (of four) and register (J, b), and is column 2 (n % 16) + ``which`` of slab J // 2: there j = 2 (J % 2) + C // 2, and the lane is 2 (C % 2) + b. So every
    lane wants one register of each of two lanes, and two lanes want the same one's. In two turns: lane c passes its register of j % 2 = c % 2 on to lane 2 (c % 2) + c // 2, and then the
    other one to lane 2 (1 - c % 2) + c // 2.
    """
    odd, upper = lane % 2 == 1, lane // 2 % 2 == 1
    first = lane // 4 * 4 + lane % 2 * 2 + lane // 2 % 2
    second = first + 1 - lane // 2 % 2 * 2
    result = [None] * 16
    for j in range(4):
        source = slabs[j // 2]
        for row in range(2):
            even_j, odd_j = (source[4 * (2 * (j % 2) + k) + 2 * row + which] for k in range(2))
            one = warp.shuffle(warp.select(odd, odd_j, even_j), first)
            other = warp.shuffle(warp.select(odd, even_j, odd_j), second)
            result[4 * j + 2 * row] = warp.select(upper, other, one)
            result[4 * j + 2 * row + 1] = warp.select(upper, one, other)
    return result


def row_maximum(slab: Values, row: int, warp: Any) -> Any:
    """The largest magnitude of row number ``row`` (0 or 1) of a slab, in all four lanes that hold it."""
    largest = warp.magnitude(slab[2 * row])
    for r in range(1, 16):
        if r // 2 % 2 == row and r != 2 * row:
            largest = warp.largest(largest, slab[r])
    for distance in (1, 2):
        largest = warp.largest(largest, warp.across(largest, distance))
    return largest


def column_maximum(slab: Values, lane: Any, warp: Any) -> tuple[Any, Any]:
    """The largest magnitude of one column of a slab over the warp's 16 rows, and the number of the column: each lane has another one."""
    found = [warp.largest(warp.magnitude(slab[4 * j + b]), slab[4 * j + 2 + b]) for j in range(4) for b in range(2)]
    # Eight lanes share eight columns: each exchange halves the columns that a lane answers for.
    for distance in (16, 8, 4):
        upper, half = lane // distance % 2 == 1, len(found) // 2
        found = [
            warp.largest(warp.select(upper, found[half + i], found[i]), warp.across(warp.select(upper, found[i], found[half + i]), distance))
            for i in range(half)
        ]
    own = lane // 16 % 2 * 4 + lane // 8 % 2 * 2 + lane // 4 % 2
    return found[0], own // 2 * 8 + lane % 4 * 2 + own % 2
