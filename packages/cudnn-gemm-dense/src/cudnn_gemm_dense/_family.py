"""What this distribution brings, as plain data. Importing this module imports nothing but `cudnn.family`."""

from __future__ import annotations

from cudnn.family import Family


def _names(module: str, cls: str, wrapper: str, published: bool = True) -> dict[str, str]:
    """Class and wrapper of one operation, also under their published names where they have such."""
    targets = {cls: f"cudnn_gemm_dense.{module}.api:{cls}", wrapper: f"cudnn_gemm_dense.{module}.api:{wrapper}"}
    return {**targets, **({f"{cls}Sm100": targets[cls], f"{wrapper}_sm100": targets[wrapper]} if published else {})}


_PROJ_ROPE = "cudnn_gemm_dense.proj_rope_mxfp8.api:{}".format

_OPERATIONS = {
    "amax": _names("amax", "GemmAmax", "gemm_amax_wrapper"),
    "dsrelu": _names("dsrelu", "GemmDsrelu", "gemm_dsrelu_wrapper"),
    "dswiglu": _names("dswiglu", "GemmDswiglu", "gemm_dswiglu_wrapper", published=False),
    "gemm": _names("gemm", "Gemm", "gemm_wrapper", published=False),
    "proj_rope_mxfp8": {
        f"{name}{suffix}": _PROJ_ROPE(name)
        for name, suffixes in (
            ("GemmProjRopeMxfp8Bf16In", ("", "Sm100")),
            ("GemmProjRopeMxfp8Mxfp8In", ("", "Sm100")),
            ("gemm_proj_rope_mxfp8_wrapper", ("", "_sm100")),
        )
        for suffix in suffixes
    },
    "srelu": _names("srelu", "GemmSrelu", "gemm_srelu_wrapper"),
    "swiglu": _names("swiglu", "GemmSwiglu", "gemm_swiglu_wrapper"),
}

# Published in the operation's own folder alone.
_FOLDER_ONLY = {"proj_rope_mxfp8": {"gemm_proj_rope_mxfp8_reference": _PROJ_ROPE("gemm_proj_rope_mxfp8_reference")}}

_MLP = {name: f"cudnn_gemm_dense.mlp.ops:{name}" for name in ("situ_mlp", "swiglu_mlp")}

FAMILY = Family(
    name="gemm_dense",
    distribution="cudnn-gemm-dense",
    names={public: target for names in _OPERATIONS.values() for public, target in names.items()},
    namespaces={
        **{f"gemm.cutedsl.dense.{op}{api}": {**names, **_FOLDER_ONLY.get(op, {})} for op, names in _OPERATIONS.items() for api in ("", ".api")},
        "gemm": _MLP,
        "gemm.ops": _MLP,
        "experimental.ops": {"swiglu_mlp": _MLP["swiglu_mlp"]},
        "ops": {
            "gemm_amax": "cudnn_gemm_dense.amax.ops:gemm_amax",
            "gemm_srelu": "cudnn_gemm_dense.srelu.ops:gemm_srelu",
            "gemm_swiglu": "cudnn_gemm_dense.swiglu.ops:gemm_swiglu",
            "interleave_gate_up": "cudnn_gemm_dense.swiglu.layout:interleave_gate_up",
            "deinterleave_gate_up": "cudnn_gemm_dense.swiglu.layout:deinterleave_gate_up",
        },
        "torch": {"SwigluMLP": "cudnn_gemm_dense.mlp.module:SwigluMLP"},
    },
    operations=tuple(f"cudnn_gemm_dense.{op}.api" for op in sorted((*_OPERATIONS, "block_scaled", "mlp"))),
    archs=("sm_90a",),
    doc="dense/gemm_swiglu.md",
)
