"""Random graphs of pointwise, matmul and reduction nodes against the same arithmetic in plain torch."""

from __future__ import annotations

import pytest

import cudnn
from cudnn_graph.tensor import packed_like

torch = pytest.importorskip("torch")
hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

MODE = cudnn.reduction_mode
UNARY = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "neg": torch.neg,
    "abs": torch.abs,
    "exp": lambda x: torch.exp(x),
    "gelu": torch.nn.functional.gelu,
    "swish": torch.nn.functional.silu,
    "identity": lambda x: x,
    "sin": torch.sin,
}
BINARY = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "max": torch.maximum, "min": torch.minimum, "add_square": lambda a, b: a + b * b}
REDUCE = {
    MODE.ADD: lambda x, axes: x.sum(axes, keepdim=True),
    MODE.MAX: lambda x, axes: x.amax(axes, keepdim=True),
    MODE.MIN: lambda x, axes: x.amin(axes, keepdim=True),
    MODE.AMAX: lambda x, axes: x.abs().amax(axes, keepdim=True),
    MODE.AVG: lambda x, axes: x.mean(axes, keepdim=True),
}


class Pair:
    """A graph tensor and its value in float64."""

    def __init__(self, tensor, value):
        self.tensor = tensor
        self.value = value


def permuted_input(data, graph, shape):
    """An input whose axes lie in memory in a random order, and its value."""
    order = data.draw(st.permutations(range(len(shape))), label="memory order")
    stride = packed_like(shape, [order[a] for a in range(len(shape))])
    value = torch.empty_strided(shape, stride, dtype=torch.float64)
    value.copy_(torch.randn(shape, dtype=torch.float64))
    return Pair(graph.tensor(shape, stride), value)


def bounded(graph, pair):
    """tanh of a pair: keeps chains of products and exponentials in range."""
    return Pair(graph.tanh(pair.tensor), torch.tanh(pair.value))


def step(data, graph, pairs):
    """One random node on random operands."""
    kind = data.draw(st.sampled_from(["unary", "binary", "matmul", "reduce", "compare", "scalar", "index"]), label="node")
    first = data.draw(st.sampled_from(pairs), label="operand")
    if kind == "unary":
        name = data.draw(st.sampled_from(sorted(UNARY)))
        source = bounded(graph, first) if name == "exp" else first
        return Pair(getattr(graph, name)(source.tensor), UNARY[name](source.value))
    if kind == "binary":
        name = data.draw(st.sampled_from(sorted(BINARY)))
        second = data.draw(st.sampled_from([p for p in pairs if fits(p.value.shape, first.value.shape)]))
        a, b = bounded(graph, first), bounded(graph, second)
        return Pair(getattr(graph, name)(a.tensor, b.tensor), BINARY[name](a.value, b.value))
    if kind == "compare":
        second = data.draw(st.sampled_from([p for p in pairs if fits(p.value.shape, first.value.shape)]))
        mask = graph.cmp_gt(first.tensor, second.tensor).set_data_type(torch.bool)
        chosen = graph.binary_select(first.tensor, second.tensor, mask)
        return Pair(chosen, torch.where(first.value > second.value, first.value, second.value))
    if kind == "scalar":
        number = data.draw(st.floats(-2, 2, width=32))
        return Pair(graph.mul(first.tensor, number), first.value * number)
    if kind == "index":
        axis = data.draw(st.integers(0, first.value.dim() - 1))
        shape = [1] * first.value.dim()
        shape[axis] = first.value.shape[axis]
        index = torch.arange(shape[axis], dtype=torch.float64).view(shape)
        return Pair(graph.add(graph.gen_index(first.tensor, axis=axis), first.tensor), first.value + index)
    if kind == "reduce":
        mode = data.draw(st.sampled_from(list(REDUCE)))
        axes = sorted(data.draw(st.sets(st.integers(0, first.value.dim() - 1), min_size=1)))
        kept = [1 if axis in axes else extent for axis, extent in enumerate(first.value.shape)]
        return Pair(graph.reduction(first.tensor, mode, out_dims=kept), REDUCE[mode](first.value, axes))
    source = bounded(graph, first)
    columns = data.draw(st.integers(1, 5))
    batch = data.draw(st.sampled_from([1, source.value.shape[0]]))
    weight = permuted_input(data, graph, (batch, source.value.shape[-1], columns))
    pairs.append(weight)
    return Pair(graph.matmul(source.tensor, weight.tensor), source.value @ weight.value)


def fits(a, b):
    return all(x == y or x == 1 or y == 1 for x, y in zip(a, b, strict=True))


@hypothesis.settings(max_examples=120, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(st.data())
def test_random_graph_agrees_with_torch(data):
    graph = cudnn.pygraph(io_data_type=torch.float64, intermediate_data_type=torch.float64, compute_data_type=torch.float64, backend="reference", name="random")
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=3, max_size=3), label="shape"))
    pairs = [permuted_input(data, graph, shape)]
    for axis in data.draw(st.sets(st.integers(0, 2)), label="broadcast inputs"):
        pairs.append(permuted_input(data, graph, tuple(1 if a == axis else extent for a, extent in enumerate(shape))))
    results = []
    for _ in range(data.draw(st.integers(1, 8), label="nodes")):
        results.append(step(data, graph, pairs))
        pairs.append(results[-1])
    outputs = [results[-1], *(pair for pair in results[:-1] if data.draw(st.booleans(), label="output"))]
    outputs = list({id(pair.tensor): pair for pair in outputs}.values())
    for pair in outputs:
        pair.tensor.set_output(True)
        if data.draw(st.booleans(), label="own stride") or 0 in pair.value.shape:
            pair.tensor.set_stride(packed_like(pair.value.shape, data.draw(st.permutations(range(1, pair.value.dim() + 1)))))
    try:
        graph.validate()
    except ValueError as error:
        # An outer product that leaves the graph needs a stride from the caller; give every output one.
        assert "set_stride()" in str(error)
        for pair in outputs:
            pair.tensor.set_stride(packed_like(pair.value.shape, range(pair.value.dim(), 0, -1)))
        graph.validate()

    text = graph.to_json()
    copy = cudnn.pygraph()
    copy.deserialize(text)
    assert copy.to_json() == text

    used = graph.get_inputs()
    inputs = {pair.tensor.get_uid(): pair.value for pair in pairs if pair.tensor in used}
    for one in (graph, copy):
        buffers = {
            pair.tensor.get_uid(): torch.empty_strided(pair.tensor.get_dim(), pair.tensor.get_stride(), dtype=torch.float64).fill_(float("nan"))
            for pair in outputs
        }
        one.execute({**inputs, **buffers})
        for pair in outputs:
            got = buffers[pair.tensor.get_uid()]
            assert got.shape == pair.value.shape
            error = (got - pair.value).abs().max().item()
            assert error <= 1e-12 * (1 + pair.value.abs().max().item()), f"{pair.tensor}: off by {error}"


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(st.data())
def test_random_shapes_that_do_not_fit_raise_value_error(data):
    shapes = [tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))) for _ in range(2)]
    graph = cudnn.pygraph(io_data_type=torch.float32)
    a, b = (graph.tensor(shape, name=f"in{i}") for i, shape in enumerate(shapes))
    graph.add(a, b)
    try:
        expected = torch.broadcast_shapes(*shapes)
    except RuntimeError:
        with pytest.raises(ValueError, match="'in0' .* 'in1' .*"):
            graph.validate()
    else:
        graph.validate()
        assert tuple(graph.nodes[0].outputs["OUT_0"].get_dim()) == tuple(expected)
