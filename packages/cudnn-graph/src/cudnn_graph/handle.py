# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""Handles of libcudnn: one belongs to a device and a stream.

A graph without a handle uses a default one for the calling thread and the tensors' device. When its thread ends the handle goes to a pool, from which
the next thread that needs one for the device takes it: destroying it there and then could break a stream capture that another thread has under way.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
from typing import TYPE_CHECKING, Any

from cudnn_graph import library

if TYPE_CHECKING:
    from cudnn.device import DeviceInfo

__all__ = ["Handle", "create_handle", "default_handle", "destroy_default_handles", "destroy_handle", "get_stream", "set_stream", "to_backend_handle"]


class Handle:
    """A handle of libcudnn. Equality and hash are identity; it does not turn into an int by itself.

    Args:
        backend_handle: address of the library's handle, or None.
        ordinal: device the handle was made on, or None where it is not known.
        stream: stream that is set on it, or None.

    ``create_handle`` makes one on the current device.
    """

    __slots__ = ("_backend_handle", "_ordinal", "_stream", "_context")

    def __init__(self, backend_handle: int | None, ordinal: int | None = None, stream: int | None = None) -> None:
        self._backend_handle = backend_handle
        self._ordinal = ordinal
        self._stream = stream
        self._context: int | None = None

    @property
    def backend_handle(self) -> int | None:
        """Address of the library's handle; None after ``destroy_handle``."""
        return self._backend_handle

    @property
    def ordinal(self) -> int | None:
        """Ordinal of the device, or None where it is not known."""
        return self._ordinal

    @property
    def device(self) -> DeviceInfo:
        """Properties of the device. RuntimeError when the handle does not say which device it belongs to."""
        if self._ordinal is None:
            raise RuntimeError(f"{self!r} was made without the ordinal of its device; pass Handle(..., ordinal=N)")
        from cudnn.device import device_info

        return device_info(self._ordinal)

    @property
    def context(self) -> int:
        """Address of the CUDA context in which calls with this handle run; 0 = whatever the calling thread has."""
        if self._context is None:
            self._context = 0 if self._ordinal is None else library.extension().primary_context(self._ordinal)
        return self._context

    def __repr__(self) -> str:
        address = "destroyed" if self._backend_handle is None else hex(self._backend_handle)
        return f"Handle({address}, cuda:{'?' if self._ordinal is None else self._ordinal}, stream={self._stream})"


# Library handle -> CUDA context, of handles made here and not destroyed yet; they are destroyed at exit.
_alive: dict[int, int] = {}


def create_handle() -> Handle:
    """A new handle on the calling thread's current device, on the legacy default stream.

    Raises:
        RuntimeError: libcudnn is not available, or there is no usable CUDA device; the text carries cuDNN's own reason.
    """
    return _create(-1)


def _create(ordinal: int) -> Handle:
    ext = library.loaded()
    try:
        address, found, context = ext.create_handle(ordinal)
    except ext.BackendError as error:
        place = "the current device" if ordinal < 0 else f"cuda:{ordinal}"
        raise RuntimeError(f"no cuDNN handle can be made on {place}: {error}") from error
    handle = Handle(address, found if found >= 0 else None, 0)
    handle._context = context
    _alive[address] = context
    return handle


def destroy_handle(handle: Handle) -> None:
    """Give a handle back to the library. A second call does nothing; plans built with the handle can still be executed with another one.

    TypeError for anything but a Handle.
    """
    _require_handle(handle, "destroy_handle")
    address, handle._backend_handle, handle._stream = handle._backend_handle, None, None
    if address is not None:
        _alive.pop(address, None)
        library.loaded().destroy_handle(address, handle.context)


def set_stream(handle: Handle, stream: Any) -> None:
    """Make work submitted with ``handle`` run on ``stream``: a raw handle (int), a torch stream or a CUstream.

    Nothing is called when the stream is set already. TypeError for anything but a Handle and a stream.
    """
    _require_handle(handle, "set_stream")
    if type(stream) is not int:
        from cudnn.streams import raw_handle

        stream = raw_handle(stream)
    if stream == handle._stream:
        return
    if handle._backend_handle is not None:
        library.loaded().set_stream(handle._backend_handle, stream, handle.context)
    handle._stream = stream


def get_stream(handle: Handle) -> int | None:
    """The raw stream set on the handle; None after ``destroy_handle``. TypeError for anything but a Handle."""
    _require_handle(handle, "get_stream")
    return handle._stream


def to_backend_handle(handle: Handle | None) -> int | None:
    """Address of the library's handle; None for None. TypeError for anything else."""
    if handle is None:
        return None
    if not isinstance(handle, Handle):
        raise TypeError(f"raw backend handles are no longer accepted: pass a cudnn.Handle (cudnn.create_handle()), got {type(handle).__name__}")
    return handle.backend_handle


def _require_handle(handle: Any, what: str) -> None:
    if not isinstance(handle, Handle):
        raise TypeError(f"{what} needs a cudnn.Handle, got {type(handle).__name__}")


_pool_lock = threading.Lock()
_pool: dict[int, list[Handle]] = {}


class _ThreadHandles(dict):
    """One thread's default handles by device; at the end of the thread they return to the pool."""

    # Defaults, because the module's globals may be gone when the main thread's handles go.
    def __del__(self, lock: Any = _pool_lock, pool: dict[int, list[Handle]] = _pool) -> None:
        with lock:
            for ordinal, handle in self.items():
                if handle.backend_handle is not None:
                    pool.setdefault(ordinal, []).append(handle)


_thread = threading.local()


def default_handle(ordinal: int | None = None) -> Handle:
    """The calling thread's handle for a device, made on first use; None = the thread's current device. Errors as ``create_handle``."""
    handles = getattr(_thread, "handles", None)
    if handles is None:
        handles = _thread.handles = _ThreadHandles()
    if ordinal is None:
        ordinal = library.extension().current_context()[1]
    handle = handles.get(ordinal)
    if handle is None or handle.backend_handle is None:
        with _pool_lock:
            waiting = _pool.get(ordinal)
            handle = waiting.pop() if waiting else None
        if handle is None or handle.backend_handle is None:
            handle = _create(ordinal)
        handles[ordinal] = handle
    return handle


def current_handle(ordinal: int | None = None) -> Handle:
    """The calling thread's handle for a device, set to torch's current stream there, or to the default stream where torch has not been used on CUDA."""
    handle = default_handle(ordinal)
    stream = _torch_stream(handle._ordinal)
    if stream != handle._stream:
        set_stream(handle, stream)
    return handle


def _torch_stream(ordinal: int | None) -> int:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    # The public call builds a stream object, which costs ten times this one. Compiled graphs of torch use it as well.
    query = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if query is not None and ordinal is not None:
        return query(ordinal)
    return torch.cuda.current_stream(ordinal).cuda_stream


def destroy_default_handles() -> None:
    """Destroy the calling thread's default handles; the next use makes new ones."""
    handles = getattr(_thread, "handles", None)
    while handles:
        destroy_handle(handles.popitem()[1])


@atexit.register
def _at_exit() -> None:
    if not library.is_loaded():
        return
    ext = library.loaded()
    while _alive:
        # A device that failed earlier answers every call with that error; there is nobody left to tell.
        with contextlib.suppress(RuntimeError):
            ext.destroy_handle(*_alive.popitem())
    ext.begin_shutdown()
