"""GEMM + amax for the conformance tests of `cudnn.testing`. Needs pytest and torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cudnn.reference import cast
from cudnn.tuple_dict import TupleDict
from cudnn_gemm_dense.amax.api import GemmAmax, gemm_amax_wrapper
from cudnn_gemm_dense.conformance import DenseHooks, Layout


class AmaxHooks(DenseHooks):
    """The attributes say which GEMM + amax."""

    c_dtype = torch.bfloat16
    initial = {"amax_tensor": float("-inf")}
    unaligned = ("amax_tensor",)

    @property
    def options(self) -> dict[str, Any]:
        return {"backend": self.backend, "config": self.config, **self.more}

    def inputs(self, m: int, n: int, k: int, batches: int) -> dict[str, Any]:
        return self.operands(m, n, k, batches)

    def output_layouts(self, m: int, n: int, k: int, batches: int) -> dict[str, Layout]:
        return {"c_tensor": self.layout(m, n, batches, self.c_dtype), "amax_tensor": ((1, 1, 1), (1, 1, 1), torch.float32)}

    def build(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> GemmAmax:
        samples = {f"sample_{name.removesuffix('_tensor')}": t for name, t in {**inputs, **outputs}.items()}
        return GemmAmax(**samples, **self.options)

    def wrapper(self, inputs: Mapping[str, Any], **options: Any) -> TupleDict:
        return gemm_amax_wrapper(**inputs, c_major=self.out_major, c_dtype=self.c_dtype, **{**self.options, **options})

    def reference(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        s = self.product(inputs)
        return {"c_tensor": s, "amax_tensor": s.abs().amax().view(1, 1, 1)}

    def baseline(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        s = self.torch_product(inputs, self.c_dtype == torch.float32)
        return {"c_tensor": cast(s, self.c_dtype), "amax_tensor": s.abs().amax().view(1, 1, 1)}
