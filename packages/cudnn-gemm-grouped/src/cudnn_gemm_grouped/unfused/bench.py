"""How the grouped GEMM is measured: D in the operands' dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudnn.bench import Benchmark, Candidate, HostPath, grouped
from cudnn.bench.spec import Inputs
from cudnn_gemm_grouped.bench_common import Call, Config, compiled, factors, name_of

if TYPE_CHECKING:
    import torch


def bind(inputs: Inputs, config: Config = None, weight: str = "w") -> Call:
    """The class with D."""
    import torch

    from cudnn_gemm_grouped.unfused.api import GroupedGemm

    a, w, ends = inputs["a"], inputs[weight], inputs["ends"]
    alpha, prob = factors(a, ends)
    d = torch.empty(a.shape[0], w.shape[1], device=a.device, dtype=a.dtype)
    operation = compiled(GroupedGemm(a, None, d, ends, alpha, w, sample_prob=prob, config=config))

    def call() -> torch.Tensor:
        operation.execute(a, None, d, ends, alpha, w, prob_tensor=prob)
        return d

    return call


def _bind_pointers(inputs: Inputs) -> Call:
    import torch

    from cudnn_gemm_grouped.unfused.api import GroupedGemm

    a, w, ends = inputs["a"], inputs["w"], inputs["ends"]
    alpha, prob = factors(a, ends)
    pointers = torch.tensor([one.data_ptr() for one in w], device=a.device)
    d = torch.empty(a.shape[0], w.shape[1], device=a.device, dtype=a.dtype)
    given = {"num_experts": len(w), "b_shape": tuple(w.shape[1:]), "b_dtype": w.dtype}
    operation = compiled(GroupedGemm(a, None, d, ends, alpha, sample_prob=prob, **given))

    def call() -> torch.Tensor:
        operation.execute(a, None, d, ends, alpha, b_ptrs=pointers, prob_tensor=prob)
        return d

    return call


def _ours(config: Config) -> Candidate:
    return Candidate(name_of(config), "cudnn grouped_gemm", lambda inputs: bind(inputs, config), lambda d: {"d": d}, in_place=True)


def _reference(inputs: Inputs) -> dict[str, torch.Tensor]:
    from cudnn.reference.grouped import grouped_matmul

    return {"d": grouped_matmul(inputs["a"], inputs["w"], inputs["ends"])}


def _baseline(inputs: Inputs) -> dict[str, torch.Tensor]:
    return {"d": grouped.torch_products(inputs["a"], inputs["w"], inputs["ends"])}


def _bind_wrapper(inputs: Inputs) -> Call:
    from cudnn_gemm_grouped.unfused.api import grouped_gemm_wrapper

    a, w, ends = inputs["a"], inputs["w"], inputs["ends"]
    alpha, prob = factors(a, ends)
    return lambda: grouped_gemm_wrapper(a, ends, alpha, w, prob_tensor=prob)


BENCH = Benchmark(
    op="grouped_gemm",
    title="Grouped GEMM",
    axes=grouped.AXES,
    shapes={"uneven": grouped.UNEVEN, "gate-up": grouped.GATE_UP, "down": grouped.DOWN},
    inputs=grouped.operands,
    ours=_ours,
    peers=(
        Candidate("ours-pointers", "cudnn grouped_gemm, weights by pointers", _bind_pointers, lambda d: {"d": d}, in_place=True),
        grouped.torch_grouped("d"),
        grouped.quack("d"),
        grouped.deep_gemm("d"),
    ),
    reference=_reference,
    baseline=_baseline,
    flops=grouped.flops,
    bytes=lambda shape, dtype: grouped.traffic(shape, shape[2]),
    host_paths=(
        HostPath("GroupedGemm.execute", bind),
        HostPath("grouped_gemm_wrapper", _bind_wrapper),
        HostPath("torch._grouped_mm", grouped.torch_grouped("d").bind),
    ),
    host_shape=(4, 512, 128, 128),
)

__all__ = ["BENCH", "bind"]
