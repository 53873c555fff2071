"""Reading dims, strides, dtype and device off framework tensors."""

from __future__ import annotations

from typing import Any

from cudnn.tensors import metadata
from cudnn_graph.dtypes import to_library_dtype
from cudnn_graph.enums import data_type


def template_of(value: Any) -> tuple[tuple[int, ...], tuple[int, ...], data_type, str]:
    """(dim, stride in elements, dtype, device as "cpu" or "cuda:0") of a torch tensor or another DLPack object. A 0-d tensor counts as [1].

    Raises:
        TypeError: no tensor.
        cudnnGraphNotSupportedError: a data type without counterpart.
    """
    try:
        seen = metadata(value)
    except ValueError as error:
        raise TypeError(f"expected a framework tensor (DLPack): {error}") from error
    dtype = to_library_dtype(seen.dtype if seen.dtype is not None else getattr(value, "dtype", None))
    device = seen.device_type if seen.device_index is None else f"{seen.device_type}:{seen.device_index}"
    return tuple(seen.shape) or (1,), tuple(seen.stride) or (1,), dtype, device
