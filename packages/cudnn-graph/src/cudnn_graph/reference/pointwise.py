"""Pointwise modes in torch. Every function takes operands in the compute type and returns the result before rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

_SQRT_HALF = math.sqrt(0.5)
_TANH_SCALE = math.sqrt(2.0 / math.pi)
_TANH_CUBIC = 0.044715


def _relu(x: torch.Tensor, params: Mapping[str, Any]) -> torch.Tensor:
    lower, upper, slope = params.get("lower_clip", 0.0), params.get("upper_clip"), params.get("negative_slope", 0.0)
    y = torch.where(x < lower, lower + slope * (x - lower), x)
    return y if upper is None else torch.where(y > upper, torch.full_like(y, upper), y)


def _relu_backward(dy: torch.Tensor, x: torch.Tensor, params: Mapping[str, Any]) -> torch.Tensor:
    lower, upper, slope = params.get("lower_clip", 0.0), params.get("upper_clip"), params.get("negative_slope", 0.0)
    dx = torch.where(x > lower, dy, slope * dy)
    return dx if upper is None else torch.where(x >= upper, torch.zeros_like(dx), dx)


def _gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.erf(x * _SQRT_HALF))


def _gelu_slope(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * (1.0 + torch.erf(x * _SQRT_HALF)) + x * torch.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(_TANH_SCALE * (x + _TANH_CUBIC * x * x * x)))


def _gelu_tanh_slope(x: torch.Tensor) -> torch.Tensor:
    t = torch.tanh(_TANH_SCALE * (x + _TANH_CUBIC * x * x * x))
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * _TANH_SCALE * (1.0 + 3.0 * _TANH_CUBIC * x * x)


def _swish_slope(x: torch.Tensor, beta: float) -> torch.Tensor:
    s = torch.sigmoid(beta * x)
    return s + beta * x * s * (1.0 - s)


def _softplus(x: torch.Tensor) -> torch.Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))


def _divide(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def _tanh_slope(x: torch.Tensor) -> torch.Tensor:
    return 1.0 - torch.tanh(x) ** 2


def _sigmoid_slope(x: torch.Tensor) -> torch.Tensor:
    s = torch.sigmoid(x)
    return s * (1.0 - s)


def _elu_slope(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, torch.ones_like(x), torch.exp(x))


_UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "abs": torch.abs,
    "ceil": torch.ceil,
    "cos": torch.cos,
    "exp": torch.exp,
    "floor": torch.floor,
    "log": torch.log,
    "neg": torch.neg,
    "rsqrt": torch.rsqrt,
    "sin": torch.sin,
    "sqrt": torch.sqrt,
    "tan": torch.tan,
    "erf": torch.erf,
    "identity": lambda x: x,
    "reciprocal": torch.reciprocal,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "elu": lambda x: torch.where(x > 0, x, torch.expm1(x)),
    "gelu": _gelu,
    "softplus": _softplus,
    "gelu_approx_tanh": _gelu_tanh,
    "logical_not": lambda x: x == 0,
}

_BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "bias": torch.add,
    "mul": torch.mul,
    "scale": torch.mul,
    "sub": torch.sub,
    "div": _divide,
    "add_square": lambda a, b: a + b * b,
    "max": torch.maximum,
    "min": torch.minimum,
    "mod": torch.fmod,
    "pow": torch.pow,
    "cmp_eq": torch.eq,
    "cmp_neq": torch.ne,
    "cmp_gt": torch.gt,
    "cmp_ge": torch.ge,
    "cmp_lt": torch.lt,
    "cmp_le": torch.le,
    "logical_and": lambda a, b: (a != 0) & (b != 0),
    "logical_or": lambda a, b: (a != 0) | (b != 0),
    "tanh_backward": lambda dy, x: dy * _tanh_slope(x),
    "sigmoid_backward": lambda dy, x: dy * _sigmoid_slope(x),
    "elu_backward": lambda dy, x: dy * _elu_slope(x),
    "gelu_backward": lambda dy, x: dy * _gelu_slope(x),
    "softplus_backward": lambda dy, x: dy * torch.sigmoid(x),
    "gelu_approx_tanh_backward": lambda dy, x: dy * _gelu_tanh_slope(x),
}

_WITH_PARAMS = {"relu", "leaky_relu", "relu_backward", "leaky_relu_backward", "swish", "swish_backward", "gen_index", "binary_select"}

MODES = frozenset(_UNARY) | frozenset(_BINARY) | _WITH_PARAMS


def apply(mode: str, operands: list[torch.Tensor], params: Mapping[str, Any]) -> torch.Tensor:
    """The result of one mode."""
    if mode in _UNARY:
        return _UNARY[mode](operands[0])
    if mode in _BINARY:
        return _BINARY[mode](*operands)
    if mode in ("relu", "leaky_relu"):
        return _relu(operands[0], params)
    if mode in ("relu_backward", "leaky_relu_backward"):
        return _relu_backward(operands[0], operands[1], params)
    if mode == "swish":
        return operands[0] * torch.sigmoid(params.get("swish_beta", 1.0) * operands[0])
    if mode == "swish_backward":
        return operands[0] * _swish_slope(operands[1], params.get("swish_beta", 1.0))
    if mode == "binary_select":
        return torch.where(operands[2] != 0, operands[0], operands[1])
    if mode == "gen_index":
        x, axis = operands[0], params["axis"]
        shape = [1] * x.dim()
        shape[axis] = x.shape[axis]
        return torch.arange(x.shape[axis], dtype=x.dtype, device=x.device).reshape(shape).expand(x.shape)
    raise NotImplementedError(f"pointwise mode '{mode}'")
