"""Inference for matmul, pointwise and reduction nodes."""

from __future__ import annotations

from collections.abc import Sequence

from cudnn_graph.errors import describe, describe_all, node_error
from cudnn_graph.nodes import Node
from cudnn_graph.tensor import Tensor, channels_last, packed_like, row_major


def broadcast_dims(dims: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    """Right-aligned broadcast of several shapes, or None when they do not fit."""
    rank = max(len(dim) for dim in dims)
    result = [1] * rank
    for dim in dims:
        for axis, extent in enumerate(dim, start=rank - len(dim)):
            if extent != 1:
                if result[axis] not in (1, extent):
                    return None
                result[axis] = extent
    return tuple(result)


def is_scalar(tensor: Tensor) -> bool:
    """True for a tensor with one element that is read on the host: its rank does not count in a broadcast."""
    return tensor.is_pass_by_value and all(extent == 1 for extent in tensor.dim)


def infer_pointwise(node: Node) -> None:
    """OUT_0 has the broadcast dims, and the stride of the first input of those dims."""
    inputs = list(node.inputs.values())
    shaped = [t for t in inputs if not is_scalar(t)] or inputs
    dim = broadcast_dims([t.dim for t in shaped])
    if dim is None:
        raise node_error(node, f"operands do not broadcast: {describe_all(inputs)}; right-aligned extents must be equal or 1")
    if node.params["mode"] == "gen_index":
        axis = node.params["axis"]
        if not -len(dim) <= axis < len(dim):
            raise node_error(node, f"axis {axis} is out of range for {describe(inputs[0])}")
    output = node.outputs["OUT_0"]
    output.infer_dim(dim)
    if output.dim != dim:
        raise node_error(node, f"output {describe(output)} should have dim {list(dim)}, the broadcast of {describe_all(inputs)}")
    if output.stride_assigned:
        return
    for tensor in inputs:
        if tensor.dim == dim and 0 not in tensor.stride:
            output.infer_stride(tensor.stride)
            return
    if not output.is_virtual:
        raise node_error(
            node, f"the stride of output {describe(output)} cannot be inferred: no input has its dims ({describe_all(inputs)}); call set_stride() on it"
        )
    order = inputs[0].stride
    output.infer_stride(packed_like(dim, order) if len(order) == len(dim) and 0 not in order else row_major(dim))


def infer_matmul(node: Node) -> None:
    """C [..., M, N] of A [..., M, K] and B [..., K, N]."""
    a, b, c = node.inputs["A"], node.inputs["B"], node.outputs["C"]
    if len(a.dim) < 2 or len(b.dim) < 2:
        raise node_error(node, f"needs operands of rank 2 or more, got A {describe(a)} and B {describe(b)}")
    if a.dim[-1] != b.dim[-2]:
        raise node_error(node, f"K differs: A {describe(a)} has K = {a.dim[-1]} (last axis), B {describe(b)} has K = {b.dim[-2]} (last axis but one)")
    batch = broadcast_dims([a.dim[:-2], b.dim[:-2]]) if len(a.dim) + len(b.dim) > 4 else ()
    if batch is None:
        raise node_error(node, f"batch dims do not broadcast (equal or 1): A {describe(a)}, B {describe(b)}")
    dim = (*batch, a.dim[-2], b.dim[-1])
    c.infer_dim(dim)
    if c.dim != dim:
        raise node_error(node, f"output {describe(c)} should have dim {list(dim)} for A {describe(a)} and B {describe(b)}")
    c.infer_stride(row_major(dim))


def infer_reduction(node: Node) -> None:
    """OUT_0 has the caller's dims: the input's, with 1 where an axis is reduced."""
    source, output = node.inputs["IN_0"], node.outputs["OUT_0"]
    if output.dim is None:
        raise node_error(
            node, f"output {describe(output)}: dims not set; call set_dim() with 1 where an axis of {describe(source)} is to be reduced, or pass out_dims"
        )
    if node.params["mode"].name == "NOT_SET":
        raise node_error(node, "reduction mode NOT_SET; pass a mode such as cudnn.reduction_mode.ADD")
    if "GROUP_OFFSET" not in node.inputs:
        fits = len(output.dim) == len(source.dim) and all(o in (1, i) for o, i in zip(output.dim, source.dim, strict=True))
        if not fits:
            raise node_error(node, f"output {describe(output)} must have the extents of {describe(source)}, or 1 where an axis is reduced")
    output.infer_stride(channels_last(output.dim))
