"""Scalar activations in float32."""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float32

LOG2_E = 1.4426950408889634


def sigmoid(x: Float32) -> Float32:
    """1 / (1 + e^-x), by the hardware's exp2 and reciprocal: about 2 units in the last place of float32, 0 and 1 at the ends."""
    return cute.arch.rcp_approx(Float32(1.0) + cute.arch.exp2(x * Float32(-LOG2_E)))


def silu(x: Float32) -> Float32:
    """x sigmoid(x)."""
    return x * sigmoid(x)
