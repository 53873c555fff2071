"""A program as a user would write it, checked by mypy against the stubs (`nox -s types`). Not run."""

from __future__ import annotations

from collections.abc import Callable

import cudnn
import cudnn.ops
from cudnn import GemmSwiglu, GemmSwigluSm100, TupleDict, gemm_swiglu_wrapper, gemm_swiglu_wrapper_sm100

version: str = cudnn.__version__
same_class: type[GemmSwiglu] = GemmSwigluSm100
functions: list[Callable[..., TupleDict]] = [gemm_swiglu_wrapper, gemm_swiglu_wrapper_sm100, cudnn.gemm_swiglu_wrapper]
interleave: Callable = cudnn.ops.interleave_gate_up
wrong: int = cudnn.__version__  # type: ignore[assignment]
missing = cudnn.no_such_name  # type: ignore[attr-defined]
