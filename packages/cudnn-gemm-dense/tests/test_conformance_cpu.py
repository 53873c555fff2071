"""What every GEMM fusion has to hold, for the dense operations on CPU tensors, where the reference engine computes."""

from __future__ import annotations

import torch

from cudnn.testing.conformance import GemmConformance
from cudnn_gemm_dense.amax.conformance import AmaxHooks
from cudnn_gemm_dense.dsrelu.conformance import DsreluHooks
from cudnn_gemm_dense.dswiglu.conformance import DswigluHooks
from cudnn_gemm_dense.gemm.conformance import GemmHooks
from cudnn_gemm_dense.proj_rope_mxfp8.conformance import ProjRopeHooks, ProjRopeMxfp8Hooks
from cudnn_gemm_dense.srelu.conformance import SreluHooks


class TestGemm(GemmHooks, GemmConformance):
    n_step = 8


class TestGemmBiasAddend(GemmHooks, GemmConformance):
    dtype = torch.float16
    d_dtype = torch.float32
    bias = torch.float16
    addend = torch.bfloat16
    a_major, b_major, out_major = "m", "n", "m"
    m_step = n_step = 8


class TestGemmFp8(GemmHooks, GemmConformance):
    dtype = torch.float8_e5m2
    n_step, k_step = 8, 16

    # torch cannot fill or compare fp8 parameters as these tests do.
    test_parameters_that_require_grad = None


class TestAmax(AmaxHooks, GemmConformance):
    n_step = 8


class TestAmaxFloat32(AmaxHooks, GemmConformance):
    dtype = torch.float16
    c_dtype = torch.float32
    b_major, out_major = "n", "m"
    m_step = n_step = 8


class TestSrelu(SreluHooks, GemmConformance):
    n_step = 8


class TestSreluColumns(SreluHooks, GemmConformance):
    dtype = c_dtype = torch.float16
    d_dtype = torch.float32
    a_major, out_major = "m", "m"
    m_step = n_step = 8


class TestDsrelu(DsreluHooks, GemmConformance):
    n_step = 8


class TestDsreluColumns(DsreluHooks, GemmConformance):
    dtype = d_dtype = torch.float16
    c_dtype = torch.float32
    out_major = "m"
    m_step = n_step = 8
    deterministic = False


class TestDswiglu(DswigluHooks, GemmConformance):
    n_step = 32


class TestDswigluConcatenated(DswigluHooks, GemmConformance):
    dtype = d_dtype = torch.float16
    ab12_dtype = torch.float32
    c_dtype = None
    glu_layout = "concatenated"
    b_major, out_major = "n", "m"
    m_step = n_step = 8


class TestDswigluSeparate(DswigluHooks, GemmConformance):
    glu_layout = "separate"
    n_step = 8


class TestProjRope(ProjRopeHooks, GemmConformance):
    pass


class TestProjRopeInOut(ProjRopeHooks, GemmConformance):
    w_out_in = False


class TestProjRopeMxfp8(ProjRopeMxfp8Hooks, GemmConformance):
    # torch cannot fill or compare fp8 parameters as these tests do.
    test_parameters_that_require_grad = None
