"""The exceptions of the project. Each is a subclass of the built-in one that callers are told to expect."""

from __future__ import annotations


class KernelUnavailableError(ImportError):
    """A known public name cannot be used here: its distribution is not installed, or it is broken, incompatible, disabled, or lacks a dependency.

    Attributes:
        name: the public name or module asked for.
        distribution: the distribution that provides it, or None.
    """

    def __init__(self, message: str, *, name: str | None = None, distribution: str | None = None) -> None:
        super().__init__(message, name=name)
        self.distribution = distribution


class ArchitectureError(RuntimeError):
    """The device cannot run the kernel: another compute capability, or no CUDA device at all."""


class cudnnGraphNotSupportedError(Exception):
    """No engine serves this graph, or a data type has no counterpart in the graph API. Derives from Exception alone, as callers of the published API expect."""
