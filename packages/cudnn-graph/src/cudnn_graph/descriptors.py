# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""Makes libcudnn's descriptors from recipes, through any factory with the interface of ``cudnn_graph._ext.Descriptor``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cudnn_graph.constants import Attr, Desc, Type, name_of
from cudnn_graph.errors import cudnnGraphNotSupportedError
from cudnn_graph.lowering.records import LoweredGraph, Recipe, Ref

Factory = Callable[[int], Any]


# Descriptors that describe one thing by itself. The library's "not supported" about one of them says that it has no such thing, not that it cannot run the graph.
_HELPERS = frozenset({Desc.TENSOR, Desc.POINTWISE, Desc.CONVOLUTION, Desc.MATMUL, Desc.REDUCTION, Desc.RNG})


def is_not_supported(status: int) -> bool:
    """Status class 3xxx."""
    return 3000 <= status < 4000


def backend_error(error: Any, what: str) -> Exception:
    """The package's exception for a failed call: ``what`` was being done, the rest is the library's own text.

    cudnnGraphNotSupportedError when the library does not support an operation, a graph or an engine; RuntimeError for everything else.
    """
    place = name_of(Desc, error.descriptor_type) if error.descriptor_type is not None else ""
    if error.attribute is not None:
        place += f", attribute {name_of(Attr, error.attribute)}"
    reason = f": {' '.join(error.last_error.split())}" if error.last_error else ""
    text = f"{what}: {error.call}{f' ({place})' if place else ''} returned {error.status_text} ({error.status}){reason}"
    if is_not_supported(error.status) and error.descriptor_type not in _HELPERS:
        return cudnnGraphNotSupportedError(text)
    return RuntimeError(text)


class DescriptorBuilder:
    """Makes descriptors for one lowered graph; a tensor's descriptor is made once.

    ``factory(type)`` gives an object with ``set``, ``finalize``; ``error`` is the class its failures have.
    """

    def __init__(self, tensors: Mapping[int, Recipe], factory: Factory, error: type[Exception]) -> None:
        self._recipes = tensors
        self._factory = factory
        self._error = error
        self._tensors: dict[int, Any] = {}

    def make(self, recipe: Recipe) -> Any:
        """The finalized descriptor for a recipe. cudnnGraphNotSupportedError or RuntimeError, naming the node or tensor, when the library refuses."""
        descriptor = self._factory(recipe.kind)
        try:
            for attribute, kind, value in recipe.attributes:
                descriptor.set(attribute, kind, self._resolve(value) if kind == Type.BACKEND_DESCRIPTOR else value)
            descriptor.finalize()
        except self._error as error:
            raise backend_error(error, recipe.label) from error
        return descriptor

    def _resolve(self, value: Any) -> Any:
        if isinstance(value, Ref):
            return self.tensor(value.uid)
        if isinstance(value, Recipe):
            return self.make(value)
        return [self._resolve(item) for item in value]

    def tensor(self, uid: int) -> Any:
        """The descriptor of a tensor."""
        descriptor = self._tensors.get(uid)
        if descriptor is None:
            descriptor = self._tensors[uid] = self.make(self._recipes[uid])
        return descriptor


def make_operation_graph(
    lowered: LoweredGraph,
    factory: Factory,
    error: type[Exception],
    *,
    handle: int | None = None,
    is_dynamic_shape_enabled: bool = False,
    is_override_shape_enabled: bool = False,
) -> Any:
    """The finalized operation graph.

    Raises:
        cudnnGraphNotSupportedError: the library does not support an operation, or the combination of operations.
        RuntimeError: another failed call; an operation that it does not know at all, such as a reduction to the average.
    """
    builder = DescriptorBuilder(lowered.tensors, factory, error)
    attributes: list[tuple[int, int, Any]] = []
    if handle is not None:
        attributes.append((Attr.OPERATIONGRAPH_HANDLE, Type.HANDLE, handle))
    attributes.append((Attr.OPERATIONGRAPH_OPS, Type.BACKEND_DESCRIPTOR, list(lowered.operations)))
    if is_dynamic_shape_enabled:
        attributes.append((Attr.OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED, Type.BOOLEAN, True))
    if is_override_shape_enabled:
        attributes.append((Attr.OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED, Type.BOOLEAN, True))
    return builder.make(Recipe("operation graph", Desc.OPERATIONGRAPH, attributes))
