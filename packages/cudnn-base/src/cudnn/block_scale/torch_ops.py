"""`cudnn.ops.block_scale_quantize`, its inverse, and the layout of scale factors, as torch operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from cudnn.block_scale.formats import FP4, FP8, Format, format_of, named_format
from cudnn.block_scale.layout import ScaleLayout, ceil_div
from cudnn.block_scale.torch_launch import dequantize_on_device, quantize_on_device
from cudnn.datatypes import dtype_name, torch_dtype
from cudnn.device import require_arch
from cudnn.reference.block_scale import dequantize_blocks, quantize_blocks, scales_from_blocked, scales_to_blocked
from cudnn.tuple_dict import TupleDict

__all__ = ["block_scale_dequantize", "block_scale_quantize", "from_blocked", "to_blocked"]

FLOATS = (torch.bfloat16, torch.float16, torch.float32)
AXES = {"row": (True, False), "col": (False, True), "both": (True, True)}
LAYOUTS = ("blocked", "plain")


def block_scale_quantize(
    x: Tensor, format: str = "mxfp8", *, axis: str = "row", scale_layout: str = "blocked", norm_const: Tensor | float | None = None
) -> TupleDict:
    """x in a block-scaled format. For a block of neighbours y (float32) and c = ``norm_const``, 1 where None, every step rounded to float32:

        p  = max|y| * (1 / limit) * c
        SF = p as a scale factor: up to the next power of two in e8m0, to nearest even in e4m3
        q  = y * min(c * (1 / SF), largest float32), to nearest even, saturating

    so that y is about q SF / c. The limit is 448 (mxfp8), 128 (mxfp8_e5m2) or 6 (4 bits). A NaN makes its block's scale factor NaN.

    One kernel reads x once, whatever is asked for; on CPU tensors the reference gives the same bits. Not differentiable. Under torch.compile this is the operator ``cudnn::block_scale_quantize``.

    Args:
        x: (..., M, K), bfloat16, float16 or float32; leading axes are batches, each a matrix with scale factors of its own (for a linear layer flatten first: ``x.reshape(-1, K)``).
            CUDA tensors need compute capability 9.0. K and M that are no multiples of 8 take a copy of x.
        format: "mxfp8" (e4m3 elements, e8m0 scale factors, blocks of 32), "mxfp8_e5m2", "mxfp4" (e2m1, e8m0, 32), "nvfp4" (e2m1, e4m3, 16) or "mxfp4_v16" (e2m1, e8m0, 16).
        axis: "row": blocks are neighbours in a row, along K. "col": in a column, along M; the results are those of x transposed. "both": both, in this order.
        scale_layout: "blocked", the layout that products take, physical form (L, R', K', 32, 4, 4) with L the number of batches and zeros as padding; or "plain".
        norm_const: c, a number or a float32 tensor with one element on x's device, > 0 and finite.

    Returns:
        A ``TupleDict`` of ``data_row``, ``scales_row``, ``data_col``, ``scales_col``, as far as asked for.

        - ``data_row`` (..., M, K), packed 4-bit elements (..., M, K / 2) in torch's float4_e2m1fn_x2; plain ``scales_row`` (..., M, ceil(K / vec)).
        - ``data_col`` (..., K, M): 8-bit elements lie in memory as x does (``data_col.mT`` is contiguous); 4-bit ones are packed along M, (..., K, M / 2) and contiguous. Plain ``scales_col``
          (..., K, ceil(M / vec)), ``scales_col.mT`` contiguous.

        In either direction blocks lie along the last axis, as a product wants an operand's: ``data.unsqueeze(-1)`` of a matrix is one.

    Raises:
        TypeError: x is no floating torch tensor of these dtypes, or norm_const neither a number nor a float32 tensor.
        ValueError: an unknown format, axis or layout; fewer than two axes; 4-bit elements of an odd extent along the blocks; norm_const that is not one number > 0, or on another device.
        RuntimeError: CUDA tensors on a device of another compute capability than 9.0.
    """
    fmt = named_format(format)
    _check_float("block_scale_quantize", x)
    if axis not in AXES:
        raise ValueError(f"block_scale_quantize: axis is {axis!r}, needs 'row', 'col' or 'both'")
    _check_layout("block_scale_quantize", scale_layout)
    norm = _norm("block_scale_quantize", norm_const, x.device)
    if x.dim() < 2:
        raise ValueError(f"block_scale_quantize: x has shape {tuple(x.shape)}, needs (..., M, K); a vector becomes a row with x.unsqueeze(0)")
    rows, columns = AXES[axis]
    for wanted, extent, name in ((rows, x.shape[-1], "columns"), (columns, x.shape[-2], "rows")):
        if wanted and fmt.element == FP4 and extent % 2:
            raise ValueError(f"block_scale_quantize: x has {extent} {name}, needs an even number with {fmt.name}: two elements share a byte; pad with zeros")
    found = quantize_op(x.detach(), norm, fmt.name, rows, columns, scale_layout == "blocked")
    found = [t.view(torch_dtype(fmt.scale if i % 2 else fmt.element)) for i, t in enumerate(found)]
    names = [f"{what}_{direction}" for direction, wanted in (("row", rows), ("col", columns)) if wanted for what in ("data", "scales")]
    return TupleDict(zip(names, found, strict=True))


def block_scale_dequantize(
    data: Tensor,
    scales: Tensor,
    format: str | None = None,
    *,
    scale_layout: str = "blocked",
    norm_const: Tensor | float | None = None,
    dtype: torch.dtype | str = torch.bfloat16,
) -> Tensor:
    """q (SF / c), each step rounded to float32 and the result once to ``dtype``: the inverse of `block_scale_quantize`. Not differentiable.

    Without ``norm_const`` the products are exact in bfloat16 wherever they lie inside its range: at most 4 significant bits times a power of two, or 2 times 4.

    Args:
        data: (..., M, K), blocks along the last axis: e4m3, e5m2, or packed 4-bit elements (..., M, K / 2) in float4_e2m1fn_x2; or uint8 for what ``format`` says. Of the last two axes one is contiguous (the
            last for packed elements); other tensors are copied. CUDA tensors need compute capability 9.0.
        scales: scale factors, float8_e8m0fnu or float8_e4m3fn, or uint8 for what ``format`` says; "blocked" in either form, or "plain" (..., M, ceil(K / vec)). Padding has no effect.
        format: as in `block_scale_quantize`; None for what the dtypes say, where 4-bit elements with e8m0 are "mxfp4".
        scale_layout: "blocked" or "plain".
        norm_const: c, as in `block_scale_quantize`.
        dtype: bfloat16, float16 or float32.

    Returns:
        (..., M, K) in ``dtype``; in memory in the order of ``data``: contiguous, or contiguous when the last two axes are swapped.

    Raises:
        TypeError: not torch tensors, or a dtype that is not listed.
        ValueError: dtypes that make no format, or another than ``format``; shapes, layout or devices that do not fit.
        RuntimeError: CUDA tensors on a device of another compute capability than 9.0.
    """
    for name, t in (("data", data), ("scales", scales)):
        if not isinstance(t, Tensor):
            raise TypeError(f"block_scale_dequantize: {name} is a {type(t).__name__}, needs a torch tensor")
    fmt = _format_of_tensors(data, scales, format)
    target = dtype_name(dtype)
    if target not in ("bfloat16", "float16", "float32"):
        raise TypeError(f"block_scale_dequantize: dtype is {dtype}, needs torch.bfloat16, torch.float16 or torch.float32")
    _check_layout("block_scale_dequantize", scale_layout)
    norm = _norm("block_scale_dequantize", norm_const, data.device)
    if scales.device != data.device:
        raise ValueError(f"block_scale_dequantize: scales are on {scales.device} while data is on {data.device}, needs one device; move scales")
    if data.dim() < 2:
        raise ValueError(f"block_scale_dequantize: data has shape {tuple(data.shape)}, needs (..., M, K)")
    *leading, rows, stored = data.shape
    layout = ScaleLayout(rows, stored * fmt.packed, _product(leading), fmt.vec)
    shape = tuple(scales.shape)
    if scale_layout == "blocked":
        if shape not in (layout.physical_shape, layout.logical_shape):
            raise ValueError(
                f"block_scale_dequantize: scales have shape {shape}, needs {layout.physical_shape} or {layout.logical_shape} for data of {rows} x {layout.columns} in {layout.batches} "
                f"batches and blocks of {fmt.vec}; or scale_layout='plain'"
            )
    elif shape != (*leading, rows, layout.blocks):
        raise ValueError(
            f"block_scale_dequantize: scales have shape {shape}, needs {(*leading, rows, layout.blocks)}, one for {fmt.vec} elements; or scale_layout='blocked'"
        )
    return dequantize_op(data.detach().view(torch.uint8), scales.detach().view(torch.uint8), norm, fmt.name, scale_layout == "blocked", target)


def to_blocked(scales: Tensor) -> Tensor:
    """Plain scale factors (..., rows, blocks), of one byte each, in the blocked layout: physical form (L, R', K', 32, 4, 4), L the product of the leading extents. Padding is filled with zeros.

    Scale factor (row, block) of batch l is entry ((l R' + row // 128) K' + block // 4) 512 + (row % 32) 16 + (row % 128) // 32 * 4 + block % 4, with R' = ceil(rows / 128) and K' = ceil(blocks / 4). Any
    device. ValueError: fewer than two axes; TypeError: no torch tensor of a one-byte dtype.
    """
    _check_bytes("to_blocked", "scales", scales)
    if scales.dim() < 2:
        raise ValueError(f"to_blocked: scales have shape {tuple(scales.shape)}, needs (..., rows, blocks)")
    return to_blocked_op(scales.detach().view(torch.uint8)).view(scales.dtype)


def from_blocked(blocked: Tensor, shape: Sequence[int]) -> Tensor:
    """The inverse of `to_blocked`: blocked scale factors, in the physical form or the logical one (32, 4, R', 4, K', L), as plain ones of ``shape`` (..., rows, blocks).

    ValueError: a form that does not belong to the shape; TypeError: no torch tensor of a one-byte dtype.
    """
    _check_bytes("from_blocked", "blocked", blocked)
    shape = tuple(shape)
    if len(shape) < 2:
        raise ValueError(f"from_blocked: shape is {shape}, needs (..., rows, blocks)")
    layout = ScaleLayout(shape[-2], shape[-1], _product(shape[:-2]), 1)
    if tuple(blocked.shape) not in (layout.physical_shape, layout.logical_shape):
        raise ValueError(f"from_blocked: blocked has shape {tuple(blocked.shape)}, needs {layout.physical_shape} or {layout.logical_shape} for {shape}")
    return from_blocked_op(blocked.detach().view(torch.uint8), list(shape)).view(blocked.dtype)


# Operators take and give bytes: torch has little arithmetic for the small dtypes, and checks of operators want some.
# torch.library reads these annotations, so they are spelled as it knows them.
@torch.library.custom_op("cudnn::block_scale_quantize", mutates_args=())
def quantize_op(x: Tensor, norm: Optional[Tensor], format: str, rows: bool, columns: bool, blocked: bool) -> list[Tensor]:  # noqa: UP045
    """Elements and scale factors along rows, then along columns, of x (..., M, K), in bytes."""
    fmt = named_format(format)
    if not x.numel():
        return _empty_results(x, fmt, rows, columns, blocked)
    leading = x.shape[:-2]
    matrices = x.reshape(-1, *x.shape[-2:])
    if x.is_cuda:
        require_arch("block_scale_quantize", x.get_device())
        directions = quantize_on_device(matrices, norm, fmt, rows, columns, blocked)
    else:
        directions = [quantize_blocks(y, fmt, norm) for y, wanted in ((matrices, rows), (matrices.mT, columns)) if wanted]
        directions = [(data, scales_to_blocked(scales) if blocked else scales) for data, scales in directions]
    found: list[Tensor] = []
    for turned, (data, scales) in zip([turned for turned, wanted in ((False, rows), (True, columns)) if wanted], directions, strict=True):
        lines, stored, _ = _extents(x, fmt, turned)
        found.append(_ordered(data.view(torch.uint8).reshape(*leading, lines, stored), turned and fmt.packed == 1))
        scales = scales.view(torch.uint8)
        found.append(scales if blocked else _ordered(scales.reshape(*leading, lines, scales.shape[-1]), turned))
    return found


@quantize_op.register_fake
def _(x, norm, format, rows, columns, blocked):
    return _empty_results(x, named_format(format), rows, columns, blocked)


@torch.library.custom_op("cudnn::block_scale_dequantize", mutates_args=())
def dequantize_op(data: Tensor, scales: Tensor, norm: Optional[Tensor], format: str, blocked: bool, dtype: str) -> Tensor:  # noqa: UP045
    """q (SF / c) of data (..., M, K) in bytes, in memory in the order of data."""
    fmt = named_format(format)
    turned = _is_turned(data, fmt)
    *leading, rows, stored = data.shape
    columns = stored * fmt.packed
    if not data.numel():
        return _empty(data, (*leading, rows, columns), torch_dtype(dtype), turned)
    if data.is_cuda:
        require_arch("block_scale_dequantize", data.get_device())
        wide = dequantize_on_device(data.reshape(-1, rows, stored), scales, norm, fmt, blocked, dtype, turned)
    else:
        plain = scales_from_blocked(scales, rows, columns, fmt.vec) if blocked else scales
        elements = data if fmt.element == FP4 else data.contiguous().view(torch_dtype(fmt.element))
        factors = plain.reshape(*leading, rows, ceil_div(columns, fmt.vec)).view(torch_dtype(fmt.scale))
        wide = dequantize_blocks(elements, factors, fmt.vec, norm, torch_dtype(dtype))
    return _ordered(wide.reshape(*leading, rows, columns), turned)


@dequantize_op.register_fake
def _(data, scales, norm, format, blocked, dtype):
    fmt = named_format(format)
    *leading, rows, stored = data.shape
    return _empty(data, (*leading, rows, stored * fmt.packed), torch_dtype(dtype), _is_turned(data, fmt))


@torch.library.custom_op("cudnn::scales_to_blocked", mutates_args=())
def to_blocked_op(scales: Tensor) -> Tensor:
    return scales_to_blocked(scales)


@to_blocked_op.register_fake
def _(scales):
    *leading, rows, blocks = scales.shape
    return scales.new_empty(ScaleLayout(rows, blocks, _product(leading), 1).physical_shape)


@torch.library.custom_op("cudnn::scales_from_blocked", mutates_args=())
def from_blocked_op(blocked: Tensor, shape: Sequence[int]) -> Tensor:
    if not blocked.numel():
        return blocked.new_empty(shape)
    return scales_from_blocked(blocked, shape[-2], shape[-1], 1).reshape(shape)


@from_blocked_op.register_fake
def _(blocked, shape):
    return blocked.new_empty(shape)


def _extents(x: Tensor, fmt: Format, turned: bool) -> tuple[int, int, int]:
    """(lines, stored elements of a line, elements of a line) of the result along rows, or ``turned`` along columns."""
    lines, extent = (x.shape[-1], x.shape[-2]) if turned else (x.shape[-2], x.shape[-1])
    return lines, extent // fmt.packed, extent


def _ordered(t: Tensor, turned: bool) -> Tensor:
    """``t`` contiguous, or where ``turned`` contiguous with its last two axes swapped. Strides of unit axes are what torch gives a new tensor: those are what a traced graph expects."""
    found = (t.mT if turned else t).contiguous()
    steps = [1]
    for extent in reversed(found.shape[1:]):
        steps.insert(0, steps[0] * max(extent, 1))
    found = found.as_strided(found.shape, steps)
    return found.mT if turned else found


def _empty_results(x: Tensor, fmt: Format, rows: bool, columns: bool, blocked: bool) -> list[Tensor]:
    """What ``quantize_op`` returns, not filled."""
    found, leading = [], x.shape[:-2]
    for turned in [turned for turned, wanted in ((False, rows), (True, columns)) if wanted]:
        lines, stored, extent = _extents(x, fmt, turned)
        found.append(_empty(x, (*leading, lines, stored), torch.uint8, turned and fmt.packed == 1))
        layout = ScaleLayout(lines, extent, _product(leading), fmt.vec)
        shape = layout.physical_shape if blocked else (*leading, lines, layout.blocks)
        found.append(_empty(x, shape, torch.uint8, turned and not blocked))
    return found


def _empty(like: Tensor, shape: Sequence[Any], dtype: torch.dtype, turned: bool) -> Tensor:
    if not turned:
        return like.new_empty(shape, dtype=dtype)
    *leading, rows, columns = shape
    return like.new_empty((*leading, columns, rows), dtype=dtype).transpose(-1, -2)


def _is_turned(data: Tensor, fmt: Format) -> bool:
    """Whether a matrix is contiguous along its second last axis and not along its last."""
    return fmt.packed == 1 and data.stride(-1) != 1 and data.stride(-2) == 1


def _product(extents: Sequence[Any]) -> Any:
    found: Any = 1
    for extent in extents:
        found = found * extent
    return found


def _check_float(op: str, x: Any) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{op}: x is a {type(x).__name__}, needs a torch tensor")
    if x.dtype not in FLOATS:
        raise TypeError(f"{op}: x is {x.dtype}, needs torch.bfloat16, torch.float16 or torch.float32; cast it")


def _check_layout(op: str, value: Any) -> None:
    if value not in LAYOUTS:
        raise ValueError(f"{op}: scale_layout is {value!r}, needs 'blocked' or 'plain'")


def _check_bytes(op: str, name: str, t: Any) -> None:
    if not isinstance(t, Tensor):
        raise TypeError(f"{op}: {name} is a {type(t).__name__}, needs a torch tensor")
    if t.dtype.itemsize != 1:
        raise TypeError(f"{op}: {name} is {t.dtype}, needs a dtype of one byte, such as torch.float8_e8m0fnu, torch.float8_e4m3fn or torch.uint8")


def _norm(op: str, value: Any, device: torch.device) -> Tensor | None:
    """c as a float32 tensor (1,)."""
    if value is None:
        return None
    if isinstance(value, Tensor):
        if value.dtype != torch.float32:
            raise TypeError(f"{op}: norm_const is {value.dtype}, needs torch.float32")
        if value.numel() != 1:
            raise ValueError(f"{op}: norm_const has shape {tuple(value.shape)}, needs one element")
        if value.device != device:
            raise ValueError(f"{op}: norm_const is on {value.device} while the other tensors are on {device}, needs one device; move norm_const")
        return value.reshape(1)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{op}: norm_const is a {type(value).__name__}, needs a number or a float32 tensor with one element")
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{op}: norm_const is {value}, needs a finite number > 0")
    return torch.full((1,), float(value), dtype=torch.float32, device=device)


def _format_of_tensors(data: Tensor, scales: Tensor, format: str | None) -> Format:
    element, scale = dtype_name(data.dtype), dtype_name(scales.dtype)
    if format is None:
        vec = 32 if element in FP8 or scale != "float8_e4m3fn" else 16
        found = format_of(element, scale, vec)
        if found is None:
            raise ValueError(
                f"block_scale_dequantize: data is {data.dtype} and scales are {scales.dtype}, which is no format; needs e4m3 or e5m2 with float8_e8m0fnu, or float4_e2m1fn_x2 with "
                "float8_e8m0fnu or float8_e4m3fn; or bytes (torch.uint8) and format="
            )
        return found
    found = named_format(format)
    for name, dtype, wanted in (("data", element, found.element), ("scales", scale, found.scale)):
        if dtype not in (wanted, "uint8"):
            raise ValueError(f"block_scale_dequantize: {name} is {dtype}, needs {wanted} or uint8 with format={found.name!r}")
    return found
