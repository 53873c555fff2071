"""Pointwise node methods.

Operands broadcast from the right. Every method takes ``name``, ``compute_data_type`` and ``out_dims`` as keywords and returns the output tensor,
which is virtual until ``set_output(True)``. Operands may be graph tensors, framework tensors or Python numbers.
"""

from __future__ import annotations

from typing import Any

from cudnn_graph.builders.base import BuilderBase
from cudnn_graph.nodes import NodeType
from cudnn_graph.tensor import Tensor


def _options(**values: float | None) -> dict[str, float]:
    for key, value in values.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise TypeError(f"{key} must be a number, got {value!r}")
    return {key: float(value) for key, value in values.items() if value is not None}


def _axis(axis: int) -> int:
    if isinstance(axis, bool) or not hasattr(axis, "__index__"):
        raise TypeError(f"axis must be an int, got {axis!r}")
    return axis.__index__()


class PointwiseMethods(BuilderBase):
    """The pointwise methods of :class:`cudnn.pygraph`."""

    def _pointwise(self, mode: str, *operands: Any, names: tuple[str, ...], params: dict[str, Any] | None = None, **keywords: Any) -> Tensor:
        for operand, argument in zip(operands, names, strict=True):
            if operand is None:
                raise TypeError(f"{mode}() needs {argument}")
        inputs = {f"IN_{i}": operand for i, operand in enumerate(operands)}
        return self._add_node(mode, NodeType.POINTWISE, inputs, ["OUT_0"], params={"mode": mode, **(params or {})}, **keywords)[0]

    def abs(self, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """|input|."""
        return self._pointwise("abs", input, names=("input",), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def ceil(self, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """The smallest integers not below the input."""
        return self._pointwise("ceil", input, names=("input",), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def cos(self, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """cos(input)."""
        return self._pointwise("cos", input, names=("input",), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def exp(self, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """e to the power of the input."""
        return self._pointwise("exp", input, names=("input",), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def floor(self, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """The largest integers not above the input."""
        return self._pointwise("floor", input, names=("input",), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def log(self, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """Natural logarithm."""
        return self._pointwise("log", input, names=("input",), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def neg(self, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """-input."""
        return self._pointwise("neg", input, names=("input",), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def rsqrt(self, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """1 / sqrt(input)."""
        return self._pointwise("rsqrt", input, names=("input",), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def sin(self, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """sin(input)."""
        return self._pointwise("sin", input, names=("input",), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def sqrt(self, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """Square root."""
        return self._pointwise("sqrt", input, names=("input",), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def tan(self, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """tan(input)."""
        return self._pointwise("tan", input, names=("input",), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def erf(self, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """Error function."""
        return self._pointwise("erf", input, names=("input",), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def identity(self, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """The input, converted to the dtype of the output."""
        return self._pointwise("identity", input, names=("input",), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def reciprocal(self, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """1 / input."""
        return self._pointwise("reciprocal", input, names=("input",), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def tanh(self, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """tanh(input)."""
        return self._pointwise("tanh", input, names=("input",), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def sigmoid(self, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """1 / (1 + exp(-input))."""
        return self._pointwise("sigmoid", input, names=("input",), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def elu(self, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """input where positive, else exp(input) - 1."""
        return self._pointwise("elu", input, names=("input",), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def gelu(self, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """input * Phi(input), Phi the normal distribution function."""
        return self._pointwise("gelu", input, names=("input",), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def softplus(self, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """log(1 + exp(input))."""
        return self._pointwise("softplus", input, names=("input",), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def gelu_approx_tanh(self, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """0.5 * input * (1 + tanh(sqrt(2 / pi) * (input + 0.044715 * input^3)))."""
        return self._pointwise("gelu_approx_tanh", input, names=("input",), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def logical_not(self, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """Not input, a BOOLEAN tensor."""
        return self._pointwise("logical_not", input, names=("input",), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def relu(
        self,
        input: Any,
        negative_slope: float | None = None,
        lower_clip: float | None = None,
        upper_clip: float | None = None,
        *,
        compute_data_type: Any = None,
        name: str = "",
        out_dims: Any = None,
    ) -> Tensor:
        """min(max(input, lower_clip), upper_clip), with lower_clip + negative_slope * (input - lower_clip) below lower_clip. Defaults: clips 0 and infinity, slope 0."""
        return self._pointwise(
            "relu",
            input,
            names=("input",),
            params=_options(negative_slope=negative_slope, lower_clip=lower_clip, upper_clip=upper_clip),
            name=name,
            compute_data_type=compute_data_type,
            out_dims=out_dims,
        )

    def leaky_relu(self, input: Any, negative_slope: float, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """input where positive, else negative_slope * input."""
        return self._pointwise(
            "leaky_relu",
            input,
            names=("input",),
            params=_options(negative_slope=negative_slope),
            name=name,
            compute_data_type=compute_data_type,
            out_dims=out_dims,
        )

    def swish(self, input: Any, swish_beta: float | None = None, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """input * sigmoid(swish_beta * input); swish_beta defaults to 1."""
        return self._pointwise(
            "swish", input, names=("input",), params=_options(swish_beta=swish_beta), name=name, compute_data_type=compute_data_type, out_dims=out_dims
        )

    def gen_index(self, input: Any, axis: int, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """Index of each element along ``axis``; only the dims of the input matter."""
        return self._pointwise(
            "gen_index", input, names=("input",), params={"axis": _axis(axis)}, name=name, compute_data_type=compute_data_type, out_dims=out_dims
        )

    def add(self, a: Any, b: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """a + b."""
        return self._pointwise("add", a, b, names=("a", "b"), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def mul(self, a: Any, b: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """a * b."""
        return self._pointwise("mul", a, b, names=("a", "b"), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def sub(self, a: Any, b: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """a - b."""
        return self._pointwise("sub", a, b, names=("a", "b"), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def div(self, a: Any, b: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """a / b."""
        return self._pointwise("div", a, b, names=("a", "b"), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def add_square(self, a: Any, b: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """a + b * b."""
        return self._pointwise("add_square", a, b, names=("a", "b"), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def logical_and(self, a: Any, b: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """a and b, BOOLEAN tensors."""
        return self._pointwise("logical_and", a, b, names=("a", "b"), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def logical_or(self, a: Any, b: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """a or b, BOOLEAN tensors."""
        return self._pointwise("logical_or", a, b, names=("a", "b"), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def bias(self, input: Any, bias: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """input + bias."""
        return self._pointwise("bias", input, bias, names=("input", "bias"), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def scale(self, input: Any, scale: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """input * scale."""
        return self._pointwise("scale", input, scale, names=("input", "scale"), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def max(self, input0: Any, input1: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """The larger of the two."""
        return self._pointwise("max", input0, input1, names=("input0", "input1"), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def min(self, input0: Any, input1: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """The smaller of the two."""
        return self._pointwise("min", input0, input1, names=("input0", "input1"), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def mod(self, input0: Any, input1: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """Remainder of input0 / input1 with the sign of input0."""
        return self._pointwise("mod", input0, input1, names=("input0", "input1"), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def pow(self, input0: Any, input1: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """input0 to the power of input1."""
        return self._pointwise("pow", input0, input1, names=("input0", "input1"), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def cmp_eq(self, input: Any, comparison: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """input == comparison: 1 or 0, or BOOLEAN when the caller gives the output that dtype."""
        return self._pointwise("cmp_eq", input, comparison, names=("input", "comparison"), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def cmp_neq(self, input: Any, comparison: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """input != comparison: 1 or 0, or BOOLEAN when the caller gives the output that dtype."""
        return self._pointwise("cmp_neq", input, comparison, names=("input", "comparison"), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def cmp_gt(self, input: Any, comparison: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """input > comparison: 1 or 0, or BOOLEAN when the caller gives the output that dtype."""
        return self._pointwise("cmp_gt", input, comparison, names=("input", "comparison"), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def cmp_ge(self, input: Any, comparison: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """input >= comparison: 1 or 0, or BOOLEAN when the caller gives the output that dtype."""
        return self._pointwise("cmp_ge", input, comparison, names=("input", "comparison"), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def cmp_lt(self, input: Any, comparison: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """input < comparison: 1 or 0, or BOOLEAN when the caller gives the output that dtype."""
        return self._pointwise("cmp_lt", input, comparison, names=("input", "comparison"), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def cmp_le(self, input: Any, comparison: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """input <= comparison: 1 or 0, or BOOLEAN when the caller gives the output that dtype."""
        return self._pointwise("cmp_le", input, comparison, names=("input", "comparison"), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def relu_backward(
        self,
        loss: Any,
        input: Any,
        negative_slope: float | None = None,
        lower_clip: float | None = None,
        upper_clip: float | None = None,
        *,
        compute_data_type: Any = None,
        name: str = "",
        out_dims: Any = None,
    ) -> Tensor:
        """Gradient of :meth:`relu`: loss between the clips, negative_slope * loss below, 0 above."""
        return self._pointwise(
            "relu_backward",
            loss,
            input,
            names=("loss", "input"),
            params=_options(negative_slope=negative_slope, lower_clip=lower_clip, upper_clip=upper_clip),
            name=name,
            compute_data_type=compute_data_type,
            out_dims=out_dims,
        )

    def leaky_relu_backward(
        self, loss: Any, input: Any, negative_slope: float, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None
    ) -> Tensor:
        """Gradient of :meth:`leaky_relu`."""
        return self._pointwise(
            "leaky_relu_backward",
            loss,
            input,
            names=("loss", "input"),
            params=_options(negative_slope=negative_slope),
            name=name,
            compute_data_type=compute_data_type,
            out_dims=out_dims,
        )

    def tanh_backward(self, loss: Any, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """loss times the derivative of :meth:`tanh` at the input."""
        return self._pointwise("tanh_backward", loss, input, names=("loss", "input"), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def sigmoid_backward(self, loss: Any, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """loss times the derivative of :meth:`sigmoid` at the input."""
        return self._pointwise("sigmoid_backward", loss, input, names=("loss", "input"), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def elu_backward(self, loss: Any, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """loss times the derivative of :meth:`elu` at the input."""
        return self._pointwise("elu_backward", loss, input, names=("loss", "input"), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def gelu_backward(self, loss: Any, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """loss times the derivative of :meth:`gelu` at the input."""
        return self._pointwise("gelu_backward", loss, input, names=("loss", "input"), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def softplus_backward(self, loss: Any, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """loss times the derivative of :meth:`softplus` at the input."""
        return self._pointwise("softplus_backward", loss, input, names=("loss", "input"), name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    def gelu_approx_tanh_backward(self, loss: Any, input: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """loss times the derivative of :meth:`gelu_approx_tanh` at the input."""
        return self._pointwise(
            "gelu_approx_tanh_backward", loss, input, names=("loss", "input"), name=name, compute_data_type=compute_data_type, out_dims=out_dims
        )

    def swish_backward(
        self, loss: Any, input: Any, swish_beta: float | None = None, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None
    ) -> Tensor:
        """loss times the derivative of :meth:`swish` at the input."""
        return self._pointwise(
            "swish_backward",
            loss,
            input,
            names=("loss", "input"),
            params=_options(swish_beta=swish_beta),
            name=name,
            compute_data_type=compute_data_type,
            out_dims=out_dims,
        )

    def binary_select(self, input0: Any, input1: Any, mask: Any, *, compute_data_type: Any = None, name: str = "", out_dims: Any = None) -> Tensor:
        """input0 where mask is true, else input1."""
        return self._pointwise(
            "binary_select", input0, input1, mask, names=("input0", "input1", "mask"), name=name, compute_data_type=compute_data_type, out_dims=out_dims
        )
