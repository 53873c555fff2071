"""`cudnn.torch.register_transformers_experts`: the experts of Hugging Face transformers' models, computed by `cudnn.ops.moe_mlp` around the weights that they have."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from cudnn.reference.grouped import GluScalars, gated
from cudnn_gemm_grouped.moe.checks import DEFAULT_SCALARS
from cudnn_gemm_grouped.moe.layer import moe_mlp

__all__ = ["register_transformers_experts"]

NAME = "cudnn"
FLAGS = ("has_gate", "has_bias", "is_transposed", "is_concatenated")
# What the models call the constants of their activations.
ALPHAS, LIMITS = ("alpha", "swiglu_alpha"), ("limit", "swiglu_limit")
ONE = "one"


def register_transformers_experts() -> str:
    """Add "cudnn" to the experts implementations of Hugging Face transformers, and return that name.

        cudnn.torch.register_transformers_experts()
        model = AutoModelForCausalLM.from_pretrained(..., experts_implementation="cudnn", dtype=torch.bfloat16)

    or ``model.set_experts_implementation("cudnn")`` for a model that is there already. Nothing is copied or converted: the model keeps its parameters and its state dict. It computes in bfloat16 or float16, or
    under torch.autocast; on CPU tensors through the reference.

    Served are experts with a gate whose activation is up · silu(gate), with or without limits, or that of the gpt-oss models, [gate; up] concatenated or in alternating columns, transposed or not, with biases or
    without. What is not is refused with an error that says why, at the first forward pass; nothing is computed another way without being asked for. The activation of a model is recognised by what it computes, not by
    the model's name. Routing numbers that are no expert, as expert parallelism has them, count as none.

    May be called any number of times.

    Returns:
        "cudnn".

    Raises:
        ImportError: transformers is missing, or has no experts interface (5.0 or newer has).
    """
    try:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    except ImportError as error:
        raise ImportError(
            f"register_transformers_experts needs transformers with an experts interface, 5.0 or newer: pip install 'transformers>=5' ({error})"
        ) from error
    ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)
    return NAME


def experts_forward(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """What transformers calls for the experts ``module`` of a model: hidden_states (T, H), top_k_index and top_k_weights (T, k); (T, H)."""
    act_func, glu_layout, offset, alpha, high, low = _gate_of(module)
    has_bias = module.has_bias
    out = moe_mlp(
        hidden_states,
        module.gate_up_proj,
        module.down_proj,
        top_k_index=top_k_index,
        top_k_weights=top_k_weights,
        gate_up_bias=module.gate_up_proj_bias if has_bias else None,
        down_bias=module.down_proj_bias if has_bias else None,
        act_func=act_func,
        glu_layout=glu_layout,
        transposed=module.is_transposed,
        linear_offset=offset,
        geglu_alpha=alpha,
        glu_clamp_max=high,
        glu_clamp_min=low,
    )
    return out.to(hidden_states.dtype)


def _gate_of(module: Any) -> tuple[str, str, float, float, float, float]:
    """How a model joins gate and up, in our words: act_func, glu_layout, and the scalars of the activation."""
    missing = [name for name in FLAGS if not hasattr(module, name)]
    kind = type(module)
    if missing:
        raise TypeError(
            f'experts_implementation="{NAME}": {kind.__name__} has no {missing[0]}, needs a module decorated with transformers\' use_experts_implementation'
        )
    if not module.has_gate:
        raise NotImplementedError(f'experts_implementation="{NAME}": {kind.__name__} has no gate (has_gate=False), needs gated experts; choose "grouped_mm"')
    for name in ("gate_up_proj", "down_proj", *(("gate_up_proj_bias", "down_proj_bias") if module.has_bias else ())):
        if not isinstance(getattr(module, name, None), Tensor):
            raise NotImplementedError(f'experts_implementation="{NAME}": {kind.__name__} has no parameter {name}; choose "grouped_mm"')
    known = tuple(name for name in (*ALPHAS, *LIMITS) if isinstance(getattr(module, name, None), (int, float)))
    activation = getattr(module, "act_fn", None)
    concatenated = bool(module.is_concatenated)
    form = _recognised(kind, None if activation is None else type(activation), known, concatenated)
    layout = "concatenated" if concatenated else "alternating"
    if form == "swiglu":
        offset, one, high, low = DEFAULT_SCALARS
        return "swiglu", layout, offset, one, high, low
    added, alpha, limit = form.split()
    high = float(getattr(module, limit))
    return "geglu", layout, float(added), 1.0 if alpha == ONE else float(getattr(module, alpha)), high, -high


# Under torch.compile this runs once, when the graph is made: what it returns depends on the class alone.
@torch.compiler.assume_constant_result
def _recognised(kind: type, activation: type | None, known: tuple[str, ...], concatenated: bool) -> str:
    return _recognise(kind, activation, known, concatenated)


@lru_cache(maxsize=256)
def _recognise(kind: type, activation: type | None, known: tuple[str, ...], concatenated: bool) -> str:
    """The activation of a class of experts, told by what its ``_apply_gate`` makes of some numbers: "swiglu", or the offset and the names of alpha and limit of "geglu", with ``ONE`` for a constant 1.

    ``activation``: the class of its act_fn; ``known``: which of its attributes are numbers. NotImplementedError for one that the kernels do not have.
    """
    # Numbers of our own for the constants: a formula that they fit holds for others.
    constants = {name: 1.3 + 0.3 * i for i, name in enumerate(known) if name in ALPHAS} | {name: 4.0 + i for i, name in enumerate(known) if name in LIMITS}
    values = torch.tensor([0.0, *(sign * size for sign in (-1, 1) for size in (0.1, 1.0, 2.5, 3.9, 4.5, 6.5, 9.0, 13.0, 30.0))], dtype=torch.float32)
    gate, up = torch.cartesian_prod(values, values).t().unflatten(1, (values.numel(), -1))
    joined = torch.cat((gate, up), 1) if concatenated else torch.stack((gate, up), 2).flatten(1)
    try:
        # Only what an activation may depend on: no parameters, and nothing that the module's own constructor makes.
        stand_in = SimpleNamespace(**constants, act_fn=None if activation is None else activation())
        with torch.no_grad():
            found = kind._apply_gate(stand_in, joined)  # type: ignore[attr-defined]
    except Exception as error:
        raise NotImplementedError(
            f'experts_implementation="{NAME}": the activation of {kind.__name__} could not be looked at ({type(error).__name__}: {error}); choose "grouped_mm"'
        ) from error
    for form, act_func, scalars in _candidates(constants):
        wanted = gated(gate, up, act_func, scalars)
        if found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-4, atol=1e-5):
            return form
    name = "no act_fn" if activation is None else activation.__name__
    raise NotImplementedError(
        f'experts_implementation="{NAME}": {kind.__name__} joins gate and up in a way that the kernels do not have (act_fn {name}, constants {", ".join(known) or "none"}); needs up * silu(gate), '
        'with or without limits, or the form of the gpt-oss models; choose "grouped_mm"'
    )


def _candidates(constants: dict[str, float]) -> Iterator[tuple[str, str, GluScalars]]:
    """What an activation may be: (its form in words, act_func, scalars)."""
    yield "swiglu", "swiglu", GluScalars()
    for limit in (name for name in LIMITS if name in constants):
        for offset, alpha in ((0.0, ONE), *((1.0, name) for name in ALPHAS if name in constants)):
            yield f"{offset} {alpha} {limit}", "geglu", GluScalars(offset, constants.get(alpha, 1.0), constants[limit], -constants[limit])
