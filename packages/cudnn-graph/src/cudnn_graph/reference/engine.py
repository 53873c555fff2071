"""The reference engines: support checks and the walk over the nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cudnn_graph.dtypes import bits, torch_dtype
from cudnn_graph.engines.base import GEMM_REFERENCE_ENGINE_ID, REFERENCE_ENGINE_ID, CompiledPlan, Engine, ExecutionContext, PlanConfig
from cudnn_graph.enums import behavior_note, data_type, moe_grouped_matmul_mode, tensor_reordering
from cudnn_graph.errors import describe
from cudnn_graph.infer.moe import group_count
from cudnn_graph.nodes import Node, NodeType

if TYPE_CHECKING:
    import torch

    from cudnn_graph.graph import pygraph
    from cudnn_graph.tensor import Tensor

# Ports whose elements are indices: they keep their integer type.
_INDEX_PORTS = frozenset({"FIRST_TOKEN_OFFSET", "TOKEN_INDEX", "TOKEN_KS", "GROUP_OFFSET"})
# Nodes that move elements without computing: they keep the input's type, so that no integer passes through a float.
_MOVES = frozenset({NodeType.RESHAPE, NodeType.SLICE, NodeType.TRANSPOSE, NodeType.CONCATENATE})

_PRODUCTS = (NodeType.MATMUL, NodeType.POINTWISE)


def _decline_tensor(tensor: Tensor, node: Node, port: str) -> None:
    if tensor.ragged_offset is not None:
        raise NotImplementedError(f"tensor {describe(tensor)} has a ragged offset")
    swizzled_scale = tensor.reordering_type is tensor_reordering.F8_128x4 and node.node_type is NodeType.BLOCK_SCALE_DEQUANTIZE and port == "DESCALE"
    if tensor.reordering_type is not tensor_reordering.NONE and not swizzled_scale:
        raise NotImplementedError(f"tensor {describe(tensor)} is stored in {tensor.reordering_type.name} order")
    if swizzled_scale and (tensor.dim[-2] % 128 or tensor.dim[-1] % 4):
        raise NotImplementedError(f"tensor {describe(tensor)} in F8_128x4 order needs rows in multiples of 128 and columns in multiples of 4")
    if tensor.data_type.name in ("INT8x4", "UINT8x4", "INT8x32", "FAST_FLOAT_FOR_FP8", "FP8_E5M3", "INT4"):
        raise NotImplementedError(f"tensor {describe(tensor)}: torch has no dtype for {tensor.data_type.name}")


def _decline_node(node: Node) -> None:
    """NotImplementedError with the reason when the reference has no arithmetic for a node."""
    kind = node.node_type
    if kind in (NodeType.CONV_FPROP, NodeType.CONV_DGRAD, NodeType.CONV_WGRAD) and len(node.inputs["DY" if kind is NodeType.CONV_DGRAD else "X"].dim) > 5:
        raise NotImplementedError(f"node '{node.name}': convolutions have at most 3 spatial axes here")
    if any(port.startswith("PEER_STAT") for port in node.inputs):
        raise NotImplementedError(f"node '{node.name}': peer_stats combine several devices, which one process in plain torch does not")
    if "GROUP_OFFSET" in node.inputs:
        raise NotImplementedError(f"node '{node.name}': group_offset")
    if kind is NodeType.INSTANCENORM_BWD and "MEAN" not in node.inputs:
        raise NotImplementedError(f"node '{node.name}': instancenorm_backward needs mean and inv_variance here")
    if kind is NodeType.BLOCK_SCALE_DEQUANTIZE and node.params["is_negative_scale"]:
        raise NotImplementedError(f"node '{node.name}': is_negative_scale")
    if kind is NodeType.BLOCK_SCALE_QUANTIZE and node.outputs["Y"].data_type.name not in ("FP8_E4M3", "FP8_E5M2", "FP4_E2M1"):
        raise NotImplementedError(f"node '{node.name}': block_scale_quantize writes FP8_E4M3, FP8_E5M2 or FP4_E2M1, not {node.outputs['Y'].data_type.name}")
    if kind is NodeType.MOE_GROUPED_MATMUL and node.params["mode"] is moe_grouped_matmul_mode.COMBINE:
        raise NotImplementedError(f"node '{node.name}': COMBINE mode")
    if kind in (NodeType.MOE_GROUPED_MATMUL, NodeType.MOE_GROUPED_MATMUL_BWD):
        weight = node.inputs["WEIGHT"] if kind is NodeType.MOE_GROUPED_MATMUL else node.outputs["dweight"]
        groups, _ = group_count(node.inputs["FIRST_TOKEN_OFFSET"].dim[0], weight.dim[0])
        if groups != weight.dim[0]:
            raise NotImplementedError(
                f"node '{node.name}': {groups} groups for {weight.dim[0]} experts; which expert serves which group is not settled for more groups than experts"
            )


def _rules() -> dict[NodeType, Callable[[Node, Any], Any]]:
    from cudnn_graph.reference import linear, norm, structural

    return {
        NodeType.MATMUL: linear.matmul,
        NodeType.CONV_FPROP: linear.conv_fprop,
        NodeType.CONV_DGRAD: linear.conv_dgrad,
        NodeType.CONV_WGRAD: linear.conv_wgrad,
        NodeType.GENSTATS: linear.genstats,
        NodeType.REDUCTION: linear.reduction,
        NodeType.MOE_GROUPED_MATMUL: linear.moe_grouped_matmul,
        NodeType.MOE_GROUPED_MATMUL_BWD: linear.moe_grouped_matmul_bwd,
        NodeType.RMSNORM: norm.forward,
        NodeType.LAYERNORM: norm.forward,
        NodeType.ADALAYERNORM: norm.forward,
        NodeType.INSTANCENORM: norm.forward,
        NodeType.BATCHNORM: norm.batchnorm,
        NodeType.BATCHNORM_INFERENCE: norm.batchnorm_inference,
        NodeType.RMSNORM_BWD: norm.backward,
        NodeType.LAYERNORM_BWD: norm.backward,
        NodeType.ADALAYERNORM_BWD: norm.backward,
        NodeType.INSTANCENORM_BWD: norm.backward,
        NodeType.BATCHNORM_BWD: norm.backward,
        NodeType.RESHAPE: structural.reshape,
        NodeType.SLICE: structural.slice_,
        NodeType.TRANSPOSE: structural.transpose,
        NodeType.CONCATENATE: structural.concatenate,
        NodeType.BLOCK_SCALE_QUANTIZE: structural.block_scale_quantize,
        NodeType.BLOCK_SCALE_DEQUANTIZE: structural.block_scale_dequantize,
    }


class ReferencePlan(CompiledPlan):
    """A walk over the nodes in plain torch, on CPU or CUDA tensors."""

    def __init__(self, graph: pygraph) -> None:
        self._graph = graph
        self._rules = _rules()
        tensors = {t.uid: t for node in graph.nodes for ports in (node.inputs, node.outputs) for t in ports.values()}
        self._constants = [t for t in tensors.values() if t.scalar_value is not None]
        self._inputs = [t for t in tensors.values() if t.producer is None and t.scalar_value is None]
        self._outputs = [t for t in tensors.values() if t.producer is not None and not t.is_virtual]

    def serialize(self) -> None:
        """Nothing is compiled: the structure of the graph is all there is to store."""
        raise NotImplementedError("the reference engine has no compiled kernels")

    def execute(self, variant_pack: Mapping[int, Any], ctx: ExecutionContext) -> None:
        """Read every input, run every node, and only then write the outputs, so that an output may share memory with an input."""
        import torch

        if ctx.override:
            ReferencePlan(_reshaped(self._graph, ctx.override)).execute(variant_pack, ExecutionContext(ctx.handle, ctx.stream, ctx.workspace))
            return
        device = _device_of(variant_pack, ctx)
        with torch.no_grad(), _on_stream(device, ctx):
            values: dict[int, torch.Tensor] = {t.uid: torch.full(t.dim, t.scalar_value, dtype=torch_dtype(t.data_type), device=device) for t in self._constants}
            for tensor in self._inputs:
                values[tensor.uid] = _read_input(tensor, variant_pack[tensor.uid], device)
            read_from = {values[t.uid].untyped_storage().data_ptr() for t in self._inputs}
            for node in self._graph.nodes:
                self._run_node(node, values)
            results = []
            for tensor in self._outputs:
                value = values[tensor.uid]
                # A moved or converted input may still be a view of the caller's memory, which the first write can change.
                results.append(value.clone() if value.untyped_storage().data_ptr() in read_from else value)
            for tensor, value in zip(self._outputs, results, strict=True):
                _write_output(tensor, variant_pack[tensor.uid], value, device)

    def _run_node(self, node: Node, values: dict[int, torch.Tensor]) -> None:
        from cudnn_graph.reference import pointwise
        from cudnn_graph.reference.values import compute_dtype, round_to, to_compute

        compute = compute_dtype(node.compute_data_type)
        operands = {}
        for port, tensor in node.inputs.items():
            value = values[tensor.uid]
            if node.node_type is NodeType.BLOCK_SCALE_DEQUANTIZE and tensor.reordering_type is tensor_reordering.F8_128x4:
                from cudnn_graph.reference.structural import unswizzle_128x4

                value = unswizzle_128x4(value, tensor)
            operands[port] = value if port in _INDEX_PORTS or node.node_type in _MOVES else to_compute(value, compute)
        if node.node_type is NodeType.POINTWISE:
            results = {"OUT_0": self._pointwise(node, operands, pointwise)}
        else:
            results = self._rules[node.node_type](node, operands)
        for port, tensor in node.outputs.items():
            values[tensor.uid] = round_to(results[port], tensor.data_type)

    def _pointwise(self, node: Node, operands: dict[str, torch.Tensor], pointwise: Any) -> torch.Tensor:
        dim = node.outputs["OUT_0"].dim
        aligned = []
        for value in operands.values():
            # A scalar may have more axes than the result.
            value = value.reshape([1] * len(dim)) if value.dim() > len(dim) else value
            aligned.append(value)
        result = pointwise.apply(node.params["mode"], aligned, node.params)
        return result.expand(dim)


def _device_of(pack: Mapping[int, Any], ctx: ExecutionContext) -> torch.device:
    import torch

    from cudnn.tensors import metadata

    host = False
    for value in pack.values():
        if isinstance(value, torch.Tensor) and value.is_cuda:
            return value.device
        if not isinstance(value, (torch.Tensor, int, float)) and metadata(value).device_type == "cuda":
            return torch.device("cuda", metadata(value).device_index or 0)
        host = host or (isinstance(value, torch.Tensor) and value.dim() > 0 and value.numel() > 1)
    if not host and ctx.handle is not None and any(type(value) is int for value in pack.values()):
        return torch.device("cuda", ctx.handle.ordinal or 0)
    return torch.device("cpu")


def _on_stream(device: torch.device, ctx: ExecutionContext) -> Any:
    from contextlib import nullcontext

    if device.type != "cuda" or ctx.handle is None:
        return nullcontext()
    from cudnn.streams import stream_context
    from cudnn_graph.handle import get_stream

    return stream_context(get_stream(ctx.handle) or 0, device)


def _bytes_of(tensor: Tensor) -> int:
    from cudnn_graph.buffers import span_elements

    return (span_elements(tensor.dim, tensor.stride) * bits(tensor.data_type) + 7) // 8


def _read_input(tensor: Tensor, value: Any, device: torch.device) -> torch.Tensor:
    import torch

    from cudnn_graph.reference.values import as_torch, read

    if isinstance(value, float) or isinstance(value, bool):
        return torch.full(tensor.dim, value, dtype=torch_dtype(tensor.data_type), device=device)
    result = read(as_torch(value, tensor.data_type, _bytes_of(tensor), device), tensor.dim, tensor.stride, tensor.data_type)
    return result if result.device == device else result.to(device)


def _write_output(tensor: Tensor, buffer: Any, value: torch.Tensor, device: torch.device) -> None:
    from cudnn_graph.reference.values import as_torch, write

    write(as_torch(buffer, tensor.data_type, _bytes_of(tensor), device), tensor.dim, tensor.stride, tensor.data_type, value)


def _reshaped(graph: pygraph, override: Mapping[int, tuple]) -> pygraph:
    """A copy of the graph with other dims on some tensors; everything that was inferred is inferred again."""
    from copy import deepcopy

    copy = deepcopy(graph)
    for uid, (dim, stride) in override.items():
        copy.find_tensor(uid).set_dim(dim).set_stride(stride)
    copy.validate()
    return copy


class ReferenceEngine(Engine):
    """Every node type in plain torch. Declines by NotImplementedError."""

    name = "reference"
    engine_id = REFERENCE_ENGINE_ID
    behavior_notes: tuple[behavior_note, ...] = ()

    def unavailable(self) -> str | None:
        from cudnn.datatypes import is_torch_available

        return None if is_torch_available() else "torch is not installed"

    def check_support(self, graph: pygraph) -> None:
        """NotImplementedError names the node or tensor that has no arithmetic here; ImportError when torch is missing."""
        reason = self.unavailable()
        if reason is not None:
            raise ImportError(f"the reference engine runs on torch: {reason}")
        for node in graph.nodes:
            self._check_node(node)
            for ports in (node.inputs, node.outputs):
                for port, tensor in ports.items():
                    _decline_tensor(tensor, node, port)

    def _check_node(self, node: Node) -> None:
        if node.node_type is not NodeType.POINTWISE and node.node_type not in _rules():
            raise NotImplementedError(f"node '{node.name}': {node.node_type.name}")
        _decline_node(node)

    def build_plan(self, graph: pygraph, config: PlanConfig, ctx: ExecutionContext) -> ReferencePlan:
        """Nothing is compiled."""
        return ReferencePlan(graph)


class GemmReferenceEngine(ReferenceEngine):
    """Graphs of MATMUL and POINTWISE nodes in plain torch: batch dims broadcast, products in the compute type with TF32 off, virtual tensors rounded to
    their declared type. Any other node, ragged or reordered tensors: NotImplementedError from :meth:`check_support`."""

    name = "gemm_reference"
    engine_id = GEMM_REFERENCE_ENGINE_ID

    def _check_node(self, node: Node) -> None:
        if node.node_type not in _PRODUCTS:
            raise NotImplementedError(f"node '{node.name}': {node.node_type.name} is neither MATMUL nor POINTWISE")

    def check_support(self, graph: pygraph) -> None:
        """NotImplementedError names the first node or tensor outside the engine's scope."""
        super().check_support(graph)
        for tensor in graph.tensors.values():
            if tensor.data_type in (data_type.FP4_E2M1, data_type.FP8_E8M0):
                raise NotImplementedError(f"tensor {describe(tensor)} belongs to a block-scaled format ({tensor.data_type.name})")


def run(graph: pygraph, tensor_dict: Mapping[Any, Any]) -> None:
    """Execute a graph in plain torch whatever engine it was planned for, with the buffers that ``graph.execute`` takes; validates it when needed.

    Raises NotImplementedError for a node without arithmetic here, ValueError for buffers that do not fit.
    """
    from cudnn_graph.engines.registry import reference_engine_for
    from cudnn_graph.executing import _check_buffers

    graph.validate()
    engine = reference_engine_for(graph)
    pack = graph._variant_pack(graph._table, tensor_dict, None)
    _check_buffers(graph._table, pack)
    engine.build_plan(graph, engine.propose(graph, ())[0], ExecutionContext()).execute(pack, ExecutionContext())
