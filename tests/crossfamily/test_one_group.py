"""One problem through three families: dense, grouped with one group, discrete with one pointer."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="compares tensors")
dense = pytest.importorskip("cudnn_gemm_dense.swiglu.api", reason="needs the dense family")
dense_gradient = pytest.importorskip("cudnn_gemm_dense.dswiglu.api", reason="needs the dense family")
plain = pytest.importorskip("cudnn_gemm_dense.gemm.api", reason="needs the dense family")
glu = pytest.importorskip("cudnn_gemm_grouped.glu.api", reason="needs the grouped family")
dglu = pytest.importorskip("cudnn_gemm_grouped.dglu.api", reason="needs the grouped family")
unfused = pytest.importorskip("cudnn_gemm_grouped.unfused.api", reason="needs the grouped family")
wgrad = pytest.importorskip("cudnn_gemm_grouped.wgrad.api", reason="needs the grouped family")
discrete = pytest.importorskip("cudnn_gemm_discrete.swiglu.api", reason="needs the discrete family")
discrete_gradient = pytest.importorskip("cudnn_gemm_discrete.dswiglu.api", reason="needs the discrete family")

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a CUDA device of compute capability 9.0")])]
M, N, K = 200, 256, 192  # N: gate and up together
ALPHA = 0.75


@pytest.fixture(params=DEVICES)
def problem(request: Any) -> Any:
    device = request.param

    def random(*shape: int, scale: float = 1.0) -> Any:
        return (torch.randn(shape, device=device) * scale).bfloat16()

    a, w = random(M, K), random(N, K, scale=K**-0.5)
    return {
        "a": a,
        "w": w,
        "ends": torch.tensor([M], dtype=torch.int32, device=device),
        "alpha": torch.full((1,), ALPHA, device=device),
        "one": torch.ones(1, device=device),
        "prob": torch.ones(M, device=device),
        "pointer": torch.tensor([w.data_ptr()], device=device),
        "random": random,
    }


def same(*results: Any) -> None:
    """Equal but for the order of float32 sums, which may move a rounding to bfloat16 by one unit."""
    first = results[0].float()
    assert first.isfinite().all() and first.abs().max() > 0.1
    for other in results[1:]:
        torch.testing.assert_close(other.float(), first, rtol=2**-7, atol=1e-4)
        assert ((other.float() - first).norm() / first.norm()).item() < 2e-3


def test_products(problem: Any) -> None:
    a, w = problem["a"], problem["w"]
    same(
        plain.gemm_wrapper(a.unsqueeze(-1), w.unsqueeze(-1), alpha=ALPHA)["d_tensor"][..., 0],
        unfused.grouped_gemm_wrapper(a, problem["ends"], problem["alpha"], w.unsqueeze(0), prob_tensor=problem["prob"])["d_tensor"],
    )


def test_gated_pairs(problem: Any) -> None:
    """[gate; up] weights, which all three read in place."""
    a, w, prob = problem["a"], problem["w"], problem["prob"]
    bf16 = torch.bfloat16
    one = dense.gemm_swiglu_wrapper(a.unsqueeze(-1), w.unsqueeze(-1), ALPHA, ab12_dtype=bf16, c_dtype=bf16, glu_layout="concatenated")
    two = glu.grouped_gemm_glu_wrapper(a, None, problem["ends"], problem["alpha"], w.unsqueeze(0), prob_tensor=prob, generate_c=True, glu_layout="concatenated")
    three = discrete.discrete_grouped_gemm_swiglu_wrapper(
        a.unsqueeze(-1), problem["pointer"], None, None, problem["ends"], problem["alpha"], N, bf16, prob_tensor=prob.view(-1, 1, 1), glu_layout="concatenated"
    )
    same(one["ab12_tensor"][..., 0], two["c_tensor"], three["c_tensor"][..., 0])
    same(one["c_tensor"][..., 0], two["d_tensor"], three["d_tensor"][..., 0])


def test_gradients_of_gated_pairs(problem: Any) -> None:
    """alpha is squared where there are groups."""
    a, w, prob, c = problem["a"], problem["w"], problem["prob"], problem["random"](M, 2 * N)
    one = dense_gradient.gemm_dswiglu_wrapper(a.unsqueeze(-1), w.unsqueeze(-1), c.unsqueeze(-1), alpha=ALPHA**2, glu_layout="concatenated")
    rest = (problem["ends"], problem["alpha"], problem["one"])
    sums = [torch.zeros(M, device=a.device), torch.zeros(M, 1, 1, device=a.device)]
    two = dglu.grouped_gemm_dglu_wrapper(a, c, None, *rest, prob, sums[0], w.unsqueeze(0), glu_layout="concatenated")
    three = discrete_gradient.discrete_grouped_gemm_dswiglu_wrapper(
        a.unsqueeze(-1), problem["pointer"], c.unsqueeze(-1), None, None, *rest, prob.view(-1, 1, 1), sums[1], N, torch.bfloat16, glu_layout="concatenated"
    )
    same(one["d_ab12_tensor"][..., 0], two["d_row_tensor"], three["d_row_tensor"][..., 0])
    torch.testing.assert_close(sums[0], sums[1].view(-1), rtol=1e-4, atol=1e-3)


def test_weight_gradients(problem: Any) -> None:
    a, dy = problem["a"], problem["random"](M, N)
    same(
        plain.gemm_wrapper(dy.t().unsqueeze(-1), a.t().unsqueeze(-1))["d_tensor"][..., 0],
        wgrad.grouped_gemm_wgrad_wrapper(dy.t(), a, offsets_tensor=problem["ends"])["wgrad_tensor"][0],
    )
