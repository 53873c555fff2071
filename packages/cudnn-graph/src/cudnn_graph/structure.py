"""A graph as JSON-able data and back."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from cudnn_graph import enums
from cudnn_graph.enums import data_type, scalar_type, tensor_reordering
from cudnn_graph.nodes import Node, NodeType
from cudnn_graph.tensor import Tensor, check_dim, check_stride

if TYPE_CHECKING:
    from cudnn_graph.graph import pygraph

JSON_VERSION = "2.0"

_CONTEXT_DTYPES = ("io_data_type", "intermediate_data_type", "compute_data_type")
_CONTEXT_OPTIONS = (
    "sm_count",
    "sm_version",
    "is_dynamic_shape_enabled",
    "is_override_shape_enabled",
    "is_cuda_graph_replay_expected",
    "backend",
    "reference_fallback",
)


def _encode(value: Any) -> Any:
    """A parameter as JSON: enums as {"enum": "kind.MEMBER"}, infinities and NaN as {"float": text}, tuples as lists."""
    if isinstance(value, Enum):
        return {"enum": f"{type(value).__name__}.{value.name}"}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, (list, tuple)):
        return [_encode(item) for item in value]
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decode(item) for item in value)
    if isinstance(value, dict):
        if set(value) == {"float"}:
            return float(value["float"])
        if set(value) == {"enum"}:
            kind, _, member = value["enum"].partition(".")
            if kind not in enums.__all__ or member not in getattr(enums, kind).__members__:
                raise ValueError(f"graph JSON: unknown value {value['enum']!r}")
            return getattr(enums, kind)[member]
        raise ValueError(f"graph JSON: unknown parameter {value!r}")
    return value


def describe_graph(graph: pygraph) -> dict[str, Any]:
    """The structure of a graph: context, tensors in the order of creation, nodes in order of execution."""
    context = graph.context
    return {
        "json_version": JSON_VERSION,
        "context": {
            "name": context.name,
            **{key: getattr(context, key).name for key in _CONTEXT_DTYPES},
            **{key: getattr(context, key) for key in _CONTEXT_OPTIONS},
        },
        "tensors": [_describe_tensor(tensor) for tensor in graph._tensors],
        "nodes": [
            {
                "name": node.name,
                "type": node.node_type.name,
                "op": node.op,
                "compute_data_type": node.compute_data_type.name,
                "inputs": {port: tensor.uid for port, tensor in node.inputs.items()},
                "outputs": {port: tensor.uid for port, tensor in node.outputs.items()},
                "params": {key: _encode(value) for key, value in node.params.items()},
            }
            for node in graph.nodes
        ],
    }


def _describe_tensor(tensor: Tensor) -> dict[str, Any]:
    data: dict[str, Any] = {
        "uid": tensor.uid,
        "name": tensor.name,
        "dim": None if tensor.dim is None else list(tensor.dim),
        "stride": None if tensor.stride is None else list(tensor.stride),
        "data_type": tensor.data_type.name,
        "is_virtual": tensor.is_virtual,
        "is_pass_by_value": tensor.is_pass_by_value,
        "assigned": [key for key in ("dim", "stride", "data_type", "uid") if getattr(tensor, f"{key}_assigned")],
    }
    if tensor.reordering_type is not tensor_reordering.NONE:
        data["reordering_type"] = tensor.reordering_type.name
    if tensor.ragged_offset is not None:
        data["ragged_offset_uid"] = tensor.ragged_offset.uid
    if tensor.ragged_offset_multiplier != 1:
        data["ragged_offset_multiplier"] = tensor.ragged_offset_multiplier
    if tensor.alignment_value != 1:
        data["alignment_value"] = tensor.alignment_value
    if tensor.scalar_kind is not None:
        data["scalar_value"] = _encode(tensor.scalar_value)
        data["scalar_type"] = tensor.scalar_kind.name
    return data


def restore_graph(graph: pygraph, data: Mapping[str, Any]) -> None:
    """Fill an empty graph from :func:`describe_graph`. ValueError when the data is no graph."""
    try:
        if data["json_version"] != JSON_VERSION:
            raise ValueError(f"graph JSON: version {data['json_version']!r} is not supported, this package reads {JSON_VERSION!r}")
        context = data["context"]
        graph._context.name = context["name"]
        for key in _CONTEXT_DTYPES:
            setattr(graph._context, key, data_type[context[key]])
        for key in _CONTEXT_OPTIONS:
            setattr(graph._context, key, context[key])
        for entry in data["tensors"]:
            _restore_tensor(graph, entry)
        tensors = graph._by_uid
        for entry in data["tensors"]:
            if "ragged_offset_uid" in entry:
                tensors[entry["uid"]]._ragged_offset = tensors[entry["ragged_offset_uid"]]
        for entry in data["nodes"]:
            node = Node(
                entry["name"],
                NodeType[entry["type"]],
                data_type[entry["compute_data_type"]],
                op=entry["op"],
                inputs={port: tensors[uid] for port, uid in entry["inputs"].items()},
                params={key: _decode(value) for key, value in entry["params"].items()},
            )
            for port, uid in entry["outputs"].items():
                node.outputs[port] = tensors[uid]
                tensors[uid].producer = (node, port)
            graph._nodes.append(node)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"graph JSON: damaged or not a graph ({type(error).__name__}: {error})") from error


def _restore_tensor(graph: pygraph, entry: Mapping[str, Any]) -> None:
    tensor = Tensor(graph, entry["name"], is_virtual=entry["is_virtual"], is_pass_by_value=entry["is_pass_by_value"])
    uid = entry["uid"]
    if uid in graph._by_uid:
        raise ValueError(f"graph JSON: uid {uid} is given to two tensors, '{graph._by_uid[uid].name}' and '{tensor.name}'")
    tensor._uid = uid
    graph._by_uid[uid] = tensor
    graph._tensors.append(tensor)
    if entry["dim"] is not None:
        tensor._dim = check_dim(entry["dim"], tensor.name)
    if entry["stride"] is not None:
        tensor._stride = check_stride(entry["stride"], tensor.name)
    dtype = data_type[entry["data_type"]]
    tensor._data_type = None if dtype is data_type.NOT_SET else dtype
    for key in entry["assigned"]:
        setattr(tensor, f"{key}_assigned", True)
    tensor._reordering_type = tensor_reordering[entry.get("reordering_type", "NONE")]
    tensor._ragged_offset_multiplier = entry.get("ragged_offset_multiplier", 1)
    tensor._alignment_value = entry.get("alignment_value", 1)
    if "scalar_type" in entry:
        tensor.scalar_kind = scalar_type[entry["scalar_type"]]
        tensor.scalar_value = _decode(entry["scalar_value"])


def structure_key(graph: pygraph) -> int:
    """A 63-bit hash of the graph's structure. Names do not count."""
    data = describe_graph(graph)
    data["context"].pop("name")
    for entry in [*data["tensors"], *data["nodes"]]:
        entry.pop("name")
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
