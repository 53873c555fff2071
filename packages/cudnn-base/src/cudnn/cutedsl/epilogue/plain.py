"""The product itself."""

from __future__ import annotations

from cudnn.cutedsl.epilogue.op import Epilogue, StoreOp, matrix


class Plain(Epilogue):
    """D = alpha · S. Scalars: (alpha,). Tensors: (D (M, N, L),)."""

    scalar_count = 1

    def __init__(self, d_dtype, row_contiguous: bool):
        self.tensors = (matrix(d_dtype, row_contiguous),)
        self.stores = (StoreOp(d_dtype, row_contiguous),)

    def visit(self, v) -> None:
        (slab,) = v.values
        slab.store(slab.load() * v.scalars[0])
        v.store(0, slab, v.position)
