# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""``cudnn.create_device_properties()``: plan for a device that is described rather than present."""

from __future__ import annotations

from cudnn_graph import library
from cudnn_graph.constants import Attr, Desc, Type
from cudnn_graph.descriptors import backend_error

DEVICE_PROPERTIES_SINCE = 90800


class device_properties:
    """What libcudnn knows about a device. Give it to the ``device_property`` argument of a graph to plan without that device.

    Args:
        source: ordinal of a device of this machine, or the text that :meth:`serialize` gave on another one.
    """

    def __init__(self, source: int | str) -> None:
        library.require(DEVICE_PROPERTIES_SINCE, "device properties")
        if isinstance(source, bool) or not isinstance(source, (int, str)):
            raise TypeError(f"create_device_properties() takes the ordinal of a device or serialized text, got {type(source).__name__}")
        ext = library.loaded()
        try:
            self.descriptor = ext.Descriptor(Desc.DEVICEPROP)
            if isinstance(source, str):
                self.descriptor.set(Attr.DEVICEPROP_JSON_REPRESENTATION, Type.CHAR, source)
            else:
                self.descriptor.set(Attr.DEVICEPROP_DEVICE_ID, Type.INT32, source)
            self.descriptor.finalize()
        except ext.BackendError as error:
            raise backend_error(error, "device properties") from error

    def serialize(self) -> str:
        """The properties as JSON text."""
        ext = library.loaded()
        try:
            return self.descriptor.get(Attr.DEVICEPROP_JSON_REPRESENTATION, Type.CHAR).rstrip(b"\0").decode()
        except ext.BackendError as error:
            raise backend_error(error, "device properties, serialize()") from error


def create_device_properties(source: int | str) -> device_properties:
    """Properties of device ``source``, or from serialized text.

    Raises:
        RuntimeError: no such device; text that describes none; libcudnn missing or below 9.8.
        TypeError: neither an int nor a str.
    """
    return device_properties(source)
