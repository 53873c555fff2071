"""Results on disk: what they are known by, and what becomes of files that are damaged, shared or too large."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

import cudnn
from cudnn.cache import settings
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.tuning import table


def lookup(kernels, names, **options):
    return table.lookup("toy_kernels", names.device, "toy", kernels.Problem(), kernels.Options(), **{"fits": lambda c: True, **options})


@pytest.mark.parametrize(
    "extents, expected",
    [
        ((1, 64, 64, 1), (1, 64, 64, 1)),
        ((3, 1, 1, 1), (4, 64, 1, 1)),
        ((64, 65, 65, 9), (64, 128, 80, 10)),
        ((65, 1000, 1000, 8), (128, 1024, 1024, 8)),
        ((1000, 4096, 4096, 16), (1024, 4096, 4096, 16)),
        ((4097, 28672, 8192, 1), (4608, 28672, 8192, 1)),
        ((131072, 16385, 7168, 128), (131072, 18432, 7168, 128)),
    ],
)
def test_buckets_round_up(extents, expected):
    assert table.bucket(*extents) == expected
    assert table.bucket(*expected) == expected


def test_buckets_are_at_most_a_few_percent_wide():
    previous = 0
    for m in range(1024, 70000, 7):
        rounded = table.bucket(m, 64, 64, 1).m
        assert m <= rounded <= 1.13 * m + 64 and rounded >= previous and rounded % 64 == 0
        previous = rounded


def test_problems_are_told_by_what_is_not_the_default():
    assert table.described(GemmProblem("bfloat16", "bfloat16")) == {"a_dtype": "bfloat16", "b_dtype": "bfloat16"}
    assert table.described(GemmProblem("float8_e4m3fn", "float8_e4m3fn", b_major="k", fast_accumulation=True)) == {
        "a_dtype": "float8_e4m3fn",
        "b_dtype": "float8_e4m3fn",
        "fast_accumulation": True,
    }

    @dataclass(frozen=True)
    class Older:
        d_dtype: str

    @dataclass(frozen=True)
    class Newer:
        d_dtype: str
        bias_dtype: str | None = None

    assert table.described(Older("float16")) == table.described(Newer("float16"))
    assert (
        table.problem_key("gemm", {}, {"x": 1, "y": 2}) == table.problem_key("gemm", {}, {"y": 2, "x": 1}) != table.problem_key("srelu", {}, {"x": 1, "y": 2})
    )


def test_entries_survive_the_file(entry, names, tmp_path):
    path = tmp_path / "deep" / "results.json"
    entries = [entry(), entry(m=2048, best=64, about={"date": "2026-11-30"}), entry(config=GemmConfig(64, 64, split_k=4, k_atoms=2))]
    assert table.write(path, names.device, entries) == 2  # the third replaces the first
    assert list(table.read(path)) == [entries[1], entries[2]]
    assert table.write(path, names.device, [entry(m=2048, best=96)]) == 2
    assert [e.config.tile_n for e in table.read(path)] == [64, 96]
    assert not list(path.parent.glob("*.tmp"))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 99, "entries": []}', '{"schema": 1}', '{"schema": 1, "entries": 3}'])
def test_files_that_are_none_of_ours_are_told_once(text, names, kernels, entry, caplog):
    path = table.kept_path(names.device)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with caplog.at_level(logging.WARNING, "cudnn"):
        assert lookup(kernels, names) == {} and lookup(kernels, names) == {}
    assert caplog.text.count("holds no tuned results and is not looked at") == 1
    table.remember(names.device, entry())
    assert list(lookup(kernels, names).values()) == [names.config(256)] and len(json.loads(path.read_text())["entries"]) == 1


def test_an_entry_that_cannot_be_read_is_left_out(names, kernels, entry, caplog):
    path = table.kept_path(names.device)
    table.write(path, names.device, [entry(), entry(m=500)])
    data = json.loads(path.read_text())
    data["entries"][0]["config"]["warps"] = 4
    data["entries"].append({"op": "toy"})
    path.write_text(json.dumps(data))
    with caplog.at_level(logging.WARNING, "cudnn"):
        assert list(lookup(kernels, names)) == [table.bucket(500, 64, 8, 1)]
    assert "an entry is left out: config: unknown field 'warps'" in caplog.text


def test_the_file_is_bounded(names, entry, monkeypatch):
    monkeypatch.setattr(table, "MAX_ENTRIES", 3)
    for m in (64, 128, 256, 512):
        table.remember(names.device, entry(m=m))
    assert [e.extents.m for e in table.read(table.kept_path(names.device))] == [128, 256, 512]
    assert [e.extents.m for e in table.kept(names.device)][:3] == [512, 256, 128]


def test_objects_are_compiled_in_few_further_configurations(names, kernels, entry):
    sizes = [64 * 2**i for i in range(table.MAX_CONFIGS + 2)]
    for i, m in enumerate(sizes):
        table.remember(names.device, entry(m=m, best=32 * (i + 1)))
    table.remember(names.device, entry(m=12800, best=128))
    first = table.bucket(sizes[0], 64, 8, 1)
    found = lookup(kernels, names, known=[names.config(128)], first=first)
    assert found[first] == names.config(32) and found[table.bucket(12800, 64, 8, 1)] == names.config(128)
    assert len({*found.values()} - {names.config(128)}) == table.MAX_CONFIGS
    # Without the wish, the newest results.
    assert first not in lookup(kernels, names, known=[names.config(128)])
    assert lookup(kernels, names, fits=lambda c: c.tile_n == 64) == {table.bucket(sizes[1], 64, 8, 1): names.config(64)}


def test_own_measurements_come_before_shipped_ones(names, kernels, entry, tmp_path, monkeypatch):
    package = tmp_path / "acme_kernels"
    (package / "tuned").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('not imported')")
    monkeypatch.syspath_prepend(tmp_path)
    table.write(package / "tuned" / "nvidia-h200.json", names.device, [entry(best=64), entry(m=500, best=64)], lock=False)
    table.write(package / "tuned" / "nvidia-h100-pcie.json", "NVIDIA H100 PCIe", [entry(best=96)], lock=False)
    assert sorted(path.name for path in (package / "tuned").iterdir()) == ["nvidia-h100-pcie.json", "nvidia-h200.json"]
    table.remember(names.device, entry(best=256))

    def found(device):
        return table.lookup("acme_kernels", device, "toy", kernels.Problem(), kernels.Options(), fits=lambda c: True)

    assert found(names.device) == {table.bucket(64, 64, 8, 1): names.config(256), table.bucket(500, 64, 8, 1): names.config(64)}
    assert found("NVIDIA H100 PCIe") == {table.bucket(64, 64, 8, 1): names.config(96)}
    assert found("NVIDIA H100 80GB HBM3") == {}
    assert table.shipped_configs("acme_kernels", "toy", kernels.Problem(), kernels.Options()) == [names.config(96), names.config(64)]
    assert table.shipped_configs("acme_kernels", "toy", kernels.Problem(adds=True), kernels.Options()) == []
    assert table.shipped_paths("no_such_package_at_all") == []


def test_other_problems_and_versions_are_other_results(names, kernels, entry):
    table.remember(names.device, entry(problem=kernels.Problem(adds=True)))
    assert lookup(kernels, names) == {}
    assert table.kept_path(names.device).name == f"nvidia-h200-{cudnn.__version__}.json"
    assert table.slug("NVIDIA H100 80GB HBM3") == "nvidia-h100-80gb-hbm3"


@pytest.mark.parametrize("value, used", [("0", False), ("1", True), ("", True), (None, True)])
def test_results_can_be_turned_off(names, kernels, entry, monkeypatch, value, used):
    table.remember(names.device, entry())
    if value is not None:
        monkeypatch.setenv(table.VARIABLE, value)
    assert bool(lookup(kernels, names)) is used


def test_another_value_of_the_setting_is_an_error(names, kernels, monkeypatch):
    monkeypatch.setenv(table.VARIABLE, "yes")
    with pytest.raises(ValueError, match="CUDNN_KERNELS_TUNED: found 'yes', needs 0 .* or 1"):
        lookup(kernels, names)


def test_forgetting(names, kernels, entry):
    table.remember(names.device, entry())
    table.remember(names.device, entry(m=500))
    assert table.forget(names.device) == 2 and not table.kept_path(names.device).exists()
    assert lookup(kernels, names) == {} and table.forget(names.device) == 0


def test_the_compile_cache_leaves_results_alone(names, entry):
    table.remember(names.device, entry())
    cudnn.cache.clear()
    assert len(table.read(table.kept_path(names.device))) == 1 and cudnn.cache.info().entries == 0


WRITER = """
import sys
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.tuning import table
config = GemmConfig(128, 128)
for i in range(10):
    extents = table.bucket(4096 * (1 + i), 64 * (1 + int(sys.argv[1])), 64, 1)
    table.write(table.kept_path("NVIDIA H200"), "NVIDIA H200", [table.Entry("toy", {}, {}, extents, config, 1.0, config, 1.0)])
"""


def test_processes_write_one_file_together(names):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(i)], env=environment) for i in range(4)]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    assert len(table.read(table.kept_path(names.device))) == 40
    assert settings.directory() in table.kept_path(names.device).parents
