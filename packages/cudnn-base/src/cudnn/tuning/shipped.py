"""The kernels of results that families ship, for precompiling."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from cudnn.cutedsl.compile import KernelSpec
from cudnn.tuning import table


def with_shipped(package: str, specs: Iterable[Any]) -> list[Any]:
    """``specs``, and those of them that are GEMM kernels also in each configuration that a shipped result of ``package``, for any device, has for their problem."""
    specs = list(specs)
    found = dict.fromkeys(specs)
    for spec in specs:
        if isinstance(spec, KernelSpec):
            configs = table.shipped_configs(package, spec.op, spec.problem, spec.options)
            for config in configs:
                # Weights that are converted in front of the kernel reach it in 16 bits.
                problem = spec.problem if config.convert_b else replace(spec.problem, b_format=None)
                found[replace(spec, problem=problem, config=config)] = None
    return list(found)
