"""Checks of the block-scaled mode of GEMM + amax, in the published order. They are called between those that both modes have."""

from __future__ import annotations

from cudnn import checks
from cudnn.block_scale import ScaleLayout
from cudnn.block_scale.checks import check_scale_stride, scale_form, wanted_text
from cudnn.gemm_layout import Extents
from cudnn.tensors import Metadata
from cudnn_gemm_dense.scale_factors import FP4, check_fp4_majors, check_scale_dtypes, operand_scales, require_scales

OPERAND_DTYPES = (FP4, "float8_e5m2", "float8_e4m3fn")
SCALE_DTYPES = ("float8_e8m0fnu", "float8_e4m3fn", "int8")


def check_dtypes(a: str, b: str, scales: dict[str, Metadata], vec: int) -> None:
    """Rows about the scale factors' dtypes and block size."""
    require_scales(scales, operand_scales(a))
    if vec not in (16, 32):
        raise ValueError(f"sf_vec_size: found {vec}, needs 16 or 32")
    check_scale_dtypes(scales, ("sfa_tensor", "sfb_tensor"), SCALE_DTYPES)
    if scales["sfb_tensor"].dtype == "float8_e4m3fn" and vec == 32:
        raise ValueError("sf_vec_size: found 32 with float8_e4m3fn scales, needs 16; or float8_e8m0fnu scales")
    if b != FP4 and vec == 16:
        raise ValueError(f"sf_vec_size: found 16 with {b} operands, needs 32")


def check_scales(scales: dict[str, Metadata], extents: Extents, vec: int) -> None:
    """Rows about the scale factors' shapes and strides."""
    seen = {}
    given = [(name, rows) for name, rows in (("sfa_tensor", extents.m), ("sfb_tensor", extents.n)) if name in scales]
    for name, rows in given:
        meta = scales[name]
        wanted = wanted_text(ScaleLayout(rows, extents.k, extents.batches, vec))
        form = scale_form(meta.shape)
        if form is None:
            raise ValueError(f"{name}: found shape {meta.shape}, {wanted}")
        check_scale_stride(name, meta, form)
        if form.batches != extents.batches:
            raise ValueError(f"{name}: found shape {meta.shape}, {wanted}")
        seen[name] = (form.row_atoms, form.block_atoms, wanted)
    if len(seen) == 2 and seen["sfa_tensor"][1] != seen["sfb_tensor"][1]:
        raise ValueError(
            f"sfa_tensor and sfb_tensor: found {seen['sfa_tensor'][1]} and {seen['sfb_tensor'][1]} groups of four blocks along K, needs them equal"
        )
    for name, rows in given:
        if seen[name][0] != -(-rows // 128):
            raise ValueError(f"{name}: found {seen[name][0]} groups of 128 rows, {seen[name][2]}")
        # NOTE: the published check leaves this one out, and with it which bytes are read.
        if seen[name][1] != ScaleLayout(rows, extents.k, extents.batches, vec).block_atoms:
            raise ValueError(f"{name}: found {seen[name][1]} groups of four blocks along K, {seen[name][2]}")


def check_rest(a: str, c: str, majors: dict[str, str], extents: Extents, tile: tuple[int, int], vec: int) -> None:
    """Rows that come after the tile's."""
    if a == FP4 and tile[1] == 256 and extents.k <= 128:
        raise ValueError(f"mma_tiler_mn: found {tile} with {FP4} operands and K = {extents.k}, needs a second entry of 128 for K up to 128")
    if tile == (128, 256) and vec == 16 and c in ("float32", "float16", "bfloat16"):
        raise NotImplementedError(f"mma_tiler_mn: (128, 256) with sf_vec_size 16 and {c} c_tensor is not implemented; use (128, 128)")


def check_majors(a: str, b: str, c: str, majors: dict[str, str]) -> None:
    """Rows about packed 4-bit floats."""
    check_fp4_majors([("a_tensor", a, majors["a"]), ("b_tensor", b, majors["b"])])
    if c == FP4 and majors["out"] != "n":
        raise ValueError(f"c_tensor: found {majors['out']}-major {FP4}, needs n-major")


def check_c_dtype(a: str, c: str) -> None:
    """A 4-bit C goes with 4-bit operands alone."""
    checks.check_dtype("c_tensor", c, ("float32", "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn", *((FP4,) if a == FP4 else ())))
