"""Graphs of torch operators, built once for each problem and kept in a bounded store."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from cudnn_graph.enums import data_type
from cudnn_graph.graph import pygraph

if TYPE_CHECKING:
    import torch

STORE_BOUND = 128


class GraphStore:
    """Built graphs by problem, first in first out beyond ``STORE_BOUND``. A key that two threads ask for at once is built once."""

    def __init__(self, bound: int = STORE_BOUND) -> None:
        self._bound = bound
        self._graphs: OrderedDict[Hashable, pygraph] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._graphs)

    def clear(self) -> None:
        """Forget all graphs."""
        with self._lock:
            self._graphs.clear()

    def get(self, key: Hashable, device: torch.device, describe: Callable[[pygraph], None]) -> pygraph:
        """The graph for ``key`` and ``device``, described by ``describe(graph)`` and built when it is new. What building raises goes to the caller."""
        full_key = (key, device)
        found = self._graphs.get(full_key)
        if found is not None:
            return found
        with self._lock:
            found = self._graphs.get(full_key)
            if found is None:
                found = _new_graph(device)
                describe(found)
                found.build()
                self._graphs[full_key] = found
                while len(self._graphs) > self._bound:
                    self._graphs.popitem(last=False)
            return found


def _new_graph(device: torch.device) -> pygraph:
    if device.type == "cpu":
        return pygraph(name="op", intermediate_data_type=data_type.FLOAT, compute_data_type=data_type.FLOAT, backend="reference")
    if device.type != "cuda":
        raise ValueError(f"tensors on device '{device}' are not served: use cuda or cpu tensors")
    return pygraph(name="op", intermediate_data_type=data_type.FLOAT, compute_data_type=data_type.FLOAT, backend="cudnn")


def declare(graph: pygraph, uid: int, like: Any, name: str) -> Any:
    """An input of the graph with the metadata of a tensor and a fixed uid. The tensor itself is not kept."""
    return graph.tensor(tuple(like.shape), tuple(like.stride()), like.dtype, name=name, uid=uid)
