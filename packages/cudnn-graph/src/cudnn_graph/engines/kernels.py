"""Fused kernels of installed families as an engine.

A subgraph that one of them computes is offered as a plan. The families are reached through cudnn's registry by public name alone: none is imported here, and
one that is not installed is a reason to decline. With ``heur_mode.OPENSOURCE`` in front these plans come before cuDNN's, otherwise after them.

| plan | graph | operation |
|---|---|---|
| kernel_gemm_swiglu | swish(x Wg) * (x Wu), all virtual but the result | ``cudnn.GemmSwiglu`` with separate gate and up weights |
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cudnn_graph.dtypes import bits, torch_dtype
from cudnn_graph.engines.base import KERNEL_ENGINE_ID, CompiledPlan, Engine, ExecutionContext, PlanConfig
from cudnn_graph.enums import data_type, heur_mode
from cudnn_graph.errors import cudnnGraphNotSupportedError, describe
from cudnn_graph.nodes import Node, NodeType
from cudnn_graph.tensor import Tensor

if TYPE_CHECKING:
    from cudnn_graph.graph import pygraph

OPERATION = "GemmSwiglu"


class View(NamedTuple):
    """How a kernel sees a tensor of the graph: extents and strides in elements."""

    tensor: Tensor
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class SwigluMatch(NamedTuple):
    """The operands of swish(x Wg) * (x Wu) as (rows, columns, batch)."""

    x: View
    gate: View
    up: View
    out: View

    @property
    def rows(self) -> int:
        return self.out.shape[0]

    @property
    def columns(self) -> int:
        return self.out.shape[1]

    @property
    def batches(self) -> int:
        return self.out.shape[2]


def match_swiglu(graph: pygraph) -> SwigluMatch:
    """The operands when the graph is swish(x Wg) * (x Wu). NotImplementedError says what is different."""
    nodes = graph.nodes
    kinds = sorted(node.op for node in nodes)
    if kinds not in (["matmul", "matmul", "mul", "swish"], ["matmul", "matmul", "scale", "swish"]):
        raise NotImplementedError(f"no kernel for the nodes {', '.join(node.op for node in nodes)}; there is one for swish(x Wg) * (x Wu)")
    product = next(node for node in nodes if node.op in ("mul", "scale"))
    swish = next(node for node in nodes if node.op == "swish")
    if swish.params.get("swish_beta", 1.0) != 1.0:
        raise NotImplementedError(f"swish_beta {swish.params['swish_beta']}: the kernel has 1")
    factors = list(product.inputs.values())
    activated = swish.outputs["OUT_0"]
    if activated not in factors or factors[0] is factors[1]:
        raise NotImplementedError("the product does not multiply the swish with the other matmul")
    gate_node = _producer(swish.inputs["IN_0"])
    up_node = _producer(next(t for t in factors if t is not activated))
    if gate_node is up_node or gate_node.inputs["A"] is not up_node.inputs["A"]:
        raise NotImplementedError("the two matmuls do not share their first operand")
    out = product.outputs["OUT_0"]
    for tensor in (activated, gate_node.outputs["C"], up_node.outputs["C"]):
        if not tensor.is_virtual:
            raise NotImplementedError(f"intermediate {describe(tensor)} is an output of the graph; the kernel keeps it to itself")
        if tensor.data_type is not data_type.FLOAT:
            raise NotImplementedError(f"intermediate {describe(tensor)} is {tensor.data_type.name}; the kernel keeps FLOAT")
    if any(node.compute_data_type is not data_type.FLOAT for node in nodes):
        raise NotImplementedError("the kernel computes in FLOAT")
    return _views(gate_node.inputs["A"], gate_node.inputs["B"], up_node.inputs["B"], out)


def _producer(tensor: Tensor) -> Node:
    node = tensor.producer[0] if tensor.producer is not None else None
    if node is None or node.node_type is not NodeType.MATMUL:
        raise NotImplementedError(f"{describe(tensor)} is not the result of a matmul")
    return node


def _views(x: Tensor, gate: Tensor, up: Tensor, out: Tensor) -> SwigluMatch:
    """Batch last; rows of several batches joined where one weight serves them all."""
    if any(len(t.dim) not in (2, 3) for t in (x, gate, up, out)):
        raise NotImplementedError("the kernel takes operands of rank 2 or 3")
    dims = {t: ((1,) * (3 - len(t.dim)) + t.dim, (0,) * (3 - len(t.dim)) + t.stride) for t in (x, gate, up, out)}
    batches = max(dims[t][0][0] for t in (x, gate, up))
    if batches > 1 and dims[gate][0][0] == dims[up][0][0] == 1:
        for tensor in (x, out):
            dim, stride = dims[tensor]
            if dim[0] != batches or stride[0] != dim[1] * stride[1]:
                raise NotImplementedError(f"the rows of {describe(tensor)} with stride {list(tensor.stride)} do not follow each other across batches")
            dims[tensor] = ((1, dim[0] * dim[1], dim[2]), (0, stride[1], stride[2]))
        batches = 1
    elif any(dims[t][0][0] != batches for t in (x, gate, up)):
        raise NotImplementedError(f"batch dims of {describe(x)}, {describe(gate)}, {describe(up)} differ; the kernel broadcasts none")

    def view(tensor: Tensor, first: int, second: int) -> View:
        dim, stride = dims[tensor]
        step = stride[0] if batches > 1 else dim[1] * dim[2]
        return View(tensor, (dim[first], dim[second], batches), (stride[first], stride[second], step))

    return SwigluMatch(view(x, 1, 2), view(gate, 2, 1), view(up, 2, 1), view(out, 1, 2))


class KernelEngine(Engine):
    """Plans that run a fused kernel of an installed family."""

    name = "kernels"
    engine_id = KERNEL_ENGINE_ID

    def check_support(self, graph: pygraph) -> None:
        """NotImplementedError when no kernel computes the graph, ImportError when its family is not installed; reads metadata only."""
        self._operation(graph, match_swiglu(graph))

    def propose(self, graph: pygraph, modes: Sequence[heur_mode]) -> list[PlanConfig]:
        """One plan; its workspace holds gate and up before the activation, which the kernel writes as well."""
        match = match_swiglu(graph)
        size = _scratch_elements(match) * bits(match.out.tensor.data_type) // 8
        return [PlanConfig(self, name="kernel_gemm_swiglu", workspace_size=size, payload=match)]

    def build_plan(self, graph: pygraph, config: PlanConfig, ctx: ExecutionContext) -> CompiledPlan:
        """Compile the kernel, or take it from the cache."""
        match = config.payload if config.payload is not None else match_swiglu(graph)
        operation, device = self._operation(graph, match)
        operation.compile()
        return SwigluPlan(operation, match, device)

    def _operation(self, graph: pygraph, match: SwigluMatch) -> tuple[Any, str]:
        import cudnn
        from cudnn.tensor_desc import TensorDesc

        # ImportError names the distribution to install.
        kind = getattr(cudnn, OPERATION)
        device = _device(graph)

        def desc(name: str, view: View, dtype: data_type) -> Any:
            order = tuple(sorted(range(3), key=lambda axis: (view.stride[axis], view.shape[axis])))
            return TensorDesc(torch_dtype(dtype), view.shape, view.stride, order, device, name=name)

        scratch = _scratch_view(match)
        try:
            operation = kind(
                desc("x", match.x, match.x.tensor.data_type),
                (desc("gate", match.gate, match.gate.tensor.data_type), desc("up", match.up, match.up.tensor.data_type)),
                desc("ab12", scratch, match.out.tensor.data_type),
                desc("out", match.out, match.out.tensor.data_type),
                glu_layout="separate",
            )
            operation.check_support()
        except (ValueError, RuntimeError) as error:
            raise cudnnGraphNotSupportedError(f"{OPERATION} does not take the operands: {error}") from error
        return operation, device


def _device(graph: pygraph) -> str:
    from cudnn_graph.engines.registry import graph_device_type

    if graph_device_type(graph)[0] == "cpu":
        return "cpu"
    if graph.context.handle is not None and graph.context.handle.ordinal is not None:
        return f"cuda:{graph.context.handle.ordinal}"
    made_from = next((t.device for t in graph.tensors.values() if t.device is not None and t.device.startswith("cuda")), None)
    if made_from is not None:
        return made_from
    torch = sys.modules.get("torch")
    return f"cuda:{torch.cuda.current_device()}" if torch is not None and torch.cuda.is_available() else "cuda:0"


def _scratch_elements(match: SwigluMatch) -> int:
    return 2 * match.rows * match.columns * match.batches


def _scratch_view(match: SwigluMatch) -> View:
    rows, columns = match.rows, 2 * match.columns
    major = match.out.stride
    stride = (1, rows, rows * columns) if major[0] == 1 and major[1] != 1 else (columns, 1, rows * columns)
    return View(match.out.tensor, (rows, columns, match.batches), stride)


class SwigluPlan(CompiledPlan):
    """A compiled ``cudnn.GemmSwiglu`` on views of the graph's tensors."""

    def __init__(self, operation: Any, match: SwigluMatch, device: str) -> None:
        self._operation = operation
        self._match = match
        self._dtype = match.out.tensor.data_type
        self._scratch = _scratch_view(match)
        self._size = _scratch_elements(match) * bits(self._dtype) // 8
        self._is_cuda = device.startswith("cuda")
        self.device_type = "cuda" if self._is_cuda else None

    def get_workspace_size(self, override: Mapping[int, tuple] | None = None) -> int:
        """Bytes for gate and up before the activation."""
        return self._size

    def execute(self, variant_pack: Mapping[int, Any], ctx: ExecutionContext) -> None:
        """Launch the kernel on the context's stream. ValueError for operands or a workspace that do not fit."""
        import torch

        from cudnn_graph.buffers import BufferSpec
        from cudnn_graph.reference.values import as_torch

        if ctx.override is not None:
            raise ValueError("plan kernel_gemm_swiglu takes no override shapes; build another graph")
        device = torch.device("cuda", ctx.handle.ordinal or 0) if self._is_cuda else torch.device("cpu")

        def seen(view: View) -> torch.Tensor:
            memory = as_torch(variant_pack[view.tensor.uid], view.tensor.data_type, BufferSpec(view.tensor).span_bytes, device)
            return torch.as_strided(memory, view.shape, view.stride, memory.storage_offset())

        m = self._match
        with torch.no_grad():
            self._operation.execute(
                a_tensor=seen(m.x),
                b_tensor=(seen(m.gate), seen(m.up)),
                ab12_tensor=self._scratch_tensor(ctx.workspace, device),
                c_tensor=seen(m.out),
                current_stream=ctx.stream if self._is_cuda else None,
            )

    def _scratch_tensor(self, workspace: Any, device: Any) -> Any:
        import torch

        from cudnn_graph.reference.values import as_torch

        dtype = torch_dtype(self._dtype)
        if workspace is None:
            if self._is_cuda:
                raise ValueError(f"plan kernel_gemm_swiglu needs a workspace of {self._size} bytes")
            return torch.empty_strided(self._scratch.shape, self._scratch.stride, dtype=dtype)
        memory = as_torch(workspace, data_type.UINT8, self._size, device)
        if not isinstance(workspace, int) and memory.numel() * memory.element_size() < self._size:
            raise ValueError(f"plan kernel_gemm_swiglu needs a workspace of {self._size} bytes, the one given holds {memory.numel() * memory.element_size()}")
        flat = memory.reshape(-1).view(torch.uint8)[: self._size].view(dtype)
        return torch.as_strided(flat, self._scratch.shape, self._scratch.stride, flat.storage_offset())
