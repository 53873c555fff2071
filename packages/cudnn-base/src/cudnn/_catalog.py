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
        "DeviceInfo": "graph",
        "FRONTEND_KNOB_TYPE_BASE": "graph",
        "GemmSwiglu": "gemm_dense",
        "GemmSwigluSm100": "gemm_dense",
        "Graph": "graph",
        "GraphContext": "graph",
        "Handle": "graph",
        "Node": "graph",
        "NodeType": "graph",
        "Tensor": "graph",
        "TensorDesc": "base",
        "TupleDict": "base",
        "attention_implementation": "graph",
        "backend_version": "graph",
        "backend_version_string": "graph",
        "behavior_note": "graph",
        "build_plan_policy": "graph",
        "cache": "base",
        "create_device_properties": "graph",
        "create_handle": "graph",
        "create_kernel_cache": "graph",
        "cuda_graph_retention": "graph",
        "cudnnGraphNotSupportedError": "graph",
        "data_type": "graph",
        "datatypes": "base",
        "destroy_handle": "graph",
        "diagonal_alignment": "graph",
        "errors": "base",
        "gemm_swiglu_wrapper": "gemm_dense",
        "gemm_swiglu_wrapper_sm100": "gemm_dense",
        "get_last_error_string": "graph",
        "get_stream": "graph",
        "graph": "graph",
        "graph_cache": "graph",
        "handle": "graph",
        "heur_mode": "graph",
        "is_frontend_knob_type": "graph",
        "jit": "graph",
        "knob": "graph",
        "knob_type": "graph",
        "moe_grouped_matmul_mode": "graph",
        "norm_forward_phase": "graph",
        "numerical_note": "graph",
        "precompile": "base",
        "pygraph": "graph",
        "reduction_mode": "graph",
        "registry": "base",
        "reshape_mode": "graph",
        "scalar_type": "graph",
        "set_stream": "graph",
        "tensor_reordering": "graph",
    },
    "experimental.ops": {
        "layer_norm": "graph",
        "rms_norm": "graph",
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
    "gemm.reference": {
        "GemmReferenceEngine": "graph",
        "ReferenceEngine": "graph",
        "run": "graph",
    },
    "ops": {
        "deinterleave_gate_up": "gemm_dense",
        "interleave_gate_up": "gemm_dense",
        "layer_norm": "graph",
        "rms_norm": "graph",
    },
    "ops.norm": {
        "layer_norm": "graph",
        "rms_norm": "graph",
    },
    "wrapper": {
        "Graph": "graph",
        "data_type": "graph",
        "destroy_default_handle": "graph",
        "get_default_handle": "graph",
        "heur_mode": "graph",
    },
}
"""Namespace below cudnn ("" is cudnn itself) -> public name -> family."""

MODULES = frozenset(
    {
        "api_base",
        "bench",
        "cache",
        "checks",
        "collect_env",
        "cutedsl",
        "datatypes",
        "device",
        "dsl_check",
        "errors",
        "family",
        "fp4",
        "gemm_layout",
        "gemm_operation",
        "logs",
        "memo",
        "reference",
        "registry",
        "streams",
        "tensor_adapter",
        "tensor_desc",
        "tensors",
        "testing",
        "torch_operators",
        "tuple_dict",
        "workspace",
        "wrapper_calls",
    }
)
"""The modules of base."""
