"""The parts of epilogues that quantise, thread by thread on the host: which registers make a block, where factors and packed bytes go, and every bit of both."""

from __future__ import annotations

import itertools
import math
import types

import pytest

from cudnn.block_scale import FORMATS, ScaleLayout

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("cutlass", reason="the CuTe DSL is not installed")
pytestmark = pytest.mark.compile

THREADS, VALUES = 128, 16
UNTOUCHED = 0xAA


def holders():
    """(row, column) of each register of each thread in a slab of 64 x 32, (128, 16) each."""
    thread, register = torch.meshgrid(torch.arange(THREADS), torch.arange(VALUES), indexing="ij")
    return thread // 32 * 16 + thread % 32 // 4 + register // 2 % 2 * 8, register // 4 * 8 + thread % 4 * 2 + register % 2


def slabs_of(y, outside: float = 0.0):
    """What the threads hold of (rows, columns, L), slab by slab: (L * row blocks * slabs, 128, 16), ``outside`` where there is nothing."""
    rows, columns, batches = y.shape
    blocks, slabs = -(-rows // 64), -(-columns // 32) + 1  # one slab too many, as a tile may have it
    padded = torch.full((batches, blocks * 64, slabs * 32), outside)
    padded[:, :rows, :columns] = y.permute(2, 0, 1)
    row, column = holders()
    tiles = padded.view(batches, blocks, 64, slabs, 32).permute(0, 1, 3, 2, 4)
    return tiles[:, :, :, row, column].reshape(-1, THREADS, VALUES), blocks, slabs


def test_registers_of_a_block_are_all_of_its_columns():
    from cudnn.cutedsl.epilogue.quantized import block_registers

    row, column = holders()
    for vec in (16, 32):
        seen = [(which, block, register) for which in range(2) for block in range(32 // vec) for register in block_registers(which, block, vec)]
        assert sorted(register for _, _, register in seen) == list(range(VALUES))
        for which, block, register in seen:
            assert (column[:, register] // vec == block).all() and (row[:, register] % 16 // 8 == which).all()
        # The columns of a block in one row: those of four neighbouring threads.
        for block in range(32 // vec):
            registers = block_registers(1, block, vec)
            assert sorted(column[8:12, registers].flatten().tolist()) == list(range(block * vec, (block + 1) * vec))


@pytest.mark.parametrize("name", ["mxfp8", "mxfp8_e5m2", "mxfp4_v16", "nvfp4"])
@pytest.mark.parametrize("extents", [(131, 104, 2), (64, 32, 1)])
def test_scale_factors(monkeypatch, name, extents):
    """Bytes of all rows and blocks that there are and of no others, and the values that then only have to be rounded, whatever is found outside of the matrix."""
    import cutlass.cute as cute
    from cutlass import Float32, Int32

    from cudnn.cutedsl.epilogue.op import Place
    from cudnn.cutedsl.epilogue.quantized import BlockScales
    from cudnn.reference import quantize_blocks, scales_from_blocked, scales_to_blocked
    from cudnn.testing.host_kernels import run_threads

    fmt = FORMATS[name]
    rows, columns, batches = extents
    y = torch.randn(extents) * torch.exp2(torch.randint(-20, 20, (rows, 1, 1)).float())
    y[torch.rand(extents) < 0.3] = 0
    y[5], y[7, 3], y[8, 40 % columns] = 0, float("inf"), float("nan")
    # An infinity in A, times nothing, is NaN in columns that do not exist.
    values, blocks, slabs = slabs_of(y, math.nan)
    layout = ScaleLayout(rows, columns, batches, fmt.vec)
    found = torch.full((layout.entries,), UNTOUCHED, dtype=torch.uint8)
    norm, out = torch.tensor([torch.exp(torch.randn(())).item()]), torch.empty_like(values)
    sites = torch.zeros(2 * 2 * 32 // fmt.vec, THREADS)
    count = itertools.count()
    inside = {}

    def exchanged(value, distance):
        # Every shuffle has a line of memory; what others have put there before is read in the next pass.
        site = next(count)
        inside["sites"][site, inside["thread"]] = value
        return inside["sites"][site, inside["thread"] ^ distance]

    def work(values, found, norm, out, sites, block, thread, number):
        inside.update(sites=sites, thread=thread)
        position, rest = block % slabs, block // slabs
        plane = rest // blocks
        place = Place(rest % blocks * 64, Int32(rows), position, Int32(columns), plane, plane)
        bound = BlockScales(0, 1, fmt.vec, fmt.limit, fmt.scale).bind((found, norm), None, None, thread, 0)
        held = cute.make_rmem_tensor((VALUES,), Float32)
        for r in range(VALUES):
            held[r] = values[block, thread, r]
        bound.apply(types.SimpleNamespace(place=place, position=position), held)
        for r in range(VALUES):
            out[block, thread, r] = held[r]

    monkeypatch.setattr(cute.arch, "shuffle_sync_bfly", exchanged)
    run_threads(work, [values, found, norm, out, sites], values.shape[0], THREADS, passes=3)
    assert next(count) == sites.shape[0]

    _, scales = quantize_blocks(y.permute(2, 0, 1), fmt, norm)
    physical = found.view(layout.physical_shape)
    assert torch.equal(scales_from_blocked(physical, rows, columns, fmt.vec), scales.view(torch.uint8))
    exists = scales_to_blocked(torch.ones_like(scales.view(torch.uint8))).bool()
    assert (physical[~exists] == UNTOUCHED).all()
    factor = (norm * (1 / scales.float())).clamp(max=torch.finfo(torch.float32).max).repeat_interleave(fmt.vec, -1)[..., :columns]
    expected, _, _ = slabs_of((y.permute(2, 0, 1) * factor).permute(1, 2, 0))
    exists = slabs_of(torch.ones(extents))[0].bool()
    assert torch.equal(out[exists].nan_to_num(nan=-1.0), expected[exists].nan_to_num(nan=-1.0))


def test_packed_bytes():
    """Two neighbouring columns to a byte, the even one low, rounded to nearest even and saturating."""
    import cutlass.cute as cute
    from cutlass import Float32

    from cudnn.cutedsl.epilogue.quantized import BoundFp4Store
    from cudnn.fp4 import encode_e2m1, pack_fp4
    from cudnn.testing.host_kernels import run_threads

    y = torch.randn(64, 32, 1) * 4
    y.view(-1)[:16] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 7.0, 1e30, float("inf"), -0.0, -0.25, -0.26, -5.0, -1e-30])
    values, _, _ = slabs_of(y)
    found = torch.full((64, 16), UNTOUCHED, dtype=torch.uint8)

    def work(values, found, block, thread, number):
        store = BoundFp4Store.__new__(BoundFp4Store)
        store.thread, store.shared = thread, [found]
        held = cute.make_rmem_tensor((VALUES,), Float32)
        for r in range(VALUES):
            held[r] = values[0, thread, r]
        store.put(held, 0)

    run_threads(work, [values, found], 1, THREADS)
    assert torch.equal(found, pack_fp4(encode_e2m1(y[..., 0])))
