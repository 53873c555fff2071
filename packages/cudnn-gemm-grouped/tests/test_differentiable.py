"""The differentiable grouped operations against autograd in float64: on CPU through the reference engine, and on a Hopper GPU through the kernels."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch._dynamo.testing
from torch.multiprocessing.reductions import StorageWeakRef

from cudnn.cutedsl.pointwise import GatedGradientSpec
from cudnn.reference import join_gate_up, split_gate_up
from cudnn.reference.grouped import GluScalars, gated, gated_backward, group_of_rows
from cudnn.testing.conformance import same_bits
from cudnn.testing.gradients import Stopped
from cudnn.testing.numeric import relative_error
from cudnn_gemm_grouped.moe import layer, products
from cudnn_gemm_grouped.moe import matmul as matmul_ops
from cudnn_gemm_grouped.moe import ops as linear_ops
from cudnn_gemm_grouped.moe.layer import moe_mlp, swiglu_moe
from cudnn_gemm_grouped.moe.matmul import moe_grouped_matmul
from cudnn_gemm_grouped.moe.ops import grouped_gemm, grouped_gemm_glu
from cudnn_gemm_grouped.moe.routing import moe_combine, moe_gather, moe_route

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a CUDA device of compute capability 9.0")])
DEVICES = pytest.mark.parametrize("device", ["cpu", GPU])
E, H, I, K = 5, 64, 96, 3  # noqa: E741
# Limits that nothing comes near: the gradient jumps at a limit, and a pre-activation that is rounded may lie on either side of it.
GEGLU = {"act_func": "geglu", "linear_offset": 0.5, "geglu_alpha": 1.5, "glu_clamp_max": 20.0, "glu_clamp_min": -15.0}


class Case(NamedTuple):
    """One operation: ``make(rows, device)`` gives its differentiable inputs, and what else both sides are told. ``tail``: whether rows behind the last group are given to it."""

    function: Callable[..., torch.Tensor]
    plain: Callable[..., torch.Tensor]
    make: Callable[..., tuple[list[torch.Tensor], dict[str, Any]]]


def randn(*shape: int, device: str, scale: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return (torch.randn(shape, device=device) * scale).to(dtype).requires_grad_()


def weight(*shape: int, device: str) -> torch.Tensor:
    return randn(*shape, device=device, scale=shape[-1] ** -0.5)


def transposed_weight(experts: int, rows: int, columns: int, *, device: str) -> torch.Tensor:
    """Stored as (E, inputs, features)."""
    return weight(experts, rows, columns, device=device).detach().transpose(1, 2).contiguous().requires_grad_()


def factors(*shape: int, device: str) -> torch.Tensor:
    return (torch.rand(shape, device=device) + 0.5).requires_grad_()


def group_ends(rows: int, device: str) -> torch.Tensor:
    """Ends of groups that leave some rows over, where there are enough; some groups are empty."""
    return torch.randint(0, max(rows - rows // 8, 1), (E,)).sort().values.int().to(device) if rows else torch.zeros(E, dtype=torch.int32, device=device)


def choices(rows: int, device: str) -> torch.Tensor:
    """Experts of each token, some of them none, and of the last expert none at all."""
    chosen = torch.randint(0, E - 1, (rows, K), device=device)
    nobody = torch.rand(rows, K, device=device) < 0.1
    return torch.where(nobody, torch.where(torch.rand(rows, K, device=device) < 0.5, -1, E + 2), chosen)


def by_rows(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x w[e]ᵀ + bias[e], group by group, in whatever dtype; zeros in rows of none."""
    start, parts = 0, []
    for group, end in enumerate(ends.tolist()):
        part = x[start:end] @ w[group].t()
        parts.append(part if bias is None else part + bias[group].to(part.dtype))
        start = end
    rest = x.shape[0] - start
    return torch.cat((*parts, x.new_zeros(rest, w.shape[1]))) if rest else torch.cat(parts)


def joined(pre: torch.Tensor, glu_layout: str, act_func: str = "swiglu", **scalars: float) -> torch.Tensor:
    gate, up = split_gate_up(pre, glu_layout, order="gate_first")
    return gated(gate, up, act_func, GluScalars(**{name: scalars[key] for name, key in NAMES.items()}) if scalars else GluScalars())


NAMES = {"linear_offset": "linear_offset", "alpha": "geglu_alpha", "high": "glu_clamp_max", "low": "glu_clamp_min"}


def plain_experts(x, gate_up, down, chosen, p=None, gate_up_bias=None, down_bias=None, *, glu_layout="concatenated", **form):
    """Expert by expert, in whatever dtype."""
    out = torch.zeros_like(x)
    for e in range(gate_up.shape[0]):
        token, j = (chosen == e).nonzero(as_tuple=True)
        pre = x[token] @ gate_up[e].t()
        h = joined(pre if gate_up_bias is None else pre + gate_up_bias[e].to(pre.dtype), glu_layout, **form)
        y = h @ down[e].t()
        y = y if down_bias is None else y + down_bias[e].to(y.dtype)
        out = out.index_add(0, token, y if p is None else y * p[token, j].to(y.dtype).unsqueeze(-1))
    return out


def no_tail(out: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return torch.where((torch.arange(out.shape[0], device=out.device) < ends[-1]).unsqueeze(-1), out, 0)


def linear_case(*, bias: bool = False, n_major: bool = False) -> Case:
    def make(rows, device):
        w = (transposed_weight if n_major else weight)(E, I, H, device=device)
        return [randn(rows, H, device=device), w, *([randn(E, I, device=device, dtype=torch.float32)] if bias else [])], {"ends": group_ends(rows, device)}

    def view(w):
        return w.transpose(1, 2) if n_major else w

    return Case(
        lambda x, w, b=None, *, ends: grouped_gemm(x, view(w), ends, bias=b),
        lambda x, w, b=None, *, ends: by_rows(x, view(w), ends, b),
        make,
    )


def glu_case(glu_layout: str, *, prob: bool = True, bias: bool = False, n_major: bool = False, form: dict[str, Any] | None = None) -> Case:
    form, rows_of = form or {}, 128 if glu_layout == "interleaved32" else 2 * I
    pair = glu_layout == "separate"

    def make(rows, device):
        build = transposed_weight if n_major else weight
        weights = [build(E, rows_of // 2, H, device=device) for _ in range(2)] if pair else [build(E, rows_of, H, device=device)]
        extra = [factors(rows, device=device)] if prob else []
        return [randn(rows, H, device=device), *weights, *extra, *([randn(E, rows_of, device=device)] if bias else [])], {"ends": group_ends(rows, device)}

    def taken(tensors):
        weights = [w.transpose(1, 2) if n_major else w for w in tensors[: 2 if pair else 1]]
        rest = list(tensors[2 if pair else 1 :])
        return weights, rest.pop(0) if prob else None, rest.pop(0) if bias else None

    def function(x, *tensors, ends):
        weights, p, b = taken(tensors)
        return grouped_gemm_glu(x, tuple(weights) if pair else weights[0], ends, prob=p, bias=b, glu_layout=glu_layout, **form)

    def plain(x, *tensors, ends):
        weights, p, b = taken(tensors)
        h = joined(by_rows(x, torch.cat(weights, 1), ends, b), glu_layout, **form)
        return no_tail(h if p is None else h * p.to(h.dtype).unsqueeze(-1), ends)

    return Case(function, plain, make)


def layer_case(
    glu_layout: str,
    *,
    routed: bool = False,
    p: bool = True,
    bias: bool = False,
    transposed: bool = False,
    form: dict[str, Any] | None = None,
    deterministic=None,
) -> Case:
    form, inner = form or {}, 64 if glu_layout == "interleaved32" else I
    pair = glu_layout == "separate"
    count = 2 if pair else 1

    def make(rows, device):
        build = transposed_weight if transposed else weight
        weights = [build(E, inner, H, device=device) for _ in range(2)] if pair else [build(E, 2 * inner, H, device=device)]
        biases = [randn(E, 2 * inner, device=device), randn(E, H, device=device)] if bias else []
        extra = [factors(*((rows,) if routed else (rows, K)), device=device)] if p else []
        told = {"ends": group_ends(rows, device)} if routed else {"chosen": choices(rows, device)}
        return [randn(rows, H, device=device), *weights, build(E, H, inner, device=device), *biases, *extra], told

    def function(x, *tensors, ends=None, chosen=None):
        rest = list(tensors[count + 1 :])
        biases = dict(zip(("gate_up_bias", "down_bias"), (rest.pop(0), rest.pop(0)), strict=True)) if bias else {}
        given = {("prob" if routed else "top_k_weights"): rest[0] if p else None, "offsets": ends, "top_k_index": chosen}
        own = {"glu_layout": glu_layout, "transposed": transposed, "deterministic": deterministic}
        return moe_mlp(x, tuple(tensors[:2]) if pair else tensors[0], tensors[count], **given, **biases, **own, **form)

    def plain(x, *tensors, ends=None, chosen=None):
        rest = list(tensors[count + 1 :])
        biases = (rest.pop(0), rest.pop(0)) if bias else (None, None)
        weights = [w.transpose(1, 2) if transposed else w for w in tensors[: count + 1]]
        gate_up, down = torch.cat(weights[:count], 1), weights[count]
        if routed:
            owner = group_of_rows(ends, x.shape[0]).unsqueeze(-1)
            return plain_experts(x, gate_up, down, owner, rest[0].unsqueeze(-1) if p else None, *biases, glu_layout=glu_layout, **form)
        return plain_experts(x, gate_up, down, chosen, rest[0] if p else None, *biases, glu_layout=glu_layout, **form)

    return Case(function, plain, make)


def swiglu_moe_case() -> Case:
    def make(rows, device):
        ends = group_ends(rows, device)
        told = {"offsets": torch.cat((ends.new_zeros(1), ends)).view(-1, 1, 1)}
        return [randn(1, rows, H, device=device), *(weight(E, I, H, device=device) for _ in range(2)), weight(E, H, I, device=device)], told

    def plain(x, gate, up, down, *, offsets):
        owner = group_of_rows(offsets.view(-1)[1:].contiguous(), x.shape[1]).unsqueeze(-1)
        return plain_experts(x[0], torch.cat((gate, up), 1), down, owner).unsqueeze(0)

    return Case(lambda *t, offsets: swiglu_moe(*t, offsets), plain, make)


def matmul_case(mode: str, *, groups: int = E, n_major: bool = True, implicit: bool = False) -> Case:
    top_k = 2

    def make(rows, device):
        w = randn(E, H, I, device=device, scale=H**-0.5) if n_major else weight(E, I, H, device=device)
        count = rows * top_k if mode != "none" else rows
        cuts = torch.randint(0, count + 1, (groups - 1,)).sort().values
        bounds = torch.cat((torch.zeros(1), cuts, *([] if implicit else [torch.tensor([count])]))).int().view(-1, 1, 1).to(device)
        told = {"offsets": bounds, "index": None, "ks": None, "rows": rows}
        if mode == "gather":
            # Some are no token: a row of zeros.
            told["index"] = torch.randint(-1, rows + 1, (1, count, 1), dtype=torch.int32, device=device)
        elif mode == "scatter":
            # Each destination once.
            place = torch.randperm(count, device=device).int().view(1, -1, 1)
            told["index"], told["ks"] = place // top_k, place % top_k
        return [randn(1, count if mode == "scatter" else rows, H, device=device), w], told

    def view(w):
        return w if n_major else w.transpose(1, 2)

    def function(x, w, *, offsets, index, ks, rows):
        return moe_grouped_matmul(x, view(w), offsets, index, ks, mode, top_k)

    def plain(x, w, *, offsets, index, ks, rows):
        w = view(w).transpose(1, 2)
        # The row of zeros is number -1, and number T as well.
        x = torch.cat((x[0], x.new_zeros(1, H)))[index.view(-1).long()] if mode == "gather" else x[0]
        flat = offsets.view(-1)
        ends = torch.cat((flat[1:], flat.new_tensor([x.shape[0]]))) if implicit else flat[1:]
        y = by_rows(x, torch.cat([w] * (groups // E)), ends)
        if mode == "scatter":
            y = torch.zeros_like(y).index_copy(0, (index * top_k + ks).view(-1).long(), y)
        return y.unsqueeze(0)

    return Case(function, plain, make)


def gather_case() -> Case:
    def plain(x, *, routing):
        return torch.stack([x[t] if t >= 0 else torch.zeros_like(x[0]) for t in routing.token.tolist()]) if len(routing.token) else x.new_zeros(0, x.shape[1])

    return Case(lambda x, *, routing: moe_gather(x, routing), plain, lambda r, d: ([randn(r, H, device=d)], {"routing": moe_route(choices(r, d), E)}))


def combine_case(weights: bool) -> Case:
    def make(rows, device):
        return [randn(rows * K, H, device=device), *([factors(rows, K, device=device)] if weights else [])], {"routing": moe_route(choices(rows, device), E)}

    def plain(y, w=None, *, routing):
        padded = torch.cat((y, torch.zeros_like(y[:1]) if len(y) else y.new_zeros(1, y.shape[1])))
        taken = padded[routing.position.long()]
        return (taken if w is None else taken * w.to(y.dtype).unsqueeze(-1)).sum(1)

    return Case(lambda y, w=None, *, routing: moe_combine(y, routing, w), plain, make)


CASES = {
    "grouped_gemm": linear_case(),
    "grouped_gemm, bias, n-major": linear_case(bias=True, n_major=True),
    "grouped_gemm_glu": glu_case("interleaved32"),
    "grouped_gemm_glu, concatenated": glu_case("concatenated", prob=False, n_major=True),
    "grouped_gemm_glu, separate": glu_case("separate", bias=True, form=GEGLU),
    "grouped_gemm_glu, alternating": glu_case("alternating", bias=True, n_major=True, form=GEGLU),
    "moe_mlp": layer_case("concatenated"),
    "moe_mlp, routed": layer_case("interleaved32", routed=True, deterministic=True),
    "moe_mlp, separate": layer_case("separate", p=False, transposed=True),
    "moe_mlp, gpt-oss": layer_case("alternating", bias=True, transposed=True, form=GEGLU),
    "moe_mlp, biases of routed rows": layer_case("separate", routed=True, bias=True),
    "swiglu_moe": swiglu_moe_case(),
    "moe_grouped_matmul": matmul_case("none"),
    "moe_grouped_matmul, gather": matmul_case("gather", n_major=False),
    "moe_grouped_matmul, scatter": matmul_case("scatter", implicit=True),
    "moe_grouped_matmul, more groups than experts": matmul_case("gather", groups=2 * E),
    "moe_gather": gather_case(),
    "moe_combine": combine_case(False),
    "moe_combine, weights": combine_case(True),
}
ALL = pytest.mark.parametrize("name", CASES)


def gradients(function, inputs, grad, told, **options):
    wanted = [t for t in inputs if t.requires_grad]
    return torch.autograd.grad(function(*inputs, **told), wanted, grad, **options)


def exact(case: Case, inputs, grad, told):
    """Result and gradients in float64."""
    doubles = [t.detach().double().requires_grad_() for t in inputs]
    return case.plain(*doubles, **told).detach(), gradients(case.plain, doubles, grad.double(), told)


@DEVICES
@ALL
@pytest.mark.parametrize("rows", [1, 70])
def test_results_and_gradients(name, device, rows):
    """Error at most twice that of plain torch in the same dtype, over enough draws that neither is a matter of luck: the gradient of a factor is a single sum, whose terms may cancel. Cases 2 and 52: experts without rows, and gradients of their inputs' shapes."""
    case = CASES[name]
    pooled = collections.defaultdict(list)  # what -> [(found, expected, plain torch) of each draw]
    for _ in range(24 if rows == 1 else 1):
        inputs, told = case.make(rows, device)
        out = case.function(*inputs, **told)
        grad = torch.randn_like(out)
        expected, expected_gradients = exact(case, inputs, grad, told)
        theirs = [t if t.dtype == torch.bfloat16 else t.detach().bfloat16().requires_grad_() for t in inputs]
        baseline, baseline_gradients = case.plain(*theirs, **told), gradients(case.plain, theirs, grad, told)
        found = gradients(case.function, inputs, grad, told)
        assert out.shape == expected.shape and out.dtype == torch.bfloat16 and out.is_contiguous()
        names = ("out", *(f"input {i}" for i in range(len(inputs))))
        for what, *triple in zip(names, (out, *found), (expected, *expected_gradients), (baseline, *baseline_gradients), strict=True):
            assert triple[0].shape == triple[1].shape
            pooled[what].append([t.detach().flatten() for t in triple])
    for what, triples in pooled.items():
        ours, right, other = (torch.cat(parts) for parts in zip(*triples, strict=True))
        error, allowed = relative_error(ours, right), max(2 * relative_error(other, right), 2**-7)
        assert error <= allowed, f"{what}: {error:.3g}, allowed {allowed:.3g}"


@DEVICES
@ALL
def test_only_what_is_asked_for(name, device):
    """Gradients of any subset of the inputs are those of the whole; nothing is computed or kept for the others."""
    case = CASES[name]
    inputs, told = case.make(20, device)
    grad = torch.randn_like(case.function(*inputs, **told))
    everything = gradients(case.function, inputs, grad, told)
    count = len(inputs)
    masks = range(1, 2**count) if count < 4 else [*(1 << i for i in range(count)), *torch.randint(1, 2**count, (4,)).tolist()]
    for mask in masks:
        some = [t.detach().requires_grad_(bool(mask >> i & 1)) for i, t in enumerate(inputs)]
        found = gradients(case.function, some, grad, told)
        for one, i in zip(found, (i for i in range(count) if mask >> i & 1), strict=True):
            # Beside other gradients the activations are made again, from a pre-activation that is rounded.
            assert torch.equal(one, everything[i]) or relative_error(one, everything[i]) < 1e-2


@DEVICES
def test_products_of_a_layer(device, monkeypatch):
    """Gemms whose gradient nobody asks for are skipped, and what no gradient needs is not saved: neither the sorted tokens nor the activations ever are with the others."""
    counts = []
    for what in ("linear", "gated_linear", "gated_linear_gradient", "weight_gradient", "gather_rows"):
        function = getattr(layer, what)
        monkeypatch.setattr(
            layer, what, lambda *a, function=function, what=what, **k: counts.append((what, k.get("keep", k.get("activated")))) or function(*a, **k)
        )
    monkeypatch.setattr(linear_ops, "linear", layer.linear)
    tokens = 40
    (x, gate_up, down, p), told = CASES["moe_mlp"].make(tokens, device)
    told["chosen"] = torch.randint(0, E, (tokens, K), device=device)

    def run(needs: str):
        counts.clear()
        some = [t.detach().requires_grad_(name in needs.split()) for name, t in zip(("x", "gu", "d", "p"), (x, gate_up, down, p), strict=True)]
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
            out = CASES["moe_mlp"].function(*some, **told)
        forward = list(counts)
        counts.clear()
        if needs:
            out.sum().backward()
        return forward, list(counts), sorted(n for n in saved if n > tokens * K)

    rows = tokens * K
    forward = [("gather_rows", None), ("gated_linear", True), ("linear", None)]
    not_kept = [("gather_rows", None), ("gated_linear", False), ("linear", None)]
    gather, w, product = ("gather_rows", None), ("weight_gradient", None), ("linear", None)
    big, small, pre, act = gate_up.numel(), down.numel(), rows * 2 * I, rows * I
    assert run("") == (not_kept, [], [])
    assert run("x gu d p") == (forward, [gather, ("gated_linear_gradient", True), w, gather, w, product], sorted([x.numel(), big, small, pre]))
    assert run("x") == (forward, [gather, ("gated_linear_gradient", False), product], sorted([big, small, pre]))
    assert run("gu") == (forward, [gather, ("gated_linear_gradient", False), gather, w], sorted([x.numel(), small, pre]))
    assert run("p") == (forward, [gather, ("gated_linear_gradient", False)], sorted([small, pre]))
    assert run("d") == (not_kept, [gather, w], [act])


@DEVICES
@ALL
def test_without_gradients(name, device):
    """Case 54: parameters under no_grad and inference_mode; results are the same bits, and carry no gradient."""
    case = CASES[name]
    inputs, told = case.make(12, device)
    expected = case.function(*inputs, **told)
    assert expected.requires_grad
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            result = case.function(*inputs, **told)
        assert not result.requires_grad and same_bits(result, expected.detach())


@DEVICES
@ALL
def test_backward_twice_and_inputs_left_alone(name, device):
    """Case 53: a second backward pass with the graph retained, after an operation that saved its result."""
    case = CASES[name]
    inputs, told = case.make(6, device)
    start = (inputs[0].detach().float() * 0.3).requires_grad_()
    before = [t.detach().clone() for t in inputs]

    def chain(f, first, *rest):
        return f(first.exp().to(torch.bfloat16), *rest, **told)

    out = chain(case.function, start, *inputs[1:])
    grad = torch.randn_like(out)
    first = torch.autograd.grad(out, (start, *inputs[1:]), grad, retain_graph=True)
    second = torch.autograd.grad(out, (start, *inputs[1:]), grad)
    # The gradient of the rows' factors is added by atomics where nothing else is asked for.
    assert all(same_bits(a, b) or (device == "cuda" and a.dtype == torch.float32 and relative_error(a, b) < 1e-5) for a, b in zip(first, second, strict=True))
    assert all(same_bits(t.detach(), old) for t, old in zip(inputs, before, strict=True))
    doubles = [t.detach().double().requires_grad_() for t in (start, *inputs[1:])]
    expected = torch.autograd.grad(case.plain(doubles[0].exp(), *doubles[1:], **told), doubles, grad.double())
    assert relative_error(first[0], expected[0]) < 2e-2


@DEVICES
@ALL
def test_inputs_and_gradients_of_any_strides(name, device):
    """Padded, misaligned, turned round, expanded: as the contiguous ones."""
    case = CASES[name]
    made, told = case.make(24, device)
    inputs = [t.detach() for t in made]
    contiguous = [t.clone().requires_grad_() for t in inputs]
    grad = torch.ones_like(case.function(*contiguous, **told))
    expected, expected_gradients = case.function(*contiguous, **told), gradients(case.function, contiguous, grad, told)

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
        out = case.function(*views, **told)
        assert relative_error(out.detach(), expected.detach()) < 1e-3
        for strided in (torch.ones((), dtype=grad.dtype, device=device).expand(grad.shape), turned(grad), odd(grad)):
            found = torch.autograd.grad(out, views, strided, retain_graph=True)
            assert all(relative_error(a, b) < 4e-3 for a, b in zip(found, expected_gradients, strict=True))


@DEVICES
@ALL
def test_no_tokens(name, device):
    """Case 5: an empty result, and gradients of weights that exist and are zero."""
    case = CASES[name]
    inputs, told = case.make(0, device)
    out = case.function(*inputs, **told)
    assert out.numel() == 0 and out.shape[-1] in (H, I, 64)
    found = gradients(case.function, inputs, torch.ones_like(out), told)
    assert all(g.shape == t.shape and not g.any() for g, t in zip(found, inputs, strict=True))


@DEVICES
@pytest.mark.parametrize(
    "name", ["grouped_gemm", "grouped_gemm, bias, n-major", "grouped_gemm_glu, alternating", "moe_mlp, routed", "moe_mlp, biases of routed rows", "swiglu_moe"]
)
def test_rows_of_no_group_may_hold_anything(name, device):
    """Cases 8 and 9: NaN behind the last group, in inputs and in the incoming gradient. Results and gradients there are zeros, the others as without those rows."""
    case = CASES[name]
    inputs, told = case.make(60, device)
    ends = told["ends"] if "ends" in told else told["offsets"].view(-1)[1:]
    last, axis = int(ends[-1]), 1 if name == "swiglu_moe" else 0
    by_row = [t.shape[axis if i == 0 else 0] == 60 for i, t in enumerate(inputs)]
    assert last < 60

    def cut(t, i):
        return t.detach().narrow(axis if i == 0 else 0, 0, last).clone().requires_grad_() if by_row[i] else t.detach().clone().requires_grad_()

    def spoiled(t, i):
        whole = t.detach().clone()
        if by_row[i]:
            whole.narrow(axis if i == 0 else 0, last, 60 - last).fill_(float("nan"))
        return whole.requires_grad_()

    short, long = [cut(t, i) for i, t in enumerate(inputs)], [spoiled(t, i) for i, t in enumerate(inputs)]
    expected, out = case.function(*short, **told), case.function(*long, **told)
    grad = torch.randn_like(out)
    grad.narrow(axis, last, 60 - last).fill_(float("nan"))
    assert not out.narrow(axis, last, 60 - last).any() and same_bits(out.detach().narrow(axis, 0, last), expected.detach())
    wanted = torch.autograd.grad(expected, short, grad.narrow(axis, 0, last))
    for i, (one, right) in enumerate(zip(torch.autograd.grad(out, long, grad), wanted, strict=True)):
        if by_row[i]:
            along = axis if i == 0 else 0
            assert not one.narrow(along, last, 60 - last).any()
            one = one.narrow(along, 0, last)
        assert relative_error(one, right) < 1e-5


@DEVICES
@pytest.mark.parametrize("name", ["moe_mlp", "moe_mlp, gpt-oss"])
@pytest.mark.parametrize("kind", ["one expert for all", "no expert at all", "two axes of tokens"])
def test_routing(name, kind, device):
    """Case 2: every other expert has no rows; tokens whose experts are elsewhere are zeros; and tokens in a batch."""
    case = CASES[name]
    inputs, told = case.make(30, device)
    if kind == "two axes of tokens":
        x, *weights, p = inputs
        flat = case.function(*inputs, **told)
        folded = case.function(x.view(5, 6, H), *weights, p.view(5, 6, K), chosen=told["chosen"].view(5, 6, K))
        grad = torch.randn_like(flat)
        assert same_bits(folded.detach().view(30, H), flat.detach())
        found = [torch.autograd.grad(out, inputs, g) for out, g in ((flat, grad), (folded, grad.view(5, 6, H)))]
        assert all(relative_error(a, b) < 1e-5 for a, b in zip(*found, strict=True))
        return
    told["chosen"] = torch.full((30, K), 2 if kind.startswith("one") else E, device=device)
    out = case.function(*inputs, **told)
    grad = torch.randn_like(out)
    expected, expected_gradients = exact(case, inputs, grad, told)
    found = torch.autograd.grad(out, inputs, grad)
    assert relative_error(out.detach(), expected) < 1.5e-2
    for one, right in zip(found, expected_gradients, strict=True):
        assert relative_error(one, right) < 1.5e-2
    unused = [e for e in range(E) if e != 2 or not kind.startswith("one")]
    assert not any(g[unused].any() for g in found[1:3])


@DEVICES
def test_routing_tables(device):
    """Every choice has one row, rows are sorted by expert and within one by token, and what is no expert comes last."""
    for rows, experts, dtype in ((0, 3, torch.int64), (1, 1, torch.int32), (500, 7, torch.int16), (300, 1024, torch.int64)):
        chosen = torch.randint(-2, experts + 2, (rows, K), device=device).to(dtype)
        token, pair, position, ends = moe_route(chosen, experts)
        assert [t.dtype for t in (token, pair, position, ends)] == [torch.int32] * 4 and position.shape == (rows, K)
        flat = chosen.view(-1).tolist()
        wanted = sorted((i for i, e in enumerate(flat) if 0 <= e < experts), key=lambda i: flat[i])
        assert pair.tolist()[: len(wanted)] == wanted and sorted(pair.tolist()) == list(range(rows * K))
        assert token.tolist() == [i // K for i in wanted] + [-1] * (rows * K - len(wanted))
        assert position.view(-1).tolist() == [wanted.index(i) if 0 <= e < experts else -1 for i, e in enumerate(flat)]
        assert ends.tolist() == [sum(0 <= e <= last for e in flat) for last in range(experts)]


@DEVICES
def test_autocast(device):
    """Case 55: float32 activations with 16-bit weights, or float32 altogether, are cast as torch.nn.functional.linear casts; gradients come back in the inputs' dtypes."""
    for name in ("grouped_gemm, bias, n-major", "grouped_gemm_glu, separate", "moe_mlp", "swiglu_moe", "moe_grouped_matmul"):
        case = CASES[name]
        made, told = case.make(9, device)
        inputs = [t.detach().float().requires_grad_() for t in made]
        inputs[1] = inputs[1].detach().bfloat16().requires_grad_()
        with torch.autocast(device, torch.bfloat16):
            out = case.function(*inputs, **told)
        assert out.dtype == torch.bfloat16
        grad = torch.randn_like(out)
        expected, expected_gradients = exact(case, inputs, grad, told)
        assert relative_error(out.detach(), expected) < 2e-2
        for one, right, t in zip(torch.autograd.grad(out, inputs, grad), expected_gradients, inputs, strict=True):
            assert one.dtype == t.dtype and relative_error(one, right) < 3e-2
        with pytest.raises((TypeError, KeyError)):
            case.function(*inputs, **told)


@DEVICES
@pytest.mark.parametrize(
    ("name", "dynamic"),
    [
        ("grouped_gemm, bias, n-major", None),
        ("grouped_gemm_glu, alternating", True),
        ("moe_mlp, gpt-oss", None),
        ("moe_mlp, separate", True),
        ("swiglu_moe", None),
        ("moe_grouped_matmul, gather", None),
        ("moe_combine, weights", None),
    ],
)
def test_torch_compile_with_any_number_of_tokens(name, device, dynamic):
    """Cases 39 and 51: one graph for every number of tokens once torch knows that it changes, forward and backward, with the same bits as eager."""
    case = CASES[name]
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    routes = name.startswith("moe_combine")

    def step(*tensors, **told):
        # Routing belongs into the graph.
        return case.function(*tensors, **({"routing": moe_route(told["chosen"], E)} if routes else told)) * 2

    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic, backend=counter)
    counts = []
    weights = None
    for rows in (24, 40, 7, 100):
        inputs, told = case.make(rows, device)
        told = {"chosen": choices(rows, device)} if routes else told
        # Weights are the same in every step.
        weights = weights or inputs
        inputs = [t if rows in t.shape or rows * K in t.shape else w for t, w in zip(inputs, weights, strict=True)]
        eager, out = step(*inputs, **told), compiled(*inputs, **told)
        assert same_bits(out.detach(), eager.detach())
        grad = torch.randn_like(out)
        for one, other in zip(torch.autograd.grad(out, inputs, grad), torch.autograd.grad(eager, inputs, grad), strict=True):
            assert same_bits(one, other) or (device == "cuda" and relative_error(one, other) < 1e-5)
        counts.append(counter.frame_count)
    assert counts[1] <= 2 and set(counts[1:]) == {counts[1]}


def test_opcheck():
    def arguments(name):
        inputs, told = CASES[name].make(24, "cpu")
        if "ends" in told:
            told["ends"][-1] = 24  # what rows of no group hold is compared otherwise
        if "chosen" in told:
            told["chosen"].clamp_(0, E - 1)
        return inputs, told

    (x, w, b), told = arguments("grouped_gemm, bias, n-major")
    torch.library.opcheck(linear_ops.grouped_linear, (x, w.detach().transpose(1, 2).requires_grad_(), told["ends"], b))
    (x, w, up, p, b), told = arguments("grouped_gemm_glu, separate")
    torch.library.opcheck(linear_ops.grouped_linear_glu, (x, w, up, told["ends"], p, b, "geglu", [1.0, 1.5, 1.0, -1.0], "separate", True))
    (x, gate_up, down, b1, b2, p), told = arguments("moe_mlp, gpt-oss")
    token, pair, position, ends = moe_route(told["chosen"], E)
    form = ("geglu", [1.0, 1.702, 7.0, -7.0], "alternating", True, True)
    torch.library.opcheck(layer.experts_mlp, (x, gate_up, None, down, b1, b2, p, ends, token, pair, position, *form, True, False))
    (x, w), told = arguments("moe_grouped_matmul, gather")
    torch.library.opcheck(matmul_ops.expert_matmul, (x, w.detach().transpose(1, 2).requires_grad_(), told["offsets"], told["index"], None, "gather", 1))


@DEVICES
def test_second_derivatives_are_refused(device):
    inputs, told = CASES["moe_mlp"].make(5, device)
    (first,) = torch.autograd.grad(CASES["moe_mlp"].function(*inputs, **told).sum(), inputs[:1], create_graph=True)
    with pytest.raises(RuntimeError):
        first.sum().backward()


@DEVICES
@pytest.mark.parametrize("operator", [False, True])
def test_no_gradient_counts_as_zeros(device, operator):
    inputs, told = CASES["moe_mlp"].make(5, device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) if operator else contextlib.nullcontext():
        out = CASES["moe_mlp"].function(*inputs, **told)
    for grad in torch.autograd.grad(Stopped.apply(out).sum(), inputs):
        assert not grad.any()


@DEVICES
@pytest.mark.parametrize("kept", [False, True])
def test_gate_and_up_are_freed_before_the_gradients_of_the_weights(device, kept, monkeypatch):
    """With few wide experts they are the most that a backward pass holds. A graph that is kept keeps them, and gives the same gradients again."""
    inputs, told = CASES["moe_mlp"].make(5, device)
    held, gone = [], []
    gradient, weight = layer.gated_linear_gradient, layer.weight_as_stored

    def of_gate_and_up(d_y, down, pre, *rest, **options):
        held.append(StorageWeakRef(pre.untyped_storage()))
        return gradient(d_y, down, pre, *rest, **options)

    def of_a_weight(*arguments):
        gone.append(held[-1].expired())
        return weight(*arguments)

    monkeypatch.setattr(layer, "gated_linear_gradient", of_gate_and_up)
    monkeypatch.setattr(layer, "weight_as_stored", of_a_weight)
    out = CASES["moe_mlp"].function(*inputs, **told).sum()
    found = torch.autograd.grad(out, inputs, retain_graph=kept)
    assert gone and all(one is not kept for one in gone)
    if kept:
        # The gradient of the choices' weights is added up in any order.
        assert all(relative_error(one, other) < 1e-5 for one, other in zip(found, torch.autograd.grad(out, inputs), strict=True))
        assert gone[-1]
    else:
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            torch.autograd.grad(out, inputs)


@DEVICES
@pytest.mark.parametrize("glu_layout", ["interleaved32", "concatenated", "alternating"])
@pytest.mark.parametrize("activation", ["swiglu", "geglu"])
@pytest.mark.parametrize("prob", [False, True])
def test_pointwise_gradient(device, glu_layout, activation, prob):
    """The gradient of a pair without a product, with factors of rows, which it has the gradient of."""
    scalars = GluScalars(0.5, 1.5, 1.25, -1.0)
    for rows, inner in ((37, 64), (1, 32), (60, 1056)):
        pre, grad = randn(rows, 2 * inner, device=device).detach(), randn(rows, inner, device=device).detach()
        p = factors(rows, device=device).detach() if prob else None
        last = rows - rows // 5
        ends = torch.tensor([last // 2, last], dtype=torch.int32, device=device)
        found, dprob = products.pair_gradient(pre, grad, ends, p, products.Form(activation, scalars, glu_layout))
        gate, up = split_gate_up(pre.double(), glu_layout, order="gate_first")
        wide = grad.double()
        d_gate, d_up, value = gated_backward(gate, up, wide if p is None else wide * p.double().unsqueeze(-1), activation, scalars)
        wanted = join_gate_up(d_gate, d_up, glu_layout, order="gate_first")
        assert relative_error(found[:last], wanted[:last]) < 2**-8
        if prob:
            # float32 sums of n terms: n 2^-24 of the sum of magnitudes, and some units in the last place of what is added.
            terms = wide * value
            assert ((dprob[:last].double() - terms[:last].sum(-1)).abs() <= (inner + 16) * 2**-24 * terms[:last].abs().sum(-1) + 1e-30).all() and not dprob[
                last:
            ].any()


@DEVICES
@pytest.mark.parametrize("glu_layout", ["interleaved32", "concatenated", "separate", "alternating"])
def test_limits(device, glu_layout):
    """Limits that cut much off, forward, and backward from a pre-activation that is given, with everything that the gradient of a layer gives."""
    form = {"act_func": "geglu", "linear_offset": 0.5, "geglu_alpha": 1.5, "glu_clamp_max": 1.25, "glu_clamp_min": -1.0}
    for case in (glu_case(glu_layout, bias=True, form=form), layer_case(glu_layout, bias=True, form=form)):
        inputs, told = case.make(50, device)
        expected = case.plain(*(t.detach().double() for t in inputs), **told)
        baseline = case.plain(*(t.detach().bfloat16() for t in inputs), **told)
        assert relative_error(case.function(*inputs, **told).detach(), expected) <= max(2 * relative_error(baseline, expected), 2**-7)
    scalars = GluScalars(0.5, 1.5, 1.25, -1.0)
    rows, inner, ends = 75, 64, group_ends(75, device)
    last = int(ends[-1])
    grad, down, pre = (
        randn(*shape, device=device, scale=scale).detach() for shape, scale in (((rows, H), 1.0), ((E, H, inner), H**-0.5), ((rows, 2 * inner), 1.0))
    )
    p, dprob = factors(rows, device=device).detach(), torch.full((rows,), 0.5, device=device)
    for deterministic in (False, True):
        dprob.fill_(0.5)
        form = products.Form("geglu", scalars, glu_layout)
        found = products.gated_linear_gradient(grad, down, pre, ends, prob=p, dprob=dprob, form=form, bias=True, activated=True, deterministic=deterministic)
        g = by_rows(grad.double(), down.double().transpose(1, 2), ends)
        gate, up = split_gate_up(pre.double(), glu_layout, order="gate_first")
        d_gate, d_up, value = gated_backward(gate, up, g * p.double().unsqueeze(-1), "geglu", scalars)
        wanted = join_gate_up(d_gate, d_up, glu_layout, order="gate_first")[:last]
        owner = group_of_rows(ends, rows)[:last]
        sums = torch.zeros(E, 2 * inner, dtype=torch.float64, device=device).index_add_(0, owner, wanted)
        for one, right, bound in (
            (found.pre[:last], wanted, 2**-8),
            (found.activated[:last], (value * p.double().unsqueeze(-1))[:last], 2**-8),
            (dprob[:last] - 0.5, (g * value).sum(-1)[:last], 1e-5),
            (found.bias, sums, 1e-5),
        ):
            assert relative_error(one, right) < bound
        assert (dprob[last:] == 0.5).all()


@pytest.mark.compile
@pytest.mark.parametrize(
    "spec",
    [GatedGradientSpec("bfloat16", "geglu", False, True, alternating=True, prob=True), GatedGradientSpec("float16", "swiglu", True, True, prob=True)],
    ids=lambda spec: spec.label,
)
def test_pointwise_gradient_compiles(spec):
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed")
    assert len(spec.compile().object_bytes) > 1000


@DEVICES
def test_sums_of_columns(device):
    """The gradient of a bias: sums over each group's rows, times the factors rounded to the rows' dtype."""
    for rows, columns in ((70, 64), (1, 8), (1000, 520)):
        x, p, ends = randn(rows, columns, device=device).detach(), factors(rows, device=device).detach(), group_ends(rows, device)
        for factor in (None, p):
            found = products.column_sums(x, ends, factor)
            weighted = x.double() * (1 if factor is None else factor.bfloat16().double().unsqueeze(-1))
            start = 0
            for group, end in enumerate(ends.tolist()):
                part = weighted[start:end]
                assert ((found[group] - part.sum(0)).abs() <= (len(part) + 2) * 2**-23 * part.abs().sum(0)).all()
                start = max(start, end)


def call(name, **changes):
    """A call of the operation with some arguments changed."""
    device = "cpu"
    if name == "grouped_gemm":
        (x, w), told = CASES[name].make(9, device)
        given = {"x": x, "w": w, "offsets": told["ends"]}
        return grouped_gemm(**{**given, **changes})
    if name == "grouped_gemm_glu":
        (x, w), told = glu_case("concatenated", prob=False).make(9, device)
        given = {"x": x, "w": w, "offsets": told["ends"], "glu_layout": "concatenated"}
        return grouped_gemm_glu(**{**given, **changes})
    if name == "moe_mlp":
        (x, gate_up, down, p), told = CASES[name].make(9, device)
        given = {"x": x, "gate_up": gate_up, "down": down, "top_k_index": told["chosen"], "top_k_weights": p}
        return moe_mlp(**{**given, **changes})
    if name == "swiglu_moe":
        (x, gate, up, down), told = CASES[name].make(9, device)
        given = {"routed_x": x, "Wg": gate, "Wu": up, "Wd": down, "first_token_offset": told["offsets"]}
        return swiglu_moe(**{**given, **changes})
    (x, w), told = CASES["moe_grouped_matmul"].make(9, device)
    given = {"token": x, "weight": w, "first_token_offset": told["offsets"]}
    return moe_grouped_matmul(**{**given, **changes})


BF = torch.bfloat16
ERRORS = {
    "dtype": (
        "grouped_gemm",
        {"x": torch.ones(9, H)},
        TypeError,
        "grouped_gemm: x is torch.float32, needs torch.bfloat16 or torch.float16; cast it, or call under torch.autocast",
    ),
    "mixed dtypes": ("grouped_gemm", {"w": torch.ones(E, I, H).half()}, TypeError, "grouped_gemm: w is torch.float16 while x is torch.bfloat16"),
    "no tensor": ("grouped_gemm", {"w": None}, TypeError, "grouped_gemm: w is a NoneType"),
    "ends": (
        "grouped_gemm",
        {"offsets": torch.ones(E + 1, dtype=torch.int32)},
        ValueError,
        r"grouped_gemm: offsets has shape \(6,\), needs \(E,\) = \(5,\), the end of each group",
    ),
    "ends in floats": ("grouped_gemm", {"offsets": torch.ones(E)}, TypeError, "grouped_gemm: offsets is torch.float32, needs torch.int32"),
    "sizes that fall": ("grouped_gemm", {"offsets": torch.tensor([3, 2, 2, 2, 2])}, ValueError, "found 2 as the end of group 1, which is below 3"),
    "K": ("grouped_gemm", {"x": torch.ones(9, 72, dtype=BF)}, ValueError, r"grouped_gemm: x has shape \(9, 72\), needs \(T, K\) = \(9, 64\), with K of w"),
    "features": ("grouped_gemm", {"w": torch.ones(E, 12, H, dtype=BF)}, ValueError, "grouped_gemm: w has 12 rows, needs a multiple of 8"),
    "bias": ("grouped_gemm", {"bias": torch.ones(E, H)}, ValueError, r"grouped_gemm: bias has shape \(5, 64\), needs \(E, features\) = \(5, 96\)"),
    "experts": ("grouped_gemm", {"w": torch.ones(1025, 8, H, dtype=BF)}, ValueError, "needs 1 to 1024 experts"),
    "layout": ("grouped_gemm_glu", {"glu_layout": "halves"}, ValueError, "glu_layout is 'halves', needs one of"),
    "one weight of two": (
        "grouped_gemm_glu",
        {"glu_layout": "separate"},
        ValueError,
        "grouped_gemm_glu: w is one Tensor with glu_layout='separate', needs the pair",
    ),
    "two weights of one": (
        "grouped_gemm_glu",
        {"w": (torch.ones(E, I, H, dtype=BF),) * 2},
        ValueError,
        "w is 2 tensors with glu_layout='concatenated', needs one tensor",
    ),
    "blocks": (
        "grouped_gemm_glu",
        {"w": torch.ones(E, 96, H, dtype=BF), "glu_layout": "interleaved32"},
        ValueError,
        "has 96 rows with glu_layout=.interleaved32., needs a multiple of 64",
    ),
    "odd halves": (
        "grouped_gemm_glu",
        {"w": torch.ones(E, 24, H, dtype=BF)},
        ValueError,
        "each half of the weight of gate and up has 12 rows, needs a multiple of 8",
    ),
    "activation": ("grouped_gemm_glu", {"act_func": "gelu"}, ValueError, "grouped_gemm_glu: act_func is 'gelu', needs one of 'swiglu', 'geglu'"),
    "clamps": ("grouped_gemm_glu", {"act_func": "geglu", "glu_clamp_min": 8.0}, ValueError, "glu_clamp_min is 8.0 and glu_clamp_max 7.0, needs them in order"),
    "tensor as a number": ("grouped_gemm_glu", {"geglu_alpha": torch.ones(())}, ValueError, "geglu_alpha: found a Tensor, needs a number on the host"),
    "prob": ("grouped_gemm_glu", {"prob": torch.ones(3)}, ValueError, r"grouped_gemm_glu: prob has shape \(3,\), needs \(T,\) = \(9,\)"),
    "prob in integers": ("grouped_gemm_glu", {"prob": torch.ones(9).int()}, TypeError, "prob is torch.int32, needs a floating-point dtype"),
    "down": (
        "moe_mlp",
        {"down": torch.ones(E, I, H, dtype=BF)},
        ValueError,
        r"moe_mlp: down has shape \(5, 96, 64\), needs \(E, H, I\) = \(5, 64, 96\), as gate_up has it",
    ),
    "turned": ("moe_mlp", {"transposed": True}, ValueError, "moe_mlp: "),
    "x": ("moe_mlp", {"x": torch.ones(9, 72, dtype=BF)}, ValueError, r"moe_mlp: x has shape \(9, 72\), needs \(..., H\) with H = 64"),
    "tokens": (
        "moe_mlp",
        {"top_k_index": torch.ones(8, K).long()},
        ValueError,
        r"top_k_index has shape \(8, 3\), needs \(..., k\) with the leading axes \(9,\) of x",
    ),
    "weights": ("moe_mlp", {"top_k_weights": torch.ones(9, 2)}, ValueError, r"top_k_weights has shape \(9, 2\), needs \(..., k\) = \(9, 3\)"),
    "index": ("moe_mlp", {"top_k_index": torch.ones(9, K)}, TypeError, "moe_route: top_k_index is torch.float32"),
    "neither": ("moe_mlp", {"top_k_index": None}, ValueError, "found neither of top_k_index and offsets"),
    "both": ("moe_mlp", {"offsets": torch.zeros(E).int()}, ValueError, "found both of top_k_index and offsets"),
    "prob of choices": ("moe_mlp", {"prob": torch.ones(9)}, ValueError, "found prob with top_k_index, needs top_k_weights"),
    "boundaries": ("swiglu_moe", {"first_token_offset": torch.zeros(E).int()}, ValueError, r"needs contiguous torch.int32 of E \+ 1 = 6 boundaries"),
    "rank": ("swiglu_moe", {"routed_x": torch.ones(9, H, dtype=BF)}, ValueError, r"routed_x has shape \(9, 64\), needs \(1, S, H\)"),
    "dtype of a layer": ("swiglu_moe", {"Wd": torch.ones(E, H, I).half()}, TypeError, "swiglu_moe: Wd is torch.float16 while routed_x is torch.bfloat16"),
    "mode": ("moe_grouped_matmul", {"mode": "all"}, ValueError, "mode is 'all', needs one of 'none', 'gather', 'scatter'"),
    "no index": ("moe_grouped_matmul", {"mode": "scatter"}, ValueError, "token_index and token_ks missing, needed with mode='scatter'"),
    "offsets": ("moe_grouped_matmul", {"first_token_offset": torch.zeros(E + 1).int()}, ValueError, r"needs torch.int32 of shape \(G \+ 1, 1, 1\)"),
    "groups": (
        "moe_grouped_matmul",
        {"first_token_offset": torch.zeros(E + 2, 1, 1).int()},
        ValueError,
        "first_token_offset has 7 numbers, needs G \\+ 1 boundaries",
    ),
    "other dtype": ("moe_grouped_matmul", {"token": torch.ones(1, 9, H).double(), "weight": torch.ones(E, H, I).double()}, KeyError, "token is torch.float64"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case):
    name, changes, kind, message = ERRORS[case]
    with pytest.raises(kind, match=message):
        call(name, **changes)


def test_float32_on_a_cpu():
    """moe_grouped_matmul takes it there; the others name what to do."""
    (x, w), told = CASES["moe_grouped_matmul, gather"].make(20, "cpu")
    wide = [t.detach().float().requires_grad_() for t in (x, w)]
    case = CASES["moe_grouped_matmul, gather"]
    out = case.function(*wide, **told)
    grad = torch.randn_like(out)
    expected, expected_gradients = exact(case, wide, grad, told)
    assert out.dtype == torch.float32 and relative_error(out.detach(), expected) < 1e-6
    for one, right in zip(torch.autograd.grad(out, wide, grad), expected_gradients, strict=True):
        assert one.dtype == torch.float32 and relative_error(one, right) < 1e-6
