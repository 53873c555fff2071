"""The grouped operations for the conformance tests of `cudnn.testing`. Needs pytest and torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cudnn.cutedsl.transpose import pitch
from cudnn.grouped.options import HALVES
from cudnn.testing import grouped as hooks
from cudnn.tuple_dict import TupleDict
from cudnn.workspace import ws_align
from cudnn_gemm_grouped.dglu.api import GroupedGemmDglu, grouped_gemm_dglu_wrapper
from cudnn_gemm_grouped.glu.api import GroupedGemmGlu, grouped_gemm_glu_wrapper
from cudnn_gemm_grouped.unfused.api import GroupedGemm, grouped_gemm_wrapper
from cudnn_gemm_grouped.wgrad.api import GroupedGemmWgrad, grouped_gemm_wgrad_wrapper

MAP_BYTES = 128


def renamed(options: Mapping[str, Any]) -> dict[str, Any]:
    """``stream`` under the name that grouped wrappers have for it."""
    return {("current_stream" if name == "stream" else name): value for name, value in options.items()}


def samples(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any]:
    return {f"sample_{name.removesuffix('_tensor')}": t for name, t in (*inputs.items(), *outputs.items()) if name != "b_ptrs"}


class _Rows:
    """What the classes and wrappers of groups of rows are told besides tensors."""

    def pointers(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        if not self.by_pointers:  # type: ignore[attr-defined]
            return {}
        experts, k = len(inputs["padded_offsets"]), inputs["a_tensor"].shape[1]
        return {"num_experts": experts, "b_shape": (self._n, k), "b_dtype": self.dtype}  # type: ignore[attr-defined]

    def pointers_of_wrapper(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {"n": self._n, "b_dtype": self.dtype} if self.by_pointers else {}  # type: ignore[attr-defined]

    def scratch_bytes(self, m: int, n: int, k: int, batches: int) -> int:
        if not self.by_pointers or self.device == "cpu":  # type: ignore[attr-defined]
            return 0
        return MAP_BYTES * batches * (2 if self.glu_layout in HALVES and not self.takes_products else 1)  # type: ignore[attr-defined]


class ProductHooks(_Rows, hooks.ProductHooks):
    def build(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> GroupedGemm:
        given = {"sample_c": None, **samples(inputs, outputs)}
        return GroupedGemm(**given, **self.pointers(inputs), generate_c=self.c_dtype is not None, b_major=self.b_major, **self.options)

    def wrapper(self, inputs: Mapping[str, Any], **options: Any) -> TupleDict:
        own: dict[str, Any] = {
            "d_dtype": self.d_dtype,
            "c_dtype": self.c_dtype,
            "generate_c": self.c_dtype is not None,
            "b_major": self.b_major,
            **self.options,
        }
        return grouped_gemm_wrapper(**inputs, **self.pointers_of_wrapper(inputs), **{**own, **renamed(options)})


class GluHooks(_Rows, hooks.GluHooks):
    def build(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> GroupedGemmGlu:
        given = {"sample_c": None, "sample_sfa": None, **samples(inputs, outputs)}
        own: dict[str, Any] = {"act_func": self.activation, "glu_layout": self.glu_layout, "b_major": self.b_major, "generate_c": self.c_dtype is not None}
        return GroupedGemmGlu(**given, **self.pointers(inputs), **own, **self.options)

    def wrapper(self, inputs: Mapping[str, Any], **options: Any) -> TupleDict:
        own: dict[str, Any] = {
            "d_dtype": self.d_dtype,
            "c_dtype": self.c_dtype,
            "generate_c": self.c_dtype is not None,
            "act_func": self.activation,
            "glu_layout": self.glu_layout,
            "b_major": self.b_major,
            **self.options,
        }
        return grouped_gemm_glu_wrapper(**inputs, **self.pointers_of_wrapper(inputs), **{**own, **renamed(options)})


class DgluHooks(_Rows, hooks.DgluHooks):
    deterministic = True

    def scratch_bytes(self, m: int, n: int, k: int, batches: int) -> int:
        raise NotImplementedError  # depends on the configuration; tested by itself

    @property
    def own(self) -> dict[str, Any]:
        return {
            "act_func": f"d{self.activation}",
            "glu_layout": self.glu_layout,
            "b_major": self.b_major,
            "round_dgrad_to_input_dtype": self.round_dgrad,
            **self.options,
        }

    def build(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> GroupedGemmDglu:
        given = {"sample_d_col": None, "sample_sfa": None, **samples(inputs, outputs)}
        return GroupedGemmDglu(**given, **self.pointers(inputs), **self.own, _deterministic=self.deterministic)

    def wrapper(self, inputs: Mapping[str, Any], **options: Any) -> dict[str, torch.Tensor]:
        a = inputs["a_tensor"]
        dprob = torch.full((a.shape[0], 1, 1) if self.legacy else (a.shape[0],), self.initial["dprob_tensor"], device=a.device)
        n = inputs["c_tensor"].shape[1] // 2
        extra: dict[str, Any] = {}
        if self.activation_output:
            shape, stride, dtype = self.layout(a.shape[0], n, self.dtype)
            extra["activation_tensor"] = torch.empty_strided(shape, stride, dtype=dtype, device=a.device)
        own: dict[str, Any] = {"d_dtype": self.d_dtype, "generate_dbias": self.dbias, "deterministic": self.deterministic, **self.own}
        result = grouped_gemm_dglu_wrapper(**inputs, dprob_tensor=dprob, **extra, **self.pointers_of_wrapper(inputs), **{**own, **renamed(options)})
        return {name: t for name, t in result.items() if t is not None}


class WgradHooks(hooks.WgradHooks):
    def scratch_bytes(self, m: int, n: int, k: int, batches: int) -> int:
        if self.device == "cpu":
            return 0
        if self.step_blocks:
            return ws_align(batches * 2 * MAP_BYTES)
        copied = ((m, self.a_major == "k"), (n, self.b_major == "k"))
        return sum(ws_align(2 * k * pitch(rows, 16)) for rows, copy in copied if copy)

    def build(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> GroupedGemmWgrad:
        return GroupedGemmWgrad(**{"sample_sfa": None, "sample_sfb": None, **samples(inputs, outputs)}, **self.options)

    def wrapper(self, inputs: Mapping[str, Any], **options: Any) -> TupleDict:
        given: dict[str, Any] = {}
        if self.adds:
            a, b, offsets = (inputs[name] for name in ("a_tensor", "b_tensor", "offsets_tensor"))
            given["wgrad_tensor"] = torch.full((offsets.shape[0], a.shape[0], b.shape[1]), self.initial["wgrad_tensor"], dtype=self.d_dtype, device=a.device)
        return grouped_gemm_wgrad_wrapper(**inputs, **given, **{"wgrad_dtype": self.d_dtype, **self.options, **renamed(options)})
