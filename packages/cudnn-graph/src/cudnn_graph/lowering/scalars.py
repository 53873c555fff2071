# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers as the library reads them from host memory."""

from __future__ import annotations

import struct

from cudnn_graph.enums import data_type

_FORMATS = {
    data_type.FLOAT: "<f",
    data_type.DOUBLE: "<d",
    data_type.HALF: "<e",
    data_type.INT8: "<b",
    data_type.UINT8: "<B",
    data_type.INT32: "<i",
    data_type.INT64: "<q",
    data_type.BOOLEAN: "<?",
}
_INTEGERS = (data_type.INT8, data_type.UINT8, data_type.INT32, data_type.INT64)


def scalar_bytes(value: int | float, dtype: data_type, name: str) -> bytes:
    """A number in the memory format of ``dtype``. ValueError when it does not fit."""
    try:
        if dtype is data_type.BFLOAT16:
            bits = struct.unpack("<I", struct.pack("<f", value))[0]
            # Round to nearest even; a NaN keeps its upper half.
            return struct.pack("<H", (bits + (0x7FFF + (bits >> 16 & 1) if value == value else 0)) >> 16)
        if dtype in _INTEGERS:
            if int(value) != value:
                raise ValueError("it has a fraction")
            value = int(value)
        return struct.pack(_FORMATS[dtype], value)
    except KeyError:
        raise ValueError(f"pass-by-value tensor '{name}' is {dtype.name}: pass a host tensor, a number has no conversion to that type") from None
    except (struct.error, OverflowError, ValueError) as error:
        raise ValueError(f"the value {value} does not fit in pass-by-value tensor '{name}' of type {dtype.name}: {error}") from error
