"""Calls on their whole way to the kernels, without a GPU: see `cudnn.testing.rehearsal`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("cutlass", reason="what the kernels declare needs the DSL")

from cudnn.testing.conformance import GemmConformance  # noqa: E402
from cudnn.testing.rehearsal import pretend_hopper, rehearse  # noqa: E402
from cudnn_gemm_dense.amax.conformance import AmaxHooks  # noqa: E402
from cudnn_gemm_dense.conformance_scaled import QuantizedHooks, ScaledHooks, ScaledSwigluHooks  # noqa: E402
from cudnn_gemm_dense.dsrelu.conformance import DsreluHooks  # noqa: E402
from cudnn_gemm_dense.dswiglu.conformance import DswigluHooks  # noqa: E402
from cudnn_gemm_dense.gemm.conformance import GemmHooks  # noqa: E402
from cudnn_gemm_dense.proj_rope_mxfp8.conformance import ProjRopeHooks, ProjRopeMxfp8Hooks  # noqa: E402
from cudnn_gemm_dense.srelu.conformance import SreluHooks  # noqa: E402
from cudnn_gemm_dense.swiglu.api import gemm_swiglu_wrapper  # noqa: E402
from cudnn_gemm_dense.swiglu.conformance import SwigluHooks  # noqa: E402

HALF, FLOAT, BF, E4M3 = torch.float16, torch.float32, torch.bfloat16, torch.float8_e4m3fn
SCALED, NARROW = {"k_step": 32}, {"k_step": 32, "n_step": 16}
TURNED = {"dtype": E4M3, "a_major": "m", "b_major": "n", "m_step": 16, "n_step": 64, "k_step": 16}


class ScaledGemm(ScaledHooks, GemmHooks):
    pass


class QuantizedSrelu(ScaledHooks, QuantizedHooks, SreluHooks):
    pass


class QuantizedDsrelu(ScaledHooks, QuantizedHooks, DsreluHooks):
    pass


CASES: dict[str, tuple[type, dict[str, Any]]] = {
    "gemm": (GemmHooks, {"bias": BF, "addend": FLOAT}),
    "gemm, tf32, turned": (GemmHooks, {**TURNED, "dtype": FLOAT, "d_dtype": FLOAT}),
    "gemm, turned": (GemmHooks, {"d_dtype": FLOAT, **TURNED}),
    "amax": (AmaxHooks, {}),
    "srelu": (SreluHooks, {}),
    "srelu, turned": (SreluHooks, TURNED),
    "dsrelu": (DsreluHooks, {"dtype": HALF}),
    "dswiglu": (DswigluHooks, {}),
    "swiglu": (SwigluHooks, {}),
    "swiglu, turned": (SwigluHooks, TURNED),
    "swiglu, halves": (SwigluHooks, {"glu_layout": "concatenated"}),
    "swiglu, pair": (SwigluHooks, {"glu_layout": "separate"}),
    "swiglu, tf32": (SwigluHooks, {"dtype": FLOAT}),
    "gemm, mxfp8": (ScaledGemm, NARROW),
    "gemm, mxfp8 turned": (ScaledGemm, {"a_major": "m", "b_major": "n", "m_step": 16, **NARROW}),
    "gemm, nvfp4 weights": (ScaledGemm, {"format": "nvfp4", "mixed": True, "logical": False, **NARROW}),
    "gemm, mxfp4 weights in the place of a": (
        ScaledGemm,
        {"format": "mxfp4", "mixed": True, "config": {"tile_m": 128, "swap": True}, "addend": FLOAT, **NARROW},
    ),
    "swiglu, mxfp4": (ScaledSwigluHooks, {"format": "mxfp4", **SCALED}),
    "swiglu, pair of nvfp4": (ScaledSwigluHooks, {"format": "nvfp4", "glu_layout": "separate", **SCALED}),
    "srelu, mxfp8 in and out": (QuantizedSrelu, NARROW),
    "dsrelu, mxfp8 in and out": (QuantizedDsrelu, {"norm": 2.5, **NARROW}),
    "projection + rope": (ProjRopeHooks, {"w_out_in": False, "filled": {}}),
    "projection + rope, mxfp8": (ProjRopeMxfp8Hooks, {"filled": {}, "k_step": 32}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_way_to_the_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base, attributes = CASES[name]
    rehearse(type("Hooks", (base, GemmConformance), attributes)(), monkeypatch)


def test_a_list_of_one_is_no_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter is a tensor like others, in later calls too; weights in a list are a pair or wrong."""
    a, b = (torch.randn(64, 64, 1).to(BF) for _ in range(2))
    with pretend_hopper(monkeypatch):
        for weight in (torch.nn.Parameter(b), b):
            for _ in range(2):
                assert torch.equal(gemm_swiglu_wrapper(a, weight)["ab12_tensor"], gemm_swiglu_wrapper(a, b)["ab12_tensor"])
                with pytest.raises(ValueError, match="b_tensor"):
                    gemm_swiglu_wrapper(a, [weight])
