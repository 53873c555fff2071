"""Who looks at the calls of operations before they run. One attribute, read at every call, so this module imports nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudnn.tuning.tuner import Visitor

active: Visitor | None = None
"""For all threads: gradients are computed in threads of their own."""
