# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""Brings the tensors of a graph to ranks that libcudnn's engines take.

1. All operands of pointwise, matmul and reduction steps get one rank: missing leading axes are added, superfluous ones of single-element tensors dropped.
2. Axes of graphs of pointwise steps alone are put in the order in which they lie in memory: without a matmul the library takes row-major tensors only.
3. Graphs made of such steps alone are brought to rank 3, the one every fusion engine takes: leading axes are added, axes of extent 1 dropped, and
   neighbouring axes merged where they are contiguous in every tensor. When that does not reach rank 3 the graph stays as it is.
4. Among the ways to reach rank 3 in graphs of pointwise steps alone, one is taken in which cuDNN repeats every tensor as it should
   (:func:`~cudnn_graph.lowering.known_bad.repeats_right`), where there is one.

Only dims and strides of values change, and the axis of gen_index; memory is addressed exactly as before.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from math import prod

from cudnn_graph.lowering.known_bad import repeats_right
from cudnn_graph.lowering.records import Step, Value
from cudnn_graph.nodes import NodeType
from cudnn_graph.tensor import row_major

_ALIGNED = frozenset({NodeType.POINTWISE, NodeType.MATMUL, NodeType.REDUCTION})
TARGET = 3


def normalize_ranks(steps: Sequence[Step]) -> list[Step]:
    """The steps with their values brought to fitting ranks (in place); steps whose axis parameter moved are replaced."""
    touched = _unique(value for step in steps if step.kind in _ALIGNED for value in step.values())
    if not touched:
        return list(steps)
    ranks = [len(value.dims) for value in touched if value.numel > 1] or [len(value.dims) for value in touched]
    rank = max(ranks)
    shifts = {id(value): rank - len(value.dims) for value in touched}
    for value in touched:
        _set_rank(value, rank)
    steps = [_shift_axis(step, shifts[id(step.outputs["OUT_0"])]) if _is_gen_index(step) else step for step in steps]
    # A ragged offset counts along the axes as they are.
    if not all(step.kind in _ALIGNED for step in steps) or any(value.ragged_offset is not None for value in touched):
        return steps
    if all(step.kind is NodeType.POINTWISE for step in steps):
        return _fit_pointwise(_to_memory_order(steps, touched, rank), touched, rank)
    return steps if rank == TARGET else _to_target(steps, touched, rank)


def _fit_pointwise(steps: list[Step], values: list[Value], rank: int) -> list[Step]:
    """Steps at rank TARGET where neighbouring axes can be merged to reach it."""
    kept = {step.params.get("axis", -1) % rank for step in steps if _is_gen_index(step)}
    extents = [max(value.dims[axis] for value in values) for axis in range(rank)]
    axes = [axis for axis in range(rank) if extents[axis] > 1 or axis in kept] or [rank - 1]
    possible = [
        groups
        for count in range(min(TARGET, len(axes)), 0, -1)
        for groups in _splits(axes, count)
        if all(len(group) == 1 or not kept & set(group) for group in groups)
        and all(_contiguous(value, group[:1], group[1:], extents) for value in values for group in groups)
    ]
    if not possible:
        return steps
    best = next((groups for groups in possible if _repeats_right(steps, groups)), possible[0])
    missing: list[list[int]] = [[] for _ in range(TARGET - len(best))]
    return _regroup(steps, values, missing + best, rank)


def _splits(axes: Sequence[int], count: int) -> Iterator[list[list[int]]]:
    """All ways to cut the axes into ``count`` runs, the ones with long outer runs first."""
    if count == 1:
        yield [list(axes)]
        return
    for first in range(len(axes) - count + 1, 0, -1):
        for rest in _splits(axes[first:], count - 1):
            yield [list(axes[:first]), *rest]


def _repeats_right(steps: Sequence[Step], groups: Sequence[Sequence[int]]) -> bool:
    def seen(value: Value) -> Value:
        dims = (1,) * (TARGET - len(groups)) + tuple(prod(value.dims[axis] for axis in group) for group in groups)
        return Value(value.uid, value.name, dims, dims, value.dtype, is_virtual=value.is_virtual)

    return all(repeats_right(seen(value), seen(step.outputs["OUT_0"]).dims) for step in steps for value in step.inputs.values() if not value.is_by_value)


def _to_memory_order(steps: list[Step], values: list[Value], rank: int) -> list[Step]:
    """Axes sorted by the strides of the largest tensor with memory, outermost first."""
    outputs = {id(value) for step in steps for value in step.outputs.values()}
    stored = [value for value in values if not value.is_virtual and not value.is_by_value]
    if not stored:
        return steps
    leader = max(stored, key=lambda value: (value.numel, id(value) in outputs))
    # Where the extent is 1 the stride says nothing: such axes keep their place before the next one that counts.
    keys = [0] * rank
    following = 0
    for axis in range(rank - 1, -1, -1):
        if leader.dims[axis] > 1:
            following = leader.strides[axis]
        keys[axis] = following
    order = sorted(range(rank), key=lambda axis: -keys[axis])
    if order == list(range(rank)):
        return steps
    for value in values:
        value.dims = tuple(value.dims[axis] for axis in order)
        value.strides = row_major(value.dims) if value.is_virtual else tuple(value.strides[axis] for axis in order)
    return _rename_axes(steps, {axis: position for position, axis in enumerate(order)}, rank)


def _rename_axes(steps: list[Step], position: dict[int, int], rank: int) -> list[Step]:
    """The steps with the axis parameter of gen_index moved from each key to its value."""
    return [step._replace(params={**step.params, "axis": position[step.params.get("axis", -1) % rank]}) if _is_gen_index(step) else step for step in steps]


def _unique(values: Iterable[Value]) -> list[Value]:
    return list({id(value): value for value in values}.values())


def _set_rank(value: Value, rank: int) -> None:
    missing = rank - len(value.dims)
    if missing >= 0:
        outermost = max((extent * stride for extent, stride in zip(value.dims, value.strides, strict=True)), default=1)
        value.dims = (1,) * missing + value.dims
        value.strides = (outermost,) * missing + value.strides
    else:
        # Only a tensor of one element has more axes than the others here.
        value.dims = (1,) * rank
        value.strides = (1,) * rank


def _is_gen_index(step: Step) -> bool:
    return step.kind is NodeType.POINTWISE and step.params["mode"] == "gen_index"


def _shift_axis(step: Step, by: int) -> Step:
    axis = step.params.get("axis", -1)
    return step if axis < 0 else step._replace(params={**step.params, "axis": axis + by})


def _to_target(steps: list[Step], values: list[Value], rank: int) -> list[Step]:
    if rank < TARGET:
        for value in values:
            _set_rank(value, TARGET)
        return [_shift_axis(step, TARGET - rank) if _is_gen_index(step) else step for step in steps]
    groups = _grouping(steps, values, rank)
    if groups is None:
        return steps
    return _regroup(steps, values, groups, rank)


def _regroup(steps: list[Step], values: list[Value], groups: Sequence[Sequence[int]], rank: int) -> list[Step]:
    """Values whose axes are those groups of axes, merged; an empty group is an axis of extent 1."""
    for value in values:
        dims = []
        strides = []
        for group in groups:
            dims.append(prod(value.dims[axis] for axis in group))
            # The innermost axis that is not broadcast carries the stride of the merged one.
            inner = [axis for axis in group if value.dims[axis] > 1]
            strides.append(value.strides[inner[-1] if inner else group[-1]] if group else 0)
        outermost = max((extent * stride for extent, stride in zip(dims, strides, strict=True)), default=1)
        strides = [stride if group else outermost for stride, group in zip(strides, groups, strict=True)]
        value.dims = tuple(dims)
        value.strides = row_major(dims) if value.is_virtual else tuple(strides)
    return _rename_axes(steps, {axis: index for index, group in enumerate(groups) for axis in group}, rank)


def _grouping(steps: Sequence[Step], values: Sequence[Value], rank: int) -> list[list[int]] | None:
    """TARGET groups of neighbouring axes, or None when there is no such way."""
    kept = {step.params.get("axis", -1) % rank for step in steps if _is_gen_index(step)}
    if any(step.kind is NodeType.MATMUL for step in steps):
        kept |= {rank - 2, rank - 1}
    extents = [max(value.dims[axis] for value in values) for axis in range(rank)]
    groups = [[axis] for axis in range(rank)]
    for axis in range(rank):
        if len(groups) > TARGET and extents[axis] == 1 and axis not in kept:
            groups.remove([axis])
    index = 0
    while len(groups) > TARGET and index + 1 < len(groups):
        pair = groups[index] + groups[index + 1]
        if not kept & set(pair) and all(_contiguous(value, groups[index], groups[index + 1], extents) for value in values):
            groups[index : index + 2] = [pair]
        else:
            index += 1
    return groups if len(groups) == TARGET else None


def _contiguous(value: Value, outer: Sequence[int], inner: Sequence[int], extents: Sequence[int]) -> bool:
    """Whether the axes of both groups are one run of memory in ``value``, or broadcast in all of them."""
    axes = [axis for axis in (*outer, *inner) if extents[axis] > 1]
    if all(value.dims[axis] == 1 for axis in axes):
        return True
    if any(value.dims[axis] != extents[axis] for axis in axes):
        return False
    if value.is_virtual:
        return True
    return all(value.strides[a] == value.strides[b] * value.dims[b] for a, b in itertools.pairwise(axes))
