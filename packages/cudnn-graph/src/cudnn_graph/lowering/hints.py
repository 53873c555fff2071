# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""Why the library may have no engine for a graph: it says nothing itself. Observed with 9.19 on Hopper, and given as hints only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cudnn_graph.enums import moe_grouped_matmul_mode
from cudnn_graph.errors import describe
from cudnn_graph.lowering.ranks import TARGET
from cudnn_graph.lowering.records import LoweredGraph, Value
from cudnn_graph.nodes import Node, NodeType

if TYPE_CHECKING:
    from cudnn_graph.graph import pygraph

_CONVOLUTIONS = {NodeType.CONV_FPROP, NodeType.CONV_DGRAD, NodeType.CONV_WGRAD}


def hints(graph: pygraph, lowered: LoweredGraph) -> list[str]:
    """Known reasons that apply to the graph, in the order of its nodes."""
    kinds = {node.node_type for node in graph.nodes}
    found = [hint for node in graph.nodes for hint in _of_node(node, kinds)]
    if kinds <= {NodeType.POINTWISE, NodeType.BATCHNORM_INFERENCE}:
        found += _of_layouts(lowered)
    return list(dict.fromkeys(found))


def _of_node(node: Node, kinds: set[NodeType]) -> Iterator[str]:
    kind = node.node_type
    label = f"node '{node.name}' ({node.op})"
    if kind is NodeType.REDUCTION and not kinds & {NodeType.MATMUL, *_CONVOLUTIONS}:
        yield f"{label} runs only behind a matmul or a convolution"
    elif kind is NodeType.GENSTATS and not kinds & _CONVOLUTIONS:
        yield f"{label} runs only behind a convolution"
    elif kind in (NodeType.RESHAPE, NodeType.CONCATENATE):
        yield f"{label} does not run by itself or between pointwise nodes"
    elif kind is NodeType.MOE_GROUPED_MATMUL:
        weight = node.inputs["WEIGHT"]
        if weight.stride[1] != 1:
            yield f"{label} needs a weight with stride 1 along K (axis 1); {describe(weight)} has stride {list(weight.stride)}"
        if node.params["mode"] is moe_grouped_matmul_mode.SCATTER:
            yield f"{label}: mode SCATTER does not run"
    elif kind is NodeType.POINTWISE and node.params["mode"] == "binary_select":
        mask, output = node.inputs["IN_2"], node.outputs["OUT_0"]
        if mask.dim[-1] == 1 and output.dim[-1] != 1:
            yield f"{label} needs a mask with the last extent of its output; {describe(mask)} has 1"


def _of_layouts(lowered: LoweredGraph) -> Iterator[str]:
    stored = [value for value in lowered.values.values() if not value.is_virtual and not value.is_by_value]
    ranks = {len(value.dims) for value in stored if value.numel > 1}
    if any(rank > TARGET for rank in ranks):
        yield f"the tensors cannot be seen as ones of rank {TARGET}: {', '.join(_layout(value) for value in stored)}"
        return
    for value in stored:
        long = [step for extent, step in zip(value.dims, value.strides, strict=True) if extent > 1]
        if long != sorted(long, reverse=True) or (value.dims[-1] > 1 and value.strides[-1] != 1):
            yield f"pointwise nodes alone need tensors that lie in memory in one order of axes, the innermost packed: {', '.join(_layout(v) for v in stored)}"
            return


def _layout(value: Value) -> str:
    return f"'{value.name}' {list(value.dims)} with stride {list(value.strides)}"
