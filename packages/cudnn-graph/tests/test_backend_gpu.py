# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""Graphs on the GPU through libcudnn, compared with plain torch (the reference engine in float32 or float64 arithmetic, and torch's own functions).

``GRAPH_REPORT=file.json pytest -m gpu ...`` writes which plan served each graph, how many were proposed, and the errors measured.
"""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from cudnn_graph import enums as e
from cudnn_graph import library
from cudnn_graph.constants import POINTWISE, Attr, Desc, Type
from cudnn_graph.descriptors import make_operation_graph
from cudnn_graph.errors import cudnnGraphNotSupportedError
from cudnn_graph.graph import pygraph
from cudnn_graph.lowering import lower
from cudnn_graph.nodes import NodeType

torch = pytest.importorskip("torch")

HALF, BF16, FLOAT, DOUBLE, INT8, INT32, INT64, BOOL, E4M3 = (
    e.data_type[name] for name in ("HALF", "BFLOAT16", "FLOAT", "DOUBLE", "INT8", "INT32", "INT64", "BOOLEAN", "FP8_E4M3")
)
TRAINING, INFERENCE = e.norm_forward_phase.TRAINING, e.norm_forward_phase.INFERENCE
RUNTIME = e.scalar_type.RUNTIME_PARAM

# Relative error (2-norm) of a result stored in a type: a few units in the last place, the accumulation is in float32.
TOLERANCE = {HALF: 1e-3, BF16: 8e-3, FLOAT: 1e-5, DOUBLE: 1e-12}
# cuDNN computes float32 products in tf32 unless engines that down-convert are deselected.
TF32 = 2e-3

REPORT: dict[str, Any] = {}


def on_hopper() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def needs_hopper() -> None:
    if not on_hopper():
        pytest.skip("needs a GPU of compute capability 9.0")


@pytest.fixture(scope="module", autouse=True)
def report() -> Iterator[None]:
    yield
    path = os.environ.get("GRAPH_REPORT")
    if path and REPORT:
        served = sum(entry["status"] == "cudnn" for entry in REPORT.values())
        summary = {"library": library.describe(), "served by cudnn": served, "declined": len(REPORT) - served, "graphs": REPORT}
        with open(path, "w", encoding="utf-8") as file:
            json.dump(summary, file, indent=1)


class Make:
    """Adds tensors to a graph and remembers what numbers they should hold."""

    def __init__(self, g: pygraph) -> None:
        self.g = g
        self.kinds: dict[int, Any] = {}

    def __call__(self, dims: list[int], stride: list[int] | None = None, dtype: e.data_type | None = None, kind: Any = "normal", **options: Any) -> Any:
        tensor = self.g.tensor(dims, stride, dtype, **options)
        self.kinds[tensor.uid] = kind
        return tensor

    def value(self, number: float) -> Any:
        return self([1, 1, 1, 1], dtype=FLOAT, kind=number, is_pass_by_value=True)

    def stats(self, dims: list[int], kind: Any = "positive") -> Any:
        return self(dims, dtype=FLOAT, kind=kind)

    def image(self, dims: list[int], **options: Any) -> Any:
        """Channels-last."""
        stride, running = [1] * len(dims), dims[1]
        for axis in [*range(len(dims) - 1, 1, -1), 0]:
            stride[axis] = running
            running *= dims[axis]
        return self(dims, stride, **options)


def outputs(*tensors: Any, dtype: e.data_type | None = None) -> None:
    for tensor in tensors:
        if tensor is not None:
            tensor.set_output(True)
            if dtype is not None:
                tensor.set_data_type(dtype)


class Case(NamedTuple):
    build: Callable[[Make], None]
    io: e.data_type = HALF
    compute: e.data_type = FLOAT
    tolerance: float | None = None


CASES: dict[str, Case] = {}


def case(name: str, **options: Any) -> Callable:
    def add(build: Callable[[Make], None]) -> Callable:
        assert name not in CASES
        CASES[name] = Case(build, **options)
        return build

    return add


# Pointwise: every method alone, in float32 and float16.

ONE = "abs ceil cos exp floor neg sin tan erf identity relu tanh sigmoid elu gelu softplus gelu_approx_tanh swish leaky_relu".split()
ONE_POSITIVE = "log rsqrt sqrt reciprocal".split()
TWO = "add mul sub add_square max min bias scale cmp_eq cmp_neq cmp_gt cmp_ge cmp_lt cmp_le".split()
TWO_POSITIVE = "div mod pow".split()
BACKWARD = [name for name in POINTWISE if name.endswith("_backward")]


def pointwise(method: str) -> Callable[[Make], None]:
    def build(make: Make) -> None:
        kind = "positive" if method in ONE_POSITIVE + TWO_POSITIVE else "coarse" if method.startswith("cmp") else "normal"
        count = 1 if method in ONE + ONE_POSITIVE else 2
        options = {"negative_slope": 0.1} if method.startswith("leaky") else {}
        result = getattr(make.g, method)(*(make([4, 24, 40], kind=kind) for _ in range(count)), **options)
        outputs(result, dtype=BOOL if method.startswith("cmp") else None)

    return build


for _method in [*ONE, *ONE_POSITIVE, *TWO, *TWO_POSITIVE, *BACKWARD]:
    for _io in (FLOAT, HALF):
        CASES[f"pointwise {_method} {_io.name}"] = Case(pointwise(_method), io=_io)


@case("pointwise relu clipped", io=FLOAT)
def _(make: Make) -> None:
    outputs(make.g.relu(make([4, 24, 40]), negative_slope=0.1, lower_clip=-0.2, upper_clip=0.7))


@case("pointwise swish beta", io=FLOAT)
def _(make: Make) -> None:
    outputs(make.g.swish(make([4, 24, 40]), swish_beta=1.5))


@case("pointwise logical", io=BOOL)
def _(make: Make) -> None:
    a, b = make([4, 24, 40], kind="mask"), make([4, 24, 40], kind="mask")
    outputs(make.g.logical_or(make.g.logical_and(a, b), make.g.logical_not(a)), dtype=BOOL)


@case("pointwise gen_index select", io=FLOAT)
def _(make: Make) -> None:
    x = make([4, 24, 40])
    later = make.g.cmp_gt(make.g.gen_index(x, axis=2), make.g.gen_index(x, axis=1)).set_data_type(BOOL)
    outputs(make.g.binary_select(x, make([4, 24, 40]), later))


@case("pointwise rank 1", io=FLOAT)
def _(make: Make) -> None:
    outputs(make.g.relu(make([1000])))


@case("pointwise rank 2 broadcast", io=FLOAT)
def _(make: Make) -> None:
    outputs(make.g.add(make([24, 40]), make([40])))


@case("pointwise rank 5 channels last", io=FLOAT)
def _(make: Make) -> None:
    outputs(make.g.mul(make.image([2, 8, 3, 4, 5]), make([1, 8, 1, 1, 1])))


@case("pointwise chain of 60", io=FLOAT)
def _(make: Make) -> None:
    value, other = make([2, 8, 16]), make([2, 8, 16])
    for _ in range(60):
        value = make.g.add(value, other)
    outputs(value)


@case("pointwise boolean mask output", io=FLOAT)
def _(make: Make) -> None:
    outputs(make.g.cmp_gt(make([2, 8, 16]), make([2, 8, 16])), dtype=BOOL)


# Matrix products.

for _io in (HALF, BF16, FLOAT):

    @case(f"matmul {_io.name}", io=_io, tolerance=TF32 if _io is FLOAT else None)
    def _(make: Make) -> None:
        outputs(make.g.matmul(make([3, 128, 64]), make([3, 64, 96])))

    @case(f"matmul {_io.name} B column-major, broadcast", io=_io, tolerance=TF32 if _io is FLOAT else None)
    def _(make: Make) -> None:
        outputs(make.g.matmul(make([3, 128, 64]), make([1, 64, 96], [6144, 1, 64])))


@case("matmul odd K")
def _(make: Make) -> None:
    outputs(make.g.matmul(make([2, 64, 33]), make([2, 33, 48])))


@case("matmul rank 2")
def _(make: Make) -> None:
    outputs(make.g.matmul(make([128, 64]), make([64, 96])))


@case("matmul rank 4")
def _(make: Make) -> None:
    outputs(make.g.matmul(make([2, 3, 128, 64]), make([2, 3, 64, 96])))


@case("matmul int8", io=INT8, compute=INT32)
def _(make: Make) -> None:
    outputs(make.g.matmul(make([1, 64, 128]), make([1, 128, 64], [8192, 1, 128])), dtype=INT32)


@case("matmul e4m3 to bf16", io=E4M3)
def _(make: Make) -> None:
    outputs(make.g.matmul(make([1, 128, 64]), make([1, 64, 96], [6144, 1, 64])), dtype=BF16)


@case("matmul bias gelu")
def _(make: Make) -> None:
    outputs(make.g.gelu(make.g.bias(make.g.matmul(make([1, 128, 64]), make([1, 64, 96])), make([1, 1, 96]))))


@case("matmul scalar relu")
def _(make: Make) -> None:
    g = make.g
    outputs(g.relu(g.add(g.mul(g.matmul(make([2, 128, 64]), make([2, 64, 96])), g.tensor_scalar(0.5, RUNTIME)), make.value(0.125))))


@case("matmul prologue int8 to fp16")
def _(make: Make) -> None:
    a = make.g.identity(make([1, 128, 64], dtype=INT8)).set_data_type(HALF)
    outputs(make.g.matmul(a, make([1, 64, 96])))


@case("two matmuls swiglu", io=BF16)
def _(make: Make) -> None:
    g = make.g
    x = make([1, 128, 64])
    outputs(g.mul(g.swish(g.matmul(x, make([1, 64, 96]))), g.matmul(x, make([1, 64, 96]))))


@case("matmul amax")
def _(make: Make) -> None:
    c = make.g.matmul(make([1, 128, 64]), make([1, 64, 96]))
    outputs(c)
    outputs(make.g.reduction(c, e.reduction_mode.AMAX).set_dim([1, 1, 1]), dtype=FLOAT)


@case("matmul row sum")
def _(make: Make) -> None:
    c = make.g.matmul(make([1, 128, 64]), make([1, 64, 96]))
    outputs(make.g.reduction(c, e.reduction_mode.ADD).set_dim([1, 128, 1]), dtype=FLOAT)


@case("matmul of a slice")
def _(make: Make) -> None:
    part = make.g.slice(make([2, 64, 128]), slices=[slice(0, 2), slice(16, 48), slice(64, 128)])
    outputs(make.g.matmul(part, make([2, 64, 48])))


@case("matmul of a transpose")
def _(make: Make) -> None:
    outputs(make.g.matmul(make.g.transpose(make([2, 64, 128]), permutation=[0, 2, 1]), make([2, 64, 48])))


# Convolutions.

UNIT = {"padding": [1, 1], "stride": [1, 1], "dilation": [1, 1]}

for _io in (HALF, BF16, FLOAT):
    _tolerance = TF32 if _io is FLOAT else None

    @case(f"conv fprop NHWC {_io.name}", io=_io, tolerance=_tolerance)
    def _(make: Make) -> None:
        outputs(make.g.conv_fprop(make.image([4, 32, 12, 12]), make.image([64, 32, 3, 3]), **UNIT))

    @case(f"conv dgrad NHWC {_io.name}", io=_io, tolerance=_tolerance)
    def _(make: Make) -> None:
        outputs(make.g.conv_dgrad(make.image([4, 64, 12, 12]), make.image([64, 32, 3, 3]), **UNIT))

    @case(f"conv wgrad NHWC {_io.name}", io=_io, tolerance=_tolerance)
    def _(make: Make) -> None:
        dw = make.g.conv_wgrad(make.image([4, 32, 12, 12]), make.image([4, 64, 12, 12]), **UNIT).set_dim([64, 32, 3, 3])
        outputs(dw)


for _io in (HALF, FLOAT):

    @case(f"conv fprop NCHW {_io.name}", io=_io, tolerance=TF32 if _io is FLOAT else None)
    def _(make: Make) -> None:
        y = make.g.conv_fprop(make([4, 32, 12, 12]), make([64, 32, 3, 3]), **UNIT)
        outputs(y.set_stride([64 * 144, 144, 12, 1]))


@case("conv fprop NDHWC")
def _(make: Make) -> None:
    every = {"padding": [1] * 3, "stride": [1] * 3, "dilation": [1] * 3}
    outputs(make.g.conv_fprop(make.image([2, 16, 6, 8, 8]), make.image([32, 16, 3, 3, 3]), **every))


@case("conv fprop 1-D")
def _(make: Make) -> None:
    outputs(make.g.conv_fprop(make.image([4, 32, 50]), make.image([64, 32, 3]), padding=[1], stride=[1], dilation=[1]))


@case("conv fprop grouped")
def _(make: Make) -> None:
    outputs(make.g.conv_fprop(make.image([4, 64, 12, 12]), make.image([64, 16, 3, 3]), **UNIT))


@case("conv fprop asymmetric padding, strided, dilated")
def _(make: Make) -> None:
    options = {"pre_padding": [0, 2], "post_padding": [1, 0], "stride": [2, 1], "dilation": [1, 2]}
    outputs(make.g.conv_fprop(make.image([4, 32, 13, 14]), make.image([64, 32, 3, 3]), **options))


@case("conv dgrad strided")
def _(make: Make) -> None:
    options = {"padding": [1, 1], "stride": [2, 2], "dilation": [1, 1]}
    outputs(make.g.conv_dgrad(make.image([4, 64, 6, 6]), make.image([64, 32, 3, 3]), **options).set_dim([4, 32, 12, 12]))


@case("conv scale bias relu")
def _(make: Make) -> None:
    g = make.g
    y = g.conv_fprop(make.image([4, 32, 12, 12]), make.image([64, 32, 3, 3]), **UNIT)
    outputs(g.relu(g.bias(g.scale(y, make.image([1, 64, 1, 1])), make.image([1, 64, 1, 1]))))


@case("conv int8", io=INT8, compute=INT32)
def _(make: Make) -> None:
    outputs(make.g.conv_fprop(make.image([4, 32, 12, 12]), make.image([64, 32, 3, 3]), **UNIT), dtype=INT32)


@case("conv e4m3", io=E4M3)
def _(make: Make) -> None:
    outputs(make.g.conv_fprop(make.image([4, 32, 12, 12]), make.image([64, 32, 3, 3]), **UNIT), dtype=HALF)


@case("conv dgrad relu_backward")
def _(make: Make) -> None:
    dx = make.g.conv_dgrad(make.image([4, 64, 12, 12]), make.image([64, 32, 3, 3]), **UNIT)
    outputs(make.g.relu_backward(dx, make.image([4, 32, 12, 12])))


@case("conv genstats")
def _(make: Make) -> None:
    y = make.g.conv_fprop(make.image([4, 32, 12, 12]), make.image([64, 32, 3, 3]), **UNIT)
    outputs(y)
    outputs(*make.g.genstats(y), dtype=FLOAT)


# Norms.

for _io in (HALF, BF16, FLOAT):
    for _phase in (TRAINING, INFERENCE):

        @case(f"rmsnorm {_phase.name} {_io.name}", io=_io)
        def _(make: Make, phase: e.norm_forward_phase = _phase) -> None:
            outputs(*make.g.rmsnorm(phase, make([64, 128, 1, 1]), make([1, 128, 1, 1]), None, make.value(1e-5)))

        @case(f"layernorm {_phase.name} {_io.name}", io=_io)
        def _(make: Make, phase: e.norm_forward_phase = _phase) -> None:
            outputs(
                *make.g.layernorm(phase, make([64, 128, 1, 1]), make.stats([1, 128, 1, 1], "normal"), make.stats([1, 128, 1, 1], "normal"), make.value(1e-5))
            )

    @case(f"rmsnorm backward {_io.name}", io=_io)
    def _(make: Make) -> None:
        given = {"grad": make([64, 128, 1, 1]), "input": make([64, 128, 1, 1]), "scale": make([1, 128, 1, 1]), "inv_variance": make.stats([64, 1, 1, 1])}
        outputs(*make.g.rmsnorm_backward(**given, has_dbias=True))

    @case(f"layernorm backward {_io.name}", io=_io)
    def _(make: Make) -> None:
        given = {"grad": make([64, 128, 1, 1]), "input": make([64, 128, 1, 1]), "scale": make.stats([1, 128, 1, 1], "normal")}
        outputs(*make.g.layernorm_backward(**given, mean=make.stats([64, 1, 1, 1], "small"), inv_variance=make.stats([64, 1, 1, 1])))


@case("rmsnorm with bias")
def _(make: Make) -> None:
    outputs(*make.g.rmsnorm(TRAINING, make([64, 128, 1, 1]), make([1, 128, 1, 1]), make([1, 128, 1, 1]), make.value(1e-5)))


@case("rmsnorm backward without dbias")
def _(make: Make) -> None:
    given = {"grad": make([64, 128, 1, 1]), "input": make([64, 128, 1, 1]), "scale": make([1, 128, 1, 1]), "inv_variance": make.stats([64, 1, 1, 1])}
    outputs(*make.g.rmsnorm_backward(**given, has_dbias=False))


@case("adalayernorm")
def _(make: Make) -> None:
    outputs(*make.g.adalayernorm(TRAINING, make([4, 16, 128, 1]), make([4, 1, 128, 1]), make([4, 1, 128, 1]), make.value(1e-5)))


@case("instancenorm")
def _(make: Make) -> None:
    channel = [1, 32, 1, 1]
    outputs(*make.g.instancenorm(TRAINING, make.image([4, 32, 8, 8]), make.stats(channel, "normal"), make.stats(channel, "normal"), make.value(1e-5)))


@case("instancenorm backward")
def _(make: Make) -> None:
    given = {"grad": make.image([4, 32, 8, 8]), "input": make.image([4, 32, 8, 8]), "scale": make.stats([1, 32, 1, 1], "normal")}
    outputs(*make.g.instancenorm_backward(**given, mean=make.stats([4, 32, 1, 1], "small"), inv_variance=make.stats([4, 32, 1, 1])))


for _io in (HALF, FLOAT):

    @case(f"batchnorm training {_io.name}", io=_io)
    def _(make: Make) -> None:
        channel = [1, 32, 1, 1]
        running = {"in_running_mean": make.stats(channel, "small"), "in_running_var": make.stats(channel), "momentum": make.value(0.1)}
        x = make.image([4, 32, 8, 8])
        outputs(*make.g.batchnorm(input=x, scale=make.stats(channel), bias=make.stats(channel, "normal"), epsilon=make.value(1e-5), **running))

    @case(f"batchnorm backward {_io.name}", io=_io)
    def _(make: Make) -> None:
        channel = [1, 32, 1, 1]
        given = {"grad": make.image([4, 32, 8, 8]), "input": make.image([4, 32, 8, 8]), "scale": make.stats(channel)}
        outputs(*make.g.batchnorm_backward(**given, mean=make.stats(channel, "small"), inv_variance=make.stats(channel)))

    @case(f"batchnorm inference {_io.name}", io=_io)
    def _(make: Make) -> None:
        channel = [1, 32, 1, 1]
        given = {"mean": make.stats(channel, "small"), "inv_variance": make.stats(channel), "scale": make.stats(channel), "bias": make.stats(channel, "normal")}
        outputs(make.g.batchnorm_inference(input=make.image([4, 32, 8, 8]), **given))


@case("batchnorm training relu add")
def _(make: Make) -> None:
    channel = [1, 32, 1, 1]
    running = {"in_running_mean": make.stats(channel, "small"), "in_running_var": make.stats(channel), "momentum": make.value(0.1)}
    x = make.image([4, 32, 8, 8])
    y, *stats = make.g.batchnorm(input=x, scale=make.stats(channel), bias=make.stats(channel, "normal"), epsilon=make.value(1e-5), **running)
    outputs(make.g.relu(make.g.add(y, make.image([4, 32, 8, 8]))), *stats)


# Grouped matrix products.


@case("moe none bf16", io=BF16)
def _(make: Make) -> None:
    outputs(make.g.moe_grouped_matmul(make([1, 256, 64]), make([4, 64, 128], [8192, 1, 64]), make([4, 1, 1], dtype=INT32, kind=[0, 64, 96, 200])))


@case("moe gather bf16", io=BF16)
def _(make: Make) -> None:
    index = make([1, 256, 1], dtype=INT32, kind="index")
    offsets = make([4, 1, 1], dtype=INT32, kind=[0, 64, 96, 200])
    mode = e.moe_grouped_matmul_mode.GATHER
    outputs(make.g.moe_grouped_matmul(make([1, 256, 64]), make([4, 64, 128], [8192, 1, 64]), offsets, token_index=index, mode=mode, top_k=1))


# What libcudnn 9.19 declines on Hopper.

DECLINED: dict[str, Case] = {}


def declined(name: str, **options: Any) -> Callable:
    def add(build: Callable[[Make], None]) -> Callable:
        DECLINED[name] = Case(build, **options)
        return build

    return add


@declined("genstats alone")
def _(make: Make) -> None:
    outputs(*make.g.genstats(make.image([4, 32, 8, 8])), dtype=FLOAT)


@declined("reduction alone", io=FLOAT)
def _(make: Make) -> None:
    outputs(make.g.reduction(make([4, 24, 40]), e.reduction_mode.ADD).set_dim([4, 24, 1]))


@declined("reduction average", io=FLOAT)
def _(make: Make) -> None:
    outputs(make.g.reduction(make([4, 24, 40]), e.reduction_mode.AVG).set_dim([4, 24, 1]))


@declined("pointwise and reduction", io=FLOAT)
def _(make: Make) -> None:
    outputs(make.g.reduction(make.g.exp(make([4, 24, 40])), e.reduction_mode.MAX).set_dim([4, 24, 1]))


@declined("softmax by hand", io=FLOAT)
def _(make: Make) -> None:
    g = make.g
    x = make([4, 24, 40])
    shifted = g.exp(g.sub(x, g.reduction(x, e.reduction_mode.MAX).set_dim([4, 24, 1])))
    outputs(g.div(shifted, g.reduction(shifted, e.reduction_mode.ADD).set_dim([4, 24, 1])))


@declined("reshape alone", io=FLOAT)
def _(make: Make) -> None:
    outputs(make.g.reshape(make([4, 24, 40])).set_dim([4, 40, 24]))


@declined("concatenate", io=FLOAT)
def _(make: Make) -> None:
    outputs(make.g.concatenate(inputs=[make([4, 24, 40]), make([4, 8, 40])], axis=1))


# Running them.


def numbers(shape: Any, stride: Any, dtype: Any, kind: Any, device: str) -> Any:
    """A tensor of that geometry with fresh random numbers."""
    tensor = torch.empty_strided(shape, stride, dtype=dtype, device=device)
    if isinstance(kind, list):
        values = torch.tensor(kind).reshape(shape)
    elif kind == "index":
        values = torch.randperm(tensor.numel()).reshape(shape)
    elif kind == "mask" or dtype is torch.bool:
        values = torch.rand(shape) < 0.5
    elif dtype is torch.int8:
        values = torch.randint(-4, 5, shape)
    elif isinstance(kind, float):
        values = torch.full(shape, kind)
    else:
        values = torch.randn(shape, dtype=torch.float64)
        if kind == "positive":
            values = values.abs() + 0.5
        elif kind == "small":
            values = values * 0.1
        elif kind == "coarse":
            values = (values * 2).round() / 2
    tensor.copy_(values.to(device=device).to(dtype))
    return tensor


def describe(one: Case, **options: Any) -> tuple[pygraph, Make]:
    g = pygraph("case", io_data_type=one.io, intermediate_data_type=one.compute, compute_data_type=one.compute, **options)
    make = Make(g)
    one.build(make)
    return g, make


def buffers(g: pygraph, make: Make, device: str) -> tuple[dict[int, Any], dict[int, Any]]:
    """(inputs, outputs filled with what must not stay there)."""
    from cudnn_graph.dtypes import torch_dtype

    g.validate()
    given = {}
    for tensor in g.get_inputs():
        where = "cpu" if tensor.is_pass_by_value else device
        given[tensor.uid] = numbers(tensor.get_dim(), tensor.get_stride(), torch_dtype(tensor.data_type), make.kinds[tensor.uid], where)
    made = {}
    for tensor in g.get_outputs():
        out = torch.empty_strided(tensor.get_dim(), tensor.get_stride(), dtype=torch_dtype(tensor.data_type), device=device)
        made[tensor.uid] = out.fill_(float("nan") if out.is_floating_point() else 1)
    return given, made


def error_of(found: Any, expected: Any) -> float:
    """Relative error in the 2-norm; for integers and masks the share of elements that differ."""
    if not found.is_floating_point():
        return (found != expected).double().mean().item()
    found, expected = found.double(), expected.double()
    assert torch.isfinite(found).all(), "not everything was written"
    return ((found - expected).norm() / expected.norm().clamp_min(1e-30)).item()


def expected_outputs(one: Case, given: dict[int, Any], device: str) -> dict[int, Any]:
    """The same graph in plain torch."""
    g, make = describe(one, backend="reference")
    _, made = buffers(g, make, device)
    g.execute({**given, **made})
    return made


@pytest.mark.parametrize("name", [*CASES, *DECLINED])
def test_the_reference_runs_the_graph_on_the_host(name: str) -> None:
    one = CASES.get(name) or DECLINED[name]
    g, make = describe(one, backend="reference")
    given, made = buffers(g, make, "cpu")
    g.execute({**given, **made})
    for value in made.values():
        assert not value.is_floating_point() or torch.isfinite(value).all()


@pytest.mark.parametrize("name", list(CASES))
def test_the_library_takes_the_graph(real_cudnn: Any, name: str) -> None:
    g, _ = describe(CASES[name])
    g.validate()
    made = make_operation_graph(lower(g, real_cudnn.version()), real_cudnn.Descriptor, real_cudnn.BackendError)
    assert made.get(Attr.OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, Type.INT64, 1)[0] > 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", list(CASES))
def test_it_agrees_with_torch(name: str) -> None:
    needs_hopper()
    one = CASES[name]
    g, make = describe(one, backend="cudnn")
    given, made = buffers(g, make, "cuda")
    g.build()
    workspace = torch.empty(max(g.get_workspace_size(), 1), dtype=torch.uint8, device="cuda")
    g.execute({**given, **made}, workspace)
    torch.cuda.synchronize()
    expected = expected_outputs(one, given, "cuda")
    errors = {}
    for uid, value in made.items():
        tensor = g.find_tensor(uid)
        limit = one.tolerance or TOLERANCE.get(tensor.data_type, 0.0)
        errors[tensor.name] = (error_of(value, expected[uid]), limit)
    plan = g.plans[g._chosen]
    REPORT[name] = {
        "status": "cudnn",
        "plans": len(g.plans),
        "plan": plan.name,
        "workspace": plan.workspace_size,
        "errors": {k: v[0] for k, v in errors.items()},
    }
    assert all(found <= limit for found, limit in errors.values()), errors
    if any(node.node_type in (NodeType.REDUCTION, NodeType.GENSTATS) for node in g.nodes):
        # Partial sums are added in the order in which blocks finish.
        return
    # The same call again gives the same bits, whatever the outputs held.
    first = {uid: value.clone() for uid, value in made.items()}
    for value in made.values():
        value.fill_(0)
    g.execute({**given, **made}, workspace)
    for uid, value in made.items():
        assert torch.equal(value, first[uid]) or "NONDETERMINISTIC" in {note.name for note in plan.numerical_notes}


@pytest.mark.gpu
@pytest.mark.parametrize("name", list(DECLINED))
def test_what_cudnn_declines_is_served_by_the_reference_when_allowed(name: str) -> None:
    needs_hopper()
    one = DECLINED[name]
    g, _ = describe(one)
    try:
        g.build()
    except cudnnGraphNotSupportedError as error:
        REPORT[name] = {"status": "declined", "reason": str(error)}
        assert "backend: " in str(error) and "reference_fallback=True" in str(error)
    else:
        assert library.backend_version() >= 92000, "cuDNN 9.19 declines this graph"
        REPORT[name] = {"status": "cudnn", "plans": len(g.plans), "plan": g.plans[g._chosen].name}
    g, make = describe(one, reference_fallback=True)
    given, made = buffers(g, make, "cuda")
    g.build()
    g.execute({**given, **made})
    expected = expected_outputs(one, given, "cuda")
    for uid, value in made.items():
        assert error_of(value, expected[uid]) <= TOLERANCE.get(g.find_tensor(uid).data_type, 0.0)


def linear(m: int = 256, k: int = 128, n: int = 192, **options: Any) -> tuple[pygraph, dict[str, Any]]:
    """A built graph of relu(a b) and its buffers by name."""
    g = pygraph("linear", io_data_type=HALF, intermediate_data_type=FLOAT, compute_data_type=FLOAT, **options)
    a, b = g.tensor([1, m, k], name="a"), g.tensor([1, k, n], name="b")
    g.relu(g.matmul(a, b)).set_output(True).set_name("c")
    device = options.pop("device", "cuda")
    pack = {"a": torch.randn(1, m, k, device=device).half(), "b": torch.randn(1, k, n, device=device).half(), "c": torch.empty(1, m, n, device=device).half()}
    return g, pack


def reference(pack: dict[str, Any]) -> Any:
    return torch.relu(pack["a"].float() @ pack["b"].float())


def check(pack: dict[str, Any]) -> None:
    assert error_of(pack["c"], reference(pack)) <= 1e-3


@pytest.mark.gpu
def test_torch_functions_agree_directly() -> None:
    """The reference engine is not the only judge."""
    needs_hopper()
    functional = torch.nn.functional
    g, pack = linear()
    g.execute(pack)
    check(pack)
    x, w, bias = torch.randn(4, 32, 12, 12, device="cuda").half(), torch.randn(64, 32, 3, 3, device="cuda").half() / 17, torch.randn(64, device="cuda").half()
    x, w = x.to(memory_format=torch.channels_last), w.to(memory_format=torch.channels_last)
    g = pygraph("conv", io_data_type=HALF, intermediate_data_type=FLOAT, compute_data_type=FLOAT)
    tx, tw, tb = g.tensor_like(x), g.tensor_like(w), g.tensor([1, 64, 1, 1])
    y = g.relu(g.bias(g.conv_fprop(tx, tw, **UNIT), tb)).set_output(True)
    out = torch.empty(4, 64, 12, 12, device="cuda", dtype=torch.float16, memory_format=torch.channels_last)
    g.execute({tx: x, tw: w, tb: bias, y: out})
    assert error_of(out, torch.relu(functional.conv2d(x.float(), w.float(), bias.float(), padding=1))) <= 1e-3
    x, scale, shift = torch.randn(64, 128, device="cuda"), torch.randn(128, device="cuda"), torch.randn(128, device="cuda")
    g = pygraph("layernorm", io_data_type=FLOAT, intermediate_data_type=FLOAT, compute_data_type=FLOAT)
    tx, ts, tb = g.tensor([64, 128, 1, 1]), g.tensor([1, 128, 1, 1]), g.tensor([1, 128, 1, 1])
    ty, mean, inverse = g.layernorm(TRAINING, tx, ts, tb, g.tensor_scalar(1e-5, RUNTIME))
    outputs(ty, mean, inverse)
    made = [torch.empty_like(x), torch.empty(64, device="cuda"), torch.empty(64, device="cuda")]
    g.execute({tx: x, ts: scale, tb: shift, ty: made[0], mean: made[1], inverse: made[2]})
    assert error_of(made[0], functional.layer_norm(x, (128,), scale, shift)) <= 1e-5
    assert error_of(made[1], x.mean(1)) <= 1e-5 and error_of(made[2], (x.var(1, unbiased=False) + 1e-5).rsqrt()) <= 1e-5


@pytest.mark.gpu
def test_every_proposed_plan_gives_the_same_result() -> None:
    needs_hopper()
    g, pack = linear()
    g.validate()
    g.create_execution_plans([e.heur_mode.A, e.heur_mode.B, e.heur_mode.FALLBACK])
    g.build_plans(e.build_plan_policy.ALL)
    built = [index for index, plan in enumerate(g._plans) if plan is not None]
    assert len(built) >= 2
    for index in built:
        pack["c"].fill_(float("nan"))
        workspace = torch.empty(max(g.get_workspace_size_plan_at_index(index), 1), dtype=torch.uint8, device="cuda")
        g.execute_plan_at_index(pack, workspace, index)
        check(pack)
    assert all(name.startswith("eng") for name in (g.get_plan_name_at_index(i) for i in built))


@pytest.mark.gpu
def test_an_explicit_engine_with_its_knobs() -> None:
    needs_hopper()
    g, pack = linear()
    g.build()
    engine, knobs = g.get_engine_and_knobs_at_index(g._chosen)
    assert {knob.type for knob in g.get_knobs_for_engine(engine)} >= set(knobs)
    again, _ = linear()
    again.create_execution_plan(engine, knobs)
    again.build_plans()
    again.execute(pack)
    check(pack)
    assert again.get_engine_and_knobs_at_index(0) == (engine, knobs)


@pytest.mark.gpu
def test_a_stored_plan_gives_the_same_bits() -> None:
    needs_hopper()
    from cudnn_graph.handle import create_handle, destroy_handle

    g, pack = linear()
    g.build()
    g.execute(pack)
    first = pack["c"].clone()
    handle = create_handle()
    loaded = pygraph()
    loaded.deserialize(handle, g.serialize(as_bytes=True))
    pack["c"].zero_()
    loaded.execute({g.find_tensor(name).uid: value for name, value in pack.items()}, handle=handle)
    torch.cuda.synchronize()
    assert torch.equal(pack["c"], first)
    destroy_handle(handle)


@pytest.mark.gpu
def test_the_stream_of_the_handle_is_used() -> None:
    needs_hopper()
    from cudnn_graph.handle import create_handle, destroy_handle, set_stream

    g, pack = linear(4096, 4096, 4096)
    g.build()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        # torch's current stream is followed: the sleep in front delays the inputs of the graph.
        torch.cuda._sleep(50_000_000)
        pack["a"].fill_(0.5)
        g.execute(pack)
        copy = pack["c"].clone()
    side.synchronize()
    assert error_of(copy, reference(pack)) <= 1e-3
    handle = create_handle()
    set_stream(handle, side)
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        pack["a"].fill_(-0.25)
    g.execute(pack, torch.empty(max(g.get_workspace_size(), 1), dtype=torch.uint8, device="cuda"), handle=handle)
    side.synchronize()
    assert error_of(pack["c"], reference(pack)) <= 1e-3
    destroy_handle(handle)


@pytest.mark.gpu
def test_captured_graphs_keep_their_workspace() -> None:
    """Capture a plan, run one with a larger workspace, replay the first."""
    needs_hopper()
    small, pack = linear(64, 64, 64)
    large, other = linear(2048, 4096, 2048)
    small.build()
    large.build()
    small.execute(pack)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        small.execute(pack)
    for _ in range(3):
        large.execute(other)
        filler = torch.full((1 << 24,), 255, dtype=torch.uint8, device="cuda")
        pack["a"].normal_()
        pack["c"].zero_()
        captured.replay()
        torch.cuda.synchronize()
        check(pack)
        check(other)
        del filler


@pytest.mark.gpu
def test_a_fresh_thread_can_execute() -> None:
    needs_hopper()
    g, pack = linear()
    g.build()
    failures: list[BaseException] = []
    addresses = {name: value.data_ptr() for name, value in pack.items()}
    workspace = torch.empty(max(g.get_workspace_size(), 1), dtype=torch.uint8, device="cuda")

    def work() -> None:
        try:
            # Only addresses: nothing in this thread has touched CUDA before.
            g.execute(addresses, workspace.data_ptr())
        except BaseException as error:
            failures.append(error)

    torch.cuda.synchronize()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failures, failures
    torch.cuda.synchronize()
    check(pack)


@pytest.mark.gpu
def test_many_threads_share_a_plan() -> None:
    needs_hopper()
    g, _ = linear()
    g.build()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(20):
                    _, pack = linear()
                    g.execute(pack)
                    check(pack)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


@pytest.mark.gpu
def test_two_devices_in_one_process() -> None:
    needs_hopper()
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    from cudnn_graph.handle import default_handle

    torch.cuda.set_device(0)
    g, pack = linear()
    g.execute(pack)
    check(pack)
    elsewhere = {name: value.to("cuda:1") for name, value in pack.items()}
    elsewhere["c"].zero_()
    g.execute(elsewhere)
    torch.cuda.synchronize(1)
    check(elsewhere)
    assert torch.cuda.current_device() == 0
    assert default_handle(0) is not default_handle(1) and (default_handle(0).ordinal, default_handle(1).ordinal) == (0, 1)
    fresh = pygraph("second", io_data_type=HALF, intermediate_data_type=FLOAT, compute_data_type=FLOAT)
    a, b = fresh.tensor_like(elsewhere["a"], name="a"), fresh.tensor_like(elsewhere["b"], name="b")
    fresh.relu(fresh.matmul(a, b)).set_output(True).set_name("c")
    elsewhere["c"].zero_()
    fresh.execute(elsewhere)
    torch.cuda.synchronize(1)
    check(elsewhere)
    assert torch.cuda.current_device() == 0


@pytest.mark.gpu
def test_dynamic_shapes_share_kernels() -> None:
    needs_hopper()
    from cudnn_graph.kernel_cache import create_kernel_cache

    cache = create_kernel_cache()
    sizes = []
    for m in (128, 256, 384):
        g, pack = linear(m, kernel_cache=cache, is_dynamic_shape_enabled=True)
        g.build()
        g.execute(pack)
        check(pack)
        sizes.append(len(cache.serialize()))
    assert sizes[0] > 1000
    REPORT["kernel cache"] = {"status": "cudnn", "bytes after each shape": sizes}
    copy = create_kernel_cache()
    copy.deserialize(cache.serialize())
    g, pack = linear(512, kernel_cache=copy, is_dynamic_shape_enabled=True)
    g.execute(pack)
    check(pack)


@pytest.mark.gpu
def test_planning_for_a_described_device() -> None:
    needs_hopper()
    from cudnn_graph.device_properties import create_device_properties

    text = create_device_properties(0).serialize()
    assert json.loads(text)
    g, pack = linear(device_property=create_device_properties(text))
    g.build()
    g.execute(pack)
    check(pack)


@pytest.mark.gpu
def test_grouped_matmul_in_fp8_is_right_or_refused() -> None:
    """Some versions compute only the first expert: 4 experts of 64 rows, K = N = 256."""
    needs_hopper()
    g = pygraph("moe", io_data_type=E4M3, intermediate_data_type=FLOAT, compute_data_type=FLOAT, backend="cudnn")
    token, weight, offsets = g.tensor([1, 256, 256]), g.tensor([4, 256, 256], [65536, 1, 256]), g.tensor([4, 1, 1], data_type=INT32)
    out = g.moe_grouped_matmul(token, weight, offsets).set_output(True).set_data_type(BF16)
    if 91800 <= library.backend_version() < 92100:
        with pytest.raises(cudnnGraphNotSupportedError, match="computes only the rows of the first expert"):
            g.build()
        return
    try:
        g.build()
    except cudnnGraphNotSupportedError as error:
        pytest.skip(f"this libcudnn declines FP8 grouped matmuls: {error}")
    x = torch.randn(256, 256, device="cuda").to(torch.float8_e4m3fn)
    w = torch.randn(4, 256, 256, device="cuda").to(torch.float8_e4m3fn)
    y = torch.empty(1, 256, 256, device="cuda", dtype=torch.bfloat16)
    g.execute({token: x, weight: w, offsets: torch.tensor([0, 64, 128, 192], dtype=torch.int32, device="cuda"), out: y})
    for expert in range(4):
        rows = slice(64 * expert, 64 * expert + 64)
        assert error_of(y[0, rows], x[rows].float() @ w[expert].float().T) <= 8e-3, expert


@pytest.mark.gpu
def test_misaligned_buffers_are_refused() -> None:
    needs_hopper()
    g, pack = linear()
    g.build()
    shifted = torch.empty(pack["a"].numel() + 1, device="cuda", dtype=torch.float16)[1:].view_as(pack["a"])
    with pytest.raises(ValueError, match=r"the buffer for tensor uid 1 \('a'\) starts at 0x\w+, which is not a multiple of 16 bytes"):
        g.execute({**pack, "a": shifted})
    g.execute(pack)
    check(pack)


@pytest.mark.gpu
def test_the_host_cost_of_execute() -> None:
    """graph.execute of a built plan costs at most 10 us more than the call of the library it makes."""
    needs_hopper()
    from time import perf_counter

    from cudnn_graph.handle import default_handle

    g, pack = linear(64, 64, 64)
    g.build()
    workspace = torch.empty(max(g.get_workspace_size(), 1), dtype=torch.uint8, device="cuda")
    g.execute(pack, workspace)
    handle = default_handle()
    plan = g._plans[g._chosen]._plan
    variant = library.extension().Descriptor(Desc.VARIANT_PACK)
    pointers = {g.find_tensor(name).uid: value.data_ptr() for name, value in pack.items()}
    variant.set(Attr.VARIANT_PACK_UNIQUE_IDS, Type.INT64, list(pointers))
    variant.set(Attr.VARIANT_PACK_DATA_POINTERS, Type.VOID_PTR, list(pointers.values()))
    variant.set(Attr.VARIANT_PACK_WORKSPACE, Type.VOID_PTR, workspace.data_ptr())
    variant.finalize()
    raw = functools.partial(library.extension().execute, handle.backend_handle, plan, variant)

    def best(call: Callable[[], None]) -> float:
        times = []
        for _ in range(30):
            torch.cuda.synchronize()
            start = perf_counter()
            for _ in range(100):
                call()
            times.append((perf_counter() - start) / 100)
        return min(times) * 1e6

    whole = best(lambda: g.execute(pack, workspace))
    below = best(raw)
    REPORT["host cost"] = {"status": "cudnn", "execute_us": whole, "library_call_us": below}
    assert whole - below <= 10, (whole, below)
