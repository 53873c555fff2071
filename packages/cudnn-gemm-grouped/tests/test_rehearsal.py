"""Calls on their whole way to the kernels, without a GPU: see `cudnn.testing.rehearsal`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("cutlass", reason="what the kernels declare needs the DSL")

from cudnn.reference.grouped import GluScalars  # noqa: E402
from cudnn.testing.conformance import GemmConformance  # noqa: E402
from cudnn.testing.rehearsal import rehearse  # noqa: E402
from cudnn_gemm_grouped.conformance import DgluHooks, GluHooks, ProductHooks, WgradHooks  # noqa: E402

HALF, FLOAT, BF = torch.float16, torch.float32, torch.bfloat16
GEGLU = {"activation": "geglu", "glu_layout": "concatenated", "scalars": GluScalars()}
CASES: dict[str, tuple[type, dict[str, Any]]] = {
    "product": (ProductHooks, {}),
    "product, unit axes": (ProductHooks, {"legacy": True, "dtype": HALF, "d_dtype": FLOAT, "c_dtype": HALF, "bias_dtype": FLOAT}),
    "product, pointers": (ProductHooks, {"by_pointers": True, "b_major": "n", "c_dtype": None}),
    "product, pointers, unit axes": (ProductHooks, {"by_pointers": True, "legacy": True, "c_dtype": FLOAT}),
    "glu": (GluHooks, {"bias_dtype": BF}),
    "glu, without C": (GluHooks, {"c_dtype": None}),
    "glu, halves": (GluHooks, {"n_step": 16, "legacy": True, **GEGLU}),
    "glu, pair": (GluHooks, {"n_step": 16, "glu_layout": "separate", "b_major": "n"}),
    "glu, pointers, pair": (GluHooks, {"n_step": 16, "glu_layout": "separate", "by_pointers": True, "dtype": HALF, "d_dtype": HALF, "c_dtype": None}),
    "dglu": (DgluHooks, {}),
    "dglu, atomics": (DgluHooks, {"deterministic": False, "dbias": False}),
    "dglu, halves": (DgluHooks, {"n_step": 8, "legacy": True, "activation_output": True, "round_dgrad": True, **GEGLU}),
    "dglu, pointers": (DgluHooks, {"by_pointers": True, "b_major": "n", "dtype": HALF, "c_dtype": FLOAT, "d_dtype": HALF}),
    "wgrad": (WgradHooks, {}),
    "wgrad, tokens contiguous": (WgradHooks, {"a_major": "k", "b_major": "k", "adds": True, "d_dtype": FLOAT}),
    "wgrad, A's tokens contiguous": (WgradHooks, {"a_major": "k"}),
    "wgrad, group after group": (WgradHooks, {"a_major": "k", "step_blocks": True}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_way_to_the_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base, attributes = CASES[name]
    rehearse(type("Hooks", (base, GemmConformance), attributes)(), monkeypatch)
