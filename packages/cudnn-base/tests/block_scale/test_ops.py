"""`cudnn.ops.block_scale_quantize` and its kin on CPU tensors, traced, and as far as the launches go with the reference in the place of the kernels."""

from __future__ import annotations

import math
import random

import pytest

import cudnn.ops as ops
from cudnn.block_scale import FORMATS, ScaleLayout, named_format
from cudnn.reference import dequantize_blocks, quantize_blocks, scales_from_blocked, scales_to_blocked

torch = pytest.importorskip("torch", reason="torch is not installed")

FORMAT_NAMES = list(FORMATS)
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def bits(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous().view(torch.uint8)


def even(low: int, high: int) -> int:
    return 2 * random.randint(low // 2, high // 2)


def random_input(*leading: int) -> torch.Tensor:
    x = torch.randn(*leading, even(2, 300), even(2, 300)) * 2.0 ** random.randint(-20, 20)
    return x.to(random.choice(DTYPES))


def canonical(shape) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


@pytest.mark.parametrize("format", FORMAT_NAMES)
@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
def test_both_directions_are_rows_of_x_and_of_its_transpose(format, leading):
    fmt, x = named_format(format), random_input(*leading)
    for layout in ("blocked", "plain"):
        found = ops.block_scale_quantize(x, format, axis="both", scale_layout=layout)
        assert list(found.keys()) == ["data_row", "scales_row", "data_col", "scales_col"]
        for y, direction in ((x, "row"), (x.mT, "col")):
            data, scales = quantize_blocks(y, fmt)
            assert torch.equal(bits(found[f"data_{direction}"]), bits(data)) and found[f"data_{direction}"].dtype == data.dtype
            expected = scales_to_blocked(scales) if layout == "blocked" else scales
            assert torch.equal(bits(found[f"scales_{direction}"]), bits(expected)) and found[f"scales_{direction}"].dtype == scales.dtype
            alone = ops.block_scale_quantize(x, format, axis=direction, scale_layout=layout)
            assert list(alone.keys()) == [f"data_{direction}", f"scales_{direction}"]
            for name, t in alone.items():
                assert torch.equal(bits(t), bits(found[name])) and t.stride() == found[name].stride()
        turned = found["data_col"].mT if fmt.packed == 1 else found["data_col"]
        assert turned.stride() == canonical(turned.shape) and found["data_row"].stride() == canonical(found["data_row"].shape)
        if layout == "plain":
            assert found["scales_col"].mT.stride() == canonical(found["scales_col"].mT.shape)


@pytest.mark.parametrize("format", FORMAT_NAMES)
@pytest.mark.parametrize("norm_const", [None, 3.0, "tensor"])
def test_dequantize_is_the_inverse(format, norm_const):
    fmt, x = named_format(format), random_input(random.randint(1, 3))
    norm = torch.tensor([random.uniform(0.1, 10)]) if norm_const == "tensor" else norm_const
    layout, dtype = random.choice(["blocked", "plain"]), random.choice(DTYPES)
    found = ops.block_scale_quantize(x, format, axis="both", scale_layout=layout, norm_const=norm)
    for y, direction in ((x, "row"), (x.mT, "col")):
        data, scales = quantize_blocks(y, fmt, norm)
        expected = dequantize_blocks(data, scales, fmt.vec, norm, dtype)
        arguments = {"scale_layout": layout, "norm_const": norm, "dtype": dtype}
        given, factors = found[f"data_{direction}"], found[f"scales_{direction}"]
        back = ops.block_scale_dequantize(given, factors, format, **arguments)
        assert back.dtype == dtype and back.shape == y.shape and torch.equal(bits(back), bits(expected))
        assert (back.mT if direction == "col" and fmt.packed == 1 else back).stride() == canonical(
            (back.mT if direction == "col" and fmt.packed == 1 else back).shape
        )
        # Bytes stand for what the format says, and the dtypes alone say it, but for blocks of 16 with e8m0.
        raw = ops.block_scale_dequantize(given.view(torch.uint8), factors.view(torch.uint8), format, **arguments)
        assert torch.equal(bits(raw), bits(back))
        if format != "mxfp4_v16":
            assert torch.equal(bits(ops.block_scale_dequantize(given, factors, **arguments)), bits(back))
        if layout == "blocked":
            logical = factors.permute(3, 4, 1, 5, 2, 0)
            assert torch.equal(bits(ops.block_scale_dequantize(given, logical, format, **arguments)), bits(back))


def test_padding_is_zero_and_has_no_effect():
    x = torch.randn(130, 40)
    found = ops.block_scale_quantize(x, "mxfp8")
    layout = ScaleLayout(130, 40, 1, 32)
    used = torch.zeros(layout.entries, dtype=torch.bool)
    rows, blocks = torch.meshgrid(torch.arange(130), torch.arange(2), indexing="ij")
    used[layout.offset(rows, blocks).reshape(-1)] = True
    raw = found["scales_row"].view(torch.uint8).view(-1)
    assert (raw[~used] == 0).all()
    back = ops.block_scale_dequantize(found["data_row"], found["scales_row"])
    raw[~used] = 255
    assert torch.equal(ops.block_scale_dequantize(found["data_row"], found["scales_row"]), back) and not back.isnan().any()


def test_layouts_of_scale_factors():
    for shape in ((5, 7), (3, 130, 9), (2, 2, 64, 4), (0, 3), (2, 0, 5)):
        plain = torch.randint(0, 256, shape, dtype=torch.uint8)
        for dtype in (torch.uint8, torch.float8_e8m0fnu, torch.float8_e4m3fn):
            blocked = ops.to_blocked(plain.view(dtype))
            assert blocked.dtype == dtype and blocked.is_contiguous() and torch.equal(bits(blocked), bits(scales_to_blocked(plain)))
            for form in (blocked, blocked.permute(3, 4, 1, 5, 2, 0)):
                assert torch.equal(ops.from_blocked(form, shape).view(torch.uint8), plain)
                assert ops.from_blocked(form, torch.Size(shape)).dtype == dtype


@pytest.mark.parametrize("shape", [(0, 64), (64, 0), (0, 0), (0, 8, 64), (2, 0, 64)])
def test_empty_tensors(shape):
    x = torch.zeros(shape, dtype=torch.bfloat16)
    for format in FORMAT_NAMES:
        for layout in ("blocked", "plain"):
            found = ops.block_scale_quantize(x, format, axis="both", scale_layout=layout)
            for direction, y in (("row", x), ("col", x.mT)):
                back = ops.block_scale_dequantize(found[f"data_{direction}"], found[f"scales_{direction}"], format, scale_layout=layout)
                assert back.shape == y.shape


def test_views_are_taken_as_they_are():
    wide = torch.randn(4, 200, 136)
    for x in (wide[1:3, ::2, 4:100], wide.mT, wide.permute(2, 0, 1), wide[:, :, :1].expand(-1, -1, 64)):
        found, expected = (ops.block_scale_quantize(y, "nvfp4", axis="both") for y in (x, x.clone(memory_format=torch.contiguous_format)))
        assert all(torch.equal(bits(found[name]), bits(expected[name])) for name in expected.keys())


def test_no_gradient_passes():
    x = torch.randn(4, 64, requires_grad=True)
    found = ops.block_scale_quantize(x)
    assert not any(t.requires_grad for t in found)
    assert not ops.block_scale_dequantize(*found).requires_grad


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (([1.0],), TypeError, "x is a list, needs a torch tensor"),
        ((torch.zeros(4, 64, dtype=torch.float64),), TypeError, "x is torch.float64, needs torch.bfloat16, torch.float16 or torch.float32"),
        ((torch.zeros(64),), ValueError, r"x has shape \(64,\), needs \(..., M, K\)"),
        ((torch.zeros(4, 64), "fp8"), ValueError, "format: found 'fp8', needs one of 'mxfp8'"),
        ((torch.zeros(4, 33), "nvfp4"), ValueError, "x has 33 columns, needs an even number with nvfp4"),
    ],
)
def test_what_quantize_refuses(arguments, error, text):
    with pytest.raises(error, match=text):
        ops.block_scale_quantize(*arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"axis": 0}, ValueError, "axis is 0, needs 'row', 'col' or 'both'"),
        ({"scale_layout": "swizzled"}, ValueError, "scale_layout is 'swizzled', needs 'blocked' or 'plain'"),
        ({"norm_const": "1"}, TypeError, "norm_const is a str, needs a number or a float32 tensor"),
        ({"norm_const": 0.0}, ValueError, "norm_const is 0.0, needs a finite number > 0"),
        ({"norm_const": math.inf}, ValueError, "norm_const is inf, needs a finite number > 0"),
        ({"norm_const": torch.ones(2)}, ValueError, r"norm_const has shape \(2,\), needs one element"),
        ({"norm_const": torch.ones(1, dtype=torch.bfloat16)}, TypeError, "norm_const is torch.bfloat16, needs torch.float32"),
        ({"norm_const": torch.ones(1, device="meta")}, ValueError, "norm_const is on meta while the other tensors are on cpu"),
        ({"axis": "col", "format": "mxfp4"}, ValueError, "x has 3 rows, needs an even number with mxfp4"),
    ],
)
def test_what_options_refuse(arguments, error, text):
    with pytest.raises(error, match=text):
        ops.block_scale_quantize(torch.zeros(3, 64), **arguments)


def test_what_dequantize_refuses():
    data, scales = ops.block_scale_quantize(torch.zeros(4, 64))
    for arguments, error, text in [
        (([0], scales), TypeError, "data is a list, needs a torch tensor"),
        ((data, None), TypeError, "scales is a NoneType"),
        ((data.float(), scales), ValueError, "data is torch.float32 and scales are torch.float8_e8m0fnu, which is no format"),
        ((data, scales.view(torch.float8_e4m3fn)), ValueError, "which is no format"),
        ((data, scales, "nvfp4"), ValueError, "data is float8_e4m3fn, needs float4_e2m1fn or uint8 with format='nvfp4'"),
        (
            (data, scales[:, :, :, :16]),
            ValueError,
            r"scales have shape \(1, 1, 1, 16, 4, 4\), needs \(1, 1, 1, 32, 4, 4\) or \(32, 4, 1, 4, 1, 1\) for data of 4 x 64",
        ),
        ((data[0], scales), ValueError, r"data has shape \(64,\), needs \(..., M, K\)"),
        ((data, scales.to("meta")), ValueError, "scales are on meta while data is on cpu"),
    ]:
        with pytest.raises(error, match=text):
            ops.block_scale_dequantize(*arguments)
    with pytest.raises(ValueError, match=r"scales have shape \(1, 1, 1, 32, 4, 4\), needs \(4, 2\), one for 32 elements"):
        ops.block_scale_dequantize(data, scales, scale_layout="plain")
    with pytest.raises(TypeError, match="dtype is torch.float64, needs torch.bfloat16"):
        ops.block_scale_dequantize(data, scales, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"scales have shape \(5,\), needs \(..., rows, blocks\)"):
        ops.to_blocked(torch.zeros(5, dtype=torch.uint8))
    with pytest.raises(TypeError, match="scales is torch.float32, needs a dtype of one byte"):
        ops.to_blocked(torch.zeros(5, 5))
    with pytest.raises(ValueError, match=r"blocked has shape \(1, 1, 1, 32, 4, 4\), needs \(1, 2, 1, 32, 4, 4\)"):
        ops.from_blocked(scales, (200, 2))
    with pytest.raises(ValueError, match=r"shape is \(2,\), needs"):
        ops.from_blocked(scales, (2,))


def test_dtypes_in_any_spelling():
    data, scales = ops.block_scale_quantize(torch.randn(4, 64))
    assert ops.block_scale_dequantize(data, scales, dtype="float16").dtype == torch.float16


@pytest.mark.parametrize("format", FORMAT_NAMES)
def test_opcheck(format):
    from cudnn.block_scale.torch_ops import dequantize_op, from_blocked_op, quantize_op, to_blocked_op

    x, norm = torch.randn(2, 34, 72), torch.tensor([2.0])
    for blocked in (True, False):
        torch.library.opcheck(quantize_op, (x, norm, format, True, True, blocked))
        torch.library.opcheck(quantize_op, (x, None, format, False, True, blocked))
        data_row, scales_row, data_col, scales_col = quantize_op(x, None, format, True, True, blocked)
        torch.library.opcheck(dequantize_op, (data_row, scales_row, norm, format, blocked, "bfloat16"))
        torch.library.opcheck(dequantize_op, (data_col, scales_col, None, format, blocked, "float32"))
        if not blocked:
            torch.library.opcheck(to_blocked_op, (scales_row,))
            torch.library.opcheck(from_blocked_op, (to_blocked_op(scales_row), list(scales_row.shape)))


@pytest.mark.parametrize(("format", "backend"), [("mxfp8", "aot_eager"), ("nvfp4", "aot_eager"), pytest.param("nvfp4", "inductor", marks=pytest.mark.slow)])
def test_torch_compile(format, backend):
    def function(x):
        found = ops.block_scale_quantize(x, format, axis="both", norm_const=2.0)
        back = ops.block_scale_dequantize(found["data_row"], found["scales_row"], format, norm_const=2.0)
        plain = ops.block_scale_quantize(x, format, scale_layout="plain")
        blocked = ops.to_blocked(plain["scales_row"])
        return (
            found["data_row"],
            found["scales_row"],
            found["data_col"],
            found["scales_col"],
            back,
            blocked,
            ops.from_blocked(blocked, plain["scales_row"].shape),
        )

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    for x in (torch.randn(40, 64), torch.randn(56, 96), torch.randn(200, 130)):  # the second size makes extents symbols
        for found, expected in zip(compiled(x), function(x), strict=True):
            assert found.dtype == expected.dtype and found.stride() == expected.stride() and torch.equal(bits(found), bits(expected))


def reference_kernel(spec, device, *arguments) -> None:
    """What the kernel of a spec writes, by the contract in its docstring, from the reference."""
    fmt = next(f for f in FORMATS.values() if (f.element, f.scale, f.vec) == (spec.element, spec.scale, spec.vec))
    if spec.op == "block_scale_quantize":
        x, *rest = arguments[0]
        rows, columns, batches = x.shape
        assert x.stride(1) == 1 and columns % 8 == 0 and x.data_ptr() % 16 == 0
        assert all(extent == 1 or step * x.itemsize % 16 == 0 for extent, step in zip((rows, batches), (x.stride(0), x.stride(2)), strict=True))
        norm = rest.pop() if spec.norm else None
        for wanted, turned in ((spec.along_rows, False), (spec.along_columns, True)):
            if not wanted:
                continue
            data, scales = quantize_blocks((x.transpose(0, 1) if turned else x).permute(2, 0, 1), fmt, norm)
            elements, factors = rest.pop(0), rest.pop(0)
            assert elements.dtype == factors.dtype == torch.uint8 and elements.stride(1) == 1
            # Written in words of 8 elements.
            assert elements.shape[1] % (8 // fmt.packed) == elements.data_ptr() % 8 == 0
            found = data.view(torch.uint8).permute(1, 2, 0)
            elements.copy_(found.transpose(0, 1) if turned and fmt.packed == 1 else found)
            if spec.blocked:
                assert factors.is_contiguous() and factors.dim() == 1 and factors.data_ptr() % 16 == 0
                factors.copy_(scales_to_blocked(scales).view(torch.uint8).view(-1))
            else:
                factors.copy_(scales.view(torch.uint8).permute(1, 2, 0))
        assert not rest
        return
    source, factors, target, *norm = arguments
    rows, columns, batches = target.shape
    inner = 1 if spec.k_major else 0
    assert source.stride(inner) == target.stride(inner) == 1 and target.shape[inner] % 8 == 0
    assert source.data_ptr() % 16 == target.data_ptr() % 16 == 0
    for axis in (1 - inner, 2):
        assert target.shape[axis] == 1 or (source.stride(axis) % (8 // fmt.packed) == 0 and target.stride(axis) % 8 == 0)
    if spec.blocked:
        layout = ScaleLayout(rows, columns, batches, fmt.vec)
        assert factors.dim() == 1 and factors.is_contiguous() and factors.data_ptr() % 16 == 0
        plain = scales_from_blocked(factors.view(layout.physical_shape), rows, columns, fmt.vec)
    else:
        plain = factors.permute(2, 0, 1).contiguous()
    data = source.permute(2, 0, 1).contiguous()
    data = data if fmt.packed == 2 else data.view(getattr(torch, spec.element))
    found = dequantize_blocks(data, plain.view(getattr(torch, spec.scale)), fmt.vec, norm[0] if norm else None, target.dtype)
    target.copy_(found.permute(1, 2, 0))


@pytest.mark.parametrize("format", FORMAT_NAMES)
def test_launches_fit_the_kernels_whatever_the_tensors_are(format, monkeypatch):
    from cudnn.block_scale import torch_launch as launch

    monkeypatch.setattr(launch, "run", reference_kernel)
    fmt = named_format(format)
    memory = torch.randn(3, 90, 200).bfloat16()
    cases = [memory[:, :64, :128], memory[:, :50, :34], memory[:, 10::2, 1:35], memory.mT[:, :66, :40], memory[0, :, :8].view(1, 90, 8), torch.randn(2, 16, 72)]
    cases.append(memory[: random.randint(1, 3), : even(2, 90), : even(2, 200)])
    for x in cases:
        for rows, columns, blocked in [(True, True, True), (True, False, False), (False, True, False)]:
            norm = random.choice([None, torch.tensor([3.0])])
            found = launch.quantize_on_device(x, norm, fmt, rows, columns, blocked)
            for (data, scales), y in zip(found, [y for y, wanted in ((x, rows), (x.mT, columns)) if wanted], strict=True):
                expected, factors = quantize_blocks(y, fmt, norm)
                assert torch.equal(bits(data), bits(expected))
                assert torch.equal(bits(scales), bits(scales_to_blocked(factors) if blocked else factors))
                dtype = random.choice(["bfloat16", "float16", "float32"])
                turned = fmt.packed == 1 and y is not x
                form = scales.permute(3, 4, 1, 5, 2, 0) if blocked and random.random() < 0.5 else scales
                back = launch.dequantize_on_device(data, form, norm, fmt, blocked, dtype, turned)
                assert torch.equal(back, dequantize_blocks(expected, factors, fmt.vec, norm, getattr(torch, dtype)))
