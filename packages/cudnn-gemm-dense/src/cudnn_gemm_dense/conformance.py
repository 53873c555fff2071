"""What the dense operations' hooks for the conformance tests of `cudnn.testing` have in common. Needs pytest and torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cudnn.cutedsl.transpose import pitch
from cudnn.reference import full_float32, matmul
from cudnn.workspace import ws_align

Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


def compact_stride(shape: tuple[int, int, int], major: int) -> tuple[int, int, int]:
    """Strides of a compact (rows, columns, L) tensor whose axis ``major`` is contiguous."""
    rows, columns, _ = shape
    return (columns, 1, rows * columns) if major == 1 else (1, rows, rows * columns)


def random_compact(shape: tuple[int, int, int], major: int, dtype: torch.dtype, device: str, scale: float = 1.0) -> torch.Tensor:
    """Normally distributed values in a compact layout."""
    t = torch.empty_strided(shape, compact_stride(shape, major), dtype=dtype, device=device)
    return t.copy_(torch.randn(shape, device=device) * scale)


def tf32(t: torch.Tensor) -> torch.Tensor:
    """``t`` (float32) without the 13 bits that the matrix units drop, in place: values whose products are exact, so that only sums are left to compare."""
    t.view(torch.int32).bitwise_and_(~0x1FFF)
    return t


def torch_matmul(a: torch.Tensor, b: torch.Tensor, *, wide: bool, acc_dtype: str = "float32") -> torch.Tensor:
    """A Bᵀ (M, N, L) by torch's matmul in the working dtype: fp8 as bfloat16, float32 as TF32 on a GPU. ``wide``: with float32 results. Sums in ``acc_dtype``."""
    if acc_dtype == "float16":
        return float16_sums(a, b)
    if a.dtype.itemsize == 1:
        a, b = a.to(torch.bfloat16), b.to(torch.bfloat16)
    left, right = a.permute(2, 0, 1), b.permute(2, 1, 0)
    if not a.is_cuda:
        with full_float32():
            return (torch.matmul(left.float(), right.float()) if wide else torch.matmul(left, right)).permute(1, 2, 0)
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    try:
        settings.fp32_precision = "tf32"
        s = torch.bmm(left, right, out_dtype=torch.float32) if wide and a.dtype != torch.float32 else torch.matmul(left, right)
    finally:
        settings.fp32_precision = before
    return s.permute(1, 2, 0)


def float16_sums(a: torch.Tensor, b: torch.Tensor, step: int = 16) -> torch.Tensor:
    """A Bᵀ (M, N, L) as matrix units with float16 accumulators have it: rounded after every ``step`` products."""
    left, right = a.permute(2, 0, 1).float(), b.permute(2, 1, 0).float()
    s = torch.zeros(a.shape[2], a.shape[0], b.shape[0], dtype=torch.float16, device=a.device)
    with full_float32():
        for k in range(0, a.shape[1], step):
            s = (s.float() + torch.matmul(left[:, :, k : k + step], right[:, k : k + step])).half()
    return s.permute(1, 2, 0)


def copies_bytes(dtype: torch.dtype, a_major: str, b_rows: tuple[int, ...], b_major: str, m: int, k: int, batches: int) -> int:
    """Bytes of the copies of operands that the matrix units cannot read as they are."""
    if dtype.itemsize == 2:
        return 0
    rows = ((m,) if a_major != "k" else ()) + (b_rows if b_major != "k" else ())
    return sum(ws_align(r * pitch(k, 8 * dtype.itemsize) * dtype.itemsize * batches) for r in rows)


class DenseHooks:
    """Operands, and the two ways to compute a product: exactly, and by torch in the working dtype. The attributes say which problem."""

    device = "cpu"
    dtype = torch.bfloat16
    a_major = "k"
    b_major = "k"
    out_major = "n"
    backend = "auto"
    config: Mapping[str, Any] | None = None
    alpha = 1.0
    more: Mapping[str, Any] = {}  # further arguments of class and wrapper

    def matrix(self, m: int, columns: int, batches: int, dtype: torch.dtype) -> torch.Tensor:
        """Random values laid out as the outputs."""
        return random_compact((m, columns, batches), int(self.out_major == "n"), dtype, self.device)

    def layout(self, m: int, columns: int, batches: int, dtype: torch.dtype) -> Layout:
        """Of an output matrix."""
        shape = (m, columns, batches)
        return shape, compact_stride(shape, int(self.out_major == "n")), dtype

    def operands(self, m: int, n: int, k: int, batches: int) -> dict[str, Any]:
        """A, and B scaled so that the product is of unit size."""
        a = random_compact((m, k, batches), int(self.a_major == "k"), self.dtype, self.device)
        b = random_compact((n, k, batches), int(self.b_major == "k"), self.dtype, self.device, max(k, 1) ** -0.5)
        return {"a_tensor": a, "b_tensor": b} if self.dtype != torch.float32 else {"a_tensor": tf32(a), "b_tensor": tf32(b)}

    def scratch_bytes(self, m: int, n: int, k: int, batches: int) -> int:
        return 0 if self.device == "cpu" else copies_bytes(self.dtype, self.a_major, (n,), self.b_major, m, k, batches)

    @property
    def compute(self) -> torch.dtype:
        """Dtype of the reference."""
        return torch.float64 if self.device == "cpu" else torch.float32

    def product(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """alpha * A Bᵀ, not rounded."""
        return matmul(inputs["a_tensor"].detach(), inputs["b_tensor"].detach(), self.alpha, compute_dtype=self.compute)

    def torch_product(self, inputs: Mapping[str, Any], wide: bool = False) -> torch.Tensor:
        """alpha * A Bᵀ by torch's matmul in the working dtype, with float32 results where ``wide``; in float32."""
        return torch_matmul(inputs["a_tensor"].detach(), inputs["b_tensor"].detach(), wide=wide).float() * self.alpha
