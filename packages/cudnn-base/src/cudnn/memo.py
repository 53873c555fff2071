"""A bounded table for what repeats from call to call."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any


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
