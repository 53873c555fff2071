"""The grouped operations on CPU tensors: the reference behind the same checks, wrappers and operators as the kernels."""

from __future__ import annotations

import pytest
import torch

from cudnn.reference.grouped import GluScalars
from cudnn.testing.conformance import GemmConformance
from cudnn_gemm_grouped.conformance import DgluHooks, GluHooks, ProductHooks, WgradHooks


class NoEmptyGroups(GemmConformance):
    """E = 0 is refused, so the number of groups is not one of the extents that may be 0."""

    @pytest.mark.parametrize("axis", ["m", "n"])
    def test_empty_outputs(self, axis: str) -> None:
        super().test_empty_outputs(axis)


class TestProduct(ProductHooks, NoEmptyGroups):
    pass


class TestProductWithBias(ProductHooks, NoEmptyGroups):
    dtype, d_dtype, c_dtype, bias_dtype = torch.float16, torch.float32, None, torch.float16
    b_major = "n"


class TestProductLegacyByPointers(ProductHooks, NoEmptyGroups):
    legacy = by_pointers = True
    c_dtype = torch.float32


class TestGlu(GluHooks, NoEmptyGroups):
    pass


class TestGluGeglu(GluHooks, NoEmptyGroups):
    activation, glu_layout, n_step = "geglu", "concatenated", 16
    bias_dtype = torch.bfloat16
    legacy = True


class TestGluSeparateByPointers(GluHooks, NoEmptyGroups):
    glu_layout, n_step = "separate", 16
    by_pointers = True
    c_dtype = None
    scalars = GluScalars()


class DgluConformance(DgluHooks, NoEmptyGroups):
    def test_execute_before_compile_is_refused(self) -> None:
        extents = (16, self.n_step, 2 * self.k_step, 1)
        inputs, outputs = self.inputs(*extents), self.outputs(*extents)
        op = self.build(inputs, outputs)
        with pytest.raises(RuntimeError, match="not compiled"):
            op.execute(**inputs, **outputs)
        op(**inputs, **outputs)
        self.check(inputs, outputs)


class TestDglu(DgluConformance):
    pass


class TestDgluGeglu(DgluConformance):
    activation, glu_layout, n_step = "geglu", "concatenated", 8
    activation_output = round_dgrad = True
    legacy = True
    dbias = False


class TestDgluByPointers(DgluConformance):
    by_pointers = True
    b_major = "n"
    dtype, c_dtype, d_dtype = torch.float16, torch.float32, torch.float16


class WgradConformance(WgradHooks, NoEmptyGroups):
    m_step = 8


class TestWgrad(WgradConformance):
    pass


class TestWgradTokensContiguous(WgradConformance):
    a_major, b_major = "k", "k"
    adds = True
    d_dtype = torch.float32


class TestWgradRagged(WgradConformance):
    a_major, b_major = "k", "n"
    step_blocks = True
    dtype = torch.float16
