"""What cuDNN runs on Hopper, compared with torch in float64, and what it declines, served by the reference engine on request.

Every case is one graph. "runs" cases are planned with cuDNN alone; "declined" cases must raise cudnnGraphNotSupportedError with cuDNN alone and give the right
result with ``reference_fallback=True``; "refused" cases raise RuntimeError from a descriptor of cuDNN 9.19 and are served by the reference engine as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

import cudnn
from cudnn_graph.builders.pointwise import PointwiseMethods
from cudnn_graph.dtypes import torch_dtype
from cudnn_graph.enums import convolution_mode

torch = pytest.importorskip("torch")
F = torch.nn.functional

pytestmark = pytest.mark.gpu

HALF, BF16, FLOAT = torch.float16, torch.bfloat16, torch.float32
E4M3 = torch.float8_e4m3fn
PHASE = cudnn.norm_forward_phase
MODE = cudnn.reduction_mode
MOE = cudnn.moe_grouped_matmul_mode
REFUSED_MODES = (MODE.AVG, MODE.NORM1, MODE.NORM2, MODE.MUL_NO_ZEROS)

# Relative error in the norm that a correct result may have: about twice the unit roundoff of the output type, or of TF32 where a float32 product may use it.
TOLERANCE = {HALF: 1e-3, BF16: 8e-3, FLOAT: 1e-5, E4M3: 6e-2, torch.int32: 0.0, torch.int8: 0.0, torch.bool: 0.0}
TF32 = 1e-3


@pytest.fixture(autouse=True)
def hopper():
    """Skips where the graphs cannot run."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip(f"needs compute capability 9.0, found {torch.cuda.get_device_capability()}")
    from cudnn_graph.engines.registry import backend_engine

    reason = backend_engine().unavailable()
    if reason is not None:
        pytest.skip(f"needs libcudnn: {reason}")
    torch.manual_seed(torch.seed() % 2**31)


class Problem:
    """A graph under construction, the buffers of its inputs, and what its outputs should hold."""

    def __init__(self, io=HALF, **options):
        self.graph = cudnn.pygraph(io_data_type=io, intermediate_data_type=FLOAT, compute_data_type=FLOAT, **options)
        self.pack = {}
        self.outputs = []
        self.io = io

    def randn(self, *shape, dtype=None, scale=1.0):
        return (torch.randn(shape, device="cuda") * scale).to(dtype or self.io)

    def input(self, value, **options):
        tensor = self.graph.tensor(list(value.shape), list(value.stride()), value.dtype, **options)
        self.pack[tensor] = value
        return tensor

    def output(self, tensor, want, dtype=None, tolerance=None):
        tensor.set_output(True)
        if dtype is not None:
            tensor.set_data_type(dtype)
        self.outputs.append((tensor, want, tolerance))

    def check(self, **execute):
        self.graph.validate()
        buffers = {}
        for tensor, _, _ in self.outputs:
            dtype = torch_dtype(tensor.get_data_type())
            buffer = torch.empty_strided(tensor.get_dim(), tensor.get_stride(), dtype=dtype, device="cuda")
            # Every byte 0x7f: NaN or a large number in every type, so that an element nobody writes is noticed.
            torch.empty(0, dtype=torch.uint8, device="cuda").set_(buffer.untyped_storage()).fill_(1 if dtype is torch.bool else 0x7F)
            buffers[tensor] = buffer
        self.graph.execute({**self.pack, **buffers}, **execute)
        torch.cuda.synchronize()
        for tensor, want, tolerance in self.outputs:
            compare(tensor.get_name(), buffers[tensor], want, tolerance)
        return list(buffers.values())


def compare(name, got, want, tolerance=None):
    want = want.reshape(got.shape)
    if not got.dtype.is_floating_point:
        assert torch.equal(got.double(), want.double()), f"{name}: {int((got.double() != want.double()).sum())} of {got.numel()} values differ"
        return
    tolerance = TOLERANCE[got.dtype] if tolerance is None else max(tolerance, TOLERANCE[got.dtype])
    difference, want = got.double() - want.double(), want.double()
    assert torch.isfinite(got.double()).all(), f"{name} is not finite"
    relative = (difference.norm() / want.norm().clamp_min(1e-30)).item()
    worst = (difference.abs().max() / want.abs().max().clamp_min(1e-30)).item()
    assert relative <= tolerance, f"{name}: relative error {relative:.2e}, allowed {tolerance:.2e}"
    assert worst <= 8 * tolerance, f"{name}: largest error {worst:.2e} of the largest value, allowed {8 * tolerance:.2e}"


RUNS: dict[str, Callable] = {}
DECLINED: dict[str, Callable] = {}
REFUSED: dict[str, Callable] = {}


def case(table, name):
    def register(function):
        assert name not in table
        table[name] = function
        return function

    return register


# Pointwise: every mode alone.

POSITIVE = {"log", "rsqrt", "sqrt", "pow", "reciprocal", "div", "mod"}
FORWARD = {
    "abs": torch.abs,
    "ceil": torch.ceil,
    "cos": torch.cos,
    "exp": torch.exp,
    "floor": torch.floor,
    "log": torch.log,
    "neg": torch.neg,
    "rsqrt": torch.rsqrt,
    "sin": torch.sin,
    "sqrt": torch.sqrt,
    "tan": torch.tan,
    "erf": torch.erf,
    "identity": lambda x: x,
    "reciprocal": torch.reciprocal,
    "relu": F.relu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.25),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "elu": F.elu,
    "gelu": F.gelu,
    "softplus": F.softplus,
    "gelu_approx_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "swish": F.silu,
    "gen_index": lambda x: torch.arange(x.shape[1], device="cuda").view(1, -1, 1).expand(x.shape),
    "logical_not": lambda x: ~x,
    "add": torch.add,
    "mul": torch.mul,
    "sub": torch.sub,
    "div": torch.div,
    "add_square": lambda a, b: a + b * b,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "bias": torch.add,
    "scale": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
    "mod": torch.fmod,
    "pow": torch.pow,
    "cmp_eq": torch.eq,
    "cmp_neq": torch.ne,
    "cmp_gt": torch.gt,
    "cmp_ge": torch.ge,
    "cmp_lt": torch.lt,
    "cmp_le": torch.le,
}
OPTIONS = {"leaky_relu": {"negative_slope": 0.25}, "leaky_relu_backward": {"negative_slope": 0.25}, "gen_index": {"axis": 1}}


def pointwise_case(name, dtype):
    def build(p: Problem):
        logical = name.startswith("logical")
        two = name.endswith("_backward")
        count = {"binary_select": 3}.get(name, 2 if two or name in BINARY_NAMES else 1)
        # Distances of an eighth keep equal values frequent and comparisons exact.
        values = [torch.randint(-16, 17, (4, 33, 64), device="cuda").div(8).to(dtype) for _ in range(count)]
        if name in POSITIVE:
            values = [value.abs() + 0.5 for value in values]
        if logical:
            values = [value > 0 for value in values]
        if name == "binary_select":
            values[2] = values[2] > 0
        tensors = [p.input(value) for value in values]
        out = getattr(p.graph, name)(*tensors, **OPTIONS.get(name, {}))
        if name == "binary_select":
            want = torch.where(values[2], values[0], values[1])
        elif two:
            leaf = values[1].double().requires_grad_()
            FORWARD[name.removesuffix("_backward")](leaf).backward(values[0].double())
            want = leaf.grad
        else:
            want = FORWARD[name](*(value if logical else value.double() for value in values))
        kept = torch.bool if logical or name.startswith("cmp") else dtype
        # 1 - tanh(x)^2 doubles the error that tanh itself is allowed.
        p.output(out, want, dtype=kept, tolerance=2 * TOLERANCE[kept] if name == "tanh_backward" else None)

    return build


BINARY_NAMES = {
    "add",
    "mul",
    "sub",
    "div",
    "add_square",
    "logical_and",
    "logical_or",
    "bias",
    "scale",
    "max",
    "min",
    "mod",
    "pow",
    *(f"cmp_{kind}" for kind in ("eq", "neq", "gt", "ge", "lt", "le")),
}
for _name in [name for name in vars(PointwiseMethods) if not name.startswith("_")]:
    for _label, _dtype in (("fp32", FLOAT), ("fp16", HALF)):
        RUNS[f"pointwise-{_name}-{_label}"] = pointwise_case(_name, _dtype)


def rank_case(shape):
    def build(p: Problem):
        x = p.randn(*shape)
        p.output(p.graph.relu(p.input(x)), x.relu())

    return build


for _shape in ((640,), (16, 64), (4, 16, 64), (2, 3, 16, 64), (2, 3, 4, 5, 64), (2, 3, 2, 2, 5, 64)):
    RUNS[f"pointwise-rank{len(_shape)}"] = rank_case(_shape)


@case(RUNS, "pointwise-chain-with-broadcast-and-scalar")
def _(p):
    x, b = p.randn(4, 32, 64), p.randn(1, 1, 64)
    y = p.graph.mul(p.graph.add(p.input(x), p.input(b)), 0.5)
    p.output(p.graph.gelu(y), F.gelu((x.double() + b.double()) * 0.5))


@case(RUNS, "pointwise-boolean-output")
def _(p):
    x = p.randn(4, 32, 64)
    p.output(p.graph.cmp_gt(p.input(x), p.graph.tensor_scalar(0.0, cudnn.scalar_type.RUNTIME_PARAM)), x > 0, dtype=torch.bool)


def boolean_chain_case(dtype, kept):
    def build(p: Problem):
        x, y = p.randn(4, 32, 64, dtype=dtype), p.randn(4, 32, 64, dtype=dtype)
        mask = torch.rand(4, 32, 64, device="cuda") > 0.5
        tx, ty, tm = p.input(x), p.input(y), p.input(mask)
        above = p.graph.cmp_gt(tx, ty)
        if kept is not None:
            above.set_data_type(kept)
        both = p.graph.logical_and(above, tm)
        p.output(p.graph.binary_select(tx, ty, p.graph.logical_not(both)), torch.where(~((x > y) & mask), x, y), dtype=dtype)
        p.output(p.graph.binary_select(ty, tx, above), torch.where(x > y, y, x), dtype=dtype)
        p.output(both, (x > y) & mask, dtype=torch.bool)

    return build


for _label, _dtype in (("fp32", FLOAT), ("fp16", HALF), ("bf16", BF16)):
    RUNS[f"pointwise-boolean-chain-{_label}"] = boolean_chain_case(_dtype, torch.bool)
    RUNS[f"pointwise-boolean-chain-default-types-{_label}"] = boolean_chain_case(_dtype, None)


@case(RUNS, "pointwise-number-to-boolean")
def _(p):
    x = torch.randint(-1, 2, (4, 32, 64), device="cuda").float()
    p.output(p.graph.identity(p.input(x)), x != 0, dtype=torch.bool)


@case(RUNS, "pointwise-boolean-to-number")
def _(p):
    mask = torch.rand(4, 32, 64, device="cuda") > 0.5
    x = p.randn(4, 32, 64)
    p.output(p.graph.mul(p.input(x), p.input(mask)), x * mask)


def surrounded(p, shape):
    """Random numbers with NaN behind them, which whoever reads too far meets."""
    count = math.prod(shape)
    memory = torch.full((count + 40000,), math.nan, device="cuda", dtype=p.io)
    memory[:count] = p.randn(count)
    return memory[:count].view(shape)


def broadcast_case(shape, other):
    def build(p: Problem):
        x, y = p.randn(*shape), surrounded(p, other)
        p.output(p.graph.add(p.input(x), p.input(y)), x.double() + y.double())

    return build


for _shape, _other in (
    ((4, 32, 64), (1, 1, 64)),
    ((4, 32, 64), (1, 32, 64)),
    ((4, 32, 64), (4, 1, 64)),
    ((4, 32, 64), (4, 32, 1)),
    ((4, 32, 64), (4, 1, 1)),
    ((4, 32, 64), (1, 1, 1)),
    ((128, 64), (64,)),
    ((128, 64), (128, 1)),
):
    RUNS[f"pointwise-broadcast-{'x'.join(map(str, _other))}-to-{'x'.join(map(str, _shape))}"] = broadcast_case(_shape, _other)


@case(RUNS, "pointwise-channels-last")
def _(p):
    x = p.randn(4, 32, 8, 8).contiguous(memory_format=torch.channels_last)
    s, b = p.randn(1, 32, 1, 1), p.randn(1, 32, 1, 1)
    p.output(p.graph.relu(p.graph.add(p.graph.mul(p.input(x), p.input(s)), p.input(b))), (x.double() * s.double() + b.double()).relu())


# Matmul.


def matmul_case(a_dtype, b_dtype, out_dtype, shape=(3, 64, 96, 80), b_column=False, compute=None, tolerance=None):
    def build(p: Problem):
        batch, m, n, k = shape

        def operand(*dims, dtype):
            if dtype is torch.int8:
                return torch.randint(-8, 8, dims, device="cuda", dtype=torch.int8)
            return p.randn(*dims, dtype=dtype)

        a = operand(batch, m, k, dtype=a_dtype)
        b = operand(batch, n, k, dtype=b_dtype).transpose(1, 2) if b_column else operand(batch, k, n, dtype=b_dtype)
        out = p.graph.matmul(p.input(a), p.input(b), compute_data_type=compute)
        p.output(out, a.double() @ b.double(), dtype=out_dtype, tolerance=tolerance)

    return build


for _column in (False, True):
    _tag = "col" if _column else "row"
    RUNS[f"matmul-fp16-{_tag}"] = matmul_case(HALF, HALF, HALF, b_column=_column)
    RUNS[f"matmul-bf16-{_tag}"] = matmul_case(BF16, BF16, BF16, b_column=_column)
    RUNS[f"matmul-fp32-{_tag}"] = matmul_case(FLOAT, FLOAT, FLOAT, b_column=_column, tolerance=TF32)
    RUNS[f"matmul-int8-{_tag}"] = matmul_case(torch.int8, torch.int8, torch.int32, b_column=_column, compute=torch.int32)
    RUNS[f"matmul-e4m3-{_tag}"] = matmul_case(E4M3, E4M3, BF16, b_column=_column)
RUNS["matmul-fp16-odd-k"] = matmul_case(HALF, HALF, HALF, shape=(2, 32, 48, 37))
RUNS["matmul-fp16-to-fp32"] = matmul_case(HALF, HALF, FLOAT)


@case(RUNS, "matmul-bias-gelu")
def _(p):
    a, b, bias = p.randn(2, 64, 128), p.randn(2, 128, 96), p.randn(1, 1, 96)
    y = p.graph.bias(p.graph.matmul(p.input(a), p.input(b)), p.input(bias))
    p.output(p.graph.gelu(y), F.gelu(a.double() @ b.double() + bias.double()))


@case(RUNS, "matmul-bias-relu-gradient-mask")
def _(p):
    a, b, x = p.randn(2, 64, 128), p.randn(2, 128, 96), p.randn(2, 64, 96)
    p.output(p.graph.relu_backward(p.graph.matmul(p.input(a), p.input(b)), p.input(x)), (a.double() @ b.double()) * (x > 0))


@case(RUNS, "matmul-prologue-int8-to-fp16")
def _(p):
    a, b = torch.randint(-8, 8, (2, 64, 128), device="cuda", dtype=torch.int8), p.randn(2, 128, 96)
    cast = p.graph.identity(p.input(a)).set_data_type(HALF)
    p.output(p.graph.matmul(cast, p.input(b)), a.double() @ b.double())


@case(RUNS, "matmul-two-with-swiglu")
def _(p):
    x, gate, up = p.randn(1, 128, 256), p.randn(1, 256, 128, scale=0.1), p.randn(1, 256, 128, scale=0.1)
    tx = p.input(x)
    g = p.graph.swish(p.graph.matmul(tx, p.input(gate)))
    out = p.graph.mul(g, p.graph.matmul(tx, p.input(up)))
    p.output(out, F.silu(x.double() @ gate.double()) * (x.double() @ up.double()))


@case(RUNS, "matmul-amax-epilogue")
def _(p):
    a, b = p.randn(2, 64, 128), p.randn(2, 128, 96)
    c = p.graph.matmul(p.input(a), p.input(b))
    want = a.double() @ b.double()
    p.output(c, want)
    p.output(p.graph.reduction(c, MODE.AMAX, out_dims=[1, 1, 1]), want.abs().max(), dtype=FLOAT, tolerance=TOLERANCE[HALF])


@case(RUNS, "matmul-bias-relu-with-mask")
def _(p):
    # Small integers: sums are exact, so that their signs are certain.
    a, b, bias = (torch.randint(-2, 3, shape, device="cuda").half() for shape in ((2, 64, 128), (2, 128, 96), (1, 1, 96)))
    want = a.double() @ b.double() + bias.double()
    y = p.graph.bias(p.graph.matmul(p.input(a), p.input(b)), p.input(bias))
    p.output(p.graph.relu(y), want.relu())
    p.output(p.graph.cmp_gt(y, 0.5), want > 0.5, dtype=torch.bool)


@case(RUNS, "matmul-condition-and-mask")
def _(p):
    a, b = (torch.randint(-2, 3, shape, device="cuda").half() for shape in ((2, 64, 128), (2, 128, 96)))
    mask = torch.rand(2, 64, 96, device="cuda") > 0.5
    want = a.double() @ b.double()
    c = p.graph.matmul(p.input(a), p.input(b))
    chosen = p.graph.logical_and(p.graph.cmp_gt(c, 0.5).set_data_type(torch.bool), p.input(mask)).set_data_type(torch.bool)
    p.output(p.graph.binary_select(c, 0.0, chosen), torch.where((want > 0.5) & mask, want, 0.0))


def matmul_broadcast_case(other):
    def build(p: Problem):
        a, b, r = p.randn(3, 64, 128), p.randn(3, 128, 96), surrounded(p, other)
        p.output(p.graph.add(p.graph.matmul(p.input(a), p.input(b)), p.input(r)), a.double() @ b.double() + r.double())

    return build


for _other in ((1, 64, 96), (1, 1, 96), (3, 1, 96), (3, 64, 1), (1, 64, 1), (3, 1, 1), (1, 1, 1)):
    RUNS[f"matmul-plus-{'x'.join(map(str, _other))}"] = matmul_broadcast_case(_other)


@case(RUNS, "matmul-row-sum-epilogue")
def _(p):
    a, b = p.randn(2, 64, 128), p.randn(2, 128, 96).abs()
    a = a.abs()
    c = p.graph.matmul(p.input(a), p.input(b))
    want = a.double() @ b.double()
    p.output(p.graph.reduction(c, MODE.ADD, out_dims=[2, 64, 1]).set_stride([64, 1, 1]), want.sum(-1), dtype=FLOAT)


@case(RUNS, "matmul-rank2")
def _(p):
    a, b = p.randn(64, 128), p.randn(128, 96)
    p.output(p.graph.matmul(p.input(a), p.input(b)), a.double() @ b.double())


@case(RUNS, "matmul-rank4")
def _(p):
    a, b = p.randn(2, 3, 64, 128), p.randn(2, 3, 128, 96)
    p.output(p.graph.matmul(p.input(a), p.input(b)), a.double() @ b.double())


@case(RUNS, "matmul-broadcast-batch")
def _(p):
    a, b = p.randn(4, 64, 128), p.randn(1, 128, 96)
    p.output(p.graph.matmul(p.input(a), p.input(b)), a.double() @ b.double())


# Convolution.

SPATIAL = {"stride": [1, 1], "dilation": [1, 1]}


def conv_data(p, image=(2, 32, 14, 14), weight=(64, 32, 3, 3), dtype=None, last=True):
    def data(shape):
        value = torch.randint(-4, 5, shape, device="cuda").to(dtype) if dtype is torch.int8 else p.randn(*shape, dtype=dtype, scale=0.5)
        if not last:
            return value
        if value.dim() == 3:
            return value.transpose(1, 2).contiguous().transpose(1, 2)
        return value.contiguous(memory_format=torch.channels_last if value.dim() == 4 else torch.channels_last_3d)

    return data(image), data(weight)


def conv(x, w, **options):
    call = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[x.dim()]
    return call(x.double(), w.double(), **options)


def fprop_case(dtype, last=True, image=(2, 32, 14, 14), weight=(64, 32, 3, 3), out=None, tolerance=None, compute=None):
    def build(p: Problem):
        x, w = conv_data(p, image, weight, dtype, last)
        n = x.dim() - 2
        groups = image[1] // weight[1]
        y = p.graph.conv_fprop(p.input(x), p.input(w), padding=[1] * n, stride=[1] * n, dilation=[1] * n, compute_data_type=compute)
        want = conv(x, w, padding=1, groups=groups)
        if not last:
            y.set_stride(list(want.stride()))
        p.output(y, want, dtype=out or dtype, tolerance=tolerance)

    return build


def grad_case(which, dtype, tolerance=None, stride=1):
    def build(p: Problem):
        x, w = conv_data(p, dtype=dtype)
        xd, wd = x.double().requires_grad_(), w.double().requires_grad_()
        y = F.conv2d(xd, wd, padding=1, stride=stride)
        dy = torch.randn_like(y).to(dtype).contiguous(memory_format=torch.channels_last)
        y.backward(dy.double())
        options = {"padding": [1, 1], "stride": [stride, stride], "dilation": [1, 1]}
        if which == "dgrad":
            out = p.graph.conv_dgrad(loss=p.input(dy), filter=p.input(w), **options).set_dim(list(x.shape))
            p.output(out, xd.grad, dtype=dtype, tolerance=tolerance)
        else:
            out = p.graph.conv_wgrad(image=p.input(x), loss=p.input(dy), **options).set_dim(list(w.shape))
            p.output(out, wd.grad, dtype=dtype, tolerance=tolerance)

    return build


for _label, _dtype, _tolerance in (("fp16", HALF, None), ("bf16", BF16, None), ("fp32", FLOAT, TF32)):
    RUNS[f"conv-fprop-nhwc-{_label}"] = fprop_case(_dtype, tolerance=_tolerance)
    RUNS[f"conv-dgrad-nhwc-{_label}"] = grad_case("dgrad", _dtype, _tolerance)
    RUNS[f"conv-wgrad-nhwc-{_label}"] = grad_case("wgrad", _dtype, _tolerance)
    RUNS[f"conv-dgrad-stride2-nhwc-{_label}"] = grad_case("dgrad", _dtype, _tolerance, stride=2)
RUNS["conv-fprop-nchw-fp32"] = fprop_case(FLOAT, last=False, tolerance=TF32)
RUNS["conv-fprop-nchw-fp16"] = fprop_case(HALF, last=False)
RUNS["conv-fprop-ndhwc-fp16"] = fprop_case(HALF, image=(2, 16, 6, 7, 8), weight=(32, 16, 3, 3, 3))
RUNS["conv-fprop-1d-fp16"] = fprop_case(HALF, image=(2, 32, 40), weight=(64, 32, 3))
RUNS["conv-fprop-grouped-fp16"] = fprop_case(HALF, image=(2, 64, 14, 14), weight=(64, 16, 3, 3))
RUNS["conv-fprop-int8"] = fprop_case(torch.int8, out=torch.int32, compute=torch.int32)
RUNS["conv-fprop-e4m3"] = fprop_case(E4M3, out=HALF)


@case(RUNS, "conv-asymmetric-padding")
def _(p):
    x, w = conv_data(p)
    y = p.graph.conv_fprop(p.input(x), p.input(w), pre_padding=[0, 1], post_padding=[2, 1], **SPATIAL)
    p.output(y, conv(F.pad(x, (1, 1, 0, 2)), w))


@case(RUNS, "conv-flipped-filter")
def _(p):
    x, w = conv_data(p)
    y = p.graph.conv_fprop(p.input(x), p.input(w), padding=[1, 1], convolution_mode=convolution_mode.CONVOLUTION, **SPATIAL)
    p.output(y, conv(x, w.flip((2, 3)), padding=1))


@case(RUNS, "conv-scale-bias-relu")
def _(p):
    x, w = conv_data(p)
    s, b = p.randn(1, 64, 1, 1), p.randn(1, 64, 1, 1)
    y = p.graph.conv_fprop(p.input(x), p.input(w), padding=[1, 1], **SPATIAL)
    y = p.graph.relu(p.graph.bias(p.graph.scale(y, p.input(s)), p.input(b)))
    p.output(y, (conv(x, w, padding=1) * s.double() + b.double()).relu())


@case(RUNS, "conv-dgrad-relu-backward")
def _(p):
    x, w = conv_data(p)
    xd = x.double().requires_grad_()
    y = F.conv2d(xd, w.double(), padding=1)
    dy = torch.randn_like(y).half().contiguous(memory_format=torch.channels_last)
    y.backward(dy.double())
    dx = p.graph.conv_dgrad(loss=p.input(dy), filter=p.input(w), padding=[1, 1], **SPATIAL).set_dim(list(x.shape))
    p.output(p.graph.relu_backward(dx, p.input(x)), xd.grad * (x > 0))


@case(RUNS, "conv-genstats")
def _(p):
    x, w = conv_data(p)
    y = p.graph.conv_fprop(p.input(x), p.input(w), padding=[1, 1], **SPATIAL)
    want = conv(x, w, padding=1)
    p.output(y, want)
    total, square = p.graph.genstats(y)
    # Sums of either sign cancel: their error is that of single values, not of the sum.
    p.output(total, want.sum((0, 2, 3)), dtype=FLOAT, tolerance=2e-3)
    p.output(square, (want * want).sum((0, 2, 3)), dtype=FLOAT, tolerance=2e-3)


# Norms.


def norm_parts(p, dtype, kind):
    if kind in ("rmsnorm", "layernorm"):
        return p.randn(256, 512, 1, 1, dtype=dtype), (1, 512, 1, 1), (1,)
    if kind == "adalayernorm":
        return p.randn(4, 64, 512, dtype=dtype), (4, 1, 512), (2,)
    x = p.randn(8, 32, 12, 12, dtype=dtype).contiguous(memory_format=torch.channels_last)
    return x, (1, 32, 1, 1), {"instancenorm": (2, 3), "batchnorm": (0, 2, 3)}[kind]


def norm_case(kind, dtype, phase):
    def build(p: Problem):
        x, scale_dim, axes = norm_parts(p, dtype, kind)
        own = kind == "rmsnorm"
        s, b = (p.randn(*scale_dim, dtype=dtype if own else FLOAT) for _ in range(2))
        xd, sd, bd = (t.double().requires_grad_() for t in (x, s, b))
        mean = torch.zeros((), device="cuda", dtype=torch.float64) if own else xd.mean(axes, keepdim=True)
        inv = 1 / (((xd - mean) ** 2).mean(axes, keepdim=True) + 1e-5).sqrt()
        want = (xd - mean) * inv * sd + bd
        ts, tx = p.input(s), p.input(x)
        if phase == "backward":
            dy = torch.empty_like(x).copy_(torch.randn_like(x))
            want.backward(dy.double())
            stats = [p.input(t.detach().float().contiguous()) for t in ((inv,) if own else (mean, inv))]
            outs = getattr(p.graph, f"{kind}_backward")(p.input(dy), tx, ts, *stats)
            for out, grad, kept in zip(outs, (xd.grad, sd.grad, bd.grad), (dtype, s.dtype, s.dtype), strict=True):
                p.output(out, grad, dtype=kept, tolerance=1e-4)
            return
        if kind == "batchnorm":
            outs = p.graph.batchnorm(tx, ts, p.input(b), epsilon=1e-5)[:3]
        else:
            outs = getattr(p.graph, kind)(norm_forward_phase=PHASE[phase.upper()], input=tx, scale=ts, bias=p.input(b), epsilon=1e-5)
        p.output(outs[0], want.detach(), dtype=dtype, tolerance=1e-5)
        if phase == "training":
            for out, stat in zip(outs[1:], ((inv,) if own else (mean, inv)), strict=True):
                p.output(out, stat.detach(), dtype=FLOAT, tolerance=1e-4)

    return build


for _label, _dtype in (("fp16", HALF), ("bf16", BF16), ("fp32", FLOAT)):
    for _kind in ("rmsnorm", "layernorm", "adalayernorm", "instancenorm", "batchnorm"):
        for _phase in ("training", "backward", *(() if _kind == "batchnorm" else ("inference",))):
            RUNS[f"{_kind}-{_phase}-{_label}"] = norm_case(_kind, _dtype, _phase)


@case(RUNS, "batchnorm-running-statistics")
def _(p):
    x = p.randn(8, 32, 12, 12).contiguous(memory_format=torch.channels_last)
    s, b, rm, rv = (p.randn(1, 32, 1, 1, dtype=FLOAT).abs() for _ in range(4))
    outs = p.graph.batchnorm(p.input(x), p.input(s), p.input(b), p.input(rm), p.input(rv), 1e-5, 0.25)
    xd = x.double()
    mean, var = xd.mean((0, 2, 3), keepdim=True), xd.var((0, 2, 3), keepdim=True, unbiased=False)
    count = x.numel() // 32
    wants = (
        (xd - mean) / (var + 1e-5).sqrt() * s + b,
        mean,
        1 / (var + 1e-5).sqrt(),
        0.75 * rm + 0.25 * mean,
        0.75 * rv + 0.25 * var * count / (count - 1),
    )
    for out, want, dtype in zip(outs, wants, (HALF, FLOAT, FLOAT, FLOAT, FLOAT), strict=True):
        p.output(out, want, dtype=dtype, tolerance=1e-4)


@case(RUNS, "batchnorm-add-relu")
def _(p):
    x, residual = (p.randn(8, 32, 12, 12).contiguous(memory_format=torch.channels_last) for _ in range(2))
    s, b = p.randn(1, 32, 1, 1, dtype=FLOAT), p.randn(1, 32, 1, 1, dtype=FLOAT)
    y, mean, inv, _, _ = p.graph.batchnorm(p.input(x), p.input(s), p.input(b), epsilon=1e-5)
    xd = x.double()
    m, v = xd.mean((0, 2, 3), keepdim=True), xd.var((0, 2, 3), keepdim=True, unbiased=False)
    p.output(p.graph.relu(p.graph.add(y, p.input(residual))), ((xd - m) / (v + 1e-5).sqrt() * s + b + residual).relu())
    p.output(mean, m, dtype=FLOAT, tolerance=1e-4)
    p.output(inv, 1 / (v + 1e-5).sqrt(), dtype=FLOAT, tolerance=1e-4)


for _label, _dtype in (("fp16", HALF), ("bf16", BF16), ("fp32", FLOAT)):

    @case(RUNS, f"batchnorm-inference-{_label}")
    def _(p, dtype=_dtype):
        x = p.randn(8, 32, 12, 12, dtype=dtype).contiguous(memory_format=torch.channels_last)
        stats = [p.randn(1, 32, 1, 1, dtype=FLOAT) for _ in range(4)]
        m, i, s, b = stats
        y = p.graph.batchnorm_inference(p.input(x), *(p.input(t) for t in stats))
        p.output(y, (x.double() - m) * i * s + b, dtype=dtype)


# Grouped matmul, and views of inputs.


def moe_data(p, rows=192, experts=4, k=64, n=96):
    # Hopper takes weights whose K is contiguous.
    token, weight = p.randn(1, rows, k, dtype=BF16), p.randn(experts, n, k, dtype=BF16).transpose(1, 2)
    offsets = torch.tensor([0, 64, 64, 130], dtype=torch.int32, device="cuda").view(-1, 1, 1)
    return token, weight, offsets, [(0, 64), (64, 64), (64, 130), (130, rows)]


@case(RUNS, "moe-none-bf16")
def _(p):
    token, weight, offsets, spans = moe_data(p)
    want = torch.cat([token[0, a:b].double() @ weight[e].double() for e, (a, b) in enumerate(spans)])
    p.output(p.graph.moe_grouped_matmul(p.input(token), p.input(weight), p.input(offsets)), want, dtype=BF16)


@case(DECLINED, "moe-gather-bf16")
def _(p):
    token, weight, offsets, spans = moe_data(p)
    index = torch.randint(0, 192, (192, 1, 1), dtype=torch.int32, device="cuda")
    rows = token[0, index.flatten().long()]
    want = torch.cat([rows[a:b].double() @ weight[e].double() for e, (a, b) in enumerate(spans)])
    out = p.graph.moe_grouped_matmul(p.input(token), p.input(weight), p.input(offsets), token_index=p.input(index), mode=MOE.GATHER)
    p.output(out, want, dtype=BF16)


@case(RUNS, "slice-of-an-input-then-relu")
def _(p):
    x = p.randn(4, 64, 128)
    part = p.graph.slice(p.input(x), [slice(1, 3), slice(0, 32), slice(64, 128)])
    p.output(p.graph.relu(part), x[1:3, :32, 64:].relu())


@case(RUNS, "transpose-of-an-input-then-matmul")
def _(p):
    a, b = p.randn(2, 64, 128), p.randn(2, 96, 128)
    p.output(p.graph.matmul(p.input(a), p.graph.transpose(p.input(b), [0, 2, 1])), a.double() @ b.double().transpose(1, 2))


# Declined by cuDNN 9.19 on Hopper.


@case(DECLINED, "genstats-alone")
def _(p):
    x = p.randn(4, 32, 8, 8).contiguous(memory_format=torch.channels_last)
    total, square = p.graph.genstats(p.input(x))
    p.output(total, x.double().sum((0, 2, 3)), dtype=FLOAT, tolerance=1e-4)
    p.output(square, (x.double() ** 2).sum((0, 2, 3)), dtype=FLOAT)


REDUCE = {
    MODE.ADD: lambda x: x.sum(-1),
    MODE.MUL: lambda x: x.prod(-1),
    MODE.MIN: lambda x: x.amin(-1),
    MODE.MAX: lambda x: x.amax(-1),
    MODE.AMAX: lambda x: x.abs().amax(-1),
    MODE.AVG: lambda x: x.mean(-1),
    MODE.NORM1: lambda x: x.abs().sum(-1),
    MODE.NORM2: lambda x: x.norm(dim=-1),
    MODE.MUL_NO_ZEROS: lambda x: x.prod(-1),
}
for _mode in REDUCE:

    @case(REFUSED if _mode in REFUSED_MODES else DECLINED, f"reduction-{_mode.name.lower()}-alone")
    def _(p, mode=_mode):
        x = torch.rand(4, 32, 8, device="cuda") + 0.5
        p.output(p.graph.reduction(p.input(x), mode, out_dims=[4, 32, 1]), REDUCE[mode](x.double()), dtype=FLOAT)


@case(DECLINED, "pointwise-then-reduction")
def _(p):
    x = p.randn(4, 32, 64, dtype=FLOAT)
    p.output(p.graph.reduction(p.graph.exp(p.input(x)), MODE.ADD, out_dims=[4, 32, 1]), x.double().exp().sum(-1), dtype=FLOAT)


@case(DECLINED, "manual-softmax")
def _(p):
    x = p.randn(4, 32, 64, dtype=FLOAT)
    tx = p.input(x)
    e = p.graph.exp(p.graph.sub(tx, p.graph.reduction(tx, MODE.MAX, out_dims=[4, 32, 1])))
    p.output(p.graph.div(e, p.graph.reduction(e, MODE.ADD, out_dims=[4, 32, 1])), x.double().softmax(-1), dtype=FLOAT)


@case(DECLINED, "moe-row-major-weights")
def _(p):
    token, weight, offsets, spans = moe_data(p)
    want = torch.cat([token[0, a:b].double() @ weight[e].double() for e, (a, b) in enumerate(spans)])
    p.output(p.graph.moe_grouped_matmul(p.input(token), p.input(weight.contiguous()), p.input(offsets)), want, dtype=BF16)


@case(DECLINED, "moe-boundaries")
def _(p):
    token, weight, offsets, spans = moe_data(p)
    ends = torch.cat([offsets.flatten(), torch.tensor([192], device="cuda", dtype=torch.int32)]).view(-1, 1, 1)
    want = torch.cat([token[0, a:b].double() @ weight[e].double() for e, (a, b) in enumerate(spans)])
    p.output(p.graph.moe_grouped_matmul(p.input(token), p.input(weight), p.input(ends)), want, dtype=BF16)


@case(DECLINED, "select-with-a-mask-of-one-column")
def _(p):
    x, y, mask = p.randn(4, 32, 64), p.randn(4, 32, 64), torch.rand(4, 32, 1, device="cuda") > 0.5
    p.output(p.graph.binary_select(p.input(x), p.input(y), p.input(mask)), torch.where(mask, x, y))


# What cuDNN would repeat wrongly is not handed to it.
for _other in ((1, 32, 1), (1, 32, 1, 1)):
    DECLINED[f"pointwise-broadcast-{'x'.join(map(str, _other))}"] = broadcast_case((4, 32, 64) if len(_other) == 3 else (4, 32, 8, 8), _other)


@case(DECLINED, "pointwise-result-without-the-last-axis")
def _(p):
    x, y = p.randn(4, 32, 64), p.randn(4, 32, 1)
    p.output(p.graph.mul(p.input(x), p.graph.exp(p.input(y))), x.double() * y.double().exp())


@case(DECLINED, "pointwise-mixed-layouts")
def _(p):
    x = p.randn(4, 32, 8, 8)
    y = p.randn(4, 32, 8, 8).contiguous(memory_format=torch.channels_last)
    p.output(p.graph.add(p.input(x), p.input(y)), x.double() + y.double())


@case(DECLINED, "reshape-alone")
def _(p):
    x = p.randn(4, 32, 64)
    p.output(p.graph.reshape(p.input(x), out_dims=[4, 64, 32]), x.reshape(4, 64, 32))


@case(DECLINED, "reshape-between-pointwise")
def _(p):
    x = p.randn(4, 32, 64)
    p.output(p.graph.neg(p.graph.reshape(p.graph.relu(p.input(x)), out_dims=[4, 64, 32])), -x.relu().reshape(4, 64, 32))


@case(DECLINED, "concatenate")
def _(p):
    x, y = p.randn(4, 32, 64), p.randn(4, 16, 64)
    p.output(p.graph.concatenate(inputs=[p.input(x), p.input(y)], axis=1), torch.cat([x, y], 1))


@case(DECLINED, "reshape-logical")
def _(p):
    x = p.randn(4, 32, 64)
    p.output(p.graph.reshape(p.graph.relu(p.input(x)), cudnn.reshape_mode.LOGICAL, out_dims=[8, 16, 64]), x.relu().reshape(8, 16, 64))


@case(DECLINED, "transpose-of-a-result")
def _(p):
    x = p.randn(4, 32, 64)
    p.output(p.graph.transpose(p.graph.relu(p.input(x)), [0, 2, 1]), x.relu().transpose(1, 2))


@case(DECLINED, "slice-of-a-result")
def _(p):
    x = p.randn(4, 32, 64)
    p.output(p.graph.slice(p.graph.relu(p.input(x)), [slice(1, 3), slice(None), slice(0, 64, 2)]), x.relu()[1:3, :, ::2])


@case(DECLINED, "moe-weight-gradient")
def _(p):
    token, _, offsets, spans = moe_data(p)
    grad = p.randn(1, 192, 96, dtype=BF16)
    want = torch.stack([token[0, a:b].double().T @ grad[0, a:b].double() for a, b in spans])
    p.output(p.graph.moe_grouped_matmul_bwd(p.input(grad), p.input(token), p.input(offsets), out_dims=[4, 64, 96]), want, dtype=BF16)


@case(DECLINED, "block-scaled-matmul-mxfp8")
def _(p):
    def operand(rows):
        data = p.randn(1, rows, 128, dtype=E4M3)
        scale = torch.randint(124, 131, (1, rows, 4), device="cuda", dtype=torch.uint8).view(torch.float8_e8m0fnu)
        return data, scale, data.double() * scale.double().repeat_interleave(32, -1)

    (a, sa, wide_a), (b, sb, wide_b) = operand(128), operand(256)
    ta = p.graph.block_scale_dequantize(p.input(a), p.input(sa), [1, 32])
    b, sb = b.transpose(1, 2), sb.transpose(1, 2)
    tb = p.graph.block_scale_dequantize(p.input(b), p.input(sb), [32, 1])
    p.output(p.graph.matmul(ta, tb), wide_a @ wide_b.transpose(1, 2), dtype=BF16, tolerance=1e-2)


@case(DECLINED, "block-scale-quantize")
def _(p):
    x = torch.randint(-8, 9, (1, 128, 128), device="cuda").float()
    y, scale = p.graph.block_scale_quantize(p.input(x), block_size=32)
    exponent = torch.ceil(torch.log2(x.double().view(1, 128, 4, 32).abs().amax(-1) / 448))
    p.output(scale, torch.exp2(exponent), dtype=torch.float8_e8m0fnu, tolerance=1e-6)
    p.output(y, x.double() / torch.exp2(exponent).repeat_interleave(32, -1), dtype=E4M3)


TOLERANCE[torch.float8_e8m0fnu] = 0.0

# From this version on the library has the operation.
ARRIVES = {"moe-boundaries": 92200, "reshape-logical": 92200, "transpose-of-a-result": 92200, "slice-of-a-result": 92200, "moe-weight-gradient": 92200}


ATOMIC_SUMS = {"matmul-row-sum-epilogue", "conv-genstats"}

# The tests over the tables.


@pytest.mark.parametrize("name", RUNS)
def test_runs(name):
    problem = Problem(backend="cudnn")
    RUNS[name](problem)
    problem.graph.build()
    assert problem.graph.selected_engine is None and problem.graph.backend_plan_entries()
    first = problem.check()
    second = problem.check()
    chosen = problem.graph.plans[problem.graph.inspect()["selected_plan"]]
    # A fused sum is gathered by atomic additions, without a note that says so.
    if cudnn.numerical_note.NONDETERMINISTIC not in chosen.numerical_notes and name not in ATOMIC_SUMS:
        for one, two in zip(first, second, strict=True):
            assert torch.equal(one.double(), two.double()), "two runs of one plan differ"


@pytest.mark.parametrize("name", DECLINED)
def test_declined_by_cudnn_and_served_by_the_reference_engine(name):
    if cudnn.backend_version() >= ARRIVES.get(name, math.inf):
        pytest.skip(f"cuDNN {cudnn.backend_version()} has the operation")
    problem = Problem(backend="cudnn")
    DECLINED[name](problem)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError) as caught:
        problem.graph.build()
    assert "backend: " in str(caught.value) or "No valid engine configs for" in str(caught.value)
    problem = Problem(reference_fallback=True)
    DECLINED[name](problem)
    problem.check()
    assert problem.graph.selected_engine.name in ("reference", "gemm_reference")


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_a_descriptor_and_served_by_the_reference_engine(name):
    problem = Problem(backend="cudnn")
    REFUSED[name](problem)
    with pytest.raises(RuntimeError):
        problem.graph.build()
    problem = Problem(reference_fallback=True)
    REFUSED[name](problem)
    problem.check()


def test_scatter_is_planned_and_right_or_declined():
    token, weight, offsets, spans = moe_data(Problem())
    index = torch.randperm(96, device="cuda").repeat_interleave(2).int().view(1, 192, 1)
    ks = torch.tensor([0, 1], device="cuda", dtype=torch.int32).repeat(96).view(1, 192, 1)
    rows = torch.cat([token[0, a:b].double() @ weight[e].double() for e, (a, b) in enumerate(spans)])
    want = torch.empty_like(rows)
    want[(index * 2 + ks).flatten().long()] = rows

    def build(**options):
        p = Problem(**options)
        out = p.graph.moe_grouped_matmul(
            p.input(token), p.input(weight), p.input(offsets), token_index=p.input(index), token_ks=p.input(ks), mode=MOE.SCATTER, top_k=2
        )
        p.output(out, want, dtype=BF16)
        return p

    try:
        problem = build(backend="cudnn")
        problem.graph.build()
    except cudnn.cudnnGraphNotSupportedError:
        problem = build(reference_fallback=True)
    problem.check()


def test_features_that_need_a_newer_library():
    version = cudnn.backend_version()
    problem = Problem(backend="cudnn", is_override_shape_enabled=True)
    problem.graph.relu(problem.input(problem.randn(2, 8, 8))).set_output(True)
    if version < 92100:
        with pytest.raises(RuntimeError, match="9.21"):
            problem.graph.build()
    else:
        problem.graph.build()
    problem = Problem(backend="cudnn")
    x = problem.randn(2, 8, 8)
    constant = problem.graph.tensor_scalar(2.0, cudnn.scalar_type.COMPILE_TIME_CONST)
    problem.output(problem.graph.mul(problem.input(x), constant), 2 * x.double())
    if version < 92200:
        with pytest.raises(RuntimeError, match="9.22"):
            problem.graph.build()
    else:
        problem.check()


# Plans.


def matmul_problem(**options):
    problem = Problem(**{"backend": "cudnn", **options})
    RUNS["matmul-bias-gelu"](problem)
    return problem


@pytest.mark.parametrize("name", ["matmul-fp16-row", "conv-fprop-nhwc-fp16", "conv-scale-bias-relu", "conv-fprop-int8"])
def test_every_plan_that_builds_is_right(name):
    problem = Problem(backend="cudnn")
    RUNS[name](problem)
    graph = problem.graph
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.B, cudnn.heur_mode.FALLBACK])
    graph.build_plans(cudnn.build_plan_policy.ALL)
    built = [plan["index"] for plan in graph.inspect()["plans"] if plan["built"]]
    assert built and len({plan.name for plan in graph.plans}) == graph.get_execution_plan_count()
    # FP32 accumulation in another order may round differently; engines of reduced precision are allowed what their note says.
    reduced = cudnn.numerical_note.REDUCED_PRECISION_REDUCTION
    for index in built:
        graph.select_plan(index)
        if reduced in graph.plans[index].numerical_notes:
            continue
        problem.check()
        assert graph.get_plan_name_at_index(index).find(f"eng{graph.get_engine_and_knobs_at_index(index)[0]}") >= 0


def test_explicit_engine_and_knobs():
    problem = matmul_problem()
    problem.graph.build()
    engine_id, knobs = problem.graph.get_engine_and_knobs_at_index(problem.graph.inspect()["selected_plan"])
    again = matmul_problem()
    again.graph.create_execution_plan(engine_id, knobs)
    again.graph.build_plans()
    again.check()
    assert again.graph.get_engine_count() > 0
    ranges = {info.type: info for info in again.graph.get_knobs_for_engine(engine_id)}
    assert all(kind in ranges for kind in knobs)
    with pytest.raises(ValueError, match="no engine"):
        again.graph.create_execution_plan(9999, {})


def test_filters_on_real_plans():
    note = cudnn.behavior_note.RUNTIME_COMPILATION
    problem = Problem(backend="cudnn")
    RUNS["matmul-fp16-row"](problem)
    problem.graph.create_execution_plans()
    problem.graph.deselect_behavior_notes([note])
    problem.graph.check_support()
    problem.graph.build_plans()
    assert note not in problem.graph.get_behavior_notes()
    problem.check()
    problem = Problem(backend="cudnn")
    RUNS["matmul-fp16-row"](problem)
    problem.graph.create_execution_plans()
    problem.graph.deselect_workspace_greater_than(0)
    problem.graph.check_support()
    problem.graph.build_plans()
    assert problem.graph.get_workspace_size() == 0
    problem.check()
    problem = Problem(backend="cudnn")
    RUNS["matmul-fp16-row"](problem)
    problem.graph.create_execution_plans()
    problem.graph.deselect_engines(["eng"])
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="No valid engine configs for matmul"):
        problem.graph.check_support()


def test_filtered_numerical_notes():
    """What is left has none of the notes. That is no promise of FP32 products: the engine over cuBLASLt uses TF32 and has no note."""
    problem = Problem(io=FLOAT, backend="cudnn")
    a, b = problem.randn(2, 64, 256), problem.randn(2, 256, 96)
    problem.output(problem.graph.matmul(problem.input(a), problem.input(b)), a.double() @ b.double(), tolerance=TF32)
    barred = {cudnn.numerical_note.TENSOR_CORE, cudnn.numerical_note.DOWN_CONVERT_INPUTS}
    problem.graph.deselect_numeric_notes(list(barred))
    problem.check()
    chosen = problem.graph.plans[problem.graph.inspect()["selected_plan"]]
    assert not barred & set(chosen.numerical_notes)


@pytest.mark.parametrize("include_kernels", [True, False])
@pytest.mark.parametrize("name", ["matmul-bias-gelu", "conv-scale-bias-relu", "layernorm-training-fp16"])
def test_serialized_plans_give_the_same_bits(name, include_kernels):
    problem = Problem(backend="cudnn")
    RUNS[name](problem)
    problem.graph.build()
    first = problem.check()
    data = problem.graph.serialize(include_kernels=include_kernels)
    other = cudnn.pygraph()
    other.deserialize(data)
    buffers = [torch.empty_like(one).fill_(0) for one in first]
    pack = {tensor.get_uid(): value for tensor, value in problem.pack.items()}
    pack |= {tensor.get_uid(): buffer for (tensor, _, _), buffer in zip(problem.outputs, buffers, strict=True)}
    other.execute(pack)
    for one, two in zip(first, buffers, strict=True):
        assert torch.equal(one, two)


def test_dynamic_shape_and_kernel_cache():
    cache = cudnn.create_kernel_cache()
    for rows in (64, 128, 200):
        problem = Problem(backend="cudnn", is_dynamic_shape_enabled=True, kernel_cache=cache)
        a, b = problem.randn(1, rows, 128), problem.randn(1, 128, 64)
        problem.output(problem.graph.relu(problem.graph.matmul(problem.input(a), problem.input(b))), (a.double() @ b.double()).relu())
        problem.check()


# Execution.


def test_workspace_given_missing_or_too_small():
    problem = Problem(backend="cudnn")
    RUNS["matmul-fp16-row"](problem)
    graph = problem.graph
    graph.build()
    size = graph.get_workspace_size()
    problem.check()
    problem.check(workspace=torch.empty(max(size, 1), dtype=torch.uint8, device="cuda"))
    if size:
        problem.check(workspace=torch.empty(size, dtype=torch.uint8, device="cuda").data_ptr())
        with pytest.raises(ValueError, match=f"needs a workspace of {size} bytes"):
            problem.check(workspace=torch.empty(size - 1, dtype=torch.uint8, device="cuda"))


def test_side_stream_handle_and_capture():
    problem = matmul_problem()
    problem.graph.build()
    a = next(iter(problem.pack))
    tensor, _, _ = problem.outputs[0]
    out = torch.zeros(tensor.get_dim(), dtype=HALF, device="cuda")
    (reference,) = problem.check()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        out.zero_()
        problem.graph.execute({**problem.pack, tensor: out})
    stream.synchronize()
    assert torch.equal(out, reference), "work must follow torch's current stream"

    handle = cudnn.create_handle()
    cudnn.set_stream(handle=handle, stream=stream.cuda_stream)
    out.zero_()
    torch.cuda.synchronize()
    problem.graph.execute({**problem.pack, tensor: out}, handle=handle)
    stream.synchronize()
    assert torch.equal(out, reference)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        problem.graph.execute({**problem.pack, tensor: out})
    problem.pack[a].copy_(torch.randn_like(problem.pack[a]))
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    eager = torch.empty_like(out)
    problem.graph.execute({**problem.pack, tensor: eager})
    assert torch.equal(out, eager) and not torch.equal(out, reference)
    cudnn.destroy_handle(handle)
    with pytest.raises(RuntimeError, match="destroyed"):
        problem.graph.execute({**problem.pack, tensor: out}, handle=handle)


def test_execute_in_a_fresh_thread():
    import threading

    problem = matmul_problem()
    problem.graph.build()
    failures = []

    def work():
        try:
            for _ in range(10):
                problem.check()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_build_in_a_fresh_thread_by_address():
    """A thread that has done no CUDA work executes with nothing but addresses."""
    import threading

    problem = matmul_problem()
    problem.graph.validate()
    tensor, want, _ = problem.outputs[0]
    out = torch.zeros(tensor.get_dim(), dtype=HALF, device="cuda")
    addresses = {t.get_uid(): v.data_ptr() for t, v in problem.pack.items()} | {tensor.get_uid(): out.data_ptr()}
    workspace = torch.empty(1 << 26, dtype=torch.uint8, device="cuda")
    failures = []

    def work():
        try:
            problem.graph.execute(addresses, workspace=workspace.data_ptr())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert failures == []
    compare("out", out, want)


def test_second_device():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    torch.cuda.set_device(0)
    problem = matmul_problem()
    problem.graph.build()
    (reference,) = problem.check()
    tensor = problem.outputs[0][0]
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        out = torch.zeros(tensor.get_dim(), dtype=HALF, device=device)
        problem.graph.execute({**{t: v.to(device) for t, v in problem.pack.items()}, tensor: out})
        torch.cuda.synchronize(device)
        assert torch.equal(out.cpu(), reference.cpu()) and torch.cuda.current_device() == 0
    mixed = {t: v.to("cuda:1") if i else v for i, (t, v) in enumerate(problem.pack.items())}
    with pytest.raises(ValueError, match="different devices"):
        problem.graph.execute({**mixed, tensor: out})
    x, w = torch.randn(8, 64, device="cuda:1", dtype=HALF), torch.randn(64, device="cuda:1", dtype=HALF)
    compare("rms_norm", cudnn.ops.rms_norm(x, w), F.rms_norm(x.double(), (64,), w.double(), 1e-5))
    assert torch.cuda.current_device() == 0


def test_wrong_buffers_raise_and_the_process_goes_on():
    problem = matmul_problem()
    problem.graph.build()
    tensor = problem.outputs[0][0]
    a, b, bias = problem.pack
    out = torch.zeros(tensor.get_dim(), dtype=HALF, device="cuda")
    good = {**problem.pack, tensor: out}
    base = torch.empty(2 * 64 * 128 + 1, dtype=HALF, device="cuda")
    for key, value, part in (
        (a, problem.pack[a][:, :8].clone(), "spans"),
        (a, problem.pack[a].float(), "is HALF, but its buffer is torch.float32"),
        (b, problem.pack[b].cpu(), "different devices"),
        (a, base[1:], "not a multiple of"),
        (bias, 0, "null address"),
        (bias, None, "missing a buffer"),
    ):
        with pytest.raises(ValueError, match=part):
            problem.graph.execute({**good, key: value})
    with pytest.raises(ValueError, match="runs on CUDA"):
        problem.graph.execute({t: v.cpu() for t, v in good.items()})
    problem.check()


def test_cpu_tensors_go_to_the_reference_engine():
    problem = Problem()
    RUNS["matmul-bias-gelu"](problem)
    problem.graph.build()
    assert problem.graph.selected_engine is None
    tensor, want, _ = problem.outputs[0]
    out = torch.zeros(tensor.get_dim(), dtype=HALF)
    problem.graph.execute({**{t: v.cpu() for t, v in problem.pack.items()}, tensor: out})
    compare("out", out, want.cpu())


@pytest.mark.parametrize("name", ["matmul-bias-gelu", "conv-scale-bias-relu", "layernorm-training-fp16", "matmul-int8-row", "conv-dgrad-nhwc-fp32"])
def test_reference_engine_on_cuda_tensors(name):
    problem = Problem(backend="reference")
    RUNS[name](problem)
    problem.check()


def test_sixty_chained_adds():
    problem = Problem(io=FLOAT, backend="cudnn")
    x = problem.randn(4, 32, 64)
    t = problem.input(x)
    one = problem.input(torch.ones(1, 1, 64, device="cuda"))
    for _ in range(60):
        t = problem.graph.add(t, one)
    problem.output(t, x.double() + 60)
    try:
        problem.graph.build()
    except cudnn.cudnnGraphNotSupportedError as error:
        assert "No valid engine configs" in str(error) or "no engine" in str(error)
    else:
        problem.check()


def test_fp8_grouped_matmul_is_right_or_refused():
    """Some libraries computed only the first expert of an FP8 grouped matmul."""
    token, weight = torch.randn(1, 256, 256, device="cuda").to(E4M3), torch.randn(4, 256, 256, device="cuda").to(E4M3)
    offsets = (torch.arange(4, device="cuda") * 64).int().view(4, 1, 1)
    problem = Problem(io=E4M3, backend="cudnn")
    out = problem.graph.moe_grouped_matmul(problem.input(token), problem.input(weight), problem.input(offsets))
    problem.output(out, torch.cat([token[0, 64 * e : 64 * e + 64].double() @ weight[e].double() for e in range(4)]), dtype=BF16)
    try:
        problem.graph.build()
    except cudnn.cudnnGraphNotSupportedError:
        return
    problem.check()


# cudnn.Graph and the operators.


def test_wrapper_graph():
    x, w, b = (torch.randn(shape, device="cuda").half() for shape in ((2, 64, 128), (2, 128, 96), (1, 1, 96)))
    options = {"io_data_type": HALF, "intermediate_data_type": FLOAT, "compute_data_type": FLOAT}
    with cudnn.Graph(**options, inputs=["mm::0", "mm::1", "bias::1"], outputs=["act::OUT_0"]) as g:
        y = g.bias(g.matmul(x, w, name="mm"), b, name="bias")
        g.relu(y, name="act").set_output(True)
    compare("act", g(x, w, b), (x.double() @ w.double() + b.double()).relu())
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = g(x, w, b)
    stream.synchronize()
    compare("act", got, (x.double() @ w.double() + b.double()).relu())


@pytest.mark.parametrize("dtype", [HALF, BF16, FLOAT])
@pytest.mark.parametrize("rows", [1, 7, 4096])
def test_norm_operators(dtype, rows):
    hidden = 512
    limit = {HALF: 1e-3, BF16: 8e-3, FLOAT: 1e-5}[dtype]

    def compare_with(op, reference, bias):
        x = torch.randn(rows, hidden, device="cuda").to(dtype).requires_grad_()
        parameters = [torch.randn(hidden, device="cuda").to(dtype).requires_grad_() for _ in range(2 if bias else 1)]
        y = op(x, *parameters)
        dy = torch.randn_like(y)
        y.backward(dy)
        wide = [t.detach().double().requires_grad_() for t in (x, *parameters)]
        want = reference(*wide)
        want.backward(dy.double())
        compare("y", y, want.detach(), limit)
        for t, w in zip((x, *parameters), wide, strict=True):
            compare("gradient", t.grad, w.grad, 4 * limit)

    compare_with(cudnn.ops.rms_norm, lambda x, w: F.rms_norm(x, (hidden,), w, 1e-5), bias=False)
    compare_with(cudnn.ops.rms_norm, lambda x, w, b: F.rms_norm(x, (hidden,), w, 1e-5) + b, bias=True)
    compare_with(lambda x, w, b: cudnn.ops.layer_norm(x, hidden, w, b), lambda x, w, b: F.layer_norm(x, (hidden,), w, b), bias=True)


def test_norm_operator_in_a_captured_graph_and_compiled():
    x, w = torch.randn(64, 256, device="cuda").half(), torch.randn(256, device="cuda").half()
    warm = cudnn.ops.rms_norm(x, w)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = cudnn.ops.rms_norm(x, w)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, cudnn.ops.rms_norm(x, w)) and not torch.equal(y, warm)
    compiled = torch.compile(lambda a, b: cudnn.ops.rms_norm(a, b) + 1, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, w), cudnn.ops.rms_norm(x, w) + 1)


def test_host_cost_of_execute(record_property):
    """execute() of a built matmul plan costs at most 10 us more than the library's own call."""
    import time

    problem = Problem(backend="cudnn")
    RUNS["matmul-fp16-row"](problem)
    graph = problem.graph
    graph.build()
    tensor = problem.outputs[0][0]
    out = torch.zeros(tensor.get_dim(), dtype=HALF, device="cuda")
    handle = cudnn.create_handle()
    workspace = torch.empty(max(graph.get_workspace_size(), 1), dtype=torch.uint8, device="cuda")
    pack = {**problem.pack, tensor: out}
    plan = graph._plans[graph.inspect()["selected_plan"]]
    pointers = {t.get_uid(): v.data_ptr() for t, v in pack.items()}

    def median(call):
        times = []
        for _ in range(30):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(50):
                call()
            times.append((time.perf_counter() - start) / 50)
        return sorted(times)[len(times) // 2] * 1e6

    address = workspace.data_ptr()
    whole = median(lambda: graph.execute(pack, workspace=workspace, handle=handle))
    bare = median(lambda: plan._prepared.execute(handle.backend_handle, handle.context, pointers, address))
    record_property("execute_us", round(whole, 2))
    record_property("backend_us", round(bare, 2))
    assert math.isfinite(whole) and whole - bare <= 10, f"execute takes {whole:.1f} us, the library's call {bare:.1f} us"
