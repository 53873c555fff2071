# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""Brings the tensors of a graph to ranks that libcudnn's engines take.

1. All operands of pointwise, matmul and reduction steps get one rank: missing leading axes are added, superfluous ones of single-element tensors dropped.
2. Graphs made of such steps alone are brought to rank 3, the one every fusion engine takes: leading axes are added, axes of extent 1 dropped, and
   neighbouring axes merged where they are contiguous in every tensor. When that does not reach rank 3 the graph stays as it is.

Only dims and strides of values change, and the axis of gen_index; memory is addressed exactly as before.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

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
    if all(step.kind in _ALIGNED for step in steps) and rank != TARGET and not any(value.ragged_offset is not None for value in touched):
        steps = _to_target(steps, touched, rank)
    return steps


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
    for value in values:
        dims = []
        strides = []
        for group in groups:
            extent = 1
            for axis in group:
                extent *= value.dims[axis]
            dims.append(extent)
            # The innermost axis that is not broadcast carries the stride of the merged one.
            inner = [axis for axis in group if value.dims[axis] > 1]
            strides.append(value.strides[inner[-1] if inner else group[-1]])
        value.dims = tuple(dims)
        value.strides = row_major(dims) if value.is_virtual else tuple(strides)
    position = {axis: index for index, group in enumerate(groups) for axis in group}
    moved = []
    for step in steps:
        if _is_gen_index(step):
            axis = step.params.get("axis", -1) % rank
            step = step._replace(params={**step.params, "axis": position[axis]})
        moved.append(step)
    return moved


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
