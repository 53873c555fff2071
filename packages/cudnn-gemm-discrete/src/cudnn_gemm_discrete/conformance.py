"""The discrete operations for the conformance tests of `cudnn.testing`. Needs pytest and torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cudnn.testing import grouped as hooks
from cudnn.tuple_dict import TupleDict
from cudnn_gemm_discrete.dswiglu.api import DiscreteGroupedGemmDswiglu, discrete_grouped_gemm_dswiglu_wrapper
from cudnn_gemm_discrete.swiglu.api import DiscreteGroupedGemmSwiglu, discrete_grouped_gemm_swiglu_wrapper

MAP_BYTES = 128


def renamed(options: Mapping[str, Any]) -> dict[str, Any]:
    """``stream`` under the name that discrete wrappers have for it."""
    return {("current_stream" if name == "stream" else name): value for name, value in options.items()}


class _Discrete:
    """What both have in common: weights by pointers, and three axes."""

    legacy = by_pointers = True

    def described(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        k = inputs["a_tensor"].shape[1]
        return {"num_experts": len(inputs["padded_offsets"]), "b_shape": (self._n, k), "b_dtype": self.dtype}  # type: ignore[attr-defined]

    @staticmethod
    def samples(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any]:
        return {f"sample_{name.removesuffix('_tensor')}": t for name, t in (*inputs.items(), *outputs.items()) if name != "b_ptrs"}


class SwigluHooks(_Discrete, hooks.GluHooks):
    def scratch_bytes(self, m: int, n: int, k: int, batches: int) -> int:
        return 0 if self.device == "cpu" else MAP_BYTES * batches * (1 if self.glu_layout == "interleaved32" else 2)

    @property
    def scalars_given(self) -> dict[str, Any]:
        s = self.scalars
        return {"linear_offset": s.linear_offset, "geglu_alpha": s.alpha, "glu_clamp_max": s.high, "glu_clamp_min": s.low} if self.activation == "geglu" else {}

    def build(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
        given = self.samples(inputs, outputs)
        own: dict[str, Any] = {"act_func": self.activation, "b_major": self.b_major, "glu_layout": self.glu_layout}
        op = DiscreteGroupedGemmSwiglu(**given, **self.described(inputs), sample_sfa=None, **own, **self.options)
        execute = op.execute
        op.execute = lambda *args, **kwargs: execute(*args, **{**self.scalars_given, **kwargs})  # type: ignore[method-assign]
        return op

    def wrapper(self, inputs: Mapping[str, Any], **options: Any) -> TupleDict:
        own: dict[str, Any] = {
            "c_dtype": self.c_dtype,
            "d_dtype": self.d_dtype,
            "act_func": self.activation,
            "b_major": self.b_major,
            "glu_layout": self.glu_layout,
        }
        return discrete_grouped_gemm_swiglu_wrapper(
            **inputs, sfa_tensor=None, sfb_ptrs=None, n=self._n, b_dtype=self.dtype, **self.scalars_given, **{**own, **self.options, **renamed(options)}
        )


class DswigluHooks(_Discrete, hooks.DgluHooks):
    deterministic = True

    @property
    def scaled_c(self) -> bool:  # type: ignore[override]
        return self.activation == "swiglu"

    @property
    def own(self) -> dict[str, Any]:
        return {"act_func": f"d{self.activation}", "b_major": self.b_major, "glu_layout": self.glu_layout, "deterministic": self.deterministic, **self.options}

    def build(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> DiscreteGroupedGemmDswiglu:
        given = self.samples(inputs, outputs)
        return DiscreteGroupedGemmDswiglu(**given, **self.described(inputs), sample_sfa=None, sample_d_col=None, **self.own)

    def wrapper(self, inputs: Mapping[str, Any], **options: Any) -> dict[str, torch.Tensor]:
        a = inputs["a_tensor"]
        dprob = torch.full((a.shape[0], 1, 1), self.initial["dprob_tensor"], device=a.device)
        result = discrete_grouped_gemm_dswiglu_wrapper(
            **inputs,
            dprob_tensor=dprob,
            sfa_tensor=None,
            sfb_ptrs=None,
            n=self._n,
            b_dtype=self.dtype,
            generate_dbias=self.dbias,
            **{"d_dtype": self.d_dtype, **self.own, **renamed(options)},
        )
        return {name: t for name, t in result.items() if t is not None}
