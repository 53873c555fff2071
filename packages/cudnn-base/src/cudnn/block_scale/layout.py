"""Where the scale factors of a (rows, columns, L) matrix lie: the blocked layout, in atoms of 128 rows x 4 blocks.

The scale factor of row r and block b (columns b vec to (b + 1) vec) of batch l is entry

    ((l R' + r // 128) K' + b // 4) 512 + (r % 32) 16 + (r % 128) // 32 * 4 + b % 4        R' = ceil(rows / 128), K' = ceil(ceil(columns / vec) / 4)

of a buffer, which a tensor shows in one of two forms: *physical*, (L, R', K', 32, 4, 4) and contiguous, or *logical*, the same permuted by (3, 4, 1, 5, 2, 0) to (32, 4, R', 4, K', L). Entries of rows
and blocks that do not exist are padding: kernels of this project never read them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

ATOM_ROWS, ATOM_BLOCKS = 128, 4
ATOM = ATOM_ROWS * ATOM_BLOCKS
LOGICAL_ORDER = (3, 4, 1, 5, 2, 0)
"""The physical form, permuted by this, is the logical one."""


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def atom_offset(row: Any, block: Any) -> Any:
    """Entry of (row, block) inside of its atom. Integers of any kind: Python's, arrays, the DSL's."""
    return ((row & 31) << 4) + ((row >> 5 & 3) << 2) + (block & 3)


def blocked_offset(row: Any, block: Any, batch: Any, row_atoms: Any, block_atoms: Any) -> Any:
    """Entry of (row, block, batch) in the buffer; ``row_atoms`` is R' and ``block_atoms`` K'. Integers of any kind; those of the DSL have 32 bits unless ``batch`` and ``row_atoms`` have 64."""
    return ((batch * row_atoms + (row >> 7)) * block_atoms + (block >> 2)) * ATOM + atom_offset(row, block)


class ScaleLayout(NamedTuple):
    """The blocked scale factors of a matrix (rows, columns, batches) whose blocks are ``vec`` columns wide."""

    rows: int
    columns: int
    batches: int
    vec: int

    @property
    def blocks(self) -> int:
        """Blocks of a row: ceil(columns / vec)."""
        return ceil_div(self.columns, self.vec)

    @property
    def row_atoms(self) -> int:
        """R'."""
        return ceil_div(self.rows, ATOM_ROWS)

    @property
    def block_atoms(self) -> int:
        """K'."""
        return ceil_div(self.blocks, ATOM_BLOCKS)

    @property
    def entries(self) -> int:
        """Scale factors of the buffer, padding included; a byte each."""
        return self.batches * self.row_atoms * self.block_atoms * ATOM

    @property
    def physical_shape(self) -> tuple[int, ...]:
        return self.batches, self.row_atoms, self.block_atoms, 32, 4, 4

    @property
    def physical_stride(self) -> tuple[int, ...]:
        return self.row_atoms * self.block_atoms * ATOM, self.block_atoms * ATOM, ATOM, 16, 4, 1

    @property
    def logical_shape(self) -> tuple[int, ...]:
        return tuple(self.physical_shape[axis] for axis in LOGICAL_ORDER)

    @property
    def logical_stride(self) -> tuple[int, ...]:
        return tuple(self.physical_stride[axis] for axis in LOGICAL_ORDER)

    def offset(self, row: Any, block: Any, batch: Any = 0) -> Any:
        """Entry of a scale factor in the buffer."""
        return blocked_offset(row, block, batch, self.row_atoms, self.block_atoms)
