"""Shape, stride and dtype inference, and the errors that name what does not fit."""

from __future__ import annotations

import re

import pytest

import cudnn
from cudnn_graph.enums import convolution_mode

torch = pytest.importorskip("torch")

FLOAT, HALF, INT32 = cudnn.data_type.FLOAT, cudnn.data_type.HALF, cudnn.data_type.INT32
PHASE = cudnn.norm_forward_phase
ONE = {"padding": [0, 0], "stride": [1, 1], "dilation": [1, 1]}


def new_graph(**options):
    return cudnn.pygraph(**{"io_data_type": FLOAT, **options})


def fails(graph, *parts):
    """validate() raises ValueError whose text holds every part."""
    with pytest.raises(ValueError) as caught:
        graph.validate()
    for part in parts:
        assert part in str(caught.value), f"{part!r} is missing in: {caught.value}"


# Pointwise.


@pytest.mark.parametrize(
    ("a", "b", "out"),
    [([2, 3, 4], [1, 3, 1], [2, 3, 4]), ([4], [2, 3, 4], [2, 3, 4]), ([2, 1, 4], [2, 3, 4], [2, 3, 4]), ([1, 1], [1, 1], [1, 1])],
)
def test_broadcast(a, b, out):
    graph = new_graph()
    result = graph.add(graph.tensor(a), graph.tensor(b))
    graph.validate()
    assert result.get_dim() == out


def test_broadcast_error_names_tensors_uids_and_dims():
    graph = new_graph()
    left, right = graph.tensor([16, 16], name="left", uid=31), graph.tensor([256, 16], name="right", uid=32)
    graph.mul(left, right, name="product").set_output(True)
    fails(graph, "'product' (mul)", "'left' (uid 31, dim [16, 16])", "'right' (uid 32, dim [256, 16])", "do not broadcast")


def test_output_stride_is_that_of_the_first_input_of_equal_dims():
    graph = new_graph()
    x = graph.tensor([2, 8, 3, 3], [72, 1, 24, 8])
    bias = graph.tensor([1, 8, 1, 1])
    out = graph.add(bias, x).set_output(True)
    graph.validate()
    assert out.get_stride() == [72, 1, 24, 8]


def test_virtual_outer_product_keeps_the_first_input_axis_order():
    graph = new_graph()
    out = graph.mul(graph.tensor([1, 3, 4], [12, 1, 3]), graph.tensor([2, 1, 1]))
    graph.validate()
    assert out.get_dim() == [2, 3, 4] and out.get_stride() == [12, 1, 3]


def test_non_virtual_outer_product_needs_a_stride():
    graph = new_graph()
    row, column = graph.tensor([1, 1, 4], name="row"), graph.tensor([1, 3, 1], name="column")
    out = graph.mul(row, column).set_output(True)
    fails(graph, "cannot be inferred", "'row'", "'column'", "set_stride()")
    out.set_stride([12, 4, 1])
    graph.validate()
    assert out.get_dim() == [1, 3, 4]


def test_an_expanded_input_does_not_lend_its_stride():
    graph = new_graph()
    out = graph.relu(graph.tensor([2, 4], [0, 1]))
    graph.validate()
    assert 0 not in out.get_stride()


def test_wrong_output_dims():
    graph = new_graph()
    graph.relu(graph.tensor([2, 4], name="x")).set_output(True).set_dim([2, 5])
    fails(graph, "should have dim [2, 4]", "'x'")


def test_gen_index_axis():
    graph = new_graph()
    graph.gen_index(graph.tensor([2, 4], name="x"), axis=2)
    fails(graph, "axis 2 is out of range", "'x'")


# Dtypes.


def test_default_dtypes():
    graph = cudnn.pygraph(io_data_type=HALF, intermediate_data_type=FLOAT)
    x = graph.tensor([2, 2])
    mid = graph.exp(x)
    out = graph.add(mid, x).set_output(True)
    graph.validate()
    assert [t.get_data_type() for t in (x, mid, out)] == [HALF, FLOAT, HALF]
    assert graph.nodes[0].compute_data_type is FLOAT


def test_intermediate_falls_back_to_io():
    graph = cudnn.pygraph(io_data_type=HALF)
    mid = graph.exp(graph.tensor([2, 2]))
    graph.relu(mid).set_output(True)
    graph.validate()
    assert mid.get_data_type() is HALF


def test_missing_io_dtype():
    graph = cudnn.pygraph()
    graph.relu(graph.tensor([2, 2], name="x")).set_output(True)
    fails(graph, "'x'", "data type not set", "io_data_type")


def test_statistics_and_parameters_are_float():
    graph = cudnn.pygraph(io_data_type=HALF, intermediate_data_type=HALF)
    x, s = graph.tensor([4, 8, 1, 1]), graph.tensor([1, 8, 1, 1])
    eps = graph.tensor([1, 1, 1, 1], is_pass_by_value=True)
    y, mean, inv = graph.layernorm(PHASE.TRAINING, x, s, s, eps)
    for t in (y, mean, inv):
        t.set_output(True)
    graph.validate()
    assert [t.get_data_type() for t in (y, mean, inv, eps)] == [HALF, FLOAT, FLOAT, FLOAT]


def test_slice_keeps_the_input_dtype():
    graph = cudnn.pygraph(io_data_type=HALF, intermediate_data_type=FLOAT)
    out = graph.slice(graph.tensor([4, 4], data_type=INT32), [slice(1, 3), slice(None)])
    graph.validate()
    assert out.get_data_type() is INT32


@pytest.mark.parametrize(
    ("io", "compute"), [(HALF, FLOAT), (cudnn.data_type.BFLOAT16, FLOAT), (INT32, INT32), (cudnn.data_type.DOUBLE, cudnn.data_type.DOUBLE), (None, FLOAT)]
)
def test_compute_type(io, compute):
    graph = cudnn.pygraph(io_data_type=io)
    graph.relu(graph.tensor([2, 2], data_type=FLOAT)).set_output(True).set_data_type(FLOAT)
    graph.validate()
    assert graph.nodes[0].compute_data_type is compute


# Matmul.


def test_matmul_dims():
    graph = new_graph()
    out = graph.matmul(graph.tensor([5, 1, 3, 4]), graph.tensor([1, 6, 4, 7]))
    two = graph.matmul(graph.tensor([3, 4]), graph.tensor([4, 7]))
    graph.validate()
    assert out.get_dim() == [5, 6, 3, 7] and out.get_stride() == [126, 21, 7, 1] and two.get_dim() == [3, 7]


def test_matmul_errors():
    graph = new_graph()
    graph.matmul(graph.tensor([2, 3, 4], name="a", uid=8), graph.tensor([2, 5, 6], name="b", uid=9))
    fails(graph, "K differs", "'a' (uid 8, dim [2, 3, 4])", "'b' (uid 9, dim [2, 5, 6])")
    graph = new_graph()
    graph.matmul(graph.tensor([2, 3, 4], name="a"), graph.tensor([3, 4, 6], name="b"))
    fails(graph, "batch dims do not broadcast", "'a'", "'b'")
    graph = new_graph()
    graph.matmul(graph.tensor([4], name="a"), graph.tensor([4, 6]))
    fails(graph, "rank 2", "'a'")


# Convolution.


def test_conv_matches_torch_shapes():
    graph = new_graph()
    x, w = graph.tensor([2, 6, 11, 9]), graph.tensor([8, 3, 3, 2])
    y = graph.conv_fprop(x, w, padding=[2, 1], stride=[2, 3], dilation=[1, 2])
    graph.validate()
    expected = torch.nn.functional.conv2d(torch.empty(2, 6, 11, 9), torch.empty(8, 3, 3, 2), stride=(2, 3), padding=(2, 1), dilation=(1, 2), groups=2)
    assert y.get_dim() == list(expected.shape)
    assert y.get_stride() == [*(expected.stride()[:1]), 1, 8 * expected.shape[3], 8], "channels-last"


def test_conv_dgrad_infers_stride_one_only():
    graph = new_graph()
    dy, w = graph.tensor([2, 8, 7, 7]), graph.tensor([8, 4, 3, 3])
    dx = graph.conv_dgrad(dy, w, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    graph.validate()
    assert dx.get_dim() == [2, 4, 7, 7]
    graph = new_graph()
    dx = graph.conv_dgrad(graph.tensor([2, 8, 4, 4]), graph.tensor([8, 4, 3, 3]), padding=[1, 1], stride=[2, 2], dilation=[1, 1], name="dg")
    fails(graph, "'dg::DX'", "dims not set", "set_dim()")
    dx.set_dim([2, 4, 8, 8])
    graph.validate()
    assert dx.get_dim() == [2, 4, 8, 8]


def test_conv_wgrad_needs_dims():
    graph = new_graph()
    graph.conv_wgrad(graph.tensor([2, 4, 8, 8]), graph.tensor([2, 8, 8, 8]), padding=[1, 1], stride=[1, 1], dilation=[1, 1], name="wg")
    fails(graph, "'wg::DW'", "dims not set")


def test_conv_errors():
    graph = new_graph()
    graph.conv_fprop(graph.tensor([2, 5, 8, 8], name="x"), graph.tensor([8, 2, 3, 3], name="w"), **ONE)
    fails(graph, "'x'", "'w'", "multiple of axis 1")
    graph = new_graph()
    graph.conv_fprop(graph.tensor([2, 6, 8, 8]), graph.tensor([8, 2, 3, 3], name="w"), **ONE)
    fails(graph, "3 groups", "'w'")
    graph = new_graph()
    graph.conv_fprop(graph.tensor([2, 2, 2, 8], name="x"), graph.tensor([8, 2, 3, 3], name="w"), **ONE)
    fails(graph, "does not fit into the padded image", "'w'", "'x'")
    graph = new_graph()
    graph.conv_fprop(graph.tensor([2, 2, 8], name="x"), graph.tensor([8, 2, 3, 3], name="w"), **ONE)
    fails(graph, "one rank", "'x'", "'w'")
    graph = new_graph()
    graph.conv_fprop(graph.tensor([2, 2, 8], name="x"), graph.tensor([8, 2, 3]), **ONE)
    fails(graph, "pre_padding [0, 0] must have 1 values")
    graph = new_graph()
    wrong = graph.conv_wgrad(graph.tensor([2, 4, 8, 8], name="x"), graph.tensor([2, 8, 7, 8], name="dy"), padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    wrong.set_dim([8, 4, 3, 3])
    fails(graph, "'dy'", "should have dim [2, 8, 8, 8]")


# Reduction and structure.


def test_reduction_needs_dims_and_a_mode():
    graph = new_graph()
    graph.reduction(graph.tensor([2, 3, 4], name="x"), cudnn.reduction_mode.ADD, name="r").set_output(True)
    fails(graph, "'r::OUT_0'", "dims not set")
    graph = new_graph()
    graph.reduction(graph.tensor([2, 3, 4], name="x"), cudnn.reduction_mode.ADD, out_dims=[2, 2, 4])
    fails(graph, "or 1 where an axis is reduced", "'x'")
    graph = new_graph()
    graph.reduction(graph.tensor([2, 3]), cudnn.reduction_mode.NOT_SET, out_dims=[2, 1])
    fails(graph, "NOT_SET")
    graph = new_graph()
    out = graph.reduction(graph.tensor([2, 3, 4, 5]), cudnn.reduction_mode.ADD, out_dims=[2, 3, 1, 5])
    graph.validate()
    assert out.get_stride() == [15, 1, 15, 3], "channels-last"


def test_reshape():
    graph = new_graph()
    graph.reshape(graph.tensor([2, 6], name="x"), name="r")
    fails(graph, "'r::OUT_0'", "dims not set")
    graph = new_graph()
    graph.reshape(graph.tensor([2, 6], name="x"), out_dims=[13])
    fails(graph, "13 elements", "'x'", "has 12")
    graph = new_graph()
    out = graph.reshape(graph.tensor([2, 6]), cudnn.reshape_mode.LOGICAL, out_dims=[3, 4])
    graph.validate()
    assert out.get_stride() == [4, 1]
    graph = new_graph()
    graph.reshape(graph.tensor([2, 6]), out_dims=[6, 2]).set_stride([1, 8])
    fails(graph, "spans 14 elements", "only 12")


def test_slice_and_transpose_and_concatenate():
    graph = new_graph()
    x = graph.tensor([4, 6, 8])
    part = graph.slice(x, [slice(1, -1), slice(None, None, 2), slice(3, 100)])
    turned = graph.transpose(x, [2, 0, 1])
    joined = graph.concatenate(inputs=[x, graph.tensor([4, 1, 8])], axis=-2)
    graph.validate()
    assert part.get_dim() == [2, 3, 5] and turned.get_dim() == [8, 4, 6] and joined.get_dim() == [4, 7, 8]
    node = graph.nodes[0]
    assert (node.params["start"], node.params["limit"], node.params["step"]) == ((1, 0, 3), (3, 6, 8), (1, 2, 1))


def test_structural_errors():
    for build, *parts in (
        (lambda g, x: g.slice(x, [slice(None)]), "one slice for each axis", "'x'"),
        (lambda g, x: g.slice(x, [slice(2, 2), slice(None)]), "is empty", "'x'"),
        (lambda g, x: g.slice(x, [slice(None, None, -1), slice(None)]), "step must be at least 1, got -1"),
        (lambda g, x: g.transpose(x, [0, 0]), "permutation [0, 0]", "'x'"),
        (lambda g, x: g.concatenate(inputs=[x, g.tensor([4, 7], name="y")], axis=0), "equal extents", "'x'", "'y'"),
        (lambda g, x: g.concatenate(inputs=[x], axis=2), "axis 2 is out of range"),
    ):
        graph = new_graph()
        build(graph, graph.tensor([4, 6], name="x"))
        fails(graph, *parts)
    graph = new_graph()
    with pytest.raises(TypeError, match="slice objects"):
        graph.slice(graph.tensor([4]), [3])
    with pytest.raises(TypeError, match="non-empty list"):
        graph.concatenate(inputs=[], axis=0)
    with pytest.raises(ValueError, match="in_place_index 2"):
        graph.concatenate(inputs=[graph.tensor([4])], axis=0, in_place_index=2)


# Norms.


def test_norm_statistics_dims():
    graph = new_graph()
    x = graph.tensor([4, 8, 3, 5], [120, 1, 40, 8])
    per_row = graph.tensor([1, 8, 3, 5])
    channel = graph.tensor([1, 8, 1, 1])
    sample = graph.tensor([4, 8, 1, 1])
    _, mean, inv = graph.layernorm(PHASE.TRAINING, x, per_row, per_row, 1e-5)
    _, mean_c, _ = graph.layernorm(PHASE.TRAINING, x, channel, channel, 1e-5)
    _, mean_a, _ = graph.adalayernorm(PHASE.TRAINING, x, sample, sample, 1e-5)
    _, mean_i, _ = graph.instancenorm(PHASE.TRAINING, x, channel, channel, 1e-5)
    _, mean_b, _, _, _ = graph.batchnorm(x, channel, channel, epsilon=1e-5)
    _, inv_r = graph.rmsnorm(PHASE.TRAINING, x, epsilon=1e-5)
    graph.validate()
    assert mean.get_dim() == inv.get_dim() == [4, 1, 1, 1]
    assert mean_c.get_dim() == [4, 1, 3, 5] and mean_c.get_stride() == [15, 1, 5, 1], "the axis order of the input"
    assert mean_a.get_dim() == [4, 1, 3, 5]
    assert mean_i.get_dim() == [4, 8, 1, 1] and mean_b.get_dim() == [1, 8, 1, 1] and inv_r.get_dim() == [4, 1, 1, 1]


def test_norm_errors():
    graph = new_graph()
    graph.layernorm(PHASE.TRAINING, graph.tensor([4, 8, 1, 1], name="x"), graph.tensor([1, 7, 1, 1], name="s"), epsilon=1e-5)
    fails(graph, "SCALE 's'", "'x'")
    graph = new_graph()
    s = graph.tensor([1, 8, 1, 1], name="s")
    graph.layernorm(PHASE.TRAINING, graph.tensor([4, 8, 1, 1]), s, graph.tensor([1, 1, 1, 1], name="b"), 1e-5)
    fails(graph, "SCALE 's'", "BIAS 'b'", "equal dims")
    graph = new_graph()
    graph.layernorm(PHASE.TRAINING, graph.tensor([4, 8, 1, 1]), epsilon=graph.tensor([1, 8, 1, 1], name="eps"))
    fails(graph, "EPSILON 'eps'", "single element")
    graph = new_graph()
    x = graph.tensor([4, 8, 1, 1])
    graph.rmsnorm_backward(x, x, graph.tensor([1, 8, 1, 1]), graph.tensor([4, 8, 1, 1], name="inv"))
    fails(graph, "INV_VARIANCE 'inv'", "should have dim [4, 1, 1, 1]")
    graph = new_graph()
    graph.batchnorm_inference(graph.tensor([4, 8, 2, 2]), graph.tensor([1, 4, 1, 1], name="mean"), *[graph.tensor([1, 8, 1, 1])] * 3)
    fails(graph, "MEAN 'mean'", "should have dim [1, 8, 1, 1]")
    graph = new_graph()
    with pytest.raises(ValueError, match="NOT_SET"):
        graph.layernorm(PHASE.NOT_SET, graph.tensor([4, 8]), epsilon=1e-5)
    with pytest.raises(TypeError, match="both in_running_mean and in_running_var"):
        graph.batchnorm(graph.tensor([4, 8]), graph.tensor([1, 8]), graph.tensor([1, 8]), in_running_mean=graph.tensor([1, 8]), epsilon=1e-5)


# Grouped matmul.


def moe(graph, offsets=(4, 1, 1), mode=cudnn.moe_grouped_matmul_mode.NONE, **options):
    token, weight = graph.tensor([1, 32, 8], name="token"), graph.tensor([4, 8, 5], name="weight")
    return graph.moe_grouped_matmul(token, weight, graph.tensor(offsets, data_type=INT32, name="offsets"), mode=mode, **options)


@pytest.mark.parametrize("offsets", [(4, 1, 1), (5, 1, 1), (8, 1, 1), (9, 1, 1)])
def test_moe_dims(offsets):
    graph = new_graph()
    out = moe(graph, offsets)
    graph.validate()
    assert out.get_dim() == [1, 32, 5]


@pytest.mark.parametrize("offsets", [(3, 1, 1), (6, 1, 1), (4, 1, 2), (1, 1, 1)])
def test_moe_offsets_refused(offsets):
    graph = new_graph()
    moe(graph, offsets)
    fails(graph, "first_token_offset 'offsets'")


def test_moe_single_expert_takes_boundaries():
    for extent, fine in ((1, False), (2, True)):
        graph = new_graph()
        token, weight = graph.tensor([1, 32, 8]), graph.tensor([1, 8, 5])
        graph.moe_grouped_matmul(token, weight, graph.tensor([extent, 1, 1], data_type=INT32))
        if fine:
            graph.validate()
        else:
            fails(graph, "boundaries only")


def test_moe_modes():
    graph = new_graph()
    index = graph.tensor([1, 48, 1], data_type=INT32, name="index")
    out = moe(graph, mode=cudnn.moe_grouped_matmul_mode.GATHER, token_index=index)
    graph.validate()
    assert out.get_dim() == [1, 48, 5]
    for mode, options, part in (
        ("GATHER", {}, "GATHER needs token_index"),
        ("SCATTER", {}, "SCATTER needs token_index and token_ks"),
    ):
        graph = new_graph()
        moe(graph, mode=cudnn.moe_grouped_matmul_mode[mode], **options)
        fails(graph, part)


# Whole graphs.


def test_empty_graph():
    with pytest.raises(ValueError, match="graph 'nothing' has no nodes"):
        cudnn.pygraph(name="nothing").validate()


def test_virtual_input_without_producer():
    graph = new_graph()
    graph.relu(graph.tensor([2], is_virtual=True, name="ghost"))
    fails(graph, "'ghost'", "virtual but no node writes it")


def test_written_tensor_cannot_be_pass_by_value():
    graph = new_graph()
    graph.relu(graph.tensor([2]), name="n").set_output(True).set_is_pass_by_value(True)
    fails(graph, "written by node 'n'")


def test_output_elements_must_not_share_memory():
    graph = new_graph()
    graph.relu(graph.tensor([2, 3])).set_output(True).set_stride([0, 1])
    fails(graph, "share memory")


def test_ranks_of_dim_and_stride():
    graph = new_graph()
    x = graph.tensor([2, 3], [3, 1], name="x")
    x.set_dim([2, 3, 4])
    graph.relu(x)
    fails(graph, "'x'", "stride [3, 1]", "3 dims")


def test_unsupported_node_type():
    graph = new_graph()
    graph.relu(graph.tensor([2, 3]))
    text = repr(graph).replace('"POINTWISE"', '"GDN"')
    other = cudnn.pygraph()
    other.deserialize(text)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="GDN nodes"):
        other.validate()


def test_convolution_modes_share_dims():
    dims = []
    for mode in convolution_mode:
        graph = new_graph()
        y = graph.conv_fprop(image=graph.tensor([1, 2, 8, 8]), weight=graph.tensor([4, 2, 3, 3]), convolution_mode=mode, **ONE)
        graph.validate()
        dims.append(y.get_dim())
    assert dims == [[1, 4, 6, 6]] * 2


def test_messages_carry_uid_and_dims():
    graph = new_graph()
    a, b = graph.tensor([3, 5], name="alpha"), graph.tensor([4, 5], name="beta")
    graph.sub(a, b)
    with pytest.raises(ValueError) as caught:
        graph.validate()
    assert re.search(r"'alpha' \(uid 1, dim \[3, 5\]\), 'beta' \(uid 2, dim \[4, 5\]\)", str(caught.value))
