"""The kernel that makes operands contiguous along K: its arithmetic here, the whole of it on a GPU."""

from __future__ import annotations

import itertools
import random

import pytest

from cudnn.cutedsl.transpose import TransposeSpec, pitch

DTYPES = ("float8_e4m3fn", "float8_e5m2", "float32")


def test_rows_have_room_for_whole_vectors():
    assert [pitch(k, 8) for k in (1, 15, 16, 17, 4096)] == [16, 16, 16, 32, 4096]
    assert [pitch(k, 32) for k in (1, 4, 5, 4095)] == [4, 4, 8, 4096]


def test_specs_are_told_apart_and_travel():
    import pickle

    specs = [TransposeSpec(dtype) for dtype in DTYPES]
    assert pickle.loads(pickle.dumps(specs)) == specs and len({str(spec.fields()) for spec in specs}) == 3
    assert specs[0].label == "transpose float8_e4m3fn" and (specs[0].op, specs[0].arch) == ("transpose", "sm_90a")


def test_bytes_of_four_words_are_exchanged(monkeypatch):
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed")
    import cutlass.cute as cute
    from cutlass import Int32

    from cudnn.cutedsl.transpose_kernel import turn_bytes

    def prmt(a, b, selector):
        """As PTX has it: nibble i of the selector says which of the eight bytes becomes byte i."""
        pool = [word >> 8 * i & 255 for word in (int(a.value), int(b.value)) for i in range(4)]
        value = sum(pool[selector >> 4 * i & 7] << 8 * i for i in range(4))
        return value - (value >> 31 << 32)

    monkeypatch.setattr(cute.arch, "prmt", prmt)
    words = [random.getrandbits(31) for _ in range(4)]
    turned = [int(word.value) & 0xFFFFFFFF for word in turn_bytes(*map(Int32, words))]
    for i, j in itertools.product(range(4), repeat=2):
        assert turned[i] >> 8 * j & 255 == words[j] >> 8 * i & 255


def test_16_bit_elements_need_no_transpose():
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed")
    from cudnn.cutedsl.transpose_kernel import Transpose

    with pytest.raises(ValueError, match="bits: found 16, needs 8 or 32"):
        Transpose(16)


@pytest.mark.compile
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_compiles(dtype):
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed")
    assert len(TransposeSpec(dtype).compile().object_bytes) > 1000


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_copies_are_equal_in_every_bit(dtype):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a CUDA device of compute capability 9.0")
    kernel, kind = TransposeSpec(dtype).build(), getattr(torch, dtype)
    unit = 16 // kind.itemsize
    rng = random.Random(torch.initial_seed())
    # Whole tiles; one element; rows that end inside of a vector, in a line that is padded to 16 bytes; columns that end inside of a tile; many batches.
    sizes = [(512, 256, 2), (1, 1, 1), (unit + 3, 5, 1), (1000, 777, 3), (4096, 4096, 1)]
    sizes += [(rng.randint(1, 700), rng.randint(1, 700), rng.randint(1, 3)) for _ in range(8)]
    for rows, columns, batches in sizes:
        line = pitch(rows, 8 * kind.itemsize) + unit * rng.randint(0, 2)
        memory = torch.randint(0, 256, (batches, columns, line * kind.itemsize), dtype=torch.uint8, device="cuda")
        source = memory.view(kind).as_strided((rows, columns, batches), (1, line, line * columns))
        width = pitch(columns, 8 * kind.itemsize)
        guarded = torch.full((64 + batches * rows * width * kind.itemsize + 64,), 0x5A, dtype=torch.uint8, device="cuda")
        target = guarded[64:-64].view(kind).as_strided((rows, columns, batches), (width, 1, rows * width))
        kernel(source, target, torch.cuda.current_stream().cuda_stream)
        bits = torch.uint8 if kind.itemsize == 1 else torch.int32
        assert torch.equal(target.view(bits), source.view(bits)), (rows, columns, batches)
        assert (guarded[:64] == 0x5A).all() and (guarded[-64:] == 0x5A).all(), (rows, columns, batches)
        gap = guarded[64:-64].view(bits).view(batches, rows, width)[:, :, columns:]
        assert not gap.any(), "the last vector of a row is completed with zeros"
