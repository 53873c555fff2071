"""Tensors of any framework, seen through their metadata.

Everything here works on torch tensors (fake and meta ones and parameters too), `TensorDesc`, jax and numpy arrays, and objects that export DLPack. No framework
is imported to find out whose tensor it is: an object can only be torch's when torch is loaded.

Shapes and strides are in logical elements: two per stored byte for torch's packed `float4_e2m1fn_x2`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from cudnn.datatypes import _NAMES, _is_instance, _required_name, dlpack_name, dtype_name, itemsize_bits, numpy_dtype, torch_dtype
from cudnn.device import cuda_is_available, get_compute_capability
from cudnn.fp4 import logical_geometry

__all__ = [
    "Device",
    "Metadata",
    "allocate_byte_workspace",
    "canonicalize_unit_dim_strides",
    "check_alignment",
    "check_pitch",
    "check_same_device",
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
    "major_of",
    "may_overlap",
    "metadata",
    "named_tensors",
    "pad_to_ndim",
    "require_torch_like",
    "split_device",
    "to_host_list",
]


@dataclass(frozen=True)
class Device:
    """A device without a framework: "cuda:0", or "cuda" for whichever is current."""

    type: str
    index: int | None = None

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


class Metadata(NamedTuple):
    """What the checks and the cache keys need to know of a tensor. Hashable; equal for equal layouts of every framework."""

    dtype: str | None
    """canonical name; None for a data type the project does not know"""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device_type: str
    """"cpu", "cuda", or what the framework calls it; "unknown" where it does not say, as for a traced jax array"""
    device_index: int | None
    """None for the host, and where no particular device is meant"""


_new_tuple = tuple.__new__
_DEVICES: dict[Any, tuple[str, int | None]] = {}


def is_torch_tensor(t: Any) -> bool:
    """Whether `t` is a torch tensor; never imports torch."""
    return _is_instance(t, "torch", "Tensor")


def is_jax_array(t: Any) -> bool:
    """Whether `t` is a jax array, traced ones included; never imports jax."""
    return _is_instance(t, "jax", "Array")


def is_numpy_array(t: Any) -> bool:
    """Whether `t` is a numpy array; never imports numpy."""
    return _is_instance(t, "numpy", "ndarray")


def detect_framework(t: Any) -> str:
    """ "torch", "jax", "numpy" or "unknown"."""
    if is_torch_tensor(t):
        return "torch"
    if is_jax_array(t):
        return "jax"
    return "numpy" if is_numpy_array(t) else "unknown"


def metadata(t: Any) -> Metadata:
    """Data type, logical shape and stride in elements, device type and device index of any tensor. A `Metadata` comes back as it is.

    Raises:
        ValueError: not a tensor; a layout without strides (sparse); a lazily negated view; a jax array spread over devices.
        RuntimeError: a packed 4-bit tensor without an axis of stride 1.
    """
    torch: Any = sys.modules.get("torch")
    kind: Any = getattr(torch, "Tensor", ())
    if isinstance(t, kind):
        if t.layout is not torch.strided:
            raise ValueError(f"tensor has layout {t.layout}, needs torch.strided, for example t.to_dense()")
        if t.is_neg():
            raise ValueError("tensor is a lazily negated view of its memory (is_neg() is True); needs plain values: call t.resolve_neg() first")
        dtype = t.dtype
        name = _NAMES.get(dtype) or dtype_name(dtype)
        shape, stride = tuple(t.shape), t.stride()
        if name == "float4_e2m1fn":
            shape, stride = logical_geometry(shape, stride)
        device = t.device
        return _new_tuple(Metadata, (name, shape, stride, *(_DEVICES.get(device) or split_device(device))))
    return _metadata_of_other(t)


def _metadata_of_other(t: Any) -> Metadata:
    if type(t) is Metadata:
        return t
    from cudnn.tensor_desc import TensorDesc

    if isinstance(t, TensorDesc):
        name = "float4_e2m1fn" if t.interpret_uint8_as_fp4x2 and dtype_name(t.dtype) == "uint8" else dtype_name(t.dtype)
        return Metadata(name, t.shape, t.stride, *split_device(t.device))
    if is_jax_array(t) or _is_instance(t, "jax", "ShapeDtypeStruct"):
        shape = tuple(t.shape)
        return Metadata(dtype_name(t.dtype), shape, _row_major(shape), *split_device(_jax_device(t)))
    if is_numpy_array(t):
        return Metadata(dtype_name(t.dtype), t.shape, _numpy_strides(t), "cpu", None)
    if hasattr(t, "__dlpack__"):
        seen = _read_dlpack(t)
        shape, stride = seen.shape, seen.stride
        if seen.lanes == 2 and seen.name == "float4_e2m1fn":
            shape, stride = logical_geometry(shape, stride)
        return Metadata(seen.name, shape, stride, *split_device(seen.device))
    raise ValueError(f"{type(t).__name__} is no tensor: needs a torch tensor, a TensorDesc, a jax or numpy array, or an object with __dlpack__")


def split_device(device: Any) -> tuple[str, int | None]:
    """Type and index of a device of any spelling. The host has no index: torch writes none where DLPack writes 0."""
    if device is None:
        return "unknown", None
    if isinstance(device, str):
        name, _, text = device.partition(":")
        return name, int(text) if text and name != "cpu" else None
    kind = getattr(device, "type", None)
    if not isinstance(kind, str):
        return "unknown", None
    found = (kind, None if kind == "cpu" else device.index)
    if _is_instance(device, "torch", "device"):
        _DEVICES[device] = found
    return found


def get_shape(t: Any) -> tuple[int, ...]:
    """Extents as the framework states them: a packed 4-bit tensor gives its stored shape."""
    return tuple(t.shape)


def get_strides(t: Any) -> tuple[int, ...]:
    """Strides in the framework's elements: row-major for jax, bytes over itemsize for numpy. ValueError for an object that has none."""
    if is_torch_tensor(t):
        return tuple(t.stride())
    if is_jax_array(t):
        return _row_major(tuple(t.shape))
    if is_numpy_array(t):
        return _numpy_strides(t)
    return metadata(t).stride


def get_device(t: Any) -> Any:
    """torch.device of a torch tensor, `Device` of a jax or numpy array, else the object's own `device`, or Device("unknown")."""
    if is_torch_tensor(t):
        return t.device
    if is_jax_array(t):
        return _jax_device(t) or Device("unknown")
    if is_numpy_array(t):
        return Device("cpu")
    return getattr(t, "device", None) or Device("unknown")


def get_data_ptr(t: Any) -> int:
    """Address of the first element. ValueError for a tensor without memory: fake, meta, traced or a description."""
    address = _address_or_none(t)
    if address is None:
        raise ValueError(f"{type(t).__name__} has no data pointer; needs a tensor with memory")
    return address


def _address_or_none(t: Any) -> int | None:
    if is_torch_tensor(t):
        if t.device.type == "meta" or _is_instance(t, "torch._subclasses.fake_tensor", "FakeTensor"):
            return None
        try:
            return t.data_ptr()
        except RuntimeError:  # a subclass that only wraps other tensors
            return None
    if is_jax_array(t):
        pointer = getattr(t, "unsafe_buffer_pointer", None)
        try:
            return None if pointer is None else pointer()
        except Exception as error:  # jax raises its own classes: traced, deleted, or spread over devices
            raise ValueError(f"jax array has no single data pointer: {error}") from error
    if is_numpy_array(t):
        return t.__array_interface__["data"][0]
    pointer = getattr(t, "data_ptr", None)
    if callable(pointer):
        return pointer()
    return _read_dlpack(t).address if hasattr(t, "__dlpack__") else None


def get_version(t: Any) -> int:
    """How often torch has written the tensor in place; 0 for other frameworks and for inference tensors, which are not counted."""
    if not is_torch_tensor(t) or t.is_inference():
        return 0
    return t._version


def to_host_list(t: Any) -> list:
    """All values in row-major order as Python scalars. Waits for the device."""
    if is_torch_tensor(t):
        return t.detach().reshape(-1).tolist()
    if is_jax_array(t) or is_numpy_array(t):
        import numpy

        return numpy.asarray(t).reshape(-1).tolist()
    if hasattr(t, "__dlpack__"):
        if "torch" in sys.modules:
            import torch

            return torch.from_dlpack(t).reshape(-1).tolist()
        import numpy

        return numpy.from_dlpack(t).reshape(-1).tolist()
    raise ValueError(f"Unsupported tensor framework of {type(t).__name__}; needs a torch tensor, a jax or numpy array, or an object with __dlpack__")


def allocate_byte_workspace(framework: str, nbytes: int, device: Any) -> Any:
    """An uninitialised uint8 buffer of at least one byte from the allocator of "torch" or "jax"; ValueError for another framework."""
    if framework == "torch":
        import torch

        return torch.empty(max(nbytes, 1), dtype=torch.uint8, device=str(device) if isinstance(device, Device) else device)
    if framework == "jax":
        import jax

        kind, index = split_device(device)
        place = jax.local_devices(backend=kind)[index or 0] if kind != "unknown" else device
        return jax.numpy.empty(max(nbytes, 1), dtype="uint8", device=place)
    raise ValueError(f"Unsupported tensor framework {framework!r} for a workspace; needs 'torch' or 'jax'")


def pad_to_ndim(t: Any, ndim: int) -> Any:
    """The tensor with unit axes appended up to rank `ndim`; unchanged when it has that rank already. ValueError when its rank is higher."""
    rank = len(t.shape)
    if rank > ndim:
        raise ValueError(f"tensor of rank {rank} cannot be padded to rank {ndim}; needs rank {ndim} or less")
    if is_jax_array(t) or is_numpy_array(t):
        return t.reshape(tuple(t.shape) + (1,) * (ndim - rank)) if rank < ndim else t
    for axis in range(rank, ndim):
        t = t.unsqueeze(axis)
    return t


def default_stream(framework: str) -> Any:
    """CUstream of torch's current stream for "torch", the legacy default stream for others."""
    from cudnn.streams import as_custream, launch_handle

    return as_custream(launch_handle(None, framework, None))


@lru_cache(maxsize=4096)
def canonicalize_unit_dim_strides(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """The strides with that of every unit axis, which no address depends on, replaced by the number of elements."""
    numel = 1
    for extent in shape:
        numel *= extent
    return tuple(numel if extent == 1 else step for extent, step in zip(shape, stride, strict=True))


def framework_dtype(dtype: Any, framework: str) -> Any:
    """The dtype object of "torch" (packed `float4_e2m1fn_x2` for 4-bit floats) or "jax" (a numpy dtype) for any spelling.

    Raises:
        ValueError: unknown data type, another framework, or 4-bit floats for jax, which has no buffers of them.
    """
    if framework == "torch":
        return torch_dtype(dtype)
    if framework != "jax":
        raise ValueError(f"Unsupported tensor framework {framework!r}; needs 'torch' or 'jax'")
    if _required_name(dtype) == "float4_e2m1fn":
        raise ValueError("jax has no buffers of float4_e2m1fn; pass the packed bytes as uint8")
    return numpy_dtype(dtype)


def major_of(shape: Sequence[int], stride: Sequence[int], modes: tuple[str, str] = ("m", "k"), prefer: str | None = None) -> str | None:
    """Which of the first two axes of a (rows, columns, ...) tensor is contiguous: modes[0] for rows, modes[1] for columns, None for neither.

    An axis of extent 0 or 1 never decides. Where both answers hold, as for a single row, `prefer` does (modes[1] if not given). The other axis may have any
    pitch that keeps its lines apart (a padded pitch); a stride of 0 or less, or lines that overlap, give None. Further axes are not looked at, so a batch may
    be broadcast.
    """
    possible = []
    for axis in (0, 1):
        extent, pitch = shape[axis], stride[1 - axis]
        if (extent <= 1 or stride[axis] == 1) and (shape[1 - axis] <= 1 or pitch >= max(extent, 1)):
            possible.append(modes[axis])
    if len(possible) == 2:
        return modes[1] if prefer is None else prefer
    return possible[0] if possible else None


def may_overlap(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether two indices may share memory, so that the tensor is no safe output. False only when the axes nest; interleaved ones count as overlapping."""
    if any(extent == 0 for extent in shape):
        return False
    reach = 1
    for step, extent in sorted((abs(step), extent) for extent, step in zip(shape, stride, strict=True) if extent > 1):
        if step < reach:
            return True
        reach = step * (extent - 1) + reach
    return False


def named_tensors(tensors: Mapping[str, Any] | Iterable[Any]) -> list[tuple[str, Any]]:
    """(name, tensor) pairs without the None entries. Takes a mapping, pairs, or bare tensors, which are called by their position."""
    if isinstance(tensors, Mapping):
        tensors = tensors.items()
    pairs = (entry if isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str) else (f"tensor {i}", entry) for i, entry in enumerate(tensors))
    return [(name, t) for name, t in pairs if t is not None]


def check_alignment(name: str, t: Any, bytes: int = 16) -> None:
    """ValueError unless the address of `t` is a multiple of `bytes`. A tensor without memory (None, fake, meta, a description) has nothing to check."""
    torch = sys.modules.get("torch")
    if torch is not None and type(t) in (torch.Tensor, torch.nn.Parameter):
        address = t.data_ptr()  # 0 for a meta tensor
    else:
        address = None if t is None else _address_or_none(t)
    if address is not None and address % bytes:
        raise ValueError(
            f"{name}: address {address:#x} is {address % bytes} bytes past a multiple of {bytes}, needs {bytes}-byte alignment; "
            f"start the view at another element, or pass {name}.clone()"
        )


def check_pitch(name: str, dtype: str, shape: Sequence[int], stride: Sequence[int], bytes: int = 16) -> None:
    """ValueError unless every stride that is used to step between lines is a multiple of `bytes`: what TMA, the copy engine of the GPU, needs.

    Unit axes, the contiguous axis and broadcast axes (stride 0) are not looked at.
    """
    bits = itemsize_bits(dtype)
    for axis, (extent, step) in enumerate(zip(shape, stride, strict=True)):
        if extent > 1 and step != 1 and step * bits % (8 * bytes):
            unit = 8 * bytes // bits
            raise ValueError(
                f"{name}: stride {step} of axis {axis} is {step * bits / 8:g} bytes, needs a multiple of {bytes} bytes ({unit} elements of {dtype}); "
                f"pad the contiguous extent to a multiple of {unit}"
            )


def check_same_device(tensors: Mapping[str, Any] | Iterable[Any]) -> None:
    """ValueError naming two tensors and their devices unless all given ones live on one device. None entries are skipped."""
    first: tuple[str, str, int | None] | None = None
    for name, t in named_tensors(tensors):
        kind, index = metadata(t)[3:]
        if first is None or (first[2] is None and kind == first[1]):
            first = (name, kind, index)  # a device without index stands for any of its type
        elif kind != first[1] or (index is not None and index != first[2]):
            one, other = Device(first[1], first[2]), Device(kind, index)
            raise ValueError(f"{name} is on {other} but {first[0]} is on {one}; all tensors must be on one device: move {name} with .to({str(one)!r})")


def require_torch_like(op: str, tensors: Mapping[str, Any] | Iterable[Any]) -> None:
    """ValueError unless every tensor given to the wrapper `op` is torch's: a wrapper allocates its outputs with the framework of its inputs.

    Entries that are None are skipped. A tuple or list of tensors, such as the pair of two weights, is looked through by the caller.
    """
    for name, t in named_tensors(tensors):
        if is_torch_tensor(t):
            continue
        if is_jax_array(t):
            raise ValueError(f"{op}: {name} is a jax.Array; JAX comes in a later version, this one needs torch tensors: torch.from_dlpack({name})")
        framework = detect_framework(t)
        what = "numpy" if framework == "numpy" else f"of {type(t).__module__}.{type(t).__qualname__}"
        raise ValueError(
            f"Unsupported tensor framework {what}: {op} needs torch tensors, found it in {name}; convert it with torch.as_tensor or torch.from_dlpack"
        )


@lru_cache(maxsize=4096)
def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    steps = []
    step = 1
    for extent in reversed(shape):
        steps.append(step)
        step *= max(extent, 1)
    return tuple(reversed(steps))


def _numpy_strides(t: Any) -> tuple[int, ...]:
    size = t.dtype.itemsize
    if any(step % size for step in t.strides):
        raise ValueError(f"numpy array has strides of {t.strides} bytes, needs multiples of its itemsize {size}; copy it with numpy.ascontiguousarray")
    return tuple(step // size for step in t.strides)


def _jax_device(t: Any) -> Device | None:
    """Where a jax array lives; None while it is traced, and for a ShapeDtypeStruct without sharding."""
    place = getattr(t, "device", None)
    if place is None:
        return None
    platform = getattr(place, "platform", None)
    if platform is None:
        raise ValueError(f"jax array is spread over devices ({place}); needs an array on one device")
    if platform == "cpu":
        return Device("cpu")
    index = getattr(place, "local_hardware_id", None)
    return Device("cuda" if platform in ("gpu", "cuda") else platform, place.id if index is None else index)


class _DlpackView(NamedTuple):
    name: str | None
    lanes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: Device
    address: int


# DLPack device types: pinned host memory is host memory, managed memory is the GPU's.
_DLPACK_DEVICES = {1: "cpu", 2: "cuda", 3: "cpu", 8: "metal", 10: "rocm", 13: "cuda"}


def _read_dlpack(t: Any) -> _DlpackView:
    """Read the DLPack record of any exporting object without consuming it. The record is the only place where units of strides are certain."""
    import ctypes

    kind, index = t.__dlpack_device__()
    # Stream -1 asks the exporter not to synchronise: only the record is read, never the data.
    capsule = t.__dlpack__() if kind in (1, 3) else t.__dlpack__(stream=-1)
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    record = _dl_tensor_type().from_address(get_pointer(capsule, b"dltensor"))
    shape = tuple(record.shape[: record.ndim])
    stride = tuple(record.strides[: record.ndim]) if record.strides else _row_major(shape)
    device = Device(_DLPACK_DEVICES.get(int(kind), f"dlpack-{int(kind)}"), None if kind in (1, 3) else int(index))
    return _DlpackView(dlpack_name(record.code, record.bits, record.lanes), record.lanes, shape, stride, device, (record.data or 0) + record.byte_offset)


@lru_cache(maxsize=1)
def _dl_tensor_type() -> Any:
    import ctypes

    class DLTensor(ctypes.Structure):
        _fields_ = [
            ("data", ctypes.c_void_p),
            ("device_type", ctypes.c_int32),
            ("device_id", ctypes.c_int32),
            ("ndim", ctypes.c_int32),
            ("code", ctypes.c_uint8),
            ("bits", ctypes.c_uint8),
            ("lanes", ctypes.c_uint16),
            ("shape", ctypes.POINTER(ctypes.c_int64)),
            ("strides", ctypes.POINTER(ctypes.c_int64)),
            ("byte_offset", ctypes.c_uint64),
        ]

    return DLTensor
