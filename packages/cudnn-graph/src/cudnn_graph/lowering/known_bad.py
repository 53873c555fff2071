# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""Versions of libcudnn that accept a graph and compute it wrongly. They are refused, with the versions that are right.

The list holds what has been reported; it is no promise that everything else is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from cudnn_graph.enums import data_type
from cudnn_graph.errors import cudnnGraphNotSupportedError
from cudnn_graph.library import version_string
from cudnn_graph.nodes import Node, NodeType

if TYPE_CHECKING:
    from cudnn_graph.graph import pygraph

_FP8 = (data_type.FP8_E4M3, data_type.FP8_E5M2)
_HALF = (data_type.HALF, data_type.BFLOAT16)
_ATTENTION = (NodeType.SDPA, NodeType.SDPA_BWD)


class Fault(NamedTuple):
    """Versions first <= v < fixed compute wrongly what ``applies`` says."""

    first: int
    fixed: int
    applies: Callable[[Node], bool]
    what: str


def _fp8_grouped_matmul(node: Node) -> bool:
    return node.node_type is NodeType.MOE_GROUPED_MATMUL and node.inputs["TOKEN"].data_type in _FP8


def _half_attention(node: Node) -> bool:
    return node.node_type in _ATTENTION and any(tensor.data_type in _HALF for tensor in node.inputs.values())


def _long_sliding_window(node: Node) -> bool:
    if node.node_type not in _ATTENTION:
        return False
    params = node.params
    window = params.get("diagonal_band_left_bound", params.get("sliding_window_length"))
    keys = next((tensor for port, tensor in node.inputs.items() if port.lower() == "k"), None)
    return window is not None and params.get("diagonal_band_right_bound") is None and keys is not None and keys.dim[2] > 1024


FAULTS = (
    # github.com/flashinfer-ai/flashinfer issue 3792: rows of every expert but the first stay zero.
    Fault(91800, 92100, _fp8_grouped_matmul, "an FP8 grouped matmul computes only the rows of the first expert"),
    Fault(91000, 91002, _half_attention, "FP16 and BF16 attention gives wrong results"),
    Fault(91400, 91401, _long_sliding_window, "attention with a sliding window that is not causal is wrong beyond 1024 keys"),
)


def refuse_known_bad(graph: pygraph, version: int) -> None:
    """cudnnGraphNotSupportedError when the library of that version is known to compute a node of the graph wrongly."""
    for fault in FAULTS:
        if fault.first <= version < fault.fixed:
            for node in graph.nodes:
                if fault.applies(node):
                    raise cudnnGraphNotSupportedError(
                        f"node '{node.name}' ({node.op}): with cuDNN {version_string(version)} {fault.what}; "
                        f"use a version below {version_string(fault.first)} or from {version_string(fault.fixed)} on"
                    )
