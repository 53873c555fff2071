# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""What a graph looks like between the IR and libcudnn: values, steps over them, and recipes of descriptors. Plain data, no library needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from cudnn_graph.enums import data_type
from cudnn_graph.nodes import NodeType

# What libcudnn assumes about the address of a tensor unless told otherwise, in bytes.
DEFAULT_ALIGNMENT = 16


class Alias(NamedTuple):
    """A value that is a view of another one: same memory, ``offset`` bytes further."""

    source: Value
    offset: int


class Value:
    """One tensor as the library gets it. ``dims`` and ``strides`` (elements) may be rewritten before recipes are made."""

    __slots__ = (
        "uid",
        "name",
        "dims",
        "strides",
        "dtype",
        "is_virtual",
        "is_by_value",
        "alignment",
        "reordering",
        "ragged_offset",
        "ragged_multiplier",
        "scalar",
        "is_constant",
        "alias",
    )

    def __init__(
        self,
        uid: int,
        name: str,
        dims: Sequence[int],
        strides: Sequence[int],
        dtype: data_type,
        *,
        is_virtual: bool = False,
        is_by_value: bool = False,
        alignment: int = DEFAULT_ALIGNMENT,
        reordering: int = 0,
        ragged_offset: Value | None = None,
        ragged_multiplier: int = 1,
        scalar: int | float | None = None,
        is_constant: bool = False,
        alias: Alias | None = None,
    ) -> None:
        self.uid = uid
        self.name = name
        self.dims = tuple(dims)
        self.strides = tuple(strides)
        self.dtype = dtype
        self.is_virtual = is_virtual
        self.is_by_value = is_by_value
        self.alignment = alignment
        self.reordering = reordering
        self.ragged_offset = ragged_offset
        self.ragged_multiplier = ragged_multiplier
        self.scalar = scalar
        self.is_constant = is_constant
        self.alias = alias

    @property
    def numel(self) -> int:
        return prod(self.dims)

    def line_up(self, axis: int, rank: int) -> None:
        """Describe a tensor with one axis longer than 1 as one of ``rank`` axes of which ``axis`` is that one; the memory stays the same."""
        long = [index for index, extent in enumerate(self.dims) if extent > 1]
        if len(long) > 1:
            return
        extent, step = (self.dims[long[0]], self.strides[long[0]]) if long else (1, 1)
        self.dims = tuple(extent if index == axis else 1 for index in range(rank))
        self.strides = tuple(step if index >= axis else step * extent for index in range(rank))

    def __repr__(self) -> str:
        return f"Value({self.uid}, {self.name!r}, {list(self.dims)}, {list(self.strides)}, {self.dtype.name})"


class Step(NamedTuple):
    """One operation of the library."""

    label: str
    kind: NodeType
    compute: data_type
    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]
    params: Mapping[str, Any]

    def values(self) -> Iterator[Value]:
        yield from self.inputs.values()
        yield from self.outputs.values()


class Ref(NamedTuple):
    """Stands for the descriptor of the tensor with this uid."""

    uid: int


class Recipe(NamedTuple):
    """A descriptor to be made: its type and attributes ``(name, attribute type, value)`` in the order in which they are set.

    The value of an attribute of type BACKEND_DESCRIPTOR is a :class:`Ref`, a Recipe, or a list of them.
    """

    label: str
    kind: int
    attributes: list[tuple[int, int, Any]]


class LoweredGraph(NamedTuple):
    """Everything the library gets told about a graph."""

    values: dict[int, Value]
    tensors: dict[int, Recipe]
    operations: list[Recipe]

    def buffers(self) -> list[Value]:
        """Values that have an address at execute, by ascending uid. A value that is only the source of a view is among them."""
        found: dict[int, Value] = {}
        for value in self.values.values():
            for one in (value, value.alias.source) if value.alias is not None else (value,):
                if not one.is_virtual and not one.is_constant:
                    found[one.uid] = one
        return [found[uid] for uid in sorted(found)]
