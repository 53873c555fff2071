"""Mixture-of-experts models of Hugging Face transformers, with their experts computed by "cudnn" and by "eager", side by side.

Tiny models of four families with random weights take one step, forward and backward: Mixtral, Qwen3-MoE, DeepSeek-V3, and GPT-OSS, which keeps gate and up in alternating columns, transposed, with biases and limits. Two
lines turn the experts of a model into ours, and its parameters stay as they are:

    cudnn.torch.register_transformers_experts()
    model.set_experts_implementation("cudnn")

Logits, loss and the gradient of every parameter in bfloat16 are compared with those of "eager" in float32, by relative error: they may have twice the error of "eager" in bfloat16. Which experts a token takes
is decided once, in float32: a rounding would otherwise send some token elsewhere now and then, and there would be nothing to compare. The run fails where an error is larger.

    python examples/transformers_moe.py [--tokens N] [--draws N] [--seed N] [--device cpu|cuda]

Needs transformers 5. On a CPU the reference engine computes; on a Hopper GPU the kernels.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import transformers
from torch.overrides import TorchFunctionMode

import cudnn

VOCABULARY, HIDDEN, INNER, EXPERTS, TOP_K = 128, 64, 96, 8, 2


def models() -> dict[str, Callable[[], Any]]:
    """Name -> a function that makes a model with random weights, two layers each."""
    common = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_experts_per_tok": TOP_K,
        "attn_implementation": "eager",
    }
    heads = {"num_key_value_heads": 2, "head_dim": 16}
    latent = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16, "num_key_value_heads": 4}
    groups = {"n_routed_experts": EXPERTS, "n_group": 2, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1}
    configs = {
        "Mixtral": transformers.MixtralConfig(**common, **heads, intermediate_size=INNER, num_local_experts=EXPERTS),
        "Qwen3-MoE": transformers.Qwen3MoeConfig(**common, **heads, intermediate_size=INNER, moe_intermediate_size=INNER, num_experts=EXPERTS),
        "DeepSeek-V3": transformers.DeepseekV3Config(**common, **latent, **groups, intermediate_size=INNER, moe_intermediate_size=INNER),
        "GPT-OSS": transformers.GptOssConfig(
            **common, **heads, intermediate_size=INNER, num_local_experts=EXPERTS, max_position_embeddings=4096 * 32, sliding_window=16
        ),
    }
    return {name: lambda config=config: transformers.AutoModelForCausalLM.from_config(config) for name, config in configs.items()}


class Choices(TorchFunctionMode):
    """Remembers what ``topk`` chose, and chooses the same again in every later step."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[torch.Tensor] = []
        self.recording = True

    @contextmanager
    def step(self) -> Iterator[None]:
        self.waiting = iter(self.made)
        with self:
            yield
        self.recording = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in (torch.topk, torch.Tensor.topk):
            return func(*args, **kwargs)
        found = func(*args, **kwargs)
        if self.recording:
            self.made.append(found.indices)
            return found
        index = next(self.waiting)
        return torch.return_types.topk((args[0].gather(kwargs.get("dim", -1), index), index))


def step(model: Any, implementation: str, dtype: torch.dtype, tokens: torch.Tensor, choices: Choices) -> dict[str, torch.Tensor]:
    """Logits, loss, and the gradient of every parameter."""
    model = copy.deepcopy(model).to(dtype)
    model.set_experts_implementation(implementation)
    with choices.step():
        result = model(input_ids=tokens, labels=tokens)
    result.loss.backward()
    found = {"logits": result.logits, "loss": result.loss, **{name: p.grad for name, p in model.named_parameters() if p.grad is not None}}
    return {name: t.detach().double() for name, t in found.items()}


def relative(found: torch.Tensor, right: torch.Tensor) -> float:
    return ((found - right).norm() / right.norm()).item()


class Errors(NamedTuple):
    """Relative errors of "cudnn" and of "eager", and of how many numbers."""

    ours: float
    eager: float
    numbers: int


def errors(make: Callable[[], Any], count: int, draws: int, device: str) -> dict[str, Errors]:
    """Those of each result in bfloat16, by mean square over some draws of weights and tokens."""
    squares: dict[str, list[float]] = {}
    for _ in range(draws):
        model, tokens, choices = make().to(device), torch.randint(VOCABULARY, (2, count // 2), device=device), Choices()
        right = step(model, "eager", torch.float32, tokens, choices)
        found = [step(model, implementation, torch.bfloat16, tokens, choices) for implementation in ("cudnn", "eager")]
        assert all(one.keys() == right.keys() for one in found)
        for name, value in right.items():
            squares.setdefault(name, [0.0, 0.0])
            for i, one in enumerate(found):
                squares[name][i] += relative(one[name], value) ** 2 / draws
    return {name: Errors(ours**0.5, theirs**0.5, draws * right[name].numel()) for name, (ours, theirs) in squares.items()}


def allowed(error: Errors, usual: float) -> float:
    """Twice eager's error, or the ``usual`` one of such results where eager was nearer by chance; and what chance adds to the mean square of a few numbers."""
    return 2 * max(error.eager, usual) * (1 + 4 / error.numbers**0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("tokens", 128), ("draws", 2), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    o = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.manual_seed(o.seed)
    cudnn.torch.register_transformers_experts()
    print(
        f"{o.tokens} tokens, {EXPERTS} experts, {TOP_K} of them for each token, on {o.device}; relative errors of bfloat16 against float32, eager's own in brackets"
    )
    print(f"{'model':<12} {'logits':>17} {'loss':>17} {'all gradients':>17} {'gradients':>9}  worst gradient")
    failed = []
    for name, make in models().items():
        found = errors(make, o.tokens, o.draws, o.device)
        gradients = {what: error for what, error in found.items() if what not in ("logits", "loss")}
        pooled = Errors(*((sum(error[i] ** 2 for error in gradients.values()) / len(gradients)) ** 0.5 for i in range(2)), 0)
        shown = [f"{error.ours:.2e} [{error.eager:.2e}]" for error in (found["logits"], found["loss"], pooled)]
        ratio = {what: error.ours / allowed(error, pooled.eager if what in gradients else found["logits"].eager) for what, error in found.items()}
        worst = max(gradients, key=ratio.get)
        print(f"{name:<12} {shown[0]:>17} {shown[1]:>17} {shown[2]:>17} {len(gradients):>9}  {worst}: {found[worst].ours:.2e} [{found[worst].eager:.2e}]")
        failed += [f"{name}, {what}: {found[what].ours:.3g}, eager has {found[what].eager:.3g}" for what, value in ratio.items() if value > 1]
    if failed:
        raise SystemExit("\n".join(["larger than twice eager's, and not by chance:", *failed]))


if __name__ == "__main__":
    main()
