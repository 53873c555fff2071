"""Checks that the differentiable operations share. They work on metadata, symbolic extents included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cudnn import checks
from cudnn.grouped.checks import MAX_EXPERTS
from cudnn.reference import GROUPED_GLU_LAYOUTS
from cudnn.reference.grouped import GATED_ACTIVATIONS, GluScalars
from cudnn_gemm_grouped.moe.products import check_features

DTYPES = (torch.bfloat16, torch.float16)
BIAS_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
INTEGERS = (torch.int64, torch.int32, torch.int16)


def check_tensor(op: str, name: str, t: Any) -> None:
    """TypeError unless ``t`` is a torch tensor."""
    if not isinstance(t, Tensor):
        raise TypeError(f"{op}: {name} is a {type(t).__name__}, needs a torch tensor")


def check_operands(op: str, x: Tensor, weights: Sequence[tuple[str, Tensor]], called: str = "x") -> None:
    """x, by whatever name it is ``called``, and weights of one 16-bit dtype and on one device. TypeError or ValueError otherwise."""
    for name, t in ((called, x), *weights):
        check_tensor(op, name, t)
        if t.dtype not in DTYPES:
            raise TypeError(f"{op}: {name} is {t.dtype}, needs torch.bfloat16 or torch.float16; cast it, or call under torch.autocast")
        if t.dtype != x.dtype:
            raise TypeError(f"{op}: {name} is {t.dtype} while {called} is {x.dtype}, needs equal dtypes; cast one, or call under torch.autocast")
        check_device(op, name, t, x)


def check_device(op: str, name: str, t: Tensor, x: Tensor) -> None:
    if t.device != x.device:
        raise ValueError(f"{op}: {name} is on {t.device} while x is on {x.device}, needs one device; move {name}")


def check_shape(op: str, name: str, t: Tensor, shape: Sequence[Any], axes: str, because: str) -> None:
    """ValueError unless ``t`` has this shape."""
    if t.dim() != len(shape) or any(found != wanted for found, wanted in zip(t.shape, shape, strict=True)):
        raise ValueError(f"{op}: {name} has shape {tuple(t.shape)}, needs {axes} = {tuple(shape)}{because}")


def check_weight(op: str, name: str, t: Tensor, axes: str) -> None:
    """ValueError unless ``t`` has three axes, the first from 1 to 1024 experts."""
    if t.dim() != 3:
        raise ValueError(f"{op}: {name} has shape {tuple(t.shape)}, needs three axes {axes}")
    if not 1 <= t.shape[0] <= MAX_EXPERTS:
        raise ValueError(f"{op}: {name} has shape {tuple(t.shape)}, needs 1 to {MAX_EXPERTS} experts")


def check_ends(op: str, name: str, ends: Any, experts: int, x: Tensor) -> Tensor:
    """Ends of the groups as int32 (E,). TypeError or ValueError for anything else."""
    check_tensor(op, name, ends)
    if ends.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{op}: {name} is {ends.dtype}, needs torch.int32")
    check_shape(op, name, ends, (experts,), "(E,)", ", the end of each group; for sizes take torch.cumsum(sizes, 0)")
    check_device(op, name, ends, x)
    return ends.to(torch.int32).contiguous()


def check_bias(op: str, name: str, bias: Tensor | None, experts: int, features: int, x: Tensor) -> None:
    """A bias (E, features), or None. TypeError or ValueError for anything else."""
    if bias is None:
        return
    check_tensor(op, name, bias)
    if bias.dtype not in BIAS_DTYPES:
        raise TypeError(f"{op}: {name} is {bias.dtype}, needs torch.bfloat16, torch.float16 or torch.float32")
    check_shape(op, name, bias, (experts, features), "(E, features)", ", as the weight has it")
    check_device(op, name, bias, x)


def check_factors(op: str, name: str, factor: Any, shape: Sequence[Any], axes: str, x: Tensor) -> None:
    """Factors of rows, or None. TypeError or ValueError for anything else."""
    if factor is None:
        return
    check_tensor(op, name, factor)
    if not factor.is_floating_point():
        raise TypeError(f"{op}: {name} is {factor.dtype}, needs a floating-point dtype; the kernels read torch.float32")
    check_shape(op, name, factor, shape, axes, ", one for each row")
    check_device(op, name, factor, x)


def row_factors(op: str, name: str, factor: Any, shape: Sequence[Any], axes: str, x: Tensor) -> Tensor | None:
    """Factors of rows in float32, through which gradients flow; None stays. Errors as ``check_factors``."""
    check_factors(op, name, factor, shape, axes, x)
    return None if factor is None else factor.float().contiguous()


def check_activation(op: str, act_func: Any, scalars: Sequence[Any]) -> list[float]:
    """The scalars of the activation as floats. ValueError for an unknown activation, and for values that are no numbers on the host or in the wrong order."""
    if act_func not in GATED_ACTIVATIONS:
        raise ValueError(f"{op}: act_func is {act_func!r}, needs one of {', '.join(map(repr, GATED_ACTIVATIONS))}")
    names = ("linear_offset", "geglu_alpha", "glu_clamp_max", "glu_clamp_min")
    values = [value if type(value) is float else checks.as_scalar(name, value) for name, value in zip(names, scalars, strict=True)]
    if not values[3] <= values[2]:
        raise ValueError(f"{op}: glu_clamp_min is {values[3]} and glu_clamp_max {values[2]}, needs them in order")
    return values


def check_layout(op: str, glu_layout: Any, features: Any) -> None:
    """ValueError unless gate and up, ``features`` together, can lie so."""
    if glu_layout not in GROUPED_GLU_LAYOUTS:
        raise ValueError(f"{op}: glu_layout is {glu_layout!r}, needs one of {', '.join(map(repr, GROUPED_GLU_LAYOUTS))}")
    if features % 2:
        raise ValueError(f"{op}: the weight of gate and up has {features} rows, needs an even number: a gate and an up row for each feature")
    if glu_layout == "interleaved32" and features % 64:
        raise ValueError(
            f'{op}: the weight of gate and up has {features} rows with glu_layout="interleaved32", needs a multiple of 64 (blocks of 32 gate and 32 up rows); pad both, or pass them whole with '
            'glu_layout="concatenated"'
        )
    check_features(op, "each half of the weight of gate and up", "rows", features // 2)


DEFAULT_SCALARS = tuple(GluScalars())
