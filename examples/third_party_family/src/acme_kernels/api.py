"""GEMM + bias + GELU: D = gelu(alpha * A Bᵀ + bias), with A (M, K, L), B (N, K, L), bias (N,) and D (M, N, L)."""

from __future__ import annotations

import torch

from cudnn.api_base import APIBase
from cudnn.reference import cast, matmul
from cudnn.tuple_dict import TupleDict


class GemmBiasGelu(APIBase):
    """The operation bound to data types. CPU tensors, through the reference engine.

    Raises:
        ValueError: from check_support, for shapes or data types that do not go together.
        RuntimeError: from check_support, for tensors that are not on the CPU.
    """

    def __init__(self, sample_a: torch.Tensor, sample_b: torch.Tensor, sample_bias: torch.Tensor, sample_d: torch.Tensor, *, alpha: float = 1.0) -> None:
        super().__init__()
        self.samples = {"a_tensor": sample_a, "b_tensor": sample_b, "bias_tensor": sample_bias, "d_tensor": sample_d}
        self.alpha = alpha

    def check_support(self) -> bool:
        a, b, bias, d = self.samples.values()
        (m, k, batch), n = self._tensor_shape(a, "a_tensor"), b.shape[0]
        self._check_tensor_shape(b, (n, k, batch), "b_tensor")
        self._check_tensor_shape(bias, (n,), "bias_tensor")
        self._check_tensor_shape(d, (m, n, batch), "d_tensor")
        for name, tensor in self.samples.items():
            self._check_dtype(tensor, a.dtype, name)
            self._runtime_error_if(tensor.device.type != "cpu", f"{name} is on {tensor.device}; needs the CPU, move it with .cpu()")
        self._is_supported = True
        return True

    def compile(self) -> None:
        self._ensure_support_checked()
        self._compiled_kernel = "reference"

    def execute(
        self, a_tensor: torch.Tensor, b_tensor: torch.Tensor, bias_tensor: torch.Tensor, d_tensor: torch.Tensor, *, current_stream: object = None
    ) -> None:
        """Compute into d_tensor. A stream has no meaning on the CPU."""
        self._runtime_error_if(self._compiled_kernel is None, "GemmBiasGelu kernel not compiled; call compile() first")
        accumulated = matmul(a_tensor, b_tensor, self.alpha) + bias_tensor.float()[None, :, None]
        d_tensor.copy_(cast(torch.nn.functional.gelu(accumulated), d_tensor.dtype))


def gemm_bias_gelu_wrapper(a_tensor: torch.Tensor, b_tensor: torch.Tensor, bias_tensor: torch.Tensor, *, alpha: float = 1.0) -> TupleDict:
    """Allocate D, compute it and return it as `d_tensor`."""
    d_tensor = a_tensor.new_empty(a_tensor.shape[0], b_tensor.shape[0], a_tensor.shape[2])
    GemmBiasGelu(a_tensor, b_tensor, bias_tensor, d_tensor, alpha=alpha)(a_tensor, b_tensor, bias_tensor, d_tensor)
    return TupleDict(d_tensor=d_tensor)
