"""Operators of torch that plain eager calls reach without torch's dispatcher.

An operator of ``torch.library.custom_op`` is what torch.compile, fake tensors, modes and profilers see, but the way through it costs more on the host than a layer's own work does: with gradients about 150 us. A call that
nothing watches computes, saves and differentiates the same through an ``autograd.Function`` of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter


def watched() -> bool:
    """Whether something has to see every operator: torch.compile or another tracer, a mode, a transform of torch.func, a profiler."""
    c = torch._C
    return bool(
        torch.compiler.is_compiling()
        or c._len_torch_dispatch_stack()
        or c._is_torch_function_mode_enabled()
        or c._are_functorch_transforms_active()
        or c._is_tracing()
        or c._autograd._profiler_enabled()
    )


def without_zeros(ctx: Any, out: Tensor) -> None:
    """For ``setup_context``: of outputs that are for the backward pass alone autograd makes no gradients of zeros, which would take as much memory as they do. That of ``out`` can then be None, see `gradient_of`."""
    ctx.set_materialize_grads(False)
    ctx.out_like = {"size": out.shape, "dtype": out.dtype, "device": out.device}


def gradient_of(ctx: Any, grad: Tensor | None) -> Tensor:
    """The gradient of the output named to `without_zeros`; zeros where there is none."""
    return torch.zeros(**ctx.out_like) if grad is None else grad


def released(ctx: Any) -> tuple[Any, ...]:
    """The saved tensors, which autograd lets go of where the graph is not kept and nothing watches: else they live until all gradients are there, see `DirectOperator.consume`."""
    saved: tuple[Any, ...] = ctx.saved_tensors
    if not watched():
        ctx.maybe_clear_saved_tensors()
    return saved


class DirectOperator:
    """What ``operator``, a torch.library.custom_op, computes, called with positional arguments.

    Through ``operator`` itself goes a call that is `watched`, or has a tensor that is more than memory: a subclass, on the meta device, negated or zero without being computed.

    Args:
        operator: does not return or alias its inputs.
        function: what it runs.
        tensors: how many of the first arguments are tensors or None. The others hold none.
        kept: whether all outputs but the first are for the backward pass alone. A call then returns the first.
        setup_context, backward: as registered with it. None for one without gradients: a call that would need some goes to ``operator``, which refuses them.
        consumer: ``function`` with its arguments in one list that it empties, for `consume`.
    """

    def __init__(
        self,
        operator: Callable[..., Any],
        function: Callable[..., Any],
        tensors: int,
        setup_context: Callable[..., None] | None = None,
        backward: Callable[..., tuple[Any, ...]] | None = None,
        kept: bool = False,
        consumer: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        self.operator, self.function, self.tensors, self.kept, self.consumer = operator, function, tensors, kept, consumer
        self._node = None if setup_context is None or backward is None else _node(function, tensors, setup_context, backward, kept)

    def __call__(self, *arguments: Any) -> Any:
        needs_grad = self._differentiates(arguments[: self.tensors])
        if needs_grad is None or (needs_grad and self._node is None):
            return self._through_operator(arguments)
        if needs_grad:
            return self._node.apply(*arguments[: self.tensors], arguments[self.tensors :])
        with torch._C._AutoDispatchBelowAutograd():
            found = self.function(*arguments)
        return found[0] if self.kept else found

    def consume(self, arguments: list[Any]) -> Any:
        """As a call with ``arguments``, which are taken out of the list: a tensor that nobody else holds is freed as soon as it is not needed any more."""
        if self._differentiates(arguments[: self.tensors]) is not False:
            return self._through_operator(arguments)
        with torch._C._AutoDispatchBelowAutograd():
            return self.consumer(arguments)  # type: ignore[misc]

    @staticmethod
    def _differentiates(tensors: Sequence[Any]) -> bool | None:
        """Whether a call has gradients; None for one that goes through the operator itself."""
        if watched():
            return None
        needs_grad = False
        for t in tensors:
            if t is not None:
                kind = type(t)
                if (kind is not Tensor and kind is not Parameter) or t.is_meta or t.is_neg() or t._is_zerotensor():
                    return None
                needs_grad = needs_grad or t.requires_grad
        return needs_grad and torch.is_grad_enabled()

    def _through_operator(self, arguments: Sequence[Any]) -> Any:
        found = self.operator(*arguments)
        return found[0] if self.kept else found


def _node(function: Callable[..., Any], tensors: int, setup_context: Callable[..., None], backward: Callable[..., tuple[Any, ...]], kept: bool) -> Any:
    """The autograd.Function of (tensors one by one, the other arguments in a tuple)."""

    def forward(ctx: Any, *arguments: Any) -> Any:
        arguments = (*arguments[:-1], *arguments[-1])
        with torch._C._AutoDispatchBelowAutograd():
            found = function(*arguments)
        setup_context(ctx, arguments, found)
        return found[0] if kept else found

    def gradients(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return *backward(ctx, *grads)[:tensors], None

    return type(function.__name__, (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(gradients)})
