"""Measuring operations against what people would use instead: ``python -m cudnn bench``.

An operation brings a ``bench.py`` beside its API, which exports ``BENCH``, a ``Benchmark`` (or ``BENCHES``, several): problem sizes, random inputs, ours and the peers, the
float32 reference, floating-point operations and bytes. Everything else is here: timing, correctness, floors, reports, plots.
"""

from __future__ import annotations

from cudnn.bench.spec import Benchmark, Candidate, HostPath, Shape

__all__ = ["Benchmark", "Candidate", "HostPath", "Shape"]
