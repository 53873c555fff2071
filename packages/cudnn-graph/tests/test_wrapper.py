"""`cudnn.Graph`, the decorators, and the binary JSON they store graphs in."""

from __future__ import annotations

import threading

import pytest

import cudnn
from cudnn_graph import ubjson

torch = pytest.importorskip("torch")

FLOAT = cudnn.data_type.FLOAT


def linear(**options):
    """relu(x @ w + b) as a cudnn.Graph with torch operands."""
    x, w, b = torch.randn(2, 3, 4), torch.randn(1, 4, 5), torch.randn(1, 1, 5)
    with cudnn.Graph(io_data_type=FLOAT, compute_data_type=FLOAT, **options) as g:
        y = g.matmul(x, B=w, name="mm")
        y = g.bias(y, b, name="bias")
        y = g.relu(y, name="act")
        y.set_output(True)
    return g, x, w, b


def reference(x, w, b):
    return torch.relu(x @ w + b)


def test_names_of_operands_and_outputs():
    g, *_ = linear()
    assert {t.get_name() for t in g.tensors.values()} == {"mm::0", "mm::B", "mm::C", "bias::1", "bias::OUT_0", "act::OUT_0"}
    assert [t.get_name() for t in g.get_outputs()] == ["act::OUT_0"]
    assert [node.name for node in g.nodes] == ["mm", "bias", "act"]


def test_call_with_a_dictionary_allocates_outputs():
    g, *_ = linear()
    x, w, b = torch.randn(2, 3, 4), torch.randn(1, 4, 5), torch.randn(1, 1, 5)
    pack = {"mm::0": x, "mm::B": w, "bias::1": b}
    result = g(pack)
    assert result is pack and torch.allclose(pack["act::OUT_0"], reference(x, w, b), atol=1e-6)
    out = torch.empty(2, 3, 5)
    again = g({"mm::0": x, "mm::B": w, "bias::1": b, "act::OUT_0": out})
    assert again["act::OUT_0"] is out and torch.allclose(out, reference(x, w, b), atol=1e-6)


def test_keys_by_uid_and_tensor():
    g, *_ = linear()
    x, w, b = torch.randn(2, 3, 4), torch.randn(1, 4, 5), torch.randn(1, 1, 5)
    ins = g.get_inputs()
    result = g({ins[0]: x, ins[1].get_uid(): w, "bias::1": b})
    assert torch.allclose(result["act::OUT_0"], reference(x, w, b), atol=1e-6)


def test_positional_calls():
    g, *_ = linear(inputs=["mm::0", "mm::B", "bias::1"], outputs=["act::OUT_0"])
    x, w, b = torch.randn(2, 3, 4), torch.randn(1, 4, 5), torch.randn(1, 1, 5)
    assert torch.allclose(g(x, w, b), reference(x, w, b), atol=1e-6)
    with pytest.raises(ValueError, match="got 2 tensors, needs 3: mm::0, mm::B, bias::1"):
        g(x, w)


def test_several_outputs_come_as_a_list():
    x, s = torch.randn(6, 8, 1, 1), torch.randn(1, 8, 1, 1)
    eps = torch.full((1, 1, 1, 1), 1e-5)
    with cudnn.Graph(io_data_type=FLOAT) as g:
        y, mean, inv = g.layernorm(norm_forward_phase=cudnn.norm_forward_phase.TRAINING, input=x, scale=s, bias=s, epsilon=eps, name="ln")
        for t in (y, mean, inv):
            t.set_output(True)
    g.set_io_tuples(["ln::input", "ln::scale", "ln::bias", "ln::epsilon"], [y, "ln::MEAN", inv.get_uid()])
    got = g(x, s, s, eps)
    assert isinstance(got, list) and [t.shape for t in got] == [x.shape, (6, 1, 1, 1), (6, 1, 1, 1)]
    want = torch.nn.functional.layer_norm(x.flatten(1), (8,), s.flatten(), s.flatten())
    assert torch.allclose(got[0].flatten(1), want, atol=1e-5)


def test_set_io_tuples_errors():
    g, *_ = linear()
    x = torch.randn(2, 3, 4)
    with pytest.raises(ValueError, match="set_io_tuples"):
        g(x, x, x)
    names = ["mm::0", "mm::B", "bias::1"]
    for inputs, outputs, part in (
        ("mm::0", ["act::OUT_0"], "must be a list or tuple, got str"),
        ([*names, "mm::0"], ["act::OUT_0"], "'mm::0' not found"),
        (names, ["nothing"], "no tensor named 'nothing'"),
        (["mm::C", *names], ["act::OUT_0"], "is virtual"),
        (names[:2], ["act::OUT_0"], "'bias::1' need a buffer"),
        (names, [], "'act::OUT_0' need a buffer"),
        (["act::OUT_0", *names], [], "on the other side"),
    ):
        with pytest.raises(ValueError, match=part):
            g.set_io_tuples(inputs, outputs)
    with pytest.raises(ValueError, match="no tensor named"):
        linear(inputs=["typo"], outputs=["act::OUT_0"])


def test_values_of_the_description_are_not_used():
    g, x, w, b = linear()
    with pytest.raises(RuntimeError, match=r"input 'mm::B' \(uid \d+\) is missing"):
        g({"mm::0": x, "bias::1": b})
    with pytest.raises(RuntimeError, match="DLPack"):
        g({"mm::0": x, "mm::B": "w", "bias::1": b})


def test_calls_before_the_block_ends():
    g = cudnn.Graph(io_data_type=FLOAT)
    for call in (lambda: g({}), lambda: g.relu(torch.ones(2)), lambda: g.nodes, lambda: g.set_io_tuples([], [])):
        with pytest.raises(RuntimeError):
            call()
    with g:
        with pytest.raises(RuntimeError, match="after its with block has ended"):
            g({})
        g.relu(torch.ones(2), name="r").set_output(True)
    with pytest.raises(RuntimeError, match="entered once"), g:
        pass


def test_exception_in_the_block_passes_and_cleans_up():
    g = cudnn.Graph(io_data_type=FLOAT)
    with pytest.raises(KeyError), g:
        g.relu(torch.ones(2))
        raise KeyError("mine")
    with pytest.raises(RuntimeError):
        g({})


def test_node_names_are_unique():
    with cudnn.Graph(io_data_type=FLOAT) as g:
        t = g.relu(torch.ones(2))
        t = g.relu(t)
        assert [node.name for node in g.nodes] == ["relu.0", "relu.1"]
        with pytest.raises(ValueError, match="'relu.1' is taken"):
            g.relu(t, name="relu.1")
        t.set_output(True)


def test_tensors_in_lists():
    a, b = torch.randn(2, 3), torch.randn(4, 3)
    with cudnn.Graph(io_data_type=FLOAT) as g:
        g.concatenate(inputs=[a, b], axis=0, name="cat").set_output(True)
    got = g({"cat::inputs::0": a, "cat::inputs::1": b})
    assert torch.equal(got["cat::OUT_0"], torch.cat([a, b]))


def test_blocked_and_passed_through():
    g, *_ = linear()
    for name in ("validate", "build", "execute", "create_execution_plans", "deselect_engines", "key", "get_plan_name_at_index", "select_plan"):
        with pytest.raises(RuntimeError, match="via wrapper is not allowed"):
            getattr(g, name)()
    assert g.get_workspace_size() == 0 and g.query_tensor_attributes_of_uid(g.get_inputs()[0].get_uid()) is g.get_inputs()[0]
    other = cudnn.pygraph()
    other.deserialize(g.serialize())
    assert other.find_tensor("act::OUT_0").get_dim() == [2, 3, 5]
    with pytest.raises(AttributeError, match="no attribute 'matmull'"):
        g.matmull  # noqa: B018
    assert "matmul" in dir(g) and "get_workspace_size" in dir(g)


def test_handles_and_workspaces_on_request():
    g, x, w, b = linear(handle=None)
    with pytest.raises(RuntimeError, match="every call needs handle="):
        g({"mm::0": x, "mm::B": w, "bias::1": b})
    g, x, w, b = linear(workspace_alloc=False)
    with pytest.raises(RuntimeError, match="every call needs workspace="):
        g({"mm::0": x, "mm::B": w, "bias::1": b})
    got = g({"mm::0": x, "mm::B": w, "bias::1": b}, workspace=torch.empty(16, dtype=torch.uint8))
    assert torch.allclose(got["act::OUT_0"], reference(x, w, b), atol=1e-6)
    with pytest.raises(ValueError, match='"auto"'):
        cudnn.Graph(handle="default")
    with pytest.raises(TypeError, match="raw backend handles"):
        cudnn.Graph(handle=7)


def test_old_library_is_refused(monkeypatch):
    from cudnn_graph import library
    from cudnn_graph.engines.registry import backend_engine

    monkeypatch.setattr(type(backend_engine()), "unavailable", lambda self: None)
    monkeypatch.setattr(library, "backend_version", lambda: 91100)
    with pytest.raises(RuntimeError, match="9.12.0 or higher"):
        cudnn.Graph()


def test_module_exports():
    import cudnn.wrapper

    assert cudnn.wrapper.Graph is cudnn.Graph and cudnn.wrapper.heur_mode is cudnn.heur_mode and cudnn.wrapper.data_type is cudnn.data_type


# Decorators.


def test_graph_context_manager_defaults():
    with cudnn.graph(None, backend="reference") as (g, kept):
        x = g.tensor([2, 3])
        y = g.relu(x).set_output(True)
        kept.extend([x, y])
    assert isinstance(g, cudnn.pygraph) and kept == [x, y] and g.context.name == "cudnn_graph"
    g.validate()
    assert x.get_data_type() is cudnn.data_type.HALF and g.nodes[0].compute_data_type is FLOAT


@pytest.mark.parametrize(
    "decorator", [cudnn.jit, cudnn.jit(), cudnn.jit(heur_modes=[cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK]), cudnn.jit(cudnn.heur_mode.B)]
)
def test_jit_builds(decorator):
    @decorator
    def double(n):
        with cudnn.graph(None, io_data_type=FLOAT) as (g, kept):
            x = g.tensor([n, 2])
            kept += [x, g.add(x, x).set_output(True)]
        return g, kept

    g, uids = double(3)
    assert all(isinstance(uid, int) for uid in uids) and g.get_execution_plan_count() == 1
    x, y = torch.randn(3, 2), torch.empty(3, 2)
    g.execute(dict(zip(uids, (x, y), strict=True)))
    assert torch.equal(y, 2 * x) and double.__name__ == "double"


def test_jit_refuses_other_results():
    with pytest.raises(TypeError, match=r"must return \(graph, tensors\)"):
        cudnn.jit(lambda: 3)()


def test_graph_cache_is_first_in_first_out():
    made = []

    @cudnn.graph_cache(key_fn=lambda n, scale=1: (n, scale), maxsize=2)
    def build(n, scale=1):
        made.append((n, scale))
        return object()

    first = build(1)
    assert build(1) is first and build(1, scale=2) is not first
    assert build(1) is first, "a hit does not renew an entry"
    build(3)
    assert build.cache_len() == 2
    assert build(1) is not first and made == [(1, 1), (1, 2), (3, 1), (1, 1)]
    build.cache_clear()
    assert build.cache_len() == 0
    with pytest.raises(ValueError, match="at least 1"):
        cudnn.graph_cache(key_fn=lambda: 0, maxsize=0)


def test_cached_and_jitted():
    calls = []

    @cudnn.jit(heur_modes=cudnn.heur_mode.A)
    @cudnn.graph_cache(key_fn=lambda x: x.shape)
    def square(x):
        calls.append(x.shape)
        with cudnn.graph(None, io_data_type=FLOAT) as (g, kept):
            t = g.tensor_like(x)
            kept += [t, g.mul(t, t).set_output(True)]
        return g, kept

    for n in (2, 3, 2, 3):
        x, y = torch.randn(n, 2), torch.empty(n, 2)
        g, uids = square(x)
        g.execute(dict(zip(uids, (x, y), strict=True)))
        assert torch.equal(y, x * x)
    assert calls == [(2, 2), (3, 2)]


def test_graph_cache_builds_once_across_threads():
    made, results = [], []
    gate = threading.Barrier(8)

    @cudnn.graph_cache(key_fn=lambda: 0)
    def build():
        made.append(1)
        return object()

    def work():
        gate.wait()
        results.append(build())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and len(set(map(id, results))) == 1 and len(results) == 8


# Binary JSON.


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        -1,
        127,
        128,
        255,
        256,
        -129,
        40000,
        2**31,
        -(2**63),
        2**63,
        1.5,
        float("inf"),
        "",
        "text: äöü 漢",
        [],
        {},
        b"",
        b"\x00\xff" * 200,
        [1, [2, {"a": None}], "x"],
        {"a": {"b": [True, 1e-300]}, "": 3},
    ],
)
def test_ubjson_round_trip(value):
    back = ubjson.loads(ubjson.dumps(value))
    assert back == value and type(back) is type(value)


def test_ubjson_known_bytes():
    assert ubjson.dumps({"a": [1, 300, None]}) == b"{i\x01a[i\x01I\x01\x2cZ]}"
    assert ubjson.loads(b"[d\x3f\x80\x00\x00T]") == [1.0, True]


def test_ubjson_damage():
    good = ubjson.dumps({"key": [1, 2.5, "text", b"bytes"]})
    for end in range(len(good)):
        with pytest.raises(ValueError, match="UBJSON"):
            ubjson.loads(good[:end])
    with pytest.raises(ValueError, match="follow the value"):
        ubjson.loads(good + b"Z")
    with pytest.raises(ValueError, match="unknown marker"):
        ubjson.loads(b"?")
    with pytest.raises(TypeError, match="set has no UBJSON form"):
        ubjson.dumps({1})
    with pytest.raises(TypeError, match="keys must be strings"):
        ubjson.dumps({1: 2})
