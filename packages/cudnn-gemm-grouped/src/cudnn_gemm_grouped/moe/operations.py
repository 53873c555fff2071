"""The grouped products as layers need them: matrices of any pitch, factors and sums left out where there are none. The published classes are in the operations' own folders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.gemm_operation import Scalars, Tensors
from cudnn.grouped.layout import PitchedLayout
from cudnn.grouped.operation import RowsOperation, Samples
from cudnn.grouped.options import ProductOptions
from cudnn.grouped.rows import DgluRows, GluRows, write_rows
from cudnn.reference.grouped import GluScalars, grouped_gemm
from cudnn_gemm_grouped.wgrad.api import GroupedGemmWgrad


def _no_operator() -> Any:
    raise TypeError("these products work below torch's operators, on tensors with memory")


class Linear(RowsOperation):
    """D[m] = A[m] B[e]ᵀ + addend[m] + prob[m] · bias[e] for the rows m of each group e, with whatever of addend, prob and bias there is. Without a bias there is no prob. B by tensor, or by addresses."""

    op = "grouped_gemm"
    layout_class = PitchedLayout

    def __init__(
        self,
        a: Any,
        b: Any,
        ends: Any,
        d: Any,
        bias: Any,
        prob: Any,
        addend: Any,
        *,
        b_major: str,
        num_experts: Any = None,
        b_shape: Any = None,
        b_dtype: Any = None,
    ) -> None:
        rest: Samples = [(self.matrix_rule("d_tensor", "n", False), d)]
        if addend is not None:
            rest.append((self.matrix_rule("addend_tensor", "n", False), addend))
        if prob is not None:
            rest.append((self.rows_rule("prob_tensor", False), prob))
        if bias is not None:
            rest.append((self.bias_rule("bias_tensor"), bias))
        by_pointers = {"num_experts": num_experts, "b_shape": b_shape, "b_dtype": b_dtype}
        super().__init__(a, b, ends, rest, **by_pointers, b_major=b_major, n_major_tensors=True, backend="auto", config=None)

    def _problem(self, majors: Mapping[str, str]) -> tuple[GemmProblem, ProductOptions]:
        prob = "prob_tensor" in self._layout.names
        options = ProductOptions(str(self._dtype("d_tensor")), None, self._dtype("bias_tensor"), False, prob, self._dtype("addend_tensor"))
        return self._row_problem(), options

    def execute(
        self,
        a_tensor: Any,
        padded_offsets: Any,
        d_tensor: Any = None,
        addend_tensor: Any = None,
        b_tensor: Any = None,
        b_ptrs: Any = None,
        prob_tensor: Any = None,
        bias_tensor: Any = None,
        current_stream: Any = None,
    ) -> None:  # type: ignore[override]
        # An addend is written over.
        target = addend_tensor if d_tensor is None else d_tensor
        optional = [t for t in (addend_tensor, prob_tensor, bias_tensor) if t is not None]
        self._run((a_tensor, *self._given_weights(b_tensor, b_ptrs), padded_offsets, target, *optional), (0.0,), current_stream, None)

    def _reference(self, tensors: Tensors, scalars: Scalars) -> None:
        a, b, ends = self._reference_operands(tensors)
        given = dict(zip(self._layout.names, tensors, strict=True))
        _, d = grouped_gemm(a, b, ends, None, given.get("prob_tensor"), given.get("bias_tensor"), addend=given.get("addend_tensor"))
        write_rows(given["d_tensor"], d, ends)

    def _constructor_arguments(self) -> dict[str, Any]:
        return {}

    def _calls(self) -> Any:
        return _no_operator()


class GatedLinear(GluRows):
    """C[m] = A[m] B[e]ᵀ + bias[e], kept or not, and D[m] = prob[m] · act(gate, up) of C's halves."""

    layout_class = PitchedLayout
    op = "grouped_gemm_glu"

    def __init__(self, a: Any, b: Any, c: Any, d: Any, ends: Any, prob: Any, bias: Any, *, activation: str, glu_layout: str, b_major: str) -> None:
        super().__init__(
            a,
            b,
            c,
            d,
            ends,
            None,
            prob,
            bias,
            num_experts=None,
            b_shape=None,
            b_dtype=None,
            b_major=b_major,
            activation=activation,
            glu_layout=glu_layout,
            n_major_tensors=True,
            backend="auto",
            config=None,
        )

    def execute(
        self,
        a_tensor: Any,
        b_tensor: Any,
        padded_offsets: Any,
        d_tensor: Any,
        c_tensor: Any = None,
        prob_tensor: Any = None,
        bias_tensor: Any = None,
        current_stream: Any = None,
        **scalars: float,
    ) -> None:  # type: ignore[override]
        weights = self._given_weights(b_tensor, None)
        self._execute(a_tensor, weights, padded_offsets, c_tensor, d_tensor, None, prob_tensor, bias_tensor, GluScalars(**scalars), current_stream, None)

    def _constructor_arguments(self) -> dict[str, Any]:
        return {}

    def _calls(self) -> Any:
        return _no_operator()


class GatedLinearGradient(DgluRows):
    """From the gradient A B[e]ᵀ of ``GatedLinear``'s D: that of its C, dprob and dbias, which are added to, and D over again."""

    layout_class = PitchedLayout
    dbias_dtypes = ("float32",)
    op = "grouped_gemm_dglu"

    def __init__(
        self,
        a: Any,
        b: Any,
        c: Any,
        d: Any,
        ends: Any,
        prob: Any,
        dprob: Any,
        dbias: Any,
        activated: Any,
        *,
        activation: str,
        glu_layout: str,
        b_major: str,
        deterministic: bool,
    ) -> None:
        super().__init__(
            a,
            b,
            c,
            d,
            ends,
            None,
            None,
            prob,
            dprob,
            dbias,
            activated,
            num_experts=None,
            b_shape=None,
            b_dtype=None,
            b_major=b_major,
            activation=f"d{activation}",
            glu_layout=glu_layout,
            scaled_c=False,
            round_dgrad=False,
            deterministic=deterministic,
            scalars=None,
            n_major_tensors=True,
            backend="auto",
            config=None,
        )

    def _check_activation(self) -> None:
        """Here an activation goes with everything."""

    def repeated(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
        # Memory of its own is what the activation has here: it is an output that the call allocates.
        return RowsOperation.repeated(self, inputs, outputs)

    def execute(
        self,
        a_tensor: Any,
        b_tensor: Any,
        c_tensor: Any,
        padded_offsets: Any,
        d_row_tensor: Any,
        prob_tensor: Any = None,
        dprob_tensor: Any = None,
        dbias_tensor: Any = None,
        activation_tensor: Any = None,
        current_stream: Any = None,
        **scalars: float,
    ) -> None:  # type: ignore[override]
        sums = (prob_tensor, dprob_tensor, dbias_tensor)
        weights, values = self._given_weights(b_tensor, None), GluScalars(**scalars)
        self._execute(a_tensor, weights, padded_offsets, c_tensor, d_row_tensor, activation_tensor, None, None, *sums, values, current_stream, None)

    def _constructor_arguments(self) -> dict[str, Any]:
        return {}

    def _calls(self) -> Any:
        return _no_operator()


class TokenGradient(GroupedGemmWgrad):
    """`GroupedGemmWgrad` for operands of any pitch, such as one half of gate and up."""

    layout_class = PitchedLayout

    def _calls(self) -> Any:
        return _no_operator()
