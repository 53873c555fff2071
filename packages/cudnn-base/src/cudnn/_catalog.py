"""The public names of the project's own distributions.

Generated from the manifests by tools/generate_catalog.py (nox -s stubs). Do not edit.
"""

from __future__ import annotations

DISTRIBUTIONS = {
    "base": "cudnn-base",
    "gemm_dense": "cudnn-gemm-dense",
    "gemm_grouped": "cudnn-gemm-grouped",
    "gemm_discrete": "cudnn-gemm-discrete",
    "graph": "cudnn-graph",
}
"""Family -> the distribution to install."""

NAMES: dict[str, dict[str, str]] = {
    "": {
        "APIBase": "base",
        "GemmSwiglu": "gemm_dense",
        "GemmSwigluSm100": "gemm_dense",
        "TensorDesc": "base",
        "TupleDict": "base",
        "datatypes": "base",
        "errors": "base",
        "gemm_swiglu_wrapper": "gemm_dense",
        "gemm_swiglu_wrapper_sm100": "gemm_dense",
        "registry": "base",
    },
    "gemm.cutedsl.dense.swiglu": {
        "GemmSwiglu": "gemm_dense",
        "GemmSwigluSm100": "gemm_dense",
        "gemm_swiglu_wrapper": "gemm_dense",
        "gemm_swiglu_wrapper_sm100": "gemm_dense",
    },
    "gemm.cutedsl.dense.swiglu.api": {
        "GemmSwiglu": "gemm_dense",
        "GemmSwigluSm100": "gemm_dense",
        "gemm_swiglu_wrapper": "gemm_dense",
        "gemm_swiglu_wrapper_sm100": "gemm_dense",
    },
    "ops": {
        "deinterleave_gate_up": "gemm_dense",
        "interleave_gate_up": "gemm_dense",
    },
}
"""Namespace below cudnn ("" is cudnn itself) -> public name -> family."""

MODULES = frozenset(
    {
        "cache",
        "cutedsl",
        "datatypes",
        "dsl_check",
        "errors",
        "family",
        "fp4",
        "reference",
        "registry",
        "tensors",
    }
)
"""The modules of base."""
