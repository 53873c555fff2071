"""Building many kernels at once in processes of their own, which see no GPU.

Plain subprocesses and not ``multiprocessing``: a script without a main guard may call this, a child is no fork of a process that holds a CUDA
context, and a worker that dies takes one kernel with it and not the pool.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cudnn.cache.worker import receive, send
from cudnn.logs import LOG_VARIABLE


class Spec(Protocol):
    """One kernel to build: picklable, and ``build()`` goes through ``cudnn.cache``."""

    @property
    def op(self) -> str: ...

    @property
    def label(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def arch(self) -> str: ...

    def build(self) -> Any: ...


@dataclass(frozen=True)
class Outcome:
    """How one spec fared: ``status`` is "compiled", "cached" (it was stored already) or "failed" with ``error``; ``seconds`` of compiling or loading."""

    spec: Any
    status: str
    seconds: float
    error: str = ""
    traceback: str = ""
    stored: bool = True


def default_jobs() -> int:
    """The number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Worker:
    def __init__(self, arch: str, environment: dict[str, str]) -> None:
        # No GPU: a compile needs none, and a context on each would take its memory. The architecture is pinned, so nothing asks a device for it.
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "CUTE_DSL_ARCH": arch, **environment}
        # The interpreter has to find this package before it is told the rest of the path.
        env["PYTHONPATH"] = os.pathsep.join([p for p in sys.path if p])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cudnn.cache.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
        )
        self._said: list[bytes] = []
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()
        send(self._process.stdin, list(sys.path))  # type: ignore[arg-type]

    def _collect(self) -> None:
        for line in self._process.stderr:  # type: ignore[union-attr]
            self._said = [*self._said[-19:], line]
            if os.environ.get(LOG_VARIABLE):
                sys.stderr.write(line.decode(errors="replace"))

    def build(self, data: bytes) -> dict[str, Any]:
        try:
            send(self._process.stdin, data)  # type: ignore[arg-type]
            return receive(self._process.stdout)  # type: ignore[arg-type]
        except (EOFError, OSError):
            code = self._process.wait()
            self._reader.join(1.0)
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            said = b"".join(self._said).decode(errors="replace").strip()
            return {"status": "died", "seconds": 0.0, "error": f"the compiling process {how}{': ' + said.splitlines()[-1] if said else ''}", "traceback": said}

    def close(self, *, kill: bool) -> None:
        if kill:
            self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            try:
                stream.close()  # type: ignore[union-attr]
            except OSError:
                pass
        self._process.wait()
        self._reader.join(1.0)
        self._process.stderr.close()  # type: ignore[union-attr]


def build_all(
    specs: Sequence[Spec],
    *,
    arch: str,
    jobs: int | None = None,
    environment: dict[str, str] | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Build ``specs`` in ``jobs`` processes (default: one per core); returns their outcomes in the order of ``specs``.

    ``environment`` is added to the workers' variables. ``on_outcome`` is called for each as it ends, one at a time. A spec that fails,
    or whose process dies, is an outcome and stops nothing. An interruption ends the workers at once.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs: found {jobs}, needs at least 1")
    outcomes: list[Outcome | None] = [None] * len(specs)
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(specs)):
        waiting.put(index)
    guard, stopping, workers = threading.Lock(), threading.Event(), set()
    broken: list[BaseException] = []

    def serve() -> None:
        worker = None
        try:
            while not stopping.is_set():
                try:
                    index = waiting.get_nowait()
                except queue.Empty:
                    return
                spec = specs[index]
                try:
                    data = pickle.dumps(spec)
                except Exception as error:
                    answer: dict[str, Any] = {"status": "failed", "seconds": 0.0, "error": f"not picklable: {type(error).__name__}: {error}"}
                else:
                    if worker is None:
                        worker = _Worker(arch, environment or {})
                        workers.add(worker)
                    answer = worker.build(data)
                if stopping.is_set():
                    return
                if answer["status"] == "died":
                    workers.discard(worker)
                    worker.close(kill=True)  # type: ignore[union-attr]
                    worker = None
                    answer["status"] = "failed"
                outcome = Outcome(spec, **answer)
                with guard:
                    outcomes[index] = outcome
                    if on_outcome is not None:
                        on_outcome(outcome)
        except BaseException as error:
            broken.append(error)
            stopping.set()
        finally:
            if worker is not None:
                worker.close(kill=stopping.is_set())

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(min(jobs or default_jobs(), len(specs)))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():  # in slices, so that an interruption is seen
                thread.join(0.2)
    except BaseException:
        stopping.set()
        for worker in list(workers):
            worker._process.kill()
        raise
    if broken:
        raise broken[0]
    return [outcome for outcome in outcomes if outcome is not None]
