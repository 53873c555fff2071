"""What all node methods share: operands, node creation, and the two positional orders in circulation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cudnn_graph.dtypes import to_library_dtype
from cudnn_graph.enums import convolution_mode, moe_grouped_matmul_mode, norm_forward_phase, reduction_mode, reshape_mode, scalar_type
from cudnn_graph.errors import describe
from cudnn_graph.nodes import Node, NodeType
from cudnn_graph.tensor import Tensor, check_dim, check_name

if TYPE_CHECKING:
    from cudnn_graph.graph import pygraph

# What a positional value of a parameter looks like; everything not listed is a tensor port.
_INTS = "ints"
_INT = "int"
_KINDS: dict[str, Any] = {
    "norm_forward_phase": norm_forward_phase,
    "convolution_mode": convolution_mode,
    "reshape_mode": reshape_mode,
    "mode": (reduction_mode, moe_grouped_matmul_mode),
    "padding": _INTS,
    "pre_padding": _INTS,
    "post_padding": _INTS,
    "stride": _INTS,
    "dilation": _INTS,
    "block_size": (_INT, _INTS),
    "axis": _INT,
    "top_k": _INT,
    "slices": list,
    "permutation": _INTS,
    "peer_stats": list,
    "transpose": bool,
    "has_dbias": bool,
    "is_negative_scale": bool,
}
_ENUMS = (norm_forward_phase, convolution_mode, reshape_mode, reduction_mode, moe_grouped_matmul_mode)


def _is_kind(value: Any, kind: Any) -> bool:
    if isinstance(kind, tuple):
        return any(_is_kind(value, one) for one in kind)
    if kind == _INTS:
        return isinstance(value, (list, tuple)) and not any(isinstance(item, (slice, Tensor)) for item in value)
    if kind == _INT:
        return hasattr(value, "__index__") and not isinstance(value, bool) and not is_framework_tensor(value)
    if kind is list:
        return isinstance(value, (list, tuple))
    return isinstance(value, kind)


def _fits(name: str, value: Any) -> bool:
    if value is None:
        return True
    kind = _KINDS.get(name)
    if kind is None:
        return not isinstance(value, (list, tuple, bool, str, *_ENUMS))
    return _is_kind(value, kind)


def positional_orders(*orders: str, complete: Callable[[Mapping[str, Any]], bool] | None = None) -> Callable:
    """Let a method written with keyword parameters take its positionals in any of several orders.

    Both the published binding's order and the later one (all tensors first, then attributes) are in use. The first order is taken whose positionals
    have the right types, collide with no keyword, and leave nothing required unset (``complete``). TypeError when none fits.
    """
    parsed = [order.split() for order in orders]

    def decorate(method: Callable) -> Callable:
        # By hand, because importing inspect takes longer than all of this package.
        names = method.__code__.co_varnames[1 : method.__code__.co_argcount]
        required = names[: len(names) - len(method.__defaults__ or ())]

        @functools.wraps(method)
        def wrapper(self: pygraph, *args: Any, **kwargs: Any) -> Any:
            if not args:
                return method(self, **kwargs)
            for order in parsed:
                if len(args) > len(order):
                    continue
                named = dict(zip(order, args, strict=False))
                if any(name in kwargs for name in named) or not all(_fits(name, value) for name, value in named.items()):
                    continue
                named.update(kwargs)
                if all(name in named for name in required) and (complete is None or complete(named)):
                    return method(self, **named)
            known = " or ".join(f"({', '.join(order)})" for order in parsed)
            shown = ", ".join(type(arg).__name__ for arg in args)
            more = f" with keywords {', '.join(kwargs)}" if kwargs else ""
            raise TypeError(f"{method.__name__}() takes positional arguments as {known}, or keywords (recommended); got ({shown}){more}")

        return wrapper

    return decorate


def is_framework_tensor(value: Any) -> bool:
    """True for torch tensors and anything else that speaks DLPack."""
    return hasattr(value, "__dlpack__")


class BuilderBase:
    """Helpers for the node methods; part of :class:`cudnn.pygraph`."""

    def _operand(self: pygraph, value: Any, op: str, port: str) -> Tensor:
        """The graph tensor for an argument of a node method: itself, a new input for a framework tensor, or a scalar for a number."""
        if isinstance(value, Tensor):
            if value.graph is not self:
                raise ValueError(f"{op}: argument {port} is tensor {describe(value)} of another graph ('{value.graph.context.name}')")
            return value
        if is_framework_tensor(value):
            tensor = self.tensor_like(value)
            tensor.bound = value
            return tensor
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return self.tensor_scalar(value, scalar_type.RUNTIME_PARAM)
        raise TypeError(f"{op}: argument {port} must be a graph tensor, a framework tensor or a number, got {type(value).__name__}")

    def _add_node(
        self: pygraph,
        op: str,
        node_type: NodeType,
        inputs: Mapping[str, Any],
        outputs: Sequence[str],
        *,
        params: Mapping[str, Any] | None = None,
        optional: Sequence[str] = (),
        name: str = "",
        compute_data_type: Any = None,
        out_dims: Any = None,
    ) -> list[Tensor]:
        """Record a node. ``inputs`` that are None are left out when their port is in ``optional`` and are a TypeError otherwise."""
        self._before_change(f"{op}()")
        check_name(name)
        compute = to_library_dtype(compute_data_type)
        missing = [port.lower() for port, value in inputs.items() if value is None and port not in optional]
        if missing:
            raise TypeError(f"{op}() needs {', '.join(missing)}")
        operands = {port: self._operand(value, op, port) for port, value in inputs.items() if value is not None}
        node = Node(name or self._auto_node_name(op), node_type, compute, op=op, inputs=operands, params=params)
        dims = _dims_by_port(op, outputs, out_dims)
        made = []
        for port in outputs:
            tensor = self._new_tensor(f"{node.name}::{port}", is_virtual=True)
            tensor.producer = (node, port)
            if port in dims:
                tensor._dim = check_dim(dims[port], tensor.name)
                tensor.dim_assigned = True
            node.outputs[port] = tensor
            made.append(tensor)
        self._nodes.append(node)
        return made


def _dims_by_port(op: str, outputs: Sequence[str], out_dims: Any) -> Mapping[str, Any]:
    if out_dims is None:
        return {}
    if not isinstance(out_dims, Mapping):
        return {outputs[0]: out_dims}
    unknown = [port for port in out_dims if port not in outputs]
    if unknown:
        raise ValueError(f"{op}: out_dims names {', '.join(map(repr, unknown))}; the outputs are {', '.join(outputs)}")
    return out_dims
