"""The discrete operations on CPU tensors: the reference, which reads addresses of the host, behind the same checks, wrappers and operators as the kernels."""

from __future__ import annotations

import torch

from cudnn.reference.grouped import GluScalars
from cudnn.testing.conformance import GemmConformance
from cudnn_gemm_discrete.conformance import DswigluHooks, SwigluHooks


class TestSwiglu(SwigluHooks, GemmConformance):
    bias_dtype = torch.bfloat16


class TestGeglu(SwigluHooks, GemmConformance):
    """Other scalars than the published ones, at run time."""

    activation, prob = "geglu", False
    scalars = GluScalars(0.5, 1.25, 1.5, -0.75)
    glu_layout, n_step = "separate", 16
    dtype, c_dtype, d_dtype = torch.float16, torch.float32, torch.float16


class TestDswiglu(DswigluHooks, GemmConformance):
    b_major = "n"


class TestDgeglu(DswigluHooks, GemmConformance):
    """beta does not count here, as published."""

    activation, dbias = "geglu", False
