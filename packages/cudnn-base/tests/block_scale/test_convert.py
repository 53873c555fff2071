"""The warpgroup that converts weights inside the GEMM kernel, thread by thread on the host: which scale factors meet which bytes, and every bit of the result."""

from __future__ import annotations

import types

import pytest

from cudnn.block_scale import FORMATS, ScaleLayout

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("cutlass", reason="the CuTe DSL is not installed")
pytestmark = pytest.mark.compile

TILE_K, STAGES = 64, 2


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("n", "k"), [(131, 160), (70, 96), (256, 64), (300, 328)])
def test_stages_hold_the_weights(name, n, k):
    import cutlass
    import cutlass.cute as cute
    from cutlass import BFloat16, Int32, Uint32

    from cudnn.cutedsl import block_scale
    from cudnn.cutedsl.gemm.config import GemmConfig
    from cudnn.cutedsl.gemm.convert import ATOM_WORDS, RUN, Converter, QuantizedB
    from cudnn.reference import dequantize_blocks
    from cudnn.testing.host_kernels import run_threads

    fmt, batches, tile_n = FORMATS[name], 2, 128
    layout = ScaleLayout(n, k, batches, fmt.vec)
    raw_k, tiles, steps = TILE_K // fmt.packed, -(-n // tile_n), -(-k // TILE_K)
    data = torch.randint(0, 256, (batches, n, k // fmt.packed), dtype=torch.uint8)
    if fmt.packed == 1:
        data[(data & 0x7F) >= 0x7C] = 0x31  # no NaN and infinity: their bits may differ
    low, high = (118, 137) if fmt.scale == "float8_e8m0fnu" else (0x20, 0x60)
    factors = torch.full((layout.entries,), 255, dtype=torch.uint8)
    plain = torch.randint(low, high, (batches, n, layout.blocks), dtype=torch.uint8)
    row, block, batch = torch.meshgrid(torch.arange(n), torch.arange(layout.blocks), torch.arange(batches), indexing="ij")
    factors[layout.offset(row, block, batch)] = plain.permute(1, 2, 0)
    elements = data if fmt.packed == 2 else data.view(getattr(torch, fmt.element))
    expected = torch.zeros(batches, tiles * tile_n, steps * TILE_K)
    expected[:, :n, :k] = dequantize_blocks(elements, plain.view(getattr(torch, fmt.scale)), fmt.vec)
    expected = expected.to(torch.bfloat16).view(batches, tiles, tile_n, steps, TILE_K).permute(0, 1, 3, 2, 4).reshape(-1, tile_n, TILE_K)

    # What the copy engine brings: zeros outside.
    padded = torch.zeros(batches, tiles * tile_n, steps * raw_k, dtype=torch.uint8)
    padded[:, :n, : k // fmt.packed] = data
    staged = padded.view(batches, tiles, tile_n, steps, raw_k).permute(0, 1, 3, 2, 4).reshape(-1, tile_n, raw_k).contiguous()
    found = torch.full(expected.shape, float("nan"), dtype=torch.bfloat16)

    class OnHost(Converter):
        def from_fp8(self, words):
            values = cute.make_rmem_tensor((RUN,), block_scale.number(0.0, words[0]).__class__)
            widen = block_scale.e4m3_bits if fmt.element == "float8_e4m3fn" else block_scale.e5m2_bits
            for i in range(RUN):
                values[i] = block_scale.as_float(widen(words[i // 4] >> 8 * (i % 4) & 255))
            return values.load()

    config = GemmConfig(64, tile_n, convert_b=True)
    source = types.SimpleNamespace(format=fmt, b_dtype=BFloat16, tile_k=TILE_K, config=config)

    def at(tensor, block, columns):
        """Step ``block`` as the stages of a pipeline, where every stage is the same memory."""
        pointer = tensor.iterator + cute.assume(block * tile_n * columns, divby=tile_n * columns)
        return cute.make_tensor(pointer, cute.make_layout((tile_n, columns, STAGES), stride=(columns, 1, 0)))

    def work(staged, scales, found, block, thread, number):
        step, rest = block % steps, block // steps
        # The second step of a tile whose sum is shared is step 0 of its second part.
        first = cutlass.select_(step == 0, Int32(0), step - 1)
        tile = types.SimpleNamespace(n=rest % tiles, group=rest // tiles, k=first * TILE_K)
        atom = QuantizedB.atom(source, (Int32(n), Int32(k)), tile, step - first)
        pointer = cute.recast_ptr(scales.iterator, dtype=Uint32) + atom * ATOM_WORDS
        words = cute.make_tensor(pointer, cute.make_layout((1, ATOM_WORDS, STAGES), stride=(ATOM_WORDS, 1, 0)))
        converter = OnHost(source, (at(staged, block, raw_k), words, None), at(found, block, TILE_K), Int32(n), Int32(k), thread)
        converter.convert(tile, step - first, Int32(1))

    run_threads(work, [staged.view(-1), factors, found.view(-1)], found.shape[0], 128)
    assert torch.equal(found, expected)
