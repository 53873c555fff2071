"""Weights converted into the registers of their consumers, thread by thread on the host: which bytes and scale factors meet in which register, and every bit of the result."""

from __future__ import annotations

import types

import pytest

from cudnn.block_scale import FORMATS

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("cutlass", reason="the CuTe DSL is not installed")
pytestmark = pytest.mark.compile

TILE_M, TILE_K, STAGES, STAGE = 128, 64, 3, 2


def positions(raw_k: int) -> torch.Tensor:
    """Where the copy engine puts byte (row, column) of stage STAGE: the layout that its descriptor is made with."""
    import cutlass.cute as cute
    from cutlass import Int32, Uint8

    from cudnn.cutedsl import layout
    from cudnn.testing.host_kernels import run_threads

    found = torch.full((TILE_M * raw_k,), -1, dtype=torch.int32)

    def work(found, block, thread, number):
        found[block * raw_k + thread] = Int32(cute.crd2idx((block, thread, STAGE), layout.swizzled(Uint8, (TILE_M, raw_k), True, STAGES)))

    run_threads(work, [found], TILE_M, raw_k)
    return found.long().view(TILE_M, raw_k)


@pytest.mark.parametrize("raw_k", [64, 32])
def test_positions_are_those_of_the_widest_swizzle(raw_k):
    at = positions(raw_k) - STAGE * TILE_M * raw_k
    row, column = torch.meshgrid(torch.arange(TILE_M), torch.arange(raw_k), indexing="ij")
    address = row * raw_k + column
    assert torch.equal(at, address ^ (address // 128 % (raw_k // 16) * 16))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", FORMATS)
def test_registers_hold_the_weights(make_weights, name, dtype):
    import cutlass
    import cutlass.cute as cute
    from cutlass import Int32, Uint32

    from cudnn.cutedsl.gemm.convert import ATOM_WORDS, atom_at
    from cudnn.cutedsl.gemm.fragments import HELD, Fragments
    from cudnn.datatypes import cutlass_dtype
    from cudnn.testing.host_kernels import run_threads

    fmt, batches, n, k = FORMATS[name], 2, 300, 328
    tiles, steps, raw_k, staged, factors, expected = make_weights(fmt, n, k, batches, getattr(torch, dtype))
    stages = torch.randint(0, 256, (expected.shape[0], STAGES * TILE_M * raw_k), dtype=torch.uint8)
    stages[:, positions(raw_k)] = staged
    # Of a warpgroup's m64k16 operand thread t has, of rows 16 (t / 32) + t / 4 mod 8 and the one eight below, the pairs 2 (t mod 4) and 8 further along K.
    found = torch.full((expected.shape[0] * 256 * TILE_K // 16 * HELD,), float("nan"), dtype=getattr(torch, dtype))

    config = types.SimpleNamespace(tile_m=TILE_M)
    source = types.SimpleNamespace(format=fmt, a_dtype=cutlass_dtype(dtype), tile_k=TILE_K, raw_k=raw_k, config=config, stages=STAGES)

    def work(stages, scales, found, block, thread, number):
        step, rest = block % steps, block // steps
        # The second step of a tile whose sum is shared is step 0 of its second part.
        first = cutlass.select_(step == 0, Int32(0), step - 1)
        tile = types.SimpleNamespace(k=first * TILE_K)
        atom = atom_at(Int32(n), Int32(k), fmt.vec, rest % tiles, rest // tiles, step * TILE_K)
        pointer = cute.recast_ptr(scales.iterator, dtype=Uint32) + atom * ATOM_WORDS
        words = cute.make_tensor(pointer, cute.make_layout((1, ATOM_WORDS, STAGES), stride=(ATOM_WORDS, 1, 0)))
        size = STAGES * TILE_M * raw_k
        raw = stages.iterator + cute.assume(block * size, divby=size)
        fragments = Fragments(source, raw, words, Int32(k), thread % 128, thread // 128)
        held = fragments.read(tile, step - first, Int32(STAGE))
        for b in range(fragments.blocks):
            values = fragments.convert(held, b)
            flat = cute.make_tensor(values.iterator, cute.make_layout(HELD))
            for i in range(HELD):
                found[((block * 256 + thread) * fragments.blocks + b) * HELD + i] = flat[i]

    run_threads(work, [stages.view(-1), factors, found], expected.shape[0], 256)
    # (tile, warpgroup, warp, row, column, block, second pair, row below, element) to (tile, row of the tile, element along K).
    registers = found.view(-1, 2, 4, 8, 4, TILE_K // 16, 2, 2, 2).permute(0, 1, 2, 7, 3, 5, 6, 4, 8).reshape(expected.shape)
    # Rows behind the last are not stored, whatever their factors make of them.
    inside = (torch.arange(tiles * TILE_M) < n).view(1, tiles, 1, TILE_M).expand(batches, -1, steps, -1).reshape(-1, TILE_M)
    assert torch.equal(registers[inside], expected[inside])
