"""How the tensors of a GEMM operation have to fit each other, on metadata alone: shapes by named axes, the contiguous axis of each matrix, lines of whole 16 bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple, Protocol

from cudnn import checks
from cudnn.datatypes import itemsize_bits
from cudnn.tensors import Metadata

# Axes whose extent is that of another one times a factor.
_NUMBERS = ("a scalar", "one axis", "two axes", "three axes")
_MULTIPLES = {"n/2": ("n", 1, 2), "2n": ("n", 2, 1)}


class Extents(NamedTuple):
    """M, N, K and L of one problem."""

    m: int
    n: int
    k: int
    batches: int


class Layout(Protocol):
    """What an operation asks about its tensors, operands first."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors in order."""

    @property
    def matrices(self) -> Sequence[int]:
        """Which of them are read or written by the copy engine, and so start on 16 bytes."""

    def extents(self, metas: Sequence[Metadata]) -> Extents:
        """M, N, K and L, which all tensors agree on. ValueError naming the first that does not."""

    def majors(self, metas: Sequence[Metadata], bound: Mapping[str, str] | None = None) -> dict[str, str]:
        """The contiguous axis of each group of matrices: at least "a", "b" and "out". With ``bound`` they must be those; ValueError otherwise."""

    def check_lines(self, metas: Sequence[Metadata], majors: Mapping[str, str]) -> None:
        """ValueError unless the copy engine can step through every matrix."""


class Rule(NamedTuple):
    """One tensor of an operation.

    ``axes``: a name ("m", "n", "k", "l", "n/2", "2n") or a number for each; equal names are equal extents. ``group``: of a matrix (two axes and L); matrices of one group have the same contiguous
    axis. None for a vector, whose strides are free. No ``axes``: what fits is not said by axes, and checked elsewhere (scale factors). ``split``: the axis, by the name of its major, along which the matrix is two boxes of memory, so that each half starts on 16 bytes.
    """

    name: str
    axes: tuple[str | int, ...] | None
    group: str | None = None
    split: str | None = None

    @property
    def modes(self) -> tuple[str, str]:
        """Names of the first two axes as the two majors."""
        return tuple(str(axis).strip("/2") for axis in self.axes[:2])  # type: ignore[return-value, index]

    @property
    def text(self) -> str:
        return f"({', '.join(str(axis).upper() for axis in self.axes or ())})"


class GemmLayout:
    """The rules of one operation's tensors, A and B first.

    ``compact``: matrices have no gaps; otherwise any pitch that keeps lines apart will do, batches outermost. ``whole_lines``: contiguous extents are multiples of 16 bytes; otherwise only pitches are.
    """

    def __init__(self, rules: Sequence[Rule], *, compact: bool, whole_lines: bool = True) -> None:
        self.rules = tuple(rules)
        self.compact, self.whole_lines = compact, whole_lines
        self.matrices = tuple(i for i, rule in enumerate(self.rules) if rule.group is not None)
        self.names = tuple(rule.name for rule in self.rules)

    def extents(self, metas: Sequence[Metadata]) -> Extents:
        """M, N, K and L, which all tensors agree on. ValueError naming the first that does not."""
        found = self.solve(metas)
        return Extents(found["m"], found["n"], found["k"], found["l"])

    def solve(self, metas: Sequence[Metadata]) -> dict[str, int]:
        """The extent of each named axis, which all tensors agree on. ValueError naming the first that does not."""
        found: dict[str, int] = {}
        origin: dict[str, str] = {}
        for rule, meta in zip(self.rules, metas, strict=True):
            if rule.axes is None:
                continue
            if len(meta.shape) != len(rule.axes):
                hint = (
                    f"; for L = 1 append a unit axis with {rule.name}.unsqueeze(-1)"
                    if rule.axes[-1:] == ("l",) and len(meta.shape) == len(rule.axes) - 1
                    else ""
                )
                raise ValueError(f"{rule.name}: found shape {meta.shape}, needs {_NUMBERS[len(rule.axes)]} {rule.text}{hint}")
            for axis, extent in zip(rule.axes, meta.shape, strict=True):
                name, up, down = _MULTIPLES.get(axis, (axis, 1, 1)) if isinstance(axis, str) else (axis, 1, 1)
                if isinstance(name, str) and name not in found:
                    if up != 1 and extent % up:
                        raise ValueError(
                            f"{rule.name}: found shape {meta.shape}, needs {rule.text} with an even number of columns: a gate and an up column for each column of N"
                        )
                    found[name], origin[name] = extent * down // up, rule.name
            if "n/2" in rule.axes and found["n"] % 2:
                raise ValueError(
                    f"{origin['n']}: found N = {found['n']} rows, needs an even number: a gate column and an up column for each column of {rule.name}"
                )
            expected = tuple(self._extent(axis, found) for axis in rule.axes)
            if meta.shape != expected:
                sources = dict.fromkeys(
                    origin[name] for name in (self._base(axis) for axis in rule.axes) if isinstance(name, str) and origin[name] != rule.name
                )
                because = f", as {' and '.join(sources)} {'have' if len(sources) > 1 else 'has'} it" if sources else ""
                raise ValueError(f"{rule.name}: found shape {meta.shape}, needs {rule.text} = {expected}{because}")
        return found

    @staticmethod
    def _base(axis: str | int) -> str | int:
        return _MULTIPLES[axis][0] if axis in _MULTIPLES else axis  # type: ignore[index]

    def _extent(self, axis: str | int, found: Mapping[str, int]) -> int:
        if not isinstance(axis, str):
            return axis
        name, up, down = _MULTIPLES.get(axis, (axis, 1, 1))
        return found[name] * up // down

    def majors(self, metas: Sequence[Metadata], bound: Mapping[str, str] | None = None) -> dict[str, str]:
        """The contiguous axis of each group. With ``bound`` they must be those.

        Raises:
            ValueError: a matrix has neither axis contiguous or not the strides it needs, those of a group differ, or a matrix is not as in ``bound``.
        """
        possible = {i: self._possible(self.rules[i], metas[i]) for i in self.matrices}
        if bound is not None:
            for i, found in possible.items():
                major = bound[self.rules[i].group]  # type: ignore[index]
                if self._mode_of(self.rules[i], major) not in found:
                    raise ValueError(
                        f"{self.rules[i].name}: found strides {metas[i].stride} for shape {metas[i].shape}, needs {'compact ' if self.compact else ''}{major}-major ones, "
                        "which the object was compiled for; compile another object for these"
                    )
            return dict(bound)
        groups: dict[str, list[int]] = {}
        for i in self.matrices:
            groups.setdefault(self.rules[i].group, []).append(i)  # type: ignore[arg-type]
        choices = []
        for members in groups.values():
            first = members[0]
            common = [
                mode for mode in possible[first] if all(self._place(self.rules[first], mode) in self._places(self.rules[i], possible[i]) for i in members)
            ]
            if not common:
                names = " and ".join(self.rules[i].name for i in members)
                seen = " and ".join(f"{metas[i].stride} ({possible[i][0]}-major)" for i in members)
                raise ValueError(f"{names}: found strides {seen}, needs the same major for {'both' if len(members) == 2 else 'all'}")
            choices.append(common)
        # Where unit axes leave a major open, the one that keeps the 16-byte rule is meant.
        combinations = [dict(zip(groups, choice, strict=True)) for choice in product(*choices)]
        return next((majors for majors in combinations if self.line_problem(metas, majors) is None), combinations[0])

    def _possible(self, rule: Rule, meta: Metadata) -> tuple[str, ...]:
        if self.compact:
            return checks.compact_majors(rule.name, meta, rule.modes)
        return checks.pitched_majors(rule.name, meta, rule.modes)

    @staticmethod
    def _place(rule: Rule, mode: str) -> int:
        return rule.modes.index(mode)

    def _places(self, rule: Rule, modes: Sequence[str]) -> list[int]:
        return [self._place(rule, mode) for mode in modes]

    def _mode_of(self, rule: Rule, major: str) -> str:
        """A group's major as the rule's own axis: all matrices of a group have the same order of axes."""
        first = next(r for r in self.rules if r.group == rule.group)
        return rule.modes[first.modes.index(major)]

    def check_lines(self, metas: Sequence[Metadata], majors: Mapping[str, str]) -> None:
        """ValueError unless the copy engine can step through every matrix: multiples of 16 bytes."""
        problem = self.line_problem(metas, majors)
        if problem is not None:
            raise ValueError(problem)

    def line_problem(self, metas: Sequence[Metadata], majors: Mapping[str, str]) -> str | None:
        """None if every matrix keeps the 16-byte rule, else the first that does not."""
        for i in self.matrices:
            rule, meta = self.rules[i], metas[i]
            if 0 in meta.shape:
                continue
            mode = self._mode_of(rule, majors[rule.group])  # type: ignore[index]
            parts = 2 if mode == rule.split else 1
            if self.whole_lines or parts > 1:
                problem = checks.contiguous_problem(rule.name, meta, mode, rule.modes, parts)
                if problem is not None:
                    return problem
            unit = 128 // itemsize_bits(meta.dtype)
            for axis, (extent, step) in enumerate(zip(meta.shape, meta.stride, strict=True)):
                if axis != rule.modes.index(mode) and extent > 1 and step % unit:
                    return (
                        f"{rule.name}: found stride {step} of axis {axis}, {step * itemsize_bits(meta.dtype) // 8} bytes, needs a multiple of {unit} elements of {meta.dtype} "
                        "(16 bytes); pad the pitch"
                    )
        return None
