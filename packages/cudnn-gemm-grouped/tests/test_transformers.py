"""The experts interface of Hugging Face transformers. `examples/transformers_moe.py` compares four whole models; the tests of the examples run it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch import nn

from cudnn.testing.conformance import same_bits
from cudnn.testing.numeric import relative_error
from cudnn_gemm_grouped.moe.experts import register_transformers_experts

interface = pytest.importorskip("transformers.integrations.moe", reason="transformers with an experts interface (5.0 or newer) is not installed")
decorated = interface.use_experts_implementation

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a CUDA device of compute capability 9.0")])
DEVICES = pytest.mark.parametrize("device", ["cpu", GPU])
E, H, I, K = 4, 64, 48, 2  # noqa: E741
BF = torch.bfloat16


class Experts(nn.Module):
    """Experts as transformers has them."""

    def __init__(self, config: Any, transposed: bool = False, bias: bool = False) -> None:
        super().__init__()
        self.num_experts, self.act_fn = E, nn.SiLU()

        def weight(rows, columns):
            shape = (columns, rows) if transposed else (rows, columns)
            return nn.Parameter(torch.randn(E, *shape) * columns**-0.5)

        self.gate_up_proj, self.down_proj = weight(2 * I, H), weight(H, I)
        if bias:
            self.gate_up_proj_bias, self.down_proj_bias = nn.Parameter(torch.randn(E, 2 * I)), nn.Parameter(torch.randn(E, H))

    def forward(self, hidden_states, top_k_index, top_k_weights):
        out = torch.zeros_like(hidden_states)
        for e in range(E):
            token, j = (top_k_index == e).nonzero(as_tuple=True)
            gate_up, down = (w[e].t() if self.is_transposed else w[e] for w in (self.gate_up_proj, self.down_proj))
            pre = nn.functional.linear(hidden_states[token], gate_up, self.gate_up_proj_bias[e] if self.has_bias else None)
            y = nn.functional.linear(self._apply_gate(pre), down, self.down_proj_bias[e] if self.has_bias else None)
            out = out.index_add(0, token, (y * top_k_weights[token, j].unsqueeze(-1)).to(out.dtype))
        return out


@decorated
class Plain(Experts):
    pass


@decorated(is_concatenated=False, is_transposed=True, has_bias=True)
class LikeGptOss(Experts):
    def __init__(self, config: Any) -> None:
        super().__init__(config, transposed=True, bias=True)
        self.alpha, self.limit = 1.702, 30.0

    def _apply_gate(self, gate_up):
        gate, up = gate_up[..., ::2].clamp(max=self.limit), gate_up[..., 1::2].clamp(-self.limit, self.limit)
        return (up + 1) * gate * torch.sigmoid(gate * self.alpha)


@decorated(is_transposed=True)
class Turned(Experts):
    def __init__(self, config: Any) -> None:
        super().__init__(config, transposed=True)


@decorated(has_bias=True)
class WithLimits(Experts):
    """up * silu(gate) with limits."""

    def __init__(self, config: Any) -> None:
        super().__init__(config, bias=True)
        self.swiglu_limit = 25.0

    def _apply_gate(self, gate_up):
        gate, up = gate_up.chunk(2, -1)
        return nn.functional.silu(gate.clamp(max=self.swiglu_limit)) * up.clamp(-self.swiglu_limit, self.swiglu_limit)


SERVED = [Plain, LikeGptOss, Turned, WithLimits]


def made(kind: type, device: str, dtype: torch.dtype = BF, implementation: str = "cudnn") -> nn.Module:
    assert register_transformers_experts() == "cudnn"
    return kind(SimpleNamespace(_experts_implementation=implementation)).to(device, dtype)


def routed(tokens: int, device: str, dtype: torch.dtype = BF) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    weights, chosen = torch.randn(tokens, E, device=device).softmax(-1).topk(K)
    return torch.randn(tokens, H, device=device).to(dtype).requires_grad_(), chosen, weights.to(dtype).requires_grad_()


def run(module: nn.Module, implementation: str, x, chosen, weights, grad):
    module.config._experts_implementation = implementation
    out = module(x, chosen, weights)
    return out.detach(), *torch.autograd.grad(out, [x, weights, *module.parameters()], grad.to(out.dtype))


@DEVICES
@pytest.mark.parametrize("kind", SERVED)
def test_against_eager(kind, device):
    """Result and every gradient, in bfloat16: error at most twice that of eager in the same dtype, against eager in float64."""
    module = made(kind, device)
    x, chosen, weights = routed(90, device)
    grad = torch.randn(90, H, device=device).to(BF)
    found, baseline = (run(module, implementation, x, chosen, weights, grad) for implementation in ("cudnn", "eager"))
    doubles = [t.detach().double().requires_grad_() for t in (x, weights)]
    expected = run(module.double(), "eager", doubles[0], chosen, doubles[1], grad)
    for one, other, right in zip(found, baseline, expected, strict=True):
        assert one.dtype == BF and one.shape == right.shape
        assert relative_error(one, right) <= max(2 * relative_error(other, right), 2**-7)


@DEVICES
def test_experts_on_other_devices_count_as_none(device):
    """Expert parallelism marks them by the number of experts, with a weight of 0."""
    module = made(Plain, device)
    x, chosen, weights = routed(40, device)
    elsewhere = torch.rand(40, K, device=device) < 0.4
    chosen, weights = chosen.masked_fill(elsewhere, E), weights.detach().masked_fill(elsewhere, 0).requires_grad_()
    grad = torch.randn(40, H, device=device).to(BF)
    found, expected = (run(module, implementation, x, chosen, weights, grad) for implementation in ("cudnn", "eager"))
    assert all(relative_error(a, b) < 2e-2 for a, b in zip(found, expected, strict=True))


@DEVICES
@pytest.mark.parametrize(("kind", "dynamic"), [(Plain, None), (LikeGptOss, True)])
def test_torch_compile(kind, dynamic, device):
    """Cases 39 and 51: one graph, which is not made again for other numbers of tokens; the same bits as eager torch."""
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    module = made(kind, device)
    compiled = torch.compile(module, fullgraph=True, dynamic=dynamic, backend=counter)
    counts = []
    for tokens in (24, 40, 7, 101):
        inputs = routed(tokens, device)
        leaves = [inputs[0], inputs[2], *module.parameters()]
        eager, out = module(*inputs), compiled(*inputs)
        assert same_bits(out.detach(), eager.detach())
        grad = torch.randn_like(out)
        for one, other in zip(torch.autograd.grad(out, leaves, grad), torch.autograd.grad(eager, leaves, grad), strict=True):
            assert same_bits(one, other) or (device == "cuda" and relative_error(one, other) < 1e-2)
        counts.append(counter.frame_count)
    assert counts[1] <= 2 and set(counts[1:]) == {counts[1]}
    with torch.no_grad():
        assert same_bits(compiled(*inputs), out.detach())


@DEVICES
def test_autocast_and_float32(device):
    """Parameters in float32: under autocast they are cast; without it the error says what to do, and nothing else is computed instead."""
    module = made(Plain, device, torch.float32)
    inputs = routed(30, device, torch.float32)
    with torch.autocast(device, BF):
        out = module(*inputs)
    module.config._experts_implementation = "eager"
    expected = module(*inputs)
    assert out.dtype == torch.float32 and relative_error(out.detach(), expected.detach()) < 2e-2
    module.config._experts_implementation = "cudnn"
    with pytest.raises(TypeError, match="x is torch.float32, needs torch.bfloat16 or torch.float16; cast it, or call under torch.autocast"):
        module(*inputs)


@decorated
class Gelu(Experts):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.act_fn = nn.GELU()


@decorated
class CutBehind(Experts):
    """Limits of the activated gate instead of the gate."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.limit = 7.0

    def _apply_gate(self, gate_up):
        gate, up = gate_up.chunk(2, -1)
        return self.act_fn(gate).clamp(max=self.limit) * up.clamp(-self.limit, self.limit)


@decorated(is_concatenated=False)
class WrongOrder(Experts):
    """Up before gate."""

    def _apply_gate(self, gate_up):
        return self.act_fn(gate_up[..., 1::2]) * gate_up[..., ::2]


@decorated
class WithParameters(Experts):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.scale = nn.Parameter(torch.ones(I))

    def _apply_gate(self, gate_up):
        gate, up = gate_up.chunk(2, -1)
        return self.act_fn(gate) * up * self.scale


@decorated(has_gate=False)
class NoGate(Experts):
    pass


@decorated
class OtherNames(Experts):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        del self.gate_up_proj


class NotDecorated(Experts):
    pass


REFUSED = {
    Gelu: (NotImplementedError, r'Gelu joins gate and up in a way that the kernels do not have \(act_fn GELU, constants none\).*choose "grouped_mm"'),
    CutBehind: (NotImplementedError, r"CutBehind joins gate and up in a way that the kernels do not have \(act_fn SiLU, constants limit\)"),
    WrongOrder: (NotImplementedError, "WrongOrder joins gate and up"),
    WithParameters: (NotImplementedError, "the activation of WithParameters could not be looked at .AttributeError"),
    NoGate: (NotImplementedError, r"NoGate has no gate \(has_gate=False\)"),
    OtherNames: (NotImplementedError, "OtherNames has no parameter gate_up_proj"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_served_is_refused(kind):
    module = made(kind, "cpu")
    error, message = REFUSED[kind]
    for _ in range(2):
        with pytest.raises(error, match=f'experts_implementation="cudnn": .*{message}'):
            module(*routed(10, "cpu"))
    from cudnn_gemm_grouped.moe.experts import experts_forward

    with pytest.raises(TypeError, match="NotDecorated has no has_gate, needs a module decorated"):
        experts_forward(NotDecorated(None), *routed(10, "cpu"))


def test_limits_are_those_of_the_module():
    """Two modules of one class with other constants."""
    found = []
    for limit in (0.5, 30.0):
        torch.manual_seed(0)
        module = made(LikeGptOss, "cpu")
        module.limit = limit
        inputs = routed(30, "cpu")
        out = module(*inputs)
        module.config._experts_implementation = "eager"
        assert relative_error(out.detach(), module(*inputs).detach()) < 2e-2
        found.append(out.detach())
    assert relative_error(*found) > 0.1


def test_without_transformers(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "transformers.integrations.moe", None)
    with pytest.raises(ImportError, match="needs transformers with an experts interface, 5.0 or newer: pip install 'transformers>=5'"):
        register_transformers_experts()
