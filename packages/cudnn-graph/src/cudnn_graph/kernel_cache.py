# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""``cudnn.create_kernel_cache()``: compiled kernels shared by graphs of one topology with dynamic shapes."""

from __future__ import annotations

import threading
from typing import Any

from cudnn_graph import library
from cudnn_graph.constants import Attr, Desc, Type
from cudnn_graph.descriptors import backend_error

KERNEL_CACHE_SINCE = 90400
SERIALIZED_SINCE = 91000
COUNTED_SINCE = 92700


class kernel_cache:
    """Give it to the ``kernel_cache`` argument of several graphs of one topology: only the first compiles.

    It is bound to the first graph that is built with it; until then there is nothing to serialize.
    """

    def __init__(self) -> None:
        library.require(KERNEL_CACHE_SINCE, "a kernel cache")
        self._descriptor: Any = None
        self._lock = threading.Lock()

    def bind(self, operation_graph: Any) -> Any:
        """The descriptor of the cache, bound to an operation graph on first use."""
        with self._lock:
            if self._descriptor is None:
                self._descriptor = self._finalized(Attr.KERNEL_CACHE_OPERATION_GRAPH, Type.BACKEND_DESCRIPTOR, operation_graph)
            return self._descriptor

    @staticmethod
    def _finalized(attribute: int, kind: int, value: Any) -> Any:
        ext = library.loaded()
        try:
            descriptor = ext.Descriptor(Desc.KERNEL_CACHE)
            descriptor.set(attribute, kind, value)
            return descriptor.finalize()
        except ext.BackendError as error:
            raise backend_error(error, "kernel cache") from error

    def _get(self, attribute: int, kind: int, what: str) -> Any:
        if self._descriptor is None:
            raise RuntimeError(f"the kernel cache is empty: build a graph with it, or deserialize() one, before {what}")
        ext = library.loaded()
        try:
            return self._descriptor.get(attribute, kind)
        except ext.BackendError as error:
            raise backend_error(error, f"kernel cache, {what}") from error

    def serialize(self) -> str:
        """The cache as JSON text. RuntimeError below cuDNN 9.10, and before a graph was built with the cache."""
        library.require(SERIALIZED_SINCE, "serialize() of a kernel cache")
        return self._get(Attr.KERNEL_CACHE_JSON_REPRESENTATION, Type.CHAR, "serialize()").rstrip(b"\0").decode()

    def deserialize(self, text: str) -> None:
        """Fill the cache from :meth:`serialize`. RuntimeError below cuDNN 9.10, for other text, and when the cache is in use already."""
        library.require(SERIALIZED_SINCE, "deserialize() of a kernel cache")
        if not isinstance(text, str):
            raise TypeError(f"deserialize() of a kernel cache takes the string that serialize() gave, got {type(text).__name__}")
        with self._lock:
            if self._descriptor is not None:
                raise RuntimeError("the kernel cache is in use already; deserialize() into a fresh one (cudnn.create_kernel_cache())")
            self._descriptor = self._finalized(Attr.KERNEL_CACHE_JSON_REPRESENTATION, Type.CHAR, text)

    def revision(self) -> int:
        """A number that changes whenever the content does. RuntimeError below cuDNN 9.27, and before a graph was built with the cache."""
        library.require(COUNTED_SINCE, "revision() of a kernel cache")
        return self._get(Attr.KERNEL_CACHE_REVISION, Type.INT64, "revision()")[0]

    def size(self) -> int:
        """Number of kernels held. RuntimeError below cuDNN 9.27, and before a graph was built with the cache."""
        library.require(COUNTED_SINCE, "size() of a kernel cache")
        return self._get(Attr.KERNEL_CACHE_ENTRY_COUNT, Type.INT64, "size()")[0]


def create_kernel_cache() -> kernel_cache:
    """A new, empty kernel cache. RuntimeError without libcudnn or below 9.4."""
    return kernel_cache()
