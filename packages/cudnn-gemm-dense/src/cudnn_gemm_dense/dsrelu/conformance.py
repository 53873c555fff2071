"""GEMM + gradient of squared ReLU for the conformance tests of `cudnn.testing`. Needs pytest and torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cudnn.reference import cast
from cudnn.tuple_dict import TupleDict
from cudnn_gemm_dense.conformance import DenseHooks, Layout
from cudnn_gemm_dense.dsrelu.api import GemmDsrelu, gemm_dsrelu_wrapper


class DsreluHooks(DenseHooks):
    """The attributes say which one. dprob is summed in order, so that repeats are the same bits."""

    c_dtype = torch.bfloat16
    d_dtype = torch.bfloat16
    deterministic = True
    initial = {"dprob_tensor": 0.0}
    unaligned = ("prob_tensor", "dprob_tensor")

    @property
    def options(self) -> dict[str, Any]:
        return {"deterministic": self.deterministic, "backend": self.backend, "config": self.config, **self.more}

    def inputs(self, m: int, n: int, k: int, batches: int) -> dict[str, Any]:
        c = self.matrix(m, n, batches, self.c_dtype)
        return {**self.operands(m, n, k, batches), "c_tensor": c, "prob_tensor": torch.rand(m, 1, batches, device=self.device) + 0.5}

    def output_layouts(self, m: int, n: int, k: int, batches: int) -> dict[str, Layout]:
        return {"d_tensor": self.layout(m, n, batches, self.d_dtype), "dprob_tensor": ((m, 1, batches), (batches, batches, 1), torch.float32)}

    def build(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> GemmDsrelu:
        samples = {f"sample_{name.removesuffix('_tensor')}": t for name, t in {**inputs, **outputs}.items()}
        return GemmDsrelu(**samples, **self.options)

    def wrapper(self, inputs: Mapping[str, Any], **options: Any) -> TupleDict:
        return gemm_dsrelu_wrapper(**inputs, d_major=self.out_major, d_dtype=self.d_dtype, **{**self.options, **options})

    def _gradient(self, g: torch.Tensor, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        c, prob = (inputs[name].detach().to(g.dtype) for name in ("c_tensor", "prob_tensor"))
        g = g.relu()
        return {"d_tensor": 2 * g * (c * prob), "dprob_tensor": (g * g * c).sum(1, keepdim=True)}

    def reference(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        return self._gradient(self.product(inputs), inputs)

    def terms(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        g = self.torch_product(inputs, wide=True).relu()
        return {"dprob_tensor": (g * g * inputs["c_tensor"].detach().float()).square().sum(1, keepdim=True).sqrt()}

    def baseline(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        found = self._gradient(self.torch_product(inputs, self.d_dtype == torch.float32), inputs)
        return {**found, "d_tensor": cast(found["d_tensor"], self.d_dtype)}
