"""`APIBase`, the class that every operation derives from, and small helpers that come with it.

The life of an operation: construct it with sample tensors or descriptions of them, `check_support()`, `compile()`, then `execute()` as often as wanted.
"""

from __future__ import annotations

import logging
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

# Not `from cudnn import tensors`: that asks the registry for a public name first and loads it.
import cudnn.tensors as _tensors
from cudnn.datatypes import _convert_to_cutlass_data_type, dtype_name
from cudnn.device import cuda_is_available, get_compute_capability
from cudnn.fp4 import logical_geometry
from cudnn.logs import get_logger
from cudnn.streams import as_custream, launch_handle
from cudnn.tensor_desc import TensorDesc
from cudnn.tuple_dict import TupleDict
from cudnn.workspace import WorkspaceCarver, check_buffers_disjoint, tensor_byte_span, ws_align

__all__ = [
    "APIBase",
    "TensorDesc",
    "TupleDict",
    "WorkspaceCarver",
    "ceil_div",
    "check_buffers_disjoint",
    "get_device_type",
    "is_power_of_2",
    "is_sm107_device",
    "tensor_byte_span",
    "warn_experimental_api_once",
    "ws_align",
]


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up, b > 0."""
    return -(-a // b)


def is_power_of_2(n: int) -> bool:
    """Whether n is 1, 2, 4, 8, ..."""
    return n > 0 and n & (n - 1) == 0


def is_sm107_device() -> bool:
    """Whether the current device has compute capability 10.7; False without one."""
    return cuda_is_available() and get_compute_capability() == (10, 7)


def get_device_type() -> str:
    """ "rubin" for compute capability 10.7, "blackwell" for everything else: the two families that the published interface tells apart.

    Which kernel runs is decided by `cudnn.device.get_compute_capability`, not by this.
    """
    return "rubin" if is_sm107_device() else "blackwell"


_warned: set[str] = set()
_warned_lock = threading.Lock()


def warn_experimental_api_once(logger: logging.Logger, api_name: str) -> None:
    """Log "<api_name> is an experimental API" as a warning, once per name and process."""
    with _warned_lock:
        if api_name in _warned:
            return
        _warned.add(api_name)
    logger.warning("%s is an experimental API", api_name)


def _reset_experimental_api_warning_registry() -> None:
    """Forget which names were warned about. For tests."""
    with _warned_lock:
        _warned.clear()


class APIBase(ABC):
    """An operation bound to data types, layouts and a configuration.

    Subclasses implement `check_support`, `compile` and `execute`, and call `super().__init__()` first. Compiling through `__call__` happens once, also when
    threads make the first call together.
    """

    def __init__(self) -> None:
        self._is_supported = False
        self._kernel: Any = None
        self._compiled_kernel: Any = None
        self._interpret_uint8_as_fp4x2 = False
        self._logger = get_logger(type(self).__name__)
        self._compile_lock = threading.RLock()

    @property
    def _device_type(self) -> str:
        return get_device_type()

    @property
    def _is_rubin_kernel(self) -> bool:
        return self._device_type == "rubin"

    @abstractmethod
    def check_support(self) -> bool:
        """Check the configuration from metadata alone: True, or ValueError, NotImplementedError or RuntimeError with the reason. Sets `_is_supported`."""

    @abstractmethod
    def compile(self) -> None:
        """Build the kernel, checking support first if that has not been done. Sets `_compiled_kernel`."""

    @abstractmethod
    def execute(self, *args: Any, **kwargs: Any) -> None:
        """Launch on `current_stream`, None being the current stream of the tensors' framework on their device. Does not synchronise."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compile when that has not been done, then `execute` with the same arguments."""
        if self._compiled_kernel is None:
            with self._compile_lock:
                if self._compiled_kernel is None:
                    self.compile()
        return self.execute(*args, **kwargs)

    def workspace_bytes(self) -> int:
        """Bytes of scratch memory that `execute` needs: uint8, contiguous, 128-byte aligned, on the operands' device. Most operations need none."""
        return 0

    def scratch_workspace_bytes(self) -> int:
        """`workspace_bytes` under its published name."""
        return self.workspace_bytes()

    def _ensure_support_checked(self) -> None:
        if self._is_supported:
            return
        self._logger.info("check_support was not called before; calling it now")
        if not self.check_support():
            raise AssertionError("Unsupported configuration")

    def _warn_experimental_api(self) -> None:
        warn_experimental_api_once(self._logger, type(self).__name__)

    def _get_default_stream(self, stream: Any) -> Any:
        """The stream as given; for None the CUstream of torch's current stream when torch is loaded, else of the legacy default stream."""
        if stream is not None:
            return stream
        return as_custream(launch_handle(None, "torch" if "torch" in sys.modules else "", None))

    def _pad_tensor_to_ndim(self, tensor: Any, ndim: int, name: str) -> Any:
        """The tensor with unit axes appended up to rank `ndim`."""
        if tensor is None or len(tensor.shape) >= ndim:
            return tensor
        self._logger.info("%s: shape %s padded with unit axes to rank %d", name, tuple(tensor.shape), ndim)
        return _tensors.pad_to_ndim(tensor, ndim)

    def _unpad_tensor_to_ndim(self, tensor: Any, ndim: int, name: str) -> Any:
        """The tensor without trailing unit axes beyond rank `ndim`. A longer last axis stops it, with a critical log record."""
        if tensor is None or len(tensor.shape) <= ndim:
            return tensor
        self._logger.info("%s: unit axes of shape %s removed down to rank %d", name, tuple(tensor.shape), ndim)
        while len(tensor.shape) > ndim:
            if tensor.shape[-1] != 1:
                self._logger.critical("%s: shape %s cannot reach rank %d, its last axis has extent %d", name, tuple(tensor.shape), ndim, tensor.shape[-1])
                break
            rank = len(tensor.shape)
            framework = _tensors.detect_framework(tensor)
            tensor = tensor.reshape(tuple(tensor.shape)[:-1]) if framework in ("jax", "numpy") else tensor.squeeze(rank - 1)
        return tensor

    def _dtype_name(self, tensor_or_dtype: Any) -> str | None:
        """Canonical name of the data type of a tensor, a description, or of a data type; uint8 that stands for packed 4-bit floats is named so."""
        if tensor_or_dtype is None:
            return None
        flag = self._interpret_uint8_as_fp4x2
        if isinstance(tensor_or_dtype, TensorDesc):
            flag = tensor_or_dtype.interpret_uint8_as_fp4x2
        name = dtype_name(_dtype_of(tensor_or_dtype))
        return "float4_e2m1fn" if flag and name == "uint8" else name

    def _is_fp4x2(self, tensor_or_dtype: Any) -> bool:
        """4-bit floats, or uint8 that stands for them. A description brings its own flag; for others the operation's counts."""
        return self._dtype_name(tensor_or_dtype) == "float4_e2m1fn"

    def _is_fp8(self, tensor_or_dtype: Any) -> bool:
        """float8_e4m3fn or float8_e5m2."""
        return self._dtype_name(tensor_or_dtype) in ("float8_e4m3fn", "float8_e5m2")

    def _is_f16(self, tensor_or_dtype: Any) -> bool:
        """float16 or bfloat16."""
        return self._dtype_name(tensor_or_dtype) in ("float16", "bfloat16")

    def _get_innermost_stride_dim(self, tensor: Any, name: str) -> int:
        """The first axis with stride 1. RuntimeError without one."""
        stride = tensor.stride if isinstance(tensor, TensorDesc) else _tensors.get_strides(tensor)
        if 1 not in stride:
            message = f"{name}: strides {tuple(stride)} of shape {tuple(tensor.shape)} have no axis of stride 1, which is needed"
            self._logger.critical(message)
            raise RuntimeError(message)
        return stride.index(1)

    def _tensor_shape(self, tensor: Any, name: str) -> tuple[int, ...] | None:
        """Logical shape: that of a description; of packed 4-bit floats with the packed extent doubled. None for None."""
        return None if tensor is None else self._logical_layout(tensor, name)[0]

    def _tensor_stride(self, tensor: Any, name: str) -> tuple[int, ...] | None:
        """Logical strides: those of a description; of packed 4-bit floats doubled, but for the packed axis. None for None."""
        return None if tensor is None else self._logical_layout(tensor, name)[1]

    def _logical_layout(self, tensor: Any, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if isinstance(tensor, TensorDesc):
            return tensor.shape, tensor.stride
        shape, stride = _tensors.get_shape(tensor), _tensors.get_strides(tensor)
        if self._is_fp4x2(tensor):
            self._get_innermost_stride_dim(tensor, name)
            return logical_geometry(shape, stride)
        return shape, stride

    def _check_tensor_shape(self, tensor_or_shape: Any, expected: tuple[int, ...] | list[tuple[int, ...]], name: str = "") -> tuple[int, ...] | None:
        """The logical shape, which must be `expected`, or one of a list. None for None. ValueError otherwise."""
        if tensor_or_shape is None:
            return None
        found = tuple(tensor_or_shape) if isinstance(tensor_or_shape, tuple | list) else self._logical_layout(tensor_or_shape, name)[0]
        _match(found, expected, f"{name} tensor shape mismatch".lstrip())
        return found

    def _check_tensor_stride(
        self,
        tensor_or_stride: Any,
        stride: tuple[int, ...] | list[tuple[int, ...]] | None = None,
        stride_order: tuple[int, ...] | list[tuple[int, ...]] | None = None,
        name: str = "",
        extra_error_msg: str = "",
    ) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
        """Logical strides and stride order, each of which must be as expected where an expectation is given. (None, None) for None. ValueError otherwise.

        The order of a tensor or tuple goes by stride alone, ties in axis order; a description has its own.
        """
        if tensor_or_stride is None:
            return None, None
        if isinstance(tensor_or_stride, TensorDesc):
            found, order = tensor_or_stride.stride, tensor_or_stride.stride_order
        else:
            found = tuple(tensor_or_stride) if isinstance(tensor_or_stride, tuple | list) else self._logical_layout(tensor_or_stride, name)[1]
            order = tuple(sorted(range(len(found)), key=found.__getitem__))
        if stride is not None:
            _match(found, stride, f"{name} tensor stride mismatch".lstrip(), extra_error_msg)
        if stride_order is not None:
            _match(order, stride_order, f"{name} tensor stride order mismatch".lstrip(), extra_error_msg)
        return found, order

    def _check_dtype(self, tensor_or_dtype: Any, dtype: Any, name: str = "", extra_error_msg: str = "") -> Any:
        """The data type as given, which must be `dtype`, or one of a list, in whatever spelling. ValueError otherwise."""
        if tensor_or_dtype is None:
            return None
        found = _dtype_of(tensor_or_dtype)
        allowed = list(dtype) if isinstance(dtype, list | tuple) else [dtype]
        names = {self._dtype_name(tensor_or_dtype), dtype_name(found)} - {None}
        if not names & {dtype_name(one) for one in allowed}:
            shown = [dtype_name(one) or repr(one) for one in allowed]
            wanted = f"one of {', '.join(shown)}" if isinstance(dtype, list | tuple) else shown[0]
            extra = f": {extra_error_msg}" if extra_error_msg else ""
            raise ValueError(f"{name or 'tensor'} dtype mismatch: expected {wanted}, got {self._dtype_name(tensor_or_dtype) or repr(found)}{extra}")
        return found

    def _value_error_if(self, condition: bool, message: str) -> None:
        if condition:
            raise ValueError(message)

    def _not_implemented_error_if(self, condition: bool, message: str) -> None:
        if condition:
            raise NotImplementedError(message)

    def _runtime_error_if(self, condition: bool, message: str) -> None:
        if condition:
            raise RuntimeError(message)

    def _make_tensor_desc(self, tensor: Any, name: str = "", interpret_uint8_as_fp4x2: bool | None = None, canonical: bool = False) -> TensorDesc | None:
        """Description of a tensor by its logical shape and strides; None for None.

        With `canonical` equal layouts give equal descriptions whatever the framework: the data type is the DSL's (its canonical name where the DSL is not
        installed), the device a `cudnn.tensors.Device`, and the strides of unit axes are normalised.
        """
        if tensor is None:
            return None
        flag = self._interpret_uint8_as_fp4x2 if interpret_uint8_as_fp4x2 is None else interpret_uint8_as_fp4x2
        if isinstance(tensor, TensorDesc):
            shape, stride, device = tensor.shape, tensor.stride, tensor.device
            flag = tensor.interpret_uint8_as_fp4x2
        else:
            shape, stride, device = _tensors.get_shape(tensor), _tensors.get_strides(tensor), _tensors.get_device(tensor)
            if dtype_name(tensor.dtype) == "float4_e2m1fn" or (flag and dtype_name(tensor.dtype) == "uint8"):
                shape, stride = logical_geometry(shape, stride)
        dtype: Any = tensor.dtype
        if canonical:
            seen = dtype_name(dtype)
            dtype = _convert_to_cutlass_data_type(dtype, flag) or ("float4_e2m1fn" if flag and seen == "uint8" else seen)
            device, flag = _tensors.Device(*_tensors.split_device(device)), False
            stride = _tensors.canonicalize_unit_dim_strides(shape, stride)
        order = TensorDesc._compute_stride_order(shape, stride)
        return TensorDesc(dtype, shape, stride, order, device, interpret_uint8_as_fp4x2=flag, name=name or getattr(tensor, "name", None) or "")

    def _make_fake_cute_tensor_like(self, tensor: Any, assumed_align: int = 16, name: str = "") -> Any:
        """A fake tensor of the DSL with the logical layout of a tensor, to compile for. None for None."""
        return None if tensor is None else self._make_fake_cute_tensor_from_desc(self._make_tensor_desc(tensor, name), assumed_align)

    def _make_fake_cute_tensor_from_desc(self, desc: TensorDesc | None, assumed_align: int = 16) -> Any:
        """A fake tensor of the DSL as described, to compile for. None for None."""
        if desc is None:
            return None
        dtype = _convert_to_cutlass_data_type(desc.dtype, desc.interpret_uint8_as_fp4x2)
        return self._make_fake_cute_tensor(dtype, desc.shape, desc.stride, assumed_align)

    def _make_fake_cute_tensor(self, dtype: Any, shape: Sequence[Any], stride: Sequence[Any], assumed_align: int = 16) -> Any:
        """A fake tensor of the DSL. Extents and strides are ints or symbolic ints of the DSL. ImportError without the DSL."""
        from cutlass.cute.runtime import make_fake_tensor

        return make_fake_tensor(_convert_to_cutlass_data_type(dtype), tuple(shape), tuple(stride), assumed_align=assumed_align)

    def _make_fake_cute_compact_tensor(
        self, dtype: Any, shape: Sequence[Any], stride_order: Sequence[int], assumed_align: int = 16, dynamic_mode: int | None = None, divisibility: int = 16
    ) -> Any:
        """A fake tensor of the DSL with compact strides, the axes of `stride_order` from the innermost outwards.

        The extent of axis `dynamic_mode` is symbolic, a multiple of `divisibility`. ImportError without the DSL.
        """
        from cutlass import cute
        from cutlass.cute.runtime import make_fake_compact_tensor

        extents = [cute.sym_int(divisibility=divisibility) if axis == dynamic_mode else extent for axis, extent in enumerate(shape)]
        # The DSL wants for each axis its place in the order.
        places = tuple(sorted(range(len(extents)), key=tuple(stride_order).__getitem__))
        return make_fake_compact_tensor(_convert_to_cutlass_data_type(dtype), tuple(extents), stride_order=places, assumed_align=assumed_align)


def _dtype_of(tensor_or_dtype: Any) -> Any:
    # Scalar types of numpy and jax have both attributes as well, and a numpy dtype has a shape.
    is_tensor = not isinstance(tensor_or_dtype, type) and hasattr(tensor_or_dtype, "shape") and hasattr(tensor_or_dtype, "dtype")
    return tensor_or_dtype.dtype if is_tensor else tensor_or_dtype


def _match(found: tuple[int, ...], expected: Any, what: str, extra: str = "") -> None:
    if not isinstance(expected, tuple | list):
        raise ValueError(f"{what}: expected must be a tuple or a list of tuples, got {type(expected).__name__}")
    fits = any(found == tuple(one) for one in expected) if isinstance(expected, list) else found == tuple(expected)
    if not fits:
        wanted = f"one of {expected}" if isinstance(expected, list) else f"{tuple(expected)}"
        raise ValueError(f"{what}: expected {wanted}, got {found}{f': {extra}' if extra else ''}")
