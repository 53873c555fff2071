"""Calls held against what a kernel is compiled for: `cudnn.testing.declared`."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("cutlass", reason="what a kernel declares needs the DSL")

from cudnn.cutedsl.dequantize import DequantizeSpec  # noqa: E402
from cudnn.cutedsl.pointwise import GatedGradientSpec  # noqa: E402
from cudnn.testing.declared import checked  # noqa: E402


def byte_tensor(*shape: int, shift: int = 0):
    memory = torch.zeros(torch.Size(shape).numel() + 128, dtype=torch.uint8)
    return memory[-memory.data_ptr() % 128 + shift :][: torch.Size(shape).numel()].view(shape)


def test_a_call_is_what_the_kernel_declares():
    seen = []
    kernel = checked(DequantizeSpec("float8_e4m3fn", "float8_e8m0fnu", 32), lambda *arguments: seen.append(arguments))
    source, scales, target = byte_tensor(1, 48, 64).permute(1, 2, 0), byte_tensor(512), torch.zeros(48, 64, 1, dtype=torch.bfloat16)
    kernel(source, scales, target, 0)
    assert len(seen) == 1
    wrong = {
        "needs 4 arguments": (source, scales, target),
        "needs 3 axes": (source[..., 0], scales, target, 0),
        "needs BFloat16": (source, scales, target.half(), 0),
        "extent of axis 0": (source[:40], scales, target, 0),
        "stride of axis 1": (source.transpose(0, 1).contiguous().transpose(0, 1), scales, target, 0),
        "a multiple of 16": (source, byte_tensor(512, shift=8), target, 0),
        "needs lines": (byte_tensor(1, 48, 72)[:, :, :64].permute(1, 2, 0), scales, target, 0),
        "needs a int": (source, scales, target, None),
    }
    for message, arguments in wrong.items():
        with pytest.raises(AssertionError, match=message):
            kernel(*arguments)
    assert len(seen) == 1


def test_strides_that_a_kernel_relies_on():
    kernel = checked(GatedGradientSpec("bfloat16"), lambda *_: None)
    pre, grad = torch.zeros(3, 128, dtype=torch.bfloat16), torch.zeros(3, 68, dtype=torch.bfloat16)[:, :64]
    with pytest.raises(AssertionError, match="needs 64 bits and a multiple of 8"):
        kernel((pre, grad, pre), (1.0,), 0)
    kernel((pre, grad.contiguous(), pre), (1.0,), 0)
    # The stride of an axis of one element means nothing.
    kernel((pre[:1], grad[:1], pre[:1]), (1.0,), 0)
    with pytest.raises(AssertionError, match="needs a float"):
        kernel((pre, grad.contiguous(), pre), (1,), 0)
