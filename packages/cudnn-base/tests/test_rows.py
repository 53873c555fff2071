"""Rows taken by index, and gate and up in neighbouring columns: the arithmetic here, the kernels on a GPU."""

from __future__ import annotations

import importlib.util
import itertools
import os
import pickle

import pytest

from cudnn.cutedsl.rows import GatherRowsSpec, ScatterRowsSpec, SumRowsSpec, ZeroTailSpec

SPECS = [
    GatherRowsSpec("bfloat16"),
    GatherRowsSpec("float16", scaled=True),
    GatherRowsSpec("bfloat16", dot=True, other_dtype="bfloat16"),
    GatherRowsSpec("bfloat16", scaled=True, dot=True, other_index=True, other_dtype="float32"),
    ScatterRowsSpec("bfloat16"),
    SumRowsSpec("bfloat16"),
    SumRowsSpec("bfloat16", weighted=True),
    SumRowsSpec("float16", weighted=True, ragged=True),
    ZeroTailSpec("bfloat16"),
]


@pytest.fixture(autouse=True)
def seed():
    """A fresh seed for every test, printed with a failure; PYTEST_SEED=N repeats one."""
    value = int(os.environ.get("PYTEST_SEED") or int.from_bytes(os.urandom(4), "little"))
    print(f"PYTEST_SEED={value}")
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.manual_seed(value)


def test_specs_are_told_apart_and_travel():
    assert pickle.loads(pickle.dumps(SPECS)) == SPECS
    assert len({str(spec.fields()) for spec in SPECS}) == len({spec.label for spec in SPECS}) == len(SPECS)
    assert SPECS[3].label == "gather_rows bfloat16 scaled dot other_index" and (SPECS[5].op, SPECS[5].arch) == ("sum_rows", "sm_90a")


@pytest.mark.compile
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.label)
def test_they_compile(spec):
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed")
    assert len(spec.compile().object_bytes) > 1000


class Warp:
    """32 lanes in NumPy, with the two operations that the device code is handed."""

    def __init__(self):
        self.np = pytest.importorskip("numpy", reason="lanes are NumPy arrays here")
        self.lane = self.np.arange(32)

    def select(self, condition, x, y):
        return self.np.where(condition, x, y)

    def shuffle(self, value, lane):
        assert ((lane >= 0) & (lane < 32)).all() and len(set(lane)) == 32, "each lane gives one value and takes one"
        return value[lane]


def test_pairs_become_the_columns_of_a_slab_and_back():
    """The registers of all 32 lanes, for both rows and every column: where the matrix instruction has them, a thread's register r of a slab is row r // 2 % 2 and column 8 (r // 4) + 2 q + r % 2."""
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed")
    from cudnn.cutedsl.epilogue.alternating import PAIRS, pairs_of_slab, slab_of_pairs

    warp = Warp()
    quad, row = warp.lane % 4, warp.lane // 4

    def element(register):
        return row + 8 * (register // 2 % 2), 8 * (register // 4) + 2 * quad + register % 2

    # A number for each pair: of two slabs of 32 columns each, columns 2 i and 2 i + 1 are pair i.
    values, seen = [], set()
    for p in range(PAIRS):
        (rows, gate), (same, up) = (element(2 * (p % 8) + i) for i in range(2))
        gate, up = gate + 32 * (p // 8), up + 32 * (p // 8)
        assert (rows == same).all() and (gate % 2 == 0).all() and (up == gate + 1).all()
        values.append(32 * rows + gate // 2)
        seen |= set(values[-1].tolist())
    assert len(seen) == 16 * 32
    slab: dict = {}
    slab_of_pairs(values, slab, warp.lane, warp.select, warp.shuffle)
    for register in range(16):
        rows, columns = element(register)
        assert (slab[register] == 32 * rows + columns).all()
    back: dict = {}
    pairs_of_slab(slab, back, warp.lane, warp.select, warp.shuffle)
    assert all((back[p] == values[p]).all() for p in range(PAIRS))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if request.param == "cuda" and (not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0)):
        pytest.skip("needs a CUDA device of compute capability 9.0")
    return request.param


def poisoned(torch, rows, columns, dtype, device):
    """A view in a buffer of NaN, with a pitch of its own; and the buffer."""
    buffer = torch.full((rows + 4, columns + 16), float("nan"), dtype=dtype, device=device)
    return buffer[2 : 2 + rows, 8 : 8 + columns], buffer


def untouched(buffer, rows, columns):
    around = buffer.clone()
    around[2 : 2 + rows, 8 : 8 + columns] = float("nan")
    return bool(around.isnan().all())


def some_index(torch, count, rows, device):
    """Rows, one twice and one never where there are several, and numbers that are no rows."""
    index = torch.randint(-1, rows + 1, (count,), dtype=torch.int32, device=device)
    index[: count // 8] = torch.tensor([-1, rows, 2**31 - 1, -(2**31)], device=device, dtype=torch.int32).repeat(count)[: count // 8]
    return index


def run(device, spec, tensors, *scalars):
    """The kernel, or on a CPU what stands for it."""
    import torch

    if device == "cuda":
        spec.build()(tuple(tensors), *scalars, torch.cuda.current_stream().cuda_stream)
        return
    from cudnn.reference import rows as reference

    source, index, out, *rest = [*tensors, None]
    if isinstance(spec, GatherRowsSpec):
        scale = rest.pop(0) if spec.scaled else None
        other = rest.pop(0) if spec.dot else None
        found, dot = reference.gather_rows(source, index, scale, other, rest.pop(0) if spec.other_index else None)
        out.copy_(found)
        if spec.dot:
            rest[0].copy_(dot)
    elif isinstance(spec, ScatterRowsSpec):
        reference.scatter_rows(source, index, out)
    elif isinstance(spec, SumRowsSpec):
        weight = rest.pop(0) if spec.weighted else None
        out.copy_(reference.sum_rows(source, index, *scalars, out.shape[0], weight, rest[0] if spec.ragged else None))
    else:
        reference.zero_tail(source, index)


def plain(source, index):
    """Rows in float64, one by one."""
    import torch

    rows = [source[i].double() if 0 <= i < len(source) else torch.zeros(source.shape[1], dtype=torch.float64, device=source.device) for i in index.tolist()]
    return torch.stack(rows) if rows else source.new_zeros(0, source.shape[1], dtype=torch.float64)


@pytest.mark.parametrize(("scaled", "dot", "other_index"), [(False, False, False), (True, False, False), (False, True, False), (True, True, True)])
@pytest.mark.parametrize("rows_columns", [(50, 64, 200), (1, 8, 3), (7, 2056, 40), (300, 4096, 33)])
def test_gather(device, rows_columns, scaled, dot, other_index):
    import torch

    have, columns, count = rows_columns
    dtype, wide = torch.bfloat16, torch.float32 if other_index else torch.bfloat16
    source, around = poisoned(torch, have, columns, dtype, device)
    source.copy_(torch.randn(have, columns, device=device))
    index, (out, buffer) = some_index(torch, count, have, device), poisoned(torch, count, columns, dtype, device)
    scale, other = torch.randn(count, device=device), torch.randn(5 if other_index else count, columns, device=device).to(wide)
    whose = torch.randint(0, 5, (count,), dtype=torch.int32, device=device)
    result = torch.full((count,), float("nan"), device=device)
    extra = [*([scale] if scaled else []), *([other] if dot else []), *([whose] if other_index else []), *([result] if dot else [])]
    spec = GatherRowsSpec("bfloat16", scaled=scaled, dot=dot, other_index=other_index, other_dtype=str(wide).removeprefix("torch.") if dot else None)
    run(device, spec, [source, index, out, *extra])
    wanted = plain(source, index)
    # One rounding of the product of two numbers that are exact.
    expected = (wanted * scale.double().unsqueeze(-1)).to(torch.float32).to(dtype) if scaled else wanted.to(dtype)
    assert torch.equal(out, expected) and untouched(buffer, count, columns) and untouched(around, have, columns)
    if dot:
        terms = wanted * (other[whose.long()] if other_index else other).double()
        # float32 sums of n terms in any order: n 2^-24 of the sum of magnitudes.
        assert ((result.double() - terms.sum(-1)).abs() <= (columns + 2) * 2**-24 * terms.abs().sum(-1)).all()
        again = torch.empty_like(result)
        run(device, spec, [source, index, out, *extra[:-1], again])
        assert torch.equal(again, result)


def test_scatter(device):
    import torch

    for have, rows, columns in ((40, 64, 136), (300, 300, 2048), (1, 1, 8)):
        source = torch.randn(have, columns, device=device).to(torch.bfloat16)
        index = torch.randperm(rows, device=device)[:have].int()
        index[torch.rand(have, device=device) < 0.2] = -1
        index[torch.rand(have, device=device) < 0.1] = rows
        out, buffer = poisoned(torch, rows, columns, torch.bfloat16, device)
        run(device, ScatterRowsSpec("bfloat16"), [source, index, out])
        written = torch.zeros(rows, dtype=torch.bool, device=device)
        for r, target in enumerate(index.tolist()):
            if 0 <= target < rows:
                assert torch.equal(out[target], source[r])
                written[target] = True
        assert out[~written].isnan().all() and untouched(buffer, rows, columns)


@pytest.mark.parametrize(("weighted", "ragged"), list(itertools.product((False, True), repeat=2)))
@pytest.mark.parametrize("sizes", [(64, 50, 4, 64), (3, 1, 1, 8), (500, 100, 8, 2056), (10, 30, 0, 64)])
def test_sums(device, sizes, weighted, ragged):
    import torch

    have, rows, count, columns = sizes
    places = rows * count
    source = torch.randn(have, columns, device=device).to(torch.bfloat16)
    index, weight = some_index(torch, places, have, device), torch.randn(places, device=device)
    # Some places in front of the first row and behind the last belong to none.
    first = torch.randint(0, places + 1, (rows + 1,)).sort().values.int().to(device)
    out, buffer = poisoned(torch, rows, columns, torch.bfloat16, device)
    spec = SumRowsSpec("bfloat16", weighted=weighted, ragged=ragged)
    extra = [*([weight] if weighted else []), *([first] if ragged else [])]
    run(device, spec, [source, index, out, *extra], 0 if ragged else count)
    terms = plain(source, index) * (weight.double().unsqueeze(-1) if weighted else 1)
    bounds = first.tolist() if ragged else [t * count for t in range(rows + 1)]
    wanted = torch.stack([terms[start:end].sum(0) for start, end in itertools.pairwise(bounds)])
    size = torch.stack([terms[start:end].abs().sum(0) for start, end in itertools.pairwise(bounds)])
    # float32 sums of n terms: n 2^-24 of the sum of magnitudes; and one rounding to bfloat16.
    bound = 2**-8 * wanted.abs() + (places + 2) * 2**-23 * size
    assert ((out.double() - wanted).abs() <= bound).all() and untouched(buffer, rows, columns)
    again = torch.empty_like(out)
    run(device, spec, [source, index, again, *extra], 0 if ragged else count)
    assert torch.equal(again, out)


def test_zero_tail(device):
    import torch

    for rows, columns, end in ((200, 64, 71), (130, 2056, 128), (64, 8, 64), (1, 8, 0), (70, 16, 0), (70, 16, -3), (70, 16, 500)):
        out, buffer = poisoned(torch, rows, columns, torch.bfloat16, device)
        out.fill_(3)
        ends = torch.tensor([0, max(end, 0) // 2, end], dtype=torch.int32, device=device)
        run(device, ZeroTailSpec("bfloat16"), [out, ends])
        expected = torch.full((rows, columns), 3.0, dtype=torch.bfloat16, device=device)
        expected[max(end, 0) :] = 0
        assert torch.equal(out, expected) and untouched(buffer, rows, columns)


def test_gate_and_up_in_neighbouring_columns():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from cudnn.reference import join_gate_up, split_gate_up

    x = torch.arange(24).view(2, 12)
    gate, up = split_gate_up(x, "alternating")
    assert torch.equal(gate, x[:, ::2]) and torch.equal(up, x[:, 1::2])
    assert torch.equal(join_gate_up(gate, up, "alternating"), x) and torch.equal(join_gate_up(gate, up, "alternating", dim=-1), x)
    with pytest.raises(ValueError, match="needs an even one"):
        split_gate_up(x[:, :11], "alternating")


@pytest.mark.gpu
def test_matrices_of_more_than_2_31_elements():
    """Rows behind the first 4 GiB, read, written and added up."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a CUDA device of compute capability 9.0")
    rows, columns = 2**19 + 10, 4096
    big = torch.zeros(rows, columns, dtype=torch.bfloat16, device="cuda")
    some = torch.tensor([rows - 1, 0, 2**19, 2**19 - 1, rows - 7], dtype=torch.int32, device="cuda")
    values, out = torch.randn(5, columns, device="cuda").bfloat16(), torch.empty(5, columns, dtype=torch.bfloat16, device="cuda")
    run("cuda", ScatterRowsSpec("bfloat16"), [values, some, big])
    assert torch.equal(big[some.long()], values) and int(big.any(1).sum()) == 5
    run("cuda", GatherRowsSpec("bfloat16"), [big, some, out])
    assert torch.equal(out, values)
    total = torch.empty(1, columns, dtype=torch.bfloat16, device="cuda")
    run("cuda", SumRowsSpec("bfloat16"), [big, some[:1], total], 1)
    assert torch.equal(total, values[:1])
    run("cuda", ZeroTailSpec("bfloat16"), [big, torch.tensor([rows - 1], dtype=torch.int32, device="cuda")])
    assert not big[-1].any() and torch.equal(big[some[1:].long()], values[1:])
