"""Reference engine: what every operation computes, in plain torch.

Works in float32 (float64 on request), takes any strides and any device, and is what CPU calls, the tests and the documentation use.
Torch is imported by the functions, not by this module.
"""

from __future__ import annotations

from cudnn.reference.block_scale import cast_scale, dequantize_blocks, dequantize_operand, quantize_blocks, scales_from_blocked, scales_to_blocked
from cudnn.reference.gated import (
    GLU_LAYOUTS,
    GLU_ORDERS,
    GROUPED_GLU_LAYOUTS,
    deinterleave_gate_up,
    interleave_gate_up,
    join_gate_up,
    split_gate_up,
    swiglu,
    swiglu_backward,
)
from cudnn.reference.gemm import cast, full_float32, matmul, merge_amax

__all__ = [
    "GLU_LAYOUTS",
    "GLU_ORDERS",
    "GROUPED_GLU_LAYOUTS",
    "cast",
    "cast_scale",
    "deinterleave_gate_up",
    "dequantize_blocks",
    "dequantize_operand",
    "full_float32",
    "interleave_gate_up",
    "join_gate_up",
    "matmul",
    "merge_amax",
    "quantize_blocks",
    "scales_from_blocked",
    "scales_to_blocked",
    "split_gate_up",
    "swiglu",
    "swiglu_backward",
]
