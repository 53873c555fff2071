# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""A real libcudnn checks what the lowering hands it. That needs no GPU: tensors, operations and operation graphs finalize without a handle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cudnn_graph import enums as e
from cudnn_graph.constants import POINTWISE, Attr, Type
from cudnn_graph.descriptors import make_operation_graph
from cudnn_graph.errors import cudnnGraphNotSupportedError
from cudnn_graph.graph import pygraph
from cudnn_graph.lowering import lower

HALF, FLOAT, BF16, INT32, BOOL = (e.data_type[name] for name in ("HALF", "FLOAT", "BFLOAT16", "INT32", "BOOLEAN"))
TRAINING, INFERENCE = e.norm_forward_phase.TRAINING, e.norm_forward_phase.INFERENCE
NHWC = [512, 1, 128, 32]
CONV = {"padding": [1, 1], "stride": [1, 1], "dilation": [1, 1]}


@pytest.fixture
def engines(real_cudnn: Any) -> Callable:
    """Builds a graph with a function and gives the number of engines the library has for it."""

    def run(build: Callable[[pygraph], None], **options: Any) -> int:
        g = pygraph("g", io_data_type=HALF, intermediate_data_type=FLOAT, compute_data_type=FLOAT)
        build(g)
        for tensor in g.get_outputs():
            assert not tensor.is_virtual
        g.validate()
        made = make_operation_graph(lower(g, real_cudnn.version()), real_cudnn.Descriptor, real_cudnn.BackendError, **options)
        return made.get(Attr.OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, Type.INT64, 1)[0]

    run.version = real_cudnn.version()
    return run


def outputs(*tensors: Any) -> None:
    for tensor in tensors:
        if tensor is not None:
            tensor.set_output(True)


def epsilon(g: pygraph) -> Any:
    return g.tensor([1, 1, 1, 1], is_pass_by_value=True, data_type=FLOAT)


def channel(g: pygraph) -> Any:
    return g.tensor([1, 32, 1, 1], data_type=FLOAT)


def image(g: pygraph) -> Any:
    return g.tensor([8, 32, 4, 4], NHWC)


@pytest.mark.parametrize("method", sorted(POINTWISE))
def test_pointwise(engines: Callable, method: str) -> None:
    two = "add mul sub div add_square logical_and logical_or max min mod pow cmp_eq cmp_neq cmp_gt cmp_ge cmp_lt cmp_le bias scale".split()
    count = 3 if method == "binary_select" else 2 if method in two or method.endswith("backward") else 1
    options = {"axis": 1} if method == "gen_index" else {"negative_slope": 0.1} if method.startswith("leaky") else {}
    assert engines(lambda g: outputs(getattr(g, method)(*(g.tensor([4, 8, 16]) for _ in range(count)), **options))) > 0


@pytest.mark.parametrize("a, b", [([2, 64, 32], [2, 32, 48]), ([64, 32], [32, 48]), ([2, 3, 64, 32], [1, 1, 32, 48]), ([5, 64, 33], [1, 33, 48])], ids=str)
def test_matmul_with_an_epilogue(engines: Callable, a: list[int], b: list[int]) -> None:
    def build(g: pygraph) -> None:
        c = g.matmul(g.tensor(a), g.tensor(b))
        c = g.bias(g.mul(c, g.tensor_scalar(0.5, e.scalar_type.RUNTIME_PARAM)), g.tensor([48]))
        outputs(g.gelu(c))

    assert engines(build) > 0
    assert engines(build, is_dynamic_shape_enabled=True) > 0


@pytest.mark.parametrize("mode", [e.reduction_mode.ADD, e.reduction_mode.MUL, e.reduction_mode.MIN, e.reduction_mode.MAX, e.reduction_mode.AMAX])
def test_matmul_with_a_reduction(engines: Callable, mode: e.reduction_mode) -> None:
    def build(g: pygraph) -> None:
        c = g.matmul(g.tensor([2, 64, 32]), g.tensor([2, 32, 48]))
        outputs(c, g.reduction(c, mode).set_dim([2, 64, 1]).set_data_type(FLOAT))

    assert engines(build) > 0


@pytest.mark.parametrize("mode", ["AVG", "NORM1", "NORM2", "MUL_NO_ZEROS"])
def test_reductions_the_library_has_not(engines: Callable, mode: str) -> None:
    def build(g: pygraph) -> None:
        outputs(g.reduction(g.tensor([2, 64, 32]), e.reduction_mode[mode]).set_dim([2, 64, 1]))

    with pytest.raises(
        RuntimeError, match=r"node 'reduction.0' \(REDUCTION\): cudnnBackendFinalize \(REDUCTION\) returned CUDNN_STATUS_NOT_SUPPORTED \(3000\)"
    ):
        engines(build)


def test_convolutions(engines: Callable) -> None:
    def forward(g: pygraph) -> None:
        y = g.conv_fprop(image(g), g.tensor([64, 32, 3, 3], [288, 1, 96, 32]), **CONV)
        outputs(g.relu(g.bias(g.scale(y, g.tensor([1, 64, 1, 1])), g.tensor([1, 64, 1, 1]))))

    def data(g: pygraph) -> None:
        dx = g.conv_dgrad(g.tensor([8, 64, 4, 4], [1024, 1, 256, 64]), g.tensor([64, 32, 3, 3], [288, 1, 96, 32]), **CONV)
        outputs(g.relu_backward(dx, image(g)))

    def weights(g: pygraph) -> None:
        outputs(g.conv_wgrad(image(g), g.tensor([8, 64, 4, 4], [1024, 1, 256, 64]), **CONV).set_dim([64, 32, 3, 3]))

    def statistics(g: pygraph) -> None:
        y = g.conv_fprop(image(g), g.tensor([64, 32, 3, 3], [288, 1, 96, 32]), **CONV)
        outputs(y, *g.genstats(y))

    def volume(g: pygraph) -> None:
        every = {"padding": [1] * 3, "stride": [1] * 3, "dilation": [1] * 3}
        outputs(g.conv_fprop(g.tensor([2, 16, 4, 4, 4], [1024, 1, 256, 64, 16]), g.tensor([8, 16, 3, 3, 3], [432, 1, 144, 48, 16]), **every))

    def line(g: pygraph) -> None:
        outputs(g.conv_fprop(g.tensor([2, 16, 9]), g.tensor([8, 16, 3]), padding=[1], stride=[1], dilation=[1]))

    for build in (forward, data, weights, statistics, volume, line):
        assert engines(build) > 0, build


def test_norms(engines: Callable) -> None:
    for phase in (TRAINING, INFERENCE):
        assert engines(lambda g, p=phase: outputs(*g.layernorm(p, image(g), channel(g), channel(g), epsilon(g)))) > 0
        assert engines(lambda g, p=phase: outputs(*g.rmsnorm(p, image(g), channel(g), None, epsilon(g)))) > 0
        assert engines(lambda g, p=phase: outputs(*g.instancenorm(p, image(g), channel(g), channel(g), epsilon(g)))) > 0
        assert engines(lambda g, p=phase: outputs(*g.rmsnorm(norm_forward_phase=p, input=image(g), epsilon=epsilon(g)))) > 0

    def rows(g: pygraph) -> Any:
        return g.tensor([8, 1, 1, 1], data_type=FLOAT)

    def flat(g: pygraph) -> Any:
        return g.tensor([8, 32, 1, 1])

    def plane(g: pygraph) -> Any:
        return g.tensor([8, 32, 1, 1], data_type=FLOAT)

    for has_dbias in (True, False):
        assert (
            engines(lambda g, h=has_dbias: outputs(*g.rmsnorm_backward(grad=flat(g), input=flat(g), scale=channel(g), inv_variance=rows(g), has_dbias=h))) > 0
        )
    assert engines(lambda g: outputs(*g.layernorm_backward(grad=flat(g), input=flat(g), scale=channel(g), mean=rows(g), inv_variance=rows(g)))) > 0
    assert engines(lambda g: outputs(*g.instancenorm_backward(grad=image(g), input=image(g), scale=channel(g), mean=plane(g), inv_variance=plane(g)))) > 0
    assert engines(lambda g: outputs(*g.adalayernorm(TRAINING, g.tensor([8, 32, 64, 1]), g.tensor([8, 1, 64, 1]), g.tensor([8, 1, 64, 1]), epsilon(g)))) > 0


def test_batchnorm(engines: Callable) -> None:
    def train(g: pygraph) -> None:
        running = {"in_running_mean": channel(g), "in_running_var": channel(g), "momentum": epsilon(g)}
        outputs(*g.batchnorm(input=image(g), scale=channel(g), bias=channel(g), epsilon=epsilon(g), **running))

    def gradient(g: pygraph) -> None:
        outputs(*g.batchnorm_backward(grad=image(g), input=image(g), scale=channel(g), mean=channel(g), inv_variance=channel(g)))

    def inference(g: pygraph) -> None:
        outputs(g.batchnorm_inference(input=image(g), mean=channel(g), inv_variance=channel(g), scale=channel(g), bias=channel(g)))

    def fused(g: pygraph) -> None:
        x, mean, inverse, scale, bias = image(g), channel(g), channel(g), channel(g), channel(g)
        y = g.batchnorm_inference(input=x, mean=mean, inv_variance=inverse, scale=scale, bias=bias)
        grad = g.relu_backward(image(g), y).set_data_type(HALF)
        outputs(*g.batchnorm_backward(grad=grad, input=x, scale=scale, mean=mean, inv_variance=inverse))

    for build in (train, gradient, inference, fused):
        assert engines(build) > 0, build


@pytest.mark.parametrize("mode", ["NONE", "GATHER", "SCATTER"])
def test_grouped_matmul(engines: Callable, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setattr("cudnn_graph.lowering.known_bad.FAULTS", ())

    def build(g: pygraph) -> None:
        more = {} if mode == "NONE" else {"token_index": g.tensor([1, 256, 1], data_type=INT32)}
        if mode == "SCATTER":
            more.update(token_ks=g.tensor([1, 256, 1], data_type=INT32), top_k=1)
        token, weight = g.tensor([1, 256, 64], data_type=BF16), g.tensor([4, 64, 128], data_type=BF16)
        offsets = g.tensor([4, 1, 1], data_type=INT32)
        outputs(g.moe_grouped_matmul(token, weight, offsets, mode=e.moe_grouped_matmul_mode[mode], **more).set_data_type(BF16))

    assert engines(build) > 0


def test_structure(engines: Callable) -> None:
    assert engines(lambda g: outputs(g.concatenate(inputs=[g.tensor([2, 4, 8]), g.tensor([2, 4, 8])], axis=1))) > 0
    assert engines(lambda g: outputs(g.reshape(g.tensor([2, 4, 8])).set_dim([2, 32, 1]))) > 0

    def sliced(g: pygraph) -> None:
        part = g.slice(g.tensor([2, 64, 64]), slices=[slice(0, 2), slice(8, 40), slice(0, 32)])
        outputs(g.matmul(part, g.tensor([2, 32, 48])))

    def turned(g: pygraph) -> None:
        outputs(g.matmul(g.transpose(g.tensor([2, 32, 64]), permutation=[0, 2, 1]), g.tensor([2, 32, 48])))

    def logical(g: pygraph) -> None:
        outputs(g.reshape(g.matmul(g.tensor([2, 64, 32]), g.tensor([2, 32, 48])), reshape_mode=e.reshape_mode.LOGICAL).set_dim([2, 48, 64]))

    def constant(g: pygraph) -> None:
        outputs(g.mul(g.matmul(g.tensor([2, 64, 32]), g.tensor([2, 32, 48])), g.tensor_scalar(2.0, e.scalar_type.COMPILE_TIME_CONST)))

    assert engines(sliced) > 0 and engines(turned) > 0
    if engines.version >= 92200:
        assert engines(logical) > 0 and engines(constant) > 0
    else:
        with pytest.raises(cudnnGraphNotSupportedError, match=r"reshape_mode LOGICAL\) needs cuDNN 9.22.0"):
            engines(logical)
        with pytest.raises(RuntimeError, match="COMPILE_TIME_CONST, which needs cuDNN 9.22.0"):
            engines(constant)


def test_a_long_chain_and_a_mask_as_output(engines: Callable) -> None:
    def chain(g: pygraph) -> None:
        value, other = g.tensor([4, 8, 16]), g.tensor([4, 8, 16])
        for _ in range(60):
            value = g.add(value, other)
        outputs(value)

    assert engines(chain) > 0
    assert engines(lambda g: outputs(g.cmp_gt(g.tensor([4, 8, 16]), g.tensor([4, 8, 16])).set_data_type(BOOL))) > 0


def test_bad_descriptions_are_exceptions_that_name_the_tensor(engines: Callable, real_cudnn: Any) -> None:
    def expanded(g: pygraph) -> None:
        outputs(g.relu(g.tensor([2, 4, 8], [8, 0, 1], name="expanded")))

    with pytest.raises((RuntimeError, ValueError), match=r"expanded"):
        engines(expanded)
    # The library is still usable.
    assert engines(lambda g: outputs(g.relu(g.tensor([2, 4, 8])))) > 0


def test_kernel_caches(real_cudnn: Any) -> None:
    from cudnn_graph.kernel_cache import create_kernel_cache

    g = pygraph("g", io_data_type=HALF, intermediate_data_type=FLOAT, compute_data_type=FLOAT)
    outputs(g.matmul(g.tensor([2, 64, 32]), g.tensor([2, 32, 48])))
    g.validate()
    made = make_operation_graph(lower(g, real_cudnn.version()), real_cudnn.Descriptor, real_cudnn.BackendError, is_dynamic_shape_enabled=True)
    cache = create_kernel_cache()
    with pytest.raises(RuntimeError, match="the kernel cache is empty"):
        cache.serialize()
    assert cache.bind(made) is cache.bind(made)
    text = cache.serialize()
    copy = create_kernel_cache()
    copy.deserialize(text)
    assert copy.serialize() == text and '"operationGraph"' in text
    with pytest.raises(RuntimeError, match="in use already"):
        copy.deserialize(text)
    with pytest.raises(RuntimeError, match=r"kernel cache: cudnnBackendFinalize \(KERNEL_CACHE\)"):
        create_kernel_cache().deserialize("no JSON")
    if real_cudnn.version() >= 92700:
        assert (cache.size(), cache.revision()) == (0, 0)
    else:
        with pytest.raises(RuntimeError, match="size.. of a kernel cache needs cuDNN 9.27.0"):
            cache.size()


def test_device_properties_from_text_that_describes_none(real_cudnn: Any) -> None:
    from cudnn_graph.device_properties import create_device_properties

    with pytest.raises(RuntimeError, match=r"device properties: cudnnBackendFinalize \(DEVICEPROP\) returned CUDNN_STATUS_BAD_PARAM"):
        create_device_properties("{}")


def test_a_variant_pack_takes_shapes_for_one_call(real_cudnn: Any) -> None:
    if real_cudnn.version() < 91800:
        pytest.skip("needs cuDNN 9.18")
    # The plan is not finalized: the call fails, but only after the library read the vectors of shapes and strides.
    prepared = real_cudnn.PreparedPlan(real_cudnn.Descriptor(5), [real_cudnn.Slot(1, "a"), real_cudnn.Slot(2, "b")])
    overrides = real_cudnn.Overrides([1, 2], [[2, 3, 4], [5, 6, 7]], [[12, 4, 1], [42, 7, 1]])
    with pytest.raises(real_cudnn.BackendError, match="cudnnBackendExecute"):
        prepared.execute(0, 0, {1: 16, 2: 32}, 0, overrides)
    with pytest.raises(ValueError, match="need the same length, got 2, 1 and 2"):
        real_cudnn.Overrides([1, 2], [[1]], [[1], [1]])
