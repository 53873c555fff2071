"""CUDA devices: what they are, which one is meant, and whether a kernel can run there.

torch answers where it is loaded and has CUDA, the driver otherwise. Nothing here needs a GPU until it is asked about one.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, lru_cache
from typing import Any

import cudnn._env as _env
from cudnn.errors import ArchitectureError
from cudnn.residency import resident_clusters

__all__ = [
    "BACKENDS",
    "DeviceInfo",
    "cuda_is_available",
    "current_device",
    "device_context",
    "device_info",
    "ensure_current_context",
    "get_compute_capability",
    "require_arch",
    "select_backend",
    "sm_count",
]

BACKENDS = ("auto", "sm90", "reference")
"""Values of the `backend` argument of every class and wrapper."""

# CUdevice_attribute of the driver.
_MULTIPROCESSOR_COUNT, _L2_CACHE_SIZE, _CC_MAJOR, _CC_MINOR, _SHARED_OPTIN, _SHARED_OVERSIZED = 16, 38, 75, 76, 97, 150


def _cuda_torch() -> Any:
    """torch where it is loaded and sees a GPU, else None. Asked of a CPU build, torch would know nothing of the GPU that another framework uses."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    # Asking for initialised CUDA first is 0.1 us, for available CUDA 1 to 2 us.
    return torch if cuda is not None and (cuda.is_initialized() or cuda.is_available()) else None


def cuda_is_available() -> bool:
    """Whether there is a CUDA device."""
    return _cuda_torch() is not None or _device_count() > 0


def _device_count() -> int:
    driver = _env.cuda_driver()
    count = ctypes.c_int(0)
    return count.value if driver is not None and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


def current_device() -> int:
    """Ordinal of the calling thread's current device; 0 where nothing has chosen one."""
    torch = _cuda_torch()
    if torch is not None:
        return torch.cuda.current_device()
    found = _context_device(_env.cuda_driver())
    return 0 if found is None else found


def device_ordinal(device: Any) -> int | None:
    """CUDA ordinal of a device in any spelling: an int, "cuda:1", torch.device, `Device`. None for None and for the host; "cuda" is the current device.

    Raises:
        ValueError: a device that is neither CUDA nor the host.
    """
    if device is None or isinstance(device, int):
        return device
    kind: Any
    if isinstance(device, str):
        name, _, text = device.partition(":")
        kind, index = name, int(text) if text else None
    else:
        kind, index = getattr(device, "type", None), getattr(device, "index", None)
    if kind == "cpu":
        return None
    if kind != "cuda":
        raise ValueError(f"device {device!r} is no CUDA device; needs an ordinal, 'cuda:N', or a device of torch or cudnn.tensors.Device of type cuda")
    return current_device() if index is None else index


class DeviceInfo:
    """Properties of the CUDA device with this ordinal. Each is asked for on first use; without that device it raises ArchitectureError."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal

    def __repr__(self) -> str:
        return f"DeviceInfo(cuda:{self.ordinal})"

    @cached_property
    def compute_capability(self) -> tuple[int, int]:
        """(major, minor), (9, 0) for Hopper."""
        torch = _cuda_torch()
        if torch is not None:
            major, minor = torch.cuda.get_device_capability(self.ordinal)
            return int(major), int(minor)
        return self._attribute(_CC_MAJOR), self._attribute(_CC_MINOR)

    @cached_property
    def sm_version(self) -> int:
        """10 * major + minor."""
        major, minor = self.compute_capability
        return 10 * major + minor

    @cached_property
    def sm_count(self) -> int:
        """Number of streaming multiprocessors."""
        torch = _cuda_torch()
        return int(torch.cuda.get_device_properties(self.ordinal).multi_processor_count) if torch is not None else self._attribute(_MULTIPROCESSOR_COUNT)

    @cached_property
    def shared_memory_per_block_optin(self) -> int:
        """Bytes of shared memory that one block may ask for."""
        return self._attribute(_SHARED_OPTIN)

    @cached_property
    def oversized_shared_memory_per_block(self) -> int:
        """Bytes of shared memory of a block in oversized mode; 0 where the driver or the device has no such mode."""
        return self._attribute(_SHARED_OVERSIZED, default=0)

    @cached_property
    def l2_cache_bytes(self) -> int:
        """Bytes of L2 cache."""
        return self._attribute(_L2_CACHE_SIZE)

    def resident_clusters(self, cluster_size: int) -> int | None:
        """Clusters of ``cluster_size`` CTAs, each on a multiprocessor of its own, that the device holds at once; None where the driver does not say. Asked for once for each size."""
        known = self._resident_clusters
        if cluster_size not in known:
            driver = self._driver()
            with _pushed_context(driver, self.ordinal):
                known[cluster_size] = resident_clusters(driver, cluster_size, self.shared_memory_per_block_optin)
        return known[cluster_size]

    @cached_property
    def _resident_clusters(self) -> dict[int, int | None]:
        return {}

    @cached_property
    def device_name(self) -> str:
        """Name of the product."""
        name = ctypes.create_string_buffer(256)
        driver = self._driver()
        if driver.cuDeviceGetName(name, len(name), self._handle()) != 0:
            raise self._missing()
        return name.value.decode()

    def _driver(self) -> Any:
        driver = _env.cuda_driver()
        if driver is None:
            raise self._missing()
        return driver

    def _handle(self) -> Any:
        handle = ctypes.c_int(0)
        if self._driver().cuDeviceGet(ctypes.byref(handle), self.ordinal) != 0:
            raise self._missing()
        return handle

    def _attribute(self, attribute: int, default: int | None = None) -> int:
        value = ctypes.c_int(0)
        handle = self._handle()
        if self._driver().cuDeviceGetAttribute(ctypes.byref(value), attribute, handle) != 0:
            if default is None:
                raise self._missing()
            return default
        return value.value

    def _missing(self) -> ArchitectureError:
        return ArchitectureError(f"CUDA device {self.ordinal} is not available; this process sees {_device_count()} CUDA devices")


@lru_cache(maxsize=64)
def device_info(ordinal: int) -> DeviceInfo:
    """The one DeviceInfo of a device."""
    return DeviceInfo(ordinal)


def get_compute_capability(device_index: int | None = None) -> tuple[int, int]:
    """(major, minor) of a device, by default the current one. ArchitectureError (a RuntimeError) without that device."""
    return device_info(current_device() if device_index is None else device_index).compute_capability


def sm_count(device_index: int | None = None) -> int:
    """Number of streaming multiprocessors of a device, by default the current one. ArchitectureError (a RuntimeError) without that device."""
    return device_info(current_device() if device_index is None else device_index).sm_count


def require_arch(op_name: str, device_index: int | None = None, supported: tuple[tuple[int, int], ...] = ((9, 0),)) -> None:
    """The architecture gate, the last check of an operation: ArchitectureError (a RuntimeError) unless the device has a supported compute capability."""
    needed = " or ".join(f"{major}.{minor}" for major, minor in supported)
    if not cuda_is_available():
        raise ArchitectureError(f'{op_name} needs a CUDA device of compute capability {needed}, found no CUDA device; or pass backend="reference"')
    index = current_device() if device_index is None else device_index
    found = device_info(index).compute_capability
    if found not in supported:
        raise ArchitectureError(
            f'{op_name} needs compute capability {needed}, found {found[0]}.{found[1]} on cuda:{index}; use such a device, or pass backend="reference"'
        )


def select_backend(backend: str, tensors: Mapping[str, Any] | Iterable[Any]) -> str:
    """ "sm90" or "reference" for the `backend` argument and the tensors of a call. The architecture is not looked at: `require_arch` is the last check.

    "auto" takes the kernel for CUDA tensors and the reference for CPU tensors. `tensors` is a mapping or (name, tensor) pairs; None entries are skipped.

    Raises:
        ValueError: another backend; no tensor; tensors on two devices; under "auto" a device that is neither CUDA nor the host.
        RuntimeError: "sm90" with tensors that are not on a CUDA device.
    """
    from cudnn.tensors import check_same_device, metadata, named_tensors

    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}, needs one of {', '.join(map(repr, BACKENDS))}")
    pairs = named_tensors(tensors)
    if not pairs:
        raise ValueError("select_backend needs at least one tensor to tell the device from, found none")
    check_same_device(pairs)
    if backend == "reference":
        return backend
    name, first = pairs[0]
    kind = metadata(first).device_type
    if kind == "cuda":
        return "sm90"
    if backend == "sm90":
        raise RuntimeError(
            f'backend="sm90" needs CUDA tensors, found {name} on {kind}; move the tensors to a Hopper GPU, or pass backend="auto" or "reference"'
        )
    if kind == "cpu":
        return "reference"
    raise ValueError(f'backend="auto" serves tensors on cuda and cpu, found {name} on {kind}; move the tensors, or pass backend="reference"')


_NOTHING: AbstractContextManager = nullcontext()


def device_context(device: Any) -> AbstractContextManager:
    """Make a CUDA device current inside the block; nothing to do for None, the host and the device that is current already."""
    index = device_ordinal(device)
    torch = None if index is None else _cuda_torch()
    if torch is not None:
        return _NOTHING if torch.cuda.current_device() == index else torch.cuda.device(index)
    driver = _env.cuda_driver()
    if index is None or driver is None or _context_device(driver) == index:
        return _NOTHING
    return _pushed_context(driver, index)


@contextmanager
def _pushed_context(driver: Any, ordinal: int) -> Any:
    context = _primary_context(driver, ordinal)
    if context is None or driver.cuCtxPushCurrent_v2(ctypes.c_void_p(context)) != 0:
        raise ArchitectureError(f"CUDA device {ordinal} cannot be made current; this process sees {_device_count()} CUDA devices")
    try:
        yield
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


_primary_contexts: dict[int, int] = {}
_primary_lock = threading.Lock()


def _primary_context(driver: Any, ordinal: int) -> int | None:
    """The primary context of a device, retained once for the life of the process; None without that device."""
    with _primary_lock:
        if ordinal not in _primary_contexts:
            handle, context = ctypes.c_int(0), ctypes.c_void_p()
            if (
                driver.cuDeviceGet(ctypes.byref(handle), ordinal) != 0
                or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle) != 0
                or not context.value
            ):
                return None
            _primary_contexts[ordinal] = context.value
        return _primary_contexts[ordinal]


def _context_device(driver: Any) -> int | None:
    """Ordinal of the device of the calling thread's context; None without a context."""
    device = ctypes.c_int(0)
    return device.value if driver is not None and driver.cuCtxGetDevice(ctypes.byref(device)) == 0 else None


def ensure_current_context(stream: Any = None, device: Any = None) -> None:
    """Bind a CUDA context to the calling thread, best effort and without errors, by the first rule that applies.

    1. `stream` is a real stream (no default one): its context, even over another current one and over `device`.
    2. `device` is given: its primary context, unless the current context is already on it.
    3. A context is current: it stays.
    4. The primary context of the current device.
    """
    from cudnn.streams import DEFAULT_STREAM_HANDLES, PER_THREAD_HANDLE, raw_handle

    driver = _env.cuda_driver()
    if driver is None:
        return
    handle = 0 if stream is None else raw_handle(stream)
    if handle not in DEFAULT_STREAM_HANDLES and handle != PER_THREAD_HANDLE:
        context = ctypes.c_void_p()
        if driver.cuStreamGetCtx(ctypes.c_void_p(handle), ctypes.byref(context)) == 0 and context.value:
            driver.cuCtxSetCurrent(context)
            return
    bound = _context_device(driver)
    ordinal = device_ordinal(device)
    if bound is not None and ordinal in (None, bound):
        return
    primary = _primary_context(driver, current_device() if ordinal is None else ordinal)
    if primary is not None:
        driver.cuCtxSetCurrent(ctypes.c_void_p(primary))
