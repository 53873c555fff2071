"""Tensors, uids, names, node methods, freezing and inspection of the graph IR."""

from __future__ import annotations

import copy
import inspect
import json

import pytest

import cudnn
from cudnn_graph.builders.pointwise import PointwiseMethods
from cudnn_graph.enums import convolution_mode
from cudnn_graph.tensor import channels_last, packed_like, row_major

torch = pytest.importorskip("torch")

FLOAT = cudnn.data_type.FLOAT
PHASE = cudnn.norm_forward_phase


def new_graph(**options):
    return cudnn.pygraph(io_data_type=FLOAT, **options)


# Enumerations.


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("tensor_reordering", {"NONE": 0, "INT8x32": 1, "F16x16": 2, "F8_128x4": 3}),
        ("heur_mode", {"A": 0, "B": 1, "FALLBACK": 2, "OPENSOURCE": 3}),
        ("build_plan_policy", {"HEURISTICS_CHOICE": 0, "ALL": 1}),
        ("norm_forward_phase", {"NOT_SET": 0, "INFERENCE": 1, "TRAINING": 2}),
        (
            "reduction_mode",
            {"NOT_SET": 0, "ADD": 1, "MUL": 2, "MIN": 3, "MAX": 4, "AMAX": 5, "AVG": 6, "NORM1": 7, "NORM2": 8, "MUL_NO_ZEROS": 9},
        ),
        ("diagonal_alignment", {"TOP_LEFT": 0, "BOTTOM_RIGHT": 1}),
        ("attention_implementation", {"AUTO": 0, "COMPOSITE": 1, "UNIFIED": 2}),
        ("moe_grouped_matmul_mode", {"NONE": 1, "GATHER": 2, "SCATTER": 3, "COMBINE": 4}),
        ("scalar_type", {"RUNTIME_PARAM": 0, "COMPILE_TIME_CONST": 1}),
        ("reshape_mode", {"VIEW_ONLY": 1, "LOGICAL": 2}),
        ("cuda_graph_retention", {"PER_GRAPH": 0, "NONE": 1}),
        (
            "behavior_note",
            {
                "RUNTIME_COMPILATION": 1,
                "REQUIRES_FILTER_INT8x32_REORDER": 2,
                "REQUIRES_BIAS_INT8x32_REORDER": 3,
                "SUPPORTS_CUDA_GRAPH_NATIVE_API": 4,
                "CUBLASLT_DEPENDENCY": 5,
            },
        ),
    ],
)
def test_enum_members(name, members):
    assert {member.name: member.value for member in getattr(cudnn, name)} == members


def test_knob_types():
    values = {member.value: member.name for member in cudnn.knob_type}
    assert set(values) == {*range(33), *range(1000, 1010)}
    assert values[26] == "TILE_M" and values[32] == "TILE_CGA" and values[1009] == "WARPS_N"
    assert not cudnn.is_frontend_knob_type(cudnn.knob_type.TILE_CGA)
    assert cudnn.is_frontend_knob_type(cudnn.knob_type.SCHED_POLICY)
    assert cudnn.FRONTEND_KNOB_TYPE_BASE == 1000


def test_convolution_mode_is_not_a_top_level_name():
    assert {m.name: m.value for m in convolution_mode} == {"CONVOLUTION": 1, "CROSS_CORRELATION": 2}
    with pytest.raises(AttributeError):
        cudnn.convolution_mode  # noqa: B018


# Tensors.


def test_constructor_order_and_defaults():
    parameters = inspect.signature(cudnn.pygraph).parameters
    assert list(parameters)[:13] == [
        "name",
        "io_data_type",
        "intermediate_data_type",
        "compute_data_type",
        "handle",
        "sm_count",
        "sm_version",
        "kernel_cache",
        "device_property",
        "is_dynamic_shape_enabled",
        "is_override_shape_enabled",
        "cuda_graph_retention",
        "is_cuda_graph_replay_expected",
    ]
    assert parameters["name"].default == "test_graph"
    assert parameters["is_cuda_graph_replay_expected"].kind is inspect.Parameter.KEYWORD_ONLY
    assert parameters["is_dynamic_shape_enabled"].default is False


def test_tensor_order_and_defaults():
    parameters = list(inspect.signature(cudnn.pygraph.tensor).parameters.values())[1:]
    assert [(p.name, p.default) for p in parameters[1:]] == [
        ("stride", None),
        ("data_type", None),
        ("is_virtual", False),
        ("is_pass_by_value", False),
        ("ragged_offset", None),
        ("reordering_type", cudnn.tensor_reordering.NONE),
        ("name", ""),
        ("uid", None),
        ("ragged_offset_multiplier", 1),
        ("alignment_value", 1),
    ]


def test_tensor_getters():
    graph = cudnn.pygraph()
    offset = graph.tensor([3, 1, 1, 1], data_type=cudnn.data_type.INT32)
    tensor = graph.tensor([2, 3, 4], name="x", data_type=torch.bfloat16, ragged_offset=offset, ragged_offset_multiplier=4, alignment_value=8)
    assert tensor.get_name() == "x"
    assert tensor.get_dim() == [2, 3, 4]
    assert tensor.get_stride() == [12, 4, 1]
    assert tensor.get_data_type() is cudnn.data_type.BFLOAT16
    assert tensor.get_is_virtual() is False and tensor.get_is_pass_by_value() is False
    assert tensor.get_reordering_type() is cudnn.tensor_reordering.NONE
    assert tensor.get_ragged_offset() is offset and tensor.get_ragged_offset_multiplier() == 4
    assert tensor.get_alignment_value() == 8
    tensor.get_dim().append(9)
    tensor.get_stride().clear()
    assert tensor.get_dim() == [2, 3, 4] and tensor.get_stride() == [12, 4, 1]


def test_setters_chain():
    graph = cudnn.pygraph()
    tensor = graph.tensor([1, 2])
    same = tensor.set_name("y").set_uid(7).set_dim([4, 5]).set_stride([1, 4]).set_data_type(torch.float16).set_output(False)
    assert same is tensor
    assert (tensor.get_name(), tensor.get_uid(), tensor.get_dim(), tensor.get_stride()) == ("y", 7, [4, 5], [1, 4])
    assert tensor.get_data_type() is cudnn.data_type.HALF and tensor.get_is_virtual()
    assert tensor.set_is_virtual(False).set_is_pass_by_value(True).get_is_pass_by_value()
    assert tensor.set_reordering_type(cudnn.tensor_reordering.F8_128x4).get_reordering_type() is cudnn.tensor_reordering.F8_128x4


def test_auto_names():
    graph = new_graph()
    a, b = graph.tensor([1, 2, 2]), graph.tensor([1, 2, 2])
    assert (a.get_name(), b.get_name()) == ("tensor_0", "tensor_1")
    c = graph.matmul(a, b)
    d = graph.relu(graph.relu(c))
    assert c.get_name() == "matmul.0::C" and d.get_name() == "relu.1::OUT_0"
    assert [node.name for node in graph.nodes] == ["matmul.0", "relu.0", "relu.1"]
    assert graph.tensor_scalar(1.5, cudnn.scalar_type.RUNTIME_PARAM).get_name() == "scalar_0"


def test_outputs_are_virtual_until_set():
    graph = new_graph()
    out = graph.exp(graph.tensor([2, 2, 2]))
    assert out.get_is_virtual()
    assert not out.set_output(True).get_is_virtual()


def test_output_names_of_norms_and_convolution():
    graph = new_graph()
    x, s = graph.tensor([4, 8, 1, 1]), graph.tensor([1, 8, 1, 1])
    y, mean, inv = graph.layernorm(PHASE.TRAINING, x, s, s, 1e-5, name="ln")
    assert [t.get_name() for t in (y, mean, inv)] == ["ln::Y", "ln::MEAN", "ln::INV_VARIANCE"]
    dx, dscale, dbias = graph.rmsnorm_backward(x, x, s, inv, name="rms")
    assert [t.get_name() for t in (dx, dscale, dbias)] == ["rms::DX", "rms::Dscale", "rms::Dbias"]
    outs = graph.layernorm_backward(x, x, s, mean, inv, name="lnb")
    assert [t.get_name() for t in outs] == ["lnb::DX", "lnb::DSCALE", "lnb::DBIAS"]
    image, weight = graph.tensor([1, 4, 8, 8]), graph.tensor([4, 4, 3, 3])
    conv = graph.conv_fprop(image, weight, [1, 1], [1, 1], [1, 1], name="c")
    assert conv.get_name() == "c::Y"
    assert [t.get_name() for t in graph.genstats(conv, name="g")] == ["g::SUM", "g::SQ_SUM"]
    assert graph.conv_wgrad(image, conv, padding=[1, 1], stride=[1, 1], dilation=[1, 1], name="w").get_name() == "w::DW"
    assert graph.conv_dgrad(conv, weight, padding=[1, 1], stride=[1, 1], dilation=[1, 1], name="d").get_name() == "d::DX"


def test_absent_outputs_are_none():
    graph = new_graph()
    x, s = graph.tensor([4, 8, 1, 1]), graph.tensor([1, 8, 1, 1])
    y, mean, inv = graph.layernorm(norm_forward_phase=PHASE.INFERENCE, input=x, scale=s, bias=s, epsilon=1e-5)
    assert y is not None and mean is None and inv is None
    y, inv = graph.rmsnorm(norm_forward_phase=PHASE.INFERENCE, input=x, scale=s, epsilon=1e-5)
    assert inv is None
    stat = graph.tensor([4, 1, 1, 1])
    assert graph.rmsnorm_backward(x, x, None, stat)[1:] == [None, None]
    assert graph.rmsnorm_backward(x, x, s, stat, has_dbias=False)[2] is None
    assert graph.layernorm_backward(x, x, None, stat, stat)[1:] == [None, None]
    assert graph.batchnorm(x, s, s, epsilon=1e-5)[3:] == [None, None]


def test_stride_helpers():
    assert row_major((2, 3, 4)) == (12, 4, 1)
    assert channels_last((2, 3, 4, 5)) == (60, 1, 15, 3)
    assert packed_like((2, 3, 4), (1, 8, 2)) == (1, 8, 2)
    assert packed_like((2, 3, 1), (12, 1, 3)) == (3, 1, 3)


# Uids.


def test_uids_count_from_one_and_skip_user_ones():
    graph = cudnn.pygraph()
    a = graph.tensor([1])
    b = graph.tensor([1], uid=2)
    c = graph.tensor([1])
    assert [t.get_uid() for t in (a, b, c)] == [1, 2, 3]


def test_user_uid_evicts_an_automatic_holder():
    graph = cudnn.pygraph()
    a, b = graph.tensor([1], name="a"), graph.tensor([1], name="b")
    b.set_uid(1)
    assert b.get_uid() == 1
    assert a.get_uid() == 3
    assert graph.find_tensor(1) is b and graph.find_tensor(a.get_uid()) is a


def test_duplicate_user_uid_names_the_holder():
    graph = cudnn.pygraph()
    graph.tensor([4, 5], name="first", uid=11)
    second = graph.tensor([1], name="second")
    with pytest.raises(ValueError, match=r"uid 11 .*'second'.*'first' \(uid 11, dim \[4, 5\]\)"):
        second.set_uid(11)
    with pytest.raises(ValueError, match="'first'"):
        graph.tensor([1], name="third", uid=11)
    assert [t.name for t in graph.tensors.values()] == ["first", "second"], "a refused tensor must leave no trace"


def test_setting_the_same_uid_twice_is_fine():
    graph = cudnn.pygraph()
    tensor = graph.tensor([1], uid=5)
    assert tensor.set_uid(5).get_uid() == 5


@pytest.mark.parametrize("uid", [-2, 2**63])
def test_uid_out_of_range(uid):
    with pytest.raises(ValueError, match="uid"):
        cudnn.pygraph().tensor([1]).set_uid(uid)


def test_tensors_stay_dictionary_keys():
    graph = new_graph()
    a, b = graph.tensor([2, 2, 2], name="a"), graph.tensor([2, 2, 2], name="b")
    table = {a: "A", b: "B"}
    a.set_name("b").set_uid(40).set_data_type(torch.float16).set_dim([3, 2, 2])
    assert table[a] == "A" and table[b] == "B"
    assert a != b and a == a and len({a, b}) == 2
    assert hash(a) == hash(a)


# Refused arguments.


@pytest.mark.parametrize("dim", [[0, 2], [-1], [2, 0]])
def test_extents_must_be_positive(dim):
    with pytest.raises(ValueError, match="positive"):
        cudnn.pygraph().tensor(dim)


def test_tensor_argument_errors():
    graph = cudnn.pygraph()
    with pytest.raises(TypeError, match="sequence of ints"):
        graph.tensor([1.5])
    with pytest.raises(TypeError, match="sequence of ints"):
        graph.tensor(3)
    with pytest.raises(ValueError, match="stride .* has 1 entries but dim"):
        graph.tensor([2, 2], [1])
    with pytest.raises(ValueError, match="negative"):
        graph.tensor([2, 2], [-2, 1])
    with pytest.raises(ValueError, match="both virtual and pass-by-value"):
        graph.tensor([1], is_virtual=True, is_pass_by_value=True)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        graph.tensor([1], alignment_value=0)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        graph.tensor([1]).set_alignment_value(0)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="No available conversion"):
        graph.tensor([1], data_type=torch.complex64)
    with pytest.raises(ValueError, match="name must be a string"):
        graph.tensor([1], name=3)
    with pytest.raises(TypeError):
        graph.tensor([1], colour="red")


def test_constructor_errors():
    with pytest.raises(TypeError):
        cudnn.pygraph(colour="red")
    with pytest.raises(TypeError, match="raw backend handles are no longer accepted"):
        cudnn.pygraph(handle=123)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="is_dynamic_shape_enabled"):
        cudnn.pygraph(kernel_cache=object())
    with pytest.raises(TypeError, match="kernel_cache must be a cudnn.kernel_cache"):
        cudnn.pygraph(kernel_cache=object(), is_dynamic_shape_enabled=True)
    with pytest.raises(TypeError, match="device_property must be a cudnn.device_properties"):
        cudnn.pygraph(device_property="H200")
    with pytest.raises(TypeError, match="cuda_graph_retention must be"):
        cudnn.pygraph(cuda_graph_retention=1)
    with pytest.raises(TypeError, match="sm_count must be an int"):
        cudnn.pygraph(sm_count="many")
    with pytest.raises(ValueError, match="backend must be one of"):
        cudnn.pygraph(backend="fast")
    assert not isinstance(cudnn.cudnnGraphNotSupportedError(), (RuntimeError, ValueError))


def test_operand_errors():
    graph, other = new_graph(name="one"), new_graph(name="two")
    foreign = other.tensor([1, 2, 2], name="foreign")
    with pytest.raises(ValueError, match=r"'foreign' .* another graph \('two'\)"):
        graph.relu(foreign)
    with pytest.raises(TypeError, match="must be a graph tensor"):
        graph.relu("x")
    with pytest.raises(TypeError, match="needs b"):
        graph.add(graph.tensor([1]), None)
    with pytest.raises(TypeError):
        graph.add(graph.tensor([1]))
    with pytest.raises(TypeError):
        graph.relu(graph.tensor([1]), slope=1)
    with pytest.raises(TypeError, match="negative_slope must be a number"):
        graph.relu(graph.tensor([1]), negative_slope="x")
    with pytest.raises(TypeError, match="epsilon"):
        graph.rmsnorm(norm_forward_phase=PHASE.TRAINING, input=foreign)


# Node methods.


def test_every_pointwise_method_records_its_mode():
    graph = new_graph()
    x = graph.tensor([2, 3, 4])
    options = {"gen_index": {"axis": 1}, "leaky_relu": {"negative_slope": 0.1}, "leaky_relu_backward": {"negative_slope": 0.1}}
    names = [name for name in vars(PointwiseMethods) if not name.startswith("_")]
    for name in names:
        method = getattr(graph, name)
        operands = [p.name for p in inspect.signature(method).parameters.values() if p.default is p.empty and p.name not in ("axis", "negative_slope")]
        out = method(**dict.fromkeys(operands, x), **options.get(name, {}))
        node = graph.nodes[-1]
        assert node.params["mode"] == name and node.op == name and node.node_type is cudnn.NodeType.POINTWISE
        assert list(node.inputs) == [f"IN_{i}" for i in range(len(operands))] and node.outputs["OUT_0"] is out
    expected = """abs ceil cos exp floor log neg rsqrt sin sqrt tan erf identity reciprocal relu leaky_relu tanh sigmoid elu gelu softplus gelu_approx_tanh
        swish gen_index logical_not add mul sub div add_square logical_and logical_or bias scale max min mod pow cmp_eq cmp_neq cmp_gt cmp_ge cmp_lt cmp_le
        relu_backward leaky_relu_backward tanh_backward sigmoid_backward elu_backward gelu_backward softplus_backward gelu_approx_tanh_backward
        swish_backward binary_select"""
    assert set(names) == set(expected.split())


def test_pointwise_options_are_kept():
    graph = new_graph()
    x = graph.tensor([2, 2])
    graph.relu(x, negative_slope=0.1, lower_clip=-1, upper_clip=6)
    graph.swish(x, swish_beta=2)
    graph.gen_index(x, axis=-1)
    assert dict(graph.nodes[0].params) == {"mode": "relu", "negative_slope": 0.1, "lower_clip": -1.0, "upper_clip": 6.0}
    assert dict(graph.nodes[1].params) == {"mode": "swish", "swish_beta": 2.0}
    assert dict(graph.nodes[2].params) == {"mode": "gen_index", "axis": -1}


def test_matmul_signature():
    parameters = list(inspect.signature(cudnn.pygraph.matmul).parameters.values())[1:]
    assert [(p.name, None if p.default is p.empty else p.default) for p in parameters[:5]] == [
        ("A", None),
        ("B", None),
        ("compute_data_type", None),
        ("padding", 0.0),
        ("name", ""),
    ]


def conv_params(graph):
    return {key: graph.nodes[-1].params[key] for key in ("pre_padding", "post_padding", "stride", "dilation")}


def test_conv_positional_orders_agree():
    graph = new_graph()
    x, w = graph.tensor([1, 4, 9, 9]), graph.tensor([8, 4, 3, 3])
    symmetric = {"pre_padding": (1, 1), "post_padding": (1, 1), "stride": (2, 2), "dilation": (3, 3)}
    both = {**symmetric, "pre_padding": (0, 1), "post_padding": (1, 2)}
    for call, expected in (
        (lambda: graph.conv_fprop(x, w, [1, 1], [2, 2], [3, 3]), symmetric),
        (lambda: graph.conv_fprop(x, w, [1, 1], [2, 2], [3, 3], convolution_mode.CONVOLUTION), symmetric),
        (lambda: graph.conv_fprop(x, w, [1, 1], None, None, [2, 2], [3, 3]), symmetric),
        (lambda: graph.conv_fprop(x, w, [0, 1], [1, 2], [2, 2], [3, 3]), both),
        (lambda: graph.conv_fprop(x, w, None, [0, 1], [1, 2], [2, 2], [3, 3]), both),
        (lambda: graph.conv_fprop(image=x, weight=w, pre_padding=[0, 1], post_padding=[1, 2], stride=[2, 2], dilation=[3, 3]), both),
        (lambda: graph.conv_fprop(x, w, padding=(1, 1), stride=(2, 2), dilation=(3, 3)), symmetric),
        (lambda: graph.conv_fprop(x, w, [1, 1], stride=[2, 2], dilation=[3, 3]), symmetric),
    ):
        call()
        assert conv_params(graph) == expected
    assert graph.nodes[1].params["convolution_mode"] is convolution_mode.CONVOLUTION
    assert graph.nodes[0].params["convolution_mode"] is convolution_mode.CROSS_CORRELATION


def test_conv_argument_errors():
    graph = new_graph()
    x, w = graph.tensor([1, 4, 9, 9]), graph.tensor([8, 4, 3, 3])
    with pytest.raises(TypeError, match="needs stride, dilation"):
        graph.conv_fprop(image=x, weight=w, padding=[0, 0])
    with pytest.raises(TypeError, match="padding sets both"):
        graph.conv_fprop(image=x, weight=w, stride=[1, 1], dilation=[1, 1])
    with pytest.raises(TypeError, match="not both"):
        graph.conv_fprop(image=x, weight=w, padding=[0, 0], pre_padding=[0, 0], post_padding=[0, 0], stride=[1, 1], dilation=[1, 1])
    with pytest.raises(TypeError, match="positional arguments"):
        graph.conv_fprop(x, w, [0, 0])
    with pytest.raises(ValueError, match="stride must hold values of at least 1"):
        graph.conv_fprop(image=x, weight=w, padding=[0, 0], stride=[0, 1], dilation=[1, 1])
    assert len(graph.nodes) == 0


def test_norm_positional_orders_agree():
    graph = new_graph()
    x, s, b = graph.tensor([4, 8, 1, 1], name="x"), graph.tensor([1, 8, 1, 1], name="s"), graph.tensor([1, 8, 1, 1], name="b")
    eps = graph.tensor([1, 1, 1, 1], is_pass_by_value=True, name="eps")
    graph.layernorm(PHASE.TRAINING, x, s, b, eps)
    graph.layernorm(x, s, b, eps, PHASE.TRAINING)
    graph.layernorm(x, s, b, epsilon=eps, norm_forward_phase=PHASE.TRAINING)
    for node in graph.nodes:
        assert [(port, t.name) for port, t in node.inputs.items()] == [("X", "x"), ("SCALE", "s"), ("BIAS", "b"), ("EPSILON", "eps")]
        assert node.params["norm_forward_phase"] is PHASE.TRAINING


def test_reduction_and_quantize_positional_orders():
    graph = new_graph()
    x, offset = graph.tensor([2, 3, 4]), graph.tensor([2, 1, 1], data_type=cudnn.data_type.INT32)
    graph.reduction(x, cudnn.reduction_mode.MAX)
    graph.reduction(x, None, cudnn.reduction_mode.MAX)
    graph.reduction(x, offset, cudnn.reduction_mode.MAX)
    graph.reduction(x, cudnn.reduction_mode.MAX, offset)
    assert all(node.params["mode"] is cudnn.reduction_mode.MAX for node in graph.nodes)
    assert ["GROUP_OFFSET" in node.inputs for node in graph.nodes] == [False, False, True, True]
    graph.block_scale_quantize(x, 32, 1)
    graph.block_scale_quantize(x, None, 32, 1)
    assert [dict(n.params) for n in graph.nodes[-2:]] == [{"block_size": 32, "axis": 1, "transpose": False}] * 2


def test_numbers_become_scalars():
    graph = new_graph()
    out = graph.mul(graph.tensor([2, 3, 4]), 2.5).set_output(True)
    scalar = graph.nodes[0].inputs["IN_1"]
    assert scalar.scalar_value == 2.5 and scalar.get_is_pass_by_value() and scalar.get_dim() == [1, 1, 1, 1]
    assert scalar.get_data_type() is None
    graph.validate()
    assert out.get_dim() == [2, 3, 4], "a scalar's rank does not count in a broadcast"
    assert scalar.get_data_type() is FLOAT


def test_scalar_dtypes():
    graph = new_graph()
    x = graph.tensor([2, 2], data_type=cudnn.data_type.INT32)
    scalars = [graph.tensor_scalar(v, cudnn.scalar_type.RUNTIME_PARAM) for v in (1.0, 7, 2**40)]
    for scalar in scalars:
        graph.add(x, scalar).set_output(True)
    graph.validate()
    assert [s.get_data_type().name for s in scalars] == ["FLOAT", "INT32", "INT64"]
    with pytest.raises(TypeError, match="scalar_type"):
        new_graph().tensor_scalar(1.0, "runtime")
    with pytest.raises(TypeError, match="int or a float"):
        new_graph().tensor_scalar(True, cudnn.scalar_type.RUNTIME_PARAM)


def test_framework_operands():
    graph = cudnn.pygraph()
    a = torch.randn(2, 4, 3).transpose(1, 2)
    out = graph.relu(a)
    tensor = graph.nodes[0].inputs["IN_0"]
    assert tensor.get_dim() == [2, 3, 4] and tensor.get_stride() == [12, 1, 3] and tensor.get_data_type() is FLOAT
    assert tensor.bound is a and out.get_is_virtual()


def test_tensor_like():
    graph = cudnn.pygraph()
    host = graph.tensor_like(torch.ones(1, 1, 1), name="host")
    assert host.get_is_pass_by_value() and host.get_name() == "host" and host.bound is None
    base = graph.tensor([2, 3], [1, 2], torch.float16, name="base")
    like = graph.tensor_like(base, is_virtual=True)
    assert like.get_dim() == [2, 3] and like.get_stride() == [1, 2] and like.get_data_type() is cudnn.data_type.HALF and like.get_is_virtual()
    assert graph.tensor_like(torch.tensor(3.0)).get_dim() == [1]
    with pytest.raises(TypeError, match="framework tensor"):
        graph.tensor_like([1, 2])


def test_out_dims():
    graph = new_graph()
    x = graph.tensor([2, 3, 4])
    assert graph.reduction(x, cudnn.reduction_mode.ADD, out_dims=[2, 1, 4]).get_dim() == [2, 1, 4]
    assert graph.reduction(x, cudnn.reduction_mode.ADD, out_dims={"OUT_0": [1, 1, 1]}).get_dim() == [1, 1, 1]
    with pytest.raises(ValueError, match="'Y'; the outputs are OUT_0"):
        graph.reduction(x, cudnn.reduction_mode.ADD, out_dims={"Y": [1, 1, 1]})


# Freezing, lookup, inspection, JSON.


def small_graph():
    graph = new_graph(name="small")
    a, b = graph.tensor([1, 4, 8], name="a"), graph.tensor([1, 8, 2], name="b")
    out = graph.relu(graph.matmul(a, b, name="mm"), name="act").set_output(True).set_name("out")
    return graph, a, b, out


def test_frozen_after_validate():
    graph, a, b, out = small_graph()
    assert not graph.is_frozen
    graph.validate()
    graph.validate()
    assert graph.is_frozen
    for change in (
        lambda: a.set_dim([1, 4, 9]),
        lambda: out.set_name("other"),
        lambda: out.set_output(False),
        lambda: b.set_uid(30),
        lambda: graph.tensor([1]),
        lambda: graph.relu(a),
        lambda: graph.tensor_scalar(1.0, cudnn.scalar_type.RUNTIME_PARAM),
    ):
        with pytest.raises(RuntimeError, match="graph 'small' is frozen"):
            change()
    with pytest.raises(TypeError):
        graph.nodes[0].params["padding"] = 1.0
    with pytest.raises(TypeError):
        graph.nodes[0].inputs["A"] = b
    assert isinstance(a.dim, tuple) and out.get_name() == "out"


def test_a_refused_graph_can_be_corrected():
    graph = new_graph()
    a, b = graph.tensor([1, 4, 8]), graph.tensor([1, 9, 2])
    out = graph.matmul(a, b).set_output(True)
    with pytest.raises(ValueError, match="K differs"):
        graph.validate()
    assert not graph.is_frozen
    b.set_dim([1, 8, 3])
    assert b.get_stride() == [24, 3, 1], "an input without a stride of its own stays row-major"
    graph.validate()
    assert out.get_dim() == [1, 4, 3]


def test_lookup():
    graph, a, _, out = small_graph()
    assert graph.find_tensor("a") is a and graph.find_tensor(out.get_uid()) is out
    assert graph.query_tensor_attributes_of_uid(out.get_uid()) is out
    assert graph.get_node("mm").outputs["C"] is graph.find_tensor("mm::C")
    graph.tensor([1], name="a")
    with pytest.raises(ValueError, match="ambiguous"):
        graph.find_tensor("a")
    with pytest.raises(ValueError, match="no tensor named 'nothing'"):
        graph.find_tensor("nothing")
    with pytest.raises(ValueError, match="no tensor with uid 99"):
        graph.find_tensor(99)
    with pytest.raises(ValueError, match="no node named"):
        graph.get_node("nothing")
    graph.relu(a, name="act")
    with pytest.raises(ValueError, match="ambiguous"):
        graph.get_node("act")


def test_inputs_and_outputs():
    graph, a, b, out = small_graph()
    graph.tensor([5], name="unused")
    assert graph.get_inputs() == [a, b] and graph.get_outputs() == [out]


def rich_graph():
    graph = cudnn.pygraph(name="rich", io_data_type=torch.float16, intermediate_data_type=torch.float32, compute_data_type=torch.float32)
    x = graph.tensor([2, 8, 6, 6], [288, 1, 48, 8], name="x")
    w = graph.tensor([8, 8, 3, 3], channels_last((8, 8, 3, 3)), name="w", uid=50)
    y = graph.conv_fprop(x, w, pre_padding=[1, 1], post_padding=[1, 1], stride=[1, 1], dilation=[1, 1], name="conv")
    z = graph.relu(graph.mul(y, graph.tensor_scalar(0.5, cudnn.scalar_type.RUNTIME_PARAM)), upper_clip=float("inf"))
    part = graph.slice(z, [slice(None), slice(2, 6), slice(None), slice(0, 6, 2)])
    graph.reduction(z, cudnn.reduction_mode.MAX, out_dims=[1, 8, 1, 1]).set_output(True).set_data_type(torch.float32)
    part.set_output(True)
    s = graph.tensor([1, 8, 1, 1], data_type=torch.float32)
    graph.instancenorm(PHASE.INFERENCE, z, s, s, 1e-5)[0].set_output(True)
    return graph


@pytest.mark.parametrize("validated", [False, True])
def test_json_round_trip(validated):
    graph = rich_graph()
    if validated:
        graph.validate()
    text = repr(graph)
    assert json.loads(text)["json_version"] == "2.0"
    other = cudnn.pygraph()
    other.deserialize(text)
    assert repr(other) == text
    other.validate()
    if not validated:
        graph.validate()
    assert repr(other) == repr(graph)
    assert other.key() == graph.key()


def test_key_ignores_names_only():
    one, two, three = small_graph()[0], small_graph()[0], small_graph()[0]
    two.find_tensor("a").set_name("renamed")
    three.find_tensor("a").set_dim([1, 5, 8])
    assert one.key() == two.key() != three.key()


def test_damaged_json():
    text = repr(small_graph()[0])
    for damaged in ("", "{}", text[:-3], text.replace('"MATMUL"', '"MATMULL"'), text.replace('"2.0"', '"1.0"'), '{"json_version": "2.0", "context": 3}'):
        with pytest.raises(ValueError, match="graph JSON"):
            cudnn.pygraph().deserialize(damaged)
    twice = json.loads(text)
    twice["tensors"][1]["uid"] = twice["tensors"][0]["uid"]
    with pytest.raises(ValueError, match="given to two tensors"):
        cudnn.pygraph().deserialize(json.dumps(twice))
    with pytest.raises(RuntimeError, match="empty graph"):
        small_graph()[0].deserialize(text)


def test_copies_are_independent():
    graph, a, *_ = small_graph()
    graph.validate()
    other = copy.deepcopy(graph)
    assert not other.is_frozen and other.key() == graph.key()
    fresh = copy.deepcopy(graph)
    fresh.find_tensor("a").set_dim([1, 7, 8])
    fresh.validate()
    assert fresh.find_tensor("out").get_dim() == [1, 7, 2] and graph.find_tensor("out").get_dim() == [1, 4, 2]
    assert a.get_dim() == [1, 4, 8]


def test_inspect():
    graph, *_ = small_graph()
    graph.build()
    seen = graph.inspect()
    assert seen["selected_plan"] == 0 and seen["plans"][0]["name"] == graph.get_plan_name_at_index(0)
    assert [node["op"] for node in seen["nodes"]] == ["matmul", "relu"]
