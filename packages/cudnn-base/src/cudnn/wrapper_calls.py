"""What the wrapper functions of all GEMM operations share: recognising repeated calls, allocating outputs, streams, and the operators that torch.compile sees."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cudnn import checks
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.datatypes import dtype_name
from cudnn.fp4 import logical_geometry
from cudnn.gemm_operation import GemmOperation, Repeat
from cudnn.memo import Memo
from cudnn.streams import as_torch_stream, record_streams
from cudnn.tensor_desc import TensorDesc

PLANS = 1024  # calls that a wrapper remembers
OBJECTS = 256  # compiled objects that a wrapper keeps

Arguments = Mapping[str, Any]


class Output(NamedTuple):
    """A tensor that a wrapper allocates, in stored elements. ``fill``: its value before the call, None where that does not matter. Extents may be symbolic."""

    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    dtype: Any  # torch.dtype
    fill: float | None = None


def matrix_output(shape: tuple[Any, Any, Any], major: str, dtype: Any) -> Output:
    """A compact (M, N, L) output; ``major``: "n" or "m", the axis with stride 1."""
    rows, columns, _ = shape
    return Output(shape, (columns, 1, rows * columns) if major == "n" else (1, rows, rows * columns), dtype)


def describe(output: Output, name: str, device: Any) -> TensorDesc:
    """The output as a sample."""
    shape, stride = output.shape, output.stride
    if dtype_name(output.dtype) == "float4_e2m1fn":
        shape, stride = logical_geometry(shape, stride)
    order = TensorDesc._compute_stride_order(shape, stride)
    return TensorDesc(output.dtype, shape, stride, order, device, name=name)


class Plan:
    """What a wrapper's call comes to. ``repeat`` launches it on the current stream without looking at anything again; None until a first call has been through the checks.

    ``launches``: the table of launches that it was taken from; the operation has another one after tuning.
    """

    __slots__ = ("launches", "op", "outputs", "repeat")

    def __init__(self, op: GemmOperation, outputs: tuple[tuple[str, Output], ...]) -> None:
        self.op, self.outputs = op, outputs
        self.repeat: Repeat | None = None
        self.launches: Memo | None = None


class WrapperCalls:
    """The calls of one wrapper function.

    Args:
        name: of the wrapper's operators in torch, ``cudnn::<name>`` and ``cudnn::<name>_out``.
        wrapper: the function itself, where the operator's calls end.
        cls: the operation's class.
        outputs: (tensors, options) -> the outputs by name, in order. Works on extents and dtypes alone, symbolic ones included.
        build: (tensors, outputs, options) -> the operation, not checked, for tensors and descriptions of outputs.
        operators: imports and returns the two operators (see ``cudnn.torch_operators``).
        has_alpha: whether the operation takes a factor.
        operands: names of the tensors that no call is without, the one that says framework and device first.
    """

    def __init__(
        self,
        name: str,
        wrapper: Callable[..., Any],
        cls: type[GemmOperation],
        outputs: Callable[[Arguments, Arguments], dict[str, Output]],
        build: Callable[[Arguments, Arguments, Arguments], GemmOperation],
        operators: Callable[[], tuple[Any, Any]],
        has_alpha: bool = True,
        operands: tuple[str, ...] = ("a_tensor", "b_tensor"),
    ) -> None:
        self.name, self.wrapper, self.cls, self.operators, self.has_alpha, self.operands = name, wrapper, cls, operators, has_alpha, operands
        self.outputs, self._build = outputs, build
        self._plans: Memo = Memo(PLANS)
        self._objects: Memo = Memo(OBJECTS)

    def __call__(self, tensors: Arguments, scalars: Arguments, options: Arguments, stream: Any) -> dict[str, Any]:
        """The outputs by name. ``tensors``: the wrapper's tensor arguments by name, None where not given; ``options``: its other arguments as given."""
        first = self.operands[0]
        a = tensors[first]
        try:
            import torch
        except ModuleNotFoundError:
            # Without torch no argument can be torch's: say what is wrong with it rather than that torch is missing.
            checks.require_tensors(self.wrapper.__name__, [(first, a)])
            raise

        if torch.compiler.is_compiling() or (type(a) is not torch.Tensor and type(a) is not torch.nn.Parameter):
            return self._traced(self.present(tensors), scalars, options, stream)
        try:
            key = self.key(tensors, options)
            plan = self._plans.get(key)
        except (AttributeError, RuntimeError, TypeError):
            key = plan = None  # no strided torch tensors, or an option given as a list or dict
        if plan is None:
            plan = self._plan(self.present(tensors), options)
            if key is not None:
                self._plans.keep(key, plan)
        device = a.device
        if stream is not None:
            stream = _other_stream(stream, device)
        if stream is None:
            made = {}
            for name, (shape, stride, dtype, fill) in plan.outputs:
                t = made[name] = torch.empty_strided(shape, stride, dtype=dtype, device=device)
                if fill is not None:
                    t.fill_(fill)
            if plan.repeat is not None and plan.repeat((*tensors.values(), *made.values()), scalars):
                return made
            plan.op.execute(**self.present(tensors), **made, **scalars, current_stream=None)
            if key is not None and plan.launches is not plan.op._launches:
                plan.launches = plan.op._launches
                plan.repeat = plan.op.repeated(tensors, made)
            return made
        with torch.cuda.stream(stream):
            made = {name: _allocate(output, device) for name, output in plan.outputs}
        plan.op.execute(**self.present(tensors), **made, **scalars, current_stream=stream)
        # The inputs belong to the streams they were made on, the outputs to the launch stream; the kernel and the caller use them on the other one.
        record_streams((one for t in tensors.values() for one in (t if isinstance(t, (tuple, list)) else (t,))), stream)
        record_streams(made.values(), None)
        return made

    def present(self, tensors: Arguments) -> Arguments:
        """The tensor arguments as the operation's own functions take them."""
        return tensors

    @staticmethod
    def key(tensors: Arguments, options: Arguments) -> tuple[Any, ...]:
        """What calls that come to the same have in common. AttributeError, RuntimeError or TypeError for what is no strided tensor of torch."""
        import torch

        plain = torch.Tensor
        found: list[Any] = []
        for t in tensors.values():
            if type(t) is plain:
                found += (t.shape, t.stride(), t.dtype, t.get_device())
            else:
                found.append(None if t is None else _tensor_key(t))
        return (*found, *options.values())

    def shared(self, op: GemmOperation) -> GemmOperation:
        """Check ``op`` and return the compiled object for its dtypes, majors and configuration: an earlier one, or itself. Hints and extents have been checked then, and change nothing."""
        op.check_support()
        op = self._objects.keep(op.identity(), op)
        op.compile()
        return op

    def _plan(self, tensors: Arguments, options: Arguments) -> Plan:
        checks.require_tensors(
            self.wrapper.__name__,
            [(name, one) for name, t in tensors.items() if t is not None or name in self.operands for one in (t if isinstance(t, (tuple, list)) else (t,))],
        )
        outputs = self.outputs(tensors, options)
        device = tensors[self.operands[0]].device
        op = self.shared(self._build(tensors, {name: describe(output, name, device) for name, output in outputs.items()}, options))
        return Plan(op, tuple(outputs.items()))

    # Under torch.compile and on fake tensors.

    def _traced(self, tensors: Arguments, scalars: Arguments, options: Arguments, stream: Any) -> dict[str, Any]:
        import torch

        if not (torch.compiler.is_compiling() or isinstance(tensors[self.operands[0]], torch.Tensor)):
            self._plan(tensors, options)  # raises
        if stream is not None:
            raise ValueError("stream: found one in a call that is traced, needs None: it runs on the current stream")
        from cudnn.torch_operators import encode

        names, inputs = flatten(tensors)
        # NOTE: torch.compile takes a dict as part of a constant, but no frozen dataclass.
        given = tuple((name, _constant(value)) for name, value in options.items())
        made = self.operators()[0](inputs, scalars.get("alpha", 1.0), encode(tuple(names), given))
        return dict(zip(self.outputs(tensors, options), made, strict=True))

    def execute_traced(self, op: GemmOperation, tensors: Arguments, outputs: Arguments, alpha: float = 1.0) -> None:
        """``op.execute`` as an operator: for tensors that are fake or traced."""
        from cudnn.torch_operators import encode

        names, inputs = flatten(tensors)
        targets, made = flatten(outputs)
        self.operators()[1](inputs, made, alpha, encode((tuple(names), tuple(targets)), op._traced_arguments))


def _constant(option: Any) -> Any:
    """The option with its integers as constants of the traced graph, where torch may have taken them for symbols."""
    if isinstance(option, GemmConfig):
        option = option.as_dict()
    if isinstance(option, dict):
        return {name: _constant(value) for name, value in option.items()}
    if isinstance(option, (tuple, list)):
        return tuple([_constant(value) for value in option])
    return operator.index(option) if isinstance(option, int) and not isinstance(option, bool) else option


def _other_stream(stream: Any, device: Any) -> Any:
    """The stream to launch on where it is not the current one of ``device``. CPU tensors have none."""
    import torch

    if device.type != "cuda":
        return None
    found = as_torch_stream(stream, device)
    return None if found == torch.cuda.current_stream(device) else found


def _tensor_key(t: Any) -> Any:
    if isinstance(t, (tuple, list)):
        return tuple([(one.shape, one.stride(), one.dtype, one.get_device()) for one in t])
    return t.shape, t.stride(), t.dtype, t.get_device()


def _allocate(output: Output, device: Any) -> Any:
    import torch

    t = torch.empty_strided(output.shape, output.stride, dtype=output.dtype, device=device)
    return t if output.fill is None else t.fill_(output.fill)


def flatten(tensors: Arguments) -> tuple[list[str], list[Any]]:
    """Names and tensors one by one, without those that are None; a pair ``x`` becomes ``x[0]``, ``x[1]``."""
    names: list[str] = []
    flat: list[Any] = []
    for name, t in tensors.items():
        if isinstance(t, (tuple, list)):
            names += [f"{name}[{i}]" for i in range(len(t))]
            flat += list(t)
        elif t is not None:
            names.append(name)
            flat.append(t)
    return names, flat
