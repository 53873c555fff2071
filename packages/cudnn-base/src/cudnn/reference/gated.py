"""Gated pairs: where the gate and the linear ("up") half lie, and the activation that joins them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

BLOCK = 32  # columns of one gate or up block in the interleaved layout
GLU_LAYOUTS = ("interleaved32", "concatenated", "separate")
GROUPED_GLU_LAYOUTS = (*GLU_LAYOUTS, "alternating")  # those that operations over groups of rows take
GLU_ORDERS = ("up_first", "gate_first")


def split_gate_up(x: torch.Tensor, glu_layout: str = "interleaved32", *, dim: int = 1, order: str = "up_first") -> tuple[torch.Tensor, torch.Tensor]:
    """(gate, up), each of extent I, from the axis ``dim`` of extent 2 I.

    - ``"interleaved32"``: blocks of 32 take turns, up first (dense operations) or gate first (grouped ones) as ``order`` says. 2 I must be
      a multiple of 64.
    - ``"concatenated"`` and ``"separate"``: gate, then up.
    - ``"alternating"``: gate and up take turns element by element, gate first.
    """
    _check_choice("glu_layout", glu_layout, GROUPED_GLU_LAYOUTS)
    _check_choice("order", order, GLU_ORDERS)
    dim %= x.dim()
    extent = x.shape[dim]
    if glu_layout != "interleaved32":
        if extent % 2:
            raise ValueError(f"axis {dim}: found extent {extent}, needs an even one: a gate half and an up half")
        if glu_layout == "alternating":
            gate, up = x.unflatten(dim, (extent // 2, 2)).unbind(dim + 1)
            return gate, up
        return x.narrow(dim, 0, extent // 2), x.narrow(dim, extent // 2, extent // 2)
    if extent % (2 * BLOCK):
        raise ValueError(f"axis {dim}: found extent {extent}, needs a multiple of {2 * BLOCK}: {BLOCK}-wide gate and up blocks in pairs")
    first, second = x.unflatten(dim, (extent // (2 * BLOCK), 2, BLOCK)).unbind(dim + 1)
    first, second = first.flatten(dim, dim + 1), second.flatten(dim, dim + 1)
    return (second, first) if order == "up_first" else (first, second)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """up * gate * sigmoid(gate)."""
    import torch

    return up * torch.nn.functional.silu(gate)


def join_gate_up(gate: torch.Tensor, up: torch.Tensor, glu_layout: str = "interleaved32", *, dim: int = 1, order: str = "up_first") -> torch.Tensor:
    """The inverse of ``split_gate_up``: a new tensor of extent 2 I along ``dim``."""
    import torch

    _check_choice("glu_layout", glu_layout, GROUPED_GLU_LAYOUTS)
    if glu_layout == "alternating":
        dim %= gate.dim()
        return torch.stack((gate, up), dim + 1).flatten(dim, dim + 1)
    return torch.cat((gate, up), dim) if glu_layout != "interleaved32" else interleave_gate_up((gate, up), dim, order)


def swiglu_backward(gate: torch.Tensor, up: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(gradient of gate, gradient of up, up * silu(gate)) from the gradient of up * silu(gate)."""
    s = gate.sigmoid()
    activated = gate * s
    return grad * up * (s + activated * (1 - s)), grad * activated, up * activated


def interleave_gate_up(gate_up: torch.Tensor | tuple[torch.Tensor, torch.Tensor], dim: int = 0, order: str = "up_first") -> torch.Tensor:
    """Weights (or pre-activations) in the 32-wide interleave that the kernels read by default, from two halves.

    With gate g and up u of extent I along ``dim``, block b of 64 in the result is ``u[32 b : 32 b + 32], g[32 b : 32 b + 32]`` for
    ``order="up_first"`` (dense operations) and the two the other way round for ``"gate_first"`` (grouped and discrete ones).

    Args:
        gate_up: ``[gate; up]`` concatenated along ``dim`` (extent 2 I), or the pair (gate, up). Any dtype, any strides.
        dim: the axis of the output features: 0 for (N, K, L) weights, 1 for (M, N, L) pre-activations, -2 for (E, N, K) expert weights.
        order: which block comes first.

    Returns:
        A new tensor, contiguous, extent 2 I along ``dim``. Differentiable. ``deinterleave_gate_up`` is the inverse.

    Raises:
        ValueError: I is no multiple of 32; the extent is odd; gate and up differ in shape, dtype or device; unknown ``order``.
    """
    import torch

    _check_choice("order", order, GLU_ORDERS)
    if isinstance(gate_up, (tuple, list)):
        if len(gate_up) != 2:
            raise ValueError(f"gate_up: found {len(gate_up)} tensors, needs the pair (gate, up)")
        gate, up = gate_up
        for what in ("shape", "dtype", "device"):
            if getattr(gate, what) != getattr(up, what):
                raise ValueError(f"gate_up: found gate {what} {getattr(gate, what)} and up {what} {getattr(up, what)}, needs them equal")
        dim = _axis(gate, dim)
    else:
        dim = _axis(gate_up, dim)
        gate, up = split_gate_up(gate_up, "concatenated", dim=dim)
    extent = gate.shape[dim]
    if extent % BLOCK:
        raise ValueError(
            f"gate_up: found {extent} features in each half along axis {dim}, needs a multiple of {BLOCK}; pad the halves, or leave the weights as they are and pass "
            'glu_layout="concatenated"'
        )
    blocks = [t.unflatten(dim, (extent // BLOCK, 1, BLOCK)) for t in ((up, gate) if order == "up_first" else (gate, up))]
    return _cat(torch, blocks, dim + 1).flatten(dim, dim + 2)


def deinterleave_gate_up(interleaved: torch.Tensor, dim: int = 0, order: str = "up_first") -> torch.Tensor:
    """``[gate; up]`` concatenated along ``dim`` from the 32-wide interleave: the inverse of ``interleave_gate_up``.

    Args:
        interleaved: extent 2 I along ``dim``, I a multiple of 32.
        dim: the axis of the output features.
        order: which block comes first in ``interleaved``: ``"up_first"`` (dense) or ``"gate_first"`` (grouped, discrete).

    Returns:
        A new tensor, contiguous; ``.chunk(2, dim)`` gives gate and up. Differentiable.

    Raises:
        ValueError: the extent is no multiple of 64; unknown ``order``.
    """
    import torch

    dim = _axis(interleaved, dim)
    return _cat(torch, split_gate_up(interleaved, dim=dim, order=order), dim)


def _cat(torch, tensors, dim: int) -> torch.Tensor:
    # NOTE: packed fp4 and the 8-bit scale type have no cat; their bytes do.
    dtype = tensors[0].dtype
    if dtype.itemsize == 1 and dtype not in (torch.uint8, torch.int8, torch.bool):
        return torch.cat([t.view(torch.uint8) for t in tensors], dim).view(dtype)
    return torch.cat(list(tensors), dim)


def _axis(x: torch.Tensor, dim: int) -> int:
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"dim: found {dim}, needs an axis of a tensor with shape {tuple(x.shape)}")
    return dim % x.dim()


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}: found {value!r}, needs one of {', '.join(map(repr, allowed))}")
