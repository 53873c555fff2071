"""The reference of grouped operations against loops over experts and against autograd, in float64."""

from __future__ import annotations

import pytest
import torch

from cudnn.reference import interleave_gate_up, join_gate_up, split_gate_up
from cudnn.reference.grouped import (
    GluScalars,
    group_of_rows,
    grouped_gemm,
    grouped_gemm_dglu,
    grouped_gemm_glu,
    grouped_matmul,
    grouped_wgrad,
    offset_problem,
    tensor_at,
)
from cudnn.testing.numeric import relative_error

COUNTS = [5, 0, 12, 1, 0]
ROWS, TAIL = sum(COUNTS), 4
ENDS = torch.tensor(COUNTS).cumsum(0).int()
SCALARS = GluScalars(0.3, 1.5, 0.9, -0.8)


def problem(n: int, k: int = 24) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A with a tail of NaN, weights, alpha and prob, in float64."""
    a = torch.randn(ROWS + TAIL, k, dtype=torch.float64)
    a[ROWS:] = float("nan")
    return a, torch.randn(len(COUNTS), n, k, dtype=torch.float64), torch.randn(len(COUNTS), dtype=torch.float64), torch.randn(ROWS + TAIL, dtype=torch.float64)


def row_by_row(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(ROWS, N), each row with its expert's weights."""
    owners = torch.repeat_interleave(torch.arange(len(COUNTS)), torch.tensor(COUNTS))
    return torch.stack([b[owner] @ a[row] for row, owner in enumerate(owners)])


OWNERS = torch.repeat_interleave(torch.arange(len(COUNTS)), torch.tensor(COUNTS))


def test_products_are_those_of_each_rows_own_expert() -> None:
    a, b, _, _ = problem(7)
    found = grouped_matmul(a, b, ENDS, compute_dtype="float64")
    torch.testing.assert_close(found[:ROWS], row_by_row(a, b), rtol=1e-12, atol=1e-12)
    assert torch.equal(found[ROWS:], torch.zeros(TAIL, 7, dtype=torch.float64))
    assert torch.equal(grouped_matmul(a, list(b), ENDS, compute_dtype="float64"), found)


def test_rows_of_nobody_have_the_number_of_groups() -> None:
    assert group_of_rows(ENDS, ROWS + TAIL).tolist() == [*OWNERS.tolist(), *[len(COUNTS)] * TAIL]


def test_factors_and_bias_of_the_product() -> None:
    a, b, alpha, prob = problem(7)
    bias = torch.randn(7, len(COUNTS), dtype=torch.float64)
    x = alpha[OWNERS][:, None] * row_by_row(a, b)
    c, d = grouped_gemm(a, b, ENDS, alpha, prob, compute_dtype="float64")
    torch.testing.assert_close(c[:ROWS], x)
    torch.testing.assert_close(d[:ROWS], prob[:ROWS, None] * x)
    # With a bias prob multiplies the bias, and not the product.
    c, d = grouped_gemm(a, b, ENDS, alpha, prob, bias, compute_dtype="float64")
    torch.testing.assert_close(c[:ROWS], x + prob[:ROWS, None] * bias.t()[OWNERS])
    assert torch.equal(c[:ROWS], d[:ROWS])


def activated(gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    if activation == "swiglu":
        return up * gate * torch.sigmoid(gate)
    gate, up = gate.clamp(max=SCALARS.high), up.clamp(SCALARS.low, SCALARS.high)
    return (up + SCALARS.linear_offset) * gate * torch.sigmoid(SCALARS.alpha * gate)


@pytest.mark.parametrize("activation", ["swiglu", "geglu"])
@pytest.mark.parametrize("layout", ["interleaved32", "concatenated"])
def test_gated_pairs_and_their_gradient_by_autograd(activation: str, layout: str) -> None:
    a, b, alpha, prob = problem(128)
    gate_weights, up_weights = b.chunk(2, 1)
    gate, up = (alpha[OWNERS][:, None] * row_by_row(a, w.contiguous()) * 0.2 for w in (gate_weights, up_weights))
    weights = torch.cat((gate_weights, up_weights), 1) * 0.2
    if layout == "interleaved32":
        weights = interleave_gate_up(weights, dim=1, order="gate_first")
    c, d = grouped_gemm_glu(a, weights, ENDS, alpha, prob, activation=activation, scalars=SCALARS, glu_layout=layout, compute_dtype="float64")
    torch.testing.assert_close(c[:ROWS], join_gate_up(gate, up, layout, order="gate_first"))
    torch.testing.assert_close(d[:ROWS], prob[:ROWS, None] * activated(gate, up, activation))

    beta, saved = torch.rand(len(COUNTS), dtype=torch.float64) + 0.5, torch.randn(ROWS + TAIL, 128, dtype=torch.float64)
    saved[ROWS:] = float("nan")
    second = torch.randn(len(COUNTS), 64, 24, dtype=torch.float64)
    gradient = alpha.square()[OWNERS][:, None] * row_by_row(a, second)
    scaled = (saved[:ROWS] * beta[OWNERS][:, None]).requires_grad_()
    weight = prob[:ROWS].clone().requires_grad_()
    if layout == "interleaved32":
        blocks = scaled.unflatten(1, (2, 2, 32))
        gate, up = blocks[:, :, 0].flatten(1), blocks[:, :, 1].flatten(1)
    else:
        gate, up = scaled.chunk(2, 1)
    value = activated(gate, up, activation)
    (weight[:, None] * value * gradient).sum().backward()
    found = grouped_gemm_dglu(a, second, saved, ENDS, alpha, beta, prob, activation=activation, scalars=SCALARS, glu_layout=layout, compute_dtype="float64")
    torch.testing.assert_close(found.d[:ROWS], scaled.grad)
    torch.testing.assert_close(found.dprob[:ROWS], weight.grad)
    torch.testing.assert_close(found.dbias, torch.zeros(len(COUNTS), 128, dtype=torch.float64).index_add(0, OWNERS, scaled.grad))
    torch.testing.assert_close(found.activation[:ROWS], (prob[:ROWS, None] * value).detach())
    assert not found.d[ROWS:].any() and not found.dprob[ROWS:].any()


def test_the_incoming_gradient_can_be_rounded_first() -> None:
    a, b, alpha, prob = problem(32)
    c = torch.randn(ROWS + TAIL, 64, dtype=torch.float64)
    found = grouped_gemm_dglu(a, b, c, ENDS, alpha, None, prob, round_to=torch.bfloat16, glu_layout="concatenated", compute_dtype="float64")
    g = (alpha.square()[OWNERS][:, None] * row_by_row(a, b)).bfloat16().double() * prob[:ROWS, None]
    gate = c[:ROWS, :32]
    torch.testing.assert_close(found.d[:ROWS, 32:], g * gate * torch.sigmoid(gate))


@pytest.mark.parametrize("step_blocks", [False, True])
def test_weight_gradients_and_zeros_for_groups_of_no_tokens(step_blocks: bool) -> None:
    """Cases 1 and 3."""
    a, b = torch.randn(6, ROWS + TAIL, dtype=torch.float64), torch.randn(ROWS + TAIL, 9, dtype=torch.float64)
    a[:, ROWS:] = b[ROWS:] = float("nan")
    starts = [0, *ENDS.tolist()]
    wanted = torch.stack([a[:, start:end] @ b[start:end] for start, end in zip(starts, starts[1:], strict=False)])
    given = a
    if step_blocks:
        blocks = [a[:, start:end].reshape(-1) for start, end in zip([*starts, ROWS], [*starts[1:], ROWS, ROWS + TAIL], strict=False)]
        given = torch.cat(blocks).view(6, ROWS + TAIL)
    found = grouped_wgrad(given, b, ENDS, step_blocks=step_blocks, compute_dtype="float64")
    torch.testing.assert_close(found, wanted)
    assert not found[1].any() and not found[4].any()


@pytest.mark.parametrize(
    ("ends", "extent", "words"),
    [
        ([-8], 16, "found -8 as the end of group 0, which is negative"),
        ([4, 2], 16, "found 2 as the end of group 1, which is below 4, the end of group 0"),
        ([4, 17], 16, "found 17 as the end of group 1, needs 16 at most"),
    ],
)
def test_wrong_ends_are_refused_with_the_group(ends: list[int], extent: int, words: str) -> None:
    """Cases 12 and 13."""
    assert words in str(offset_problem(ends, extent))
    a, b = torch.randn(extent, 8), torch.randn(len(ends), 4, 8)
    with pytest.raises(ValueError, match=words):
        grouped_matmul(a, b, torch.tensor(ends).int())


def test_right_ends_are_taken() -> None:
    assert offset_problem([0, 0, 4, 4], 4) is None and offset_problem([], 4) is None


def test_extents_that_a_kernel_would_refuse() -> None:
    """Case 22: no alignment is needed here."""
    a, b = torch.randn(6, 8), torch.randn(3, 5, 8)
    found = grouped_matmul(a, b, torch.tensor([2, 4, 6]).int())
    torch.testing.assert_close(found, torch.cat([a[2 * e : 2 * e + 2] @ b[e].t() for e in range(3)]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_memory_behind_an_address(dtype: torch.dtype) -> None:
    t = torch.randn(3, 5).to(dtype)
    assert torch.equal(tensor_at(t.data_ptr(), (3, 5), dtype, t.device), t)
    tensor_at(t.data_ptr(), (3, 5), dtype, t.device)[1, 2] = 7
    assert t[1, 2] == 7


@pytest.mark.parametrize("act_func", ["swiglu", "geglu"])
def test_gate_and_up_in_turn_are_the_halves_in_another_order(act_func):
    """The published operations, forward and backward, with ``glu_layout="alternating"`` and with "concatenated", and the gradient with "separate"."""
    from cudnn import grouped_gemm_dglu_wrapper, grouped_gemm_glu_wrapper

    experts, rows, n, k = 3, 37, 72, 64
    ends = torch.tensor([10, 10, 30], dtype=torch.int32)
    a, prob, alpha = torch.randn(rows, k).bfloat16(), torch.rand(rows) + 0.5, torch.rand(experts) + 0.5
    halves, bias = (torch.randn(experts, 2 * n, k) / 8).bfloat16(), torch.randn(experts, 2 * n).bfloat16()

    def turns(t, dim):
        return join_gate_up(*split_gate_up(t, "concatenated", dim=dim), "alternating", dim=dim)

    def forward(w, b, layout):
        return grouped_gemm_glu_wrapper(a, None, ends, alpha, w, bias_tensor=b.t(), prob_tensor=prob, act_func=act_func, generate_c=True, glu_layout=layout)

    one, other = forward(halves, bias, "concatenated"), forward(turns(halves, 1), turns(bias, 1), "alternating")
    # The same arithmetic; where a column lies may change the order of a sum, and which of two exponentials is taken.
    assert relative_error(one["d_tensor"][:30], other["d_tensor"][:30]) < 1e-3
    assert relative_error(turns(one["c_tensor"], 1)[:30], other["c_tensor"][:30]) < 1e-3
    grad, down = torch.randn(rows, k).bfloat16(), (torch.randn(experts, n, k) / 8).bfloat16()

    def backward(c, layout):
        dprob = torch.zeros(rows)
        made = grouped_gemm_dglu_wrapper(grad, c, None, ends, alpha, alpha, prob, dprob, down, act_func=f"d{act_func}", generate_dbias=True, glu_layout=layout)
        return made["d_row_tensor"][:30], made["dbias_tensor"].squeeze(-1), dprob

    d, dbias, dprob = backward(one["c_tensor"], "concatenated")
    found = backward(turns(one["c_tensor"], 1), "alternating")
    wanted = turns(d, 1), turns(dbias, 1), dprob
    assert all(relative_error(x, y) < 1e-3 for x, y in zip(found, wanted, strict=True))
    assert all(torch.equal(x, y) for x, y in zip(backward(one["c_tensor"], "separate"), (d, dbias, dprob), strict=True))
