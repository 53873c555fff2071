"""Python objects inside device loops."""

from __future__ import annotations


class LoopInvariant:
    """Base of objects that device code calls inside a dynamic loop and that no iteration changes.

    The DSL carries every object whose method a loop calls through that loop; this one has nothing to carry: the values it holds were made before the loop and stay valid in it.
    """

    def __extract_mlir_values__(self):
        return []

    def __get_mlir_types__(self):
        return []

    def __new_from_mlir_values__(self, values):
        return self
