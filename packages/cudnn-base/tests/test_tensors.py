import gc
import random
import weakref

import pytest

from cudnn import tensors
from cudnn.tensor_desc import TensorDesc
from cudnn.tensors import Device, check_alignment, check_pitch, check_same_device, major_of, may_overlap, metadata, require_torch_like

torch = pytest.importorskip("torch")


class Exporter:
    """An object of nobody's framework that exports DLPack."""

    def __init__(self, t):
        self.t, self.shape, self.dtype = t, tuple(t.shape), "mine"

    def __dlpack__(self, **kw):
        return self.t.__dlpack__(**kw)

    def __dlpack_device__(self):
        return self.t.__dlpack_device__()


def fake_cuda(*shape, device="cuda:0", dtype=torch.bfloat16):
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(*shape, device=device, dtype=dtype)


def test_metadata_of_torch():
    t = torch.empty(6, 8, 3, dtype=torch.bfloat16)[:, ::2].permute(1, 0, 2)
    seen = metadata(t)
    assert seen == ("bfloat16", (4, 6, 3), (6, 24, 1), "cpu", None)
    assert (seen.dtype, seen.shape, seen.stride, seen.device_type, seen.device_index) == seen
    assert type(seen.shape) is tuple and type(seen.stride) is tuple and hash(seen) == hash(tuple(seen))
    assert metadata(torch.nn.Parameter(torch.empty(2, 3))) == ("float32", (2, 3), (3, 1), "cpu", None)  # case 54: requires grad
    assert metadata(torch.empty(0, 3)) == ("float32", (0, 3), (3, 1), "cpu", None)
    assert metadata(torch.empty((), dtype=torch.bool)) == ("bool", (), (), "cpu", None)
    assert metadata(torch.empty(2, dtype=torch.complex64)).dtype is None
    assert metadata(torch.empty(2, device="meta")) == ("float32", (2,), (1,), "meta", None)


def test_more_than_2_to_31_elements():
    """Cases 16 and 18: extents, strides and byte counts are not bounded by 32 bits."""
    t = torch.empty(2, 65536, 65536, dtype=torch.bfloat16, device="meta").permute(1, 2, 0)
    seen = metadata(t)
    assert seen[1:3] == ((65536, 65536, 2), (65536, 1, 2**32)) and major_of(*seen[1:3]) == "k" and not may_overlap(*seen[1:3])
    check_pitch("a", "bfloat16", *seen[1:3])
    one = t.as_strided((64, 64, 1), (64, 1, 2**40 + 1))
    assert major_of(one.shape, one.stride()) == "k"
    check_pitch("a", "bfloat16", one.shape, one.stride())


def test_metadata_without_a_gpu_of_a_cuda_tensor():
    assert metadata(fake_cuda(4, 6, device="cuda:1")) == ("bfloat16", (4, 6), (6, 1), "cuda", 1)


def test_metadata_is_in_logical_elements():
    k_major = torch.empty(2, 6, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2).permute(1, 2, 0)
    assert metadata(k_major) == ("float4_e2m1fn", (6, 8, 2), (8, 1, 48), "cpu", None)
    with pytest.raises(RuntimeError, match="needs an axis of stride 1"):
        metadata(k_major[:, ::2])


def test_metadata_refuses_what_cannot_be_read():
    with pytest.raises(ValueError, match=r"layout torch.sparse_coo, needs torch.strided, for example t.to_dense\(\)"):
        metadata(torch.zeros(2, 2).to_sparse())
    negated = torch.zeros(4, dtype=torch.complex64).conj().imag
    with pytest.raises(ValueError, match=r"resolve_neg\(\)"):
        metadata(negated)
    assert metadata(negated.resolve_neg()).dtype == "float32"
    for nothing in (None, 3, "x", [1.0], object()):
        with pytest.raises(ValueError, match="is no tensor: needs a torch tensor"):
            metadata(nothing)


def test_metadata_of_descriptions():
    d = TensorDesc("half", (4, 8), (8, 1), (1, 0), "cuda:1")
    assert metadata(d) == ("float16", (4, 8), (8, 1), "cuda", 1)
    packed = TensorDesc(torch.uint8, (4, 8), (8, 1), (1, 0), "cpu", interpret_uint8_as_fp4x2=True)
    assert metadata(packed) == ("float4_e2m1fn", (4, 8), (8, 1), "cpu", None)
    assert metadata(TensorDesc("half", (4,), (1,), (0,), Device("cuda")))[3:] == ("cuda", None)


def test_metadata_of_numpy():
    numpy = pytest.importorskip("numpy")
    a = numpy.zeros((4, 6), dtype="float16")[::2, ::-1]
    assert metadata(a) == ("float16", (2, 6), (12, -1), "cpu", None)
    assert tensors.get_strides(a) == (12, -1) and tensors.get_data_ptr(a) == a.ctypes.data
    records = numpy.zeros(4, dtype=numpy.dtype([("x", "f4"), ("y", "i1")]))
    with pytest.raises(ValueError, match="multiples of its itemsize 4"):
        metadata(records["x"])


def test_metadata_of_any_dlpack_object():
    t = torch.arange(48, dtype=torch.int32).view(6, 8)[1:, ::2]
    seen = Exporter(t)
    assert metadata(seen) == ("int32", (5, 4), (8, 2), "cpu", None)
    assert tensors.get_data_ptr(seen) == t.data_ptr() and tensors.get_strides(seen) == (8, 2)
    assert tensors.to_host_list(seen) == t.reshape(-1).tolist()
    alive = weakref.ref(seen.t)
    del seen, t
    gc.collect()
    assert alive() is None  # reading the record consumes nothing and keeps nothing


def test_metadata_of_tvm_ffi():
    tvm_ffi = pytest.importorskip("tvm_ffi")
    t = torch.empty(3, 5, dtype=torch.bfloat16)[:, :4]
    assert metadata(tvm_ffi.from_dlpack(t)) == metadata(t)


def test_metadata_of_jax():
    jax = pytest.importorskip("jax")
    a = jax.numpy.arange(6, dtype="bfloat16").reshape(2, 3)
    assert metadata(a) == ("bfloat16", (2, 3), (3, 1), "cpu", None)
    assert metadata(jax.ShapeDtypeStruct((2, 3), "float32")) == ("float32", (2, 3), (3, 1), "unknown", None)
    seen = []
    jax.jit(lambda x: (seen.append(metadata(x)), x)[1])(a)
    assert seen == [("bfloat16", (2, 3), (3, 1), "unknown", None)]
    assert tensors.get_device(a) == Device("cpu") and tensors.get_strides(a) == (3, 1) and tensors.to_host_list(a) == [0, 1, 2, 3, 4, 5]
    assert tensors.get_data_ptr(a) == a.unsafe_buffer_pointer()
    assert tensors.pad_to_ndim(a, 4).shape == (2, 3, 1, 1)
    assert tensors.allocate_byte_workspace("jax", 0, Device("cpu")).shape == (1,)
    assert tensors.allocate_byte_workspace("jax", 9, "cpu").dtype == "uint8"
    with pytest.raises(ValueError, match="no single data pointer"):
        jax.jit(lambda x: (tensors.get_data_ptr(x), x)[1])(a)
    with pytest.raises(ValueError, match="op: b is a jax.Array; JAX comes in a later version"):
        require_torch_like("op", {"a": torch.zeros(1), "b": a})


def test_published_functions():
    import cudnn.tensor_adapter as adapter

    numpy = pytest.importorskip("numpy")
    t, n = torch.arange(6.0).view(2, 3).t(), numpy.zeros((2, 3))
    assert [adapter.detect_framework(x) for x in (t, n, TensorDesc("half", (), (), (), "cpu"), None)] == ["torch", "numpy", "unknown", "unknown"]
    assert (adapter.is_torch_tensor(t), adapter.is_torch_tensor(n), adapter.is_numpy_array(n), adapter.is_jax_array(n)) == (True, False, True, False)
    assert adapter.get_shape(t) == (3, 2) and adapter.get_strides(t) == (1, 3)
    assert adapter.get_device(t) == torch.device("cpu") and adapter.get_device(n) == Device("cpu") and adapter.get_device(3) == Device("unknown")
    assert adapter.to_host_list(t) == [0, 3, 1, 4, 2, 5] and adapter.to_host_list(numpy.ones(2)) == [1, 1]
    assert adapter.get_data_ptr(t) == t.data_ptr()
    before = adapter.get_version(t)
    t.add_(1)
    assert adapter.get_version(t) == before + 1 and adapter.get_version(n) == 0
    with torch.inference_mode():
        assert adapter.get_version(torch.zeros(1)) == 0
    assert tuple(adapter.pad_to_ndim(t, 3).shape) == (3, 2, 1) and adapter.pad_to_ndim(t, 2) is t and adapter.pad_to_ndim(n, 3).shape == (2, 3, 1)
    with pytest.raises(ValueError, match="rank 2 cannot be padded to rank 1"):
        adapter.pad_to_ndim(t, 1)
    buffer = adapter.allocate_byte_workspace("torch", 0, Device("cpu"))
    assert buffer.dtype is torch.uint8 and buffer.numel() == 1 and adapter.allocate_byte_workspace("torch", 77, "cpu").numel() == 77
    with pytest.raises(ValueError, match="'numpy' for a workspace"):
        adapter.allocate_byte_workspace("numpy", 1, "cpu")
    for call, what in ((adapter.get_data_ptr, "no data pointer"), (adapter.to_host_list, "Unsupported tensor framework")):
        with pytest.raises(ValueError, match=what):
            call(object())
    assert (str(Device("cuda", 0)), str(Device("cuda"))) == ("cuda:0", "cuda")


def test_framework_dtype():
    numpy = pytest.importorskip("numpy")
    assert tensors.framework_dtype("bfloat16", "torch") is torch.bfloat16 and tensors.framework_dtype(numpy.int32, "torch") is torch.int32
    assert tensors.framework_dtype("float4_e2m1fn", "torch") is torch.float4_e2m1fn_x2
    assert tensors.framework_dtype(torch.float16, "jax") == numpy.dtype("float16")
    with pytest.raises(ValueError, match="jax has no buffers of float4_e2m1fn"):
        tensors.framework_dtype("float4_e2m1fn", "jax")
    with pytest.raises(ValueError, match="framework 'numpy'"):
        tensors.framework_dtype("float16", "numpy")
    with pytest.raises(ValueError, match="Unsupported tensor data type"):
        tensors.framework_dtype("float", "torch")


def test_no_data_pointer():
    for t in (torch.empty(3, device="meta"), fake_cuda(3), TensorDesc("half", (), (), (), "cpu")):
        with pytest.raises(ValueError, match="has no data pointer"):
            tensors.get_data_ptr(t)
        check_alignment("t", t)


def test_unit_axis_strides():
    canonical = tensors.canonicalize_unit_dim_strides
    assert canonical((4, 8, 1), (8, 1, 1)) == canonical((4, 8, 1), (8, 1, 2**40)) == (8, 1, 32)
    assert canonical((4, 8, 2), (8, 1, 32)) == (8, 1, 32) and canonical((), ()) == ()
    with pytest.raises(ValueError):
        canonical((4, 8), (1,))


@pytest.mark.parametrize(
    ("shape", "stride", "major"),
    [
        ((4, 8, 2), (8, 1, 32), "k"),
        ((4, 8, 2), (1, 4, 32), "m"),
        ((4, 8, 1), (8, 1, 1), "k"),  # case 23: the batch axis of extent 1 says nothing
        ((4, 8, 1), (1, 4, 1), "m"),
        ((4, 8, 2), (10, 1, 48), "k"),  # padded pitch
        ((4, 8, 2), (1, 6, 48), "m"),
        ((4, 8, 2), (8, 1, 0), "k"),  # case 27: broadcast batch
        ((4, 8, 2), (0, 1, 32), None),  # broadcast rows
        ((4, 8, 2), (1, 0, 32), None),
        ((4, 8, 2), (7, 1, 32), None),  # rows overlap
        ((4, 8, 2), (-8, 1, 32), None),
        ((4, 8, 2), (16, 2, 64), None),
        ((4, 8, 2), (8, 2, 64), None),
        ((1, 8, 2), (999, 1, 8), "k"),
        ((4, 1, 2), (1, 999, 8), "k"),
        ((4, 1, 2), (5, 1, 20), "k"),
        ((1, 8, 2), (1, 3, 24), "m"),  # only the single row's axis counts as contiguous
        ((1, 1, 2), (7, 7, 7), "k"),
        ((0, 8, 1), (8, 1, 1), "k"),
        ((0, 8, 1), (1, 1, 1), "k"),
        ((4, 0, 1), (1, 1, 1), "k"),
        ((4, 0, 1), (5, 1, 1), "k"),
        ((1, 1, 1), (0, 0, 0), "k"),
    ],
)
def test_major(shape, stride, major):
    assert major_of(shape, stride) == major
    assert major_of(shape, stride, ("m", "n"), prefer="m") == ("m" if _both(shape, stride) else {"k": "n"}.get(major, major))


def _both(shape, stride):
    """Whether swapping the preference swaps the answer."""
    return major_of(shape, stride, prefer="m") != major_of(shape, stride, prefer="k")


def test_major_of_torch_layouts():
    for extents in [(5, 7, 3), (1, 7, 3), (5, 1, 3), (5, 7, 1), (1, 1, 1), (0, 7, 2), (5, 0, 2)]:
        m, k, batch = extents
        k_major = torch.empty(batch, m, k).permute(1, 2, 0)
        m_major = torch.empty(batch, k, m).permute(2, 1, 0)
        assert major_of(k_major.shape, k_major.stride(), prefer="k") == "k"
        assert major_of(m_major.shape, m_major.stride(), prefer="m") == "m"
    padded = torch.empty(3, 5, 16).permute(1, 2, 0)[:, :7]
    assert major_of(padded.shape, padded.stride(), prefer="m") == "k"


def test_overlap_is_decided_by_memory():
    rng = random.Random()
    answers = set()
    for _ in range(2000):
        shape = [rng.choice([0, 1, 2, 3, 5]) for _ in range(rng.randint(0, 3))]
        stride = [rng.choice([0, 1, 2, 3, 4, 6, 9, 15]) for _ in shape]
        addresses = [0]
        for extent, step in zip(shape, stride, strict=True):
            addresses = [a + i * step for a in addresses for i in range(extent)]
        shared = len(set(addresses)) != len(addresses)
        answer = may_overlap(shape, stride)
        answers.add((shared, answer))
        assert answer or not shared, (shape, stride)
    assert (True, True) in answers and (False, False) in answers
    for t in (torch.empty(4, 5, 6).permute(2, 0, 1), torch.empty(4, 8)[:, ::2], torch.empty(0, 3).expand(4, 0, 3), torch.empty(3, 1).expand(3, 1)):
        assert not may_overlap(t.shape, t.stride())
    assert may_overlap((4, 5), (0, 1)) and not may_overlap((4, 5), (5, -1))


def test_alignment():
    base = torch.empty(64, dtype=torch.bfloat16)
    start = (-base.data_ptr() // 2) % 8
    check_alignment("a_tensor", base[start : start + 8])
    check_alignment("a_tensor", base[start + 8 : start + 16])  # case 25: an offset that keeps the alignment
    check_alignment("a_tensor", None)
    odd = torch.nn.Parameter(base[start + 1 : start + 9])  # case 26
    with pytest.raises(
        ValueError, match=rf"a_tensor: address {odd.data_ptr():#x} is 2 bytes past a multiple of 16, needs 16-byte alignment; .*a_tensor.clone\(\)"
    ):
        check_alignment("a_tensor", odd)
    check_alignment("a_tensor", odd, bytes=2)
    check_alignment("empty", torch.empty(0))


def test_pitch():
    """Case 21: the message names tensor, stride and the multiple that is needed."""
    t = torch.empty(4, 512, 1025, dtype=torch.bfloat16, device="meta").transpose(1, 2)
    with pytest.raises(ValueError, match=r"b_tensor: stride 1025 of axis 2 is 2050 bytes, needs a multiple of 16 bytes \(8 elements of bfloat16\)"):
        check_pitch("b_tensor", "bfloat16", t.shape, t.stride())
    check_pitch("x", "bfloat16", (8, 1025), (1032, 1))
    check_pitch("x", "bfloat16", (1, 1025), (1025, 1))  # one row: the pitch is never used
    check_pitch("x", "bfloat16", (8, 64, 3), (64, 1, 0))  # broadcast batch
    check_pitch("x", "float4_e2m1fn", (8, 64), (64, 1))
    with pytest.raises(ValueError, match=r"x: stride 48 of axis 0 is 24 bytes, needs a multiple of 16 bytes \(32 elements of float4_e2m1fn\)"):
        check_pitch("x", "float4_e2m1fn", (8, 48), (48, 1))
    check_pitch("x", "float32", (2, 2**31, 4), (2**33, 4, 1))


def test_same_device():
    """Case 62: both tensors and both devices are named."""
    host, gpu, other = torch.empty(2), fake_cuda(2), fake_cuda(2, device="cuda:1")
    check_same_device([("a", host), ("b", None), ("c", torch.empty(3))])
    check_same_device({"a": gpu, "b": fake_cuda(3)})
    check_same_device({})
    with pytest.raises(ValueError, match=r"offsets is on cpu but a is on cuda:0; all tensors must be on one device: move offsets with .to\('cuda:0'\)"):
        check_same_device({"a": gpu, "offsets": host})
    with pytest.raises(ValueError, match="b is on cuda:1 but a is on cuda:0"):
        check_same_device([("a", gpu), ("b", other)])
    anywhere = TensorDesc("half", (2,), (1,), (0,), Device("cuda"))
    check_same_device({"d": anywhere, "a": gpu})
    check_same_device({"a": gpu, "d": anywhere})
    with pytest.raises(ValueError, match="b is on cuda:1 but a is on cuda:0"):
        check_same_device({"d": anywhere, "a": gpu, "b": other})


def test_wrappers_take_torch_only():
    numpy = pytest.importorskip("numpy")
    t = torch.empty(2)
    require_torch_like("gemm_swiglu_wrapper", {"a": t, "b": None, "c": torch.nn.Parameter(t), "d": fake_cuda(2)})
    with pytest.raises(ValueError, match="^Unsupported tensor framework numpy: gemm_swiglu_wrapper needs torch tensors, found it in b"):
        require_torch_like("gemm_swiglu_wrapper", [("a", t), ("b", numpy.zeros(2))])
    for unknown in (Exporter(t), 3.0, TensorDesc("half", (2,), (1,), (0,), "cpu")):
        with pytest.raises(ValueError, match=rf"^Unsupported tensor framework of .*{type(unknown).__name__}: op needs torch tensors, found it in tensor 1"):
            require_torch_like("op", [t, unknown])


def test_jax_arrays_are_refused_by_name(monkeypatch):
    """Decision: JAX comes later. Without jax installed a stand-in module takes its place."""
    import sys
    import types

    jax = types.ModuleType("jax")
    jax.Array = type("Array", (), {"shape": (2,)})
    monkeypatch.setitem(sys.modules, "jax", jax)
    with pytest.raises(ValueError, match="op: b is a jax.Array; JAX comes in a later version, this one needs torch tensors"):
        require_torch_like("op", {"a": torch.zeros(2), "b": jax.Array()})


def test_refused_calls_keep_nothing():
    """Case 68."""
    t = torch.zeros(4, dtype=torch.complex64)
    gone = weakref.ref(t)
    for _ in range(100):
        with pytest.raises(ValueError):
            tensors.framework_dtype(t, "torch")
        assert metadata(t).dtype is None
    seen = Exporter(t)
    with pytest.raises(ValueError):
        require_torch_like("op", {"t": seen})
    del t, seen
    gc.collect()
    assert gone() is None
