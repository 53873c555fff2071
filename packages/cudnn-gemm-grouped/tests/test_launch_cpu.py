"""From layers of experts to kernels, on a device that is not there: CPU tensors go the way of CUDA tensors, and kernels compute with plain torch.

What the kernels are given is checked here, against what their epilogues and operand sources say that they take; and that it is what they need to compute the right thing.
"""

from __future__ import annotations

import contextlib
import importlib
import types
from typing import Any

import pytest
import torch

from cudnn.cutedsl.compile import KernelSpec
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.cutedsl.pointwise import GatedGradientSpec
from cudnn.cutedsl.rows import GatherRowsSpec, RowsSpec, ScatterRowsSpec, SumRowsSpec, ZeroTailSpec
from cudnn.datatypes import torch_dtype
from cudnn.memo import Memo
from cudnn.reference import join_gate_up, rows, split_gate_up
from cudnn.reference.grouped import GluScalars, gated_backward, grouped_gemm, grouped_gemm_dglu, grouped_gemm_glu, grouped_wgrad, tensor_at
from cudnn.testing.numeric import relative_error
from cudnn_gemm_grouped.moe import api as moe_api
from cudnn_gemm_grouped.moe import layer as moe_layer
from cudnn_gemm_grouped.moe import products as moe_products
from cudnn_gemm_grouped.moe import rows as moe_rows
from cudnn_gemm_grouped.moe.layer import moe_mlp, swiglu_moe
from cudnn_gemm_grouped.moe.matmul import moe_grouped_matmul
from cudnn_gemm_grouped.moe.ops import grouped_gemm as linear
from cudnn_gemm_grouped.moe.ops import grouped_gemm_glu as linear_glu
from cudnn_gemm_grouped.moe.routing import moe_combine, moe_gather, moe_route

BF = torch.bfloat16
E, H, I, K = 5, 64, 96, 3  # noqa: E741


class Device:
    """Kernels in plain torch. ``built`` and ``ran``: what was asked for."""

    def __init__(self) -> None:
        self.built: list[Any] = []
        self.ran: list[Any] = []

    def gemm(self, spec: KernelSpec) -> Any:
        self.built.append(spec)

        def kernel(operands, others, scalars, clusters, handle):
            assert clusters == spec.config.resident_clusters(132) and handle == 0
            self.ran.append(spec)
            extents = check_operands(spec, operands)
            check_others(spec, others, extents)
            assert len(scalars) == (4 if getattr(spec.options, "activation", "") == "geglu" else 1)
            kind = spec.fusion.rpartition(":")[2]
            getattr(self, kind)(spec, operands, list(others), scalars)

        return kernel

    @staticmethod
    def weights(problem: GemmProblem, operands: Any) -> Any:
        """B (E, N, K) as the kernel sees it, gate first."""
        if problem.b_pointers:
            a, pointers, n, _, ends = operands
            shape = (n, a.shape[1]) if problem.b_major == "k" else (a.shape[1], n)
            found = [tensor_at(address, shape, a.dtype, a.device) for address in pointers.tolist()]
            return torch.stack(found if problem.b_major == "k" else [t.t() for t in found])
        parts = [t.transpose(1, 2) if t.stride(2) != 1 else t for t in operands[1:-1]]
        parts = [t.transpose(1, 2) if problem.b_major == "n" and t.stride(2) == 1 and operands[1].stride(2) != 1 else t for t in parts]
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]

    def product(self, spec, operands, others, scalars):
        o = spec.options
        d = others.pop(0)
        addend = others.pop(0) if o.addend_dtype else None
        prob = others.pop(0) if o.prob else None
        _, value = grouped_gemm(
            operands[0], self.weights(spec.problem, operands), operands[-1], None, prob, others.pop(0) if o.bias_dtype else None, addend=addend
        )
        store(d, value, operands[-1])

    def glu(self, spec, operands, others, scalars):
        o = spec.options
        d = others.pop(0)
        c = others.pop(0) if o.c_dtype else None
        prob = others.pop(0) if o.prob else None
        bias = others.pop(0) if o.bias_dtype else None
        form = {"activation": o.activation, "scalars": GluScalars(*scalars) if o.activation == "geglu" else None, "glu_layout": o.glu_layout}
        pre, value = grouped_gemm_glu(operands[0], self.weights(spec.problem, operands), operands[-1], None, prob, bias, **form)
        store(d, value, operands[-1])
        if c is not None:
            store(c, pre, operands[-1])

    def dglu(self, spec, operands, others, scalars):
        o = spec.options
        c, d = others.pop(0), others.pop(0)
        activation = others.pop(0) if o.activation_dtype else None
        prob, dprob = (others.pop(0), others.pop(0)) if o.prob else (None, None)
        dbias = others.pop(0) if o.dbias_dtype else None
        form = {"activation": o.activation, "scalars": GluScalars(*scalars) if o.activation == "geglu" else None, "glu_layout": o.glu_layout}
        found = grouped_gemm_dglu(operands[0], self.weights(spec.problem, operands), c, operands[-1], None, None, prob, **form)
        store(d, found.d, operands[-1])
        if activation is not None:
            store(activation, found.activation, operands[-1])
        if dprob is not None:
            dprob += found.dprob
        if dbias is not None:
            dbias += found.dbias.unsqueeze(-1)

    def wgrad(self, spec, operands, others, scalars):
        a, b, ends = operands
        others[0].copy_(grouped_wgrad(a, b, ends))

    def of_rows(self, spec: RowsSpec) -> Any:
        self.built.append(spec)

        def kernel(tensors, *arguments):
            *scalars, handle = arguments
            assert handle == 0
            self.ran.append(spec)
            check_rows(tensors)
            if isinstance(spec, ZeroTailSpec):
                rows.zero_tail(*tensors)
                return
            source, index, out, *rest = tensors
            assert source.dtype == out.dtype == torch_dtype(spec.dtype) and index.dtype == torch.int32
            if isinstance(spec, ScatterRowsSpec):
                rows.scatter_rows(source, index, out)
                return
            if isinstance(spec, SumRowsSpec):
                weight, first = rest.pop(0) if spec.weighted else None, rest.pop(0) if spec.ragged else None
                assert not rest and (first is not None or len(index) == scalars[0] * len(out))
                out.copy_(rows.sum_rows(source, index, *scalars, len(out), weight, first))
                return
            assert isinstance(spec, GatherRowsSpec)
            scale = rest.pop(0) if spec.scaled else None
            other = rest.pop(0) if spec.dot else None
            assert other is None or other.dtype == torch_dtype(spec.other_dtype)
            found, dot = rows.gather_rows(source, index, scale, other, rest.pop(0) if spec.other_index else None)
            out.copy_(found)
            if spec.dot:
                rest.pop(0).copy_(dot)
            assert not rest

        return kernel

    def of_pairs(self, spec: GatedGradientSpec) -> Any:
        self.built.append(spec)

        def kernel(tensors, scalars, handle):
            assert handle == 0 and scalars[0] == 1.0 and len(scalars) == (5 if spec.activation == "geglu" else 1)
            self.ran.append(spec)
            check_rows(tensors)
            pre, grad, out, *rest = tensors
            layout = "alternating" if spec.alternating else "interleaved32" if spec.interleaved else "concatenated"
            gate, up = split_gate_up(pre.float(), layout, order="gate_first" if spec.gate_first else "up_first")
            prob, dprob, ends = rest if spec.prob else (None, None, None)
            wide = grad.float()
            values = GluScalars(*scalars[1:]) if spec.activation == "geglu" else GluScalars()
            d_gate, d_up, value = gated_backward(gate, up, wide if prob is None else wide * prob.unsqueeze(-1), spec.activation, values)
            out.copy_(join_gate_up(d_gate, d_up, layout, order="gate_first"))
            if prob is not None:
                last = int(ends[-1])
                out[last:] = float("nan")
                dprob.copy_((wide * value).sum(-1))
                dprob[last:] = 0

        return kernel


def store(target: torch.Tensor, value: torch.Tensor, ends: torch.Tensor) -> None:
    """Rows of groups; the others hold what they held, which may be anything."""
    last = int(ends[-1])
    target[:last] = value[:last].to(target.dtype)
    target[last:] = float("nan")


def check_rows(tensors: Any) -> None:
    """Matrices have rows that start on 16 bytes, vectors no gaps."""
    for t in tensors:
        assert t.data_ptr() % 16 == 0 or t.dim() == 1
        if t.dim() == 2:
            assert t.stride(1) == 1 and t.stride(0) % (16 // t.itemsize) == 0
        else:
            assert t.dim() == 1 and (t.numel() <= 1 or t.stride(0) == 1)


def check_operands(spec: KernelSpec, operands: Any) -> dict[str, int]:
    """What the operand source of the kernel takes; the extents it finds."""
    source_for = importlib.import_module("cudnn.cutedsl.gemm.operands").source_for
    from cudnn.datatypes import cutlass_dtype

    problem = spec.problem
    source = source_for(problem)(problem, spec.config, cutlass_dtype(problem.a_dtype), cutlass_dtype(problem.b_dtype), 2)
    extents: dict[str, int] = {}
    assert len(source.specs) == len(operands)
    for wanted, found in zip(source.specs, operands, strict=True):
        if wanted is None:
            assert isinstance(found, int)
            extents["n"] = found
        else:
            match(wanted, found, extents)
    return extents


def check_others(spec: KernelSpec, others: Any, extents: dict[str, int]) -> None:
    """What the epilogue of the kernel takes, in its order."""
    module, attribute = spec.fusion.split(":")
    epilogue = getattr(importlib.import_module(module), attribute)(spec.problem, spec.options)
    # What the host takes for its shared memory is what it takes.
    assert importlib.import_module("cudnn.cutedsl.epilogue.driver").footprint(epilogue, spec.config) == spec.options.footprint
    if spec.problem.grouping == "rows":
        caller_axes = importlib.import_module("cudnn.cutedsl.epilogue.rows").GroupedRows(spec.problem.unit_axes).caller_axes
        wanted = [caller_axes(one) for one in epilogue.tensors]
        extents |= {"2n": 2 * extents["n"], "n/2": extents["n"] // 2}
        extents |= {"tiles": -(-extents["n"] // spec.config.tile_n), "blocks": extents["m"] // 64 + extents["l"]}
    else:
        wanted = list(epilogue.tensors)
    assert len(wanted) == len(others)
    for one, found in zip(wanted, others, strict=True):
        match(one, found, extents)


def match(wanted: Any, found: torch.Tensor, extents: dict[str, int]) -> None:
    from cudnn.datatypes import dtype_name

    assert dtype_name(wanted.dtype) == dtype_name(found.dtype) and len(wanted.axes) == found.dim(), (wanted, found.shape)
    for axis, extent in zip(wanted.axes, found.shape, strict=True):
        name = {"n/2": ("n", 2)}.get(axis, (axis, 1)) if axis not in extents else (axis, 1)
        assert extent == axis if isinstance(axis, int) else extents.setdefault(name[0], extent * name[1]) == extent * name[1], (wanted, found.shape, extents)
    if wanted.contiguous is not None:
        unit = 16 // found.itemsize
        assert found.data_ptr() % 16 == 0
        assert all(
            (step == 1 if axis == wanted.contiguous else step % unit == 0)
            for axis, (extent, step) in enumerate(zip(found.shape, found.stride(), strict=True))
            if extent > 1
        )


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    pytest.importorskip("cutlass", reason="what kernels take is asked of their epilogues, which need the CuTe DSL")
    import cudnn.dsl_check
    import cudnn.gemm_operation as operation

    found = Device()
    monkeypatch.setenv("CUDNN_KERNELS_CACHE", "0")
    monkeypatch.setenv("CUDNN_KERNELS_TUNED", "0")
    monkeypatch.setattr(KernelSpec, "build", lambda spec: found.gemm(spec))
    for kind in (GatherRowsSpec, ScatterRowsSpec, SumRowsSpec, ZeroTailSpec):
        monkeypatch.setattr(kind, "build", lambda spec: found.of_rows(spec))
    monkeypatch.setattr(GatedGradientSpec, "build", lambda spec: found.of_pairs(spec))
    monkeypatch.setattr(cudnn.dsl_check, "require_dsl", lambda *_, **__: None)
    monkeypatch.setattr(operation, "select_backend", lambda backend, tensors: "sm90")
    monkeypatch.setattr(operation, "require_arch", lambda *_: None)
    monkeypatch.setitem(operation.DEVICES, "sm90", "cpu")
    monkeypatch.setattr(operation, "device_info", lambda _: types.SimpleNamespace(sm_count=132, resident_clusters=lambda *_: None, device_name="NVIDIA H200"))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: -1)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: -1, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0, raising=False)
    for calls in (moe_products._LINEAR, moe_products._GATED, moe_products._GRADIENT, moe_products._WEIGHT):
        for remembered in ("_plans", "_objects", "_made", "_kinds"):
            monkeypatch.setattr(calls, remembered, Memo(64))
    for cached in (moe_rows._kernel, moe_products._pair_gradient_kernel):
        cached.cache_clear()
    # Where the way of CUDA tensors begins.
    for module in (moe_rows, moe_products):
        monkeypatch.setattr(module, "on_gpu", lambda t: True)
    yield found
    for cached in (moe_rows._kernel, moe_products._pair_gradient_kernel):
        cached.cache_clear()


def both(device: Device, monkeypatch: pytest.MonkeyPatch, function: Any, inputs: list[torch.Tensor], grad: torch.Tensor | None = None) -> tuple[Any, Any]:
    """Result and gradients through the kernels, and through the reference. Through the kernels it is now and then a call like an earlier one."""

    def run(given: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        nonlocal grad
        out = function(*given)
        grad = torch.randn_like(out) if grad is None else grad
        return out.detach(), *torch.autograd.grad(out, [t for t in given if t.requires_grad], grad)

    results = []
    for through in (True, False):
        with monkeypatch.context() as patch:
            if not through:
                for module in (moe_rows, moe_products):
                    patch.setattr(module, "on_gpu", lambda t: False)
                patch.setattr("cudnn.gemm_operation.select_backend", lambda backend, tensors: "reference")
                patch.setitem(importlib.import_module("cudnn.gemm_operation").DEVICES, "reference", "cpu")
                for calls in (moe_products._LINEAR, moe_products._GATED, moe_products._GRADIENT, moe_products._WEIGHT):
                    patch.setattr(calls, "_plans", Memo(64))
                    patch.setattr(calls, "_objects", Memo(64))
            if through and torch.rand(()) < 0.5:
                run([torch.rand_like(t).requires_grad_(t.requires_grad) for t in inputs])
            results.append(run(inputs))
    return tuple(results)


def randn(*shape: int, scale: float = 1.0, dtype: torch.dtype = BF) -> torch.Tensor:
    return (torch.randn(shape) * scale).to(dtype).requires_grad_()


def ends() -> torch.Tensor:
    return torch.tensor([10, 10, 37, 60, 64], dtype=torch.int32)


def choices(tokens: int) -> torch.Tensor:
    chosen = torch.randint(0, E - 1, (tokens, K))
    return torch.where(torch.rand(tokens, K) < 0.1, E, chosen)


GEGLU = {"act_func": "geglu", "linear_offset": 0.5, "geglu_alpha": 1.5, "glu_clamp_max": 20.0, "glu_clamp_min": -15.0}


@pytest.mark.parametrize("glu_layout", ["interleaved32", "concatenated", "separate", "alternating"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_layers(device, monkeypatch, glu_layout, transposed, bias):
    """With routed tokens and with sorted rows, factors or none, fixed orders or not."""
    inner = 64 if glu_layout == "interleaved32" else I
    pair = glu_layout == "separate"

    def weight(features, inputs):
        return randn(E, *((inputs, features) if transposed else (features, inputs)), scale=inputs**-0.5)

    weights = [weight(inner, H), weight(inner, H)] if pair else [weight(2 * inner, H)]
    down = weight(H, inner)
    biases = [randn(E, 2 * inner), randn(E, H)] if bias else []
    count, chosen = len(weights), choices(30)

    def layer(x, *tensors, **options):
        given = dict(zip(("gate_up_bias", "down_bias"), tensors[count + 1 :], strict=False)) if bias else {}
        return moe_mlp(
            x, tensors[:2] if pair else tensors[0], tensors[count], glu_layout=glu_layout, transposed=transposed, **given, **options, **(GEGLU if bias else {})
        )

    p = (torch.rand(30, K) + 0.5).requires_grad_()
    prob = (torch.rand(70) + 0.5).requires_grad_()
    for deterministic in (False, True):
        cases = [
            (lambda x, q, *t, d=deterministic: layer(x, *t, top_k_index=chosen, top_k_weights=q, deterministic=d), [randn(30, H), p]),
            (lambda x, q, *t, d=deterministic: layer(x, *t, offsets=ends(), prob=q, deterministic=d), [randn(70, H), prob]),
        ]
        if not deterministic:
            cases.append((lambda x, *t: layer(x, *t, top_k_index=chosen), [randn(30, H)]))
        for function, first in cases:
            found, wanted = both(device, monkeypatch, function, [*first, *weights, down, *biases])
            for one, right in zip(found, wanted, strict=True):
                assert one.shape == right.shape and relative_error(one, right) < 2e-3
    assert {spec.op for spec in device.ran} >= {
        "grouped_gemm",
        "grouped_gemm_glu",
        "grouped_gemm_dglu",
        "grouped_gemm_wgrad",
        "gather_rows",
        "sum_rows",
        "zero_tail",
    }


@pytest.mark.parametrize("glu_layout", ["interleaved32", "concatenated", "separate", "alternating"])
def test_linear_layers(device, monkeypatch, glu_layout):
    inner = 64 if glu_layout == "interleaved32" else I
    pair = glu_layout == "separate"
    stored = [randn(E, H, inner if pair else 2 * inner, scale=H**-0.5) for _ in range(2 if pair else 1)]
    down = randn(E, H, inner, scale=inner**-0.5)
    for form in ({}, GEGLU):
        for prob in (None, (torch.rand(70) + 0.5).requires_grad_()):

            def layers(x, w, d, b, c, *rest, form=form, prob=prob):
                views = [t.transpose(1, 2) for t in (w, *(rest[:1] if pair else ()))]
                h = linear_glu(x, views if pair else views[0], ends(), prob=rest[-1] if prob is not None else None, bias=b, glu_layout=glu_layout, **form)
                return linear(h, d, ends(), bias=c)

            inputs = [randn(70, H), stored[0], down, randn(E, 2 * inner, dtype=torch.float32), randn(E, H), *stored[1:], *([] if prob is None else [prob])]
            found, wanted = both(device, monkeypatch, layers, inputs)
            for one, right in zip(found, wanted, strict=True):
                assert one.shape == right.shape and relative_error(one, right) < 2e-3


@pytest.mark.parametrize("groups", [E, 2 * E])
@pytest.mark.parametrize("mode", ["none", "gather", "scatter"])
@pytest.mark.parametrize("n_major", [False, True])
def test_products_with_indices(device, monkeypatch, mode, groups, n_major):
    """With more groups than experts the kernel is given addresses."""
    count = 60
    w = randn(E, H, I, scale=H**-0.5) if n_major else randn(E, I, H, scale=H**-0.5)
    offsets = torch.cat((torch.zeros(1), torch.randint(0, 50, (groups - 1,)).sort().values, torch.tensor([50]))).int().view(-1, 1, 1)
    index, ks = None, None
    if mode == "gather":
        index = torch.randint(-1, 21, (1, count, 1), dtype=torch.int32)
    elif mode == "scatter":
        place = torch.randperm(count).int().view(1, -1, 1)
        index, ks = place // 3, place % 3
    x = randn(1, 20 if mode == "gather" else count, H)

    def function(x, w):
        out = moe_grouped_matmul(x, w if n_major else w.transpose(1, 2), offsets, index, ks, mode, 3)
        known = torch.arange(count) < 50 if mode != "scatter" else torch.zeros(count, dtype=torch.bool).index_fill(0, place.view(-1)[:50].long(), True)
        return torch.where(known.view(1, -1, 1), out, 0)

    found, wanted = both(device, monkeypatch, function, [x, w])
    for one, right in zip(found, wanted, strict=True):
        assert one.shape == right.shape and relative_error(one, right) < 2e-3
    assert any(spec.problem.b_pointers for spec in device.ran if isinstance(spec, KernelSpec)) == (groups != E)


def test_rows_of_tokens(device, monkeypatch):
    routing = moe_route(choices(30), E)
    weights = (torch.rand(30, K) + 0.5).requires_grad_()
    found, wanted = both(device, monkeypatch, lambda x, p: moe_combine(moe_gather(x, routing), routing, p), [randn(30, H), weights])
    assert all(relative_error(one, right) < 2e-3 for one, right in zip(found, wanted, strict=True))
    assert {spec.label for spec in device.ran} == {"gather_rows bfloat16", "gather_rows bfloat16 scaled dot", "sum_rows bfloat16", "sum_rows bfloat16 weighted"}


def test_kernels_are_listed_ahead_and_built_once(device):
    """Case 39: layers as models have them need no kernel that ``precompile_specs`` of this or the weight gradients does not list, and after the first step none at all, whatever the number of tokens."""
    from cudnn_gemm_grouped.wgrad.api import precompile_specs

    listed = {*moe_api.precompile_specs(), *precompile_specs()}
    for glu_layout, transposed, bias, form in (
        ("concatenated", False, False, {}),
        ("interleaved32", False, False, {}),
        ("separate", False, False, {}),
        ("alternating", True, True, {"act_func": "geglu"}),
    ):

        def weight(features, inputs, transposed=transposed):
            return randn(E, *((inputs, features) if transposed else (features, inputs)), scale=inputs**-0.5)

        weights = (weight(64, H), weight(64, H)) if glu_layout == "separate" else weight(128, H)
        own = {"glu_layout": glu_layout, "transposed": transposed, **form}
        biases = {"gate_up_bias": randn(E, 128), "down_bias": randn(E, H)} if bias else {}
        down = weight(H, 64)
        builds = []
        for tokens in (40, 7, 300, 33):
            p = (torch.rand(tokens, K) + 0.5).requires_grad_()
            moe_mlp(randn(tokens, H), weights, down, top_k_index=choices(tokens), top_k_weights=p, **own, **biases).float().sum().backward()
            with torch.no_grad():
                moe_mlp(randn(tokens, H), weights, down, top_k_index=choices(tokens), top_k_weights=p, **own, **biases)
            builds.append(len(device.built))
        assert builds[0] == builds[-1]
    assert set(device.built) <= listed, [spec.label for spec in set(device.built) - listed]


def test_published_layer(device, monkeypatch):
    offsets = torch.tensor([0, 10, 10, 37, 60, 64], dtype=torch.int32).view(-1, 1, 1)
    found, wanted = both(
        device,
        monkeypatch,
        lambda *t: swiglu_moe(*t, offsets),
        [randn(1, 70, H), *(randn(E, I, H, scale=H**-0.5) for _ in range(2)), randn(E, H, I, scale=I**-0.5)],
    )
    assert all(relative_error(one, right) < 2e-3 for one, right in zip(found, wanted, strict=True))


def test_pitches():
    """What layers hand on may have lines further apart than they are long, in multiples of 16 bytes, and nothing else."""
    from cudnn.grouped.layout import GroupedRule, PitchedLayout, vector
    from cudnn.tensors import metadata

    weights = GroupedRule("b_tensor", ("e", "n", "k"), ((0, 1, 2),), True)
    layout = PitchedLayout(
        [GroupedRule("a_tensor", ("m", "k"), ((0, 1), (1, 0)), True), weights, vector("ends", "e"), GroupedRule("c", ("m", "n"), ((0, 1),), True, 2)]
    )
    big, three = torch.zeros(4, 64, 64, dtype=BF), torch.zeros(3)

    def problem(a=big[0, :, :32], b=big[:3, :16, :32], ends=three, c=big[1, :, :16]):
        metas = [metadata(t) for t in (a, b, ends, c)]
        layout.extents(metas)
        return layout.line_problem(metas, layout.majors(metas))

    assert problem() is None and problem(a=big[0, :32].t()) is None and problem(b=torch.zeros(3, 16, 32, dtype=BF)[:1], ends=torch.zeros(1)) is None
    assert layout.majors([metadata(t) for t in (big[0, :32].t(), big[:3, :16, :32], torch.zeros(3), big[1, :, :16])])["a_tensor"] == "k,m"
    odd = torch.zeros(64, 68, dtype=BF)
    assert problem(a=odd[:, :32]) == "a_tensor: found stride 68 of axis 0, 136 bytes, needs a multiple of 8 elements of bfloat16 (16 bytes); pad the pitch"
    assert problem(b=big[:3, :24, :32], c=big[1, :, :24]) == "c: found N = 24 contiguous bfloat16 elements, needs a multiple of 8 in each half (16 bytes)"
    for wrong in (big[:3, :16, ::2], big[0:1, :16, :32].expand(3, 16, 32), big[0].as_strided((3, 16, 32), (1024, 16, 1))):
        with pytest.raises(ValueError, match="b_tensor: found strides .* needs axes in the order E,N,K, stride 1 along the last and lines that do not overlap"):
            problem(b=wrong)
    with pytest.raises(ValueError, match="ends: found strides"):
        problem(ends=torch.zeros(6)[::2])


def test_weights_that_start_between_16_bytes_are_copied():
    """As a view into one flat buffer of all parameters is: contiguous, and nothing that the copy engine takes."""
    flat = torch.randn(4 + 3 * 16 * 24).bfloat16()
    w = flat[4:].view(3, 16, 24)
    given, major = moe_products.as_weights(w)
    assert major == "k" and given.data_ptr() % 16 == 0 and torch.equal(given, w) and w.data_ptr() % 16
    (one, other), major = moe_products.common_weights((w, flat[: 3 * 16 * 24].view(3, 24, 16).transpose(1, 2)))
    assert major == "k" and not (one.data_ptr() | other.data_ptr()) % 16 and one.is_contiguous() and other.is_contiguous()


# Calls like earlier ones: what is left out of them, and what is noticed all the same.

PREPARATIONS = ("_prepared_linear", "_prepared_gated", "_prepared_gradient", "_prepared_weight")


@pytest.fixture
def prepared(device, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the products that were looked at from the beginning."""
    found: list[str] = []
    for name in PREPARATIONS:
        original = getattr(moe_products, name)

        def prepare(*arguments: Any, name: str = name, original: Any = original) -> Any:
            found.append(name)
            return original(*arguments)

        monkeypatch.setattr(moe_products, name, prepare)
    return found


def step(transposed: bool = False, separate: bool = False, tokens: int = 30, **options: Any) -> tuple[torch.Tensor, ...]:
    def weight(features: int, inputs: int) -> torch.Tensor:
        return randn(E, *((inputs, features) if transposed else (features, inputs)), scale=inputs**-0.5)

    gate_up = (weight(I, H), weight(I, H)) if separate else weight(2 * I, H)
    x, down, p = randn(tokens, H), weight(H, I), (torch.rand(tokens, K) + 0.5).requires_grad_()
    given = {"glu_layout": "separate"} if separate else {}
    out = moe_mlp(x, gate_up, down, top_k_index=choices(tokens), top_k_weights=p, transposed=transposed, **given, **options)
    return torch.autograd.grad(out, (x, down, p), torch.randn_like(out))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("separate", [False, True])
def test_a_third_step_prepares_nothing(prepared, transposed, separate):
    step(transposed, separate)
    step(transposed, separate)
    assert set(prepared) == set(PREPARATIONS)
    prepared.clear()
    step(transposed, separate)
    assert prepared == []
    # Sums in a fixed order have scratch memory: that product alone is looked at.
    step(transposed, separate, deterministic=True)
    assert set(prepared) == {"_prepared_gradient"}


def test_addresses_are_looked_at_in_every_call(device, prepared):
    """Tensors that start between 16 bytes are copied, whatever was there before."""
    w = randn(E, I, H, scale=H**-0.5).detach()
    for start in (0, 0, 0, 3, 0):
        x = torch.empty(40 * H + 8, dtype=BF)[start:][: 40 * H].view(40, H).copy_(torch.randn(40, H))
        last = min(int(ends()[-1]), 40)
        bounds = ends().clamp(max=last)
        found = moe_products.linear(x, w, bounds)
        assert torch.equal(found[:last], grouped_gemm(x, w, bounds, None, None)[1][:last].to(BF))
    assert len(prepared) == 3


def test_one_tensor_in_two_places_is_none_to_go_by(device, prepared):
    """Which of two is which is told by address: where they are one, the next two are not taken for it."""
    bounds = ends()
    for same in (True, True, False, False, True, False):
        left = torch.randn(70, H).to(BF)
        right = left if same else torch.randn(70, H).to(BF)
        assert torch.equal(moe_products.weight_gradient(left, right, bounds), grouped_wgrad(left.t(), right, bounds).to(BF))


def test_other_numbers_of_tokens_need_no_other_operation(device, monkeypatch):
    built: list[str] = []
    for calls in (moe_products._LINEAR, moe_products._GATED, moe_products._GRADIENT, moe_products._WEIGHT):
        monkeypatch.setattr(calls, "_build", lambda *given, build=calls._build, name=calls.name: built.append(name) or build(*given))
    for tokens in (30, 31, 7, 2):
        step(tokens=tokens)
        assert built and tokens == 30 or not built
        built.clear()
    w = randn(E, I, H, scale=H**-0.5).detach()
    for count in (70, 33, 1, 2, 0, 71, 1):
        x, grad, bounds = torch.randn(count, H).to(BF), torch.randn(count, I).to(BF), ends().clamp(max=count)
        last = int(bounds[-1])
        assert torch.equal(moe_products.linear(x, w, bounds)[:last], grouped_gemm(x, w, bounds, None, None)[1][:last].to(BF))
        assert torch.equal(moe_products.weight_gradient(grad, x, bounds), grouped_wgrad(grad.t(), x, bounds).to(BF))


def test_another_table_of_launches_is_noticed(prepared):
    """After tuning an operation has one."""
    step()
    step()
    for op in moe_products._GATED._objects.values():
        op._launches, op._known = Memo(4), Memo(4)
    prepared.clear()
    step()
    step()
    assert set(prepared) == {"_prepared_gated"}
    prepared.clear()
    step()
    assert prepared == []


def test_checks_are_remembered_by_all_that_they_look_at(device):
    """What differs from an accepted call in one thing that is checked is refused as ever."""
    x, gate_up, down = randn(30, H), randn(E, 2 * I, H), randn(E, H, I)
    chosen, p = choices(30), torch.rand(30, K)
    given: dict[str, Any] = {"x": x, "gate_up": gate_up, "down": down, "top_k_index": chosen, "top_k_weights": p}

    def call(**changes: Any) -> torch.Tensor:
        return moe_mlp(**{**given, **changes})

    for _ in range(2):
        call()
        for changes, error, words in (
            ({"x": x.half()}, TypeError, "gate_up is torch.bfloat16 while x is torch.float16"),
            ({"x": x[:, :8]}, ValueError, "x has shape"),
            ({"x": x[:7]}, ValueError, "top_k_index has shape"),
            ({"x": None}, TypeError, "x is a NoneType"),
            ({"down": down.transpose(1, 2)}, ValueError, "down has shape"),
            ({"transposed": True}, ValueError, "gate_up"),
            ({"gate_up": (gate_up,)}, ValueError, "gate_up is 1 tensors"),
            ({"top_k_index": chosen.float()}, TypeError, "top_k_index is torch.float32"),
            ({"top_k_index": chosen.tolist()}, TypeError, "top_k_index is a list"),
            ({"top_k_weights": p.int()}, TypeError, "top_k_weights is torch.int32"),
            ({"top_k_weights": p[:, :1]}, ValueError, "top_k_weights has shape"),
            ({"prob": p}, ValueError, "found prob"),
            ({"offsets": ends()}, ValueError, "both"),
            ({"down_bias": randn(E, I)}, ValueError, "down_bias has shape"),
            ({"act_func": "relu"}, ValueError, "act_func is 'relu'"),
            ({"glu_clamp_max": -9.0}, ValueError, "needs them in order"),
            ({"glu_clamp_max": "7"}, ValueError, "glu_clamp_max"),
            ({"glu_layout": "sideways"}, ValueError, "glu_layout is 'sideways'"),
            ({"down": down.to("meta")}, ValueError, "down is on meta while x is on cpu"),
        ):
            with pytest.raises(error, match=words):
                call(**changes)
    assert len(moe_layer._CHECKED) >= 1
