"""Matmul, convolution, reduction, statistics and grouped matmul in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch

from cudnn_graph.enums import convolution_mode, moe_grouped_matmul_mode, reduction_mode
from cudnn_graph.infer.moe import group_count
from cudnn_graph.nodes import Node

Values = dict[str, torch.Tensor]


def _product_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Type in which products are summed.

    float64 on CUDA: the setting that lets float32 products run in TF32 belongs to the whole process, and float64 is out of its reach.
    float64 for int32 as well: torch has no integer product on CUDA, and sums of 8-bit products stay exact.
    """
    if dtype is torch.int32 or (dtype is torch.float32 and device.type == "cuda"):
        return torch.float64
    return dtype


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b in the operands' type, batch dims broadcast."""
    if a.dtype is torch.int64:
        return (a.cpu() @ b.cpu()).to(a.device)
    wide = _product_dtype(a.dtype, a.device)
    result = torch.matmul(a.to(wide), b.to(wide))
    return result if wide is a.dtype else result.to(a.dtype)


def matmul(node: Node, x: Values) -> Values:
    """C = A B."""
    return {"C": product(x["A"], x["B"])}


def _conv_setup(node: Node, channels: int, weight: torch.Tensor) -> tuple[torch.Tensor, int]:
    if node.params["convolution_mode"] is convolution_mode.CONVOLUTION:
        weight = weight.flip(list(range(2, weight.dim())))
    return weight, channels // weight.shape[1]


def _pad(node: Node, image: torch.Tensor) -> torch.Tensor:
    amounts: list[int] = []
    for before, after in zip(reversed(node.params["pre_padding"]), reversed(node.params["post_padding"]), strict=True):
        amounts += [before, after]
    return torch.nn.functional.pad(image, amounts) if any(amounts) else image


def conv_fprop(node: Node, x: Values) -> Values:
    """Convolution through torch, padded beforehand since torch pads both sides alike."""
    image, dtype = x["X"], x["X"].dtype
    weight, groups = _conv_setup(node, image.shape[1], x["W"])
    wide = _product_dtype(dtype, image.device)
    call = {3: torch.nn.functional.conv1d, 4: torch.nn.functional.conv2d, 5: torch.nn.functional.conv3d}[image.dim()]
    y = call(_pad(node, image).to(wide), weight.to(wide), stride=node.params["stride"], dilation=node.params["dilation"], groups=groups)
    return {"Y": y.to(dtype)}


def _conv_backward(node: Node, grad: torch.Tensor, image: torch.Tensor, weight: torch.Tensor, groups: int, which: int) -> torch.Tensor:
    spatial = image.dim() - 2
    wide = _product_dtype(grad.dtype, grad.device)
    result = torch.ops.aten.convolution_backward(
        grad.to(wide),
        image.to(wide),
        weight.to(wide),
        None,
        list(node.params["stride"]),
        [0] * spatial,
        list(node.params["dilation"]),
        False,
        [0] * spatial,
        groups,
        [which == 0, which == 1, False],
    )[which]
    return result.to(grad.dtype)


def conv_dgrad(node: Node, x: Values) -> Values:
    """Gradient for the padded image, with the padding cut off."""
    dims = node.outputs["DX"].dim
    weight, groups = _conv_setup(node, dims[1], x["W"])
    pre, post = node.params["pre_padding"], node.params["post_padding"]
    padded = [*dims[:2], *(size + a + b for size, a, b in zip(dims[2:], pre, post, strict=True))]
    image = torch.zeros((), dtype=x["DY"].dtype, device=x["DY"].device).expand(padded)
    grad = _conv_backward(node, x["DY"], image, weight, groups, 0)
    for axis, (start, size) in enumerate(zip(pre, dims[2:], strict=True), start=2):
        grad = grad.narrow(axis, start, size)
    return {"DX": grad}


def conv_wgrad(node: Node, x: Values) -> Values:
    """Gradient for the weight."""
    dims = node.outputs["DW"].dim
    image = x["X"]
    weight = torch.zeros((), dtype=image.dtype, device=image.device).expand(dims)
    grad = _conv_backward(node, x["DY"], _pad(node, image), weight, image.shape[1] // dims[1], 1)
    if node.params["convolution_mode"] is convolution_mode.CONVOLUTION:
        grad = grad.flip(list(range(2, grad.dim())))
    return {"DW": grad}


def genstats(node: Node, x: Values) -> Values:
    """Channel sums of x and x²."""
    source = x["X"]
    axes = [axis for axis in range(source.dim()) if axis != 1]
    return {"SUM": source.sum(axes, keepdim=True), "SQ_SUM": (source * source).sum(axes, keepdim=True)}


def _multiply(x: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    for axis in axes:
        x = x.prod(axis, keepdim=True)
    return x


def _sum(x: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    return x.sum(list(axes), keepdim=True, dtype=x.dtype)


_REDUCTIONS: dict[reduction_mode, Callable[[torch.Tensor, Sequence[int]], torch.Tensor]] = {
    reduction_mode.ADD: _sum,
    reduction_mode.MUL: _multiply,
    reduction_mode.MIN: lambda x, axes: torch.amin(x, list(axes), keepdim=True),
    reduction_mode.MAX: lambda x, axes: torch.amax(x, list(axes), keepdim=True),
    reduction_mode.AMAX: lambda x, axes: torch.amax(x.abs(), list(axes), keepdim=True),
    reduction_mode.AVG: lambda x, axes: x.double().mean(list(axes), keepdim=True).to(x.dtype),
    reduction_mode.NORM1: lambda x, axes: _sum(x.abs(), axes),
    reduction_mode.NORM2: lambda x, axes: _sum(x * x, axes).sqrt(),
    reduction_mode.MUL_NO_ZEROS: lambda x, axes: _multiply(torch.where(x == 0, torch.ones_like(x), x), axes),
}


def reduction(node: Node, x: Values) -> Values:
    """Reduce the axes whose extent is 1 in the output."""
    source, mode = x["IN_0"], node.params["mode"]
    axes = [axis for axis, extent in enumerate(node.outputs["OUT_0"].dim) if extent != source.shape[axis]]
    if not axes:
        # Nothing is summed, yet the element-wise part of the mode remains; an axis of extent 1 carries it.
        return {"OUT_0": _REDUCTIONS[mode](source.unsqueeze(-1), [source.dim()]).squeeze(-1)}
    return {"OUT_0": _REDUCTIONS[mode](source, axes)}


def _boundaries(offsets: torch.Tensor, experts: int, rows: int) -> list[int]:
    values = offsets.flatten().tolist()
    _, has_end = group_count(len(values), experts)
    bounds = values if has_end else [*values, rows]
    if any(a > b for a, b in pairwise(bounds)) or bounds[0] < 0 or bounds[-1] > rows:
        raise ValueError(f"first_token_offset must ascend within [0, {rows}], got {values}")
    return bounds


def moe_grouped_matmul(node: Node, x: Values) -> Values:
    """One product per group of rows."""
    token, weight, mode = x["TOKEN"][0], x["WEIGHT"], node.params["mode"]
    index = x["TOKEN_INDEX"].flatten().long() if "TOKEN_INDEX" in x else None
    source = token[index] if mode is moe_grouped_matmul_mode.GATHER else token
    out = source.new_zeros((source.shape[0], weight.shape[2]))
    bounds = _boundaries(x["FIRST_TOKEN_OFFSET"], weight.shape[0], source.shape[0])
    for expert, (start, stop) in enumerate(pairwise(bounds)):
        if stop > start:
            out[start:stop] = product(source[start:stop], weight[expert])
    if mode is moe_grouped_matmul_mode.SCATTER:
        target = index * node.params["top_k"] + x["TOKEN_KS"].flatten().long()
        if target.numel() and (int(target.min()) < 0 or int(target.max()) >= out.shape[0]):
            raise ValueError(f"token_index * top_k + token_ks must name rows within [0, {out.shape[0]})")
        scattered = torch.zeros_like(out)
        scattered[target] = out
        out = scattered
    return {"OUT_0": out[None]}


def moe_grouped_matmul_bwd(node: Node, x: Values) -> Values:
    """token_gᵀ doutput_g for every group."""
    token, grad = x["TOKEN"][0], x["DOUTPUT"][0]
    experts = node.outputs["dweight"].dim[0]
    out = token.new_zeros((experts, token.shape[1], grad.shape[1]))
    bounds = _boundaries(x["FIRST_TOKEN_OFFSET"], experts, token.shape[0])
    for expert, (start, stop) in enumerate(pairwise(bounds)):
        if stop > start:
            out[expert] = product(token[start:stop].T, grad[start:stop])
    return {"dweight": out}
