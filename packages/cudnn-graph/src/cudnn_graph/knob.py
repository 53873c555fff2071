# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""``cudnn.knob``: the range of one tuning knob of an engine."""

from __future__ import annotations

from cudnn_graph.enums import knob_type as _knob_type


class knob:
    """One knob of an engine: its type, and the smallest and largest value and the step between values."""

    __slots__ = ("_type", "_max_value", "_min_value", "_stride")

    def __init__(
        self,
        knob_type: _knob_type = _knob_type.NOT_SET,
        max_value: int | None = None,
        min_value: int | None = None,
        stride: int | None = None,
    ) -> None:
        if not isinstance(knob_type, _knob_type):
            raise TypeError(f"knob: knob_type must be a cudnn.knob_type, got {knob_type!r}")
        self._type = knob_type
        self._max_value = max_value
        self._min_value = min_value
        self._stride = stride

    @property
    def type(self) -> _knob_type:
        """Which knob it is."""
        return self._type

    @property
    def max_value(self) -> int | None:
        """Largest value."""
        return self._max_value

    @property
    def min_value(self) -> int | None:
        """Smallest value."""
        return self._min_value

    @property
    def stride(self) -> int | None:
        """Step between values."""
        return self._stride

    def __repr__(self) -> str:
        return f"knob({self._type.name}, max_value={self._max_value}, min_value={self._min_value}, stride={self._stride})"
