# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""A compiled plan of libcudnn: from the caller's buffers to one call of the library."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cudnn.tensors import get_data_ptr, metadata
from cudnn_graph import library
from cudnn_graph.constants import Attr, Desc, Type
from cudnn_graph.descriptors import backend_error, is_not_supported
from cudnn_graph.engines.base import CompiledPlan, ExecutionContext, PlanConfig
from cudnn_graph.enums import behavior_note, data_type, numerical_note
from cudnn_graph.errors import cudnnGraphNotSupportedError
from cudnn_graph.handle import Handle, default_handle
from cudnn_graph.lowering.scalars import scalar_bytes
from cudnn_graph.tensor import Tensor

if TYPE_CHECKING:
    from cudnn_graph.buffers import BufferTable
    from cudnn_graph.engines.backend import BackendEngine
    from cudnn_graph.lowering.records import LoweredGraph

SERIALIZATION_MISMATCH = 1003
WORKSPACE_QUERY_SINCE = 92300


class SlotSpec(NamedTuple):
    """Where the address of one tensor of a plan comes from: the caller, a host value (``scalar``), or another tensor plus an offset in bytes.

    ``listed`` is False for a tensor that the library does not know: only views of it are in the plan.
    """

    uid: int
    name: str
    dtype: str
    alignment: int
    by_value: bool
    scalar: int | float | None
    source_uid: int | None
    offset: int
    listed: bool = True


def slots_of(lowered: LoweredGraph) -> list[SlotSpec]:
    """The slots of all tensors that have an address at execute."""
    return [
        SlotSpec(
            value.uid,
            value.name,
            value.dtype.name,
            1 if value.is_by_value else value.alignment,
            value.is_by_value,
            value.scalar,
            None if value.alias is None else value.alias.source.uid,
            0 if value.alias is None else value.alias.offset,
            value.uid in lowered.values,
        )
        for value in lowered.buffers()
    ]


class BackendPlan(CompiledPlan):
    """A finalized execution plan. Executing it on another device than it was made for makes it again there, once."""

    device_type = "cuda"

    def __init__(self, plan: Any, slots: Sequence[SlotSpec], workspace: int, handle: Handle | None, config: PlanConfig) -> None:
        self._plan = plan
        self._slots = list(slots)
        self._workspace = workspace
        # Kept alive with the plan: the library does not say for how long a plan looks at the handle it was made with.
        self._handle = handle
        self._ordinal = None if handle is None else handle.ordinal
        self._config = config
        self._prepared = self._prepare(plan)
        self._elsewhere: dict[int, tuple[Any, Handle]] = {}
        self._lock = threading.Lock()
        self._by_value = {slot.uid: (data_type[slot.dtype], slot.name) for slot in slots if slot.by_value and slot.scalar is None}

    def _prepare(self, plan: Any) -> Any:
        ext = library.loaded()
        slots = []
        for slot in self._slots:
            source = ext.Source.CALLER
            host = b""
            if slot.source_uid is not None:
                source = ext.Source.ALIAS
            elif slot.scalar is not None:
                source = ext.Source.HOST
                host = scalar_bytes(slot.scalar, data_type[slot.dtype], slot.name)
            slots.append(ext.Slot(slot.uid, slot.name, slot.alignment, source, host, slot.source_uid or 0, slot.offset, slot.listed))
        return ext.PreparedPlan(plan, slots)

    def get_workspace_size(self, override: Mapping[int, tuple] | None = None) -> int:
        """Bytes of workspace. For other shapes the library is asked from 9.23 on; older ones need what the plan's own shapes need."""
        if override is None or library.backend_version() < WORKSPACE_QUERY_SINCE:
            return self._workspace
        ext = library.loaded()
        handle = self._handle if self._handle is not None and self._handle.backend_handle is not None else default_handle(self._ordinal)
        try:
            return self._prepared.workspace_size(handle.backend_handle, handle.context, _overrides(ext, override))
        except ext.BackendError as error:
            raise backend_error(error, f"workspace size of plan '{self._config.name}' for other shapes") from error

    def execute(self, variant_pack: Mapping[int, Any], ctx: ExecutionContext) -> None:
        """Submit the plan to the handle's stream.

        Raises:
            ValueError: a buffer is missing or misaligned, or the workspace is missing or too small.
            RuntimeError: the handle was destroyed; the library reports a failure.
        """
        handle = ctx.handle
        if handle is None:
            handle = default_handle(self._ordinal)
        address = handle.backend_handle
        if address is None:
            raise RuntimeError(f"{handle!r} cannot execute a plan: it was destroyed; make another one with cudnn.create_handle()")
        prepared = self._prepared
        if handle._ordinal != self._ordinal and handle._ordinal is not None and self._ordinal is not None:
            prepared = self._for_device(handle)
        pointers = {}
        for uid, value in variant_pack.items():
            kind = value.__class__
            if kind is int:
                pointers[uid] = value
            elif uid in self._by_value and (kind is float or kind is bool):
                pointers[uid] = scalar_bytes(value, *self._by_value[uid])
            else:
                try:
                    pointers[uid] = value.data_ptr()
                except AttributeError:
                    pointers[uid] = get_data_ptr(value)
        workspace = ctx.workspace
        if workspace.__class__ is not int:
            workspace = self._workspace_address(workspace)
        ext = library.loaded()
        try:
            if ctx.override is None:
                prepared.execute(address, handle.context, pointers, workspace)
            else:
                prepared.execute(address, handle.context, pointers, workspace, _overrides(ext, ctx.override))
        except ext.BackendError as error:
            raise self.explain(error) from error

    def explain(self, error: RuntimeError) -> RuntimeError:
        """A failed call of the library, with the plan's name."""
        if not isinstance(error, library.loaded().BackendError):
            return error
        return RuntimeError(f"executing plan '{self._config.name}' failed: {error}")

    def launcher(self, table: BufferTable) -> Any:
        """The one-step way, unless the device is unknown or framework tensors are bound to the graph."""
        if self._ordinal is None or table.bound:
            return None
        ext = library.loaded()
        torch = sys.modules.get("torch")
        needs = [
            ext.Requirement(spec.uid, spec.by_value, spec.span, spec.span_bytes, [] if torch is None else list(spec.torch_dtypes())) for spec in table.specs
        ]
        types = [] if torch is None else [torch.Tensor, torch.nn.Parameter]
        return ext.Launcher(self._prepared, table.positions(), Tensor, needs, types, Handle, self._ordinal, self._workspace)

    def _workspace_address(self, workspace: Any) -> int:
        if workspace is None:
            if self._workspace:
                raise ValueError(
                    f"plan '{self._config.name}' needs a workspace of {self._workspace} bytes; pass workspace= (get_workspace_size() bytes on the device)"
                )
            return 0
        if not self._workspace:
            return 0
        size = getattr(workspace, "nbytes", None)
        if size is None:
            size = _byte_size(workspace)
        if size < self._workspace:
            raise ValueError(f"plan '{self._config.name}' needs a workspace of {self._workspace} bytes, the one given holds {size}")
        return get_data_ptr(workspace)

    def _for_device(self, handle: Handle) -> Any:
        """The plan for the device of another handle."""
        ordinal = handle.ordinal
        with self._lock:
            entry = self._elsewhere.get(ordinal)
            if entry is None:
                plan = _load(self._json(), handle, f"plan '{self._config.name}' for cuda:{ordinal}")
                entry = self._elsewhere[ordinal] = (self._prepare(plan), handle)
            return entry[0]

    # Storing.

    def _json(self) -> str:
        ext = library.loaded()
        try:
            return self._plan.get(Attr.EXECUTION_PLAN_JSON_REPRESENTATION, Type.CHAR).rstrip(b"\0").decode()
        except ext.BackendError as error:
            raise backend_error(error, f"serializing plan '{self._config.name}'") from error

    def serialize(self) -> dict[str, Any]:
        """The plan as JSON-serialisable data: the library's own JSON, and what the package knows beside it."""
        config = self._config
        return {
            "version": library.backend_version(),
            "plan": self._json(),
            "name": config.name,
            "engine_id": config.engine_id,
            "knobs": [[kind, value] for kind, value in config.knobs.items()],
            "behavior_notes": [note.name for note in config.behavior_notes],
            "numerical_notes": [note.name for note in config.numerical_notes],
            "slots": [list(slot) for slot in self._slots],
        }

    @classmethod
    def load(cls, engine: BackendEngine, data: Any, handle: Handle) -> tuple[PlanConfig, BackendPlan]:
        """The plan of :meth:`serialize`, for the device of a handle."""
        try:
            config = PlanConfig(
                engine,
                name=data["name"],
                engine_id=data["engine_id"],
                knobs=dict(data["knobs"]),
                behavior_notes=[behavior_note[name] for name in data["behavior_notes"]],
                numerical_notes=[numerical_note[name] for name in data["numerical_notes"]],
            )
            slots = [SlotSpec(*fields) for fields in data["slots"]]
            text, made_by = data["plan"], data["version"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a serialized plan of cuDNN's backend: {error!r}") from error
        plan = _load(text, handle, f"serialized plan '{config.name}' (made by cuDNN {library.version_string(made_by)})")
        workspace = plan.get(Attr.EXECUTION_PLAN_WORKSPACE_SIZE, Type.INT64, 1)[0]
        config.workspace_size = workspace
        return config, cls(plan, slots, workspace, handle, config)


def _load(text: str, handle: Handle, what: str) -> Any:
    ext = library.loaded()
    plan = ext.Descriptor(Desc.EXECUTION_PLAN)
    try:
        plan.set(Attr.EXECUTION_PLAN_HANDLE, Type.HANDLE, handle.backend_handle)
        plan.set(Attr.EXECUTION_PLAN_JSON_REPRESENTATION, Type.CHAR, text)
        return plan.finalize(handle.context)
    except ext.BackendError as error:
        if is_not_supported(error.status) or error.status == SERIALIZATION_MISMATCH:
            raise cudnnGraphNotSupportedError(str(backend_error(error, what))) from error
        raise backend_error(error, what) from error


def _overrides(ext: Any, override: Mapping[int, tuple]) -> Any:
    shapes, strides = zip(*override.values(), strict=True) if override else ((), ())
    return ext.Overrides(list(override), [list(shape) for shape in shapes], [list(stride) for stride in strides])


def _byte_size(workspace: Any) -> int:
    from cudnn.datatypes import itemsize_bits

    seen = metadata(workspace)
    count = 1
    for extent in seen.shape:
        count *= extent
    return count * itemsize_bits(seen.dtype) // 8
