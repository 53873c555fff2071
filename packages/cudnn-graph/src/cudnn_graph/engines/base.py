"""The contract between the graph and whatever runs it.

Order of calls the graph makes on each engine:

1. ``build_operation_graph`` -> :meth:`Engine.prepare`: lower the validated, frozen graph. Whatever it returns is kept in
   ``graph.engine_state[engine.name]``. It declines by raising one of :data:`DECLINE`; the text is the reason shown to the user.
2. ``create_execution_plans`` -> :meth:`Engine.propose`: ranked :class:`PlanConfig` objects for the heuristic modes asked for.
3. ``check_support`` / ``build_plans`` -> :meth:`Engine.build_plan`: a :class:`CompiledPlan`; raising one of :data:`DECLINE` moves on to the next plan.
4. ``execute`` -> :meth:`CompiledPlan.execute` with a variant pack ``{uid: buffer}`` and an :class:`ExecutionContext`.

Engine ids: 0-9999 are the backend's engines, Python engines have blocks of 100 from 20000 (:data:`REFERENCE_ENGINE_ID` ...).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cudnn_graph.enums import behavior_note, heur_mode, knob_type, numerical_note
from cudnn_graph.errors import cudnnGraphNotSupportedError

if TYPE_CHECKING:
    from cudnn_graph.graph import pygraph

DELEGATING_ENGINE_ID = -1
MARKER_ENGINE_ID = -2
BACKEND_ENGINE_IDS = range(0, 10000)
PYTHON_ENGINE_ID_BASE = 20000
KERNEL_ENGINE_ID = 21200
GEMM_REFERENCE_ENGINE_ID = 21300
REFERENCE_ENGINE_ID = 21400

# What an engine raises to say "not me": the graph records the text and asks the next one. Everything else is an error of the user's or ours.
DECLINE = (cudnnGraphNotSupportedError, NotImplementedError, ImportError)


class PlanConfig:
    """One way to run a graph: an engine, its knobs, and what is known about it before it is built.

    ``engine_id`` may differ from ``engine.engine_id`` (the backend engine stands for many of libcudnn's engines). ``workspace_size`` is None when
    it is known only after building. ``payload`` belongs to the engine.
    """

    __slots__ = ("engine", "engine_id", "name", "knobs", "behavior_notes", "numerical_notes", "workspace_size", "payload")

    def __init__(
        self,
        engine: Engine,
        *,
        name: str | None = None,
        engine_id: int | None = None,
        knobs: Mapping[knob_type, int] | None = None,
        behavior_notes: Sequence[behavior_note] | None = None,
        numerical_notes: Sequence[numerical_note] | None = None,
        workspace_size: int | None = None,
        payload: Any = None,
    ) -> None:
        self.engine = engine
        self.engine_id = engine.engine_id if engine_id is None else engine_id
        self.name = engine.name if name is None else name
        self.knobs = dict(knobs or {})
        self.behavior_notes = tuple(engine.behavior_notes if behavior_notes is None else behavior_notes)
        self.numerical_notes = tuple(engine.numerical_notes if numerical_notes is None else numerical_notes)
        self.workspace_size = workspace_size
        self.payload = payload

    def __repr__(self) -> str:
        return f"PlanConfig(name={self.name!r}, engine_id={self.engine_id}, workspace_size={self.workspace_size})"


class ExecutionContext:
    """Where a plan runs.

    ``handle``: a :class:`cudnn.Handle` or None (CPU). ``stream``: an int or None. ``workspace``: what the caller gave (a tensor or an int address), or
    None when the plan needs none. ``override``: None, or ``{uid: (shape, stride)}``.
    """

    __slots__ = ("handle", "stream", "workspace", "override")

    def __init__(self, handle: Any = None, stream: int | None = None, workspace: Any = None, override: Mapping[int, tuple] | None = None) -> None:
        self.handle = handle
        self.stream = stream
        self.workspace = workspace
        self.override = override


class CompiledPlan(ABC):
    """A built plan. Immutable: it may be executed from several threads, each with a handle of its own."""

    # Device type of the buffers the plan takes: "cuda", or None for any.
    device_type: str | None = None

    def get_workspace_size(self, override: Mapping[int, tuple] | None = None) -> int:
        """Bytes of workspace one execution needs."""
        return 0

    @abstractmethod
    def execute(self, variant_pack: Mapping[int, Any], ctx: ExecutionContext) -> None:
        """Run once. ``variant_pack`` maps the uid of every tensor that needs a buffer to what the caller gave: a DLPack object, an int address,
        or (pass-by-value) a Python number or host tensor. The graph has checked that none is missing. Values of ``tensor_scalar`` are not in it."""

    def launcher(self, table: Any) -> Any:
        """Something that executes the plan from the caller's dictionary in one step, where the plan can; None: it cannot.

        ``table`` is the graph's :class:`~cudnn_graph.buffers.BufferTable`. The result has ``execute(buffers, workspace, handle, settle, allocate)``,
        which returns False, with nothing done, unless everything is exactly as expected; the graph then takes the way that explains errors.
        """
        return None

    def explain(self, error: RuntimeError) -> RuntimeError:
        """The error to show for one that came out of the launcher: itself, or another one raised from it."""
        return error

    def serialize(self) -> Any:
        """JSON-serialisable description from which :meth:`Engine.load_plan` rebuilds the plan. NotImplementedError: it cannot be stored."""
        raise NotImplementedError(f"{type(self).__name__} cannot be serialized")


class Engine(ABC):
    """Something that can run graphs. Stateless: what belongs to one graph lives in ``graph.engine_state``."""

    name: str
    engine_id: int
    behavior_notes: tuple[behavior_note, ...] = ()
    numerical_notes: tuple[numerical_note, ...] = ()

    def unavailable(self) -> str | None:
        """Why the engine cannot be used in this process at all (no library, no device), or None. Cheap after the first call; never raises."""
        return None

    @abstractmethod
    def check_support(self, graph: pygraph) -> None:
        """Return when the engine can run the graph; raise one of :data:`DECLINE` with the reason otherwise. Reads metadata only."""

    def prepare(self, graph: pygraph) -> Any:
        """Lower the frozen graph. The result is kept in ``graph.engine_state[self.name]``."""
        self.check_support(graph)
        return None

    def propose(self, graph: pygraph, modes: Sequence[heur_mode]) -> list[PlanConfig]:
        """Ranked plans for the heuristic modes, best first. Raises one of :data:`DECLINE` when there are none."""
        return [PlanConfig(self, workspace_size=0)]

    @abstractmethod
    def build_plan(self, graph: pygraph, config: PlanConfig, ctx: ExecutionContext) -> CompiledPlan:
        """Compile one plan; raise one of :data:`DECLINE` when it turns out not to be runnable."""

    def load_plan(self, graph: pygraph, data: Any, ctx: ExecutionContext) -> tuple[PlanConfig, CompiledPlan]:
        """Rebuild a plan from what :meth:`CompiledPlan.serialize` gave."""
        raise NotImplementedError(f"engine '{self.name}' does not load serialized plans")

    def engine_count(self, graph: pygraph) -> int:
        """Number of engines that libcudnn (or this engine) has for the graph."""
        return 1

    def knobs_for_engine(self, graph: pygraph, engine_id: int) -> list[Any]:
        """``cudnn.knob`` descriptions of an engine's knobs. ValueError when the id is not this engine's."""
        return []

    def make_config(self, graph: pygraph, engine_id: int, knobs: Mapping[knob_type, int]) -> PlanConfig:
        """The plan for explicit engine id and knobs (``create_execution_plan``)."""
        return PlanConfig(self, engine_id=engine_id, knobs=knobs, workspace_size=0)

    def knobs_to_public(self, knobs: Mapping[Any, int]) -> dict[knob_type, int]:
        """The engine's own knobs as public ones."""
        return dict(knobs)

    def knobs_from_public(self, knobs: Mapping[knob_type, int]) -> dict[Any, int]:
        """Public knobs as the engine's own ones. ValueError for a knob it does not have."""
        return dict(knobs)
