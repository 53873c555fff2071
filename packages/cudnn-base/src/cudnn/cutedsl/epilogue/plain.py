"""The product itself."""

from __future__ import annotations

from cudnn.cutedsl.epilogue.op import Epilogue, StoreOp


class Plain(Epilogue):
    """D = alpha · S. Scalars: (alpha,). Tensors: (D (M, N, L),)."""

    scalar_count = 1

    def __init__(self, d_dtype, row_contiguous: bool):
        self.tensors = ((d_dtype, row_contiguous, "n"),)
        self.outputs = (StoreOp(d_dtype, row_contiguous),)

    def visit(self, slabs, position, scalars, store) -> None:
        (slab,) = slabs
        slab.store(slab.load() * scalars[0])
        store(0, slab, position)
