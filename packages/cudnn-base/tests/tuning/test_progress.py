"""The bar: on a terminal alone."""

from __future__ import annotations

import builtins
import io
import sys

import pytest

from cudnn.tuning.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def draw() -> None:
    with progress() as bar:
        bar.phase("toy: compiling", 2)
        bar.step()
        bar.phase("toy: timing", 1)
        bar.step()


def test_on_a_terminal(monkeypatch):
    pytest.importorskip("rich", reason="rich is not installed")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    draw()
    assert "tuning toy: timing" in sys.stderr.getvalue() and "1/1" in sys.stderr.getvalue()


def test_elsewhere_and_without_rich_nothing_is_printed(monkeypatch, capsys):
    draw()
    monkeypatch.setattr(sys, "stderr", Terminal())
    load = builtins.__import__

    def without_rich(name, *rest):
        if name.partition(".")[0] == "rich":
            raise ImportError(name)
        return load(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_rich)
    draw()
    assert sys.stderr.getvalue() == ""
    monkeypatch.undo()
    assert capsys.readouterr() == ("", "")
