"""Operands that are not contiguous along K, copied so that they are: the matrix cores read 8-bit and 32-bit elements in no other order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudnn.cutedsl.compile import ARCH, CachedSpec, Compiled, finish

VECTOR_BYTES = 16  # of one access to memory


def pitch(columns: int, bits: int) -> int:
    """Elements from one row of the copy to the next: ``columns`` elements of ``bits`` bits, rounded up to 16 bytes."""
    unit = VECTOR_BYTES * 8 // bits
    return -(-columns // unit) * unit


@dataclass(frozen=True)
class TransposeSpec(CachedSpec):
    """The kernel for elements of ``dtype``, the name of an 8-bit or a 32-bit one. The result of ``build()`` is called as ``kernel(source, target, stream)``.

    source (rows, K, L) has stride 1 along rows and target (rows, K, L) stride 1 along K; their addresses and other strides are multiples of 16 bytes. The rows of target have room for K rounded up to
    16 bytes (``pitch``) and are written up to there. Extents, strides and pointers are run-time values.
    """

    dtype: str
    arch: str = ARCH
    op: str = "transpose"

    @property
    def label(self) -> str:
        return f"{self.op} {self.dtype}"

    @property
    def sources(self) -> tuple[str, ...]:
        return "cudnn.cutedsl.transpose", "cudnn.cutedsl.transpose_kernel"

    def fields(self) -> dict[str, Any]:
        return {"kernel": "transpose", "dtype": self.dtype, "arch": self.arch}

    def compile(self) -> Compiled:
        import cutlass.cute as cute

        from cudnn.cutedsl.transpose_kernel import Transpose
        from cudnn.datatypes import cutlass_dtype

        dtype = cutlass_dtype(self.dtype)
        shape = (cute.sym_int(), cute.sym_int(), cute.sym_int())

        def fake(contiguous: int) -> Any:
            stride = tuple(1 if axis == contiguous else cute.sym_int64() for axis in range(3))
            return cute.runtime.make_fake_tensor(dtype, shape, stride=stride, assumed_align=VECTOR_BYTES)

        stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=False)
        return finish(cute.compile(Transpose(dtype.width), fake(0), fake(1), stream, options=f"--enable-tvm-ffi --gpu-arch {self.arch}"))
