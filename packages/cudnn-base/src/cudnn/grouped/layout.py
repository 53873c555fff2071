"""How the tensors of a grouped operation have to fit each other, on metadata alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

from cudnn.datatypes import itemsize_bits
from cudnn.gemm_layout import Extents, GemmLayout
from cudnn.tensors import Metadata


class GroupedRule(NamedTuple):
    """One tensor of a grouped operation: compact, its axes in a certain order in memory.

    ``axes``: a name ("m", "n", "k", "e", "n/2", "2n") or a number for each; equal names are equal extents, E is the number of groups. ``orders``: the orders of axes that are taken, outermost first. ``matrix``:
    whether it is moved by the copy engine, so that lines and address are multiples of 16 bytes. ``halves``: into how many boxes of memory its columns fall, each of which starts on 16 bytes.
    """

    name: str
    axes: tuple[str | int, ...]
    orders: tuple[tuple[int, ...], ...]
    matrix: bool = False
    halves: int = 1

    @property
    def text(self) -> str:
        return f"({', '.join(str(axis).upper() for axis in self.axes)}{',' if len(self.axes) == 1 else ''})"


def vector(name: str, axis: str) -> GroupedRule:
    return GroupedRule(name, (axis,), ((0,),))


class GroupedLayout(GemmLayout):
    """The rules of one operation's tensors, operands first."""

    def __init__(self, rules: Sequence[GroupedRule]) -> None:
        self.rules = tuple(rules)  # type: ignore[arg-type]
        self.matrices = tuple(i for i, rule in enumerate(self.rules) if rule.matrix)  # type: ignore[attr-defined]
        self.names = tuple(rule.name for rule in self.rules)

    def extents(self, metas: Sequence[Metadata]) -> Extents:
        """M, N, K and E."""
        found = self.solve(metas)
        return Extents(found["m"], found["n"], found["k"], found["e"])

    def majors(self, metas: Sequence[Metadata], bound: Mapping[str, str] | None = None) -> dict[str, str]:
        """The order of axes of each tensor, by name, as text such as "e,n,k". With ``bound`` it must be that.

        Raises:
            ValueError: strides are none of those that are taken, or not those of ``bound``.
        """
        possible = [self._fitting(rule, meta) for rule, meta in zip(self.rules, metas, strict=True)]  # type: ignore[arg-type]
        if bound is not None:
            for rule, meta, orders in zip(self.rules, metas, possible, strict=True):
                if bound[rule.name] not in orders:
                    raise ValueError(
                        f"{rule.name}: layout mismatch: found strides {meta.stride} for shape {meta.shape}, needs compact axes in the order {bound[rule.name].upper()}, "
                        "which the object was compiled for; compile another object for these"
                    )
            return dict(bound)
        # Where unit axes leave the order open, the one that keeps the 16-byte rule is meant.
        combinations = [dict(zip(self.names, orders, strict=True)) for orders in product(*possible)]
        return next((majors for majors in combinations if self.line_problem(metas, majors) is None), combinations[0])

    @staticmethod
    def _fitting(rule: GroupedRule, meta: Metadata) -> list[str]:
        wanted = {}
        for order in rule.orders:
            stride, step = [0] * len(order), 1
            for axis in reversed(order):
                stride[axis], step = step, step * meta.shape[axis]
            wanted[",".join(str(rule.axes[axis]) for axis in order)] = tuple(stride)
        if 0 in meta.shape:
            return list(wanted)
        fitting = [
            name
            for name, strides in wanted.items()
            if all(extent == 1 or found == step for extent, found, step in zip(meta.shape, meta.stride, strides, strict=True))
        ]
        if not fitting:
            ways = " or ".join(f"{strides} (compact, axes in the order {name.upper()})" for name, strides in wanted.items())
            raise ValueError(f"{rule.name}: found strides {meta.stride} for shape {meta.shape}, needs {ways}; copy it into that")
        return fitting

    def line_problem(self, metas: Sequence[Metadata], majors: Mapping[str, str]) -> str | None:
        """None if every matrix keeps the 16-byte rule, else the first that does not."""
        for i in self.matrices:
            rule: GroupedRule = self.rules[i]  # type: ignore[assignment]
            meta = metas[i]
            names = [str(axis) for axis in rule.axes]
            axis = names.index(majors[rule.name].rpartition(",")[2])
            extent, unit = meta.shape[axis], 128 // itemsize_bits(meta.dtype)
            if 0 not in meta.shape and extent % (unit * rule.halves):
                half = " in each half" if rule.halves == 2 else ""
                return (
                    f"{rule.name}: found {names[axis].upper()} = {extent} contiguous {meta.dtype} elements, so lines are not 16B aligned; "
                    f"needs a multiple of {unit}{half} (16 bytes); pad {names[axis].upper()} with zeros"
                )
        return None


class PitchedLayout(GroupedLayout):
    """As ``GroupedLayout``, but that the lines of matrices may be apart by any multiple of 16 bytes, and matrices of groups too. What is no matrix is compact."""

    @staticmethod
    def _fitting(rule: GroupedRule, meta: Metadata) -> list[str]:
        if not rule.matrix:
            return GroupedLayout._fitting(rule, meta)
        fitting = [order for order in rule.orders if 0 in meta.shape or _nested(order, meta)]
        if not fitting:
            ways = " or ".join(",".join(str(rule.axes[axis]).upper() for axis in order) for order in rule.orders)
            raise ValueError(
                f"{rule.name}: found strides {meta.stride} for shape {meta.shape}, needs axes in the order {ways}, stride 1 along the last and lines that do not overlap; copy it into that"
            )
        return [",".join(str(rule.axes[axis]) for axis in order) for order in fitting]

    def line_problem(self, metas: Sequence[Metadata], majors: Mapping[str, str]) -> str | None:
        """None if every matrix keeps the 16-byte rule, else the first that does not."""
        for i in self.matrices:
            rule: GroupedRule = self.rules[i]  # type: ignore[assignment]
            meta = metas[i]
            names = [str(axis) for axis in rule.axes]
            inner = names.index(majors[rule.name].rpartition(",")[2])
            unit = 128 // itemsize_bits(meta.dtype)
            if 0 in meta.shape:
                continue
            if rule.halves > 1 and meta.shape[inner] % (unit * rule.halves):
                return f"{rule.name}: found {names[inner].upper()} = {meta.shape[inner]} contiguous {meta.dtype} elements, needs a multiple of {unit} in each half (16 bytes)"
            for axis, (extent, step) in enumerate(zip(meta.shape, meta.stride, strict=True)):
                if axis != inner and extent > 1 and step % unit:
                    return (
                        f"{rule.name}: found stride {step} of axis {axis}, {step * itemsize_bits(meta.dtype) // 8} bytes, needs a multiple of {unit} elements of {meta.dtype} "
                        "(16 bytes); pad the pitch"
                    )
        return None


def _nested(order: tuple[int, ...], meta: Metadata) -> bool:
    """Whether axes, outermost first in ``order``, follow one another in memory without overlap, the last with stride 1. Strides of unit axes mean nothing."""
    reach = 1
    for axis in reversed(order):
        if meta.shape[axis] > 1:
            if meta.stride[axis] < reach or (axis == order[-1] and meta.stride[axis] != 1):
                return False
            reach = meta.stride[axis] * (meta.shape[axis] - 1) + reach
    return True
