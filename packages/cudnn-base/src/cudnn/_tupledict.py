"""The published path of `TupleDict`."""

from __future__ import annotations

from cudnn.tuple_dict import TupleDict

__all__ = ["TupleDict"]
