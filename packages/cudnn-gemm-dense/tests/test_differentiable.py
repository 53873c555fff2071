"""The differentiable operations against autograd in float64: on CPU through the reference engine, and on a Hopper GPU through the kernels."""

from __future__ import annotations

import collections
import contextlib
import math

import pytest
import torch
import torch._dynamo.testing
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from cudnn.testing.conformance import same_bits
from cudnn.testing.gradients import Stopped
from cudnn.testing.numeric import relative_error
from cudnn_gemm_dense.amax.ops import gemm_amax
from cudnn_gemm_dense.mlp import ops as mlp_ops
from cudnn_gemm_dense.mlp.module import SwigluMLP
from cudnn_gemm_dense.mlp.ops import situ_mlp, swiglu_mlp
from cudnn_gemm_dense.srelu.ops import gemm_srelu
from cudnn_gemm_dense.swiglu.ops import gemm_swiglu

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a CUDA device of compute capability 9.0")])
DEVICES = pytest.mark.parametrize("device", ["cpu", GPU])
H, I = 64, 96  # noqa: E741


def weight(rows: int, columns: int, device: str, dtype=torch.bfloat16) -> torch.Tensor:
    return (torch.randn(rows, columns, device=device) * columns**-0.5).to(dtype).requires_grad_()


def tokens(*shape: int, device: str, dtype=torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, device=device).to(dtype).requires_grad_()


def silu(x):
    return torch.nn.functional.silu(x)


def interleaved(s):
    up, gate = s.unflatten(-1, (-1, 2, 32)).unbind(-2)
    return (up * silu(gate)).flatten(-2)


def plain_mlp(x, Wg, Wu, Wd):  # noqa: N803
    return (silu(x @ Wg.t()) * (x @ Wu.t())) @ Wd.t()


def plain_situ(x, Wg, Wu, Wd, beta=4.0, linear=25.0):  # noqa: N803
    g, u = x @ Wg.t(), x @ Wu.t()
    return (beta * (g / beta).tanh() * g.sigmoid() * linear * (u / linear).tanh()) @ Wd.t()


# name -> (operation, the same in plain torch, inputs for rows of x)
CASES = {
    "swiglu_mlp": (swiglu_mlp, plain_mlp, lambda r, d: (tokens(*r, H, device=d), weight(I, H, d), weight(I, H, d), weight(H, I, d))),
    "situ_mlp": (situ_mlp, plain_situ, lambda r, d: (tokens(*r, H, device=d), weight(I, H, d), weight(I, H, d), weight(H, I, d))),
    "situ_mlp, bent": (
        lambda *t: situ_mlp(*t, beta=0.5, linear_beta=1),
        lambda *t: plain_situ(*t, 0.5, 1.0),
        lambda r, d: (tokens(*r, H, device=d), weight(I, H, d), weight(I, H, d), weight(H, I, d)),
    ),
    "gemm_swiglu": (
        lambda x, w: gemm_swiglu(x, w, alpha=0.7),
        lambda x, w: interleaved(0.7 * x @ w.t()),
        lambda r, d: (tokens(*r, H, device=d), weight(128, H, d)),
    ),
    "gemm_swiglu, halves": (
        lambda x, w: gemm_swiglu(x, w, glu_layout="concatenated"),
        lambda x, w: (x @ w.t()).chunk(2, -1)[1] * silu((x @ w.t()).chunk(2, -1)[0]),
        lambda r, d: (tokens(*r, H, device=d), weight(2 * I, H, d)),
    ),
    "gemm_swiglu, pair": (
        lambda x, a, b: gemm_swiglu(x, (a, b), alpha=-0.7, glu_layout="separate"),
        lambda x, a, b: silu(-0.7 * x @ a.t()) * (-0.7 * x @ b.t()),
        lambda r, d: (tokens(*r, H, device=d), weight(I, H, d), weight(I, H, d)),
    ),
    "gemm_srelu": (
        lambda x, w: gemm_srelu(x, w, alpha=1.5),
        lambda x, w: (1.5 * x @ w.t()).relu() ** 2,
        lambda r, d: (tokens(*r, H, device=d), weight(I, H, d)),
    ),
    "gemm_srelu, prob": (
        lambda x, w, p: gemm_srelu(x, w, prob=p),
        lambda x, w, p: (x @ w.t()).relu() ** 2 * p.unsqueeze(-1),
        lambda r, d: (tokens(*r, H, device=d), weight(I, H, d), (torch.rand(*r, device=d) + 0.5).requires_grad_()),
    ),
    "gemm_amax": (lambda x, w: gemm_amax(x, w)[0], lambda x, w: x @ w.t(), lambda r, d: (tokens(*r, H, device=d), weight(I, H, d))),
}
ALL = pytest.mark.parametrize("name", CASES)


def gradients(function, inputs, grad, **options):
    wanted = [t for t in inputs if t.requires_grad]
    return torch.autograd.grad(function(*inputs), wanted, grad, **options)


def exact(function, inputs, grad):
    """Result and gradients in float64."""
    doubles = [t.detach().double().requires_grad_() for t in inputs]
    return function(*doubles).detach(), gradients(function, doubles, grad.double())


@DEVICES
@ALL
@pytest.mark.parametrize("rows", [(33,), (2, 3, 7), (1, 1), (260,)])
def test_results_and_gradients(name, device, rows):
    """Error at most twice that of plain torch in the same dtype, over enough draws that neither is a matter of luck: the gradient of one row's factor is a single sum, whose terms may cancel."""
    function, plain, make = CASES[name]
    draws = -(-64 // math.prod(rows))
    pooled = collections.defaultdict(list)  # what -> [(found, expected, plain torch) of each draw]
    for _ in range(draws):
        inputs = make(rows, device)
        out = function(*inputs)
        grad = torch.randn_like(out)
        expected, expected_gradients = exact(plain, inputs, grad)
        theirs = [t if t.dtype == torch.bfloat16 else t.detach().bfloat16().requires_grad_() for t in inputs]
        baseline, baseline_gradients = plain(*theirs), gradients(plain, theirs, grad)
        found = gradients(function, inputs, grad)
        assert out.shape == expected.shape and out.dtype == torch.bfloat16 and out.is_contiguous()
        results = ((out, *found), (expected, *expected_gradients), (baseline, *baseline_gradients))
        for what, *triple in zip(("out", *"abcd"[: len(found)]), *results, strict=True):
            assert triple[0].shape == triple[1].shape
            pooled[what].append([t.detach().flatten() for t in triple])
    for what, triples in pooled.items():
        ours, right, other = (torch.cat(parts) for parts in zip(*triples, strict=True))
        error, allowed = relative_error(ours, right), max(2 * relative_error(other, right), 2**-8)
        assert error <= allowed, f"{what}: {error:.3g}, allowed {allowed:.3g}"


@DEVICES
@ALL
def test_only_what_is_asked_for(name, device, monkeypatch):
    """Gradients of any subset of the inputs are those of the whole; nothing is computed or kept for the others."""
    function, _, make = CASES[name]
    inputs = make((5, 4), device)
    grad = torch.randn_like(function(*inputs))
    everything = dict(enumerate(gradients(function, inputs, grad)))
    for mask in range(1, 2 ** len(inputs)):
        some = [t.detach().requires_grad_(bool(mask >> i & 1)) for i, t in enumerate(inputs)]
        found = gradients(function, some, grad)
        for one, i in zip(found, (i for i in range(len(inputs)) if mask >> i & 1), strict=True):
            assert torch.equal(one, everything[i]) or relative_error(one, everything[i]) < 4e-3


@DEVICES
def test_products_of_the_feed_forward_layer(device, monkeypatch):
    """Spec 9.1: gemms whose gradient nobody asks for are skipped, and activations that no gradient needs are not saved."""
    counts = []
    for what in ("product", "gated_product", "gated_gradient_product"):
        function = getattr(mlp_ops, what)
        monkeypatch.setattr(mlp_ops, what, lambda *a, function=function, what=what, **k: counts.append((what, k.get("keep"))) or function(*a, **k))
    inputs = CASES["swiglu_mlp"][2]((40,), device)

    def run(needs: str):
        counts.clear()
        some = [t.detach().requires_grad_(name in needs.split()) for name, t in zip(("x", "g", "u", "d"), inputs, strict=True)]
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
            out = swiglu_mlp(*some)
        forward = list(counts)
        counts.clear()
        if needs:
            out.sum().backward()
        return forward, [what for what, _ in counts], sorted(n for n in saved if n)

    x, pre, act, w = 40 * H, 40 * 2 * I, 40 * I, I * H
    kept, not_kept = [("gated_product", True), ("product", None)], [("gated_product", False), ("product", None)]
    assert run("") == (not_kept, [], [])
    assert run("x g u d") == (kept, ["gated_gradient_product", *["product"] * 4], sorted([x, w, w, w, pre, act]))
    assert run("x") == (kept, ["gated_gradient_product", "product", "product"], sorted([w, w, w, pre]))
    assert run("g u") == (kept, ["gated_gradient_product", "product"], sorted([x, w, pre]))
    assert run("g") == run("u") == (kept, ["gated_gradient_product", "product"], sorted([x, w, pre]))
    assert run("d") == (not_kept, ["product"], [act])
    with torch.no_grad():
        assert run("x g u d"[:0]) == (not_kept, [], [])


@DEVICES
@ALL
def test_without_gradients(name, device):
    """Case 54: parameters under no_grad and inference_mode; results are the same bits, and carry no gradient."""
    function, _, make = CASES[name]
    inputs = make((12,), device)
    expected = function(*inputs)
    assert expected.requires_grad
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            result = function(*inputs)
        assert not result.requires_grad and same_bits(result, expected.detach())


@DEVICES
@ALL
def test_backward_twice_and_inputs_left_alone(name, device):
    """Case 53: a second backward pass with the graph retained, after an operation that saved its result."""
    function, plain, make = CASES[name]
    inputs = make((6,), device)
    start = (inputs[0].detach().float() * 0.3).requires_grad_()
    before = [t.detach().clone() for t in inputs]

    def chain(f, first, *rest):
        return f(first.exp().to(rest[0].dtype), *rest)

    out = chain(function, start, *inputs[1:])
    grad = torch.randn_like(out)
    first = torch.autograd.grad(out, (start, *inputs[1:]), grad, retain_graph=True)
    second = torch.autograd.grad(out, (start, *inputs[1:]), grad)
    assert all(same_bits(a, b) for a, b in zip(first, second, strict=True))
    assert all(same_bits(t.detach(), old) for t, old in zip(inputs, before, strict=True))
    expected = exact(lambda first, *rest: plain(first.exp(), *rest), (start, *inputs[1:]), grad)[1]
    assert relative_error(first[0], expected[0]) < 2e-2


@DEVICES
def test_the_same_tensor_twice(device):
    """Tied weights, and an input that is its own weight: gradients add up."""
    x, w, down = tokens(I, H, device=device), weight(I, H, device), weight(H, I, device)
    for tied in (lambda f: f(x, w, w, down), lambda f: f(x, x, w, down), lambda f: f(x, w, w, w.t())):
        leaves = [t for t in (x, w, down) if t.requires_grad]
        grad = torch.randn(I, H, device=device).bfloat16()
        found = torch.autograd.grad(tied(swiglu_mlp), leaves, grad, allow_unused=True)
        doubles = {id(t): t.detach().double().requires_grad_() for t in leaves}

        def plain(*given, doubles=doubles):
            return plain_mlp(*(doubles[id(t)] if id(t) in doubles else doubles[id(w)].t() for t in given))

        expected = torch.autograd.grad(tied(plain), list(doubles.values()), grad.double(), allow_unused=True)
        for one, right in zip(found, expected, strict=True):
            assert (one is None) == (right is None)
            assert one is None or relative_error(one, right) < 1.5e-2


@DEVICES
@ALL
def test_inputs_and_gradients_of_any_strides(name, device):
    """Transposed, padded, misaligned, expanded: as the contiguous ones."""
    function, _, make = CASES[name]
    inputs = [t.detach() for t in make((24,), device)]
    contiguous = [t.clone().requires_grad_() for t in inputs]
    grad = torch.ones_like(function(*contiguous))
    expected, expected_gradients = function(*contiguous), gradients(function, contiguous, grad)

    def padded(t):
        big = torch.full((*t.shape[:-1], t.shape[-1] + 8), float("nan"), dtype=t.dtype, device=device)
        return big[..., : t.shape[-1]].copy_(t)

    def odd(t):
        big = torch.full((*t.shape[:-1], t.shape[-1] + 3), float("nan"), dtype=t.dtype, device=device)
        return big[..., 1 : 1 + t.shape[-1]].copy_(t)

    def turned(t):
        return t.transpose(0, -1).contiguous().transpose(0, -1)

    for arrange in (padded, odd, turned):
        views = [arrange(t).requires_grad_() for t in inputs]
        out = function(*views)
        assert relative_error(out.detach(), expected.detach()) < 1e-3
        for strided in (grad, torch.ones((), dtype=grad.dtype, device=device).expand(grad.shape), turned(grad), odd(grad)):
            found = torch.autograd.grad(out, views, strided, retain_graph=True)
            assert all(relative_error(a, b) < 4e-3 for a, b in zip(found, expected_gradients, strict=True))


@DEVICES
@ALL
def test_no_tokens(name, device):
    function, _, make = CASES[name]
    inputs = make((2, 0), device)
    out = function(*inputs)
    assert out.shape[:2] == (2, 0)
    found = gradients(function, inputs, torch.ones_like(out))
    assert all(g.shape == t.shape and not g.any() for g, t in zip(found, inputs, strict=True))


@DEVICES
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(device, dtype):
    """Case 55: float32 activations with 16-bit weights, or float32 altogether, are cast as torch.nn.functional.linear casts; gradients come back in the inputs' dtypes."""
    for name in ("swiglu_mlp", "gemm_swiglu, pair", "gemm_srelu, prob", "gemm_amax"):
        function, plain, make = CASES[name]
        inputs = [t.detach().float().requires_grad_() for t in make((9,), device)]
        inputs[1] = inputs[1].detach().to(dtype).requires_grad_()
        with torch.autocast(device, dtype):
            out = function(*inputs)
        assert out.dtype == dtype
        grad = torch.randn_like(out)
        expected, expected_gradients = exact(plain, inputs, grad)
        assert relative_error(out.detach(), expected) < 1.5e-2
        for one, right, t in zip(torch.autograd.grad(out, inputs, grad), expected_gradients, inputs, strict=True):
            assert one.dtype == t.dtype and relative_error(one, right) < 2e-2
        with pytest.raises(TypeError, match="x is torch.float32, needs torch.bfloat16 or torch.float16; cast it, or call under torch.autocast"):
            function(*inputs)


@DEVICES
@ALL
def test_torch_compile_with_a_dynamic_m(name, device):
    """One graph for every number of tokens, forward and backward, with the same bits as eager."""
    function, _, make = CASES[name]
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda *t: function(*t) * 2, fullgraph=True, dynamic=True, backend=counter)
    counts = []
    rest = make((1,), device)[1:]
    for rows in (24, 40, 136, 7, 1000):
        inputs = make((rows,), device)
        inputs = (inputs[0], *(t if len(t) == rows and t.dim() == 1 else r for t, r in zip(inputs[1:], rest, strict=True)))
        eager, out = function(*inputs) * 2, compiled(*inputs)
        assert same_bits(out.detach(), eager.detach())
        grad = torch.randn_like(out)
        for one, other in zip(torch.autograd.grad(out, inputs, grad), torch.autograd.grad(eager, inputs, grad), strict=True):
            assert same_bits(one, other)
        counts.append(counter.frame_count)
    # With dynamic=True torch analyses a call with a float argument twice.
    assert counts[0] in (1, 2) and set(counts) == {counts[0]}


@DEVICES
def test_torch_compile_of_the_module(device):
    """Through the default backend, with what surrounds the layer, under autocast and with and without gradients."""
    if device == "cpu":
        backend = "aot_eager"  # no compiler is needed for what is tested here
    else:
        backend = "inductor"
    torch._dynamo.reset()
    layer = SwigluMLP(H, I, device=device)

    def block(x):
        with torch.autocast(device, torch.bfloat16):
            return x + layer(torch.nn.functional.layer_norm(x, (H,))).float()

    compiled = torch.compile(block, fullgraph=True, backend=backend)
    x = torch.randn(3, 11, H, device=device, requires_grad=True)
    eager, out = block(x), compiled(x)
    assert relative_error(out.detach(), eager.detach()) < 1e-2
    grad = torch.randn_like(out)
    leaves = [x, *layer.parameters()]
    for one, other in zip(torch.autograd.grad(out, leaves, grad), torch.autograd.grad(eager, leaves, grad), strict=True):
        assert relative_error(one, other) < 1e-2
    with torch.no_grad():
        assert relative_error(compiled(x), eager.detach()) < 1e-2


@DEVICES
@ALL
@pytest.mark.parametrize("operator", [False, True])
def test_no_gradient_counts_as_zeros(name, operator, device):
    """In plain eager calls, which pass torch's dispatcher by, and in those that something watches."""
    function, _, make = CASES[name]
    inputs = make((5, 4), device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) if operator else contextlib.nullcontext():
        out = function(*inputs)
    for grad in torch.autograd.grad(Stopped.apply(out).sum(), inputs):
        assert not grad.any()


@DEVICES
@ALL
def test_watched_calls_give_the_same(name, device):
    function, _, make = CASES[name]
    inputs = make((5, 4), device)
    grad = torch.randn_like(function(*inputs))
    plain = gradients(function, inputs, grad)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        watched = gradients(function, inputs, grad)
    for one, other in zip(plain, watched, strict=True):
        assert torch.equal(one, other) or relative_error(one, other) < 1e-5


class Zeros(TorchDispatchMode):
    """Notes how many zeros are made at once."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if "zeros" in func.name():
            self.made.append(out.numel())
        return out


@DEVICES
@pytest.mark.parametrize("name", ["swiglu_mlp", "situ_mlp", "gemm_swiglu", "gemm_srelu"])
def test_no_zeros_are_made_for_what_is_only_saved(name, device):
    """The pre-activation has no gradient, and zeros in its place would take as much memory."""
    function, _, make = CASES[name]
    inputs = make((40,), device)
    with Zeros() as zeros:
        function(*inputs).sum().backward()
    # Factors of rows have a gradient that is added to.
    assert max(zeros.made, default=0) <= 40


@DEVICES
@pytest.mark.parametrize("kept", [False, True])
def test_gate_and_up_are_freed_before_the_other_gradients(device, kept, monkeypatch):
    held, gone = [], []
    gradient, other = mlp_ops.gated_gradient_product, mlp_ops.product

    def of_gate_and_up(grad, w, pre, **options):
        held.append(StorageWeakRef(pre.untyped_storage()))
        return gradient(grad, w, pre, **options)

    def product(*arguments, **options):
        gone.extend(one.expired() for one in held[-1:])
        return other(*arguments, **options)

    monkeypatch.setattr(mlp_ops, "gated_gradient_product", of_gate_and_up)
    monkeypatch.setattr(mlp_ops, "product", product)
    inputs = CASES["swiglu_mlp"][2]((40,), device)
    torch.autograd.grad(swiglu_mlp(*inputs).sum(), inputs, retain_graph=kept)
    assert gone and all(one is not kept for one in gone)


def test_opcheck():
    from cudnn_gemm_dense.amax.ops import linear_amax
    from cudnn_gemm_dense.mlp.ops import gated_mlp
    from cudnn_gemm_dense.srelu.ops import linear_srelu
    from cudnn_gemm_dense.swiglu.ops import linear_swiglu

    x, w, up, down = CASES["swiglu_mlp"][2]((24,), "cpu")
    prob = torch.rand(24, requires_grad=True)
    for op, arguments in (
        (gated_mlp, (x, w, up, down, "swiglu", [], True)),
        (gated_mlp, (x.detach(), w, up.detach(), down, "situ", [4.0, 25.0], True)),
        (linear_swiglu, (x, weight(128, H, "cpu"), None, 0.5, "interleaved32", True)),
        (linear_swiglu, (x, w, up, 1.0, "separate", True)),
        (linear_srelu, (x, w, prob, 1.0, True)),
        (linear_srelu, (x.detach(), w.detach(), None, 1.0, False)),
        (linear_amax, (x, w)),
    ):
        torch.library.opcheck(op, arguments)


@DEVICES
def test_amax_is_that_of_the_product(device):
    x, w = tokens(3, 40, H, device=device), weight(I, H, device)
    out, amax = gemm_amax(x, w)
    exact_amax = (x.detach().double() @ w.detach().double().t()).abs().max()
    assert amax.shape == () and amax.dtype == torch.float32 and not amax.requires_grad
    torch.testing.assert_close(amax.double(), exact_amax, rtol=1e-5, atol=0)
    assert gemm_amax(x[:, :0], w)[1].item() == float("-inf")


@DEVICES
def test_second_derivatives_are_refused(device):
    inputs = CASES["swiglu_mlp"][2]((5,), device)
    (first,) = torch.autograd.grad(swiglu_mlp(*inputs).sum(), inputs[:1], create_graph=True)
    with pytest.raises(RuntimeError):
        first.sum().backward()


ERRORS = {
    "dtype": (lambda x, g, u, d: swiglu_mlp(x.float(), g, u, d), TypeError, "swiglu_mlp: x is torch.float32"),
    "mixed dtypes": (lambda x, g, u, d: swiglu_mlp(x, g, u.half(), d), TypeError, "swiglu_mlp: Wu is torch.float16 while x is torch.bfloat16"),
    "no tensor": (lambda x, g, u, d: swiglu_mlp(x, g, u, None), TypeError, "swiglu_mlp: Wd is a NoneType"),
    "rank of x": (lambda x, g, u, d: swiglu_mlp(x[0], g, u, d), ValueError, r"swiglu_mlp: x has shape \(64,\), needs at least two axes"),
    "rank of a weight": (lambda x, g, u, d: swiglu_mlp(x, g, u, d[0]), ValueError, r"swiglu_mlp: Wd has shape \(96,\), needs two axes"),
    "shape": (lambda x, g, u, d: swiglu_mlp(x, g, u[:88], d), ValueError, r"swiglu_mlp: Wu has shape \(88, 64\), needs \(I, H\) = \(96, 64\)"),
    "turned": (lambda x, g, u, d: swiglu_mlp(x, g, u, d.t()), ValueError, r"swiglu_mlp: Wd has shape \(96, 64\), needs \(H, I\) = \(64, 96\)"),
    "features": (lambda x, g, u, d: swiglu_mlp(x[:, :60], g[:, :60], u[:, :60], d[:60]), ValueError, "swiglu_mlp: x has 60 features, needs a multiple of 8"),
    "beta's type": (lambda x, g, u, d: situ_mlp(x, g, u, d, beta=True), TypeError, "situ_mlp: beta is a bool, needs an int or a float"),
    "beta's value": (lambda x, g, u, d: situ_mlp(None, g, u, d, beta=0.0), ValueError, "situ_mlp: beta is 0.0, needs a positive finite number"),
    "infinite": (lambda x, g, u, d: situ_mlp(x, g, u, d, linear_beta=float("inf")), ValueError, "situ_mlp: linear_beta is inf"),
    "layout": (lambda x, g, u, d: gemm_swiglu(x, g, glu_layout="halves"), ValueError, "glu_layout: found 'halves'"),
    "one weight of two": (lambda x, g, u, d: gemm_swiglu(x, g, glu_layout="separate"), ValueError, 'b_tensor: found one Tensor with glu_layout="separate"'),
    "blocks": (lambda x, g, u, d: gemm_swiglu(x, g), ValueError, "found N = 96 rows with glu_layout="),
    "uneven pair": (lambda x, g, u, d: gemm_swiglu(x, (g, u[:88]), glu_layout="separate"), ValueError, r"gemm_swiglu: w\[1\] \(up\) has shape \(88, 64\)"),
    "prob's shape": (lambda x, g, u, d: gemm_srelu(x, g, prob=torch.ones(3)), ValueError, r"gemm_srelu: prob has shape \(3,\), needs \(5,\) or \(5, 1\)"),
    "prob's dtype": (lambda x, g, u, d: gemm_srelu(x, g, prob=torch.ones(5).half()), TypeError, "gemm_srelu: prob is torch.float16, needs torch.float32"),
    "weight": (lambda x, g, u, d: gemm_amax(x, g.t()), ValueError, r"gemm_amax: w has shape \(64, 96\), needs \(N, K\) with K = 64"),
    "alpha": (lambda x, g, u, d: gemm_srelu(x, g, alpha=torch.ones(())), ValueError, "alpha: found a Tensor, needs a number on the host"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case):
    call, kind, message = ERRORS[case]
    with pytest.raises(kind, match=message):
        call(*CASES["swiglu_mlp"][2]((5,), "cpu"))


class TestModule:
    def test_shares_the_weights_of_linear_modules(self):
        gate, up, down = torch.nn.Linear(H, I, bias=False), torch.nn.Linear(H, I, bias=False), torch.nn.Linear(I, H, bias=False)
        layer = SwigluMLP.from_linears(gate.bfloat16(), up.bfloat16(), down.bfloat16())
        assert layer.gate_proj.weight is gate.weight and layer.down_proj.weight is down.weight
        assert list(layer.state_dict()) == ["gate_proj.weight", "up_proj.weight", "down_proj.weight"]
        x = tokens(4, H, device="cpu")
        assert same_bits(layer(x).detach(), swiglu_mlp(x, gate.weight, up.weight, down.weight).detach())
        assert repr(layer).startswith("SwigluMLP(\n  hidden=64, intermediate=96")

    def test_refuses_what_does_not_fit(self):
        gate, down = torch.nn.Linear(H, I, bias=False), torch.nn.Linear(I, H, bias=False)
        with pytest.raises(ValueError, match="up_proj has a bias, needs bias=False"):
            SwigluMLP.from_linears(gate, torch.nn.Linear(H, I), down)
        with pytest.raises(ValueError, match="up_proj is 64 -> 88 and down_proj 96 -> 64, needs 64 -> 96 and 96 -> 64"):
            SwigluMLP.from_linears(gate, torch.nn.Linear(H, 88, bias=False), down)
        with pytest.raises(ValueError, match="intermediate is 100, needs a positive multiple of 8"):
            SwigluMLP(64, 100)

    def test_learns(self):
        """A few steps of an optimizer on float32 parameters under autocast lower the loss as the plain layer's."""
        layer = SwigluMLP(H, I)
        x, target = torch.randn(256, H), torch.randn(256, H)
        optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
        losses = []
        for _ in range(20):
            with torch.autocast("cpu", torch.bfloat16):
                out = layer(x)
            loss = (out.float() - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.8 * losses[0]
