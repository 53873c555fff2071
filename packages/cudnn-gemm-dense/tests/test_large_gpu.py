"""Tensors of more than 2^31 elements on a Hopper GPU: operands, outputs and scratch memory, looked at in their first, middle and last rows."""

from __future__ import annotations

import gc

import pytest
import torch

from cudnn.testing.conformance import GemmConformanceCuda
from cudnn_gemm_dense.conformance import random_compact
from cudnn_gemm_dense.gemm.api import gemm_wrapper
from cudnn_gemm_dense.gemm.conformance import GemmHooks
from cudnn_gemm_dense.swiglu.api import gemm_swiglu_wrapper
from cudnn_gemm_dense.swiglu.conformance import SwigluHooks

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a CUDA device of compute capability 9.0")]

EDGE = 2**31
# (rows, columns): exactly at the boundary, and just above.
PAIRS = ((131072, 16384), (4194305, 512))


class Gemm(GemmHooks, GemmConformanceCuda):
    device = "cuda"
    dtype = d_dtype = torch.float16


class Swiglu(SwigluHooks, GemmConformanceCuda):
    device = "cuda"


@pytest.fixture(autouse=True)
def memory():
    """Each test needs some ten GB, and leaves them."""
    free, _ = torch.cuda.mem_get_info()
    if free < 50 << 30:
        pytest.skip(f"needs 50 GiB of free device memory, there are {free >> 30}")
    yield
    gc.collect()
    torch.cuda.empty_cache()


def values(rows: int, columns: int, dtype: torch.dtype = torch.float16, scale: float = 1.0) -> torch.Tensor:
    """Random (rows, columns, 1), made without a wider copy of the whole."""
    t = torch.empty(rows, columns, 1, dtype=dtype, device="cuda")
    for part in t.split(max((1 << 27) // columns, 1)):
        part.copy_(torch.randn(part.shape, device="cuda") * scale)
    return t


def looked_at(rows: int, columns: int) -> list[slice]:
    """The first rows, those in the middle, those around element 2^31, and the last."""
    edge = min(EDGE // columns, rows)
    return [slice(0, 70), slice(rows // 2, rows // 2 + 70), slice(max(edge - 70, 0), min(edge + 70, rows)), slice(rows - 70, rows)]


@pytest.mark.parametrize("rows, columns", PAIRS)
def test_outputs_around_the_boundary(rows, columns):
    """Case 15."""
    hooks = Gemm()
    a, b = values(rows, 64), values(columns, 64, scale=0.125)
    d = gemm_wrapper(a, b, d_dtype="float16")["d_tensor"]
    for part in looked_at(rows, columns):
        hooks.check({"a_tensor": a[part], "b_tensor": b}, {"d_tensor": d[part]})


@pytest.mark.parametrize("rows, columns", PAIRS)
def test_operands_around_the_boundary(rows, columns):
    """Case 15, for A and for B."""
    hooks = Gemm()
    large, small = values(-(-rows // 8) * 8, columns, scale=columns**-0.5), values(64, columns)
    d = gemm_wrapper(large[:rows], small, d_dtype="float16")["d_tensor"]
    for part in looked_at(rows, columns):
        hooks.check({"a_tensor": large[part], "b_tensor": small}, {"d_tensor": d[part]})
    # N is contiguous in D, and so a multiple of 8.
    d = gemm_wrapper(small, large, d_dtype="float16")["d_tensor"]
    for part in looked_at(large.shape[0], columns):
        hooks.check({"a_tensor": small, "b_tensor": large[part]}, {"d_tensor": d[:, part]})


def test_two_to_the_29_rows_of_four_columns():
    """Case 17: the last row is written, and no other memory."""
    rows = 2**29 + 1
    a, b = values(rows, 8, torch.bfloat16), values(4, 8, torch.bfloat16)
    d = gemm_wrapper(a, b, d_dtype="float32")["d_tensor"]
    assert d.numel() == EDGE + 4
    for part in (slice(0, 70), slice(rows // 2, rows // 2 + 70), slice(rows - 70, rows)):
        expected = a[part].squeeze(-1).double() @ b.squeeze(-1).double().t()
        torch.testing.assert_close(d[part].squeeze(-1).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["interleaved32", "concatenated"])
def test_a_pre_activation_of_a_million_rows(layout):
    """Case 19."""
    rows, columns, k = 1079839, 2048, 64
    hooks = Swiglu()
    hooks.glu_layout = layout
    a, b = values(rows, k, torch.bfloat16), values(columns, k, torch.bfloat16, k**-0.5)
    result = gemm_swiglu_wrapper(a, b, ab12_dtype="bfloat16", c_dtype="bfloat16", glu_layout=layout)
    assert result["ab12_tensor"].numel() > EDGE
    for part in looked_at(rows, columns):
        hooks.check({"a_tensor": a[part], "b_tensor": b}, {name: result[name][part] for name in ("ab12_tensor", "c_tensor")})


def test_an_activation_beyond_the_boundary():
    """C of 2^31 elements and more, so AB12 of 2^32."""
    rows, columns, k = EDGE // 4096 + 136, 8192, 64
    hooks = Swiglu()
    a, b = values(rows, k, torch.bfloat16), values(columns, k, torch.bfloat16, k**-0.5)
    result = gemm_swiglu_wrapper(a, b, ab12_dtype="bfloat16", c_dtype="bfloat16")
    assert result["c_tensor"].numel() > EDGE
    for part in (*looked_at(rows, columns), *looked_at(rows, columns // 2)):
        hooks.check({"a_tensor": a[part], "b_tensor": b}, {name: result[name][part] for name in ("ab12_tensor", "c_tensor")})


def test_outputs_that_are_m_major_and_batches_beyond_the_boundary():
    rows, columns, k, batches = 65536 + 8, 4096, 64, 9
    hooks = Gemm()
    hooks.out_major = "m"
    a = random_compact((rows, k, batches), 1, torch.float16, "cuda")
    b = random_compact((columns, k, batches), 1, torch.float16, "cuda", k**-0.5)
    d = gemm_wrapper(a, b, d_dtype="float16", d_major="m")["d_tensor"]
    assert d.numel() > EDGE and d.stride() == (1, rows, rows * columns)
    for batch in (0, 7, 8):
        for part in (slice(0, 70), slice(rows - 70, rows)):
            inputs = {"a_tensor": a[part, :, batch : batch + 1], "b_tensor": b[:, :, batch : batch + 1]}
            hooks.check(inputs, {"d_tensor": d[part, :, batch : batch + 1]})


def test_a_transposed_operand_beyond_the_boundary():
    """An fp8 A of 2^31 elements and more that is contiguous along M: read, copied and multiplied."""
    rows, k, n = 1 << 20, 2064, 64
    memory = torch.randint(0, 256, (1, k, rows), dtype=torch.uint8, device="cuda")
    # No NaN: exponent and mantissa all ones. Values of unit size.
    memory.bitwise_and_(0xBF)
    a = memory.view(torch.float8_e4m3fn).permute(2, 1, 0)
    assert a.numel() > EDGE and a.stride() == (1, rows, rows * k)
    b = random_compact((n, k, 1), 1, torch.float8_e4m3fn, "cuda")
    d = gemm_wrapper(a, b, d_dtype="float32")["d_tensor"]
    for part in looked_at(rows, k):
        expected = a[part].squeeze(-1).double() @ b.squeeze(-1).double().t()
        assert (d[part].squeeze(-1) - expected).norm() <= 3e-4 * expected.norm()
