"""Fused GEMM kernels and a graph API. Every public name resolves on first use, through the installed families."""

from __future__ import annotations

from cudnn._version import __version__ as __version__
