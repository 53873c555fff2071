"""GEMM + SwiGLU as torch operators: `cudnn::gemm_swiglu`, which makes its outputs, and `cudnn::gemm_swiglu_out`, which writes the caller's.

They are what torch.compile and fake tensors see of the wrapper and of the class. Not differentiable.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from cudnn.checks import as_pair
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.datatypes import torch_dtype
from cudnn_gemm_dense.runtime import Memo
from cudnn_gemm_dense.swiglu import api
from cudnn_gemm_dense.swiglu.arguments import Options

_out_objects: Memo = Memo(api.PLANS)


def as_list(b: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """B as a list: one tensor, or gate and up."""
    return [b] if isinstance(b, Tensor) else list(b)


def config_text(config: GemmConfig | None) -> str:
    """A configuration as an operator's argument; "" for None."""
    return "" if config is None else json.dumps(config.as_dict())


@torch.compiler.assume_constant_result
def encode(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """The wrapper's options as the operator's arguments: a constant of the traced graph."""
    o = Options.of(given)
    cluster = None if o.cluster_shape_mn is None else list(o.cluster_shape_mn)
    dtypes = torch_dtype(o.ab12_dtype), torch_dtype(o.c_dtype)
    return o.c_major, *dtypes, o.acc_dtype, list(o.mma_tiler_mn), cluster, o.glu_layout, o.backend, config_text(o.config)


# torch.library reads these annotations, so they are spelled as it knows them.
@torch.library.custom_op("cudnn::gemm_swiglu", mutates_args=())
def gemm_swiglu(
    a: Tensor,
    b: Sequence[Tensor],
    alpha: float,
    c_major: str,
    ab12_dtype: torch.dtype,
    c_dtype: torch.dtype,
    acc_dtype: str,
    mma_tiler_mn: Sequence[int],
    cluster_shape_mn: Optional[Sequence[int]],  # noqa: UP045
    glu_layout: str,
    backend: str,
    config: str,
) -> tuple[Tensor, Tensor]:
    """`gemm_swiglu_wrapper` with B as a list (one tensor, or gate and up) and the configuration as JSON; returns (AB12, C)."""
    a, *halves = (_plain(t) for t in (a, *b))
    ab12, c, _, _ = api.gemm_swiglu_wrapper(
        a,
        _one_or_pair(halves),
        alpha,
        c_major,
        ab12_dtype,
        c_dtype,
        acc_dtype,
        as_pair("mma_tiler_mn", mma_tiler_mn),
        None if cluster_shape_mn is None else as_pair("cluster_shape_mn", cluster_shape_mn),
        glu_layout=glu_layout,
        backend=backend,
        config=_config(config),
    )
    return ab12, c


@gemm_swiglu.register_fake
def _(a, b, alpha, c_major, ab12_dtype, c_dtype, acc_dtype, mma_tiler_mn, cluster_shape_mn, glu_layout, backend, config):
    m, _, batches = a.shape
    n = sum(half.shape[0] for half in b)

    def output(columns, dtype):
        stride = (columns, 1, m * columns) if c_major == "n" else (1, m, m * columns)
        return a.new_empty_strided((m, columns, batches), stride, dtype=dtype)

    return output(n, ab12_dtype), output(n // 2, c_dtype)


@torch.library.custom_op("cudnn::gemm_swiglu_out", mutates_args=("ab12", "c"))
def gemm_swiglu_out(a: Tensor, b: Sequence[Tensor], ab12: Tensor, c: Tensor, alpha: float, acc_dtype: str, glu_layout: str, backend: str, config: str) -> None:
    """`GemmSwiglu.execute` with B as a list (one tensor, or gate and up) and the configuration as JSON: writes AB12 and C."""
    a, ab12, c, *halves = (_plain(t) for t in (a, ab12, c, *b))
    operands = (a, _one_or_pair(halves), ab12, c)
    key = (*((t.shape, t.stride(), t.dtype, t.get_device()) for t in (a, ab12, c, *halves)), acc_dtype, glu_layout, backend, config)
    op = _out_objects.get(key)
    if op is None:
        op = api.shared(api.GemmSwiglu(*operands, acc_dtype=acc_dtype, glu_layout=glu_layout, backend=backend, config=_config(config)))
        _out_objects.keep(key, op)
    op.execute(*operands, alpha=alpha)


@gemm_swiglu_out.register_fake
def _(a, b, ab12, c, alpha, acc_dtype, glu_layout, backend, config):
    return None


def _plain(t: Tensor) -> Tensor:
    """The tensor below a Python subclass, which the dispatcher hands over as it is."""
    return t if type(t) is Tensor else t.detach().as_subclass(Tensor)


def _one_or_pair(halves: list[Tensor]) -> Any:
    return halves[0] if len(halves) == 1 else tuple(halves)


def _config(text: str) -> GemmConfig | None:
    return GemmConfig.of(json.loads(text)) if text else None
