"""What the benchmarks of grouped operations have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Call = Callable[[], Any]
Config = Mapping[str, object] | None


def name_of(config: Config) -> str:
    """A candidate's name."""
    return "ours" if config is None else f"ours[{','.join(f'{k}={v}' for k, v in config.items())}]"


def compiled(operation: Any) -> Any:
    operation.check_support()
    operation.compile()
    return operation


def factors(a: torch.Tensor, ends: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """alpha and prob of ones."""
    import torch

    return torch.ones(len(ends), device=a.device), torch.ones(a.shape[0], device=a.device)
