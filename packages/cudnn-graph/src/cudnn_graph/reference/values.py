"""Between buffers and values: reading inputs, rounding results to a type, writing outputs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from cudnn.fp4 import decode_e2m1, encode_e2m1, pack_fp4, packed_axis, storage_geometry, unpack_fp4
from cudnn_graph.dtypes import torch_dtype
from cudnn_graph.enums import data_type

_INT_RANGE = {dtype: (torch.iinfo(dtype).min, torch.iinfo(dtype).max) for dtype in (torch.int8, torch.uint8, torch.int32, torch.int64)}
_SATURATED = tuple(d for d in (getattr(torch, "float8_e4m3fn", None), getattr(torch, "float8_e5m2", None)) if d is not None)


def compute_dtype(dtype: data_type) -> torch.dtype:
    """The torch dtype in which a compute type is carried out: float32 also for the 16-bit and 8-bit floats, whose results are rounded when stored."""
    if dtype is data_type.DOUBLE:
        return torch.float64
    if dtype in (data_type.INT32, data_type.INT64):
        return torch_dtype(dtype)
    if dtype in (data_type.INT8, data_type.UINT8):
        return torch.int32
    return torch.float32


def to_compute(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A value in the compute type. Floats become integers by truncation only where a node computes in integers."""
    return value if value.dtype is dtype else value.to(dtype)


def round_to(value: torch.Tensor, dtype: data_type) -> torch.Tensor:
    """A result in the type of its tensor.

    Integers: rounded to nearest even and saturated. 8-bit floats: saturated to the largest finite value, as the hardware conversion does.
    4-bit floats stay float32 with representable values. BOOLEAN: whether not zero.
    """
    if dtype is data_type.FP4_E2M1:
        return decode_e2m1(encode_e2m1(value.float()))
    target = torch_dtype(dtype)
    if value.dtype is target:
        return value
    if target is torch.bool:
        return value != 0
    if target in _INT_RANGE and value.is_floating_point():
        low, high = _INT_RANGE[target]
        # float64 holds every bound but int64's upper one exactly; there the largest float64 below it serves.
        rounded = value.double().round().nan_to_num(nan=0.0, posinf=float(high), neginf=float(low))
        return rounded.clamp(float(low), float(high) if target is not torch.int64 else 9223372036854774784.0).to(target)
    if target in _INT_RANGE and value.dtype is not torch.bool:
        low, high = _INT_RANGE[target]
        if _INT_RANGE.get(value.dtype, (low, high)) != (low, high):
            value = value.clamp(max(low, _INT_RANGE[value.dtype][0]), min(high, _INT_RANGE[value.dtype][1]))
        return value.to(target)
    if target in _SATURATED:
        limit = torch.finfo(target).max
        return value.float().clamp(-limit, limit).to(target)
    return value.to(target)


class _DeviceMemory:
    """Memory at a device address, for torch.as_tensor."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3, "strides": None}


def as_torch(value: Any, dtype: data_type, span_bytes: int, device: torch.device) -> torch.Tensor:
    """A caller's buffer as a torch tensor over the same memory. ``device`` says whose memory an address is."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, int):
        if device.type == "cuda":
            raw = torch.as_tensor(_DeviceMemory(value, span_bytes), device=device)
        else:
            raw = torch.frombuffer((ctypes.c_uint8 * span_bytes).from_address(value), dtype=torch.uint8)
        return raw if dtype is data_type.FP4_E2M1 else raw.view(torch_dtype(dtype))
    return torch.from_dlpack(value)


def _strided(buffer: torch.Tensor, dim: Sequence[int], stride: Sequence[int], dtype: data_type) -> torch.Tensor:
    own = torch_dtype(dtype)
    if buffer.dtype is not own:
        buffer = buffer.view(own)
    return torch.as_strided(buffer, tuple(dim), tuple(stride), buffer.storage_offset())


def _packed_view(buffer: torch.Tensor, dim: Sequence[int], stride: Sequence[int]) -> tuple[torch.Tensor, int]:
    geometry = storage_geometry(dim, stride, "float4_e2m1fn")
    axis = packed_axis(dim, stride)
    if geometry is None or axis is None:
        raise NotImplementedError(f"4-bit tensor of dim {list(dim)} and stride {list(stride)} cannot be packed two to a byte")
    raw = buffer.view(torch.uint8) if buffer.dtype is not torch.uint8 else buffer
    return torch.as_strided(raw, *geometry, raw.storage_offset()), axis


def read(buffer: torch.Tensor, dim: Sequence[int], stride: Sequence[int], dtype: data_type) -> torch.Tensor:
    """The elements of a buffer as the graph describes them; a view, except for 4-bit floats, which come as float32."""
    if dtype is data_type.FP4_E2M1:
        packed, axis = _packed_view(buffer, dim, stride)
        return decode_e2m1(unpack_fp4(packed, axis))
    return _strided(buffer, dim, stride, dtype)


def write(buffer: torch.Tensor, dim: Sequence[int], stride: Sequence[int], dtype: data_type, value: torch.Tensor) -> None:
    """Copy a value into a buffer."""
    if dtype is data_type.FP4_E2M1:
        packed, axis = _packed_view(buffer, dim, stride)
        packed.copy_(pack_fp4(encode_e2m1(value.float()), axis))
        return
    _strided(buffer, dim, stride, dtype).copy_(value)
