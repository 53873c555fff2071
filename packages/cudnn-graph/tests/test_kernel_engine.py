"""Subgraphs that an installed family computes, offered as plans through the registry. On the CPU the family's own reference computes."""

from __future__ import annotations

import subprocess
import sys

import pytest

import cudnn
from cudnn import registry

torch = pytest.importorskip("torch")

OPENSOURCE, A = cudnn.heur_mode.OPENSOURCE, cudnn.heur_mode.A
FLOAT = torch.float32


@pytest.fixture
def dense():
    """Skips where no family brings GemmSwiglu."""
    if not registry.available("GemmSwiglu"):
        pytest.skip("needs a family that provides cudnn.GemmSwiglu")


def swiglu_graph(batch=1, rows=48, k=64, columns=80, dtype=torch.bfloat16, weight_batch=1, swap=False, **options):
    """(graph, buffers, output tensor, float64 result) of swish(x Wg) * (x Wu)."""
    x = torch.randn(batch, rows, k).to(dtype)
    gate, up = ((torch.randn(weight_batch, k, columns) / k**0.5).to(dtype) for _ in range(2))
    graph = cudnn.pygraph(name="swiglu", io_data_type=dtype, intermediate_data_type=FLOAT, compute_data_type=FLOAT, **options)
    tx, tg, tu = (graph.tensor(list(t.shape), list(t.stride()), name=n) for t, n in ((x, "x"), (gate, "gate"), (up, "up")))
    activated, plain = graph.swish(graph.matmul(tx, tg)), graph.matmul(tx, tu)
    out = (graph.mul(plain, activated) if swap else graph.mul(activated, plain)).set_output(True)
    want = torch.nn.functional.silu(x.double() @ gate.double()) * (x.double() @ up.double())
    return graph, {tx: x, tg: gate, tu: up}, out, want


def run(graph, pack, out, want, **execute):
    buffer = torch.full(want.shape, float("nan"), dtype=pack[next(iter(pack))].dtype)
    graph.execute({**pack, out: buffer}, **execute)
    error = (buffer.double() - want).norm() / want.norm()
    assert error < torch.finfo(buffer.dtype).eps, f"relative error {error:.3g}"
    return buffer


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("batch", "weight_batch"), [(1, 1), (3, 1), (3, 3)])
@pytest.mark.parametrize("swap", [False, True])
def test_swiglu_runs_on_the_family(dense, dtype, batch, weight_batch, swap):
    graph, pack, out, want = swiglu_graph(batch=batch, weight_batch=weight_batch, dtype=dtype, swap=swap)
    graph.build([OPENSOURCE])
    assert graph.selected_engine.name == "kernels" and graph.get_plan_name_at_index(0) == "kernel_gemm_swiglu"
    assert graph.get_engine_and_knobs_at_index(0) == (21200, {})
    assert graph.get_workspace_size() == 2 * batch * 48 * 80 * 2
    first = run(graph, pack, out, want)
    workspace = torch.empty(graph.get_workspace_size(), dtype=torch.uint8)
    assert torch.equal(run(graph, pack, out, want, workspace=workspace), first)
    with pytest.raises(ValueError, match="needs a workspace of"):
        run(graph, pack, out, want, workspace=workspace[:-2])


def test_rank_two_operands(dense):
    x, gate, up = torch.randn(40, 64).bfloat16(), torch.randn(64, 48).bfloat16(), torch.randn(64, 48).bfloat16()
    graph = cudnn.pygraph(intermediate_data_type=FLOAT, compute_data_type=FLOAT)
    out = graph.mul(graph.swish(graph.matmul(x, gate)), graph.matmul(graph.nodes[0].inputs["A"], up)).set_output(True).set_data_type(torch.bfloat16)
    graph.build([OPENSOURCE])
    assert graph.selected_engine.name == "kernels"
    want = torch.nn.functional.silu(x.double() @ gate.double()) * (x.double() @ up.double())
    run(graph, {graph.nodes[0].inputs["A"]: x}, out, want)


def test_order_of_plans(dense):
    graph, *_ = swiglu_graph()
    graph.build([A])
    assert [plan.name for plan in graph.plans] == ["gemm_reference", "kernel_gemm_swiglu"] and graph.inspect()["selected_plan"] == 0
    graph.select_plan(1)
    graph, pack, out, want = swiglu_graph()
    graph.create_execution_plans([OPENSOURCE, A])
    assert [plan.name for plan in graph.plans] == ["kernel_gemm_swiglu", "gemm_reference"]
    graph.deselect_engines(["kernel_"])
    graph.build_plans()
    assert graph.selected_engine.name == "gemm_reference"
    run(graph, pack, out, want)


def decline_reason(graph):
    graph.create_execution_plans([OPENSOURCE])
    assert all(plan.engine.name != "kernels" for plan in graph.plans)
    return graph.inspect()["declined"]["kernels"]


def test_declined_subgraphs_say_why(dense):
    def graph_of(build, **options):
        graph = cudnn.pygraph(io_data_type=torch.bfloat16, **{"intermediate_data_type": FLOAT, "compute_data_type": FLOAT, **options})
        x, y = graph.tensor([1, 48, 64], name="x"), graph.tensor([1, 48, 64], name="y")
        gate, up = graph.tensor([1, 64, 80], name="gate"), graph.tensor([1, 64, 80], name="up")
        build(graph, x, y, gate, up).set_output(True)
        return graph

    def swiglu(g, x, y, gate, up, **swish):
        return g.mul(g.swish(g.matmul(x, gate), **swish), g.matmul(x, up))

    def kept(g, x, y, gate, up):
        return g.mul(g.swish(g.matmul(x, gate).set_output(True)), g.matmul(x, up))

    for build, part in (
        (lambda g, x, y, gate, up: g.relu(g.matmul(x, gate)), "no kernel for the nodes matmul, relu"),
        (lambda g, x, y, gate, up: g.mul(g.swish(g.matmul(x, gate)), g.matmul(y, up)), "do not share their first operand"),
        (lambda *a: swiglu(*a, swish_beta=2.0), "swish_beta 2.0"),
        (kept, "is an output of the graph"),
    ):
        assert part in decline_reason(graph_of(build))
    assert "computes in FLOAT" in decline_reason(graph_of(swiglu, compute_data_type=torch.float64))
    assert "is BFLOAT16; the kernel keeps FLOAT" in decline_reason(graph_of(swiglu, intermediate_data_type=torch.bfloat16))
    assert "GemmSwiglu does not take the operands" in decline_reason(swiglu_graph(columns=81)[0])
    strided, *_ = swiglu_graph(batch=2)
    strided.find_tensor("x").set_stride([2 * 48 * 64, 64, 1])
    assert "do not follow each other across batches" in decline_reason(strided)


def test_without_the_family_the_plan_is_missing_not_the_graph(monkeypatch):
    from cudnn_graph.engines import kernels

    monkeypatch.setattr(kernels, "OPERATION", "GemmNobodyHas")
    with pytest.raises(AttributeError):
        cudnn.GemmNobodyHas  # noqa: B018

    def missing(name):
        raise ImportError(f"cudnn.{name} is in a distribution that is not installed: pip install it")

    monkeypatch.setattr(cudnn, "__getattr__", missing)
    graph, pack, out, want = swiglu_graph()
    assert "pip install it" in decline_reason(graph)
    graph.build_plans()
    run(graph, pack, out, want)


def test_the_graph_package_imports_no_family():
    code = "import sys, cudnn, cudnn_graph.engines.kernels, cudnn_graph.graph; print([m for m in sys.modules if m.startswith('cudnn_gemm')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
