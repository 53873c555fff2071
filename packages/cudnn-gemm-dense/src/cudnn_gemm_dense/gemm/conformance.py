"""Plain GEMM for the conformance tests of `cudnn.testing`. Needs pytest and torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cudnn.reference import cast
from cudnn.tuple_dict import TupleDict
from cudnn_gemm_dense.conformance import DenseHooks, Layout
from cudnn_gemm_dense.gemm.api import Gemm, gemm_wrapper


class GemmHooks(DenseHooks):
    """The attributes say which GEMM: ``bias`` and ``addend`` are dtypes, None for none."""

    d_dtype = torch.bfloat16
    bias: torch.dtype | None = None
    addend: torch.dtype | None = None

    @property
    def options(self) -> dict[str, Any]:
        return {"backend": self.backend, "config": self.config, **self.more}

    def inputs(self, m: int, n: int, k: int, batches: int) -> dict[str, Any]:
        found = self.operands(m, n, k, batches)
        if self.bias is not None:
            found["bias_tensor"] = torch.randn(n, batches, device=self.device).to(self.bias)
        if self.addend is not None:
            found["addend_tensor"] = self.matrix(m, n, batches, self.addend)
        return found

    def output_layouts(self, m: int, n: int, k: int, batches: int) -> dict[str, Layout]:
        return {"d_tensor": self.layout(m, n, batches, self.d_dtype)}

    def build(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Gemm:
        samples = {f"sample_{name.removesuffix('_tensor')}": t for name, t in {**inputs, **outputs}.items()}
        return Gemm(**samples, **self.options)

    def wrapper(self, inputs: Mapping[str, Any], **options: Any) -> TupleDict:
        return gemm_wrapper(**inputs, d_dtype=self.d_dtype, d_major=self.out_major, **{**self.options, **options})

    def _finish(self, s: torch.Tensor, inputs: Mapping[str, Any]) -> torch.Tensor:
        for name in ("bias_tensor", "addend_tensor"):
            if name in inputs:
                s = s + inputs[name].detach().to(s.dtype)
        return s

    def reference(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        return {"d_tensor": self._finish(self.product(inputs), inputs)}

    def baseline(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        return {"d_tensor": cast(self._finish(self.torch_product(inputs, self.d_dtype == torch.float32), inputs), self.d_dtype)}
