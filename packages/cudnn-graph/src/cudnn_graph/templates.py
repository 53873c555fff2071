"""Reading dims, strides, dtype and device off framework tensors, without importing a framework."""

from __future__ import annotations

import sys
from typing import Any

from cudnn_graph.dtypes import to_library_dtype
from cudnn_graph.enums import data_type
from cudnn_graph.tensor import row_major


def template_of(value: Any) -> tuple[tuple[int, ...], tuple[int, ...], data_type, str]:
    """(dim, stride in elements, dtype, device as "cpu" or "cuda:0") of a torch tensor or another DLPack object. A 0-d tensor counts as [1]."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        if not hasattr(value, "__dlpack__"):
            raise TypeError(f"expected a framework tensor (DLPack), got {type(value).__name__}")
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray):
            stride = tuple(step // value.itemsize for step in value.strides)
            return tuple(value.shape) or (1,), stride or (1,), to_library_dtype(value.dtype), "cpu"
        shape = tuple(value.shape)
        return shape or (1,), row_major(shape) if shape else (1,), to_library_dtype(value.dtype), device_label(value)
    dim, stride = tuple(value.shape), tuple(value.stride())
    return dim or (1,), stride or (1,), to_library_dtype(value.dtype), device_label(value)


def device_label(value: Any) -> str:
    """Where a DLPack object lives: "cpu", "cuda:0", ... (pinned and managed memory count as where DLPack says)."""
    kind, index = value.__dlpack_device__()
    kind = int(kind)
    if kind in (2, 13):
        return f"cuda:{index}"
    return "cpu" if kind in (1, 3) else f"dlpack-device-{kind}:{index}"
