"""Projection + RoPE + MXFP8 on CPU tensors: bit for bit against the formula written out in numpy, the wrapper's rules, the published reference function, and the epilogue's lanes side by side."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import cudnn
from cudnn.cutedsl.block_scale import as_bits, e8m0_from_bits, e8m0_reciprocal, e8m0_value
from cudnn.gemm_operation import Launch
from cudnn.testing.conformance import same_bits
from cudnn_gemm_dense.operation import unfit_reason
from cudnn_gemm_dense.proj_rope_mxfp8 import (
    GemmProjRopeMxfp8Bf16In,
    GemmProjRopeMxfp8Mxfp8In,
    api,
    gemm_proj_rope_mxfp8_reference,
    gemm_proj_rope_mxfp8_wrapper,
    lanes,
)
from cudnn_gemm_dense.proj_rope_mxfp8.conformance import ProjRopeHooks, ProjRopeMxfp8Hooks
from cudnn_gemm_dense.proj_rope_mxfp8.options import CONFIGS, FOOTPRINT
from cudnn_gemm_dense.proj_rope_mxfp8.reference import dequantized, proj_rope_mxfp8, quantized, widened

# The 127 numbers of e4m3 that are not negative, by their codes.
E4M3 = np.array([(m / 8 if e == 0 else 1 + m / 8) * 2.0 ** (max(e, 1) - 7) for e in range(16) for m in range(8)][:127])


def bfloat16(value: np.ndarray) -> np.ndarray:
    """To nearest even, of numbers that are normal in bfloat16 or 0."""
    mantissa, exponent = np.frexp(value)
    return np.ldexp(np.rint(mantissa * 256), exponent - 8)


def e4m3(value: np.ndarray) -> np.ndarray:
    """Codes of the nearest numbers, of two equally near ones the even code; saturating."""
    size = np.minimum(np.abs(value), 448.0)
    above = np.clip(np.searchsorted(E4M3, size), 1, 126)
    low, high = size - E4M3[above - 1], E4M3[above] - size
    code = np.where((low < high) | ((low == high) & (above % 2 == 1)), above - 1, above)
    return (code + np.where(np.signbit(value), 128, 0)).astype(np.uint8)


def scale(largest: float) -> int:
    """The next power of two from largest / 448 on, the quotient in float32."""
    quotient = float(np.float32(largest) * np.float32(1.0 / 448.0))
    if quotient == 0:
        return 0
    mantissa, exponent = math.frexp(quotient)
    return min(max((exponent - 1 if mantissa == 0.5 else exponent) + 127, 0), 254)


def product(x: torch.Tensor, w: torch.Tensor) -> np.ndarray:
    """x wᵀ in float64, (T, H, 192)."""
    return (x.double() @ w.double().t()).numpy().reshape(x.shape[0], -1, 192)


def rotate(q: np.ndarray, cos: torch.Tensor, sin: torch.Tensor) -> np.ndarray:
    """Rounded to float32 once, as float64."""
    z, c, s = q.copy(), cos.double().numpy()[:, None, :], sin.double().numpy()[:, None, :]
    for i in range(32):
        p, r = q[..., 128 + 2 * i], q[..., 129 + 2 * i]
        z[..., 128 + i] = p * c[..., i] - r * s[..., i]
        z[..., 160 + i] = p * s[..., 32 + i] + r * c[..., 32 + i]
    return z.astype(np.float32).astype(np.float64)


def quantize(z: np.ndarray, scale_of=scale) -> tuple[np.ndarray, ...]:
    """Codes and scale bytes by rows and by columns of z (T, H, 192)."""
    tokens, heads, features = z.shape
    row_scales = np.zeros((tokens, heads, 6), np.uint8)
    column_scales = np.zeros((tokens // 32, heads, features), np.uint8)
    for index in np.ndindex(row_scales.shape):
        t, h, b = index
        row_scales[index] = scale_of(np.abs(z[t, h, 32 * b : 32 * b + 32]).max())
    for index in np.ndindex(column_scales.shape):
        b, h, f = index
        column_scales[index] = scale_of(np.abs(z[32 * b : 32 * b + 32, h, f]).max())
    rows = e4m3(np.ldexp(z, 127 - np.repeat(row_scales.astype(int), 32, 2)))
    columns = e4m3(np.ldexp(z, 127 - np.repeat(column_scales.astype(int), 32, 0)))
    return rows, row_scales, columns, column_scales


def published_scale(largest: float) -> int:
    """Of the reference function."""
    mantissa, exponent = math.frexp(float(np.float32(max(largest, float(np.float32(1e-30)))) / np.float32(448.0)))
    return max(min(exponent - 1 if mantissa == 0.5 else exponent, 127), -127) + 127


def agree(found, expected) -> None:
    """Equal in every byte."""
    for name, f, e in zip(("out_fp8_row", "out_scales_row", "out_fp8_col", "out_scales_col"), found, expected, strict=True):
        bytes_found = f.cpu().contiguous().view(torch.uint8).numpy()
        assert bytes_found.shape == e.shape
        wrong = np.argwhere(bytes_found != e)
        assert not len(wrong), f"{name}: {len(wrong)} of {e.size} differ, first at {wrong[0]}: {bytes_found[tuple(wrong[0])]}, needs {e[tuple(wrong[0])]}"


def exact(tokens: int, heads: int, k: int = 64) -> tuple[torch.Tensor, ...]:
    """x, w, cos, sin whose products and sums are whole numbers below 2^24, so that no order of summation matters."""
    x, w = torch.randint(-15, 16, (tokens, k)).bfloat16(), torch.randint(-15, 16, (192 * heads, k)).bfloat16()
    angles = torch.rand(tokens, 64) * 2 * math.pi
    return x, w, angles.cos().bfloat16(), angles.sin().bfloat16()


def single(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x and w whose product is q (T, N), of rank one in each row: x[t] is a unit vector that picks a column of w. Needs T = K."""
    return torch.eye(q.shape[0]).bfloat16(), q.t().contiguous().bfloat16()


# The formula.


@pytest.mark.parametrize("w_out_in", [True, False])
def test_every_byte_is_the_formulas(w_out_in):
    x, w, cos, sin = exact(128 * int(torch.randint(1, 3, ())), int(torch.randint(1, 4, ())))
    found = gemm_proj_rope_mxfp8_wrapper(x, w if w_out_in else w.t().contiguous(), cos, sin, w_out_in=w_out_in)
    assert list(found.keys()) == ["out_fp8_row", "out_scales_row", "out_fp8_col", "out_scales_col"]
    agree(found, quantize(rotate(bfloat16(product(x, w)), cos, sin)))


def test_sizes_far_apart_and_zeros():
    """Magnitudes from 2^-60 to 2^60, blocks of zeros and blocks whose largest element is at the edge of a power of two."""
    size = torch.ldexp(torch.ones(128, 192 * 2), torch.randint(-60, 61, (128, 192 * 2)))
    q = (torch.randn(128, 192 * 2) * size).bfloat16()
    q[:64, :192] = 0
    q[64:96, 192:224] = torch.ldexp(torch.full((32, 32), 1.75), torch.randint(-20, 20, (32, 32)))  # 448 = 1.75 * 2^8
    x, w = single(q)
    _, _, cos, sin = exact(128, 1)
    found = gemm_proj_rope_mxfp8_wrapper(x, w, cos, sin)
    agree(found, quantize(rotate(q.double().numpy().reshape(128, 2, 192), cos, sin)))
    assert not found["out_scales_row"][:64, 0].any() and not found["out_fp8_row"][:64, 0].float().any()
    assert not found["out_scales_col"][:2, 0].any() and found["out_scales_col"][2:, 0].all()


@pytest.mark.parametrize("largest", [2.0**-140, 2.0**-127, 1.01 * 2.0**-127, 448 * 2.0**-127, 450 * 2.0**-127, 448.0, 449.0, 3.3e38], ids=str)
def test_scales_at_both_ends(largest):
    z = torch.zeros(128, 1, 192)
    z[5, 0, 7] = -largest
    agree(quantized(z), quantize(z.double().numpy()))


def test_infinities_and_nan():
    z = torch.randn(128, 1, 192)
    z[3, 0, 40], z[70, 0, 100] = float("inf"), float("nan")
    rows, row_scales, columns, column_scales = quantized(z)
    assert row_scales[3, 0, 1] == column_scales[0, 0, 40] == 254 and row_scales[70, 0, 3] == column_scales[2, 0, 100] == 255
    assert rows[3, 0, 40].float() == columns[3, 0, 40].float() == 448
    assert rows[70, 0, 96:128].isnan().all() and columns[64:96, 0, 100].isnan().all()
    assert int(rows.isnan().sum()) == int(columns.isnan().sum()) == 32


def test_q_is_rounded_to_bfloat16():
    """257 is no bfloat16, and without rounding would lie on the other side of a step of e4m3."""
    x, w = torch.ones(128, 8).bfloat16(), torch.zeros(192, 8)
    w[0], w[1, 0] = 1 + 2.0**-7, 448
    w[0, 0] = 200
    w = w.bfloat16()
    cos = sin = torch.ones(128, 64).bfloat16()
    q = product(x, w)
    assert (q[0, 0, 0] != bfloat16(q)[0, 0, 0]) and q[0, 0, 0] == 200 + 7 * (1 + 2.0**-7)
    agree(gemm_proj_rope_mxfp8_wrapper(x, w, cos, sin), quantize(rotate(bfloat16(q), cos, sin)))


def test_random_data_is_within_the_rounding_of_q():
    hooks = ProjRopeHooks()
    for extents in hooks.ragged()[:3]:
        inputs = hooks.inputs(*extents)
        hooks.check(inputs, hooks.wrapper(inputs))


def test_the_check_refuses_what_is_off_by_two_steps():
    hooks = ProjRopeHooks()
    inputs = hooks.inputs(128, 192, 64, 1)
    found = dict(hooks.wrapper(inputs).items())
    for name in found:
        spoilt = {**found, name: found[name].clone()}
        spoilt[name].view(torch.uint8)[77 % found[name].shape[0], 0, 3] ^= 2 if "scales" in name else 0x20
        with pytest.raises(AssertionError, match="wrong"):
            hooks.check(inputs, spoilt)


# The published reference function.


@pytest.mark.parametrize("w_out_in", [True, False])
@pytest.mark.parametrize("tokens", [128, 256])
def test_the_reference_function(tokens, w_out_in):
    x, w, cos, sin = exact(tokens, 2)
    x[:32] = 0
    found = gemm_proj_rope_mxfp8_reference(x, w if w_out_in else w.t(), cos, sin, w_out_in)
    assert [(tuple(t.shape), t.dtype) for t in found] == [
        ((tokens, 2, 192), torch.float8_e4m3fn),
        ((tokens, 2, 6), torch.uint8),
        ((tokens, 2, 192), torch.float8_e4m3fn),
        ((tokens // 32, 2, 192), torch.uint8),
    ]
    agree(found, quantize(rotate(product(x, w), cos, sin), published_scale))
    assert (found[1][:32] == 19).all() and (found[3][0] == 19).all()


def test_the_reference_function_does_not_round_q():
    x, w, cos, sin = exact(128, 1)
    reference, kernel = gemm_proj_rope_mxfp8_reference(x, w, cos, sin, True), proj_rope_mxfp8(x, w, cos, sin, True)
    assert not same_bits(reference[0], kernel[0])
    for a, b in zip(dequantized(*reference), dequantized(*kernel), strict=True):
        assert ((a - b).abs() <= 0.1 + 0.1 * b.abs()).double().mean() > 0.95


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"x": (100, 64)}, "x: found T = 100"),
        ({"w": (191, 64)}, "w: found shape"),
        ({"w": (192, 32)}, "w: found shape"),
        ({"cos": (128, 32)}, "cos"),
        ({"sin": (64, 64)}, "sin"),
    ],
)
def test_the_reference_function_refuses_shapes(change, named):
    shapes = {"x": (128, 64), "w": (192, 64), "cos": (128, 64), "sin": (128, 64), **change}
    with pytest.raises(ValueError, match=named):
        gemm_proj_rope_mxfp8_reference(*(torch.zeros(shape) for shape in shapes.values()), True)


# MXFP8 operands.


def test_mxfp8_operands_are_their_products_with_the_scales():
    hooks = ProjRopeMxfp8Hooks()
    inputs = hooks.inputs(256, 384, 96, 1)
    x, w = (torch.ldexp(inputs[f"{name}_code"].double(), (inputs[f"{name}_scale"].int() - 127).repeat_interleave(32, 1)).to(torch.float32) for name in "xw")
    assert torch.equal(x, hooks.operands(inputs)[0].float()) and torch.equal(w, hooks.operands(inputs)[1].float())
    found, expected = hooks.wrapper(inputs), gemm_proj_rope_mxfp8_wrapper(x.bfloat16(), w.bfloat16(), inputs["cos"], inputs["sin"])
    for name, t in expected.items():
        assert same_bits(found[name], t)
    # The other order of weights is copied.
    turned = gemm_proj_rope_mxfp8_wrapper(
        inputs["x_code"], inputs["w_code"].t(), inputs["cos"], inputs["sin"], inputs["x_scale"], inputs["w_scale"].t().contiguous(), w_out_in=False
    )
    assert all(same_bits(turned[name], t) for name, t in expected.items())
    layer = torch.compile(lambda *tensors: gemm_proj_rope_mxfp8_wrapper(*tensors, w_out_in=False)["out_scales_col"] + 1, fullgraph=True, backend="eager")
    traced = layer(inputs["x_code"], inputs["w_code"].t(), inputs["cos"], inputs["sin"], inputs["x_scale"], inputs["w_scale"].t().contiguous())
    assert torch.equal(traced, expected["out_scales_col"] + 1)


def test_every_code_and_scale_widens_exactly():
    """As far as bfloat16 holds the product; beyond, infinity, and below its smallest number the nearest."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).repeat(256, 1)
    scales = torch.arange(256, dtype=torch.uint8)[:, None].expand(256, 8)
    found = widened(codes, scales).double()
    expected = torch.ldexp(codes.double(), (scales.int() - 127).repeat_interleave(32, 1))
    expected[255] = float("nan")
    inside = (expected.abs() < 2.0**128) & (expected.abs() >= 2.0**-126)
    assert torch.equal(found[inside], expected[inside]) and inside.sum() > 60000
    assert (found[expected.abs() >= 2.0**128].isinf()).all() and torch.equal(found.isnan(), expected.isnan())
    tiny = expected.abs() < 2.0**-126
    assert ((found - expected)[tiny].abs() <= 2.0**-134).all()


# The wrapper.

WIDEN, *GEMMS = api.precompile_specs()


def test_published_names_are_the_same_objects():
    assert cudnn.GemmProjRopeMxfp8Bf16InSm100 is cudnn.GemmProjRopeMxfp8Bf16In is GemmProjRopeMxfp8Bf16In
    assert cudnn.GemmProjRopeMxfp8Mxfp8InSm100 is cudnn.GemmProjRopeMxfp8Mxfp8In is GemmProjRopeMxfp8Mxfp8In
    assert cudnn.gemm_proj_rope_mxfp8_wrapper_sm100 is cudnn.gemm_proj_rope_mxfp8_wrapper is gemm_proj_rope_mxfp8_wrapper
    from cudnn.gemm.cutedsl.dense.proj_rope_mxfp8 import gemm_proj_rope_mxfp8_reference as published

    assert published is gemm_proj_rope_mxfp8_reference and not hasattr(cudnn, "gemm_proj_rope_mxfp8_reference")


@pytest.mark.parametrize("backend", ["auto", "sm90"])
def test_assertions_come_before_anything_else(backend):
    """Before shapes are looked at, and before a GPU is asked for."""
    bf16, e4m3_, u8 = torch.zeros(3, 5).bfloat16(), torch.zeros(3, 5).to(torch.float8_e4m3fn), torch.zeros(3, 1, dtype=torch.uint8)
    half = bf16.half()
    for arguments, message in (
        ((bf16, e4m3_), "must share a dtype"),
        ((e4m3_, bf16, bf16, bf16, u8, u8), "must share a dtype"),
        ((bf16, bf16, bf16, bf16, u8, u8), "must not be given MXFP8 scales"),
        ((bf16, bf16, bf16, bf16, None, u8), "must not be given MXFP8 scales"),
        ((e4m3_, e4m3_), "require x_scale and w_scale"),
        ((e4m3_, e4m3_, bf16, bf16, u8), "require x_scale and w_scale"),
        ((half, half), "must be bfloat16, or float8_e4m3fn"),
    ):
        arguments = (*arguments, *(bf16 for _ in range(4 - len(arguments))))
        with pytest.raises(AssertionError, match=message):
            gemm_proj_rope_mxfp8_wrapper(*arguments, backend=backend)


def test_other_frameworks_are_refused_first():
    t = torch.zeros(128, 64).bfloat16()
    for position in range(4):
        arguments = [t, t, t, t]
        arguments[position] = np.zeros((128, 64), np.float32)
        with pytest.raises(ValueError, match="Unsupported tensor framework numpy"):
            gemm_proj_rope_mxfp8_wrapper(*arguments)
    with pytest.raises(ValueError, match="w is None"):
        gemm_proj_rope_mxfp8_wrapper(t, None, t, t)
    e4m3_ = t.to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="Unsupported tensor framework numpy"):
        gemm_proj_rope_mxfp8_wrapper(e4m3_, e4m3_, t, t, np.zeros((128, 2), np.uint8), torch.zeros(128, 2, dtype=torch.uint8))
    with pytest.raises(ValueError, match="w_scale: found ndarray"):
        gemm_proj_rope_mxfp8_wrapper(e4m3_, e4m3_, t, t, torch.zeros(128, 2, dtype=torch.uint8), np.zeros((128, 2), np.uint8), False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": (200, 64)}, "x: found T = 200"),
        ({"x": (128, 72)}, "w: found shape"),
        ({"x": (128,)}, "x: found shape"),
        ({"w": (192, 64, 1)}, "w: found shape"),
        ({"w": (100, 64)}, "w: found shape"),
        ({"x": (128, 60), "w": (192, 60)}, "multiple of 8"),
        ({"cos": (128, 32)}, "cos: found shape"),
        ({"sin": (256, 64)}, "sin: found shape"),
    ],
)
def test_the_wrapper_refuses_shapes(change, message):
    shapes = {"x": (128, 64), "w": (192, 64), "cos": (128, 64), "sin": (128, 64), **change}
    with pytest.raises(ValueError, match=message):
        gemm_proj_rope_mxfp8_wrapper(**{name: torch.zeros(shape).bfloat16() for name, shape in shapes.items()})


def test_an_odd_number_of_heads_is_for_bfloat16_alone():
    hooks = ProjRopeMxfp8Hooks()
    inputs = hooks.inputs(128, 192, 96, 1)
    with pytest.raises(ValueError, match="w_code: found 1 heads .* needs an even number"):
        hooks.wrapper(inputs)


def test_one_object_serves_all_extents(stub, fresh):
    built, launched = stub
    fresh(api.BF16_CALLS, api.MXFP8_CALLS)
    hooks = ProjRopeHooks()
    for extents in ((128, 192, 64, 1), (384, 576, 128, 1), (1024, 192, 8, 1)):
        inputs = hooks.inputs(*extents)
        hooks.check(inputs, hooks.wrapper(inputs))
    assert len(built) == len(CONFIGS) and len(launched) == 3
    assert set(built) == {spec for spec in GEMMS if spec.problem.b_major == "k"}
    assert all(config in CONFIGS for _, config, _ in launched)


def test_default_configurations_fit():
    assert len(GEMMS) == 2 * len(CONFIGS) and {spec.problem.b_major for spec in GEMMS} == {"k", "n"}
    assert all(unfit_reason(spec.problem, FOOTPRINT, spec.config) is None for spec in GEMMS)


def test_a_tile_is_a_head():
    x, w, cos, sin = exact(128, 1)
    for tile_n in (96, 128, 256):
        with pytest.raises(ValueError, match=f"tile_n: found {tile_n}, needs a multiple of 192"):
            gemm_proj_rope_mxfp8_wrapper(x, w, cos, sin, config={"tile_n": tile_n})


@pytest.mark.parametrize("w_out_in", [True, False])
def test_the_kernel_is_given_what_it_is_compiled_for(w_out_in, monkeypatch):
    """Operands (M, K, 1) and (N, K, 1) in place, and the other tensors as the epilogue describes them."""
    pytest.importorskip("cutlass", reason="the epilogue's description needs the DSL")
    from cudnn_gemm_dense.proj_rope_mxfp8.epilogue import ProjRopeMxfp8

    hooks = ProjRopeHooks()
    hooks.w_out_in = w_out_in
    inputs = hooks.inputs(256, 384, 40, 1)
    outputs = {name: torch.zeros(shape, dtype=dtype) for name, (shape, _, dtype) in hooks.output_layouts(256, 384, 40, 1).items()}
    op, seen = hooks.build(inputs, outputs), []
    op.compile()
    extents = op._layout.extents(op._samples)
    monkeypatch.setattr(
        op, "_run", lambda tensors, scalars, *_: op._launch(Launch(lambda *a: seen.append(a), 7, extents, CONFIGS[0]), tensors, scalars, 5, None, None)
    )
    op.execute(**inputs, **outputs)
    ((x, w), rest, scalars, clusters, handle), epilogue = seen[0], ProjRopeMxfp8()
    assert (clusters, handle, len(scalars)) == (7, 5, max(epilogue.scalar_count, 1))
    assert x.data_ptr() == inputs["x"].data_ptr() and (x.shape, x.stride()[:2]) == ((256, 40, 1), (40, 1))
    assert w.data_ptr() == inputs["w"].data_ptr() and (w.shape, w.stride()[:2]) == ((384, 40, 1), (40, 1) if w_out_in else (1, 384))
    known: dict = {"m": 256}
    for t, expected, spec in zip(rest, (inputs["cos"], inputs["sin"], *outputs.values()), epilogue.tensors, strict=True):
        assert t is expected and t.dtype.itemsize * 8 == spec.dtype.width and t.is_contiguous()
        assert all(extent == (known.setdefault(axis, extent) if isinstance(axis, str) else axis) for axis, extent in zip(spec.axes, t.shape, strict=True))
    assert known == {"m": 256, "h": 2, "m/32": 8}


@pytest.mark.parametrize("given", [True, False], ids=["workspace", "allocator"])
def test_mxfp8_operands_reach_the_kernel_in_scratch_memory(given, stub, monkeypatch):
    """The converting kernel is given codes and scales as bytes, (rows, K, 1) and (rows, K/32, 1), and the GEMM what it wrote."""
    hooks = ProjRopeMxfp8Hooks()
    inputs = hooks.inputs(256, 384, 96, 1)
    outputs = {name: torch.zeros(shape, dtype=dtype) for name, (shape, _, dtype) in hooks.output_layouts(256, 384, 96, 1).items()}
    op, seen, converted = hooks.build(inputs, outputs), [], []
    op.compile()
    assert WIDEN in stub[0] and list(op._preparing) == [WIDEN] and op.workspace_bytes() == 2 * (256 + 384) * 96
    workspace = torch.full((op.workspace_bytes(),), 255, dtype=torch.uint8) if given else None

    def widen(code, scale, target, handle):
        converted.append((code.shape, scale.shape, handle))
        assert code.dtype == scale.dtype == torch.uint8 and code.stride(1) == 1 and target.data_ptr() % 16 == 0
        target.copy_(widened(code[..., 0].view(torch.float8_e4m3fn), scale[..., 0])[..., None])

    op._preparing = dict.fromkeys(op._preparing, widen)
    launch = Launch(lambda *a: seen.append(a), 7, op._layout.extents(op._samples), CONFIGS[0], op.workspace_bytes())
    monkeypatch.setattr(op, "_run", lambda tensors, scalars, stream, space: op._launch(launch, tensors, scalars, 5, stream, space))
    op.execute(**inputs, **outputs, workspace=workspace)
    assert converted == [((256, 96, 1), (256, 3, 1), 5), ((384, 96, 1), (384, 3, 1), 5)]
    (x, w), rest, scalars, clusters, handle = seen[0]
    for t, expected in zip((x, w), hooks.operands(inputs), strict=True):
        assert t.dtype == torch.bfloat16 and torch.equal(t[..., 0], expected)
    assert [id(t) for t in rest] == [id(inputs["cos"]), id(inputs["sin"]), *map(id, outputs.values())] and len(scalars) == 1
    if given:
        assert x.untyped_storage().data_ptr() == w.untyped_storage().data_ptr() == workspace.untyped_storage().data_ptr()
        with pytest.raises(ValueError, match="GemmProjRopeMxfp8Mxfp8In: workspace has 64 bytes"):
            op.execute(**inputs, **outputs, workspace=workspace[:64])


def test_the_epilogues_shared_memory_is_what_the_checks_count():
    pytest.importorskip("cutlass", reason="the epilogue's description needs the DSL")
    from cudnn.cutedsl.epilogue.driver import footprint
    from cudnn_gemm_dense.proj_rope_mxfp8.epilogue import ProjRopeMxfp8

    for config in CONFIGS:
        assert footprint(ProjRopeMxfp8(), config) == FOOTPRINT
        # Tiles store whole turns of the ring, so it is never drained between them.
        assert ProjRopeMxfp8.stores_per_visit % 4 == 0


# The epilogue's lanes.


class Lanes:
    """Warps side by side: axis 0 of every array is the lane."""

    def shuffle(self, value, lane):
        return value[lane]

    def across(self, value, distance):
        return value[np.arange(len(value)) ^ distance]

    def select(self, condition, a, b):
        return np.where(condition, a, b)

    def magnitude(self, a):
        return np.abs(a)

    def largest(self, a, b):
        return np.maximum(a, np.abs(b))


LANES = np.arange(32)


def held(part: np.ndarray) -> list[np.ndarray]:
    """A warp's 16 x 32 part of a slab as its lanes hold it, register by register: the accumulators' layout, as the matrix instruction's description has it."""
    return [part[LANES // 4 + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * (LANES % 4) + r % 2] for r in range(16)]


def test_halves_of_two_slabs():
    """Every lane gets every element that it has to hold, and nothing else: the values are the positions."""
    two = np.arange(16 * 64).reshape(16, 64)
    slabs = held(two[:, :32]), held(two[:, 32:])
    for which in range(2):
        found = lanes.every_second(slabs, which, LANES, Lanes())
        for register, expected in zip(found, held(two[:, which::2]), strict=True):
            assert (register == expected).all()


def test_largest_magnitudes_of_rows_and_columns():
    part = np.random.randn(16, 32).astype(np.float32)
    slab = held(part)
    for row in range(2):
        assert (lanes.row_maximum(slab, row, Lanes()) == np.abs(part).max(1)[LANES // 4 + 8 * row]).all()
    largest, column = lanes.column_maximum(slab, LANES, Lanes())
    assert sorted(column) == list(range(32)) and (largest == np.abs(part).max(0)[column]).all()


def test_nan_reaches_its_row_and_column():
    part = np.random.randn(16, 32).astype(np.float32)
    part[5, 9] = np.nan
    slab = held(part)
    assert (np.isnan(lanes.row_maximum(slab, 0, Lanes())) == (LANES // 4 == 5)).all() and not np.isnan(lanes.row_maximum(slab, 1, Lanes())).any()
    largest, column = lanes.column_maximum(slab, LANES, Lanes())
    assert (np.isnan(largest) == (column == 9)).all()


def test_the_epilogue_lane_by_lane():
    """64 tokens of a head through the device's functions, in its order: four warps of lanes, registers in the accumulators' layout, maxima joined two warps at a time."""
    x, w, cos, sin = exact(128, 1)
    q = bfloat16(product(x, w))[:64, 0].astype(np.float32)
    tables = {name: t[:64].float().numpy() for name, t in (("cos", cos), ("sin", sin))}
    codes, row_scales, column_scales = np.zeros((2, 64, 192), np.uint8), np.zeros((64, 6), np.uint8), np.zeros((2, 192), np.uint8)
    maxima, slabs = np.zeros((4, 192), np.float32), []
    for warp in range(4):
        rows = slice(16 * warp, 16 * warp + 16)
        slabs.append([held(q[rows, 32 * s : 32 * s + 32]) for s in range(6)])
        p, r = (lanes.every_second(slabs[warp][4:], which, LANES, Lanes()) for which in range(2))
        c, s = (([held(t[rows, 32 * half : 32 * half + 32]) for half in range(2)]) for t in tables.values())
        slabs[warp][4] = [p[i] * c[0][i] - r[i] * s[0][i] for i in range(16)]
        slabs[warp][5] = [p[i] * s[1][i] + r[i] * c[1][i] for i in range(16)]
        for s, slab in enumerate(slabs[warp]):
            largest, column = lanes.column_maximum(slab, LANES, Lanes())
            maxima[warp, 32 * s + column] = largest
    limit = np.float32(1 / 448)
    column_scales[:] = e8m0_from_bits(as_bits(np.maximum(maxima[::2], maxima[1::2]) * limit))
    column_factors = e8m0_value(e8m0_reciprocal(column_scales.astype(np.uint32)))
    for warp in range(4):
        for s, slab in enumerate(slabs[warp]):
            factors = []
            for row in range(2):
                byte = e8m0_from_bits(as_bits(lanes.row_maximum(slab, row, Lanes()) * limit))
                row_scales[16 * warp + LANES // 4 + 8 * row, s] = byte
                factors.append(e8m0_value(e8m0_reciprocal(byte)))
            for r in range(16):
                at = 16 * warp + LANES // 4 + 8 * (r // 2 % 2), 32 * s + 8 * (r // 4) + 2 * (LANES % 4) + r % 2
                codes[(0, *at)] = e4m3((slab[r] * factors[r // 2 % 2]).astype(np.float64))
                codes[(1, *at)] = e4m3((slab[r] * column_factors[warp // 2][at[1]]).astype(np.float64))
    expected = gemm_proj_rope_mxfp8_wrapper(x, w, cos, sin)
    found = (codes[0], row_scales, codes[1], column_scales)
    for t, got in zip(expected, found, strict=True):
        assert (t.view(torch.uint8).numpy()[: len(got), 0] == got).all()
