"""The reference engine: every node in plain torch.

It runs graphs on CPU tensors, on CUDA tensors on request, and is what tests compare other engines with. ``cudnn.gemm.reference`` is the part for graphs of
matmul and pointwise nodes.
"""

from __future__ import annotations

from cudnn_graph.reference.engine import GemmReferenceEngine, ReferenceEngine, run

__all__ = ["GemmReferenceEngine", "ReferenceEngine", "run"]
