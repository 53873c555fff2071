"""What a launch needs besides the kernel: bounded tables for what repeats, and memory that belongs to the launch stream."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class Memo(dict):
    """A bounded dict. Look up with ``get``, which takes no lock; add with ``keep``. The entry added longest ago leaves when it is full."""

    def __init__(self, bound: int) -> None:
        super().__init__()
        self.bound = bound
        self._lock = threading.Lock()

    def keep(self, key: Hashable, value: Any) -> Any:
        """Add ``value`` unless the key has one already; returns the value that the table holds."""
        with self._lock:
            held = self.setdefault(key, value)
            while len(self) > self.bound:
                del self[next(iter(self))]
            return held


def same_memory_later(stream: torch.cuda.Stream, tensors: list[torch.Tensor]) -> None:
    """Tell the allocator that ``stream`` uses the tensors, so that their memory is not given away before the work there is done."""
    for t in tensors:
        t.record_stream(stream)
