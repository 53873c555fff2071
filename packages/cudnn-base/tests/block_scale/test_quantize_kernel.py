"""The kernel that quantises to block-scaled formats: the code of its threads on the host, its machine code compiled, and the whole of it on a GPU."""

from __future__ import annotations

import itertools
import math
import pickle
import random

import pytest

from cudnn.block_scale import FORMATS, Format, ScaleLayout
from cudnn.cutedsl.quantize import QuantizeSpec

torch = pytest.importorskip("torch", reason="torch is not installed")

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
DIRECTIONS = {"row": (True, False), "col": (False, True), "both": (True, True)}
GUARD = 64


def spec_for(dtype: str, fmt: Format, direction: str, blocked: bool = True, norm: bool = False) -> QuantizeSpec:
    return QuantizeSpec(dtype, fmt.element, fmt.scale, fmt.vec, *DIRECTIONS[direction], blocked, norm)


def specs() -> list[QuantizeSpec]:
    return [spec_for(*options) for options in itertools.product(DTYPES, FORMATS.values(), DIRECTIONS, (True, False), (True, False))]


def label(spec: QuantizeSpec) -> str:
    flags = "".join(c for c, on in zip("rcbn", (spec.along_rows, spec.along_columns, spec.blocked, spec.norm), strict=True) if on)
    return f"{spec.dtype}-{spec.element[7:]}-{spec.scale[7:]}-{spec.vec}-{flags}"


class Output:
    """Bytes (lines, inner, L) in guarded memory with gaps between the lines."""

    def __init__(self, lines: int, inner: int, batches: int, unit: int, device: str):
        line = -(-inner // unit) * unit + unit * random.randint(0, 2)
        self.guarded = torch.full((GUARD + batches * lines * line + GUARD,), 0x5A, dtype=torch.uint8, device=device)
        self.lines = self.guarded[GUARD:-GUARD].view(batches, lines, line)
        self.inner = inner
        self.tensor = self.lines[:, :, :inner].permute(1, 2, 0)

    def check(self, expected: torch.Tensor) -> None:
        """``expected``: (L, lines, inner)."""
        assert torch.equal(self.lines[:, :, : self.inner], expected)
        assert (self.guarded[:GUARD] == 0x5A).all() and (self.guarded[-GUARD:] == 0x5A).all() and (self.lines[:, :, self.inner :] == 0x5A).all()


def random_matrix(rows: int, columns: int, batches: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """(L, rows, columns): numbers of ordinary and of wild size, any bits at all, ties of every element dtype, zeros, and now and then infinity or NaN."""
    shape = batches, rows, columns
    width = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    kinds = [
        torch.randn(shape, device=device),
        torch.randn(shape, device=device) * torch.exp(torch.randn(batches, rows, 1, device=device) * 12),
        torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8, device=device).view(width).squeeze(-1).view(dtype).float(),
        torch.randint(-30, 30, shape, device=device) / 4.0,
        torch.zeros(shape, device=device),
    ]
    # Each 16 x 16 piece is of one kind, so that blocks in either direction are.
    pieces = torch.randint(0, len(kinds), (batches, -(-rows // 16), -(-columns // 16)), device=device)
    which = pieces.repeat_interleave(16, 1)[:, :rows].repeat_interleave(16, 2)[:, :, :columns]
    found = sum(torch.where(which == i, kind, 0.0) for i, kind in enumerate(kinds))
    rare = torch.rand(shape, device=device)
    found = torch.where(rare < 2e-4, math.nan, torch.where(rare > 1 - 2e-4, math.inf, found))
    return found.to(dtype)


class Case:
    """One problem: x, the tensors that are written, and what the reference says."""

    def __init__(self, spec: QuantizeSpec, rows: int, columns: int, batches: int, device: str = "cpu", x: torch.Tensor | None = None):
        from cudnn.reference import quantize_blocks, scales_to_blocked

        self.spec, dtype = spec, DTYPES[spec.dtype]
        unit = 16 // dtype.itemsize
        line = -(-columns // unit) * unit + unit * random.randint(0, 2)
        memory = torch.full((batches, rows, line), math.nan, dtype=dtype, device=device)
        memory[:, :, :columns] = random_matrix(rows, columns, batches, dtype, device) if x is None else x
        self.x = memory[:, :, :columns]
        fmt = next(f for f in FORMATS.values() if (f.element, f.scale, f.vec) == (spec.element, spec.scale, spec.vec))
        self.norm = torch.tensor([random.uniform(0.01, 100)], device=device) if spec.norm else None
        self.tensors, self.checks = [self.x.permute(1, 2, 0)], []
        for wanted, y in ((spec.along_rows, self.x), (spec.along_columns, self.x.transpose(1, 2))):
            if not wanted:
                continue
            data, scales = quantize_blocks(y, fmt, self.norm)
            data, scales = data.view(torch.uint8), scales.view(torch.uint8)
            if y is not self.x and fmt.packed == 1:
                data = data.transpose(1, 2)  # 8-bit elements stay in the order of x
            out = Output(data.shape[1], data.shape[2], batches, 8 // fmt.packed, device)
            layout = ScaleLayout(y.shape[1], y.shape[2], batches, spec.vec)
            if spec.blocked:
                where, expected = Output(1, layout.entries, 1, 16, device), scales_to_blocked(scales).view(1, 1, -1)
                form = where.lines[0, 0, : layout.entries]
            else:
                turned = y is not self.x
                expected = scales.transpose(1, 2) if turned else scales
                where = Output(expected.shape[1], expected.shape[2], batches, 1, device)
                form = where.lines[:, :, : where.inner].permute((2, 1, 0) if turned else (1, 2, 0))
            self.tensors += [out.tensor, form]
            self.checks += [(out, self.named(data), True), (where, expected, False)]
        if spec.norm:
            self.tensors.append(self.norm)

    def named(self, data: torch.Tensor) -> torch.Tensor:
        """Elements as bytes. Which NaN an fp8 NaN is, is left open: 0x7F stands for all."""
        if self.spec.element == "float4_e2m1fn":
            return data
        return torch.where(data.contiguous().view(getattr(torch, self.spec.element)).float().isnan(), 0x7F, data.int()).to(torch.uint8)

    def check(self) -> None:
        for out, expected, elements in self.checks:
            if elements:
                found = out.lines[:, :, : out.inner]
                found.copy_(self.named(found))
            out.check(expected)


def test_specs_are_told_apart_and_travel():
    found = specs()
    assert pickle.loads(pickle.dumps(found)) == found
    assert len({str(spec.fields()) for spec in found}) == len({spec.label for spec in found}) == len(found) == 3 * 5 * 3 * 2 * 2


def test_one_direction_at_least():
    with pytest.raises(ValueError, match="found neither direction, needs along_rows or along_columns"):
        QuantizeSpec("bfloat16", "float8_e4m3fn", "float8_e8m0fnu", 32, False, False).compile()


def on_host(spec: QuantizeSpec):
    """The kernel's class with what the hardware does in one instruction done by arithmetic, and what threads tell each other taken from memory.

    Every exchange has a place in ``history`` for what each thread gives. A thread that runs writes there and reads what others have written in the pass before, so after as many passes as there are
    exchanges all is known.
    """
    import cutlass.cute as cute
    from cutlass import Float32, Uint32

    from cudnn.cutedsl import block_scale
    from cudnn.cutedsl.quantize_kernel import UNIT, Quantize

    class OnHost(Quantize):
        def bind(self, history, shared, thread):
            self.history, self.memory, self.thread, self.level = history, shared, thread, 0

        def told(self, values, lanes):
            base = self.level * 256 * UNIT
            self.level += 1
            warp = self.thread // 32 * 32
            for i, value in enumerate(values):
                self.history[base + self.thread * UNIT + i] = value
            return [self.history[base + (warp + lane) * UNIT + i] for lane in lanes for i in range(len(values))]

        def exchanged(self, values, distance):
            lane = self.thread % 32
            return self.told(values, [lane ^ distance])

        def gathered(self, values, lanes):
            return [v.bitcast(Float32) for v in self.told([v.bitcast(Uint32) for v in values], lanes)]

        def larger(self, x, y):
            if self.wide:
                return super().larger(x, y)
            low, high = (block_scale.where(a > b, a, b) for a, b in ((x & 0xFFFF, y & 0xFFFF), (x >> 16, y >> 16)))
            return low | (high << 16)

        def to_fp8(self, values):
            mantissa, exponent, largest = (3, -6, 448.0) if spec.element == "float8_e4m3fn" else (2, -14, 57344.0)
            words = cute.make_rmem_tensor((2,), Uint32)
            words.fill(0)
            for j in range(UNIT):
                bits = values[j].bitcast(Uint32)
                size = bits & 0x7FFFFFFF
                code = block_scale.where(size > block_scale.INFINITY, 0x7F, block_scale.rounded(size, mantissa, exponent, largest))
                words[j // 4] = words[j // 4] | ((code | (bits >> 24 & 0x80)) << 8 * (j % 4))
            return words

        def shared_bytes(self):
            return self.memory

        def barrier(self):
            pass

    return OnHost(spec.dtype, spec.element, spec.scale, spec.vec, spec.along_rows, spec.along_columns, spec.blocked, spec.norm)


def run_on_host(case: Case) -> None:
    from cudnn.cutedsl.quantize_kernel import THREADS, TILE
    from cudnn.testing.host_kernels import run_threads

    kernel = on_host(case.spec)
    levels = (case.spec.along_rows + case.spec.along_columns) * (case.spec.vec // 16 + 1)
    history = torch.zeros(levels * THREADS * 8, dtype=torch.uint32)
    shared = torch.zeros(2048, dtype=torch.uint8)

    rows, columns, batches = case.tensors[0].shape
    tiles_r, tiles_c = -(-rows // TILE), -(-columns // TILE)

    def tile_of(block):
        return block // tiles_c % tiles_r, block % tiles_c, block // (tiles_r * tiles_c)

    def work(*arguments):
        *tensors, history, shared, block, thread, _ = arguments
        kernel.bind(history, shared, thread)
        kernel.work(tuple(tensors), *tile_of(block), thread)
        assert kernel.level == levels

    # One pass more for what goes through shared memory.
    run_threads(work, [*case.tensors, history, shared], tiles_r * tiles_c * batches, THREADS, passes=levels + 2)


# Each path of the code once: widths of x, of elements and of blocks; directions; layouts; with and without a norm constant.
PATHS = [
    spec_for("bfloat16", FORMATS["mxfp8"], "both"),
    spec_for("float16", FORMATS["mxfp8_e5m2"], "col", blocked=False, norm=True),
    spec_for("bfloat16", FORMATS["nvfp4"], "both", norm=True),
    spec_for("float32", FORMATS["mxfp4"], "both", blocked=False),
    spec_for("float16", FORMATS["mxfp4_v16"], "row"),
]


@pytest.mark.compile
@pytest.mark.parametrize("spec", PATHS, ids=label)
def test_threads_on_the_host(spec):
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed")
    packed_columns = spec.element == "float4_e2m1fn" and spec.along_columns
    rows = 8 * random.randint(1, 40) if packed_columns else random.randint(1, 300)
    case = Case(spec, rows, 8 * random.randint(1, 40), random.randint(1, 2))
    run_on_host(case)
    case.check()


@pytest.mark.compile
@pytest.mark.parametrize("spec", PATHS, ids=label)
def test_it_compiles(spec):
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed")
    assert len(spec.compile().object_bytes) > 1000


def gpu_specs() -> list[QuantizeSpec]:
    """bfloat16 in every format, direction and layout; the other dtypes in every format."""
    found = [spec for spec in specs() if spec.dtype == "bfloat16" and spec.norm != spec.blocked]
    return found + [spec for spec in specs() if spec.dtype != "bfloat16" and spec.along_rows and spec.along_columns and spec.blocked and spec.norm]


def needs_gpu() -> None:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a CUDA device of compute capability 9.0")


def run(case: Case) -> None:
    case.spec.build()(tuple(case.tensors), torch.cuda.current_stream().cuda_stream)
    case.check()


@pytest.mark.gpu
@pytest.mark.parametrize("spec", gpu_specs(), ids=label)
def test_equal_to_the_reference_in_every_bit(spec):
    needs_gpu()
    packed_columns = spec.element == "float4_e2m1fn" and spec.along_columns
    sizes = [(512, 512, 2), (8, 8, 1), (1000, 776, 1), (136, 2048, 3), (4096, 4096, 1)]
    sizes += [(8 * random.randint(1, 90), 8 * random.randint(1, 90), random.randint(1, 3)) for _ in range(6)]
    sizes += [] if packed_columns else [(1, 4096, 1), (random.randint(1, 300), 256, 2)]
    for rows, columns, batches in sizes:
        run(Case(spec, rows, columns, batches, "cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_16_bit_number_beside_every_power_of_two(fmt, dtype):
    """A row of blocks for each exponent, whose first element is the power and the others take each number that is not larger in turn."""
    needs_gpu()
    numbers = torch.arange(1 << 16, dtype=torch.int32, device="cuda").to(torch.int16).view(DTYPES[dtype])
    powers = torch.pow(2.0, torch.arange(-140, 128, device="cuda").double()).to(DTYPES[dtype])
    powers = powers[(powers > 0) & powers.isfinite()].unique()
    per_block = fmt.vec - 1
    blocks = -(-len(numbers) // per_block)
    padded = torch.nn.functional.pad(numbers.view(torch.int16), (0, blocks * per_block - len(numbers))).view(DTYPES[dtype]).view(1, blocks, per_block)
    top = powers.view(-1, 1, 1)
    others = torch.where(padded.abs() <= top, padded, top).expand(len(powers), -1, -1)
    x = torch.cat([top.expand(-1, blocks, 1), others], dim=-1).flatten(1)
    run(Case(spec_for(dtype, fmt, "row"), *x.shape, 1, "cuda", x.unsqueeze(0)))


@pytest.mark.gpu
def test_beyond_two_to_the_31():
    """Offsets in 64 bits: 2.2e9 elements in both directions, of which the last rows are compared."""
    needs_gpu()
    from cudnn.reference import quantize_blocks, scales_to_blocked

    rows, columns = 66_048, 33_024
    x = torch.randn(rows, columns, 1, dtype=torch.bfloat16, device="cuda")
    spec = spec_for("bfloat16", FORMATS["mxfp8"], "both")
    data = [torch.empty(rows, columns, 1, dtype=torch.uint8, device="cuda") for _ in range(2)]
    layouts = ScaleLayout(rows, columns, 1, 32), ScaleLayout(columns, rows, 1, 32)
    scales = [torch.empty(layout.entries, dtype=torch.uint8, device="cuda") for layout in layouts]
    spec.build()((x, data[0], scales[0], data[1], scales[1]), torch.cuda.current_stream().cuda_stream)
    for first in (0, 65_920):
        part = x[first : first + 128, :, 0]
        elements, factors = quantize_blocks(part, FORMATS["mxfp8"])
        assert torch.equal(data[0][first : first + 128, :, 0], elements.view(torch.uint8))
        atoms = scales[0].view(layouts[0].physical_shape)[0, first // 128]
        assert torch.equal(atoms, scales_to_blocked(factors).view(torch.uint8)[0, 0])
        elements, factors = quantize_blocks(part.t(), FORMATS["mxfp8"])
        assert torch.equal(data[1][first : first + 128, :, 0], elements.view(torch.uint8).t())
        atoms = scales[1].view(layouts[1].physical_shape)[0, :, first // 128]
        assert torch.equal(atoms, scales_to_blocked(factors).view(torch.uint8)[0, :, 0])
