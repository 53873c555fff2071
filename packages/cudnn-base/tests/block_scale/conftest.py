"""A fresh seed for every test, printed with a failure; PYTEST_SEED=N repeats one."""

from __future__ import annotations

import os
import random
from typing import Any, NamedTuple

import pytest

from cudnn.block_scale import Format, ScaleLayout


@pytest.fixture(autouse=True)
def seed() -> int:
    value = int(os.environ.get("PYTEST_SEED") or int.from_bytes(os.urandom(4), "little"))
    print(f"PYTEST_SEED={value}")
    random.seed(value)
    try:
        import torch
    except ImportError:
        return value
    torch.manual_seed(value)
    return value


class Weights(NamedTuple):
    """Random weights in a block-scaled format, cut into tiles of 128 rows and steps of 64 along K as the copy engine brings them: zeros outside."""

    tiles: int
    steps: int
    raw_k: int  # bytes of a row of a step
    staged: Any  # (batch, tile and step, 128, raw_k) uint8
    factors: Any  # the blocked scale factors as they lie in memory; NaN where they belong to no row or block
    expected: Any  # (batch, tile and step, 128, 64): what they stand for


def weights(fmt: Format, n: int, k: int, batches: int, dtype: Any) -> Weights:
    """Weights (N, K, L). In float16 their factors stay where products fit."""
    import torch

    from cudnn.reference import dequantize_blocks

    rows, width = 128, 64
    layout = ScaleLayout(n, k, batches, fmt.vec)
    raw_k, tiles, steps = width // fmt.packed, -(-n // rows), -(-k // width)
    data = torch.randint(0, 256, (batches, n, k // fmt.packed), dtype=torch.uint8)
    if fmt.packed == 1:
        data[(data & 0x7F) >= 0x7C] = 0x31  # no NaN and infinity: their bits may differ
    e8m0, half = fmt.scale == "float8_e8m0fnu", dtype == torch.float16
    low, high = ((124, 127) if half else (118, 137)) if e8m0 else (0x20, 0x38 if half else 0x60)
    factors = torch.full((layout.entries,), 255, dtype=torch.uint8)
    plain = torch.randint(low, high, (batches, n, layout.blocks), dtype=torch.uint8)
    row, block, batch = torch.meshgrid(torch.arange(n), torch.arange(layout.blocks), torch.arange(batches), indexing="ij")
    factors[layout.offset(row, block, batch)] = plain.permute(1, 2, 0)
    elements = data if fmt.packed == 2 else data.view(getattr(torch, fmt.element))
    values = dequantize_blocks(elements, plain.view(getattr(torch, fmt.scale)), fmt.vec).to(dtype)

    def cut(t: Any, columns: int) -> Any:
        padded = t.new_zeros(batches, tiles * rows, steps * columns)
        padded[:, :n, : t.shape[2]] = t
        return padded.view(batches, tiles, rows, steps, columns).permute(0, 1, 3, 2, 4).reshape(-1, rows, columns)

    return Weights(tiles, steps, raw_k, cut(data, raw_k), factors, cut(values, width))


@pytest.fixture(scope="session")
def make_weights() -> Any:
    """`weights`."""
    return weights
