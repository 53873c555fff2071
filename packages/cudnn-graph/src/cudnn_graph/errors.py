"""Exceptions of the graph API and the helpers that word their messages.

| condition | exception |
|---|---|
| attribute missing, shapes that do not fit, wrong variant pack | ValueError |
| the graph cannot be served by any engine | cudnnGraphNotSupportedError |
| frozen graph, wrong order of calls, failed execution or backend call | RuntimeError |
| missing or unknown argument of a node method | TypeError |
| plan index out of range | IndexError |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cudnn.errors import cudnnGraphNotSupportedError

if TYPE_CHECKING:
    from cudnn_graph.nodes import Node
    from cudnn_graph.tensor import Tensor

__all__ = ["cudnnGraphNotSupportedError", "describe", "describe_all", "node_error"]


def describe(tensor: Tensor) -> str:
    """Name, uid and dims of a tensor, the way every message of the package shows one."""
    return f"'{tensor.name}' (uid {tensor.uid}, dim {list(tensor.dim) if tensor.dim is not None else 'unset'})"


def describe_all(tensors: Iterable[Tensor]) -> str:
    """:func:`describe` of several tensors, joined."""
    return ", ".join(describe(t) for t in tensors)


def node_error(node: Node, text: str) -> ValueError:
    """ValueError that names the node it is about."""
    return ValueError(f"node '{node.name}' ({node.op}): {text}")
