"""Planning and execution: ranking, filters, policies, selection, the variant pack and its checks. Engines are stand-ins where the machine has none."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading

import pytest

import cudnn
from cudnn_graph.engines import registry as engines
from cudnn_graph.engines.base import CompiledPlan, Engine, PlanConfig

torch = pytest.importorskip("torch")

FALLBACK = cudnn.heur_mode.FALLBACK


class RecordingPlan(CompiledPlan):
    def __init__(self, config, log, workspace=0, device_type=None):
        self.config, self.log, self.workspace, self.device_type = config, log, workspace, device_type

    def get_workspace_size(self, override=None):
        return self.workspace

    def execute(self, variant_pack, ctx):
        self.log.append((self.config.name, sorted(variant_pack), ctx.workspace))

    def serialize(self):
        return {"name": self.config.name}


class StandIn(Engine):
    """An engine with the plans it is told to have: (name, builds?, workspace, behaviour notes)."""

    engine_id = 20950

    def __init__(self, name, plans, decline=None, engine_id=20950, device_type=None):
        self.name, self.plans, self.decline, self.engine_id, self.device_type = name, plans, decline, engine_id, device_type
        self.log, self.built = [], []

    def check_support(self, graph):
        if self.decline:
            raise NotImplementedError(self.decline)

    def propose(self, graph, modes):
        self.modes = list(modes)
        return [
            PlanConfig(self, name=name, workspace_size=workspace, behavior_notes=notes, numerical_notes=(), knobs={cudnn.knob_type.STAGES: i})
            for i, (name, _, workspace, notes) in enumerate(self.plans)
        ]

    def build_plan(self, graph, config, ctx):
        entry = next((p for p in self.plans if p[0] == config.name), (config.name, True, 0, ()))
        self.built.append(config.name)
        if isinstance(entry[1], Exception):
            raise entry[1]
        return RecordingPlan(config, self.log, entry[2] or 0, self.device_type)

    def load_plan(self, graph, data, ctx):
        config = PlanConfig(self, name=data["name"])
        return config, RecordingPlan(config, self.log)


NOTE = cudnn.behavior_note
REFUSED = cudnn.cudnnGraphNotSupportedError("no kernel for it")
PLANS = [
    ("eng1_k2=1", REFUSED, None, (NOTE.RUNTIME_COMPILATION,)),
    ("eng2_k2=1", True, 4096, (NOTE.RUNTIME_COMPILATION,)),
    ("eng3_k2=1", True, 0, (NOTE.CUBLASLT_DEPENDENCY, NOTE.SUPPORTS_CUDA_GRAPH_NATIVE_API)),
    ("eng4_k2=1", ImportError("compiler missing"), 0, ()),
]


@pytest.fixture
def use(monkeypatch):
    """use(engine, ...): those are the engines asked for every graph."""

    def install(*chosen, declined=()):
        monkeypatch.setattr(engines, "candidate_engines", lambda graph: (list(chosen), list(declined)))
        monkeypatch.setattr(engines, "engine_by_name", lambda name: next(e for e in chosen if e.name == name))
        return chosen[0]

    return install


def relu_graph(**options):
    graph = cudnn.pygraph(io_data_type=torch.float32, name="g", **options)
    x = graph.tensor([2, 3], name="x")
    return graph, x, graph.relu(x).set_output(True).set_name("y")


def buffers(x, y):
    return {x: torch.randn(2, 3), y: torch.empty(2, 3)}


# Planning.


def test_first_plan_that_builds_is_chosen(use):
    engine = use(StandIn("stand-in", PLANS))
    graph, x, y = relu_graph()
    graph.build()
    assert engine.modes == [cudnn.heur_mode.A, FALLBACK]
    assert engine.built == ["eng1_k2=1", "eng2_k2=1"]
    assert graph.get_execution_plan_count() == 4 and graph.get_plan_name_at_index(2) == "eng3_k2=1"
    assert graph.get_engine_and_knobs_at_index(2) == (20950, {cudnn.knob_type.STAGES: 2})
    assert graph.get_workspace_size() == 4096
    assert graph.get_behavior_notes() == [NOTE.RUNTIME_COMPILATION]
    assert graph.get_behavior_notes_for_plan_at_index(3) == []
    graph.execute(buffers(x, y), workspace=1234)
    assert engine.log == [("eng2_k2=1", [1, 2], 1234)]
    assert graph.selected_engine is engine and [p.name for p in graph.plans] == [p[0] for p in PLANS]


def test_steps_one_by_one(use):
    use(StandIn("stand-in", PLANS))
    graph, *_ = relu_graph()
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([FALLBACK])
    graph.check_support()
    graph.build_plans(cudnn.build_plan_policy.HEURISTICS_CHOICE)
    assert graph.inspect()["selected_plan"] == 1


def test_heuristics_argument(use):
    engine = use(StandIn("stand-in", PLANS))
    relu_graph()[0].create_execution_plans(cudnn.heur_mode.B)
    assert engine.modes == [cudnn.heur_mode.B]
    with pytest.raises(TypeError, match="heur_mode"):
        relu_graph()[0].create_execution_plans(["A"])


def test_build_all(use):
    engine = use(StandIn("stand-in", PLANS))
    graph, *_ = relu_graph()
    graph.create_execution_plans()
    graph.build_plans(cudnn.build_plan_policy.ALL)
    assert engine.built == [p[0] for p in PLANS]
    assert [plan["built"] for plan in graph.inspect()["plans"]] == [False, True, True, False]
    assert graph.get_workspace_size_plan_at_index(2) == 0
    with pytest.raises(RuntimeError, match="plan 3 .* is not built"):
        graph.get_workspace_size_plan_at_index(3)


def test_planning_is_one_shot(use):
    use(StandIn("stand-in", PLANS))
    graph, *_ = relu_graph()
    graph.create_execution_plans()
    with pytest.raises(RuntimeError, match="works once"):
        graph.create_execution_plans()
    with pytest.raises(RuntimeError, match="works once"):
        graph.build()


def test_execute_builds_first(use):
    engine = use(StandIn("stand-in", PLANS))
    graph, x, y = relu_graph()
    graph.execute(buffers(x, y), workspace=1)
    assert engine.log[0][0] == "eng2_k2=1"


def test_order_of_calls(use):
    use(StandIn("stand-in", PLANS))
    graph, *_ = relu_graph()
    for call in (graph.check_support, graph.build_plans, lambda: graph.select_plan(0), graph.get_workspace_size, graph.get_behavior_notes, graph.serialize):
        with pytest.raises(RuntimeError):
            call()
    graph.create_execution_plans()
    with pytest.raises(RuntimeError, match="built"):
        graph.get_workspace_size()
    for index in (-1, 4):
        with pytest.raises(IndexError, match="out of range"):
            graph.get_plan_name_at_index(index)
        with pytest.raises(IndexError):
            graph.select_plan(index)
        with pytest.raises(IndexError):
            graph.execute_plan_at_index({}, None, index)


def test_nothing_proposed_lists_every_reason(use):
    use(StandIn("one", [], decline="no such node"), StandIn("two", []), declined=[("cudnn", "libcudnn not found")])
    graph, *_ = relu_graph()
    with pytest.raises(cudnn.cudnnGraphNotSupportedError) as caught:
        graph.build()
    text = str(caught.value)
    assert "no engine proposes a plan" in text and "one: no such node" in text and "cudnn: libcudnn not found" in text and "reference_fallback" in text


def test_no_plan_survives(use):
    use(StandIn("stand-in", [PLANS[0], PLANS[3]]))
    graph, *_ = relu_graph()
    graph.create_execution_plans()
    with pytest.raises(cudnn.cudnnGraphNotSupportedError) as caught:
        graph.check_support()
    text = str(caught.value)
    assert "No valid engine configs for relu" in text
    assert "plan 0 eng1_k2=1: no kernel for it" in text and "plan 1 eng4_k2=1: compiler missing" in text


def test_plans_of_several_engines_are_ranked_in_order(use):
    use(StandIn("one", [("a", REFUSED, 0, ())]), StandIn("two", [("b", True, 0, ())], engine_id=20951))
    graph, *_ = relu_graph()
    graph.build()
    assert [plan.name for plan in graph.plans] == ["a", "b"] and graph.selected_engine.name == "two"


def test_an_error_of_cudnn_is_a_reason_where_another_engine_may_serve(use):
    class Broken(StandIn):
        def prepare(self, graph):
            raise RuntimeError("CUDNN_STATUS_NOT_SUPPORTED while finalizing REDUCTION")

    use(Broken("broken", []), StandIn("two", [("b", True, 0, ())]))
    graph, *_ = relu_graph()
    graph.build()
    assert graph.inspect()["declined"] == {"broken": "CUDNN_STATUS_NOT_SUPPORTED while finalizing REDUCTION"}
    use(Broken("broken", []))
    with pytest.raises(RuntimeError, match="finalizing REDUCTION"):
        relu_graph()[0].build()


# Filters and selection.


@pytest.mark.parametrize(
    ("apply", "name"),
    [
        (lambda g: g.deselect_engines(["eng2"]), "eng3_k2=1"),
        (lambda g: g.deselect_behavior_notes([NOTE.RUNTIME_COMPILATION]), "eng3_k2=1"),
        (lambda g: g.select_behavior_notes([NOTE.CUBLASLT_DEPENDENCY, NOTE.SUPPORTS_CUDA_GRAPH_NATIVE_API]), "eng3_k2=1"),
        (lambda g: g.deselect_workspace_greater_than(4095), "eng3_k2=1"),
        (lambda g: g.deselect_workspace_greater_than(4096), "eng2_k2=1"),
        (lambda g: g.deselect_numeric_notes([cudnn.numerical_note.TENSOR_CORE]), "eng2_k2=1"),
    ],
)
def test_filters(use, apply, name):
    use(StandIn("stand-in", PLANS))
    graph, *_ = relu_graph()
    graph.create_execution_plans()
    assert apply(graph) is graph
    graph.check_support()
    graph.build_plans()
    assert graph.get_plan_name_at_index(graph.inspect()["selected_plan"]) == name


def test_filter_before_planning_works_too(use):
    use(StandIn("stand-in", PLANS))
    graph, *_ = relu_graph()
    graph.deselect_engines(["eng2"]).build()
    assert graph.inspect()["selected_plan"] == 2


def test_a_workspace_known_only_after_building_is_filtered(use):
    class Late(StandIn):
        def propose(self, graph, modes):
            return [PlanConfig(self, name=p[0]) for p in self.plans]

    use(Late("late", [("big", True, 1 << 20, ()), ("small", True, 16, ())]))
    graph, *_ = relu_graph()
    graph.deselect_workspace_greater_than(1000)
    graph.build()
    assert graph.get_plan_name_at_index(graph.inspect()["selected_plan"]) == "small" and graph.get_workspace_size() == 16


def test_filter_errors(use):
    use(StandIn("stand-in", PLANS))
    graph, *_ = relu_graph()
    with pytest.raises(TypeError, match="behavior_note"):
        graph.select_behavior_notes([cudnn.numerical_note.FFT])
    with pytest.raises(TypeError, match="list of str"):
        graph.deselect_engines(3)
    with pytest.raises(TypeError, match="size must be an int"):
        graph.deselect_workspace_greater_than("1k")
    graph.build()
    with pytest.raises(RuntimeError, match="too late"):
        graph.deselect_engines(["eng2"])


def test_everything_barred(use):
    use(StandIn("stand-in", PLANS))
    graph, *_ = relu_graph()
    graph.deselect_engines(["eng"])
    graph.create_execution_plans()
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match=r"No valid engine configs for relu[\s\S]*plan 2 eng3_k2=1: deselect_engines\(\) bars 'eng'"):
        graph.check_support()


def test_pinned_plan_is_used_without_fallback(use):
    engine = use(StandIn("stand-in", PLANS))
    graph, x, y = relu_graph()
    graph.create_execution_plans()
    graph.select_plan(2)
    graph.execute(buffers(x, y))
    assert engine.log == [("eng3_k2=1", [1, 2], None)] and engine.built == ["eng3_k2=1"]
    graph.select_plan(1)
    graph.execute(buffers(x, y), workspace=7)
    assert engine.log[-1] == ("eng2_k2=1", [1, 2], 7)
    graph.select_plan(0)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="no kernel for it"):
        graph.execute(buffers(x, y))


def test_barred_plans_cannot_be_pinned_or_executed(use):
    use(StandIn("stand-in", PLANS))
    graph, x, y = relu_graph()
    graph.create_execution_plans()
    graph.deselect_engines(["eng3"])
    for call in (
        lambda: graph.select_plan(2),
        lambda: graph.build_plan_at_index(2),
        lambda: graph.execute_plan_at_index(buffers(x, y), None, 2),
        lambda: graph.get_workspace_size_plan_at_index(2),
    ):
        with pytest.raises(ValueError, match=r"plan 2 \('eng3_k2=1'\) is barred: deselect_engines"):
            call()


def test_plan_at_index(use):
    engine = use(StandIn("stand-in", PLANS))
    graph, x, y = relu_graph()
    graph.create_execution_plans()
    graph.build_plan_at_index(2)
    assert graph.inspect()["selected_plan"] == 2 and engine.built == ["eng3_k2=1"]
    graph.execute_plan_at_index(buffers(x, y), 5, 1)
    graph.execute(buffers(x, y))
    assert [name for name, *_ in engine.log] == ["eng2_k2=1", "eng3_k2=1"]


def test_explicit_plan(use):
    engine = use(StandIn("stand-in", PLANS))
    graph, x, y = relu_graph()
    graph.create_execution_plan(20950, {cudnn.knob_type.STAGES: 5})
    graph.execute(buffers(x, y))
    assert graph.get_execution_plan_count() == 1 and graph.get_engine_and_knobs_at_index(0) == (20950, {cudnn.knob_type.STAGES: 5})
    assert engine.log[0][0] == "stand-in"
    with pytest.raises(ValueError, match="no engine with id 77"):
        graph.create_execution_plan(77, {})
    with pytest.raises(TypeError, match="knob_type"):
        graph.create_execution_plan(20950, {"stages": 3})
    assert graph.get_engine_count() == 1 and graph.get_knobs_for_engine(20950) == []


# Serialization.


def test_serialize_round_trip(use):
    engine = use(StandIn("stand-in", PLANS))
    graph, x, y = relu_graph()
    graph.build()
    data = graph.serialize()
    assert isinstance(data, list) and all(isinstance(v, int) and 0 <= v < 256 for v in data)
    assert graph.serialize(as_bytes=True) == bytes(data)
    for stored in (data, bytes(data), bytearray(data)):
        other = cudnn.pygraph()
        other.deserialize(stored)
        other.execute({"x": torch.randn(2, 3), "y": torch.empty(2, 3)})
        assert engine.log[-1][0] == "eng2_k2=1" and other.to_json() == graph.to_json()
    without = graph.serialize(include_kernels=False)
    other = cudnn.pygraph()
    other.deserialize(None, without)
    assert engine.built[-1] == "stand-in"
    with pytest.raises(RuntimeError, match="no compiled kernels"):
        cudnn.pygraph().deserialize(without, enforce_precompiled=True)
    with pytest.raises(TypeError, match="raw backend handles"):
        cudnn.pygraph().deserialize(5, data)
    for damaged in (data[:-3], data[:10], [0, 1, 2], b""):
        with pytest.raises(ValueError, match="UBJSON"):
            cudnn.pygraph().deserialize(damaged)
    with pytest.raises(TypeError):
        cudnn.pygraph().deserialize(3.0)


def test_reference_graphs_serialize():
    graph = cudnn.pygraph(io_data_type=torch.float32, backend="reference")
    x = graph.tensor([4, 3], name="x")
    y = graph.reduction(graph.mul(x, 0.25), cudnn.reduction_mode.ADD, out_dims=[1, 3]).set_output(True).set_name("y")
    graph.build()
    other = cudnn.pygraph()
    other.deserialize(graph.serialize())
    value, one, two = torch.randn(4, 3), torch.empty(1, 3), torch.empty(1, 3)
    graph.execute({x: value, y: one})
    other.execute({"x": value, "y": two})
    assert torch.equal(one, two) and torch.allclose(one, 0.25 * value.sum(0, keepdim=True))


# The variant pack.


def matmul_graph(**options):
    graph = cudnn.pygraph(io_data_type=torch.float32, name="mm", backend="reference", **options)
    a, b = graph.tensor([1, 2, 3], name="a"), graph.tensor([1, 3, 4], name="b", uid=77)
    c = graph.matmul(a, b).set_output(True).set_name("c")
    return graph, a, b, c


def operands():
    return torch.randn(1, 2, 3), torch.randn(1, 3, 4), torch.full((1, 2, 4), float("nan"))


def test_keys_by_tensor_name_and_uid():
    va, vb, vc = operands()
    for keys in (lambda g, a, b, c: (a, b, c), lambda g, a, b, c: ("a", "b", "c"), lambda g, a, b, c: (a.get_uid(), 77, c), lambda g, a, b, c: ("a", 77, c)):
        graph, a, b, c = matmul_graph()
        vc.fill_(float("nan"))
        graph.execute(dict(zip(keys(graph, a, b, c), (va, vb, vc), strict=True)))
        assert torch.allclose(vc, va @ vb)
    graph, a, b, c = matmul_graph()
    graph.execute([vb, vc.fill_(0), va], tensor_uids=[77, c.get_uid(), a.get_uid()])
    assert torch.allclose(vc, va @ vb)


def test_missing_buffers_are_named():
    graph, a, b, c = matmul_graph()
    va, vb, vc = operands()
    for pack, uid, name in (
        ({a: va, c: vc}, 77, "b"),
        ({b: vb, c: vc}, 1, "a"),
        ({a: va, b: vb}, c.get_uid(), "c"),
        ({}, 1, "a"),
        ({a: None, b: vb, c: vc}, 1, "a"),
    ):
        with pytest.raises(ValueError, match=rf"missing a buffer for tensor uid {uid} \('{name}'\)"):
            graph.execute(pack)


def test_bad_keys():
    graph, a, b, c = matmul_graph()
    va, vb, vc = operands()
    good = {a: va, b: vb, c: vc}
    foreign = matmul_graph()[1]
    for key, part in ((foreign, "another graph"), ("nothing", "no tensor named 'nothing'"), (55, "no tensor with uid 55"), (2.5, "a key is a graph tensor")):
        with pytest.raises(ValueError, match=part):
            graph.execute({**good, key: va})
    with pytest.raises(ValueError, match="tensor_uids"):
        graph.execute([va, vb, vc])
    with pytest.raises(ValueError, match="3 buffers for 2"):
        graph.execute([va, vb, vc], tensor_uids=[1, 77])
    with pytest.raises(ValueError, match="not with a dictionary"):
        graph.execute(good, tensor_uids=[1])


def test_buffers_for_tensors_that_take_none():
    graph = cudnn.pygraph(io_data_type=torch.float32, backend="reference")
    x, spare = graph.tensor([2, 2], name="x"), graph.tensor([2, 2], name="spare")
    mid = graph.exp(x)
    scalar = graph.tensor_scalar(2.0, cudnn.scalar_type.RUNTIME_PARAM, name="two")
    y = graph.mul(mid, scalar).set_output(True)
    pack = {x: torch.zeros(2, 2), y: torch.empty(2, 2)}
    for extra, part in ((mid, "is virtual"), (scalar, "value is kept"), (spare, "used by no node")):
        with pytest.raises(ValueError, match=part):
            graph.execute({**pack, extra: torch.zeros(2, 2)})
    graph.execute(pack)
    assert (pack[y] == 2.0).all()


def test_ambiguous_name():
    graph, a, b, c = matmul_graph()
    b.set_name("a")
    va, vb, vc = operands()
    with pytest.raises(ValueError, match=r"name 'a' is ambiguous \(uids 1, 77\)"):
        graph.execute({"a": va, b: vb, c: vc})


def test_buffers_that_do_not_fit():
    graph, a, b, c = matmul_graph()
    va, vb, vc = operands()
    good = {a: va, b: vb, c: vc}
    for key, value, part in (
        (a, va.half(), "is FLOAT, but its buffer is torch.float16"),
        (b, torch.randn(1, 2, 4), r"'b' \(uid 77, dim \[1, 3, 4\]\) .* spans 48 bytes, but its buffer holds 32 bytes"),
        (b, torch.randn(4).expand(1, 3, 4), "spans 48 bytes, but its buffer holds 16 bytes"),
        (c, torch.empty(20)[13:], "spans 32 bytes, but its buffer holds 28 bytes"),
        (a, 0, "null address"),
        (a, 1.5, "needs a buffer, got the number"),
        (a, "text", "DLPack object or an address"),
        (a, [1.0], "DLPack object or an address"),
    ):
        with pytest.raises(ValueError, match=part):
            graph.execute({**good, key: value})
    graph.execute(good)
    assert torch.allclose(vc, va @ vb)


def test_views_of_larger_buffers_fit():
    graph, a, b, c = matmul_graph()
    memory = torch.randn(40)
    out = torch.empty(2, 4)
    vb = torch.randn(3, 4)
    graph.execute({a: memory[5:11], b: vb, c: out})
    assert torch.allclose(out, memory[5:11].view(2, 3) @ vb)


def test_addresses_and_dlpack_objects():
    numpy = pytest.importorskip("numpy")
    graph, a, b, c = matmul_graph()
    va, vb, _ = operands()
    out = (ctypes.c_float * 8)()
    graph.execute({a: va.data_ptr(), b: numpy.ascontiguousarray(vb.numpy()), c: ctypes.addressof(out)})
    assert torch.allclose(torch.frombuffer(out, dtype=torch.float32).view(1, 2, 4), va @ vb)
    with pytest.raises(ValueError, match="is FLOAT, but its buffer is float64"):
        graph.execute({a: va, b: numpy.zeros((1, 3, 4)), c: torch.empty(1, 2, 4)})
    with pytest.raises(ValueError, match="spans 48 bytes, but its buffer holds 8 bytes"):
        graph.execute({a: va, b: numpy.zeros(2, dtype=numpy.float32), c: torch.empty(1, 2, 4)})


def test_pass_by_value():
    graph = cudnn.pygraph(io_data_type=torch.float32, backend="reference")
    x = graph.tensor([2, 2])
    alpha = graph.tensor([1, 1], is_pass_by_value=True, name="alpha")
    y = graph.mul(x, alpha).set_output(True)
    value, out = torch.randn(2, 2), torch.empty(2, 2)
    for given in (3.0, torch.tensor(3.0), torch.tensor([[3.0]])):
        graph.execute({x: value, alpha: given, y: out.fill_(0)})
        assert torch.equal(out, 3 * value)
    with pytest.raises(ValueError, match="may be a value or an address"):
        graph.execute({x: value, alpha: 3, y: out})
    with pytest.raises(ValueError, match="missing a buffer for tensor uid 2 \\('alpha'\\)"):
        graph.execute({x: value, y: out})


def test_operands_are_bound_and_can_be_replaced():
    graph = cudnn.pygraph(backend="reference")
    a, b = torch.randn(1, 2, 3), torch.randn(1, 3, 2)
    c = graph.matmul(a, b).set_output(True).set_data_type(torch.float32)
    out, other = torch.empty(1, 2, 2), torch.randn(1, 2, 3)
    graph.execute({c: out})
    assert torch.allclose(out, a @ b)
    graph.execute({c: out, graph.get_inputs()[0]: other})
    assert torch.allclose(out, other @ b)


def test_parameters_that_require_grad_are_accepted():
    graph, a, b, c = matmul_graph()
    va, vb, vc = operands()
    leaf = torch.nn.Parameter(vb)
    graph.execute({a: va, b: leaf, c: vc})
    assert torch.allclose(vc, (va @ leaf).detach()) and leaf.grad is None and not vc.requires_grad


def test_outputs_may_share_memory_with_inputs():
    graph = cudnn.pygraph(io_data_type=torch.float32, backend="reference")
    x = graph.tensor([3, 3])
    y = graph.transpose(x, [1, 0]).set_output(True)
    z = graph.identity(x).set_output(True)
    value, copy = torch.randn(3, 3), torch.empty(3, 3)
    want = value.clone()
    graph.execute({x: value, y: value, z: copy})
    assert torch.equal(value, want.t()) and torch.equal(copy, want)


# Override shapes.


def test_override_shapes_on_the_reference_engine():
    graph, a, b, c = matmul_graph(is_override_shape_enabled=True)
    graph.build()
    va, vb, vc = torch.randn(1, 5, 3), torch.randn(1, 3, 4), torch.empty(1, 5, 4)
    override = {"override_uids": [a.get_uid(), c.get_uid()], "override_shapes": [[1, 5, 3], [1, 5, 4]], "override_strides": [[15, 3, 1], [20, 4, 1]]}
    graph.execute({a: va, b: vb, c: vc}, **override)
    assert torch.allclose(vc, va @ vb)
    with pytest.raises(ValueError, match="spans 60 bytes"):
        graph.execute({a: va[:, :2].clone(), b: vb, c: vc}, **override)
    with pytest.raises(ValueError, match="keep its rank 3"):
        graph.execute({a: va, b: vb, c: vc}, override_uids=[1], override_shapes=[[5, 3]], override_strides=[[3, 1]])
    with pytest.raises(ValueError, match="go together"):
        graph.execute({a: va, b: vb, c: vc}, override_uids=[1])
    plain, a, b, c = matmul_graph()
    with pytest.raises(ValueError, match="is_override_shape_enabled"):
        plain.execute({a: va, b: vb, c: vc}, **override)


# Devices and threads.


def test_cpu_buffers_for_a_graph_planned_for_cuda(use):
    engine = use(StandIn("gpu", [("k", True, 0, ())], device_type="cuda"))
    graph, x, y = relu_graph()
    pack = buffers(x, y)
    graph.execute(pack)
    assert engine.log == [] and torch.equal(pack[y], pack[x].relu()), "the reference engine runs CPU tensors"
    graph, x, y = relu_graph(backend="cudnn")
    with pytest.raises(ValueError, match="runs on CUDA .* but its buffers are on the CPU"):
        graph.execute(buffers(x, y))


def test_a_graph_made_from_cpu_tensors_needs_no_gpu():
    graph = cudnn.pygraph()
    y = graph.relu(torch.randn(2, 3)).set_output(True).set_data_type(torch.float32)
    graph.build()
    assert graph.get_plan_name_at_index(0) == "gemm_reference" and graph.selected_engine.engine_id == 21300
    out = torch.empty(2, 3)
    graph.execute({y: out})
    assert (out >= 0).all()


def test_without_torch_the_ir_works_and_planning_says_what_is_missing():
    """In a process that cannot import torch."""
    code = """
import sys
sys.modules["torch"] = None
import cudnn
graph = cudnn.pygraph(io_data_type="float32")
y = graph.relu(graph.tensor([2, 2])).set_output(True)
graph.validate()
assert cudnn.pygraph().deserialize(repr(graph)) is None
try:
    graph.build()
except cudnn.cudnnGraphNotSupportedError as error:
    assert "no engine takes the graph" in str(error) and "torch is not installed" in str(error), error
else:
    raise AssertionError("planned without torch and without a GPU")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stderr


def test_many_threads_execute_one_graph():
    graph, a, b, c = matmul_graph()
    errors = []

    def work():
        for _ in range(20):
            va, vb, vc = operands()
            try:
                graph.execute({a: va, b: vb, c: vc})
                assert torch.allclose(vc, va @ vb)
            except BaseException as error:
                errors.append(error)
                raise

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_sixty_chained_adds_and_a_boolean_output():
    graph = cudnn.pygraph(io_data_type=torch.float32)
    x, one = graph.tensor([4, 4]), graph.tensor([1, 1])
    t = x
    for _ in range(60):
        t = graph.add(t, one)
    mask = graph.cmp_gt(t, x).set_output(True).set_data_type(cudnn.data_type.BOOLEAN)
    t.set_output(True)
    value, out, flags = torch.randn(4, 4).double().float(), torch.empty(4, 4), torch.empty(4, 4, dtype=torch.bool)
    graph.execute({x: value, one: torch.ones(1, 1), t: out, mask: flags})
    assert torch.allclose(out, value + 60, atol=1e-3) and flags.all()
