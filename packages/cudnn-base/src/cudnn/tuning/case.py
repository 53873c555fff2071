"""What the tuner needs to know of one call of an operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.tuning.table import Bucket, bucket, described

if TYPE_CHECKING:
    import torch

    from cudnn.cache.pool import Spec


@dataclass(frozen=True)
class Case:
    """One call: what is computed, in which configurations it can be, and how to run it in one of them.

    - ``problem``, ``options``: frozen dataclasses, as in the kernel's description.
    - ``extents``: M, N, K, L.
    - ``default``: what the default rule takes; ``built``: what it chooses from, which is built anyway; ``candidates``: all that are worth a try and fit.
    - ``package``: whose shipped results count.
    - ``tensors``: what the kernel is called with, ``operands`` of them first, which it only reads.
    - ``spec(config)``: the kernel to build.
    - ``bind(config, tensors)``: builds it and returns a call that launches it on torch's current stream with other tensors of the same layout.
    - ``adopt(config)``: makes the operation use it for these extents from now on.
    - ``tolerance``: how far, relative to values of unit size, sums of two configurations may differ beyond the rounding of the output.
    """

    op: str
    problem: Any
    options: Any
    extents: tuple[int, int, int, int]
    default: GemmConfig
    built: tuple[GemmConfig, ...]
    candidates: tuple[GemmConfig, ...]
    package: str
    tensors: tuple[torch.Tensor, ...]
    operands: int
    spec: Callable[[GemmConfig], Spec]
    bind: Callable[[GemmConfig, tuple[Any, ...]], Callable[[], Any]]
    adopt: Callable[[GemmConfig], None]
    tolerance: float = 2.0**-12

    @property
    def bucket(self) -> Bucket:
        return bucket(*self.extents)

    @property
    def label(self) -> str:
        *extents, batches = self.extents
        words = (self.op, *map(str, described(self.problem).values()), "x".join(map(str, extents)))
        return " ".join(words) + (f" L{batches}" if batches > 1 else "")


@dataclass(frozen=True)
class Candidate:
    """How one configuration fared: ``us`` microseconds per call (None: not in the last round), ``screened_us`` in the first, or the ``reason`` why it has no time."""

    config: GemmConfig
    us: float | None = None
    screened_us: float | None = None
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        found: Mapping[str, Any] = {"us": self.us, "screened_us": self.screened_us, "reason": self.reason}
        return {"config": self.config.as_dict(), "name": str(self.config), **{name: value for name, value in found.items() if value}}


@dataclass(frozen=True)
class Result:
    """What tuning one call gave. ``kept`` is the file that remembers it; None where the disk store is off."""

    op: str
    label: str
    extents: tuple[int, int, int, int]
    default: GemmConfig
    default_us: float
    best: GemmConfig
    best_us: float
    candidates: tuple[Candidate, ...]
    seconds: float
    kept: str | None

    @property
    def speedup(self) -> float:
        """Time of the default configuration over that of the best one."""
        return self.default_us / self.best_us

    @property
    def skipped(self) -> tuple[Candidate, ...]:
        """The candidates that failed, with the reason."""
        return tuple(candidate for candidate in self.candidates if candidate.reason)

    def as_dict(self) -> dict[str, Any]:
        """JSON data."""
        return {
            "op": self.op,
            "label": self.label,
            "extents": list(self.extents),
            "default": self.default.as_dict(),
            "default_us": self.default_us,
            "best": self.best.as_dict(),
            "best_us": self.best_us,
            "speedup": self.speedup,
            "seconds": round(self.seconds, 2),
            "kept": self.kept,
            "candidates": [candidate.as_dict() for candidate in self.candidates],
        }

    def __str__(self) -> str:
        tried, failed = len(self.candidates) - len(self.skipped), len(self.skipped)
        skipped = f", {failed} skipped" if failed else ""
        return f"{self.label}: {self.best} {self.best_us:.1f} us, default {self.default} {self.default_us:.1f} us ({self.speedup:.3f}x; {tried} tried{skipped}, {self.seconds:.1f} s)"
