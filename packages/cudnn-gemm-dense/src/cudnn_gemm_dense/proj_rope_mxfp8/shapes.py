"""How the tensors of projection + RoPE + MXFP8 have to fit each other, on metadata alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cudnn.checks import check_dtype
from cudnn.datatypes import itemsize_bits
from cudnn.gemm_layout import Extents
from cudnn.tensors import Metadata
from cudnn_gemm_dense.proj_rope_mxfp8.lanes import BLOCK, BLOCKS, HEAD, ROPE

TOKENS = 128  # what their number is a multiple of

TABLES = {"cos": "bfloat16", "sin": "bfloat16"}
OUTPUTS = {"out_fp8_row": "float8_e4m3fn", "out_scales_row": "uint8", "out_fp8_col": "float8_e4m3fn", "out_scales_col": "uint8"}


class ProjRopeLayout:
    """The rules of one of the two classes.

    ``scaled``: operands are MXFP8, and their scales are the last two tensors. ``w_out_in``: w is (192 H, K), else (K, 192 H).
    """

    def __init__(self, *, scaled: bool, w_out_in: bool) -> None:
        self.scaled, self.w_out_in = scaled, w_out_in
        operands = ("x_code", "w_code") if scaled else ("x", "w")
        dtypes = {**dict.fromkeys(operands, "float8_e4m3fn" if scaled else "bfloat16"), **TABLES, **OUTPUTS}
        self.dtypes = {**dtypes, **(dict.fromkeys(("x_scale", "w_scale"), "uint8") if scaled else {})}
        self.names = tuple(self.dtypes)
        # What the copy engine moves, or a kernel reads 16 bytes at a time.
        self.matrices = (0, 1, 2, 3, 4, 6)

    def check_dtypes(self, metas: Sequence[Metadata]) -> None:
        """ValueError unless every dtype is the one there is."""
        for name, meta in zip(self.names, metas, strict=True):
            check_dtype(name, meta.dtype, (self.dtypes[name],))

    def extents(self, metas: Sequence[Metadata]) -> Extents:
        """T, 192 H, K and 1. ValueError naming the first tensor that does not fit."""
        given = {name: meta.shape for name, meta in zip(self.names, metas, strict=True)}
        x, w = self.names[:2]
        rows = "(192 H, K)" if self.w_out_in else "(K, 192 H)"
        for name, axes in ((x, "(T, K)"), (w, rows)):
            if len(given[name]) != 2:
                raise ValueError(f"{name}: found shape {given[name]}, needs two axes {axes}")
        t, k = given[x]
        n, w_k = given[w] if self.w_out_in else reversed(given[w])
        if t % TOKENS:
            raise ValueError(f"{x}: found T = {t} tokens, needs a multiple of {TOKENS}; append rows of zeros")
        if w_k != k:
            hint = "" if self.scaled or k not in given[w] else f"; its axes may be the other way round, see w_out_in = {self.w_out_in}"
            raise ValueError(f"{w}: found shape {given[w]}, needs {rows} with K = {k} as {x} has it{hint}")
        if n % HEAD:
            raise ValueError(f"{w}: found shape {given[w]}, needs {rows}: a multiple of {HEAD} features, {HEAD - ROPE} and {ROPE} rotated ones for each head")
        if self.scaled and k % BLOCK:
            raise ValueError(f"{x}: found K = {k}, needs a multiple of {BLOCK}, the values that share a scale; append zeros to {x} and {w}")
        heads = n // HEAD
        expected: dict[str, tuple[str, tuple[int, ...]]] = {
            **({"x_scale": ("(T, K/32)", (t, k // BLOCK)), "w_scale": ("(192 H, K/32)", (n, k // BLOCK))} if self.scaled else {}),
            **dict.fromkeys(TABLES, (f"(T, {ROPE})", (t, ROPE))),
            "out_fp8_row": (f"(T, H, {HEAD})", (t, heads, HEAD)),
            "out_scales_row": (f"(T, H, {BLOCKS})", (t, heads, BLOCKS)),
            "out_fp8_col": (f"(T, H, {HEAD})", (t, heads, HEAD)),
            "out_scales_col": (f"(T/{BLOCK}, H, {HEAD})", (t // BLOCK, heads, HEAD)),
        }
        for name, (axes, shape) in expected.items():
            if given[name] != shape:
                raise ValueError(f"{name}: found shape {given[name]}, needs {axes} = {shape}, as {x} and {w} have it")
        return Extents(t, n, k, 1)

    def check_heads(self, extents: Extents) -> None:
        """MXFP8 operands come with an even number of heads."""
        if self.scaled and extents.n // HEAD % 2:
            raise ValueError(f"w_code: found {extents.n // HEAD} heads of {HEAD} features, needs an even number; append a head of zeros")

    def majors(self, metas: Sequence[Metadata], bound: Mapping[str, str] | None = None) -> dict[str, str]:
        """The contiguous axes of operands and outputs, which are fixed. ValueError unless every tensor is contiguous."""
        for name, meta in zip(self.names, metas, strict=True):
            step = 1
            for extent, stride in zip(reversed(meta.shape), reversed(meta.stride), strict=True):
                if 0 not in meta.shape and extent > 1 and stride != step:
                    other = "; or take the other w_out_in, which reads w in place" if name == "w" and meta.stride[0] == 1 else ""
                    raise ValueError(
                        f"{name}: found strides {meta.stride} for shape {meta.shape}, needs a contiguous tensor; copy it with {name}.contiguous(){other}"
                    )
                step *= extent
        return {"a": "k", "b": "k" if self.w_out_in else "n", "out": "n"}

    def check_lines(self, metas: Sequence[Metadata], majors: Mapping[str, str]) -> None:
        """ValueError unless lines along K are multiples of 16 bytes."""
        x, k = metas[0], metas[0].shape[1]
        unit = 128 // itemsize_bits(x.dtype)
        if k % unit and 0 not in x.shape:
            raise ValueError(f"{self.names[0]}: found K = {k}, needs a multiple of {unit} {x.dtype} elements (16 bytes); append zeros to both operands")
