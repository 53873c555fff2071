# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""What each node becomes: descriptor types, attributes, attribute types and values, recorded without a libcudnn."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from cudnn_graph import enums as e
from cudnn_graph.constants import Attr, Desc, Type
from cudnn_graph.descriptors import make_operation_graph
from cudnn_graph.errors import cudnnGraphNotSupportedError
from cudnn_graph.graph import pygraph
from cudnn_graph.lowering import lower

HALF, FLOAT, DOUBLE, BF16, INT32, BOOL = (e.data_type[name] for name in ("HALF", "FLOAT", "DOUBLE", "BFLOAT16", "INT32", "BOOLEAN"))
OLD, NEW = 91900, 92800


def graph(io: e.data_type = HALF, intermediate: e.data_type | None = FLOAT, compute: e.data_type | None = FLOAT, **options: Any) -> pygraph:
    return pygraph("g", io_data_type=io, intermediate_data_type=intermediate, compute_data_type=compute, **options)


@pytest.fixture
def operations(recorder: Any) -> Callable:
    def run(g: pygraph, version: int = OLD, **options: Any) -> list[Any]:
        g.validate()
        made = make_operation_graph(lower(g, version), recorder, RuntimeError, **options)
        assert made.kind == Desc.OPERATIONGRAPH and made.finalized
        everything = [made]
        for descriptor in everything:
            for kind, value in descriptor.attributes.values():
                children = value if isinstance(value, list) else [value]
                if kind == Type.BACKEND_DESCRIPTOR:
                    assert all(child.finalized for child in children)
                    everything.extend(children)
        run.graph = made
        return made[Attr.OPERATIONGRAPH_OPS]

    return run


def uid(descriptor: Any) -> int:
    assert descriptor.kind == Desc.TENSOR
    return descriptor[Attr.TENSOR_UNIQUE_ID]


def connections(operation: Any) -> dict[int, Any]:
    """Attribute -> uid (or uids) of the tensors of an operation."""
    found = {}
    for name, (kind, value) in operation.attributes.items():
        if kind == Type.BACKEND_DESCRIPTOR:
            if isinstance(value, list):
                found[name] = [uid(item) for item in value]
            elif value.kind == Desc.TENSOR:
                found[name] = uid(value)
    return found


def typed(descriptor: Any) -> dict[int, tuple[int, Any]]:
    """Attributes that hold no descriptors."""
    return {name: entry for name, entry in descriptor.attributes.items() if entry[0] != Type.BACKEND_DESCRIPTOR}


def test_a_tensor_is_described_completely(operations: Callable) -> None:
    g = graph()
    x = g.tensor([2, 3, 4], [24, 8, 2], data_type=BF16, uid=77)
    y = g.relu(x).set_output(True).set_data_type(FLOAT)
    (relu,) = operations(g)
    assert typed(relu[Attr.OPERATION_POINTWISE_XDESC]) == {
        Attr.TENSOR_DATA_TYPE: (Type.DATA_TYPE, 9),
        Attr.TENSOR_DIMENSIONS: (Type.INT64, [2, 3, 4]),
        Attr.TENSOR_STRIDES: (Type.INT64, [24, 8, 2]),
        Attr.TENSOR_UNIQUE_ID: (Type.INT64, 77),
        Attr.TENSOR_BYTE_ALIGNMENT: (Type.INT64, 16),
        Attr.TENSOR_IS_VIRTUAL: (Type.BOOLEAN, False),
        Attr.TENSOR_IS_BY_VALUE: (Type.BOOLEAN, False),
    }
    assert uid(relu[Attr.OPERATION_POINTWISE_YDESC]) == y.uid


def test_virtual_by_value_ragged_and_reordered_tensors(operations: Callable) -> None:
    g = graph()
    offset = g.tensor([3, 1, 1, 1], data_type=INT32)
    x = g.tensor([2, 4, 64, 32], ragged_offset=offset, ragged_offset_multiplier=8)
    w = g.tensor([2, 4, 32, 48], reordering_type=e.tensor_reordering.F16x16)
    s = g.tensor([1, 1, 1, 1], is_pass_by_value=True, data_type=e.data_type.INT64)
    c = g.matmul(x, w)
    g.mul(c, s).set_output(True)
    matmul, mul = operations(g, NEW)
    left = matmul[Attr.OPERATION_MATMUL_ADESC]
    assert left.attributes[Attr.TENSOR_RAGGED_OFFSET_DESC][0] == Type.BACKEND_DESCRIPTOR and uid(left[Attr.TENSOR_RAGGED_OFFSET_DESC]) == offset.uid
    assert left.attributes[Attr.TENSOR_RAGGED_OFFSET_MULTIPLIER] == (Type.INT64, 8)
    assert left[Attr.TENSOR_DIMENSIONS] == [2, 4, 64, 32], "ragged tensors keep their axes"
    assert matmul[Attr.OPERATION_MATMUL_BDESC].attributes[Attr.TENSOR_REORDERING_MODE] == (Type.TENSOR_REORDERING_MODE, 2)
    middle = matmul[Attr.OPERATION_MATMUL_CDESC]
    assert middle[Attr.TENSOR_IS_VIRTUAL] is True and middle[Attr.TENSOR_DATA_TYPE] == 0
    assert middle is mul[Attr.OPERATION_POINTWISE_XDESC]
    scalar = mul[Attr.OPERATION_POINTWISE_BDESC]
    assert (scalar[Attr.TENSOR_IS_BY_VALUE], scalar[Attr.TENSOR_BYTE_ALIGNMENT], scalar[Attr.TENSOR_DATA_TYPE]) == (True, 8, 10)
    with pytest.raises(cudnnGraphNotSupportedError, match=r"ragged_offset_multiplier of tensor .* needs cuDNN 9.24.0 or newer; the loaded library is 9.19.0"):
        lower(g, OLD)


def test_constants_are_part_of_the_descriptor(operations: Callable) -> None:
    g = graph()
    x = g.tensor([2, 3, 4])
    constant = g.tensor_scalar(-0.5, e.scalar_type.COMPILE_TIME_CONST)
    runtime = g.tensor_scalar(7, e.scalar_type.RUNTIME_PARAM)
    g.add(g.mul(x, constant), runtime).set_output(True)
    mul, add = operations(g, NEW)
    assert mul[Attr.OPERATION_POINTWISE_BDESC].attributes[Attr.TENSOR_CONSTANT_VALUE] == (Type.VOID_PTR, b"\x00\x00\x00\xbf")
    assert Attr.TENSOR_CONSTANT_VALUE not in add[Attr.OPERATION_POINTWISE_BDESC].attributes
    buffers = {value.uid: value for value in lower(g, NEW).buffers()}
    assert constant.uid not in buffers and buffers[runtime.uid].scalar == 7 and buffers[runtime.uid].dtype is INT32
    with pytest.raises(
        RuntimeError, match=r"COMPILE_TIME_CONST, which needs cuDNN 9.22.0 or newer; the loaded library is 9.19.0: use cudnn.scalar_type.RUNTIME_PARAM"
    ):
        lower(g, OLD)


ONE = "abs ceil cos exp floor log neg rsqrt sin sqrt tan erf identity reciprocal tanh sigmoid gelu gelu_approx_tanh".split()
TWO = "add mul sub div add_square bias scale max min mod pow cmp_eq cmp_neq cmp_gt cmp_ge cmp_lt cmp_le".split()
BACKWARD = "tanh_backward sigmoid_backward gelu_backward gelu_approx_tanh_backward".split()


@pytest.mark.parametrize("method", ONE + TWO + BACKWARD)
def test_plain_pointwise_operations(operations: Callable, method: str) -> None:
    from cudnn_graph.constants import POINTWISE

    g = graph()
    inputs = [g.tensor([2, 3, 4]) for _ in range(1 if method in ONE else 2)]
    y = getattr(g, method)(*inputs).set_output(True)
    (op,) = operations(g)
    assert op.kind == Desc.OPERATION_POINTWISE
    helper = op[Attr.OPERATION_POINTWISE_PW_DESCRIPTOR]
    assert helper.kind == Desc.POINTWISE
    assert typed(helper) == {Attr.POINTWISE_MODE: (Type.POINTWISE_MODE, POINTWISE[method]), Attr.POINTWISE_MATH_PREC: (Type.DATA_TYPE, 0)}
    one = (Type.FLOAT, 1.0)
    if method in BACKWARD:
        assert connections(op) == {
            Attr.OPERATION_POINTWISE_DYDESC: inputs[0].uid,
            Attr.OPERATION_POINTWISE_XDESC: inputs[1].uid,
            Attr.OPERATION_POINTWISE_DXDESC: y.uid,
        }
        assert typed(op) == {Attr.OPERATION_POINTWISE_ALPHA1: one}
    elif method in TWO:
        assert connections(op) == {
            Attr.OPERATION_POINTWISE_XDESC: inputs[0].uid,
            Attr.OPERATION_POINTWISE_BDESC: inputs[1].uid,
            Attr.OPERATION_POINTWISE_YDESC: y.uid,
        }
        assert typed(op) == {Attr.OPERATION_POINTWISE_ALPHA1: one, Attr.OPERATION_POINTWISE_ALPHA2: one}
    else:
        assert connections(op) == {Attr.OPERATION_POINTWISE_XDESC: inputs[0].uid, Attr.OPERATION_POINTWISE_YDESC: y.uid}
        assert typed(op) == {Attr.OPERATION_POINTWISE_ALPHA1: one}


FLOAT_MAX, DOUBLE_MAX = 3.4028234663852886e38, 1.7976931348623157e308


@pytest.mark.parametrize(
    "method, options, compute, expected",
    [
        ("relu", {}, FLOAT, {3: 0.0, 4: FLOAT_MAX, 5: 0.0}),
        ("relu", {}, DOUBLE, {3: 0.0, 4: DOUBLE_MAX, 5: 0.0}),
        ("relu", {"lower_clip": -1.5, "upper_clip": 6.0, "negative_slope": 0.25}, FLOAT, {3: -1.5, 4: 6.0, 5: 0.25}),
        ("leaky_relu", {"negative_slope": 0.1}, FLOAT, {3: 0.0, 4: FLOAT_MAX, 5: 0.1}),
        ("relu_backward", {"upper_clip": 6.0}, FLOAT, {3: 0.0, 4: 6.0, 5: 0.0}),
        ("leaky_relu_backward", {"negative_slope": 0.1}, FLOAT, {3: 0.0, 4: FLOAT_MAX, 5: 0.1}),
        ("elu", {}, FLOAT, {6: 1.0}),
        ("elu_backward", {}, FLOAT, {6: 1.0}),
        ("softplus", {}, FLOAT, {7: 1.0}),
        ("softplus_backward", {}, FLOAT, {7: 1.0}),
        ("swish", {}, FLOAT, {8: 1.0}),
        ("swish", {"swish_beta": 1.7}, FLOAT, {8: 1.7}),
        ("swish_backward", {"swish_beta": 0.5}, FLOAT, {8: 0.5}),
    ],
)
def test_parameters_of_activations(operations: Callable, method: str, options: dict, compute: e.data_type, expected: dict[int, float]) -> None:
    g = graph(compute=compute)
    inputs = [g.tensor([2, 3, 4]) for _ in range(2 if method.endswith("backward") else 1)]
    getattr(g, method)(*inputs, **options).set_output(True)
    (op,) = operations(g)
    helper = typed(op[Attr.OPERATION_POINTWISE_PW_DESCRIPTOR])
    assert {name: value for name, (kind, value) in helper.items() if kind == Type.DOUBLE} == pytest.approx(expected)
    assert (Attr.POINTWISE_NAN_PROPAGATION in helper) == ("relu" in method)
    if "relu" in method:
        assert helper[Attr.POINTWISE_NAN_PROPAGATION] == (Type.NAN_PROPOGATION, 1)
    assert op.attributes[Attr.OPERATION_POINTWISE_ALPHA1] == (Type.DOUBLE if compute is DOUBLE else Type.FLOAT, 1.0)


def test_gen_index_and_select(operations: Callable) -> None:
    g = graph()
    x, other = g.tensor([2, 3, 4]), g.tensor([2, 3, 4])
    mask = g.cmp_gt(x, other).set_data_type(BOOL)
    index = g.gen_index(x, axis=1).set_output(True).set_data_type(INT32)
    chosen = g.binary_select(x, other, mask).set_output(True)
    _, first, second = operations(g)
    assert first[Attr.OPERATION_POINTWISE_PW_DESCRIPTOR].attributes[Attr.POINTWISE_AXIS] == (Type.INT64, 1)
    assert connections(first)[Attr.OPERATION_POINTWISE_YDESC] == index.uid
    assert connections(second) == {
        Attr.OPERATION_POINTWISE_XDESC: x.uid,
        Attr.OPERATION_POINTWISE_BDESC: other.uid,
        Attr.OPERATION_POINTWISE_TDESC: mask.uid,
        Attr.OPERATION_POINTWISE_YDESC: chosen.uid,
    }


def outline(made: list[Any]) -> list[tuple]:
    """(mode, compute type, types of the inputs, (type of the output, virtual)) of pointwise operations."""
    result = []
    for op in made:
        helper = op[Attr.OPERATION_POINTWISE_PW_DESCRIPTOR]
        ports = (Attr.OPERATION_POINTWISE_XDESC, Attr.OPERATION_POINTWISE_BDESC, Attr.OPERATION_POINTWISE_TDESC)
        types = [op[port][Attr.TENSOR_DATA_TYPE] for port in ports if port in op.attributes]
        out = op[Attr.OPERATION_POINTWISE_YDESC]
        result.append((helper[Attr.POINTWISE_MODE], helper[Attr.POINTWISE_MATH_PREC], types, (out[Attr.TENSOR_DATA_TYPE], out[Attr.TENSOR_IS_VIRTUAL])))
    return result


FP32, FP16, BYTE, BIT = 0, 2, 3, 11
NEQ, AND, NOT, SELECT, GREATER, IDENTITY, ADD = 301, 400, 402, 601, 302, 21, 0


def typed_graph(*dtypes: Any) -> tuple:
    g = graph()
    return (g, *(g.tensor([2, 3, 4], data_type=dtype) for dtype in dtypes))


def test_booleans_are_bytes(operations: Callable) -> None:
    g, x, y = typed_graph(HALF, HALF)
    g.cmp_gt(x, y).set_output(True).set_data_type(BOOL)
    assert outline(operations(g)) == [(GREATER, FP32, [FP16, FP16], (BYTE, False))]
    g, a, b = typed_graph(BOOL, BOOL)
    g.logical_and(a, b).set_output(True).set_data_type(BOOL)
    assert outline(operations(g)) == [(AND, BIT, [BYTE, BYTE], (BYTE, False))]
    g, x, y, a = typed_graph(HALF, HALF, BOOL)
    both = g.logical_and(g.cmp_gt(x, y).set_data_type(BOOL), a).set_data_type(BOOL)
    g.binary_select(x, y, both).set_output(True)
    g.binary_select(y, x, a).set_output(True)
    assert outline(operations(g)) == [
        (GREATER, FP32, [FP16, FP16], (BYTE, True)),
        (AND, BIT, [BYTE, BYTE], (BYTE, True)),
        (SELECT, FP32, [FP16, FP16, BYTE], (FP16, False)),
        (SELECT, FP32, [FP16, FP16, BYTE], (FP16, False)),
    ]


def test_numbers_become_booleans_by_comparison_with_zero(operations: Callable) -> None:
    g, x, y = typed_graph(HALF, HALF)
    g.add(x, y).set_output(True).set_data_type(BOOL)
    g.identity(x).set_output(True).set_data_type(BOOL)
    made = operations(g)
    assert outline(made) == [
        (ADD, FP32, [FP16, FP16], (FP32, True)),
        (NEQ, FP32, [FP32, FP32], (BYTE, False)),
        (NEQ, FP32, [FP16, FP32], (BYTE, False)),
    ]
    zero = made[1][Attr.OPERATION_POINTWISE_BDESC]
    assert zero is made[2][Attr.OPERATION_POINTWISE_BDESC] and zero[Attr.TENSOR_IS_BY_VALUE] and zero[Attr.TENSOR_DIMENSIONS] == [1, 1, 1]
    # A number used twice as a condition is compared once; what a comparison gave is a condition in any type, but logical operations want bytes.
    g, x, y, m = typed_graph(HALF, HALF, HALF)
    g.binary_select(x, y, m).set_output(True)
    g.logical_not(m).set_output(True).set_data_type(HALF)
    above = g.cmp_gt(x, y)
    g.binary_select(x, y, above).set_output(True)
    g.logical_not(above).set_output(True).set_data_type(BOOL)
    assert outline(operations(g)) == [
        (NEQ, FP32, [FP16, FP32], (BYTE, True)),
        (SELECT, FP32, [FP16, FP16, BYTE], (FP16, False)),
        (NOT, BIT, [BYTE], (BYTE, True)),
        (IDENTITY, FP32, [BYTE], (FP16, False)),
        (GREATER, FP32, [FP16, FP16], (FP32, True)),
        (SELECT, FP32, [FP16, FP16, FP32], (FP16, False)),
        (NEQ, FP32, [FP32, FP32], (BYTE, True)),
        (NOT, BIT, [BYTE], (BYTE, False)),
    ]


@pytest.mark.parametrize("io, compute, expected", [(HALF, None, 0), (e.data_type.INT8, INT32, 4), (DOUBLE, None, 1), (DOUBLE, FLOAT, 0)])
def test_matmul(operations: Callable, io: e.data_type, compute: e.data_type | None, expected: int) -> None:
    g = graph(io=io, intermediate=None, compute=compute)
    a, b = g.tensor([2, 64, 32]), g.tensor([1, 32, 48], [1536, 1, 32])
    c = g.matmul(a, b).set_output(True)
    (op,) = operations(g)
    assert op.kind == Desc.OPERATION_MATMUL
    assert connections(op) == {Attr.OPERATION_MATMUL_ADESC: a.uid, Attr.OPERATION_MATMUL_BDESC: b.uid, Attr.OPERATION_MATMUL_CDESC: c.uid}
    helper = op[Attr.OPERATION_MATMUL_DESC]
    assert (helper.kind, typed(helper)) == (Desc.MATMUL, {Attr.MATMUL_COMP_TYPE: (Type.DATA_TYPE, expected)})
    assert op[Attr.OPERATION_MATMUL_BDESC][Attr.TENSOR_STRIDES] == [1536, 1, 32]


def test_matmul_padding(operations: Callable) -> None:
    g = graph()
    g.matmul(g.tensor([2, 64, 32]), g.tensor([2, 32, 48]), padding=-2.5).set_output(True)
    (op,) = operations(g)
    assert op[Attr.OPERATION_MATMUL_DESC].attributes[Attr.MATMUL_PADDING_VALUE] == (Type.DOUBLE, -2.5)


CONV = {"pre_padding": [1, 2], "post_padding": [0, 1], "stride": [2, 1], "dilation": [1, 3]}


@pytest.mark.parametrize("compute, real", [(FLOAT, Type.FLOAT), (DOUBLE, Type.DOUBLE)])
@pytest.mark.parametrize("mode, number", [(e.convolution_mode.CROSS_CORRELATION, 1), (e.convolution_mode.CONVOLUTION, 0)])
def test_convolutions(operations: Callable, mode: e.convolution_mode, number: int, compute: e.data_type, real: int) -> None:
    g = graph(compute=compute)
    x, w = g.tensor([4, 16, 20, 21], [6720, 1, 336, 16]), g.tensor([32, 16, 3, 3], [144, 1, 48, 16])
    y = g.conv_fprop(x, w, **CONV, convolution_mode=mode).set_output(True)
    (forward,) = operations(g)
    extents = y.get_dim()
    assert forward.kind == Desc.OPERATION_CONVOLUTION_FORWARD
    assert connections(forward) == {
        Attr.OPERATION_CONVOLUTION_FORWARD_X: x.uid,
        Attr.OPERATION_CONVOLUTION_FORWARD_W: w.uid,
        Attr.OPERATION_CONVOLUTION_FORWARD_Y: y.uid,
    }
    assert typed(forward) == {Attr.OPERATION_CONVOLUTION_FORWARD_ALPHA: (real, 1.0), Attr.OPERATION_CONVOLUTION_FORWARD_BETA: (real, 0.0)}
    helper = forward[Attr.OPERATION_CONVOLUTION_FORWARD_CONV_DESC]
    expected = {
        Attr.CONVOLUTION_COMP_TYPE: (Type.DATA_TYPE, 1 if compute is DOUBLE else 0),
        Attr.CONVOLUTION_CONV_MODE: (Type.CONVOLUTION_MODE, number),
        Attr.CONVOLUTION_SPATIAL_DIMS: (Type.INT64, 2),
        Attr.CONVOLUTION_PRE_PADDINGS: (Type.INT64, [1, 2]),
        Attr.CONVOLUTION_POST_PADDINGS: (Type.INT64, [0, 1]),
        Attr.CONVOLUTION_FILTER_STRIDES: (Type.INT64, [2, 1]),
        Attr.CONVOLUTION_DILATIONS: (Type.INT64, [1, 3]),
    }
    assert (helper.kind, typed(helper)) == (Desc.CONVOLUTION, expected)

    g = graph(compute=compute)
    dy, w = g.tensor(extents), g.tensor([32, 16, 3, 3])
    dx = g.conv_dgrad(dy, w, **CONV, convolution_mode=mode).set_dim([4, 16, 20, 21]).set_output(True)
    (data,) = operations(g)
    assert data.kind == Desc.OPERATION_CONVOLUTION_BACKWARD_DATA
    assert connections(data) == {
        Attr.OPERATION_CONVOLUTION_BWD_DATA_DY: dy.uid,
        Attr.OPERATION_CONVOLUTION_BWD_DATA_W: w.uid,
        Attr.OPERATION_CONVOLUTION_BWD_DATA_DX: dx.uid,
    }
    assert typed(data) == {Attr.OPERATION_CONVOLUTION_BWD_DATA_ALPHA: (real, 1.0), Attr.OPERATION_CONVOLUTION_BWD_DATA_BETA: (real, 0.0)}
    assert typed(data[Attr.OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC]) == expected

    g = graph(compute=compute)
    x, dy = g.tensor([4, 16, 20, 21]), g.tensor(extents)
    dw = g.conv_wgrad(x, dy, **CONV, convolution_mode=mode).set_dim([32, 16, 3, 3]).set_output(True)
    (filter_,) = operations(g)
    assert filter_.kind == Desc.OPERATION_CONVOLUTION_BACKWARD_FILTER
    assert connections(filter_) == {
        Attr.OPERATION_CONVOLUTION_BWD_FILTER_DY: dy.uid,
        Attr.OPERATION_CONVOLUTION_BWD_FILTER_X: x.uid,
        Attr.OPERATION_CONVOLUTION_BWD_FILTER_DW: dw.uid,
    }
    assert typed(filter_[Attr.OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC]) == expected


@pytest.mark.parametrize("mode", [mode for mode in e.reduction_mode if mode is not e.reduction_mode.NOT_SET])
def test_reduction_and_statistics(operations: Callable, mode: e.reduction_mode) -> None:
    g = graph()
    x, w = g.tensor([4, 16, 8, 8], [1024, 1, 128, 16]), g.tensor([32, 16, 1, 1])
    y = g.conv_fprop(x, w, padding=[0, 0], stride=[1, 1], dilation=[1, 1]).set_output(True)
    total, squares = g.genstats(y)
    total.set_output(True)
    squares.set_output(True)
    reduced = g.reduction(y, mode).set_dim([1, 32, 1, 1]).set_output(True)
    _, statistics, reduction = operations(g)
    assert statistics.kind == Desc.OPERATION_GEN_STATS
    assert typed(statistics) == {Attr.OPERATION_GENSTATS_MODE: (Type.GENSTATS_MODE, 0), Attr.OPERATION_GENSTATS_MATH_PREC: (Type.DATA_TYPE, 0)}
    assert connections(statistics) == {
        Attr.OPERATION_GENSTATS_XDESC: y.uid,
        Attr.OPERATION_GENSTATS_SUMDESC: total.uid,
        Attr.OPERATION_GENSTATS_SQSUMDESC: squares.uid,
    }
    assert reduction.kind == Desc.OPERATION_REDUCTION
    assert connections(reduction) == {Attr.OPERATION_REDUCTION_XDESC: y.uid, Attr.OPERATION_REDUCTION_YDESC: reduced.uid}
    helper = reduction[Attr.OPERATION_REDUCTION_DESC]
    # The library's number is the public one less one.
    assert typed(helper) == {Attr.REDUCTION_OPERATOR: (Type.REDUCTION_OPERATOR_TYPE, mode.value - 1), Attr.REDUCTION_COMP_TYPE: (Type.DATA_TYPE, 0)}


def test_reduction_by_groups_needs_a_newer_library(operations: Callable) -> None:
    g = graph()
    offset = g.tensor([4, 1, 1], data_type=INT32)
    c = g.matmul(g.tensor([1, 64, 32]), g.tensor([1, 32, 48]))
    g.reduction(c, e.reduction_mode.ADD, group_offset=offset).set_dim([4, 1, 48]).set_output(True)
    _, reduction = operations(g, NEW)
    assert connections(reduction)[Attr.OPERATION_REDUCTION_GROUP_OFFSET_DESC] == offset.uid
    with pytest.raises(cudnnGraphNotSupportedError, match=r"group_offset of node 'reduction.0' \(reduction\) needs cuDNN 9.24.0"):
        lower(g, OLD)


def norm_inputs(g: pygraph) -> dict[str, Any]:
    return {"input": g.tensor([8, 32, 4, 4], [512, 1, 128, 32]), "epsilon": g.tensor([1, 1, 1, 1], is_pass_by_value=True, data_type=FLOAT)}


def channel(g: pygraph) -> Any:
    return g.tensor([1, 32, 1, 1], data_type=FLOAT)


F, B = "OPERATION_NORM_FWD_", "OPERATION_NORM_BWD_"


def norm_attributes(prefix: str, **tensors: Any) -> dict[int, Any]:
    return {getattr(Attr, prefix + name): tensor.uid for name, tensor in tensors.items() if tensor is not None}


@pytest.mark.parametrize("phase, number", [(e.norm_forward_phase.INFERENCE, 0), (e.norm_forward_phase.TRAINING, 1)])
@pytest.mark.parametrize("method, mode", [("layernorm", 0), ("instancenorm", 1), ("adalayernorm", 5), ("rmsnorm", 4)])
def test_norms_forward(operations: Callable, method: str, mode: int, phase: e.norm_forward_phase, number: int) -> None:
    g = graph()
    given = norm_inputs(g)
    scale, bias = channel(g), channel(g)
    if method == "adalayernorm":
        scale, bias = g.tensor([8, 32, 4, 4]), g.tensor([8, 32, 4, 4])
    y, *stats = getattr(g, method)(norm_forward_phase=phase, scale=scale, bias=bias, **given)
    for tensor in (y, *stats):
        if tensor is not None:
            tensor.set_output(True)
    (op,) = operations(g)
    assert op.kind == Desc.OPERATION_NORM_FORWARD
    assert typed(op) == {Attr.OPERATION_NORM_FWD_MODE: (Type.NORM_MODE, mode), Attr.OPERATION_NORM_FWD_PHASE: (Type.NORM_FWD_PHASE, number)}
    mean, inverse = (None, *stats) if method == "rmsnorm" else stats
    assert (inverse is not None) == (phase is e.norm_forward_phase.TRAINING)
    assert connections(op) == norm_attributes(
        F, XDESC=given["input"], SCALE_DESC=scale, BIAS_DESC=bias, EPSILON_DESC=given["epsilon"], MEAN_DESC=mean, INV_VARIANCE_DESC=inverse, YDESC=y
    )


def test_rmsnorm_without_scale_and_its_gradients(operations: Callable) -> None:
    g = graph()
    given = norm_inputs(g)
    y, inverse = g.rmsnorm(norm_forward_phase=e.norm_forward_phase.TRAINING, **given)
    y.set_output(True)
    inverse.set_output(True)
    (op,) = operations(g)
    assert connections(op) == norm_attributes(F, XDESC=given["input"], EPSILON_DESC=given["epsilon"], INV_VARIANCE_DESC=inverse, YDESC=y)
    for has_dbias in (True, False):
        g = graph()
        dy, x, scale, inverse = g.tensor([8, 32, 1, 1]), g.tensor([8, 32, 1, 1]), channel(g), g.tensor([8, 1, 1, 1], data_type=FLOAT)
        outputs = g.rmsnorm_backward(grad=dy, input=x, scale=scale, inv_variance=inverse, has_dbias=has_dbias)
        for tensor in outputs:
            if tensor is not None:
                tensor.set_output(True)
        (op,) = operations(g)
        assert typed(op) == {Attr.OPERATION_NORM_BWD_MODE: (Type.NORM_MODE, 4)}
        expected = {
            "XDESC": x,
            "DYDESC": dy,
            "SCALE_DESC": scale,
            "INV_VARIANCE_DESC": inverse,
            "DXDESC": outputs[0],
            "DSCALE_DESC": outputs[1],
            "DBIAS_DESC": outputs[2],
        }
        assert connections(op) == norm_attributes(B, **expected)
        assert (outputs[2] is not None) is has_dbias


@pytest.mark.parametrize("method, mode", [("layernorm_backward", 0), ("instancenorm_backward", 1), ("batchnorm_backward", 2), ("adalayernorm_backward", 5)])
def test_norms_backward(operations: Callable, method: str, mode: int) -> None:
    g = graph()
    dy, x = g.tensor([8, 32, 4, 4], [512, 1, 128, 32]), g.tensor([8, 32, 4, 4], [512, 1, 128, 32])
    scale = g.tensor([8, 32, 4, 4]) if mode == 5 else channel(g)
    extents = {0: [8, 1, 4, 4], 1: [8, 32, 1, 1], 2: [1, 32, 1, 1], 5: [8, 1, 1, 1]}[mode]
    mean, inverse = g.tensor(extents, data_type=FLOAT), g.tensor(extents, data_type=FLOAT)
    dx, dscale, dbias = getattr(g, method)(grad=dy, input=x, scale=scale, mean=mean, inv_variance=inverse)
    for tensor in (dx, dscale, dbias):
        tensor.set_output(True)
    (op,) = operations(g)
    assert op.kind == Desc.OPERATION_NORM_BACKWARD and typed(op) == {Attr.OPERATION_NORM_BWD_MODE: (Type.NORM_MODE, mode)}
    expected = {
        "XDESC": x,
        "DYDESC": dy,
        "SCALE_DESC": scale,
        "MEAN_DESC": mean,
        "INV_VARIANCE_DESC": inverse,
        "DXDESC": dx,
        "DSCALE_DESC": dscale,
        "DBIAS_DESC": dbias,
    }
    assert connections(op) == norm_attributes(B, **expected)


def test_batchnorm_training_with_peers(operations: Callable) -> None:
    g = graph()
    given = norm_inputs(g)
    scale, bias, mean, var = (channel(g) for _ in range(4))
    momentum = g.tensor([1, 1, 1, 1], is_pass_by_value=True, data_type=FLOAT)
    peers = [g.tensor([2, 128, 1, 1], data_type=FLOAT) for _ in range(2)]
    outputs = g.batchnorm(scale=scale, bias=bias, in_running_mean=mean, in_running_var=var, momentum=momentum, peer_stats=peers, **given)
    for tensor in outputs:
        tensor.set_output(True)
    (op,) = operations(g)
    assert typed(op) == {Attr.OPERATION_NORM_FWD_MODE: (Type.NORM_MODE, 2), Attr.OPERATION_NORM_FWD_PHASE: (Type.NORM_FWD_PHASE, 1)}
    found = connections(op)
    assert found.pop(Attr.OPERATION_NORM_FWD_PEER_STAT_DESCS) == [peer.uid for peer in peers]
    y, saved_mean, saved_inverse, next_mean, next_var = outputs
    assert found == norm_attributes(
        F,
        XDESC=given["input"],
        SCALE_DESC=scale,
        BIAS_DESC=bias,
        EPSILON_DESC=given["epsilon"],
        EXP_AVG_FACTOR_DESC=momentum,
        INPUT_RUNNING_MEAN_DESC=mean,
        INPUT_RUNNING_VAR_DESC=var,
        MEAN_DESC=saved_mean,
        INV_VARIANCE_DESC=saved_inverse,
        OUTPUT_RUNNING_MEAN_DESC=next_mean,
        OUTPUT_RUNNING_VAR_DESC=next_var,
        YDESC=y,
    )


def test_batchnorm_inference_becomes_pointwise_operations(operations: Callable) -> None:
    g = graph()
    x = g.tensor([8, 32, 4, 4], [512, 1, 128, 32])
    mean, inverse, scale, bias = (channel(g) for _ in range(4))
    y = g.batchnorm_inference(input=x, mean=mean, inv_variance=inverse, scale=scale, bias=bias).set_output(True)
    made = operations(g)
    assert [op[Attr.OPERATION_POINTWISE_PW_DESCRIPTOR][Attr.POINTWISE_MODE] for op in made] == [9, 1, 1, 0]
    assert [uid(op[Attr.OPERATION_POINTWISE_BDESC]) for op in made] == [mean.uid, inverse.uid, scale.uid, bias.uid]
    for before, after in itertools.pairwise(made):
        link = before[Attr.OPERATION_POINTWISE_YDESC]
        assert link is after[Attr.OPERATION_POINTWISE_XDESC] and link[Attr.TENSOR_IS_VIRTUAL] and link[Attr.TENSOR_DATA_TYPE] == 0
        assert uid(link) not in g.tensors
    assert uid(made[0][Attr.OPERATION_POINTWISE_XDESC]) == x.uid and uid(made[-1][Attr.OPERATION_POINTWISE_YDESC]) == y.uid
    # Channels last: everything but the channels is one run of memory.
    assert made[0][Attr.OPERATION_POINTWISE_XDESC][Attr.TENSOR_DIMENSIONS] == [1, 128, 32]
    assert made[0][Attr.OPERATION_POINTWISE_XDESC][Attr.TENSOR_STRIDES] == [4096, 32, 1]
    assert made[0][Attr.OPERATION_POINTWISE_BDESC][Attr.TENSOR_DIMENSIONS] == [1, 1, 32]


def test_batchnorm_inference_in_front_of_a_gradient_stays_one_operation(operations: Callable) -> None:
    g = graph()
    x, dy = g.tensor([8, 32, 4, 4], [512, 1, 128, 32]), g.tensor([8, 32, 4, 4], [512, 1, 128, 32])
    mean, inverse, scale, bias = (channel(g) for _ in range(4))
    y = g.batchnorm_inference(input=x, mean=mean, inv_variance=inverse, scale=scale, bias=bias)
    outputs = g.batchnorm_backward(grad=g.relu_backward(dy, y), input=x, scale=scale, mean=mean, inv_variance=inverse)
    for tensor in outputs:
        tensor.set_output(True)
    forward, relu, backward = operations(g)
    assert (forward.kind, relu.kind, backward.kind) == (Desc.OPERATION_NORM_FORWARD, Desc.OPERATION_POINTWISE, Desc.OPERATION_NORM_BACKWARD)
    assert typed(forward) == {Attr.OPERATION_NORM_FWD_MODE: (Type.NORM_MODE, 2), Attr.OPERATION_NORM_FWD_PHASE: (Type.NORM_FWD_PHASE, 0)}
    assert connections(forward) == norm_attributes(F, XDESC=x, MEAN_DESC=mean, INV_VARIANCE_DESC=inverse, SCALE_DESC=scale, BIAS_DESC=bias, YDESC=y)


def test_structural_operations_of_a_new_library(operations: Callable) -> None:
    g = graph()
    x = g.tensor([2, 16, 32])
    part = g.slice(x, slices=[slice(0, 2), slice(4, 12, 2), slice(None)])
    turned = g.transpose(part, permutation=[0, 2, 1])
    flat = g.reshape(turned, reshape_mode=e.reshape_mode.LOGICAL).set_dim([2, 8, 16])
    joined = g.concatenate(inputs=[flat, flat], axis=1, in_place_index=0).set_output(True)
    first, second, third, fourth = operations(g, NEW)
    assert first.kind == Desc.OPERATION_SLICE
    assert typed(first) == {
        Attr.OPERATION_SLICE_START_INDICES: (Type.INT64, [0, 4, 0]),
        Attr.OPERATION_SLICE_LIMIT_INDICES: (Type.INT64, [2, 12, 32]),
        Attr.OPERATION_SLICE_STRIDES: (Type.INT64, [1, 2, 1]),
    }
    assert (second.kind, typed(second)) == (Desc.OPERATION_TRANSPOSE, {Attr.OPERATION_TRANSPOSE_PERMUTATION: (Type.INT64, [0, 2, 1])})
    assert (third.kind, typed(third)) == (Desc.OPERATION_RESHAPE, {Attr.OPERATION_RESHAPE_MODE: (Type.RESHAPE_MODE, 1)})
    assert (fourth.kind, typed(fourth)) == (
        Desc.OPERATION_CONCAT,
        {Attr.OPERATION_CONCAT_AXIS: (Type.INT64, 1), Attr.OPERATION_CONCAT_INPLACE_INDEX: (Type.INT64, 0)},
    )
    assert connections(fourth) == {Attr.OPERATION_CONCAT_INPUT_DESCS: [flat.uid, flat.uid], Attr.OPERATION_CONCAT_OUTPUT_DESC: joined.uid}
    # Moving elements does not change their type, whatever intermediate results are kept in.
    assert {op[name][Attr.TENSOR_DATA_TYPE] for op, name in ((first, 3301), (second, 3201), (third, 2201))} == {2}
    with pytest.raises(cudnnGraphNotSupportedError, match="cuDNN 9.19.0 has no such operation|needs cuDNN 9.22.0"):
        lower(g, OLD)


def test_a_view_reshape_has_no_mode(operations: Callable) -> None:
    g = graph()
    g.reshape(g.tensor([2, 16, 32])).set_dim([2, 8, 64]).set_output(True)
    (op,) = operations(g)
    assert typed(op) == {}


@pytest.mark.parametrize("mode, number", [("NONE", 0), ("GATHER", 1), ("SCATTER", 2)])
def test_grouped_matmul(operations: Callable, monkeypatch: pytest.MonkeyPatch, mode: str, number: int) -> None:
    monkeypatch.setattr("cudnn_graph.lowering.known_bad.FAULTS", ())
    g = graph(io=BF16)
    token, weight, offsets = g.tensor([1, 256, 64]), g.tensor([4, 64, 128]), g.tensor([4, 1, 1], data_type=INT32)
    more = {}
    if mode != "NONE":
        more["token_index"] = g.tensor([256, 1], data_type=INT32)
    if mode == "SCATTER":
        more.update(token_ks=g.tensor([1, 256, 1], data_type=INT32), top_k=2)
    out = g.moe_grouped_matmul(token, weight, offsets, mode=e.moe_grouped_matmul_mode[mode], **more).set_output(True)
    (op,) = operations(g)
    assert op.kind == Desc.OPERATION_MOE_GROUPED_MATMUL
    expected = {
        Attr.OPERATION_MOE_GROUPED_MATMUL_MODE: (Type.MOE_GROUPED_MATMUL_MODE, number),
        Attr.OPERATION_MOE_GROUPED_MATMUL_MATH_PREC: (Type.DATA_TYPE, 0),
    }
    if mode == "SCATTER":
        expected[Attr.OPERATION_MOE_GROUPED_MATMUL_TOP_K] = (Type.INT32, 2)
    assert typed(op) == expected
    if mode != "NONE":
        index = op[Attr.OPERATION_MOE_GROUPED_MATMUL_TOKEN_INDEX_DESC]
        assert (index[Attr.TENSOR_DIMENSIONS], index[Attr.TENSOR_STRIDES]) == ([1, 256, 1], [256, 1, 1])
    prefix = "OPERATION_MOE_GROUPED_MATMUL_"
    assert connections(op) == norm_attributes(
        prefix,
        TOKEN_DESC=token,
        WEIGHT_DESC=weight,
        FIRST_TOKEN_OFFSET_DESC=offsets,
        OUTPUT_DESC=out,
        TOKEN_INDEX_DESC=more.get("token_index"),
        TOKEN_KS_DESC=more.get("token_ks"),
    )
    with pytest.raises(
        cudnnGraphNotSupportedError, match=r"node 'moe_grouped_matmul.0' \(moe_grouped_matmul\) needs cuDNN 9.15.0 or newer; the loaded library is 9.14.2"
    ):
        lower(g, 91402)


def test_grouped_matmul_backward(operations: Callable) -> None:
    g = graph(io=BF16)
    dout, token, offsets = g.tensor([1, 256, 128]), g.tensor([1, 256, 64]), g.tensor([4, 1, 1], data_type=INT32)
    dweight = g.moe_grouped_matmul_bwd(dout, token, offsets).set_dim([4, 64, 128]).set_output(True)
    (op,) = operations(g, NEW)
    assert (op.kind, typed(op)) == (Desc.OPERATION_MOE_GROUPED_MATMUL_BWD, {2951: (Type.DATA_TYPE, 0)})
    assert connections(op) == {2952: token.uid, 2953: dweight.uid, 2954: offsets.uid, 2955: dout.uid}


def test_block_scales(operations: Callable) -> None:
    g = graph()
    x = g.tensor([1, 128, 64])
    y, scale = g.block_scale_quantize(x, block_size=32)
    y.set_output(True).set_data_type(e.data_type.FP8_E4M3)
    scale.set_output(True).set_data_type(e.data_type.FP8_E8M0)
    (op,) = operations(g)
    assert op.kind == Desc.OPERATION_BLOCK_SCALE_QUANTIZE
    assert typed(op) == {2503: (Type.DATA_TYPE, 0), 2504: (Type.INT32, 32)} and connections(op) == {2500: x.uid, 2501: y.uid, 2502: scale.uid}
    g = graph()
    x, scale = g.tensor([1, 128, 64], data_type=e.data_type.FP8_E4M3), g.tensor([1, 128, 2], data_type=e.data_type.FP8_E8M0)
    y = g.block_scale_dequantize(x, scale, block_size=[1, 32])
    g.relu(y).set_output(True)
    op, _ = operations(g)
    assert op.kind == Desc.OPERATION_BLOCK_SCALE_DEQUANTIZE
    assert typed(op) == {2603: (Type.DATA_TYPE, 0), 2604: (Type.INT32, [1, 32])} and connections(op) == {2600: x.uid, 2601: scale.uid, 2602: y.uid}


def test_flags_of_the_operation_graph(operations: Callable) -> None:
    g = graph()
    g.relu(g.tensor([2, 3, 4])).set_output(True)
    operations(g, handle=0x1230, is_dynamic_shape_enabled=True, is_override_shape_enabled=True)
    assert typed(operations.graph) == {
        Attr.OPERATIONGRAPH_HANDLE: (Type.HANDLE, 0x1230),
        Attr.OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED: (Type.BOOLEAN, True),
        Attr.OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED: (Type.BOOLEAN, True),
    }
    operations(g)
    assert typed(operations.graph) == {}


def test_a_tensor_without_type_is_named() -> None:
    g = pygraph("g")
    x = g.tensor([2, 3, 4], name="nameless")
    y = g.relu(x).set_output(True)
    x._data_type = y._data_type = None
    with pytest.raises(ValueError, match="nameless|data type"):
        g.validate()
        lower(g, OLD)
