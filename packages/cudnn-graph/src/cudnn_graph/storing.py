"""JSON, serialization of built graphs, and copies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cudnn_graph import ubjson
from cudnn_graph.engines.base import ExecutionContext
from cudnn_graph.enums import knob_type
from cudnn_graph.structure import describe_graph, restore_graph, structure_key

if TYPE_CHECKING:
    from cudnn_graph.graph import pygraph


class StoringMethods:
    """The JSON and serialization methods of :class:`cudnn.pygraph`."""

    def to_json(self: pygraph, indent: int | None = None) -> str:
        """The structure of the graph as JSON text; :meth:`deserialize` reads it."""
        return json.dumps(describe_graph(self), indent=indent)

    def inspect(self: pygraph) -> dict[str, Any]:
        """The structure of the graph as a dictionary, with the ranked plans and the engines that declined."""
        data = describe_graph(self)
        data["plans"] = [
            {
                "index": index,
                "name": config.name,
                "engine": config.engine.name,
                "engine_id": config.engine_id,
                "workspace_size": config.workspace_size,
                "behavior_notes": [note.name for note in config.behavior_notes],
                "numerical_notes": [note.name for note in config.numerical_notes],
                "built": self._plans[index] is not None,
                "barred": self._bar_reason(index) or self._failures.get(index),
            }
            for index, config in enumerate(self._configs)
        ]
        data["selected_plan"] = self._chosen
        data["declined"] = dict(self._declined)
        return data

    def key(self: pygraph) -> int:
        """A hash of the structure (dims, strides, dtypes, uids, nodes); equal for graphs built alike, whatever their names. Validates the graph first."""
        self.validate()
        return structure_key(self)

    def serialize(self: pygraph, *, as_bytes: bool = False, include_kernels: bool = True) -> list[int] | bytes:
        """The built graph with the plan it executes, as a list of byte values or as bytes (UBJSON).

        Args:
            as_bytes: return bytes.
            include_kernels: False leaves compiled kernels out: the plan is named by engine and knobs and compiled again by :meth:`deserialize`.

        Raises:
            RuntimeError: the graph is not built.
        """
        if self._chosen is None:
            raise RuntimeError("serialize() needs a built graph: call build() or build_plans() first (to_json() gives the structure alone)")
        config, plan = self._configs[self._chosen], self._plans[self._chosen]
        stored: Any = None
        if include_kernels:
            try:
                stored = plan.serialize()
            except NotImplementedError:
                stored = None
        data = describe_graph(self)
        data["plan"] = {
            "engine": config.engine.name,
            "engine_id": config.engine_id,
            "name": config.name,
            "knobs": {knob.name: value for knob, value in config.engine.knobs_to_public(config.knobs).items()},
        }
        data["cudnn_backend_data"] = stored
        data["variant_pack_uids"] = sorted(self._table.uids)
        data["behavior_notes"] = [note.name for note in config.behavior_notes]
        data["pass_by_values"] = {str(t.uid): t.scalar_value for t in self._tensors if t.scalar_value is not None}
        data["fe_workspace_size"] = plan.get_workspace_size()
        packed = ubjson.dumps(data)
        return packed if as_bytes else list(packed)

    def deserialize(self: pygraph, *args: Any, enforce_precompiled: bool = False) -> None:
        """Fill this empty graph: ``deserialize(data)`` or ``deserialize(handle, data)``.

        ``data`` is what :meth:`serialize` gave (the plan is rebuilt and ready to execute), or JSON text (the structure alone).

        Args:
            enforce_precompiled: refuse data without compiled kernels instead of compiling.

        Raises:
            RuntimeError: the graph is not empty; ``enforce_precompiled`` and there are no kernels in the data.
            ValueError: damaged data.
            cudnnGraphNotSupportedError: the engine of the plan is not usable here.
        """
        if len(args) not in (1, 2):
            raise TypeError(f"deserialize() takes (data) or (handle, data), got {len(args)} arguments")
        if self._nodes or self._tensors:
            raise RuntimeError("deserialize() needs an empty graph: make a new pygraph()")
        if len(args) == 2:
            from cudnn_graph.handle import to_backend_handle

            to_backend_handle(args[0])
            self._context.handle = args[0]
        source = args[-1]
        if isinstance(source, str):
            try:
                data = json.loads(source)
            except json.JSONDecodeError as error:
                raise ValueError(f"graph JSON: {error}") from error
            restore_graph(self, data)
            return
        if not isinstance(source, (bytes, bytearray, memoryview, list, tuple)):
            raise TypeError(f"deserialize() reads bytes, a list of byte values or JSON text, got {type(source).__name__}")
        data = ubjson.loads(bytes(source))
        if not isinstance(data, Mapping) or "plan" not in data:
            raise ValueError("the data is no serialized graph: it has no plan")
        restore_graph(self, data)
        self._restore_plan(data, enforce_precompiled)

    def _restore_plan(self: pygraph, data: Mapping[str, Any], enforce_precompiled: bool) -> None:
        entry, stored = data["plan"], data.get("cudnn_backend_data")
        if stored is None and enforce_precompiled:
            raise RuntimeError("the data holds no compiled kernels (serialized with include_kernels=False, or an engine without kernels to store)")
        self.validate()
        from cudnn_graph.engines.registry import engine_by_name

        engine = engine_by_name(entry["engine"])
        ctx = ExecutionContext(self._context.handle)
        if stored is None:
            self.engine_state[engine.name] = engine.prepare(self)
            knobs = {knob_type[name]: value for name, value in entry["knobs"].items()}
            config = engine.make_config(self, entry["engine_id"], engine.knobs_from_public(knobs))
            plan = engine.build_plan(self, config, ctx)
        else:
            config, plan = engine.load_plan(self, stored, ctx)
        self._engines = [engine]
        self._planned = self._lowered = True
        index = self._append_config(config)
        self._plans[index] = plan
        self._chosen = index

    def __deepcopy__(self: pygraph, memo: dict[int, Any]) -> pygraph:
        """An independent, unfrozen graph of the same structure, without plans."""
        copy = type(self)(handle=self._context.handle)
        for key in self._context.__slots__:
            setattr(copy._context, key, getattr(self._context, key))
        restore_graph(copy, describe_graph(self))
        for own in self._tensors:
            other = copy._by_uid[own.uid]
            other.device, other.bound = own.device, own.bound
            memo[id(own)] = other
        memo[id(self)] = copy
        return copy

    def __copy__(self: pygraph) -> pygraph:
        return self.__deepcopy__({})
