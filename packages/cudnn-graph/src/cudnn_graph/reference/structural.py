"""Reshape, slice, transpose, concatenate and block-scale conversions in torch."""

from __future__ import annotations

import torch

from cudnn_graph.buffers import span_elements
from cudnn_graph.enums import data_type, reshape_mode
from cudnn_graph.nodes import Node
from cudnn_graph.tensor import Tensor

Values = dict[str, torch.Tensor]

_LARGEST = {data_type.FP8_E4M3: 448.0, data_type.FP8_E5M2: 57344.0, data_type.FP4_E2M1: 6.0}


def reshape(node: Node, x: Values) -> Values:
    """LOGICAL keeps the row-major order of elements; VIEW_ONLY reads the input's memory with the output's strides."""
    source, target = node.inputs["IN_0"], node.outputs["OUT_0"]
    value = x["IN_0"]
    if node.params["reshape_mode"] is reshape_mode.LOGICAL:
        return {"OUT_0": value.reshape(target.dim)}
    memory = value.new_zeros(span_elements(source.dim, source.stride))
    torch.as_strided(memory, source.dim, source.stride).copy_(value)
    return {"OUT_0": torch.as_strided(memory, target.dim, target.stride)}


def slice_(node: Node, x: Values) -> Values:
    """input[start:limit:step] on every axis."""
    p = node.params
    return {"OUT_0": x["IN_0"][tuple(slice(*bounds) for bounds in zip(p["start"], p["limit"], p["step"], strict=True))]}


def transpose(node: Node, x: Values) -> Values:
    """Permuted axes."""
    return {"OUT_0": x["IN_0"].permute(node.params["permutation"])}


def concatenate(node: Node, x: Values) -> Values:
    """Inputs side by side."""
    return {"OUT_0": torch.cat([x[port] for port in node.inputs], node.params["axis"])}


def unswizzle_128x4(scale: torch.Tensor, tensor: Tensor) -> torch.Tensor:
    """Scale factors from blocks of 128 x 4 back to rows and columns.

    One block is 512 bytes: row r and column c of it lie at byte (r % 32) * 16 + (r // 32) * 4 + c (cuBLAS documentation, "1D block scaling factors layout").
    """
    *batch, rows, columns = tensor.dim
    if rows % 128 or columns % 4:
        raise NotImplementedError(
            f"tensor '{tensor.name}' in F8_128x4 order needs rows in multiples of 128 and columns in multiples of 4, got {list(tensor.dim)}"
        )
    flat = scale.reshape(*batch, rows // 128, columns // 4, 32, 4, 4)
    # [..., row block, column block, r % 32, r // 32, c] -> [..., row block, r // 32, r % 32, column block, c]
    n = len(batch)
    order = [*range(n), n, n + 3, n + 2, n + 1, n + 4]
    return flat.permute(order).reshape(*batch, rows, columns)


def spread(scale: torch.Tensor, sizes: tuple[int, ...], dim: tuple[int, ...]) -> torch.Tensor:
    """Every scale factor repeated over its block, cut to the dims of the data."""
    for axis, size in enumerate(sizes):
        if size != 1:
            scale = scale.repeat_interleave(size, axis)
        if scale.shape[axis] != dim[axis]:
            scale = scale.narrow(axis, 0, dim[axis])
    return scale


def block_scale_dequantize(node: Node, x: Values) -> Values:
    """input * descale."""
    return {"OUT_0": x["IN_0"] * spread(x["DESCALE"], node.params["block_size"], node.outputs["OUT_0"].dim)}


def block_scale_quantize(node: Node, x: Values) -> Values:
    """E8M0: the smallest power of two with which the block fits the type. Other scale types: the block's largest magnitude over the type's largest."""
    source, output, scale_type = x["IN_0"], node.outputs["Y"], node.outputs["scale"].data_type
    axis, size = node.params["axis"], node.params["block_size"]
    extent = source.shape[axis]
    blocks = -(-extent // size)
    padded = torch.nn.functional.pad(source.movedim(axis, -1), (0, blocks * size - extent)).unflatten(-1, (blocks, size))
    wanted = padded.abs().amax(-1) / _LARGEST[output.data_type]
    if scale_type is data_type.FP8_E8M0:
        exponent = torch.where(wanted > 0, torch.ceil(torch.log2(wanted.double())), torch.full_like(wanted, -127, dtype=torch.float64)).clamp(-127, 127)
        scale = torch.exp2(exponent).to(source.dtype)
    else:
        stored = wanted.to(torch.float8_e4m3fn) if scale_type is data_type.FP8_E4M3 else wanted
        scale = stored.to(source.dtype)
    safe = torch.where(scale == 0, torch.ones_like(scale), scale)
    quantized = (padded / safe.unsqueeze(-1)).flatten(-2)[..., :extent].movedim(-1, axis)
    scale = scale.movedim(-1, axis)
    if node.params["transpose"]:
        quantized, scale = quantized.transpose(-1, -2), scale.transpose(-1, -2)
    dims = node.outputs["scale"].dim
    if tuple(scale.shape) != dims:
        padding: list[int] = []
        for have, need in zip(reversed(scale.shape), reversed(dims), strict=True):
            padding += [0, need - have]
        scale = torch.nn.functional.pad(scale, padding)
    return {"Y": quantized, "scale": scale}
