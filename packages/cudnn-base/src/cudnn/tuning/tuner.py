"""Measuring: which of a call's configurations is the fastest on this device."""

from __future__ import annotations

import datetime
import statistics
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from cudnn.cache import pool, settings
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.device import device_info
from cudnn.logs import get_logger
from cudnn.tuning import copies, table
from cudnn.tuning.case import Candidate, Case, Result
from cudnn.tuning.progress import Progress

if TYPE_CHECKING:
    import torch

    from cudnn.bench.timing import Prepared

SCREENING_ROUNDS = 3
FINALISTS = 8
FINALIST_MARGIN = 1.15  # of the fastest in the screening
MARGIN = 1.01  # a configuration that is built anyway is taken unless another one is faster than this
REPEATS = 25

log = get_logger("cudnn.tuning")

Call = Callable[[], Any]


class Clock(Protocol):
    """What the tuner needs of a timer; the tests bring a made-up one."""

    def estimate(self, calls: Sequence[Call]) -> float: ...

    def prepare(self, name: str, calls: Sequence[Call]) -> Prepared: ...

    def measure(self, prepared: Mapping[str, Prepared], repeats: int) -> dict[str, list[float]]: ...


class Visitor(Protocol):
    """Who is told of every call while ``cudnn.tuning.state.active`` holds it."""

    def visit(self, operation: Any, token: Hashable, describe: Callable[[], Case], why_not: str | None) -> bool:
        """``describe()`` makes the case of this call; ``why_not`` is the reason why there is none. Calls of one operation with equal tokens are alike. False keeps the call from running."""


class Tuner:
    """Tunes calls as they come, one at a time, and collects ``results``. Calls that cannot be tuned are in ``left_out`` with the reason.

    Args:
        again: also measure what has a result already.
        repeats: timed rounds of the best configurations.
        jobs: processes that compile; None is one per core.
        clock: device ordinal -> timer.
    """

    def __init__(
        self,
        *,
        again: bool = False,
        repeats: int = REPEATS,
        jobs: int | None = None,
        progress: Progress | None = None,
        clock: Callable[[int], Clock] | None = None,
        on_result: Callable[[Result], None] | None = None,
    ) -> None:
        self.again, self.repeats, self.jobs = again, repeats, jobs
        self.progress = progress or Progress()
        self.results: list[Result] = []
        self.entries: list[table.Entry] = []
        self.left_out: list[str] = []
        self._clock = clock or _cuda_timer
        self._on_result = on_result
        self._lock = threading.RLock()
        self._seen: set[tuple[Any, Hashable]] = set()
        self._done: set[tuple[int, tuple[str, table.Bucket]]] = set()

    def visit(self, operation: Any, token: Hashable, describe: Callable[[], Case], why_not: str | None) -> bool:
        """Tune this call unless its problem and bucket of extents have a result, which the operation then uses. The call runs afterwards."""
        if (operation, token) in self._seen:
            return True
        if why_not is not None:
            self._leave_out(f"{type(operation).__name__}: {why_not}")
            return True
        case = describe()
        if _capturing(case.tensors[0]):
            self._leave_out(f"{case.label}: the call was captured into a CUDA graph, where nothing can be measured; make one call before the capture")
            return True
        device = case.tensors[0].get_device()
        key = table.problem_key(case.op, table.described(case.problem), table.described(case.options)), case.bucket
        with self._lock:
            self._seen.add((operation, token))
            known = None if self.again and (device, key) not in self._done else self._known(case, key, device)
            if known is not None:
                case.adopt(known)
                return True
            self._done.add((device, key))
            result = self.tune(case)
        self.results.append(result)
        if self._on_result is not None:
            self._on_result(result)
        return True

    def _leave_out(self, reason: str) -> None:
        if reason not in self.left_out:
            self.left_out.append(reason)
            log.info("not tuned: %s", reason)

    def _known(self, case: Case, key: tuple[str, table.Bucket], device: int) -> GemmConfig | None:
        name = device_name(device)
        entries = (*table.kept(name), *table.read(table.shipped_path(case.package, name)))
        return next((entry.config for entry in entries if entry.key == key), None)

    def tune(self, case: Case) -> Result:
        """Measure all candidates, remember the best and make the operation use it.

        Raises:
            RuntimeError: the default configuration itself does not build or run.
        """
        started = time.perf_counter()
        found = {config: Candidate(config) for config in dict.fromkeys((case.default, *case.candidates))}

        def skip(config: GemmConfig, reason: str) -> None:
            if config == case.default:
                raise RuntimeError(f"{case.label}: the default configuration {config} failed: {reason}")
            found[config] = Candidate(config, reason=reason)
            log.info("%s: %s skipped: %s", case.label, config, reason)

        def left() -> list[GemmConfig]:
            return [config for config, candidate in found.items() if not candidate.reason]

        self._compile(case, left(), skip)
        sets = [tuple(map(copies.copy_of, case.tensors)) for _ in range(copies.set_count(case.tensors))]
        calls = self._bind(case, left(), sets, skip)
        self._check(case, left(), sets[0], calls, skip)
        clock = self._clock(case.tensors[0].get_device())
        screened = self._screen(case, left(), calls, clock)
        for config, us in screened.items():
            found[config] = Candidate(config, screened_us=us)
        times = self._measure(case, screened, calls, clock, skip)
        for config, us in times.items():
            found[config] = Candidate(config, us, screened[config])
        best = pick(times, case)
        result = Result(
            case.op,
            case.label,
            case.extents,
            case.default,
            times[case.default],
            best,
            times[best],
            tuple(sorted(found.values(), key=_rank)),
            time.perf_counter() - started,
            self._remember(case, best, times),
        )
        case.adopt(best)
        return result

    def _compile(self, case: Case, configs: Sequence[GemmConfig], skip: Callable[[GemmConfig, str], None]) -> None:
        """Put the kernels on disk, in parallel; without a disk store they are built one by one when they are bound."""
        if settings.directory() is None:
            return
        self.progress.phase(f"{case.label}: compiling", len(configs))
        specs = [case.spec(config) for config in configs]
        outcomes = pool.build_all(specs, arch=specs[0].arch, jobs=self.jobs, on_outcome=lambda outcome: self.progress.step())
        for config, outcome in zip(configs, outcomes, strict=True):
            if outcome.status == "failed":
                skip(config, outcome.error)

    def _bind(
        self, case: Case, configs: Sequence[GemmConfig], sets: Sequence[tuple[torch.Tensor, ...]], skip: Callable[[GemmConfig, str], None]
    ) -> dict[GemmConfig, list[Call]]:
        calls: dict[GemmConfig, list[Call]] = {}
        self.progress.phase(f"{case.label}: loading", len(configs))
        for config in configs:
            try:
                calls[config] = [case.bind(config, tensors) for tensors in sets]
            except Exception as error:  # one that does not build is no reason to stop
                skip(config, f"{type(error).__name__}: {error}")
            self.progress.step()
        return calls

    def _check(
        self,
        case: Case,
        configs: Sequence[GemmConfig],
        tensors: tuple[torch.Tensor, ...],
        calls: Mapping[GemmConfig, Sequence[Call]],
        skip: Callable[[GemmConfig, str], None],
    ) -> None:
        """Compare what every configuration writes with what the default one writes."""
        written, originals = tensors[case.operands :], case.tensors[case.operands :]

        def run(config: GemmConfig, poisoned: Sequence[int]) -> list[torch.Tensor]:
            for i, (mine, original) in enumerate(zip(written, originals, strict=True)):
                copies.flat(mine).copy_(copies.flat(original))
                if i in poisoned:
                    copies.poison(mine)
            calls[config][0]()
            _synchronize(tensors[0])
            return [t.clone() for t in written]

        self.progress.phase(f"{case.label}: checking", len(configs))
        try:
            expected = run(case.default, ())
            # What does not depend on what was there before is an output alone, and is poisoned from now on; an addend, or a maximum that is added to, is not.
            outputs = [
                i
                for i in range(len(written))
                if copies.can_poison(written[i])
                and all(copies.disagreement(f, e, case.tolerance) is None for f, e in zip(run(case.default, (i,)), expected, strict=True))
            ]
        except Exception as error:
            skip(case.default, f"{type(error).__name__}: {error}")
        for config in configs:
            try:
                differences = [copies.disagreement(f, e, case.tolerance) for f, e in zip(run(config, outputs), expected, strict=True)]
            except Exception as error:  # a launch that is refused
                skip(config, f"{type(error).__name__}: {error}")
            else:
                wrong = next((difference for difference in differences if difference is not None), None)
                if wrong is not None:
                    skip(config, f"wrong: {wrong}")
            self.progress.step()

    def _screen(self, case: Case, configs: Sequence[GemmConfig], calls: Mapping[GemmConfig, Sequence[Call]], clock: Clock) -> dict[GemmConfig, float]:
        """Rough microseconds of all, in turn."""
        self.progress.phase(f"{case.label}: screening", SCREENING_ROUNDS * len(configs))
        times: dict[GemmConfig, list[float]] = {config: [] for config in configs}
        for _ in range(SCREENING_ROUNDS):
            for config in configs:
                times[config].append(clock.estimate(calls[config]))
                self.progress.step()
        return {config: statistics.median(values) for config, values in times.items()}

    def _measure(
        self,
        case: Case,
        screened: Mapping[GemmConfig, float],
        calls: Mapping[GemmConfig, Sequence[Call]],
        clock: Clock,
        skip: Callable[[GemmConfig, str], None],
    ) -> dict[GemmConfig, float]:
        """Microseconds of the default configuration and of those that screened best: medians of interleaved rounds."""
        limit = FINALIST_MARGIN * min(screened.values())
        finalists = [config for config in sorted(screened, key=screened.__getitem__)[:FINALISTS] if screened[config] <= limit]
        self.progress.phase(f"{case.label}: timing", 1)
        prepared: dict[GemmConfig, Prepared] = {}
        for config in dict.fromkeys((case.default, *finalists)):
            try:
                prepared[config] = clock.prepare(str(config), calls[config])
            except Exception as error:
                skip(config, f"{type(error).__name__}: {error}")
        names = {f"{i}": config for i, config in enumerate(prepared)}
        times = clock.measure({name: prepared[config] for name, config in names.items()}, self.repeats)
        self.progress.step()
        return {config: statistics.median(times[name]) for name, config in names.items()}

    def _remember(self, case: Case, best: GemmConfig, times: Mapping[GemmConfig, float]) -> str | None:
        name = device_name(case.tensors[0].get_device())
        entry = entry_of(case, best, times[best], times[case.default])
        self.entries.append(entry)
        path = table.remember(name, entry)
        return None if path is None else str(path)


def pick(times: Mapping[GemmConfig, float], case: Case) -> GemmConfig:
    """The fastest; of those that are nearly as fast the default one, then one that is built anyway, so that objects are not compiled in more configurations for nothing."""
    limit = MARGIN * min(times.values())
    near = [config for config, us in times.items() if us <= limit]
    return min(near, key=lambda config: (config != case.default, config not in case.built, times[config]))


def entry_of(case: Case, best: GemmConfig, us: float, default_us: float) -> table.Entry:
    from cudnn.cache.keys import versions

    about = {"extents": list(case.extents), "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"), "versions": versions()}
    return table.Entry(case.op, table.described(case.problem), table.described(case.options), case.bucket, best, us, case.default, default_us, about)


class Collector:
    """Lists the kernels that tuning would build, and keeps calls from running. Needs no GPU."""

    def __init__(self) -> None:
        self.specs: list[Any] = []

    def visit(self, operation: Any, token: Hashable, describe: Callable[[], Case], why_not: str | None) -> bool:
        case = describe()
        self.specs += [case.spec(config) for config in dict.fromkeys((case.default, *case.candidates))]
        return False


def device_name(ordinal: int) -> str:
    """Name of a CUDA device."""
    return device_info(ordinal).device_name


def _rank(candidate: Candidate) -> tuple[bool, bool, float]:
    return bool(candidate.reason), candidate.us is None, candidate.us or candidate.screened_us or 0.0


def _cuda_timer(ordinal: int) -> Clock:
    from cudnn.bench.timing import CudaTimer

    return CudaTimer(f"cuda:{ordinal}")


def _capturing(t: torch.Tensor) -> bool:
    import torch

    return t.is_cuda and torch.cuda.is_current_stream_capturing()


def _synchronize(t: torch.Tensor) -> None:
    import torch

    if t.is_cuda:
        torch.cuda.synchronize(t.device)
