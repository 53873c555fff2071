import logging
import threading
import time

import pytest

from cudnn import api_base
from cudnn.api_base import APIBase, TensorDesc, ceil_div, get_device_type, is_power_of_2, is_sm107_device
from cudnn.tensors import Device

torch = pytest.importorskip("torch")


class Op(APIBase):
    """Adds a number to a tensor, in place; its kernel takes a while to compile."""

    def __init__(self, number=1, supported=True):
        super().__init__()
        self.number, self.supported = number, supported
        self.calls = []

    def check_support(self):
        self.calls.append("check_support")
        self._value_error_if(self.number > 9, f"number is {self.number}, needs 9 or less")
        self._is_supported = self.supported
        return self.supported

    def compile(self):
        self._ensure_support_checked()
        time.sleep(0.01)
        self.calls.append("compile")
        self._compiled_kernel = lambda t: t.add_(self.number)

    def execute(self, t, current_stream=None):
        self._runtime_error_if(self._compiled_kernel is None, "Op kernel not compiled; call compile() first")
        self._compiled_kernel(t)
        return None


@pytest.fixture
def op():
    return Op()


def fp4(*shape):
    return torch.zeros(*shape, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)


def test_abstract():
    with pytest.raises(TypeError, match="check_support.*compile.*execute|abstract"):
        APIBase()
    assert APIBase.__abstractmethods__ == {"check_support", "compile", "execute"}


def test_attributes_of_a_fresh_object(op):
    assert (op._is_supported, op._kernel, op._compiled_kernel, op._interpret_uint8_as_fp4x2) == (False, None, None, False)
    assert op._logger is logging.getLogger("Op")
    assert (op._device_type, op._is_rubin_kernel) == (get_device_type(), get_device_type() == "rubin")
    assert op.workspace_bytes() == 0 == op.scratch_workspace_bytes()


def test_lifecycle(op, caplog):
    t = torch.zeros(3)
    with pytest.raises(RuntimeError, match="not compiled; call compile"):
        op.execute(t)
    with caplog.at_level("INFO", logger="Op"):
        assert op(t) is None
        assert op(t) is None
    assert op.calls == ["check_support", "compile"] and t.tolist() == [2, 2, 2]
    assert [(r.levelname, "check_support was not called" in r.getMessage()) for r in caplog.records] == [("INFO", True)]


def test_checked_before_compile_logs_nothing(op, caplog):
    with caplog.at_level("INFO", logger="Op"):
        assert op.check_support() is True
        op.compile()
    assert op.calls == ["check_support", "compile"] and not caplog.records


def test_unsupported():
    with pytest.raises(AssertionError, match="Unsupported configuration"):
        Op(supported=False).compile()
    with pytest.raises(ValueError, match="number is 10, needs 9 or less"):
        Op(10)(torch.zeros(1))


def test_threads_compile_once():
    op, results = Op(), [torch.zeros(1) for _ in range(8)]
    threads = [threading.Thread(target=op, args=(t,)) for t in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert op.calls.count("compile") == 1 and all(t.item() == 1 for t in results)


def test_experimental_warning(caplog):
    api_base._reset_experimental_api_warning_registry()
    for _ in range(2):
        Op()._warn_experimental_api()
    assert [r.getMessage() for r in caplog.records] == ["Op is an experimental API"]
    assert caplog.records[0].name == "Op"


def test_conditional_errors(op):
    for method, kind in ((op._value_error_if, ValueError), (op._not_implemented_error_if, NotImplementedError), (op._runtime_error_if, RuntimeError)):
        assert method(False, "no") is None
        with pytest.raises(kind, match="^why$"):
            method(True, "why")


def test_default_stream(op):
    driver = pytest.importorskip("cuda.bindings.driver")
    given = object()
    assert op._get_default_stream(given) is given
    stream = op._get_default_stream(None)
    assert isinstance(stream, driver.CUstream)
    if not torch.cuda.is_available():
        assert int(stream) == 0


def test_free_helpers(monkeypatch):
    assert [ceil_div(a, 4) for a in (0, 1, 4, 5, 2**40)] == [0, 1, 1, 2, 2**38]
    assert [n for n in range(-2, 17) if is_power_of_2(n)] == [1, 2, 4, 8, 16]
    for capability, kind in (((10, 7), "rubin"), ((10, 0), "blackwell"), ((9, 0), "blackwell")):
        monkeypatch.setattr(api_base, "cuda_is_available", lambda: True)
        monkeypatch.setattr(api_base, "get_compute_capability", lambda capability=capability: capability)
        assert get_device_type() == kind and is_sm107_device() == (kind == "rubin")
    monkeypatch.setattr(api_base, "cuda_is_available", lambda: False)
    assert get_device_type() == "blackwell"


def test_pad_and_unpad(op, caplog):
    t = torch.zeros(2, 3)
    with caplog.at_level("INFO", logger="Op"):
        padded = op._pad_tensor_to_ndim(t, 4, "A")
        assert tuple(padded.shape) == (2, 3, 1, 1) and tuple(op._unpad_tensor_to_ndim(padded, 2, "A").shape) == (2, 3)
        assert [r.levelname for r in caplog.records] == ["INFO", "INFO"] and all("A" in r.getMessage() for r in caplog.records)
        caplog.clear()
        assert op._pad_tensor_to_ndim(t, 2, "A") is t is op._unpad_tensor_to_ndim(t, 2, "A")
        assert op._pad_tensor_to_ndim(None, 3, "A") is None is op._unpad_tensor_to_ndim(None, 3, "A")
        assert not caplog.records
        assert tuple(op._unpad_tensor_to_ndim(padded, 1, "A").shape) == (2, 3)
        assert [r.levelname for r in caplog.records] == ["INFO", "CRITICAL"]
    desc = op._make_tensor_desc(t)
    assert op._pad_tensor_to_ndim(desc, 3, "A").shape == (2, 3, 1)


def test_kinds_of_dtypes(op):
    assert op._is_fp8(torch.float8_e4m3fn) and op._is_fp8("float8_e5m2") and not op._is_fp8(torch.float8_e8m0fnu) and not op._is_fp8(None)
    assert op._is_f16(torch.zeros(1, dtype=torch.bfloat16)) and op._is_f16("half") and not op._is_f16(torch.float32) and not op._is_f16(None)
    u8 = torch.zeros(2, 4, dtype=torch.uint8)
    assert op._is_fp4x2(fp4(2, 4)) and op._is_fp4x2(torch.float4_e2m1fn_x2) and not op._is_fp4x2(u8) and not op._is_fp4x2(None)
    flagged = op._make_tensor_desc(u8, interpret_uint8_as_fp4x2=True)
    plain = op._make_tensor_desc(u8)
    op._interpret_uint8_as_fp4x2 = True
    assert op._is_fp4x2(u8) and op._is_fp4x2(torch.uint8) and op._is_fp4x2(flagged) and not op._is_fp4x2(plain)
    assert not op._is_fp4x2(torch.int8)


def test_kinds_of_numpy_dtypes(op):
    numpy = pytest.importorskip("numpy")
    assert op._is_f16(numpy.dtype("float16")) and op._is_f16(numpy.float16) and op._is_f16(numpy.zeros(2, "float16"))


def test_logical_layout(op):
    t = fp4(6, 4)
    assert (op._tensor_shape(t, "A"), op._tensor_stride(t, "A")) == ((6, 8), (8, 1))
    assert (op._tensor_shape(t.t(), "A"), op._tensor_stride(t.t(), "A")) == ((8, 6), (1, 8))
    u8 = torch.zeros(6, 4, dtype=torch.uint8)
    assert op._tensor_shape(u8, "A") == (6, 4)
    op._interpret_uint8_as_fp4x2 = True
    assert (op._tensor_shape(u8, "A"), op._tensor_stride(u8, "A")) == ((6, 8), (8, 1))
    desc = op._make_tensor_desc(u8)
    assert (op._tensor_shape(desc, "A"), op._tensor_stride(desc, "A")) == (desc.shape, desc.stride) == ((6, 8), (8, 1))
    assert op._tensor_shape(None, "A") is None is op._tensor_stride(None, "A")


def test_innermost_axis(op, caplog):
    assert op._get_innermost_stride_dim(torch.zeros(4, 6).t(), "A") == 0
    assert op._get_innermost_stride_dim(op._make_tensor_desc(torch.zeros(4, 6)), "A") == 1
    for call in (lambda: op._get_innermost_stride_dim(torch.zeros(4, 6)[:, ::2], "A"), lambda: op._tensor_shape(fp4(4, 6)[:, ::2], "A")):
        caplog.clear()
        with pytest.raises(RuntimeError, match=r"A: strides \(6, 2\) .* no axis of stride 1"):
            call()
        assert [r.levelname for r in caplog.records] == ["CRITICAL"]


def test_check_shape(op):
    t = torch.zeros(4, 6)
    assert op._check_tensor_shape(t, (4, 6), "A") == (4, 6) == op._check_tensor_shape(t, [(1,), (4, 6)])
    assert op._check_tensor_shape(torch.Size([4]), (4,)) == (4,) and op._check_tensor_shape(None, (4,)) is None
    assert op._check_tensor_shape(fp4(4, 6), (4, 12), "A") == (4, 12)
    with pytest.raises(ValueError, match=r"^A tensor shape mismatch: expected \(6, 4\), got \(4, 6\)$"):
        op._check_tensor_shape(t, (6, 4), "A")
    with pytest.raises(ValueError, match=r"^A tensor shape mismatch: expected one of \[\(6, 4\), \(4,\)\], got \(4, 6\)$"):
        op._check_tensor_shape(t, [(6, 4), (4,)], "A")
    with pytest.raises(ValueError, match="expected must be a tuple or a list of tuples, got int"):
        op._check_tensor_shape(t, 4, "A")


def test_check_stride(op):
    t = torch.zeros(2, 4, 6).permute(1, 2, 0)
    assert op._check_tensor_stride(t, (6, 1, 24), name="A") == ((6, 1, 24), (1, 0, 2)) == op._check_tensor_stride(t, stride_order=[(0, 1, 2), (1, 0, 2)])
    assert op._check_tensor_stride((1, 8), stride=[(1, 8)], stride_order=(0, 1)) == ((1, 8), (0, 1))
    assert op._check_tensor_stride(None, (1,)) == (None, None) and op._check_tensor_stride(t)[0] == (6, 1, 24)
    # Ties: by stride alone for a tensor, by (stride, extent) for a description.
    tie = torch.zeros(4, 1).as_strided((4, 1), (1, 1))
    assert op._check_tensor_stride(tie)[1] == (0, 1) and op._check_tensor_stride(op._make_tensor_desc(tie))[1] == (1, 0)
    assert op._check_tensor_stride(fp4(4, 6), (12, 1)) == ((12, 1), (1, 0))
    with pytest.raises(ValueError, match=r"^A tensor stride mismatch: expected \(4, 1, 24\), got \(6, 1, 24\)$"):
        op._check_tensor_stride(t, (4, 1, 24), name="A")
    with pytest.raises(ValueError, match=r"^A tensor stride order mismatch: expected one of \[\(0, 1, 2\)\], got \(1, 0, 2\): make it k-major$"):
        op._check_tensor_stride(t, stride_order=[(0, 1, 2)], name="A", extra_error_msg="make it k-major")


def test_check_dtype(op):
    t = torch.zeros(2, dtype=torch.bfloat16)
    assert op._check_dtype(t, torch.bfloat16, "A") is torch.bfloat16 is op._check_dtype(torch.bfloat16, ["float16", "bfloat16"])
    assert op._check_dtype(None, torch.bfloat16) is None
    with pytest.raises(ValueError, match="^A dtype mismatch: expected float16, got bfloat16$"):
        op._check_dtype(t, torch.float16, "A")
    with pytest.raises(ValueError, match="^A dtype mismatch: expected one of float16, float32, got bfloat16: see the table$"):
        op._check_dtype(t, [torch.float16, torch.float32], "A", "see the table")
    with pytest.raises(ValueError, match="got torch.complex64"):
        op._check_dtype(torch.complex64, torch.float16, "A")
    with pytest.raises(ValueError, match="got 'float17'"):
        op._check_dtype("float17", "float17", "A")
    op._interpret_uint8_as_fp4x2 = True
    assert op._check_dtype(torch.uint8, "float4_e2m1fn") is torch.uint8 is op._check_dtype(torch.uint8, [torch.uint8])


def test_check_dtype_of_the_dsl(op):
    cutlass = pytest.importorskip("cutlass")
    assert op._check_dtype(torch.zeros(1, dtype=torch.float16), [cutlass.BFloat16, cutlass.Float16]) is torch.float16
    assert op._check_dtype(cutlass.Float8E4M3FN, torch.float8_e4m3fn) is cutlass.Float8E4M3FN
    with pytest.raises(ValueError, match="expected bfloat16, got float16"):
        op._check_dtype(cutlass.Float16, cutlass.BFloat16, "A")


def test_make_desc(op):
    t = torch.zeros(2, 4, 6, dtype=torch.bfloat16).permute(1, 2, 0)
    desc = op._make_tensor_desc(t, "A")
    assert desc == TensorDesc(torch.bfloat16, (4, 6, 2), (6, 1, 24), (1, 0, 2), "cpu", name="A")
    assert op._make_tensor_desc(None) is None
    assert op._make_tensor_desc(desc) == desc and op._make_tensor_desc(desc, "B").name == "B"
    packed = op._make_tensor_desc(fp4(4, 6))
    assert (packed.dtype, packed.shape, packed.stride, packed.interpret_uint8_as_fp4x2) == (torch.float4_e2m1fn_x2, (4, 12), (12, 1), False)
    held = op._make_tensor_desc(torch.zeros(4, 6, dtype=torch.uint8), interpret_uint8_as_fp4x2=True)
    assert (held.dtype, held.shape, held.interpret_uint8_as_fp4x2) == (torch.uint8, (4, 12), True)


def test_canonical_desc_is_a_key_across_frameworks(op):
    cutlass = pytest.importorskip("cutlass")
    tvm_ffi = pytest.importorskip("tvm_ffi")
    t = torch.zeros(4, 6, 1, dtype=torch.bfloat16)
    key = op._make_tensor_desc(t, canonical=True)
    assert (key.dtype, key.device, key.stride, key.stride_order) == (cutlass.BFloat16, Device("cpu"), (6, 1, 24), (1, 0, 2))
    assert key == op._make_tensor_desc(tvm_ffi.from_dlpack(t), canonical=True) == op._make_tensor_desc(t.as_strided((4, 6, 1), (6, 1, 777)), canonical=True)
    assert hash(key) == hash(op._make_tensor_desc(key, canonical=True))
    assert key != op._make_tensor_desc(t.as_strided((4, 6, 1), (1, 4, 1)), canonical=True)
    # Case 27: a broadcast axis and a plain one are different keys.
    wide = torch.zeros(4, 6, 2, dtype=torch.bfloat16)
    assert op._make_tensor_desc(wide[..., :1].expand(4, 6, 2), canonical=True) != op._make_tensor_desc(wide, canonical=True)
    packed, held = fp4(4, 6), torch.zeros(4, 6, dtype=torch.uint8)
    assert op._make_tensor_desc(packed, canonical=True) == op._make_tensor_desc(held, interpret_uint8_as_fp4x2=True, canonical=True)
    assert op._make_tensor_desc(packed, canonical=True).dtype is cutlass.Float4E2M1FN


def test_fake_tensors_of_the_dsl(op):
    cutlass = pytest.importorskip("cutlass")
    t = torch.zeros(2, 4, 6, dtype=torch.bfloat16).permute(1, 2, 0)
    fake = op._make_fake_cute_tensor_like(t)
    assert (fake.element_type, fake.shape, fake.stride) == (cutlass.BFloat16, (4, 6, 2), (6, 1, 24))
    assert op._make_fake_cute_tensor_like(None) is None is op._make_fake_cute_tensor_from_desc(None)
    packed = op._make_fake_cute_tensor_from_desc(op._make_tensor_desc(torch.zeros(4, 32, dtype=torch.uint8), interpret_uint8_as_fp4x2=True))
    assert (packed.element_type, packed.shape, packed.stride) == (cutlass.Float4E2M1FN, (4, 64), (64, 1))
    explicit = op._make_fake_cute_tensor("float32", [8, 4], [1, 8], assumed_align=4)
    assert (explicit.element_type, explicit.shape, explicit.stride) == (cutlass.Float32, (8, 4), (1, 8))


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 0, 1), (1, 2, 0)])
def test_compact_fake_tensors(op, order):
    cutlass = pytest.importorskip("cutlass")
    shape = (4, 6, 10)
    fake = op._make_fake_cute_compact_tensor(torch.float16, shape, order)
    strides, step = [0, 0, 0], 1
    for axis in order:
        strides[axis] = step
        step *= shape[axis]
    assert (fake.element_type, fake.shape, tuple(fake.stride)) == (cutlass.Float16, shape, tuple(strides))
    symbolic = op._make_fake_cute_compact_tensor(torch.float16, shape, order, dynamic_mode=order[-1], divisibility=8)
    assert symbolic.shape[order[0]] == shape[order[0]] and not isinstance(symbolic.shape[order[-1]], int)
    assert symbolic.shape[order[-1]].divisibility == 8 and tuple(symbolic.stride) == tuple(strides)
