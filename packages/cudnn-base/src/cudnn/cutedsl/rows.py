"""Rows of matrices taken by index: what brings tokens to their experts and back. Each is a kernel of its own, bound by memory.

Matrices have contiguous rows that start at multiples of 16 bytes and are multiples of 16 bytes long; indices are int32, factors float32. An index outside of the matrix is no row. Extents, strides and pointers are
run-time values; sums are in float32 and in a fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cudnn.cutedsl.compile import ARCH, CachedSpec, Compiled, finish

SOURCES = ("cudnn.cutedsl.rows", "cudnn.cutedsl.rows_kernel")


@dataclass(frozen=True)
class RowsSpec(CachedSpec):
    """Base of the kernels of this module: what ``build()`` and the cache have in common."""

    dtype: str
    arch: str = ARCH
    op: str = "rows"

    @property
    def label(self) -> str:
        """Operation, dtype and the options that are set."""
        return " ".join((self.op, self.dtype, *(name for name, value in asdict(self).items() if value is True)))

    @property
    def sources(self) -> tuple[str, ...]:
        return SOURCES

    def fields(self) -> dict[str, Any]:
        return {"kernel": self.op, **asdict(self)}

    def _compile(self, kernel: Any, tensors: Sequence[Any], *scalars: Any) -> Compiled:
        import cutlass.cute as cute

        stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=False)
        return finish(cute.compile(kernel, tuple(tensors), *scalars, stream, options=f"--enable-tvm-ffi --gpu-arch {self.arch}"))

    def _matrix(self, rows: Any, columns: Any, dtype: str | None = None) -> Any:
        import cutlass.cute as cute

        from cudnn.datatypes import cutlass_dtype

        element = cutlass_dtype(dtype or self.dtype)
        return cute.runtime.make_fake_tensor(element, (rows, columns), stride=(cute.sym_int64(divisibility=128 // element.width), 1), assumed_align=16)

    def _vector(self, extent: Any, dtype: str) -> Any:
        import cutlass.cute as cute

        from cudnn.datatypes import cutlass_dtype

        return cute.runtime.make_fake_tensor(cutlass_dtype(dtype), (extent,), stride=(1,), assumed_align=4)


@dataclass(frozen=True)
class GatherRowsSpec(RowsSpec):
    """out[r] = (scale[r] *) source[index[r]], zeros where that is no row; and where ``dot``, dot[r] = the sum over n of source[index[r], n] * other[s, n], with s = r or, with ``other_index``, other_index[r].

    Called as ``kernel((source, index, out, [scale], [other, [other_index], dot]), stream)``: source (S, H), index (R,), out (R, H), scale (R,), other (Q, H) of dtype ``other_dtype``, other_index (R,), dot (R,).
    Reads and writes R H elements each, and with ``dot`` as many of other.
    """

    scaled: bool = False
    dot: bool = False
    other_index: bool = False
    other_dtype: str | None = None
    op: str = "gather_rows"

    def compile(self) -> Compiled:
        import cutlass.cute as cute

        from cudnn.cutedsl.rows_kernel import GatherRows

        rows, columns = cute.sym_int(), cute.sym_int()
        tensors = [self._matrix(cute.sym_int(), columns), self._vector(rows, "int32"), self._matrix(rows, columns)]
        if self.scaled:
            tensors.append(self._vector(rows, "float32"))
        if self.dot:
            tensors.append(self._matrix(cute.sym_int(), columns, self.other_dtype))
            if self.other_index:
                tensors.append(self._vector(rows, "int32"))
            tensors.append(self._vector(rows, "float32"))
        return self._compile(GatherRows(self.scaled, self.dot, self.other_index), tensors)


@dataclass(frozen=True)
class ScatterRowsSpec(RowsSpec):
    """out[index[r]] = source[r], where index[r] is a row of out; of several to one row any may win. Called as ``kernel((source, index, out), stream)``: source (R, H), index (R,), out (T, H)."""

    op: str = "scatter_rows"

    def compile(self) -> Compiled:
        import cutlass.cute as cute

        from cudnn.cutedsl.rows_kernel import ScatterRows

        rows, columns = cute.sym_int(), cute.sym_int()
        return self._compile(ScatterRows(), [self._matrix(rows, columns), self._vector(rows, "int32"), self._matrix(cute.sym_int(), columns)])


@dataclass(frozen=True)
class SumRowsSpec(RowsSpec):
    """out[t] = the sum over i of (weight[i] *) source[index[i]], over the ``count`` places i of t in turn, or where ``ragged`` over those from first[t] up to first[t + 1].

    Called as ``kernel((source, index, out, [weight], [first]), count, stream)``: source (S, H), index (P,), out (T, H), weight (P,), first (T + 1,) int32; ``count`` is not looked at where ``ragged``.
    Reads P H elements and writes T H.
    """

    weighted: bool = False
    ragged: bool = False
    op: str = "sum_rows"

    def compile(self) -> Compiled:
        import cutlass
        import cutlass.cute as cute

        from cudnn.cutedsl.rows_kernel import SumRows

        places, columns = cute.sym_int(), cute.sym_int()
        tensors = [self._matrix(cute.sym_int(), columns), self._vector(places, "int32"), self._matrix(cute.sym_int(), columns)]
        if self.weighted:
            tensors.append(self._vector(places, "float32"))
        if self.ragged:
            tensors.append(self._vector(cute.sym_int(), "int32"))
        return self._compile(SumRows(self.weighted, self.ragged), tensors, cutlass.Int32(1))


@dataclass(frozen=True)
class ZeroTailSpec(RowsSpec):
    """out[r] = 0 for the rows from the last of ``ends`` on. Called as ``kernel((out, ends), stream)``: out (M, N), ends (E,) int32. Writes those rows alone."""

    op: str = "zero_tail"

    def compile(self) -> Compiled:
        import cutlass.cute as cute

        from cudnn.cutedsl.rows_kernel import ZeroTail

        return self._compile(ZeroTail(), [self._matrix(cute.sym_int(), cute.sym_int()), self._vector(cute.sym_int(), "int32")])
