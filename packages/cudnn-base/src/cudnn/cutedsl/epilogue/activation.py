"""Scalar activations in float32, and the arithmetic of gated pairs, forward and backward. Every family's fusions take them from here."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32

LOG2_E = 1.4426950408889634


def sigmoid(x: Float32) -> Float32:
    """1 / (1 + e^-x), by the hardware's exp2 and reciprocal: about 2 units in the last place of float32, 0 and 1 at the ends."""
    return cute.arch.rcp_approx(Float32(1.0) + cute.math.exp2(x * Float32(-LOG2_E), fastmath=True))


def silu(x: Float32) -> Float32:
    """x sigmoid(x)."""
    return x * sigmoid(x)


def relu(x: Float32) -> Float32:
    """max(x, 0); NaN stays NaN."""
    return cute.arch.fmax(x, Float32(0.0), nan=True)


def smaller(x: Float32, y: Float32) -> Float32:
    """min(x, y); NaN stays NaN."""
    return cute.arch.fmin(x, y, nan=True)


def larger(x: Float32, y: Float32) -> Float32:
    """max(x, y); NaN stays NaN."""
    return cute.arch.fmax(x, y, nan=True)


def tanh(x: Float32) -> Float32:
    """The hyperbolic tangent, to about 1e-6 of its value (the hardware's own is good to 5e-4)."""
    # 1 - 2 / (1 + e^2x) loses digits near 0, where three terms of the series have them all.
    square = x * x
    near = x * (Float32(1.0) + square * (Float32(-1.0 / 3.0) + square * (Float32(2.0 / 15.0) - square * Float32(17.0 / 315.0))))
    far = Float32(1.0) - Float32(2.0) * cute.arch.rcp_approx(Float32(1.0) + cute.math.exp2(x * Float32(2.0 * LOG2_E), fastmath=True))
    return cutlass.select_(square < Float32(0.04), near, far)


class Swiglu:
    """up · silu(gate). No scalars."""

    scalar_count = 0

    def forward(self, gate: Float32, up: Float32, scalars) -> Float32:
        return up * silu(gate)

    def backward(self, gate: Float32, up: Float32, grad: Float32, scalars) -> tuple[Float32, Float32, Float32]:
        """(gradient of the gate, gradient of up, up · silu(gate)) from the gradient of the result."""
        s = sigmoid(gate)
        activated = gate * s
        return grad * up * (s + activated * (Float32(1.0) - s)), grad * activated, up * activated


class Situ:
    """λ tanh(up / λ) · β tanh(gate / β) sigmoid(gate). Scalars: (β, 1 / β, λ, 1 / λ)."""

    scalar_count = 4

    def forward(self, gate: Float32, up: Float32, scalars) -> Float32:
        beta, inverse_beta, linear, inverse_linear = scalars
        return linear * tanh(up * inverse_linear) * (beta * tanh(gate * inverse_beta) * sigmoid(gate))

    def backward(self, gate: Float32, up: Float32, grad: Float32, scalars) -> tuple[Float32, Float32, Float32]:
        """As ``Swiglu.backward``."""
        beta, inverse_beta, linear, inverse_linear = scalars
        s = sigmoid(gate)
        bent_gate, bent_up = tanh(gate * inverse_beta), tanh(up * inverse_linear)
        activated, scaled_up = beta * bent_gate * s, linear * bent_up
        d_activated = s * ((Float32(1.0) - bent_gate * bent_gate) + beta * bent_gate * (Float32(1.0) - s))
        return grad * scaled_up * d_activated, grad * activated * (Float32(1.0) - bent_up * bent_up), scaled_up * activated


class Geglu:
    """(up' + offset) gate' sigmoid(a gate') with gate' = min(gate, high) and up' = max(min(up, high), low), the form of the gpt-oss models. Scalars: (offset, a, high, low)."""

    scalar_count = 4

    def forward(self, gate: Float32, up: Float32, scalars) -> Float32:
        offset, a, high, low = scalars
        gate = smaller(gate, high)
        return (larger(smaller(up, high), low) + offset) * (gate * sigmoid(a * gate))

    def backward(self, gate: Float32, up: Float32, grad: Float32, scalars) -> tuple[Float32, Float32, Float32]:
        """As ``Swiglu.backward``; the gradient of what is cut off is 0."""
        offset, a, high, low = scalars
        inside_gate, inside_up = gate <= high, (up <= high) & (up >= low)
        gate = smaller(gate, high)
        linear = larger(smaller(up, high), low) + offset
        s = sigmoid(a * gate)
        activated = gate * s
        d_gate = grad * s * (Float32(1.0) + a * gate * (Float32(1.0) - s)) * linear
        zero = Float32(0.0)
        return cutlass.select_(inside_gate, d_gate, zero), cutlass.select_(inside_up, grad * activated, zero), activated * linear


GATED = {"swiglu": Swiglu, "situ": Situ, "geglu": Geglu}
