"""The product of GEMM + squared ReLU for the differentiable operation: operands of any pitch, factors and pre-activation optional."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn.cutedsl.epilogue.size import Footprint
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.gemm_layout import GemmLayout, Rule
from cudnn.gemm_operation import Scalars, Tensors
from cudnn.reference import cast
from cudnn.wrapper_calls import Arguments, Output, WrapperCalls, matrix_output
from cudnn_gemm_dense.operation import DenseOperation
from cudnn_gemm_dense.products import as_operand
from cudnn_gemm_dense.srelu.options import SreluOptions, srelu_spec
from cudnn_gemm_dense.srelu.reference import gemm_srelu_reference

if TYPE_CHECKING:
    import torch

    from cudnn.cutedsl.compile import KernelSpec


class SreluProduct(DenseOperation):
    """D = prob * relu(S)², and C = S where a sample of it is given; S = alpha * A Bᵀ. `GemmSrelu` with C and prob optional."""

    op = "gemm_srelu"

    def __init__(self, sample_a: Any, sample_b: Any, sample_c: Any, sample_d: Any, sample_prob: Any) -> None:
        rules = [Rule("a_tensor", ("m", "k", "l"), "a"), Rule("b_tensor", ("n", "k", "l"), "b")]
        samples = [("a_tensor", sample_a), ("b_tensor", sample_b)]
        for name, t in (("c_tensor", sample_c), ("d_tensor", sample_d)):
            if t is not None:
                rules.append(Rule(name, ("m", "n", "l"), "out"))
                samples.append((name, t))
        if sample_prob is not None:
            rules.append(Rule("prob_tensor", ("m", 1, "l")))
            samples.append(("prob_tensor", sample_prob))
        super().__init__(samples, GemmLayout(rules, compact=False), backend="auto", config=None)

    def _check(self) -> tuple[GemmProblem, SreluOptions, dict[str, str]]:
        metas = self._samples
        self._layout.extents(metas)
        majors = self._layout.majors(metas)
        self._layout.check_lines(metas, majors)
        problem = GemmProblem(metas[0].dtype, metas[1].dtype, "float32", majors["a"], majors["b"])
        d_dtype = self._dtype("d_tensor")
        assert d_dtype is not None
        return problem, SreluOptions(self._dtype("c_tensor"), d_dtype, majors["out"], "prob_tensor" in self._layout.names), majors

    def _spec(self, problem: GemmProblem, options: SreluOptions, config: GemmConfig) -> KernelSpec:
        return srelu_spec(problem, options, config)

    def _footprint(self, options: SreluOptions) -> Footprint:
        return options.footprint

    def _constructor_arguments(self) -> dict[str, Any]:
        return {}

    def execute(self, a_tensor: Any, b_tensor: Any, d_tensor: Any, c_tensor: Any = None, prob_tensor: Any = None, alpha: float = 1.0, current_stream: Any = None) -> None:  # type: ignore[override]
        rest = (t for t in (c_tensor, d_tensor, prob_tensor) if t is not None)
        self._run((a_tensor, b_tensor, *rest), (alpha,), current_stream, None)

    def _reference(self, tensors: Tensors, scalars: Scalars) -> None:
        t = dict(zip(self._layout.names, tensors, strict=True))
        s, y = gemm_srelu_reference(t["a_tensor"], t["b_tensor"], t.get("prob_tensor"), scalars[0])
        t["d_tensor"].copy_(cast(y, t["d_tensor"].dtype))
        if "c_tensor" in t:
            t["c_tensor"].copy_(cast(s, t["c_tensor"].dtype))

    def _call_traced(self, tensors: Tensors, scalars: Scalars) -> None:
        raise TypeError("SreluProduct works below torch's operators, on tensors with memory")


def srelu_product(a: torch.Tensor, b: torch.Tensor, prob: torch.Tensor | None, *, alpha: float, keep: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(prob * relu(s)², s or None) with s = alpha * a bᵀ: a (M, K), b (N, K), prob (M,); (M, N) row-major in a's dtype."""
    factors = None if prob is None else prob.view(-1, 1, 1)
    tensors = {"a_tensor": as_operand(a).unsqueeze(-1), "b_tensor": as_operand(b).unsqueeze(-1), "prob_tensor": factors}
    made = _CALLS(tensors, {"alpha": alpha}, {"keep": keep}, None)
    return made["d_tensor"].squeeze(-1), made["c_tensor"].squeeze(-1) if keep else None


def _outputs(tensors: Arguments, options: Arguments) -> dict[str, Output]:
    a, b = tensors["a_tensor"], tensors["b_tensor"]
    return {name: matrix_output((a.shape[0], b.shape[0], 1), "n", a.dtype) for name in (("c_tensor", "d_tensor") if options["keep"] else ("d_tensor",))}


def _build(tensors: Arguments, outputs: Arguments, options: Arguments) -> SreluProduct:
    return SreluProduct(tensors["a_tensor"], tensors["b_tensor"], outputs.get("c_tensor"), outputs["d_tensor"], tensors["prob_tensor"])


def _no_operators() -> tuple[Any, Any]:
    raise TypeError("this product works below torch's operators, on tensors with memory")


_CALLS = WrapperCalls("srelu_product", srelu_product, SreluProduct, _outputs, _build, _no_operators)
