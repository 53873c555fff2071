"""GPU and host time of calls.

GPU time: every candidate's calls over rotated inputs are captured in one CUDA graph (or, where capture fails, launched behind a device-side
delay that covers the host), and the graphs of all candidates are replayed in turn, round after round, between CUDA events. So no host cost is
in the numbers, the L2 cache holds nothing useful at the start of a call, and drifting clocks hit all candidates alike.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

TARGET_US = 3000.0  # length of one candidate's turn: long against the launch of a graph, short enough for clocks not to move
MAX_CALLS = 64
WARM_UP = 3
_CYCLES_PER_US = 1800.0  # of the SM clock, roughly; only the length of the delay depends on it


@dataclass
class Prepared:
    """A candidate ready to be timed: ``run()`` makes ``calls`` calls; ``method`` says how. ``cover_us`` is the host time it needs to launch."""

    run: Callable[[], Any]
    calls: int
    method: str
    cover_us: float
    note: str = ""


class Timer(Protocol):
    """What the runner needs of a clock; the tests bring a made-up one."""

    def prepare(self, name: str, calls: Sequence[Callable[[], Any]]) -> Prepared: ...

    def measure(self, prepared: Mapping[str, Prepared], repeats: int) -> dict[str, list[float]]: ...

    def keep_busy(self, prepared: Prepared, us: float) -> None: ...

    def host(self, name: str, call: Callable[[], Any]) -> list[float]: ...


class CudaTimer:
    """The clock of one CUDA device."""

    def __init__(self, device: Any) -> None:
        import torch

        self._torch = torch
        self.device = torch.device(device)

    def prepare(self, name: str, calls: Sequence[Callable[[], Any]]) -> Prepared:
        """Warm ``calls`` (one per set of inputs) up and put enough of them in a row to fill a candidate's turn."""
        torch = self._torch
        for _ in range(WARM_UP):
            for call in calls:
                call()
        torch.cuda.synchronize(self.device)
        once = self.estimate(calls)
        rounds = max(1, min(MAX_CALLS, int(TARGET_US / max(once, 0.5))) // len(calls))
        row = list(calls) * rounds
        started = time.perf_counter()
        for call in row:
            call()
        enqueue_us = (time.perf_counter() - started) * 1e6
        torch.cuda.synchronize(self.device)
        gc.collect()  # a tensor freed by the collector in the middle of a capture would end it
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                for call in row:
                    call()
            torch.cuda.synchronize(self.device)
            graph.replay()
            torch.cuda.synchronize(self.device)
        except Exception as error:  # whatever a peer does that capture forbids
            torch.cuda.synchronize(self.device)

            def eager() -> None:
                for call in row:
                    call()

            return Prepared(
                eager, len(row), "events", enqueue_us, f"no graph capture: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            )
        return Prepared(graph.replay, len(row), "graph", 30.0)

    def estimate(self, calls: Sequence[Callable[[], Any]]) -> float:
        """GPU microseconds of one call, roughly."""
        start, end = self._event(), self._event()
        self._delay(2000.0)
        start.record()
        for call in calls:
            call()
        end.record()
        self._torch.cuda.synchronize(self.device)
        return start.elapsed_time(end) * 1e3 / len(calls)

    def measure(self, prepared: Mapping[str, Prepared], repeats: int) -> dict[str, list[float]]:
        """Microseconds per call, ``repeats`` numbers for each: one turn of every candidate per round, in a random order each round.

        In a fixed order whoever comes after a slow candidate that draws little power would find a cooler device with a higher clock, every time.
        """
        names, order = list(prepared), random.Random(len(prepared))
        times: dict[str, list[float]] = {name: [] for name in names}
        for name in names:
            prepared[name].run()
        self._torch.cuda.synchronize(self.device)
        for _ in range(repeats):
            for name in order.sample(names, len(names)):
                candidate = prepared[name]
                start, end = self._event(), self._event()
                self._delay(1.5 * candidate.cover_us + 20.0)  # so that the start event waits for nothing the host does
                start.record()
                candidate.run()
                end.record()
                end.synchronize()
                times[name].append(start.elapsed_time(end) * 1e3 / candidate.calls)
        return times

    def keep_busy(self, prepared: Prepared, us: float, *, seconds: float = 0.6) -> None:
        """Queue so many turns (``us`` a call) that the device works while its clocks are read, and return at once."""
        for _ in range(max(1, min(500, int(seconds * 1e6 / (us * prepared.calls))))):
            prepared.run()

    def host(self, name: str, call: Callable[[], Any], *, blocks: int = 40, calls: int = 50) -> list[float]:
        """Microseconds that one call takes on the host, one number per block of calls. The device is idle at the start of a block, and its queue
        holds more than a block, so that nothing waits for it."""
        synchronize = self._torch.cuda.synchronize
        for _ in range(calls):
            call()
        times = []
        collecting = gc.isenabled()
        gc.disable()
        try:
            for _ in range(blocks):
                synchronize(self.device)
                started = time.perf_counter()
                for _ in range(calls):
                    call()
                times.append((time.perf_counter() - started) * 1e6 / calls)
            synchronize(self.device)
        finally:
            if collecting:
                gc.enable()
        return times

    def _event(self) -> Any:
        return self._torch.cuda.Event(enable_timing=True)

    def _delay(self, us: float) -> None:
        self._torch.cuda._sleep(int(min(us, 50_000.0) * _CYCLES_PER_US))


def measure_rates(
    timer: Timer, dtype: str, device: Any, *, extents: Sequence[int] = (4096, 8192), copy_bytes: int = 2 << 30, repeats: int = 20
) -> dict[str, float]:
    """What this device does today: ``matmul_tflops`` is the best that torch's products reach on square problems of ``dtype``, ``copy_tb_s`` what a
    device-to-device copy moves, bytes read and written together."""
    copied = _median(timer, [_copy(copy_bytes, device)], repeats)
    best = max(2.0 * extent**3 / _median(timer, [_matmul(extent, dtype, device) for _ in range(2)], repeats) / 1e6 for extent in extents)
    return {"matmul_tflops": best, "copy_tb_s": 2.0 * copy_bytes / copied / 1e6}


def _median(timer: Timer, calls: Sequence[Callable[[], Any]], repeats: int) -> float:
    return statistics.median(timer.measure({"rate": timer.prepare("rate", calls)}, repeats)["rate"])


def _copy(count: int, device: Any) -> Callable[[], Any]:
    import torch

    # An elementwise kernel, as what is measured is: the driver's own copy moved 2.7 TB/s in a replayed graph where this moves 4.2 (H200, 2026-11-30).
    source = torch.empty(count // 4, dtype=torch.int32, device=device).random_()
    target = torch.empty_like(source)
    return lambda: torch.bitwise_not(source, out=target)


def _matmul(extent: int, dtype: str, device: Any) -> Callable[[], Any]:
    import torch

    a, b = (torch.randn(extent, extent, device=device).to(getattr(torch, dtype)) for _ in range(2))
    if a.dtype.itemsize == 1:
        from cudnn.bench.dense import cublaslt_fp8

        multiply: Callable[[], Any] = cublaslt_fp8("d").bind({"a": a, "b": b})
        return multiply
    return lambda: torch.matmul(a, b.t())
