"""Gradients of activations, element by element: the backward pass of an operation whose saved pre-activation meets no product on the way."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cudnn.cutedsl.compile import ARCH, CachedSpec, Compiled, finish

SOURCES = ("cudnn.cutedsl.pointwise", "cudnn.cutedsl.pointwise_kernel")


@dataclass(frozen=True)
class GatedGradientSpec(CachedSpec):
    """The kernel for one activation of gated pairs, all matrices of one ``dtype`` (a name).

    The result of ``build()`` is called as ``kernel((pre, grad, out), (scale, ...), stream)``: pre (M, 2 I), the pre-activation; grad (M, I), which times ``scale`` is the gradient of the activated
    pair; out (M, 2 I), the gradient of pre, in pre's order. Behind ``scale`` come the activation's scalars. Rows are contiguous and start at multiples of 16 bytes; I is a multiple of 16 bytes, and where ``interleaved`` of 32 elements. ``gate_first``: which block, or half, comes
    first. ``alternating``: columns take turns instead, gate first.

    ``prob``: the activated pair was multiplied by a factor per row, in groups of rows. Then it is ``kernel((pre, grad, out, prob, dprob, ends), ...)``: prob and dprob (M,) in float32, ends (E,) int32 of the groups. dprob is
    written, and summed in a fixed order; rows from the last end on have a dprob of 0, and no out.
    """

    dtype: str
    activation: str = "swiglu"
    interleaved: bool = True
    gate_first: bool = False
    arch: str = ARCH
    op: str = "gated_gradient"
    alternating: bool = False
    prob: bool = False

    @property
    def label(self) -> str:
        layout = "alternating" if self.alternating else "interleaved" if self.interleaved else "halves"
        return f"{self.op} {self.activation} {self.dtype} {layout}{' prob' if self.prob else ''}"

    @property
    def sources(self) -> tuple[str, ...]:
        return SOURCES

    def fields(self) -> dict[str, Any]:
        return {"kernel": "gated_gradient", **asdict(self)}

    def compile(self) -> Compiled:
        import cutlass
        import cutlass.cute as cute

        from cudnn.cutedsl.epilogue.activation import GATED
        from cudnn.cutedsl.pointwise_kernel import GatedGradient

        activation = GATED[self.activation]()
        m, half, whole = cute.sym_int(), cute.sym_int(), cute.sym_int()
        pre, grad, out = (_fake(self.dtype, m, columns) for columns in (whole, half, whole))
        scalars = tuple(cutlass.Float32(1.0) for _ in range(1 + activation.scalar_count))
        kernel = GatedGradient(activation, self.interleaved, self.gate_first, self.alternating, self.prob)
        vectors: tuple[Any, ...] = ()
        if self.prob:
            kinds = ((m, cutlass.Float32), (m, cutlass.Float32), (cute.sym_int(), cutlass.Int32))
            vectors = tuple(cute.runtime.make_fake_tensor(kind, (extent,), stride=(1,), assumed_align=4) for extent, kind in kinds)
        stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=False)
        return finish(cute.compile(kernel, (pre, grad, out, *vectors), scalars, stream, options=f"--enable-tvm-ffi --gpu-arch {self.arch}"))


@dataclass(frozen=True)
class SreluGradientSpec(CachedSpec):
    """The kernel for squared ReLU with a factor per row, y = prob * relu(s)², matrices of one ``dtype`` (a name), prob in float32.

    The result of ``build()`` is called as ``kernel((s, grad, out), stream)``, where ``prob`` as ``kernel((s, grad, out, prob, dprob), stream)``: s (M, N), the pre-activation; grad (M, N), the
    gradient of y; out (M, N), the gradient of s; prob and dprob (M,). dprob is written, and summed in a fixed order. Rows are contiguous and start at multiples of 16 bytes; N is a multiple of 16 bytes.
    """

    dtype: str
    prob: bool = True
    arch: str = ARCH
    op: str = "srelu_gradient"

    @property
    def label(self) -> str:
        return f"{self.op} {self.dtype}{' prob' if self.prob else ''}"

    @property
    def sources(self) -> tuple[str, ...]:
        return SOURCES

    def fields(self) -> dict[str, Any]:
        return {"kernel": "srelu_gradient", **asdict(self)}

    def compile(self) -> Compiled:
        import cutlass
        import cutlass.cute as cute

        from cudnn.cutedsl.pointwise_kernel import SreluGradient

        m, n = cute.sym_int(), cute.sym_int()
        matrices = [_fake(self.dtype, m, n) for _ in range(3)]
        vectors = [cute.runtime.make_fake_tensor(cutlass.Float32, (m,), stride=(cute.sym_int64(),), assumed_align=4) for _ in range(2 if self.prob else 0)]
        stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=False)
        return finish(cute.compile(SreluGradient(self.prob), (*matrices, *vectors), stream, options=f"--enable-tvm-ffi --gpu-arch {self.arch}"))


def _fake(dtype: str, rows: Any, columns: Any) -> Any:
    import cutlass.cute as cute

    from cudnn.datatypes import cutlass_dtype

    element = cutlass_dtype(dtype)
    pitch = cute.sym_int64(divisibility=128 // element.width)
    return cute.runtime.make_fake_tensor(element, (rows, columns), stride=(pitch, 1), assumed_align=16)
