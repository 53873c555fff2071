"""Projection + RoPE + MXFP8 for the conformance tests of `cudnn.testing`. Needs pytest and torch.

Those tests speak of M, N, K and L: T is M L rounded up to whole 128, and N is 192 H.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cudnn.reference.block_scale import scale_values
from cudnn.tuple_dict import TupleDict
from cudnn.workspace import ws_align
from cudnn_gemm_dense.proj_rope_mxfp8.api import GemmProjRopeMxfp8Bf16In, GemmProjRopeMxfp8Mxfp8In, gemm_proj_rope_mxfp8_wrapper
from cudnn_gemm_dense.proj_rope_mxfp8.lanes import BLOCK, BLOCKS, HEAD, NOPE, ROPE
from cudnn_gemm_dense.proj_rope_mxfp8.reference import dequantized, proj_rope_mxfp8, rotated, widened
from cudnn_gemm_dense.proj_rope_mxfp8.shapes import OUTPUTS, TOKENS


class ProjRopeHooks:
    """From bfloat16 operands; the attributes say which way round w is."""

    device = "cpu"
    n_step, k_step = HEAD, 8
    w_out_in = True
    backend = "auto"
    config: Mapping[str, Any] | None = None
    unaligned: tuple[str, ...] = ("out_scales_row", "out_scales_col")
    initial: Mapping[str, float] = {"out_scales_row": 255, "out_scales_col": 255}  # a scale that only NaN gives

    @property
    def options(self) -> dict[str, Any]:
        return {"backend": self.backend, "config": self.config}

    @staticmethod
    def tokens(m: int, batches: int) -> int:
        return -(-m * batches // TOKENS) * TOKENS

    def ragged(self) -> list[tuple[int, int, int, int]]:
        """One to six blocks of tokens, one to four steps of heads, and tails along K."""

        def pick(low: int, high: int) -> int:
            return int(torch.randint(low, high + 1, ()))

        found = [(1, self.n_step, self.k_step, 1), (129, 3 * self.n_step, 9 * self.k_step, 1)]
        return found + [(pick(1, 768), self.n_step * pick(1, 4), self.k_step * pick(1, 24), 1) for _ in range(3)]

    def inputs(self, m: int, n: int, k: int, batches: int) -> dict[str, Any]:
        t = self.tokens(m, batches)
        x, w = torch.randn(t, k, device=self.device), torch.randn(n, k, device=self.device) * max(k, 1) ** -0.5
        w = w if self.w_out_in else w.t().contiguous()
        return {"x": x.bfloat16(), "w": w.bfloat16(), **self.tables(t)}

    def tables(self, t: int) -> dict[str, torch.Tensor]:
        """Cosines and sines of as many angles: the formula joins them in no other way."""
        angles = torch.rand(t, ROPE, device=self.device) * 6.28
        return {"cos": angles.cos().bfloat16(), "sin": angles.sin().bfloat16()}

    def output_layouts(self, m: int, n: int, k: int, batches: int) -> dict[str, Any]:
        t, heads = self.tokens(m, batches), n // HEAD
        shapes = ((t, heads, HEAD), (t, heads, BLOCKS), (t, heads, HEAD), (t // BLOCK, heads, HEAD))
        return {name: (shape, (shape[1] * shape[2], shape[2], 1), getattr(torch, OUTPUTS[name])) for name, shape in zip(OUTPUTS, shapes, strict=True)}

    def build(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
        return GemmProjRopeMxfp8Bf16In(**{f"sample_{name}": t for name, t in {**inputs, **outputs}.items()}, w_out_in=self.w_out_in, **self.options)

    def wrapper(self, inputs: Mapping[str, Any], **options: Any) -> TupleDict:
        return gemm_proj_rope_mxfp8_wrapper(**inputs, w_out_in=self.w_out_in, **{**self.options, **options})

    def operands(self, inputs: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """x (T, K) and w (192 H, K)."""
        return inputs["x"].detach(), inputs["w"].detach() if self.w_out_in else inputs["w"].detach().t()

    def reference(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        x, w = self.operands(inputs)
        return dict(zip(OUTPUTS, proj_rope_mxfp8(x, w, inputs["cos"].detach(), inputs["sin"].detach(), True), strict=True))

    baseline = reference

    def check(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        """Every scale and value lies where the formula in float64 puts it, give or take what rounding q to bfloat16, and float32 sums in any order, can do."""
        x, w = (t.double() for t in self.operands(inputs))
        cos, sin = (inputs[name].detach().double() for name in ("cos", "sin"))
        shape = (x.shape[0], w.shape[0] // HEAD, HEAD)
        q, size = (x @ w.t()).reshape(shape), (x.abs() @ w.abs().t()).reshape(shape)
        # The matrix units may drop the last bit of each sum where float32 would round.
        q_error = (x.shape[1] + 1) * 2.0**-22 * size
        q_error = q_error + 2.0**-8 * (q.abs() + q_error)
        z = rotated(q, cos, sin)
        z_error = rotated_error(q, q_error, cos, sin)
        z_error = z_error + 2.0**-24 * (z.abs() + z_error)
        found = [outputs[name].detach() for name in OUTPUTS]
        for name, values, scales, blocks in zip(("row", "col"), dequantized(*found), found[1::2], (row_blocks, column_blocks), strict=True):
            largest, slack = (blocks(t) for t in (z.abs(), z_error))
            low, high = (byte_of((largest + sign * slack).amax(axis_of(name)), sign) for sign in (-1, 1))
            byte = scales.int()
            assert ((byte >= low) & (byte <= high)).all(), f"{name}: {int(((byte < low) | (byte > high)).sum())} scales are wrong"
            step = scale_values(scales).double().unsqueeze(axis_of(name))
            # Half a step of three stored bits, or of e4m3's smallest number.
            allowed = slack + 2.0**-4 * (largest + slack) + 2.0**-10 * step
            excess = (blocks(values) - blocks(z)).abs() - allowed
            assert not values.numel() or excess.max() <= 0, f"{name}: {int((excess > 0).sum())} values are wrong, by up to {excess.max():.3g}"


class ProjRopeMxfp8Hooks(ProjRopeHooks):
    """From MXFP8 operands."""

    # Three blocks along K, so that no K here is a number of tokens: torch.compile would take the two for one.
    n_step, k_step = 2 * HEAD, 3 * BLOCK
    unaligned = (*ProjRopeHooks.unaligned, "x_scale", "w_scale")

    def inputs(self, m: int, n: int, k: int, batches: int) -> dict[str, Any]:
        t = self.tokens(m, batches)
        return {**self.coded("x", t, k), **self.coded("w", n, k, -(k.bit_length() // 2)), **self.tables(t)}

    def coded(self, name: str, rows: int, k: int, shift: int = 0) -> dict[str, torch.Tensor]:
        """Numbers of about unit size times 2^shift, with scales that differ."""
        scale = torch.randint(125 + shift, 130 + shift, (rows, k // BLOCK), device=self.device, dtype=torch.int32)
        code = torch.ldexp(torch.randn(rows, k, device=self.device), (127 + shift - scale).repeat_interleave(BLOCK, 1))
        return {f"{name}_code": code.to(torch.float8_e4m3fn), f"{name}_scale": scale.to(torch.uint8)}

    def scratch_bytes(self, m: int, n: int, k: int, batches: int) -> int:
        return 0 if self.device == "cpu" else sum(ws_align(2 * rows * k) for rows in (self.tokens(m, batches), n))

    def build(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
        return GemmProjRopeMxfp8Mxfp8In(**{f"sample_{name}": t for name, t in {**inputs, **outputs}.items()}, **self.options)

    def wrapper(self, inputs: Mapping[str, Any], **options: Any) -> TupleDict:
        names = {"x": "x_code", "w": "w_code", "cos": "cos", "sin": "sin", "x_scale": "x_scale", "w_scale": "w_scale"}
        return gemm_proj_rope_mxfp8_wrapper(**{theirs: inputs[ours] for theirs, ours in names.items()}, **{**self.options, **options})

    def operands(self, inputs: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        x, w = (widened(inputs[f"{name}_code"].detach(), inputs[f"{name}_scale"].detach()) for name in "xw")
        return x, w


def rotated_error(q: torch.Tensor, error: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """How far off z may be when q is off by ``error``."""
    cos, sin = (t.abs().unsqueeze(1) for t in (cos, sin))
    p, r, half = error[..., NOPE::2], error[..., NOPE + 1 :: 2], ROPE // 2
    first, second = p * cos[..., :half] + r * sin[..., :half], p * sin[..., half:] + r * cos[..., half:]
    # Each half is a difference that may be small while its terms are not; both are rounded once, as a float32.
    return torch.cat((error[..., :NOPE], first, second), -1)


def row_blocks(t: torch.Tensor) -> torch.Tensor:
    return t.reshape(*t.shape[:2], BLOCKS, BLOCK)


def column_blocks(t: torch.Tensor) -> torch.Tensor:
    return t.reshape(t.shape[0] // BLOCK, BLOCK, *t.shape[1:])


def axis_of(direction: str) -> int:
    """The axis of a block's values in ``row_blocks`` or ``column_blocks``."""
    return 3 if direction == "row" else 1


def byte_of(largest: torch.Tensor, sign: int) -> torch.Tensor:
    """The lowest (``sign`` -1) or highest (1) scale byte of blocks with these largest magnitudes, in float64: dividing by 448 in float32 leaves the last bits open."""
    mantissa, exponent = torch.frexp(largest.clamp(min=0) * ((1 + sign * 2.0**-22) / 448.0))
    return torch.where(largest <= 0, 0, exponent - (mantissa == 0.5).int() + 127).clamp(0, 254)
