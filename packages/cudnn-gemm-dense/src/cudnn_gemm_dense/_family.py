"""What this distribution brings, as plain data. Importing this module imports nothing but `cudnn.family`."""

from __future__ import annotations

from cudnn.family import Family

_SWIGLU = {
    "GemmSwiglu": "cudnn_gemm_dense.swiglu.api:GemmSwiglu",
    "gemm_swiglu_wrapper": "cudnn_gemm_dense.swiglu.api:gemm_swiglu_wrapper",
    "GemmSwigluSm100": "cudnn_gemm_dense.swiglu.api:GemmSwiglu",
    "gemm_swiglu_wrapper_sm100": "cudnn_gemm_dense.swiglu.api:gemm_swiglu_wrapper",
}

FAMILY = Family(
    name="gemm_dense",
    distribution="cudnn-gemm-dense",
    names=_SWIGLU,
    namespaces={
        "gemm.cutedsl.dense.swiglu": _SWIGLU,
        "gemm.cutedsl.dense.swiglu.api": _SWIGLU,
        "ops": {
            "interleave_gate_up": "cudnn_gemm_dense.swiglu.layout:interleave_gate_up",
            "deinterleave_gate_up": "cudnn_gemm_dense.swiglu.layout:deinterleave_gate_up",
        },
    },
    operations=("cudnn_gemm_dense.swiglu.api",),
    archs=("sm_90a",),
    doc="dense/gemm_swiglu.md",
)
