"""What the discrete operations refuse, and in which words, from metadata alone; and that they compute what the grouped ones do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cudnn.reference.grouped import GluScalars, grouped_gemm_dglu, grouped_gemm_glu
from cudnn_gemm_discrete.dswiglu.api import DiscreteGroupedGemmDswiglu, discrete_grouped_gemm_dswiglu_wrapper
from cudnn_gemm_discrete.swiglu.api import DiscreteGroupedGemmSwiglu, discrete_grouped_gemm_swiglu_wrapper

M, N, K, E = 24, 128, 64, 3
BF = torch.bfloat16
HELD = [torch.randn(N, K).to(BF) * K**-0.5 for _ in range(E)]  # what the addresses point at


def rows(columns: int, dtype: torch.dtype = BF) -> torch.Tensor:
    return torch.randn(M, columns, 1).to(dtype)


def arguments(**changes: Any) -> dict[str, Any]:
    return {
        "a_tensor": rows(K),
        "b_ptrs": torch.tensor([t.data_ptr() for t in HELD]),
        "sfa_tensor": None,
        "sfb_ptrs": None,
        "padded_offsets": torch.tensor([8, 8, M], dtype=torch.int32),
        "alpha_tensor": torch.tensor([0.5, 1.0, -1.5]),
        "n": N,
        "b_dtype": BF,
        **changes,
    }


def backward(**changes: Any) -> dict[str, Any]:
    given = {
        **arguments(),
        "c_tensor": rows(2 * N),
        "beta_tensor": torch.tensor([0.5, 1.0, 1.5]),
        "prob_tensor": torch.randn(M, 1, 1),
        "dprob_tensor": torch.zeros(M, 1, 1),
    }
    return {**given, **changes}


WRAPPERS = {"swiglu": (discrete_grouped_gemm_swiglu_wrapper, arguments), "dswiglu": (discrete_grouped_gemm_dswiglu_wrapper, backward)}

ROWS = [
    ({"a_tensor": rows(K)[..., 0]}, r"a_tensor: found shape \(24, 64\), needs \(M, K, 1\)"),
    ({"a_tensor": rows(K, torch.float32)}, "a_tensor: found dtype float32"),
    ({"a_tensor": rows(2 * K)[:, ::2]}, "a_tensor: found strides"),
    ({"a_tensor": rows(K + 4)[:, : K + 4]}, "so lines are not 16B aligned"),
    ({"b_ptrs": torch.zeros(E, dtype=torch.int32)}, "b_ptrs must be int64"),
    ({"b_ptrs": torch.zeros(2, dtype=torch.int64)}, "b_ptrs length mismatch"),
    ({"b_ptrs": torch.zeros(1, E, dtype=torch.int64)}, "b_ptrs: found shape"),
    ({"b_ptrs": None}, "b_ptrs is required"),
    ({"b_dtype": torch.float16}, "b_tensor: found dtype float16 while a_tensor has bfloat16"),
    ({"padded_offsets": torch.zeros(E, dtype=torch.int64)}, "padded_offsets: found dtype int64, needs int32"),
    ({"padded_offsets": torch.zeros(0, dtype=torch.int32), "b_ptrs": torch.zeros(0, dtype=torch.int64)}, "num_experts: found 0, needs 1 to 1024"),
    ({"alpha_tensor": torch.ones(E + 1)}, r"alpha_tensor: found shape \(4,\), needs \(E,\) = \(3,\)"),
    ({"alpha_tensor": torch.ones(E).double()}, "alpha_tensor: found dtype float64"),
    ({"cd_major": "m"}, "cd_major: found 'm', needs 'n'"),
    ({"acc_dtype": torch.float16}, "acc_dtype"),
    ({"m_aligned": 128}, "m_aligned: found 128, needs 256"),
    ({"b_major": "m"}, "b_major: found 'm'"),
    ({"mma_tiler_mn": (256, 128)}, "mma_tiler_mn: found .*needs a second entry out of 256"),
    ({"mma_tiler_mn": (64, 256)}, "mma_tiler_mn: found .*needs a first entry"),
    ({"cluster_shape_mn": (2, 8)}, "cluster_shape_mn: found .*needs at most 4 along each axis"),
    ({"cluster_shape_mn": (1, 1)}, "needs an even first entry"),
    ({"act_func": "situglu"}, "act_func: found 'situglu'"),
    ({"sfa_tensor": torch.ones(1)}, "BF16 forbids scale control: found sfa_tensor"),
    ({"sfb_ptrs": torch.ones(1)}, "BF16 forbids scale control: found sfb_ptrs"),
    ({"norm_const_tensor": torch.ones(1)}, "BF16 forbids scale control: found norm_const_tensor"),
    ({"discrete_col_sfd": True}, "BF16 forbids scale control: found discrete_col_sfd"),
    ({"d_dtype": torch.float64}, "found dtype float64, needs bfloat16 or float16 or float32"),
]


@pytest.mark.parametrize("op", WRAPPERS)
@pytest.mark.parametrize("row", ROWS, ids=[str(i) for i in range(len(ROWS))])
def test_rows_of_both(op: str, row: tuple[dict[str, Any], str]) -> None:
    changes, words = row
    wrapper, given = WRAPPERS[op]
    with pytest.raises(ValueError, match=words):
        wrapper(**given(**changes))


def test_rows_of_one() -> None:
    for changes, words in (
        ({"n": 96}, "N = 96 .*needs a multiple of 64"),
        ({"bias_tensor": torch.zeros(E, N).t()}, "bias_tensor: found dtype float32, needs bfloat16 or float16"),
        ({"bias_tensor": torch.zeros(N, E, dtype=BF)}, "bias_tensor: found strides"),
        ({"prob_tensor": torch.ones(M)}, r"prob_tensor: found shape \(24,\), needs three axes|prob_tensor: found shape"),
    ):
        with pytest.raises(ValueError, match=words):
            discrete_grouped_gemm_swiglu_wrapper(**arguments(**changes))
    for changes, words in (
        ({"n": 48, "c_tensor": rows(96)}, "N = 48 .*needs a multiple of 32"),
        ({"c_tensor": rows(N)}, r"d_row_tensor: found shape \(24, 256, 1\), needs \(M, 2N, 1\) = \(24, 128, 1\), as a_tensor and c_tensor have it"),
        ({"epilogue_op": "tanh"}, "epilogue_op: found 'tanh'"),
        ({"beta_tensor": None}, "beta_tensor is required"),
        ({"dprob_tensor": None}, "dprob_tensor is required"),
    ):
        with pytest.raises(ValueError, match=words):
            discrete_grouped_gemm_dswiglu_wrapper(**backward(**changes))
    for harmless in (None, "none", "identity", "relu", "srelu"):
        assert discrete_grouped_gemm_dswiglu_wrapper(**backward(epilogue_op=harmless))


def test_sf_vec_size_is_not_looked_at() -> None:
    for op, (wrapper, given) in WRAPPERS.items():
        assert wrapper(**given(sf_vec_size=32)), op


def test_block_scaled_operands_are_not_there_yet() -> None:
    for wrapper, given in WRAPPERS.values():
        with pytest.raises(NotImplementedError, match="block-scaled operands .float8_e5m2. are not implemented yet"):
            wrapper(**given(a_tensor=rows(K).to(torch.float8_e5m2), b_dtype=torch.float8_e5m2))


def test_the_class_counts_experts() -> None:
    a, offsets, alpha = rows(K), torch.zeros(E, dtype=torch.int32), torch.ones(E)
    for experts, words in ((0, "num_experts: found 0"), (4, r"padded_offsets: found shape \(3,\), needs \(4,\)")):
        with pytest.raises(ValueError, match=words):
            DiscreteGroupedGemmSwiglu(a, experts, (N, K), BF, rows(N), rows(N // 2), None, offsets, alpha, None)
        with pytest.raises(ValueError, match=words):
            prob = torch.ones(M, 1, 1)
            DiscreteGroupedGemmDswiglu(a, experts, (N, K), BF, rows(2 * N), rows(2 * N), None, None, offsets, alpha, alpha, prob, prob)
    with pytest.raises(ValueError, match=r"b_shape: found \(128, 72\)"):
        DiscreteGroupedGemmSwiglu(a, E, (N, K + 8), BF, rows(N), rows(N // 2), None, offsets, alpha, None).check_support()


def test_a_bias_has_to_come_when_compiled_for_one() -> None:
    given = arguments()
    offsets, alpha = given["padded_offsets"], given["alpha_tensor"]
    bias, c, d = torch.zeros(E, N, dtype=BF).t(), rows(N), rows(N // 2)
    op = DiscreteGroupedGemmSwiglu(given["a_tensor"], E, (N, K, 1), "bfloat16", c, d, None, offsets, alpha, None, bias)
    with pytest.raises(RuntimeError, match="not compiled"):
        op.execute(given["a_tensor"], given["b_ptrs"], c, d, None, None, offsets, alpha, bias)
    op.compile()
    with pytest.raises(ValueError, match="bias_tensor: descriptor mismatch"):
        op.execute(given["a_tensor"], given["b_ptrs"], c, d, None, None, offsets, alpha)


@pytest.mark.parametrize("glu_layout", ["interleaved32", "alternating"])
def test_the_forward_pass_and_its_results_in_order(glu_layout: str) -> None:
    given = arguments(glu_layout=glu_layout, act_func="geglu", linear_offset=0.25, geglu_alpha=1.5, glu_clamp_max=0.5, glu_clamp_min=-0.5)
    result = discrete_grouped_gemm_swiglu_wrapper(**given)
    assert list(result.keys()) == ["c_tensor", "d_tensor", "d_col_tensor", "amax_tensor", "sfd_row_tensor", "sfd_col_tensor"]
    assert [t is None for t in result] == [False, False, True, True, True, True]
    c, d = grouped_gemm_glu(
        given["a_tensor"][..., 0],
        HELD,
        given["padded_offsets"],
        given["alpha_tensor"],
        activation="geglu",
        scalars=GluScalars(0.25, 1.5, 0.5, -0.5),
        glu_layout=glu_layout,
    )
    assert torch.equal(result["c_tensor"][..., 0], c.to(BF)) and torch.equal(result["d_tensor"][..., 0], d.to(BF))


@pytest.mark.parametrize("glu_layout", ["interleaved32", "alternating"])
@pytest.mark.parametrize("activation", ["swiglu", "geglu"])
def test_the_backward_pass_and_its_results_in_order(activation: str, glu_layout: str) -> None:
    """beta counts for dswiglu and not for dgeglu."""
    given = backward(act_func=f"d{activation}", generate_dbias=True, glu_layout=glu_layout)
    given["dprob_tensor"].fill_(2.0)
    result = discrete_grouped_gemm_dswiglu_wrapper(**given)
    assert list(result.keys()) == ["d_row_tensor", "d_col_tensor", "dprob_tensor", "dbias_tensor", "amax_tensor", "sfd_row_tensor", "sfd_col_tensor"]
    assert result["dprob_tensor"] is given["dprob_tensor"]
    found = grouped_gemm_dglu(
        given["a_tensor"][..., 0],
        HELD,
        given["c_tensor"][..., 0],
        given["padded_offsets"],
        given["alpha_tensor"],
        given["beta_tensor"] if activation == "swiglu" else None,
        given["prob_tensor"].view(-1),
        activation=activation,
        glu_layout=glu_layout,
    )
    assert torch.equal(result["d_row_tensor"][..., 0], found.d.to(BF))
    torch.testing.assert_close(result["dprob_tensor"].view(-1), found.dprob + 2.0)
    assert torch.equal(result["dbias_tensor"][..., 0], found.dbias.to(BF))
