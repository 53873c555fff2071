"""Quantisation to block-scaled formats, its inverse, and the layout of scale factors, in plain torch. Any device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn.block_scale import E8M0, FP4, Format, ScaleLayout
from cudnn.block_scale.checks import scale_form, wanted_text
from cudnn.block_scale.layout import LOGICAL_ORDER, ceil_div
from cudnn.datatypes import dtype_name, torch_dtype
from cudnn.fp4 import decode_e2m1, encode_e2m1, pack_fp4, unpack_fp4
from cudnn.reference.gemm import cast

if TYPE_CHECKING:
    import torch


def cast_scale(p: torch.Tensor, dtype: Any) -> torch.Tensor:
    """``p`` >= 0 (float32) as scale factors of ``dtype``: float8_e8m0fnu is rounded up to the next power of two and ends at 2^127 (bytes 0 to 254), float8_e4m3fn is rounded to nearest even and ends at 448.
    NaN stays NaN."""
    import torch

    if dtype_name(dtype) != E8M0:
        # A NaN in p may have either sign, a scale factor has none.
        return (cast(p, torch_dtype(dtype)).view(torch.uint8) & 0x7F).view(torch_dtype(dtype))
    mantissa, exponent = torch.frexp(p)  # p = mantissa * 2^exponent, the mantissa in [1/2, 1)
    byte = (torch.where(mantissa == 0.5, exponent - 1, exponent) + 127).clamp(0, 254)
    byte = torch.where(p == 0, 0, torch.where(torch.isinf(p), 254, torch.where(torch.isnan(p), 255, byte)))
    return byte.to(torch.uint8).view(torch.float8_e8m0fnu)


def quantize_blocks(x: torch.Tensor, fmt: Format, norm_const: torch.Tensor | float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """x in a block-scaled format, blocks along the last axis. With c = ``norm_const`` (1 where None), y = x in float32, every step rounded to float32:

        p  = max|y| over the block * (1 / limit) * c
        SF = p in the scale's dtype (``cast_scale``)
        q  = y * min(c * (1 / SF), the largest float32), rounded to nearest even in the element's dtype, saturating

    so that y is about q SF / c. A block with a NaN gets a NaN scale factor, and NaN elements where the dtype has one (4-bit elements are 6 with the sign of y).

    Args:
        x: (..., columns), a floating dtype. A last block that is not full counts what there is.
        fmt: the format.
        norm_const: a number or a float32 tensor with one element, > 0.

    Returns:
        Elements: (..., columns) in fp8, or (..., columns / 2) in torch's packed float4_e2m1fn_x2. Scale factors: (..., ceil(columns / vec)).

    Raises:
        ValueError: an odd number of columns with 4-bit elements, two of which share a byte.
    """
    import torch

    columns = x.shape[-1]
    if fmt.element == FP4 and columns % 2:
        raise ValueError(f"x: found {columns} columns, needs an even number with {fmt.name}: two elements share a byte")
    y = x.to(torch.float32)
    one = torch.ones((), dtype=torch.float32, device=x.device)
    c = one if norm_const is None else torch.as_tensor(norm_const, dtype=torch.float32, device=x.device).reshape(())
    blocks = ceil_div(columns, fmt.vec)
    padded = torch.nn.functional.pad(y, (0, blocks * fmt.vec - columns)).unflatten(-1, (blocks, fmt.vec))
    largest = padded.abs().amax(-1) if padded.numel() else padded.new_zeros(padded.shape[:-1])
    scales = cast_scale(largest * torch.tensor(1.0 / fmt.limit, dtype=torch.float32, device=x.device) * c, fmt.scale)
    factor = (c * (one / scales.to(torch.float32))).clamp(max=torch.finfo(torch.float32).max)
    scaled = (padded * factor.unsqueeze(-1)).flatten(-2)[..., :columns]
    if fmt.element != FP4:
        return cast(scaled, torch_dtype(fmt.element)), scales
    codes = encode_e2m1(scaled.abs()) | (torch.signbit(y).to(torch.uint8) << 3)
    return pack_fp4(codes).view(torch.float4_e2m1fn_x2), scales


def dequantize_blocks(
    data: torch.Tensor, scales: torch.Tensor, vec: int, norm_const: torch.Tensor | float | None = None, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """q (SF / c), each step in float32, then rounded to ``dtype`` (float32 where None). Blocks of ``vec`` elements along the last axis; c = ``norm_const``, 1 where None.

    Without c, q SF is exact in float32 unless it is beyond float32's range.

    Args:
        data: (..., columns) in fp8, or packed 4-bit floats (float4_e2m1fn_x2, or bytes in uint8), (..., columns / 2).
        scales: (..., ceil(columns / vec)), float8_e8m0fnu or float8_e4m3fn; int8 and uint8 stand for e8m0.
    """
    import torch

    values = element_values(data)
    factors = scale_values(scales)
    if norm_const is not None:
        factors = factors / torch.as_tensor(norm_const, dtype=torch.float32, device=data.device).reshape(())
    found = values * factors.repeat_interleave(vec, -1)[..., : values.shape[-1]]
    return found if dtype is None else found.to(dtype)


def element_values(data: torch.Tensor, axis: int = -1) -> torch.Tensor:
    """Elements in float32. Packed 4-bit ones, torch's or in bytes (uint8), are twice as many along ``axis``."""
    if dtype_name(data.dtype) in (FP4, "uint8"):
        return decode_e2m1(unpack_fp4(data, axis))
    return data.float()


def scale_values(scales: torch.Tensor) -> torch.Tensor:
    """Scale factors in float32; bytes (int8, uint8) stand for float8_e8m0fnu."""
    import torch

    return (scales.view(torch.float8_e8m0fnu) if dtype_name(scales.dtype) in ("int8", "uint8") else scales).float()


def scales_to_blocked(scales: torch.Tensor) -> torch.Tensor:
    """Plain scale factors (..., rows, blocks) in the blocked layout, physical form (L, R', K', 32, 4, 4) with L the product of the leading extents; padding is filled with zero bytes."""
    import torch

    rows, blocks = scales.shape[-2:]
    layout = ScaleLayout(rows, blocks, scales.shape[:-2].numel(), 1)
    plain = scales.contiguous().view(torch.uint8).reshape(layout.batches, rows, blocks)
    padded = torch.nn.functional.pad(plain, (0, layout.block_atoms * 4 - blocks, 0, layout.row_atoms * 128 - rows))
    atoms = padded.view(layout.batches, layout.row_atoms, 4, 32, layout.block_atoms, 4)
    return atoms.permute(0, 1, 4, 3, 2, 5).contiguous().view(scales.dtype)


def scales_from_blocked(blocked: torch.Tensor, rows: int, columns: int, vec: int) -> torch.Tensor:
    """Blocked scale factors in either form as plain ones, (L, rows, ceil(columns / vec)), of a (rows, columns, L) matrix. ValueError where the form is that of another matrix."""
    import torch

    form = scale_form(tuple(blocked.shape))
    layout = ScaleLayout(rows, columns, form.batches if form else 1, vec)
    if form is None or (form.row_atoms, form.block_atoms) != (layout.row_atoms, layout.block_atoms):
        raise ValueError(f"scale factors: found shape {tuple(blocked.shape)}, {wanted_text(layout)}")
    atoms = blocked.view(torch.uint8)
    if form.logical:
        atoms = atoms.permute([LOGICAL_ORDER.index(axis) for axis in range(6)])
    plain = atoms.permute(0, 1, 4, 3, 2, 5).reshape(layout.batches, layout.row_atoms * 128, layout.block_atoms * 4)
    return plain[:, :rows, : layout.blocks].contiguous().view(blocked.dtype)


def dequantize_operand(operand: torch.Tensor, scales: torch.Tensor, vec: int) -> torch.Tensor:
    """A block-scaled operand of a product, operand[r, k, l] * SF(r, k // vec, l), in float32.

    Args:
        operand: (rows, K, L) in fp8, any strides; or 4-bit floats packed along K (float4_e2m1fn_x2 or uint8), (rows, K / 2, L).
        scales: blocked, either form, for (rows, K, L). What lies beyond the rows and blocks there are is not looked at.

    Returns:
        (rows, K, L) in float32, exact unless beyond its range.
    """
    values = element_values(operand, 1)
    rows, columns, _ = values.shape
    plain = scale_values(scales_from_blocked(scales, rows, columns, vec))
    wide = plain.repeat_interleave(vec, -1)[..., :columns]
    return values * wide.permute(1, 2, 0)
