"""The discrete kernels on a Hopper GPU, against the reference and torch's own matmul."""

from __future__ import annotations

import pytest
import torch

from cudnn.reference.grouped import GluScalars
from cudnn.testing.ahead import build_ahead
from cudnn.testing.conformance import GemmConformanceCuda, same_bits
from cudnn_gemm_discrete.conformance import DswigluHooks, SwigluHooks
from cudnn_gemm_discrete.swiglu.api import discrete_grouped_gemm_swiglu_wrapper

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a CUDA device of compute capability 9.0")]


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    """Build the default kernels of the classes below in parallel first."""
    specs = []
    for hooks in (cls() for cls in CLASSES):
        op = hooks.build(hooks.inputs(64, 2 * hooks.n_step, 64, 2), hooks.outputs(64, 2 * hooks.n_step, 64, 2))
        op.check_support()
        problem, options = op._bound.kernel_problem, op._bound.options
        specs += [op._spec(problem, options, config) for config in op._configs(problem, options)]
    build_ahead(specs)


class TestSwiglu(SwigluHooks, GemmConformanceCuda):
    bias_dtype = torch.bfloat16


class TestGeglu(SwigluHooks, GemmConformanceCuda):
    """Other scalars than the published ones, at run time."""

    activation, prob = "geglu", False
    scalars = GluScalars(0.5, 1.25, 1.5, -0.75)
    glu_layout, n_step = "separate", 16
    dtype, c_dtype, d_dtype = torch.float16, torch.float32, torch.float16


class TestDswiglu(DswigluHooks, GemmConformanceCuda):
    b_major = "n"


class TestDgeglu(DswigluHooks, GemmConformanceCuda):
    activation, dbias = "geglu", False


CLASSES = [TestSwiglu, TestGeglu, TestDswiglu, TestDgeglu]


def test_scalars_are_run_time_values() -> None:
    """One kernel for every offset, alpha and clamp."""
    from cudnn.cache import stats

    m, n, k, e = 300, 128, 64, 4
    a, weights = torch.randn(m, k, 1, device="cuda").bfloat16(), torch.randn(e, n, k, device="cuda").bfloat16()
    pointers = torch.tensor([w.data_ptr() for w in weights], device="cuda")
    offsets, alpha = torch.tensor([100, 100, 250, m], dtype=torch.int32, device="cuda"), torch.ones(e, device="cuda")

    def call(**scalars: float) -> torch.Tensor:
        return discrete_grouped_gemm_swiglu_wrapper(a, pointers, None, None, offsets, alpha, n, torch.bfloat16, act_func="geglu", **scalars)["d_tensor"]

    first = call()
    before = stats.snapshot()
    others = [call(linear_offset=0.0), call(geglu_alpha=1.0), call(glu_clamp_max=0.5), call(glu_clamp_min=0.0)]
    after = stats.snapshot()
    assert (before["builds"], before["disk_hits"]) == (after["builds"], after["disk_hits"])
    assert all(not same_bits(one, first) for one in others) and same_bits(call(), first)
