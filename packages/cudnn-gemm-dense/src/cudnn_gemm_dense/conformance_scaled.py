"""Block-scaled operands and quantised outputs for the hooks of the dense operations' conformance tests. Needs pytest and torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cudnn.block_scale import FORMATS, FP4, Format, ScaleLayout
from cudnn.cutedsl.transpose import pitch
from cudnn.datatypes import torch_dtype
from cudnn.fp4 import decode_e2m1, unpack_fp4
from cudnn.reference import cast, matmul, split_gate_up, swiglu
from cudnn.testing.poison import Poisoned
from cudnn.workspace import ws_align
from cudnn_gemm_dense.conformance import Layout, compact_stride, torch_matmul
from cudnn_gemm_dense.swiglu.conformance import SwigluHooks

NAN = {"float8_e8m0fnu": 0xFF, "float8_e4m3fn": 0x7F}
GUARD = 4096


def entries(rows: int, columns: int, batches: int, vec: int) -> torch.Tensor:
    """Where the factor of (row, block, batch) lies in the buffer of scale factors, (rows, blocks, L)."""
    layout = ScaleLayout(rows, columns, batches, vec)
    row, block, batch = torch.meshgrid(torch.arange(rows), torch.arange(layout.blocks), torch.arange(batches), indexing="ij")
    return layout.offset(row, block, batch)


def as_form(buffer: torch.Tensor, layout: ScaleLayout, logical: bool = True) -> torch.Tensor:
    """A buffer of scale factors in one of its two forms."""
    shape, stride = (layout.logical_shape, layout.logical_stride) if logical else (layout.physical_shape, layout.physical_stride)
    return buffer.as_strided(shape, stride, buffer.storage_offset())


def random_scaled(
    rows: int, k: int, batches: int, kind: Format, device: str, major: int = 1, scale: float = 1.0, logical: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """(data (rows, K, L), scale factors) of normally distributed numbers of size ``scale``, give or take a factor of four. What is padding in the scale factors is NaN."""
    if kind.element == FP4:
        codes = torch.randint(0, 256, (batches, rows, k // 2), dtype=torch.uint8, device=device)
        data = codes.view(torch.float4_e2m1fn_x2).permute(1, 2, 0)
    else:
        shape = (rows, k, batches)
        data = torch.empty_strided(shape, compact_stride(shape, major), dtype=torch_dtype(kind.element), device=device).copy_(torch.randn(shape, device=device))
    layout = ScaleLayout(rows, k, batches, kind.vec)
    buffer = torch.full((layout.entries,), NAN[kind.scale], dtype=torch.uint8, device=device)
    where = entries(rows, k, batches, kind.vec).to(device)
    factors = scale * torch.exp2(torch.rand(where.shape, device=device) * 4 - 2)
    if kind.scale == "float8_e8m0fnu":
        buffer[where] = (factors.log2().round() + 127).to(torch.uint8)
    else:
        buffer[where] = factors.to(torch.float8_e4m3fn).view(torch.uint8)
    return data, as_form(buffer.view(torch_dtype(kind.scale)), layout, logical)


def exact_scaled(rows: int, k: int, batches: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """MXFP8 operands of small integers, scale factors of 1: every sum of their products is exact, in any order."""
    shape = (rows, k, batches)
    data = torch.empty_strided(shape, compact_stride(shape, 1), dtype=torch.float8_e4m3fn, device=device).copy_(torch.randint(-4, 5, shape, device=device))
    layout = ScaleLayout(rows, k, batches, 32)
    return data, as_form(torch.full((layout.entries,), 127, dtype=torch.uint8, device=device).view(torch.float8_e8m0fnu), layout)


def dequantize(data: torch.Tensor, scales: torch.Tensor, vec: int) -> torch.Tensor:
    """The operand in float64."""
    wide = decode_e2m1(unpack_fp4(data, 1)).double() if data.dtype in (torch.float4_e2m1fn_x2, torch.uint8) else data.double()
    rows, k, batches = wide.shape
    factors = scales.as_strided((scales.numel(),), (1,))[entries(rows, k, batches, vec).to(data.device)].double()
    return wide * factors.repeat_interleave(vec, 1)[:, :k]


class PoisonedScales(Poisoned):
    """Scale factors of which those that belong to a row and a block have to be written, and no others."""

    def __init__(
        self, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: str, rows: int, columns: int, batches: int, vec: int
    ) -> None:
        super().__init__(shape, stride, dtype, device)
        self._entries = entries(rows, columns, batches, vec).to(device)

    def check(self, name: str) -> None:
        found = self._buffer.view(torch.uint8).clone()
        written = found[self._inside][self._entries]
        bad = int((written == 255).sum())
        assert not bad, f"{name}: {bad} of {written.numel()} scale factors were not written, or are NaN"
        inside = found[self._inside]
        inside[self._entries] = 255
        assert (found == 255).all(), f"{name}: {int((found != 255).sum())} bytes outside the scale factors of rows and blocks were written"


class ScaledHooks:
    """In front of the hooks of an operation: operands of ``format``, both or where ``mixed`` B alone beside a bfloat16 A."""

    format = "mxfp8"
    mixed = False
    device = "cpu"
    a_major = b_major = "k"
    alpha = 1.0
    logical = True
    # torch makes a graph of its own for an extent of 1, here of 128 rows of factors, and holds extents together that are equal at first.
    dynamic_rows = (264, 300, 600, 648)

    @property
    def kind(self) -> Format:
        return FORMATS[self.format]

    @property
    def more(self) -> dict[str, Any]:
        return {"sf_vec_size": self.kind.vec}

    def operands(self, m: int, n: int, k: int, batches: int) -> dict[str, Any]:
        size = max(k, 1) ** -0.5 / (3.0 if self.kind.element == FP4 else 1.0)
        b, sfb = random_scaled(n, k, batches, self.kind, self.device, int(self.b_major == "k"), size, not self.logical)
        if self.mixed:
            shape = (m, k, batches)
            a = torch.empty_strided(shape, compact_stride(shape, int(self.a_major == "k")), dtype=torch.bfloat16, device=self.device)
            return {"a_tensor": a.copy_(torch.randn(shape, device=self.device)), "b_tensor": b, "sfb_tensor": sfb}
        a, sfa = random_scaled(m, k, batches, self.kind, self.device, int(self.a_major == "k"), 1.0, self.logical)
        return {"a_tensor": a, "b_tensor": b, "sfa_tensor": sfa, "sfb_tensor": sfb}

    def scratch_bytes(self, m: int, n: int, k: int, batches: int) -> int:
        if self.device == "cpu":
            return 0
        halves = (n // 2, n // 2) if getattr(self, "glu_layout", "") == "separate" else (n,)
        found = 0
        for rows, major in (*(((m, self.a_major),) if not self.mixed else ()), *((half, self.b_major) for half in halves)):
            outer, inner = (rows, k) if major == "k" else (k, rows)
            found += ws_align(2 * outer * pitch(inner, 16) * batches)
        return found

    def wide(self, inputs: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """A and B in float64."""
        a = inputs["a_tensor"].double() if self.mixed else dequantize(inputs["a_tensor"], inputs["sfa_tensor"], self.kind.vec)
        return a, dequantize(inputs["b_tensor"], inputs["sfb_tensor"], self.kind.vec)

    def product(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        return matmul(*self.wide(inputs), self.alpha, compute_dtype=self.compute)  # type: ignore[attr-defined]

    def torch_product(self, inputs: Mapping[str, Any], wide: bool = False) -> torch.Tensor:
        """Scale factors are exact in bfloat16."""
        a, b = self.wide(inputs)
        narrow = a.to(torch.bfloat16), b.to(torch.bfloat16)
        assert torch.equal(narrow[0].double(), a) and torch.equal(narrow[1].double(), b)
        return torch_matmul(*narrow, wide=wide).float() * self.alpha


class ScaledSwigluHooks(ScaledHooks, SwigluHooks):  # type: ignore[misc]
    """GEMM + SwiGLU of block-scaled operands. amax is there where the wrapper has it."""

    unaligned = ("amax_tensor",)

    @property
    def has_amax(self) -> bool:
        return self.kind.element == FP4 and not self.mixed and self.c_dtype == torch.bfloat16

    @property
    def initial(self) -> dict[str, float]:  # type: ignore[override]
        return {"amax_tensor": float("-inf")} if self.has_amax else {}

    def inputs(self, m: int, n: int, k: int, batches: int) -> dict[str, Any]:
        if self.glu_layout != "separate":
            return self.operands(m, n, k, batches)
        gate, up = self.operands(m, n // 2, k, batches), self.operands(m, n // 2, k, batches)
        return {name: (t, up[name]) if name in ("b_tensor", "sfb_tensor") else t for name, t in gate.items()}

    def output_layouts(self, m: int, n: int, k: int, batches: int) -> dict[str, Layout]:
        amax: dict[str, Layout] = {"amax_tensor": ((1, 1, 1), (1, 1, 1), torch.float32)} if self.has_amax else {}
        return {**super().output_layouts(m, n, k, batches), **amax}

    def wide(self, inputs: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        if self.glu_layout != "separate":
            return super().wide(inputs)
        halves = [super(ScaledSwigluHooks, self).wide({**inputs, **{name: inputs[name][i] for name in ("b_tensor", "sfb_tensor")}}) for i in range(2)]
        return halves[0][0], torch.cat([half[1] for half in halves])

    def _finish(self, s: torch.Tensor) -> dict[str, torch.Tensor]:
        gate, up = split_gate_up(s, self.glu_layout)
        c = swiglu(gate, up)
        found = {"ab12_tensor": s, "c_tensor": c}
        return {**found, "amax_tensor": c.abs().amax().view(1, 1, 1)} if self.has_amax and c.numel() else found

    @property
    def compute(self) -> torch.dtype:
        return torch.float64 if self.device == "cpu" else torch.float32

    def reference(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        return self._finish(self.product(inputs))

    def baseline(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        found = self._finish(self.torch_product(inputs, self.ab12_dtype.itemsize != 2))
        return {**found, "ab12_tensor": cast(found["ab12_tensor"], self.ab12_dtype), "c_tensor": cast(found["c_tensor"], self.c_dtype)}


class QuantizedHooks:
    """In front of the hooks of squared ReLU and its gradient: D quantised to ``d_dtype``."""

    d_dtype = torch.float8_e4m3fn
    norm = 1.0
    vec = 32
    device = "cpu"
    filled = {"sfd_tensor": 2.0**-127}  # what the wrapper leaves where there is no row or block

    @property
    def initial(self) -> dict[str, float]:
        return {**super().initial, **self.filled}  # type: ignore[misc]

    def settled(self, name: str, t: torch.Tensor) -> torch.Tensor:
        if name not in self.filled:
            return t
        found = t.view(torch.uint8)
        return torch.where(found == 255, 0, found).view(t.dtype)

    def inputs(self, m: int, n: int, k: int, batches: int) -> dict[str, Any]:
        return {**super().inputs(m, n, k, batches), "norm_const_tensor": torch.full((1,), self.norm, device=self.device)}  # type: ignore[misc]

    def output_layouts(self, m: int, n: int, k: int, batches: int) -> dict[str, Layout]:
        layout = ScaleLayout(m, n, batches, self.vec)
        return {**super().output_layouts(m, n, k, batches), "sfd_tensor": (layout.logical_shape, layout.logical_stride, torch.float8_e8m0fnu)}  # type: ignore[misc]

    def poisoned(self, *extents: int) -> dict[str, Poisoned]:
        found = super().poisoned(*extents)  # type: ignore[misc]
        shape, stride, dtype = self.output_layouts(*extents)["sfd_tensor"]
        m, n, _, batches = extents
        return {**found, "sfd_tensor": PoisonedScales(shape, stride, dtype, self.device, m, n, batches, self.vec)}

    def outputs(self, *extents: int) -> dict[str, torch.Tensor]:
        found = super().outputs(*extents)  # type: ignore[misc]
        for name, value in self.filled.items():
            found[name].fill_(value)
        return found

    def check(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        """Everything but D as ever; D within one step of value or scale of what the exact product gives."""
        reference = self.reference(inputs)  # type: ignore[attr-defined]
        check_quantized(reference["d_tensor"], outputs["d_tensor"], outputs["sfd_tensor"], self.norm, self.vec)
        others = {name: t for name, t in reference.items() if name != "d_tensor"}
        hidden = {name: t for name, t in self.baseline(inputs).items() if name != "d_tensor"}  # type: ignore[attr-defined]
        self.compare(outputs, others, hidden)  # type: ignore[attr-defined]


# What float32 sums of a few thousand products, in any order, may be off: relative to the largest magnitude of a block, and to the size of all elements.
OFF = 2.0**-9


def check_quantized(y: torch.Tensor, data: torch.Tensor, scales: torch.Tensor, norm: float, vec: int) -> None:
    """AssertionError unless data and scale factors are those of ``y`` (M, N, L), computed up to OFF, but for one step of value or scale."""
    if not y.numel():
        return
    y = y.double()
    m, n, batches = y.shape
    limit = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 128.0}[data.dtype]
    bytes_ = scales.view(torch.uint8).as_strided((scales.numel(),), (1,))[entries(m, n, batches, vec).to(y.device)].long()
    padded = torch.zeros(m, bytes_.shape[1] * vec, batches, dtype=torch.float64, device=y.device)
    padded[:, :n] = y.abs()
    largest = padded.view(m, -1, vec, batches).amax(2)
    size = y.square().mean().sqrt() * OFF
    low, high = ((((largest * (1 + sign * OFF) + sign * size).clamp(min=0) * norm / limit).log2().clamp(min=-127).ceil() + 127).long() for sign in (-1, 1))
    assert ((bytes_ >= low) & (bytes_ <= high)).all(), f"{int(((bytes_ < low) | (bytes_ > high)).sum())} of {bytes_.numel()} scale factors are off"
    factor = torch.exp2((bytes_ - 127).double()).repeat_interleave(vec, 1)[:, :n] / norm
    found = data.double()
    assert found.isfinite().all() and found.abs().max() <= (448.0 if data.dtype == torch.float8_e4m3fn else 57344.0)
    # Half a step of the data, for rounding, and what the sum is off; a step is relative above the smallest normal number.
    eps, least = (2.0**-3, 2.0**-9) if data.dtype == torch.float8_e4m3fn else (2.0**-2, 2.0**-16)
    allowed = (found.abs() * eps).clamp(min=least) * factor * 0.51 + y.abs() * OFF + size
    error = (found * factor - y).abs()
    assert (
        error <= allowed
    ).all(), f"{int((error > allowed).sum())} of {y.numel()} elements are off, the worst by {(error / allowed).max():.3g} of what is allowed"
