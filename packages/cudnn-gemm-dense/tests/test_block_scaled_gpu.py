"""Block-scaled operands and quantised outputs of the dense operations on a Hopper GPU, against the dequantised operands and torch's own matmul."""

from __future__ import annotations

import itertools

import pytest
import torch

from cudnn.block_scale import FORMATS, FP4, format_of
from cudnn.datatypes import dtype_name
from cudnn.fp4 import encode_e2m1, pack_fp4
from cudnn.reference import quantize_blocks
from cudnn.testing.conformance import GemmConformanceCuda, same_bits
from cudnn_gemm_dense.amax.api import gemm_amax_wrapper
from cudnn_gemm_dense.amax.conformance import AmaxHooks
from cudnn_gemm_dense.conformance_scaled import QuantizedHooks, ScaledHooks, ScaledSwigluHooks, entries, exact_scaled
from cudnn_gemm_dense.dsrelu.api import gemm_dsrelu_wrapper
from cudnn_gemm_dense.dsrelu.conformance import DsreluHooks
from cudnn_gemm_dense.gemm.api import gemm_wrapper
from cudnn_gemm_dense.gemm.conformance import GemmHooks
from cudnn_gemm_dense.srelu.api import gemm_srelu_wrapper
from cudnn_gemm_dense.srelu.conformance import SreluHooks

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a CUDA device of compute capability 9.0")]

HOOKS = {"gemm": (GemmHooks,), "amax": (AmaxHooks,), "srelu": (SreluHooks,), "dsrelu": (DsreluHooks,), "swiglu": ()}


IN_FRONT = {"tile_m": 64, "tile_n": 64}


class Scaled(ScaledHooks):
    device = "cuda"
    n_step, k_step = 16, 32
    # torch makes no parameters of packed and 8-bit numbers as these tests compare.
    test_parameters_that_require_grad = None
    test_graph_capture_and_replay_with_other_values = None


class TestGemmWeights(Scaled, GemmHooks, GemmConformanceCuda):
    device = "cuda"
    format = "nvfp4"
    mixed = True


class TestAmax(Scaled, AmaxHooks, GemmConformanceCuda):
    device = "cuda"
    format = "mxfp8_e5m2"
    b_major = "n"


class TestSrelu(Scaled, QuantizedHooks, SreluHooks, GemmConformanceCuda):
    device = "cuda"
    norm = 3.0
    unaligned = ("prob_tensor", "sfd_tensor", "norm_const_tensor")


class TestDsrelu(Scaled, QuantizedHooks, DsreluHooks, GemmConformanceCuda):
    device = "cuda"
    d_dtype = torch.float8_e5m2
    config = {"tile_m": 128, "tile_n": 128}
    unaligned = ("prob_tensor", "dprob_tensor", "sfd_tensor", "norm_const_tensor")

    def scratch_bytes(self, m: int, n: int, k: int, batches: int) -> int:
        return super().scratch_bytes(m, n, k, batches) + -(-4 * -(-n // 128) * m * batches // 128) * 128


class TestSwiglu(Scaled, ScaledSwigluHooks, GemmConformanceCuda):
    device = "cuda"
    format = "mxfp4"
    n_step = 64


def case(op: str, quantized: bool = False, **attributes):
    scaled = ScaledSwigluHooks if op == "swiglu" else ScaledHooks
    hooks = type(op, (scaled, *((QuantizedHooks,) if quantized else ()), *HOOKS[op], GemmConformanceCuda), {"device": "cuda"})()
    for name, value in attributes.items():
        setattr(hooks, name, value)
    return hooks


@pytest.mark.parametrize("mixed", [False, True], ids=["both", "weights"])
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("op", HOOKS)
def test_formats_majors_and_ragged_sizes(op, kind, mixed):
    """Only the order of sums and the rounding of outputs apart from the dequantised operands; NaN wherever a scale factor belongs to no row or block; every element written, nothing around it."""
    fp4 = FORMATS[kind].element == FP4
    for a_major, b_major in ("kk",) if fp4 else itertools.product("km", "kn"):
        for out_major in ("n",) if op == "swiglu" and fp4 else ("n", "m"):
            columns = "m" in (a_major, out_major)
            for m, n, k, batches in ((144, 192, 96, 2), (16, 64, 1184, 1)) if columns else ((1, 64, 32, 1), (131, 192, 160, 2), (77, 320, 2080, 1)):
                # Weights are converted inside the kernel or, in a configuration that cannot do that, in front of it.
                config = None if batches == 1 else IN_FRONT
                hooks = case(op, format=kind, mixed=mixed, a_major=a_major, b_major=b_major, out_major=out_major, logical=out_major == "n", config=config)
                inputs, poisoned = hooks.inputs(m, n, k, batches), hooks.poisoned(m, n, k, batches)
                outputs = {name: p.tensor for name, p in poisoned.items()}
                hooks.build(inputs, outputs)(**inputs, **outputs)
                for name, p in poisoned.items():
                    p.check(name)
                hooks.check(inputs, outputs)


@pytest.mark.parametrize("d_dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("op", ["srelu", "dsrelu"])
def test_quantised_outputs(op, d_dtype):
    """Within one step of value or scale; blocks that end inside of the matrix, and factors of rows and blocks that there are not, as they were."""
    for kind, out_major, norm in (("mxfp8", "n", 1.0), ("mxfp8_e5m2", "m", 2.0**-20), ("mxfp8", "n", 1000.0)):
        for mixed, extents in ((False, (144, 176, 64, 2)), (True, (32, 48, 96, 3)), (False, (1008, 1040, 256, 1))):
            hooks = case(op, quantized=True, format=kind, mixed=mixed, out_major=out_major, d_dtype=d_dtype, norm=norm)
            inputs, poisoned = hooks.inputs(*extents), hooks.poisoned(*extents)
            outputs = {name: p.tensor for name, p in poisoned.items()}
            hooks.build(inputs, outputs)(**inputs, **outputs)
            for name, p in poisoned.items():
                p.check(name)
            hooks.check(inputs, outputs)


@pytest.mark.parametrize("d_dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_quantised_outputs_bit_for_bit(d_dtype):
    """Sums that are exact in any order give the bits of the quantiser on what they give."""
    for norm, (m, n) in itertools.product((1.0, 3.0, 2.0**-30), ((144, 176), (400, 1040))):
        (a, sfa), (b, sfb) = exact_scaled(m, 64, 2, "cuda"), exact_scaled(n, 64, 2, "cuda")
        s = torch.einsum("mkl,nkl->mnl", a.double(), b.double()).float()
        prob, c = torch.full((m, 1, 2), 0.5, device="cuda"), torch.full((2, m, n), 2.0, device="cuda").permute(1, 2, 0)
        norm_const = torch.tensor([norm], device="cuda")
        common = {"sfa_tensor": sfa, "sfb_tensor": sfb, "prob_tensor": prob, "norm_const_tensor": norm_const, "sf_vec_size": 32, "d_dtype": d_dtype}
        for result, y in (
            (gemm_srelu_wrapper(a, b, **common), s.relu().square() * 0.5),
            (gemm_dsrelu_wrapper(a, b, c, **common), 2 * s.relu() * (2.0 * 0.5)),
        ):
            data, scales = quantize_blocks(y.permute(2, 0, 1), format_of(dtype_name(d_dtype), "float8_e8m0fnu", 32), norm_const)
            assert same_bits(result["d_tensor"].permute(2, 0, 1).contiguous(), data.contiguous())
            found = result["sfd_tensor"].view(torch.uint8).as_strided((result["sfd_tensor"].numel(),), (1,))[entries(m, n, 2, 32).cuda()]
            assert torch.equal(found, scales.view(torch.uint8).permute(1, 2, 0))


def test_packed_outputs_bit_for_bit():
    """4-bit C of sums that are exact, ragged, and in a packed buffer of a class's caller."""
    for m, n in ((1, 32), (131, 96), (400, 1056)):
        hooks = case("amax", format="mxfp4")
        inputs = hooks.inputs(m, n, 64, 2)
        for name in ("sfa_tensor", "sfb_tensor"):
            inputs[name].view(torch.uint8).masked_fill_(inputs[name].view(torch.uint8) != 255, 126)
        exact = hooks.product(inputs).float()
        found = gemm_amax_wrapper(**inputs, c_dtype=torch.float4_e2m1fn_x2)
        assert torch.equal(found["c_tensor"].view(torch.uint8), pack_fp4(encode_e2m1(exact), 1))
        assert found["amax_tensor"].item() == exact.abs().max().item()


def test_repeats_are_bit_identical_on_every_stream():
    """Case 37: many steps along K, on the default and on side streams, beside each other."""
    hooks = case("gemm", format="mxfp8")
    inputs = hooks.inputs(256, 512, 16384, 1)
    first = hooks.wrapper(inputs)["d_tensor"]
    hooks.check(inputs, {"d_tensor": first})
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    results = []
    for i in range(150):
        with torch.cuda.stream(streams[i % 3]):
            results.append(hooks.wrapper(inputs)["d_tensor"])
    torch.cuda.synchronize()
    assert all(same_bits(t, first) for t in results)


def test_dtypes_in_any_order():
    """Case 40: problems of equal shapes and other dtypes, in both orders."""
    problems = []
    for kind, mixed, d_dtype in itertools.product(("mxfp8", "mxfp8_e5m2", "mxfp4", "nvfp4"), (False, True), (torch.bfloat16, torch.float32)):
        hooks = case("gemm", format=kind, mixed=mixed, d_dtype=d_dtype)
        problems.append((hooks, hooks.inputs(48, 64, 64, 1)))
    for hooks, inputs in (*problems, *reversed(problems)):
        hooks.check(inputs, hooks.wrapper(inputs))


@pytest.mark.parametrize("kind", FORMATS)
def test_amax_of_a_negative_number(kind):
    """Case 59: the largest magnitude in float32, before C is rounded, of whichever sign."""
    hooks = case("amax", format=kind)
    inputs = hooks.inputs(48, 64, 64, 1)
    for _ in range(2):
        exact = hooks.product(inputs)
        for dtype in (torch.float32, torch.bfloat16):
            found = gemm_amax_wrapper(**inputs, c_dtype=dtype, sf_vec_size=FORMATS[kind].vec)
            assert found["amax_tensor"].item() == pytest.approx(exact.abs().max().item(), rel=1e-5)
        inputs["a_tensor"].view(torch.uint8).bitwise_xor_(0x88 if FORMATS[kind].element == FP4 else 0x80)


def is_what_a_kernel_in_front_gives(hooks, inside, *extents):
    """In the configuration ``inside`` the bits are those of the hooks' own, every time; every element is written, nothing around them."""
    inputs = hooks.inputs(*extents)
    expected = hooks.wrapper(inputs)["d_tensor"]
    hooks.config = inside
    poisoned = hooks.poisoned(*extents)["d_tensor"]
    operation = hooks.build(inputs, {"d_tensor": poisoned.tensor})
    operation(**inputs, d_tensor=poisoned.tensor)
    poisoned.check("d_tensor")
    hooks.check(inputs, {"d_tensor": poisoned.tensor})
    assert same_bits(poisoned.tensor, expected), extents
    for _ in range(20):
        assert same_bits(hooks.wrapper(inputs)["d_tensor"], expected), extents


CONVERTING = [{"tile_m": 64, "tile_n": 128, "split_k": split} for split in (1, 2, 4)]


@pytest.mark.parametrize("config", CONVERTING, ids=str)
@pytest.mark.parametrize("kind", FORMATS)
def test_weights_converted_in_the_kernel(kind, config):
    """The same bits as with a kernel in front, for tiles that share a sum and tiles that do not, and tails in every direction; repeats are the same bits."""
    for m, n, k, batches, a_major in (
        (1, 64, 32, 1, "k"),
        (16, 320, 160, 2, "m"),
        (64, 1040, 4128, 1, "k"),
        (131, 208, 1056, 2, "k"),
        (16, 8192, 8192, 1, "k"),
    ):
        hooks = case("gemm", format=kind, mixed=True, a_major=a_major, config=config)
        is_what_a_kernel_in_front_gives(hooks, {**config, "convert_b": True}, m, n, k, batches)


SWAPPED = [
    {"tile_m": 128, "tile_n": 256},
    {"tile_m": 128, "tile_n": 256, "cluster_m": 2, "raster": "n"},
    {"tile_m": 128, "tile_n": 192, "cluster_m": 4},
    {"tile_m": 128, "tile_n": 64, "split_k": 2},
    {"tile_m": 128, "tile_n": 32, "split_k": 2, "k_groups": 2},
    {"tile_m": 128, "tile_n": 64, "split_k": 4, "k_groups": 2},
    {"tile_m": 128, "tile_n": 32, "cluster_m": 2, "k_groups": 2},
]


@pytest.mark.parametrize("config", SWAPPED, ids=str)
@pytest.mark.parametrize("kind", FORMATS)
def test_weights_that_take_the_place_of_a(kind, config):
    """Dᵀ = B Aᵀ, with the weights converted into registers: the same bits as with a kernel in front, for tails in every direction and more tiles than multiprocessors; repeats are the same bits."""
    split = config.get("split_k", 1)
    for m, n, k, batches, a_major, out_major, d_dtype in (
        (40, 64, 32, 1, "k", "n", torch.bfloat16),
        (264, 320, 160, 2, "m", "n", torch.float32),
        (256, 128, 64, 3, "k", "n", torch.bfloat16),
        (520, 1040, 4128, 1, "k", "n", torch.bfloat16),
        (136, 208, 1056, 2, "k", "m", torch.bfloat16),
        (299, 464, 2080, 1, "k", "n", torch.float16),
        (4096, 4112, 1184, 1, "k", "n", torch.bfloat16),
    ):
        front = {"tile_m": 64, "tile_n": 128, "split_k": split}
        hooks = case("gemm", format=kind, mixed=True, a_major=a_major, out_major=out_major, d_dtype=d_dtype, config=front)
        is_what_a_kernel_in_front_gives(hooks, {**config, "swap": True}, m, n, k, batches)


@pytest.mark.parametrize("kind", FORMATS)
def test_few_rows_and_an_addend_beside_weights_in_the_place_of_a(kind):
    """M below what a tile has, float16, an addend, and both operands quantised."""
    config = {"tile_m": 128, "tile_n": 32, "swap": True}
    for m, n, k, batches in ((1, 64, 32, 1), (16, 320, 160, 2), (7, 1040, 4128, 1), (31, 16, 96, 1)):
        hooks = case("gemm", format=kind, mixed=True, config=config)
        inputs, poisoned = hooks.inputs(m, n, k, batches), hooks.poisoned(m, n, k, batches)
        outputs = {name: p.tensor for name, p in poisoned.items()}
        hooks.build(inputs, outputs)(**inputs, **outputs)
        for name, p in poisoned.items():
            p.check(name)
        hooks.check(inputs, outputs)
    for extents in ((300, 320, 160, 2), (64, 1040, 2080, 1)):
        hooks = case("gemm", format=kind, config={**config, "tile_n": 256})
        inputs = hooks.inputs(*extents)
        hooks.check(inputs, hooks.wrapper(inputs))
    hooks = case("gemm", format=kind, mixed=True)
    inputs = hooks.inputs(264, 320, 160, 2)
    inputs["a_tensor"] = inputs["a_tensor"].half()
    addend = torch.randn(2, 264, 320, device="cuda").permute(1, 2, 0)
    common = {"addend_tensor": addend, "d_dtype": "float32", "sf_vec_size": FORMATS[kind].vec}
    expected = gemm_wrapper(**inputs, **common, config=IN_FRONT)["d_tensor"]
    assert same_bits(gemm_wrapper(**inputs, **common, config={**config, "tile_n": 128})["d_tensor"], expected)


@pytest.mark.parametrize("op", HOOKS)
def test_every_operation_converts_in_the_kernel(op):
    """Both operands quantised: A by a kernel in front, B inside."""
    hooks = case(op, quantized=op in ("srelu", "dsrelu"), config={"tile_m": 64, "tile_n": 128, "convert_b": True})
    for extents in ((16, 192, 96, 2), (300, 576, 2080, 1)):
        inputs, poisoned = hooks.inputs(*extents), hooks.poisoned(*extents)
        outputs = {name: p.tensor for name, p in poisoned.items()}
        hooks.build(inputs, outputs)(**inputs, **outputs)
        for name, p in poisoned.items():
            p.check(name)
        hooks.check(inputs, outputs)


def test_scratch_of_the_caller_and_a_captured_call():
    """Nothing is allocated with a workspace given; a captured call converts again at each replay."""
    hooks = case("gemm", format="nvfp4", mixed=True, config={"tile_m": 128, "tile_n": 128})
    inputs = hooks.inputs(256, 512, 1024, 1)
    d = torch.empty(256, 512, 1, dtype=torch.bfloat16, device="cuda")
    operation = hooks.build(inputs, {"d_tensor": d})
    operation.compile()
    workspace = torch.full((operation.workspace_bytes(),), 255, dtype=torch.uint8, device="cuda")
    operation.execute(**inputs, d_tensor=d, workspace=workspace)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    operation.execute(**inputs, d_tensor=d, workspace=workspace)
    assert torch.cuda.memory_allocated() == before
    hooks.check(inputs, {"d_tensor": d})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        operation.execute(**inputs, d_tensor=d)
    for _ in range(3):
        fresh = hooks.inputs(256, 512, 1024, 1)
        for name, t in inputs.items():
            t.view(torch.uint8 if t.dtype.itemsize == 1 else t.dtype).copy_(fresh[name].view(torch.uint8 if t.dtype.itemsize == 1 else t.dtype))
        graph.replay()
        torch.cuda.synchronize()
        hooks.check(inputs, {"d_tensor": d})
        assert same_bits(d, gemm_wrapper(**inputs, sf_vec_size=16, config=hooks.config)["d_tensor"])
