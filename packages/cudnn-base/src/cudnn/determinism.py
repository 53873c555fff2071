"""The switch of operations whose sums may be taken in any order or in a fixed one."""

from __future__ import annotations


def resolve(deterministic: bool | None) -> bool:
    """True or False as given; None follows ``torch.use_deterministic_algorithms`` at this moment. ValueError for anything else."""
    if deterministic is None:
        import torch

        return torch.are_deterministic_algorithms_enabled()
    if not isinstance(deterministic, bool):
        raise ValueError(f"deterministic: found {deterministic!r}, needs True, False, or None to follow torch's setting")
    return deterministic
