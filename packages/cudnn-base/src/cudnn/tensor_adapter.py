"""The published path of the framework-neutral tensor functions; they are in `cudnn.tensors`."""

from __future__ import annotations

from cudnn.tensors import (
    Device,
    allocate_byte_workspace,
    canonicalize_unit_dim_strides,
    cuda_is_available,
    default_stream,
    detect_framework,
    framework_dtype,
    get_compute_capability,
    get_data_ptr,
    get_device,
    get_shape,
    get_strides,
    get_version,
    is_jax_array,
    is_numpy_array,
    is_torch_tensor,
    pad_to_ndim,
    to_host_list,
)

__all__ = [
    "Device",
    "allocate_byte_workspace",
    "canonicalize_unit_dim_strides",
    "cuda_is_available",
    "default_stream",
    "detect_framework",
    "framework_dtype",
    "get_compute_capability",
    "get_data_ptr",
    "get_device",
    "get_shape",
    "get_strides",
    "get_version",
    "is_jax_array",
    "is_numpy_array",
    "is_torch_tensor",
    "pad_to_ndim",
    "to_host_list",
]
