"""Scale factors of block-scaled operands, as far as support checks need them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cudnn import checks
from cudnn.block_scale import FP4, FP8, ScaleLayout
from cudnn.block_scale import checks as scale_checks
from cudnn.block_scale.checks import unpacked
from cudnn.datatypes import dtype_name
from cudnn.gemm_operation import sample_metadata
from cudnn.tensor_desc import TensorDesc
from cudnn.tensors import Metadata

__all__ = [
    "FP4",
    "FP8",
    "check_one_value",
    "check_scale_dtypes",
    "check_scale_shape",
    "describe_sfd",
    "not_implemented",
    "read_scales",
    "require_scales",
    "scale_shapes",
    "unpacked",
]


def read_scales(op: str, samples: dict[str, Any]) -> dict[str, Metadata] | None:
    """Metadata of the given samples of the block-scaled mode; None where none is given."""
    given = {name: sample_metadata(op, name, t) for name, t in samples.items() if t is not None}
    return given or None


def scale_shapes(rows: int, columns: int, batches: int, vec: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The two forms of a blocked scale factor tensor: the six-axis atom view, and the C-contiguous physical one."""
    layout = ScaleLayout(rows, columns, batches, vec)
    return layout.logical_shape, layout.physical_shape


def check_scale_shape(name: str, scale: Metadata, rows: int, columns: int, batches: int, vec: int) -> None:
    """ValueError unless the scale factors have one of the two forms for a (rows, columns, batches) matrix."""
    scale_checks.check_scale_shape(name, scale, ScaleLayout(rows, columns, batches, vec))


def check_one_value(name: str, meta: Metadata) -> None:
    """ValueError unless the tensor has the shape (1,), unit axes behind it allowed."""
    if not meta.shape or any(extent != 1 for extent in meta.shape):
        raise ValueError(f"{name}: found shape {meta.shape}, needs (1,)")


def check_scale_dtypes(scales: dict[str, Metadata], names: Sequence[str], allowed: Sequence[str]) -> None:
    """ValueError unless the scale factors called ``names``, as far as given, have one allowed dtype."""
    first, *others = names
    checks.check_dtype(first, scales[first].dtype, allowed)
    for name in others:
        if name in scales and scales[name].dtype != scales[first].dtype:
            raise ValueError(f"{name}: found dtype {scales[name].dtype} while {first} has {scales[first].dtype}, needs equal dtypes")


def require_scales(scales: dict[str, Metadata], names: Sequence[str]) -> None:
    """ValueError where a tensor that the block-scaled mode needs is missing."""
    for name in names:
        if name not in scales:
            raise ValueError(f"{name}: found None while another argument of the block-scaled mode is given, needs a tensor; or leave all of them at None")


def describe_sfd(tensors: Mapping[str, Any], d: Any, options: Mapping[str, Any]) -> TensorDesc | None:
    """What the published wrappers allocate for the scale factors of an fp8 D; None where they allocate none."""
    sfa = tensors["sfa_tensor"]
    if sfa is None or tensors["sfb_tensor"] is None or dtype_name(d.dtype) not in FP8:
        return None
    m, n, batches = d.shape
    shape = scale_shapes(m, n, batches, max(checks.as_integer("sf_vec_size", options["sf_vec_size"]), 1))[1]
    return TensorDesc(sfa.dtype, shape, TensorDesc._compute_contiguous_stride(shape), tuple(range(5, -1, -1)), sfa.device, name="sfd_tensor")


def not_implemented(op: str, scales: dict[str, Metadata]) -> NotImplementedError:
    return NotImplementedError(
        f"{op}: block-scaled operands ({', '.join(scales)}) are not implemented yet; dequantise A and B to bfloat16 and leave the scale arguments at None"
    )
