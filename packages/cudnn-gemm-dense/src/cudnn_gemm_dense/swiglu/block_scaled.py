"""Checks of the block-scaled mode of GEMM + SwiGLU, in the published order."""

from __future__ import annotations

from typing import Any, NamedTuple

from cudnn import checks
from cudnn.api_base import ceil_div
from cudnn.fp4 import logical_geometry
from cudnn.tensors import Metadata
from cudnn_gemm_dense.swiglu.shapes import Extents, SwigluTensors, sample_metadata

FP8 = ("float8_e4m3fn", "float8_e5m2")
FP4 = "float4_e2m1fn"
SCALE_DTYPES = ("float8_e8m0fnu", "float8_e4m3fn")
OUTPUT_DTYPES = ("float32", "float16", "bfloat16", *FP8)


class ScaleOperands(NamedTuple):
    """Metadata of what only the block-scaled mode has; None where not given."""

    sfa: Metadata | None
    sfb: Metadata | None
    amax: Metadata | None
    sfc: Metadata | None
    norm_const: Metadata | None
    sf_vec_size: int

    @classmethod
    def of(cls, sfa: Any, sfb: Any, amax: Any, sfc: Any, norm_const: Any, sf_vec_size: Any) -> ScaleOperands | None:
        """From the samples; None where none is given, which is the standard mode."""
        if sfa is sfb is amax is sfc is norm_const is None:
            return None

        def read(name: str, t: Any) -> Metadata | None:
            return None if t is None else sample_metadata(name, t)

        return cls(
            read("sfa_tensor", sfa),
            read("sfb_tensor", sfb),
            read("amax_tensor", amax),
            read("sfc_tensor", sfc),
            read("norm_const_tensor", norm_const),
            checks.as_integer("sf_vec_size", sf_vec_size),
        )


def as_logical(tensors: SwigluTensors) -> SwigluTensors:
    """Bytes (uint8) as operands stand for packed 4-bit floats."""
    return tensors._replace(a=_unpacked(tensors.a), b=tuple(_unpacked(b) for b in tensors.b))


def _unpacked(meta: Metadata) -> Metadata:
    if meta.dtype != "uint8":
        return meta
    shape, stride = logical_geometry(meta.shape, meta.stride)
    return meta._replace(dtype=FP4, shape=shape, stride=stride)


def scale_shapes(rows: int, columns: int, batches: int, vec: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The two forms of a blocked scale factor tensor: the six-axis atom view, and the C-contiguous physical one."""
    blocks_m, blocks_k = ceil_div(rows, 128), ceil_div(ceil_div(columns, vec), 4)
    return (32, 4, blocks_m, 4, blocks_k, batches), (batches, blocks_m, blocks_k, 32, 4, 4)


def check_block_scaled(tensors: SwigluTensors, scales: ScaleOperands, acc_dtype: str, tile: tuple[int, int], cluster: tuple[int, int]) -> None:
    """Raises what the published interface raises for arguments of this mode: ValueError, or NotImplementedError for float32 AB12 and C together."""
    t = as_logical(tensors)
    extents = t.check_shapes()
    _check_scale_shapes(scales, extents)
    majors = t.majors()
    a, ab12, c = t.a.dtype, t.ab12.dtype, t.c.dtype
    if scales.sfa is None or scales.sfb is None:
        missing = "sfa_tensor" if scales.sfa is None else "sfb_tensor"
        raise ValueError(f"{missing}: found None while another argument of the block-scaled mode is given, needs a tensor; or leave all of them at None")
    checks.check_dtype("a_tensor", a, (FP4, "uint8", *FP8), " in the block-scaled mode")
    checks.check_dtype("acc_dtype", acc_dtype, ("float32",), " in the block-scaled mode")
    checks.check_dtype("ab12_tensor", ab12, OUTPUT_DTYPES)
    checks.check_dtype("c_tensor", c, OUTPUT_DTYPES)
    fp4 = a == FP4
    if c in FP8:
        if fp4:
            raise ValueError(f"c_tensor: found dtype {c} with {FP4} operands, needs float32, float16 or bfloat16")
        if scales.sfc is None or scales.norm_const is None:
            raise ValueError(f"c_tensor: found dtype {c} without sfc_tensor and norm_const_tensor, needs both")
    if fp4 and c == "bfloat16" and scales.amax is None:
        raise ValueError(f"amax_tensor: found None with {FP4} operands and bfloat16 c_tensor, needs a float32 tensor of shape (1,)")
    if c == ab12 == "float32":
        raise NotImplementedError("ab12_tensor and c_tensor: float32 for both is not implemented in the block-scaled mode; use bfloat16 for one of them")
    _check_scale_dtypes(scales, fp4, a)
    if fp4:
        for name, major in (("a_tensor", majors.a), ("b_tensor", majors.b)):
            if major != "k":
                raise ValueError(f"{name}: found {major}-major {FP4}, needs k-major")
        if majors.out != "n":
            raise ValueError(f"ab12_tensor: found {majors.out}-major with {FP4} operands, needs n-major")
    for name, b in t.named_b():
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
    t.check_extents(majors)


def _check_scale_shapes(scales: ScaleOperands, extents: Extents) -> None:
    m, n, k, batches = extents
    for name, scale, rows, columns in (("sfa_tensor", scales.sfa, m, k), ("sfb_tensor", scales.sfb, n, k), ("sfc_tensor", scales.sfc, m, n // 2)):
        if scale is None:
            continue
        if scales.sf_vec_size < 1:
            raise ValueError(f"sf_vec_size: found {scales.sf_vec_size}, needs 16 or 32")
        forms = scale_shapes(rows, columns, batches, scales.sf_vec_size)
        if scale.shape not in forms:
            raise ValueError(
                f"{name}: found shape {scale.shape}, needs {forms[0]} or {forms[1]} for {rows} x {columns} x {batches} and sf_vec_size {scales.sf_vec_size}"
            )
    for name, one in (("amax_tensor", scales.amax), ("norm_const_tensor", scales.norm_const)):
        if one is not None and (not one.shape or any(extent != 1 for extent in one.shape)):
            raise ValueError(f"{name}: found shape {one.shape}, needs (1,)")


def _check_scale_dtypes(scales: ScaleOperands, fp4: bool, a_dtype: str) -> None:
    vec = scales.sf_vec_size
    if vec not in (16, 32):
        raise ValueError(f"sf_vec_size: found {vec}, needs 16 or 32")
    checks.check_dtype("sfa_tensor", scales.sfa.dtype, SCALE_DTYPES)
    for name, scale in (("sfb_tensor", scales.sfb), ("sfc_tensor", scales.sfc)):
        if scale is not None and scale.dtype != scales.sfa.dtype:
            raise ValueError(f"{name}: found dtype {scale.dtype} while sfa_tensor has {scales.sfa.dtype}, needs equal dtypes")
    if not fp4 and (scales.sfa.dtype != "float8_e8m0fnu" or vec != 32):
        raise ValueError(f"sfa_tensor: found {scales.sfa.dtype} and sf_vec_size {vec} with {a_dtype} operands, needs float8_e8m0fnu and 32")
    if fp4 and scales.sfa.dtype == "float8_e4m3fn" and vec == 32:
        raise ValueError("sf_vec_size: found 32 with float8_e4m3fn scales, needs 16; or float8_e8m0fnu scales")
