"""A fresh seed for every test, printed with a failure; PYTEST_SEED=N repeats one."""

from __future__ import annotations

import os
import random

import pytest


@pytest.fixture(autouse=True)
def seed() -> int:
    value = int(os.environ.get("PYTEST_SEED") or int.from_bytes(os.urandom(4), "little"))
    print(f"PYTEST_SEED={value}")
    random.seed(value)
    try:
        import torch
    except ImportError:
        return value
    torch.manual_seed(value)
    return value
