"""What the grouped operations refuse, and in which words, from metadata alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cudnn.tensor_desc import TensorDesc
from cudnn_gemm_grouped.dglu.api import GroupedGemmDglu, grouped_gemm_dglu_wrapper
from cudnn_gemm_grouped.glu.api import GroupedGemmGlu, grouped_gemm_glu_wrapper
from cudnn_gemm_grouped.unfused.api import GroupedGemm, grouped_gemm_wrapper
from cudnn_gemm_grouped.wgrad.api import GroupedGemmWgrad, WGradInputOrder, get_grouped_gemm_wgrad_workspace_size, grouped_gemm_wgrad_wrapper

M, N, K, E = 24, 128, 64, 3
BF = torch.bfloat16


def ends(device: str = "cpu") -> torch.Tensor:
    return torch.tensor([8, 8, M], dtype=torch.int32, device=device)


def rows(columns: int, dtype: torch.dtype = BF) -> torch.Tensor:
    return torch.randn(M, columns).to(dtype)


def arguments(**changes: Any) -> dict[str, Any]:
    """Of the unfused wrapper."""
    return {
        "a_tensor": rows(K),
        "padded_offsets": ends(),
        "alpha_tensor": torch.ones(E),
        "b_tensor": torch.randn(E, N, K).to(BF),
        "prob_tensor": torch.ones(M),
        **changes,
    }


def glu_arguments(**changes: Any) -> dict[str, Any]:
    return {"sfa_tensor": None, **arguments(), **changes}


def dglu_arguments(**changes: Any) -> dict[str, Any]:
    return {
        **arguments(),
        "sfa_tensor": None,
        "c_tensor": rows(2 * N),
        "beta_tensor": torch.ones(E),
        "dprob_tensor": torch.zeros(M),
        **changes,
    }


def wgrad_arguments(**changes: Any) -> dict[str, Any]:
    return {"a_tensor": rows(K).t(), "b_tensor": rows(N), "offsets_tensor": ends(), **changes}


WRAPPERS = {
    "unfused": (grouped_gemm_wrapper, arguments),
    "glu": (grouped_gemm_glu_wrapper, glu_arguments),
    "dglu": (grouped_gemm_dglu_wrapper, dglu_arguments),
}


def pointers(dtype: torch.dtype = torch.int64, count: int = E) -> torch.Tensor:
    return torch.full((count,), 64, dtype=dtype)


BY_POINTERS = {"b_tensor": None, "n": N, "b_dtype": BF}

COMMON = [
    ({"padded_offsets": ends().long()}, "padded_offsets: found dtype int64, needs int32"),
    ({"padded_offsets": ends()[:2]}, r"padded_offsets: found shape \(2,\), needs \(E,\) = \(3,\), as b_tensor has it"),
    ({"padded_offsets": torch.zeros(2 * E, dtype=torch.int32)[::2]}, "padded_offsets: found strides"),
    ({"alpha_tensor": torch.ones(E).double()}, "alpha_tensor: found dtype float64, needs float32"),
    ({"prob_tensor": torch.ones(M, dtype=BF)}, "prob_tensor: found dtype bfloat16, needs float32"),
    ({"prob_tensor": torch.ones(M + 1)}, r"prob_tensor: found shape \(25,\), needs \(M,\) = \(24,\)"),
    ({"prob_tensor": None}, "prob_tensor is required"),
    ({"a_tensor": rows(2 * K)[:, ::2]}, "a_tensor: found strides"),
    ({"a_tensor": rows(K + 8)[:, :K]}, "a_tensor: found strides"),
    ({"a_tensor": rows(K, torch.float32)}, "a_tensor: found dtype float32, needs bfloat16 or float16"),
    ({"a_tensor": rows(K, torch.float16)}, "b_tensor: found dtype bfloat16 while a_tensor has float16, needs equal dtypes"),
    ({"a_tensor": rows(K).to(torch.float8_e4m3fn)}, "found mixed dtype families float8_e4m3fn and bfloat16"),
    ({"a_tensor": torch.randn(M)}, r"a_tensor: found shape \(24,\), needs \(M, K\)"),
    ({"b_tensor": torch.randn(E, N, K + 8).to(BF)}, r"b_tensor: found shape \(3, 128, 72\), needs \(E, N, K\) = \(3, 128, 64\)"),
    ({"b_tensor": torch.randn(N, K).to(BF)}, r"b_tensor: found shape \(128, 64\), needs three axes"),
    ({"b_tensor": None}, "Must provide either b_tensor"),
    ({"b_ptrs": pointers()}, "Provide either b_tensor"),
    ({"n": N}, "Dense mode forbids n and b_dtype"),
    ({"b_dtype": BF}, "Dense mode forbids n and b_dtype"),
    ({**BY_POINTERS, "b_ptrs": pointers(), "n": None}, "pointer mode needs n and b_dtype"),
    ({**BY_POINTERS, "b_ptrs": pointers(), "b_dtype": None}, "pointer mode needs n and b_dtype"),
    ({**BY_POINTERS, "b_ptrs": pointers(torch.int32)}, "b_ptrs must be int64"),
    ({**BY_POINTERS, "b_ptrs": pointers(count=2)}, "b_ptrs length mismatch: found 2 addresses, needs 3"),
    ({**BY_POINTERS, "b_ptrs": pointers().view(1, E)}, "b_ptrs: found shape"),
    ({**BY_POINTERS, "b_ptrs": pointers(count=2 * E)[::2]}, "b_ptrs: found stride 2, needs contiguous"),
    ({**BY_POINTERS, "b_ptrs": pointers(), "b_dtype": torch.float16}, "b_tensor: found dtype float16 while a_tensor has bfloat16"),
    ({"b_major": "m"}, "b_major: found 'm', needs 'k' or 'n'"),
    ({"acc_dtype": torch.float16}, "acc_dtype: found dtype float16, needs float32"),
    ({"m_aligned": 128}, "m_aligned: found 128, needs 256"),
    ({"cd_major": "m"}, "cd_major: found 'm', needs 'n'"),
    ({"mma_tiler_mn": (64, 256)}, "mma_tiler_mn: found .*needs a first entry of 128 or 256"),
    ({"mma_tiler_mn": (256, 48)}, "mma_tiler_mn: found .*needs a second entry"),
    ({"cluster_shape_mn": (3, 1)}, "cluster_shape_mn"),
    ({"cluster_shape_mn": (1, 1)}, "needs an even first entry for tiles of 256 rows"),
    ({"cluster_shape_mn": (4, 1)}, "needs 2 as its first entry"),
    ({"mma_tiler_mn": (128, 256), "cluster_shape_mn": (4, 1)}, "needs 1 or 2 as its first entry"),
    ({"cluster_shape_mn": (2, 16)}, "needs powers of two with a product of at most 16"),
    ({"d_dtype": torch.float64}, "d_(row_)?tensor: found dtype float64, needs bfloat16 or float16 or float32"),
    ({"backend": "sm100"}, "backend"),
    ({"config": {"tile_m": 96}}, "config: tile_m: found 96"),
    ({"config": {"tile_x": 96}}, "config: unknown field 'tile_x'"),
]


@pytest.mark.parametrize("op", WRAPPERS)
@pytest.mark.parametrize("row", COMMON, ids=[str(i) for i in range(len(COMMON))])
def test_common_rows(op: str, row: tuple[dict[str, Any], str]) -> None:
    changes, words = row
    wrapper, given = WRAPPERS[op]
    with pytest.raises(ValueError, match=words):
        wrapper(**given(**changes))


@pytest.mark.parametrize("op", WRAPPERS)
def test_cluster_shapes_beyond_four_are_taken(op: str) -> None:
    wrapper, given = WRAPPERS[op]
    assert wrapper(**given(cluster_shape_mn=(2, 8)))


def test_block_scaled_operands_are_not_there_yet() -> None:
    a, b = rows(K).to(torch.float8_e4m3fn), torch.randn(E, N, K).to(torch.float8_e4m3fn)
    for op in ("unfused", "glu", "dglu"):
        wrapper, given = WRAPPERS[op]
        with pytest.raises(NotImplementedError, match="block-scaled operands .float8_e4m3fn. are not implemented yet"):
            wrapper(**given(a_tensor=a, b_tensor=b))


@pytest.mark.parametrize(("op", "columns", "step"), [("unfused", 48, 32), ("dglu", 48, 32), ("glu", 96, 64)])
def test_n_has_to_suit_the_operation(op: str, columns: int, step: int) -> None:
    wrapper, given = WRAPPERS[op]
    changes: dict[str, Any] = {"b_tensor": torch.randn(E, columns, K).to(BF)}
    if op == "dglu":
        changes["c_tensor"] = rows(2 * columns)
    with pytest.raises(ValueError, match=f"N = {columns}.*needs a multiple of {step}"):
        wrapper(**given(**changes))


@pytest.mark.parametrize("op", WRAPPERS)
def test_contiguous_extents_are_multiples_of_16_bytes(op: str) -> None:
    """Case 21: the tensor, the extent and the multiple are named."""
    wrapper, given = WRAPPERS[op]
    with pytest.raises(ValueError, match="a_tensor: found K = 44 contiguous bfloat16 elements, so lines are not 16B aligned; needs a multiple of 8"):
        wrapper(**given(a_tensor=rows(44), b_tensor=torch.randn(E, N, 44).to(BF)))


def test_number_of_experts() -> None:
    with pytest.raises(ValueError, match="found 1025 groups, needs 1 to 1024"):
        grouped_gemm_wrapper(
            **arguments(padded_offsets=torch.full((1025,), M, dtype=torch.int32), alpha_tensor=torch.ones(1025), b_tensor=torch.zeros(1025, 32, K, dtype=BF))
        )
    with pytest.raises(ValueError, match="found 0 groups, needs 1 to 1024"):
        grouped_gemm_wrapper(
            **arguments(padded_offsets=torch.zeros(0, dtype=torch.int32), alpha_tensor=torch.ones(0), b_tensor=torch.zeros(0, 32, K, dtype=BF))
        )


def test_weights_whose_n_is_contiguous() -> None:
    b = torch.randn(E, K, N).to(BF)
    for op in ("unfused", "dglu"):
        wrapper, given = WRAPPERS[op]
        assert wrapper(**given(b_tensor=b, b_major="n"))
        with pytest.raises(ValueError, match="legacy .N, K, E. ones are k-major"):
            wrapper(**given(b_tensor=b.permute(2, 1, 0), b_major="n"))
    with pytest.raises(ValueError, match=r"b_tensor: found shape \(3, 64, 128\), needs \(E, N, K\)"):
        grouped_gemm_glu_wrapper(**glu_arguments(b_tensor=b, b_major="n"))


def test_outputs_that_the_caller_brings() -> None:
    d = torch.empty(M, N, dtype=BF)
    result = grouped_gemm_wrapper(**arguments(d_tensor=d))
    assert result["d_tensor"] is d and result["c_tensor"] is None and d.isfinite().all()
    for bad, words in (
        (torch.empty(M, N), "d_tensor: found dtype torch.float32, needs torch.bfloat16"),
        (torch.empty(M, N + 32, dtype=BF), "d_tensor: found shape"),
        (torch.empty(N, M, dtype=BF).t(), "d_tensor: found strides"),
    ):
        with pytest.raises(ValueError, match=words):
            grouped_gemm_wrapper(**arguments(d_tensor=bad))
    # Also after a call with a like tensor under another name.
    with pytest.raises(ValueError, match="c_tensor: found one with generate_c=False"):
        grouped_gemm_wrapper(**arguments(c_tensor=d))


SCALES = [
    {"sfa_tensor": torch.ones(1)},
    {"sfb_tensor": torch.ones(1)},
    {"sfb_ptrs": torch.ones(1)},
    {"norm_const_tensor": torch.ones(1)},
    {"sf_vec_size": 32},
    {"discrete_col_sfd": True},
    {"sf_fp8_dtype_override": "e5m3"},
]


@pytest.mark.parametrize("op", ["glu", "dglu"])
@pytest.mark.parametrize("change", SCALES, ids=[next(iter(change)) for change in SCALES])
def test_scale_control_belongs_to_block_scaled_operands(op: str, change: dict[str, Any]) -> None:
    wrapper, given = WRAPPERS[op]
    with pytest.raises(ValueError, match=f"BF16 forbids scale control: found {next(iter(change))}"):
        wrapper(**given(**change))


@pytest.mark.parametrize("change", [{"geglu_alpha": 1.5}, {"glu_clamp_max": 6.0}, {"glu_clamp_min": -6.0}, {"scheduler_counter_tensor": torch.ones(1)}])
def test_fixed_scalars_of_the_forward_pass(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"BF16 forbids scale control: found {next(iter(change))}"):
        grouped_gemm_glu_wrapper(**glu_arguments(act_func="geglu", **change))
    if "scheduler_counter_tensor" not in change:
        assert grouped_gemm_dglu_wrapper(**dglu_arguments(act_func="dgeglu", **change))


def test_activations() -> None:
    for name in ("situglu", "dswiglu", None):
        with pytest.raises(ValueError, match="act_func"):
            grouped_gemm_glu_wrapper(**glu_arguments(act_func=name))
    for name in ("dsituglu", "swiglu", None):
        with pytest.raises(ValueError, match="act_func"):
            grouped_gemm_dglu_wrapper(**dglu_arguments(act_func=name))
    with pytest.raises(ValueError, match="geglu_alpha: found 0.0, needs a finite number above 0"):
        grouped_gemm_dglu_wrapper(**dglu_arguments(act_func="dgeglu", geglu_alpha=0.0))
    with pytest.raises(ValueError, match="glu_clamp_min and glu_clamp_max: found 2.0 and 1.0, needs them in order"):
        grouped_gemm_dglu_wrapper(**dglu_arguments(act_func="dgeglu", glu_clamp_min=2.0, glu_clamp_max=1.0))
    with pytest.raises(ValueError, match="found inf"):
        grouped_gemm_dglu_wrapper(**dglu_arguments(act_func="dgeglu", glu_clamp_max=float("inf")))


@pytest.mark.parametrize("value", ["relu", "srelu", "tanh"])
def test_epilogue_op(value: str) -> None:
    with pytest.raises(ValueError, match="BF16 forbids scale control: found epilogue_op"):
        grouped_gemm_dglu_wrapper(**dglu_arguments(epilogue_op=value))
    for harmless in (None, "none", "identity"):
        assert grouped_gemm_dglu_wrapper(**dglu_arguments(epilogue_op=harmless))


def test_what_the_gradient_needs() -> None:
    for name in ("c_tensor", "beta_tensor", "dprob_tensor"):
        with pytest.raises(ValueError, match=f"{name} is required"):
            grouped_gemm_dglu_wrapper(**dglu_arguments(**{name: None}))
    with pytest.raises(ValueError, match="dprob_tensor: found dtype float64"):
        grouped_gemm_dglu_wrapper(**dglu_arguments(dprob_tensor=torch.zeros(M).double()))
    with pytest.raises(ValueError, match=r"c_tensor: found shape \(24, 128\), needs \(M, 2N\) = \(24, 256\)"):
        grouped_gemm_dglu_wrapper(**dglu_arguments(c_tensor=rows(N)))
    with pytest.raises(ValueError, match="deterministic: found 'yes'"):
        grouped_gemm_dglu_wrapper(**dglu_arguments(deterministic="yes"))


def test_activation_output() -> None:
    good = {"act_func": "dgeglu", "activation_tensor": torch.empty(M, N, dtype=BF)}
    result = grouped_gemm_dglu_wrapper(**dglu_arguments(**good))
    assert list(result) != [] and "activation_tensor" in result.keys() and good["activation_tensor"].isfinite().all()
    assert "activation_tensor" not in grouped_gemm_dglu_wrapper(**dglu_arguments()).keys()
    for change, words in (
        ({"act_func": "dswiglu"}, 'activation_tensor: found one with act_func="dswiglu"'),
        ({"d_dtype": torch.float32}, "activation_tensor: found dtypes"),
        ({"c_tensor": rows(2 * N, torch.float32)}, "activation_tensor: found dtypes"),
        ({"activation_tensor": torch.empty(M, N)}, "activation_tensor: found dtypes"),
    ):
        with pytest.raises(ValueError, match=words):
            grouped_gemm_dglu_wrapper(**dglu_arguments(**{**good, **change}))
    shared = rows(2 * N)
    with pytest.raises(ValueError, match="activation_tensor .* overlaps c_tensor"):
        grouped_gemm_dglu_wrapper(**dglu_arguments(act_func="dgeglu", c_tensor=shared, activation_tensor=shared.view(2 * M, N)[:M]))
    base = torch.empty(M * N + 32, dtype=BF)
    first = (-base.data_ptr() // 2 % 16 + 8) % 16
    with pytest.raises(ValueError, match="activation_tensor: address .* needs 32-byte alignment"):
        grouped_gemm_dglu_wrapper(**dglu_arguments(act_func="dgeglu", activation_tensor=base[first : first + M * N].view(M, N)))


WGRAD = [
    ({"offsets_tensor": None}, "offsets_tensor is required"),
    ({"offsets_tensor": ends().long()}, "offsets_tensor: found dtype int64, needs int32"),
    ({"a_tensor": rows(K)}, r"b_tensor: found shape \(24, 128\), needs \(K, N\)"),
    ({"a_tensor": torch.randn(K, M, 1).to(BF)}, r"a_tensor: found shape \(64, 24, 1\), needs \(m, T\)"),
    ({"b_tensor": torch.randn(M, 2 * N).to(BF)[:, ::2]}, "b_tensor: found strides"),
    ({"b_tensor": rows(N, torch.float16)}, "needs equal dtypes"),
    ({"b_tensor": rows(N - 4)}, "so lines are not 16B aligned"),
    ({"sfa_tensor": torch.ones(1)}, "BF16 forbids scale control: found sfa_tensor"),
    ({"global_scale_a": torch.ones(1)}, "BF16 forbids scale control: found global_scale_a"),
    ({"sf_vec_size": 32}, "BF16 forbids scale control: found sf_vec_size"),
    ({"acc_dtype": torch.float16}, "acc_dtype"),
    ({"wgrad_dtype": torch.float64}, "wgrad_tensor: found dtype float64"),
    ({"mma_tiler_mn": (128, 32)}, "mma_tiler_mn"),
    ({"cluster_shape_mn": (3, 1)}, "cluster_shape_mn"),
    ({"input_order": "other"}, "input_order: found 'other'"),
    ({"output_mode": "sparse"}, "output_mode: found 'sparse'"),
    ({"wgrad_ptrs": pointers()}, 'wgrad_ptrs: found some with output_mode="dense"'),
    ({"output_mode": "discrete", "wgrad_ptrs": pointers(), "wgrad_tensor": torch.empty(E, K, N, dtype=BF)}, "wgrad_tensor and wgrad_ptrs: found both"),
    ({"output_mode": "discrete", "wgrad_ptrs": pointers(torch.int32)}, "wgrad_ptrs must be int64"),
    ({"output_mode": "discrete", "wgrad_ptrs": pointers(count=2)}, "wgrad_ptrs length mismatch"),
    ({"wgrad_tensor": torch.empty(E, K, N + 8, dtype=BF)}, r"wgrad_tensor: found shape \(3, 64, 136\), needs \(E, M, N\) = \(3, 64, 128\)"),
    ({"wgrad_tensor": torch.empty(K, N, E, dtype=BF).permute(2, 0, 1)}, "wgrad_tensor: found strides"),
    ({"wgrad_tensor": torch.empty(E, K, N, dtype=BF), "wgrad_dtype": torch.float32}, "wgrad_tensor: found dtype torch.bfloat16, needs wgrad_dtype"),
    ({"descriptor_workspace": torch.empty(100, dtype=torch.uint8)}, "descriptor_workspace: found 100 bytes, needs 1536"),
    ({"descriptor_workspace": torch.empty(2000)}, "descriptor_workspace: needs a contiguous uint8 tensor"),
]


@pytest.mark.parametrize("row", WGRAD, ids=[str(i) for i in range(len(WGRAD))])
def test_rows_of_the_weight_gradient(row: tuple[dict[str, Any], str]) -> None:
    """Case 24 among them: an output with the expert axis innermost."""
    changes, words = row
    with pytest.raises(ValueError, match=words):
        grouped_gemm_wgrad_wrapper(**wgrad_arguments(**changes))


def test_either_cluster_rule_of_the_weight_gradient() -> None:
    for cluster in ((8, 2), (16, 1)):
        assert grouped_gemm_wgrad_wrapper(**wgrad_arguments(cluster_shape_mn=cluster))
    for order in ("tensor2d", WGradInputOrder.TensorRagged, WGradInputOrder.Tensor2D):
        assert grouped_gemm_wgrad_wrapper(**wgrad_arguments(input_order=order))


def test_workspace_size_of_the_weight_gradient() -> None:
    assert get_grouped_gemm_wgrad_workspace_size(8) == 4096
    assert get_grouped_gemm_wgrad_workspace_size(8, output_mode="discrete", input_order="tensor_ragged") == 5120
    for bad in ({"num_experts": 0}, {"num_experts": 1, "output_mode": "x"}, {"num_experts": 1, "input_order": "x"}):
        with pytest.raises(ValueError):
            get_grouped_gemm_wgrad_workspace_size(**bad)  # type: ignore[arg-type]


def test_operands_with_contiguous_tokens_are_copied() -> None:
    """Lines of the copies are multiples of 16 bytes, and what is left of the scratch memory is handed on."""
    tokens, m = 40, 20
    given = (torch.randn(m, tokens).to(BF), torch.randn(N, tokens).to(BF).t(), None, None, torch.tensor([7, 40], dtype=torch.int32))
    op = GroupedGemmWgrad(*given, torch.empty(2, m, N, dtype=BF))
    assert op.check_support()
    extents = op._layout.extents(op._samples)
    wanted = op._scratch_tensors(None, extents)  # type: ignore[arg-type]
    assert [one.shape for one in wanted] == [(tokens, 24), (tokens, N)]
    scratch = tuple(torch.full(one.shape, float("nan"), dtype=BF) for one in wanted)
    (a, b, _), _ = op._arrange((given[0], given[1], given[4], torch.empty(2, m, N)), scratch, extents)
    assert torch.equal(a, given[0]) and a.stride() == (1, 24)
    assert torch.equal(b, given[1]) and b.stride() == (N, 1)


def test_exactly_one_way_to_name_the_weight_gradients() -> None:
    given = (rows(K).t(), rows(N), None, None, ends())
    with pytest.raises(ValueError, match="Must provide either sample_wgrad"):
        GroupedGemmWgrad(*given)
    with pytest.raises(ValueError, match="Provide either sample_wgrad"):
        GroupedGemmWgrad(*given, torch.empty(E, K, N, dtype=BF), num_experts=E)
    with pytest.raises(ValueError, match="wgrad_shape: found"):
        GroupedGemmWgrad(*given, num_experts=E, wgrad_shape=(N, K), wgrad_dtype=BF).check_support()
    with pytest.raises(ValueError, match="sample_wgrad_expert: found"):
        GroupedGemmWgrad(*given, num_experts=E, wgrad_shape=(K, N), wgrad_dtype=BF, sample_wgrad_expert=torch.empty(K, N))
    assert GroupedGemmWgrad(*given, num_experts=E, wgrad_shape=(K, N), wgrad_dtype=BF, sample_wgrad_expert=torch.empty(K, N, dtype=BF)).check_support()


def test_weight_gradients_by_pointers_from_a_tensor() -> None:
    op = GroupedGemmWgrad(rows(K).t(), rows(N), None, None, ends(), num_experts=E, wgrad_shape=(K, N), wgrad_dtype=BF)
    given = wgrad_arguments()
    whole = torch.full((E, K, N), float("nan"), dtype=BF)
    op(**given, wgrad_tensor=whole)
    assert torch.equal(whole, grouped_gemm_wgrad_wrapper(**given)["wgrad_tensor"])
    with pytest.raises(ValueError, match="Discrete execution requires wgrad_ptrs"):
        op.execute(**given)
    with pytest.raises(ValueError, match="wgrad_tensor: found shape"):
        op.execute(**given, wgrad_tensor=whole.float())


def samples(op: type, **changes: Any) -> dict[str, Any]:
    """Constructor arguments."""
    given = dglu_arguments() if op is GroupedGemmDglu else arguments()
    given.pop("sfa_tensor", None)
    found = {f"sample_{name.removesuffix('_tensor')}": t for name, t in given.items()}
    if op is GroupedGemmDglu:
        found |= {"sample_d_row": rows(2 * N), "sample_d_col": None, "sample_sfa": None}
    else:
        found |= {"sample_c": None, "sample_d": rows(N if op is GroupedGemm else N // 2)}
    if op is GroupedGemmGlu:
        found["sample_sfa"] = None
    return {**found, **changes}


@pytest.mark.parametrize("op", [GroupedGemm, GroupedGemmGlu, GroupedGemmDglu])
def test_classes_need_weights_in_one_way(op: type) -> None:
    for changes, words in (
        ({"sample_b": None}, "Must provide either sample_b"),
        ({"sample_b": None, "num_experts": E, "b_shape": (N, K)}, "Must provide either sample_b"),
        ({"b_shape": (N, K)}, "Provide either sample_b or b_shape"),
        ({"num_experts": E}, "Dense mode forbids num_experts"),
        ({"sample_b": None, "num_experts": 0, "b_shape": (N, K), "b_dtype": BF}, "num_experts: found 0, needs 1 to 1024"),
    ):
        with pytest.raises(ValueError, match=words):
            op(**samples(op, **changes))
    by_pointers = {"sample_b": None, "num_experts": E, "b_dtype": BF}
    assert op(**samples(op, **by_pointers, b_shape=(N, K))).check_support()
    assert op(**samples(op, **by_pointers, b_shape=(N, K, 1))).check_support()
    for shape in ((N, K + 8), (N, K, 2), (N,)):
        with pytest.raises(ValueError, match="b_shape: found"):
            op(**samples(op, **by_pointers, b_shape=shape)).check_support()


@pytest.mark.parametrize("op", [GroupedGemm, GroupedGemmGlu])
def test_c_goes_with_generate_c(op: type) -> None:
    with pytest.raises(ValueError, match="sample_c: found None with generate_c=True"):
        op(**samples(op, generate_c=True))
    with pytest.raises(ValueError, match="sample_c: found one with generate_c=False"):
        op(**samples(op, sample_c=rows(N)))


def test_a_call_has_to_be_like_the_samples() -> None:
    op = GroupedGemm(**samples(GroupedGemm))
    op.compile()
    given = {**arguments(), "d_tensor": torch.empty(M, N, dtype=BF)}
    op.execute(**given)
    legacy = torch.randn(M, K, 1).to(BF)
    for changes, words in (
        ({"a_tensor": rows(K, torch.float16)}, "a_tensor: found dtype float16, needs bfloat16, which the object was compiled for"),
        ({"a_tensor": legacy}, r"a_tensor: found shape \(24, 64, 1\), needs two axes"),
        ({"b_tensor": torch.randn(E, K, N).to(BF).transpose(1, 2)}, "b_tensor: layout mismatch|b_tensor: found strides"),
        ({"b_tensor": None}, "Dense execution requires b_tensor"),
        ({"b_ptrs": pointers()}, "Dense execution requires b_tensor"),
        ({"bias_tensor": torch.zeros(E, N).t()}, "bias_tensor: descriptor mismatch"),
        ({"c_tensor": torch.empty(M, N, dtype=BF)}, "c_tensor: descriptor mismatch"),
        ({"prob_tensor": None}, "prob_tensor"),
        ({"prob_tensor": torch.ones(M - 1)}, "prob_tensor: found shape"),
    ):
        with pytest.raises(ValueError, match=words):
            op.execute(**{**given, **changes})
    by_pointers = GroupedGemm(**samples(GroupedGemm, sample_b=None, num_experts=E, b_shape=(N, K), b_dtype=BF))
    by_pointers.compile()
    with pytest.raises(ValueError, match="Discrete execution requires b_ptrs"):
        by_pointers.execute(**given)


def test_other_extents_in_one_object() -> None:
    """Case 39: M, N, K, E and the groups are run-time values."""
    op = GroupedGemm(**samples(GroupedGemm))
    op.compile()
    for m, n, k, e in ((1, 32, 8, 1), (100, 96, 40, 7), (17, 64, 24, 2)):
        a, b = torch.randn(m, k).to(BF), torch.randn(e, n, k).to(BF)
        cuts = torch.randint(0, m + 1, (e - 1,)).sort().values
        offsets = torch.cat((cuts, torch.tensor([m]))).int()
        d = torch.full((m, n), float("nan"), dtype=BF)
        op.execute(a, None, d, offsets, torch.ones(e), b, prob_tensor=torch.ones(m))
        starts = [0, *offsets.tolist()]
        wanted = torch.cat([a[s:t].float() @ b[i].float().t() for i, (s, t) in enumerate(zip(starts, starts[1:], strict=False))])
        torch.testing.assert_close(d.float(), wanted, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("op", ["unfused", "glu", "dglu"])
def test_tails_are_neither_read_nor_written(op: str) -> None:
    """Cases 8 and 9: rows from the last end on hold NaN before, and the same bits afterwards."""
    wrapper, given = WRAPPERS[op]
    clean, dirty = given(padded_offsets=torch.tensor([5, 5, 11], dtype=torch.int32)), {}
    for name, t in clean.items():
        dirty[name] = t
        if isinstance(t, torch.Tensor) and t.shape[:1] == (M,) and t.is_floating_point():
            clean[name] = t
            dirty[name] = t.clone()
            dirty[name][11:] = float("nan")
    expected, result = wrapper(**clean), wrapper(**dirty)
    for name, t in result.items():
        if t is not None and t.shape[:1] == (M,):
            assert torch.equal(t[:11], expected[name][:11]) and t[:11].isfinite().all(), name
    if op == "dglu":
        assert dirty["dprob_tensor"][11:].isnan().all()


def test_values_of_offsets_on_the_cpu() -> None:
    """Cases 12 and 13."""
    for bad, words in (
        ([8, 4, M], "found 4 as the end of group 1"),
        ([8, 8, M + 1], "found 25 as the end of group 2"),
        ([-8, 8, M], "found -8 as the end of group 0"),
    ):
        with pytest.raises(ValueError, match=words):
            grouped_gemm_wrapper(**arguments(padded_offsets=torch.tensor(bad, dtype=torch.int32)))
        with pytest.raises(ValueError, match=words):
            grouped_gemm_wgrad_wrapper(**wgrad_arguments(offsets_tensor=torch.tensor(bad, dtype=torch.int32)))


def test_addresses_on_the_cpu() -> None:
    with pytest.raises(ValueError, match="b_ptrs: found a null pointer for group 1"):
        grouped_gemm_wrapper(**arguments(**BY_POINTERS, b_ptrs=torch.tensor([64, 0, 64])))
    with pytest.raises(ValueError, match="b_ptrs: found 0x42, 2 bytes past a multiple of 16 for group 2"):
        grouped_gemm_wrapper(**arguments(**BY_POINTERS, b_ptrs=torch.tensor([64, 64, 66])))


def test_accumulating_leaves_groups_of_no_tokens_alone() -> None:
    """Case 4: bit for bit with accumulation, zeros without."""
    for adds in (False, True):
        w = torch.randn(E, K, N).to(BF)
        w[1, 0] = -0.0
        before = w.clone()
        grouped_gemm_wgrad_wrapper(**wgrad_arguments(wgrad_tensor=w, accumulate_on_output=adds))
        wanted = before[1] if adds else torch.zeros_like(before[1])
        assert torch.equal(w[1].view(torch.int16), wanted.view(torch.int16))
        assert not torch.equal(w[0], before[0])


def test_no_tokens_at_all() -> None:
    """Case 5."""
    given = {"a_tensor": torch.empty(0, K, dtype=BF).t(), "b_tensor": torch.empty(0, N, dtype=BF), "offsets_tensor": torch.zeros(E, dtype=torch.int32)}
    found = grouped_gemm_wgrad_wrapper(**given)["wgrad_tensor"]
    assert found.shape == (E, K, N) and not found.any()
    empty = {name: (t[:0] if isinstance(t, torch.Tensor) and t.shape[:1] == (M,) else t) for name, t in dglu_arguments().items()}
    result = grouped_gemm_dglu_wrapper(**{**empty, "padded_offsets": torch.zeros(E, dtype=torch.int32)}, generate_dbias=True)
    assert result["d_row_tensor"].shape == (0, 2 * N) and not result["dbias_tensor"].any()


def test_more_than_2_to_31_elements_without_storage() -> None:
    """Cases 16 and 18: K times M beyond 2^31, and strides of unit axes beyond it."""
    m, k, n, e = 1 << 19, 1 << 13, 64, 8

    def desc(dtype: str, shape: tuple[int, ...], stride: tuple[int, ...]) -> TensorDesc:
        return TensorDesc(dtype, shape, stride, TensorDesc._compute_stride_order(shape, stride), "cpu")

    op = GroupedGemm(
        desc("bfloat16", (m, k, 1), (k, 1, m * k)),
        None,
        desc("bfloat16", (m, n, 1), (n, 1, 1 << 40)),
        desc("int32", (e,), (1,)),
        desc("float32", (e,), (1,)),
        desc("bfloat16", (n, k, e), (k, 1, n * k)),
        sample_prob=desc("float32", (m, 1, 1), (1, 1, 1)),
    )
    assert op.check_support()


def test_deterministic_follows_torch() -> None:
    given = samples(GroupedGemmDglu)

    def partials(op: GroupedGemmDglu) -> bool:
        op.check_support()
        return op._bound.options.partials

    assert not partials(GroupedGemmDglu(**given)) and partials(GroupedGemmDglu(**given, _deterministic=True))
    torch.use_deterministic_algorithms(True)
    try:
        assert partials(GroupedGemmDglu(**given)) and not partials(GroupedGemmDglu(**given, _deterministic=False))
    finally:
        torch.use_deterministic_algorithms(False)


def test_flags_of_the_wrappers() -> None:
    assert grouped_gemm_wrapper.supports_bf16_canonical_layouts is True
    for name in ("supports_canonical_layouts", "supports_bf16_canonical_layouts", "supports_external_scheduler_counter"):
        assert getattr(grouped_gemm_glu_wrapper, name) is True
    for wrapper in (grouped_gemm_dglu_wrapper, grouped_gemm_wgrad_wrapper):
        assert wrapper.supports_canonical_layouts is True and wrapper.supports_bf16_canonical_layouts is True


def test_return_orders() -> None:
    assert list(grouped_gemm_wrapper(**arguments()).keys()) == ["d_tensor", "c_tensor"]
    scales = ["amax_tensor", "sfd_row_tensor", "sfd_col_tensor"]
    assert list(grouped_gemm_glu_wrapper(**glu_arguments()).keys()) == ["c_tensor", "d_tensor", "d_col_tensor", *scales]
    result = grouped_gemm_dglu_wrapper(**dglu_arguments())
    assert list(result.keys()) == ["d_row_tensor", "d_col_tensor", "dprob_tensor", "dbias_tensor", *scales]
    assert list(grouped_gemm_wgrad_wrapper(**wgrad_arguments()).keys()) == ["wgrad_tensor"]
    first, *_ = result
    assert first is result["d_row_tensor"] is result[0]


def test_glu_layout_has_to_suit_the_weights() -> None:
    with pytest.raises(ValueError, match='b_tensor: found 2 tensors with glu_layout="interleaved32"'):
        grouped_gemm_glu_wrapper(**glu_arguments(b_tensor=(torch.randn(E, 64, K).to(BF),) * 2))
    with pytest.raises(ValueError, match='b_tensor: found one Tensor with glu_layout="separate"'):
        grouped_gemm_glu_wrapper(**glu_arguments(glu_layout="separate"))
    with pytest.raises(ValueError, match="glu_layout: found 'halves'"):
        grouped_gemm_glu_wrapper(**glu_arguments(glu_layout="halves"))
    odd = torch.randn(E, 2 * 36, K).to(BF)
    with pytest.raises(ValueError, match="found N/2 = 36 contiguous bfloat16 elements"):
        grouped_gemm_glu_wrapper(**glu_arguments(b_tensor=odd, glu_layout="concatenated"))
