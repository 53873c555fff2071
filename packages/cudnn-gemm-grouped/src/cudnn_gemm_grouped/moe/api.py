"""What layers of experts need before their first call. Their operations are in `cudnn_gemm_grouped.moe.ops` and `.layer`, which import torch; this module does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.cutedsl.pointwise import GatedGradientSpec
from cudnn.cutedsl.rows import GatherRowsSpec, ScatterRowsSpec, SumRowsSpec, ZeroTailSpec
from cudnn.grouped.checks import OPERAND_DTYPES
from cudnn.grouped.configs import default_configs
from cudnn.grouped.options import B_PARTS, DgluOptions, GluOptions, ProductOptions, kernel_spec
from cudnn_gemm_grouped.moe.products import pre_layout

if TYPE_CHECKING:
    from cudnn.cutedsl.compile import KernelSpec

__all__ = ["precompile_specs"]

# Of the layers that models have: activation, layout of gate and up, whether weights are stored transposed, whether there are biases.
FORMS = (
    ("swiglu", "concatenated", False, False),
    ("swiglu", "interleaved32", False, False),
    ("swiglu", "separate", False, False),
    ("geglu", "alternating", True, True),
)


def precompile_specs() -> list[Any]:
    """The kernels of training and inference with routed tokens in bfloat16, for the layouts of weights that models have; and what brings rows to their experts and back. Those of weight gradients are listed by their own
    operation.
    """
    found: list[Any] = [spec for form in FORMS for spec in _products("bfloat16", *form)]
    for dtype in OPERAND_DTYPES:
        found += [
            GatherRowsSpec(dtype),
            GatherRowsSpec(dtype, dot=True, other_index=True, other_dtype=dtype),
            GatherRowsSpec(dtype, scaled=True),
            GatherRowsSpec(dtype, scaled=True, dot=True, other_dtype=dtype),
            ScatterRowsSpec(dtype),
            SumRowsSpec(dtype),
            SumRowsSpec(dtype, weighted=True),
            SumRowsSpec(dtype, ragged=True),
            ZeroTailSpec(dtype),
            *(
                GatedGradientSpec(dtype, "swiglu", layout == "interleaved32", True, prob=prob)
                for layout in ("concatenated", "interleaved32")
                for prob in (False, True)
            ),
            *(GatedGradientSpec(dtype, "geglu", False, True, alternating=True, prob=prob) for prob in (False, True)),
        ]
    return list(dict.fromkeys(found))


def _products(dtype: str, activation: str, glu_layout: str, transposed: bool, bias: bool) -> list[KernelSpec]:
    def problem(n_major: bool, parts: str = "single") -> GemmProblem:
        return GemmProblem(dtype, dtype, b_major="n" if n_major else "k", b_parts=parts, grouping="rows")

    bias_dtype = dtype if bias else None
    specs: list[tuple[str, GemmProblem, Any]] = [
        *(
            ("grouped_gemm_glu", problem(transposed, B_PARTS[glu_layout]), GluOptions(dtype, kept, bias_dtype, activation, glu_layout, True, False))
            for kept in (None, dtype)
        ),
        ("grouped_gemm", problem(transposed), ProductOptions(dtype, None, bias_dtype, False, bias)),
        # The gradients read each weight with its axes in the other order.
        (
            "grouped_gemm_dglu",
            problem(not transposed),
            DgluOptions(dtype, dtype, activation, pre_layout(glu_layout), dtype, "float32" if bias else None, None, False, False, True, False),
        ),
        ("grouped_gemm", problem(not transposed), ProductOptions(dtype, None, None, False, False)),
    ]
    if glu_layout == "separate":
        specs.append(("grouped_gemm", problem(not transposed), ProductOptions(dtype, None, None, False, False, dtype)))
    return [kernel_spec(op, kind, options, config) for op, kind, options in specs for config in default_configs(kind, options.footprint)]
