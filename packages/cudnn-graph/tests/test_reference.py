"""The reference engine against torch's own operators and autograd."""

from __future__ import annotations

import math

import pytest

import cudnn
from cudnn_graph.dtypes import torch_dtype
from cudnn_graph.enums import convolution_mode
from cudnn_graph.tensor import channels_last

torch = pytest.importorskip("torch")
F = torch.nn.functional

PHASE = cudnn.norm_forward_phase
MODE = cudnn.reduction_mode
UNARY = {
    "abs": torch.abs,
    "ceil": torch.ceil,
    "cos": torch.cos,
    "exp": torch.exp,
    "floor": torch.floor,
    "neg": torch.neg,
    "sin": torch.sin,
    "tan": torch.tan,
    "erf": torch.erf,
    "identity": lambda x: x,
    "reciprocal": lambda x: 1 / x,
    "relu": F.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "elu": F.elu,
    "gelu": F.gelu,
    "softplus": F.softplus,
    "gelu_approx_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "swish": F.silu,
}
POSITIVE = {"log": torch.log, "rsqrt": torch.rsqrt, "sqrt": torch.sqrt}
BINARY = {
    "add": torch.add,
    "mul": torch.mul,
    "sub": torch.sub,
    "div": torch.div,
    "add_square": lambda a, b: a + b * b,
    "bias": torch.add,
    "scale": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
    "mod": torch.fmod,
}
COMPARE = {"cmp_eq": torch.eq, "cmp_neq": torch.ne, "cmp_gt": torch.gt, "cmp_ge": torch.ge, "cmp_lt": torch.lt, "cmp_le": torch.le}
BACKWARD = {
    "relu": F.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "elu": F.elu,
    "gelu": F.gelu,
    "softplus": F.softplus,
    "gelu_approx_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "swish": F.silu,
}


def new_graph(dtype=torch.float32, **options):
    return cudnn.pygraph(io_data_type=dtype, intermediate_data_type=torch.float32, compute_data_type=torch.float32, backend="reference", **options)


def tensor_of(graph, value, **options):
    return graph.tensor(list(value.shape), list(value.stride()), value.dtype, **options)


def run(graph, inputs, outputs):
    """Execute into NaN-filled (or all-ones) buffers of each output's own layout; returns them in order."""
    graph.validate()
    buffers = []
    for t in outputs:
        dtype = torch_dtype(t.get_data_type())
        buffer = torch.empty_strided(t.get_dim(), t.get_stride(), dtype=dtype)
        buffer.fill_(float("nan") if dtype.is_floating_point else 1)
        buffers.append(buffer)
    graph.execute({**inputs, **dict(zip(outputs, buffers, strict=True))})
    return buffers[0] if len(buffers) == 1 else buffers


def close(got, want, scale=1.0):
    """Relative error in the norm of a few units of the coarser dtype."""
    assert got.shape == want.shape
    assert torch.isfinite(got.double()).all()
    error = (got.double() - want.double()).norm() / max(want.double().norm().item(), 1e-30)
    eps = torch.finfo(got.dtype).eps if got.dtype.is_floating_point else 0.0
    assert error <= 4 * scale * eps, f"relative error {error:.3g}, allowed {4 * scale * eps:.3g}"


# Pointwise.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", [*UNARY, *POSITIVE])
def test_unary(name, dtype):
    x = torch.randn(3, 5, 7).to(dtype)
    if name in POSITIVE:
        x = x.abs() + 0.1
    graph = new_graph(dtype)
    t = tensor_of(graph, x)
    out = getattr(graph, name)(t, compute_data_type=torch.float64 if dtype is torch.float64 else None).set_output(True)
    wide = x.double() if dtype is torch.float64 else x.float()
    close(run(graph, {t: x}, [out]), (UNARY | POSITIVE)[name](wide).to(dtype))


@pytest.mark.parametrize("name", BINARY)
def test_binary_broadcasts(name):
    a, b = torch.randn(3, 1, 7), torch.randn(4, 1)
    b = b + 2 * b.sign()
    graph = new_graph()
    ta, tb = tensor_of(graph, a), tensor_of(graph, b)
    out = getattr(graph, name)(ta, tb).set_output(True).set_stride([28, 7, 1])
    close(run(graph, {ta: a, tb: b}, [out]), BINARY[name](a, b))


def test_pow():
    a, b = torch.rand(3, 4) + 0.5, torch.randn(3, 4)
    graph = new_graph()
    ta, tb = tensor_of(graph, a), tensor_of(graph, b)
    close(run(graph, {ta: a, tb: b}, [graph.pow(input0=ta, input1=tb).set_output(True)]), a**b, scale=4)


@pytest.mark.parametrize("boolean", [False, True])
@pytest.mark.parametrize("name", COMPARE)
def test_compare(name, boolean):
    a, b = torch.randint(-3, 3, (4, 6)).float(), torch.randint(-3, 3, (4, 6)).float()
    graph = new_graph()
    ta, tb = tensor_of(graph, a), tensor_of(graph, b)
    out = getattr(graph, name)(ta, tb).set_output(True)
    if boolean:
        out.set_data_type(torch.bool)
    got = run(graph, {ta: a, tb: b}, [out])
    want = COMPARE[name](a, b)
    assert got.dtype is (torch.bool if boolean else torch.float32)
    assert torch.equal(got, want.to(got.dtype)) and 0 < want.sum() < want.numel()


def test_logic_and_select():
    a, b = torch.rand(5, 6) > 0.5, torch.rand(5, 6) > 0.5
    x, y = torch.randn(5, 6), torch.randn(5, 6)
    graph = new_graph()
    ta, tb, tx, ty = (tensor_of(graph, t) for t in (a, b, x, y))
    outs = [graph.logical_and(ta, tb), graph.logical_or(ta, tb), graph.logical_not(ta)]
    outs = [t.set_output(True).set_data_type(torch.bool) for t in outs]
    outs.append(graph.binary_select(tx, ty, ta).set_output(True))
    got = run(graph, {ta: a, tb: b, tx: x, ty: y}, outs)
    for one, want in zip(got, (a & b, a | b, ~a, torch.where(a, x, y)), strict=True):
        assert torch.equal(one, want)


@pytest.mark.parametrize("name", BACKWARD)
def test_activation_gradients(name):
    x = torch.randn(4, 33, dtype=torch.float64, requires_grad=True)
    dy = torch.randn(4, 33, dtype=torch.float64)
    BACKWARD[name](x).backward(dy)
    graph = new_graph(torch.float64)
    tl, tx = tensor_of(graph, dy), tensor_of(graph, x)
    out = getattr(graph, f"{name}_backward")(loss=tl, input=tx, compute_data_type=torch.float64).set_output(True)
    close(run(graph, {tl: dy, tx: x}, [out]), x.grad, scale=50)


def test_relu_options_forward_and_backward():
    x = torch.tensor([-3.0, -1.0, -0.5, 0.0, 1.0, 5.9, 6.0, 9.0])
    dy = torch.arange(1.0, 9.0)
    graph = new_graph()
    tx, tl = tensor_of(graph, x), tensor_of(graph, dy)
    y = graph.relu(tx, negative_slope=0.25, lower_clip=-1.0, upper_clip=6.0).set_output(True)
    dx = graph.relu_backward(tl, tx, negative_slope=0.25, lower_clip=-1.0, upper_clip=6.0).set_output(True)
    leaky = graph.leaky_relu(tx, 0.1).set_output(True)
    dleaky = graph.leaky_relu_backward(tl, tx, 0.1).set_output(True)
    got = run(graph, {tx: x, tl: dy}, [y, dx, leaky, dleaky])
    assert got[0].tolist() == [-1.5, -1.0, -0.5, 0.0, 1.0, pytest.approx(5.9), 6.0, 6.0]
    assert got[1].tolist() == [0.25, 0.5, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0]
    close(got[2], F.leaky_relu(x, 0.1))
    assert got[3].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4, 5, 6, 7, 8])


def test_swish_beta():
    x = torch.randn(9, dtype=torch.float64, requires_grad=True)
    dy = torch.randn(9, dtype=torch.float64)
    (x * torch.sigmoid(1.7 * x)).backward(dy)
    graph = new_graph(torch.float64)
    tl, tx = tensor_of(graph, dy), tensor_of(graph, x)
    out = graph.swish_backward(tl, tx, swish_beta=1.7, compute_data_type=torch.float64).set_output(True)
    fwd = graph.swish(tx, swish_beta=1.7, compute_data_type=torch.float64).set_output(True)
    got = run(graph, {tl: dy, tx: x}, [out, fwd])
    close(got[0], x.grad, scale=50)
    close(got[1], (x * torch.sigmoid(1.7 * x)).detach())


def test_nan_passes_through_relu():
    x = torch.tensor([float("nan"), -1.0, 2.0])
    graph = new_graph()
    tx = tensor_of(graph, x)
    out = torch.empty(3)
    y = graph.relu(tx, upper_clip=1.0).set_output(True)
    graph.execute({tx: x, y: out})
    assert math.isnan(out[0]) and out[1:].tolist() == [0.0, 1.0]


def test_gen_index():
    x = torch.randn(2, 3, 4)
    graph = new_graph()
    tx = tensor_of(graph, x)
    outs = [graph.gen_index(tx, axis=axis).set_output(True).set_data_type(torch.int32) for axis in (0, -2, 2)]
    got = run(graph, {tx: x}, outs)
    for one, axis in zip(got, (0, 1, 2), strict=True):
        shape = [1, 1, 1]
        shape[axis] = -1
        assert torch.equal(one, torch.arange(x.shape[axis], dtype=torch.int32).view(shape).expand(2, 3, 4))


def test_integer_arithmetic_is_exact():
    a, b = torch.randint(-(2**30), 2**30, (64,), dtype=torch.int32), torch.randint(1, 1000, (64,), dtype=torch.int32)
    graph = cudnn.pygraph(io_data_type=torch.int32)
    ta, tb = tensor_of(graph, a), tensor_of(graph, b)
    outs = [t.set_output(True) for t in (graph.add(ta, tb), graph.div(ta, tb), graph.mod(ta, tb), graph.max(ta, tb))]
    got = run(graph, {ta: a, tb: b}, outs)
    for one, want in zip(got, (a + b, torch.div(a, b, rounding_mode="trunc"), torch.fmod(a, b), torch.maximum(a, b)), strict=True):
        assert torch.equal(one, want)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32])
def test_conversion_to_integers_rounds_and_saturates(dtype):
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 3e9, -3e9, 126.6, 300.0])
    graph = new_graph()
    tx = tensor_of(graph, x)
    out = graph.identity(tx).set_output(True).set_data_type(dtype)
    info = torch.iinfo(dtype)
    assert run(graph, {tx: x}, [out]).tolist() == [
        int(min(max(v, info.min), info.max)) for v in (0, 2, 2, 0, -2, 2**31 - 1 if dtype is torch.int32 else 3e9, -3e9, 127, 300)
    ]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_conversion_to_fp8_saturates(dtype):
    x = torch.tensor([1.0, -3.3, 1e6, -1e6, float("inf")])
    graph = new_graph()
    tx = tensor_of(graph, x)
    out = graph.identity(tx).set_output(True).set_data_type(dtype)
    top = torch.finfo(dtype).max
    got = torch.empty(5, dtype=dtype)
    graph.execute({tx: x, out: got})
    assert got.float().tolist() == [1.0, torch.tensor(-3.3).to(dtype).float().item(), top, -top, top]


def test_virtual_tensors_are_rounded_to_their_type():
    x = torch.randn(200)
    graph = cudnn.pygraph(io_data_type=torch.float32, intermediate_data_type=torch.bfloat16, backend="reference")
    tx = tensor_of(graph, x)
    out = graph.mul(graph.exp(tx), 3.0).set_output(True)
    got = run(graph, {tx: x}, [out])
    assert torch.equal(got, x.exp().bfloat16().float() * 3.0)
    assert not torch.equal(got, x.exp() * 3.0)


# Matmul.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("batch", [([], []), ([3], [1]), ([2, 1], [1, 3])])
def test_matmul(dtype, batch):
    a, b = torch.randn(*batch[0], 5, 33).to(dtype), torch.randn(*batch[1], 7, 33).to(dtype).transpose(-1, -2)
    graph = new_graph(dtype)
    ta, tb = tensor_of(graph, a), tensor_of(graph, b)
    out = graph.matmul(ta, tb).set_output(True)
    close(run(graph, {ta: a, tb: b}, [out]), (a.double() @ b.double()).to(dtype), scale=4)


def test_int8_matmul_is_exact():
    a, b = torch.randint(-128, 128, (2, 9, 300), dtype=torch.int8), torch.randint(-128, 128, (2, 300, 5), dtype=torch.int8)
    graph = cudnn.pygraph(io_data_type=torch.int8, compute_data_type=torch.int32)
    ta, tb = tensor_of(graph, a), tensor_of(graph, b)
    out = graph.matmul(ta, tb).set_output(True).set_data_type(torch.int32)
    assert torch.equal(run(graph, {ta: a, tb: b}, [out]), (a.long() @ b.long()).int())


def test_fp8_matmul():
    a, b = torch.randn(1, 8, 32).to(torch.float8_e4m3fn), torch.randn(1, 32, 8).to(torch.float8_e5m2)
    graph = new_graph(torch.bfloat16)
    ta, tb = tensor_of(graph, a), tensor_of(graph, b)
    out = graph.matmul(ta, tb).set_output(True)
    close(run(graph, {ta: a, tb: b}, [out]), (a.double() @ b.double()).bfloat16())


def test_strided_output_leaves_the_gaps_alone():
    a, b = torch.randn(1, 4, 8), torch.randn(1, 8, 3)
    graph = new_graph()
    ta, tb = tensor_of(graph, a), tensor_of(graph, b)
    out = graph.matmul(ta, tb).set_output(True).set_stride([40, 10, 2])
    memory = torch.full((40,), 7.0)
    graph.execute({ta: a, tb: b, out: memory})
    view = memory.as_strided((1, 4, 3), (40, 10, 2))
    close(view, a @ b)
    assert (memory == 7.0).sum() == 40 - 12


# Convolution.

CONVS = [
    ((2, 4, 9), (6, 4, 3), (1,), (2,), (2,), (1,)),
    ((2, 4, 9, 8), (6, 4, 3, 2), (1, 0), (1, 0), (1, 1), (1, 1)),
    ((2, 4, 9, 8), (6, 2, 3, 3), (1, 2), (1, 2), (2, 3), (2, 1)),
    ((2, 4, 10, 11), (4, 1, 3, 3), (0, 2), (1, 1), (2, 2), (1, 1)),
    ((1, 3, 6, 5, 7), (4, 3, 2, 3, 3), (1, 0, 1), (0, 1, 1), (1, 2, 2), (1, 1, 2)),
]


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(("image", "weight", "pre", "post", "stride", "dilation"), CONVS)
def test_convolution_and_its_gradients(image, weight, pre, post, stride, dilation, flip):
    x, w = torch.randn(image, dtype=torch.float64, requires_grad=True), torch.randn(weight, dtype=torch.float64, requires_grad=True)
    amounts = [v for pair in zip(reversed(pre), reversed(post), strict=True) for v in pair]
    call = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[x.dim()]
    kernel = w.flip(list(range(2, w.dim()))) if flip else w
    want = call(F.pad(x, amounts), kernel, stride=stride, dilation=dilation, groups=image[1] // weight[1])
    dy = torch.randn_like(want)
    want.backward(dy)

    mode = convolution_mode.CONVOLUTION if flip else convolution_mode.CROSS_CORRELATION
    options = {"pre_padding": pre, "post_padding": post, "stride": stride, "dilation": dilation, "convolution_mode": mode, "compute_data_type": torch.float64}
    graph = new_graph(torch.float64)
    tx, tw, tdy = tensor_of(graph, x), tensor_of(graph, w), tensor_of(graph, dy)
    y = graph.conv_fprop(tx, tw, **options).set_output(True)
    dx = graph.conv_dgrad(loss=tdy, filter=tw, **options).set_output(True).set_dim(image)
    dw = graph.conv_wgrad(image=tx, loss=tdy, **options).set_output(True).set_dim(weight)
    got = run(graph, {tx: x, tw: w, tdy: dy}, [y, dx, dw])
    assert got[0].stride() == channels_last(got[0].shape)
    for one, expected in zip(got, (want.detach(), x.grad, w.grad), strict=True):
        close(one, expected, scale=20)


def test_conv_bias_relu_in_half():
    x, w, b = torch.randn(2, 8, 6, 6).half(), torch.randn(16, 8, 3, 3).half(), torch.randn(1, 16, 1, 1).half()
    x = x.contiguous(memory_format=torch.channels_last)
    graph = new_graph(torch.float16)
    tx, tw, tb = tensor_of(graph, x), tensor_of(graph, w), tensor_of(graph, b)
    y = graph.conv_fprop(tx, tw, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    out = graph.relu(graph.bias(y, tb)).set_output(True)
    want = F.relu(F.conv2d(x.double(), w.double(), padding=1) + b.double())
    close(run(graph, {tx: x, tw: w, tb: b}, [out]), want.half())


# Reductions and statistics.


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (0, 1, 2), ()])
@pytest.mark.parametrize("mode", [m for m in MODE if m is not MODE.NOT_SET])
def test_reduction(mode, axes):
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    x[torch.rand_like(x) < 0.2] = 0.0
    every = list(range(3))
    kept = [1 if axis in axes else extent for axis, extent in enumerate(x.shape)]
    groups = x.permute(*[a for a in every if a not in axes], *axes).reshape(*[x.shape[a] for a in every if a not in axes], -1)
    want = {
        MODE.ADD: lambda t: t.sum(-1),
        MODE.MUL: lambda t: t.prod(-1),
        MODE.MIN: lambda t: t.min(-1).values,
        MODE.MAX: lambda t: t.max(-1).values,
        MODE.AMAX: lambda t: t.abs().max(-1).values,
        MODE.AVG: lambda t: t.mean(-1),
        MODE.NORM1: lambda t: t.abs().sum(-1),
        MODE.NORM2: lambda t: (t * t).sum(-1).sqrt(),
        MODE.MUL_NO_ZEROS: lambda t: torch.where(t == 0, 1.0, t).prod(-1),
    }[mode](groups).reshape(kept)
    graph = new_graph(torch.float64)
    tx = tensor_of(graph, x)
    out = graph.reduction(tx, mode, compute_data_type=torch.float64, out_dims=kept).set_output(True)
    close(run(graph, {tx: x}, [out]), want, scale=8)


def test_genstats():
    x = torch.randn(3, 6, 4, 5)
    graph = new_graph()
    tx = tensor_of(graph, x)
    outs = [t.set_output(True) for t in graph.genstats(tx)]
    got = run(graph, {tx: x}, outs)
    close(got[0], x.double().sum((0, 2, 3), keepdim=True).float(), scale=20)
    close(got[1], (x.double() ** 2).sum((0, 2, 3), keepdim=True).float(), scale=4)


# Norms.


def norm_case(kind, dtype=torch.float64):
    if kind in ("layernorm", "rmsnorm"):
        return torch.randn(6, 10, 1, 1, dtype=dtype), (1, 10, 1, 1), (1,)
    if kind == "layernorm_nd":
        return torch.randn(4, 3, 5, 2, dtype=dtype), (1, 3, 5, 2), (1, 2, 3)
    if kind == "adalayernorm":
        return torch.randn(3, 7, 10, dtype=dtype), (3, 1, 10), (2,)
    return torch.randn(4, 5, 6, 3, dtype=dtype), (1, 5, 1, 1), {"instancenorm": (2, 3), "batchnorm": (0, 2, 3)}[kind]


@pytest.mark.parametrize("kind", ["layernorm", "layernorm_nd", "rmsnorm", "adalayernorm", "instancenorm", "batchnorm"])
def test_norm_forward_and_backward(kind):
    eps = 1e-3
    x, scale_dim, axes = norm_case(kind)
    x.requires_grad_()
    s, b = (torch.randn(scale_dim, dtype=torch.float64, requires_grad=True) for _ in range(2))
    mean = x.mean(axes, keepdim=True) if kind != "rmsnorm" else torch.zeros(())
    inv = 1 / (((x - mean) ** 2).mean(axes, keepdim=True) + eps).sqrt()
    want = (x - mean) * inv * s + b
    dy = torch.randn_like(want)
    want.backward(dy)

    op = kind.removesuffix("_nd")
    graph = new_graph(torch.float64)
    wide = {"compute_data_type": torch.float64}
    tx, ts, tb, tdy = (tensor_of(graph, t) for t in (x, s, b, dy))
    te = graph.tensor([1, 1, 1, 1], data_type=torch.float64, is_pass_by_value=True)
    if op == "batchnorm":
        outs = graph.batchnorm(tx, ts, tb, epsilon=te, **wide)[:3]
    else:
        outs = getattr(graph, op)(norm_forward_phase=PHASE.TRAINING, input=tx, scale=ts, bias=tb, epsilon=te, **wide)
    for t in outs:
        t.set_output(True).set_data_type(torch.float64)
    got = run(graph, {tx: x, ts: s, tb: b, te: eps}, outs)
    close(got[0], want.detach(), scale=20)
    close(got[-1], inv.detach(), scale=20)
    if op != "rmsnorm":
        close(got[1], mean.detach(), scale=200)

    graph = new_graph(torch.float64)
    tx, ts, tdy = (tensor_of(graph, t) for t in (x, s, dy))
    stats = [tensor_of(graph, t) for t in got[1:]]
    grads = getattr(graph, f"{op}_backward")(tdy, tx, ts, *stats, **wide)
    for t in grads:
        t.set_output(True)
    back = run(graph, {tx: x, ts: s, tdy: dy, **dict(zip(stats, got[1:], strict=True))}, grads)
    for one, expected in zip(back, (x.grad, s.grad, b.grad), strict=True):
        close(one, expected, scale=200)


def test_norm_without_scale():
    x = torch.randn(6, 10, 2)
    graph = new_graph()
    tx = tensor_of(graph, x)
    y, mean, inv = graph.layernorm(PHASE.TRAINING, tx, epsilon=1e-5)
    r, _ = graph.rmsnorm(PHASE.TRAINING, tx, epsilon=1e-5)
    got = run(graph, {tx: x}, [t.set_output(True) for t in (y, mean, inv, r)])
    close(got[0], F.layer_norm(x.double(), (10, 2), eps=1e-5).float())
    close(got[3], (x.double() / ((x.double() ** 2).mean((1, 2), keepdim=True) + 1e-5).sqrt()).float())
    graph = new_graph()
    tx, tm, ti = tensor_of(graph, x), tensor_of(graph, got[1]), tensor_of(graph, got[2])
    dx, dscale, dbias = graph.layernorm_backward(tx, tx, None, tm, ti)
    assert dscale is None and dbias is None
    leaf = x.double().requires_grad_()
    F.layer_norm(leaf, (10, 2), eps=1e-5).backward(x.double())
    # The gradient of a loss parallel to the input nearly vanishes, so that the absolute error counts.
    got_dx = run(graph, {tx: x, tm: got[1], ti: got[2]}, [dx.set_output(True)])
    assert (got_dx.double() - leaf.grad).abs().max() < 1e-5


def test_batchnorm_running_statistics_as_torch():
    x, s, b = torch.randn(8, 5, 3, 3), torch.randn(5), torch.randn(5)
    module = torch.nn.BatchNorm2d(5, eps=1e-5, momentum=0.3)
    with torch.no_grad():
        module.weight.copy_(s)
        module.bias.copy_(b)
        module.running_mean.normal_()
        module.running_var.uniform_(0.5, 2)
    mean, var = (t.clone().view(1, 5, 1, 1) for t in (module.running_mean, module.running_var))
    graph = new_graph()
    tx, ts, tb, tm, tv = (tensor_of(graph, t) for t in (x, s.view(1, 5, 1, 1), b.view(1, 5, 1, 1), mean, var))
    outs = graph.batchnorm(tx, ts, tb, tm, tv, 1e-5, 0.3)
    for t in outs:
        t.set_output(True)
    # The running statistics are updated in place.
    y, stat, inv = torch.empty_like(x), torch.empty(1, 5, 1, 1), torch.empty(1, 5, 1, 1)
    graph.execute({tx: x, ts: s, tb: b, tm: mean, tv: var, **dict(zip(outs, (y, stat, inv, mean, var), strict=True))})
    close(y, module(x).detach(), scale=4)
    close(mean.flatten(), module.running_mean, scale=4)
    close(var.flatten(), module.running_var, scale=4)
    graph = new_graph()
    tx, ts, tb, tm, ti = (tensor_of(graph, t) for t in (x, s.view(1, 5, 1, 1), b.view(1, 5, 1, 1), mean, inv))
    out = graph.batchnorm_inference(tx, tm, ti, ts, tb).set_output(True)
    got = run(graph, {tx: x, ts: s, tb: b, tm: mean, ti: 1 / (var + 1e-5).sqrt()}, [out])
    close(got, module.eval()(x).detach(), scale=8)


# Structure.


def test_structural_nodes():
    x, y = torch.randn(4, 6, 8), torch.randn(4, 1, 8)
    graph = new_graph()
    tx, ty = tensor_of(graph, x), tensor_of(graph, y)
    outs = [
        graph.slice(tx, [slice(1, 3), slice(0, 6, 2), slice(2, None)]),
        graph.transpose(tx, [2, 0, 1]),
        graph.concatenate(inputs=[tx, ty], axis=1),
        graph.reshape(tx, cudnn.reshape_mode.LOGICAL, out_dims=[8, 24]),
        graph.reshape(tx, out_dims=[4, 8, 6]).set_stride([48, 1, 8]),
    ]
    got = run(graph, {tx: x, ty: y}, [t.set_output(True) for t in outs])
    wants = (x[1:3, 0:6:2, 2:], x.permute(2, 0, 1), torch.cat([x, y], 1), x.reshape(8, 24), x.transpose(1, 2))
    for one, want in zip(got, wants, strict=True):
        assert torch.equal(one, want)


def test_view_reshape_reads_memory_not_order():
    x = torch.randn(3, 4).t()  # dims (4, 3), strides (1, 4)
    graph = new_graph()
    tx = tensor_of(graph, x)
    view = graph.reshape(tx, out_dims=[12]).set_stride([1]).set_output(True)
    logical = graph.reshape(tx, cudnn.reshape_mode.LOGICAL, out_dims=[12]).set_output(True)
    got = run(graph, {tx: x}, [view, logical])
    assert torch.equal(got[0], x.t().reshape(-1)) and torch.equal(got[1], x.reshape(-1))


def test_moves_keep_large_integers():
    x = torch.tensor([[2**24 + 1, -(2**31)], [5, 2**31 - 1]], dtype=torch.int32)
    graph = cudnn.pygraph(io_data_type=torch.int32, compute_data_type=torch.float32)
    tx = tensor_of(graph, x)
    out = graph.transpose(tx, [1, 0]).set_output(True)
    assert torch.equal(run(graph, {tx: x}, [out]), x.t())


def test_in_place_concatenate():
    memory = torch.randn(2, 5)
    before = memory.clone()
    extra = torch.randn(2, 2)
    graph = new_graph()
    ta, tb = graph.tensor([2, 3], [5, 1]), tensor_of(graph, extra)
    out = graph.concatenate(inputs=[ta, tb], axis=1, in_place_index=0).set_output(True)
    graph.execute({ta: memory, tb: extra, out: memory})
    assert torch.equal(memory, torch.cat([before[:, :3], extra], 1))


# Grouped matmul.


@pytest.mark.parametrize("boundaries", [False, True])
def test_moe_none_with_empty_group(boundaries):
    token, weight = torch.randn(1, 20, 8), torch.randn(4, 8, 5)
    starts = [0, 7, 7, 15] + ([18] if boundaries else [])
    offsets = torch.tensor(starts, dtype=torch.int32).view(-1, 1, 1)
    graph = new_graph()
    tt, tw, to = (tensor_of(graph, t) for t in (token, weight, offsets))
    out = graph.moe_grouped_matmul(tt, tw, to).set_output(True)
    got = run(graph, {tt: token, tw: weight, to: offsets}, [out])
    want = torch.zeros(1, 20, 5)
    for expert, (a, b) in enumerate([(0, 7), (7, 7), (7, 15), (15, 18 if boundaries else 20)]):
        want[0, a:b] = token[0, a:b] @ weight[expert]
    close(got, want)


def test_moe_gather_and_scatter_are_inverse():
    tokens, top_k, experts = 10, 2, 3
    token, weight = torch.randn(1, tokens, 8), torch.randn(experts, 8, 8)
    choice = torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)])
    order = torch.argsort(choice.flatten(), stable=True)
    index, ks = (order // top_k).int().view(1, -1, 1), (order % top_k).int().view(1, -1, 1)
    counts = torch.bincount(choice.flatten(), minlength=experts)
    offsets = torch.cat([torch.zeros(1), counts.cumsum(0)[:-1]]).int().view(-1, 1, 1)
    graph = new_graph()
    tt, tw, to, ti = (tensor_of(graph, t) for t in (token, weight, offsets, index))
    gathered = graph.moe_grouped_matmul(tt, tw, to, token_index=ti, mode=cudnn.moe_grouped_matmul_mode.GATHER).set_output(True)
    got = run(graph, {tt: token, tw: weight, to: offsets, ti: index}, [gathered])
    graph = new_graph()
    tt, tw, to, ti, tk = (tensor_of(graph, t) for t in (got, weight, offsets, index, ks))
    out = graph.moe_grouped_matmul(tt, tw, to, token_index=ti, token_ks=tk, mode=cudnn.moe_grouped_matmul_mode.SCATTER, top_k=top_k).set_output(True)
    final = run(graph, {tt: got, tw: weight, to: offsets, ti: index, tk: ks}, [out]).view(tokens, top_k, 8)
    for t in range(tokens):
        for k in range(top_k):
            w = weight[choice[t, k]]
            close(final[t, k], token[0, t] @ w @ w, scale=20)


def test_moe_weight_gradient():
    token, grad = torch.randn(1, 12, 6), torch.randn(1, 12, 4)
    offsets = torch.tensor([0, 5, 5, 12], dtype=torch.int32).view(-1, 1, 1)
    graph = new_graph()
    tg, tt, to = (tensor_of(graph, t) for t in (grad, token, offsets))
    out = graph.moe_grouped_matmul_bwd(tg, tt, to, out_dims=[3, 6, 4]).set_output(True)
    got = run(graph, {tg: grad, tt: token, to: offsets}, [out])
    close(got[0], token[0, :5].t() @ grad[0, :5])
    assert not got[1].any()
    close(got[2], token[0, 5:].t() @ grad[0, 5:])


def test_moe_offsets_are_checked():
    graph = new_graph()
    token, weight, offsets = torch.randn(1, 6, 4), torch.randn(2, 4, 4), torch.tensor([0, 9], dtype=torch.int32).view(-1, 1, 1)
    tt, tw, to = (tensor_of(graph, t) for t in (token, weight, offsets))
    out = graph.moe_grouped_matmul(tt, tw, to).set_output(True)
    with pytest.raises(ValueError, match=r"ascend within \[0, 6\]"):
        graph.execute({tt: token, tw: weight, to: offsets, out: torch.empty(1, 6, 4)})


# Block scales.


@pytest.mark.parametrize(("dtype", "scale_dtype", "size"), [(torch.float8_e4m3fn, torch.float8_e8m0fnu, 32), (torch.float4_e2m1fn_x2, torch.float8_e4m3fn, 16)])
def test_block_scale_round_trip(dtype, scale_dtype, size):
    x = torch.randn(1, 4, 64) * torch.logspace(-0.5, 2, 4).view(1, 4, 1)  # E4M3 scales stay normal numbers
    graph = new_graph()
    tx = tensor_of(graph, x)
    y, scale = graph.block_scale_quantize(tx, block_size=size)
    y.set_output(True).set_data_type(dtype)
    scale.set_output(True).set_data_type(scale_dtype)
    graph.validate()
    assert scale.get_dim() == [1, 4, 64 // size]
    packed = dtype is torch.float4_e2m1fn_x2
    data = torch.empty(1, 4, 32, dtype=torch.uint8) if packed else torch.empty(1, 4, 64, dtype=dtype)
    factors = torch.empty(1, 4, 64 // size, dtype=scale_dtype)
    graph.execute({tx: x, y: data, scale: factors})

    graph = new_graph()
    ty, ts = graph.tensor([1, 4, 64], data_type=dtype), graph.tensor([1, 4, 64 // size], data_type=scale_dtype)
    out = graph.block_scale_dequantize(ty, ts, [size]).set_output(True)
    got = run(graph, {ty: data, ts: factors}, [out])
    error = (got - x).view(1, 4, -1, size).norm(dim=-1) / x.view(1, 4, -1, size).norm(dim=-1)
    assert error.max() < (0.2 if packed else 0.05)
    largest = x.view(1, 4, -1, size).abs().amax(-1)
    assert (factors.float() * (6.0 if packed else 448.0) >= largest * (0.93 if packed else 1.0)).all()


def test_swizzled_scales():
    rows, columns = 256, 8
    scale = torch.randint(118, 136, (1, rows, columns), dtype=torch.uint8)
    swizzled = torch.empty(rows * columns, dtype=torch.uint8)
    for r in range(rows):
        for c in range(columns):
            block = (r // 128) * (columns // 4) + c // 4
            swizzled[block * 512 + (r % 32) * 16 + (r % 128) // 32 * 4 + c % 4] = scale[0, r, c]
    data = torch.randn(1, rows, columns * 32).to(torch.float8_e4m3fn)
    graph = new_graph()
    tx = tensor_of(graph, data)
    ts = graph.tensor([1, rows, columns], data_type=torch.float8_e8m0fnu, reordering_type=cudnn.tensor_reordering.F8_128x4)
    out = graph.block_scale_dequantize(tx, ts, [1, 32]).set_output(True)
    got = run(graph, {tx: data, ts: swizzled}, [out])
    want = data.float() * torch.exp2(scale.float() - 127).repeat_interleave(32, -1)
    assert torch.equal(got, want)


# What the engine declines.


def test_declines_name_the_reason():
    for build, part in (
        (lambda g, x: g.relu(g.tensor([2, 2], ragged_offset=g.tensor([3, 1, 1, 1], data_type=torch.int32))), "ragged offset"),
        (lambda g, x: g.relu(g.tensor([2, 2], data_type=cudnn.data_type.INT8x4)), "INT8x4"),
        (lambda g, x: g.relu(g.tensor([2, 2], reordering_type=cudnn.tensor_reordering.INT8x32)), "INT8x32"),
        (lambda g, x: g.reduction(x, MODE.ADD, g.tensor([2, 1, 1], data_type=torch.int32), out_dims=[1, 2]), "group_offset"),
        (lambda g, x: g.batchnorm(x, g.tensor([1, 2]), g.tensor([1, 2]), epsilon=1e-5, peer_stats=[g.tensor([1, 2])]), "peer_stats"),
    ):
        graph = new_graph()
        build(graph, graph.tensor([2, 2]))
        with pytest.raises(cudnn.cudnnGraphNotSupportedError, match=part):
            graph.build()


def test_gemm_reference_takes_matmul_and_pointwise_only():
    from cudnn.gemm.reference import GemmReferenceEngine, ReferenceEngine

    graph = new_graph()
    graph.relu(graph.matmul(graph.tensor([1, 2, 3]), graph.tensor([1, 3, 2]))).set_output(True)
    graph.build()
    assert isinstance(graph.selected_engine, GemmReferenceEngine) and graph.selected_engine.engine_id >= 20000
    assert graph.get_workspace_size() == 0
    other = new_graph()
    other.reduction(other.tensor([2, 2]), MODE.ADD, out_dims=[1, 2]).set_output(True)
    other.validate()
    with pytest.raises(NotImplementedError, match="REDUCTION is neither MATMUL nor POINTWISE"):
        GemmReferenceEngine().check_support(other)
    ReferenceEngine().check_support(other)
    other.build()
    assert other.selected_engine.name == "reference"


def test_run_executes_any_graph():
    from cudnn.gemm.reference import run as run_reference

    a, b = torch.randn(1, 3, 4), torch.randn(1, 4, 2)
    graph = cudnn.pygraph(io_data_type=torch.float32)
    ta, tb = tensor_of(graph, a, name="a"), tensor_of(graph, b, name="b")
    out = graph.matmul(ta, tb).set_output(True)
    got = torch.empty(1, 3, 2)
    run_reference(graph, {"a": a, tb: b, out.get_uid(): got})
    close(got, a @ b)
    with pytest.raises(ValueError, match="missing a buffer for tensor uid 2 \\('b'\\)"):
        run_reference(graph, {"a": a, out: got})
