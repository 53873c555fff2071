"""Checks and inference over a whole graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudnn_graph.enums import data_type
from cudnn_graph.errors import describe
from cudnn_graph.infer import infer_node
from cudnn_graph.tensor import Tensor

if TYPE_CHECKING:
    from cudnn_graph.graph import pygraph


def validate_graph(graph: pygraph) -> None:
    """Infer every unset property in node order and check nodes and tensors. ValueError names the node and tensors at fault."""
    if not graph.nodes:
        raise ValueError(f"graph '{graph.context.name}' has no nodes")
    for tensor in graph.tensors.values():
        tensor.reset_inferred()
    for node in graph.nodes:
        for port, tensor in node.inputs.items():
            if tensor.producer is None and tensor.is_virtual:
                raise ValueError(f"node '{node.name}': input {port} {describe(tensor)} is virtual but no node writes it")
        infer_node(node, graph.context)
    for tensor in graph.tensors.values():
        _check_tensor(tensor, graph)


def _check_tensor(tensor: Tensor, graph: pygraph) -> None:
    if tensor.dim is None or tensor.stride is None:
        raise ValueError(f"tensor {describe(tensor)}: dims and strides must be set")
    if len(tensor.dim) != len(tensor.stride):
        raise ValueError(f"tensor {describe(tensor)}: stride {list(tensor.stride)} must have one entry for each of {len(tensor.dim)} dims")
    if tensor.is_virtual and tensor.is_pass_by_value:
        raise ValueError(f"tensor {describe(tensor)} cannot be both virtual and pass-by-value")
    if tensor.producer is not None and tensor.is_pass_by_value:
        raise ValueError(f"tensor {describe(tensor)} is written by node '{tensor.producer[0].name}' and cannot be pass-by-value")
    if tensor.producer is not None and any(step == 0 and extent > 1 for extent, step in zip(tensor.dim, tensor.stride, strict=True)):
        raise ValueError(f"output tensor {describe(tensor)}: stride {list(tensor.stride)} makes elements share memory")
    offset = tensor.ragged_offset
    if offset is not None and offset.data_type not in (data_type.INT32, data_type.INT64, data_type.NOT_SET):
        raise ValueError(f"ragged offset {describe(offset)} of tensor {describe(tensor)} must be INT32 or INT64, got {offset.data_type.name}")
    if tensor.data_type is data_type.NOT_SET:
        # Reached by tensors that no node uses and by ragged offsets.
        tensor.infer_data_type(
            data_type.INT32 if any(t.ragged_offset is tensor for t in graph.tensors.values()) else graph.context.tensor_dtype(tensor.is_virtual)
        )
