"""Execution: from the caller's dictionary to a plan."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cudnn_graph.buffers import CPU, BufferTable, missing_buffer
from cudnn_graph.engines.base import CompiledPlan, ExecutionContext
from cudnn_graph.handle import Handle, current_handle, to_backend_handle
from cudnn_graph.tensor import Tensor, check_dim, check_stride

if TYPE_CHECKING:
    from cudnn_graph.graph import pygraph


class ExecutionMethods:
    """The execute methods of :class:`cudnn.pygraph`."""

    def execute(
        self: pygraph,
        tensor_dict: Mapping[Any, Any] | Sequence[Any],
        workspace: Any = None,
        handle: Any = None,
        override_uids: Sequence[int] | None = None,
        override_shapes: Sequence[Sequence[int]] | None = None,
        override_strides: Sequence[Sequence[int]] | None = None,
        tensor_uids: Sequence[int] | None = None,
    ) -> None:
        """Run the graph once; builds it first when that has not been done.

        Args:
            tensor_dict: graph tensor, name or uid -> DLPack object, device address (int), or for pass-by-value tensors a host tensor or float.
                Or a list of buffers, with their uids in ``tensor_uids``. Framework tensors that were given as operands need no entry.
            workspace: ``get_workspace_size()`` bytes on the device (tensor or address). None: taken from torch on the stream of the launch.
            handle: handle to run with; default: the graph's, or the calling thread's for the tensors' device on torch's current stream.
            override_uids, override_shapes, override_strides: other dims and strides for this call (``is_override_shape_enabled``).

        Raises:
            ValueError: a buffer is missing ("missing a buffer for tensor uid N ('name')"), too small, of another dtype or on another device than the
                others; an unknown or ambiguous key.
            RuntimeError: the launch failed.
        """
        if self._chosen is None:
            self._build_for_execute()
        launcher = self._launcher
        if launcher is not None and tensor_uids is None and override_uids is None and override_shapes is None and override_strides is None:
            try:
                if launcher.execute(tensor_dict, workspace, self._context.handle if handle is None else handle, current_handle, _torch_workspace):
                    return
            except RuntimeError as error:
                shown = self._plans[self._chosen].explain(error)
                if shown is error:
                    raise
                raise shown from error
        self._run(self._chosen, tensor_dict, workspace, handle, override_uids, override_shapes, override_strides, tensor_uids)

    def execute_plan_at_index(
        self: pygraph,
        tensor_dict: Mapping[Any, Any] | Sequence[Any],
        workspace: Any,
        index: int,
        handle: Any = None,
        override_uids: Sequence[int] | None = None,
        override_shapes: Sequence[Sequence[int]] | None = None,
        override_strides: Sequence[Sequence[int]] | None = None,
        tensor_uids: Sequence[int] | None = None,
    ) -> None:
        """:meth:`execute` with plan ``index`` of the ranked list, built first when needed. ValueError for a plan that a filter barred."""
        self._require_plan(index)
        self._run(index, tensor_dict, workspace, handle, override_uids, override_shapes, override_strides, tensor_uids)

    def _run(
        self: pygraph,
        index: int,
        tensor_dict: Any,
        workspace: Any,
        handle: Any,
        override_uids: Any,
        override_shapes: Any,
        override_strides: Any,
        tensor_uids: Any,
    ) -> None:
        plan = self._plans[index]
        table = self._table
        override = None
        if override_uids is not None or override_shapes is not None or override_strides is not None:
            override = self._override(override_uids, override_shapes, override_strides)
            table = BufferTable(self._tensors, self._used_uids, override)
        pack = self._variant_pack(table, tensor_dict, tensor_uids)
        device = _check_buffers(table, pack)
        if plan.device_type == "cuda":
            if device == CPU:
                plan = self._host_plan(plan)
            else:
                self._run_on_device(plan, pack, device, workspace, handle, override)
                return
        elif device not in (CPU, None):
            self._refuse_silent_reference(index, device)
        plan.execute(pack, ExecutionContext(handle if handle is not None else self._context.handle, None, workspace, override))

    def _variant_pack(self: pygraph, table: BufferTable, tensor_dict: Any, tensor_uids: Sequence[int] | None) -> dict[int, Any]:
        pack = dict(table.bound)
        uids = table.uids
        if tensor_uids is not None:
            if isinstance(tensor_dict, Mapping):
                raise ValueError("tensor_uids goes with a list of buffers, not with a dictionary")
            if len(tensor_uids) != len(tensor_dict):
                raise ValueError(f"got {len(tensor_dict)} buffers for {len(tensor_uids)} tensor_uids")
            items: Iterable[tuple[Any, Any]] = zip(tensor_uids, tensor_dict, strict=True)
        elif isinstance(tensor_dict, Mapping):
            items = tensor_dict.items()
        else:
            raise ValueError(f"tensor_dict must be a dictionary, or a list of buffers with tensor_uids, got {type(tensor_dict).__name__}")
        for key, value in items:
            if key.__class__ is Tensor:
                if key._graph is not self:
                    raise ValueError(f"variant pack: tensor '{key.name}' (uid {key.uid}) belongs to another graph ('{key.graph.context.name}')")
                uid = key._uid
            elif key.__class__ is int:
                uid = key
            else:
                uid = table.uid_of(key)
            if uid not in uids:
                raise table.reject(uid)
            pack[uid] = value
        return pack

    def _override(self: pygraph, uids: Any, shapes: Any, strides: Any) -> dict[int, tuple]:
        if not self._context.is_override_shape_enabled:
            raise ValueError("override shapes need a graph made with is_override_shape_enabled=True")
        if uids is None or shapes is None or strides is None or not len(uids) == len(shapes) == len(strides):
            raise ValueError("override_uids, override_shapes and override_strides go together and have one entry each for every tensor")
        result = {}
        for uid, shape, stride in zip(uids, shapes, strides, strict=True):
            tensor = self.find_tensor(uid)
            dim = check_dim(shape, tensor.name)
            steps = check_stride(stride, tensor.name)
            if len(dim) != len(tensor.dim) or len(steps) != len(dim):
                raise ValueError(
                    f"override for tensor '{tensor.name}' (uid {uid}) must keep its rank {len(tensor.dim)}, got shape {list(dim)}, stride {list(steps)}"
                )
            result[uid] = (dim, steps)
        return result

    def _run_on_device(self: pygraph, plan: CompiledPlan, pack: dict[int, Any], device: int | None, workspace: Any, handle: Any, override: Any) -> None:
        """Run a CUDA plan: settle handle, stream and workspace."""
        if handle is None:
            handle = self._context.handle
        if handle is None:
            handle = current_handle(device)
        elif handle.__class__ is not Handle:
            to_backend_handle(handle)
        elif device is not None and handle.ordinal is not None and handle.ordinal != device:
            raise ValueError(f"the buffers are on cuda:{device} but the handle belongs to cuda:{handle.ordinal}; use a handle made on that device")
        if workspace is None:
            size = plan.get_workspace_size(override)
            if size:
                workspace = _torch_workspace(size, handle)
        plan.execute(pack, ExecutionContext(handle, handle._stream, workspace, override))
        knows_torch = "torch" in sys.modules
        if (self._launcher is None or knows_torch != self._launcher_knows_torch) and self._chosen is not None and plan is self._plans[self._chosen]:
            self._launcher = plan.launcher(self._table)
            self._launcher_knows_torch = knows_torch

    def _refuse_silent_reference(self: pygraph, index: int, device: int) -> None:
        """CUDA tensors run on the reference engine only when that was asked for."""
        context = self._context
        if context.backend == "auto" and not context.reference_fallback:
            name = self._configs[index].name
            reasons = "; ".join(f"{engine}: {reason}" for engine, reason in self._declined) or "it was made from CPU tensors"
            raise RuntimeError(
                f"graph '{context.name}' was planned for the CPU (plan '{name}'; {reasons}) but its buffers are on cuda:{device}; "
                "to run CUDA tensors in plain torch use pygraph(backend='reference') or reference_fallback=True"
            )

    def _host_plan(self: pygraph, plan: CompiledPlan) -> CompiledPlan:
        """The reference engine's plan, for CPU buffers given to a graph planned for CUDA."""
        if self._context.backend != "auto":
            raise ValueError(
                f"graph '{self._context.name}' runs on CUDA (backend='{self._context.backend}') but its buffers are on the CPU; move them, or use backend='auto' or 'reference'"
            )
        if self._cpu_plan is None:
            from cudnn_graph.engines.registry import reference_engine_for

            engine = reference_engine_for(self)
            self._cpu_plan = engine.build_plan(self, engine.propose(self, ())[0], ExecutionContext())
        return self._cpu_plan


def _check_buffers(table: BufferTable, pack: Mapping[int, Any]) -> int | None:
    """The one device all buffers are on (-1: host; None: only addresses were given). ValueError for anything that does not fit."""
    torch = sys.modules.get("torch")
    tensor_type = None if torch is None else torch.Tensor
    device = None
    first = None
    for spec in table.specs:
        value = pack.get(spec.uid)
        if value is None:
            raise missing_buffer(spec)
        if tensor_type is not None and isinstance(value, tensor_type):
            found = spec.check_torch(value)
        else:
            found = spec.check_other(value)
        if spec.by_value:
            if found != CPU:
                raise ValueError(f"tensor '{spec.name}' (uid {spec.uid}) is pass-by-value: its buffer must be on the host, found cuda:{found}")
            continue
        if found is None:
            continue
        if device is None:
            device, first = found, spec
        elif found != device:
            one, other = (("cpu" if d == CPU else f"cuda:{d}") for d in (device, found))
            raise ValueError(f"buffers are on different devices: tensor '{first.name}' on {one}, tensor '{spec.name}' (uid {spec.uid}) on {other}")
    if device is None and first is None and all(spec.by_value or type(pack[spec.uid]) is not int for spec in table.specs):
        return CPU
    return device


def _torch_workspace(size: int, handle: Any) -> Any:
    """``size`` bytes from torch's allocator, in order with the handle's stream."""
    torch = sys.modules.get("torch")
    if torch is None:
        raise ValueError(f"the plan needs a workspace of {size} bytes: pass workspace= (a device buffer or its address)")
    from cudnn.streams import stream_context

    device = torch.device("cuda", handle.ordinal)
    with stream_context(handle._stream, device):
        return torch.empty(size, dtype=torch.uint8, device=device)
