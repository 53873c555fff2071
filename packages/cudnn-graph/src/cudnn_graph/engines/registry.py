"""Which engines are asked for a graph, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from cudnn_graph.engines.base import DECLINE, KERNEL_ENGINE_ID, Engine
from cudnn_graph.enums import heur_mode

if TYPE_CHECKING:
    from cudnn_graph.graph import pygraph


@cache
def backend_engine() -> Engine:
    """libcudnn."""
    from cudnn_graph.engines.backend import BackendEngine

    return BackendEngine()


@cache
def kernel_engine() -> Engine:
    """Fused kernels of the installed families."""
    from cudnn_graph.engines.kernels import KernelEngine

    return KernelEngine()


@cache
def reference_engines() -> tuple[Engine, ...]:
    """Plain torch: the engine for matmul and pointwise graphs, then the one for every node."""
    from cudnn_graph.reference import GemmReferenceEngine, ReferenceEngine

    return GemmReferenceEngine(), ReferenceEngine()


def reference_engine_for(graph: pygraph) -> Engine:
    """The narrowest reference engine that runs the graph; raises what the widest one declines with."""
    narrow, wide = reference_engines()
    try:
        narrow.check_support(graph)
    except NotImplementedError:
        wide.check_support(graph)
        return wide
    return narrow


def graph_device_type(graph: pygraph) -> tuple[str, str | None]:
    """("cuda" or "cpu", why not "cuda"): where a graph with backend="auto" runs."""
    for tensor in graph.tensors.values():
        if tensor.device == "cpu" and any(extent != 1 for extent in tensor.dim):
            return "cpu", f"tensor '{tensor.name}' was made from a CPU tensor"
    reason = backend_engine().unavailable()
    if reason is not None and graph.context.handle is None and graph.context.device_property is None:
        return "cpu", reason
    return "cuda", None


def candidate_engines(graph: pygraph) -> tuple[list[Engine], list[tuple[str, str]]]:
    """(engines to ask, best first; engines left out with the reason)."""
    choice = graph.context.backend
    if choice == "cudnn":
        return [backend_engine()], []
    if choice == "reference":
        return _references(graph), []
    device, reason = graph_device_type(graph)
    if device == "cpu":
        return [*_references(graph), kernel_engine()], [(backend_engine().name, reason)]
    engines = [backend_engine(), kernel_engine()]
    if graph.context.reference_fallback:
        engines += _references(graph)
    return engines, []


def by_preference(engines: Sequence[Engine], modes: Sequence[heur_mode]) -> list[Engine]:
    """The engines in the order in which their plans are ranked: kernels of the families come first where OPENSOURCE is the first mode asked for."""
    if modes and modes[0] is heur_mode.OPENSOURCE:
        return sorted(engines, key=lambda engine: engine.engine_id != KERNEL_ENGINE_ID)
    return list(engines)


def _references(graph: pygraph) -> list[Engine]:
    """One reference engine: they share their arithmetic, so that a second plan would only repeat the first."""
    narrow, wide = reference_engines()
    try:
        narrow.check_support(graph)
    except DECLINE:
        return [wide]
    return [narrow]


def engine_by_name(name: str) -> Engine:
    """The engine that made a serialized plan. ValueError for an unknown name."""
    for engine in (backend_engine(), kernel_engine(), *reference_engines()):
        if engine.name == name:
            return engine
    raise ValueError(f"the plan was made by engine '{name}', which this version does not have")
