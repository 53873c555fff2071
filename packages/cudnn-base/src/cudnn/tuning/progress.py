"""A bar while the tuner works, on a terminal where rich is installed; otherwise nothing."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any


class Progress:
    """One line: what is tuned, the phase, and how much of it is done."""

    def __init__(self, bar: Any = None) -> None:
        self._bar = bar
        self._task: Any = None

    def phase(self, text: str, total: int) -> None:
        """Begin a phase of ``total`` steps."""
        if self._bar is not None:
            if self._task is None:
                self._task = self._bar.add_task(text, total=total)
            else:
                self._bar.reset(self._task, description=text, total=total)

    def step(self) -> None:
        """One step of the phase is done."""
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task)


@contextlib.contextmanager
def progress() -> Iterator[Progress]:
    """The bar, on standard error."""
    if not sys.stderr.isatty():
        yield Progress()
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar
    except ImportError:
        yield Progress()
        return
    columns = (TextColumn("tuning {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        yield Progress(bar)
