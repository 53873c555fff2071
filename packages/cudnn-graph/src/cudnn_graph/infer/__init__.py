"""Shape, stride and dtype inference, one function for each node type."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cudnn_graph.enums import data_type
from cudnn_graph.errors import cudnnGraphNotSupportedError, describe, node_error
from cudnn_graph.infer import conv, moe, norm, pointwise, structural
from cudnn_graph.nodes import Node, NodeType

if TYPE_CHECKING:
    from cudnn_graph.context import GraphContext

_RULES: dict[NodeType, Callable[[Node], None]] = {
    NodeType.MATMUL: pointwise.infer_matmul,
    NodeType.POINTWISE: pointwise.infer_pointwise,
    NodeType.REDUCTION: pointwise.infer_reduction,
    NodeType.CONV_FPROP: conv.infer_fprop,
    NodeType.CONV_DGRAD: conv.infer_dgrad,
    NodeType.CONV_WGRAD: conv.infer_wgrad,
    NodeType.GENSTATS: norm.infer_genstats,
    NodeType.RMSNORM: norm.infer_forward,
    NodeType.LAYERNORM: norm.infer_forward,
    NodeType.ADALAYERNORM: norm.infer_forward,
    NodeType.INSTANCENORM: norm.infer_forward,
    NodeType.BATCHNORM: norm.infer_batchnorm,
    NodeType.BATCHNORM_INFERENCE: norm.infer_batchnorm_inference,
    NodeType.RMSNORM_BWD: norm.infer_backward,
    NodeType.LAYERNORM_BWD: norm.infer_backward,
    NodeType.ADALAYERNORM_BWD: norm.infer_backward,
    NodeType.INSTANCENORM_BWD: norm.infer_backward,
    NodeType.BATCHNORM_BWD: norm.infer_backward,
    NodeType.RESHAPE: structural.infer_reshape,
    NodeType.SLICE: structural.infer_slice,
    NodeType.TRANSPOSE: structural.infer_transpose,
    NodeType.CONCATENATE: structural.infer_concatenate,
    NodeType.BLOCK_SCALE_QUANTIZE: structural.infer_block_scale_quantize,
    NodeType.BLOCK_SCALE_DEQUANTIZE: structural.infer_block_scale_dequantize,
    NodeType.MOE_GROUPED_MATMUL: moe.infer_grouped_matmul,
    NodeType.MOE_GROUPED_MATMUL_BWD: moe.infer_grouped_matmul_bwd,
}

# Outputs that keep one type whatever the graph's defaults are.
_ALWAYS_FLOAT = frozenset({"MEAN", "INV_VARIANCE", "SUM", "SQ_SUM", "NEXT_RUNNING_MEAN", "NEXT_RUNNING_VAR"})


def infer_node(node: Node, context: GraphContext) -> None:
    """Fill in what the caller left unset on the outputs of a node, and check that its operands fit each other. ValueError when they do not."""
    rule = _RULES.get(node.node_type)
    if rule is None:
        raise cudnnGraphNotSupportedError(f"node '{node.name}': {node.node_type.name} nodes are not served by this package")
    for port, tensor in node.inputs.items():
        if tensor.dim is None:
            raise node_error(node, f"input {port} {describe(tensor)}: dims not set")
        if len(tensor.dim) != len(tensor.stride or ()):
            raise node_error(
                node, f"input {port} {describe(tensor)}: stride {list(tensor.stride or ())} does not have one entry for each of {len(tensor.dim)} dims"
            )
        _infer_dtype(tensor, port, node, context)
    node.compute_data_type = context.node_compute_dtype(node.compute_data_type)
    rule(node)
    for port, tensor in node.outputs.items():
        if tensor.dim is None:
            raise node_error(node, f"output {port} {describe(tensor)}: dims not set; call set_dim() on it or pass out_dims")
        if tensor.stride is None or len(tensor.stride) != len(tensor.dim):
            raise node_error(
                node, f"output {port} {describe(tensor)}: stride {list(tensor.stride or ())} does not have one entry for each of {len(tensor.dim)} dims"
            )
        _infer_dtype(tensor, port, node, context)


def _infer_dtype(tensor, port: str, node: Node, context: GraphContext) -> None:
    if tensor.data_type is not data_type.NOT_SET:
        return
    if tensor.scalar_value is not None:
        is_int = isinstance(tensor.scalar_value, int)
        fits = is_int and -(2**31) <= tensor.scalar_value < 2**31
        tensor.infer_data_type((data_type.INT32 if fits else data_type.INT64) if is_int else data_type.FLOAT)
        return
    if tensor.producer is not None and tensor.producer[0] is node and port in _ALWAYS_FLOAT:
        tensor.infer_data_type(data_type.FLOAT)
        return
    if node.node_type is NodeType.SLICE and port == "OUT_0":
        tensor.infer_data_type(node.inputs["IN_0"].data_type)
        return
    if tensor.is_pass_by_value and port in ("EPSILON", "MOMENTUM"):
        tensor.infer_data_type(data_type.FLOAT)
        return
    dtype = context.tensor_dtype(tensor.is_virtual)
    if dtype is data_type.NOT_SET:
        raise node_error(node, f"{port} {describe(tensor)}: data type not set; call set_data_type() on it or give the graph an io_data_type")
    tensor.infer_data_type(dtype)
