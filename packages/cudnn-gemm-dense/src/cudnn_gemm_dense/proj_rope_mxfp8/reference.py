"""Projection + RoPE + MXFP8 in plain torch: what the kernel computes, and the published reference function, which differs from it in places. Any strides, any device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudnn.reference import cast, matmul
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

    z = rotated(_product(x, w, w_out_in), cos, sin)

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

    z = rotated(_product(x, w, w_out_in).to(torch.bfloat16).float(), cos, sin)
    return quantized(z)


def quantized(z: torch.Tensor) -> Quantized:
    """z (T, H, 192) in float32, quantised along features and along tokens as the kernel does."""
    import torch

    inverse_limit = torch.tensor(1.0 / 448.0, dtype=torch.float32, device=z.device)

    def quantize(blocks: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
        bits = (blocks.abs().amax(axis, keepdim=True) * inverse_limit).view(torch.int32) & 0x7FFFFFFF
        # The next power of two: 0 up to 2^-127, 254 where there is none, 255 for NaN.
        byte = torch.where(bits > 0x7F800000, 255, torch.where(bits <= 0x00400000, 0, ((bits - 1) >> 23) + 1).clamp(max=254))
        return cast(blocks * power_of_two(torch.where(byte == 255, 255, 254 - byte)), torch.float8_e4m3fn), byte.squeeze(axis).to(torch.uint8)

    return _both_ways(z, quantize)


def widened(code: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """MXFP8 (rows, K) with scales (rows, K/32) in bfloat16, exact within its range; a scale of 255 gives NaN."""
    import torch

    return (code.float() * power_of_two(scale).repeat_interleave(BLOCK, -1)).to(torch.bfloat16)


def power_of_two(byte: torch.Tensor) -> torch.Tensor:
    """2^(byte - 127) in float32, which holds byte 0 as a subnormal number; NaN for 255."""
    import torch

    byte = byte.int()
    return torch.where(byte == 255, 0x7FC00000, torch.where(byte == 0, 0x00400000, byte << 23)).int().view(torch.float32)


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


def powers(byte: torch.Tensor) -> torch.Tensor:
    """2^(byte - 127) in float64; NaN for 255."""
    import torch

    power = ((byte.long() + (1023 - 127)) << 52).view(torch.float64)
    return torch.where(byte == 255, float("nan"), power)


def dequantized(
    out_fp8_row: torch.Tensor, out_scales_row: torch.Tensor, out_fp8_col: torch.Tensor, out_scales_col: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the quantised rows and columns stand for, each (T, H, 192) in float64."""
    row = out_fp8_row.double() * powers(out_scales_row).repeat_interleave(BLOCK, -1)
    return row, out_fp8_col.double() * powers(out_scales_col).repeat_interleave(BLOCK, 0)


def _product(x: torch.Tensor, w: torch.Tensor, w_out_in: bool) -> torch.Tensor:
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
