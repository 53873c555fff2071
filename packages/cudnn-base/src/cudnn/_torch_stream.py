"""The published path of the stream helpers for torch; they are in `cudnn.streams` and `cudnn.device`."""

from __future__ import annotations

from cudnn.device import device_context
from cudnn.streams import (
    DEFAULT_STREAM_HANDLES,
    as_torch_stream,
    contiguous_on_stream,
    copy_into_on_stream,
    launch_stream,
    record_streams,
    stream_context,
)

__all__ = [
    "DEFAULT_STREAM_HANDLES",
    "as_torch_stream",
    "contiguous_on_stream",
    "copy_into_on_stream",
    "device_context",
    "launch_stream",
    "record_streams",
    "stream_context",
]
