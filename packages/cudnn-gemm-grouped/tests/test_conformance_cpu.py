"""The grouped operations on CPU tensors: the reference behind the same checks, wrappers and operators as the kernels."""

from __future__ import annotations

import torch

from cudnn.reference.grouped import GluScalars
from cudnn.testing.conformance import GemmConformance
from cudnn_gemm_grouped.conformance import DgluHooks, GluHooks, ProductHooks, WgradHooks


class TestProduct(ProductHooks, GemmConformance):
    pass


class TestProductWithBias(ProductHooks, GemmConformance):
    dtype, d_dtype, c_dtype, bias_dtype = torch.float16, torch.float32, None, torch.float16
    b_major = "n"


class TestProductLegacyByPointers(ProductHooks, GemmConformance):
    legacy = by_pointers = True
    c_dtype = torch.float32


class TestGlu(GluHooks, GemmConformance):
    pass


class TestGluGeglu(GluHooks, GemmConformance):
    activation, glu_layout, n_step = "geglu", "concatenated", 16
    bias_dtype = torch.bfloat16
    legacy = True


class TestGluSeparateByPointers(GluHooks, GemmConformance):
    glu_layout, n_step = "separate", 16
    by_pointers = True
    c_dtype = None
    scalars = GluScalars()


class TestDglu(DgluHooks, GemmConformance):
    pass


class TestDgluGeglu(DgluHooks, GemmConformance):
    activation, glu_layout, n_step = "geglu", "concatenated", 8
    activation_output = round_dgrad = True
    legacy = True
    dbias = False


class TestDgluByPointers(DgluHooks, GemmConformance):
    by_pointers = True
    b_major = "n"
    dtype, c_dtype, d_dtype = torch.float16, torch.float32, torch.float16


class WgradConformance(WgradHooks, GemmConformance):
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
