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
            # Results are kept for the problem as it is given; a kernel that swaps operands sees its transpose.
            problem, options = (spec.problem.swapped, spec.options.swapped) if spec.config.swap else (spec.problem, spec.options)
            for config in table.shipped_configs(package, spec.op, problem, options):
                if config.swap:
                    found[replace(spec, problem=problem.swapped, options=options.swapped, config=config)] = None
                else:
                    # Weights that are converted in front of the kernel reach it in 16 bits.
                    seen = problem if config.convert_b else replace(problem, b_format=None)
                    found[replace(spec, problem=seen, options=options, config=config)] = None
    return list(found)
