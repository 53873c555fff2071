"""Inference for normalizations and channel statistics."""

from __future__ import annotations

from collections.abc import Sequence

from cudnn_graph.errors import describe, node_error
from cudnn_graph.nodes import Node, NodeType
from cudnn_graph.tensor import Tensor, packed_like


def normalized_axes(node: Node) -> tuple[int, ...]:
    """The axes over which the statistics of a norm node go."""
    source = node.inputs["X"]
    rank = len(source.dim)
    kind = node.node_type
    if kind in (NodeType.INSTANCENORM, NodeType.INSTANCENORM_BWD):
        return tuple(range(2, rank))
    if kind in (NodeType.BATCHNORM, NodeType.BATCHNORM_BWD, NodeType.BATCHNORM_INFERENCE, NodeType.GENSTATS):
        return (0, *range(2, rank))
    scale = node.inputs.get("SCALE")
    first = 1 if kind in (NodeType.ADALAYERNORM, NodeType.ADALAYERNORM_BWD) else 0
    axes = tuple(axis for axis in range(first, rank) if scale is not None and scale.dim[axis] != 1)
    return axes or tuple(range(1, rank))


def _stats_dim(dim: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(1 if axis in axes else extent for axis, extent in enumerate(dim))


def _expect(node: Node, port: str, tensor: Tensor, dim: Sequence[int], why: str) -> None:
    if tensor.dim != tuple(dim):
        raise node_error(node, f"{port} {describe(tensor)} should have dim {list(dim)}, {why}")


def _check_scale(node: Node, source: Tensor) -> None:
    """Scale and bias broadcast against the input, axis by axis."""
    for port in ("SCALE", "BIAS"):
        tensor = node.inputs.get(port)
        if tensor is None:
            continue
        if len(tensor.dim) != len(source.dim) or any(s not in (1, x) for s, x in zip(tensor.dim, source.dim, strict=True)):
            raise node_error(node, f"{port} {describe(tensor)} must have the rank of the input {describe(source)} and, on every axis, its extent or 1")
    scale, bias = node.inputs.get("SCALE"), node.inputs.get("BIAS")
    if scale is not None and bias is not None and scale.dim != bias.dim:
        raise node_error(node, f"SCALE {describe(scale)} and BIAS {describe(bias)} must have equal dims")
    per_channel = node.node_type.name.startswith(("INSTANCENORM", "BATCHNORM"))
    if per_channel and scale is not None:
        _expect(node, "SCALE", scale, _channel_dim(source.dim), "one value for each channel")


def _channel_dim(dim: Sequence[int]) -> tuple[int, ...]:
    return (1, dim[1], *([1] * (len(dim) - 2)))


def _check_rank(node: Node, source: Tensor, smallest: int) -> None:
    if len(source.dim) < smallest:
        raise node_error(node, f"input {describe(source)} must have rank {smallest} or more")


def _check_value(node: Node, port: str) -> None:
    tensor = node.inputs.get(port)
    if tensor is not None and any(extent != 1 for extent in tensor.dim):
        raise node_error(node, f"{port} {describe(tensor)} must have a single element")


def _same_as(tensor: Tensor, source: Tensor, node: Node, port: str) -> None:
    tensor.infer_dim(source.dim)
    _expect(node, port, tensor, source.dim, f"that of {describe(source)}")
    if not tensor.stride_assigned:
        tensor.infer_stride(packed_like(source.dim, source.stride) if 0 in source.stride else source.stride)


def _stat(node: Node, port: str, dim: Sequence[int], source: Tensor) -> None:
    tensor = node.outputs.get(port)
    if tensor is not None:
        tensor.infer_dim(dim)
        _expect(node, port, tensor, dim, f"the statistics of {describe(source)}")
        tensor.infer_stride(packed_like(dim, source.stride))


def infer_forward(node: Node) -> None:
    """rmsnorm, layernorm, adalayernorm, instancenorm."""
    source = node.inputs["X"]
    _check_rank(node, source, 3 if node.node_type is NodeType.INSTANCENORM else 2)
    _check_scale(node, source)
    _check_value(node, "EPSILON")
    _same_as(node.outputs["Y"], source, node, "Y")
    dim = _stats_dim(source.dim, normalized_axes(node))
    _stat(node, "MEAN", dim, source)
    _stat(node, "INV_VARIANCE", dim, source)


def infer_batchnorm(node: Node) -> None:
    """Training batch norm with its statistics."""
    source = node.inputs["X"]
    _check_rank(node, source, 2)
    _check_scale(node, source)
    dim = _channel_dim(source.dim)
    for port in ("EPSILON", "MOMENTUM"):
        _check_value(node, port)
    for port in ("IN_RUNNING_MEAN", "IN_RUNNING_VAR"):
        if port in node.inputs:
            _expect(node, port, node.inputs[port], dim, f"one value for each channel of {describe(source)}")
    _same_as(node.outputs["Y"], source, node, "Y")
    for port in ("MEAN", "INV_VARIANCE", "NEXT_RUNNING_MEAN", "NEXT_RUNNING_VAR"):
        _stat(node, port, dim, source)


def infer_batchnorm_inference(node: Node) -> None:
    """Batch norm with given statistics."""
    source = node.inputs["X"]
    _check_rank(node, source, 2)
    _check_scale(node, source)
    for port in ("MEAN", "INV_VARIANCE"):
        _expect(node, port, node.inputs[port], _channel_dim(source.dim), f"one value for each channel of {describe(source)}")
    _same_as(node.outputs["Y"], source, node, "Y")


def infer_backward(node: Node) -> None:
    """Backward of every norm."""
    source, grad = node.inputs["X"], node.inputs["DY"]
    per_channel = node.node_type in (NodeType.INSTANCENORM_BWD, NodeType.BATCHNORM_BWD)
    _check_rank(node, source, 3 if node.node_type is NodeType.INSTANCENORM_BWD else 2)
    _expect(node, "DY", grad, source.dim, f"that of the input {describe(source)}")
    _check_scale(node, source)
    dim = _channel_dim(source.dim) if node.node_type is NodeType.BATCHNORM_BWD else _stats_dim(source.dim, normalized_axes(node))
    given = [port for port in ("MEAN", "INV_VARIANCE") if port in node.inputs]
    for port in given:
        _expect(node, port, node.inputs[port], dim, f"the statistics of {describe(source)}")
    if node.node_type is NodeType.INSTANCENORM_BWD and len(given) == 1:
        raise node_error(node, f"needs both mean and inv_variance, or neither; got only {given[0]}")
    _same_as(node.outputs["DX"], source, node, "DX")
    scale = node.inputs.get("SCALE")
    for port in ("DSCALE", "DBIAS", "Dscale", "Dbias"):
        tensor = node.outputs.get(port)
        if tensor is not None:
            target = _channel_dim(source.dim) if per_channel else scale.dim
            tensor.infer_dim(target)
            _expect(node, port, tensor, target, f"that of the scale {describe(scale)}")
            tensor.infer_stride(packed_like(target, scale.stride))


def infer_genstats(node: Node) -> None:
    """Channel sums."""
    source = node.inputs["X"]
    _check_rank(node, source, 2)
    for port in ("SUM", "SQ_SUM"):
        _stat(node, port, _channel_dim(source.dim), source)
