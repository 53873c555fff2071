"""Checks that the differentiable linear operations share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cudnn_gemm_dense.products import check_features

DTYPES = (torch.bfloat16, torch.float16)


def check_linear(op: str, x: Any, weights: Sequence[tuple[str, Any]]) -> None:
    """x (..., K) and weights (N, K) of one 16-bit dtype and one device, K a multiple of 8. TypeError or ValueError otherwise."""
    for name, t in (("x", x), *weights):
        if not isinstance(t, Tensor):
            raise TypeError(f"{op}: {name} is a {type(t).__name__}, needs a torch tensor")
        if t.dtype not in DTYPES:
            raise TypeError(f"{op}: {name} is {t.dtype}, needs torch.bfloat16 or torch.float16; cast it, or call under torch.autocast")
        if t.dtype != x.dtype:
            raise TypeError(f"{op}: {name} is {t.dtype} while x is {x.dtype}, needs equal dtypes; cast one, or call under torch.autocast")
        if t.device != x.device:
            raise ValueError(f"{op}: {name} is on {t.device} while x is on {x.device}, needs one device; move {name}")
    if x.dim() < 1:
        raise ValueError(f"{op}: x has no axes, needs (..., K)")
    for name, t in weights:
        if t.dim() != 2 or t.shape[1] != x.shape[-1]:
            raise ValueError(f"{op}: {name} has shape {tuple(t.shape)}, needs (N, K) with K = {x.shape[-1]} of x")
    check_features(op, "x", "features", x.shape[-1])
