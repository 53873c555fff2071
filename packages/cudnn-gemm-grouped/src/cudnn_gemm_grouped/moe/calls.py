"""How the products of layers of experts are called: by what they are given, before it is made into what kernels take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cudnn.gemm_operation import unpack
from cudnn.grouped.operation import GroupedOperation
from cudnn.memo import Memo
from cudnn.reference.grouped import GluScalars
from cudnn.tuning import state
from cudnn.wrapper_calls import PLANS, Arguments, Plan, WrapperCalls

Made = dict[str, Any]
Repeat = Callable[[tuple[Any, ...], "GluScalars | None"], "Made | None"]


class _Known(NamedTuple):
    """A call that has been made. ``repeat``: makes it with other tensors alike, None where that needs more than a launch. ``plans``, ``launches``: the tables that it was taken from; the operation has another one after
    tuning.
    """

    plans: Memo
    op: GroupedOperation
    launches: Memo
    repeat: Repeat | None


class ProductCalls(WrapperCalls):
    """The calls of one product.

    ``rows``: the axes that are as long as there are rows, by the tensor that has them. The operation does not depend on how many there are, so that other numbers of tokens need no other.
    """

    def __init__(self, *arguments: Any, rows: Mapping[str, int]) -> None:
        super().__init__(*arguments)
        self._rows = rows
        self._made: Memo = Memo(PLANS)
        self._kinds: Memo = Memo(PLANS)

    def _plan(self, tensors: Arguments, options: Arguments) -> Plan:
        kind = self._kind(tensors, options)
        objects, op = (None, None) if kind is None else self._kinds.get(kind, (None, None))
        if op is not None and objects is self._objects:
            return Plan(op, tuple(self.outputs(tensors, options).items()))
        plan = super()._plan(tensors, options)
        if kind is not None:
            self._kinds.pop(kind, None)
            self._kinds.keep(kind, (self._objects, plan.op))
        return plan

    def _kind(self, tensors: Arguments, options: Arguments) -> tuple[Any, ...] | None:
        """What calls of one operation have in common. None where strides may say something else: of one row, or none."""
        found: list[Any] = []
        for name, t in tensors.items():
            axis = self._rows.get(name)
            if axis is not None and t.shape[axis] < 2:
                return None
            for one in t if isinstance(t, tuple) else (t,):
                shape = one.shape if axis is None else (*one.shape[:axis], *one.shape[axis + 1 :])
                found += [shape, one.stride(), one.dtype, one.get_device()]
        return (*found, *options.values())

    def made(self, given: tuple[Any, ...], options: tuple[Any, ...], scalars: GluScalars | None, prepare: Callable[..., tuple[Arguments, Arguments]]) -> Made:
        """The outputs by name. ``given``: tensors or None; ``prepare(*given, *options)``: the tensors and options that the operation is called with, by name. Neither it nor any check is run for a call like an earlier one."""
        key = (*[None if t is None else (t.shape, t.stride(), t.dtype, t.get_device()) for t in given], *options)
        known = self._made.get(key)
        fresh = known is not None and known.launches is known.op._launches and known.plans is self._plans
        if fresh and known.repeat is not None:
            made = known.repeat(given, scalars)
            if made is not None:
                return made
        tensors, named = prepare(*given, *options)
        # Two calls with tensors alike under other names are not alike.
        named = {**named, "given": tuple(tensors)}
        made = self(tensors, {} if scalars is None else scalars._asdict(), named, None)
        if key not in self._made:
            self._made.keep(key, None)  # what is called once is worth no more
        elif not fresh:
            plan = self._plans.get(self.key(tensors, named))
            if plan is not None:
                self._made[key] = _Known(self._plans, plan.op, plan.op._launches, _repeat(plan, given, tensors, made, scalars))
        return made


def _repeat(plan: Plan, given: tuple[Any, ...], tensors: Arguments, made: Made, scalars: GluScalars | None) -> Repeat | None:
    """A function that launches what ran for ``given``, and allocates as it did, for tensors alike but for their addresses, and returns None where it cannot. None where the kernel was given copies."""
    import torch

    arguments = unpack({**tensors, **made})
    if "addend_tensor" in arguments:
        arguments.setdefault("d_tensor", arguments["addend_tensor"])  # which is written over
    op: Any = plan.op  # a GroupedOperation
    call = op.kernel_call(arguments)
    if call is None:
        return None
    sources = (*given, *made.values())
    places = {t.data_ptr(): i for i, t in enumerate(sources) if t is not None}
    count = len([t for t in sources if t is not None])
    if len(places) != count or not all(t.data_ptr() in places for t in (*call.operands, *call.others)):
        return None  # which one is which cannot be told by address; or a copy

    def view(t: Any) -> tuple[int, tuple[Any, Any] | None]:
        source = sources[places[t.data_ptr()]]
        return places[t.data_ptr()], None if (t.shape, t.stride()) == (source.shape, source.stride()) else (t.shape, t.stride())

    views = [view(t) for t in (*call.operands, *call.others)]
    launches, device, outputs = op._launches, given[0].device, plan.outputs
    index, kernel, operands, clusters = given[0].get_device(), call.kernel, len(call.operands), call.clusters
    constant = op._kernel_scalars({} if scalars is None else scalars._asdict())
    takes_scalars = len(constant) > 1
    current_device, current_stream = torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream

    def repeat(given: tuple[Any, ...], scalars: GluScalars | None) -> Made | None:
        if state.active is not None or op._launches is not launches or current_device() != index:
            return None
        made = {}
        for name, (shape, stride, dtype, fill) in outputs:
            t = made[name] = torch.empty_strided(shape, stride, dtype=dtype, device=device)
            if fill is not None:
                t.fill_(fill)
        sources = (*given, *made.values())
        addresses = 0
        for t in sources:
            if t is not None:
                addresses |= t.data_ptr()
        if addresses & 15:
            return None
        taken = [sources[i] if form is None else sources[i].as_strided(*form) for i, form in views]
        kernel(tuple(taken[:operands]), tuple(taken[operands:]), scalars if takes_scalars else constant, clusters, current_stream(index))
        return made

    return repeat
