# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""libcudnn as an engine: heuristics propose engine configurations, a plan is one of them compiled."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cudnn_graph import library
from cudnn_graph.constants import HEUR_MODE, KNOB, KNOB_PUBLIC, RETENTION, Attr, Desc, Type
from cudnn_graph.descriptors import backend_error, is_not_supported, make_operation_graph
from cudnn_graph.engines.backend_plan import BackendPlan, slots_of
from cudnn_graph.engines.base import BACKEND_ENGINE_IDS, CompiledPlan, Engine, ExecutionContext, PlanConfig
from cudnn_graph.enums import behavior_note, cuda_graph_retention, heur_mode, is_frontend_knob_type, knob_type, numerical_note
from cudnn_graph.errors import cudnnGraphNotSupportedError
from cudnn_graph.handle import Handle, default_handle, to_backend_handle
from cudnn_graph.knob import knob
from cudnn_graph.lowering import lower
from cudnn_graph.lowering.known_bad import wrong_plan
from cudnn_graph.lowering.records import LoweredGraph
from cudnn_graph.nodes import NodeType

if TYPE_CHECKING:
    from cudnn_graph.graph import pygraph

OVERRIDE_SHAPES_SINCE = 92100
RETENTION_SINCE = 92800
COMPILATION_FAILED = 4001

# The library's heuristic B is not safe to be asked from two threads at once.
_heuristic_b_lock = threading.Lock()


class BackendState:
    """What the engine keeps of one graph: the lowered graph and the library's operation graph."""

    __slots__ = ("lowered", "operation_graph", "handle", "device_property", "kernel_cache", "version")

    def __init__(self, lowered: LoweredGraph, operation_graph: Any, handle: Handle | None, device_property: Any, kernel_cache: Any, version: int) -> None:
        self.lowered = lowered
        self.operation_graph = operation_graph
        self.handle = handle
        self.device_property = device_property
        self.kernel_cache = kernel_cache
        self.version = version

    @property
    def context(self) -> int:
        """The CUDA context to make descriptors in."""
        return 0 if self.handle is None else self.handle.context


class BackendEngine(Engine):
    """All engines of libcudnn behind one face: a :class:`PlanConfig` of it carries the id that the library gives its own engine."""

    name = "backend"
    engine_id = 0

    def __init__(self) -> None:
        self._unavailable: str | None = None
        self._is_available = False

    def unavailable(self) -> str | None:
        """Why libcudnn cannot be used in this process, or None."""
        if not self._is_available and self._unavailable is None:
            try:
                ext = library.loaded()
            except library.LibraryError as error:
                self._unavailable = str(error)
            else:
                if ext.current_context()[1] < 0:
                    self._unavailable = "there is no CUDA device (or no driver, libcuda.so.1)"
                else:
                    self._unavailable = library.missing_companion()
                    self._is_available = self._unavailable is None
        return self._unavailable

    def check_support(self, graph: pygraph) -> None:
        """Lower the graph and let the library check it; that needs the library and a device, or a device description."""
        self.prepare(graph)

    def prepare(self, graph: pygraph) -> BackendState:
        """Lower the graph and make the library's operation graph.

        Raises:
            cudnnGraphNotSupportedError: no library or device, a node the loaded version has nothing for, or a combination it refuses.
            RuntimeError: a feature asked for needs a newer library; another failed call.
        """
        context = graph.context
        if context.device_property is None and context.handle is None:
            reason = self.unavailable()
            if reason is not None:
                raise cudnnGraphNotSupportedError(reason)
        try:
            ext = library.loaded()
        except library.LibraryError as error:
            raise cudnnGraphNotSupportedError(str(error)) from error
        missing = library.missing_companion()
        if missing is not None:
            raise cudnnGraphNotSupportedError(missing)
        version = ext.version()
        if context.is_override_shape_enabled:
            library.require(OVERRIDE_SHAPES_SINCE, "is_override_shape_enabled=True")
        if context.cuda_graph_retention is cuda_graph_retention.NONE:
            library.require(RETENTION_SINCE, "cuda_graph_retention=NONE")
        lowered = lower(graph, version)
        handle = None if context.device_property is not None else context.handle or default_handle(graph_ordinal(graph))
        _check_architecture(graph, handle)
        _check_block_scales(graph, handle)
        operation_graph = make_operation_graph(
            lowered,
            ext.Descriptor,
            ext.BackendError,
            handle=to_backend_handle(handle),
            is_dynamic_shape_enabled=context.is_dynamic_shape_enabled,
            is_override_shape_enabled=context.is_override_shape_enabled,
        )
        return BackendState(lowered, operation_graph, handle, context.device_property, context.kernel_cache, version)

    # Plans.

    def propose(self, graph: pygraph, modes: Sequence[heur_mode]) -> list[PlanConfig]:
        """What the library's heuristics propose, over the modes in their order, each engine configuration once.

        cudnnGraphNotSupportedError when that is nothing, with the library's reason for each mode.
        """
        state = self._state(graph)
        ext = library.loaded()
        configs: list[PlanConfig] = []
        seen = set()
        reasons = []
        for mode in modes:
            if mode not in HEUR_MODE:
                reasons.append(f"heuristic {mode.name}: the package ships no kernels of that kind")
                continue
            try:
                found = self._ask_heuristic(graph, state, mode)
            except ext.BackendError as error:
                reasons.append(f"heuristic {mode.name}: {error.status_text} ({error.status}){f': {error.last_error}' if error.last_error else ''}")
                continue
            if not found:
                reasons.append(f"heuristic {mode.name}: no engine")
            for descriptor in found:
                config = self._read_config(descriptor)
                if config.name in seen:
                    continue
                seen.add(config.name)
                wrong = wrong_plan(graph, config.behavior_notes)
                if wrong is None:
                    configs.append(config)
                else:
                    reasons.append(f"{config.name}: {wrong}")
        if not configs:
            from cudnn_graph.lowering.hints import hints

            known = hints(graph, state.lowered)
            raise cudnnGraphNotSupportedError(
                "cuDNN proposes no engine: " + "; ".join(reasons or ["no heuristic was asked"]) + "".join(f"; perhaps because {hint}" for hint in known)
            )
        return configs

    def _ask_heuristic(self, graph: pygraph, state: BackendState, mode: heur_mode) -> list[Any]:
        ext = library.loaded()
        descriptor = ext.Descriptor(Desc.ENGINEHEUR)
        descriptor.set(Attr.ENGINEHEUR_OPERATION_GRAPH, Type.BACKEND_DESCRIPTOR, state.operation_graph)
        descriptor.set(Attr.ENGINEHEUR_MODE, Type.HEUR_MODE, HEUR_MODE[mode])
        if graph.context.sm_count is not None:
            descriptor.set(Attr.ENGINEHEUR_SM_COUNT_TARGET, Type.INT32, graph.context.sm_count)
        if state.device_property is not None:
            descriptor.set(Attr.ENGINEHEUR_DEVICEPROP, Type.BACKEND_DESCRIPTOR, state.device_property.descriptor)
        if mode is heur_mode.B:
            with _heuristic_b_lock:
                return self._results(descriptor, state)
        return self._results(descriptor, state)

    @staticmethod
    def _results(descriptor: Any, state: BackendState) -> list[Any]:
        descriptor.finalize(state.context)
        count = descriptor.count(Attr.ENGINEHEUR_RESULTS, Type.BACKEND_DESCRIPTOR)
        return descriptor.get_descriptors(Attr.ENGINEHEUR_RESULTS, Desc.ENGINECFG, count) if count else []

    def _read_config(self, descriptor: Any) -> PlanConfig:
        """A configuration of the library as a plan that is not built yet."""
        engine = descriptor.get_descriptors(Attr.ENGINECFG_ENGINE, Desc.ENGINE, 1)[0]
        engine_id = engine.get(Attr.ENGINE_GLOBAL_INDEX, Type.INT64, 1)[0]
        knobs = {}
        count = descriptor.count(Attr.ENGINECFG_KNOB_CHOICES, Type.BACKEND_DESCRIPTOR)
        for choice in descriptor.get_descriptors(Attr.ENGINECFG_KNOB_CHOICES, Desc.KNOB_CHOICE, count) if count else ():
            kind = choice.get(Attr.KNOB_CHOICE_KNOB_TYPE, Type.KNOB_TYPE, 1)[0]
            knobs[kind] = choice.get(Attr.KNOB_CHOICE_KNOB_VALUE, Type.INT64, 1)[0]
        return PlanConfig(
            self,
            name=plan_name(engine_id, knobs),
            engine_id=engine_id,
            knobs=knobs,
            behavior_notes=_notes(engine, Attr.ENGINE_BEHAVIOR_NOTE, Type.BEHAVIOR_NOTE, behavior_note),
            numerical_notes=_notes(engine, Attr.ENGINE_NUMERICAL_NOTE, Type.NUMERICAL_NOTE, numerical_note),
            payload=descriptor,
        )

    def build_plan(self, graph: pygraph, config: PlanConfig, ctx: ExecutionContext) -> CompiledPlan:
        """Compile one configuration.

        Raises:
            cudnnGraphNotSupportedError: the library does not support it after all, or cannot compile its kernel.
            RuntimeError: another failed call.
        """
        state = self._state(graph)
        ext = library.loaded()
        plan = ext.Descriptor(Desc.EXECUTION_PLAN)
        handle = _usable(ctx.handle or state.handle)
        try:
            if handle is not None:
                plan.set(Attr.EXECUTION_PLAN_HANDLE, Type.HANDLE, handle.backend_handle)
            plan.set(Attr.EXECUTION_PLAN_ENGINE_CONFIG, Type.BACKEND_DESCRIPTOR, config.payload)
            if state.kernel_cache is not None:
                plan.set(Attr.EXECUTION_PLAN_KERNEL_CACHE, Type.BACKEND_DESCRIPTOR, state.kernel_cache.bind(state.operation_graph))
            if state.device_property is not None:
                plan.set(Attr.EXECUTION_PLAN_DEVICEPROP, Type.BACKEND_DESCRIPTOR, state.device_property.descriptor)
            if graph.context.cuda_graph_retention is cuda_graph_retention.NONE:
                plan.set(Attr.EXECUTION_PLAN_CUDA_GRAPH_RETENTION, Type.CUDA_GRAPH_RETENTION, RETENTION[cuda_graph_retention.NONE])
            plan.finalize(0 if handle is None else handle.context)
            workspace = plan.get(Attr.EXECUTION_PLAN_WORKSPACE_SIZE, Type.INT64, 1)[0]
        except ext.BackendError as error:
            raise _plan_error(error, f"plan '{config.name}'") from error
        config.workspace_size = workspace
        return BackendPlan(plan, slots_of(state.lowered), workspace, handle, config)

    def load_plan(self, graph: pygraph, data: Any, ctx: ExecutionContext) -> tuple[PlanConfig, CompiledPlan]:
        """Rebuild a plan from :meth:`BackendPlan.serialize` for the device of the handle.

        Raises:
            cudnnGraphNotSupportedError: the library is another version than the one that made the plan, or has no such kernel for the device.
            RuntimeError: another failed call.
            ValueError: data that is no serialized plan of this engine.
        """
        handle = _usable(ctx.handle) or default_handle(graph_ordinal(graph))
        return BackendPlan.load(self, data, handle)

    # Engines and knobs.

    def engine_count(self, graph: pygraph) -> int:
        """Number of engines the library has for the graph."""
        return self._state(graph).operation_graph.get(Attr.OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, Type.INT64, 1)[0]

    def knobs_for_engine(self, graph: pygraph, engine_id: int) -> list[knob]:
        """The knobs of one of the library's engines that have a public name, with their ranges."""
        engine = self._engine(graph, engine_id)
        ext = library.loaded()
        try:
            count = engine.count(Attr.ENGINE_KNOB_INFO, Type.BACKEND_DESCRIPTOR)
            infos = engine.get_descriptors(Attr.ENGINE_KNOB_INFO, Desc.KNOB_INFO, count) if count else []
            result = []
            for info in infos:
                kind = KNOB_PUBLIC.get(info.get(Attr.KNOB_INFO_TYPE, Type.KNOB_TYPE, 1)[0])
                if kind is not None:
                    high, low, step = (
                        info.get(attribute, Type.INT64, 1)[0]
                        for attribute in (Attr.KNOB_INFO_MAXIMUM_VALUE, Attr.KNOB_INFO_MINIMUM_VALUE, Attr.KNOB_INFO_STRIDE)
                    )
                    result.append(knob(kind, high, low, step))
        except ext.BackendError as error:
            raise backend_error(error, f"knobs of engine {engine_id}") from error
        return result

    def make_config(self, graph: pygraph, engine_id: int, knobs: Mapping[Any, int]) -> PlanConfig:
        """The plan of an explicit engine and knobs (the library's numbers).

        Raises:
            ValueError: the graph has no engine with that id.
            cudnnGraphNotSupportedError: the engine does not take these knobs, or the graph.
        """
        engine = self._engine(graph, engine_id)
        ext = library.loaded()
        config = ext.Descriptor(Desc.ENGINECFG)
        try:
            config.set(Attr.ENGINECFG_ENGINE, Type.BACKEND_DESCRIPTOR, engine)
            choices = []
            for kind, value in knobs.items():
                choice = ext.Descriptor(Desc.KNOB_CHOICE)
                choice.set(Attr.KNOB_CHOICE_KNOB_TYPE, Type.KNOB_TYPE, kind)
                choice.set(Attr.KNOB_CHOICE_KNOB_VALUE, Type.INT64, value)
                choices.append(choice.finalize())
            if choices:
                config.set(Attr.ENGINECFG_KNOB_CHOICES, Type.BACKEND_DESCRIPTOR, choices)
            config.finalize(self._state(graph).context)
        except ext.BackendError as error:
            raise backend_error(error, f"engine {engine_id} with knobs {dict(knobs)}") from error
        made = self._read_config(config)
        wrong = wrong_plan(graph, made.behavior_notes)
        if wrong is not None:
            raise cudnnGraphNotSupportedError(f"engine {engine_id}: {wrong}")
        return made

    def knobs_to_public(self, knobs: Mapping[Any, int]) -> dict[knob_type, int]:
        """The library's knobs by their public names; those without one (superseded ones) are left out."""
        return {KNOB_PUBLIC[kind]: value for kind, value in knobs.items() if kind in KNOB_PUBLIC}

    def knobs_from_public(self, knobs: Mapping[knob_type, int]) -> dict[Any, int]:
        """Public knobs as the library's. ValueError for those that only Python engines have."""
        result = {}
        for kind, value in knobs.items():
            if is_frontend_knob_type(kind) or kind not in KNOB:
                raise ValueError(f"cuDNN's engines have no knob {kind.name}")
            result[KNOB[kind]] = value
        return result

    def _engine(self, graph: pygraph, engine_id: int) -> Any:
        count = self.engine_count(graph)
        if engine_id not in BACKEND_ENGINE_IDS or engine_id >= count:
            raise ValueError(f"cuDNN has no engine {engine_id} for graph '{graph.context.name}'; it has {count}, numbered from 0")
        state = self._state(graph)
        ext = library.loaded()
        engine = ext.Descriptor(Desc.ENGINE)
        try:
            engine.set(Attr.ENGINE_OPERATION_GRAPH, Type.BACKEND_DESCRIPTOR, state.operation_graph)
            engine.set(Attr.ENGINE_GLOBAL_INDEX, Type.INT64, engine_id)
            if graph.context.sm_count is not None:
                engine.set(Attr.ENGINE_SM_COUNT_TARGET, Type.INT32, graph.context.sm_count)
            if state.device_property is not None:
                engine.set(Attr.ENGINE_DEVICEPROP, Type.BACKEND_DESCRIPTOR, state.device_property.descriptor)
            return engine.finalize(state.context)
        except ext.BackendError as error:
            raise backend_error(error, f"engine {engine_id}") from error

    def _state(self, graph: pygraph) -> BackendState:
        return graph.engine_state[self.name]


def plan_name(engine_id: int, knobs: Mapping[int, int]) -> str:
    """``eng22_k2=2_k14=3``: the engine and the library's knob numbers with their values."""
    return "_".join([f"eng{engine_id}", *(f"k{kind}={value}" for kind, value in sorted(knobs.items()))])


def graph_ordinal(graph: pygraph) -> int | None:
    """The CUDA device of the framework tensors that the graph was described with, or None."""
    for tensor in graph.tensors.values():
        found = re.fullmatch(r"cuda:(\d+)", tensor.device or "")
        if found:
            return int(found.group(1))
    return None


def _notes(engine: Any, attribute: int, kind: int, enum: Any) -> tuple[Any, ...]:
    """Notes of an engine; those of newer libraries that have no public name yet are left out."""
    known = {note.value - 1: note for note in enum}
    return tuple(known[number] for number in engine.get(attribute, kind) if number in known)


def _check_architecture(graph: pygraph, handle: Handle | None) -> None:
    """cudnnGraphNotSupportedError for a plan for another architecture without its description."""
    if handle is None or handle.ordinal is None:
        return
    wanted = graph.context.sm_version
    if wanted is not None and wanted != handle.device.sm_version:
        raise cudnnGraphNotSupportedError(
            f"sm_version={wanted} asks for plans for another architecture than that of cuda:{handle.ordinal} ({handle.device.sm_version}); "
            f"pass device_property= as well (cudnn.create_device_properties)"
        )


def _check_block_scales(graph: pygraph, handle: Handle | None) -> None:
    """cudnnGraphNotSupportedError for block scales before Blackwell: the library accepts them on every device and refuses them late and obscurely, or not."""
    node = next((node for node in graph.nodes if node.node_type in (NodeType.BLOCK_SCALE_QUANTIZE, NodeType.BLOCK_SCALE_DEQUANTIZE)), None)
    if node is None:
        return
    if graph.context.device_property is not None:
        # Of compute capability 9.0: 900.
        major, minor = divmod(json.loads(graph.context.device_property.serialize()).get("deviceVer", 0) // 10, 10)
    elif handle is not None and handle.ordinal is not None:
        major, minor = handle.device.compute_capability
    else:
        return
    if 0 < major < 10:
        raise cudnnGraphNotSupportedError(
            f"node '{node.name}' ({node.op}): cuDNN has block-scaled operations for compute capability 10.0 and newer only, found {major}.{minor}"
        )


def _usable(handle: Handle | None) -> Handle | None:
    """The handle, or another one of its device when it has been destroyed since."""
    if handle is not None and handle.backend_handle is None:
        return default_handle(handle.ordinal)
    return handle


def _plan_error(error: Any, what: str) -> Exception:
    if is_not_supported(error.status) or error.status == COMPILATION_FAILED:
        return cudnnGraphNotSupportedError(str(backend_error(error, what)))
    return backend_error(error, what)
