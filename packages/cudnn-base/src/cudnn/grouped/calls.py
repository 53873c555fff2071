"""The calls of grouped wrappers: as those of all GEMM operations, but that some arguments are written in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cudnn.gemm_operation import GemmOperation
from cudnn.wrapper_calls import Arguments, Output, WrapperCalls, flatten


class GroupedCalls(WrapperCalls):
    """The calls of one grouped wrapper.

    Under torch.compile, and on fake tensors, both the wrapper and the class are one operator ``cudnn::<name>`` that writes tensors made before it (see ``cudnn.grouped.torch_operator``).

    Args:
        name, cls, outputs, build: as in ``WrapperCalls``.
        scalars: names of the run-time scalars of ``execute``, in order.
        numbers: names of the wrapper's options that are numbers, and so no constants of a traced graph: floats, and ``n``.
        written: names of the wrapper's tensor arguments that ``execute`` writes.
        class_written: names of the tensors that ``execute`` of the class writes.
        operator: imports and returns the operator.
    """

    def __init__(
        self,
        name: str,
        cls: type[GemmOperation],
        outputs: Callable[[Arguments, Arguments], dict[str, Output]],
        build: Callable[[Arguments, Arguments, Arguments], GemmOperation],
        operator: Callable[[], Any],
        *,
        scalars: Sequence[str] = (),
        numbers: Sequence[str] = ("n",),
        written: Sequence[str] = (),
        class_written: Sequence[str] = (),
        wrapper: Callable[..., Any],
    ) -> None:
        super().__init__(name, wrapper, cls, outputs, build, lambda: (operator(), operator()))
        self.operator, self.scalars, self.numbers = operator, tuple(scalars), tuple(numbers)
        self.written, self.class_written = tuple(written), tuple(class_written)

    def present(self, tensors: Arguments) -> Arguments:
        """Without those that are None. Outputs that the caller brings are among them."""
        return {name: t for name, t in tensors.items() if t is not None or name == "a_tensor"}

    def build(self, tensors: Arguments, outputs: Arguments, options: Arguments) -> GemmOperation:
        """The operation, not checked, for tensors and outputs."""
        return self._build(tensors, outputs, options)

    def _traced(self, tensors: Arguments, scalars: Arguments, options: Arguments, stream: Any) -> dict[str, Any]:
        import torch

        a = tensors["a_tensor"]
        if not (torch.compiler.is_compiling() or isinstance(a, torch.Tensor)):
            self._plan(tensors, options)  # raises
        if stream is not None:
            raise ValueError("current_stream: found one in a call that is traced, needs None: it runs on the current stream")
        made = {}
        for name, output in self.outputs(tensors, options).items():
            t = a.new_empty_strided(output.shape, output.stride, dtype=output.dtype)
            made[name] = t if output.fill is None else t.fill_(output.fill)
        given = {name: t for name, t in tensors.items() if t is not None}
        numbers = {name: options[name] for name in self.numbers if options.get(name) is not None}
        self._operate("wrapper", given, made, self.written, scalars, numbers, {name: value for name, value in options.items() if name not in numbers})
        return made

    def execute_traced(self, op: GemmOperation, tensors: Arguments, scalars: Sequence[float]) -> None:  # type: ignore[override]
        """``op.execute`` as the operator."""
        self._operate("class", tensors, {}, self.class_written, dict(zip(self.scalars, scalars, strict=False)), {}, op._traced_arguments)

    def _operate(self, kind: str, given: Arguments, made: Arguments, written: Sequence[str], scalars: Arguments, numbers: Arguments, arguments: Any) -> None:
        from cudnn.cutedsl.gemm.config import GemmConfig
        from cudnn.torch_operators import encode

        read_names, read = flatten({name: t for name, t in given.items() if name not in written})
        target_names, targets = flatten({**{name: t for name, t in given.items() if name in written}, **made})
        if isinstance(arguments, dict):
            # NOTE: torch.compile takes a dict as part of a constant, but no frozen dataclass.
            arguments = tuple((name, value.as_dict() if isinstance(value, GemmConfig) else value) for name, value in arguments.items())
        sizes = {name: value for name, value in numbers.items() if name == "n"}
        floats = {name: value for name, value in numbers.items() if name != "n"}
        text = encode((kind, tuple(read_names), tuple(target_names), tuple(made), tuple(scalars), tuple(floats), tuple(sizes)), arguments)
        self.operator()(read, targets, [*scalars.values(), *floats.values()], list(sizes.values()), text)
