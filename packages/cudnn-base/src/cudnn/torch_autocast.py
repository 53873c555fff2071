"""How the differentiable operations take part in autocast: as torch.nn.functional.linear does."""

from __future__ import annotations

from typing import Any

import torch


def cast_inputs(device_type: str, *tensors: Any) -> tuple[Any, ...]:
    """The tensors in the dtype that autocast asks for on this kind of device; unchanged outside of autocast. None, and what is no floating-point tensor or float64, stays."""
    if not torch.is_autocast_enabled(device_type):
        return tensors
    dtype = torch.get_autocast_dtype(device_type)
    return tuple(t.to(dtype) if t is not None and t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors)


def needs_grad(*tensors: Any) -> bool:
    """Whether autograd will ask for the gradient of one of them."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
