"""What this distribution brings, as plain data. Importing this module imports nothing but `cudnn.family`."""

from __future__ import annotations

from cudnn.family import Family


def _names(module: str, cls: str, wrapper: str) -> dict[str, str]:
    """Class and wrapper of one operation, also under their published names."""
    targets = {name: f"cudnn_gemm_discrete.{module}.api:{name}" for name in (cls, wrapper)}
    return {**targets, f"{cls}Sm100": targets[cls], f"{wrapper}_sm100": targets[wrapper]}


_OPERATIONS = {
    "swiglu": _names("swiglu", "DiscreteGroupedGemmSwiglu", "discrete_grouped_gemm_swiglu_wrapper"),
    "dswiglu": _names("dswiglu", "DiscreteGroupedGemmDswiglu", "discrete_grouped_gemm_dswiglu_wrapper"),
}
_NAMES = {public: target for names in _OPERATIONS.values() for public, target in names.items()}

FAMILY = Family(
    name="gemm_discrete",
    distribution="cudnn-gemm-discrete",
    names=_NAMES,
    namespaces={
        **{f"gemm.cutedsl.discrete_grouped.{op}{api}": names for op, names in _OPERATIONS.items() for api in ("", ".api")},
        "discrete_grouped_gemm": _NAMES,
        # An earlier release had the operations here.
        **{f"discrete_grouped_gemm.discrete_grouped_gemm_{op}.api": names for op, names in _OPERATIONS.items()},
    },
    operations=tuple(f"cudnn_gemm_discrete.{op}.api" for op in _OPERATIONS),
    archs=("sm_90a",),
    doc="discrete/index.md",
)
