"""Graph-wide settings, as given to the constructor of ``cudnn.pygraph``."""

from __future__ import annotations

from typing import Any

from cudnn_graph.dtypes import to_library_dtype
from cudnn_graph.enums import data_type

BACKENDS = ("auto", "cudnn", "reference")

# Types that are computed in FLOAT unless the caller says otherwise.
_COMPUTED_IN_FLOAT = frozenset(
    {
        data_type.HALF,
        data_type.BFLOAT16,
        data_type.INT8,
        data_type.UINT8,
        data_type.BOOLEAN,
        data_type.FP8_E4M3,
        data_type.FP8_E5M2,
        data_type.FP8_E8M0,
        data_type.FP4_E2M1,
    }
)


class GraphContext:
    """Name, default data types and options of a graph. Read it through ``graph.context``.

    Default types: a tensor without a type gets ``intermediate_data_type`` when it is virtual, else ``io_data_type``. ``intermediate_data_type`` falls
    back to ``io_data_type``, then FLOAT. A node without a compute type computes in ``compute_data_type``; that falls back to ``io_data_type``
    where it is FLOAT, DOUBLE, INT32 or INT64, else to FLOAT.
    """

    __slots__ = (
        "name",
        "io_data_type",
        "intermediate_data_type",
        "compute_data_type",
        "handle",
        "sm_count",
        "sm_version",
        "kernel_cache",
        "device_property",
        "is_dynamic_shape_enabled",
        "is_override_shape_enabled",
        "cuda_graph_retention",
        "is_cuda_graph_replay_expected",
        "backend",
        "reference_fallback",
    )

    def __init__(self, name: str, io_data_type: Any, intermediate_data_type: Any, compute_data_type: Any, **options: Any) -> None:
        self.name = name
        self.io_data_type = to_library_dtype(io_data_type)
        self.intermediate_data_type = to_library_dtype(intermediate_data_type)
        self.compute_data_type = to_library_dtype(compute_data_type)
        for key, value in options.items():
            setattr(self, key, value)

    def tensor_dtype(self, is_virtual: bool) -> data_type:
        """Type of a tensor that was given none."""
        if is_virtual:
            for dtype in (self.intermediate_data_type, self.io_data_type):
                if dtype is not data_type.NOT_SET:
                    return dtype
            return data_type.FLOAT
        return self.io_data_type

    def node_compute_dtype(self, own: data_type) -> data_type:
        """Type a node computes in, given its own setting."""
        for dtype in (own, self.compute_data_type):
            if dtype is not data_type.NOT_SET:
                return dtype
        if self.io_data_type is data_type.NOT_SET or self.io_data_type in _COMPUTED_IN_FLOAT:
            return data_type.FLOAT
        return self.io_data_type

    def __repr__(self) -> str:
        return (
            f"GraphContext(name={self.name!r}, io_data_type={self.io_data_type.name}, intermediate_data_type={self.intermediate_data_type.name}, "
            f"compute_data_type={self.compute_data_type.name}, backend={self.backend!r})"
        )
