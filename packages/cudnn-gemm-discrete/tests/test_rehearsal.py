"""Calls on their whole way to the kernels, without a GPU: see `cudnn.testing.rehearsal`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("cutlass", reason="what the kernels declare needs the DSL")

from cudnn.reference.grouped import GluScalars  # noqa: E402
from cudnn.testing.conformance import GemmConformance  # noqa: E402
from cudnn.testing.rehearsal import rehearse  # noqa: E402
from cudnn_gemm_discrete.conformance import DswigluHooks, SwigluHooks  # noqa: E402

PAIR = {"glu_layout": "separate", "n_step": 16}
CASES: dict[str, tuple[type, dict[str, Any]]] = {
    "swiglu": (SwigluHooks, {"bias_dtype": torch.bfloat16}),
    "geglu, pair": (
        SwigluHooks,
        {"activation": "geglu", "prob": False, "scalars": GluScalars(0.5, 1.25, 1.5, -0.75), "dtype": torch.float16, "d_dtype": torch.float16, **PAIR},
    ),
    "dswiglu": (DswigluHooks, {"b_major": "n"}),
    "dgeglu, atomics": (DswigluHooks, {"activation": "geglu", "dbias": False, "deterministic": False}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_way_to_the_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base, attributes = CASES[name]
    rehearse(type("Hooks", (base, GemmConformance), attributes)(), monkeypatch)
