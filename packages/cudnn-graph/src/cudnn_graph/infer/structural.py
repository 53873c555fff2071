"""Inference for reshape, slice, transpose, concatenate and the block-scale conversions."""

from __future__ import annotations

from math import prod

from cudnn_graph.buffers import span_elements
from cudnn_graph.enums import reshape_mode
from cudnn_graph.errors import describe, describe_all, node_error
from cudnn_graph.nodes import Node
from cudnn_graph.tensor import channels_last, packed_like, row_major


def _check_output(node: Node, dim: tuple[int, ...], why: str) -> None:
    output = node.outputs["OUT_0"]
    output.infer_dim(dim)
    if output.dim != dim:
        raise node_error(node, f"output {describe(output)} should have dim {list(dim)}, {why}")


def infer_reshape(node: Node) -> None:
    """OUT_0 has the caller's dims."""
    source, output = node.inputs["IN_0"], node.outputs["OUT_0"]
    if output.dim is None:
        raise node_error(node, f"output {describe(output)}: dims not set; call set_dim() on it or pass out_dims")
    if prod(source.dim) != prod(output.dim):
        raise node_error(node, f"output {describe(output)} has {prod(output.dim)} elements, input {describe(source)} has {prod(source.dim)}")
    logical = node.params["reshape_mode"] is reshape_mode.LOGICAL
    if not output.stride_assigned:
        output.infer_stride(row_major(output.dim) if logical or source.stride == row_major(source.dim) else channels_last(output.dim))
    if not logical and len(output.stride) == len(output.dim):
        have, need = span_elements(source.dim, source.stride), span_elements(output.dim, output.stride)
        if need > have:
            raise node_error(
                node, f"output {describe(output)} with stride {list(output.stride)} spans {need} elements, the memory of input {describe(source)} only {have}"
            )


def infer_slice(node: Node) -> None:
    """One slice for each axis; negative bounds count from the end, as in Python."""
    source, output = node.inputs["IN_0"], node.outputs["OUT_0"]
    slices = node.params["slices"]
    if len(slices) != len(source.dim):
        raise node_error(node, f"needs one slice for each axis of {describe(source)}, got {len(slices)}")
    resolved, dim = [], []
    for axis, (start, stop, step) in enumerate(slices):
        step = 1 if step is None else step
        if step < 1:
            raise node_error(node, f"axis {axis}: the step must be at least 1, got {step}")
        start, stop, step = slice(start, stop, step).indices(source.dim[axis])
        extent = len(range(start, stop, step))
        if extent == 0:
            raise node_error(node, f"axis {axis}: slice {start}:{stop}:{step} of {describe(source)} is empty")
        resolved.append((start, stop, step))
        dim.append(extent)
    node.params["start"], node.params["limit"], node.params["step"] = (tuple(values) for values in zip(*resolved, strict=True))
    _check_output(node, tuple(dim), f"slices {resolved} of {describe(source)}")
    output.infer_stride(packed_like(dim, source.stride) if 0 not in source.stride else row_major(dim))


def infer_transpose(node: Node) -> None:
    """Axes permuted; packed row-major unless the caller set a stride."""
    source, output = node.inputs["IN_0"], node.outputs["OUT_0"]
    permutation = node.params["permutation"]
    if sorted(permutation) != list(range(len(source.dim))):
        raise node_error(node, f"permutation {list(permutation)} must name each axis of {describe(source)} once")
    _check_output(node, tuple(source.dim[axis] for axis in permutation), f"permutation {list(permutation)} of {describe(source)}")
    output.infer_stride(row_major(output.dim))


def infer_concatenate(node: Node) -> None:
    """Extents add up along the axis."""
    inputs, output = list(node.inputs.values()), node.outputs["OUT_0"]
    rank, axis = len(inputs[0].dim), node.params["axis"]
    if not -rank <= axis < rank:
        raise node_error(node, f"axis {axis} is out of range for {describe(inputs[0])}")
    axis %= rank
    node.params["axis"] = axis
    rest = [t.dim[:axis] + t.dim[axis + 1 :] for t in inputs if len(t.dim) == rank]
    if len(rest) != len(inputs) or any(r != rest[0] for r in rest):
        raise node_error(node, f"inputs must have one rank and equal extents on every axis but {axis}: {describe_all(inputs)}")
    dim = list(inputs[0].dim)
    dim[axis] = sum(t.dim[axis] for t in inputs)
    _check_output(node, tuple(dim), f"the inputs {describe_all(inputs)} along axis {axis}")
    output.infer_stride(packed_like(dim, inputs[0].stride) if 0 not in inputs[0].stride else row_major(dim))


def infer_block_scale_quantize(node: Node) -> None:
    """Y as the input (transposed on request), scale with one entry for each block."""
    source, output, scale = node.inputs["IN_0"], node.outputs["Y"], node.outputs["scale"]
    rank = len(source.dim)
    axis = node.params["axis"] if node.params["axis"] is not None else rank - 1
    if not -rank <= axis < rank:
        raise node_error(node, f"axis {axis} is out of range for {describe(source)}")
    axis %= rank
    if node.params["transpose"] and rank < 2:
        raise node_error(node, f"transpose needs a rank of 2 or more, got {describe(source)}")
    node.params["axis"] = axis
    size = node.params["block_size"]
    blocks = [-(-extent // size) if a == axis else extent for a, extent in enumerate(source.dim)]
    dim, order = list(source.dim), list(source.stride)
    if node.params["transpose"]:
        for values in (dim, blocks):
            values[-1], values[-2] = values[-2], values[-1]
        output.infer_stride(row_major(dim))
    else:
        output.infer_stride(packed_like(dim, order))
    output.infer_dim(dim)
    if output.dim != tuple(dim):
        raise node_error(node, f"output {describe(output)} should have dim {dim} for input {describe(source)}")
    scale.infer_dim(blocks)
    if len(scale.dim) != rank or any(have < need for have, need in zip(scale.dim, blocks, strict=True)):
        raise node_error(node, f"scale {describe(scale)} needs at least dim {blocks}, one entry for each block of {size} elements of {describe(source)}")
    scale.infer_stride(row_major(scale.dim))


def infer_block_scale_dequantize(node: Node) -> None:
    """OUT_0 as the input."""
    source, descale, output = node.inputs["IN_0"], node.inputs["DESCALE"], node.outputs["OUT_0"]
    sizes = node.params["block_size"]
    if len(sizes) > len(source.dim):
        raise node_error(node, f"block_size {list(sizes)} has more entries than {describe(source)} has axes")
    per_axis = [1] * (len(source.dim) - len(sizes)) + list(sizes)
    if len(sizes) == 1 and len(descale.dim) == len(source.dim):
        # One number is the size along the axis where the scales are fewer.
        fewer = [axis for axis in range(len(source.dim)) if descale.dim[axis] < source.dim[axis]]
        if len(fewer) == 1:
            per_axis = [sizes[0] if axis == fewer[0] else 1 for axis in range(len(source.dim))]
    blocks = [-(-extent // size) for extent, size in zip(source.dim, per_axis, strict=True)]
    if len(descale.dim) != len(source.dim) or any(have < need for have, need in zip(descale.dim, blocks, strict=True)):
        raise node_error(node, f"descale {describe(descale)} needs at least dim {blocks}, one entry for each block {per_axis} of {describe(source)}")
    node.params["block_size"] = tuple(per_axis)
    _check_output(node, source.dim, f"that of the input {describe(source)}")
    output.infer_stride(packed_like(source.dim, source.stride))
