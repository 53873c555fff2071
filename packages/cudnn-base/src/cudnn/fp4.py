"""4-bit floats (e2m1), two to a byte.

The values are 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives; bit 3 of a code is the sign. Two neighbours along the packed axis, the one with stride 1, share a
byte: the even logical index is in the low four bits. A stored tensor of shape (rows, K / 2) with strides (K / 2, 1), torch's `float4_e2m1fn_x2` or plain bytes,
is the logical tensor (rows, K) with strides (K, 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cudnn.datatypes import dtype_name

__all__ = ["E2M1_VALUES", "decode_e2m1", "encode_e2m1", "logical_geometry", "pack_fp4", "packed_axis", "storage_geometry", "unpack_fp4"]

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Value of each of the sixteen codes."""


def packed_axis(shape: Sequence[int], stride: Sequence[int]) -> int | None:
    """The axis along which neighbours share a byte: the first with stride 1, unit axes only if there is no other; None without one. Of an empty tensor, whose strides say little, rather one of extent 0."""
    candidates = [axis for axis, step in enumerate(stride) if step == 1]
    empty = next((axis for axis in candidates if shape[axis] == 0), None)
    if empty is not None:
        return empty
    return next((axis for axis in candidates if shape[axis] != 1), candidates[0] if candidates else None)


def logical_geometry(shape: Sequence[int], stride: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Logical shape and stride of a packed tensor from those of its bytes: the packed extent and every other stride double.

    Raises:
        RuntimeError: no axis has stride 1, so that the packed axis is unknown.
    """
    axis = packed_axis(shape, stride)
    if axis is None:
        raise RuntimeError(
            f"packed 4-bit tensor of shape {tuple(shape)} has strides {tuple(stride)}, needs an axis of stride 1, along which two values share a byte"
        )
    return (
        tuple(extent * 2 if i == axis else extent for i, extent in enumerate(shape)),
        tuple(1 if i == axis else step * 2 for i, step in enumerate(stride)),
    )


def storage_geometry(dim: Sequence[int], stride: Sequence[int], data_type: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Stored shape and stride of a tensor declared in logical elements; None where its 4-bit elements cannot be packed.

    The packed axis, the first of stride 1 that is longer than one, halves, and so does every other stride. None: no such axis, an odd packed extent, or an odd
    stride of another axis. Unit axes keep a stride of 1 and are never packed. Data types of whole bytes are stored as declared.
    """
    dim, stride = tuple(dim), tuple(stride)
    if dtype_name(data_type) != "float4_e2m1fn":
        return dim, stride
    axis = next((i for i, (extent, step) in enumerate(zip(dim, stride, strict=True)) if step == 1 and extent != 1), None)
    if axis is None or dim[axis] % 2:
        return None
    steps = []
    for i, (extent, step) in enumerate(zip(dim, stride, strict=True)):
        if i == axis or (extent == 1 and step == 1):
            steps.append(1)
        elif step % 2 and extent != 1:
            return None
        else:
            steps.append((step + 1) // 2)
    return tuple(extent // 2 if i == axis else extent for i, extent in enumerate(dim)), tuple(steps)


def encode_e2m1(values: Any) -> Any:
    """Codes 0 to 15 (torch.uint8) of a floating torch tensor: round to nearest, ties to the even code, beyond 6 to 6, NaN to +6 as the hardware conversion."""
    import torch

    values = values.to(torch.promote_types(values.dtype, torch.float32))
    size = values.abs()
    # A code is the number of midpoints below the value. A tie belongs to the even code: one of 0.25, 1.25, 2.5 and 5 goes down, of the others up.
    code = torch.zeros(values.shape, dtype=torch.uint8, device=values.device)
    for i, midpoint in enumerate((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)):
        code += (size > midpoint) if i % 2 == 0 else (size >= midpoint)
    code += torch.signbit(values).to(torch.uint8) * 8
    return torch.where(torch.isnan(values), torch.full_like(code, 7), code)


def decode_e2m1(codes: Any) -> Any:
    """Values (torch.float32) of a torch tensor of codes 0 to 15."""
    import torch

    return torch.tensor(E2M1_VALUES, dtype=torch.float32, device=codes.device)[codes.long()]


def pack_fp4(codes: Any, axis: int = -1) -> Any:
    """Bytes (torch.uint8) of a tensor of codes 0 to 15, half as long along `axis`, which becomes the axis with stride 1.

    Raises:
        ValueError: the extent of `axis` is odd.
    """
    if codes.shape[axis] % 2:
        raise ValueError(f"axis {axis} of codes has the odd extent {codes.shape[axis]}, needs an even one: two values share a byte")
    last = codes.movedim(axis, -1)
    return (last[..., 0::2] | (last[..., 1::2] << 4)).contiguous().movedim(-1, axis)


def unpack_fp4(packed: Any, axis: int = -1) -> Any:
    """Codes 0 to 15 (torch.uint8) of a packed tensor (`float4_e2m1fn_x2` or bytes), twice as long along `axis`, which becomes the axis with stride 1."""
    import torch

    last = packed.view(torch.uint8).movedim(axis, -1)
    return torch.stack((last & 15, last >> 4), dim=-1).flatten(-2).movedim(-1, axis)
