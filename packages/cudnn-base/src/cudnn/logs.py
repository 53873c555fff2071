"""Logging. `CUDNN_KERNELS_LOG=debug|info|warning` prints the project's records of that level and above to stderr; unset, they go where the program sends them.

The loggers are "cudnn", its children, and one named after each operation's class.
"""

from __future__ import annotations

import logging
import os
import threading

__all__ = ["LOG_VARIABLE", "get_logger"]

LOG_VARIABLE = "CUDNN_KERNELS_LOG"
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}

_lock = threading.Lock()
_handler: logging.Handler | None = None


def get_logger(name: str = "cudnn") -> logging.Logger:
    """The logger of this name, set up as `CUDNN_KERNELS_LOG` says.

    Raises:
        ValueError: the variable holds something else than debug, info, warning or nothing.
    """
    logger = logging.getLogger(name)
    text = os.environ.get(LOG_VARIABLE, "").strip().lower()
    if text:
        if text not in _LEVELS:
            raise ValueError(f"{LOG_VARIABLE}: found {text!r}, needs one of {', '.join(_LEVELS)}, or unset it")
        _print_records(logging.getLogger("cudnn") if name.startswith("cudnn.") else logger, _LEVELS[text])
    return logger


def _print_records(logger: logging.Logger, level: int) -> None:
    global _handler
    with _lock:
        if _handler is None:
            _handler = logging.StreamHandler()
            _handler.setFormatter(logging.Formatter("[%(name)s] %(levelname)s %(message)s"))
        if _handler not in logger.handlers:
            logger.addHandler(_handler)
            logger.setLevel(level)
            logger.propagate = False  # else a program with a handler of its own prints each record twice
