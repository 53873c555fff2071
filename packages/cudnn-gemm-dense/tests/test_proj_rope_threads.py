"""The epilogue of projection + RoPE + MXFP8 as it stands, run by 128 Python threads: the lines of the device code with numbers for values, waiting for each other where a warp shuffles and where the warpgroup has its barrier."""

from __future__ import annotations

import itertools
import threading
import types

import numpy as np
import pytest
import torch

from cudnn_gemm_dense.proj_rope_mxfp8.reference import quantized, rotated
from cudnn_gemm_dense.proj_rope_mxfp8.shapes import OUTPUTS

pytest.importorskip("cutlass", reason="the epilogue needs the DSL")
from cudnn.cutedsl.epilogue.op import Place  # noqa: E402
from cudnn_gemm_dense.proj_rope_mxfp8 import epilogue  # noqa: E402

THREADS, WARP = 128, 32
F32 = np.float32


class Memory:
    """Values at coordinates: a flat array, where it begins, and a layout. A None in a coordinate leaves an axis."""

    def __init__(self, data, shape, stride, first: int = 0):
        self.data, self.shape, self.stride, self.first = data, shape, stride, first

    @property
    def iterator(self):
        return self

    def offset(self, coordinate) -> int:
        coordinate = coordinate if isinstance(coordinate, tuple) else (coordinate,)
        assert len(coordinate) == len(self.shape)
        assert all(0 <= int(c) < extent for c, extent in zip(coordinate, self.shape, strict=True) if c is not None), f"{coordinate} is outside of {self.shape}"
        return self.first + sum(int(c) * step for c, step in zip(coordinate, self.stride, strict=True) if c is not None)

    def __getitem__(self, coordinate):
        if isinstance(coordinate, tuple) and None in coordinate:
            left = [i for i, c in enumerate(coordinate) if c is None]
            return Memory(self.data, tuple(self.shape[i] for i in left), tuple(self.stride[i] for i in left), self.offset(coordinate))
        return self.data[self.offset(coordinate)]

    def __setitem__(self, coordinate, value) -> None:
        self.data[self.offset(coordinate)] = value

    def load(self) -> Vector:
        return Vector(self.data.copy())

    def store(self, values: Vector) -> None:
        self.data[:] = values.data


class Vector:
    """What registers give when they are loaded at once."""

    def __init__(self, data):
        self.data = data

    def to(self, dtype) -> Vector:
        return Vector(dtype(self.data))


def to_bfloat16(data: np.ndarray) -> np.ndarray:
    return torch.from_numpy(data).bfloat16().float().numpy()


class Warpgroup:
    """128 threads: a meeting for each shuffle of a warp and each barrier of all. A value that is exchanged has a place for each meeting, so that one wait is enough."""

    def __init__(self):
        self.local = threading.local()
        self.everyone = threading.Barrier(THREADS)
        self.warps = [threading.Barrier(WARP) for _ in range(THREADS // WARP)]
        self.exchanged: list[dict[int, list]] = [{} for _ in self.warps]

    def barrier(self, barrier_id, number_of_threads) -> None:
        assert (barrier_id, number_of_threads) == (1, THREADS)
        self.everyone.wait(60)

    def shuffle(self, value, lane):
        thread, meeting = self.local.thread, self.local.meeting
        self.local.meeting += 1
        assert 0 <= lane < WARP
        self.exchanged[thread // WARP].setdefault(meeting, [None] * WARP)[thread % WARP] = value
        self.warps[thread // WARP].wait(60)
        return self.exchanged[thread // WARP][meeting][lane]

    def across(self, value, distance):
        return self.shuffle(value, self.local.thread % WARP ^ distance)

    def run(self, work) -> None:
        errors: list[BaseException] = []

        def one(thread: int) -> None:
            self.local.thread, self.local.meeting = thread, 0
            try:
                work(thread)
            except BaseException as error:  # reported by the test's own thread
                errors.append(error)
                for barrier in (self.everyone, *self.warps):
                    barrier.abort()

        threads = [threading.Thread(target=one, args=(thread,)) for thread in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])


@pytest.fixture
def group(monkeypatch) -> Warpgroup:
    """The names that the epilogue's module has of the DSL, made of numbers."""
    group = Warpgroup()

    def make_rmem_tensor(shape, dtype):
        strides = tuple(int(np.prod(shape[:i])) for i in range(len(shape)))
        return Memory(np.full(int(np.prod(shape)), np.nan, F32), shape, strides)

    def recast_ptr(pointer, dtype):
        return pointer

    def make_layout(shape, stride):
        return shape, stride

    def make_tensor(pointer, layout):
        # Shared memory here is an array of float32 at a byte.
        data, first = (pointer.data, pointer.first) if isinstance(pointer, Memory) else (pointer.array, pointer.byte // 4)
        return Memory(data, *layout, first)

    def autovec_copy(source, target):
        assert source.shape == target.shape
        for coordinate in itertools.product(*map(range, source.shape)):
            target[coordinate] = source[coordinate]

    def fmax(a, b, nan=False):
        assert nan
        return np.maximum(a, b)

    cute = types.SimpleNamespace(
        make_rmem_tensor=make_rmem_tensor,
        recast_ptr=recast_ptr,
        make_layout=make_layout,
        make_tensor=make_tensor,
        autovec_copy=autovec_copy,
        arch=types.SimpleNamespace(barrier=group.barrier, fmax=fmax),
        math=types.SimpleNamespace(abs=np.abs),
    )
    fakes = {
        "cute": cute,
        "cutlass": types.SimpleNamespace(range_constexpr=range),
        "BFloat16": to_bfloat16,
        "Float32": F32,
        "Uint8": lambda x: int(x),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(epilogue, name, fake)
    shuffles = {"shuffle": group.shuffle, "across": group.across, "select": lambda c, a, b: a if c else b, "magnitude": np.abs}
    for name, fake in shuffles.items():
        monkeypatch.setattr(epilogue.Warp, name, staticmethod(fake))
    for cls in (epilogue.BoundRowScales, epilogue.BoundColumnScales):
        for name, function in list(vars(cls).items()):
            if hasattr(function, "__wrapped__"):
                monkeypatch.setattr(cls, name, function.__wrapped__)
    return group


class Pointer:
    def __init__(self, array: np.ndarray, byte: int = 0):
        self.array, self.byte = array, byte

    def __add__(self, count: int) -> Pointer:
        return Pointer(self.array, self.byte + count)


def position(thread: int, register: int) -> tuple[int, int]:
    """Row of a block of 64 and column of a slab, as the matrix instruction's accumulators lie."""
    return thread // 32 * 16 + thread % 32 // 4 + 8 * (register // 2 % 2), 8 * (register // 4) + 2 * (thread % 4) + register % 2


class Visit:
    """One visit as ``cudnn.cutedsl.epilogue.driver.Visit`` has it: slabs that it stores go to matrices."""

    def __init__(self, fusion, group, thread, place, parts, accumulators, tables, stored):
        self.fusion, self.group, self.thread, self.place, self.parts, self.position = fusion, group, thread, place, parts, place.n
        self.values = [self.of(accumulators[:, 32 * s : 32 * s + 32]) for s in range(fusion.slabs)]
        self.tables, self.stored, self.requests = tables, stored, list(fusion.requests(place.n))
        self.stores = 0

    def of(self, block: np.ndarray) -> Memory:
        return Memory(np.array([block[position(self.thread, r)] for r in range(16)], F32), (16,), (1,))

    def load(self) -> Memory:
        assert not self.stores, "all slabs are read before the first is stored"
        table, slab = self.requests.pop(0)
        return self.of(self.tables[table][self.place.row : self.place.row + 64, 32 * slab : 32 * slab + 32])

    def store(self, output: int, values: Memory, slab: int) -> None:
        matrix = self.stored[output]
        for r in range(16):
            row, column = position(self.thread, r)
            row, column = self.place.row + row, 32 * slab + column
            # The copy engine drops what lies outside.
            if row < matrix.shape[0] and column < matrix.shape[1]:
                matrix[row, column] = values[r]
        self.stores += 1
        # Every store is a barrier of the warpgroup.
        self.group.everyone.wait(60)


def test_the_device_code_writes_what_the_reference_does(group):
    """Two blocks of 64 tokens, one after the other through the same shared memory; then a block and a head that do not exist."""
    tokens, heads = 128, 1
    q = torch.randn(tokens, heads, 192) * torch.ldexp(torch.ones(tokens, heads, 192), torch.randint(-6, 7, (tokens, heads, 192)))
    q[:40, 0, :33] = 0
    angles = torch.rand(tokens + 64, 64) * 6.28
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
    tables = [t.float().numpy() for t in (cos, sin)]
    stored = [np.full((tokens, heads * 192), np.nan, F32) for _ in range(2)]
    row_scales, column_scales = np.full((tokens, heads, 6), 77, np.int64), np.full((tokens // 32, heads, 192), 77, np.int64)
    shared = np.full((4 + 2) * 192, np.nan, F32)
    fusion = epilogue.ProjRopeMxfp8.__new__(epilogue.ProjRopeMxfp8)
    assert epilogue.ColumnScales(5).shared_bytes(None) == shared.nbytes

    def flat(t: np.ndarray) -> Memory:
        return Memory(t.reshape(-1), t.shape, tuple(step // t.itemsize for step in t.strides))

    def work(thread: int) -> None:
        parts = (epilogue.BoundRowScales(flat(row_scales), thread), epilogue.BoundColumnScales(flat(column_scales), Pointer(shared), thread, 1))
        for row, head in ((0, 0), (64, 0), (128, 0), (0, 1)):
            place = Place(row, tokens, head, heads * 192, 0, 0)
            exists = row < tokens and head < heads
            accumulators = q[row : row + 64, head].numpy() if exists else np.ones((64, 192), F32)
            visit = Visit(fusion, group, thread, place, parts, accumulators, tables, stored)
            fusion.visit(visit)
            assert visit.stores == fusion.stores_per_visit and not visit.requests

    group.run(work)
    z = rotated(q.bfloat16().float(), cos[:tokens], sin[:tokens])
    expected = dict(zip(OUTPUTS, quantized(z), strict=True))
    for found, name in zip(stored, ("out_fp8_row", "out_fp8_col"), strict=True):
        codes = torch.from_numpy(found).reshape(tokens, heads, 192).to(torch.float8_e4m3fn)
        assert torch.equal(codes.view(torch.uint8), expected[name].view(torch.uint8)), name
    for found, name in ((row_scales, "out_scales_row"), (column_scales, "out_scales_col")):
        assert np.array_equal(found, expected[name].numpy()), name
