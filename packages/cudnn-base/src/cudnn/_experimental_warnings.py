"""One warning per experimental API and process, for modules that must not depend on `cudnn.api_base`, which keeps a registry of its own."""

from __future__ import annotations

import logging

__all__ = ["warn_experimental_api_once"]

_warned: set[str] = set()


def warn_experimental_api_once(logger: logging.Logger, api_name: str) -> None:
    """Log "<api_name> is an experimental API" as a warning, the first time this name is seen."""
    if api_name not in _warned:
        _warned.add(api_name)
        logger.warning("%s is an experimental API", api_name)


def _reset_experimental_api_warning_registry() -> None:
    """Forget which names were seen. For tests."""
    _warned.clear()
