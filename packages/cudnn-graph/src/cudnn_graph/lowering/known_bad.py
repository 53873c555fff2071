# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""Versions of libcudnn that accept a graph and compute it wrongly. They are refused, with the versions that are right.

The list holds what has been reported; it is no promise that everything else is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cudnn_graph.enums import behavior_note, data_type, moe_grouped_matmul_mode
from cudnn_graph.errors import cudnnGraphNotSupportedError
from cudnn_graph.library import version_string
from cudnn_graph.lowering.records import Step, Value
from cudnn_graph.nodes import Node, NodeType

if TYPE_CHECKING:
    from cudnn_graph.graph import pygraph

_FP8 = (data_type.FP8_E4M3, data_type.FP8_E5M2)
_HALF = (data_type.HALF, data_type.BFLOAT16)
_ATTENTION = (NodeType.SDPA, NodeType.SDPA_BWD)


class Fault(NamedTuple):
    """Versions first <= v < fixed compute wrongly what ``applies`` says. None: not known to begin, or to be mended."""

    first: int | None
    fixed: int | None
    applies: Callable[[Node], bool]
    what: str


def _fp8_grouped_matmul(node: Node) -> bool:
    return node.node_type is NodeType.MOE_GROUPED_MATMUL and node.inputs["TOKEN"].data_type in _FP8


def _gather(node: Node) -> bool:
    return node.node_type is NodeType.MOE_GROUPED_MATMUL and node.params["mode"] is moe_grouped_matmul_mode.GATHER


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
    # Seen with 9.19 on Hopper.
    Fault(None, None, _gather, "mode GATHER reads outside its tensors"),
    Fault(91400, 91401, _long_sliding_window, "attention with a sliding window that is not causal is wrong beyond 1024 keys"),
)


def refuse_known_bad(graph: pygraph, version: int) -> None:
    """cudnnGraphNotSupportedError when the library of that version is known to compute a node of the graph wrongly."""
    for fault in FAULTS:
        if (fault.first or 0) <= version and (fault.fixed is None or version < fault.fixed):
            for node in graph.nodes:
                if fault.applies(node):
                    right = [f"below {version_string(fault.first)}"] if fault.first is not None else []
                    right += [f"from {version_string(fault.fixed)} on"] if fault.fixed is not None else []
                    advice = f"use a version {' or '.join(right)}" if right else "no version is known to compute it"
                    raise cudnnGraphNotSupportedError(f"node '{node.name}' ({node.op}): with cuDNN {version_string(version)} {fault.what}; {advice}")


def wrong_plan(graph: pygraph, behavior_notes: Sequence[behavior_note]) -> str | None:
    """Why a plan whose engine has these notes must not be used for the graph, or None.

    Seen with 9.19 on Hopper: engines that are not compiled at run time write no INT32 sums of an INT8 convolution, but something else.
    """
    if behavior_note.RUNTIME_COMPILATION in behavior_notes:
        return None
    for node in graph.nodes:
        if node.node_type is NodeType.CONV_FPROP and node.inputs["X"].data_type is data_type.INT8 and node.outputs["Y"].data_type is data_type.INT32:
            return f"node '{node.name}' ({node.op}): cuDNN's precompiled engines give wrong INT32 results for INT8 images"
    return None


def refuse_wrong_repeats(steps: Sequence[Step]) -> None:
    """cudnnGraphNotSupportedError for a graph of pointwise steps in which cuDNN would repeat a tensor wrongly. Steps have their final dims.

    Seen with 9.19 on Hopper, whatever the strides: [1, M, 1], [1, 1, N] and [B, 1, 1] are not repeated over [B, M, N] as they should be, and neither are
    results of other steps that lack the last axis.
    """
    if not all(step.kind is NodeType.POINTWISE for step in steps):
        return
    for step in steps:
        target = step.outputs["OUT_0"].dims
        for value in step.inputs.values():
            if not value.is_by_value and not repeats_right(value, target):
                raise cudnnGraphNotSupportedError(
                    f"node '{step.label}': cuDNN repeats tensor '{value.name}' (uid {value.uid}), which it sees as {list(value.dims)}, "
                    f"wrongly over {list(target)}; give it all extents"
                )


def repeats_right(value: Value, target: Sequence[int]) -> bool:
    """Whether cuDNN repeats a tensor of rank 3 over ``target`` as it should; of other ranks it takes none."""
    if len(target) != 3:
        return True
    long = tuple(extent > 1 for extent in value.dims)
    missing = tuple(extent > 1 and not here for extent, here in zip(target, long, strict=True))
    if not any(missing) or not any(long):
        return True
    if missing[0] and long != (False, True, True):
        return False
    if value.is_virtual and missing[2]:
        return False
    return not (missing[1] and missing[2])
