"""Operators called around torch's dispatcher, and all that they are called through it for."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from cudnn.torch_direct import DirectOperator, watched  # noqa: E402

NAME = "cudnn_direct_test::scaled"


def scaled(x: torch.Tensor, y: torch.Tensor, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(factor x y, x y)."""
    product = x * y
    return product * factor, product


def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    x, y, ctx.factor = inputs
    ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, y, output[1])
    ctx.mark_non_differentiable(output[1])


def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> tuple[Any, ...]:
    x, y, _ = ctx.saved_tensors
    return DIRECT_PRODUCT(grad, y, ctx.factor), None if x is None else DIRECT_PRODUCT(grad, x, ctx.factor), None


def product(grad: torch.Tensor, other: torch.Tensor, factor: float) -> torch.Tensor:
    return grad * other * factor


OPERATOR = torch.library.custom_op(NAME, scaled, mutates_args=())
OPERATOR.register_fake(lambda x, y, factor: (torch.empty_like(x), torch.empty_like(x)))
OPERATOR.register_autograd(backward, setup_context=setup_context)
PRODUCT = torch.library.custom_op("cudnn_direct_test::product", product, mutates_args=())
PRODUCT.register_fake(lambda grad, other, factor: torch.empty_like(grad))


class Counted:
    """An operator that counts its calls."""

    def __init__(self, operator: Any) -> None:
        self.operator, self.calls = operator, 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        return self.operator(*arguments)


DIRECT = DirectOperator(OPERATOR, scaled, 2, setup_context, backward, kept=True)
DIRECT_PRODUCT = DirectOperator(PRODUCT, product, 2)


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> Counted:
    found = Counted(OPERATOR)
    monkeypatch.setattr(DIRECT, "operator", found)
    return found


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(3, 4, requires_grad=True), torch.nn.Parameter(torch.randn(3, 4))


def test_a_plain_call_is_the_operator_without_the_dispatcher(operator):
    x, y = inputs()
    grad = torch.randn(3, 4)
    for needed in ((True, True), (True, False), (False, True)):
        leaves = [t for t, need in zip((x, y), needed, strict=True) if need]
        given = [t if need else t.detach() for t, need in zip((x, y), needed, strict=True)]
        found, wanted = DIRECT(*given, 0.5), OPERATOR(*given, 0.5)[0]
        assert torch.equal(found, wanted) and found.requires_grad
        for one, other in zip(torch.autograd.grad(found, leaves, grad), torch.autograd.grad(wanted, leaves, grad), strict=True):
            assert torch.equal(one, other)
    for without in (torch.no_grad, torch.inference_mode):
        with without():
            found = DIRECT(x, y, 0.5)
        assert torch.equal(found, wanted) and not found.requires_grad and found.is_inference() == (without is torch.inference_mode)
    assert not DIRECT(x.detach(), y.detach(), 0.5).requires_grad
    assert operator.calls == 0


def test_the_same_is_saved(operator):
    """Checkpointing counts what is saved, and compares it."""
    x, y = inputs()
    found = []
    for call in (DIRECT, OPERATOR):
        saved: list[Any] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, saved=saved: saved.append((t.shape, t.dtype)) or t, lambda t: t):
            call(x, y, 2.0)
        found.append(saved)
    assert found[0] == found[1] and len(found[0]) == 3 and operator.calls == 0
    assert torch.equal(
        torch.autograd.grad(torch.utils.checkpoint.checkpoint(lambda a: DIRECT(a, y, 2.0), x, use_reentrant=False).sum(), x)[0], (2.0 * y).detach()
    )


def test_a_saved_tensor_that_was_written_over_is_noticed():
    x, y = inputs()
    out = DIRECT(x, y, 2.0)
    with torch.no_grad():
        y.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_second_derivatives_are_refused_as_the_operator_does(operator):
    x, y = inputs()
    (first,) = torch.autograd.grad(DIRECT(x, y, 2.0).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        first.sum().backward()


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def test_modes_and_profilers_see_the_operator(operator):
    x, y = inputs()
    assert not watched()
    with Seen() as seen:
        assert watched()
        DIRECT(x, y, 2.0).sum().backward()
    assert [name for name in seen.names if "direct_test" in name] == ["cudnn_direct_test.scaled.default", *["cudnn_direct_test.product.default"] * 2]
    with torch.device("cpu"):  # a mode of torch functions
        assert watched()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        DIRECT(x, y, 2.0)
    assert NAME in {event.name for event in profile.events()}
    assert operator.calls == 2 and not watched()


def test_tracers_see_the_operator(operator):
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    x, y = (t.detach() for t in inputs())

    def names(graph: Any) -> list[str]:
        return [str(node.target) for node in graph.nodes if "direct_test" in str(node.target)]

    assert names(make_fx(lambda a, b: DIRECT(a, b, 2.0))(x, y).graph) == ["cudnn_direct_test.scaled.default"]
    graphs: list[Any] = []
    compiled = torch.compile(lambda a, b: DIRECT(a, b, 2.0), fullgraph=True, backend=lambda module, _: graphs.append(module.graph) or module.forward)
    assert torch.equal(compiled(x, y), 2.0 * x * y)
    assert [name for graph in graphs for name in names(graph)] == ["cudnn_direct_test.scaled.default"]
    with FakeTensorMode() as mode:
        assert type(DIRECT(mode.from_tensor(x), mode.from_tensor(y), 2.0)) is not torch.Tensor
    assert DIRECT(x.to("meta"), y.to("meta"), 2.0).is_meta


class Derived(torch.Tensor):
    pass


def test_tensors_that_are_more_than_memory(operator):
    x, y = (t.detach() for t in inputs())
    negated = torch._neg_view(x)
    for given in (x.as_subclass(Derived), negated):
        before = operator.calls
        assert torch.equal(torch.as_tensor(DIRECT(given, y, 2.0)).as_subclass(torch.Tensor), given.as_subclass(torch.Tensor) * y * 2.0)
        assert operator.calls == before + 1
