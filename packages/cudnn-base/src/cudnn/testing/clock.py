"""A clock for the tests of benchmarks, which are about what is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cudnn.bench.timing import Prepared


class OneCall:
    """Makes the calls that it is given, and shows 1 us for each."""

    def prepare(self, name: str, calls: Sequence[Callable[[], Any]]) -> Prepared:
        def run() -> None:
            for call in calls:
                call()

        return Prepared(run, len(calls), "graph", 0.0)

    def measure(self, prepared: Mapping[str, Prepared], repeats: int) -> dict[str, list[float]]:
        for candidate in prepared.values():
            candidate.run()
        return {name: [1.0] * repeats for name in prepared}

    def keep_busy(self, prepared: Prepared, us: float) -> None:
        prepared.run()

    def host(self, name: str, call: Callable[[], Any]) -> list[float]:
        call()
        return [1.0]
