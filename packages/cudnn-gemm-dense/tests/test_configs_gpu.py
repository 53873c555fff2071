"""All configurations on a Hopper GPU: results that agree, repeats that are equal in every bit, and the tuner."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

import cudnn
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.testing.ahead import build_ahead
from cudnn.testing.conformance import GemmConformanceCuda, same_bits
from cudnn.testing.numeric import relative_error
from cudnn.tuning import table
from cudnn_gemm_dense.configs import NARROW
from cudnn_gemm_dense.gemm.conformance import GemmHooks
from cudnn_gemm_dense.operation import unfit_reason
from cudnn_gemm_dense.swiglu.conformance import SwigluHooks
from cudnn_gemm_dense.swiglu.kernel import swiglu_spec
from cudnn_gemm_dense.swiglu.options import SwigluOptions

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a CUDA device of compute capability 9.0")]

PROBLEM, OPTIONS = GemmProblem("bfloat16", "bfloat16"), SwigluOptions("float32", "bfloat16")
CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4))
EVERY = [
    GemmConfig(tile_m, tile_n, *cluster, pingpong, raster=raster)
    for (tile_m, tile_n, cluster, pingpong), raster in zip(
        itertools.product((64, 128, 256), (64, 128, 192, 256), CLUSTERS, (False, True)), itertools.cycle(("m", "n")), strict=False
    )
]
EVERY += [GemmConfig(tile_m, tile_n, split_k=split) for tile_m, tile_n, split in itertools.product((64, 128), (64, 128), (2, 4, 8))]
EVERY += [GemmConfig(tile_m, tile_n, k_atoms=atoms) for tile_m, tile_n, atoms in ((64, 64, 4), (64, 128, 2), (128, 64, 2))]
EVERY = [config for config in EVERY if unfit_reason(PROBLEM, OPTIONS.footprint, config) is None]
PARTS = 12  # tests that they are shared among: each process compiles its own
# One for each way through the kernel.
SCHEDULES = [
    GemmConfig(128, 256),
    GemmConfig(128, 128, 2, 1, pingpong=True),
    GemmConfig(128, 192, 1, 2, pingpong=True, raster="n"),
    GemmConfig(256, 128, 2, 2),
    GemmConfig(64, 128, split_k=2),
    GemmConfig(64, 64, split_k=8),
    GemmConfig(64, 128, k_atoms=2),
]


class Hooks(SwigluHooks, GemmConformanceCuda):
    device = "cuda"
    ab12_dtype = torch.float32


@pytest.fixture(scope="module", autouse=True)
def kernels():
    """All of them, built in parallel."""
    specs = [swiglu_spec(PROBLEM, OPTIONS, config) for config in dict.fromkeys((*EVERY, *SCHEDULES))]
    build_ahead(specs)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_tile_and_cluster_gives_the_same(part):
    """Case 60: inputs of unit size, ragged in every direction, relative tolerance, and each band of 16 columns by itself."""
    hooks = Hooks()
    inputs = hooks.inputs(777, 832, 616, 2)
    reference = hooks.reference(inputs)
    assert len(EVERY) > 60
    for config in EVERY[part::PARTS]:
        hooks.config = config
        result = hooks.wrapper(inputs)
        hooks.check(inputs, result)
        for name, limit in (("ab12_tensor", 1e-5), ("c_tensor", 2**-8)):
            for band, expected in zip(result[name].split(16, 1), reference[name].split(16, 1), strict=True):
                assert relative_error(band, expected) < limit, f"{config}: {name}"


SWAPPED = [
    NARROW,
    GemmConfig(64, 32, 2, 1, k_atoms=2, swap=True),
    GemmConfig(64, 64, 2, 1, k_atoms=2, swap=True),
    GemmConfig(64, 128, 2, 1, swap=True, raster="n"),
    GemmConfig(128, 64, split_k=2, swap=True),
    GemmConfig(128, 128, 1, 2, pingpong=True, swap=True),
    GemmConfig(128, 192, 2, 1, swap=True),
]


class Plain(GemmHooks, GemmConformanceCuda):
    device = "cuda"


@pytest.mark.parametrize("config", SWAPPED, ids=str)
@pytest.mark.parametrize("out_major", ["n", "m"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_the_transpose_of_the_transposed_product(dtype, out_major, config):
    """``swap``: right for ragged extents and few rows in NaN-poisoned memory, with a bias, an addend and alpha, operands along every axis; repeats are the same bits."""
    hooks = Plain()
    fp8 = dtype.itemsize == 1
    # What 8-bit operands with full accumulation have room for.
    hooks.config = replace(config, k_atoms=1, pingpong=False, tile_n=min(config.tile_n, 128)) if fp8 else config
    hooks.dtype, hooks.out_major, hooks.d_dtype = dtype, out_major, torch.bfloat16 if fp8 else dtype
    for (m, n, k, batches), a_major, b_major in zip(
        ((1, 64, 64, 1), (16, 8192, 512, 1), (24, 208, 1168, 3), (136, 1040, 4128, 1), (784, 400, 96, 2)), "kmkmk", "kknnk", strict=True
    ):
        if out_major == "m" and m == 1:
            m = 8
        if a_major == "m":
            m = -(-m // 16) * 16
        hooks.a_major, hooks.b_major = a_major, b_major
        inputs, poisoned = hooks.inputs(m, n, k, batches), hooks.poisoned(m, n, k, batches)
        outputs = {name: p.tensor for name, p in poisoned.items()}
        hooks.build(inputs, outputs)(**inputs, **outputs)
        for name, p in poisoned.items():
            p.check(name)
        hooks.check(inputs, outputs)
        first = hooks.wrapper(inputs)["d_tensor"]
        assert all(same_bits(hooks.wrapper(inputs)["d_tensor"], first) for _ in range(50))
        bias, addend = torch.randn(n, device="cuda"), torch.randn_like(first, dtype=torch.float32)
        more = {"bias_tensor": bias, "addend_tensor": addend, "alpha": 0.5, "d_dtype": torch.float32, "d_major": out_major}
        found = cudnn.gemm_wrapper(**inputs, **more, config=hooks.config)["d_tensor"]
        product = torch.einsum("mkl,nkl->mnl", inputs["a_tensor"].double(), inputs["b_tensor"].double())
        # The matrix cores add 128 products of 8 bits with 14 bits or so.
        assert relative_error(found, 0.5 * product + bias.double()[None, :, None] + addend) < (1e-3 if fp8 else 1e-5)


@pytest.mark.parametrize("config", SCHEDULES, ids=str)
def test_a_thousand_repeats_are_equal_in_every_bit(config):
    hooks = Hooks()
    hooks.config = config
    extents = (300, 704, 1032, 1)
    inputs, outputs = hooks.inputs(*extents), hooks.outputs(*extents)
    op = hooks.build(inputs, outputs)
    op(**inputs, **outputs)
    hooks.check(inputs, outputs)
    first = {name: t.clone() for name, t in outputs.items()}
    different = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(1000):
        for t in outputs.values():
            t.fill_(float("nan"))
        op.execute(**inputs, **outputs)
        for name, t in outputs.items():
            bits = torch.int32 if t.dtype == torch.float32 else torch.int16
            different += (t.view(bits) != first[name].view(bits)).sum()
    assert different.item() == 0


def test_tuning_finds_a_configuration_and_keeps_it(tmp_path, monkeypatch):
    """Nothing is skipped, and the next object runs in what was found."""
    monkeypatch.setattr(table, "_session", {})
    monkeypatch.setattr(table, "kept_path", lambda device: tmp_path / "results.json")
    hooks = Hooks()
    extents = (192, 1024, 512, 1)
    inputs, outputs = hooks.inputs(*extents), hooks.outputs(*extents)
    op = hooks.build(inputs, outputs)
    monkeypatch.setattr(op, "_candidates", lambda *_: tuple(EVERY[::8]))
    before = {name: t.clone() for name, t in inputs.items()}
    (result,) = cudnn.tune(op, **inputs, **outputs)
    print(result)
    assert not result.skipped, [f"{c.config}: {c.reason}" for c in result.skipped]
    assert {c.config for c in result.candidates} >= set(EVERY[::8]) and all(c.screened_us > 0 for c in result.candidates)
    assert min(c.us for c in result.candidates if c.us is not None) <= result.best_us <= 1.01 * result.default_us
    hooks.check(inputs, outputs)
    assert all(torch.equal(t, before[name]) for name, t in inputs.items())
    (entry,) = table.read(tmp_path / "results.json")
    assert entry.config == result.best and (tmp_path / "results.json").read_text().count(torch.cuda.get_device_name()) == 1
    other = hooks.build(inputs, outputs)
    other(**inputs, **outputs)
    hooks.check(inputs, outputs)
    assert next(iter(other._launches.values())).config == result.best
    with cudnn.autotune() as results:
        hooks.wrapper(inputs)
    assert results == []
