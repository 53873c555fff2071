"""What is measured, what is chosen, and what is skipped."""

from __future__ import annotations

import json
import logging

import pytest
import torch

import cudnn
from cudnn.cache import settings
from cudnn.tuning import copies, state, table
from cudnn.tuning.tuner import FINALISTS, REPEATS, SCREENING_ROUNDS


def test_the_fastest_is_chosen_used_and_kept(toy, gpu, names, kernels):
    clock = gpu({64: 30.0, 128: 20.0, 256: 10.0})
    operation, x, out = toy()
    before = x.clone()
    (result,) = cudnn.tune(operation, x, out)
    assert torch.equal(out, 2 * before) and torch.equal(x, before)
    assert (result.best, result.default) == (names.config(256), names.config(128))
    assert (result.best_us, result.default_us, result.speedup) == (10.0, 20.0, 2.0)
    assert operation.adopted == {(40, 24): names.config(256)} and operation.ran == [names.config(256)]
    assert [c.config.tile_n for c in result.candidates] == [256, 128, 64] and result.skipped == ()
    # Rounds of all in turn; then those within reach of the best, and the default one.
    assert clock.estimated == [128, 64, 256] * SCREENING_ROUNDS
    assert sorted(clock.prepared) == [128, 256] and clock.repeats == REPEATS
    assert result.candidates[2].us is None and result.candidates[2].screened_us == pytest.approx(30.0, rel=0.03)
    path = settings.directory() / "tuned" / f"nvidia-h200-{cudnn.__version__}.json"
    assert result.kept == str(path)
    data = json.loads(path.read_text())
    assert (data["device"], data["version"], len(data["entries"])) == (names.device, cudnn.__version__, 1)
    (kept,) = data["entries"]
    assert (kept["op"], kept["problem"], kept["extents"]) == ("toy", {}, [64, 64, 8, 1])
    assert kept["config"]["tile_n"] == 256 and kept["default"]["tile_n"] == 128 and (kept["us"], kept["default_us"]) == (10.0, 20.0)
    assert kept["about"]["extents"] == [40, 24, 8, 1] and "cudnn-base" in kept["about"]["versions"]
    found = table.lookup("toy_kernels", names.device, "toy", kernels.Problem(), kernels.Options(), fits=lambda c: True)
    assert found == {table.bucket(40, 24, 8, 1): names.config(256)}
    text = str(result)
    assert "128x256-cluster1x1-m8 10.0 us, default 128x128-cluster1x1-m8 20.0 us (2.000x; 3 tried, " in text
    assert json.loads(json.dumps(result.as_dict()))["best"]["tile_n"] == 256


def test_what_fails_or_is_wrong_is_skipped_with_the_reason(toy, gpu, names, caplog):
    gpu({n: float(n) for n in range(64, 257, 32)})
    candidates = tuple(map(names.config, (64, 96, 160, 192, 224, 256)))
    operation, x, out = toy(candidates=candidates)
    with caplog.at_level(logging.INFO, "cudnn"):
        (result,) = cudnn.tune(operation, x, out)
    assert result.best == names.config(64)
    reasons = {c.config.tile_n: c.reason for c in result.skipped}
    assert reasons == {
        96: "ValueError: no room for two pipeline stages",
        160: "RuntimeError: launch refused",
        192: "wrong: 960 of 960 elements differ from those of the default configuration",
        224: "wrong: 1 of 960 elements differ from those of the default configuration",
    }
    assert "(2.000x; 3 tried, 4 skipped, " in str(result) and all(c.us is None for c in result.skipped)


def test_a_kernel_that_writes_nothing_is_found_even_after_a_right_call(toy, gpu, names):
    gpu({128: 20.0, 192: 1.0})
    operation, x, out = toy(candidates=(names.config(192),))
    out.copy_(2 * x)
    (result,) = cudnn.tune(operation, x, out)
    assert result.best == names.config(128) and "960 of 960" in result.skipped[0].reason


def test_outputs_that_are_added_to(toy, gpu, names):
    """Each configuration starts from what the caller has there, and the call itself adds once."""
    gpu({64: 5.0, 128: 20.0, 192: 1.0, 224: 1.0})
    operation, x, out = toy(adds=True, candidates=tuple(map(names.config, (64, 192, 224))))
    expected = out + 2 * x
    (result,) = cudnn.tune(operation, x, out)
    assert torch.equal(out, expected)
    assert result.best == names.config(64) and {c.config.tile_n for c in result.skipped} == {192, 224}


@pytest.mark.parametrize("default, failure", [(96, "no room for two pipeline stages"), (160, "launch refused")])
def test_a_default_configuration_that_does_not_run_is_an_error(toy, gpu, names, default, failure):
    gpu({64: 1.0})
    operation, x, out = toy(default=names.config(default))
    with pytest.raises(RuntimeError, match=rf"toy 40x24x8: the default configuration 128x{default}-cluster1x1-m8 failed: .*{failure}"):
        cudnn.tune(operation, x, out)
    assert table.kept(names.device) == [] and operation.adopted == {}


@pytest.mark.parametrize(
    "times, built, best",
    [
        ({64: 100.0, 128: 100.9, 256: 101.0}, (128,), 128),  # the default is as fast as the best, nearly
        ({64: 100.0, 128: 102.0, 256: 100.9}, (128, 256), 256),  # one that is built anyway is
        ({64: 100.0, 128: 102.0, 256: 100.9}, (128,), 64),
        ({64: 100.0, 128: 150.0, 256: 101.1}, (128, 256), 64),
    ],
)
def test_a_hair_of_speed_is_not_worth_another_kernel(toy, gpu, names, times, built, best):
    gpu(times)
    operation, x, out = toy(built=tuple(map(names.config, built)))
    (result,) = cudnn.tune(operation, x, out)
    assert result.best == names.config(best) and operation.adopted[40, 24] == names.config(best)


def test_only_the_best_of_the_screening_are_timed(toy, gpu, names):
    rough = {n: 10.0 + 0.1 * n for n in range(2 * FINALISTS)} | {128: 50.0}
    clock = gpu(dict.fromkeys(rough, 10.0) | {3: 5.0}, rough)
    operation, x, out = toy(candidates=tuple(map(names.config, rough)))
    (result,) = cudnn.tune(operation, x, out)
    assert sorted(clock.prepared) == [*range(FINALISTS), 128] and result.best == names.config(3)
    assert [c.config.tile_n for c in result.candidates if c.us is None] == [*range(FINALISTS, 2 * FINALISTS)]


def test_without_a_disk_store_results_serve_this_process(toy, gpu, names, kernels, monkeypatch):
    monkeypatch.setenv("CUDNN_KERNELS_CACHE", "0")
    gpu({64: 5.0, 96: 1.0, 128: 20.0})
    operation, x, out = toy(candidates=tuple(map(names.config, (64, 96))))
    (result,) = cudnn.tune(operation, x, out)
    assert result.kept is None and result.best == names.config(64)
    assert result.skipped[0].reason == "ValueError: no room for two pipeline stages"
    found = table.lookup("toy_kernels", names.device, "toy", kernels.Problem(), kernels.Options(), fits=lambda c: True)
    assert list(found.values()) == [names.config(64)]


def test_a_folder_that_cannot_be_written_is_told(toy, gpu, names, tmp_path, monkeypatch, caplog):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "tuned").write_text("in the way")
    gpu({64: 5.0, 128: 20.0, 256: 30.0})
    operation, x, out = toy()
    with caplog.at_level(logging.WARNING, "cudnn"):
        (result,) = cudnn.tune(operation, x, out)
    assert result.kept is None and [e.config for e in table.kept(names.device)] == [names.config(64)]
    assert "tuned results cannot be kept in" in caplog.text


def test_autotune_tunes_the_first_call_of_each_size(toy, gpu, names):
    clock = gpu({64: 5.0, 128: 20.0, 256: 30.0})
    operation, x, out = toy()
    larger, larger_out = torch.randn(300, 24), torch.empty(300, 24)
    operation(x, out)
    with cudnn.autotune(repeats=7) as results:
        for _ in range(3):
            operation(x, out)
            operation(larger, larger_out)
        similar = torch.randn(301, 24)  # another shape of the same bucket
        operation(similar, torch.empty_like(similar))
        other, other_out = torch.randn(40, 24), torch.empty(40, 24)
        toy()[0](other, other_out)  # another object for the same problem
    operation(torch.randn(9, 9), torch.empty(9, 9))
    assert [r.extents for r in results] == [(40, 24, 8, 1), (300, 24, 8, 1)] and clock.repeats == 7
    assert torch.equal(larger_out, 2 * larger) and torch.equal(other_out, 2 * other)
    assert operation.ran[0] == names.config(128) and operation.ran[1:7] == [names.config(64)] * 6 and operation.ran[-1] == names.config(128)
    with cudnn.autotune() as results:
        again = toy()[0]
        again(x, out)  # known from before
    assert results == [] and again.ran == [names.config(64)]
    with cudnn.autotune(again=True) as results:
        toy()[0](x, out)
    assert len(results) == 1
    assert len(cudnn.tune(toy()[0], x, out)) == 1


def test_a_function_of_several_operations(toy, gpu, names):
    gpu({64: 5.0, 128: 20.0, 256: 30.0})
    first, x, out = toy()
    second, y, out_y = toy(rows=500)

    def layer(x, *, scale):
        first(x, out)
        second(y * scale, out_y)

    results = cudnn.tune(layer, x, scale=3.0)
    assert [r.extents[0] for r in results] == [40, 500] and torch.equal(out_y, 2 * (y * 3.0))


def test_nothing_to_tune_says_why(toy, gpu):
    gpu({})
    operation, x, out = toy(why_not="it was built with config=..., which leaves nothing to choose")
    with pytest.raises(ValueError, match="Toy: nothing to tune: Toy: it was built with config=.*, which leaves nothing to choose"):
        cudnn.tune(operation, x, out)
    assert torch.equal(out, 2 * x)
    with pytest.raises(ValueError, match="neg: nothing to tune: none of its calls runs a GEMM kernel of ours"):
        cudnn.tune(torch.neg, x)
    with cudnn.autotune() as results:
        operation(x, out)
    assert results == []


def test_one_tuner_at_a_time(toy, gpu):
    gpu({64: 5.0, 128: 20.0, 256: 30.0})
    operation, x, out = toy()
    with cudnn.autotune():
        with pytest.raises(RuntimeError, match="a tuner at work already"):
            cudnn.tune(operation, x, out)
    with pytest.raises(ZeroDivisionError), cudnn.autotune():
        1 / 0  # noqa: B018
    assert state.active is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_refused(toy):
    operation, x, out = toy()
    with pytest.raises(RuntimeError, match="cudnn.tune measures kernels on a GPU, and torch .* sees none here"):
        cudnn.tune(operation, x, out)
    with pytest.raises(RuntimeError, match="cudnn.autotune measures kernels on a GPU"), cudnn.autotune():
        raise AssertionError
    assert operation.ran == []


def test_copies_have_the_same_layout_in_memory_of_their_own():
    base = torch.randn(4, 50)
    for t in (base[:, 3:20], base.t()[2:7], base.as_strided((3, 2, 1), (7, 1, 99), 4), base[1].expand(6, 50), torch.empty(0, 3)):
        made = copies.copy_of(t)
        assert made.shape == t.shape and made.stride() == t.stride() and torch.equal(made, t)
        if t.numel():
            made[(0,) * made.dim()] = 77.0
            assert not (t == 77.0).any()
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.uint8, torch.int32):
        t = torch.arange(12).reshape(3, 4).to(dtype).t()
        made = copies.copy_of(t)
        assert copies.can_poison(t) == (dtype != torch.int32)
        copies.poison(made)
        assert copies.disagreement(made, t, 2.0**-12) is not None and copies.disagreement(copies.copy_of(t), t, 2.0**-12) is None
    assert copies.set_count([torch.empty(3, 3)]) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_what_two_configurations_may_differ_by(dtype):
    exact = torch.randn(200, 300, dtype=torch.float64)
    one, other = exact.to(dtype), (exact * (1 + 1e-6 * torch.randn_like(exact))).to(dtype)
    assert copies.disagreement(other, one, 2.0**-12) is None
    wrong = one.clone()
    wrong[:70, 0] = (3 + exact[:70, 0]).to(dtype)
    assert copies.disagreement(wrong, one, 2.0**-12) == "70 of 60000 elements differ from those of the default configuration"
    if dtype.itemsize > 1:
        odd = one.clone()
        odd[5, 5] = float("nan")
        assert "1 of 60000" in copies.disagreement(odd, one, 2.0**-12) and "1 of 60000" in copies.disagreement(one, odd, 2.0**-12)
        assert copies.disagreement(odd, odd.clone(), 2.0**-12) is None
    infinite = one.clone()
    if dtype != torch.float8_e4m3fn:
        infinite[1, 1] = float("inf")
        assert copies.disagreement(infinite, infinite.clone(), 2.0**-12) is None


def test_a_second_thread_waits_for_the_result(toy, gpu, names):
    import threading

    gpu({64: 5.0, 128: 20.0, 256: 30.0})
    operations = [toy() for _ in range(4)]
    with cudnn.autotune() as results:
        threads = [threading.Thread(target=operation, args=(x, out)) for operation, x, out in operations]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 1 and all(torch.equal(out, 2 * x) for _, x, out in operations)
