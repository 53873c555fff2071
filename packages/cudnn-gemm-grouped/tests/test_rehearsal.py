"""Calls on their whole way to the kernels, without a GPU: see `cudnn.testing.rehearsal`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("cutlass", reason="what the kernels declare needs the DSL")

from cudnn.memo import Memo  # noqa: E402
from cudnn.reference.grouped import GluScalars, grouped_gemm  # noqa: E402
from cudnn.testing.conformance import GemmConformance  # noqa: E402
from cudnn.testing.rehearsal import pretend_hopper, rehearse  # noqa: E402
from cudnn_gemm_grouped.conformance import DgluHooks, GluHooks, ProductHooks, WgradHooks  # noqa: E402
from cudnn_gemm_grouped.dglu.api import CALLS as DGLU  # noqa: E402
from cudnn_gemm_grouped.dglu.api import GroupedGemmDglu, grouped_gemm_dglu_wrapper  # noqa: E402
from cudnn_gemm_grouped.glu.api import CALLS as GLU  # noqa: E402
from cudnn_gemm_grouped.glu.api import GroupedGemmGlu, grouped_gemm_glu_wrapper  # noqa: E402
from cudnn_gemm_grouped.unfused.api import CALLS as PRODUCT  # noqa: E402
from cudnn_gemm_grouped.unfused.api import GroupedGemm, grouped_gemm_wrapper  # noqa: E402

HALF, FLOAT, BF = torch.float16, torch.float32, torch.bfloat16
GEGLU = {"activation": "geglu", "glu_layout": "concatenated", "scalars": GluScalars()}
CASES: dict[str, tuple[type, dict[str, Any]]] = {
    "product": (ProductHooks, {}),
    "product, unit axes": (ProductHooks, {"legacy": True, "dtype": HALF, "d_dtype": FLOAT, "c_dtype": HALF, "bias_dtype": FLOAT}),
    "product, pointers": (ProductHooks, {"by_pointers": True, "b_major": "n", "c_dtype": None}),
    "product, pointers, unit axes": (ProductHooks, {"by_pointers": True, "legacy": True, "c_dtype": FLOAT}),
    "glu": (GluHooks, {"bias_dtype": BF}),
    "glu, without C": (GluHooks, {"c_dtype": None}),
    "glu, halves": (GluHooks, {"n_step": 16, "legacy": True, **GEGLU}),
    "glu, pair": (GluHooks, {"n_step": 16, "glu_layout": "separate", "b_major": "n"}),
    "glu, pointers, pair": (GluHooks, {"n_step": 16, "glu_layout": "separate", "by_pointers": True, "dtype": HALF, "d_dtype": HALF, "c_dtype": None}),
    "dglu": (DgluHooks, {}),
    "dglu, atomics": (DgluHooks, {"deterministic": False, "dbias": False}),
    "dglu, halves": (DgluHooks, {"n_step": 8, "legacy": True, "activation_output": True, "round_dgrad": True, **GEGLU}),
    "dglu, pointers": (DgluHooks, {"by_pointers": True, "b_major": "n", "dtype": HALF, "c_dtype": FLOAT, "d_dtype": HALF}),
    "wgrad": (WgradHooks, {}),
    "wgrad, tokens contiguous": (WgradHooks, {"a_major": "k", "b_major": "k", "adds": True, "d_dtype": FLOAT}),
    "wgrad, A's tokens contiguous": (WgradHooks, {"a_major": "k"}),
    "wgrad, group after group": (WgradHooks, {"a_major": "k", "step_blocks": True}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_way_to_the_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base, attributes = CASES[name]
    rehearse(type("Hooks", (base, GemmConformance), attributes)(), monkeypatch)


E, M, N, K = 3, 48, 128, 64


def drawn() -> dict[str, Any]:
    """Arguments of `grouped_gemm_wrapper`, one group of them empty."""
    return {
        "a_tensor": torch.randn(M, K).to(BF),
        "padded_offsets": torch.tensor([16, 16, M], dtype=torch.int32),
        "alpha_tensor": torch.rand(E) + 0.5,
        "b_tensor": torch.randn(E, N, K).to(BF),
        "prob_tensor": torch.rand(M),
    }


def expected(given: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """C and D of `grouped_gemm_wrapper`, in bfloat16."""
    c, d = grouped_gemm(given["a_tensor"], given["b_tensor"], given["padded_offsets"], given["alpha_tensor"], given["prob_tensor"], None)
    return c.to(BF), d.to(BF)


def glu_call() -> tuple[torch.Tensor, ...]:
    return tuple(t for t in grouped_gemm_glu_wrapper(**drawn(), generate_c=True).values() if t is not None)


def pair_call() -> tuple[torch.Tensor, ...]:
    weights = tuple(torch.randn(E, N // 2, K).to(BF) for _ in range(2))
    return tuple(t for t in grouped_gemm_glu_wrapper(**{**drawn(), "b_tensor": weights}, glu_layout="separate").values() if t is not None)


def dglu_call() -> tuple[torch.Tensor, ...]:
    given = {**drawn(), "c_tensor": torch.randn(M, 2 * N).to(BF), "beta_tensor": torch.rand(E), "dprob_tensor": torch.zeros(M)}
    return tuple(t for t in grouped_gemm_dglu_wrapper(**given, deterministic=False).values() if t is not None)


@pytest.mark.parametrize(
    ("call", "cls"),
    [
        (lambda: tuple(grouped_gemm_wrapper(**drawn(), generate_c=True)), GroupedGemm),
        (glu_call, GroupedGemmGlu),
        (pair_call, GroupedGemmGlu),
        (dglu_call, GroupedGemmDglu),
    ],
    ids=["product", "glu", "pair", "dglu"],
)
def test_a_call_like_an_earlier_one_goes_straight_to_the_kernel(call: Any, cls: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """With other tensors alike, and the same numbers as through ``execute``."""
    with pretend_hopper(monkeypatch) as kernels:
        call()
        for _ in range(2):
            seed = torch.seed()
            count = sum(kernel.calls for kernel in kernels)
            with monkeypatch.context() as patch:
                patch.setattr(cls, "execute", lambda *_, **__: pytest.fail("checked again"))
                found = call()
            assert sum(kernel.calls for kernel in kernels) == count + 1
            torch.manual_seed(seed)
            with monkeypatch.context() as patch:
                patch.setattr(cls, "repeated", lambda *_: None)
                for calls in (GLU, DGLU, PRODUCT):
                    patch.setattr(calls, "_plans", Memo(4))
                wanted = call()
            assert len(found) == len(wanted) and all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_tensors_alike_under_other_names_are_other_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretend_hopper(monkeypatch):
        for _ in range(3):
            for name in ("c_tensor", "d_tensor"):
                given, target = drawn(), torch.full((M, N), torch.nan, dtype=BF)
                found = grouped_gemm_wrapper(**given, generate_c=True, **{name: target})
                assert found[name] is target
                assert all(torch.equal(found[key], wanted) for key, wanted in zip(("c_tensor", "d_tensor"), expected(given), strict=True))


def test_addresses_of_later_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of matrices are multiples of 16 bytes in every call; vectors may begin at any element."""
    with pretend_hopper(monkeypatch):
        d = torch.empty(M, N, dtype=BF)
        first = drawn()
        op = GroupedGemm(first["a_tensor"], None, d, first["padded_offsets"], first["alpha_tensor"], first["b_tensor"], sample_prob=first["prob_tensor"])
        for _ in range(3):
            given = drawn()
            for name, length in (("alpha_tensor", E), ("prob_tensor", M)):
                memory = torch.empty(length + 1)
                given[name] = memory[1:].copy_(given[name])
                assert given[name].data_ptr() % 16
            op(d_tensor=d, **given)
            assert torch.equal(d, expected(given)[1]) and torch.equal(grouped_gemm_wrapper(**given)["d_tensor"], d)
        for name, size in (("a_tensor", M * K), ("b_tensor", E * N * K)):
            for _ in range(2):
                given = drawn()
                given[name] = torch.empty(size + 1, dtype=BF)[1:].view(given[name].shape).copy_(given[name])
                for call in (lambda given=given: op.execute(d_tensor=d, **given), lambda given=given: grouped_gemm_wrapper(**given)):
                    with pytest.raises(ValueError, match=f"{name}.*16"):
                        call()
