"""Weights converted into the registers of their consumers, thread by thread on the host: which bytes and scale factors meet in which register, and every bit of the result."""

from __future__ import annotations

import types

import pytest

from cudnn.block_scale import FORMATS, ScaleLayout

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
def test_registers_hold_the_weights(name, dtype):
    import cutlass
    import cutlass.cute as cute
    from cutlass import Int32, Uint32

    from cudnn.cutedsl import block_scale
    from cudnn.cutedsl.gemm.convert import ATOM_WORDS, atom_at
    from cudnn.cutedsl.gemm.fragments import HELD, Fragments
    from cudnn.datatypes import cutlass_dtype
    from cudnn.reference import dequantize_blocks
    from cudnn.testing.host_kernels import run_threads

    fmt, batches, n, k = FORMATS[name], 2, 300, 328
    layout = ScaleLayout(n, k, batches, fmt.vec)
    raw_k, tiles, steps = TILE_K // fmt.packed, -(-n // TILE_M), -(-k // TILE_K)
    data = torch.randint(0, 256, (batches, n, k // fmt.packed), dtype=torch.uint8)
    if fmt.packed == 1:
        data[(data & 0x7F) >= 0x7C] = 0x31  # no NaN and infinity: their bits may differ
    low, high = (118, 137) if fmt.scale == "float8_e8m0fnu" else (0x20, 0x60)
    if dtype == "float16":
        low, high = (124, 127) if fmt.scale == "float8_e8m0fnu" else (0x20, 0x38)
    factors = torch.full((layout.entries,), 255, dtype=torch.uint8)
    plain = torch.randint(low, high, (batches, n, layout.blocks), dtype=torch.uint8)
    row, block, batch = torch.meshgrid(torch.arange(n), torch.arange(layout.blocks), torch.arange(batches), indexing="ij")
    factors[layout.offset(row, block, batch)] = plain.permute(1, 2, 0)
    elements = data if fmt.packed == 2 else data.view(getattr(torch, fmt.element))
    expected = torch.zeros(batches, tiles * TILE_M, steps * TILE_K)
    expected[:, :n, :k] = dequantize_blocks(elements, plain.view(getattr(torch, fmt.scale)), fmt.vec)
    expected = expected.to(getattr(torch, dtype)).view(batches, tiles, TILE_M, steps, TILE_K).permute(0, 1, 3, 2, 4).reshape(-1, TILE_M, TILE_K)

    # What the copy engine brings: zeros outside.
    padded = torch.zeros(batches, tiles * TILE_M, steps * raw_k, dtype=torch.uint8)
    padded[:, :n, : k // fmt.packed] = data
    stages = torch.randint(0, 256, (expected.shape[0], STAGES * TILE_M * raw_k), dtype=torch.uint8)
    stages[:, positions(raw_k)] = padded.view(batches, tiles, TILE_M, steps, raw_k).permute(0, 1, 3, 2, 4).reshape(-1, TILE_M, raw_k)
    # Of a warpgroup's m64k16 operand thread t has, of rows 16 (t / 32) + t / 4 mod 8 and the one eight below, the pairs 2 (t mod 4) and 8 further along K.
    found = torch.full((expected.shape[0] * 256 * TILE_K // 16 * HELD,), float("nan"), dtype=getattr(torch, dtype))

    class OnHost(Fragments):
        def from_fp8(self, words):
            count = 4 * cute.size(words)
            values = cute.make_rmem_tensor((count,), block_scale.number(0.0, words[0]).__class__)
            widen = block_scale.e4m3_bits if fmt.element == "float8_e4m3fn" else block_scale.e5m2_bits
            for i in range(count):
                values[i] = block_scale.as_float(widen(words[i // 4] >> 8 * (i % 4) & 255))
            return values.load()

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
        fragments = OnHost(source, raw, words, Int32(k), thread % 128, thread // 128)
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
