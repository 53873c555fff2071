"""What this distribution brings, as plain data. Importing this module imports nothing but `cudnn.family`."""

from __future__ import annotations

from cudnn.family import Family


def _names(module: str, cls: str, wrapper: str, *functions: str) -> dict[str, str]:
    """Class, wrapper and further functions of one operation, also under their published names."""
    targets = {name: f"cudnn_gemm_grouped.{module}.api:{name}" for name in (cls, wrapper, *functions)}
    return {**targets, f"{cls}Sm100": targets[cls], **{f"{name}_sm100": targets[name] for name in (wrapper, *functions)}}


_OPERATIONS = {
    "unfused": _names("unfused", "GroupedGemm", "grouped_gemm_wrapper"),
    "glu": _names("glu", "GroupedGemmGlu", "grouped_gemm_glu_wrapper"),
    "dglu": _names("dglu", "GroupedGemmDglu", "grouped_gemm_dglu_wrapper"),
    "wgrad": _names("wgrad", "GroupedGemmWgrad", "grouped_gemm_wgrad_wrapper", "get_grouped_gemm_wgrad_workspace_size"),
}
_NAMES = {public: target for names in _OPERATIONS.values() for public, target in names.items()}
# Reached through the operation's module only, as published.
_ENUM = {"WGradInputOrder": "cudnn_gemm_grouped.wgrad.api:WGradInputOrder"}
_PATHS = {op: {**names, **(_ENUM if op == "wgrad" else {})} for op, names in _OPERATIONS.items()}

_LAYERS = {name: f"cudnn_gemm_grouped.moe.layer:{name}" for name in ("moe_mlp", "swiglu_moe")}
_ROUTING = {name: f"cudnn_gemm_grouped.moe.routing:{name}" for name in ("moe_combine", "moe_gather", "moe_route")}
_PUBLISHED = {"moe_grouped_matmul": "cudnn_gemm_grouped.moe.matmul:moe_grouped_matmul", "swiglu_moe": _LAYERS["swiglu_moe"]}

FAMILY = Family(
    name="gemm_grouped",
    distribution="cudnn-gemm-grouped",
    names=_NAMES,
    namespaces={
        **{f"gemm.cutedsl.grouped.{op}{api}": names for op, names in _PATHS.items() for api in ("", ".api")},
        "grouped_gemm": {**_NAMES, **_ENUM},
        "gemm": _PUBLISHED,
        "gemm.ops": _PUBLISHED,
        "ops": {
            "grouped_gemm": "cudnn_gemm_grouped.moe.ops:grouped_gemm",
            "grouped_gemm_glu": "cudnn_gemm_grouped.moe.ops:grouped_gemm_glu",
            "moe_mlp": _LAYERS["moe_mlp"],
            **_ROUTING,
        },
        "torch": {
            "GroupedSwigluMLP": "cudnn_gemm_grouped.moe.module:GroupedSwigluMLP",
            "register_transformers_experts": "cudnn_gemm_grouped.moe.experts:register_transformers_experts",
        },
        # An earlier release had the operations here.
        **{f"grouped_gemm.grouped_gemm_{op}.api": names for op, names in _PATHS.items() if op != "unfused"},
    },
    operations=tuple(f"cudnn_gemm_grouped.{op}.api" for op in (*_OPERATIONS, "moe")),
    archs=("sm_90a",),
    doc="grouped/index.md",
)
