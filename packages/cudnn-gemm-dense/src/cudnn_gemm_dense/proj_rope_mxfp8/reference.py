"""Projection + RoPE + MXFP8 in plain torch: what the kernel computes, and the published reference function, which differs from it in places. Any strides, any device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudnn.block_scale import MXFP8
from cudnn.datatypes import torch_dtype
from cudnn.reference import cast, matmul
from cudnn.reference.block_scale import dequantize_blocks, quantize_blocks, scale_values
from cudnn_gemm_dense.proj_rope_mxfp8.lanes import BLOCK, BLOCKS, HEAD, NOPE, ROPE

if TYPE_CHECKING:
    import torch

Quantized = tuple["torch.Tensor", "torch.Tensor", "torch.Tensor", "torch.Tensor"]


def gemm_proj_rope_mxfp8_reference(x: torch.Tensor, w: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, w_out_in: bool = False) -> Quantized:
    """The published reference function. It differs from the operation: q is not rounded to bfloat16, a block of zeros has the scale 2^-108 (byte 19) instead of 2^-127 (byte 0).

    Args:
        x: (T, K) with T a multiple of 32, of any floating dtype.
        w: (192 H, K) where ``w_out_in``, else (K, 192 H).
        cos, sin: (T, 64).
        w_out_in: whether output features come first in w.

    Returns:
        (out_fp8_row (T, H, 192), out_scales_row (T, H, 6), out_fp8_col (T, H, 192), out_scales_col (T/32, H, 192)): values in float8_e4m3fn, scales as bytes 127 + e for 2^e.

    Raises:
        ValueError: shapes do not fit each other.
    """
    import torch

    z = rotated(product(x, w, w_out_in), cos, sin)

    def exponents(largest: torch.Tensor) -> torch.Tensor:
        mantissa, exponent = torch.frexp(largest.clamp(min=1e-30) / 448.0)
        # ceil(log2(m 2^e)) with m in [1/2, 1).
        return (exponent - (mantissa == 0.5).int()).clamp(-127, 127)

    def quantize(blocks: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
        exponent = exponents(blocks.abs().amax(axis, keepdim=True))
        data = cast(torch.ldexp(blocks, -exponent), torch.float8_e4m3fn)
        return data, (exponent.squeeze(axis) + 127).to(torch.uint8)

    return _both_ways(z, quantize)


def proj_rope_mxfp8(x: torch.Tensor, w: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, w_out_in: bool = False) -> Quantized:
    """What the kernel computes; arguments and results as those of ``gemm_proj_rope_mxfp8_reference``. A NaN makes its blocks NaN."""
    import torch

    z = rotated(product(x, w, w_out_in).to(torch.bfloat16).float(), cos, sin)
    return quantized(z)


def quantized(z: torch.Tensor) -> Quantized:
    """z (T, H, 192) in float32, quantised along features and along tokens as the kernel does."""

    def quantize(blocks: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
        values, scales = quantize_blocks(blocks.movedim(axis, -1), MXFP8)
        return values.movedim(-1, axis), scales.squeeze(-1).view(torch_dtype("uint8"))

    return _both_ways(z, quantize)


def widened(code: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """MXFP8 (rows, K) with scales (rows, K/32) in bfloat16, exact within its range; a scale of 255 gives NaN."""
    return dequantize_blocks(code, scale, BLOCK, dtype=torch_dtype("bfloat16"))


def rotated(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """q (T, H, 192) with the last 64 features of each head rotated: interleaved pairs in, halves out. In q's dtype."""
    import torch

    t, half = q.shape[0], ROPE // 2
    for name, table in (("cos", cos), ("sin", sin)):
        if tuple(table.shape) != (t, ROPE):
            raise ValueError(f"{name}: found shape {tuple(table.shape)}, needs (T, {ROPE}) = {(t, ROPE)}, as x has it")
    cos, sin = (table.to(q.dtype).unsqueeze(1) for table in (cos, sin))
    p, r = q[..., NOPE::2], q[..., NOPE + 1 :: 2]
    return torch.cat((q[..., :NOPE], p * cos[..., :half] - r * sin[..., :half], p * sin[..., half:] + r * cos[..., half:]), -1)


def dequantized(
    out_fp8_row: torch.Tensor, out_scales_row: torch.Tensor, out_fp8_col: torch.Tensor, out_scales_col: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the quantised rows and columns stand for, each (T, H, 192) in float64."""
    import torch

    row = dequantize_blocks(out_fp8_row, out_scales_row, BLOCK, dtype=torch.float64)
    return row, out_fp8_col.double() * scale_values(out_scales_col).double().repeat_interleave(BLOCK, 0)


def product(x: torch.Tensor, w: torch.Tensor, w_out_in: bool) -> torch.Tensor:
    """q (T, H, 192) in float32."""
    if x.dim() != 2 or w.dim() != 2:
        raise ValueError(f"x and w: found shapes {tuple(x.shape)} and {tuple(w.shape)}, needs two axes each")
    rows = w if w_out_in else w.t()
    if x.shape[0] % BLOCK:
        raise ValueError(f"x: found T = {x.shape[0]} tokens, needs a multiple of {BLOCK}")
    if rows.shape[0] % HEAD or rows.shape[1] != x.shape[1]:
        wanted = "(192 H, K)" if w_out_in else "(K, 192 H)"
        raise ValueError(f"w: found shape {tuple(w.shape)}, needs {wanted} with K = {x.shape[1]} as x has it")
    return matmul(x.unsqueeze(-1), rows.unsqueeze(-1)).reshape(x.shape[0], rows.shape[0] // HEAD, HEAD)


def _both_ways(z: torch.Tensor, quantize) -> Quantized:
    t, heads, _ = z.shape
    rows, row_scales = quantize(z.reshape(t, heads, BLOCKS, BLOCK), 3)
    columns, column_scales = quantize(z.reshape(t // BLOCK, BLOCK, heads, HEAD), 1)
    return rows.reshape(z.shape), row_scales, columns.reshape(z.shape), column_scales
