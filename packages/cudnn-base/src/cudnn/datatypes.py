"""Data types: one canonical name for every spelling, the enum `data_type`, and the conversions between the libraries' own types.

Inside the project a data type is its canonical name, a plain string from `DTYPE_NAMES`. `dtype_name` finds it for a torch dtype, a numpy or ml_dtypes dtype or
scalar type, a jax.numpy scalar type, a string, a type of the CuTe DSL, or a member of `data_type`. It imports nothing, because a caller who holds an object of a
library has imported that library. `torch_dtype`, `numpy_dtype` and `cutlass_dtype` go the other way and import the library they are named after.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from enum import Enum
from typing import Any, NamedTuple

from cudnn.errors import cudnnGraphNotSupportedError

__all__ = [
    "DTYPE_NAMES",
    "cutlass_dtype",
    "data_type",
    "dtype_name",
    "is_cutlass_available",
    "is_torch_available",
    "itemsize_bits",
    "numpy_dtype",
    "torch_dtype",
    "torch_to_cudnn_data_type",
]


class data_type(Enum):
    """Data types of the graph API. The numbers are part of the interface; 13 belongs to a type that has no Python member."""

    NOT_SET = 0
    FLOAT = 1
    DOUBLE = 2
    HALF = 3
    INT8 = 4
    INT32 = 5
    INT8x4 = 6
    UINT8 = 7
    UINT8x4 = 8
    INT8x32 = 9
    BFLOAT16 = 10
    INT64 = 11
    BOOLEAN = 12
    FP8_E4M3 = 14
    FP8_E5M2 = 15
    FAST_FLOAT_FOR_FP8 = 16
    FP8_E8M0 = 17
    FP8_E5M3 = 18
    FP4_E2M1 = 19
    INT4 = 20


class _Row(NamedTuple):
    """What the libraries call one data type. An empty string: that library has no such type."""

    member: data_type
    name: str
    torch: str
    cutlass: str
    dlpack: tuple[int, int, int]
    """type code, bits of one lane, lanes of one stored element"""
    backend: int | None


_ROWS = (
    _Row(data_type.NOT_SET, "", "", "", (0, 0, 1), None),
    _Row(data_type.FLOAT, "float32", "float32", "Float32", (2, 32, 1), 0),
    _Row(data_type.DOUBLE, "float64", "float64", "Float64", (2, 64, 1), 1),
    _Row(data_type.HALF, "float16", "float16", "Float16", (2, 16, 1), 2),
    _Row(data_type.INT8, "int8", "int8", "Int8", (0, 8, 1), 3),
    _Row(data_type.INT32, "int32", "int32", "Int32", (0, 32, 1), 4),
    _Row(data_type.INT8x4, "", "", "", (0, 0, 1), 5),
    _Row(data_type.UINT8, "uint8", "uint8", "Uint8", (1, 8, 1), 6),
    _Row(data_type.UINT8x4, "", "", "", (0, 0, 1), 7),
    _Row(data_type.INT8x32, "", "", "", (0, 0, 1), 8),
    _Row(data_type.BFLOAT16, "bfloat16", "bfloat16", "BFloat16", (4, 16, 1), 9),
    _Row(data_type.INT64, "int64", "int64", "Int64", (0, 64, 1), 10),
    _Row(data_type.BOOLEAN, "bool", "bool", "Boolean", (6, 8, 1), 11),
    _Row(data_type.FP8_E4M3, "float8_e4m3fn", "float8_e4m3fn", "Float8E4M3FN", (10, 8, 1), 12),
    _Row(data_type.FP8_E5M2, "float8_e5m2", "float8_e5m2", "Float8E5M2", (12, 8, 1), 13),
    _Row(data_type.FAST_FLOAT_FOR_FP8, "", "", "", (0, 0, 1), 14),
    _Row(data_type.FP8_E8M0, "float8_e8m0fnu", "float8_e8m0fnu", "Float8E8M0FNU", (14, 8, 1), 15),
    _Row(data_type.FP8_E5M3, "", "", "", (0, 0, 1), 23),
    _Row(data_type.FP4_E2M1, "float4_e2m1fn", "float4_e2m1fn_x2", "Float4E2M1FN", (17, 4, 2), 16),
    _Row(data_type.INT4, "", "", "", (0, 0, 1), 17),
)
_BY_MEMBER = {row.member: row for row in _ROWS}
_BY_NAME = {row.name: row for row in _ROWS if row.name}

DTYPE_NAMES = tuple(_BY_NAME)
"""The canonical names."""

_NAME_OF_CUTLASS = {row.cutlass: row.name for row in _ROWS if row.cutlass}
_NAME_OF_DLPACK = {row.dlpack: row.name for row in _ROWS if row.name}
_NAME_OF_DLPACK[17, 4, 1] = "float4_e2m1fn"
_NAME_OF_STRING = {
    **{name: name for name in _BY_NAME},
    "double": "float64",
    "half": "float16",
    "float4_e2m1fn_x2": "float4_e2m1fn",
    "float4_e2m1fnx2": "float4_e2m1fn",
}

# Older numpy takes these for a default data type.
_ABSTRACT_SCALARS = {"generic", "number", "integer", "signedinteger", "unsignedinteger", "inexact", "floating", "complexfloating", "flexible", "character"}

# Spellings seen so far. Only ones that resolved are kept, and none beyond the bound, so that an object passed by mistake is never kept alive.
_NAMES: dict[Hashable, str] = {}
_NAMES_BOUND = 1024


def dtype_name(x: Any) -> str | None:
    """Canonical name of a data type in any spelling, or None.

    Strings are the canonical names, "half", "double", and torch's name for packed 4-bit floats. "float" is float32 to torch and float64 to numpy, hence
    unknown here, as are Python's own `float` and `int`. A numpy dtype in foreign byte order is unknown: no kernel reads it.
    """
    try:
        known = _NAMES.get(x)
    except TypeError:  # not hashable, so no data type
        return None
    if known is not None:
        return known
    name = _resolve_name(x)
    if name is not None and len(_NAMES) < _NAMES_BOUND:
        _NAMES[x] = name
    return name


def _resolve_name(x: Any) -> str | None:
    if isinstance(x, str):
        return _NAME_OF_STRING.get(str(x))
    if isinstance(x, data_type):
        return _BY_MEMBER[x].name or None
    if _is_torch_dtype(x):
        return _NAME_OF_STRING.get(str(x).removeprefix("torch."))
    if _is_cutlass_type(x):
        return _NAME_OF_CUTLASS.get(x.__name__)
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(x, type):
        if not issubclass(x, numpy.generic):
            x = getattr(x, "dtype", None)  # the scalar types of jax.numpy
        elif x.__name__ in _ABSTRACT_SCALARS:
            return None
        else:
            x = numpy.dtype(x)
    if not isinstance(x, numpy.dtype) or not x.isnative:
        return None
    return _NAME_OF_STRING.get(x.name)


def _required_name(x: Any) -> str:
    name = dtype_name(x)
    if name is None:
        raise ValueError(
            f"Unsupported tensor data type {x!r}; needs one of {', '.join(DTYPE_NAMES)}, as a string or as a dtype of torch, numpy, jax or cutlass"
        )
    return name


def itemsize_bits(x: Any) -> int:
    """Bits of one logical element of a data type in any spelling: 4 for float4_e2m1fn, 8 for bool. ValueError for an unknown one."""
    return _BY_NAME[_required_name(x)].dlpack[1]


def dlpack_name(code: int, bits: int, lanes: int) -> str | None:
    """Canonical name of a DLPack data type, or None. Two lanes of 4-bit floats are one stored byte of the packed type."""
    return _NAME_OF_DLPACK.get((code, bits, lanes))


def torch_dtype(x: Any) -> Any:
    """The torch dtype of a data type in any spelling; packed `float4_e2m1fn_x2` for 4-bit floats.

    Raises:
        ValueError: unknown data type, or one that the installed torch lacks.
        ImportError: torch is not installed.
    """
    name = _required_name(x)
    try:
        # A statement that torch.compile can trace, which the lookup of is_torch_available is not.
        import torch
    except ImportError as error:
        raise ImportError(f"the torch dtype of {name} needs torch, which is not installed: pip install torch") from error
    found = getattr(torch, _BY_NAME[name].torch, None)
    if found is None:
        raise ValueError(f"torch {torch.__version__} has no dtype for {name}; install a newer torch")
    return found


def numpy_dtype(x: Any) -> Any:
    """The numpy dtype of a data type in any spelling. Names that numpy lacks need ml_dtypes.

    Raises:
        ValueError: unknown data type, or one that the installed ml_dtypes lacks.
        ImportError: numpy, or ml_dtypes where it is needed, is not installed.
    """
    name = _required_name(x)
    import numpy

    if name == "bool" or hasattr(numpy, name):
        return numpy.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise ImportError(f"numpy has no {name} of its own; it needs ml_dtypes: pip install ml_dtypes") from error
    if not hasattr(ml_dtypes, name):
        raise ValueError(f"ml_dtypes {ml_dtypes.__version__} has no {name}; install a newer ml_dtypes")
    return numpy.dtype(getattr(ml_dtypes, name))


def cutlass_dtype(x: Any) -> Any:
    """The numeric class of the CuTe DSL for a data type in any spelling.

    Raises:
        ValueError: unknown data type.
        ImportError: the DSL is not installed.
    """
    name = _required_name(x)
    if not is_cutlass_available():
        raise ImportError(f"the CuTe DSL type of {name} needs nvidia-cutlass-dsl, which is not installed: pip install 'cudnn-base[cutedsl]'")
    import cutlass

    return getattr(cutlass, _BY_NAME[name].cutlass)


_available: dict[str, bool] = {}


def _is_available(module: str) -> bool:
    found = _available.get(module)
    if found is None:
        try:
            __import__(module)
            found = True
        except ImportError:
            found = False
        _available[module] = found
    return found


def is_torch_available() -> bool:
    """Whether torch can be imported. The attempt is made once and its answer kept."""
    return _is_available("torch")


def is_cutlass_available() -> bool:
    """Whether the CuTe DSL can be imported. The attempt is made once and its answer kept."""
    return _is_available("cutlass")


def _is_instance(x: Any, module: str, attribute: str) -> bool:
    # A module that another thread is still importing may lack the attribute; then nobody can hold an instance of it yet.
    kind = getattr(sys.modules.get(module), attribute, None)
    return kind is not None and isinstance(x, kind)


def _is_torch_dtype(x: Any) -> bool:
    return _is_instance(x, "torch", "dtype")


def _is_torch_tensor(x: Any) -> bool:
    return _is_instance(x, "torch", "Tensor")


def _is_jax_array(x: Any) -> bool:
    return _is_instance(x, "jax", "Array")


def _is_cutlass_type(x: Any) -> bool:
    return isinstance(x, type) and x.__module__.partition(".")[0] == "cutlass" and hasattr(x, "width")


def torch_to_cudnn_data_type(dtype: Any) -> data_type | None:
    """The member of `data_type` for a torch dtype; None for one without a member, or without torch."""
    name = dtype_name(dtype) if _is_torch_dtype(dtype) else None
    return None if name is None else _BY_NAME[name].member


_torch_to_cudnn_data_type = torch_to_cudnn_data_type


def _cudnn_to_torch_data_type(member: data_type) -> Any:
    """The torch dtype of a member of `data_type`; None without one, or without torch."""
    row = _BY_MEMBER.get(member)
    if row is None or not row.torch or not is_torch_available():
        return None
    import torch

    return getattr(torch, row.torch, None)


def _library_type(x: Any) -> data_type:
    """The member of `data_type` for a member or a torch dtype; cudnnGraphNotSupportedError for anything else."""
    member = x if isinstance(x, data_type) else torch_to_cudnn_data_type(x)
    if member is None:
        raise cudnnGraphNotSupportedError(
            f"No available conversion from {x!r} to a cudnn data type; needs a member of cudnn.data_type or a torch dtype that has one"
        )
    return member


def _torch_to_cutlass_data_type(dtype: Any, interpret_uint8_as_fp4x2: bool = False) -> Any:
    """The DSL type of a torch dtype; None for anything else, or without the DSL. uint8 is the container of 4-bit floats where the flag says so."""
    if not _is_torch_dtype(dtype):
        return None
    return _cutlass_or_none(dtype_name(dtype), interpret_uint8_as_fp4x2)


def _cutlass_or_none(name: str | None, interpret_uint8_as_fp4x2: bool) -> Any:
    if name is None or not is_cutlass_available():
        return None
    return cutlass_dtype("float4_e2m1fn" if interpret_uint8_as_fp4x2 and name == "uint8" else name)


def _dtype_name_to_cutlass_data_type(x: Any, interpret_uint8_as_fp4x2: bool = False) -> Any:
    """The DSL type for whatever names a numpy dtype ("bfloat16", "f4", numpy.float32, ...); None for an unknown one, or without the DSL."""
    name = dtype_name(x)
    if name is None:
        try:
            import numpy

            name = dtype_name(numpy.dtype(x))
        except (ImportError, TypeError, ValueError):
            return None
    return _cutlass_or_none(name, interpret_uint8_as_fp4x2)


def _convert_to_cutlass_data_type(dtype: Any, interpret_uint8_as_fp4x2: bool = False) -> Any:
    """The DSL type of a data type in any spelling; a DSL type comes back unchanged.

    Returns None when the DSL is not installed. Raises ValueError for None and for an unknown data type.
    """
    if dtype is None:
        raise ValueError("None is not a valid tensor data type; needs a dtype of torch, numpy, jax or cutlass, or its name")
    if _is_cutlass_type(dtype):
        return _cutlass_or_none("uint8", True) if interpret_uint8_as_fp4x2 and dtype.__name__ == "Uint8" else dtype
    found = _dtype_name_to_cutlass_data_type(dtype, interpret_uint8_as_fp4x2)
    if found is None and is_cutlass_available():
        _required_name(dtype)
    return found


def _convert_to_cutlass_data_type_or_none(dtype: Any, interpret_uint8_as_fp4x2: bool = False) -> Any:
    """As `_convert_to_cutlass_data_type`, with None instead of an error."""
    try:
        return _convert_to_cutlass_data_type(dtype, interpret_uint8_as_fp4x2)
    except ValueError:
        return None


def _buffer_dtype_to_cudnn(x: Any) -> data_type | None:
    """The member of `data_type` for the dtype of a buffer: a torch dtype, a numpy dtype or a bare name. 4-bit floats only as the torch dtype; unknown: None."""
    name = dtype_name(x)
    if name is None or (name == "float4_e2m1fn" and not _is_torch_dtype(x)):
        return None
    return _BY_NAME[name].member


def _cudnn_to_frost_dtype_name(member: data_type) -> str | None:
    """Name of a member of `data_type` where one element fills whole bytes, else None."""
    row = _BY_MEMBER.get(member)
    return row.name if row is not None and row.name and row.dlpack[1] >= 8 else None


def _dlpack_code_bits(member: data_type) -> tuple[int, int]:
    """DLPack type code and bits of a member; (0, 0) where DLPack has no spelling."""
    code, bits, _ = _BY_MEMBER[member].dlpack
    return code, bits


def _dlpack_lanes(member: data_type) -> int:
    """DLPack lanes of a member: 2 for packed 4-bit floats, else 1."""
    return _BY_MEMBER[member].dlpack[2]


def backend_data_type(member: data_type) -> int | None:
    """Number that libcudnn gives a member of `data_type`; None for NOT_SET."""
    return _BY_MEMBER[member].backend
