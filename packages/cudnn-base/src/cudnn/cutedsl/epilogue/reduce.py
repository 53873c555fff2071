"""The small kernel that completes a sum whose parts were written apart."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32

THREADS = 256


class SumParts:
    """target[x, l] += sum over p, in order, of parts[p, x, l], one thread for each (x, l). ``target`` has axes (X, L) or (X, 1, L)."""

    @cute.jit
    def __call__(self, parts: cute.Tensor, target: cute.Tensor, stream):
        total = parts.shape[1] * parts.shape[2]
        self.kernel(parts, target).launch(grid=[cute.ceil_div(total, THREADS), 1, 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, parts: cute.Tensor, target: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        index = block * THREADS + thread
        extent = parts.shape[1]
        if index < extent * parts.shape[2]:
            batch = index // extent
            x = index - batch * extent
            total = Float32(0.0)
            for p in cutlass.range(parts.shape[0], unroll=8):
                total += parts[(p, x, batch)]
            if cutlass.const_expr(cute.rank(target) == 2):
                target[(x, batch)] = target[(x, batch)] + total
            else:
                target[(x, 0, batch)] = target[(x, 0, batch)] + total
