"""The two products of a feed-forward layer that end in its activation, for two separate weights and with the pre-activation kept where it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn.cutedsl.epilogue.size import Footprint
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.gemm_layout import GemmLayout, Rule
from cudnn.gemm_operation import Scalars, Tensors
from cudnn.reference import cast, matmul
from cudnn.wrapper_calls import Arguments, Output, WrapperCalls, matrix_output
from cudnn_gemm_dense.dswiglu.options import DswigluOptions, dswiglu_spec
from cudnn_gemm_dense.mlp.activations import backward, forward, kernel_scalars
from cudnn_gemm_dense.operation import DenseOperation
from cudnn_gemm_dense.products import as_operand
from cudnn_gemm_dense.swiglu.kernel import swiglu_spec
from cudnn_gemm_dense.swiglu.options import SwigluOptions
from cudnn_gemm_dense.swiglu.shapes import B_PARTS, check_columns, forward_layout, named_b, rows_of_b

if TYPE_CHECKING:
    import torch

    from cudnn.cutedsl.compile import KernelSpec


class GatedProduct(DenseOperation):
    """C = activation(gate, up), and AB12 = alpha * A Bᵀ where a sample of it is given: `GemmSwiglu` for operands of any pitch, with AB12 optional and any activation."""

    op = "gemm_swiglu"

    def __init__(
        self, sample_a: Any, sample_b: Any, sample_ab12: Any, sample_c: Any, *, glu_layout: str, activation: str, constants: tuple[float, ...]
    ) -> None:
        halves = named_b(sample_b, glu_layout)
        kept = [] if sample_ab12 is None else [("ab12_tensor", sample_ab12)]
        samples = [("a_tensor", sample_a), *halves, *kept, ("c_tensor", sample_c)]
        layout = forward_layout(glu_layout, compact=False, ab12=bool(kept))
        super().__init__(samples, layout, operands=1 + len(halves), backend="auto", config=None)
        self.glu_layout, self.activation, self.constants, self.keeps = glu_layout, activation, constants, bool(kept)

    def identity(self) -> tuple[Any, ...]:
        return *super().identity(), self.constants

    def _check(self) -> tuple[GemmProblem, SwigluOptions, dict[str, str]]:
        metas = self._samples
        extents = self._layout.extents(metas)
        majors = self._layout.majors(metas)
        check_columns(extents.n, self.glu_layout)
        self._layout.check_lines(metas, majors)
        problem = GemmProblem(metas[0].dtype, metas[1].dtype, "float32", majors["a"], majors["b"], B_PARTS[self.glu_layout])
        options = SwigluOptions(self._dtype("ab12_tensor"), metas[-1].dtype, majors["out"], self.glu_layout, self.activation)
        return problem, options, majors

    def _check_extents(self, metas: Any) -> None:
        check_columns(rows_of_b(metas[1 : self._operands]), self.glu_layout)

    def _spec(self, problem: GemmProblem, options: SwigluOptions, config: GemmConfig) -> KernelSpec:
        return swiglu_spec(problem, options, config)

    def _footprint(self, options: SwigluOptions) -> Footprint:
        return options.footprint

    def _constructor_arguments(self) -> dict[str, Any]:
        return {}

    def execute(self, a_tensor: Any, b_tensor: Any, c_tensor: Any, ab12_tensor: Any = None, alpha: float = 1.0, current_stream: Any = None) -> None:  # type: ignore[override]
        kept = () if ab12_tensor is None else (ab12_tensor,)
        halves = b_tensor if isinstance(b_tensor, tuple) else (b_tensor,)
        self._run((a_tensor, *halves, *kept, c_tensor), (alpha, *self._constant_scalars), current_stream, None)

    @property
    def _constant_scalars(self) -> Scalars:
        return kernel_scalars(self.activation, self.constants)

    def _reference(self, tensors: Tensors, scalars: Scalars) -> None:
        import torch

        from cudnn.reference import split_gate_up

        a, b, rest = tensors[0], tensors[1 : self._operands], tensors[self._operands :]
        s = torch.cat([matmul(a, half, scalars[0]) for half in b], 1)
        gate, up = split_gate_up(s, self.glu_layout)
        rest[-1].copy_(cast(forward(self.activation, gate, up, self.constants), rest[-1].dtype))
        if self.keeps:
            rest[0].copy_(cast(s, rest[0].dtype))

    def _call_traced(self, tensors: Tensors, scalars: Scalars) -> None:
        raise TypeError("GatedProduct works below torch's operators, on tensors with memory")


class GatedGradientProduct(DenseOperation):
    """dAB12 from the gradient A Bᵀ of the activated pair: `GemmDswiglu` for any activation, AB12 and dAB12 as [gate | up]."""

    op = "gemm_dswiglu"

    def __init__(self, sample_a: Any, sample_b: Any, sample_ab12: Any, sample_d_ab12: Any, *, activation: str, constants: tuple[float, ...]) -> None:
        rules = (
            Rule("a_tensor", ("m", "k", "l"), "a"),
            Rule("b_tensor", ("n", "k", "l"), "b"),
            Rule("ab12_tensor", ("m", "2n", "l"), "out", "n"),
            Rule("d_ab12_tensor", ("m", "2n", "l"), "out", "n"),
        )
        samples = [(rule.name, t) for rule, t in zip(rules, (sample_a, sample_b, sample_ab12, sample_d_ab12), strict=True)]
        super().__init__(samples, GemmLayout(rules, compact=False), backend="auto", config=None)
        self.activation, self.constants = activation, constants

    def identity(self) -> tuple[Any, ...]:
        return *super().identity(), self.constants

    def _check(self) -> tuple[GemmProblem, DswigluOptions, dict[str, str]]:
        metas = self._samples
        self._layout.extents(metas)
        majors = self._layout.majors(metas)
        self._layout.check_lines(metas, majors)
        problem = GemmProblem(metas[0].dtype, metas[1].dtype, "float32", majors["a"], majors["b"])
        return problem, DswigluOptions(metas[2].dtype, metas[3].dtype, None, majors["out"], "concatenated", self.activation), majors

    def _spec(self, problem: GemmProblem, options: DswigluOptions, config: GemmConfig) -> KernelSpec:
        return dswiglu_spec(problem, options, config)

    def _footprint(self, options: DswigluOptions) -> Footprint:
        return options.footprint

    def _constructor_arguments(self) -> dict[str, Any]:
        return {}

    @property
    def _constant_scalars(self) -> Scalars:
        return (1.0, *kernel_scalars(self.activation, self.constants))

    def execute(self, a_tensor: Any, b_tensor: Any, ab12_tensor: Any, d_ab12_tensor: Any, current_stream: Any = None) -> None:  # type: ignore[override]
        self._run((a_tensor, b_tensor, ab12_tensor, d_ab12_tensor), self._constant_scalars, current_stream, None)

    def _reference(self, tensors: Tensors, scalars: Scalars) -> None:
        import torch

        a, b, ab12, d_ab12 = tensors
        gate, up = ab12.float().chunk(2, 1)
        d_ab12.copy_(cast(torch.cat(backward(self.activation, gate, up, matmul(a, b, scalars[0]), self.constants), 1), d_ab12.dtype))

    def _call_traced(self, tensors: Tensors, scalars: Scalars) -> None:
        raise TypeError("GatedGradientProduct works below torch's operators, on tensors with memory")


def gated_product(
    a: torch.Tensor,
    weights: tuple[torch.Tensor, ...],
    *,
    alpha: float = 1.0,
    glu_layout: str = "separate",
    keep: bool,
    activation: str = "swiglu",
    constants: tuple[float, ...] = (),
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(activated (M, I), pre-activation (M, 2 I) or None) from a (M, K) and one weight (2 I, K) or the pair (gate, up) of (I, K); all row-major results in a's dtype."""
    b = tuple(as_operand(w).unsqueeze(-1) for w in weights)
    tensors = {"a_tensor": as_operand(a).unsqueeze(-1), "b_tensor": b if len(b) == 2 else b[0]}
    made = _FORWARD(tensors, {"alpha": alpha}, {"glu_layout": glu_layout, "keep": keep, "activation": activation, "constants": constants}, None)
    return made["c_tensor"].squeeze(-1), made["ab12_tensor"].squeeze(-1) if keep else None


def gated_gradient_product(a: torch.Tensor, b: torch.Tensor, ab12: torch.Tensor, *, activation: str, constants: tuple[float, ...]) -> torch.Tensor:
    """Gradient (M, 2 I) of the pre-activation ab12 (M, 2 I), [gate | up], from the gradient a bᵀ of the activated pair: a (M, K), b (I, K)."""
    tensors = {"a_tensor": as_operand(a).unsqueeze(-1), "b_tensor": as_operand(b).unsqueeze(-1), "ab12_tensor": ab12.unsqueeze(-1)}
    return _BACKWARD(tensors, {}, {"activation": activation, "constants": constants}, None)["d_ab12_tensor"].squeeze(-1)


def _forward_outputs(tensors: Arguments, options: Arguments) -> dict[str, Output]:
    a = tensors["a_tensor"]
    n = rows_of_b([half for _, half in named_b(tensors["b_tensor"], options["glu_layout"])])
    widths = {"ab12_tensor": n, "c_tensor": n // 2} if options["keep"] else {"c_tensor": n // 2}
    return {name: matrix_output((a.shape[0], width, 1), "n", a.dtype) for name, width in widths.items()}


def _forward_build(tensors: Arguments, outputs: Arguments, options: Arguments) -> GatedProduct:
    more = {name: options[name] for name in ("glu_layout", "activation", "constants")}
    return GatedProduct(tensors["a_tensor"], tensors["b_tensor"], outputs.get("ab12_tensor"), outputs["c_tensor"], **more)


def _backward_outputs(tensors: Arguments, options: Arguments) -> dict[str, Output]:
    ab12 = tensors["ab12_tensor"]
    return {"d_ab12_tensor": matrix_output(tuple(ab12.shape), "n", ab12.dtype)}


def _backward_build(tensors: Arguments, outputs: Arguments, options: Arguments) -> GatedGradientProduct:
    return GatedGradientProduct(tensors["a_tensor"], tensors["b_tensor"], tensors["ab12_tensor"], outputs["d_ab12_tensor"], **options)


def _no_operators() -> tuple[Any, Any]:
    raise TypeError("these products work below torch's operators, on tensors with memory")


_FORWARD = WrapperCalls("gated_product", gated_product, GatedProduct, _forward_outputs, _forward_build, _no_operators)
_BACKWARD = WrapperCalls("gated_gradient_product", gated_gradient_product, GatedGradientProduct, _backward_outputs, _backward_build, _no_operators)
