"""`cudnn.tune` and `cudnn.autotune`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from cudnn.tuning import state
from cudnn.tuning.case import Result
from cudnn.tuning.progress import progress
from cudnn.tuning.tuner import REPEATS, Tuner, Visitor

__all__ = ["autotune", "tune"]


def tune(op_or_wrapper: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Result, ...]:
    """Measure the configurations of one call and use the fastest from now on: ``cudnn.tune(cudnn.gemm_swiglu_wrapper, a, b)``.

    Calls ``op_or_wrapper(*args, **kwargs)``, and before each operation inside of it runs, times its configurations on copies of its tensors: candidates that the operation's family lists are compiled in
    parallel, compared with the default configuration's result, and timed in turn over rotating inputs. The fastest is kept for this device and version beside the compile cache, and objects that are
    compiled later use it for problems of this kind and size. The tensors of the call itself are used as an ordinary call uses them.

    Args:
        op_or_wrapper: an operation's class object, compiled or not, a wrapper function, an operator of ``cudnn.ops``, or any function that calls such. What was built with ``config=`` has nothing to choose.
        args, kwargs: its arguments.

    Returns:
        One ``Result`` for each problem, in the order of the calls: the default and the best configuration, their microseconds, and how every candidate fared.

    Raises:
        RuntimeError: no GPU; the default configuration of a call does not run.
        ValueError: no call that can be tuned was made; the text says why.
    """
    require_gpu("cudnn.tune")
    with progress() as bar, visiting(Tuner(again=True, progress=bar)) as tuner:
        op_or_wrapper(*args, **kwargs)
    if not tuner.results:
        name = getattr(op_or_wrapper, "__name__", type(op_or_wrapper).__name__)
        reasons = "; ".join(tuner.left_out) or "none of its calls runs a GEMM kernel of ours"
        raise ValueError(f"{name}: nothing to tune: {reasons}")
    return tuple(tuner.results)


@contextlib.contextmanager
def autotune(*, again: bool = False, repeats: int = REPEATS, jobs: int | None = None) -> Iterator[list[Result]]:
    """Tune what is called inside: the first call of each problem and size takes seconds, later ones what they always take.

    Applies to all threads. A call inside of a CUDA graph's capture is not tuned, and runs as without this.

    Args:
        again: also measure what has a result for this device already.
        repeats: timed rounds of the best configurations.
        jobs: processes that compile; None is one per core.

    Yields:
        A list that receives a ``Result`` for each problem as it is tuned.

    Raises:
        RuntimeError: no GPU; autotune is active already.
    """
    require_gpu("cudnn.autotune")
    with progress() as bar, visiting(Tuner(again=again, repeats=repeats, jobs=jobs, progress=bar)) as tuner:
        yield tuner.results


@contextlib.contextmanager
def visiting(visitor: Any) -> Iterator[Any]:
    """Show every call to ``visitor`` meanwhile. RuntimeError where another one is active."""
    if state.active is not None:
        raise RuntimeError("found a tuner at work already (cudnn.tune or cudnn.autotune), needs one at a time")
    active: Visitor = visitor
    state.active = active
    try:
        yield visitor
    finally:
        state.active = None


def require_gpu(who: str) -> None:
    """RuntimeError without a GPU that torch sees."""
    try:
        import torch
    except ImportError as error:
        raise RuntimeError(f'{who} measures kernels on a GPU through torch, which is not installed; pip install "cudnn-base[torch]"') from error
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"{who} measures kernels on a GPU, and torch {torch.__version__} sees none here; without one, operations run in the configurations of their default rule"
        )
