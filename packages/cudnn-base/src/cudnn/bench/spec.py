"""What an operation says about how it is measured."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Shape = tuple[int, ...]
Inputs = Mapping[str, Any]


@dataclass(frozen=True)
class Candidate:
    """One way to compute the operation, or a part of it.

    - ``name``: short and fixed, the word for ``--against``, tables, files and colours.
    - ``title``: what it is, for legends.
    - ``bind(inputs)``: everything that is not timed (compiling, arranging weights its own way, allocating); returns a callable without
      arguments that launches on the current stream and returns its outputs.
    - ``outputs(result)``: the outputs by the names of the benchmark's reference, arranged as there. Not timed. A candidate that computes a
      part gives that part.
    - ``missing()``: None, or why it cannot run here (a package that is not installed, an error of its own).
    - ``whole``: whether it does all of the operation's work; one that does not is a yardstick and enters no mean.
    - ``in_place``: ``bind`` allocates the outputs once and every call writes them, so that they can be checked after the timed replays.
    - ``merged``: the outputs of those that a call merges into what they hold, by name, and what they hold before.
    """

    name: str
    title: str
    bind: Callable[[Inputs], Callable[[], Any]]
    outputs: Callable[[Any], Mapping[str, torch.Tensor]]
    missing: Callable[[], str | None] = lambda: None
    whole: bool = True
    in_place: bool = False
    merged: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class HostPath:
    """One call path whose cost on the host is measured apart: ``bind(inputs)`` returns the call."""

    name: str
    bind: Callable[[Inputs], Callable[[], Any]]
    missing: Callable[[], str | None] = lambda: None


@dataclass(frozen=True)
class Benchmark:
    """How one operation is measured.

    - ``axes``: names of a shape's numbers, for example ("M", "N", "K").
    - ``shapes``: named sets of problem sizes; the first is the default.
    - ``inputs(shape, dtype, device, generator)``: random unit-scale tensors by name; ``dtype`` is a canonical name.
    - ``ours(config)``: our candidate; ``config`` is a dict of configuration fields, or None for the default rule. ``peers``: the others.
    - ``reference(inputs)``: the outputs in float32. ``baseline(inputs)``: the same in plain torch in the working dtype; a candidate's
      error may be twice its error.
    - ``flops(shape)`` and ``bytes(shape, dtype)``: the least work and traffic that the operation needs.
    - ``host_paths`` at ``host_shape``: calls whose host cost is reported.
    """

    op: str
    title: str
    axes: tuple[str, ...]
    shapes: Mapping[str, Sequence[Shape]]
    inputs: Callable[[Shape, str, torch.device, torch.Generator], Inputs]
    ours: Callable[[Mapping[str, object] | None], Candidate]
    peers: Sequence[Candidate]
    reference: Callable[[Inputs], Mapping[str, torch.Tensor]]
    baseline: Callable[[Inputs], Mapping[str, torch.Tensor]]
    flops: Callable[[Shape], float]
    bytes: Callable[[Shape, str], float]
    dtypes: tuple[str, ...] = ("bfloat16", "float16")
    host_paths: Sequence[HostPath] = ()
    host_shape: Shape = ()

    def parse_shapes(self, text: str | None) -> list[tuple[str, Shape]]:
        """(set, shape) for each size that ``text`` names: sets and sizes such as ``4096x4096x4096``, joined by commas; None is the first set.

        Raises ValueError for a name that is no set and a size that does not have one positive number per axis.
        """
        found: list[tuple[str, Shape]] = []
        for part in (text or next(iter(self.shapes))).split(","):
            part = part.strip()
            if part in self.shapes:
                found += [(part, shape) for shape in self.shapes[part]]
                continue
            numbers = part.split("x")
            if not all(n.isdigit() and int(n) > 0 for n in numbers) or len(numbers) != len(self.axes):
                raise ValueError(f"--shapes: found {part!r}, needs {' or '.join(self.shapes)}, or {'x'.join(self.axes)} with positive numbers")
            shape = tuple(int(n) for n in numbers)
            found.append((next((name for name, group in self.shapes.items() if shape in group), "custom"), shape))
        return list(dict.fromkeys(found))


def label(shape: Shape) -> str:
    """4096x4096x4096."""
    return "x".join(map(str, shape))


def find() -> tuple[dict[str, Benchmark], dict[str, str]]:
    """The benchmarks of the installed families by operation, and for those that could not be loaded the module and the reason.

    For an operation module ``family.op.api`` of a manifest they are in ``family.op.bench``, where that exists: one as BENCH, or several in BENCHES.
    """
    from cudnn import registry

    found: dict[str, Benchmark] = {}
    broken: dict[str, str] = {}
    for _, module in registry.operations():
        name = f"{module.rpartition('.')[0]}.bench"
        try:
            if importlib.util.find_spec(name) is None:
                continue
            loaded = importlib.import_module(name)
            benches = loaded.BENCHES if hasattr(loaded, "BENCHES") else (loaded.BENCH,)
        except Exception as error:
            broken[name] = f"{type(error).__name__}: {error}"
            continue
        found.update({bench.op: bench for bench in benches})
    return dict(sorted(found.items())), broken
