"""`TupleDict`: what the wrappers return, readable by key and by position."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["TupleDict"]


class TupleDict(dict):
    """A dict that unpacks like a tuple.

    The order of the keys is frozen at construction. Iterating and unpacking give the values in that order; an int in brackets, a bool too, is a position in it.
    Everything else (keys, items, values, len, in, ==, get, dict(), **) means what it means for a dict, keys added later included.

    Raises:
        IndexError: a position that is negative or too large.
        KeyError: a key that is absent.
    """

    __slots__ = ("_order",)

    _order: tuple[Any, ...]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        dict.__init__(self, *args, **kwargs)
        self._order = (*self.keys(),)

    def __iter__(self) -> Iterator[Any]:
        return (dict.__getitem__(self, key) for key in self._order)

    def __reversed__(self) -> Iterator[Any]:
        return (dict.__getitem__(self, key) for key in reversed(self._order))

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, int):
            return dict.__getitem__(self, key)
        if not 0 <= key < len(self._order):
            raise IndexError(
                f"index {key} is out of range, needs 0 to {len(self._order) - 1}: the result has {len(self._order)} items ({', '.join(map(str, self._order))})"
            )
        return dict.__getitem__(self, self._order[key])

    def copy(self) -> dict:
        """A plain dict with the same items."""
        return dict(self.items())

    @classmethod
    def fromkeys(cls, keys: Iterable[Any], value: Any = None) -> TupleDict:
        """A TupleDict with these keys, in this order, and one value."""
        return cls(dict.fromkeys(keys, value))

    def __reduce__(self) -> tuple:
        return _rebuild, (type(self), self.copy(), self._order)


def _rebuild(kind: type[TupleDict], items: dict, order: tuple[Any, ...]) -> TupleDict:
    result = kind(items)
    result._order = order
    return result
