"""Conversion between the 32-wide interleave and concatenated halves, reached as `cudnn.ops.interleave_gate_up` and `cudnn.ops.deinterleave_gate_up`."""

from __future__ import annotations

from cudnn.reference.gated import deinterleave_gate_up, interleave_gate_up

__all__ = ["deinterleave_gate_up", "interleave_gate_up"]
