"""``cudnn.pygraph``: the graph IR that users build, validate, plan and execute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from cudnn_graph.builders.linear import LinearMethods
from cudnn_graph.builders.norm import NormMethods
from cudnn_graph.builders.pointwise import PointwiseMethods
from cudnn_graph.builders.structural import StructuralMethods
from cudnn_graph.context import BACKENDS, GraphContext
from cudnn_graph.dtypes import to_library_dtype
from cudnn_graph.enums import cuda_graph_retention as retention_type
from cudnn_graph.enums import scalar_type as scalar_kind
from cudnn_graph.enums import tensor_reordering
from cudnn_graph.errors import cudnnGraphNotSupportedError, describe, describe_all
from cudnn_graph.executing import ExecutionMethods
from cudnn_graph.handle import to_backend_handle
from cudnn_graph.nodes import Node
from cudnn_graph.planning import PlanningMethods
from cudnn_graph.storing import StoringMethods
from cudnn_graph.templates import template_of
from cudnn_graph.tensor import UNSET_UID, Tensor, check_dim, check_name, check_positive, check_stride


def _optional_int(value: Any, what: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{what} must be an int or None, got {value!r}")
    return value.__index__()


def _require_kind(value: Any, kind: type, what: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be a cudnn.{kind.__name__} or None, got {type(value).__name__}")


class pygraph(PointwiseMethods, LinearMethods, NormMethods, StructuralMethods, PlanningMethods, ExecutionMethods, StoringMethods):
    """A graph of operations that is described once and executed many times.

    Life cycle: tensors and node methods -> ``validate`` -> ``build_operation_graph`` -> ``create_execution_plans`` -> ``check_support`` ->
    ``build_plans`` (``build`` is all five) -> ``execute``, any number of times. A successful ``validate`` freezes the graph.

    Args:
        name: label, used in messages.
        io_data_type: type of the tensors that enter or leave the graph and have none of their own: a ``cudnn.data_type``, torch dtype or name.
        intermediate_data_type: type of virtual tensors that have none of their own.
        compute_data_type: type that nodes compute in.
        handle: a ``cudnn.Handle``; None makes a default handle for the thread and device when one is needed.
        sm_count, sm_version: plan for that many multiprocessors, for that architecture.
        kernel_cache: keeps compiled kernels between graphs of one topology; needs ``is_dynamic_shape_enabled``.
        device_property: plan for the device it describes instead of the handle's.
        is_dynamic_shape_enabled: plans whose kernels can be shared between shapes.
        is_override_shape_enabled: ``execute`` may be given other shapes.
        cuda_graph_retention: what plans keep for CUDA graphs.
        is_cuda_graph_replay_expected: hint for ranking plans.
        backend: "auto": cuDNN for CUDA tensors, the reference engine for CPU tensors and where no CUDA device or no libcudnn exists. "cudnn" or
            "reference": that one alone ("reference" takes CUDA tensors too).
        reference_fallback: with ``backend="auto"``, the reference engine also serves graphs that cuDNN declines. False: they raise
            cudnnGraphNotSupportedError.

    Raises:
        TypeError: an unknown argument, or one of the wrong type.
        cudnnGraphNotSupportedError: a data type without counterpart; ``kernel_cache`` without dynamic shapes.
    """

    def __init__(
        self,
        name: str = "test_graph",
        io_data_type: Any = None,
        intermediate_data_type: Any = None,
        compute_data_type: Any = None,
        handle: Any = None,
        sm_count: int | None = None,
        sm_version: int | None = None,
        kernel_cache: Any = None,
        device_property: Any = None,
        is_dynamic_shape_enabled: bool = False,
        is_override_shape_enabled: bool = False,
        cuda_graph_retention: Any = None,
        *,
        is_cuda_graph_replay_expected: bool = False,
        backend: str = "auto",
        reference_fallback: bool = False,
    ) -> None:
        if backend not in BACKENDS:
            raise ValueError(f"backend must be one of {', '.join(map(repr, BACKENDS))}, got {backend!r}")
        to_backend_handle(handle)
        if kernel_cache is not None and not is_dynamic_shape_enabled:
            raise cudnnGraphNotSupportedError("kernel_cache needs is_dynamic_shape_enabled=True: only kernels of dynamic shape can be shared between graphs")
        if kernel_cache is not None:
            from cudnn_graph.kernel_cache import kernel_cache as kernel_cache_type

            _require_kind(kernel_cache, kernel_cache_type, "kernel_cache")
        if device_property is not None:
            from cudnn_graph.device_properties import device_properties

            _require_kind(device_property, device_properties, "device_property")
        if cuda_graph_retention is not None:
            _require_kind(cuda_graph_retention, retention_type, "cuda_graph_retention")
        self._context = GraphContext(
            check_name(name),
            io_data_type,
            intermediate_data_type,
            compute_data_type,
            handle=handle,
            sm_count=_optional_int(sm_count, "sm_count"),
            sm_version=_optional_int(sm_version, "sm_version"),
            kernel_cache=kernel_cache,
            device_property=device_property,
            is_dynamic_shape_enabled=bool(is_dynamic_shape_enabled),
            is_override_shape_enabled=bool(is_override_shape_enabled),
            cuda_graph_retention=cuda_graph_retention,
            is_cuda_graph_replay_expected=bool(is_cuda_graph_replay_expected),
            backend=backend,
            reference_fallback=bool(reference_fallback),
        )
        self._nodes: list[Node] = []
        self._tensors: list[Tensor] = []
        self._by_uid: dict[int, Tensor] = {}
        self._next_uid = 1
        self._counters: dict[str, int] = {}
        self._frozen = False
        self._init_planning()

    # Tensors.

    def tensor(
        self,
        dim: Sequence[int],
        stride: Sequence[int] | None = None,
        data_type: Any = None,
        is_virtual: bool = False,
        is_pass_by_value: bool = False,
        ragged_offset: Tensor | None = None,
        reordering_type: tensor_reordering = tensor_reordering.NONE,
        name: str = "",
        uid: int | None = None,
        ragged_offset_multiplier: int = 1,
        alignment_value: int = 1,
    ) -> Tensor:
        """An input of the graph. ``stride`` (elements) defaults to row-major, ``uid`` to the next free number (-1 is the same as None)."""
        self._before_change("tensor()")
        label = check_name(name) or f"tensor_{self._count('tensor')}"
        dim = check_dim(dim, label)
        stride = None if stride is None else check_stride(stride, label)
        if stride is not None and len(stride) != len(dim):
            raise ValueError(f"tensor '{label}': stride {list(stride)} has {len(stride)} entries but dim {list(dim)} has {len(dim)}")
        if is_virtual and is_pass_by_value:
            raise ValueError(f"tensor '{label}' cannot be both virtual and pass-by-value")
        for value, what in ((ragged_offset_multiplier, "ragged_offset_multiplier"), (alignment_value, "alignment_value")):
            check_positive(value, what, label)
        dtype = to_library_dtype(data_type)
        tensor = self._new_tensor(label, is_virtual=is_virtual, is_pass_by_value=is_pass_by_value)
        try:
            tensor.set_dim(dim).set_data_type(dtype)
            if stride is not None:
                tensor.set_stride(stride)
            if reordering_type is not None:
                tensor.set_reordering_type(reordering_type)
            tensor.set_ragged_offset(ragged_offset).set_ragged_offset_multiplier(ragged_offset_multiplier).set_alignment_value(alignment_value)
            if uid is not None and uid != UNSET_UID:
                tensor.set_uid(uid)
        except BaseException:
            self._forget(tensor)
            raise
        return tensor

    def tensor_like(self, template: Any, name: str = "", is_virtual: bool = False) -> Tensor:
        """An input with the dims, strides and dtype of a graph tensor or framework tensor. A framework tensor on the host becomes pass-by-value."""
        if isinstance(template, Tensor):
            if template.dim is None or template.stride is None:
                raise ValueError(f"tensor_like: the template {describe(template)} has no dims or strides yet")
            made = self.tensor(template.dim, template.stride, template.data_type, is_virtual, template.is_pass_by_value and not is_virtual, name=name)
            made.device = template.device
            return made
        dim, stride, dtype, device = template_of(template)
        made = self.tensor(dim, stride, dtype, is_virtual, device == "cpu" and not is_virtual, name=name)
        made.device = device
        return made

    def tensor_scalar(self, value: int | float, scalar_type: scalar_kind, name: str = "") -> Tensor:
        """A scalar of dims [1, 1, 1, 1] whose value is kept in the graph; it needs no buffer. Floats become FLOAT, ints INT32 (INT64 where needed)."""
        self._before_change("tensor_scalar()")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"tensor_scalar(): value must be an int or a float, got {value!r}")
        if not isinstance(scalar_type, scalar_kind):
            raise TypeError(f"tensor_scalar(): scalar_type must be a cudnn.scalar_type, got {scalar_type!r}")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"tensor_scalar(): {value} does not fit in 64 bits")
        tensor = self._new_tensor(check_name(name) or f"scalar_{self._count('scalar')}", is_pass_by_value=True)
        tensor.set_dim((1, 1, 1, 1)).set_stride((1, 1, 1, 1))
        tensor.scalar_value = value
        tensor.scalar_kind = scalar_type
        return tensor

    # Names and numbers.

    def _count(self, what: str) -> int:
        number = self._counters.get(what, 0)
        self._counters[what] = number + 1
        return number

    def _auto_node_name(self, op: str) -> str:
        return f"{op}.{self._count('node ' + op)}"

    def _new_tensor(self, name: str, *, is_virtual: bool = False, is_pass_by_value: bool = False) -> Tensor:
        tensor = Tensor(self, name, is_virtual=is_virtual, is_pass_by_value=is_pass_by_value)
        self._give_free_uid(tensor)
        self._tensors.append(tensor)
        return tensor

    def _forget(self, tensor: Tensor) -> None:
        """Undo :meth:`_new_tensor` after a refused call."""
        self._tensors.remove(tensor)
        if self._by_uid.get(tensor._uid) is tensor:
            del self._by_uid[tensor._uid]

    def _give_free_uid(self, tensor: Tensor) -> None:
        while self._next_uid in self._by_uid:
            self._next_uid += 1
        tensor._uid = self._next_uid
        self._by_uid[self._next_uid] = tensor
        self._next_uid += 1

    def _assign_uid(self, tensor: Tensor, uid: Any) -> None:
        if isinstance(uid, bool) or not hasattr(uid, "__index__"):
            raise TypeError(f"uid of tensor '{tensor.name}' must be an int, got {uid!r}")
        uid = uid.__index__()
        if uid < 0 or uid >= 2**63:
            raise ValueError(f"uid of tensor '{tensor.name}' must be in [0, 2**63), got {uid}")
        holder = self._by_uid.get(uid)
        if holder is tensor:
            tensor.uid_assigned = True
            return
        if holder is not None and holder.uid_assigned:
            raise ValueError(f"uid {uid} for tensor '{tensor.name}' is already that of tensor {describe(holder)}")
        if self._by_uid.get(tensor._uid) is tensor:
            del self._by_uid[tensor._uid]
        tensor._uid = uid
        tensor.uid_assigned = True
        self._by_uid[uid] = tensor
        if holder is not None:
            self._give_free_uid(holder)

    # Freezing.

    def _before_change(self, what: str) -> None:
        if self._frozen:
            raise RuntimeError(f"{what}: graph '{self._context.name}' is frozen since validate() succeeded; make a new graph to change it")

    def _freeze(self) -> None:
        self._frozen = True
        for node in self._nodes:
            node.freeze()

    # Inspection.

    @property
    def context(self) -> GraphContext:
        """Graph-wide settings."""
        return self._context

    @property
    def handle(self) -> Any:
        """The handle given to the constructor, or None."""
        return self._context.handle

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes in the order in which they were added, which is an order of execution."""
        return tuple(self._nodes)

    @property
    def tensors(self) -> Mapping[int, Tensor]:
        """All tensors by uid."""
        return MappingProxyType({tensor.uid: tensor for tensor in self._tensors})

    @property
    def is_frozen(self) -> bool:
        """True after a successful ``validate``."""
        return self._frozen

    def find_tensor(self, key: str | int) -> Tensor:
        """The tensor of that name or uid. ValueError when there is none, or several of that name ("ambiguous")."""
        if isinstance(key, str):
            found = [tensor for tensor in self._tensors if tensor.name == key]
            if len(found) > 1:
                raise ValueError(f"name '{key}' is ambiguous: {describe_all(found)}; use the uid")
            if found:
                return found[0]
            raise ValueError(f"graph '{self._context.name}' has no tensor named '{key}'")
        if isinstance(key, bool) or not hasattr(key, "__index__"):
            raise TypeError(f"a tensor is found by name or uid, got {key!r}")
        tensor = self._by_uid.get(key.__index__())
        if tensor is None:
            raise ValueError(f"graph '{self._context.name}' has no tensor with uid {key}")
        return tensor

    def query_tensor_attributes_of_uid(self, uid: int) -> Tensor:
        """The tensor with that uid."""
        return self.find_tensor(uid)

    def get_node(self, name: str) -> Node:
        """The node of that name. ValueError when there is none, or several ("ambiguous")."""
        found = [node for node in self._nodes if node.name == name]
        if len(found) > 1:
            raise ValueError(f"node name '{name}' is ambiguous: {len(found)} nodes have it")
        if not found:
            raise ValueError(f"graph '{self._context.name}' has no node named '{name}'")
        return found[0]

    def get_inputs(self) -> list[Tensor]:
        """The tensors that nodes read and no node writes, without scalars whose value is kept in the graph."""
        used = {id(tensor) for node in self._nodes for tensor in node.inputs.values()}
        return [t for t in self._tensors if id(t) in used and t.producer is None and t.scalar_value is None]

    def get_outputs(self) -> list[Tensor]:
        """The tensors that nodes write to buffers of the caller."""
        return [t for t in self._tensors if t.producer is not None and not t.is_virtual]

    def __repr__(self) -> str:
        return self.to_json()
