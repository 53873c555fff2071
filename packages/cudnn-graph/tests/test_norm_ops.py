"""`cudnn.ops.rms_norm` and `layer_norm`, and the torch operators behind them, on the CPU."""

from __future__ import annotations

import threading

import pytest

import cudnn

torch = pytest.importorskip("torch")
F = torch.nn.functional

norm = pytest.importorskip("cudnn_graph.ops.norm")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def tolerance(dtype):
    return {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 1.5e-3}[dtype]


def error(got, want):
    return (got.double() - want.double()).norm().item() / max(want.double().norm().item(), 1e-12)


def leaves(*shapes, dtype):
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_forward_and_backward(dtype, bias):
    x, w, b = leaves((3, 5, 32), (32,), (32,), dtype=dtype)
    y = cudnn.ops.rms_norm(x, w, b if bias else None, eps=1e-3)
    grad = torch.randn_like(y)
    y.backward(grad)
    xd, wd, bd = (t.detach().double().requires_grad_() for t in (x, w, b))
    want = F.rms_norm(xd, (32,), wd, 1e-3) + (bd if bias else 0)
    want.backward(grad.double())
    assert y.dtype is dtype and y.shape == x.shape
    assert error(y, want) < tolerance(dtype)
    assert error(x.grad, xd.grad) < tolerance(dtype) and error(w.grad, wd.grad) < tolerance(dtype)
    if bias:
        assert error(b.grad, bd.grad) < tolerance(dtype)


@pytest.mark.parametrize("parameters", ["none", "weight", "both"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm_forward_and_backward(dtype, parameters):
    x, w, b = leaves((4, 6, 24), (24,), (24,), dtype=dtype)
    weight, shift = (w if parameters != "none" else None), (b if parameters == "both" else None)
    y = cudnn.ops.layer_norm(x, (24,), weight, shift, eps=1e-4)
    grad = torch.randn_like(y)
    y.backward(grad)
    xd, wd, bd = (t.detach().double().requires_grad_() for t in (x, w, b))
    want = F.layer_norm(xd, (24,), wd if weight is not None else None, bd if shift is not None else None, 1e-4)
    want.backward(grad.double())
    assert error(y, want) < tolerance(dtype) and error(x.grad, xd.grad) < 2 * tolerance(dtype)
    for given, mine, theirs in ((weight, w, wd), (shift, b, bd)):
        if given is not None:
            assert mine.grad.dtype is dtype and error(mine.grad, theirs.grad) < tolerance(dtype)


def test_float32_parameters_of_layer_norm_with_half_input():
    x, w = torch.randn(3, 16).half(), torch.randn(16)
    assert error(cudnn.ops.layer_norm(x, 16, w, w), F.layer_norm(x.double(), (16,), w.double(), w.double())) < 1e-3


@pytest.mark.parametrize("shape", [(0, 16), (2, 0, 16), (16,), (1, 16), (7, 16)])
def test_leading_shapes(shape):
    x, w = torch.randn(shape, requires_grad=True), torch.randn(16, requires_grad=True)
    for y, want in (
        (cudnn.ops.rms_norm(x, w), F.rms_norm(x, (16,), w, 1e-5)),
        (cudnn.ops.layer_norm(x, 16, w, w), F.layer_norm(x, (16,), w, w)),
    ):
        assert y.shape == want.shape and torch.allclose(y, want, atol=1e-5)
        (got,) = torch.autograd.grad(y.sum(), w)
        (expected,) = torch.autograd.grad(want.sum(), w)
        assert torch.allclose(got, expected, atol=1e-4)


def test_non_contiguous_input_and_gradient():
    x = torch.randn(16, 6).t().requires_grad_()
    w = torch.randn(16, requires_grad=True)
    y = cudnn.ops.rms_norm(x, w)
    y.backward(torch.ones(6, 1).expand(6, 16))
    gx, gw = x.grad, w.grad
    x2, w2 = x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
    F.rms_norm(x2, (16,), w2, 1e-5).sum().backward()
    assert torch.allclose(gx, x2.grad, atol=1e-5) and torch.allclose(gw, w2.grad, atol=1e-5)


def test_public_paths():
    import cudnn.experimental.ops
    import cudnn.ops.norm

    assert cudnn.ops.norm.rms_norm is cudnn.ops.rms_norm is cudnn.experimental.ops.rms_norm is norm.rms_norm
    assert cudnn.ops.norm.layer_norm is cudnn.experimental.ops.layer_norm


def test_uids_are_the_published_ones():
    uids = norm._UIDs
    assert {u.name: u.value for u in uids} == {
        "X": 1,
        "SCALE": 2,
        "BIAS": 3,
        "EPSILON": 4,
        "Y": 100,
        "INV_VAR": 101,
        "DY": 200,
        "DX": 201,
        "DSCALE": 202,
        "DBIAS": 203,
    }
    assert norm._LayerNormUIDs.MEAN == 101 and norm._LayerNormUIDs.INV_VAR == 102
    norm._STORE.clear()
    cudnn.ops.rms_norm(torch.randn(2, 8), torch.randn(8))
    (graph,) = norm._STORE._graphs.values()
    assert {t.get_uid() for t in graph.get_inputs()} == {1, 2, 4} and {t.get_uid() for t in graph.get_outputs()} == {100, 101}


@pytest.mark.parametrize("name", ["rmsnorm", "rmsnorm_bwd", "layernorm", "layernorm_bwd"])
def test_opcheck(name):
    rows = lambda: torch.randn(4, 8, 1, 1, requires_grad=True)  # noqa: E731
    scale = lambda: torch.randn(1, 8, 1, 1, requires_grad=True)  # noqa: E731
    stat = lambda: torch.rand(4, 1, 1, 1) + 0.5  # noqa: E731
    cases = {
        "rmsnorm": [(rows(), scale(), 1e-5), (rows(), scale(), 1e-5, scale())],
        "rmsnorm_bwd": [(rows().detach(), rows().detach(), scale().detach(), stat(), flag) for flag in (False, True)],
        "layernorm": [(rows(), scale(), scale(), 1e-5)],
        "layernorm_bwd": [(rows().detach(), rows().detach(), scale().detach(), stat(), stat())],
    }[name]
    for case in cases:
        result = torch.library.opcheck(getattr(torch.ops.cudnn, name), case)
        assert set(result.values()) == {"SUCCESS"}


def test_schemas():
    assert str(torch.ops.cudnn.rmsnorm.default._schema) == "cudnn::rmsnorm(Tensor x, Tensor scale, float eps, Tensor? bias=None) -> (Tensor, Tensor)"
    assert (
        str(torch.ops.cudnn.rmsnorm_bwd.default._schema)
        == "cudnn::rmsnorm_bwd(Tensor dy, Tensor x, Tensor scale, Tensor inv_var, bool has_dbias=False) -> (Tensor, Tensor, Tensor)"
    )
    assert str(torch.ops.cudnn.layernorm.default._schema) == "cudnn::layernorm(Tensor x, Tensor scale, Tensor bias, float eps) -> (Tensor, Tensor, Tensor)"
    _, _, dbias = torch.ops.cudnn.rmsnorm_bwd(*(torch.randn(2, 4, 1, 1) for _ in range(2)), torch.randn(1, 4, 1, 1), torch.ones(2, 1, 1, 1))
    assert dbias.shape == (0,)


def test_fullgraph_compile_with_gradients():
    def block(x, w, b):
        return cudnn.ops.layer_norm(cudnn.ops.rms_norm(x, w, b) * 2, 16, w, b).sum()

    x, w, b = leaves((4, 16), (16,), (16,), dtype=torch.float32)
    eager = torch.autograd.grad(block(x, w, b), (x, w, b))
    compiled = torch.autograd.grad(torch.compile(block, fullgraph=True, backend="aot_eager")(x, w, b), (x, w, b))
    for one, two in zip(eager, compiled, strict=True):
        assert torch.allclose(one, two, atol=1e-6)


def test_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        y = cudnn.ops.rms_norm(torch.empty(3, 5, 8, dtype=torch.float16), torch.empty(8, dtype=torch.float16))
        assert y.shape == (3, 5, 8) and y.dtype is torch.float16


def test_bad_arguments():
    x, w = torch.randn(4, 8), torch.randn(8)
    for call, part in (
        (lambda: cudnn.ops.rms_norm(x, w[:4]), r"weight has shape \(4,\), needs \(8,\)"),
        (lambda: cudnn.ops.rms_norm(x, w, w[:4]), r"bias has shape \(4,\)"),
        (lambda: cudnn.ops.rms_norm(x.half(), w), "weight is torch.float32 but input is torch.float16"),
        (lambda: cudnn.ops.rms_norm(x.double(), w.double()), "input is torch.float64"),
        (lambda: cudnn.ops.rms_norm(x[:, :0], w[:0]), "must not be empty"),
        (lambda: cudnn.ops.rms_norm(torch.tensor(1.0), w), "scalar"),
        (lambda: cudnn.ops.layer_norm(x, 4, w), r"normalized_shape \(4,\) does not match"),
        (lambda: torch.ops.cudnn.rmsnorm(x, w, 1e-5), r"needs a contiguous \(rows, hidden, 1, 1\)"),
        (lambda: torch.ops.cudnn.rmsnorm(x.view(4, 8, 1, 1), w, 1e-5), "scale is torch.float32 of shape"),
    ):
        with pytest.raises(ValueError, match=part):
            call()
    with pytest.raises(NotImplementedError, match="2 extents"):
        cudnn.ops.layer_norm(torch.randn(2, 4, 8), (4, 8))


def test_autocast_converts_parameters():
    x, w = torch.randn(4, 8, dtype=torch.bfloat16), torch.randn(8, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = cudnn.ops.rms_norm(x, w)
    y.sum().backward()
    assert y.dtype is torch.bfloat16 and w.grad.dtype is torch.float32


def test_stored_graphs_are_bounded_and_shared_by_threads():
    norm._STORE.clear()
    w = torch.randn(8)
    for rows in range(1, 140):
        cudnn.ops.rms_norm(torch.randn(rows, 8), w)
    assert len(norm._STORE) == 128
    norm._STORE.clear()
    errors = []

    def work():
        try:
            for _ in range(10):
                x = torch.randn(5, 8)
                assert torch.allclose(cudnn.ops.rms_norm(x, w), F.rms_norm(x, (8,), w, 1e-5), atol=1e-5)
        except BaseException as problem:
            errors.append(problem)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and len(norm._STORE) == 1
