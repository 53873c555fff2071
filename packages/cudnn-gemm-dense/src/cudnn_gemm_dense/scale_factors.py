"""Scale factors of block-scaled operands and of quantised outputs: which there are, and the checks that the dense operations share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from cudnn import checks
from cudnn.block_scale import E4M3, E8M0, FP4, FP8, ScaleLayout
from cudnn.block_scale import checks as scale_checks
from cudnn.datatypes import dtype_name, torch_dtype
from cudnn.gemm_operation import sample_metadata
from cudnn.gemm_scratch import byte_span
from cudnn.tensors import Metadata
from cudnn.wrapper_calls import Output

SCALE_DTYPES = (E8M0, E4M3)


def read_scales(op: str, samples: Mapping[str, Any]) -> dict[str, Metadata] | None:
    """Metadata of the given samples of the block-scaled mode; None where none is given."""
    given = {name: sample_metadata(op, name, t) for name, t in samples.items() if t is not None}
    return given or None


def check_scale_shape(name: str, scale: Metadata, rows: int, columns: int, batches: int, vec: int) -> None:
    """ValueError unless the scale factors have the shape of one of the two forms for a (rows, columns, batches) matrix, and memory without gaps: they are found by the address of the first alone."""
    scale_checks.check_scale_shape(name, scale, ScaleLayout(rows, columns, batches, vec))
    if 0 not in scale.shape and byte_span(scale) != prod(scale.shape):
        raise ValueError(
            f"{name}: found strides {scale.stride} for shape {scale.shape}, needs memory without gaps: the factors of 128 rows and 4 blocks lie together, batch after batch"
        )


def check_one_value(name: str, meta: Metadata) -> None:
    """ValueError unless the tensor has the shape (1,), unit axes behind it allowed."""
    if not meta.shape or any(extent != 1 for extent in meta.shape):
        raise ValueError(f"{name}: found shape {meta.shape}, needs (1,)")


def check_scale_dtypes(scales: dict[str, Metadata], names: Sequence[str], allowed: Sequence[str]) -> None:
    """ValueError unless the scale factors called ``names``, as far as given, have one allowed dtype."""
    first, *others = [name for name in names if name in scales] or names
    if first not in scales:
        return
    checks.check_dtype(first, scales[first].dtype, allowed)
    for name in others:
        if name in scales and scales[name].dtype != scales[first].dtype:
            raise ValueError(f"{name}: found dtype {scales[name].dtype} while {first} has {scales[first].dtype}, needs equal dtypes")


def operand_scales(a: str | None, b_names: Sequence[str] = ("sfb_tensor",)) -> tuple[str, ...]:
    """Which scale factors have to be there where any argument of the block-scaled mode is: those of quantised operands."""
    return ("sfa_tensor", *b_names) if a not in ("float16", "bfloat16") else ()


def kernel_dtypes(a: str | None, b: str | None, scales: Mapping[str, Metadata] | None) -> tuple[Any, Any]:
    """Dtypes of the operands as the kernel gets them: those with scale factors as A where A has none, else bfloat16."""
    scaled = {name[:3] for name in scales or ()}
    if "sfa" in scaled:
        return "bfloat16", "bfloat16"
    return (a, a) if "sfb" in scaled else (a, b)


def require_scales(scales: dict[str, Metadata], names: Sequence[str]) -> None:
    """ValueError where a tensor that the block-scaled mode needs is missing."""
    for name in names:
        if name not in scales:
            raise ValueError(f"{name}: found None while another argument of the block-scaled mode is given, needs a tensor; or leave all of them at None")


def check_operands(
    a: str | None,
    others: Sequence[tuple[str, str | None]],
    scales: Mapping[str, Metadata] | None,
    plain: Sequence[str],
    quantized: Sequence[str] = (FP4, *FP8),
    why: str = "",
) -> bool:
    """ValueError unless the operands' dtypes go together: all of one, or quantised weights with a 16-bit A. Whether it is the second.

    ``others``: (name, dtype) of each tensor of B. Without scale factors ``plain`` are allowed; what has some is of ``quantized``.
    """
    mixed = False
    if scales is None:
        checks.check_dtype("a_tensor", a, plain, why)
    elif "sfa_tensor" in scales or a not in ("float16", "bfloat16"):
        checks.check_dtype("a_tensor", a, quantized, why)
    elif any(name.startswith("sfb_tensor") for name in scales):
        mixed = True
    for name, b in others:
        if mixed:
            checks.check_dtype(name, b, quantized, " with sfb_tensor")
        elif b != a:
            raise ValueError(f"{name}: found dtype {b} while a_tensor has {a}, needs equal dtypes; cast one, under autocast by hand")
    return mixed


def check_modes(operands: Sequence[tuple[str, str | None]], scales: Mapping[str, Metadata], vec: int) -> None:
    """ValueError unless each operand with scale factors is MXFP8, MXFP4 or NVFP4. ``operands``: (name of its factors, dtype)."""
    for name, dtype in operands:
        if name not in scales:
            continue
        scale = scales[name].dtype
        if dtype in FP8 and (scale != E8M0 or vec != 32):
            raise ValueError(f"{name}: found {scale} and sf_vec_size {vec} with {dtype} operands, needs float8_e8m0fnu and 32")
        if dtype == FP4 and scale == E4M3 and vec == 32:
            raise ValueError("sf_vec_size: found 32 with float8_e4m3fn scales, needs 16; or float8_e8m0fnu scales")


def check_fp4_majors(operands: Sequence[tuple[str, str | None, str]]) -> None:
    """ValueError unless packed 4-bit operands, (name, dtype, major) each, are contiguous along K."""
    for name, dtype, major in operands:
        if dtype == FP4 and major != "k":
            raise ValueError(f"{name}: found {major}-major {FP4}, needs k-major")


def scale_output(rows: Any, columns: Any, batches: Any, vec: int, dtype: Any) -> Output:
    """Scale factors that a wrapper allocates, in the six-axis form, filled with the smallest factor: those that belong to no row or block are never written."""
    layout = ScaleLayout(rows, columns, batches, vec)
    return Output(layout.logical_shape, layout.logical_stride, torch_dtype(dtype), 2.0**-127 if dtype_name(dtype) == E8M0 else 0.0)


def block_size(value: Any) -> int:
    """``sf_vec_size`` as an integer that something can be divided by; what it may be is checked with the samples."""
    return max(checks.as_integer("sf_vec_size", value), 1)


def sfd_output(tensors: Mapping[str, Any], d: Output, options: Mapping[str, Any]) -> Output | None:
    """The scale factors that a wrapper allocates for an fp8 D; None where it allocates none."""
    given = next((tensors[name] for name in ("sfa_tensor", "sfb_tensor") if tensors.get(name) is not None), None)
    if dtype_name(d.dtype) not in FP8 or (given is None and tensors.get("norm_const_tensor") is None):
        return None
    rows, columns, batches = d.shape
    return scale_output(rows, columns, batches, block_size(options["sf_vec_size"]), E8M0 if given is None else given.dtype)


def amax_output(tensors: Mapping[str, Any], output: Output, dtypes: Sequence[str], shape: tuple[int, ...]) -> Output | None:
    """amax as the published wrappers allocate it: of 4-bit operands, where the ``output`` is of one of ``dtypes``. None elsewhere."""
    scaled = tensors.get("sfa_tensor") is not None and tensors.get("sfb_tensor") is not None
    if not scaled or dtype_name(tensors["a_tensor"].dtype) not in (FP4, "uint8") or dtype_name(output.dtype) not in dtypes:
        return None
    return Output(shape, (1,) * len(shape), torch_dtype("float32"), float("-inf"))
