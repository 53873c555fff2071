"""Nodes of the graph IR, with the ports and parameters of every node type.

Ports are the keys of ``inputs`` and ``outputs``; ``?`` marks those that may be absent. Parameters are the keys of ``params``.

| type | inputs | outputs | params |
|---|---|---|---|
| MATMUL | A B | C | padding |
| POINTWISE | IN_0 IN_1? IN_2? (backward modes: IN_0 = loss, IN_1 = input; binary_select: IN_2 = mask) | OUT_0 | mode, and negative_slope, lower_clip, upper_clip, swish_beta, axis when given |
| CONV_FPROP | X W | Y | pre_padding, post_padding, stride, dilation (tuples), convolution_mode |
| CONV_DGRAD | DY W | DX | as CONV_FPROP |
| CONV_WGRAD | X DY | DW | as CONV_FPROP |
| GENSTATS | X | SUM SQ_SUM | |
| REDUCTION | IN_0 GROUP_OFFSET? | OUT_0 | mode |
| RMSNORM | X SCALE? BIAS? EPSILON | Y INV_VARIANCE? | norm_forward_phase |
| RMSNORM_BWD | DY X SCALE? INV_VARIANCE | DX Dscale? Dbias? | has_dbias |
| LAYERNORM, ADALAYERNORM, INSTANCENORM | X SCALE? BIAS? EPSILON | Y MEAN? INV_VARIANCE? | norm_forward_phase |
| LAYERNORM_BWD, ADALAYERNORM_BWD, INSTANCENORM_BWD | DY X SCALE? MEAN? INV_VARIANCE? | DX DSCALE? DBIAS? | |
| BATCHNORM | X SCALE BIAS IN_RUNNING_MEAN? IN_RUNNING_VAR? EPSILON MOMENTUM? PEER_STAT_0.. | Y MEAN INV_VARIANCE NEXT_RUNNING_MEAN? NEXT_RUNNING_VAR? | |
| BATCHNORM_INFERENCE | X MEAN INV_VARIANCE SCALE BIAS | Y | |
| BATCHNORM_BWD | DY X SCALE MEAN INV_VARIANCE PEER_STAT_0.. | DX DSCALE DBIAS | |
| RESHAPE | IN_0 | OUT_0 | reshape_mode |
| SLICE | IN_0 | OUT_0 | slices (tuple of (start, stop, step)); inference adds start, limit, step (tuples of ints) |
| TRANSPOSE | IN_0 | OUT_0 | permutation |
| CONCATENATE | IN_0 .. IN_n | OUT_0 | axis, in_place_index (or None) |
| BLOCK_SCALE_QUANTIZE | IN_0 GROUP_OFFSET? | Y scale | block_size, axis (or None), transpose |
| BLOCK_SCALE_DEQUANTIZE | IN_0 DESCALE | OUT_0 | block_size (tuple), is_negative_scale |
| MOE_GROUPED_MATMUL | TOKEN WEIGHT FIRST_TOKEN_OFFSET TOKEN_INDEX? TOKEN_KS? TOP_K_SCORES? | OUT_0 | mode, top_k |
| MOE_GROUPED_MATMUL_BWD | DOUTPUT TOKEN FIRST_TOKEN_OFFSET | dweight | |
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cudnn_graph.enums import data_type

if TYPE_CHECKING:
    from cudnn_graph.tensor import Tensor

_NODE_TYPE_NAMES = """
COMPOSITE CONV_FPROP CONV_DGRAD CONV_WGRAD GENSTATS RESHAPE SLICE CONCATENATE TRANSPOSE ROPE ROPE_BWD MATMUL MATMUL_FP8 POINTWISE REDUCTION
RMSNORM RMSNORM_BWD LAYERNORM LAYERNORM_BWD ADALAYERNORM ADALAYERNORM_BWD INSTANCENORM INSTANCENORM_BWD BATCHNORM BATCHNORM_BWD BATCHNORM_INFERENCE
SDPA SDPA_BWD SDPA_FP8 SDPA_FP8_BWD SDPA_MXFP8 SDPA_MXFP8_BWD MOE_GROUPED_MATMUL MOE_GROUPED_MATMUL_BWD BLOCK_SCALE_QUANTIZE BLOCK_SCALE_DEQUANTIZE
GDN GDN_BWD GDN_SUMMARY GDN_SUMMARY_BWD GDN2 GDN2_BWD GDN2_SUMMARY GDN2_SUMMARY_BWD KDA KDA_BWD KDA_SUMMARY KDA_SUMMARY_BWD
GDP GDP_BWD GDP_SUMMARY GDP_SUMMARY_BWD MAMBA2 MAMBA2_BWD MAMBA2_SUMMARY MAMBA2_SUMMARY_BWD
"""

# The members carry their own names as values: they read well in JSON and have no numbers of their own in the interface.
NodeType = Enum("NodeType", {name: name for name in _NODE_TYPE_NAMES.split()}, module=__name__)
NodeType.__doc__ = "Kind of a node."


class Node:
    """One operation: named input and output ports, and parameters.

    ``op`` is the name of the builder method that made it (``conv_fprop``, ``relu``, ...). After the graph is frozen ``inputs``, ``outputs`` and
    ``params`` are read-only views.
    """

    __slots__ = ("name", "node_type", "op", "compute_data_type", "inputs", "outputs", "params")

    def __init__(
        self,
        name: str,
        node_type: NodeType,
        compute_data_type: data_type = data_type.NOT_SET,
        *,
        op: str | None = None,
        inputs: Mapping[str, Tensor] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.node_type = node_type
        self.op = op if op is not None else node_type.name.lower()
        self.compute_data_type = compute_data_type
        self.inputs: Mapping[str, Tensor] = dict(inputs or {})
        self.outputs: Mapping[str, Tensor] = {}
        self.params: Mapping[str, Any] = dict(params or {})

    def freeze(self) -> None:
        """Turn the dictionaries into read-only views."""
        self.inputs = MappingProxyType(dict(self.inputs))
        self.outputs = MappingProxyType(dict(self.outputs))
        self.params = MappingProxyType(dict(self.params))

    def __repr__(self) -> str:
        inputs = {port: tensor.name for port, tensor in self.inputs.items()}
        outputs = {port: tensor.name for port, tensor in self.outputs.items()}
        return f"Node(name={self.name!r}, node_type={self.node_type.name}, op={self.op!r}, inputs={inputs}, outputs={outputs}, params={dict(self.params)})"
