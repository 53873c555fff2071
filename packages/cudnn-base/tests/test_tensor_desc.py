import dataclasses
import random

import pytest

from cudnn.tensor_desc import TensorDesc

torch = pytest.importorskip("torch")


def desc(shape, stride=None, **kw):
    stride = TensorDesc._compute_contiguous_stride(shape) if stride is None else stride
    return TensorDesc("float16", shape, stride, TensorDesc._compute_stride_order(shape, stride), kw.pop("device", "cpu"), **kw)


def layout(t):
    return (tuple(t.shape), tuple(t.stride() if isinstance(t, torch.Tensor) else t.stride))


def test_fields_in_order_and_sequences_become_tuples():
    assert [f.name for f in dataclasses.fields(TensorDesc)] == [
        "dtype",
        "shape",
        "stride",
        "stride_order",
        "device",
        "interpret_uint8_as_fp4x2",
        "ndim",
        "name",
    ]
    d = TensorDesc(torch.float16, [2, 3], torch.Size([3, 1]), [1, 0], "cuda:1", True, "A")
    assert (d.shape, d.stride, d.stride_order, d.ndim, d.name) == ((2, 3), (3, 1), (1, 0), 2, "A")
    assert d.device == torch.device("cuda", 1) and d.interpret_uint8_as_fp4x2 is True
    with pytest.raises(dataclasses.FrozenInstanceError):
        d.shape = (1,)
    assert hash(d) == hash(dataclasses.replace(d)) and len({d, dataclasses.replace(d), dataclasses.replace(d, name="B")}) == 2


@pytest.mark.parametrize(
    ("shape", "stride", "order", "found"),
    [((2, 3), (1,), (0, 1), "stride .* rank 1"), ((2, 3), (3, 1), (0,), "stride_order .* rank 1"), ((2, 3), (3, 1), (1, 1), "stride_order .* no permutation")],
)
def test_inconsistent_ranks(shape, stride, order, found):
    with pytest.raises(ValueError, match=rf"'A': {found}"):
        TensorDesc("float16", shape, stride, order, "cpu", name="A")


def test_device():
    from cudnn.tensors import Device

    assert desc((1,), device=Device("cuda", 0)).device == Device("cuda", 0)
    assert desc((1,), device=torch.device("cpu")).device == torch.device("cpu")
    with pytest.raises(TypeError, match="'nowhere:0' is no device"):
        desc((1,), device="nowhere:0")
    with pytest.raises(TypeError, match="is no device"):
        desc((1,), device=object())


def test_stride_order_sorts_by_stride_then_extent():
    assert TensorDesc._compute_stride_order((4, 8, 2), (8, 1, 32)) == (1, 0, 2)
    assert TensorDesc._compute_stride_order((4, 8, 1), (1, 4, 1)) == (2, 0, 1)  # a tie: the smaller extent first
    assert TensorDesc._compute_stride_order((1, 1), (1, 1)) == (0, 1)


def test_len_and_size():
    d = desc((4, 5))
    assert len(d) == 4 and d.size() == (4, 5) and isinstance(d.size(), torch.Size) and d.size(-1) == 5
    with pytest.raises(TypeError, match="rank 0"):
        len(desc(()))
    with pytest.raises(IndexError, match="axis 2 is out of range"):
        d.size(2)


def test_rearranging_agrees_with_torch():
    d, t = desc((2, 1, 4, 1)), torch.empty(2, 1, 4, 1)
    for got, want in [
        (d.permute(2, 0, 3, 1), t.permute(2, 0, 3, 1)),
        (d.permute([3, -2, 1, 0]), t.permute(3, -2, 1, 0)),
        (d.transpose(0, -2), t.transpose(0, -2)),
        (d.squeeze(), t.squeeze()),
        (d.squeeze(1), t.squeeze(1)),
        (d.squeeze(0), t.squeeze(0)),
        (d.squeeze((0, 3)), t.squeeze((0, 3))),
        (d.unsqueeze(0), t.unsqueeze(0)),
        (d.unsqueeze(2), t.unsqueeze(2)),
        (d.unsqueeze(-1), t.unsqueeze(-1)),
        (d.view(8), t.view(8)),
        (d.view(4, -1), t.view(4, -1)),
        (d.view((2, 2, 2)), t.view(2, 2, 2)),
        (d.as_strided((2, 2), [1, 4]), t.as_strided((2, 2), (1, 4))),
        (desc((3,), (2,)).view(3, 1), torch.empty(6)[::2].view(3, 1)),
        (desc(()).view(1, 1), torch.empty(()).view(1, 1)),
    ]:
        assert layout(got) == layout(want)
        assert got.stride_order == TensorDesc._compute_stride_order(got.shape, got.stride)
    named = desc((2, 3), device="cuda:1", name="A", interpret_uint8_as_fp4x2=True).transpose(0, 1)
    assert (named.name, named.interpret_uint8_as_fp4x2, named.dtype, named.device) == ("A", True, "float16", torch.device("cuda:1"))


def test_rearranging_errors():
    d = desc((2, 1, 4))
    for wrong in [(0, 1), (0, 1, 1), (0, 1, 2, 2)]:
        with pytest.raises(RuntimeError, match="each of the 3 axes once"):
            d.permute(*wrong)
    with pytest.raises(IndexError, match="axis 3 is out of range"):
        d.permute(0, 1, 3)
    with pytest.raises(RuntimeError, match="an axis twice"):
        d.squeeze((1, -2))
    with pytest.raises(IndexError):
        d.unsqueeze(4)
    with pytest.raises(RuntimeError, match="storage_offset of 0, found 3"):
        d.as_strided((2,), (1,), 3)
    with pytest.raises(RuntimeError, match="one length"):
        d.as_strided((2,), (1, 1))
    with pytest.raises(RuntimeError, match="negative"):
        d.as_strided((2,), (-1,))
    with pytest.raises(TypeError, match="tuple or list, found int"):
        d.as_strided(2, (1,))
    for wrong in [(3, -1), (-1, -1), (7,), (-2, 4)]:
        with pytest.raises(RuntimeError, match="view"):
            d.view(*wrong)
    with pytest.raises(RuntimeError, match="without a copy"):
        desc((4, 4), (1, 4)).view(16)


def test_contiguity_agrees_with_torch():
    formats = [torch.contiguous_format, torch.channels_last, torch.channels_last_3d]
    for t in [
        torch.empty(2, 3, 4, 5),
        torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.empty(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d),
        torch.empty(4, 6).t(),
        torch.empty(4, 6)[:, :3],
        torch.empty(4, 6)[:1, :3],
        torch.empty(0, 6).t(),
        torch.empty(()),
    ]:
        d = desc(*layout(t))
        for form in formats:
            if t.ndim == {torch.channels_last: 4, torch.channels_last_3d: 5}.get(form, t.ndim):
                assert d.is_contiguous(form) == t.is_contiguous(memory_format=form), (t.shape, form)
            else:
                assert d.is_contiguous(form) is False
        assert d.is_contiguous() == t.is_contiguous() == d.is_contiguous(torch.preserve_format)
        assert layout(d.contiguous()) == (layout(d) if d.is_contiguous() else layout(t.contiguous()))
        assert (d.contiguous() is d) == d.is_contiguous()
    with pytest.raises(ValueError, match="'sideways' is unknown"):
        desc((2,)).is_contiguous("sideways")


def test_view_follows_torch_on_random_layouts():
    rng = random.Random()
    compared = refused = 0
    for _ in range(3000):
        base = [rng.choice([1, 2, 3, 4]) for _ in range(rng.randint(0, 4))]
        axes = rng.sample(range(len(base)), len(base))
        t = torch.empty([extent + rng.randint(0, 1) for extent in base])[tuple(slice(extent) for extent in base)].permute(axes)
        if t.ndim and rng.random() < 0.2:
            t = t.unsqueeze(0).expand(rng.choice([1, 2]), *t.shape)
        factors = [f for extent in t.shape for f in ([2, 2] if extent == 4 else [extent]) if f > 1]
        target = [1] * rng.randint(0, 2)
        for f in factors:
            if target and rng.random() < 0.5:
                target[-1] *= f
            else:
                target.append(f)
        d = desc(*layout(t))
        try:
            want = t.view(target)
        except RuntimeError:
            refused += 1
            with pytest.raises(RuntimeError, match="without a copy"):
                d.view(target)
            continue
        compared += 1
        assert layout(d.view(target)) == layout(want), (layout(t), target)
    assert compared > 500 and refused > 100


def test_more_than_2_to_31_elements():
    """Cases 16 and 18: no bound on extents, strides or their products, and a unit axis may have any stride."""
    d = desc((2, 65536, 65536))
    assert d.stride == (2**32, 65536, 1) and d.is_contiguous() and d.view(-1).shape == (2**33,)
    assert desc((1, 64, 64), (2**40 + 1, 64, 1)).is_contiguous()
    assert TensorDesc._numel((2**31, 2**31)) == 2**62
