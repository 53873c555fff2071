"""The kernels of quantised and packed outputs, of converted weights and of swapped operands compile, in each arrangement that their calls can ask for. No GPU needed."""

from __future__ import annotations

import pytest

from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn_gemm_dense.configs import NARROW
from cudnn_gemm_dense.gemm.options import GemmOptions, gemm_spec
from cudnn_gemm_dense.operation import fitting_configs
from cudnn_gemm_dense.srelu.options import DsreluOptions, SreluOptions, dsrelu_spec, srelu_spec
from cudnn_gemm_dense.swiglu.kernel import swiglu_spec
from cudnn_gemm_dense.swiglu.options import SwigluOptions

pytestmark = pytest.mark.compile
pytest.importorskip("cutlass", reason="the CuTe DSL is not installed")

E4M3, E5M2, E8M0, FP4 = "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn"
BF16 = GemmProblem("bfloat16", "bfloat16")
BF16_MXFP4 = GemmProblem("bfloat16", "bfloat16", b_format="mxfp4")
WIDE, SPLIT, PLAIN = GemmConfig(128, 192, 2, 1, pingpong=True), GemmConfig(64, 64, split_k=4), GemmConfig(128, 128, 2, 1)
CONVERT, CONVERT_SPLIT = GemmConfig(64, 128, convert_b=True), GemmConfig(64, 128, split_k=2, convert_b=True)
SWAP = GemmConfig(128, 256, 2, swap=True)
MX = {"scale_dtype": E8M0, "scale_vec": 32}

SPECS = {
    "srelu e5m2 columns amax": srelu_spec(BF16, SreluOptions("float32", E5M2, "m", amax_rank=1, **MX), PLAIN),
    "srelu float16 split": srelu_spec(GemmProblem("float16", "float16"), SreluOptions("float16", E4M3, **MX), SPLIT),
    "srelu blocks of 16": srelu_spec(BF16, SreluOptions("bfloat16", E4M3, scale_dtype=E4M3, scale_vec=16), WIDE),
    "dsrelu deterministic amax": dsrelu_spec(BF16, DsreluOptions("float32", E5M2, "m", True, 1, **MX), WIDE),
    "amax fp4": gemm_spec(BF16, GemmOptions(FP4, amax_rank=3), WIDE, "gemm_amax"),
    "amax fp4 split": gemm_spec(BF16, GemmOptions(FP4, amax_rank=1), SPLIT, "gemm_amax"),
    "swiglu fp8 ab12 amax": swiglu_spec(BF16, SwigluOptions(E5M2, "float32", amax_rank=1), PLAIN),
    "weights mxfp8 converted": gemm_spec(GemmProblem("bfloat16", "bfloat16", b_format="mxfp8"), GemmOptions("bfloat16", bias_dtype="bfloat16"), CONVERT),
    "weights nvfp4 converted split": gemm_spec(GemmProblem("float16", "float16", "float32", "m", b_format="nvfp4"), GemmOptions("float32", "m"), CONVERT_SPLIT),
    "srelu mxfp4 converted": srelu_spec(GemmProblem("bfloat16", "bfloat16", b_format="mxfp4"), SreluOptions("bfloat16", E4M3, **MX), CONVERT),
    "mxfp8 in the place of a": gemm_spec(GemmProblem("bfloat16", "bfloat16", a_format="mxfp8"), GemmOptions("bfloat16", "m"), SWAP),
    "nvfp4 in the place of a split": gemm_spec(
        GemmProblem("float16", "float16", "float32", "k", "n", a_format="nvfp4"),
        GemmOptions("float32", "m", addend_dtype="float32"),
        GemmConfig(128, 64, split_k=2, swap=True),
    ),
    "mxfp4 in the place of a with a bias": gemm_spec(
        BF16_MXFP4.swapped, GemmOptions("bfloat16", bias_dtype="bfloat16", bias_rank=2).swapped, GemmConfig(128, 32, split_k=2, swap=True)
    ),
    "few rows": gemm_spec(BF16.swapped, GemmOptions("bfloat16", bias_dtype="float32", addend_dtype="bfloat16").swapped, NARROW),
    "few rows turned": gemm_spec(
        GemmProblem("float16", "float16", "float32", "m", "n").swapped, GemmOptions("float32", "m").swapped, GemmConfig(64, 64, 2, k_atoms=2, swap=True)
    ),
    "few rows fp8": gemm_spec(GemmProblem("float8_e4m3fn", "float8_e4m3fn").swapped, GemmOptions("bfloat16").swapped, GemmConfig(64, 32, swap=True)),
    "swiglu halves amax": swiglu_spec(
        GemmProblem("bfloat16", "bfloat16", b_parts="halves"), SwigluOptions("float32", "bfloat16", "n", "concatenated", amax_rank=3), PLAIN
    ),
}


@pytest.mark.parametrize("name", SPECS)
def test_it_compiles(name, monkeypatch):
    monkeypatch.setenv("CUDNN_KERNELS_CACHE", "0")
    assert callable(SPECS[name].build())


# Configurations in which operands and epilogue leave next to nothing.
FULL = [
    gemm_spec(GemmProblem("bfloat16", "bfloat16", b_format="mxfp8"), GemmOptions("float32"), GemmConfig(64, 128, split_k=4, convert_b=True)),
    gemm_spec(GemmProblem("bfloat16", "bfloat16", a_format="mxfp8"), GemmOptions("float32", "m", "bfloat16"), GemmConfig(128, 32, swap=True)),
    gemm_spec(GemmProblem("bfloat16", "bfloat16", a_format="nvfp4"), GemmOptions("bfloat16", "m"), GemmConfig(128, 256, swap=True)),
    gemm_spec(GemmProblem("bfloat16", "bfloat16", a_format="mxfp8"), GemmOptions("float32", "m"), GemmConfig(128, 32, split_k=2, k_groups=2, swap=True)),
    gemm_spec(GemmProblem("float16", "float16", a_format="nvfp4"), GemmOptions("float16", "m"), GemmConfig(128, 64, split_k=4, k_groups=2, swap=True)),
]


@pytest.mark.parametrize("spec", FULL, ids=lambda spec: spec.label)
def test_shared_memory_is_enough(spec, monkeypatch):
    """What a launch asks for, alignment included."""
    from cudnn.cutedsl.gemm import sm90
    from cudnn.cutedsl.gemm.config import SHARED_BYTES

    class Measured(sm90.SmemAllocator):
        def allocate(self, size_or_type, *arguments, **more):
            sizes.append(size_or_type.size_in_bytes())
            return super().allocate(size_or_type, *arguments, **more)

    sizes: list[int] = []
    monkeypatch.setattr(sm90, "SmemAllocator", Measured)
    spec.compile()
    assert len(sizes) == 1 and sizes[0] <= SHARED_BYTES, sizes


def test_products_are_the_kernels_of_16_bit_operands():
    """Block-scaled operands add no kernels of their own where the outputs are the same."""
    import importlib

    for op in ("gemm", "amax", "srelu", "dsrelu", "swiglu"):
        listed = importlib.import_module(f"cudnn_gemm_dense.{op}.api").precompile_specs()
        assert {spec.problem.a_dtype for spec in listed if hasattr(spec, "problem")} <= {"bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float32"}
    assert fitting_configs(BF16, SreluOptions("bfloat16", E4M3, **MX).footprint)
