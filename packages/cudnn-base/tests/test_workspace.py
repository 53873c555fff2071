import pytest

from cudnn.tensor_desc import TensorDesc
from cudnn.workspace import WorkspaceCarver, check_buffers_disjoint, tensor_byte_span, ws_align

torch = pytest.importorskip("torch")


def workspace(nbytes, offset=0):
    base = torch.zeros(nbytes + 256, dtype=torch.uint8)
    start = -base.data_ptr() % 128 + offset
    return base[start : start + nbytes]


def test_ws_align():
    assert [ws_align(n) for n in (0, 1, 127, 128, 129, 2**40 + 1)] == [0, 128, 128, 128, 256, 2**40 + 128]


def test_take():
    buffer = workspace(1000)
    carver = WorkspaceCarver(buffer, 600, "Op")
    first = carver.take(33, torch.float32)
    second = carver.take(5, "bfloat16")
    third = carver.take(7, torch.int64)
    assert [t.data_ptr() - buffer.data_ptr() for t in (first, second, third)] == [0, 256, 384]
    assert [(t.dtype, tuple(t.shape)) for t in (first, second, third)] == [(torch.float32, (33,)), (torch.bfloat16, (5,)), (torch.int64, (7,))]
    third.fill_(-1)
    assert buffer[384:440].eq(255).all() and buffer[:384].eq(0).all() and buffer[440:].eq(0).all()
    rest = carver.remaining()
    assert rest.dtype is torch.uint8 and rest.data_ptr() == buffer.data_ptr() + 512 and rest.numel() == 488
    assert carver.take(0, torch.float64).numel() == 0
    assert carver.take(488, torch.uint8).numel() == 488
    assert carver.remaining().numel() == 0
    with pytest.raises(ValueError, match="Op: 1 elements of torch.uint8 at byte 1024 end at byte 1025, beyond the 1000 bytes"):
        carver.take(1, torch.uint8)


def test_other_dtypes_of_workspace_and_parts():
    carver = WorkspaceCarver(torch.zeros(8, 16, dtype=torch.float32), 512, "Op")
    assert carver.take(16, "float4_e2m1fn").dtype is torch.float4_e2m1fn_x2
    assert carver.take(2, torch.complex64).shape == (2,)
    assert carver.remaining().numel() == 256
    with pytest.raises(ValueError, match="-1 elements"):
        carver.take(-1, torch.uint8)


def test_constructor_errors_in_order():
    with pytest.raises(ValueError, match="Op requires a 64-byte workspace, found None"):
        WorkspaceCarver(None, 64, "Op")
    for wrong in (b"0" * 64, 64, TensorDesc("uint8", (64,), (1,), (0,), "cpu")):
        with pytest.raises(TypeError, match=f"Op: workspace is a {type(wrong).__name__}, needs a torch tensor of 64 bytes"):
            WorkspaceCarver(wrong, 64, "Op")
    # Each of these has the faults of the following ones too.
    with pytest.raises(ValueError, match="not contiguous"):
        WorkspaceCarver(workspace(99, 1)[::2], 64, "Op")
    with pytest.raises(ValueError, match="has 63 bytes, needs 64"):
        WorkspaceCarver(workspace(63, 1), 64, "Op")
    with pytest.raises(ValueError, match="is 1 bytes past a multiple of 16, needs 16-byte alignment"):
        WorkspaceCarver(workspace(64, 1), 64, "Op")
    with pytest.raises(ValueError, match="16 bytes past a multiple of 128"):
        WorkspaceCarver(workspace(64, 16), 64, "Op", align=128)
    assert WorkspaceCarver(workspace(64, 16), 64, "Op").take(64, torch.uint8).numel() == 64


def test_dtype_misalignment():
    carver = WorkspaceCarver(workspace(300, 2), 300, "Op", align=2)
    assert carver.take(3, torch.float16).numel() == 3
    with pytest.raises(ValueError, match="no multiple of the 4 bytes of torch.float32"):
        carver.take(3, torch.float32)


def test_byte_span():
    t = torch.zeros(6, 8, dtype=torch.float16)
    p = t.data_ptr()
    assert tensor_byte_span(t) == (p, p + 96)
    assert tensor_byte_span(t[1:3, 2:4]) == (p + 20, p + 20 + 20)
    assert tensor_byte_span(t.t()) == (p, p + 96)
    assert tensor_byte_span(t[:, :1].expand(6, 5)) == (p, p + 5 * 16 + 2)
    assert tensor_byte_span(t[3:3]) == (t[3:3].data_ptr(),) * 2
    assert tensor_byte_span(t[0, 0]) == (p, p + 2)
    packed = torch.zeros(4, 8, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert tensor_byte_span(packed) == (packed.data_ptr(), packed.data_ptr() + 32)
    with pytest.raises(ValueError, match="no data pointer"):
        tensor_byte_span(torch.zeros(2, device="meta"))


def test_byte_span_of_negative_strides():
    numpy = pytest.importorskip("numpy")
    a = numpy.zeros((4, 6), dtype="int32")
    p = a.ctypes.data
    assert tensor_byte_span(a[::-1]) == tensor_byte_span(a[:, ::-1]) == tensor_byte_span(a) == (p, p + 96)
    assert tensor_byte_span(a[2:0:-1, 1]) == (p + 28, p + 28 + 28)


def test_disjoint_buffers():
    t = torch.zeros(64, dtype=torch.float32)
    left, right, middle = t[:32], t[32:], t[16:48]
    check_buffers_disjoint([("c", left)], [("a", right), ("b", None)])
    check_buffers_disjoint([("c", left), ("d", None)], [("a", middle[16:]), ("b", right)])  # readers may share
    check_buffers_disjoint([("c", left[:0])], [("a", left)])
    span = lambda x: r"\[{:#x}, {:#x}\)".format(*tensor_byte_span(x))  # noqa: E731
    with pytest.raises(ValueError, match=f"c {span(left)} overlaps a {span(middle)}: the kernels write c"):
        check_buffers_disjoint([("c", left)], [("b", right), ("a", middle)])
    with pytest.raises(ValueError, match=f"c {span(left)} overlaps d {span(middle)}: swiglu writes write c"):
        check_buffers_disjoint([("c", left), ("d", middle)], [], what="swiglu writes")
