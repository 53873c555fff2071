"""GEMM + gradient of SwiGLU for the conformance tests of `cudnn.testing`. Needs pytest and torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cudnn.reference import cast, join_gate_up, split_gate_up, swiglu
from cudnn.tuple_dict import TupleDict
from cudnn_gemm_dense.conformance import DenseHooks, Layout
from cudnn_gemm_dense.dswiglu.api import GemmDswiglu, gemm_dswiglu_wrapper


class DswigluHooks(DenseHooks):
    """The attributes say which one. The gradient is checked against torch's autograd."""

    ab12_dtype = torch.bfloat16
    d_dtype = torch.bfloat16
    c_dtype: torch.dtype | None = torch.bfloat16
    glu_layout = "interleaved32"

    @property
    def options(self) -> dict[str, Any]:
        return {"glu_layout": self.glu_layout, "backend": self.backend, "config": self.config}

    def inputs(self, m: int, n: int, k: int, batches: int) -> dict[str, Any]:
        return {**self.operands(m, n, k, batches), "ab12_tensor": self.matrix(m, 2 * n, batches, self.ab12_dtype)}

    def output_layouts(self, m: int, n: int, k: int, batches: int) -> dict[str, Layout]:
        found = {"d_ab12_tensor": self.layout(m, 2 * n, batches, self.d_dtype)}
        return found if self.c_dtype is None else {**found, "c_tensor": self.layout(m, n, batches, self.c_dtype)}

    def build(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> GemmDswiglu:
        samples = {f"sample_{name.removesuffix('_tensor')}": t for name, t in {**inputs, **outputs}.items()}
        return GemmDswiglu(**samples, **self.options)

    def wrapper(self, inputs: Mapping[str, Any], **options: Any) -> TupleDict:
        c: dict[str, Any] = {"generate_c": True, "c_dtype": self.c_dtype} if self.c_dtype is not None else {}
        return gemm_dswiglu_wrapper(**inputs, d_dtype=self.d_dtype, d_major=self.out_major, **c, **{**self.options, **options})

    def _gradient(self, g: torch.Tensor, inputs: Mapping[str, Any], through: torch.dtype) -> dict[str, torch.Tensor]:
        """By autograd, in dtype ``through``."""
        with torch.enable_grad():
            gate, up = (half.detach().clone().requires_grad_() for half in split_gate_up(inputs["ab12_tensor"].detach().to(through), self.glu_layout))
            c = swiglu(gate, up)
            d_gate, d_up = torch.autograd.grad(c, (gate, up), g.to(through))
        found = {"d_ab12_tensor": join_gate_up(d_gate, d_up, self.glu_layout)}
        return found if self.c_dtype is None else {**found, "c_tensor": c.detach()}

    def reference(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        return self._gradient(self.product(inputs), inputs, self.compute)

    def baseline(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        wide = self.d_dtype == torch.float32
        found = self._gradient(self.torch_product(inputs, wide), inputs, torch.float32 if wide else self.d_dtype)
        dtypes = {"d_ab12_tensor": self.d_dtype, "c_tensor": self.c_dtype}
        return {name: cast(t, dtypes[name]) for name, t in found.items()}
