"""Quantisation to block-scaled formats, along rows, along columns or both in one reading: the kernel of `cudnn.ops.block_scale_quantize`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cudnn.block_scale import FP4
from cudnn.cutedsl.compile import ARCH, CachedSpec, Compiled, finish

UNIT = 8  # elements a thread reads side by side: columns are a multiple of it, and so are rows of packed elements along columns


@dataclass(frozen=True)
class QuantizeSpec(CachedSpec):
    """The kernel for matrices of ``dtype``, elements of dtype ``element`` and scale factors of dtype ``scale`` for ``vec`` elements, all by their canonical names.

    The result of ``build()`` is called as ``kernel(tensors, stream)``, with the tensors in this order and without those that the options leave out:

    - x: (rows, columns, L), stride 1 along columns, lines that start on 16 bytes, and a multiple of 8 columns.
    - where ``along_rows`` (blocks of ``vec`` neighbours in a row) elements (rows, columns, L) or packed (rows, columns / 2, L), uint8, stride 1 along columns, lines that start on 8 bytes, packed on 4; and
      scale factors.
    - where ``along_columns`` (blocks of ``vec`` neighbours in a column) 8-bit elements as before, in the order of x; 4-bit ones in that of x transposed, packed along rows: (columns, rows / 2, L), stride 1
      along rows, lines that start on 4 bytes, a multiple of 8 rows; and scale factors, those of x transposed.
    - where ``norm`` norm_const, float32 (1,).

    Scale factors are uint8: where ``blocked`` the buffer of the blocked layout, (entries,), padding included, which becomes zero; else (rows, ceil(columns / vec), L), and along columns (columns, ceil(rows
    / vec), L), with any strides. Rounding is that of `cudnn.reference.quantize_blocks`, in every bit. Extents, strides and pointers are run-time values; there is no launch for an empty x.
    """

    dtype: str
    element: str
    scale: str
    vec: int
    along_rows: bool = True
    along_columns: bool = False
    blocked: bool = True
    norm: bool = False
    arch: str = ARCH
    op: str = "block_scale_quantize"

    @property
    def label(self) -> str:
        directions = " and ".join(name for name, wanted in (("rows", self.along_rows), ("columns", self.along_columns)) if wanted)
        return f"{self.op} {self.dtype} to {self.element} {self.scale} {self.vec} along {directions}, {'blocked' if self.blocked else 'plain'} scales{', norm' if self.norm else ''}"

    @property
    def sources(self) -> tuple[str, ...]:
        return "cudnn.cutedsl.quantize", "cudnn.cutedsl.quantize_kernel"

    def fields(self) -> dict[str, Any]:
        return {"kernel": "quantize", **asdict(self)}

    def compile(self) -> Compiled:
        import cutlass
        import cutlass.cute as cute

        from cudnn.cutedsl.quantize_kernel import Quantize
        from cudnn.datatypes import cutlass_dtype

        if not (self.along_rows or self.along_columns):
            raise ValueError("QuantizeSpec: found neither direction, needs along_rows or along_columns")
        rows, columns, batches = (cute.sym_int() for _ in range(3))

        def fake(dtype: Any, shape: tuple[Any, ...], align: int, plain: bool = False) -> Any:
            stride = tuple(1 if axis == 1 and not plain else cute.sym_int64() for axis in range(len(shape)))
            return cute.runtime.make_fake_tensor(dtype, shape, stride=stride, assumed_align=align)

        def scales(lines: Any) -> Any:
            if self.blocked:
                return cute.runtime.make_fake_tensor(cutlass.Uint8, (cute.sym_int64(),), stride=(1,), assumed_align=16)
            return fake(cutlass.Uint8, (lines, cute.sym_int(), batches), 1, plain=True)

        packed = self.element == FP4
        tensors = [fake(cutlass_dtype(self.dtype), (rows, columns, batches), 16)]
        if self.along_rows:
            tensors += [fake(cutlass.Uint8, (rows, cute.sym_int() if packed else columns, batches), 4 if packed else 8), scales(rows)]
        if self.along_columns:
            shape = (columns, cute.sym_int(), batches) if packed else (rows, columns, batches)
            tensors += [fake(cutlass.Uint8, shape, 4 if packed else 8), scales(columns)]
        if self.norm:
            tensors.append(cute.runtime.make_fake_tensor(cutlass.Float32, (1,), stride=(1,), assumed_align=4))
        kernel = Quantize(self.dtype, self.element, self.scale, self.vec, self.along_rows, self.along_columns, self.blocked, self.norm)
        stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=False)
        return finish(cute.compile(kernel, tuple(tensors), stream, options=f"--enable-tvm-ffi --gpu-arch {self.arch}"))
