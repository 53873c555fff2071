"""What tests of differentiable operations have in common."""

from __future__ import annotations

from typing import Any

import torch


class Stopped(torch.autograd.Function):
    """The identity. It gives no gradient on, which is not one of zeros."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> None:
        return None
