"""Inference for convolutions: image [N, C, spatial...], weight [K, C / groups, filter...], response [N, K, out...]."""

from __future__ import annotations

from collections.abc import Sequence

from cudnn_graph.errors import describe, node_error
from cudnn_graph.nodes import Node
from cudnn_graph.tensor import Tensor, channels_last


def _check_ranks(node: Node, *tensors: Tensor) -> int:
    rank = len(tensors[0].dim)
    for tensor in tensors:
        if len(tensor.dim) != rank or rank < 3:
            shown = ", ".join(describe(t) for t in tensors)
            raise node_error(node, f"operands must have one rank of 3 or more (batch, channels, spatial axes), got {shown}")
    for key in ("pre_padding", "post_padding", "stride", "dilation"):
        if len(node.params[key]) != rank - 2:
            raise node_error(node, f"{key} {list(node.params[key])} must have {rank - 2} values, one for each spatial axis of {describe(tensors[0])}")
    return rank


def response_extents(node: Node, image: Sequence[int], weight: Sequence[int]) -> list[int]:
    """Spatial extents of the response for spatial extents of image and filter."""
    p = node.params
    return [
        1 + (size + pre + post - dil * (window - 1) - 1) // step
        for size, window, pre, post, step, dil in zip(image, weight, p["pre_padding"], p["post_padding"], p["stride"], p["dilation"], strict=True)
    ]


def _check_consistent(node: Node, image: Tensor, weight: Tensor, response: Tensor) -> None:
    """ValueError unless the three sets of dims belong to one convolution."""
    if weight.dim[1] == 0 or image.dim[1] % weight.dim[1]:
        raise node_error(node, f"channels of the image {describe(image)} must be a multiple of axis 1 of the weight {describe(weight)} (C / groups)")
    groups = image.dim[1] // weight.dim[1]
    if weight.dim[0] % groups:
        raise node_error(node, f"axis 0 of the weight {describe(weight)} must be a multiple of the {groups} groups that the image {describe(image)} implies")
    expected = [image.dim[0], weight.dim[0], *response_extents(node, image.dim[2:], weight.dim[2:])]
    if any(extent < 1 for extent in expected):
        raise node_error(node, f"the filter of {describe(weight)} does not fit into the padded image {describe(image)}: the response would have dim {expected}")
    if list(response.dim) != expected:
        raise node_error(node, f"response {describe(response)} should have dim {expected} for image {describe(image)} and weight {describe(weight)}")


def infer_fprop(node: Node) -> None:
    """Y from X and W."""
    image, weight, response = node.inputs["X"], node.inputs["W"], node.outputs["Y"]
    _check_ranks(node, image, weight)
    dims = [image.dim[0], weight.dim[0], *response_extents(node, image.dim[2:], weight.dim[2:])]
    response.infer_dim(dims)
    _check_consistent(node, image, weight, response)
    response.infer_stride(channels_last(response.dim))


def infer_dgrad(node: Node) -> None:
    """DX from DY and W; its dims are known by themselves only for stride 1 and one group."""
    response, weight, image = node.inputs["DY"], node.inputs["W"], node.outputs["DX"]
    _check_ranks(node, response, weight)
    if not image.dim_assigned:
        p = node.params
        if any(step != 1 for step in p["stride"]):
            raise node_error(node, f"output {describe(image)}: dims not set; a strided convolution has several possible image sizes, call set_dim() on DX")
        spatial = [
            (size - 1) + dil * (window - 1) + 1 - pre - post
            for size, window, pre, post, dil in zip(response.dim[2:], weight.dim[2:], p["pre_padding"], p["post_padding"], p["dilation"], strict=True)
        ]
        image.infer_dim([response.dim[0], weight.dim[1], *spatial])
    _check_ranks(node, image, weight)
    _check_consistent(node, image, weight, response)
    image.infer_stride(channels_last(image.dim))


def infer_wgrad(node: Node) -> None:
    """DW, with dims set by the caller."""
    image, response, weight = node.inputs["X"], node.inputs["DY"], node.outputs["DW"]
    if not weight.dim_assigned:
        raise node_error(node, f"output {describe(weight)}: dims not set; call set_dim() on DW with [K, C / groups, filter...]")
    _check_ranks(node, image, response, weight)
    _check_consistent(node, image, weight, response)
    weight.infer_stride(channels_last(weight.dim))
