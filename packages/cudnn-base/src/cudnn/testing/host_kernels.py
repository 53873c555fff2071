"""Kernels of the DSL on the host: the traced code of one thread, compiled for the CPU and run for every thread of every block in turn.

What is executed are the lines of the kernel, its indices, predicates and arithmetic. What a thread gets from others (shuffles, shared memory) is the caller's business; instructions that only the GPU
has are replaced by arithmetic of the same meaning while ``replaced_instructions`` is active.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = ["replaced_instructions", "run_threads"]


@contextmanager
def replaced_instructions() -> Iterator[None]:
    """Inside, ``prmt``, ``fmin``, ``fmax`` and ``rcp_approx`` of the DSL, and the conversions to and from 8-bit floats, are made of ordinary arithmetic."""
    import cutlass.cute as cute

    from cudnn.cutedsl import block_scale

    replacements: list[tuple[Any, str, Any]] = [
        (cute.arch, "prmt", _prmt),
        (cute.arch, "fmin", _extreme(lambda x, y: x < y)),
        (cute.arch, "fmax", _extreme(lambda x, y: x > y)),
        (cute.arch, "rcp_approx", lambda x: 1.0 / x),
        (block_scale, "hardware_e4m3", _e4m3),
        (block_scale, "hardware_fp8", _fp8),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replacements]
    try:
        for owner, name, function in replacements:
            setattr(owner, name, function)
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def run_threads(work: Callable[..., None], tensors: Sequence[Any], blocks: int, threads: int, passes: int = 1) -> None:
    """``work(*tensors, block, thread, number of the pass)`` for every thread of every block; of a block ``passes`` times, all threads in each.

    ``tensors``: torch CPU tensors, 16-byte aligned unless of one element. ``work`` is traced once, with the tensors' strides as run-time values.
    """
    import cutlass
    import cutlass.cute as cute
    from cutlass import Int32
    from cutlass.cute.runtime import from_dlpack

    class Loop:
        @cute.jit
        def __call__(self, tensors, blocks):
            for block in cutlass.range(blocks, unroll=1):
                for number in cutlass.range(passes, unroll=1):
                    for thread in cutlass.range(threads, unroll=1):
                        work(*tensors, block, thread, number)

    arguments = tuple(from_dlpack(t, assumed_align=16 if t.numel() > 1 else t.element_size()) for t in tensors)
    with replaced_instructions():
        function = cute.compile(Loop(), arguments, Int32(blocks))
    function(arguments, Int32(blocks))


def _fp8(words: Any, element: str) -> Any:
    import cutlass.cute as cute

    from cudnn.cutedsl import block_scale

    count = 4 * cute.size(words)
    values = cute.make_rmem_tensor((count,), block_scale.number(0.0, words[0]).__class__)
    widen = block_scale.e4m3_bits if element == "float8_e4m3fn" else block_scale.e5m2_bits
    for i in range(count):
        values[i] = block_scale.as_float(widen(words[i // 4] >> 8 * (i % 4) & 255))
    return values.load()


def _prmt(low: Any, high: Any, selector: Any) -> Any:
    """As PTX has it, without its sign mode: nibble i of the selector says which of the eight bytes becomes byte i."""
    from cutlass import Uint32, Uint64

    pool = low.to(Uint64) | (high.to(Uint64) << 32)
    result = Uint32(0)
    for i in range(4):
        nibble = selector >> 4 * i & 7
        shift = (Uint64(nibble) if isinstance(nibble, int) else nibble.to(Uint64)) * 8
        result = result | (((pool >> shift) & 255).to(Uint32) << 8 * i)
    return result.ir_value()


def _e4m3(value: Any) -> Any:
    from cudnn.cutedsl import block_scale

    bits = block_scale.as_bits(value)
    return block_scale.where(bits > block_scale.INFINITY, 0x7F, block_scale.rounded(bits, 3, -6, 448.0))


def _extreme(better: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def function(x: Any, y: Any, *, nan: bool = False, abs: bool = False) -> Any:
        import cutlass
        from cutlass import Float32

        assert not abs, "the form with magnitudes is not replaced"
        x, y = Float32(x), Float32(y)
        chosen = Float32(cutlass.select_(better(x, y), x, y))
        # Comparisons with NaN are false, so a NaN in x has given y, and one in y has given y.
        for value, other in ((x, y), (y, x)):
            chosen = Float32(cutlass.select_(value == value, chosen, value if nan else other))
        return chosen

    return function
