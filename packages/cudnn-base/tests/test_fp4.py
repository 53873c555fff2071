import pytest

from cudnn.datatypes import data_type
from cudnn.fp4 import E2M1_VALUES, decode_e2m1, encode_e2m1, logical_geometry, pack_fp4, packed_axis, storage_geometry, unpack_fp4

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("shape", "stride", "logical"),
    [
        ((6, 4), (4, 1), ((6, 8), (8, 1))),
        ((6, 4), (1, 6), ((12, 4), (1, 12))),
        ((6, 4, 3), (4, 1, 24), ((6, 8, 3), (8, 1, 48))),
        ((6, 4, 1), (10, 1, 24), ((6, 8, 1), (20, 1, 48))),
        ((1, 4), (1, 1), ((1, 8), (2, 1))),  # a unit axis is not the packed one while there is another
        ((1, 1), (1, 1), ((2, 1), (1, 2))),
        ((0, 4), (4, 1), ((0, 8), (8, 1))),
    ],
)
def test_logical_geometry(shape, stride, logical):
    assert logical_geometry(shape, stride) == logical


def test_no_unit_stride():
    assert packed_axis((3, 4), (8, 2)) is None
    with pytest.raises(RuntimeError, match=r"shape \(3, 4\) has strides \(8, 2\), needs an axis of stride 1"):
        logical_geometry((3, 4), (8, 2))


@pytest.mark.parametrize(
    ("dim", "stride", "stored"),
    [
        ((6, 8), (8, 1), ((6, 4), (4, 1))),
        ((6, 8), (1, 6), ((3, 8), (1, 3))),
        ((2, 6, 8), (48, 8, 1), ((2, 6, 4), (24, 4, 1))),
        ((1, 6, 8), (1, 8, 1), ((1, 6, 4), (1, 4, 1))),  # the unit axis keeps its stride of 1 and is not packed
        ((1, 6, 8), (49, 8, 1), ((1, 6, 4), (25, 4, 1))),  # its odd stride never reaches an address
        ((6, 7), (8, 1), None),
        ((6, 8), (9, 1), None),
        ((6, 8), (16, 2), None),
        ((1, 1), (1, 1), None),
    ],
)
def test_storage_geometry(dim, stride, stored):
    assert storage_geometry(dim, stride, data_type.FP4_E2M1) == stored
    assert storage_geometry(list(dim), list(stride), "float4_e2m1fn") == stored
    assert storage_geometry(dim, stride, data_type.FP8_E4M3) == (dim, stride)
    if stored is not None and 1 not in dim:
        assert logical_geometry(*stored) == (dim, stride)


def test_all_codes_round_trip():
    codes = torch.arange(16, dtype=torch.uint8)
    values = decode_e2m1(codes)
    assert values.tolist() == list(E2M1_VALUES) and values.dtype == torch.float32
    assert torch.equal(encode_e2m1(values), codes)  # the sign of zero included


def test_rounding_to_nearest_even_and_saturation():
    exact = E2M1_VALUES[:8]
    for low, high in zip(range(7), range(1, 8), strict=True):
        middle = (exact[low] + exact[high]) / 2
        even = low if low % 2 == 0 else high
        for sign, bit in ((1, 0), (-1, 8)):
            # float64 inputs: the step beside the midpoint must not be rounded away
            points = torch.tensor([middle - 1e-9, middle, middle + 1e-9], dtype=torch.float64) * sign
            assert encode_e2m1(points).tolist() == [low + bit, even + bit, high + bit]
    assert encode_e2m1(torch.tensor([6.1, 1e30, float("inf"), -7.0, -float("inf"), float("nan")])).tolist() == [7, 7, 7, 15, 15, 7]
    assert encode_e2m1(torch.tensor([0.0, -0.0, 1e-9, -1e-9], dtype=torch.bfloat16)).tolist() == [0, 8, 0, 8]


def test_encoding_is_the_nearest_value():
    x = torch.randn(5000) * 3
    error = (decode_e2m1(encode_e2m1(x)) - x).abs()
    best = (torch.tensor(E2M1_VALUES) - x[:, None]).abs().min(dim=1).values
    assert torch.equal(error, best)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_pack_and_unpack(axis):
    codes = torch.randint(0, 16, (6, 4, 8), dtype=torch.uint8)
    packed = pack_fp4(codes, axis)
    assert packed.stride(axis) == 1 and packed.shape[axis] * 2 == codes.shape[axis]
    even, odd = codes.movedim(axis, 0)[0::2].movedim(0, axis), codes.movedim(axis, 0)[1::2].movedim(0, axis)
    assert torch.equal(packed, even + 16 * odd)  # the even index in the low half of the byte
    assert torch.equal(unpack_fp4(packed, axis), codes)
    assert torch.equal(unpack_fp4(packed.view(torch.float4_e2m1fn_x2), axis), codes)


def test_pack_needs_an_even_extent():
    with pytest.raises(ValueError, match="axis 1 of codes has the odd extent 3"):
        pack_fp4(torch.zeros(4, 3, dtype=torch.uint8), 1)
