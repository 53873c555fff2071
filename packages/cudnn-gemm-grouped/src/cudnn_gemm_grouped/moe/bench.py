"""How a layer of experts is measured: routing given, forward and backward through autograd, gradients of the tokens, of both weights and of the routing weights.

T tokens of width H, each with k of E experts of width I: x (T, H), index and weights (T, k), gate_up (E, 2 I, H), down (E, H, I). Experts are chosen with skew, as trained routers do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cudnn.bench import Benchmark, Candidate, HostPath, Shape, dense, grouped
from cudnn.bench.spec import Inputs

if TYPE_CHECKING:
    import torch

Call = Callable[[], Any]
Layer = Callable[..., "torch.Tensor"]

LEAVES = ("x", "weights", "gate_up", "down")
SAMPLES = 4  # experts whose weight gradients are compared: those of all, in float32, fill the memory of a GPU
TOKENS = (2048, 8192, 32768)


def _shapes(model: str) -> tuple[Shape, ...]:
    experts, top_k, hidden, inner = grouped.MODELS[model]
    return tuple((experts, top_k, tokens, hidden, inner) for tokens in TOKENS)


def _inputs(shape: Shape, dtype: str, device: torch.device, generator: torch.Generator) -> dict[str, Any]:
    import torch

    experts, top_k, tokens, hidden, inner = shape
    popularity = 1.0 / torch.arange(1, experts + 1, device=device).double() ** 1.2
    order = torch.randperm(experts, generator=torch.Generator().manual_seed(0)).to(device)
    # The k largest of log p + Gumbel noise: a draw without replacement.
    noise = -(-torch.rand(tokens, experts, device=device, generator=generator).clamp_min(1e-20).log()).log()
    index = (popularity[order].log().float() + noise).topk(top_k).indices
    weights = torch.rand(tokens, top_k, device=device, generator=generator) + 0.1

    def stack(rows: int, columns: int) -> torch.Tensor:
        return dense.random_matrix(experts * rows, columns, dtype, device, generator, columns**-0.5).view(experts, rows, columns)

    return {
        "x": dense.random_matrix(tokens, hidden, dtype, device, generator),
        "index": index,
        "weights": weights / weights.sum(-1, keepdim=True),
        "gate_up": stack(2 * inner, hidden),
        "down": stack(hidden, inner),
        "grad": dense.random_matrix(tokens, hidden, dtype, device, generator),
    }


def _sampled(experts: int) -> list[int]:
    return sorted({i * (experts - 1) // max(SAMPLES - 1, 1) for i in range(SAMPLES)})


def _step(layer: Layer, inputs: Inputs) -> Call:
    """Forward and backward of ``layer`` on leaves of its own."""
    import torch

    leaves = [inputs[name].detach().requires_grad_() for name in LEAVES]

    def call() -> tuple[torch.Tensor, ...]:
        out = layer(*leaves, inputs["index"])
        return out.detach(), *torch.autograd.grad(out, leaves, inputs["grad"])

    return call


def _named(result: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    out, d_x, d_weights, d_gate_up, d_down = result
    chosen = _sampled(d_down.shape[0])
    return {"out": out, "d_x": d_x, "d_weights": d_weights, "d_gate_up": d_gate_up[chosen], "d_down": d_down[chosen]}


def _by_expert(inputs: Inputs, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """One expert after another in plain torch, in ``dtype``, with the gradients written out. Of the weights' gradients only those that are compared are kept."""
    import torch
    from torch.nn import functional

    x, grad, p = inputs["x"].to(dtype), inputs["grad"].to(dtype), inputs["weights"]
    out, d_x, d_p = torch.zeros_like(x, dtype=torch.float32), torch.zeros_like(x, dtype=torch.float32), torch.zeros_like(p)
    kept: dict[str, list[torch.Tensor]] = {"d_gate_up": [], "d_down": []}
    chosen = _sampled(len(inputs["down"]))
    for expert, (gate_up, down) in enumerate(zip(inputs["gate_up"], inputs["down"], strict=True)):
        token, choice = torch.where(inputs["index"] == expert)
        leaves = [t.detach().requires_grad_() for t in (x[token], p[token, choice], gate_up.to(dtype), down.to(dtype))]
        with torch.enable_grad():
            rows, factor, first, second = leaves
            gate, up = functional.linear(rows, first).chunk(2, -1)
            result = functional.linear(functional.silu(gate) * up, second) * factor[:, None].to(dtype)
        d_rows, d_factor, d_first, d_second = torch.autograd.grad(result, leaves, grad[token])
        out.index_add_(0, token, result.detach().float())
        d_x.index_add_(0, token, d_rows.float())
        d_p[token, choice] = d_factor
        if expert in chosen:
            kept["d_gate_up"].append(d_first)
            kept["d_down"].append(d_second)
    return {"out": out, "d_x": d_x, "d_weights": d_p, **{name: torch.stack(found) for name, found in kept.items()}}


def _reference(inputs: Inputs) -> dict[str, torch.Tensor]:
    import torch

    from cudnn.reference import full_float32

    with full_float32():
        return _by_expert(inputs, torch.float32)


def _baseline(inputs: Inputs) -> dict[str, torch.Tensor]:
    return _by_expert(inputs, inputs["x"].dtype)


def _layer(x: torch.Tensor, weights: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    from cudnn_gemm_grouped.moe.layer import moe_mlp

    return moe_mlp(x, gate_up, down, top_k_index=index, top_k_weights=weights)


def _ours(config: Mapping[str, object] | None) -> Candidate:
    def bind(inputs: Inputs) -> Call:
        if config is not None:
            raise ValueError("moe_mlp: the layer takes no configuration; tune grouped_gemm_glu, grouped_gemm_dglu, grouped_gemm and grouped_gemm_wgrad")
        return _step(_layer, inputs)

    return Candidate("ours", "cudnn moe_mlp, forward and backward", bind, _named)


def plain(x: torch.Tensor, weights: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The layer as torch has it: tokens sorted by expert, two grouped products, and the experts of a token added up."""
    import torch
    from torch.nn import functional

    top_k, experts = index.shape[1], gate_up.shape[0]
    owner, order = torch.sort(index.reshape(-1))
    ends = torch.searchsorted(owner, torch.arange(experts, device=x.device), right=True, out_int32=True)
    gate, up = grouped.torch_products(x[order // top_k], gate_up, ends).chunk(2, -1)
    rows = grouped.torch_products(functional.silu(gate) * up, down, ends) * weights.reshape(-1)[order, None]
    back = torch.empty_like(order).scatter_(0, order, torch.arange(order.shape[0], device=x.device))
    return rows[back].view(-1, top_k, x.shape[1]).sum(1).to(x.dtype)


def _bind_compiled(inputs: Inputs) -> Call:
    import torch

    # Else the compiler gives up on one function after eight shapes, and runs it eagerly.
    torch.compiler.reset()
    return _step(torch.compile(plain, dynamic=False), inputs)


def _transformers_missing() -> str | None:
    try:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS  # noqa: F401
        from transformers.models.mixtral.modeling_mixtral import MixtralExperts  # noqa: F401
    except Exception as error:  # not installed, too old, or failing in a way of its own
        return f"transformers' experts interface: {type(error).__name__}: {error}"
    return None


def bind_transformers(inputs: Inputs, implementation: str = "grouped_mm") -> Call:
    """The experts of a transformers model, in one of its implementations, on the inputs' weights."""
    import torch
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts

    experts, hidden, inner = inputs["down"].shape
    config = MixtralConfig(num_local_experts=experts, num_experts_per_tok=inputs["index"].shape[1], hidden_size=hidden, intermediate_size=inner)
    config._experts_implementation = implementation
    with torch.device("meta"):
        module = MixtralExperts(config)

    def layer(x: torch.Tensor, weights: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(module, {"gate_up_proj": gate_up, "down_proj": down}, (x, index, weights)).to(x.dtype)

    return _step(layer, inputs)


def _bind_forward(inputs: Inputs) -> Call:
    import torch

    def call() -> torch.Tensor:
        with torch.no_grad():
            return _layer(*(inputs[name] for name in (*LEAVES, "index")))

    return call


def _flops(shape: Shape) -> float:
    """Three products forward (gate, up, down), two for each of them backward."""
    _, top_k, tokens, hidden, inner = shape
    return 18.0 * tokens * top_k * hidden * inner


def _bytes(shape: Shape, dtype: str) -> float:
    """x, the gradient of the output, the output and the gradient of x once; the weights in both passes, and their gradients."""
    experts, _, tokens, hidden, inner = shape
    return 2.0 * (4 * tokens * hidden + 9 * experts * hidden * inner)


BENCH = Benchmark(
    op="moe_mlp",
    title="Layer of experts, forward and backward",
    axes=("E", "k", "T", "H", "I"),
    shapes={"models": tuple(shape for model in grouped.MODELS for shape in _shapes(model)), **{model: _shapes(model) for model in grouped.MODELS}},
    inputs=_inputs,
    ours=_ours,
    peers=(
        Candidate("transformers", "transformers' grouped_mm experts", bind_transformers, _named, _transformers_missing),
        Candidate("torch-compile", "the layer on torch._grouped_mm, torch.compile'd", _bind_compiled, _named),
    ),
    reference=_reference,
    baseline=_baseline,
    flops=_flops,
    bytes=_bytes,
    host_paths=(
        HostPath("moe_mlp forward, no gradients", _bind_forward),
        HostPath("moe_mlp forward and backward", lambda inputs: _step(_layer, inputs)),
        HostPath("torch.compile'd forward and backward", _bind_compiled),
    ),
    host_shape=(8, 2, 128, 128, 128),
)
