"""Element types as the graph sees them: conversions, sizes, and the torch dtype that stores each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn import datatypes
from cudnn_graph.enums import data_type
from cudnn_graph.errors import cudnnGraphNotSupportedError

if TYPE_CHECKING:
    import torch

_BY_NAME = {datatypes.dtype_name(member): member for member in data_type if datatypes.dtype_name(member) is not None}

_BITS_WITHOUT_NAME = {
    data_type.INT8x4: 32,
    data_type.UINT8x4: 32,
    data_type.INT8x32: 256,
    data_type.FAST_FLOAT_FOR_FP8: 32,
    data_type.FP8_E5M3: 8,
    data_type.INT4: 4,
}

INTEGER_TYPES = (data_type.INT8, data_type.UINT8, data_type.INT32, data_type.INT64)
FP8_TYPES = (data_type.FP8_E4M3, data_type.FP8_E5M2)


def to_library_dtype(dtype: Any) -> data_type:
    """A ``cudnn.data_type`` from a member, a torch or numpy dtype, or a canonical name; None gives NOT_SET.

    Raises cudnnGraphNotSupportedError for what has no counterpart (complex numbers, for one).
    """
    if isinstance(dtype, data_type):
        return dtype
    if dtype is None:
        return data_type.NOT_SET
    member = _BY_NAME.get(datatypes.dtype_name(dtype))
    if member is None:
        raise cudnnGraphNotSupportedError(
            f"No available conversion from {dtype!r} to a cudnn data type; needs a member of cudnn.data_type or a dtype that has one"
        )
    return member


def bits(dtype: data_type) -> int:
    """Bits of one element."""
    return _BITS_WITHOUT_NAME.get(dtype) or datatypes.itemsize_bits(dtype)


def torch_dtype(dtype: data_type) -> torch.dtype:
    """The torch dtype that stores elements of ``dtype``. cudnnGraphNotSupportedError when the installed torch has none."""
    found = datatypes._cudnn_to_torch_data_type(dtype)
    if found is None:
        raise cudnnGraphNotSupportedError(f"torch has no dtype for cudnn.data_type.{dtype.name}")
    return found
