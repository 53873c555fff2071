"""Support checks that GEMM + squared ReLU and its gradient share, in the published order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn import checks
from cudnn.gemm_layout import Extents, Layout
from cudnn.gemm_operation import OPERAND_DTYPES
from cudnn.tensors import Metadata
from cudnn_gemm_dense import scale_factors
from cudnn_gemm_dense.scale_factors import FP4, FP8

SCALE_DTYPES = ("float8_e8m0fnu", "float8_e4m3fn")
OUTPUT_DTYPES = ("float16", "bfloat16", "float32", *FP8)
TILE_N = (64, 128, 192, 256)


def default_cluster(tile: tuple[int, int]) -> tuple[int, int]:
    return (2, 1) if tile[0] == 256 else (1, 1)


def check_all(
    op: str,
    layout: Layout,
    metas: dict[str, Metadata],
    scales: dict[str, Metadata] | None,
    vec: int,
    acc_dtype: str,
    hints: tuple[tuple[int, int], tuple[int, int]],
    c_dtypes: tuple[str, ...],
) -> dict[str, str]:
    """Every row of the published table that needs metadata alone. Returns the majors.

    ``metas``: of the layout's tensors by name, in order; ``hints``: tile and cluster.
    """
    if scales is not None:
        # Bytes stand for packed 4-bit floats in the block-scaled mode.
        metas = {name: scale_factors.unpacked(meta) if name in ("a_tensor", "b_tensor") else meta for name, meta in metas.items()}
    values = tuple(metas.values())
    extents = layout.extents(values)
    if scales is not None:
        _check_scale_shapes(scales, extents, vec)
    a, d = metas["a_tensor"].dtype, metas["d_tensor"].dtype
    checks.check_dtype("a_tensor", a, OPERAND_DTYPES if scales is None else (FP4, *FP8))
    if metas["b_tensor"].dtype != a:
        raise ValueError(f"b_tensor: found dtype {metas['b_tensor'].dtype} while a_tensor has {a}, needs equal dtypes; cast one, under autocast by hand")
    checks.check_dtype("c_tensor", metas["c_tensor"].dtype, c_dtypes)
    checks.check_dtype("d_tensor", d, OUTPUT_DTYPES)
    for name in ("prob_tensor", "dprob_tensor", "amax_tensor"):
        if name in metas:
            checks.check_dtype(name, metas[name].dtype, ("float32",))
    checks.check_dtype("acc_dtype", acc_dtype, ("float32",))
    if scales is not None:
        scale_factors.require_scales(scales, ("sfa_tensor", "sfb_tensor"))
        scale_factors.check_scale_dtypes(scales, ("sfa_tensor", "sfb_tensor", "sfd_tensor"), SCALE_DTYPES)
        if vec not in (16, 32):
            raise ValueError(f"sf_vec_size: found {vec}, needs 16 or 32")
    if d in FP8:
        missing = [name for name in ("sfd_tensor", "norm_const_tensor") if scales is None or name not in scales]
        if missing:
            raise ValueError(f"d_tensor: found dtype {d} without {' and '.join(missing)}, needs both; or float16, bfloat16 or float32")
        if a == FP4:
            raise ValueError(f"d_tensor: found dtype {d} with {FP4} operands, needs float16, bfloat16 or float32")
    majors = layout.majors(values)
    tile, cluster = hints
    checks.check_tile_and_cluster(tile, cluster, tile_n=TILE_N, single_cta_cluster=False)
    if max(cluster) > 4:
        raise ValueError(f"cluster_shape_mn: found {cluster}, needs entries of at most 4")
    if scales is not None:
        _check_modes(a, scales, vec, majors)
    layout.check_lines(values, majors)
    if scales is not None:
        raise scale_factors.not_implemented(op, scales)
    return majors


def _check_scale_shapes(scales: dict[str, Metadata], extents: Extents, vec: int) -> None:
    for name, rows, columns in (("sfa_tensor", extents.m, extents.k), ("sfb_tensor", extents.n, extents.k), ("sfd_tensor", extents.m, extents.n)):
        if name in scales:
            if vec < 1:
                raise ValueError(f"sf_vec_size: found {vec}, needs 16 or 32")
            scale_factors.check_scale_shape(name, scales[name], rows, columns, extents.batches, vec)
    if "norm_const_tensor" in scales:
        scale_factors.check_one_value("norm_const_tensor", scales["norm_const_tensor"])


def _check_modes(a: str, scales: dict[str, Metadata], vec: int, majors: Mapping[str, Any]) -> None:
    scale = scales["sfa_tensor"].dtype
    if a != FP4 and (scale != "float8_e8m0fnu" or vec != 32):
        raise ValueError(f"sfa_tensor: found {scale} and sf_vec_size {vec} with {a} operands, needs float8_e8m0fnu and 32")
    if a == FP4 and scale == "float8_e4m3fn" and vec == 32:
        raise ValueError("sf_vec_size: found 32 with float8_e4m3fn scales, needs 16; or float8_e8m0fnu scales")
    for name in ("a", "b"):
        if a == FP4 and majors[name] != "k":
            raise ValueError(f"{name}_tensor: found {majors[name]}-major {FP4}, needs k-major")
