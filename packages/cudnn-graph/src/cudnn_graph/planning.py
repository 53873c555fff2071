"""The life cycle between building and executing: validation, lowering, ranked plans, filters, selection."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cudnn_graph.buffers import BufferTable
from cudnn_graph.engines.base import BACKEND_ENGINE_IDS, DECLINE, CompiledPlan, Engine, ExecutionContext, PlanConfig
from cudnn_graph.enums import behavior_note, build_plan_policy, heur_mode, knob_type, numerical_note
from cudnn_graph.errors import cudnnGraphNotSupportedError
from cudnn_graph.handle import to_backend_handle
from cudnn_graph.validate import validate_graph

if TYPE_CHECKING:
    from cudnn_graph.graph import pygraph

_log = logging.getLogger("cudnn.pygraph")

DEFAULT_HEURISTICS = (heur_mode.A, heur_mode.FALLBACK)

# A filter looks at a plan and says why it bars it, or None.
Filter = Callable[[PlanConfig, "int | None"], "str | None"]


def _list_of(value: Any, kind: type, what: str) -> list:
    items = [value] if isinstance(value, kind) else value
    if isinstance(items, str) or not isinstance(items, Iterable):
        raise TypeError(f"{what} must be a list of {kind.__name__}, got {value!r}")
    items = list(items)
    for item in items:
        if not isinstance(item, kind):
            raise TypeError(f"{what} must hold {kind.__name__} members, got {item!r}")
    return items


class PlanningMethods:
    """The life-cycle methods of :class:`cudnn.pygraph`."""

    def _init_planning(self: pygraph) -> None:
        self.engine_state: dict[str, Any] = {}
        self._engines: list[Engine] = []
        self._declined: list[tuple[str, str]] = []
        self._lowered = False
        self._planned = False
        self._configs: list[PlanConfig] = []
        self._plans: list[CompiledPlan | None] = []
        self._failures: dict[int, str] = {}
        self._filters: list[Filter] = []
        self._chosen: int | None = None
        self._pinned: int | None = None
        self._cpu_plan: CompiledPlan | None = None
        # Executes the chosen plan in one step; made by its first run.
        self._launcher: Any = None
        self._launcher_knows_torch = False
        self._table: BufferTable
        self._used_uids: set[int] = set()
        self._lock = threading.RLock()

    # The five steps.

    def validate(self: pygraph) -> None:
        """Infer dims, strides and dtypes in node order, check nodes and tensors, and freeze the graph.

        Raises:
            ValueError: something is unset or does not fit; the text names node, tensors, uids and dims. The graph can then be corrected and validated again.
            cudnnGraphNotSupportedError: a node type or dtype that the package does not serve.
        """
        with self._lock:
            if self._frozen:
                return
            validate_graph(self)
            self._freeze()
            self._used_uids = {t.uid for node in self._nodes for ports in (node.inputs, node.outputs) for t in ports.values()}
            self._used_uids |= {t.ragged_offset.uid for t in self._tensors if t.ragged_offset is not None and t.uid in self._used_uids}
            self._table = BufferTable(self._tensors, self._used_uids)

    def build_operation_graph(self: pygraph) -> None:
        """Hand the graph to the engines (validates it first when needed). cudnnGraphNotSupportedError when none of them takes it."""
        with self._lock:
            self.validate()
            if self._lowered:
                return
            from cudnn_graph.engines.registry import candidate_engines

            engines, declined = candidate_engines(self)
            for engine in engines:
                try:
                    self.engine_state[engine.name] = engine.prepare(self)
                except (*DECLINE, RuntimeError) as error:
                    # A RuntimeError is cuDNN's answer to some descriptors (the AVG reduction, for one); where another engine may serve, it is a reason like others.
                    if isinstance(error, RuntimeError) and not isinstance(error, DECLINE) and engine is engines[-1]:
                        raise
                    declined.append((engine.name, str(error)))
                    _log.debug("engine %s declines graph %s: %s", engine.name, self._context.name, error)
                else:
                    self._engines.append(engine)
            self._declined = declined
            if not self._engines:
                raise cudnnGraphNotSupportedError(self._nothing_left("no engine takes the graph"))
            self._lowered = True

    def create_execution_plans(self: pygraph, heuristics: Sequence[heur_mode] | heur_mode | None = None) -> None:
        """Ask the engines for plans and rank them. One-shot.

        Args:
            heuristics: modes for cuDNN's heuristics, in order; default [A, FALLBACK]. OPENSOURCE stands for the kernels of installed families: as the
                first mode it ranks their plans before cuDNN's.

        Raises:
            RuntimeError: called a second time.
            cudnnGraphNotSupportedError: no engine proposes a plan; lists every engine's reason.
        """
        modes = list(DEFAULT_HEURISTICS) if heuristics is None else _list_of(heuristics, heur_mode, "heuristics")
        with self._lock:
            if self._planned:
                raise RuntimeError(f"graph '{self._context.name}' has been planned already: create_execution_plans() works once")
            self.build_operation_graph()
            from cudnn_graph.engines.registry import by_preference

            configs: list[PlanConfig] = []
            for engine in by_preference(self._engines, modes):
                try:
                    configs.extend(engine.propose(self, modes))
                except DECLINE as error:
                    self._declined.append((engine.name, str(error)))
            if not configs:
                raise cudnnGraphNotSupportedError(self._nothing_left("no engine proposes a plan"))
            for config in configs:
                self._append_config(config)
            self._planned = True

    def check_support(self: pygraph) -> None:
        """Find the first plan that no filter bars and that compiles.

        Raises:
            RuntimeError: called before ``create_execution_plans``.
            cudnnGraphNotSupportedError: there is none ("No valid engine configs for ..."), with the reason of every plan and engine.
        """
        with self._lock:
            self._require_planned("check_support")
            if self._chosen is None:
                self._choose()

    def build_plans(self: pygraph, policy: build_plan_policy = build_plan_policy.HEURISTICS_CHOICE) -> None:
        """Build the first plan that compiles, or with ALL every plan that does.

        Raises:
            RuntimeError: called before ``create_execution_plans``.
            cudnnGraphNotSupportedError: no plan compiles.
        """
        if not isinstance(policy, build_plan_policy):
            raise TypeError(f"build_plans(): policy must be a cudnn.build_plan_policy, got {policy!r}")
        with self._lock:
            self._require_planned("build_plans")
            if self._chosen is None:
                self._choose()
            if policy is build_plan_policy.ALL:
                for index in range(len(self._configs)):
                    if self._plans[index] is None and index not in self._failures and self._bar_reason(index) is None:
                        self._try_build(index)

    def build(self: pygraph, heuristics: Sequence[heur_mode] | heur_mode | None = None) -> None:
        """``validate``, ``build_operation_graph``, ``create_execution_plans``, ``check_support`` and ``build_plans`` in one."""
        with self._lock:
            self.validate()
            self.build_operation_graph()
            self.create_execution_plans(heuristics)
            self.check_support()
            self.build_plans()

    def _build_for_execute(self: pygraph) -> None:
        with self._lock:
            if not self._configs:
                self.create_execution_plans()
            self.build_plans()

    # Choosing and building.

    def _append_config(self: pygraph, config: PlanConfig) -> int:
        self._configs.append(config)
        self._plans.append(None)
        return len(self._configs) - 1

    def _choose(self: pygraph) -> None:
        if self._pinned is not None:
            self._require_plan(self._pinned)
            self._chosen = self._pinned
            return
        for index in range(len(self._configs)):
            if self._bar_reason(index) is None and self._try_build(index):
                self._chosen = index
                return
        tag = "_".join(node.op for node in self._nodes)
        raise cudnnGraphNotSupportedError(self._nothing_left(f"No valid engine configs for {tag}"))

    def _try_build(self: pygraph, index: int) -> bool:
        """Build plan ``index`` unless it is built; False when its engine declines or a filter bars what came out."""
        if self._plans[index] is not None:
            return True
        try:
            self._build_at(index)
        except DECLINE as error:
            self._failures[index] = str(error)
            return False
        return self._bar_reason(index) is None

    def _build_at(self: pygraph, index: int) -> None:
        config = self._configs[index]
        plan = config.engine.build_plan(self, config, ExecutionContext(self._context.handle))
        if config.workspace_size is None:
            config.workspace_size = plan.get_workspace_size()
        self._plans[index] = plan

    def _require_plan(self: pygraph, index: int) -> CompiledPlan:
        """Plan ``index``, built now when needed. IndexError out of range, ValueError when barred, else what the engine raised."""
        with self._lock:
            self._require_index(index)
            self._refuse_barred(index)
            if self._plans[index] is None:
                self._build_at(index)
                self._refuse_barred(index)
            return self._plans[index]

    def _refuse_barred(self: pygraph, index: int) -> None:
        reason = self._bar_reason(index)
        if reason is not None:
            raise ValueError(f"plan {index} ('{self._configs[index].name}') is barred: {reason}")

    def _bar_reason(self: pygraph, index: int) -> str | None:
        config = self._configs[index]
        for rule in self._filters:
            reason = rule(config, config.workspace_size)
            if reason is not None:
                return reason
        return None

    def _require_planned(self: pygraph, method: str) -> None:
        if not self._configs:
            raise RuntimeError(f"{method}() needs plans: call create_execution_plans() or create_execution_plan() first")

    def _require_index(self: pygraph, index: int) -> None:
        if isinstance(index, bool) or not hasattr(index, "__index__"):
            raise TypeError(f"a plan index is an int, got {index!r}")
        if not 0 <= index < len(self._configs):
            raise IndexError(f"plan index {index} is out of range: graph '{self._context.name}' has {len(self._configs)} plans")

    def _nothing_left(self: pygraph, headline: str) -> str:
        lines = [f"{headline} (graph '{self._context.name}')"]
        lines += [f"  {engine}: {reason}" for engine, reason in self._declined]
        for index, config in enumerate(self._configs):
            reason = self._failures.get(index) or self._bar_reason(index)
            if reason is not None:
                lines.append(f"  plan {index} {config.name}: {reason}")
        if self._context.backend == "auto" and not self._context.reference_fallback:
            lines.append("  To run the graph in plain torch instead: pygraph(..., reference_fallback=True) or pygraph(..., backend='reference')")
        return "\n".join(lines)

    # Looking at plans.

    def get_execution_plan_count(self: pygraph) -> int:
        """Number of ranked plans, barred ones included."""
        return len(self._configs)

    def get_plan_name_at_index(self: pygraph, index: int) -> str:
        """Name of a plan: "eng<id>_k<knob>=<value>..." for cuDNN's, the engine's name for others. IndexError out of range."""
        self._require_index(index)
        return self._configs[index].name

    def get_engine_and_knobs_at_index(self: pygraph, index: int) -> tuple[int, dict[knob_type, int]]:
        """(engine id, {knob: value}) of a plan. IndexError out of range."""
        self._require_index(index)
        config = self._configs[index]
        return config.engine_id, config.engine.knobs_to_public(config.knobs)

    def get_workspace_size(self: pygraph, handle: Any = None, override_uids: Any = None, override_shapes: Any = None, override_strides: Any = None) -> int:
        """Bytes of workspace for ``execute``. RuntimeError before the graph is built."""
        if self._chosen is None:
            raise RuntimeError("get_workspace_size() needs a built graph: call build() or build_plans() first")
        return self._workspace_size(self._chosen, handle, override_uids, override_shapes, override_strides)

    def get_workspace_size_plan_at_index(
        self: pygraph, index: int, handle: Any = None, override_uids: Any = None, override_shapes: Any = None, override_strides: Any = None
    ) -> int:
        """Bytes of workspace for ``execute_plan_at_index``. IndexError out of range, RuntimeError when the plan is not built."""
        self._require_index(index)
        self._refuse_barred(index)
        if self._plans[index] is None:
            raise RuntimeError(f"plan {index} ('{self._configs[index].name}') is not built: call build_plan_at_index({index}) first")
        return self._workspace_size(index, handle, override_uids, override_shapes, override_strides)

    def _workspace_size(self: pygraph, index: int, handle: Any, uids: Any, shapes: Any, strides: Any) -> int:
        to_backend_handle(handle)
        override = None if uids is None and shapes is None and strides is None else self._override(uids, shapes, strides)
        return self._plans[index].get_workspace_size(override)

    def build_plan_at_index(self: pygraph, index: int) -> None:
        """Build one plan; it becomes the one to execute when none is chosen yet. ValueError when a filter bars it."""
        self._require_plan(index)
        with self._lock:
            if self._chosen is None and self._pinned in (None, index):
                self._chosen = index

    def select_plan(self: pygraph, index: int) -> None:
        """Pin plan ``index``: ``execute`` uses it and nothing else.

        Raises:
            RuntimeError: before planning.
            IndexError: out of range.
            ValueError: a filter bars it.
        """
        self._require_planned("select_plan")
        with self._lock:
            self._require_index(index)
            self._refuse_barred(index)
            self._pinned = index.__index__()
            self._chosen = self._pinned if self._plans[index] is not None else None
            self._launcher = None

    def create_execution_plan(self: pygraph, engine_id: int, knobs: Mapping[knob_type, int] | None = None) -> None:
        """Add the plan of an explicit engine and knobs at the end of the list. It is the plan to execute when no other was asked for.

        Raises:
            ValueError: no engine of that id takes the graph, or it has no such knob.
            cudnnGraphNotSupportedError: the engine cannot run the graph.
        """
        with self._lock:
            self.build_operation_graph()
            engine = self._engine_of(engine_id)
            public = dict(knobs or {})
            for key in public:
                if not isinstance(key, knob_type):
                    raise TypeError(f"knobs must map cudnn.knob_type members to ints, got key {key!r}")
            self._append_config(engine.make_config(self, engine_id, engine.knobs_from_public(public)))

    def _engine_of(self: pygraph, engine_id: int) -> Engine:
        for engine in self._engines:
            is_backend = engine.engine_id in BACKEND_ENGINE_IDS
            if engine.engine_id == engine_id or (is_backend and engine_id in BACKEND_ENGINE_IDS):
                return engine
        known = ", ".join(f"{engine.name} ({engine.engine_id})" for engine in self._engines)
        raise ValueError(f"no engine with id {engine_id} takes graph '{self._context.name}'; engines: {known}")

    def get_engine_count(self: pygraph) -> int:
        """Number of engines that can be asked for the graph."""
        self.build_operation_graph()
        return sum(engine.engine_count(self) for engine in self._engines)

    def get_knobs_for_engine(self: pygraph, engine_id: int) -> list[Any]:
        """The knobs of an engine with their ranges. ValueError for an unknown id."""
        self.build_operation_graph()
        return self._engine_of(engine_id).knobs_for_engine(self, engine_id)

    def get_behavior_notes(self: pygraph) -> list[behavior_note]:
        """Behaviour notes of the plan to execute. RuntimeError before the graph is built."""
        if self._chosen is None:
            raise RuntimeError("get_behavior_notes() needs a built graph: call build() or build_plans() first")
        return list(self._configs[self._chosen].behavior_notes)

    def get_behavior_notes_for_plan_at_index(self: pygraph, index: int) -> list[behavior_note]:
        """Behaviour notes of one plan. IndexError out of range."""
        self._require_index(index)
        return list(self._configs[index].behavior_notes)

    @property
    def plans(self: pygraph) -> tuple[PlanConfig, ...]:
        """The ranked plans."""
        return tuple(self._configs)

    @property
    def selected_engine(self: pygraph) -> Engine | None:
        """The Python engine that executes the graph; None when it is cuDNN's backend, or before the graph is built."""
        if self._chosen is None:
            return None
        engine = self._configs[self._chosen].engine
        return None if engine.engine_id in BACKEND_ENGINE_IDS else engine

    def backend_plan_entries(self: pygraph) -> list[PlanConfig]:
        """The plans that come from cuDNN's backend."""
        return [config for config in self._configs if config.engine.engine_id in BACKEND_ENGINE_IDS]

    # Filters.

    def _add_filter(self: pygraph, method: str, rule: Filter) -> pygraph:
        with self._lock:
            if any(plan is not None for plan in self._plans):
                raise RuntimeError(f"{method}() comes too late: plans are built already; call it before check_support()")
            self._filters.append(rule)
        return self

    def _note_filter(self: pygraph, method: str, notes: Any, kind: type, attribute: str, keep: bool) -> pygraph:
        wanted = _list_of(notes, kind, f"{method}()")

        def rule(config: PlanConfig, workspace: int | None) -> str | None:
            has = set(getattr(config, attribute))
            if keep:
                missing = [note.name for note in wanted if note not in has]
                return f"{method}() asks for {', '.join(missing)}" if missing else None
            found = [note.name for note in wanted if note in has]
            return f"{method}() bars {', '.join(found)}" if found else None

        return self._add_filter(method, rule)

    def select_behavior_notes(self: pygraph, notes: Sequence[behavior_note]) -> pygraph:
        """Keep only plans that have all these behaviour notes."""
        return self._note_filter("select_behavior_notes", notes, behavior_note, "behavior_notes", True)

    def deselect_behavior_notes(self: pygraph, notes: Sequence[behavior_note]) -> pygraph:
        """Bar plans that have any of these behaviour notes."""
        return self._note_filter("deselect_behavior_notes", notes, behavior_note, "behavior_notes", False)

    def select_numeric_notes(self: pygraph, notes: Sequence[numerical_note]) -> pygraph:
        """Keep only plans that have all these numerical notes."""
        return self._note_filter("select_numeric_notes", notes, numerical_note, "numerical_notes", True)

    def deselect_numeric_notes(self: pygraph, notes: Sequence[numerical_note]) -> pygraph:
        """Bar plans that have any of these numerical notes."""
        return self._note_filter("deselect_numeric_notes", notes, numerical_note, "numerical_notes", False)

    def deselect_engines(self: pygraph, names: Sequence[str]) -> pygraph:
        """Bar plans whose name contains any of these strings."""
        wanted = _list_of(names, str, "deselect_engines()")

        def rule(config: PlanConfig, workspace: int | None) -> str | None:
            hit = next((name for name in wanted if name in config.name), None)
            return None if hit is None else f"deselect_engines() bars '{hit}'"

        return self._add_filter("deselect_engines", rule)

    def deselect_workspace_greater_than(self: pygraph, size: int) -> pygraph:
        """Bar plans that need more than ``size`` bytes of workspace."""
        if isinstance(size, bool) or not hasattr(size, "__index__"):
            raise TypeError(f"deselect_workspace_greater_than(): size must be an int, got {size!r}")
        limit = size.__index__()

        def rule(config: PlanConfig, workspace: int | None) -> str | None:
            return f"needs {workspace} bytes of workspace, limit {limit}" if workspace is not None and workspace > limit else None

        return self._add_filter("deselect_workspace_greater_than", rule)
