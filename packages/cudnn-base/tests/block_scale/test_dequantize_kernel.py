"""The kernel that converts block-scaled matrices: the code of its threads on the host, its machine code compiled, and the whole of it on a GPU."""

from __future__ import annotations

import itertools
import pickle
import random

import pytest

from cudnn.block_scale import FORMATS, ScaleLayout
from cudnn.cutedsl.dequantize import DequantizeSpec

torch = pytest.importorskip("torch", reason="torch is not installed")

TARGETS = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
GUARD = 64


def specs():
    for fmt in FORMATS.values():
        for target, k_major, blocked, norm in itertools.product(TARGETS, (True, False), (True, False), (True, False)):
            if k_major or fmt.packed == 1:
                yield DequantizeSpec(fmt.element, fmt.scale, fmt.vec, target, k_major, blocked, norm)


def label(spec: DequantizeSpec) -> str:
    flags = "".join(c for c, on in zip("kbn", (spec.k_major, spec.blocked, spec.norm), strict=True) if on)
    return f"{spec.element[7:]}-{spec.scale[7:]}-{spec.vec}-{spec.target}-{flags}"


class Case:
    """A (rows, K, L) problem of one spec: random bytes in lines of any pitch, every NaN and padding included, and what comes out by the reference."""

    def __init__(self, spec: DequantizeSpec, rows: int, k: int, batches: int, device: str = "cpu"):
        from cudnn.reference import dequantize_blocks, scales_from_blocked

        self.spec, layout = spec, ScaleLayout(rows, k, batches, spec.vec)
        packed = 2 if spec.element == "float4_e2m1fn" else 1
        inner, outer = (k // packed, rows) if spec.k_major else (rows, k)
        pitch = -(-inner // 16) * 16 + 16 * random.randint(0, 2)
        memory = torch.randint(0, 256, (batches, outer, pitch), dtype=torch.uint8, device=device)
        order = (1, 2, 0) if spec.k_major else (2, 1, 0)
        self.source = memory[:, :, :inner].permute(order)
        entries = torch.randint(0, 256, (layout.entries,), dtype=torch.uint8, device=device)
        plain = scales_from_blocked(entries.view(layout.physical_shape), rows, k, spec.vec).view(torch.uint8)  # (L, rows, blocks)
        if spec.blocked:
            self.scales = entries
        else:
            form = random.choice([plain.contiguous(), plain.transpose(1, 2).contiguous().transpose(1, 2)])
            self.scales = form.permute(1, 2, 0)
        self.norm = torch.tensor([random.uniform(0.01, 100)], device=device) if spec.norm else None
        self.kind = TARGETS[spec.target]
        line = -(-(k if spec.k_major else rows) // 8) * 8
        lines = rows if spec.k_major else k
        self.guarded = torch.full((GUARD + batches * lines * line + GUARD,), 7.0, dtype=self.kind, device=device)
        self.lines = self.guarded[GUARD:-GUARD].view(batches, lines, line)
        self.target = self.lines[:, :, : k if spec.k_major else rows].permute(order)
        data = self.source.permute(2, 0, 1).contiguous()
        data = data if packed == 2 else data.view(getattr(torch, spec.element))
        self.expected = dequantize_blocks(data, plain.view(getattr(torch, spec.scale)), spec.vec, self.norm, self.kind).permute(1, 2, 0)

    @property
    def tensors(self):
        return [self.source, self.scales, self.target, *([self.norm] if self.spec.norm else [])]

    def check(self, flushed: bool = False) -> None:
        """Equal in every bit, and nothing else written. ``flushed``: numbers below the normal range of bfloat16 may be zero, which the instruction of some CPUs makes of them."""
        bits = torch.int32 if self.spec.target == "float32" else torch.int16
        assert torch.equal(self.target.isnan(), self.expected.isnan())
        found, expected = (t.nan_to_num(nan=3.0, posinf=float("inf"), neginf=-float("inf")).contiguous() for t in (self.target, self.expected))
        if flushed and self.spec.target == "bfloat16":
            tiny = expected.abs() < torch.finfo(torch.bfloat16).tiny
            assert (found[tiny].abs() <= expected[tiny].abs()).all()
            found, expected = found.masked_fill(tiny, 0), expected.masked_fill(tiny, 0)
        assert torch.equal(found.view(bits), expected.view(bits))
        edges = self.guarded[:GUARD], self.guarded[-GUARD:]
        assert all((edge == 7).all() for edge in edges), "nothing outside is written"
        assert (self.lines[:, :, self.target.shape[1 if self.spec.k_major else 0] :] == 7).all(), "nor between the lines"


def test_specs_are_told_apart_and_travel():
    found = list(specs())
    assert pickle.loads(pickle.dumps(found)) == found
    assert len({str(spec.fields()) for spec in found}) == len({spec.label for spec in found}) == len(found) == 2 * 2 * 3 * 5 + 2 * 2 * 3 * 2


def test_packed_elements_lie_along_k():
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed")
    from cudnn.cutedsl.dequantize_kernel import Dequantize

    with pytest.raises(ValueError, match="4-bit elements are packed along K"):
        Dequantize("float4_e2m1fn", "float8_e4m3fn", 16, False, True)


# Each path of the code once: either order, either kind of scale tensor, both widths of elements, with and without a norm constant.
PATHS = [
    DequantizeSpec("float8_e4m3fn", "float8_e8m0fnu", 32),
    DequantizeSpec("float8_e5m2", "float8_e8m0fnu", 32, "bfloat16", k_major=False),
    DequantizeSpec("float8_e4m3fn", "float8_e8m0fnu", 32, "float16", k_major=False, blocked=False, norm=True),
    DequantizeSpec("float4_e2m1fn", "float8_e4m3fn", 16, "float32", norm=True),
    DequantizeSpec("float4_e2m1fn", "float8_e8m0fnu", 32, "bfloat16", blocked=False),
]


@pytest.mark.compile
@pytest.mark.parametrize("spec", PATHS, ids=label)
def test_threads_on_the_host(spec):
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed")
    from cudnn.cutedsl.dequantize_kernel import THREADS, Dequantize
    from cudnn.testing.host_kernels import run_threads

    kernel = Dequantize(spec.element, spec.scale, spec.vec, spec.k_major, spec.blocked)
    rows = 8 * random.randint(1, 50) + (random.randint(0, 7) if spec.k_major else 0)
    case = Case(spec, rows, 8 * random.randint(1, 80), random.randint(1, 3))
    rows, k, batches = case.target.shape
    tiles_r, tiles_c = -(-rows // kernel.tile_rows), -(-k // kernel.tile_columns)

    def tile_of(block):
        return block // tiles_c % tiles_r, block % tiles_c, block // (tiles_r * tiles_c)

    def work(source, scales, target, *rest):
        *norm, block, thread, _ = rest
        kernel.work(source, scales, target, norm[0] if norm else None, *tile_of(block), thread)

    run_threads(work, case.tensors, tiles_r * tiles_c * batches, THREADS)
    case.check(flushed=True)


@pytest.mark.compile
@pytest.mark.parametrize("spec", PATHS, ids=label)
def test_it_compiles(spec):
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed")
    assert len(spec.compile().object_bytes) > 1000


@pytest.mark.gpu
@pytest.mark.parametrize("spec", [s for i, s in enumerate(specs()) if s.target == list(TARGETS)[i // 2 % 3] or s in PATHS], ids=label)
def test_equal_to_the_reference_in_every_bit(spec):
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a CUDA device of compute capability 9.0")
    kernel = spec.build()
    sizes = [(512, 512, 2), (8, 8, 1), (1000, 776, 1), (136, 2048, 3), (4096, 4096, 1)]
    sizes += [(8 * random.randint(1, 90), 8 * random.randint(1, 90), random.randint(1, 3)) for _ in range(6)]
    sizes += [(1, 4096, 1), (random.randint(1, 300), 256, 2)] if spec.k_major else []
    for rows, k, batches in sizes:
        case = Case(spec, rows, k, batches, "cuda")
        kernel(*case.tensors, torch.cuda.current_stream().cuda_stream)
        case.check()


@pytest.mark.gpu
def test_beyond_two_to_the_31():
    """Offsets in 64 bits: 2.2e9 elements, of which the last rows are compared."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a CUDA device of compute capability 9.0")
    from cudnn.reference import dequantize_operand

    rows, k = 66_000, 33_024
    layout = ScaleLayout(rows, k, 1, 32)
    source = torch.randint(0, 127, (rows, k, 1), dtype=torch.uint8, device="cuda")
    scales = torch.randint(100, 150, (layout.entries,), dtype=torch.uint8, device="cuda")
    target = torch.empty(rows, k, 1, dtype=torch.bfloat16, device="cuda")
    DequantizeSpec("float8_e4m3fn", "float8_e8m0fnu", 32).build()(source, scales, target, torch.cuda.current_stream().cuda_stream)
    for first in (0, 65_024, 65_920):  # multiples of 128
        last = min(first + 128, rows)
        atoms = scales.view(layout.physical_shape)[:, first // 128 : first // 128 + 1].view(torch.float8_e8m0fnu)
        expected = dequantize_operand(source[first:last].view(torch.float8_e4m3fn), atoms, 32)
        assert torch.equal(target[first:last].float(), expected)
