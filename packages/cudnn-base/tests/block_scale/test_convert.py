"""The warpgroup that converts weights inside the GEMM kernel, thread by thread on the host: which scale factors meet which bytes, and every bit of the result."""

from __future__ import annotations

import types

import pytest

from cudnn.block_scale import FORMATS

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("cutlass", reason="the CuTe DSL is not installed")
pytestmark = pytest.mark.compile

TILE_K, STAGES = 64, 2


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("n", "k"), [(131, 160), (70, 96), (256, 64), (300, 328)])
def test_stages_hold_the_weights(make_weights, name, n, k):
    import cutlass
    import cutlass.cute as cute
    from cutlass import BFloat16, Int32, Uint32

    from cudnn.cutedsl.gemm.config import GemmConfig
    from cudnn.cutedsl.gemm.convert import ATOM_WORDS, Converter, QuantizedB
    from cudnn.testing.host_kernels import run_threads

    fmt, batches, tile_n = FORMATS[name], 2, 128
    tiles, steps, raw_k, staged, factors, expected = make_weights(fmt, n, k, batches, torch.bfloat16)
    found = torch.full(expected.shape, float("nan"), dtype=torch.bfloat16)

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
        converter = Converter(source, (at(staged, block, raw_k), words, None), at(found, block, TILE_K), Int32(n), Int32(k), thread)
        converter.convert(tile, step - first, Int32(1))

    run_threads(work, [staged.view(-1), factors, found.view(-1)], found.shape[0], 128)
    assert torch.equal(found, expected)
