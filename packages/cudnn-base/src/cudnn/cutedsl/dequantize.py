"""Block-scaled matrices, converted to an ordinary floating dtype: what stands in front of a product whose operands come with scale factors, and `cudnn.ops.block_scale_dequantize`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cudnn.block_scale import FP4
from cudnn.cutedsl.compile import ARCH, CachedSpec, Compiled, finish

UNIT = 8  # elements a thread reads side by side: contiguous extents are multiples of it


@dataclass(frozen=True)
class DequantizeSpec(CachedSpec):
    """The kernel for elements of dtype ``element`` (e4m3, e5m2 or e2m1), scale factors of dtype ``scale`` (e8m0 or e4m3) for ``vec`` elements along K, and results of dtype ``target``, all by their canonical names.

    The result of ``build()`` is called as ``kernel(source, scales, target, stream)``, where ``norm`` as ``kernel(source, scales, target, norm_const, stream)``:

    - source: uint8, (rows, K, L), or for 4-bit elements (rows, K / 2, L).
    - scales: uint8. Where ``blocked`` the buffer of the blocked layout, (entries,), of which padding has no effect; else (rows, ceil(K / vec), L) with any strides.
    - target: (rows, K, L), target[r, k, l] = source[r, k, l] * scale(r, k // vec, l), divided by norm_const where ``norm``: each step rounded to float32, then once to ``target``.
    - norm_const: float32 (1,).

    ``k_major``: source and target have stride 1 along K, else along rows (8-bit elements alone). Both start on 16 bytes, lines of target too and those of source on 8 elements; lines hold a multiple of 8
    elements. Extents, strides and pointers are run-time values; there is no launch for an empty target.
    """

    element: str
    scale: str
    vec: int
    target: str = "bfloat16"
    k_major: bool = True
    blocked: bool = True
    norm: bool = False
    arch: str = ARCH
    op: str = "block_scale_dequantize"

    @property
    def dtype(self) -> str:
        return self.element

    @property
    def label(self) -> str:
        order = "rows along K" if self.k_major else "columns along rows"
        return f"{self.op} {self.element} {self.scale} {self.vec} to {self.target}, {order}, {'blocked' if self.blocked else 'plain'} scales{', norm' if self.norm else ''}"

    @property
    def sources(self) -> tuple[str, ...]:
        return "cudnn.cutedsl.dequantize", "cudnn.cutedsl.dequantize_kernel"

    def fields(self) -> dict[str, Any]:
        return {"kernel": "dequantize", **asdict(self)}

    def compile(self) -> Compiled:
        import cutlass
        import cutlass.cute as cute

        from cudnn.cutedsl.dequantize_kernel import Dequantize
        from cudnn.datatypes import cutlass_dtype

        rows, columns, stored, batches = (cute.sym_int() for _ in range(4))

        def fake(dtype: Any, shape: tuple[Any, ...], contiguous: int | None) -> Any:
            stride = tuple(1 if axis == contiguous else cute.sym_int64() for axis in range(len(shape)))
            return cute.runtime.make_fake_tensor(dtype, shape, stride=stride, assumed_align=1 if contiguous is None else 16)

        contiguous = 1 if self.k_major else 0
        source = fake(cutlass.Uint8, (rows, stored if self.element == FP4 else columns, batches), contiguous)
        target = fake(cutlass_dtype(self.target), (rows, columns, batches), contiguous)
        scales = fake(cutlass.Uint8, (cute.sym_int64(),), 0) if self.blocked else fake(cutlass.Uint8, (rows, cute.sym_int(), batches), None)
        stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=False)
        kernel = Dequantize(self.element, self.scale, self.vec, self.k_major, self.blocked)
        options = f"--enable-tvm-ffi --gpu-arch {self.arch}"
        if not self.norm:
            return finish(cute.compile(kernel, source, scales, target, stream, options=options))
        norm = cute.runtime.make_fake_tensor(cutlass.Float32, (1,), stride=(1,), assumed_align=4)
        return finish(cute.compile(kernel.with_norm, source, scales, target, norm, stream, options=options))
