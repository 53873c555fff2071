"""The reference quantiser against the formula written out once more, block by block and in other arithmetic; its inverse over every byte; the blocked layout against its offsets."""

from __future__ import annotations

import math
import random

import pytest

from cudnn.block_scale import FORMATS, ScaleLayout
from cudnn.fp4 import E2M1_VALUES, unpack_fp4
from cudnn.reference import cast_scale, dequantize_blocks, dequantize_operand, quantize_blocks, scales_from_blocked, scales_to_blocked

np = pytest.importorskip("numpy", reason="numpy is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")

TINY = math.ldexp(1.0, -127)


def positive_values(element: str) -> list[float]:
    """The finite values >= 0 of an element's dtype, by code."""
    if element == "float4_e2m1fn":
        return list(E2M1_VALUES[:8])
    kind = getattr(torch, element)
    return [v for v in torch.arange(128, dtype=torch.uint8).view(kind).double().tolist() if math.isfinite(v)]


def round_float32(x: float) -> float:
    """A float64 rounded to float32, beyond its range to infinity."""
    with np.errstate(over="ignore"):
        return float(np.float32(x))


def nearest(value: float, values: list[float]) -> int:
    """Code of the nearest value to a number >= 0, ties to the even code, beyond the last to the last."""
    code = int(np.searchsorted(values, value))
    if code == 0 or code == len(values):
        return min(code, len(values) - 1)
    low, high = value - values[code - 1], values[code] - value
    return code - 1 if low < high or (low == high and code % 2) else code


def quantised_block(block: list[float], fmt, c: float, values: list[float]) -> tuple[float, list[float]]:
    """(scale factor, elements) of one block of finite numbers. Products of two float32 are exact in float64, so each step below is one rounding."""
    largest = max(abs(y) for y in block)
    p = round_float32(round_float32(largest * round_float32(1 / fmt.limit)) * c)
    if fmt.scale == "float8_e8m0fnu":
        scale = TINY if p <= TINY else min(2.0 ** math.ceil(math.log2(p)), 2.0**127)
        if p > TINY and scale / 2 >= p:  # the logarithm is rounded
            scale /= 2
        elif scale < p and scale < 2.0**127:
            scale *= 2
    else:
        scales = positive_values(fmt.scale)
        scale = scales[nearest(p, scales)]
    factor = min(round_float32(c * (math.inf if scale == 0 else round_float32(1 / scale))), float(np.finfo(np.float32).max))
    return scale, [math.copysign(values[nearest(round_float32(abs(y) * factor), values)], y) for y in block]


def samples(columns: int) -> list[torch.Tensor]:
    """Rows of ordinary numbers, of wild ones, of ties, and of zeros among tiny ones."""
    ties = torch.tensor([0.25, 0.5, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 448.0, 432.0])
    return [
        torch.randn(columns),
        torch.randn(columns) * torch.exp(torch.randn(columns) * 20),
        ties[torch.randint(0, len(ties), (columns,))] * torch.sign(torch.randn(columns)) * 2.0 ** random.randint(-20, 20),
        torch.randn(columns) * 1e-40,
        torch.zeros(columns),
    ]


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
@pytest.mark.parametrize("norm_const", [None, "random"])
def test_it_follows_the_formula(fmt, norm_const):
    values = positive_values(fmt.element)
    c = 1.0 if norm_const is None else round_float32(random.uniform(0.01, 300))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        columns = 2 * random.randint(1, 80)
        x = torch.stack(samples(columns)).clamp(-3e38, 3e38).to(dtype).nan_to_num(posinf=1.0, neginf=-1.0)
        data, scales = quantize_blocks(x, fmt, None if norm_const is None else torch.tensor([c]))
        elements = dequantize_blocks(data, torch.full_like(scales.view(torch.uint8), 127).view(torch.float8_e8m0fnu), fmt.vec)
        assert scales.shape == (5, -(-columns // fmt.vec)) and scales.dtype == getattr(torch, fmt.scale)
        for row, blocks in enumerate(x.float().tolist()):
            for b in range(scales.shape[1]):
                scale, wanted = quantised_block(blocks[b * fmt.vec : (b + 1) * fmt.vec], fmt, c, values)
                assert scales[row, b].float().item() == scale
                found = elements[row, b * fmt.vec : (b + 1) * fmt.vec].tolist()
                assert [math.copysign(1, v) * abs(v) for v in found] == wanted
                assert [math.copysign(1, v) for v in found] == [math.copysign(1, v) for v in wanted], "zeros keep their sign"


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_round_trips(fmt):
    """What the format holds comes back as it is; other numbers within half a step of the element and, for saturation, of the scale's rounding."""
    x = torch.randn(64, 96) * torch.exp(torch.randn(64, 1) * 3)
    data, scales = quantize_blocks(x, fmt)
    back = dequantize_blocks(data, scales, fmt.vec)
    again = dequantize_blocks(*quantize_blocks(back, fmt), fmt.vec)
    if fmt.scale == "float8_e8m0fnu":
        # The second pass finds the same power of two or a smaller one, in either case every number of the first.
        assert torch.equal(again, back)
        largest = x.unflatten(-1, (-1, fmt.vec)).abs().amax(-1, keepdim=True)
        bits = {"float8_e4m3fn": 3, "float8_e5m2": 2, "float4_e2m1fn": 1}[fmt.element]
        limit = {"float8_e4m3fn": 2.0**-6, "float8_e5m2": 2.0**-14, "float4_e2m1fn": 1.0}[fmt.element]
        steps = torch.maximum(x.abs(), scales.float().repeat_interleave(fmt.vec, -1) * limit)
        # Half a unit in the last place of a number is at most its size times 2^-(bits + 1); nothing saturates, because the scale is rounded up.
        assert ((back - x).abs() <= steps * 2.0 ** -(bits + 1)).all()
        assert (back.abs() <= largest.expand(-1, -1, fmt.vec).flatten(-2) * (1 + 2.0 ** -(bits + 1))).all()


def test_special_values():
    for fmt in FORMATS.values():
        x = torch.ones(4, 64)
        x[0, 3], x[1, 40], x[2, 5], x[3] = math.nan, math.inf, -math.inf, 0
        data, scales = quantize_blocks(x, fmt)
        wide = dequantize_blocks(data, scales, fmt.vec)
        assert wide[0, : fmt.vec].isnan().all() and not wide[0, fmt.vec :].isnan().any(), "a NaN spoils its own block"
        top = 2.0**127 if fmt.scale == "float8_e8m0fnu" else 448.0
        assert scales.float()[1, 40 // fmt.vec] == top and scales.float()[2, 0] == top
        assert wide[1, 40] > 448 and wide[2, 5] < -448
        assert (wide[3] == 0).all() and (data.view(torch.uint8)[3] == 0).all()


def test_4_bit_elements_come_in_pairs():
    with pytest.raises(ValueError, match="x: found 33 columns, needs an even number with nvfp4"):
        quantize_blocks(torch.zeros(2, 33), FORMATS["nvfp4"])
    data, _ = quantize_blocks(torch.tensor([[1.0, -6.0, 0.5, 0.0]]), FORMATS["mxfp4"])
    assert data.dtype == torch.float4_e2m1fn_x2 and data.shape == (1, 2)
    assert unpack_fp4(data).tolist() == [[2, 15, 1, 0]]


def test_empty_tensors():
    for fmt in FORMATS.values():
        for shape in ((0, 64), (3, 0), (2, 0, 64)):
            data, scales = quantize_blocks(torch.zeros(shape), fmt)
            assert data.numel() == 0 and scales.shape == (*shape[:-1], -(-shape[-1] // fmt.vec))
            assert dequantize_blocks(data, scales, fmt.vec).shape == shape


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_products_are_exact_over_every_byte_and_scale(fmt):
    """Every element times every scale factor: exact in float32 inside its range, and in bfloat16 inside of that (4 x 1 or 2 x 4 significant bits)."""
    elements = torch.arange(256, dtype=torch.uint8).view(1, 256).expand(256, -1).contiguous()
    scales = torch.arange(256, dtype=torch.uint8).view(256, 1).view(getattr(torch, fmt.scale))
    data = elements if fmt.element == "float4_e2m1fn" else elements.view(getattr(torch, fmt.element))
    found = dequantize_blocks(data, scales, 512)
    values = dequantize_blocks(data, torch.full((256, 1), 127, dtype=torch.uint8), 512).double()
    exact = values * scales.double()
    inside = exact.isfinite() & (exact.abs() < 2.0**128)
    assert torch.equal(found.double()[inside], exact[inside]) and inside.float().mean() > 0.9
    assert torch.equal(found.isnan(), exact.isnan())
    narrow = dequantize_blocks(data, scales, 512, dtype=torch.bfloat16)
    ordinary = inside & ((exact == 0) | (exact.abs() >= 2.0**-126))
    assert torch.equal(narrow.double()[ordinary], exact[ordinary])
    assert torch.equal(narrow.float().nan_to_num(7.0), found.bfloat16().float().nan_to_num(7.0)), "outside it is rounded as float32 would be"


def test_norm_const_comes_out_again():
    x = torch.randn(8, 128)
    c = random.uniform(10, 1000)
    for fmt in FORMATS.values():
        data, scales = quantize_blocks(x, fmt, c)
        back = dequantize_blocks(data, scales, fmt.vec, norm_const=torch.tensor([c]))
        wide = scales.float() / torch.tensor(c, dtype=torch.float32)
        assert torch.equal(back, dequantize_blocks(data, torch.full_like(scales.view(torch.uint8), 127), fmt.vec) * wide.repeat_interleave(fmt.vec, -1))


def test_e8m0_against_torch():
    """torch rounds to nearest with ties up, we round up: equal at powers of two, torch's is never more, and at most one step less."""
    x = torch.exp(torch.randn(20_000) * 20).clamp(1e-37, 1e38)
    ours, theirs = (t.view(torch.uint8).int() for t in (cast_scale(x, torch.float8_e8m0fnu), x.to(torch.float8_e8m0fnu)))
    assert ((ours - theirs >= 0) & (ours - theirs <= 1)).all() and (ours != theirs).any()
    powers = torch.pow(2.0, torch.arange(-126, 128).float())
    assert torch.equal(cast_scale(powers, "float8_e8m0fnu").view(torch.uint8), powers.to(torch.float8_e8m0fnu).view(torch.uint8))


def test_a_nan_scale_factor_has_no_sign():
    nan = torch.tensor([math.nan, -math.nan]).view(torch.int32)
    nan[1] |= -(1 << 31)
    assert cast_scale(nan.view(torch.float32), "float8_e4m3fn").view(torch.uint8).tolist() == [0x7F, 0x7F]
    assert cast_scale(nan.view(torch.float32), "float8_e8m0fnu").view(torch.uint8).tolist() == [0xFF, 0xFF]


def test_blocked_layout_by_offsets():
    for rows, columns, batches, vec in [(1, 1, 1, 32), (130, 290, 2, 32), (random.randint(1, 300), random.randint(1, 900), random.randint(1, 3), 16)]:
        layout = ScaleLayout(rows, columns, batches, vec)
        plain = torch.randint(0, 256, (batches, rows, layout.blocks), dtype=torch.uint8)
        blocked = scales_to_blocked(plain.view(torch.float8_e8m0fnu))
        assert blocked.shape == layout.physical_shape and blocked.is_contiguous() and blocked.dtype == torch.float8_e8m0fnu
        expected = torch.zeros(layout.entries, dtype=torch.uint8)
        i, r, b = (t.reshape(-1) for t in torch.meshgrid(torch.arange(batches), torch.arange(rows), torch.arange(layout.blocks), indexing="ij"))
        expected[layout.offset(r, b, i)] = plain.reshape(-1)
        assert torch.equal(blocked.view(torch.uint8).reshape(-1), expected), "padding is zero"
        for form in (blocked, blocked.view(torch.uint8).permute(3, 4, 1, 5, 2, 0).view(torch.float8_e8m0fnu)):
            assert torch.equal(scales_from_blocked(form, rows, columns, vec).view(torch.uint8), plain)
    with pytest.raises(ValueError, match=r"scale factors: found shape \(1, 1, 1, 32, 4, 4\), needs \(32, 4, 2, 4, 1, 1\)"):
        scales_from_blocked(torch.zeros(1, 1, 1, 32, 4, 4, dtype=torch.uint8), 129, 1, 32)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
@pytest.mark.parametrize("logical", [True, False])
def test_operands_of_any_layout(fmt, logical):
    rows, k, batches = random.randint(1, 200), 2 * random.randint(1, 100), random.randint(1, 3)
    x = torch.randn(batches, rows, k)
    data, scales = quantize_blocks(x, fmt)
    blocked = scales_to_blocked(scales)
    # Padding is never looked at, whatever it holds.
    layout = ScaleLayout(rows, k, batches, fmt.vec)
    padding = torch.ones(layout.entries, dtype=torch.bool)
    i, r, b = (t.reshape(-1) for t in torch.meshgrid(torch.arange(batches), torch.arange(rows), torch.arange(layout.blocks), indexing="ij"))
    padding[layout.offset(r, b, i)] = False
    raw = blocked.view(torch.uint8).view(-1)
    raw[padding] = 255 if fmt.scale == "float8_e8m0fnu" else 0x7F
    blocked = raw.view(layout.physical_shape)
    scales_in = (blocked.permute(3, 4, 1, 5, 2, 0) if logical else blocked).view(getattr(torch, fmt.scale))
    operand = data.view(torch.uint8).permute(1, 2, 0)
    if fmt.packed == 1:
        operand = operand.view(getattr(torch, fmt.element))
        operand = random.choice([operand, operand.view(torch.uint8).permute(2, 1, 0).contiguous().permute(2, 1, 0).view(operand.dtype)])
    found = dequantize_operand(operand, scales_in, fmt.vec)
    assert torch.equal(found, dequantize_blocks(data, scales, fmt.vec).permute(1, 2, 0)) and not found.isnan().any()
