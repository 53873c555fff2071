"""The arithmetic of scale factors and 4-bit elements, over every byte and around every place where rounding changes its mind. The functions are those that kernels are made of."""

from __future__ import annotations

from fractions import Fraction

import pytest

from cudnn.cutedsl import block_scale as bs
from cudnn.fp4 import E2M1_VALUES, decode_e2m1

np = pytest.importorskip("numpy", reason="numpy is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")

BYTES = np.arange(256, dtype=np.uint32)


def tensor(bits) -> torch.Tensor:
    """float32 with these bits."""
    return torch.from_numpy(np.ascontiguousarray(bits, dtype=np.uint32).view(np.float32))


def assert_same(bits, expected: torch.Tensor) -> None:
    """Equal in every bit, or both NaN."""
    found = tensor(bits)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(0).view(torch.int32), expected.nan_to_num(0).view(torch.int32))


def around(values) -> np.ndarray:
    """Bits of float32 numbers and of the two floats to either side of each."""
    bits = np.asarray(values, dtype=np.float32).view(np.uint32).astype(np.int64)
    near = np.unique(np.concatenate([bits + step for step in range(-2, 3)]))
    return near[(near >= 0) & (near <= bs.INFINITY)].astype(np.uint32)


def random_bits(count: int) -> np.ndarray:
    return torch.randint(0, 1 << 32, (count,), dtype=torch.int64).numpy().astype(np.uint32)


def nearest_even(bits: np.ndarray, values: list[float]) -> np.ndarray:
    """Index of the nearest of ascending ``values`` to each float32 >= 0, ties to the even index, beyond the last to the last. By comparison with exact midpoints, in float64."""
    exact = tensor(bits).double().numpy()
    middles = np.array([float((Fraction(a) + Fraction(b)) / 2) for a, b in zip(values, values[1:], strict=False)])
    below, upto = np.searchsorted(middles, exact, side="left"), np.searchsorted(middles, exact, side="right")
    return np.where(below == upto, below, np.where(below % 2 == 0, below, upto))


@pytest.mark.parametrize(("function", "dtype"), [("e4m3_bits", torch.float8_e4m3fn), ("e5m2_bits", torch.float8_e5m2)], ids=lambda x: str(x))
def test_every_byte_widens_to_what_torch_says(function, dtype):
    expected = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    assert_same(getattr(bs, function)(BYTES), expected)
    assert_same([getattr(bs, function)(int(byte)) for byte in BYTES], expected)


def test_every_e2m1_code_widens_to_its_value():
    codes = np.arange(16, dtype=np.uint32)
    assert_same(bs.e2m1_bits(codes), torch.tensor(E2M1_VALUES))


def test_two_e2m1_codes_are_bfloat16_numbers_but_for_a_power_of_two():
    found = bs.e2m1_pair(BYTES)
    assert [int(word) for word in found] == [bs.e2m1_pair(int(byte)) for byte in BYTES]
    for i in range(2):
        value = torch.from_numpy((found >> 16 * i & 0xFFFF).astype(np.uint16)).view(torch.bfloat16).double() * 2.0**126
        expected = decode_e2m1(torch.from_numpy((BYTES >> 4 * i & 15).astype(np.int64))).double()
        assert torch.equal(value, expected) and torch.equal(value.signbit(), expected.signbit())


@pytest.mark.parametrize("scale", ["float8_e8m0fnu", "float8_e4m3fn"])
def test_scale_factors_fit_in_bfloat16(scale):
    with np.errstate(invalid="ignore"):
        values = torch.from_numpy(np.asarray(bs.scale_value(BYTES, scale)))
    torch.testing.assert_close(values, torch.arange(256, dtype=torch.uint8).view(getattr(torch, scale)).float(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(values.bfloat16().float(), values, rtol=0, atol=0, equal_nan=True)


def test_e8m0_is_rounded_up_at_every_power_of_two():
    bits = np.concatenate([around([2.0**e for e in range(-149, 128)]), random_bits(100_000) & np.uint32(0x7FFFFFFF)])
    bits = bits[bits <= bs.INFINITY]
    exact = tensor(bits).double()
    byte = torch.from_numpy(np.asarray(bs.e8m0_from_bits(bits)).astype(np.int64))
    power = torch.pow(2.0, (byte - 127).double())
    saturated = exact > 2.0**127
    assert torch.equal(byte[saturated], torch.full_like(byte[saturated], 254))
    assert (power >= exact)[~saturated].all(), "no smaller than the value"
    assert ((power / 2 < exact) | (byte == 0))[~saturated].all(), "and no power of two in between"
    assert (byte[exact <= 2.0**-127] == 0).all()
    assert bs.e8m0_from_bits(bs.NAN) == 255 and bs.e8m0_from_bits(bs.INFINITY + 1) == 255 and bs.e8m0_from_bits(bs.INFINITY) == 254


def test_every_e8m0_comes_back():
    with np.errstate(invalid="ignore"):
        values, reciprocals = bs.e8m0_value(BYTES), torch.from_numpy(bs.e8m0_value(bs.e8m0_reciprocal(BYTES)))
    assert np.array_equal(bs.e8m0_from_bits(bs.as_bits(values) & np.uint32(0x7FFFFFFF)), BYTES)
    assert torch.equal(reciprocals[:255], 1 / torch.from_numpy(values)[:255]) and reciprocals[255].isnan()


def test_e4m3_scales_are_rounded_to_nearest_even():
    values = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).double().tolist()
    middles = [(a + b) / 2 for a, b in zip(values, values[1:], strict=False)]
    bits = np.concatenate([around([*values, *middles, 464.0, 480.0, float("inf")]), random_bits(200_000) & np.uint32(0x7FFFFFFF)])
    bits = bits[bits <= bs.INFINITY]
    found = bs.e4m3_scale_from_bits(bits)
    assert np.array_equal(found, nearest_even(bits, values))
    # torch's own conversion, which saturates after a clamp.
    assert np.array_equal(found, tensor(bits).clamp(max=448).to(torch.float8_e4m3fn).view(torch.uint8).numpy())
    assert bs.e4m3_scale_from_bits(bs.NAN) == 0x7F


def test_reciprocals_of_e4m3_scales_are_rounded_to_nearest():
    with np.errstate(divide="ignore"):
        found = torch.from_numpy(np.asarray(bs.reciprocal(BYTES[:127], "float8_e4m3fn")))
    values = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert torch.equal(found, (1 / values.double()).float()) and found[0] == float("inf")


def test_a_newton_step_gives_the_nearest_reciprocal():
    """As on the device: from whatever the hardware's approximation gives within three units in the last place. Steps are exact fractions, rounded where the fused multiply-add rounds."""

    def nearest(x: Fraction) -> np.float32:
        guess = np.float32(float(x))
        choices = (np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf)))
        return min(choices, key=lambda c: (abs(Fraction(float(c)) - x), int(c.view(np.uint32)) & 1))

    for value in torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float().tolist():
        exact = Fraction(value)
        right = nearest(1 / exact)
        for off in range(-3, 4):
            near = Fraction(float((right.view(np.uint32) + np.int32(off)).astype(np.uint32).view(np.float32)))
            error = 1 - exact * near
            step = Fraction(float(nearest(error))) if error else Fraction(0)
            assert nearest(near + near * step) == right


def test_e2m1_is_rounded_to_nearest_even():
    values = list(E2M1_VALUES[:8])
    middles = [(a + b) / 2 for a, b in zip(values, values[1:], strict=False)]
    halves = np.arange(1 << 15, dtype=np.uint32) << np.uint32(16)  # every bfloat16 >= 0
    bits = np.concatenate([around([*values, *middles, 6.5, 7.0, 8.0, float("inf")]), halves, random_bits(200_000) & np.uint32(0x7FFFFFFF)])
    bits = bits[bits <= bs.INFINITY]
    found = bs.e2m1_from_bits(bits)
    assert np.array_equal(found, nearest_even(bits, values))
    assert np.array_equal(bs.e2m1_from_bits(bits | np.uint32(1 << 31)), found | 8)
    assert bs.e2m1_from_bits(bs.NAN) == 7


def test_eight_floats_become_a_word_of_e2m1():
    rows = [torch.randn(8, 50_000) * 3, torch.randn(8, 50_000) * 1e-3, torch.from_numpy(random_bits(400_000).view(np.float32)).view(8, -1)]
    middles = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 0.0])
    ties = middles[torch.randint(0, 9, (8, 50_000))].view(torch.int32) + torch.randint(-1, 2, (8, 50_000), dtype=torch.int32)
    values = torch.cat([*rows, ties.view(torch.float32)], dim=1)
    bits = list(values.numpy().view(np.uint32))
    with np.errstate(all="ignore"):
        found = bs.e2m1_word([row.copy() for row in values.abs().numpy()], bs.signs_of_floats(bits))
    expected = sum(np.asarray(bs.e2m1_from_bits(row)).astype(np.uint64) << np.uint64(4 * i) for i, row in enumerate(bits))
    assert np.array_equal(found, expected)


def test_signs_of_16_bit_floats_go_to_their_codes():
    words = [random_bits(1000) for _ in range(4)]
    expected = sum((words[i // 2] >> (31 if i % 2 else 15) & 1).astype(np.uint64) << np.uint64(4 * i + 3) for i in range(8))
    assert np.array_equal(bs.signs_of_halves(words), expected)


@pytest.mark.parametrize("scale", ["float8_e8m0fnu", "float8_e4m3fn"])
@pytest.mark.parametrize("limit", [448.0, 128.0, 6.0])
def test_a_block_s_scale_follows_the_formula(scale, limit):
    largest = torch.cat([torch.rand(10_000) * 100, torch.exp(torch.randn(10_000) * 30), torch.tensor([0.0, 1e-45, 3e38, float("inf"), float("nan")])])
    norm = torch.rand(1).item() * 4 + 0.1
    with np.errstate(all="ignore"):
        byte, factor = bs.block_scale(largest.numpy(), np.float32(norm), limit, scale)
    c = torch.tensor(norm, dtype=torch.float32)
    p = largest * torch.tensor(1 / limit, dtype=torch.float32) * c
    kind = getattr(torch, scale)
    stored = torch.from_numpy(np.asarray(byte).astype(np.uint8)).view(kind).float()
    assert_same(np.asarray(factor).view(np.uint32), (c * (1 / stored)).clamp(max=torch.finfo(torch.float32).max))
    if scale == "float8_e4m3fn":
        assert_same(stored.numpy().view(np.uint32), p.clamp(max=448).to(kind).float())
    else:
        finite = p <= 2.0**127
        assert (stored[finite] >= p[finite]).all() and ((stored / 2 < p) | (p <= 2.0**-127))[finite].all()
    assert stored[-1].isnan() and not stored[:-1].isnan().any()


def test_the_largest_value_maps_to_the_tight_scale():
    """limit * 2^k times float32(1 / limit) is 2^k, so a block whose maximum is the limit itself loses no bit of range."""
    for limit in (448.0, 128.0, 6.0):
        powers = torch.pow(2.0, torch.arange(-110, 110).float())
        byte, _ = bs.block_scale((powers * limit).numpy(), np.float32(1), limit, "float8_e8m0fnu")
        assert np.array_equal(byte, np.arange(-110, 110) + 127)
