"""What the dense operations' hooks for the conformance tests of `cudnn.testing` have in common. Needs pytest and torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cudnn.reference import full_float32, matmul

Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


def compact_stride(shape: tuple[int, int, int], major: int) -> tuple[int, int, int]:
    """Strides of a compact (rows, columns, L) tensor whose axis ``major`` is contiguous."""
    rows, columns, _ = shape
    return (columns, 1, rows * columns) if major == 1 else (1, rows, rows * columns)


def random_compact(shape: tuple[int, int, int], major: int, dtype: torch.dtype, device: str, scale: float = 1.0) -> torch.Tensor:
    """Normally distributed values in a compact layout."""
    t = torch.empty_strided(shape, compact_stride(shape, major), dtype=dtype, device=device)
    return t.copy_(torch.randn(shape, device=device) * scale)


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
        return {"a_tensor": a, "b_tensor": b}

    @property
    def compute(self) -> torch.dtype:
        """Dtype of the reference."""
        return torch.float64 if self.device == "cpu" else torch.float32

    def product(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """alpha * A Bᵀ, not rounded."""
        return matmul(inputs["a_tensor"].detach(), inputs["b_tensor"].detach(), self.alpha, compute_dtype=self.compute)

    def torch_product(self, inputs: Mapping[str, Any], wide: bool = False) -> torch.Tensor:
        """alpha * A Bᵀ by torch's matmul in the working dtype, with float32 results where ``wide``; in float32."""
        a, b = inputs["a_tensor"].detach(), inputs["b_tensor"].detach()
        if a.dtype.itemsize == 1:
            a, b = a.to(torch.bfloat16), b.to(torch.bfloat16)
        left, right = a.permute(2, 0, 1), b.permute(2, 1, 0)
        with full_float32():
            if not wide:
                s = torch.matmul(left, right)
            elif a.is_cuda:
                s = torch.bmm(left, right, out_dtype=torch.float32)
            else:
                s = torch.matmul(left.float(), right.float())
        return s.permute(1, 2, 0).float() * self.alpha
