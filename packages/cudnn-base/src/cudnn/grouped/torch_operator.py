"""Grouped wrappers and classes as torch operators: what torch.compile and fake tensors see of them. Not differentiable.

``cudnn::<name>(Tensor[] inputs, Tensor(a!)[] outputs, float[] scalars, SymInt[] sizes, str arguments) -> ()`` writes ``outputs``. ``arguments`` is JSON that names tensors and numbers and holds the other
arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cudnn.gemm_operation import decode_arguments, pack
from cudnn.memo import Memo
from cudnn.torch_operators import plain_tensor

if TYPE_CHECKING:
    from cudnn.grouped.calls import GroupedCalls

POINTERS = ("b_ptrs", "wgrad_ptrs")  # arrays of addresses: metadata of the class, not samples


def register(calls: GroupedCalls) -> Any:
    """Define the operator of a wrapper."""
    objects: Memo = Memo(1024)

    def make(kind: str, tensors: dict[str, Any], made: Sequence[str], arguments: Any) -> Any:
        if kind == "class":
            samples = {f"sample_{name.removesuffix('_tensor')}": t for name, t in tensors.items() if name not in POINTERS}
            return calls.shared(calls.cls(**samples, **decode_arguments(arguments)))
        return calls.shared(calls.build(_Given({n: t for n, t in tensors.items() if n not in made}), {n: tensors[n] for n in made}, arguments))

    def call(inputs: Sequence[Tensor], outputs: Sequence[Tensor], scalars: Sequence[float], sizes: Sequence[int], arguments: str) -> None:
        flat = [plain_tensor(t) for t in (*inputs, *outputs)]
        constants = tuple(scalars[-len(calls.numbers) :]), tuple(sizes)
        key = (*((t.shape, t.stride(), t.dtype, t.get_device()) for t in flat), constants, arguments)
        found = objects.get(key)
        if found is None:
            given = decode_arguments(arguments)
            kind, read, targets, made, at_run_time, floats, extents = given["names"]
            names, options = (*read, *targets), given["arguments"]
            if kind == "wrapper":
                numbers = zip((*floats, *extents), (*scalars[len(at_run_time) :], *sizes), strict=True)
                options = {**dict.fromkeys(calls.numbers), **options, **dict(numbers)}
            found = objects.keep(key, (make(kind, pack(names, flat), made, options), names, at_run_time))
        op, names, at_run_time = found
        op.execute(**pack(names, flat), **dict(zip(at_run_time, scalars, strict=False)))

    def fake(inputs, outputs, scalars, sizes, arguments):
        return None

    operator = torch.library.custom_op(
        f"cudnn::{calls.name}",
        call,
        mutates_args=("outputs",),
        schema="(Tensor[] inputs, Tensor(a1!)[] outputs, float[] scalars, SymInt[] sizes, str arguments) -> ()",
    )
    operator.register_fake(fake)
    return operator


class _Given(dict):
    """A wrapper's tensor arguments, None where not given."""

    def __missing__(self, name: str) -> None:
        return None
