"""The discrete operations on CPU tensors: the reference, which reads addresses of the host, behind the same checks, wrappers and operators as the kernels."""

from __future__ import annotations

import pytest
import torch

from cudnn.reference.grouped import GluScalars
from cudnn.testing.conformance import GemmConformance
from cudnn_gemm_discrete.conformance import DswigluHooks, SwigluHooks


class NoEmptyGroups(GemmConformance):
    """E = 0 is refused, so the number of groups is not one of the extents that may be 0."""

    @pytest.mark.parametrize("axis", ["m", "n"])
    def test_empty_outputs(self, axis: str) -> None:
        super().test_empty_outputs(axis)


class TestSwiglu(SwigluHooks, NoEmptyGroups):
    bias_dtype = torch.bfloat16


class TestGeglu(SwigluHooks, NoEmptyGroups):
    """Other scalars than the published ones, at run time."""

    activation, prob = "geglu", False
    scalars = GluScalars(0.5, 1.25, 1.5, -0.75)
    glu_layout, n_step = "separate", 16
    dtype, c_dtype, d_dtype = torch.float16, torch.float32, torch.float16


class DswigluConformance(DswigluHooks, NoEmptyGroups):
    def test_execute_before_compile_is_refused(self) -> None:
        extents = (16, self.n_step, 2 * self.k_step, 1)
        inputs, outputs = self.inputs(*extents), self.outputs(*extents)
        op = self.build(inputs, outputs)
        with pytest.raises(RuntimeError, match="not compiled"):
            op.execute(**inputs, **outputs)
        op(**inputs, **outputs)
        self.check(inputs, outputs)


class TestDswiglu(DswigluConformance):
    b_major = "n"


class TestDgeglu(DswigluConformance):
    """beta does not count here, as published."""

    activation, dbias = "geglu", False
