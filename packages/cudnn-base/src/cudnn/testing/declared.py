"""What a kernel is compiled for, and whether a call fits it: the comparison that a launch on a GPU makes, and the promises about addresses and strides that it cannot make. Needs torch and the DSL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch


class _Described(Exception):
    """Carries the arguments of a compilation out of it."""


def declared(spec: Any) -> tuple[Any, ...]:
    """The arguments that ``spec.compile()`` describes to the DSL; nothing is compiled."""

    def compile_(kernel: Any, *arguments: Any, **options: Any) -> None:
        raise _Described(arguments)

    with patch("cutlass.cute.compile", compile_):
        try:
            spec.compile()
        except _Described as found:
            return found.args[0]
    raise AssertionError(f"{spec.label}: compiles nothing")


def check_call(label: str, wanted: tuple[Any, ...], given: tuple[Any, ...]) -> None:
    """AssertionError unless ``given`` has as many arguments of the same kinds as ``wanted`` declares; of tensors dtypes, ranks, extents that are equal, fixed and divisible strides, and the alignment of addresses, where there are contiguous lines of theirs."""
    _check(label, wanted, given, {})


def checked(spec: Any, compute: Callable[..., None]) -> Callable[..., None]:
    """``compute`` as the kernel of ``spec``: it runs with arguments that the kernel would take."""
    wanted = declared(spec)

    def call(*arguments: Any) -> None:
        check_call(spec.label, wanted, arguments)
        compute(*arguments)

    return call


def _check(name: str, wanted: Any, given: Any, known: dict[int, int]) -> None:
    if isinstance(wanted, tuple):
        assert isinstance(given, tuple) and len(given) == len(wanted), f"{name}: found {_described(given)}, needs {len(wanted)} arguments"
        for i, (one, found) in enumerate(zip(wanted, given, strict=True)):
            _check(f"{name}[{i}]", one, found, known)
    elif hasattr(wanted, "memspace"):
        _check_tensor(name, wanted, given, known)
    else:
        number = float if type(wanted).__name__.startswith("Float") else int
        assert type(given) is number, f"{name}: found a {type(given).__name__}, needs a {number.__name__}"


def _check_tensor(name: str, wanted: Any, t: Any, known: dict[int, int]) -> None:
    assert isinstance(t, torch.Tensor) and t.dim() == len(wanted.shape), f"{name}: found {_described(t)}, needs {len(wanted.shape)} axes"
    assert kind(t.dtype) == kind(wanted.element_type), f"{name}: found {t.dtype}, needs {wanted.element_type}"
    for axis, (extent, symbol) in enumerate(zip(t.shape, wanted.shape, strict=True)):
        _check_number(f"{name}: extent of axis {axis}", symbol, extent, known)
    for axis, (extent, step, symbol) in enumerate(zip(t.shape, t.stride(), wanted.stride, strict=True)):
        if extent != 1:
            _check_number(f"{name}: stride of axis {axis} of {tuple(t.shape)}", symbol, step, known)
    align = wanted._assumed_align or t.dtype.itemsize
    assert t.data_ptr() % align == 0, f"{name}: found address {t.data_ptr():#x}, needs a multiple of {align}"
    for extent, step, symbol in zip(t.shape, t.stride(), wanted.stride, strict=True):
        # Kernels read as wide along a line as the address of the first lets them.
        if 1 in wanted.stride and symbol != 1 and extent > 1:
            assert step * t.dtype.itemsize % align == 0, f"{name}: found strides {t.stride()}, needs lines that start at multiples of {align} bytes"


def _check_number(name: str, wanted: Any, found: int, known: dict[int, int]) -> None:
    if isinstance(wanted, int):
        assert found == wanted, f"{name}: found {found}, needs {wanted}"
        return
    assert found % wanted.divisibility == 0 and found < 2 ** (
        wanted.width - 1
    ), f"{name}: found {found}, needs {wanted.width} bits and a multiple of {wanted.divisibility}"
    assert found == known.setdefault(id(wanted), found), f"{name}: found {found}, needs {known[id(wanted)]}, as before"


def kind(dtype: Any) -> str:
    """The name of a dtype of torch or of the DSL, the same for both; a launch does not tell signed integers from others."""
    return str(dtype).rpartition(".")[2].lower().replace("_", "").replace("uint", "int")


def _described(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"{len(value)}" if isinstance(value, tuple) else repr(value)
