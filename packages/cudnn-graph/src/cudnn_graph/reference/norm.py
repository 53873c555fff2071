"""Normalizations in torch."""

from __future__ import annotations

import torch

from cudnn_graph.infer.norm import normalized_axes
from cudnn_graph.nodes import Node, NodeType

Values = dict[str, torch.Tensor]


def _affine(x: torch.Tensor, values: Values) -> torch.Tensor:
    if "SCALE" in values:
        x = x * values["SCALE"]
    return x + values["BIAS"] if "BIAS" in values else x


def _scalar(value: torch.Tensor) -> torch.Tensor:
    return value.reshape(())


def forward(node: Node, x: Values) -> Values:
    """rmsnorm, layernorm, adalayernorm, instancenorm."""
    source, axes = x["X"], list(normalized_axes(node))
    if node.node_type is NodeType.RMSNORM:
        inv = torch.rsqrt((source * source).mean(axes, keepdim=True) + _scalar(x["EPSILON"]))
        return {"Y": _affine(source * inv, x), "INV_VARIANCE": inv}
    mean = source.mean(axes, keepdim=True)
    centered = source - mean
    inv = torch.rsqrt((centered * centered).mean(axes, keepdim=True) + _scalar(x["EPSILON"]))
    return {"Y": _affine(centered * inv, x), "MEAN": mean, "INV_VARIANCE": inv}


def batchnorm(node: Node, x: Values) -> Values:
    """Training batch norm; the running variance takes the unbiased one."""
    result = forward(node, x)
    if "IN_RUNNING_MEAN" in x:
        source, momentum = x["X"], _scalar(x["MOMENTUM"])
        count = source.numel() // source.shape[1]
        axes = list(normalized_axes(node))
        variance = ((source - result["MEAN"]) ** 2).sum(axes, keepdim=True) / max(count - 1, 1)
        result["NEXT_RUNNING_MEAN"] = (1 - momentum) * x["IN_RUNNING_MEAN"] + momentum * result["MEAN"]
        result["NEXT_RUNNING_VAR"] = (1 - momentum) * x["IN_RUNNING_VAR"] + momentum * variance
    return result


def batchnorm_inference(node: Node, x: Values) -> Values:
    """Batch norm with given statistics."""
    return {"Y": _affine((x["X"] - x["MEAN"]) * x["INV_VARIANCE"], x)}


def _sum_to(value: torch.Tensor, like: tuple[int, ...]) -> torch.Tensor:
    axes = [axis for axis, extent in enumerate(like) if extent != value.shape[axis]]
    return value.sum(axes, keepdim=True) if axes else value


def backward(node: Node, x: Values) -> Values:
    """Gradients of every norm for input, scale and bias."""
    source, grad, axes = x["X"], x["DY"], list(normalized_axes(node))
    inv = x["INV_VARIANCE"]
    scaled = grad * x["SCALE"] if "SCALE" in x else grad
    if node.node_type is NodeType.RMSNORM_BWD:
        normal = source * inv
        dx = inv * (scaled - normal * (scaled * normal).mean(axes, keepdim=True))
    else:
        normal = (source - x["MEAN"]) * inv
        dx = inv * (scaled - scaled.mean(axes, keepdim=True) - normal * (scaled * normal).mean(axes, keepdim=True))
    result = {"DX": dx}
    for names, value in ((("DSCALE", "Dscale"), grad * normal), (("DBIAS", "Dbias"), grad)):
        for name in names:
            if name in node.outputs:
                result[name] = _sum_to(value, node.outputs[name].dim)
    return result
