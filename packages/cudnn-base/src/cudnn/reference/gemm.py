"""Matrix product and output conversion of the reference engine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_switch = threading.Lock()  # torch's float32 precision is one setting for the whole process


@contextmanager
def full_float32() -> Iterator[None]:
    """Float32 matrix products in full float32: TF32 and bfloat16 shortcuts are off inside, and the settings are as before afterwards.

    The settings belong to the process, so other threads see full precision meanwhile; where they are off already, nothing is touched.
    """
    import torch

    matmuls: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    backends = [b for b in matmuls if b.fp32_precision not in ("none", "ieee")]
    if not backends:
        yield
        return
    with _switch:
        before = [b.fp32_precision for b in backends]
        try:
            for b in backends:
                b.fp32_precision = "ieee"
            yield
        finally:
            for b, value in zip(backends, before, strict=True):
                b.fp32_precision = value


def matmul(a: torch.Tensor, b: torch.Tensor, alpha: float = 1.0, *, compute_dtype: torch.dtype | str | None = None) -> torch.Tensor:
    """S[m, n, l] = alpha * sum over k of A[m, k, l] B[n, k, l].

    Args:
        a: (M, K, L), any floating dtype of at least one byte an element, any strides.
        b: (N, K, L), as ``a``; its dtype may differ.
        alpha: factor on the sum.
        compute_dtype: dtype of products, sums and result: float32 (None) or float64.

    Returns:
        (M, N, L) in ``compute_dtype``; zeros where K = 0.

    Raises:
        ValueError: ranks, K or L do not fit, or ``compute_dtype`` is another one.
    """
    import torch

    dtype = _compute_dtype(compute_dtype)
    for name, t in (("a", a), ("b", b)):
        if t.dim() != 3:
            raise ValueError(f"{name}: found shape {tuple(t.shape)}, needs three axes (rows, K, L); add a trailing axis with unsqueeze(-1) for L = 1")
    if a.shape[1:] != b.shape[1:]:
        raise ValueError(f"a and b: found K, L = {tuple(a.shape[1:])} and {tuple(b.shape[1:])}, needs equal K and L")
    with torch.no_grad(), full_float32():
        s = torch.matmul(a.to(dtype).permute(2, 0, 1), b.to(dtype).permute(2, 1, 0))
        return (s if alpha == 1.0 else s.mul_(alpha)).permute(1, 2, 0)


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``x`` rounded to ``dtype``, to nearest even; fp8 saturates at its largest finite value (448 for e4m3, 57344 for e5m2), NaN stays NaN."""
    import torch

    if dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        limit = torch.finfo(dtype).max
        return x.clamp(-limit, limit).to(dtype)
    return x.to(dtype)


def _compute_dtype(value: torch.dtype | str | None) -> torch.dtype:
    import torch

    found = {None: torch.float32, "float32": torch.float32, "float64": torch.float64, torch.float32: torch.float32, torch.float64: torch.float64}.get(value)
    if found is None:
        raise ValueError(f"compute_dtype: found {value}, needs float32, float64 or None")
    return found


def merge_amax(amax: torch.Tensor, values: torch.Tensor) -> None:
    """amax = max(amax, the largest magnitude in ``values``), in place. NaN in ``values`` does not count; one that ``amax`` holds stays."""
    import torch

    amax.copy_(torch.maximum(amax, values.abs().nan_to_num(nan=0.0, posinf=float("inf")).amax()))
