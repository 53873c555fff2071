"""Grouped operations for the conformance tests: how problems are made and computed otherwise. Needs pytest and torch.

M, N, K and L of the tests are rows (or columns of the weight gradient), columns, the extent of the sum, and the number of groups. Groups share the rows out at random and leave none over, so that every element of an
output is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from cudnn.reference import full_float32, join_gate_up, split_gate_up
from cudnn.reference.grouped import GluScalars, gated, gated_backward, group_of_rows, grouped_gemm, grouped_gemm_dglu, grouped_gemm_glu, grouped_wgrad

Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


def random_ends(extent: int, groups: int, device: str, step: int = 1) -> torch.Tensor:
    """Ends of ``groups`` groups that share out ``extent``, some of them empty; all but the last are multiples of ``step``."""
    cuts = torch.randint(0, extent // step + 1, (max(groups - 1, 0),)).sort().values * step
    return torch.cat((cuts, torch.tensor([extent]))).to(device=device, dtype=torch.int32)


def away_from_zero(count: int, device: str) -> torch.Tensor:
    """Random factors of either sign and about unit size: their squares keep float16 results in its range."""
    return (torch.rand(count, device=device) + 0.5) * torch.randint(0, 2, (count,), device=device).mul(2).sub(1)


class _Groups:
    """Tests of the conformance class that groups change."""

    @pytest.mark.parametrize("axis", ["m", "n"])
    def test_empty_outputs(self, axis: str) -> None:
        """No groups at all is refused, so their number is not one of the extents that may be 0."""
        super().test_empty_outputs(axis)  # type: ignore[misc]


class RowsHooks(_Groups):
    """The hooks that groups of rows have in common. The attributes say which operation."""

    device: str  # that of the conformance class, which stands behind the hooks
    dtype = torch.bfloat16
    d_dtype = torch.bfloat16
    legacy = False  # with the third axis of one element
    by_pointers = False
    b_major = "k"
    glu_layout = "interleaved32"
    backend = "auto"
    config: Mapping[str, Any] | None = None
    n_major_tensors = True  # whether (E, K, N) tensors are taken

    @property
    def options(self) -> dict[str, Any]:
        return {"backend": self.backend, "config": self.config}

    def matrix(self, rows: int, columns: int, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
        t = (torch.randn(rows, columns, device=self.device) * scale).to(dtype)
        return t.unsqueeze(-1) if self.legacy else t

    def vector(self, rows: int) -> torch.Tensor:
        t = torch.randn(rows, device=self.device)
        return t.view(-1, 1, 1) if self.legacy else t

    def layout(self, rows: int, columns: int, dtype: torch.dtype) -> Layout:
        """Of an output."""
        return ((rows, columns, 1), (columns, 1, rows * columns), dtype) if self.legacy else ((rows, columns), (columns, 1), dtype)

    def weights(self, groups: int, rows: int, k: int) -> torch.Tensor:
        """(E, rows, k), scaled so that products are of unit size."""
        return (torch.randn(groups, rows, k, device=self.device) * max(k, 1) ** -0.5).to(self.dtype)

    def given(self, weights: torch.Tensor) -> dict[str, Any]:
        """Weights (E, N, K) as arguments."""
        parts = weights.chunk(2, 1) if self.glu_layout == "separate" and not self.takes_products else (weights,)
        n_major = self.b_major == "n"
        if self.by_pointers:
            held = [(part.transpose(1, 2) if n_major else part).contiguous() for part in parts]
            pointers = [torch.tensor([one.data_ptr() for one in t], dtype=torch.int64, device=self.device) for t in held]
            # Nothing but this keeps what is pointed at alive.
            self._held = [*getattr(self, "_held", [])[-64:], *held]
            found = tuple(pointers) if len(pointers) == 2 else pointers[0]
            return {"b_ptrs": found}
        if n_major and self.n_major_tensors:
            tensors = [part.transpose(1, 2).contiguous() for part in parts]
        elif self.legacy:
            tensors = [part.contiguous().permute(1, 2, 0) for part in parts]
        else:
            tensors = [part.contiguous() for part in parts]
        return {"b_tensor": tuple(tensors) if len(tensors) == 2 else tensors[0]}

    takes_products = False  # whether gate and up are halves of C's columns only, not of B's rows

    def read(self, inputs: Mapping[str, Any], n: int) -> torch.Tensor:
        """Weights (E, N, K) from arguments."""
        k = inputs["a_tensor"].shape[1]
        if self.by_pointers:
            from cudnn.reference.grouped import tensor_at

            pointers = inputs["b_ptrs"] if isinstance(inputs["b_ptrs"], tuple) else (inputs["b_ptrs"],)
            rows = n // len(pointers)
            shape = (k, rows) if self.b_major == "n" else (rows, k)
            device = torch.device(self.device, torch.cuda.current_device()) if self.device == "cuda" else torch.device("cpu")
            parts = [torch.stack([tensor_at(address, shape, self.dtype, device) for address in p.tolist()]) for p in pointers]
            return torch.cat([part.transpose(1, 2) if self.b_major == "n" else part for part in parts], 1)
        given = inputs["b_tensor"]
        parts = [t.detach() for t in (given if isinstance(given, tuple) else (given,))]
        if self.b_major == "n" and self.n_major_tensors:
            parts = [part.transpose(1, 2) for part in parts]
        elif self.legacy:
            parts = [part.permute(2, 0, 1) for part in parts]
        return torch.cat(parts, 1)

    def row(self, t: torch.Tensor) -> torch.Tensor:
        return t.detach().reshape(-1)

    def rows_of(self, t: torch.Tensor) -> torch.Tensor:
        return t.detach()[..., 0] if self.legacy else t.detach()

    def shaped(self, t: torch.Tensor) -> torch.Tensor:
        """As an output."""
        return t.unsqueeze(-1) if self.legacy else t

    @property
    def compute(self) -> str:
        return "float32" if self.device != "cpu" and self.d_dtype.itemsize == 2 else "float64"

    def products(self, a: torch.Tensor, weights: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """(M, N) by torch's matmul in the working dtype, group by group; with float32 results where outputs are float32."""
        result = torch.zeros(a.shape[0], weights.shape[1], device=a.device)
        start = 0
        with full_float32():
            for group, end in enumerate(offsets.tolist()):
                if end > start and a.shape[1]:
                    left, right = a[start:end], weights[group].t()
                    exact = self.d_dtype.itemsize == 4 or left.device.type == "cpu"
                    result[start:end] = left.float() @ right.float() if exact else (left @ right).float()
                start = max(start, end)
        return result


class ProductHooks(RowsHooks):
    """`GroupedGemm`."""

    c_dtype: torch.dtype | None = torch.bfloat16
    bias_dtype: torch.dtype | None = None
    unaligned: tuple[str, ...] = ("padded_offsets", "alpha_tensor", "prob_tensor", "bias_tensor", "b_ptrs")
    m_step, n_step, k_step = 1, 32, 8
    takes_products = True

    def inputs(self, m: int, n: int, k: int, batches: int) -> dict[str, Any]:
        groups = max(batches, 1)
        found = {
            "a_tensor": self.matrix(m, k, self.dtype),
            **self.given(self.weights(groups, n, k)),
            "padded_offsets": random_ends(m, groups, self.device),
            "alpha_tensor": away_from_zero(groups, self.device),
            "prob_tensor": self.vector(m),
        }
        if self.bias_dtype is not None:
            found["bias_tensor"] = torch.randn(groups, n, device=self.device).to(self.bias_dtype).t()
        return found

    def output_layouts(self, m: int, n: int, k: int, batches: int) -> dict[str, Layout]:
        found = {"d_tensor": self.layout(m, n, self.d_dtype)}
        if self.c_dtype is not None:
            found["c_tensor"] = self.layout(m, n, self.c_dtype)
        return found

    def weights(self, groups: int, rows: int, k: int) -> torch.Tensor:
        self._n = rows
        return super().weights(groups, rows, k)

    def reference(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        a, offsets = self.rows_of(inputs["a_tensor"]), inputs["padded_offsets"]
        bias = inputs.get("bias_tensor")
        c, d = grouped_gemm(
            a,
            self.read(inputs, self._n),
            offsets,
            inputs["alpha_tensor"].detach(),
            self.row(inputs["prob_tensor"]),
            None if bias is None else bias.detach(),
            compute_dtype=self.compute,
        )
        return self._outputs(c, d)

    def _outputs(self, c: torch.Tensor, d: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"d_tensor": self.shaped(d), **({} if self.c_dtype is None else {"c_tensor": self.shaped(c)})}

    def baseline(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        a, offsets = self.rows_of(inputs["a_tensor"]), inputs["padded_offsets"]
        s = self.products(a, self.read(inputs, self._n), offsets)
        owner = group_of_rows(offsets, a.shape[0])
        prob = self.row(inputs["prob_tensor"])[:, None]
        x = s * inputs["alpha_tensor"].detach()[owner][:, None]
        if self.bias_dtype is None:
            c, d = x, x * prob
        else:
            c = d = x + prob * inputs["bias_tensor"].detach().float().t()[owner]
        rounded = self._outputs(c.to(self.c_dtype or self.d_dtype), d.to(self.d_dtype))
        return {name: t.float() for name, t in rounded.items()}


class GluHooks(ProductHooks):
    """`GroupedGemmGlu` and `DiscreteGroupedGemmSwiglu`."""

    activation = "swiglu"
    scalars = GluScalars()
    n_step = 64
    takes_products = False
    n_major_tensors = False
    prob = True

    def inputs(self, m: int, n: int, k: int, batches: int) -> dict[str, Any]:
        found = super().inputs(m, n, k, batches)
        if not self.prob:
            del found["prob_tensor"]
        return found

    def output_layouts(self, m: int, n: int, k: int, batches: int) -> dict[str, Layout]:
        return {**super().output_layouts(m, n, k, batches), "d_tensor": self.layout(m, n // 2, self.d_dtype)}

    def reference(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        bias, prob = inputs.get("bias_tensor"), inputs.get("prob_tensor")
        c, d = grouped_gemm_glu(
            self.rows_of(inputs["a_tensor"]),
            self.read(inputs, self._n),
            inputs["padded_offsets"],
            inputs["alpha_tensor"].detach(),
            None if prob is None else self.row(prob),
            None if bias is None else bias.detach(),
            activation=self.activation,
            scalars=self.scalars,
            glu_layout=self.glu_layout,
            compute_dtype=self.compute,
        )
        return self._outputs(c, d)

    def baseline(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        a, offsets = self.rows_of(inputs["a_tensor"]), inputs["padded_offsets"]
        x = self.products(a, self.read(inputs, self._n), offsets)
        owner = group_of_rows(offsets, a.shape[0])
        x = x * inputs["alpha_tensor"].detach()[owner][:, None]
        if self.bias_dtype is not None:
            x = x + inputs["bias_tensor"].detach().float().t()[owner]
        gate, up = split_gate_up(x, self.glu_layout, order="gate_first")
        d = gated(gate, up, self.activation, self.scalars)
        if self.prob:
            d = d * self.row(inputs["prob_tensor"])[:, None]
        rounded = self._outputs(x.to(self.c_dtype or self.d_dtype), d.to(self.d_dtype))
        return {name: t.float() for name, t in rounded.items()}


class DgluHooks(ProductHooks):
    """`GroupedGemmDglu` and `DiscreteGroupedGemmDswiglu`. dprob begins at 0.5, dbias at 0."""

    activation = "swiglu"
    scalars = GluScalars()
    dbias = True
    activation_output = False
    round_dgrad = False
    scaled_c = True
    c_dtype = torch.bfloat16
    unaligned = ("padded_offsets", "alpha_tensor", "beta_tensor", "prob_tensor", "dprob_tensor", "dbias_tensor", "b_ptrs")

    @property
    def initial(self) -> dict[str, float]:
        return {"dprob_tensor": 0.5, **({"dbias_tensor": 0.0} if self.dbias else {})}

    def test_execute_before_compile_is_refused(self: Any) -> None:
        """Without the size of the scratch memory, which fixed-order sums take for partial results."""
        extents = (16, self.n_step, 2 * self.k_step, 1)
        inputs, outputs = self.inputs(*extents), self.outputs(*extents)
        op = self.build(inputs, outputs)
        with pytest.raises(RuntimeError, match="not compiled"):
            op.execute(**inputs, **outputs)
        op(**inputs, **outputs)
        self.check(inputs, outputs)

    def inputs(self, m: int, n: int, k: int, batches: int) -> dict[str, Any]:
        found = super().inputs(m, n, k, batches)
        if self.round_dgrad:
            # Eighths and powers of two: sums that are exact in any order, so that what lies half way between two values of the operands' dtype is rounded to the same one by everybody.
            for name in ("a_tensor", "b_tensor"):
                found[name].mul_(8).round_().div_(8)
            alpha = found["alpha_tensor"]
            alpha.copy_(alpha.sign() * alpha.abs().log2().round().exp2())
        c = self.matrix(m, 2 * n, self.c_dtype)
        return {**found, "c_tensor": c, "beta_tensor": torch.rand(max(batches, 1), device=self.device) + 0.5}

    def output_layouts(self, m: int, n: int, k: int, batches: int) -> dict[str, Layout]:
        groups = max(batches, 1)
        vector: Layout = ((m, 1, 1), (1, 1, 1), torch.float32) if self.legacy else ((m,), (1,), torch.float32)
        found = {"d_row_tensor": self.layout(m, 2 * n, self.d_dtype), "dprob_tensor": vector}
        if self.dbias:
            found["dbias_tensor"] = ((groups, 2 * n, 1), (2 * n, 1, 1), torch.bfloat16)
        if self.activation_output:
            found["activation_tensor"] = self.layout(m, n, self.dtype)
        return found

    def reference(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        found = grouped_gemm_dglu(
            self.rows_of(inputs["a_tensor"]),
            self.read(inputs, self._n),
            self.rows_of(inputs["c_tensor"]),
            inputs["padded_offsets"],
            inputs["alpha_tensor"].detach(),
            inputs["beta_tensor"].detach() if self.scaled_c else None,
            self.row(inputs["prob_tensor"]),
            activation=self.activation,
            scalars=self.scalars,
            glu_layout=self.glu_layout,
            round_to=self.dtype if self.round_dgrad else None,
            compute_dtype=self.compute,
        )
        return self._gradients(*found)

    def _gradients(self, d: torch.Tensor, dprob: torch.Tensor, dbias: torch.Tensor, activation: torch.Tensor) -> dict[str, torch.Tensor]:
        dprob = dprob + self.initial["dprob_tensor"]
        found = {"d_row_tensor": self.shaped(d), "dprob_tensor": dprob.view(-1, 1, 1) if self.legacy else dprob}
        if self.dbias:
            found["dbias_tensor"] = dbias.unsqueeze(-1)
        if self.activation_output:
            found["activation_tensor"] = self.shaped(activation)
        return found

    def _upstream(self, inputs: Mapping[str, Any], owner: torch.Tensor) -> torch.Tensor:
        """The gradient of the activation's result, without the probabilities."""
        g = self.products(self.rows_of(inputs["a_tensor"]), self.read(inputs, self._n), inputs["padded_offsets"])
        g = g * inputs["alpha_tensor"].detach().square()[owner][:, None]
        return g.to(self.dtype).float() if self.round_dgrad else g

    def _saved(self, inputs: Mapping[str, Any], owner: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gate and up."""
        saved = self.rows_of(inputs["c_tensor"]).float()
        if self.scaled_c:
            saved = saved * inputs["beta_tensor"].detach()[owner][:, None]
        return split_gate_up(saved, self.glu_layout, order="gate_first")

    def terms(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        owner = group_of_rows(inputs["padded_offsets"], self.rows_of(inputs["a_tensor"]).shape[0])
        g = self._upstream(inputs, owner)
        *_, value = gated_backward(*self._saved(inputs, owner), g, self.activation, self.scalars)
        return {"dprob_tensor": (g * value).square().sum(1).sqrt()}

    def baseline(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        offsets = inputs["padded_offsets"]
        owner = group_of_rows(offsets, self.rows_of(inputs["a_tensor"]).shape[0])
        g, (gate, up) = self._upstream(inputs, owner), self._saved(inputs, owner)
        prob = self.row(inputs["prob_tensor"])[:, None]
        d_gate, d_up, value = gated_backward(gate, up, g * prob, self.activation, self.scalars)
        d = join_gate_up(d_gate, d_up, self.glu_layout, order="gate_first")
        dbias = torch.zeros(offsets.shape[0], d.shape[1], device=d.device).index_add_(0, owner, d).to(torch.bfloat16).float()
        return self._gradients(d.to(self.d_dtype).float(), (g * value).sum(1), dbias, (value * prob).to(self.dtype).float())


class WgradHooks(_Groups):
    """`GroupedGemmWgrad`: M and N of the weight gradient, K tokens, L groups."""

    device: str  # that of the conformance class, which stands behind the hooks
    dtype = torch.bfloat16
    d_dtype = torch.bfloat16
    a_major, b_major = "m", "n"
    step_blocks = False
    adds = False
    backend = "auto"
    config: Mapping[str, Any] | None = None
    m_step, n_step, k_step = 8, 8, 8
    unaligned: Sequence[str] = ("offsets_tensor",)

    @property
    def options(self) -> dict[str, Any]:
        order = "tensor_ragged" if self.step_blocks else "tensor2d"
        return {"accumulate_on_output": self.adds, "input_order": order, "backend": self.backend, "config": self.config}

    @property
    def initial(self) -> dict[str, float]:
        return {"wgrad_tensor": 0.5} if self.adds else {}

    def inputs(self, m: int, n: int, k: int, batches: int) -> dict[str, Any]:
        offsets = random_ends(k, max(batches, 1), self.device, 8 if self.step_blocks else 1)
        return {
            "a_tensor": self._stored(torch.randn(k, m, device=self.device).to(self.dtype), self.a_major == "k", offsets).t(),
            "b_tensor": self._stored(torch.randn(k, n, device=self.device).to(self.dtype), self.b_major == "k", offsets),
            "offsets_tensor": offsets,
        }

    def _stored(self, t: torch.Tensor, steps_contiguous: bool, offsets: torch.Tensor) -> torch.Tensor:
        """(T, R) with the axis contiguous that is wanted, group after group where that is."""
        if not steps_contiguous:
            return t
        if not self.step_blocks:
            return t.t().contiguous().t()
        starts = [0, *offsets.tolist()]
        blocks = [t[start:end].t().reshape(-1) for start, end in zip(starts, starts[1:], strict=False)]
        return torch.cat(blocks).view(t.shape[1], t.shape[0]).t()

    def output_layouts(self, m: int, n: int, k: int, batches: int) -> dict[str, Layout]:
        return {"wgrad_tensor": ((max(batches, 1), m, n), (m * n, n, 1), self.d_dtype)}

    def reference(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        compute = "float32" if self.device != "cpu" and self.d_dtype.itemsize == 2 else "float64"
        a, b = inputs["a_tensor"].detach(), inputs["b_tensor"].detach()
        value = grouped_wgrad(a, b, inputs["offsets_tensor"], step_blocks=self.step_blocks, compute_dtype=compute)
        return {"wgrad_tensor": value + self.initial.get("wgrad_tensor", 0.0)}

    def baseline(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        a, b = inputs["a_tensor"].detach(), inputs["b_tensor"].detach()
        value = grouped_wgrad(a, b, inputs["offsets_tensor"], step_blocks=self.step_blocks).to(self.d_dtype)
        return {"wgrad_tensor": (value + self.initial.get("wgrad_tensor", 0.0)).float()}
