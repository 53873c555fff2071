"""``cudnn.graph``, ``cudnn.jit`` and ``cudnn.graph_cache``: building graphs in functions."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cudnn_graph.enums import data_type, heur_mode
from cudnn_graph.graph import pygraph
from cudnn_graph.tensor import Tensor

__all__ = ["graph", "graph_cache", "jit"]


@contextmanager
def graph(
    handle: Any = None,
    name: str = "cudnn_graph",
    io_data_type: Any = data_type.HALF,
    intermediate_data_type: Any = data_type.FLOAT,
    compute_data_type: Any = data_type.FLOAT,
    **options: Any,
) -> Iterator[tuple[pygraph, list[Any]]]:
    """``with cudnn.graph(handle) as (g, tensors):`` gives a new ``pygraph`` and a list to collect the tensors that the caller wants to keep.

    Args:
        handle: a ``cudnn.Handle``, or None for default handles.
        options: further arguments of ``cudnn.pygraph``.
    """
    made = pygraph(
        name=name,
        io_data_type=io_data_type,
        intermediate_data_type=intermediate_data_type,
        compute_data_type=compute_data_type,
        handle=handle,
        **options,
    )
    yield made, []


def jit(heur_modes: heur_mode | Sequence[heur_mode] | Callable = heur_mode.A) -> Callable:
    """Decorator for a function that returns ``(graph, tensors)``: builds the graph unless it has plans, and returns ``(graph, [uid, ...])``.

    Args:
        heur_modes: one ``cudnn.heur_mode`` or a list of them.

    Raises (when the function is called):
        TypeError: the function returned something else.
        Everything that ``pygraph.build`` raises.
    """
    if callable(heur_modes) and not isinstance(heur_modes, heur_mode):
        return jit()(heur_modes)
    modes = [heur_modes] if isinstance(heur_modes, heur_mode) else list(heur_modes)

    def decorate(function: Callable) -> Callable:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> tuple[pygraph, list[int]]:
            result = function(*args, **kwargs)
            if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], pygraph):
                raise TypeError(f"{function.__name__}() must return (graph, tensors) for cudnn.jit, got {type(result).__name__}")
            made, tensors = result
            if made.get_execution_plan_count() == 0:
                made.build(modes)
            return made, [item.get_uid() if isinstance(item, Tensor) else item for item in tensors]

        return wrapper

    return decorate


def graph_cache(key_fn: Callable[..., Hashable], maxsize: int = 256) -> Callable:
    """Decorator that remembers a function's results by ``key_fn(*args, **kwargs)``; the oldest entry goes when there are more than ``maxsize``.

    The decorated function has ``cache_clear()`` and ``cache_len()``. Two threads that ask for one new key at a time get one result.
    """
    if isinstance(maxsize, bool) or not isinstance(maxsize, int):
        raise TypeError(f"graph_cache(): maxsize must be an int, got {maxsize!r}")
    if maxsize < 1:
        raise ValueError(f"graph_cache(): maxsize must be at least 1, got {maxsize}")

    def decorate(function: Callable) -> Callable:
        entries: OrderedDict[Hashable, Any] = OrderedDict()
        lock = threading.RLock()

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            key = key_fn(*args, **kwargs)
            with lock:
                if key not in entries:
                    entries[key] = function(*args, **kwargs)
                    while len(entries) > maxsize:
                        entries.popitem(last=False)
                return entries[key]

        def cache_clear() -> None:
            with lock:
                entries.clear()

        wrapper.cache_clear = cache_clear
        wrapper.cache_len = lambda: len(entries)
        return wrapper

    return decorate
