# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""From a validated graph to recipes of libcudnn's descriptors.

IR nodes -> steps (:mod:`~cudnn_graph.lowering.expand`) -> fitting ranks (:mod:`~cudnn_graph.lowering.ranks`) -> recipes
(:mod:`~cudnn_graph.lowering.recipes`). :mod:`cudnn_graph.descriptors` makes the descriptors. None of this needs libcudnn or a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudnn_graph.lowering.expand import Expansion
from cudnn_graph.lowering.known_bad import refuse_known_bad, refuse_wrong_repeats
from cudnn_graph.lowering.ranks import normalize_ranks
from cudnn_graph.lowering.recipes import operation_recipe, tensor_recipe
from cudnn_graph.lowering.records import LoweredGraph

if TYPE_CHECKING:
    from cudnn_graph.graph import pygraph


def lower(graph: pygraph, version: int) -> LoweredGraph:
    """Lower a validated graph for a libcudnn of the given version (for example 91901).

    Raises:
        cudnnGraphNotSupportedError: that version has no operation for a node, or is known to compute it wrongly.
        RuntimeError: a compile-time constant below 9.22.
        ValueError: a tensor without data type.
    """
    refuse_known_bad(graph, version)
    steps = normalize_ranks(Expansion(graph, version).run())
    refuse_wrong_repeats(steps)
    values = {}
    for step in steps:
        for value in step.values():
            values[value.uid] = value
            if value.ragged_offset is not None:
                values[value.ragged_offset.uid] = value.ragged_offset
    return LoweredGraph(values, {uid: tensor_recipe(value) for uid, value in values.items()}, [operation_recipe(step) for step in steps])
