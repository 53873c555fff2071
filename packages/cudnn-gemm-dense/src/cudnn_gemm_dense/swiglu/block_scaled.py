"""Checks of the block-scaled mode of GEMM + SwiGLU, in the published order."""

from __future__ import annotations

from collections.abc import Sequence

from cudnn import checks
from cudnn.gemm_layout import Extents, Layout
from cudnn.gemm_operation import OPERAND_DTYPES
from cudnn.tensors import Metadata
from cudnn_gemm_dense.scale_factors import (
    FP4,
    FP8,
    SCALE_DTYPES,
    check_fp4_majors,
    check_modes,
    check_one_value,
    check_operands,
    check_scale_dtypes,
    check_scale_shape,
    operand_scales,
    require_scales,
)
from cudnn_gemm_dense.swiglu.shapes import check_columns

OUTPUT_DTYPES = ("float32", "float16", "bfloat16", *FP8)


def check_block_scaled(
    layout: Layout,
    operands: int,
    metas: Sequence[Metadata],
    scales: dict[str, Metadata],
    vec: int,
    acc_dtype: str,
    tile: tuple[int, int],
    cluster: tuple[int, int],
    glu_layout: str,
) -> dict[str, str]:
    """Raises what the published interface raises for arguments of this mode: ValueError, or NotImplementedError for float32 AB12 and C together. Returns the majors."""
    extents = layout.extents(metas)
    b_scales = ("sfb_tensor",) if operands == 2 else ("sfb_tensor[0]", "sfb_tensor[1]")
    _check_scale_shapes(scales, extents, vec, b_scales)
    majors = layout.majors(metas)
    a, ab12, c = (metas[i].dtype for i in (0, operands, operands + 1))
    # A bfloat16 A has none of its own; without any there is no block-scaled mode.
    quantized = any(name in scales for name in ("sfa_tensor", *b_scales))
    require_scales(scales, operand_scales(a, b_scales) if quantized else ("sfa_tensor", *b_scales))
    # The published order has the dtype of B further down.
    mixed = check_operands(a, [], scales, OPERAND_DTYPES, why=" in the block-scaled mode")
    checks.check_dtype("acc_dtype", acc_dtype, ("float32",), " in the block-scaled mode")
    checks.check_dtype("ab12_tensor", ab12, OUTPUT_DTYPES)
    checks.check_dtype("c_tensor", c, OUTPUT_DTYPES)
    fp4 = a == FP4
    if c in FP8:
        if fp4 or mixed:
            raise ValueError(f"c_tensor: found dtype {c} with {a} operands, needs float32, float16 or bfloat16")
        if "sfc_tensor" not in scales or "norm_const_tensor" not in scales:
            raise ValueError(f"c_tensor: found dtype {c} without sfc_tensor and norm_const_tensor, needs both")
    if fp4 and c == "bfloat16" and "amax_tensor" not in scales:
        raise ValueError(f"amax_tensor: found None with {FP4} operands and bfloat16 c_tensor, needs a float32 tensor of shape (1,)")
    if c == ab12 == "float32" and not mixed:
        raise NotImplementedError("ab12_tensor and c_tensor: float32 for both is not implemented in the block-scaled mode; use bfloat16 for one of them")
    _check_scale_dtypes(scales, vec, a, metas[1].dtype, b_scales)
    check_fp4_majors([("a_tensor", a, majors["a"]), ("b_tensor", metas[1].dtype, majors["b"])])
    if fp4 and majors["out"] != "n":
        raise ValueError(f"ab12_tensor: found {majors['out']}-major with {FP4} operands, needs n-major")
    others = [(layout.names[i], metas[i].dtype) for i in range(1, operands)]
    check_operands(a, others, scales, OPERAND_DTYPES, why=" in the block-scaled mode")
    if tile[0] not in (128, 256):
        raise ValueError(f"mma_tiler_mn: found {tile}, needs a first entry of 128 or 256")
    if fp4 and tile[1] not in (64, 128, 192, 256):
        raise ValueError(f"mma_tiler_mn: found {tile}, needs a second entry of 64, 128, 192 or 256 with {FP4} operands")
    if not fp4 and not mixed and (tile[1] == 32 or not 0 < tile[1] <= 256):
        raise ValueError(f"mma_tiler_mn: found {tile}, needs a second entry above 32 and up to 256 with fp8 operands")
    if not fp4 and not mixed and (c in FP8 or ab12 in FP8 or ab12 == "float32"):
        raise ValueError(f"ab12_tensor and c_tensor: found dtypes {ab12} and {c} with {a} operands, needs float16 or bfloat16 AB12 and no fp8 C")
    checks.check_cluster(tile, cluster, single_cta_cluster=False)
    check_columns(extents.n, glu_layout)
    layout.check_lines(metas, majors)
    return majors


def _check_scale_shapes(scales: dict[str, Metadata], extents: Extents, vec: int, b_scales: Sequence[str]) -> None:
    m, n, k, batches = extents
    for name, rows, columns in (("sfa_tensor", m, k), *((name, n // len(b_scales), k) for name in b_scales), ("sfc_tensor", m, n // 2)):
        if name in scales:
            if vec < 1:
                raise ValueError(f"sf_vec_size: found {vec}, needs 16 or 32")
            check_scale_shape(name, scales[name], rows, columns, batches, vec)
    for name in ("amax_tensor", "norm_const_tensor"):
        if name in scales:
            check_one_value(name, scales[name])


def _check_scale_dtypes(scales: dict[str, Metadata], vec: int, a: str | None, b: str | None, b_scales: Sequence[str]) -> None:
    if vec not in (16, 32):
        raise ValueError(f"sf_vec_size: found {vec}, needs 16 or 32")
    check_scale_dtypes(scales, ("sfa_tensor", *b_scales, "sfc_tensor"), SCALE_DTYPES)
    check_modes([("sfa_tensor", a), *((name, b) for name in b_scales)], scales, vec)
