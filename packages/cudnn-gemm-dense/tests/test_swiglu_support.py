"""What GemmSwiglu refuses, in which order, and how it says so: on descriptions alone, without a tensor."""

from __future__ import annotations

import re
import sys

import pytest
import torch

from cudnn.api_base import ceil_div
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.tensor_desc import TensorDesc
from cudnn_gemm_dense.swiglu.api import GemmSwiglu, gemm_swiglu_wrapper


def desc(dtype: str, shape, major: int | None = None, stride=None, device="cpu") -> TensorDesc:
    """A compact description; ``major`` is the axis with stride 1 (0 or 1)."""
    shape = tuple(shape)
    if stride is None:
        major = 1 if major is None else major
        stride = (shape[1], 1, shape[0] * shape[1]) if major == 1 else (1, shape[0], shape[0] * shape[1])
    return TensorDesc(dtype, shape, tuple(stride), TensorDesc._compute_stride_order(shape, tuple(stride)), device)


def problem(m=256, n=256, k=512, batches=2, dtype="bfloat16", ab12="bfloat16", c="bfloat16", device="cpu", a_major=1, b_major=1, out_major=1, **changes):
    """Constructor arguments of a call that is fine, but for ``changes``."""
    arguments = {
        "sample_a": desc(dtype, (m, k, batches), a_major, device=device),
        "sample_b": desc(dtype, (n, k, batches), b_major, device=device),
        "sample_ab12": desc(ab12, (m, n, batches), out_major, device=device),
        "sample_c": desc(c, (m, n // 2, batches), out_major, device=device),
    }
    return {**arguments, **changes}


def refused(arguments, kind, *fragments):
    """``check_support`` (or the constructor) raises exactly ``kind``, and the message holds all ``fragments``."""
    with pytest.raises(kind) as caught:
        GemmSwiglu(**arguments).check_support()
    message = str(caught.value)
    for fragment in fragments:
        assert fragment in message, f"{fragment!r} not in: {message}"
    return message


SHAPES = {
    "a rank": ({"sample_a": desc("bfloat16", (256, 512, 1)).squeeze(2)}, "a_tensor: found shape (256, 512), needs three axes (M, K, L)", "unsqueeze(-1)"),
    "b rank": ({"sample_b": desc("bfloat16", (256, 512, 1)).squeeze(2)}, "b_tensor: found shape (256, 512), needs three axes (N, K, L)"),
    "b k": ({"sample_b": desc("bfloat16", (256, 520, 2))}, "b_tensor: found shape (256, 520, 2), needs (N, K, L) = (256, 512, 2), as a_tensor has it"),
    "b batches": ({"sample_b": desc("bfloat16", (256, 512, 3))}, "b_tensor: found shape (256, 512, 3), needs (N, K, L) = (256, 512, 2)"),
    "ab12 m": ({"sample_ab12": desc("bfloat16", (128, 256, 2))}, "ab12_tensor: found shape (128, 256, 2), needs (M, N, L) = (256, 256, 2)"),
    "ab12 n": ({"sample_ab12": desc("bfloat16", (256, 128, 2))}, "ab12_tensor: found shape (256, 128, 2), needs (M, N, L) = (256, 256, 2)"),
    "c n": ({"sample_c": desc("bfloat16", (256, 256, 2))}, "c_tensor: found shape (256, 256, 2), needs (M, N/2, L) = (256, 128, 2)"),
    "odd n": (
        {"sample_b": desc("bfloat16", (65, 512, 2)), "sample_ab12": desc("bfloat16", (256, 65, 2)), "sample_c": desc("bfloat16", (256, 32, 2))},
        "b_tensor: found N = 65 rows, needs an even number",
    ),
}


@pytest.mark.parametrize("case", SHAPES)
def test_row_1_shapes(case):
    changes, *fragments = SHAPES[case]
    refused(problem(**changes), ValueError, *fragments)


@pytest.mark.parametrize(
    "name, sample, shape, stride",
    [
        ("a_tensor", "sample_a", (256, 512, 2), (520, 1, 256 * 520)),  # padded pitch
        ("a_tensor", "sample_a", (256, 512, 2), (1024, 2, 1)),  # L innermost
        ("a_tensor", "sample_a", (256, 512, 2), (512, 1, 0)),  # broadcast over L (case 27)
        ("b_tensor", "sample_b", (256, 512, 2), (0, 1, 512)),
        ("ab12_tensor", "sample_ab12", (256, 256, 2), (512, 2, 1)),  # outputs with L innermost (case 24)
        ("c_tensor", "sample_c", (256, 128, 2), (256, 2, 1)),
        ("c_tensor", "sample_c", (256, 128, 2), (-128, 1, 256 * 128)),
    ],
)
def test_row_2_strides_must_be_compact(name, sample, shape, stride):
    rows, columns, _ = shape
    message = refused(problem(**{sample: desc("bfloat16", shape, stride=stride)}), ValueError, f"{name}: found strides {stride} for shape {shape}")
    assert f"needs ({columns}, 1, {rows * columns}) ({'k' if name[0] in 'ab' and name[1] == '_' else 'n'}-major)" in message
    assert f"or (1, {rows}, {rows * columns})" in message and "copy it" in message


def test_row_2_outputs_of_one_major():
    refused(
        problem(sample_c=desc("bfloat16", (256, 128, 2), 0)),
        ValueError,
        "ab12_tensor and c_tensor: found strides (256, 1, 65536) (n-major) and (1, 256, 32768) (m-major), needs the same major for both",
    )


@pytest.mark.parametrize("batches", [1, 2])
def test_strides_of_unit_axes_say_nothing(batches):
    """Case 23: L = 1 is as good as L = 2, whatever stride its axis has."""
    assert GemmSwiglu(**problem(batches=batches)).check_support()
    if batches == 1:
        for stride in (0, 1, 7, 2**40):
            assert GemmSwiglu(**problem(batches=1, sample_a=desc("bfloat16", (256, 512, 1), stride=(512, 1, stride)))).check_support()
    assert GemmSwiglu(**problem(m=1, batches=batches, sample_a=desc("bfloat16", (1, 512, batches), stride=(3, 1, 512)))).check_support()


def test_more_than_2_to_the_31_elements():
    """Cases 16 and 18: nothing of the checks overflows or needs storage."""
    huge = problem(m=65536, n=65536, k=65536, batches=2)
    assert GemmSwiglu(**huge).check_support()
    assert GemmSwiglu(**problem(batches=1, sample_a=desc("bfloat16", (256, 512, 1), stride=(512, 1, 2**40)))).check_support()


@pytest.mark.parametrize(
    "changes, fragments",
    [
        ({"dtype": "float64"}, ("a_tensor: found dtype float64", "float16 or bfloat16 or float32 or float8_e4m3fn or float8_e5m2")),
        ({"dtype": "int8"}, ("a_tensor: found dtype int8",)),
        ({"acc_dtype": "bfloat16"}, ("acc_dtype: found dtype bfloat16, needs float32 or float16",)),
        ({"acc_dtype": torch.int32}, ("acc_dtype: found dtype int32",)),
        ({"ab12": "float64"}, ("ab12_tensor: found dtype float64, needs float32 or float16 or bfloat16 with acc_dtype float32",)),
        (
            {"ab12": "float32", "dtype": "float16", "acc_dtype": "float16"},
            ("ab12_tensor: found dtype float32, needs float16 or bfloat16 with acc_dtype float16",),
        ),
        ({"ab12": "float8_e4m3fn", "dtype": "float16", "acc_dtype": "float16"}, ("ab12_tensor: found dtype float8_e4m3fn",)),
        (
            {"dtype": "bfloat16", "acc_dtype": "float16"},
            ("a_tensor: found dtype bfloat16, needs float16 or float8_e4m3fn or float8_e5m2 with acc_dtype float16",),
        ),
        ({"dtype": "float32", "acc_dtype": "float16"}, ("a_tensor: found dtype float32",)),
        ({"c": "float32"}, ("c_tensor: found dtype float32, needs float16 or bfloat16",)),
        ({"c": "float8_e4m3fn"}, ("c_tensor: found dtype float8_e4m3fn",)),
    ],
)
def test_rows_3_dtypes(changes, fragments):
    refused(problem(**changes), ValueError, *fragments)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_row_3_fp8_ab12_is_not_implemented(dtype):
    refused(problem(ab12=dtype), NotImplementedError, f"ab12_tensor: {dtype} is not implemented with float32 sums", "use one of float32, float16, bfloat16")


@pytest.mark.parametrize("value", [None, "float", float, "bf16", 3, "e4m3"])
def test_dtypes_that_are_none(value):
    refused(problem(acc_dtype=value), ValueError, f"acc_dtype: found {value!r}, needs a dtype of torch, numpy, jax or the CuTe DSL, or its name")


def test_row_9_dtypes_of_a_and_b():
    """Case 55: float32 activations and bfloat16 weights, as autocast leaves them."""
    a, b = torch.zeros(64, 64, 1), torch.zeros(64, 64, 1, dtype=torch.bfloat16)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(ValueError, match="b_tensor: found dtype bfloat16 while a_tensor has float32, needs equal dtypes"),
    ):
        gemm_swiglu_wrapper(a, b)
    refused(problem(sample_b=desc("float16", (256, 512, 2))), ValueError, "b_tensor: found dtype float16 while a_tensor has bfloat16")


@pytest.mark.parametrize("tile", [(64, 128), (192, 128), (128, 16), (128, 48), (128, 288), (128, 0), (-128, 128)])
def test_row_10_tile(tile):
    refused(problem(mma_tiler_mn=tile), ValueError, f"mma_tiler_mn: found {tile}, needs a")


@pytest.mark.parametrize(
    "tile, cluster",
    [((256, 128), (1, 1)), ((256, 128), (3, 1)), ((256, 128), (2, 3)), ((256, 128), (2, 16)), ((128, 128), (2, 1)), ((128, 128), (1, 2)), ((128, 128), (0, 1))],
)
def test_row_12_cluster(tile, cluster):
    refused(problem(mma_tiler_mn=tile, cluster_shape_mn=cluster), ValueError, f"cluster_shape_mn: found {cluster}")


@pytest.mark.parametrize("tile", [(128, n) for n in range(32, 257, 32)] + [(256, 256), (256, 64)])
def test_tiles_and_clusters_that_are_fine(tile):
    clusters = [None, (1, 1)] if tile[0] == 128 else [None, (2, 1), (2, 2), (4, 4), (16, 1)]
    for cluster in clusters:
        op = GemmSwiglu(**problem(mma_tiler_mn=tile, cluster_shape_mn=cluster))
        assert op.check_support() is True
        assert op.cluster_shape_mn == (cluster or ((2, 2) if tile[0] == 256 else (1, 1)))


@pytest.mark.parametrize(
    "changes, fragments",
    [
        # Case 21: the row pitch is no multiple of 16 bytes.
        ({"k": 1025}, ("a_tensor: found K = 1025 contiguous bfloat16 elements", "stride of 2050 bytes", "multiple of 8 (16 bytes)", "pad K")),
        ({"m": 36, "a_major": 0}, ("a_tensor: found M = 36", "multiple of 8")),
        ({"k": 12, "a_major": 0, "m": 64}, ("b_tensor: found K = 12 contiguous bfloat16 elements",)),
        ({"m": 36, "out_major": 0}, ("ab12_tensor: found M = 36 contiguous bfloat16 elements", "multiple of 8")),
        ({"m": 36, "out_major": 0, "ab12": "float32"}, ("c_tensor: found M = 36 contiguous bfloat16 elements",)),
        ({"dtype": "float32", "k": 6}, ("a_tensor: found K = 6 contiguous float32 elements", "multiple of 4")),
        ({"dtype": "float8_e4m3fn", "k": 24}, ("a_tensor: found K = 24 contiguous float8_e4m3fn elements", "multiple of 16")),
        # Whole halves: each of them.
        ({"n": 24, "b_major": 0, "glu_layout": "concatenated"}, ("b_tensor: found N = 24", "(12 in each half", "multiple of 8 in each half")),
        ({"n": 24, "glu_layout": "concatenated"}, ("ab12_tensor: found N = 24", "(12 in each half", "multiple of 8 in each half")),
        ({"n": 24, "glu_layout": "concatenated", "ab12": "float32"}, ("c_tensor: found N = 12 contiguous bfloat16 elements",)),
    ],
)
def test_row_13_sixteen_bytes(changes, fragments):
    refused(problem(**changes), ValueError, *fragments)


@pytest.mark.parametrize("n", [32, 96, 130, 8])
def test_interleave_needs_whole_pairs_of_blocks(n):
    refused(problem(n=n), ValueError, f'b_tensor: found N = {n} rows with glu_layout="interleaved32", needs a multiple of 64', 'glu_layout="concatenated"')


def test_whole_halves_need_only_their_sixteen_bytes():
    assert GemmSwiglu(**problem(n=48, glu_layout="concatenated")).check_support()
    assert GemmSwiglu(**problem(n=10, m=64, out_major=0, glu_layout="concatenated")).check_support()  # N is nowhere the contiguous extent
    for m in (1, 3, 131):
        assert GemmSwiglu(**problem(m=m)).check_support()  # nor is M


def test_separate_weights():
    gate, up = desc("bfloat16", (40, 512, 2)), desc("bfloat16", (40, 512, 2))
    fine = problem(n=80, sample_b=(gate, up), glu_layout="separate")
    assert GemmSwiglu(**fine).check_support()
    refused({**fine, "sample_b": gate}, ValueError, 'b_tensor: found one TensorDesc with glu_layout="separate", needs the pair (gate, up)')
    refused({**fine, "sample_b": (gate, up, up)}, ValueError, "b_tensor: found 3 tensors")
    refused(
        {**fine, "sample_b": (gate, desc("bfloat16", (48, 512, 2)))}, ValueError, "b_tensor[1] (up): found shape (48, 512, 2), needs (N/2, K, L) = (40, 512, 2)"
    )
    refused({**fine, "sample_b": (gate, desc("bfloat16", (40, 504, 2)))}, ValueError, "b_tensor[1] (up): found shape (40, 504, 2)")
    refused(
        {**fine, "sample_b": (gate, desc("bfloat16", (40, 512, 2), 0))},
        ValueError,
        "b_tensor[0] (gate) and b_tensor[1] (up): found strides",
        "(k-major) and (1, 40, 20480) (n-major), needs the same major for both",
    )
    refused({**fine, "sample_b": (gate, desc("float16", (40, 512, 2)))}, ValueError, "b_tensor[1] (up): found dtype float16 while a_tensor has bfloat16")
    refused({**fine, "glu_layout": "concatenated"}, ValueError, 'b_tensor: found 2 tensors with glu_layout="concatenated", needs one')
    refused({**fine, "glu_layout": "halves"}, ValueError, "glu_layout: found 'halves', needs one of 'interleaved32', 'concatenated', 'separate'")


@pytest.mark.parametrize(
    "config, fragments",
    [
        ({"tile_m": 96}, ("config: tile_m: found 96",)),
        ({"tile_n": 96}, ("config: tile_n: found 96",)),
        ({"tile": 128}, ("config: unknown field 'tile'", "tile_m")),
        ("128x256", ("config: found str",)),
        ({"tile_m": "128"}, ("config: tile_m: found '128' of type str, needs an integer",)),
        ({"group": 8.0}, ("config: group: found 8.0 of type float, needs an integer",)),
        ({"split_k": True}, ("config: split_k: found True of type bool, needs an integer",)),
        ({"pingpong": "no"}, ("config: pingpong: found 'no' of type str, needs a bool",)),
        ({"tile_m": 256, "tile_n": 256}, ("config: tile 256x256 needs 256 accumulators a thread", "holds 192")),
        ({"k_groups": 3}, ("config: k_groups: found 3, needs 1 or 2",)),
        ({"k_groups": 2}, ("config: k_groups > 1: needs weights with scale factors", "swap")),
    ],
)
def test_a_config_that_does_not_fit_is_refused_on_every_device(config, fragments):
    refused(problem(config=config), ValueError, *fragments)


def test_backend():
    refused(problem(backend="cuda"), ValueError, "backend is 'cuda', needs one of 'auto', 'sm90', 'reference'")
    refused(problem(backend="sm90"), RuntimeError, 'backend="sm90" needs CUDA tensors, found a_tensor on cpu', '"reference"')
    assert GemmSwiglu(**problem(backend="reference")).check_support()


def test_mixed_devices():
    """Case 62."""
    a, rest = problem(), problem(device="cuda:1")
    refused({**rest, "sample_a": a["sample_a"]}, ValueError, "b_tensor is on cuda:1 but a_tensor is on cpu")
    refused({**a, "sample_c": desc("bfloat16", (256, 128, 2), device="cuda:0")}, ValueError, "c_tensor is on cuda:0 but ab12_tensor is on cpu")


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "float8_e4m3fn"},
        {"dtype": "float8_e5m2"},
        {"dtype": "float32"},
        {"dtype": "float16", "acc_dtype": "float16"},
        {"dtype": "float8_e5m2", "acc_dtype": "float16"},
    ],
    ids=str,
)
def test_the_kernel_takes_what_the_reference_takes(changes, monkeypatch):
    monkeypatch.setattr("cudnn.gemm_operation.require_arch", lambda *_: None)
    op = GemmSwiglu(**problem(device="cuda:0", **changes))
    assert op.check_support() and op.selected_backend == "sm90"
    assert GemmSwiglu(**problem(device="cuda:0", backend="reference", **changes)).check_support()
    assert GemmSwiglu(**problem(**changes)).check_support()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_row_14_the_architecture_comes_last():
    refused(problem(device="cuda:0"), RuntimeError, "gemm_swiglu needs a CUDA device of compute capability 9.0, found no CUDA device", 'backend="reference"')
    refused(problem(device="cuda:0", k=1025), ValueError, "a_tensor: found K = 1025")


def test_row_14_another_architecture(monkeypatch):
    import cudnn.device

    monkeypatch.setattr(cudnn.device, "cuda_is_available", lambda: True)
    monkeypatch.setitem(cudnn.device.device_info(5).__dict__, "compute_capability", (8, 6))
    refused(problem(device="cuda:5"), RuntimeError, "gemm_swiglu needs compute capability 9.0, found 8.6 on cuda:5", 'backend="reference"')


BAD = {  # one violation per row, in the published order, and what the message starts with
    "shapes": ({"sample_c": desc("float32", (256, 256, 2))}, "c_tensor: found shape"),
    "strides": ({"sample_ab12": desc("float8_e4m3fn", (256, 256, 2), stride=(512, 2, 1))}, "ab12_tensor: found strides"),
    "a dtype": ({"sample_a": desc("float64", (256, 512, 2))}, "a_tensor: found dtype float64"),
    "acc": ({"acc_dtype": "int32"}, "acc_dtype: found dtype"),
    "c dtype": ({"sample_c": desc("float32", (256, 128, 2))}, "c_tensor: found dtype float32"),
    "b dtype": ({"sample_b": desc("int8", (256, 512, 2))}, "b_tensor: found dtype int8"),
    "tile": ({"mma_tiler_mn": (64, 16)}, "mma_tiler_mn: found (64, 16)"),
    "cluster": ({"cluster_shape_mn": (3, 1)}, "cluster_shape_mn: found (3, 1)"),
    "backend": ({"backend": "sm80"}, "backend is 'sm80'"),
}


def test_rows_in_their_order():
    names = list(BAD)
    for i, first in enumerate(names):
        changes = {}
        for name in reversed(names[i:]):
            changes.update(BAD[name][0])
        with pytest.raises(ValueError, match=re.escape(BAD[first][1])):
            GemmSwiglu(**problem(**changes)).check_support()


def test_check_support_is_idempotent_and_needs_no_memory():
    op = GemmSwiglu(**problem(m=2**20, n=2**20, k=2**20))
    assert op.check_support() is True and op.check_support() is True
    meta = {
        name: torch.empty_strided(shape, (shape[1], 1, shape[0] * shape[1]), dtype=torch.bfloat16, device="meta")
        for name, shape in (("sample_a", (8, 64, 1)), ("sample_b", (64, 64, 1)), ("sample_ab12", (8, 64, 1)), ("sample_c", (8, 32, 1)))
    }
    refused(meta, ValueError, 'backend="auto" serves tensors on cuda and cpu, found a_tensor on meta')
    assert GemmSwiglu(**meta, backend="reference").check_support()


def test_integers_of_any_kind():
    """Case 38: NumPy integers and one-element tensors where an integer is expected are converted once."""
    numpy = pytest.importorskip("numpy")
    op = GemmSwiglu(
        **problem(mma_tiler_mn=(numpy.int64(256), torch.tensor(128)), cluster_shape_mn=[torch.tensor([2]), numpy.int32(1)], ab12_stages=numpy.int64(4))
    )
    assert op.mma_tiler_mn == (256, 128) and op.cluster_shape_mn == (2, 1) and op.check_support()
    assert all(type(x) is int for x in (*op.mma_tiler_mn, *op.cluster_shape_mn, op.ab12_stages))
    refused(problem(mma_tiler_mn=(128.0, 128)), ValueError, "mma_tiler_mn: found 128.0 of type float, needs an integer")
    refused(problem(mma_tiler_mn=128), ValueError, "mma_tiler_mn: found 128, needs two integers")
    refused(problem(alpha=torch.tensor(2.0)), ValueError, "alpha: found a Tensor, needs a number on the host", ".item()")
    assert GemmSwiglu(**problem(alpha=numpy.float32(0.5))).alpha == 0.5
    refused(problem(alpha="2.0"), ValueError, "alpha: found '2.0', needs a number")
    refused(problem(alpha=10**400), ValueError, "alpha: found a number beyond the range of float64")
    config = GemmSwiglu(**problem(config={"tile_m": numpy.int64(128), "tile_n": torch.tensor(128)})).config
    assert config == GemmConfig(tile_m=128, tile_n=128) and type(config.tile_m) is type(config.tile_n) is int


def test_other_frameworks():
    numpy = pytest.importorskip("numpy")
    with pytest.raises(ValueError, match="Unsupported tensor framework numpy: gemm_swiglu_wrapper needs torch tensors, found it in a_tensor"):
        gemm_swiglu_wrapper(numpy.zeros((64, 64, 1), numpy.float16), numpy.zeros((64, 64, 1), numpy.float16))
    with pytest.raises(ValueError, match="Unsupported tensor framework numpy.* found it in b_tensor"):
        gemm_swiglu_wrapper(torch.zeros(64, 64, 1), numpy.zeros((64, 64, 1), numpy.float32))
    with pytest.raises(ValueError, match="Unsupported tensor framework"):
        gemm_swiglu_wrapper(object(), object())
    for tensors, name in (((None, torch.zeros(64, 64, 1)), "a_tensor"), ((torch.zeros(64, 64, 1), None), "b_tensor")):
        with pytest.raises(ValueError, match=f"gemm_swiglu_wrapper: {name} is None, needs a torch tensor"):
            gemm_swiglu_wrapper(*tensors)


def test_a_dtype_that_no_operation_takes():
    a, b = torch.zeros(64, 64, 1, dtype=torch.complex64), torch.zeros(64, 64, 1)
    with pytest.raises(ValueError, match="a_tensor: found dtype torch.complex64, which no operation takes"):
        gemm_swiglu_wrapper(a, b)
    with pytest.raises(ValueError, match="b_tensor: found dtype torch.complex64, which no operation takes"):
        gemm_swiglu_wrapper(b, a)


def test_a_call_that_is_remembered_is_not_taken_for_one_on_another_device():
    """The device index of meta tensors is -1, as that of CPU tensors."""
    a, b, ab12, c = (torch.randn(64, 64, 1).bfloat16() for _ in range(4))
    c = c[:, :32].contiguous()
    op = GemmSwiglu(a, b, ab12, c)
    op(a, b, ab12, c)
    gemm_swiglu_wrapper(a, b)
    with pytest.raises(ValueError, match="c_tensor is on meta but ab12_tensor is on cpu"):
        op.execute(a, b, ab12, c.to("meta"))
    with pytest.raises(ValueError, match="b_tensor is on cpu but a_tensor is on meta"):
        op.execute(a.to("meta"), b, ab12, c)
    with pytest.raises(ValueError, match="b_tensor is on meta but a_tensor is on cpu"):
        gemm_swiglu_wrapper(a, b.to("meta"))
    with pytest.raises(ValueError, match="a_tensor is on meta, needs cpu"):
        gemm_swiglu_wrapper(a.to("meta"), b.to("meta"))


def test_jax_arrays_come_later(monkeypatch):
    class Array:
        shape, dtype, ndim = (64, 64, 1), "float32", 3

    module = type(sys)("jax")
    module.Array = Array
    monkeypatch.setitem(sys.modules, "jax", module)
    with pytest.raises(ValueError, match="a_tensor is a jax.Array; JAX comes in a later version"):
        gemm_swiglu_wrapper(Array(), Array())
    with pytest.raises(ValueError, match="a_tensor is a jax.Array"):
        GemmSwiglu(Array(), Array(), Array(), Array())


# The block-scaled mode.


def scales(rows, columns, batches, vec, dtype, physical=False):
    blocks_m, blocks_k = ceil_div(rows, 128), ceil_div(ceil_div(columns, vec), 4)
    if physical:
        shape = (batches, blocks_m, blocks_k, 32, 4, 4)
        return desc6(dtype, shape, TensorDesc._compute_contiguous_stride(shape))
    return desc6(dtype, (32, 4, blocks_m, 4, blocks_k, batches), (16, 4, blocks_k * 512, 1, 512, blocks_m * blocks_k * 512))


def desc6(dtype, shape, stride):
    return TensorDesc(dtype, shape, stride, TensorDesc._compute_stride_order(shape, stride), "cpu")


def scaled(m=256, n=256, k=512, batches=2, dtype="float8_e4m3fn", ab12="bfloat16", c="bfloat16", vec=32, sf="float8_e8m0fnu", amax=None, **changes):
    base = problem(m, n, k, batches, dtype, ab12, c, **{name: changes.pop(name) for name in ("a_major", "b_major", "out_major") if name in changes})
    base |= {"sample_sfa": scales(m, k, batches, vec, sf), "sample_sfb": scales(n, k, batches, vec, sf, physical=True), "sf_vec_size": vec}
    if amax or (amax is None and dtype == "float4_e2m1fn" and c == "bfloat16"):
        base["sample_amax"] = TensorDesc("float32", (1, 1, 1), (1, 1, 1), (0, 1, 2), "cpu")
    return {**base, **changes}


FP4 = {"dtype": "float4_e2m1fn", "vec": 16, "sf": "float8_e4m3fn"}
ONE = TensorDesc("float32", (1,), (1,), (0,), "cpu")
SCALED = {
    "sfa shape": (
        scaled(sample_sfa=scales(128, 512, 2, 32, "float8_e8m0fnu")),
        ValueError,
        "sfa_tensor: found shape (32, 4, 1, 4, 4, 2), needs (32, 4, 2, 4, 4, 2) or (2, 2, 4, 32, 4, 4)",
    ),
    "sfb shape": (scaled(sample_sfb=scales(256, 256, 2, 32, "float8_e8m0fnu")), ValueError, "sfb_tensor: found shape"),
    "sfc shape": (scaled(sample_sfc=scales(256, 256, 2, 32, "float8_e8m0fnu"), sample_norm_const=ONE), ValueError, "sfc_tensor: found shape"),
    "amax shape": (scaled(sample_amax=TensorDesc("float32", (), (), (), "cpu")), ValueError, "amax_tensor: found shape ()"),
    "norm_const shape": (
        scaled(sample_norm_const=TensorDesc("float32", (2,), (1,), (0,), "cpu")),
        ValueError,
        "norm_const_tensor: found shape (2,), needs (1,)",
    ),
    "strides": (scaled(sample_a=desc("float8_e4m3fn", (256, 512, 2), stride=(1024, 2, 1))), ValueError, "a_tensor: found strides"),
    "sfa missing": (scaled(sample_sfa=None), ValueError, "sfa_tensor: found None"),
    "sfb missing": (scaled(sample_sfb=None), ValueError, "sfb_tensor: found None"),
    "norm_const alone": (problem(sample_norm_const=ONE), ValueError, "sfa_tensor: found None"),
    "a dtype": (scaled(dtype="bfloat16"), ValueError, "a_tensor: found dtype bfloat16"),
    "acc": (scaled(acc_dtype="float16"), ValueError, "acc_dtype: found dtype float16, needs float32"),
    "ab12 dtype": (scaled(ab12="float64"), ValueError, "ab12_tensor: found dtype float64"),
    "c dtype": (scaled(c="int8"), ValueError, "c_tensor: found dtype int8"),
    "fp4 with fp8 c": (scaled(c="float8_e4m3fn", **FP4), ValueError, "c_tensor: found dtype float8_e4m3fn with float4_e2m1fn operands"),
    "fp8 c without sfc": (scaled(c="float8_e4m3fn"), ValueError, "without sfc_tensor and norm_const_tensor"),
    "fp4 without amax": (scaled(amax=False, **FP4), ValueError, "amax_tensor: found None with float4_e2m1fn operands"),
    "two float32": (scaled(ab12="float32", c="float32", **FP4), NotImplementedError, "float32 for both"),
    "vec": (scaled(vec=64), ValueError, "sf_vec_size: found 64, needs 16 or 32"),
    "vec 0": (scaled(sf_vec_size=0), ValueError, "sf_vec_size: found 0"),
    "sf dtype": (scaled(sf="float8_e5m2"), ValueError, "sfa_tensor: found dtype float8_e5m2"),
    "sf dtypes differ": (
        scaled(sample_sfb=scales(256, 512, 2, 32, "float8_e4m3fn")),
        ValueError,
        "sfb_tensor: found dtype float8_e4m3fn while sfa_tensor has float8_e8m0fnu",
    ),
    "fp8 with vec 16": (scaled(vec=16), ValueError, "float8_e8m0fnu and sf_vec_size 16 with float8_e4m3fn operands"),
    "fp8 with e4m3 scales": (scaled(sf="float8_e4m3fn"), ValueError, "needs float8_e8m0fnu and 32"),
    "fp4 e4m3 vec 32": (scaled(dtype="float4_e2m1fn", vec=32, sf="float8_e4m3fn"), ValueError, "sf_vec_size: found 32 with float8_e4m3fn scales"),
    "fp4 a m-major": (scaled(a_major=0, **FP4), ValueError, "a_tensor: found m-major float4_e2m1fn, needs k-major"),
    "fp4 b n-major": (scaled(b_major=0, **FP4), ValueError, "b_tensor: found n-major float4_e2m1fn"),
    "fp4 out m-major": (scaled(out_major=0, **FP4), ValueError, "ab12_tensor: found m-major with float4_e2m1fn operands, needs n-major"),
    "b dtype": (scaled(sample_b=desc("float8_e5m2", (256, 512, 2))), ValueError, "b_tensor: found dtype float8_e5m2 while a_tensor has float8_e4m3fn"),
    "tile m": (scaled(mma_tiler_mn=(64, 128)), ValueError, "mma_tiler_mn: found (64, 128)"),
    "fp4 tile n": (scaled(mma_tiler_mn=(128, 96), **FP4), ValueError, "mma_tiler_mn: found (128, 96), needs a second entry of 64, 128, 192 or 256"),
    "fp8 tile n": (scaled(mma_tiler_mn=(128, 32)), ValueError, "mma_tiler_mn: found (128, 32)"),
    "fp8 with float32 ab12": (scaled(ab12="float32"), ValueError, "ab12_tensor and c_tensor: found dtypes float32 and bfloat16"),
    "fp8 with fp8 ab12": (scaled(ab12="float8_e4m3fn"), ValueError, "found dtypes float8_e4m3fn and bfloat16"),
    "fp8 with fp8 c": (
        scaled(c="float8_e4m3fn", sample_sfc=scales(256, 128, 2, 32, "float8_e8m0fnu"), sample_norm_const=ONE),
        ValueError,
        "found dtypes bfloat16 and float8_e4m3fn with float8_e4m3fn operands",
    ),
    "cluster": (scaled(mma_tiler_mn=(256, 128), cluster_shape_mn=(1, 1)), ValueError, "cluster_shape_mn: found (1, 1)"),
    "sixteen bytes": (scaled(k=520), ValueError, "a_tensor: found K = 520"),
    "b dtype, mixed": (
        scaled(dtype="float16", sample_sfa=None),
        ValueError,
        "b_tensor: found dtype float16, needs float4_e2m1fn or float8_e4m3fn or float8_e5m2 with sfb_tensor",
    ),
    "fp8 c, mixed": (
        scaled(dtype="bfloat16", sample_b=desc("float8_e4m3fn", (256, 512, 2)), c="float8_e4m3fn", sample_sfa=None),
        ValueError,
        "c_tensor: found dtype float8_e4m3fn",
    ),
}


@pytest.mark.parametrize("case", SCALED)
def test_block_scaled_rows(case):
    arguments, kind, fragment = SCALED[case]
    refused(arguments, kind, fragment)


SUPPORTED = {
    "mxfp8": scaled(),
    "mxfp8, cluster": scaled(cluster_shape_mn=(2, 1)),
    "mxfp8, columns": scaled(a_major=0, b_major=0, out_major=0),
    "mxfp8 e5m2, float32 c": scaled(dtype="float8_e5m2", c="float32"),
    "ragged": scaled(m=200, n=320),
    "nvfp4": scaled(**FP4),
    "mxfp4 float32 c": scaled(dtype="float4_e2m1fn", c="float32"),
    "mxfp4 by 16": scaled(dtype="float4_e2m1fn", vec=16),
    "nvfp4, fp8 ab12": scaled(ab12="float8_e5m2", **FP4),
    "amax of fp8": scaled(amax=True),
    "sfc of a plain c": scaled(sample_sfc=scales(256, 128, 2, 32, "float8_e8m0fnu"), sample_norm_const=ONE),
    "bytes": scaled(**FP4, sample_a=desc("uint8", (256, 256, 2)), sample_b=desc("uint8", (256, 256, 2))),
    "concatenated": scaled(glu_layout="concatenated", **FP4),
    "mixed": scaled(dtype="bfloat16", sample_b=desc("float8_e4m3fn", (256, 512, 2)), sample_sfa=None, ab12="float32", c="float32"),
}


@pytest.mark.parametrize("case", SUPPORTED)
def test_block_scaled(case):
    assert GemmSwiglu(**SUPPORTED[case]).check_support() is True


def test_block_scaled_pairs():
    halves = (desc("float8_e4m3fn", (128, 512, 2)),) * 2
    pair = scaled(glu_layout="separate", sample_b=halves, sample_sfb=(scales(128, 512, 2, 32, "float8_e8m0fnu"),) * 2)
    assert GemmSwiglu(**pair).check_support()
    refused({**pair, "sample_sfb": pair["sample_sfb"][0]}, ValueError, 'sfb_tensor: found one tensor with glu_layout="separate"')
    refused(
        {**pair, "sample_sfb": (scales(128, 512, 2, 32, "float8_e8m0fnu"), scales(256, 512, 2, 32, "float8_e8m0fnu"))}, ValueError, "sfb_tensor[1]: found shape"
    )
    refused(scaled(sample_sfb=(scales(256, 512, 2, 32, "float8_e8m0fnu"),) * 2), ValueError, 'sfb_tensor: found 2 tensors with glu_layout="interleaved32"')


def test_block_scaled_through_the_wrapper():
    a, b = torch.zeros(2, 256, 512).to(torch.float8_e4m3fn).permute(1, 2, 0), torch.zeros(2, 256, 512).to(torch.float8_e4m3fn).permute(1, 2, 0)
    sf = torch.ones(2, 2, 4, 32, 4, 4).to(torch.float8_e8m0fnu)
    result = gemm_swiglu_wrapper(a, b, ab12_dtype="bfloat16", c_dtype="bfloat16", sfa_tensor=sf, sfb_tensor=sf, sf_vec_size=32)
    assert list(result.keys()) == ["ab12_tensor", "c_tensor", "sfc_tensor", "amax_tensor"] and result[2] is result[3] is None
    with pytest.raises(ValueError, match="sfb_tensor: found None"):
        gemm_swiglu_wrapper(a, b, ab12_dtype="bfloat16", sfa_tensor=sf, sf_vec_size=32)
    with pytest.raises(ValueError, match="sfa_tensor: found None"):
        gemm_swiglu_wrapper(a, b, ab12_dtype="bfloat16", norm_const_tensor=torch.ones(1), sf_vec_size=32)
    with pytest.raises(ValueError, match="ab12_tensor and c_tensor: found dtypes bfloat16 and float8_e4m3fn"):
        gemm_swiglu_wrapper(a, b, ab12_dtype="bfloat16", c_dtype="float8_e4m3fn", sfa_tensor=sf, sfb_tensor=sf, sf_vec_size=32, norm_const_tensor=torch.ones(1))
    packed = torch.zeros(2, 256, 256, dtype=torch.uint8).view(torch.float4_e2m1fn_x2).permute(1, 2, 0)
    nv = torch.zeros(2, 2, 8, 32, 4, 4).to(torch.float8_e4m3fn)
    result = gemm_swiglu_wrapper(packed, packed, c_dtype="bfloat16", sfa_tensor=nv, sfb_tensor=nv)
    assert result["sfc_tensor"] is None and result["amax_tensor"].shape == (1, 1, 1) and result["amax_tensor"].item() == 0
    assert gemm_swiglu_wrapper(packed, packed, ab12_dtype="bfloat16", c_dtype="float16", sfa_tensor=nv, sfb_tensor=nv)["amax_tensor"] is None
