"""Wrappers and classes as torch operators: what torch.compile and fake tensors see of them. Not differentiable.

``cudnn::<name>(Tensor[] inputs, float alpha, str arguments) -> Tensor[]`` makes its outputs, ``cudnn::<name>_out(Tensor[] inputs, Tensor(a!)[] outputs, float alpha, str arguments) -> ()`` writes
the caller's. ``arguments`` is JSON that names the tensors and holds the other arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cudnn.gemm_operation import decode_arguments, encode_arguments, pack
from cudnn.memo import Memo

if TYPE_CHECKING:
    from cudnn.wrapper_calls import WrapperCalls


@torch.compiler.assume_constant_result
def encode(names: tuple[Any, ...], arguments: Any) -> str:
    """Names of tensors and other arguments as text: a constant of the traced graph."""
    return encode_arguments({"names": names, "arguments": dict(arguments) if isinstance(arguments, tuple) else arguments})


def register(calls: WrapperCalls) -> tuple[Any, Any]:
    """Define both operators of a wrapper."""
    objects: Memo = Memo(1024)

    def call(inputs: Sequence[Tensor], alpha: float, arguments: str) -> list[Tensor]:
        given = decode_arguments(arguments)
        tensors = pack(given["names"], [plain_tensor(t) for t in inputs])
        scalars = {"alpha": alpha} if calls.has_alpha else {}
        result = calls.wrapper(**tensors, **scalars, **given["arguments"])
        return [t for t in result if t is not None]

    def fake(inputs, alpha, arguments):
        given = decode_arguments(arguments)
        outputs = calls.outputs(pack(given["names"], inputs), given["arguments"])
        return [inputs[0].new_empty_strided(output.shape, output.stride, dtype=output.dtype) for output in outputs.values()]

    def call_out(inputs: Sequence[Tensor], outputs: Sequence[Tensor], alpha: float, arguments: str) -> None:
        flat = [plain_tensor(t) for t in (*inputs, *outputs)]
        key = (*((t.shape, t.stride(), t.dtype, t.get_device()) for t in flat), arguments)
        found = objects.get(key)
        if found is None:
            given = decode_arguments(arguments)
            names = [name for group in given["names"] for name in group]
            samples = {f"sample_{name.removesuffix('_tensor')}": t for name, t in pack(names, flat).items()}
            found = objects.keep(key, (calls.shared(calls.cls(**samples, **decode_arguments(given["arguments"]))), names))
        op, names = found
        scalars = {"alpha": alpha} if calls.has_alpha else {}
        op.execute(**pack(names, flat), **scalars)

    def fake_out(inputs, outputs, alpha, arguments):
        return None

    name = f"cudnn::{calls.name}"
    functional = torch.library.custom_op(name, call, mutates_args=(), schema="(Tensor[] inputs, float alpha, str arguments) -> Tensor[]")
    functional.register_fake(fake)
    writing = torch.library.custom_op(
        f"{name}_out", call_out, mutates_args=("outputs",), schema="(Tensor[] inputs, Tensor(a1!)[] outputs, float alpha, str arguments) -> ()"
    )
    writing.register_fake(fake_out)
    return functional, writing


def plain_tensor(t: Tensor) -> Tensor:
    """The tensor below a Python subclass, which the dispatcher hands over as it is."""
    return t if type(t) is Tensor else t.detach().as_subclass(Tensor)
