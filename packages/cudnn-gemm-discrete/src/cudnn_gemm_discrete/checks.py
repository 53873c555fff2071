"""Checks that both discrete operations share, on metadata alone."""

from __future__ import annotations

from typing import Any

from cudnn import checks
from cudnn.datatypes import dtype_name
from cudnn.grouped.checks import BLOCK_SCALED_DTYPES, check_hints, check_options, forbid_scales

TILE_N = (256,)
MAX_CLUSTER = 4
GLU = {"geglu_alpha": 1.702, "glu_clamp_max": 7.0, "glu_clamp_min": -7.0}


def check_discrete(op: str, a: Any, num_experts: Any, offsets: Any, *, acc_dtype: Any, m_aligned: Any, b_major: Any, tile: Any, cluster: Any) -> None:
    """ValueError unless A has three axes, there are experts and as many offsets, and options and hints have published values."""
    if num_experts is None or checks.as_integer("num_experts", num_experts) == 0:
        raise ValueError(f"num_experts: found {num_experts}, needs 1 to 1024")
    if tuple(getattr(offsets, "shape", ())) != (num_experts,):
        raise ValueError(f"padded_offsets: found shape {tuple(getattr(offsets, 'shape', ()))}, needs ({num_experts},), an end for each of num_experts")
    if len(getattr(a, "shape", ())) != 3:
        raise ValueError(f"a_tensor: found shape {tuple(getattr(a, 'shape', ()))}, needs (M, K, 1); append a unit axis with a_tensor.unsqueeze(-1)")
    check_options(acc_dtype, m_aligned, b_major)
    check_hints(tile, cluster, tile_n=TILE_N, cluster_max=MAX_CLUSTER)


def no_scales(op: str, a: Any, given: dict[str, Any]) -> None:
    """NotImplementedError for block-scaled operands; ValueError for scale factors, and what goes with them, beside 16-bit ones."""
    if a is not None and dtype_name(getattr(a, "dtype", None)) in BLOCK_SCALED_DTYPES:
        raise NotImplementedError(
            f"{op}: block-scaled operands ({dtype_name(a.dtype)}) are not implemented yet; dequantise A and the weights to bfloat16 and leave the scale arguments at None"
        )
    forbid_scales(op, given)
