"""The quantisers and the layout of scale factors beside torch's own and torchao's: equal in every bit where their rounding rule is ours, and where it is not, different as the documentation says."""

from __future__ import annotations

import importlib
import math
import random
import warnings
from types import ModuleType

import pytest

import cudnn.ops as ops
from cudnn.block_scale import FORMATS
from cudnn.reference import quantize_blocks

torch = pytest.importorskip("torch", reason="torch is not installed")


def module(name: str, missing: str) -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ImportError as error:
            pytest.skip(f"{missing} ({error})")


@pytest.fixture
def torch_own() -> ModuleType:
    """What torch's own tests of scaled products quantise with."""
    return module("torch.testing._internal.common_quantized", "torch's own MX conversions need expecttest")


@pytest.fixture
def torchao() -> ModuleType:
    return module("torchao.prototype.mx_formats.mx_tensor", "torchao is not installed")


@pytest.fixture
def torchao_nvfp4() -> ModuleType:
    return module("torchao.prototype.mx_formats.nvfp4_tensor", "torchao is not installed")


def matrix(dtype: torch.dtype) -> torch.Tensor:
    """Rows of very different sizes, with a row of zeros; exponents far from the ends of float32."""
    rows, columns = random.randint(2, 60), 32 * random.randint(1, 12)
    x = torch.randn(rows, columns) * torch.exp(torch.randn(rows, 1) * 15)
    x[random.randrange(rows)] = 0
    return x.to(dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def near_a_power_of_two(x: torch.Tensor, vec: int, limit: float) -> torch.Tensor:
    """Blocks whose p is so near to a power of two that multiplying by 1 / limit and dividing by it may round to either side."""
    p = x.double().unflatten(-1, (-1, vec)).abs().amax(-1) / limit
    nearest = torch.pow(2.0, torch.log2(p.clamp(min=1e-300)).round())
    return (p / nearest - 1).abs() < 2.0**-22


@pytest.mark.parametrize("format", ["mxfp8", "mxfp4"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_mx_of_torch(torch_own, format, dtype):
    for _ in range(5):
        x = matrix(dtype)
        if format == "mxfp4":
            x = x.bfloat16().to(dtype)  # it rounds the scaled elements to bfloat16 first
        ours, scales = quantize_blocks(x, FORMATS[format])
        their_scales, theirs = torch_own.to_mxfp(x, 32, format)
        close = near_a_power_of_two(x, 32, FORMATS[format].limit) if dtype == torch.float32 else torch.zeros(scales.shape, dtype=torch.bool)
        their_scales = their_scales.view(torch.uint8).reshape(scales.shape)
        assert torch.equal(scales.view(torch.uint8)[~close], their_scales[~close])
        theirs = theirs.view(torch.uint8).reshape(ours.shape)
        per_block = ours.view(torch.uint8).unflatten(-1, (scales.shape[-1], -1)), theirs.unflatten(-1, (scales.shape[-1], -1))
        assert torch.equal(per_block[0][~close], per_block[1][~close])


@pytest.mark.parametrize("format", ["mxfp8", "mxfp4"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_mx_of_torchao_rounding_up(torchao, format, dtype):
    fmt = FORMATS[format]
    for _ in range(5):
        x = matrix(dtype)
        ours, scales = quantize_blocks(x, fmt)
        their_scales, theirs = torchao.to_mx(x, getattr(torch, "float4_e2m1fn_x2" if fmt.packed == 2 else fmt.element), 32, torchao.ScaleCalculationMode.RCEIL)
        close = near_a_power_of_two(x, 32, fmt.limit) if dtype == torch.float32 else torch.zeros(scales.shape, dtype=torch.bool)
        assert torch.equal(scales.view(torch.uint8)[~close], their_scales.view(torch.uint8)[~close])
        per_block = (t.contiguous().view(torch.uint8).unflatten(-1, (scales.shape[-1], -1)) for t in (ours, theirs))
        first, second = per_block
        assert torch.equal(first[~close], second[~close])


def test_nan_and_infinity_of_torchao(torchao):
    x = torch.randn(4, 64).bfloat16()
    x[0, 5], x[1, 40], x[2, 2] = math.nan, math.inf, -math.inf
    ours, scales = quantize_blocks(x, FORMATS["mxfp8"])
    their_scales, theirs = torchao.to_mx(x, torch.float8_e4m3fn, 32, torchao.ScaleCalculationMode.RCEIL)
    assert same(scales, their_scales)
    assert torch.equal(ours.float().nan_to_num(-1.0), theirs.float().nan_to_num(-1.0)) and torch.equal(ours.float().isnan(), theirs.float().isnan())


def test_torchao_rounds_scales_down_by_default(torchao):
    """Its default takes the power of two below the largest magnitude, over that below 448: one step less than ours where the leading digits are above 1.75, and then the largest elements saturate."""
    x = matrix(torch.bfloat16)
    _, scales = quantize_blocks(x, FORMATS["mxfp8"])
    theirs, _ = torchao.to_mx(x, torch.float8_e4m3fn, 32)
    largest = x.float().unflatten(-1, (-1, 32)).abs().amax(-1)
    mantissa, _ = torch.frexp(largest)
    expected = (mantissa * 2 > 1.75).int()
    normal = largest > 0
    difference = scales.view(torch.uint8).int() - theirs.view(torch.uint8).int()
    assert torch.equal(difference[normal], expected[normal])


def test_e5m2_is_scaled_to_128_here(torchao):
    """57344 over 128 is 448, between 2^8 and 2^9."""
    x = matrix(torch.bfloat16)
    _, scales = quantize_blocks(x, FORMATS["mxfp8_e5m2"])
    theirs, _ = torchao.to_mx(x, torch.float8_e5m2, 32, torchao.ScaleCalculationMode.RCEIL)
    normal = x.unflatten(-1, (-1, 32)).abs().amax(-1) > 0
    difference = (scales.view(torch.uint8).int() - theirs.view(torch.uint8).int())[normal]
    assert ((difference == 8) | (difference == 9)).all()


def nvfp4_matrix(dtype: torch.dtype) -> torch.Tensor:
    """Scale factors inside the normal range of e4m3: torchao takes none smaller than 2^-6."""
    rows, columns = random.randint(2, 60), 16 * random.randint(1, 24)
    return (torch.randn(rows, columns).clamp(-4, 4) * 2.0 ** torch.randint(0, 8, (rows, 1)).float()).to(dtype)


def test_nvfp4_of_torchao(torchao_nvfp4):
    for _ in range(5):
        x = nvfp4_matrix(torch.bfloat16)
        ours, scales = quantize_blocks(x, FORMATS["nvfp4"])
        their_scales, theirs = torchao_nvfp4.nvfp4_quantize(x)
        ordinary = x.float().unflatten(-1, (-1, 16)).abs().amax(-1) / 6 >= 2.0**-6
        assert ordinary.any() and torch.equal(scales.float()[ordinary], their_scales.view(scales.shape).float()[ordinary])
        first, second = (t.contiguous().view(torch.uint8).reshape(*scales.shape, 8) for t in (ours, theirs))
        assert torch.equal(first[ordinary], second[ordinary])


def test_nvfp4_with_a_scale_for_the_tensor(torchao_nvfp4):
    """Its second scale is 1 / c. Where that is a power of two nothing is rounded on the way; elsewhere each step may round to the other side, and scale factors are at most a step apart."""
    x = nvfp4_matrix(torch.bfloat16)
    power = 2.0 ** random.randint(-6, -1)
    ours, scales = quantize_blocks(x, FORMATS["nvfp4"], 1 / power)
    their_scales, theirs = torchao_nvfp4.nvfp4_quantize(x, per_tensor_scale=torch.tensor(power))
    ordinary = x.float().unflatten(-1, (-1, 16)).abs().amax(-1) / 6 / power >= 2.0**-6
    assert torch.equal(scales.float()[ordinary], their_scales.view(scales.shape).float()[ordinary])
    first, second = (t.contiguous().view(torch.uint8).reshape(*scales.shape, 8) for t in (ours, theirs))
    assert torch.equal(first[ordinary], second[ordinary])
    amax = x.float().abs().max()
    second_scale = torchao_nvfp4.per_tensor_amax_to_scale(amax)
    _, scales = quantize_blocks(x, FORMATS["nvfp4"], 1 / second_scale)
    their_scales, _ = torchao_nvfp4.nvfp4_quantize(x, per_tensor_scale=second_scale)
    steps = scales.view(torch.uint8).int() - their_scales.view(scales.shape).view(torch.uint8).int()
    ordinary = scales.float() > 2.0**-6
    assert (steps[ordinary].abs() <= 1).all()


@pytest.mark.parametrize("who", ["torch_own", "torchao"])
def test_the_layout_of_scale_factors(who, request):
    other = request.getfixturevalue(who)
    for rows, blocks in [(1, 1), (128, 4), (130, 9), (random.randint(1, 600), random.randint(1, 40))]:
        plain = torch.randint(0, 256, (rows, blocks), dtype=torch.uint8)
        theirs = other.to_blocked(plain)
        assert torch.equal(ops.to_blocked(plain).flatten(), theirs.flatten())
        assert torch.equal(ops.from_blocked(theirs.view(ops.to_blocked(plain).shape), plain.shape), plain)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_saturates_where_torch_does_not(dtype):
    """Inside the range the conversions agree; beyond it torch gives NaN or infinity, a quantiser the largest number."""
    from cudnn.reference import cast

    largest = torch.finfo(dtype).max
    x = torch.randn(10_000) * largest / 3
    inside = x.abs() <= largest
    assert same(cast(x, dtype)[inside], x.to(dtype)[inside])
    assert torch.equal(cast(x, dtype).float()[~inside], largest * x[~inside].sign())
