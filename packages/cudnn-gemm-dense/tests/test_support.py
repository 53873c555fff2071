"""check_support of the dense operations besides GEMM + SwiGLU: every row of the published tables, in order, on metadata alone."""

from __future__ import annotations

import pytest
import torch

from cudnn.tensor_desc import TensorDesc
from cudnn_gemm_dense.amax.api import GemmAmax, gemm_amax_wrapper
from cudnn_gemm_dense.dsrelu.api import GemmDsrelu, gemm_dsrelu_wrapper
from cudnn_gemm_dense.dswiglu.api import GemmDswiglu, gemm_dswiglu_wrapper
from cudnn_gemm_dense.gemm.api import Gemm, gemm_wrapper
from cudnn_gemm_dense.srelu.api import GemmSrelu, gemm_srelu_wrapper

M, N, K, L = 256, 512, 128, 2
E4M3, E5M2, E8M0, FP4 = "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn"


def desc(dtype: str, shape: tuple[int, ...], stride: tuple[int, ...] | None = None) -> TensorDesc:
    """A description; compact with axis 1 contiguous unless ``stride`` says otherwise."""
    if stride is None and len(shape) == 3:
        stride = (shape[1], 1, shape[0] * shape[1])
    if stride is None:
        stride = TensorDesc._compute_contiguous_stride(shape)
    return TensorDesc(dtype, shape, stride, TensorDesc._compute_stride_order(shape, stride), torch.device("cpu"))


def columns(dtype: str, shape: tuple[int, int, int]) -> TensorDesc:
    """Compact with axis 0 contiguous."""
    return desc(dtype, shape, (1, shape[0], shape[0] * shape[1]))


def scale(dtype: str, rows: int, cols: int, vec: int, batches: int = L, physical: bool = False) -> TensorDesc:
    r, k = -(-rows // 128), -(-cols // (4 * vec))
    if physical:
        return desc(dtype, (batches, r, k, 32, 4, 4))
    return desc(dtype, (32, 4, r, 4, k, batches), (16, 4, k * 512, 1, 512, r * k * 512))


def refused(cls: type, arguments: dict, kind: type, *fragments: str) -> None:
    with pytest.raises(kind) as caught:
        cls(**arguments).check_support()
    assert type(caught.value) is kind or issubclass(type(caught.value), kind)
    for fragment in fragments:
        assert fragment in str(caught.value), f"{fragment!r} not in: {caught.value}"


# GEMM + amax


def amax_call(**changes) -> dict:
    found = {"sample_a": desc("bfloat16", (M, K, L)), "sample_b": desc("bfloat16", (N, K, L)), "sample_c": desc("bfloat16", (M, N, L))}
    return {**found, "sample_amax": desc("float32", (1, 1, 1)), **changes}


def amax_mixed(**changes) -> dict:
    """bfloat16 A, MXFP8 B."""
    return amax_scaled(sample_a=desc("bfloat16", (M, K, L)), sample_sfa=None) | changes


def amax_scaled(dtype: str = E4M3, scale_dtype: str = E8M0, vec: int = 32, **changes) -> dict:
    found = amax_call(sample_a=desc(dtype, (M, K, L)), sample_b=desc(dtype, (N, K, L)), sf_vec_size=vec)
    return {**found, "sample_sfa": scale(scale_dtype, M, K, vec), "sample_sfb": scale(scale_dtype, N, K, vec), **changes}


@pytest.mark.parametrize(
    "changes, kind, fragment",
    [
        ({"sample_a": desc("int8", (M, K, L))}, ValueError, "a_tensor: found dtype int8"),
        ({"sample_a": desc("float32", (M, K, L)), "sample_b": desc("float32", (N, K, L))}, ValueError, "a_tensor: found dtype float32"),
        ({"sample_b": desc("float16", (N, K, L))}, ValueError, "b_tensor: found dtype float16 while a_tensor has bfloat16"),
        ({"sample_c": desc("int32", (M, N, L))}, ValueError, "c_tensor: found dtype int32"),
        ({"sample_c": desc(FP4, (M, N, L))}, ValueError, "c_tensor: found dtype float4_e2m1fn"),
        ({"acc_dtype": "float16"}, ValueError, "acc_dtype: found dtype float16"),
        ({"sample_b": desc("bfloat16", (N, K + 8, L))}, ValueError, "b_tensor: found shape (512, 136, 2), needs (N, K, L) = (512, 128, 2)"),
        ({"sample_c": desc("bfloat16", (M, N + 8, L))}, ValueError, "c_tensor: found shape (256, 520, 2), needs (M, N, L) = (256, 512, 2)"),
        ({"sample_a": desc("bfloat16", (M, K))}, ValueError, "a_tensor: found shape (256, 128), needs three axes (M, K, L)"),
        ({"sample_amax": desc("float32", (1, 2, 1))}, ValueError, "amax_tensor: found shape (1, 2, 1)"),
        ({"sample_amax": desc("float64", (1, 1, 1))}, ValueError, "amax_tensor: found dtype float64"),
        ({"sample_a": desc("bfloat16", (M, K, L), (K + 8, 1, M * (K + 8)))}, ValueError, "a_tensor: found strides (136, 1, 34816)"),
        ({"mma_tiler_mn": (64, 128)}, ValueError, "mma_tiler_mn: found (64, 128)"),
        ({"mma_tiler_mn": (128, 64)}, ValueError, "mma_tiler_mn: found (128, 64)"),
        ({"mma_tiler_mn": (256, 128)}, NotImplementedError, "mma_tiler_mn: (256, 128) is not implemented"),
        ({"cluster_shape_mn": (3, 1)}, ValueError, "cluster_shape_mn: found (3, 1)"),
        ({"cluster_shape_mn": (8, 1)}, ValueError, "cluster_shape_mn: found (8, 1)"),
        ({"sample_a": desc("bfloat16", (M, 100, L)), "sample_b": desc("bfloat16", (N, 100, L))}, ValueError, "a_tensor: found K = 100 contiguous bfloat16"),
        ({"sample_amax": None}, ValueError, "amax_tensor is None"),
    ],
)
def test_amax_rows(changes, kind, fragment):
    refused(GemmAmax, amax_call(**changes), kind, fragment)


def test_amax_fp8_output_of_fp8_operands_is_not_implemented():
    operands = {"sample_a": desc(E4M3, (M, K, L)), "sample_b": desc(E4M3, (N, K, L)), "sample_c": desc(E5M2, (M, N, L))}
    refused(GemmAmax, amax_call(**operands), NotImplementedError, "c_tensor: float8_e5m2 with float8_e4m3fn operands")
    refused(GemmAmax, amax_scaled(sample_c=desc(E4M3, (M, N, L))), NotImplementedError, "c_tensor: float8_e4m3fn with float8_e4m3fn operands")
    assert GemmAmax(**amax_call(sample_c=desc(E5M2, (M, N, L)))).check_support()  # of 16-bit operands it is stored, saturating


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_amax_of_any_rank(rank):
    assert GemmAmax(**amax_call(sample_amax=desc("float32", (1,) * rank, (1,) * rank))).check_support()


@pytest.mark.parametrize(
    "arguments, kind, fragment",
    [
        (amax_scaled(sample_sfb=None), ValueError, "sfb_tensor: found None while another argument of the block-scaled mode"),
        (amax_scaled("bfloat16"), ValueError, "a_tensor: found dtype bfloat16, needs float4_e2m1fn or float8_e5m2 or float8_e4m3fn"),
        (amax_scaled(vec=32) | {"sf_vec_size": 8}, ValueError, "sf_vec_size: found 8, needs 16 or 32"),
        (amax_scaled(scale_dtype="float32"), ValueError, "sfa_tensor: found dtype float32"),
        (amax_scaled(sample_sfb=scale(E4M3, N, K, 32)), ValueError, "sfb_tensor: found dtype float8_e4m3fn while sfa_tensor has float8_e8m0fnu"),
        (amax_scaled(scale_dtype=E4M3), ValueError, "sf_vec_size: found 32 with float8_e4m3fn scales"),
        (amax_scaled(vec=16), ValueError, "sf_vec_size: found 16 with float8_e4m3fn operands, needs 32"),
        (amax_scaled(sample_c=desc(FP4, (M, N, L))), ValueError, "c_tensor: found dtype float4_e2m1fn"),
        (amax_scaled(sample_sfa=desc(E8M0, (M, 4))), ValueError, "sfa_tensor: found shape (256, 4), needs (32, 4, 2, 4, 1, 2)"),
        (amax_scaled(sample_sfa=desc(E8M0, (32, 3, 2, 4, 1, 2))), ValueError, "sfa_tensor: found shape (32, 3, 2, 4, 1, 2)"),
        (amax_scaled(sample_sfa=desc(E8M0, (32, 4, 2, 4, 1, 2))), ValueError, "sfa_tensor: found stride"),
        (amax_scaled(sample_sfa=desc(E8M0, (2, 2, 1, 32, 4, 4), (1024, 512, 512, 1, 32, 128))), ValueError, "sfa_tensor: found stride"),
        (amax_scaled(sample_sfb=scale(E8M0, N, 2 * K, 32)), ValueError, "sfa_tensor and sfb_tensor: found 1 and 2 groups of four blocks along K"),
        (amax_scaled(sample_sfa=scale(E8M0, 2 * M, K, 32)), ValueError, "sfa_tensor: found 4 groups of 128 rows"),
        (amax_scaled(sample_sfa=scale(E8M0, M, K, 32, 3)), ValueError, "sfa_tensor: found shape (32, 4, 2, 4, 1, 3)"),
        (amax_scaled(FP4, sample_a=columns(FP4, (M, K, L))), ValueError, "a_tensor: found m-major float4_e2m1fn, needs k-major"),
        (amax_scaled(FP4, sample_c=columns(FP4, (M, N, L))), ValueError, "c_tensor: found m-major float4_e2m1fn, needs n-major"),
        (amax_scaled(FP4, mma_tiler_mn=(128, 256)), ValueError, "with float4_e2m1fn operands and K = 128"),
        (amax_scaled(mma_tiler_mn=(256, 128)), NotImplementedError, "mma_tiler_mn: (256, 128)"),
        (amax_scaled(cluster_shape_mn=(1, 8)), ValueError, "cluster_shape_mn: found (1, 8)"),
        (
            amax_scaled(sample_sfa=scale(E8M0, M, 4 * K, 32), sample_sfb=scale(E8M0, N, 4 * K, 32)),
            ValueError,
            "sfa_tensor: found 4 groups of four blocks along K",
        ),
        (amax_mixed(sample_b=desc("bfloat16", (N, K, L))), ValueError, "b_tensor: found dtype bfloat16, needs float4_e2m1fn or float8_e5m2 or float8_e4m3fn"),
        (amax_mixed(sample_c=desc(FP4, (M, N, L))), ValueError, "c_tensor: found dtype float4_e2m1fn"),
    ],
)
def test_amax_block_scaled_rows(arguments, kind, fragment):
    refused(GemmAmax, arguments, kind, fragment)


@pytest.mark.parametrize(
    "arguments",
    [
        amax_scaled(),
        amax_scaled(E5M2, sample_c=columns("float32", (M, N, L)), sample_a=columns(E5M2, (M, K, L))),
        amax_scaled(sample_sfa=scale(E8M0, M, K, 32, physical=True)),
        amax_scaled(scale_dtype="int8"),
        amax_scaled(FP4),
        amax_scaled(FP4, vec=16),
        amax_scaled(FP4, scale_dtype=E4M3, vec=16, sample_c=desc(E4M3, (M, N, L))),
        amax_scaled(FP4, sample_c=desc(FP4, (M, N, L))),
        amax_scaled("uint8", sample_a=desc("uint8", (M, K // 2, L)), sample_b=desc("uint8", (N, K // 2, L)), sample_c=desc("uint8", (M, N // 2, L))),
        amax_mixed(),
        amax_mixed(sample_a=desc("float16", (M, K, L))),
        amax_mixed(sample_c=desc(E5M2, (M, N, L))),
    ],
)
def test_amax_block_scaled(arguments):
    assert GemmAmax(**arguments).check_support() is True


def test_amax_tile_256_with_blocks_of_16():
    a, b = desc(FP4, (M, 256, L)), desc(FP4, (N, 256, L))
    arguments = amax_scaled(
        FP4, vec=16, sample_a=a, sample_b=b, sample_sfa=scale(E8M0, M, 256, 16), sample_sfb=scale(E8M0, N, 256, 16), mma_tiler_mn=(128, 256)
    )
    refused(GemmAmax, arguments, NotImplementedError, "mma_tiler_mn: (128, 256) with sf_vec_size 16 and bfloat16 c_tensor")
    assert GemmAmax(**{**arguments, "sample_c": desc(FP4, (M, N, L))}).check_support()


# Squared ReLU and its gradient


def srelu_call(**changes) -> dict:
    found = {"sample_a": desc("bfloat16", (M, K, L)), "sample_b": desc("bfloat16", (N, K, L)), "sample_c": desc("bfloat16", (M, N, L))}
    return {**found, "sample_d": desc("bfloat16", (M, N, L)), "sample_prob": desc("float32", (M, 1, L)), **changes}


def dsrelu_call(**changes) -> dict:
    return {**srelu_call(), "sample_dprob": desc("float32", (M, 1, L)), **changes}


def scaled(call, dtype: str = E4M3, scale_dtype: str = E8M0, vec: int = 32, **changes) -> dict:
    found = call(sample_a=desc(dtype, (M, K, L)), sample_b=desc(dtype, (N, K, L)), sf_vec_size=vec)
    return {**found, "sample_sfa": scale(scale_dtype, M, K, vec), "sample_sfb": scale(scale_dtype, N, K, vec), **changes}


BOTH = pytest.mark.parametrize("cls, call", [(GemmSrelu, srelu_call), (GemmDsrelu, dsrelu_call)], ids=["srelu", "dsrelu"])


@BOTH
@pytest.mark.parametrize(
    "changes, fragment",
    [
        ({"sample_b": desc("bfloat16", (N, K + 8, L))}, "b_tensor: found shape (512, 136, 2), needs (N, K, L) = (512, 128, 2)"),
        ({"sample_b": desc("bfloat16", (N, K, L + 1))}, "b_tensor: found shape (512, 128, 3)"),
        ({"sample_c": desc("bfloat16", (M, N, 1))}, "c_tensor: found shape (256, 512, 1)"),
        ({"sample_d": desc("bfloat16", (M + 1, N, L))}, "d_tensor: found shape (257, 512, 2)"),
        ({"sample_prob": desc("float32", (M, L))}, "prob_tensor: found shape (256, 2), needs three axes (M, 1, L)"),
        ({"sample_prob": desc("float32", (M + 1, 1, L))}, "prob_tensor: found shape (257, 1, 2), needs (M, 1, L) = (256, 1, 2)"),
        ({"sample_amax": desc("float32", (2,))}, "amax_tensor: found shape (2,), needs (1) = (1,)"),
        ({"sample_amax": desc("float32", ())}, "amax_tensor: found shape ()"),
        ({"sample_a": desc("float32", (M, K, L)), "sample_b": desc("float32", (N, K, L))}, "a_tensor: found dtype float32"),
        ({"sample_b": desc("float16", (N, K, L))}, "b_tensor: found dtype float16 while a_tensor has bfloat16"),
        ({"sample_c": desc("int8", (M, N, L))}, "c_tensor: found dtype int8"),
        ({"sample_d": desc("int8", (M, N, L))}, "d_tensor: found dtype int8"),
        ({"sample_prob": desc("bfloat16", (M, 1, L))}, "prob_tensor: found dtype bfloat16"),
        ({"acc_dtype": "float16"}, "acc_dtype: found dtype float16"),
        ({"sample_d": desc(E4M3, (M, N, L))}, "d_tensor: found dtype float8_e4m3fn without sfd_tensor and norm_const_tensor"),
        ({"sample_a": desc("bfloat16", (M, K, L), (2 * K, 2, 2 * M * K))}, "a_tensor: found strides (256, 2, 65536)"),
        ({"sample_a": desc("bfloat16", (M, K, L), (K, 1, 0))}, "a_tensor: found strides (128, 1, 0)"),
        ({"sample_b": desc("bfloat16", (N, K, L), (L * K, 1, K))}, "b_tensor: found strides (256, 1, 128)"),
        ({"sample_c": columns("bfloat16", (M, N, L))}, "needs the same major for both"),
        ({"mma_tiler_mn": (64, 128)}, "mma_tiler_mn: found (64, 128)"),
        ({"mma_tiler_mn": (128, 96)}, "mma_tiler_mn: found (128, 96)"),
        ({"cluster_shape_mn": (3, 1)}, "cluster_shape_mn: found (3, 1)"),
        ({"cluster_shape_mn": (8, 4)}, "cluster_shape_mn: found (8, 4)"),
        ({"cluster_shape_mn": (8, 1)}, "cluster_shape_mn: found (8, 1), needs entries of at most 4"),
        ({"cluster_shape_mn": (1, 1)}, "needs an even first entry for tiles of 256 rows"),
        ({"sample_a": desc("bfloat16", (M, 100, L)), "sample_b": desc("bfloat16", (N, 100, L))}, "a_tensor: found K = 100 contiguous bfloat16 elements"),
        ({"sample_a": desc("bfloat16", (M, K, L), (K + 4, 1, M * (K + 4)))}, "a_tensor: found stride 132 of axis 0, 264 bytes, needs a multiple of 8"),
        ({"sample_prob": None}, "prob_tensor is None"),
        ({"config": {"tile_m": 100}}, "config: tile_m: found 100"),
    ],
)
def test_srelu_rows(cls, call, changes, fragment):
    refused(cls, call(**changes), ValueError, fragment)


@BOTH
@pytest.mark.parametrize(
    "changes, kind, fragment",
    [
        ({"sample_sfa": None}, ValueError, "sfa_tensor: found None while another argument of the block-scaled mode"),
        (
            {"sample_sfa": scale(E8M0, 2 * M, K, 32)},
            ValueError,
            "sfa_tensor: found shape (32, 4, 4, 4, 1, 2), needs (32, 4, 2, 4, 1, 2) or (2, 2, 1, 32, 4, 4)",
        ),
        ({"sample_sfd": scale(E8M0, M, K, 32)}, ValueError, "sfd_tensor: found shape"),
        ({"sample_norm_const": desc("float32", (2,))}, ValueError, "norm_const_tensor: found shape (2,), needs (1,)"),
        ({"sample_a": desc("bfloat16", (M, K, L)), "sample_b": desc("bfloat16", (N, K, L))}, ValueError, "a_tensor: found dtype bfloat16"),
        ({"sample_sfb": scale(E4M3, N, K, 32)}, ValueError, "sfb_tensor: found dtype float8_e4m3fn while sfa_tensor has float8_e8m0fnu"),
        ({"sample_sfa": scale("float32", M, K, 32)}, ValueError, "sfa_tensor: found dtype float32"),
        ({"sample_sfa": scale(E8M0, M, K, 8), "sample_sfb": scale(E8M0, N, K, 8), "sf_vec_size": 8}, ValueError, "sf_vec_size: found 8, needs 16 or 32"),
        ({"sample_d": desc(E4M3, (M, N, L)), "sample_sfd": scale(E8M0, M, N, 32)}, ValueError, "d_tensor: found dtype float8_e4m3fn without norm_const_tensor"),
        (
            {"sample_sfa": scale(E8M0, M, K, 16), "sample_sfb": scale(E8M0, N, K, 16), "sf_vec_size": 16},
            ValueError,
            "sfa_tensor: found float8_e8m0fnu and sf_vec_size 16 with float8_e4m3fn operands",
        ),
        (
            {"sample_sfa": scale(E4M3, M, K, 16), "sample_sfb": scale(E4M3, N, K, 16), "sf_vec_size": 16},
            ValueError,
            "sfa_tensor: found float8_e4m3fn and sf_vec_size 16 with float8_e4m3fn operands",
        ),
        (
            {"sample_d": desc(E4M3, (M, N, L)), "sample_sfd": scale(E8M0, M, N, 32), "sample_norm_const": desc("int32", (1,))},
            ValueError,
            "norm_const_tensor: found dtype int32",
        ),
        ({"sample_sfa": desc(E8M0, (32, 4, 2, 4, 1, 2), (0, 4, 512, 1, 512, 1024))}, ValueError, "sfa_tensor: found strides"),
    ],
)
def test_srelu_block_scaled_rows(cls, call, changes, kind, fragment):
    refused(cls, scaled(call, **changes), kind, fragment)


@BOTH
def test_srelu_fp4_rows(cls, call):
    refused(cls, scaled(call, FP4, E4M3, 32), ValueError, "sf_vec_size: found 32 with float8_e4m3fn scales, needs 16")
    refused(cls, scaled(call, FP4, sample_a=columns(FP4, (M, K, L))), ValueError, "a_tensor: found m-major float4_e2m1fn, needs k-major")
    fp8_d = {"sample_d": desc(E4M3, (M, N, L)), "sample_sfd": scale(E8M0, M, N, 32), "sample_norm_const": desc("float32", (1,))}
    refused(cls, scaled(call, FP4, **fp8_d), ValueError, "d_tensor: found dtype float8_e4m3fn with float4_e2m1fn operands")


FP8_D = {"sample_d": desc(E4M3, (M, N, L)), "sample_sfd": scale(E8M0, M, N, 32, physical=True), "sample_norm_const": desc("float32", (1,))}


@BOTH
@pytest.mark.parametrize(
    "dtype, scale_dtype, vec, changes",
    [
        (E4M3, E8M0, 32, {}),
        (E5M2, E8M0, 32, {"sample_a": columns(E5M2, (M, K, L)), "sample_b": columns(E5M2, (N, K, L))}),
        (E4M3, E8M0, 32, FP8_D),
        (E4M3, E8M0, 32, {"sample_sfd": scale(E8M0, M, N, 32), "sample_norm_const": desc("float32", (1,)), "sample_amax": desc("float32", (1,))}),
        (FP4, E8M0, 32, {"sample_amax": desc("float32", (1,))}),
        (FP4, E8M0, 16, {}),
        (FP4, E4M3, 16, {"sample_a": desc("uint8", (M, K // 2, L)), "sample_b": desc("uint8", (N, K // 2, L))}),
        (FP4, E4M3, 16, {"sample_a": desc("bfloat16", (M, K, L)), "sample_sfa": None}),
        (E4M3, E8M0, 32, {"sample_a": desc("bfloat16", (M, K, L)), "sample_sfa": None, **FP8_D}),
        (
            E4M3,
            E8M0,
            32,
            {name: desc("float16", (rows, K, L)) for name, rows in (("sample_a", M), ("sample_b", N))} | {"sample_sfa": None, "sample_sfb": None} | FP8_D,
        ),
    ],
)
def test_srelu_block_scaled(cls, call, dtype, scale_dtype, vec, changes):
    assert cls(**scaled(call, dtype, scale_dtype, vec, **changes)).check_support() is True


@BOTH
def test_a_quantised_output_alone_needs_one(cls, call):
    """16-bit operands need no scale factors, but something of the mode has to have a meaning."""
    refused(cls, call(sample_norm_const=desc("float32", (1,)), sf_vec_size=32), ValueError, "sfa_tensor: found None")
    refused(cls, call(**FP8_D, sf_vec_size=16), ValueError, "sfd_tensor: found shape")


def test_dsrelu_rows_of_its_own():
    refused(GemmDsrelu, dsrelu_call(sample_dprob=desc("float32", (M, L))), ValueError, "dprob_tensor: found shape (256, 2), needs three axes (M, 1, L)")
    refused(GemmDsrelu, dsrelu_call(sample_dprob=desc("float16", (M, 1, L))), ValueError, "dprob_tensor: found dtype float16")
    refused(GemmDsrelu, dsrelu_call(sample_c=desc(E4M3, (M, N, L))), ValueError, "c_tensor: found dtype float8_e4m3fn, needs float16 or bfloat16 or float32")
    refused(GemmDsrelu, dsrelu_call(sample_dprob=None), ValueError, "dprob_tensor is None")
    assert GemmSrelu(**srelu_call(sample_c=desc(E4M3, (M, N, L)))).check_support()
    with pytest.raises(ValueError, match="deterministic: found 1, needs True, False, or None"):
        GemmDsrelu(**dsrelu_call(deterministic=1))


@BOTH
def test_what_is_supported(cls, call):
    padded = desc("bfloat16", (M, K, L), (K + 8, 1, M * (K + 8)))
    for changes in (
        {},
        {"sample_a": padded},
        {"sample_prob": desc("float32", (M, 1, L), (7, 3, 5))},
        {"sample_amax": desc("float32", (1, 1))},
        {"sample_c": columns("float16", (M, N, L)), "sample_d": columns("float32", (M, N, L))},
        {"mma_tiler_mn": (128, 64), "cluster_shape_mn": (1, 4), "vector_f32": True, "sf_vec_size": 99},
        {"mma_tiler_mn": (256, 192), "cluster_shape_mn": (4, 1)},
        {"config": {"tile_m": 64, "tile_n": 128}},
    ):
        assert cls(**call(**changes)).check_support() is True


# Ours


@pytest.mark.parametrize(
    "changes, fragment",
    [
        ({"sample_d": desc("int32", (M, N, L))}, "d_tensor: found dtype int32"),
        ({"sample_b": desc("float16", (N, K, L))}, "b_tensor: found dtype float16 while a_tensor has bfloat16"),
        ({"sample_bias": desc("bfloat16", (N, L, 1))}, "bias_tensor: found shape (512, 2, 1)"),
        ({"sample_bias": desc("bfloat16", (N + 8,))}, "bias_tensor: found shape (520,), needs (N) = (512,)"),
        ({"sample_bias": desc("int32", (N,))}, "bias_tensor: found dtype int32"),
        ({"sample_addend": columns("bfloat16", (M, N, L))}, "d_tensor and addend_tensor: found strides"),
        ({"sample_addend": desc("bfloat16", (M, N + 8, L))}, "addend_tensor: found shape (256, 520, 2)"),
        ({"acc_dtype": "float16"}, "acc_dtype: found dtype float16"),
        ({"mma_tiler_mn": (0, 1)}, "mma_tiler_mn: found (0, 1), needs two positive integers"),
        ({"sample_a": desc("bfloat16", (M, K, L), (K + 4, 1, M * (K + 4)))}, "a_tensor: found stride 132 of axis 0"),
    ],
)
def test_gemm(changes, fragment):
    found = {"sample_a": desc("bfloat16", (M, K, L)), "sample_b": desc("bfloat16", (N, K, L)), "sample_d": desc("bfloat16", (M, N, L))}
    refused(Gemm, {**found, **changes}, ValueError, fragment)


def test_gemm_takes_any_extent_with_a_padded_pitch():
    a, b = desc("bfloat16", (M, 100, 1), (104, 1, 104 * M)), desc("bfloat16", (37, 100, 1), (104, 1, 104 * 37))
    assert Gemm(a, b, desc("bfloat16", (M, 37, 1), (40, 1, 40 * M)), desc("float32", (37,))).check_support()
    refused(Gemm, {"sample_a": a, "sample_b": b, "sample_d": desc("bfloat16", (M, 37, 1))}, ValueError, "d_tensor: found stride 37 of axis 0, 74 bytes")


@pytest.mark.parametrize(
    "changes, fragment",
    [
        ({"sample_ab12": desc("bfloat16", (M, N, L))}, "ab12_tensor: found shape (256, 512, 2), needs (M, 2N, L) = (256, 1024, 2)"),
        ({"sample_d_ab12": desc("bfloat16", (M, N, L))}, "d_ab12_tensor: found shape (256, 512, 2)"),
        ({"sample_c": desc("bfloat16", (M, 2 * N, L))}, "c_tensor: found shape (256, 1024, 2), needs (M, N, L) = (256, 512, 2)"),
        ({"sample_ab12": desc(E4M3, (M, 2 * N, L))}, "ab12_tensor: found dtype float8_e4m3fn"),
        ({"sample_ab12": columns("bfloat16", (M, 2 * N, L))}, "ab12_tensor and d_ab12_tensor: found strides"),
        ({"acc_dtype": "float16"}, "acc_dtype: found dtype float16"),
    ],
)
def test_dswiglu(changes, fragment):
    pre = desc("bfloat16", (M, 2 * N, L))
    found = {"sample_a": desc("bfloat16", (M, K, L)), "sample_b": desc("bfloat16", (N, K, L)), "sample_ab12": pre, "sample_d_ab12": pre}
    refused(GemmDswiglu, {**found, **changes}, ValueError, fragment)


def test_dswiglu_layouts():
    def call(n: int, **options):
        pre = desc("bfloat16", (M, 2 * n, 1))
        return GemmDswiglu(desc("bfloat16", (M, K, 1)), desc("bfloat16", (n, K, 1)), pre, pre, **options)

    assert call(96).check_support() and call(40, glu_layout="concatenated").check_support()
    with pytest.raises(ValueError, match='b_tensor: found N = 40 rows with glu_layout="interleaved32", needs a multiple of 32'):
        call(40).check_support()
    with pytest.raises(ValueError, match="ab12_tensor: found N = 8 contiguous bfloat16 elements .4 in each half"):
        call(4, glu_layout="separate").check_support()
    with pytest.raises(ValueError, match="glu_layout: found 'halves'"):
        call(64, glu_layout="halves")


# All of them

WRAPPERS = {
    "gemm": lambda a, b, **o: gemm_wrapper(a, b, **o),
    "amax": lambda a, b, **o: gemm_amax_wrapper(a, b, **o),
    "srelu": lambda a, b, **o: gemm_srelu_wrapper(a, b, prob_tensor=torch.ones(a.shape[0], 1, a.shape[-1]), **o),
    "dsrelu": lambda a, b, **o: gemm_dsrelu_wrapper(a, b, torch.ones(24, 64, 1).bfloat16(), prob_tensor=torch.ones(24, 1, 1), **o),
    "dswiglu": lambda a, b, **o: gemm_dswiglu_wrapper(a, b, torch.ones(24, 128, 1).bfloat16(), **o),
}


@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS)
def test_wrappers_refuse(wrapper):
    numpy = pytest.importorskip("numpy")
    a, b = torch.ones(24, 32, 1).bfloat16(), torch.ones(64, 32, 1).bfloat16()
    with pytest.raises(ValueError, match="^Unsupported tensor framework"):
        wrapper(numpy.ones((24, 32, 1), numpy.float16), b)
    with pytest.raises(ValueError, match="b_tensor is None, needs a torch tensor"):
        wrapper(a, None)
    with pytest.raises(RuntimeError, match='backend="sm90" needs CUDA tensors, found a_tensor on cpu'):
        wrapper(a, b, backend="sm90")
    with pytest.raises(ValueError, match="backend is 'cuda'"):
        wrapper(a, b, backend="cuda")
    with pytest.raises(ValueError, match="config: unknown field 'tile'"):
        wrapper(a, b, config={"tile": 3})
    wrapper(a, b)


def test_majors_of_outputs():
    a, b = torch.ones(24, 32, 1).bfloat16(), torch.ones(64, 32, 1).bfloat16()
    for name, option in (("gemm", "d_major"), ("amax", "c_major"), ("srelu", "c_major"), ("dsrelu", "d_major"), ("dswiglu", "d_major")):
        with pytest.raises(ValueError, match=f"{option}: found 'k', needs 'n' or 'm'"):
            WRAPPERS[name](a, b, **{option: "k"})
    with pytest.raises(ValueError, match="c_tensor and d_tensor: found strides .* needs the same major for both"):
        WRAPPERS["dsrelu"](a, b, d_major="m")


def test_the_architecture_comes_last(monkeypatch):
    """On a device that has no kernel a bad argument is told first, then what the device lacks."""
    import cudnn.gemm_operation

    monkeypatch.setattr(cudnn.gemm_operation, "select_backend", lambda *_: "sm90")
    for cls, call in ((GemmAmax, amax_call), (GemmSrelu, srelu_call), (GemmDsrelu, dsrelu_call)):
        refused(cls, call(sample_b=desc("float16", (N, K, L))), ValueError, "b_tensor: found dtype")
        refused(cls, call(), RuntimeError, "9.0")
