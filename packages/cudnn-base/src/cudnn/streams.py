"""CUDA streams of any spelling: a raw handle, a CUstream, a torch stream, or an object with `__cuda_stream__`.

Handles 0 and 1 are the legacy default stream, which torch calls its default stream. Handle 2, the per-thread default stream, is refused: torch has no notion of
it, so that nothing would order the kernel after the tensors' producers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from cudnn.device import device_context, device_ordinal

__all__ = [
    "DEFAULT_STREAM_HANDLES",
    "as_custream",
    "as_torch_stream",
    "contiguous_on_stream",
    "copy_into_on_stream",
    "device_context",
    "launch_handle",
    "launch_stream",
    "raw_handle",
    "record_streams",
    "stream_context",
]

DEFAULT_STREAM_HANDLES = frozenset({0, 1})
"""The legacy default stream: never wrapped as an external stream of torch."""

PER_THREAD_HANDLE = 2

_NOTHING: AbstractContextManager = nullcontext()


def raw_handle(stream: Any) -> int:
    """The handle of a stream as an int, not judged. TypeError for anything that is no stream, None included."""
    if type(stream) is int:
        return stream
    native = getattr(stream, "cuda_stream", None)  # torch.cuda.Stream
    if native is not None:
        return int(native)
    if _is_torch_stream(stream):
        return _cuda_stream(stream).cuda_stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int(protocol()[1])
    if stream is None or isinstance(stream, bool | float | str) or not hasattr(stream, "__int__"):
        raise TypeError(f"stream is a {type(stream).__name__}, needs a CUstream, its handle as an int, or a torch.cuda.Stream")
    return int(stream)


def _usable_handle(stream: Any) -> int:
    handle = raw_handle(stream)
    if handle == PER_THREAD_HANDLE:
        raise ValueError("stream handle 2 (cudaStreamPerThread) is not supported; needs the handle of a created stream, or 0 for the default stream")
    if handle < 0:
        raise ValueError(f"stream handle {handle} is negative; needs the handle of a CUDA stream")
    return handle


def _is_torch_stream(stream: Any) -> bool:
    kind = getattr(sys.modules.get("torch"), "Stream", None)
    return kind is not None and isinstance(stream, kind)


def _cuda_stream(stream: Any) -> Any:
    """torch.cuda.Stream of a torch stream, which may be the device-neutral torch.Stream."""
    import torch

    if isinstance(stream, torch.cuda.Stream):
        return stream
    if stream.device.type != "cuda":
        raise ValueError(f"stream is on {stream.device}, needs a CUDA stream")
    return torch.cuda.Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)


def _check_device(stream: Any, ordinal: int | None) -> None:
    if ordinal is not None and stream.device_index != ordinal:
        raise ValueError(f"stream is on cuda:{stream.device_index} but must be on cuda:{ordinal}, the device of the tensors; pass a stream of that device")


def as_torch_stream(stream: Any, device: Any = None) -> Any:
    """The torch.cuda.Stream for a stream on `device` (default: the current device): torch's default, current or an external stream for a handle.

    Raises:
        TypeError: no stream, None included.
        ValueError: the per-thread default stream; a torch stream of another device.
    """
    if _is_torch_stream(stream):
        stream = _cuda_stream(stream)
        _check_device(stream, device_ordinal(device))
        return stream
    handle = _usable_handle(stream)
    import torch

    if handle in DEFAULT_STREAM_HANDLES:
        return torch.cuda.default_stream(device_ordinal(device))
    current = torch.cuda.current_stream(device_ordinal(device))
    return current if current.cuda_stream == handle else torch.cuda.ExternalStream(handle, device=device_ordinal(device))


def stream_context(stream: Any, device: Any = None, *, verify_current: bool = False) -> AbstractContextManager:
    """Make a stream torch's current one inside the block; None, or the stream that is current already, is left alone.

    Where the raw handles agree no torch stream is made, unless `verify_current` asks for the comparison of stream objects.
    """
    if stream is None:
        return _NOTHING
    if not verify_current and launch_handle(stream, "torch", device) == launch_handle(None, "torch", device):
        return _NOTHING
    target = as_torch_stream(stream, device)
    import torch

    return _NOTHING if target == torch.cuda.current_stream(device_ordinal(device)) else torch.cuda.stream(target)


def launch_stream(stream: Any, device: Any = None) -> Any:
    """The torch.cuda.Stream to launch on; None is torch's current stream on `device`. Errors as `as_torch_stream`."""
    if stream is None:
        import torch

        return torch.cuda.current_stream(device_ordinal(device))
    return as_torch_stream(stream, device)


def launch_handle(stream: Any, framework: str = "torch", device: Any = None) -> int:
    """The raw handle to launch a kernel on, 0 for the legacy default stream.

    None is the current stream of the `framework` that owns the tensors, on their `device`: torch's current stream, the legacy default stream for the others.

    Raises:
        TypeError: no stream.
        ValueError: the per-thread default stream; a torch stream of another device.
    """
    if stream is None:
        return _current_torch_handle(device) if framework == "torch" else 0
    if _is_torch_stream(stream):
        stream = _cuda_stream(stream)
        _check_device(stream, device_ordinal(device))
    handle = _usable_handle(stream)
    return 0 if handle in DEFAULT_STREAM_HANDLES else handle


def _current_torch_handle(device: Any) -> int:
    import torch

    initialized = torch.cuda.is_initialized()
    if not initialized and not torch.cuda.is_available():
        return 0
    ordinal = device_ordinal(device)
    # The public call builds a stream object: 1.2 us, ten times this one. Compiled graphs of torch use it as well.
    query = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if initialized and query is not None and ordinal is not None:
        return query(ordinal)
    return torch.cuda.current_stream(ordinal).cuda_stream


def as_custream(handle: int) -> Any:
    """The cuda.bindings CUstream of a raw handle. ImportError with the pip line without cuda-bindings."""
    try:
        from cuda.bindings.driver import CUstream
    except ImportError as error:
        raise ImportError("a CUstream needs cuda-bindings: pip install 'cudnn-base[cutedsl]'") from error
    return CUstream(handle)


def record_streams(tensors: Iterable[Any], stream: Any, device: Any = None) -> None:
    """Tell torch's allocator that `stream` uses the tensors, so that their memory is not reused before its work is done.

    Entries that are None or not on a CUDA device are skipped. None is torch's current stream on `device` (default: each tensor's own), recorded all the same.
    """
    for t in tensors:
        if t is not None and getattr(t, "is_cuda", False):
            t.record_stream(launch_stream(stream, t.device if device is None else device))


def contiguous_on_stream(t: Any, stream: Any, device: Any = None) -> Any:
    """A row-major copy of a torch tensor made on `stream`, which `t` is recorded on first; None or a contiguous tensor comes back unchanged."""
    if t is None or t.is_contiguous():
        return t
    if not t.is_cuda:
        return t.contiguous()
    place = t.device if device is None else device
    record_streams((t,), stream, place)
    with stream_context(stream, place):
        return t.contiguous()


def copy_into_on_stream(dst: Any, src: Any, stream: Any, device: Any = None) -> None:
    """Copy `src` into `dst` on `stream`, which both are recorded on first."""
    if not dst.is_cuda:
        dst.copy_(src)
        return
    place = dst.device if device is None else device
    record_streams((dst, src), stream, place)
    with stream_context(stream, place):
        dst.copy_(src)
