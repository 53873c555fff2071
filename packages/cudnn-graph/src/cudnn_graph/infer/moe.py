"""Inference for grouped matmuls over token rows."""

from __future__ import annotations

from math import prod

from cudnn_graph.enums import data_type, moe_grouped_matmul_mode
from cudnn_graph.errors import describe, node_error
from cudnn_graph.nodes import Node
from cudnn_graph.tensor import Tensor, row_major


def group_count(extent: int, experts: int) -> tuple[int, bool] | None:
    """(number of groups G, whether the extent counts boundaries rather than starts) for ``first_token_offset``, or None.

    [G] starts or [G + 1] boundaries with G a positive multiple of the experts; a single expert takes boundaries only.
    """
    if experts > 1 and extent % experts == 0:
        return extent, False
    if extent > 1 and (extent - 1) % experts == 0:
        return extent - 1, True
    return None


def _check_offsets(node: Node, offsets: Tensor, experts: int) -> None:
    if len(offsets.dim) != 3 or offsets.dim[1:] != (1, 1):
        raise node_error(node, f"first_token_offset {describe(offsets)} must have dim [G, 1, 1] (starts) or [G + 1, 1, 1] (boundaries)")
    if offsets.data_type is not data_type.INT32:
        raise node_error(node, f"first_token_offset {describe(offsets)} must be INT32, got {offsets.data_type.name}")
    if group_count(offsets.dim[0], experts) is None:
        boundaries = " (boundaries only)" if experts == 1 else ""
        raise node_error(
            node, f"first_token_offset {describe(offsets)} needs G starts or G + 1 boundaries{boundaries}, G a positive multiple of {experts} experts"
        )


def infer_grouped_matmul(node: Node) -> None:
    """OUT_0 [1, M, N]."""
    token, weight, offsets, output = node.inputs["TOKEN"], node.inputs["WEIGHT"], node.inputs["FIRST_TOKEN_OFFSET"], node.outputs["OUT_0"]
    if len(token.dim) != 3 or token.dim[0] != 1:
        raise node_error(node, f"token {describe(token)} must have dim [1, rows, K]")
    if len(weight.dim) != 3 or weight.dim[1] != token.dim[2]:
        raise node_error(node, f"weight {describe(weight)} must have dim [experts, K, N] with the K of token {describe(token)}")
    _check_offsets(node, offsets, weight.dim[0])
    mode = node.params["mode"]
    index, ks = node.inputs.get("TOKEN_INDEX"), node.inputs.get("TOKEN_KS")
    rows = token.dim[1]
    if mode is moe_grouped_matmul_mode.GATHER:
        if index is None:
            raise node_error(node, "GATHER needs token_index")
        rows = prod(index.dim)
    elif mode is moe_grouped_matmul_mode.SCATTER:
        if index is None or ks is None:
            raise node_error(node, "SCATTER needs token_index and token_ks")
        if node.params["top_k"] < 1:
            raise node_error(node, f"SCATTER needs top_k of at least 1, got {node.params['top_k']}")
        for port, tensor in (("token_index", index), ("token_ks", ks)):
            if prod(tensor.dim) != rows:
                raise node_error(node, f"{port} {describe(tensor)} must have one entry for each of {rows} rows of token {describe(token)}")
    for port, tensor in (("token_index", index), ("token_ks", ks)):
        if tensor is not None and tensor.data_type is not data_type.INT32:
            raise node_error(node, f"{port} {describe(tensor)} must be INT32, got {tensor.data_type.name}")
    output.infer_dim((1, rows, weight.dim[2]))
    if output.dim != (1, rows, weight.dim[2]):
        raise node_error(node, f"output {describe(output)} should have dim {[1, rows, weight.dim[2]]}")
    output.infer_stride(row_major(output.dim))


def infer_grouped_matmul_bwd(node: Node) -> None:
    """dweight [E, K, N]; E is the number of groups unless the caller set the dims."""
    grad, token, offsets, output = node.inputs["DOUTPUT"], node.inputs["TOKEN"], node.inputs["FIRST_TOKEN_OFFSET"], node.outputs["dweight"]
    if len(token.dim) != 3 or token.dim[0] != 1 or len(grad.dim) != 3 or grad.dim[:2] != token.dim[:2]:
        raise node_error(node, f"doutput {describe(grad)} and token {describe(token)} must have dims [1, rows, N] and [1, rows, K]")
    if not output.dim_assigned:
        output.infer_dim((offsets.dim[0], token.dim[2], grad.dim[2]))
    if len(output.dim) != 3 or output.dim[1:] != (token.dim[2], grad.dim[2]):
        raise node_error(node, f"output {describe(output)} should have dim [experts, {token.dim[2]}, {grad.dim[2]}]")
    _check_offsets(node, offsets, output.dim[0])
    output.infer_stride(row_major(output.dim))
