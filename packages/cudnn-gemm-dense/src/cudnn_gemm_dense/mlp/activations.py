"""Gated activations in plain torch, as the feed-forward layers need them: forward, and backward from the pre-activation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cudnn.reference import swiglu, swiglu_backward

if TYPE_CHECKING:
    import torch

ACTIVATIONS = ("swiglu", "situ")


def forward(activation: str, gate: torch.Tensor, up: torch.Tensor, constants: Sequence[float]) -> torch.Tensor:
    """swiglu: up * silu(gate). situ, constants (beta, lambda): beta tanh(gate / beta) sigmoid(gate) * lambda tanh(up / lambda)."""
    if activation == "swiglu":
        return swiglu(gate, up)
    beta, linear = constants
    return beta * (gate / beta).tanh() * gate.sigmoid() * (linear * (up / linear).tanh())


def backward(activation: str, gate: torch.Tensor, up: torch.Tensor, grad: torch.Tensor, constants: Sequence[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """(gradient of gate, gradient of up) from the gradient of the result."""
    if activation == "swiglu":
        return swiglu_backward(gate, up, grad)[:2]
    beta, linear = constants
    s, bent_gate, bent_up = gate.sigmoid(), (gate / beta).tanh(), (up / linear).tanh()
    d_gate = grad * linear * bent_up * s * ((1 - bent_gate**2) + beta * bent_gate * (1 - s))
    return d_gate, grad * beta * bent_gate * s * (1 - bent_up**2)


def kernel_scalars(activation: str, constants: Sequence[float]) -> tuple[float, ...]:
    """The scalars of the kernels' epilogues: each constant and its reciprocal."""
    return tuple(value for constant in constants for value in (float(constant), 1.0 / constant)) if activation == "situ" else ()
