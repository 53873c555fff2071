"""What this distribution brings, as plain data. Importing this module imports nothing but `cudnn.family`."""

from __future__ import annotations

from cudnn.family import Family

_ENUMS = (
    "attention_implementation",
    "behavior_note",
    "build_plan_policy",
    "cuda_graph_retention",
    "data_type",
    "diagonal_alignment",
    "heur_mode",
    "knob_type",
    "moe_grouped_matmul_mode",
    "norm_forward_phase",
    "numerical_note",
    "reduction_mode",
    "reshape_mode",
    "scalar_type",
    "tensor_reordering",
)

_WRAPPER = {
    "Graph": "cudnn_graph.wrapper:Graph",
    "data_type": "cudnn_graph.enums:data_type",
    "destroy_default_handle": "cudnn_graph.wrapper:destroy_default_handle",
    "get_default_handle": "cudnn_graph.wrapper:get_default_handle",
    "heur_mode": "cudnn_graph.enums:heur_mode",
}

_NORM_OPS = {
    "layer_norm": "cudnn_graph.ops.norm:layer_norm",
    "rms_norm": "cudnn_graph.ops.norm:rms_norm",
}

FAMILY = Family(
    name="graph",
    distribution="cudnn-graph",
    names={
        **{name: f"cudnn_graph.enums:{name}" for name in _ENUMS},
        "FRONTEND_KNOB_TYPE_BASE": "cudnn_graph.enums:FRONTEND_KNOB_TYPE_BASE",
        "is_frontend_knob_type": "cudnn_graph.enums:is_frontend_knob_type",
        "knob": "cudnn_graph.knob:knob",
        "cudnnGraphNotSupportedError": "cudnn_graph.errors:cudnnGraphNotSupportedError",
        "backend_version": "cudnn_graph.library:backend_version",
        "backend_version_string": "cudnn_graph.library:backend_version_string",
        "get_last_error_string": "cudnn_graph.library:get_last_error_string",
        "Handle": "cudnn_graph.handle:Handle",
        "handle": "cudnn_graph.handle:Handle",
        "create_handle": "cudnn_graph.handle:create_handle",
        "destroy_handle": "cudnn_graph.handle:destroy_handle",
        "get_stream": "cudnn_graph.handle:get_stream",
        "set_stream": "cudnn_graph.handle:set_stream",
        "DeviceInfo": "cudnn.device:DeviceInfo",
        "create_kernel_cache": "cudnn_graph.kernel_cache:create_kernel_cache",
        "create_device_properties": "cudnn_graph.device_properties:create_device_properties",
        "pygraph": "cudnn_graph.graph:pygraph",
        "Tensor": "cudnn_graph.tensor:Tensor",
        "Node": "cudnn_graph.nodes:Node",
        "NodeType": "cudnn_graph.nodes:NodeType",
        "GraphContext": "cudnn_graph.context:GraphContext",
        "graph": "cudnn_graph.decorators:graph",
        "jit": "cudnn_graph.decorators:jit",
        "graph_cache": "cudnn_graph.decorators:graph_cache",
        "Graph": "cudnn_graph.wrapper:Graph",
    },
    namespaces={
        "wrapper": _WRAPPER,
        "ops": _NORM_OPS,
        "ops.norm": _NORM_OPS,
        "experimental.ops": _NORM_OPS,
        "gemm.reference": {
            "GemmReferenceEngine": "cudnn_graph.reference:GemmReferenceEngine",
            "ReferenceEngine": "cudnn_graph.reference:ReferenceEngine",
            "run": "cudnn_graph.reference:run",
        },
    },
    doc="graph/index.md",
)
