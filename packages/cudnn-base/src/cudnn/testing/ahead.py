"""Kernels that tests are going to need, compiled side by side before the first of them."""

from __future__ import annotations

import os
from collections.abc import Iterable

from cudnn.cache.pool import Spec, build_all


def build_ahead(specs: Iterable[Spec], *, arch: str = "sm_90a") -> None:
    """Compile ``specs`` into the cache in as many processes as there are cores; AssertionError where one fails.

    Nothing is done in a worker of pytest-xdist: the workers are as many as there are cores already, and each compiles what its own tests come to.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    failed = [outcome for outcome in build_all(list(dict.fromkeys(specs)), arch=arch) if outcome.status == "failed"]
    assert not failed, f"{failed[0].spec.label}: {failed[0].error}"
