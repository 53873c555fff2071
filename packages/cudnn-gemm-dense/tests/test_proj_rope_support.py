"""check_support of projection + RoPE + MXFP8: every row of the published table, in order, on metadata alone."""

from __future__ import annotations

import itertools

import pytest
import torch

from cudnn.tensor_desc import TensorDesc
from cudnn_gemm_dense.proj_rope_mxfp8 import GemmProjRopeMxfp8Bf16In, GemmProjRopeMxfp8Mxfp8In

T, H, K = 256, 2, 160
BF16, E4M3, U8 = "bfloat16", "float8_e4m3fn", "uint8"


def desc(dtype: str, shape: tuple[int, ...], stride: tuple[int, ...] | None = None, device: str = "cpu") -> TensorDesc:
    stride = TensorDesc._compute_contiguous_stride(shape) if stride is None else stride
    return TensorDesc(dtype, shape, stride, TensorDesc._compute_stride_order(shape, stride), torch.device(device))


def tables(t: int = T) -> dict:
    return {"sample_cos": desc(BF16, (t, 64)), "sample_sin": desc(BF16, (t, 64))}


def outputs(t: int = T, h: int = H) -> dict:
    return {
        "sample_out_fp8_row": desc(E4M3, (t, h, 192)),
        "sample_out_scales_row": desc(U8, (t, h, 6)),
        "sample_out_fp8_col": desc(E4M3, (t, h, 192)),
        "sample_out_scales_col": desc(U8, (t // 32, h, 192)),
    }


def bf16(t: int = T, h: int = H, k: int = K, **changes) -> dict:
    found = {"sample_x": desc(BF16, (t, k)), "sample_w": desc(BF16, (k, 192 * h)), **tables(t), **outputs(t, h)}
    return {**found, **changes}


def mxfp8(t: int = T, h: int = H, k: int = K, **changes) -> dict:
    operands = {
        "sample_x_code": desc(E4M3, (t, k)),
        "sample_x_scale": desc(U8, (t, k // 32)),
        "sample_w_code": desc(E4M3, (192 * h, k)),
        "sample_w_scale": desc(U8, (192 * h, k // 32)),
    }
    return {**operands, **tables(t), **outputs(t, h), **changes}


CLASSES = {"bf16": (GemmProjRopeMxfp8Bf16In, bf16), "mxfp8": (GemmProjRopeMxfp8Mxfp8In, mxfp8)}


def refused(kind: str, error: type, *fragments: str, **arguments) -> None:
    cls, call = CLASSES[kind]
    with pytest.raises(error) as caught:
        cls(**call(**arguments)).check_support()
    for fragment in fragments:
        assert fragment in str(caught.value), f"{fragment!r} not in: {caught.value}"


def test_what_is_supported():
    for t, h, k in itertools.product((0, 128, 384), (0, 1, 3), (0, 8, 40)):
        for w_out_in in (False, True):
            op = GemmProjRopeMxfp8Bf16In(**bf16(t, h, k, sample_w=desc(BF16, (192 * h, k) if w_out_in else (k, 192 * h))), w_out_in=w_out_in)
            assert op.check_support() is True and op.selected_backend == "reference" and op.workspace_bytes() == 0
    for t, h, k in itertools.product((0, 128, 384), (0, 2, 4), (0, 32, 96)):
        assert GemmProjRopeMxfp8Mxfp8In(**mxfp8(t, h, k)).check_support() is True


def test_w_out_in_is_false_by_default():
    refused(
        "bf16",
        ValueError,
        "w: found shape (384, 160), needs (K, 192 H) with K = 160 as x has it; its axes may be the other way round",
        sample_w=desc(BF16, (384, 160)),
    )


@pytest.mark.parametrize("kind", CLASSES)
def test_dtypes_come_first(kind):
    cls, call = CLASSES[kind]
    for name, sample in call().items():
        for other in ("float16", "float32", "float8_e5m2", "float8_e8m0fnu", "int8", E4M3 if kind == "bf16" else BF16):
            if other != sample.dtype:
                # T is no multiple of 128, and the shapes do not fit.
                wrong = {name: desc(other, tuple(sample.shape)), **({} if "cos" in name else {"sample_cos": desc(BF16, (3, 64))})}
                refused(kind, ValueError, f"{name.removeprefix('sample_')}: found dtype {other}, needs", **wrong)


@pytest.mark.parametrize("kind", CLASSES)
def test_shapes(kind):
    x, w = ("x", "w") if kind == "bf16" else ("x_code", "w_code")
    dtype = BF16 if kind == "bf16" else E4M3

    def weights(n: int, k: int) -> TensorDesc:
        return desc(dtype, (k, n) if kind == "bf16" else (n, k))

    for t in (1, 64, 130, 200):
        refused(kind, ValueError, f"{x}: found T = {t} tokens, needs a multiple of 128", t=t)
    refused(kind, ValueError, f"{x}: found shape (256, 160, 1), needs two axes", **{f"sample_{x}": desc(dtype, (T, K, 1))})
    refused(kind, ValueError, f"{w}: found shape (160,), needs two axes", **{f"sample_{w}": desc(dtype, (K,))})
    refused(kind, ValueError, f"{w}: found shape", "with K = 160", **{f"sample_{w}": weights(384, 192)})
    refused(kind, ValueError, f"{w}: found shape", "a multiple of 192", **{f"sample_{w}": weights(388, K)})
    for name, shape in (("cos", (T, 32)), ("sin", (128, 64)), ("sin", (T, 64, 1))):
        refused(kind, ValueError, f"{name}: found shape {shape}, needs (T, 64) = (256, 64)", **{f"sample_{name}": desc(BF16, shape)})
    for name, sample in outputs().items():
        for shape in ((*sample.shape, 1), (sample.shape[0] + 1, *sample.shape[1:]), (sample.shape[0], 3, sample.shape[2]), sample.shape[::-1]):
            refused(kind, ValueError, f"{name.removeprefix('sample_')}: found shape {tuple(shape)}, needs", **{name: desc(sample.dtype, tuple(shape))})


def test_mxfp8_shapes():
    for k in (8, 40, 100):
        refused("mxfp8", ValueError, f"x_code: found K = {k}, needs a multiple of 32", k=k)
    for name, shape in (("x_scale", (T, 6)), ("x_scale", (5, T)), ("w_scale", (T, 5)), ("w_scale", (384, 5, 1))):
        refused("mxfp8", ValueError, f"{name}: found shape {shape}, needs", **{f"sample_{name}": desc(U8, shape)})


def test_odd_heads_come_after_shapes_and_before_layouts():
    refused("mxfp8", ValueError, "cos: found shape", h=3, sample_cos=desc(BF16, (3, 64)))
    strided = desc(E4M3, (T, K), (1, T))
    refused("mxfp8", ValueError, "w_code: found 3 heads of 192 features, needs an even number", h=3, sample_x_code=strided)
    assert GemmProjRopeMxfp8Bf16In(**bf16(h=3)).check_support()


@pytest.mark.parametrize("kind", CLASSES)
def test_every_tensor_is_contiguous(kind):
    cls, call = CLASSES[kind]
    for name, sample in call().items():
        shape = tuple(sample.shape)
        padded = TensorDesc._compute_contiguous_stride((*shape[:-1], shape[-1] + 64))
        turned = tuple(reversed(TensorDesc._compute_contiguous_stride(shape[::-1])))
        for stride in (padded, turned):
            refused(kind, ValueError, f"{name.removeprefix('sample_')}: found strides", "contiguous", **{name: desc(sample.dtype, shape, stride)})


def test_a_stride_of_one_element_means_nothing():
    strange = desc(E4M3, (128, 1, 192), (192, 7, 1))
    assert GemmProjRopeMxfp8Bf16In(**bf16(128, 1, sample_out_fp8_row=strange)).check_support()


def test_lines_are_multiples_of_16_bytes():
    refused("bf16", ValueError, "x: found K = 100, needs a multiple of 8 bfloat16 elements", k=100)


def test_devices_and_architecture_come_last(monkeypatch):
    cuda = {name: desc(sample.dtype, tuple(sample.shape), device="cuda:0") for name, sample in bf16().items()}
    refused("bf16", ValueError, "is on cpu but x is on cuda:0", **{**cuda, "sample_out_scales_col": bf16()["sample_out_scales_col"]})
    refused("bf16", ValueError, "found T = 130", **{**cuda, "sample_x": desc(BF16, (130, K), device="cuda:0")})
    import cudnn.device

    monkeypatch.setattr(cudnn.device, "cuda_is_available", lambda: True)
    monkeypatch.setattr(cudnn.device, "device_info", lambda _: type("Info", (), {"compute_capability": (10, 0)}))
    refused("bf16", RuntimeError, "gemm_proj_rope_mxfp8 needs compute capability 9.0, found 10.0", **cuda)
    with pytest.raises(RuntimeError, match='backend="sm90" needs CUDA tensors'):
        GemmProjRopeMxfp8Bf16In(**bf16(), backend="sm90").check_support()
    with pytest.raises(ValueError, match="tile_n: found 128"):
        GemmProjRopeMxfp8Bf16In(**bf16(), backend="sm90", config={"tile_n": 128}).check_support()


def test_samples_have_to_be_there():
    for cls, call in CLASSES.values():
        for name in call():
            with pytest.raises(ValueError, match=f"{name.removeprefix('sample_')} is None"):
                cls(**call(**{name: None}))


def test_a_call_is_checked_as_the_samples_were():
    def given(arguments: dict) -> list[torch.Tensor]:
        return [torch.zeros(tuple(sample.shape), dtype=getattr(torch, sample.dtype)) for sample in arguments.values()]

    op = GemmProjRopeMxfp8Bf16In(**bf16())
    op.compile()
    op.execute(*given(bf16(384, 3, 40)))
    for changes, message in (
        ({"t": 130}, "x: found T = 130"),
        ({"sample_out_scales_col": desc(U8, (16, H, 192))}, "out_scales_col: found shape"),
        ({"sample_cos": desc("float32", (T, 64))}, "cos: found dtype float32"),
        ({"sample_w": desc(BF16, (384, K))}, "w: found shape"),
    ):
        with pytest.raises(ValueError, match=message):
            op.execute(*given(bf16(**changes)))
    tensors = given(bf16())
    tensors[4] = tensors[4].transpose(0, 1).contiguous().transpose(0, 1)
    with pytest.raises(ValueError, match="out_fp8_row: found strides"):
        op.execute(*tensors)
    op = GemmProjRopeMxfp8Mxfp8In(**mxfp8())
    op.compile()
    op.execute(*given(mxfp8(384, 4, 32)))
    with pytest.raises(ValueError, match="w_code: found 3 heads"):
        op.execute(*given(mxfp8(h=3)))
    with pytest.raises(ValueError, match="x_scale: found shape"):
        op.execute(*given(mxfp8(sample_x_scale=desc(U8, (T, 4)))))
