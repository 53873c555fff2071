# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""Bringing tensors to ranks the library takes must not change which element of memory means what: the same arithmetic is done before and after."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudnn_graph import enums as e
from cudnn_graph.graph import pygraph
from cudnn_graph.lowering.expand import Expansion
from cudnn_graph.lowering.ranks import TARGET, normalize_ranks
from cudnn_graph.lowering.records import Step, Value
from cudnn_graph.nodes import NodeType

torch = pytest.importorskip("torch")

FLOAT = e.data_type.FLOAT
VERSION = 91900


def strided(buffer: Any, value: Value) -> Any:
    return torch.as_strided(buffer, value.dims, value.strides)


def run(steps: list[Step], buffers: dict[int, Any]) -> None:
    """Execute steps on strided views of flat buffers; virtual values get a tensor of their own."""
    made: dict[int, Any] = {}

    def read(value: Value) -> Any:
        return made[value.uid] if value.is_virtual else strided(buffers[value.uid], value)

    for step in steps:
        operands = [read(value) for value in step.inputs.values()]
        (output,) = step.outputs.values()
        if step.kind is NodeType.MATMUL:
            result = torch.matmul(*operands)
        elif step.kind is NodeType.REDUCTION:
            axes = [axis for axis, extent in enumerate(output.dims) if extent == 1 and operands[0].shape[axis] != 1]
            result = operands[0].sum(dim=axes, keepdim=True) if axes else operands[0]
        elif step.params["mode"] == "gen_index":
            axis = step.params.get("axis", -1) % len(output.dims)
            shape = [1] * len(output.dims)
            shape[axis] = output.dims[axis]
            result = torch.arange(output.dims[axis], dtype=torch.float64).reshape(shape).expand(output.dims)
        else:
            result = {"add": torch.add, "mul": torch.mul, "relu": torch.relu}[step.params["mode"]](*operands)
        # A scalar of rank 4 gives a result with leading axes of extent 1, which the graph does not count.
        assert tuple(result.shape)[-len(output.dims) :] == output.dims and result.numel() == output.numel
        result = result.reshape(output.dims)
        if output.is_virtual:
            made[output.uid] = result
        else:
            strided(buffers[output.uid], output).copy_(result)


def compare(g: pygraph, *, rank: int | None = TARGET) -> list[Step]:
    """Normalize the steps of a graph and check that both forms write the same memory."""
    g.validate()
    before = Expansion(g, VERSION).run()
    after = normalize_ranks(Expansion(g, VERSION).run())
    generator = torch.Generator().manual_seed(int(torch.seed() % 2**31))
    buffers = {}
    for step in before:
        for value in step.values():
            if not value.is_virtual:
                span = 1 + sum((extent - 1) * stride for extent, stride in zip(value.dims, value.strides, strict=True))
                buffers[value.uid] = torch.randn(span, generator=generator, dtype=torch.float64)
    copies = {uid: buffer.clone() for uid, buffer in buffers.items()}
    run(before, buffers)
    run(after, copies)
    for uid, buffer in buffers.items():
        torch.testing.assert_close(copies[uid], buffer, rtol=1e-12, atol=1e-12)
    for step in after:
        for value in step.values():
            assert len(value.dims) == len(value.strides) and all(stride > 0 or extent == 1 for extent, stride in zip(value.dims, value.strides, strict=True))
            if rank is not None:
                assert len(value.dims) == rank, value
    return after


def graph() -> pygraph:
    return pygraph("g", io_data_type=FLOAT, intermediate_data_type=FLOAT, compute_data_type=FLOAT)


def test_small_ranks_get_leading_axes() -> None:
    g = graph()
    c = g.matmul(g.tensor([5, 3]), g.tensor([3, 7]))
    g.relu(g.add(c, g.tensor([7]))).set_output(True)
    matmul, add, _ = compare(g)
    assert matmul.inputs["A"].dims == (1, 5, 3) and add.inputs["IN_1"].dims == (1, 1, 7)
    g = graph()
    g.relu(g.tensor([9])).set_output(True)
    (relu,) = compare(g)
    assert (relu.inputs["IN_0"].dims, relu.outputs["OUT_0"].dims) == ((1, 1, 9), (1, 1, 9))


def test_batches_of_a_matmul_become_one() -> None:
    g = graph()
    g.matmul(g.tensor([2, 3, 4, 5]), g.tensor([2, 3, 5, 6], [90, 30, 1, 5])).set_output(True)
    (step,) = compare(g)
    assert (step.inputs["A"].dims, step.inputs["B"].dims, step.inputs["B"].strides) == ((6, 4, 5), (6, 5, 6), (30, 1, 5))
    g = graph()
    g.matmul(g.tensor([2, 3, 4, 5]), g.tensor([1, 1, 5, 6])).set_output(True)
    (step,) = compare(g)
    assert step.inputs["B"].dims == (1, 5, 6)


def test_batches_that_are_no_run_of_memory_stay() -> None:
    g = graph()
    g.matmul(g.tensor([2, 3, 4, 5], [60, 21, 5, 1]), g.tensor([2, 3, 5, 6])).set_output(True)
    compare(g, rank=4)
    g = graph()
    g.matmul(g.tensor([2, 3, 4, 5]), g.tensor([1, 3, 5, 6])).set_output(True)
    compare(g, rank=4)


def test_scalars_fit_every_rank() -> None:
    g = graph()
    c = g.mul(g.matmul(g.tensor([2, 4, 5]), g.tensor([2, 5, 6])), g.tensor([1, 1, 1, 1], is_pass_by_value=True))
    c.set_output(True)
    _, mul = compare(g)
    assert mul.inputs["IN_1"].dims == (1, 1, 1) and mul.inputs["IN_1"].strides == (1, 1, 1)


def test_channels_last_pointwise_becomes_row_major() -> None:
    g = graph()
    x = g.tensor([2, 5, 3, 4], [60, 1, 20, 5])
    g.relu(g.add(x, g.tensor([1, 5, 1, 1]))).set_output(True)
    add, relu = compare(g)
    assert (add.inputs["IN_0"].dims, add.inputs["IN_0"].strides, add.inputs["IN_1"].dims) == ((1, 24, 5), (120, 5, 1), (1, 1, 5))
    assert relu.inputs["IN_0"].strides == (120, 5, 1)
    g = graph()
    g.gen_index(g.tensor([2, 5, 3], [15, 1, 5]), axis=1).set_output(True)
    (step,) = compare(g)
    assert step.params["axis"] == 2 and step.outputs["OUT_0"].strides == (15, 5, 1)


def test_no_tensor_is_repeated_over_the_first_axis() -> None:
    g = graph()
    g.add(g.tensor([4, 3, 5]), g.tensor([1, 1, 5])).set_output(True)
    (add,) = compare(g)
    assert (add.inputs["IN_0"].dims, add.inputs["IN_1"].dims, add.inputs["IN_1"].strides) == ((1, 12, 5), (1, 1, 5), (5, 5, 1))
    g = graph()
    g.add(g.tensor([4, 3, 5]), g.tensor([4, 1, 1])).set_output(True)
    (add,) = compare(g)
    assert (add.inputs["IN_0"].dims, add.inputs["IN_1"].dims, add.inputs["IN_1"].strides[1]) == ((1, 4, 15), (1, 4, 1), 1)
    # Where no way is right the tensors stay as they are.
    g = graph()
    g.add(g.tensor([4, 3, 5]), g.tensor([1, 3, 1])).set_output(True)
    (add,) = compare(g)
    assert (add.inputs["IN_0"].dims, add.inputs["IN_1"].dims) == ((4, 3, 5), (1, 3, 1))
    # With a matmul the batch stays.
    g = graph()
    g.add(g.matmul(g.tensor([4, 3, 2]), g.tensor([4, 2, 5])), g.tensor([1, 1, 5])).set_output(True)
    _, add = compare(g)
    assert add.inputs["IN_1"].dims == (1, 1, 5) and add.outputs["OUT_0"].dims == (4, 3, 5)


@pytest.mark.parametrize("axis, expected", [(0, 0), (1, 1), (-1, 2), (-2, 1)])
def test_indices_keep_their_axis(axis: int, expected: int) -> None:
    g = graph()
    g.gen_index(g.tensor([2, 3, 4]), axis=axis).set_output(True)
    (step,) = compare(g)
    assert step.params["axis"] % 3 == expected
    g = graph()
    x = g.tensor([6, 5])
    g.add(g.gen_index(x, axis=0), x).set_output(True)
    index, _ = compare(g)
    assert index.params["axis"] == 1
    # A merge never swallows the axis that is counted.
    g = graph()
    x = g.tensor([2, 3, 4, 5])
    g.add(g.gen_index(x, axis=1), x).set_output(True)
    index, _ = compare(g)
    assert index.outputs["OUT_0"].dims == (2, 3, 20) and index.params["axis"] == 1


def test_reductions_keep_what_they_sum_over() -> None:
    g = graph()
    c = g.matmul(g.tensor([2, 3, 4, 5]), g.tensor([2, 3, 5, 6]))
    g.reduction(c, e.reduction_mode.ADD).set_dim([1, 1, 4, 1]).set_output(True)
    _, reduction = compare(g)
    assert reduction.outputs["OUT_0"].dims == (1, 4, 1)
    g = graph()
    c = g.matmul(g.tensor([2, 3, 4, 5]), g.tensor([2, 3, 5, 6]))
    g.reduction(c, e.reduction_mode.ADD).set_dim([2, 1, 4, 6]).set_output(True)
    compare(g, rank=4)


def test_graphs_with_other_operations_keep_their_rank() -> None:
    g = graph()
    y = g.conv_fprop(g.tensor([2, 3, 8]), g.tensor([4, 3, 3]), padding=[1], stride=[1], dilation=[1])
    g.mul(y, g.tensor_scalar(2.0, e.scalar_type.RUNTIME_PARAM)).set_output(True)
    g.validate()
    _, mul = normalize_ranks(Expansion(g, VERSION).run())
    assert mul.inputs["IN_1"].dims == (1, 1, 1) and mul.inputs["IN_0"].dims == (2, 4, 8)
    g = graph()
    y = g.conv_fprop(g.tensor([2, 3, 4, 8, 8]), g.tensor([4, 3, 1, 3, 3]), padding=[0, 1, 1], stride=[1] * 3, dilation=[1] * 3)
    g.add(y, g.tensor([4, 1, 1, 1])).set_output(True)
    g.validate()
    conv, add = normalize_ranks(Expansion(g, VERSION).run())
    assert add.inputs["IN_1"].dims == (1, 4, 1, 1, 1) and len(conv.inputs["X"].dims) == 5


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_pointwise_graphs_write_the_same_memory(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 6))
    extents = data.draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    g = graph()

    def operand() -> Any:
        dropped = data.draw(st.integers(0, rank - 1))
        dims = [extent if data.draw(st.booleans()) else 1 for extent in extents[dropped:]]
        order = data.draw(st.permutations(range(len(dims))))
        stride, running = [0] * len(dims), data.draw(st.integers(1, 2))
        for axis in order:
            stride[axis] = running
            running *= dims[axis]
        return g.tensor(dims, stride)

    order = data.draw(st.permutations(range(rank)))
    stride, running = [0] * rank, 1
    for axis in order:
        stride[axis] = running
        running *= extents[axis]
    result = g.tensor(extents, stride)
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["add", "mul", "relu", "gen_index"]))
        if kind == "relu":
            result = g.relu(result)
        elif kind == "gen_index":
            result = g.add(g.gen_index(result, axis=data.draw(st.integers(-rank, rank - 1))), result)
        else:
            result = getattr(g, kind)(result, operand())
    result.set_output(True).set_stride(stride)
    compare(g, rank=TARGET if rank <= TARGET else None)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_matmul_graphs_write_the_same_memory(data: st.DataObject) -> None:
    batch = data.draw(st.lists(st.integers(1, 3), min_size=0, max_size=3))
    m, k, n = (data.draw(st.integers(1, 4)) for _ in range(3))
    g = graph()

    def tensor(rows: int, columns: int) -> Any:
        dims = [extent if data.draw(st.booleans()) else 1 for extent in batch] + [rows, columns]
        stride = [0] * len(dims)
        order = [*data.draw(st.permutations(range(len(batch), len(dims)))), *reversed(range(len(batch)))]
        running = 1
        for axis in order:
            stride[axis] = running
            running *= dims[axis] + data.draw(st.integers(0, 1))
        return g.tensor(dims, stride)

    c = g.matmul(tensor(m, k), tensor(k, n))
    c = g.add(c, g.tensor([1] * (len(batch) + 1) + [n]))
    c = g.mul(c, g.tensor([1, 1, 1, 1], is_pass_by_value=True))
    c.set_output(True)
    compare(g, rank=TARGET if len(batch) <= 1 else None)
