"""Formats as data, where scale factors lie, and checks of tensors that hold them."""

from __future__ import annotations

import itertools
import random

import pytest

from cudnn import block_scale
from cudnn.block_scale import FORMATS, ScaleLayout, blocked_offset, format_of, named_format
from cudnn.block_scale.checks import check_scales, scale_form, unpacked
from cudnn.tensors import Metadata


def meta(shape, stride, dtype="float8_e8m0fnu") -> Metadata:
    return Metadata(dtype, tuple(shape), tuple(stride), "cpu", None)


def test_formats():
    assert {name: (f.element, f.scale, f.vec, f.limit, f.packed) for name, f in FORMATS.items()} == {
        "mxfp8": ("float8_e4m3fn", "float8_e8m0fnu", 32, 448.0, 1),
        "mxfp8_e5m2": ("float8_e5m2", "float8_e8m0fnu", 32, 128.0, 1),
        "mxfp4": ("float4_e2m1fn", "float8_e8m0fnu", 32, 6.0, 2),
        "mxfp4_v16": ("float4_e2m1fn", "float8_e8m0fnu", 16, 6.0, 2),
        "nvfp4": ("float4_e2m1fn", "float8_e4m3fn", 16, 6.0, 2),
    }
    assert named_format("nvfp4") is block_scale.NVFP4 and named_format(block_scale.MXFP8) is block_scale.MXFP8
    assert all(format_of(f.element, f.scale, f.vec) is f for f in FORMATS.values())
    assert format_of("float4_e2m1fn", "float8_e4m3fn", 32) is None
    for wrong in ("fp8", None, 8, "MXFP8"):
        with pytest.raises(ValueError, match="format: found .* needs one of 'mxfp8'"):
            named_format(wrong)


def sizes():
    yield from [(1, 1, 1, 32), (128, 128, 1, 32), (129, 130, 2, 32), (300, 1000, 3, 16), (0, 5, 1, 32), (5, 0, 1, 16)]
    for _ in range(20):
        yield random.randint(1, 400), random.randint(1, 600), random.randint(1, 3), random.choice((16, 32))


def test_offsets_are_those_of_both_forms():
    for rows, columns, batches, vec in sizes():
        layout = ScaleLayout(rows, columns, batches, vec)
        seen = set()
        for _ in range(200 if rows * columns else 0):
            row, block, batch = random.randrange(rows), random.randrange(layout.blocks), random.randrange(batches)
            logical = (row % 32, row // 32 % 4, row // 128, block % 4, block // 4, batch)
            physical = (batch, row // 128, block // 4, row % 32, row // 32 % 4, block % 4)
            offset = layout.offset(row, block, batch)
            assert offset == sum(i * s for i, s in zip(logical, layout.logical_stride, strict=True))
            assert offset == sum(i * s for i, s in zip(physical, layout.physical_stride, strict=True))
            assert all(i < extent for i, extent in zip(logical, layout.logical_shape, strict=True))
            assert 0 <= offset < layout.entries
            seen.add((row, block, batch, offset))
        assert len({key[3] for key in seen}) == len({key[:3] for key in seen}), "one entry each"


def test_the_whole_of_a_small_layout_is_used_once():
    layout = ScaleLayout(256, 256, 2, 32)
    offsets = sorted(layout.offset(r, b, i) for r, b, i in itertools.product(range(256), range(8), range(2)))
    assert offsets == list(range(layout.entries))


def test_the_forms_are_one_buffer():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    layout = ScaleLayout(200, 300, 2, 16)
    physical = torch.arange(layout.entries).view(layout.physical_shape)
    logical = physical.permute(block_scale.layout.LOGICAL_ORDER)
    assert physical.stride() == layout.physical_stride
    assert (tuple(logical.shape), logical.stride()) == (layout.logical_shape, layout.logical_stride)
    assert logical[17, 2, 1, 3, 4, 1] == layout.offset(17 + 64 + 128, 3 + 16, 1)


def test_offsets_of_arrays():
    np = pytest.importorskip("numpy", reason="numpy is not installed")
    layout = ScaleLayout(500, 700, 1, 32)
    rows, blocks = np.arange(500)[:, None], np.arange(layout.blocks)[None]
    found = blocked_offset(rows, blocks, 0, layout.row_atoms, layout.block_atoms)
    assert found[130, 5] == layout.offset(130, 5) and len(np.unique(found)) == 500 * layout.blocks


def test_offsets_beyond_32_bits():
    layout = ScaleLayout(1 << 20, 1 << 20, 4, 16)
    assert layout.offset((1 << 20) - 1, layout.blocks - 1, 3) == layout.entries - 1 > 1 << 37


def test_both_forms_pass():
    for rows, columns, batches, vec in sizes():
        layout = ScaleLayout(rows, columns, batches, vec)
        assert check_scales("sfa_tensor", meta(layout.logical_shape, layout.logical_stride), layout).logical
        assert not check_scales("sfa_tensor", meta(layout.physical_shape, layout.physical_stride), layout).logical
        form = scale_form(layout.physical_shape)
        assert (form.row_atoms, form.block_atoms, form.batches, form.stride) == (layout.row_atoms, layout.block_atoms, batches, layout.physical_stride)


def test_strides_of_unit_axes_say_nothing():
    layout = ScaleLayout(128, 128, 1, 32)
    check_scales("sfa_tensor", meta(layout.logical_shape, (16, 4, 7, 1, 9, 11)), layout)
    check_scales("sfa_tensor", meta(layout.physical_shape, (0, 1, 2, 16, 4, 1)), layout)


@pytest.mark.parametrize(
    ("shape", "stride", "text"),
    [
        ((256, 8), (8, 1), r"sfa_tensor: found shape \(256, 8\), needs \(32, 4, 2, 4, 2, 1\) or \(1, 2, 2, 32, 4, 4\) for 256 x 256 x 1 and sf_vec_size 32"),
        ((32, 4, 3, 4, 2, 1), (16, 4, 1024, 1, 512, 3072), r"sfa_tensor: found shape \(32, 4, 3, 4, 2, 1\), needs"),
        ((1, 2, 2, 4, 32, 4), (1024, 1024, 512, 128, 4, 1), "sfa_tensor: found shape"),
        ((32, 4, 2, 4, 2, 1), (64, 16, 256, 1, 4, 2048), r"sfa_tensor: found stride .* needs \(16, 4, 1024, 1, 512, 2048\)"),
        ((1, 2, 2, 32, 4, 4), (2048, 1024, 512, 4, 128, 1), r"sfa_tensor: found stride .* needs \(2048, 1024, 512, 16, 4, 1\)"),
    ],
)
def test_what_is_refused(shape, stride, text):
    with pytest.raises(ValueError, match=text):
        check_scales("sfa_tensor", meta(shape, stride), ScaleLayout(256, 256, 1, 32))


def test_bytes_stand_for_packed_numbers():
    found = unpacked(meta((8, 16, 1), (16, 1, 128), "uint8"))
    assert (found.dtype, found.shape, found.stride) == ("float4_e2m1fn", (8, 32, 1), (32, 1, 256))
    other = meta((8, 16), (16, 1), "float8_e4m3fn")
    assert unpacked(other) is other
