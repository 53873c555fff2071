"""What the roles of the GEMM kernel agree on, seen without a GPU: registers, and the order of steps along K."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("cutlass", reason="the CuTe DSL is not installed")
pytestmark = pytest.mark.compile


@pytest.mark.parametrize(("consumers", "converters"), [(2, 0), (1, 0), (1, 3), (4, 0)])
def test_nobody_waits_for_registers_that_are_not_there(consumers, converters):
    """A launch gives every thread the same; what consumers ask for beyond it the producer must have given back, in steps of 8."""
    from cudnn.cutedsl.gemm.sm90 import PRODUCER_REGISTERS, consumer_registers

    warpgroups = 1 + consumers + converters
    launched = min(65536 // (128 * warpgroups), 255) // 8 * 8
    asked = consumer_registers(consumers, converters)
    assert asked % 8 == PRODUCER_REGISTERS % 8 == 0 and asked <= 255
    assert PRODUCER_REGISTERS + consumers * asked + converters * launched <= warpgroups * launched


@pytest.mark.parametrize(("split", "clusters"), [(1, 132), (2, 66), (4, 32), (8, 15)])
def test_clusters_that_are_resident_at_once(split, clusters):
    """A grid of more would leave some to run alone, behind the others."""
    from cudnn.cutedsl.gemm.config import GemmConfig

    assert GemmConfig(128, 32, split_k=split, swap=True).resident_clusters(132) == clusters


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize(("rows", "split"), [(1, 1), (16, 2), (32, 4), (33, 1), (300, 2)])
def test_every_step_of_a_tile_once(rows, split, swap):
    """With few rows each tile begins elsewhere, and still takes every one of its steps once; with more rows they begin at the first."""
    import cutlass
    from cutlass import Int32

    from cudnn.cutedsl.gemm.config import GemmConfig
    from cudnn.cutedsl.gemm.scheduler import FEW_ROWS, DenseScheduler, step_at
    from cudnn.testing.host_kernels import run_threads

    columns, steps, tile_k = 1000, 11, 64
    scheduler = DenseScheduler(GemmConfig(64, 128, split_k=split, swap=swap), tile_k)
    m, n = (columns, rows) if swap else (rows, columns)
    tiles_m, tiles_n = -(-m // 64), -(-n // 128)
    found = torch.full((tiles_m * tiles_n * split, steps), -1, dtype=torch.int32)

    def work(found, block, thread, number):
        arguments = (Int32(tiles_m), Int32(tiles_n), Int32(tiles_m * tiles_n), Int32(steps), Int32(m), Int32(rows))
        tile = scheduler.tile(arguments, block // split, Int32(0), Int32(0), block % split)
        step = step_at(tile, thread)
        found[block * steps + thread] = cutlass.select_(thread < tile.k_tiles, tile.k // tile_k + step, Int32(-1))

    run_threads(work, [found.view(-1)], found.shape[0], steps)
    found = found.view(tiles_m * tiles_n, split * steps)
    assert torch.equal(found.sort(1).values[:, -steps:], torch.arange(steps, dtype=torch.int32).expand(len(found), steps))
    assert (found >= 0).sum() == found.shape[0] * steps
    firsts = found[:, 0].unique()
    assert len(firsts) == 1 if rows > FEW_ROWS else len(firsts) > 1


@pytest.mark.parametrize(
    ("tiles_m", "tiles_n", "a", "b"), [(1, 64, "last", "first"), (64, 1, "first", "last"), (1, 1, "last", "first"), (2, 64, "normal", "normal")]
)
def test_what_l2_is_to_hold(tiles_m, tiles_n, a, b):
    """Where every cluster reads one operand and a single one each line of the other, that one is to go first. The words are those that `createpolicy.fractional` gives for a fraction of 1."""
    from cutlass import Int32, Int64

    from cudnn.cutedsl.gemm.config import GemmConfig
    from cudnn.cutedsl.gemm.scheduler import DenseScheduler
    from cudnn.testing.host_kernels import run_threads

    scheduler = DenseScheduler(GemmConfig(64, 128), 64)
    words = {"normal": 0x1000000000000000, "first": 0x12F0000000000000, "last": 0x14F0000000000000}
    found = torch.zeros(2, dtype=torch.int64)

    def work(found, block, thread, number):
        one, other = scheduler.cache_policies((Int32(tiles_m), Int32(tiles_n), Int32(tiles_m * tiles_n), Int32(3), Int32(1), Int32(1)))
        found[0], found[1] = Int64(one), Int64(other)

    run_threads(work, [found], 1, 1)
    assert found.tolist() == [words[a], words[b]]
