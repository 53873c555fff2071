"""Support checks that GEMM + squared ReLU and its gradient share, in the published order."""

from __future__ import annotations

from cudnn import checks
from cudnn.gemm_layout import Extents, Layout
from cudnn.gemm_operation import OPERAND_DTYPES
from cudnn.tensors import Metadata
from cudnn_gemm_dense import scale_factors
from cudnn_gemm_dense.scale_factors import FP4, FP8, SCALE_DTYPES

OUTPUT_DTYPES = ("float16", "bfloat16", "float32", *FP8)
TILE_N = (64, 128, 192, 256)


def default_cluster(tile: tuple[int, int]) -> tuple[int, int]:
    return (2, 1) if tile[0] == 256 else (1, 1)


def check_all(
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
    values = tuple(metas.values())
    extents = layout.extents(values)
    if scales is not None:
        _check_scale_shapes(scales, extents, vec)
    a, b, d = (metas[name].dtype for name in ("a_tensor", "b_tensor", "d_tensor"))
    scale_factors.check_operands(a, [("b_tensor", b)], scales, OPERAND_DTYPES)
    checks.check_dtype("c_tensor", metas["c_tensor"].dtype, c_dtypes)
    checks.check_dtype("d_tensor", d, OUTPUT_DTYPES)
    for name in ("prob_tensor", "dprob_tensor", "amax_tensor", "norm_const_tensor"):
        if name in metas:
            checks.check_dtype(name, metas[name].dtype, ("float32",))
    checks.check_dtype("acc_dtype", acc_dtype, ("float32",))
    if scales is not None:
        # Without scale factors of operands there is only a quantised D.
        needed = scale_factors.operand_scales(a) if "sfb_tensor" in scales or d in FP8 else ("sfa_tensor", "sfb_tensor")
        scale_factors.require_scales(scales, needed)
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
        scale_factors.check_modes([("sfa_tensor", a), ("sfb_tensor", b), *([("sfd_tensor", d)] if d in FP8 else [])], scales, vec)
        scale_factors.check_fp4_majors([("a_tensor", a, majors["a"]), ("b_tensor", b, majors["b"])])
    layout.check_lines(values, majors)
    return majors


def _check_scale_shapes(scales: dict[str, Metadata], extents: Extents, vec: int) -> None:
    for name, rows, columns in (("sfa_tensor", extents.m, extents.k), ("sfb_tensor", extents.n, extents.k), ("sfd_tensor", extents.m, extents.n)):
        if name in scales:
            if vec < 1:
                raise ValueError(f"sf_vec_size: found {vec}, needs 16 or 32")
            scale_factors.check_scale_shape(name, scales[name], rows, columns, extents.batches, vec)
    if "norm_const_tensor" in scales:
        scale_factors.check_one_value("norm_const_tensor", scales["norm_const_tensor"])
