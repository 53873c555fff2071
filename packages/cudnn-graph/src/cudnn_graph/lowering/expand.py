# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""IR nodes -> steps: one step per node, except where the library has no operation, or a worse one, for the node.

- ``batchnorm_inference`` is only accepted in front of a batchnorm gradient; elsewhere it becomes subtract, multiply, multiply, add.
- BOOLEAN tensors are INT8 for the library, with 0 and 1 in them. With memory they have one byte an element, as torch's have, while the library packs eight
  elements of its BOOLEAN into a byte (it has byte-sized ones from 9.25 on only). Inside a graph its BOOLEAN does not compile beside 32-bit tensors.
- Logical operations compute in BOOLEAN whatever the graph computes in: the library takes no other type.
- ``slice`` and ``transpose`` exist from 9.22 on; below that a slice or transpose of a graph input becomes a view: the same memory with an offset and other strides.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from math import gcd
from typing import TYPE_CHECKING, Any

from cudnn_graph.constants import REORDERING
from cudnn_graph.dtypes import bits
from cudnn_graph.enums import data_type, reshape_mode, scalar_type
from cudnn_graph.errors import cudnnGraphNotSupportedError, describe
from cudnn_graph.library import version_string
from cudnn_graph.lowering.records import DEFAULT_ALIGNMENT, Alias, Step, Value
from cudnn_graph.nodes import Node, NodeType

if TYPE_CHECKING:
    from cudnn_graph.graph import pygraph
    from cudnn_graph.tensor import Tensor

VIEW_OPERATIONS_SINCE = 92200
CONSTANTS_SINCE = 92200
RAGGED_MULTIPLIER_SINCE = 92400
# 9.19 refuses boundaries, and several groups for one expert, as bad parameters.
MOE_BOUNDARIES_SINCE = 92200

# Oldest library with the operation, for messages; the node types left out work with every version 9.
SINCE: dict[NodeType, int] = {
    NodeType.ADALAYERNORM: 90900,
    NodeType.ADALAYERNORM_BWD: 90900,
    NodeType.CONCATENATE: 90700,
    NodeType.BLOCK_SCALE_QUANTIZE: 90700,
    NodeType.BLOCK_SCALE_DEQUANTIZE: 90700,
    NodeType.MOE_GROUPED_MATMUL: 91500,
    NodeType.MOE_GROUPED_MATMUL_BWD: 92200,
}


def require_version(version: int, since: int, what: str) -> None:
    """cudnnGraphNotSupportedError when the library is older than ``since``."""
    if version < since:
        raise cudnnGraphNotSupportedError(f"{what} needs cuDNN {version_string(since)} or newer; the loaded library is {version_string(version)}")


class Expansion:
    """Turns the nodes of one validated graph into steps for a library of one version."""

    def __init__(self, graph: pygraph, version: int) -> None:
        self.version = version
        self.steps: list[Step] = []
        self._graph = graph
        self._values: dict[int, Value] = {}
        self._truths: dict[int, Value] = {}
        self._zero: Value | None = None
        self._free_uids = count(max(graph.tensors, default=0) + 1)

    def run(self) -> list[Step]:
        """All steps in an order of execution."""
        for node in self._graph.nodes:
            require_version(self.version, SINCE.get(node.node_type, 0), f"node '{node.name}' ({node.op})")
            _EXPANDERS.get(node.node_type, Expansion._one_step)(self, node)
        return self.steps

    # Values.

    def value(self, tensor: Tensor) -> Value:
        """The value of an IR tensor, made once."""
        value = self._values.get(tensor.uid)
        if value is None:
            value = self._values[tensor.uid] = self._make_value(tensor)
        return value

    def _make_value(self, tensor: Tensor) -> Value:
        if tensor.dim is None or tensor.stride is None:
            raise ValueError(f"tensor {describe(tensor)} has no dims or strides; validate the graph first")
        dtype = tensor.data_type
        if dtype is data_type.NOT_SET:
            if not tensor.is_virtual:
                raise ValueError(f"tensor {describe(tensor)} has no data type; set one on it, or io_data_type on the graph")
            dtype = data_type.FLOAT
        # A host template of several elements is marked pass-by-value in the IR, but the library only reads single elements from the host.
        by_value = tensor.is_pass_by_value and all(extent == 1 for extent in tensor.dim)
        is_constant = tensor.scalar_kind is scalar_type.COMPILE_TIME_CONST
        if is_constant and self.version < CONSTANTS_SINCE:
            raise RuntimeError(
                f"tensor {describe(tensor)} is a COMPILE_TIME_CONST, which needs cuDNN {version_string(CONSTANTS_SINCE)} or newer; the loaded library is "
                f"{version_string(self.version)}: use cudnn.scalar_type.RUNTIME_PARAM"
            )
        if tensor.ragged_offset is not None and tensor.ragged_offset_multiplier != 1:
            require_version(self.version, RAGGED_MULTIPLIER_SINCE, f"ragged_offset_multiplier of tensor {describe(tensor)}")
        return Value(
            tensor.uid,
            tensor.name,
            tensor.dim,
            tensor.stride,
            data_type.INT8 if dtype is data_type.BOOLEAN else dtype,
            is_virtual=tensor.is_virtual,
            is_by_value=by_value,
            alignment=alignment_of(tensor.dim, dtype),
            reordering=REORDERING[tensor.reordering_type],
            ragged_offset=self.value(tensor.ragged_offset) if tensor.ragged_offset is not None else None,
            ragged_multiplier=tensor.ragged_offset_multiplier,
            scalar=tensor.scalar_value,
            is_constant=is_constant,
        )

    def intermediate(self, name: str, like: Value, dtype: data_type) -> Value:
        """A fresh virtual value with the geometry of another one."""
        return Value(next(self._free_uids), name, like.dims, like.strides, dtype, is_virtual=True)

    def compute(self, node: Node) -> data_type:
        """The type a node computes in."""
        dtype = self._graph.context.node_compute_dtype(node.compute_data_type)
        return data_type.FLOAT if dtype is data_type.NOT_SET else dtype

    def pointwise(self, label: str, op: str, compute: data_type, first: Value, second: Value | None, output: Value) -> None:
        """Append one pointwise step."""
        inputs = {"IN_0": first} if second is None else {"IN_0": first, "IN_1": second}
        self.steps.append(Step(label, NodeType.POINTWISE, compute, inputs, {"OUT_0": output}, {"mode": op}))

    def is_true(self, label: str, compute: data_type, value: Value, output: Value) -> None:
        """Append the step output = (value != 0)."""
        if self._zero is None:
            self._zero = Value(
                next(self._free_uids), "zero", (1,), (1,), data_type.FLOAT, is_by_value=True, alignment=alignment_of((1,), data_type.FLOAT), scalar=0.0
            )
        # BOOLEAN is no type to compare numbers in.
        self.pointwise(label, "cmp_neq", data_type.FLOAT if compute is data_type.BOOLEAN else compute, value, self._zero, output)

    def truth(self, label: str, tensor: Tensor, any_type: bool) -> Value:
        """The value of a tensor as 0 or 1, in INT8 or (``any_type``) in whatever type it has: itself, or whether it differs from 0."""
        value = self.value(tensor)
        if _holds_truth(tensor) and (any_type or value.dtype is data_type.INT8):
            return value
        found = self._truths.get(value.uid)
        if found is None:
            found = self._truths[value.uid] = self.intermediate(label, value, data_type.INT8)
            self.is_true(label, data_type.DOUBLE if value.dtype is data_type.DOUBLE else data_type.FLOAT, value, found)
        return found

    # Nodes.

    def _pointwise(self, node: Node) -> None:
        mode = node.params["mode"]
        compute = self.compute(node)
        output = self.value(node.outputs["OUT_0"])
        if mode.startswith("logical_"):
            inputs = {port: self.truth(f"{node.name}.{port.lower()}", tensor, False) for port, tensor in node.inputs.items()}
            result = output if output.dtype is data_type.INT8 else self.intermediate(f"{node.name}.truth", output, data_type.INT8)
            self.steps.append(Step(node.name, node.node_type, data_type.BOOLEAN, inputs, {"OUT_0": result}, node.params))
            if result is not output:
                self.pointwise(f"{node.name}.number", "identity", data_type.FLOAT, result, None, output)
            return
        inputs = {port: self.value(tensor) for port, tensor in node.inputs.items()}
        if mode == "binary_select":
            inputs["IN_2"] = self.truth(f"{node.name}.mask", node.inputs["IN_2"], True)
        if node.outputs["OUT_0"].data_type is not data_type.BOOLEAN or mode.startswith("cmp_"):
            self.steps.append(Step(node.name, node.node_type, compute, inputs, {"OUT_0": output}, node.params))
        elif mode == "identity":
            self.is_true(node.name, compute, inputs["IN_0"], output)
        else:
            result = self.intermediate(f"{node.name}.number", output, data_type.FLOAT if compute is data_type.BOOLEAN else compute)
            self.steps.append(Step(node.name, node.node_type, compute, inputs, {"OUT_0": result}, node.params))
            self.is_true(f"{node.name}.truth", compute, result, output)

    def _one_step(self, node: Node) -> None:
        inputs = {port: self.value(tensor) for port, tensor in node.inputs.items()}
        outputs = {port: self.value(tensor) for port, tensor in node.outputs.items()}
        self.steps.append(Step(node.name, node.node_type, self.compute(node), inputs, outputs, node.params))

    def _batchnorm_inference(self, node: Node) -> None:
        if any(other.node_type is NodeType.BATCHNORM_BWD for other in self._graph.nodes):
            self._one_step(node)
            return
        compute = self.compute(node)
        current = self.value(node.inputs["X"])
        chain = (("sub", "MEAN"), ("mul", "INV_VARIANCE"), ("mul", "SCALE"), ("add", "BIAS"))
        for position, (op, port) in enumerate(chain):
            label = f"{node.name}.{op}_{port.lower()}"
            last = position == len(chain) - 1
            output = self.value(node.outputs["Y"]) if last else self.intermediate(label, current, compute)
            self.pointwise(label, op, compute, current, self.value(node.inputs[port]), output)
            current = output

    def _moved(self, node: Node) -> None:
        """An operation that only moves elements: the library wants one type on both sides, so an intermediate result keeps that of the input."""
        output = self.value(node.outputs["OUT_0"])
        if output.is_virtual:
            output.dtype = self.value(node.inputs["IN_0"]).dtype
        self._one_step(node)

    def _slice(self, node: Node) -> None:
        if self.version >= VIEW_OPERATIONS_SINCE:
            self._moved(node)
            return
        source = self.value(node.inputs["IN_0"])
        offset = sum(start * stride for start, stride in zip(node.params["start"], source.strides, strict=True))
        self._view(node, offset, [stride * step for stride, step in zip(source.strides, node.params["step"], strict=True)])

    def _transpose(self, node: Node) -> None:
        if self.version >= VIEW_OPERATIONS_SINCE:
            self._moved(node)
            return
        source = self.value(node.inputs["IN_0"])
        self._view(node, 0, [source.strides[axis] for axis in node.params["permutation"]])

    def _view(self, node: Node, offset: int, strides: list[int]) -> None:
        """The output of a node as a view of its input, which must have memory of its own that is complete before the graph runs."""
        tensor = node.inputs["IN_0"]
        source = self.value(tensor)
        offset_bits = offset * bits(source.dtype)
        if tensor.producer is not None and source.alias is None or source.is_by_value or source.ragged_offset is not None or offset_bits % 8:
            raise cudnnGraphNotSupportedError(
                f"node '{node.name}' ({node.op}): cuDNN {version_string(self.version)} has no such operation, and only a dense input of the graph can be viewed "
                f"instead; tensor {describe(tensor)} is not one. Needs cuDNN {version_string(VIEW_OPERATIONS_SINCE)} or newer"
            )
        start = offset_bits // 8
        root = source
        if source.alias is not None:
            root, start = source.alias.source, source.alias.offset + start
        made = node.outputs["OUT_0"]
        view = Value(
            made.uid if made.is_virtual else next(self._free_uids),
            made.name,
            made.dim,
            strides,
            source.dtype,
            alignment=gcd(root.alignment, start) if start else root.alignment,
            alias=Alias(root, start),
        )
        if made.is_virtual:
            self._values[made.uid] = view
        else:
            # A buffer of the caller's must be filled: copy the view into it.
            self.pointwise(node.name, "identity", data_type.FLOAT, view, None, self.value(made))

    def _reshape(self, node: Node) -> None:
        if node.params["reshape_mode"] is reshape_mode.LOGICAL:
            require_version(self.version, VIEW_OPERATIONS_SINCE, f"node '{node.name}' (reshape_mode LOGICAL)")
        self._moved(node)

    def _moe(self, node: Node) -> None:
        if "TOP_K_SCORES" in node.inputs or node.params["mode"].name == "COMBINE":
            raise cudnnGraphNotSupportedError(f"node '{node.name}' ({node.op}): cuDNN has no COMBINE mode and takes no top_k_scores")
        offsets, experts = node.inputs["FIRST_TOKEN_OFFSET"], node.inputs["WEIGHT"].dim[0]
        if offsets.dim[0] != experts:
            require_version(
                self.version,
                MOE_BOUNDARIES_SINCE,
                f"node '{node.name}' ({node.op}): first_token_offset {describe(offsets)} with anything but one start for each of {experts} experts",
            )
        self._one_step(node)
        step = self.steps[-1]
        for port in ("TOKEN_INDEX", "TOKEN_KS"):
            if port in step.inputs:
                step.inputs[port].line_up(1, 3)

    def _quantize(self, node: Node) -> None:
        if "GROUP_OFFSET" in node.inputs:
            raise cudnnGraphNotSupportedError(f"node '{node.name}' ({node.op}): cuDNN takes no group_offset")
        self._one_step(node)

    def _reduction(self, node: Node) -> None:
        if "GROUP_OFFSET" in node.inputs:
            require_version(self.version, 92400, f"group_offset of node '{node.name}' ({node.op})")
        self._one_step(node)


def alignment_of(dims: tuple[int, ...], dtype: data_type) -> int:
    """Bytes to which the address of a tensor must be aligned: 16, or one element where there is only one (scale factors picked out of a larger tensor)."""
    return max(1, bits(dtype) // 8) if all(extent == 1 for extent in dims) else DEFAULT_ALIGNMENT


def _holds_truth(tensor: Tensor) -> bool:
    """Whether all elements of a tensor are 0 or 1: a BOOLEAN, or what a comparison or logical operation gave, in any type."""
    if tensor.data_type is data_type.BOOLEAN:
        return True
    if tensor.producer is None or tensor.producer[0].node_type is not NodeType.POINTWISE:
        return False
    return tensor.producer[0].params["mode"].startswith(("cmp_", "logical_"))


_EXPANDERS: dict[Any, Callable[[Expansion, Node], None]] = {
    NodeType.POINTWISE: Expansion._pointwise,
    NodeType.BATCHNORM_INFERENCE: Expansion._batchnorm_inference,
    NodeType.SLICE: Expansion._slice,
    NodeType.TRANSPOSE: Expansion._transpose,
    NodeType.RESHAPE: Expansion._reshape,
    NodeType.CONCATENATE: Expansion._moved,
    NodeType.REDUCTION: Expansion._reduction,
    NodeType.MOE_GROUPED_MATMUL: Expansion._moe,
    NodeType.BLOCK_SCALE_QUANTIZE: Expansion._quantize,
}
