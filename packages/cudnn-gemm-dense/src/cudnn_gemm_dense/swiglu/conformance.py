"""GEMM + SwiGLU for the conformance tests of `cudnn.testing`: how problems are made, called and computed otherwise. Needs pytest and torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cudnn.reference import split_gate_up, swiglu
from cudnn.tuple_dict import TupleDict
from cudnn_gemm_dense.conformance import Layout, compact_stride, copies_bytes, random_compact, tf32, torch_matmul
from cudnn_gemm_dense.swiglu.api import GemmSwiglu, gemm_swiglu_wrapper
from cudnn_gemm_dense.swiglu.reference import gemm_swiglu_reference


class SwigluHooks:
    """The hooks of `cudnn.testing.conformance.GemmConformance`. The attributes say which SwiGLU."""

    device = "cpu"
    dtype = torch.bfloat16
    ab12_dtype = torch.bfloat16
    c_dtype = torch.bfloat16
    acc_dtype = "float32"
    a_major = "k"
    b_major = "k"
    out_major = "n"
    glu_layout = "interleaved32"
    backend = "auto"
    config: Mapping[str, Any] | None = None
    alpha = 1.0
    more: Mapping[str, Any] = {}  # further arguments of class and wrapper
    initial: Mapping[str, float] = {}

    @property
    def options(self) -> dict[str, Any]:
        return {"acc_dtype": self.acc_dtype, "glu_layout": self.glu_layout, "backend": self.backend, "config": self.config, **self.more}

    def inputs(self, m: int, n: int, k: int, batches: int) -> dict[str, Any]:
        # B is scaled so that S is of unit size, where the sigmoid has its bend.
        scale = max(k, 1) ** -0.5
        b = [
            random_compact((rows, k, batches), int(self.b_major == "k"), self.dtype, self.device, scale)
            for rows in ((n // 2, n // 2) if self.glu_layout == "separate" else (n,))
        ]
        a = random_compact((m, k, batches), int(self.a_major == "k"), self.dtype, self.device)
        if self.dtype == torch.float32:
            a, b = tf32(a), [tf32(half) for half in b]
        return {"a_tensor": a, "b_tensor": tuple(b) if len(b) == 2 else b[0]}

    def scratch_bytes(self, m: int, n: int, k: int, batches: int) -> int:
        halves = (n // 2, n // 2) if self.glu_layout == "separate" else (n,)
        return 0 if self.device == "cpu" else copies_bytes(self.dtype, self.a_major, halves, self.b_major, m, k, batches)

    def output_layouts(self, m: int, n: int, k: int, batches: int) -> dict[str, Layout]:
        shapes = {"ab12_tensor": ((m, n, batches), self.ab12_dtype), "c_tensor": ((m, n // 2, batches), self.c_dtype)}
        return {name: (shape, compact_stride(shape, int(self.out_major == "n")), dtype) for name, (shape, dtype) in shapes.items()}

    def build(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> GemmSwiglu:
        samples = {f"sample_{name.removesuffix('_tensor')}": t for name, t in {**inputs, **outputs}.items()}
        return GemmSwiglu(**samples, **self.options)

    def wrapper(self, inputs: Mapping[str, Any], **options: Any) -> TupleDict:
        return gemm_swiglu_wrapper(**inputs, c_major=self.out_major, ab12_dtype=self.ab12_dtype, c_dtype=self.c_dtype, **{**self.options, **options})

    def reference(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        # A float32 AB12 shows errors that float32 sums of the reference would have as well.
        compute = "float32" if self.device != "cpu" and self.ab12_dtype.itemsize == 2 else "float64"
        s, c = gemm_swiglu_reference(
            inputs["a_tensor"], inputs["b_tensor"], self.alpha, glu_layout=self.glu_layout, acc_dtype=self.acc_dtype, compute_dtype=compute
        )
        return {"ab12_tensor": s, "c_tensor": c}

    def baseline(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """torch's matmul in the working dtype (a float32 AB12: with float32 results), and SwiGLU of what it gives."""
        a, b = inputs["a_tensor"].detach(), inputs["b_tensor"]
        a = a.to(torch.bfloat16) if a.dtype.itemsize == 1 else a
        # torch joins no fp8 tensors everywhere.
        halves = [half.detach().to(torch.bfloat16) if half.dtype.itemsize == 1 else half.detach() for half in (b if isinstance(b, tuple) else (b,))]
        b = halves[0] if len(halves) == 1 else torch.cat(halves)
        s = torch_matmul(a, b, wide=self.ab12_dtype.itemsize != 2, acc_dtype=self.acc_dtype) * self.alpha
        gate, up = split_gate_up(s, self.glu_layout)
        return {"ab12_tensor": s.to(self.ab12_dtype), "c_tensor": swiglu(gate, up).to(self.c_dtype)}
