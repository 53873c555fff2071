"""Measuring: what is timed, what is refused, what the numbers mean."""

from __future__ import annotations

import math

import pytest

from cudnn.bench import run

torch = pytest.importorskip("torch", reason="benchmarks work on torch tensors")


class TestShapes:
    def test_sets_sizes_and_the_default(self, toy):
        parse = toy.bench.parse_shapes
        assert parse(None) == [("large", (64, 32)), ("large", (32, 64))]
        assert parse("small-m, 7x9,large") == [("small-m", (1, 64)), ("custom", (7, 9)), ("large", (64, 32)), ("large", (32, 64))]
        assert parse("32x64,large") == [("large", (32, 64)), ("large", (64, 32))]

    @pytest.mark.parametrize("text", ["huge", "64", "64x32x16", "0x32", "-1x3", "64x", "large,,"])
    def test_refuses(self, toy, text):
        with pytest.raises(ValueError, match=r"--shapes: found .*needs large or small-m, or MxK with positive numbers"):
            toy.bench.parse_shapes(text)


class TestChoose:
    def test_all_that_can_run(self, toy):
        chosen, left_out = run.choose(toy.bench, None)
        assert [c.name for c in chosen] == ["ours", "eager", "half", "broken", "nan", "raises", "frozen"]
        assert left_out == {"absent": "not installed (pip install absent)"}

    def test_named_and_none(self, toy):
        assert [c.name for c in run.choose(toy.bench, ["half"])[0]] == ["ours", "half"]
        assert [c.name for c in run.choose(toy.bench, [])[0]] == ["ours"]

    def test_configurations_take_the_place_of_the_default(self, toy):
        assert [c.name for c in run.choose(toy.bench, [], [{"tile": 64}, {"tile": 128}])[0]] == ["ours[tile=64]", "ours[tile=128]"]

    def test_named_and_absent(self, toy):
        with pytest.raises(RuntimeError, match="--against absent: not installed"):
            run.choose(toy.bench, ["absent"])
        with pytest.raises(run.UnknownCandidate, match="found 'cutlass', toy_double has eager, half"):
            run.choose(toy.bench, ["cutlass"])


class TestRow:
    def test_numbers(self, measured):
        (row, _), timer = measured()
        assert (row["set"], row["shape"], row["dtype"], row["flops"], row["bytes"]) == ("large", [64, 32], "bfloat16", 64e9, 32e6)
        # 64 GFLOP at 500 TFLOP/s are 128 us, 32 MB at 4 TB/s are 8 us.
        assert row["floor_us"] == pytest.approx(128.0)
        ours = row["candidates"]["ours"]
        assert ours["us"] == pytest.approx(100.0) and ours["tflops"] == pytest.approx(640.0) and ours["tb_s"] == pytest.approx(0.32)
        assert ours["us_p10"] == pytest.approx(92.0) and ours["us_p90"] == pytest.approx(108.0)
        assert ours["floor_share"] == pytest.approx(1.28)
        assert row["ratios"] == {"eager": pytest.approx(1.5), "half": pytest.approx(0.6)}
        assert row["gpu"] == {"sm_mhz": 1755, "power_w": 610.5}
        # After each shape the device is kept busy with the slowest candidate while its clocks are read.
        assert timer.order == [["ours", "eager", "half"], (2, pytest.approx(150.0))] * 2
        assert dict(timer.prepared) == {"ours": 2, "eager": 2, "half": 2}

    def test_the_memory_floor(self, measured):
        (row,), _ = measured(shapes="1x4000")
        assert row["floor_us"] == pytest.approx(1000.0)

    def test_what_is_wrong_has_no_time(self, measured):
        (row, _), _ = measured(("broken", "nan", "raises", "frozen", "eager"))
        entries = row["candidates"]
        assert {name: entry["status"] for name, entry in entries.items()} == {
            "ours": "ok",
            "broken": "wrong",
            "nan": "wrong",
            "raises": "failed",
            "frozen": "wrong",
            "eager": "ok",
        }
        assert not any("us" in entries[name] for name in ("broken", "nan", "raises", "frozen"))
        assert "relative error of 5.0" in entries["broken"]["reason"] and "the limit is" in entries["broken"]["reason"]
        assert entries["nan"]["reason"].startswith("y has a relative error of nan")
        assert entries["raises"]["reason"] == "MemoryError: no room for 3 stages"
        # Its first result was right; the timed calls left the poison where it was.
        assert entries["frozen"]["reason"].startswith("after the timed calls: y has a relative error of nan")
        assert set(row["ratios"]) == {"eager", "frozen"} - {"frozen"}
        assert [line.split(":")[0] for line in run.wrong([row])] == [f"64x32 bfloat16 {name}" for name in ("broken", "nan", "raises", "frozen")]

    def test_the_fastest_of_our_configurations_is_compared(self, measured):
        (row, _), _ = measured(configs=[{"tile": 64}, {"tile": 128}], timer=None)
        assert row["candidates"]["ours[tile=64]"]["us"] == pytest.approx(80.0)
        assert row["ratios"]["eager"] == pytest.approx(150.0 / 10.0)  # the clock shows 10 us for tile=128

    def test_our_own_yardstick_is_no_configuration_of_ours(self):
        entries = {"ours": {"us": 100.0}, "ours[tile=64]": {"us": 90.0}, "ours-plain": {"us": 45.0}, "peer": {"us": 180.0}, "failed": {"status": "failed"}}
        assert run._ratios(entries) == {"ours-plain": 0.5, "peer": 2.0}
        assert run._ratios({"peer": {"us": 1.0}}) == {}

    @pytest.mark.parametrize(("merged", "right"), [({"y": float("-inf")}, True), ({}, False)])
    def test_what_is_merged_into_is_not_poisoned(self, toy, measured, merged, right):
        """An output that grows from what it holds, as amax does: NaN in it would stay."""

        def bind(inputs):
            out = torch.full_like(inputs["x"], float("-inf"))
            return lambda: out.copy_(torch.maximum(out, inputs["x"] * 2))

        object.__setattr__(toy.bench, "peers", (run.Candidate("eager", "grows", bind, lambda out: {"y": out}, in_place=True, merged=merged),))
        (row, _), _ = measured(("eager",))
        assert (row["candidates"]["eager"]["status"] == "ok") == right

    def test_other_seeds_are_other_data(self, toy):
        a, b = (toy.bench.inputs((4, 4), "float32", "cpu", run._generator("cpu", seed))["x"] for seed in (1, 2))
        assert not torch.equal(a, b)

    def test_an_output_the_reference_does_not_have(self, toy, measured):
        bad = run.Candidate("eager", "odd", lambda inputs: lambda: inputs["x"], lambda out: {"z": out})
        object.__setattr__(toy.bench, "peers", (bad,))
        (row, _), _ = measured(("eager",))
        assert row["candidates"]["eager"]["reason"] == "RuntimeError: outputs ['z']: the reference has y"


class TestResult:
    def test_geometric_means_per_set_and_over_all(self, result):
        data = result(shapes="large,small-m")
        assert set(data["summary"]) == {"large", "small-m", "all"}
        assert data["summary"]["all"] == {"eager": pytest.approx(1.5)}  # "half" is a part of the work

    def test_geometric_and_not_arithmetic(self):
        rows = [{"set": "s", "ratios": {"p": r}, "candidates": {"p": {"whole": True}}} for r in (0.5, 2.0)]
        assert run.summarise(rows) == {"s": {"p": pytest.approx(1.0)}, "all": {"p": pytest.approx(1.0)}}

    def test_host_paths(self, result):
        host = {row["path"]: row for row in result()["host"]}
        assert host["Toy.execute"] == {"path": "Toy.execute", "status": "ok", "us": 6.0, "us_min": 5.0}
        assert "absent call" not in host
        assert host["raising call"]["reason"] == "MemoryError: no room for 3 stages"

    def test_is_json(self, result):
        import json

        data = result()
        assert json.loads(json.dumps(data)) == data
        assert data["schema"] == 1 and data["date"].endswith("Z") and data["rates"] == {"bfloat16": {"matmul_tflops": 500.0, "copy_tb_s": 4.0}}


class TestMerge:
    def test_replaces_what_was_measured_again_and_keeps_the_rest(self, result):
        old = result(shapes="large")
        new = result(shapes="32x64,small-m", times={"eager": 200.0})
        merged = run.merge(old, new)
        assert [(tuple(row["shape"]), round(row["ratios"]["eager"], 6)) for row in merged["rows"]] == [((64, 32), 1.5), ((32, 64), 2.0), ((1, 64), 2.0)]
        assert merged["summary"]["all"]["eager"] == pytest.approx((1.5 * 2 * 2) ** (1 / 3))
        assert merged["command"].count("\n") == 1

    def test_another_dtype_is_another_row(self, result):
        merged = run.merge(result(), result(dtype="float16"))
        assert len(merged["rows"]) == 4 and set(merged["rates"]) == {"bfloat16", "float16"}

    def test_refuses_what_does_not_belong_together(self, result):
        with pytest.raises(ValueError, match="the file has device NVIDIA H100, this run NVIDIA H200"):
            run.merge(result(device="NVIDIA H100"), result())
        with pytest.raises(ValueError, match="the file has op other"):
            run.merge({**result(), "op": "other"}, result())


def test_floor_is_the_longer_one():
    rates = {"matmul_tflops": 100.0, "copy_tb_s": 2.0}
    assert run.floor_us(1e12, 1.0, rates) == pytest.approx(1e4)
    assert run.floor_us(1.0, 2e6, rates) == pytest.approx(1.0)
    assert math.isfinite(run.floor_us(0.0, 0.0, rates))
