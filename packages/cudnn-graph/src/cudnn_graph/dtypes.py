"""Element types as the graph sees them: conversions, sizes, and the torch dtype that stores each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn import datatypes
from cudnn_graph.enums import data_type
from cudnn_graph.errors import cudnnGraphNotSupportedError

if TYPE_CHECKING:
    import torch

_BY_NAME = {
    "float32": data_type.FLOAT,
    "float64": data_type.DOUBLE,
    "float16": data_type.HALF,
    "bfloat16": data_type.BFLOAT16,
    "int8": data_type.INT8,
    "uint8": data_type.UINT8,
    "int32": data_type.INT32,
    "int64": data_type.INT64,
    "bool": data_type.BOOLEAN,
    "float8_e4m3fn": data_type.FP8_E4M3,
    "float8_e5m2": data_type.FP8_E5M2,
    "float8_e8m0fnu": data_type.FP8_E8M0,
    "float4_e2m1fn": data_type.FP4_E2M1,
}
_NAMES = {value: name for name, value in _BY_NAME.items()}

BITS = {
    data_type.FLOAT: 32,
    data_type.DOUBLE: 64,
    data_type.HALF: 16,
    data_type.INT8: 8,
    data_type.INT32: 32,
    data_type.INT8x4: 32,
    data_type.UINT8: 8,
    data_type.UINT8x4: 32,
    data_type.INT8x32: 256,
    data_type.BFLOAT16: 16,
    data_type.INT64: 64,
    data_type.BOOLEAN: 8,
    data_type.FP8_E4M3: 8,
    data_type.FP8_E5M2: 8,
    data_type.FAST_FLOAT_FOR_FP8: 32,
    data_type.FP8_E8M0: 8,
    data_type.FP8_E5M3: 8,
    data_type.FP4_E2M1: 4,
    data_type.INT4: 4,
}


def to_library_dtype(dtype: Any) -> data_type:
    """A ``cudnn.data_type`` from an enum member, a torch dtype, a numpy dtype or a canonical name; None gives NOT_SET.

    Raises cudnnGraphNotSupportedError for what has no counterpart (complex numbers, for one).
    """
    if isinstance(dtype, data_type):
        return dtype
    if dtype is None:
        return data_type.NOT_SET
    name = datatypes.dtype_name(dtype)
    if name is None or name not in _BY_NAME:
        raise cudnnGraphNotSupportedError(f"No available conversion from {dtype!r} to cudnn.data_type")
    return _BY_NAME[name]


def dtype_label(dtype: data_type) -> str | None:
    """Canonical dtype name of a member ("float16"), or None when it has none."""
    return _NAMES.get(dtype)


def torch_dtype(dtype: data_type) -> torch.dtype:
    """The torch dtype that holds elements of ``dtype``. cudnnGraphNotSupportedError when the installed torch has none."""
    import torch

    name = _NAMES.get(dtype)
    if name == "float4_e2m1fn":
        name = "float4_e2m1fn_x2"
    found = getattr(torch, name, None) if name is not None else None
    if found is None:
        raise cudnnGraphNotSupportedError(f"the installed torch {torch.__version__} has no dtype for cudnn.data_type.{dtype.name}")
    return found


def is_floating(dtype: data_type) -> bool:
    """True for types with a fraction."""
    return dtype.name in ("FLOAT", "DOUBLE", "HALF", "BFLOAT16", "FAST_FLOAT_FOR_FP8") or dtype.name.startswith(("FP8", "FP4"))
