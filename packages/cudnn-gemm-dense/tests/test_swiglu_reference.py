"""The reference engine against formulas written out here in float64, element by element or through NumPy's einsum."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import cudnn.reference as reference
from cudnn_gemm_dense.swiglu.layout import deinterleave_gate_up, interleave_gate_up
from cudnn_gemm_dense.swiglu.reference import gemm_swiglu_reference


def _random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.randn(shape, dtype=torch.float64)
    return x.float().to(dtype) if dtype.itemsize < 4 else x.to(dtype)


def _formula(a: torch.Tensor, b: torch.Tensor, alpha: float, pair) -> tuple[np.ndarray, np.ndarray]:
    """s by einsum; c[m, i, batches] from the columns ``pair(i) = (up column, gate column)``."""
    s = alpha * np.einsum("mkl,nkl->mnl", a.double().numpy(), b.double().numpy())
    half = s.shape[1] // 2
    up, gate = (np.stack([s[:, pair(i)[which], :] for i in range(half)], axis=1) if half else s for which in (0, 1))
    return s, up * gate / (1 + np.exp(-gate))


def interleaved(i: int) -> tuple[int, int]:
    return 64 * (i // 32) + i % 32, 64 * (i // 32) + 32 + i % 32


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("alpha", [1.0, -0.75])
def test_interleaved_against_the_formula(dtype, alpha):
    a, b = _random(5, 24, 2, dtype=dtype), _random(128, 24, 2, dtype=dtype)
    s, c = gemm_swiglu_reference(a, b, alpha, compute_dtype="float64")
    expected_s, expected_c = _formula(a, b, alpha, interleaved)
    assert s.dtype == c.dtype == torch.float64
    np.testing.assert_allclose(s.numpy(), expected_s, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(c.numpy(), expected_c, rtol=1e-12, atol=1e-12)
    s32, c32 = gemm_swiglu_reference(a, b, alpha)
    assert s32.dtype == c32.dtype == torch.float32
    np.testing.assert_allclose(s32.numpy(), expected_s, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(c32.numpy(), expected_c, rtol=1e-4, atol=1e-4)


def test_concatenated_and_separate_take_gate_first():
    a, b = _random(7, 16, 3, dtype=torch.float64), _random(22, 16, 3, dtype=torch.float64)
    expected_s, expected_c = _formula(a, b, 1.5, lambda i: (11 + i, i))
    for layout, weights in (("concatenated", b), ("separate", (b[:11], b[11:]))):
        s, c = gemm_swiglu_reference(a, weights, 1.5, glu_layout=layout, compute_dtype=torch.float64)
        np.testing.assert_allclose(s.numpy(), expected_s, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(c.numpy(), expected_c, rtol=1e-12, atol=1e-12)


def test_float16_accumulators_round_before_the_activation():
    # Sums of these are exact in float32, and need more bits than float16 has: there is one rounding, and no tie of an inexact sum.
    a, b = (torch.randint(-64, 65, (rows, 32, 1)).div(64).half() for rows in (4, 64))
    s, c = gemm_swiglu_reference(a, b, 0.7, acc_dtype="float16")
    product = torch.einsum("mkl,nkl->mnl", a.double(), b.double()).half()
    expected = (product.float() * 0.7).half().double()
    assert torch.equal(s.half().double(), s.double()), "s holds values that float16 cannot"
    assert torch.equal(s.double(), expected)
    gate, up = s[:, 32:].double(), s[:, :32].double()
    torch.testing.assert_close(c.double(), up * gate * torch.sigmoid(gate), rtol=1e-5, atol=1e-6)


def test_any_strides():
    a = _random(40, 3, 9).permute(2, 0, 1)[::2]  # (5, 40, 3), no axis contiguous after the step
    b = _random(3, 64, 40).permute(1, 2, 0)
    s, _ = gemm_swiglu_reference(a, b, compute_dtype="float64")
    np.testing.assert_allclose(s.numpy(), np.einsum("mkl,nkl->mnl", a.double().numpy(), b.double().numpy()), rtol=1e-12, atol=1e-12)
    broadcast = _random(1, 40, 3).expand(6, 40, 3)
    s, _ = gemm_swiglu_reference(broadcast, b, compute_dtype="float64")
    torch.testing.assert_close(s, s[:1].expand_as(s), rtol=1e-12, atol=1e-12)
    # Case 22: sizes that no kernel's alignment allows.
    out = reference.matmul(_random(6, 8, 3), _random(5, 8, 3))
    assert out.shape == (6, 5, 3)


@pytest.mark.parametrize("m, n, k, batches", [(0, 64, 8, 1), (3, 0, 8, 1), (3, 64, 8, 0), (3, 64, 0, 2)])
def test_zero_extents(m, n, k, batches):
    s, c = gemm_swiglu_reference(_random(m, k, batches), _random(n, k, batches))
    assert s.shape == (m, n, batches) and c.shape == (m, n // 2, batches)
    assert not s.any() and not c.any()


def test_matmul_checks_shapes_and_compute_dtype():
    with pytest.raises(ValueError, match=r"found K, L = \(8, 1\) and \(7, 1\)"):
        reference.matmul(_random(2, 8, 1), _random(3, 7, 1))
    with pytest.raises(ValueError, match=r"b: found shape \(3, 8\), needs three axes"):
        reference.matmul(_random(2, 8, 1), _random(3, 8))
    with pytest.raises(ValueError, match="compute_dtype: found float16"):
        reference.matmul(_random(2, 8, 1), _random(3, 8, 1), compute_dtype="float16")


def test_full_float32_switches_and_restores():
    backends = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    before = [b.fp32_precision for b in backends]
    torch.set_float32_matmul_precision("medium")
    try:
        assert [b.fp32_precision for b in backends] == ["tf32", "bf16"]
        with pytest.raises(KeyError), reference.full_float32():
            assert [b.fp32_precision for b in backends] == ["ieee", "ieee"]
            raise KeyError
        assert [b.fp32_precision for b in backends] == ["tf32", "bf16"]
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
        for b, value in zip(backends, before, strict=True):
            b.fp32_precision = value


@pytest.mark.parametrize("dtype, limit, mantissa, smallest", [(torch.float8_e4m3fn, 448.0, 3, -6), (torch.float8_e5m2, 57344.0, 2, -14)], ids=["e4m3", "e5m2"])
def test_cast_fp8_rounds_to_nearest_even_and_saturates(dtype, limit, mantissa, smallest):
    x = torch.cat([_random(4000) * 10.0 ** torch.randint(-5, 6, (4000,)), torch.tensor([limit, limit * 1.01, limit * 8, float("inf"), 0.0])])
    x = torch.cat([x, -x])
    got = reference.cast(x, dtype).double()
    # The spacing of representable values around x; rint is to nearest even.
    exponent = np.maximum(np.floor(np.log2(np.maximum(np.abs(x.double().numpy()), 1e-300))), smallest)
    step = 2.0 ** (np.where(np.isfinite(exponent), exponent, 0) - mantissa)
    with np.errstate(invalid="ignore"):
        expected = np.clip(np.where(np.isinf(x.numpy()), x.numpy(), np.rint(x.double().numpy() / step) * step), -limit, limit)
    assert np.array_equal(got.numpy(), expected)
    assert reference.cast(torch.tensor([float("nan")]), dtype).float().isnan().all()


def test_cast_sixteen_bit_rounds_to_nearest_even():
    halfway = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8)])  # between two bfloat16 values
    assert reference.cast(halfway, torch.bfloat16).tolist() == [1.0, 1 + 2**-6, -1.0]


# Gate and up halves


@pytest.mark.parametrize("order", ["up_first", "gate_first"])
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.uint8, torch.float4_e2m1fn_x2], ids=str)
def test_interleave_and_its_inverse(order, dim, dtype, seed):
    rng = np.random.default_rng(seed)
    for _ in range(5):
        halves = int(rng.integers(0, 5)) * 32
        shape = list(rng.integers(1, 6, size=3))
        shape[dim] = 2 * halves
        data = torch.from_numpy(rng.integers(0, 120, size=shape, dtype=np.uint8))
        x = data.view(dtype) if dtype.itemsize == 1 else data.to(dtype)

        def as_bytes(t):
            return t.view(torch.uint8) if t.dtype.itemsize == 1 else t

        woven = interleave_gate_up(x, dim=dim, order=order)
        assert woven.dtype == dtype and woven.is_contiguous()
        gate, up = as_bytes(x).chunk(2, dim) if halves else (as_bytes(x), as_bytes(x))
        pair = interleave_gate_up((x.narrow(dim, 0, halves), x.narrow(dim, halves, halves)), dim=dim, order=order)
        assert torch.equal(as_bytes(pair), as_bytes(woven))
        for block in range(halves // 32):
            for place, half in enumerate((up, gate) if order == "up_first" else (gate, up)):
                assert torch.equal(as_bytes(woven).narrow(dim, 64 * block + 32 * place, 32), half.narrow(dim, 32 * block, 32))
        assert torch.equal(as_bytes(deinterleave_gate_up(woven, dim=dim, order=order)), as_bytes(x))
        assert torch.equal(as_bytes(interleave_gate_up(deinterleave_gate_up(x, dim=dim, order=order), dim=dim, order=order)), as_bytes(x))


def test_layouts_agree_after_conversion_and_only_then():
    """Case 61: halves that differ by sign; the wrong layout gives other numbers, the converted weights the same."""
    a = _random(9, 64, 1, dtype=torch.float64)
    gate = _random(96, 64, 1, dtype=torch.float64).abs()
    up = -_random(96, 64, 1, dtype=torch.float64).abs()
    concatenated = torch.cat([gate, up])
    _, expected = gemm_swiglu_reference(a, concatenated, glu_layout="concatenated", compute_dtype="float64")
    s, got = gemm_swiglu_reference(a, interleave_gate_up(concatenated), compute_dtype="float64")
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(deinterleave_gate_up(s, dim=1), torch.einsum("mkl,nkl->mnl", a, concatenated))
    _, wrong = gemm_swiglu_reference(a, concatenated, compute_dtype="float64")
    _, wrong_order = gemm_swiglu_reference(a, interleave_gate_up(concatenated, order="gate_first"), compute_dtype="float64")
    for other in (wrong, wrong_order):
        assert (other - expected).norm() > 0.1 * expected.norm()


def test_interleave_is_differentiable():
    gate_up = _random(128, 5).requires_grad_()
    interleave_gate_up(gate_up)[:32].sum().backward()  # the first block is up's first 32 rows
    expected = torch.zeros(128, 5)
    expected[64:96] = 1
    assert torch.equal(gate_up.grad, expected)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: interleave_gate_up(torch.zeros(80, 4)), r"found 40 features in each half along axis 0, needs a multiple of 32"),
        (lambda: interleave_gate_up(torch.zeros(81, 4)), r"axis 0: found extent 81, needs an even one"),
        (
            lambda: interleave_gate_up((torch.zeros(32, 4), torch.zeros(64, 4))),
            r"found gate shape torch.Size\(\[32, 4\]\) and up shape torch.Size\(\[64, 4\]\)",
        ),
        (lambda: interleave_gate_up((torch.zeros(32, 4), torch.zeros(32, 4, dtype=torch.half))), r"gate dtype torch.float32 and up dtype torch.float16"),
        (lambda: interleave_gate_up((torch.zeros(32, 4),)), r"found 1 tensors, needs the pair"),
        (lambda: interleave_gate_up(torch.zeros(64, 4), order="gate"), r"order: found 'gate', needs one of 'up_first', 'gate_first'"),
        (lambda: interleave_gate_up(torch.zeros(64, 4), dim=2), r"dim: found 2"),
        (lambda: deinterleave_gate_up(torch.zeros(96, 4)), r"found extent 96, needs a multiple of 64"),
        (lambda: deinterleave_gate_up(torch.zeros(64, 4), order="up"), r"order: found 'up'"),
        (
            lambda: reference.split_gate_up(torch.zeros(64, 4), "halves"),
            r"glu_layout: found 'halves', needs one of 'interleaved32', 'concatenated', 'separate'",
        ),
    ],
)
def test_layout_helpers_refuse(call, message):
    with pytest.raises(ValueError, match=message):
        call()
