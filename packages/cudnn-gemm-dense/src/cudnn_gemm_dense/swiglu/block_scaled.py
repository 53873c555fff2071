"""Checks of the block-scaled mode of GEMM + SwiGLU, in the published order."""

from __future__ import annotations

from collections.abc import Sequence

from cudnn import checks
from cudnn.gemm_layout import Extents, Layout
from cudnn.tensors import Metadata
from cudnn_gemm_dense.scale_factors import FP4, FP8, check_one_value, check_scale_dtypes, check_scale_shape, require_scales, unpacked
from cudnn_gemm_dense.swiglu.shapes import check_columns

SCALE_DTYPES = ("float8_e8m0fnu", "float8_e4m3fn")
OUTPUT_DTYPES = ("float32", "float16", "bfloat16", *FP8)


def check_block_scaled(
    layout: Layout,
    metas: Sequence[Metadata],
    scales: dict[str, Metadata],
    vec: int,
    acc_dtype: str,
    tile: tuple[int, int],
    cluster: tuple[int, int],
    glu_layout: str,
) -> None:
    """Raises what the published interface raises for arguments of this mode: ValueError, or NotImplementedError for float32 AB12 and C together."""
    # Bytes as operands stand for packed 4-bit floats.
    metas = (*(unpacked(meta) for meta in metas[:-2]), *metas[-2:])
    extents = layout.extents(metas)
    _check_scale_shapes(scales, extents, vec)
    majors = layout.majors(metas)
    a, ab12, c = metas[0].dtype, metas[-2].dtype, metas[-1].dtype
    require_scales(scales, ("sfa_tensor", "sfb_tensor"))
    checks.check_dtype("a_tensor", a, (FP4, "uint8", *FP8), " in the block-scaled mode")
    checks.check_dtype("acc_dtype", acc_dtype, ("float32",), " in the block-scaled mode")
    checks.check_dtype("ab12_tensor", ab12, OUTPUT_DTYPES)
    checks.check_dtype("c_tensor", c, OUTPUT_DTYPES)
    fp4 = a == FP4
    if c in FP8:
        if fp4:
            raise ValueError(f"c_tensor: found dtype {c} with {FP4} operands, needs float32, float16 or bfloat16")
        if "sfc_tensor" not in scales or "norm_const_tensor" not in scales:
            raise ValueError(f"c_tensor: found dtype {c} without sfc_tensor and norm_const_tensor, needs both")
    if fp4 and c == "bfloat16" and "amax_tensor" not in scales:
        raise ValueError(f"amax_tensor: found None with {FP4} operands and bfloat16 c_tensor, needs a float32 tensor of shape (1,)")
    if c == ab12 == "float32":
        raise NotImplementedError("ab12_tensor and c_tensor: float32 for both is not implemented in the block-scaled mode; use bfloat16 for one of them")
    _check_scale_dtypes(scales, vec, fp4, a)
    if fp4:
        for name, major in (("a_tensor", majors["a"]), ("b_tensor", majors["b"])):
            if major != "k":
                raise ValueError(f"{name}: found {major}-major {FP4}, needs k-major")
        if majors["out"] != "n":
            raise ValueError(f"ab12_tensor: found {majors['out']}-major with {FP4} operands, needs n-major")
    for name, b in list(zip(layout.names, metas, strict=True))[1:-2]:
        if b.dtype != a:
            raise ValueError(f"{name}: found dtype {b.dtype} while a_tensor has {a}, needs equal dtypes")
    if tile[0] not in (128, 256):
        raise ValueError(f"mma_tiler_mn: found {tile}, needs a first entry of 128 or 256")
    if fp4 and tile[1] not in (64, 128, 192, 256):
        raise ValueError(f"mma_tiler_mn: found {tile}, needs a second entry of 64, 128, 192 or 256 with {FP4} operands")
    if not fp4 and (tile[1] == 32 or not 0 < tile[1] <= 256):
        raise ValueError(f"mma_tiler_mn: found {tile}, needs a second entry above 32 and up to 256 with fp8 operands")
    if not fp4 and (c in FP8 or ab12 in FP8 or ab12 == "float32"):
        raise ValueError(f"ab12_tensor and c_tensor: found dtypes {ab12} and {c} with {a} operands, needs float16 or bfloat16 AB12 and no fp8 C")
    checks.check_cluster(tile, cluster, single_cta_cluster=False)
    check_columns(extents.n, glu_layout)
    layout.check_lines(metas, majors)


def _check_scale_shapes(scales: dict[str, Metadata], extents: Extents, vec: int) -> None:
    m, n, k, batches = extents
    for name, rows, columns in (("sfa_tensor", m, k), ("sfb_tensor", n, k), ("sfc_tensor", m, n // 2)):
        if name in scales:
            if vec < 1:
                raise ValueError(f"sf_vec_size: found {vec}, needs 16 or 32")
            check_scale_shape(name, scales[name], rows, columns, batches, vec)
    for name in ("amax_tensor", "norm_const_tensor"):
        if name in scales:
            check_one_value(name, scales[name])


def _check_scale_dtypes(scales: dict[str, Metadata], vec: int, fp4: bool, a_dtype: str) -> None:
    if vec not in (16, 32):
        raise ValueError(f"sf_vec_size: found {vec}, needs 16 or 32")
    check_scale_dtypes(scales, ("sfa_tensor", "sfb_tensor", "sfc_tensor"), SCALE_DTYPES)
    scale = scales["sfa_tensor"].dtype
    if not fp4 and (scale != "float8_e8m0fnu" or vec != 32):
        raise ValueError(f"sfa_tensor: found {scale} and sf_vec_size {vec} with {a_dtype} operands, needs float8_e8m0fnu and 32")
    if fp4 and scale == "float8_e4m3fn" and vec == 32:
        raise ValueError("sf_vec_size: found 32 with float8_e4m3fn scales, needs 16; or float8_e8m0fnu scales")
