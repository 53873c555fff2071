"""GEMM + squared ReLU for the conformance tests of `cudnn.testing`. Needs pytest and torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cudnn.reference import cast
from cudnn.tuple_dict import TupleDict
from cudnn_gemm_dense.conformance import DenseHooks, Layout
from cudnn_gemm_dense.srelu.api import GemmSrelu, gemm_srelu_wrapper


class SreluHooks(DenseHooks):
    """The attributes say which GEMM + squared ReLU."""

    c_dtype = torch.bfloat16
    d_dtype = torch.bfloat16
    unaligned = ("prob_tensor",)

    @property
    def options(self) -> dict[str, Any]:
        return {"backend": self.backend, "config": self.config, **self.more}

    def inputs(self, m: int, n: int, k: int, batches: int) -> dict[str, Any]:
        return {**self.operands(m, n, k, batches), "prob_tensor": torch.rand(m, 1, batches, device=self.device) + 0.5}

    def output_layouts(self, m: int, n: int, k: int, batches: int) -> dict[str, Layout]:
        return {"c_tensor": self.layout(m, n, batches, self.c_dtype), "d_tensor": self.layout(m, n, batches, self.d_dtype)}

    def build(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> GemmSrelu:
        samples = {f"sample_{name.removesuffix('_tensor')}": t for name, t in {**inputs, **outputs}.items()}
        return GemmSrelu(**samples, **self.options)

    def wrapper(self, inputs: Mapping[str, Any], **options: Any) -> TupleDict:
        return gemm_srelu_wrapper(**inputs, c_major=self.out_major, c_dtype=self.c_dtype, d_dtype=self.d_dtype, **{**self.options, **options})

    def reference(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        s = self.product(inputs)
        return {"c_tensor": s, "d_tensor": s.relu() ** 2 * inputs["prob_tensor"].detach().to(s.dtype)}

    def baseline(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        s = self.torch_product(inputs, self.d_dtype == torch.float32)
        return {"c_tensor": cast(s, self.c_dtype), "d_tensor": cast(s.relu() ** 2 * inputs["prob_tensor"].detach(), self.d_dtype)}
