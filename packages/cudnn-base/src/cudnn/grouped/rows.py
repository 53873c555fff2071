"""The gated pair and its gradient over groups of rows, as the grouped and the discrete operations have them. Their published arguments are the subclasses' business."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from cudnn import checks
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.gemm_layout import Extents
from cudnn.gemm_operation import Scalars, Tensors, sample_metadata
from cudnn.grouped.checks import OUTPUT_DTYPES
from cudnn.grouped.layout import GroupedRule, vector
from cudnn.grouped.operation import RowsOperation, Samples, Scratch
from cudnn.grouped.options import HALVES, DgluOptions, GluOptions
from cudnn.reference import cast
from cudnn.reference.grouped import GluScalars, group_of_rows, grouped_gemm_dglu, grouped_gemm_glu

if TYPE_CHECKING:
    import torch

ROW_BLOCK = 64  # rows of one block of sums of dbias


def write_rows(target: torch.Tensor, value: torch.Tensor, offsets: torch.Tensor) -> None:
    """Write ``value`` (M, columns) or (M,), rounded, into the rows of groups; the others keep what they have. Nothing is read from the device."""
    import torch

    value = value.reshape(target.shape)
    present = (group_of_rows(offsets, target.shape[0]) < offsets.shape[0]).view(-1, *[1] * (target.dim() - 1))
    target.copy_(torch.where(present, cast(value, target.dtype), target))


def glu_scalars(linear_offset: Any, activation: str, alpha: Any = 1.702, high: Any = 7.0, low: Any = -7.0) -> GluScalars:
    """From the published arguments: ``linear_offset`` None is 1 for geglu and its gradient, else 0."""
    if linear_offset is None:
        linear_offset = 1.0 if activation == "geglu" else 0.0
    found = GluScalars(linear_offset, alpha, high, low)
    if type(linear_offset) is type(alpha) is type(high) is type(low) is float:
        return found
    names = ("linear_offset", "geglu_alpha", "glu_clamp_max", "glu_clamp_min")
    return GluScalars(*[checks.as_scalar(name, value) for name, value in zip(names, found, strict=True)])


class GluRows(RowsOperation):
    """c = alpha[e] * A B[e]ᵀ + bias[n, e]; d = prob[m] * act(gate, up) of c's halves."""

    def __init__(
        self,
        sample_a: Any,
        sample_b: Any,
        sample_c: Any,
        sample_d: Any,
        sample_padded_offsets: Any,
        sample_alpha: Any,
        sample_prob: Any,
        sample_bias: Any,
        *,
        num_experts: Any,
        b_shape: Any,
        b_dtype: Any,
        b_major: str,
        activation: str,
        glu_layout: str,
        n_major_tensors: bool = False,
        backend: str,
        config: GemmConfig | Mapping[str, object] | None,
        bias_dtypes: tuple[str, ...] = OUTPUT_DTYPES,
    ) -> None:
        if activation not in ("swiglu", "geglu"):
            raise ValueError(f"act_func: found {activation!r}, needs 'swiglu' or 'geglu'")
        self.activation = activation
        self._bias_dtypes = bias_dtypes
        sample_metadata(type(self).__name__, "a_tensor", sample_a)
        unit = len(sample_a.shape) == 3
        halves = 2 if glu_layout in HALVES else 1
        rest: Samples = [(self.matrix_rule("d_tensor", "n/2", unit), sample_d)]
        if sample_c is not None:
            rest.append((self.matrix_rule("c_tensor", "n", unit, halves), sample_c))
        if sample_alpha is not None:
            rest.append((vector("alpha_tensor", "e"), sample_alpha))
        if sample_prob is not None:
            rest.append((self.rows_rule("prob_tensor", unit), sample_prob))
        if sample_bias is not None:
            rest.append((self.bias_rule("bias_tensor"), sample_bias))
        super().__init__(
            sample_a,
            sample_b,
            sample_padded_offsets,
            rest,
            num_experts=num_experts,
            b_shape=b_shape,
            b_dtype=b_dtype,
            b_major=b_major,
            glu_layout=glu_layout,
            n_major_tensors=n_major_tensors,
            backend=backend,
            config=config,
        )
        self._has = {name: name in self._layout.names for name in ("c_tensor", "alpha_tensor", "prob_tensor", "bias_tensor")}

    def _check_tensors(self) -> None:
        super()._check_tensors()
        self._check_output_dtypes(("c_tensor", "d_tensor"))
        self._check_output_dtypes(("bias_tensor",), self._bias_dtypes)

    def _check_columns(self, n: int) -> None:
        if self.glu_layout == "interleaved32" and n % 64:
            raise ValueError(
                f'b_tensor: found N = {n} with glu_layout="interleaved32", needs a multiple of 64 (blocks of 32 gate and 32 up rows); pad both halves to a multiple of 32, '
                'or pass them whole with glu_layout="concatenated" or "separate"'
            )

    def _problem(self, majors: Mapping[str, str]) -> tuple[GemmProblem, GluOptions]:
        dtype = self._dtype
        prob, alpha = self._has["prob_tensor"], self._has["alpha_tensor"]
        return self._row_problem(), GluOptions(str(dtype("d_tensor")), dtype("c_tensor"), dtype("bias_tensor"), self.activation, self.glu_layout, prob, alpha)

    def _kernel_scalars(self, scalars: Mapping[str, Any]) -> Scalars:
        return GluScalars(*scalars.values()) if self.activation == "geglu" else (0.0,)

    def _execute(
        self, a: Any, weights: tuple[Any, ...], offsets: Any, c: Any, d: Any, alpha: Any, prob: Any, bias: Any, scalars: GluScalars, stream: Any, workspace: Any
    ) -> None:
        has = self._has
        if (
            has["c_tensor"] is (c is None)
            or has["alpha_tensor"] is (alpha is None)
            or has["prob_tensor"] is (prob is None)
            or has["bias_tensor"] is (bias is None)
        ):
            for name, given in (("c_tensor", c), ("alpha_tensor", alpha), ("prob_tensor", prob), ("bias_tensor", bias)):
                check_presence(name, given, has[name])
        tensors = [a, *weights, offsets, d]
        if c is not None:
            tensors.append(c)
        if alpha is not None:
            tensors.append(alpha)
        if prob is not None:
            tensors.append(prob)
        if bias is not None:
            tensors.append(bias)
        self._run(tuple(tensors), scalars if self.activation == "geglu" else (0.0,), stream, workspace)

    def _reference(self, tensors: Tensors, scalars: Scalars) -> None:
        a, b, offsets = self._reference_operands(tensors)
        given = dict(zip(self._layout.names, tensors, strict=True))
        prob = given.get("prob_tensor")
        c, d = grouped_gemm_glu(
            a,
            b,
            offsets,
            given.get("alpha_tensor"),
            None if prob is None else prob.reshape(-1),
            given.get("bias_tensor"),
            activation=self.activation,
            scalars=GluScalars(*scalars) if len(scalars) == 4 else None,
            glu_layout=self.glu_layout,
        )
        write_rows(given["d_tensor"], d, offsets)
        if "c_tensor" in given:
            write_rows(given["c_tensor"], c, offsets)


class DgluRows(RowsOperation):
    """The gradient of ``GluRows``: d = the gradient of c, dprob[m] += and dbias[e] += their sums, activation = prob[m] * act. Alpha and beta are both given or neither; prob and dprob too."""

    dbias_dtypes: ClassVar[tuple[str, ...]] = ("bfloat16",)

    def __init__(
        self,
        sample_a: Any,
        sample_b: Any,
        sample_c: Any,
        sample_d: Any,
        sample_padded_offsets: Any,
        sample_alpha: Any,
        sample_beta: Any,
        sample_prob: Any,
        sample_dprob: Any,
        sample_dbias: Any,
        sample_activation: Any,
        *,
        num_experts: Any,
        b_shape: Any,
        b_dtype: Any,
        b_major: str,
        activation: str,
        glu_layout: str,
        scaled_c: bool,
        round_dgrad: bool,
        deterministic: bool,
        scalars: GluScalars | None,
        n_major_tensors: bool,
        backend: str,
        config: GemmConfig | Mapping[str, object] | None,
    ) -> None:
        if activation not in ("dswiglu", "dgeglu"):
            raise ValueError(f"act_func: found {activation!r}, needs 'dswiglu' or 'dgeglu'")
        self.activation = activation.removeprefix("d")
        self._scaled_c, self._round_dgrad, self._deterministic, self._scalars = scaled_c, bool(round_dgrad), deterministic, scalars
        sample_metadata(type(self).__name__, "a_tensor", sample_a)
        unit = len(sample_a.shape) == 3
        halves = 2 if glu_layout in HALVES else 1
        rest: Samples = [(self.matrix_rule("c_tensor", "2n", unit, halves), sample_c), (self.matrix_rule("d_row_tensor", "2n", unit, halves), sample_d)]
        if sample_activation is not None:
            rest.append((self.matrix_rule("activation_tensor", "n", unit), sample_activation))
        rest += [(vector(name, "e"), t) for name, t in (("alpha_tensor", sample_alpha), ("beta_tensor", sample_beta)) if t is not None]
        rest += [(self.rows_rule(name, unit), t) for name, t in (("prob_tensor", sample_prob), ("dprob_tensor", sample_dprob)) if t is not None]
        if sample_dbias is not None:
            rest.append((GroupedRule("dbias_tensor", ("e", "2n", 1), ((0, 1, 2),)), sample_dbias))
        super().__init__(
            sample_a,
            sample_b,
            sample_padded_offsets,
            rest,
            num_experts=num_experts,
            b_shape=b_shape,
            b_dtype=b_dtype,
            b_major=b_major,
            # The layout is about C's columns here; B has one row for each pair of them.
            glu_layout="interleaved32",
            n_major_tensors=n_major_tensors,
            backend=backend,
            config=config,
        )
        self.glu_layout = glu_layout
        self._has = {name: name in self._layout.names for name in ("activation_tensor", "alpha_tensor", "prob_tensor", "dbias_tensor")}

    def _check_tensors(self) -> None:
        super()._check_tensors()
        self._check_output_dtypes(("c_tensor", "d_row_tensor"))
        self._check_output_dtypes(("dbias_tensor",), self.dbias_dtypes)
        if self._has["activation_tensor"]:
            self._check_activation()

    def _check_activation(self) -> None:
        """ValueError unless the activation, of which there is one, suits the operation."""
        a, c, d, found = (self._dtype(name) for name in ("a_tensor", "c_tensor", "d_row_tensor", "activation_tensor"))
        if self.activation != "geglu":
            raise ValueError(f'activation_tensor: found one with act_func="d{self.activation}", needs "dgeglu"')
        if not c == d == found == a:
            raise ValueError(f"activation_tensor: found dtypes c_tensor {c}, d_row_tensor {d}, activation_tensor {found}, needs all of them {a}, as a_tensor")

    def _check_columns(self, n: int) -> None:
        if self.glu_layout == "interleaved32" and n % 32:
            raise ValueError(
                f'b_tensor: found N = {n} with glu_layout="interleaved32", needs a multiple of 32 (blocks of 32 gate and 32 up columns in c_tensor); pad N, or keep C as [gate | up] with '
                'glu_layout="concatenated"'
            )

    def _check_extents(self, metas: Any) -> None:
        extents = self._layout.extents(metas)
        self._check_columns(extents.n)
        if self.pointers and self.b_major == "n" and extents.n % 8:
            raise ValueError(f'b_ptrs: found N = {extents.n} with b_major="n", so lines are not 16B aligned; needs a multiple of 8')

    def _problem(self, majors: Mapping[str, str]) -> tuple[GemmProblem, DgluOptions]:
        dtype = self._dtype
        options = DgluOptions(
            str(dtype("c_tensor")),
            str(dtype("d_row_tensor")),
            self.activation,
            self.glu_layout,
            dtype("activation_tensor"),
            dtype("dbias_tensor"),
            dtype("a_tensor") if self._round_dgrad else None,
            self._scaled_c,
            self._deterministic and self._has["prob_tensor"],
            self._has["prob_tensor"],
            self._has["alpha_tensor"],
        )
        return self._row_problem("single"), options

    def identity(self) -> tuple[Any, ...]:
        return *super().identity(), self._scalars

    def _kernel_scalars(self, scalars: Mapping[str, Any]) -> Scalars:
        if self.activation != "geglu":
            return (0.0,)
        return self._scalars if self._scalars is not None else GluScalars(*scalars.values())

    def repeated(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
        # The activation has memory of its own, which is looked at in every call.
        return None if self._has["activation_tensor"] else super().repeated(inputs, outputs)

    def _scratch_tensors(self, config: GemmConfig, extents: Extents) -> tuple[Scratch, ...]:
        wanted = list(self._maps(extents))
        if self._deterministic and self._has["prob_tensor"]:
            wanted.append(Scratch((-(-extents.n // config.tile_n), extents.m), "float32"))
        if self._has["dbias_tensor"]:
            wanted.append(Scratch((extents.m // ROW_BLOCK + extents.batches, 2 * extents.n), "float32"))
        return tuple(wanted)

    def _execute(
        self,
        a: Any,
        weights: tuple[Any, ...],
        offsets: Any,
        c: Any,
        d: Any,
        activation: Any,
        alpha: Any,
        beta: Any,
        prob: Any,
        dprob: Any,
        dbias: Any,
        scalars: GluScalars,
        stream: Any,
        workspace: Any,
    ) -> None:
        has = self._has
        if has["activation_tensor"] is (activation is None) or has["dbias_tensor"] is (dbias is None):
            for name, given in (("activation_tensor", activation), ("dbias_tensor", dbias)):
                check_presence(name, given, has[name])
        if has["alpha_tensor"] and (alpha is None or beta is None) or has["prob_tensor"] and (prob is None or dprob is None):
            for name, given in (("alpha_tensor", alpha), ("beta_tensor", beta), ("prob_tensor", prob), ("dprob_tensor", dprob)):
                check_presence(name, given, True)
        tensors = [a, *weights, offsets, c, d]
        if activation is not None:
            tensors.append(activation)
        tensors += [t for t in (alpha, beta, prob, dprob) if t is not None]
        if dbias is not None:
            tensors.append(dbias)
        self._run(tuple(tensors), scalars if self.activation == "geglu" else (0.0,), stream, workspace)

    def _reference(self, tensors: Tensors, scalars: Scalars) -> None:
        import torch

        a, b, offsets = self._reference_operands(tensors)
        given = dict(zip(self._layout.names, tensors, strict=True))
        c = given["c_tensor"]
        found = grouped_gemm_dglu(
            a,
            b,
            c[..., 0] if self.unit_axes else c,
            offsets,
            given.get("alpha_tensor"),
            given.get("beta_tensor") if self._scaled_c else None,
            given["prob_tensor"].reshape(-1) if "prob_tensor" in given else None,
            activation=self.activation,
            scalars=GluScalars(*scalars) if len(scalars) == 4 else None,
            glu_layout=self.glu_layout,
            round_to=a.dtype if self._round_dgrad else None,
        )
        write_rows(given["d_row_tensor"], found.d, offsets)
        if "dprob_tensor" in given:
            dprob = given["dprob_tensor"]
            write_rows(dprob, dprob + found.dprob.view(dprob.shape), offsets)
        if "activation_tensor" in given:
            write_rows(given["activation_tensor"], found.activation, offsets)
        if "dbias_tensor" in given:
            dbias = given["dbias_tensor"]
            starts = torch.cat((offsets.new_zeros(1), offsets[:-1]))
            total = dbias.to(found.dbias.dtype) + found.dbias.unsqueeze(-1)
            dbias.copy_(torch.where((offsets > starts).view(-1, 1, 1), total.to(dbias.dtype), dbias))


def check_presence(name: str, given: Any, wanted: bool) -> None:
    """ValueError unless an optional tensor is given exactly where the samples had one."""
    if (given is not None) != wanted:
        found, needed = ("None", "a tensor") if wanted else ("a tensor", "None")
        raise ValueError(f"{name}: descriptor mismatch: found {found}, needs {needed}, as in the samples the object was compiled for")
