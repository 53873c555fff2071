"""From memory, from disk, or built: who gets what, and how often the compiler runs."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading

import pytest

import cudnn.cache as cache
from cudnn.cache import engine

FIELDS = {"family": "thirdparty", "fusion": "relu", "arch": "sm_90a", "problem": {"a_dtype": "bfloat16", "d_dtype": "float16"}, "config": {"tile": [128, 128]}}


def fetch(request):
    return cache.fetch(request.pop("fields"), request.pop("sources"), **request)


def test_built_then_memory_then_disk(compiler):
    first = fetch(compiler.request(FIELDS))
    assert first.origin == "built" and first() == compiler.text_of(FIELDS)
    assert fetch(compiler.request(FIELDS)) is first
    assert {k: v for k, v in cache.stats.snapshot().items() if v and not k.endswith("seconds")} == {"builds": 1, "memory_hits": 1}
    compiler.forget()
    again = fetch(compiler.request(FIELDS))
    assert again.origin == "loaded" and again() == compiler.text_of(FIELDS)
    assert {k: v for k, v in cache.stats.snapshot().items() if v and not k.endswith("seconds")} == {"disk_hits": 1}
    assert compiler.journal() == ["build", "load"]


def test_a_fresh_process_loads_and_compiles_nothing(compiler, finish):
    fetch(compiler.request(FIELDS))
    script = f"with cache.refuse_builds():\n    k = cache.fetch(**request({FIELDS!r}))\nprint(k.origin, k() == text_of({FIELDS!r}), cache.stats.builds, cache.stats.disk_hits)"
    assert finish(compiler.child(script)).split() == ["loaded", "True", "0", "1"]


def test_a_copied_directory_serves_elsewhere(compiler, finish, tmp_path):
    import shutil

    fetch(compiler.request(FIELDS))
    shutil.copytree(compiler.directory, tmp_path / "copied")
    # The package lies elsewhere too: neither place is part of a key.
    shutil.copytree(tmp_path / "site", tmp_path / "elsewhere" / "site")
    script = f"import sys; sys.path.insert(0, {str(tmp_path / 'elsewhere' / 'site')!r})\nwith cache.refuse_builds():\n    print(cache.fetch(**request({FIELDS!r})).origin)"
    assert finish(compiler.child(script, env={"CUDNN_KERNELS_CACHE": str(tmp_path / "copied")})).split() == ["loaded"]


def test_dtypes_in_both_orders_never_share_a_kernel(compiler):
    """Case 40."""
    variants = [{**FIELDS, "problem": {"a_dtype": a, "d_dtype": d}} for a in ("bfloat16", "float16") for d in ("float32", "float16", "bfloat16")]
    for order in (variants, variants[::-1], variants[1:] + variants[:1]):
        for fields in order:
            assert fetch(compiler.request(fields))() == compiler.text_of(fields)
    assert cache.stats.builds == len(variants)
    compiler.forget()
    for fields in variants[::-1]:
        assert fetch(compiler.request(fields))() == compiler.text_of(fields)
    assert cache.stats.builds == 0 and cache.stats.disk_hits == len(variants)


def test_an_integer_of_any_kind_is_one_key(compiler):
    """Case 38: what is equal has one key, and ten calls leave one entry."""
    numpy = pytest.importorskip("numpy")
    for i in range(10):
        tile = (128, numpy.int64(128), numpy.int32(128))[i % 3]
        fetch(compiler.request({"arch": "sm_90a", "tile": tile, "split": numpy.bool_(True)}))
    assert cache.stats.builds == 1
    assert len(compiler.files()) == 2


@pytest.mark.parametrize("value", [True, 1, 1.0, "1", None, [1], {"1": 1}])
def test_values_of_different_kinds_are_different_keys(compiler, value):
    others = [v for v in (True, 1, 1.0, "1", None, [1], {"1": 1}) if not (type(v) is type(value) and v == value)]
    for v in [value, *others]:
        fetch(compiler.request({"x": v}))
    assert cache.stats.builds == 7


class TestRefused:
    def test_a_tensor_where_a_number_belongs(self, compiler):
        torch = pytest.importorskip("torch")
        with pytest.raises(TypeError, match=r"fields\['config'\]\['split'\]: found Tensor.*pass the number itself"):
            fetch(compiler.request({"config": {"split": torch.tensor([4])}}))
        assert compiler.journal() == []

    def test_an_object_that_hashes_by_identity(self, compiler):
        with pytest.raises(TypeError, match=r"fields\['dtypes'\]\[1\]: found object"):
            fetch(compiler.request({"dtypes": ["float16", object()]}))

    def test_a_key_that_is_no_string(self, compiler):
        with pytest.raises(TypeError, match="found the key 3 of type int"):
            fetch(compiler.request({"config": {3: 4}}))

    def test_a_number_that_is_none(self, compiler):
        with pytest.raises(ValueError, match=r"fields\['alpha'\]: found nan, needs a finite number"):
            fetch(compiler.request({"alpha": float("nan")}))

    def test_a_source_that_does_not_exist(self, compiler):
        with pytest.raises(ModuleNotFoundError, match="no module named 'thirdparty_gemm.nowhere'"):
            fetch(compiler.request(FIELDS, sources=["thirdparty_gemm.nowhere"]))


def test_refuse_builds_lets_hits_through(compiler):
    fetch(compiler.request(FIELDS))
    with cache.refuse_builds():
        assert fetch(compiler.request(FIELDS)).origin == "built"
        with pytest.raises(cache.BuildRefusedError, match="relu 128x128 would be compiled"):
            fetch(compiler.request({**FIELDS, "arch": "sm_100a"}))
        compiler.forget()
        assert fetch(compiler.request(FIELDS)).origin == "loaded"
    assert fetch(compiler.request({**FIELDS, "arch": "sm_100a"})).origin == "built"


def test_a_failed_build_passes_through_and_leaves_nothing(compiler):
    def build():
        raise RuntimeError("ptxas said no")

    with pytest.raises(RuntimeError, match="ptxas said no"):
        fetch(compiler.request(FIELDS, build=build))
    assert compiler.files() == []
    assert cache.stats.builds == 0
    assert fetch(compiler.request(FIELDS))() == compiler.text_of(FIELDS)


def test_the_table_in_memory_is_bounded(compiler, monkeypatch):
    """Case 43, for the cache's own table."""
    monkeypatch.setenv("CUDNN_KERNELS_CACHE", "0")
    for i in range(5000):
        fetch(compiler.request({"m": i}))
    assert cache.info().memory_entries == engine.MEMORY_ENTRIES
    assert len(engine._flights) == 0
    assert fetch(compiler.request({"m": 4999})) is not None and cache.stats.memory_hits == 1
    fetch(compiler.request({"m": 0}))
    assert cache.stats.builds == 5001


def test_off_means_no_files(compiler, monkeypatch):
    monkeypatch.setenv("CUDNN_KERNELS_CACHE", "0")
    assert fetch(compiler.request(FIELDS)).origin == "built"
    assert not compiler.directory.exists()
    assert cache.info().directory is None
    compiler.forget()
    assert fetch(compiler.request(FIELDS)).origin == "built"


def test_sixteen_threads_build_once_and_other_keys_go_on(compiler):
    """Case 44. The build of the first key cannot end before another key has been built."""
    other_done, started, results = threading.Event(), threading.Barrier(17), []

    def build():
        compiler_request["build"]()
        assert other_done.wait(30), "another key was blocked"
        return engine_kernel

    compiler_request = compiler.request(FIELDS)
    engine_kernel = compiler_request["build"].__globals__["Kernel"](compiler.text_of(FIELDS), "built")

    def same():
        started.wait()
        results.append(fetch(compiler.request(FIELDS, build=build)))

    def other():
        started.wait()
        fields = {**FIELDS, "fusion": "gelu"}
        assert fetch(compiler.request(fields))() == compiler.text_of(fields)
        other_done.set()

    threads = [threading.Thread(target=same) for _ in range(16)] + [threading.Thread(target=other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == 16 and all(r is engine_kernel for r in results)
    assert other_done.is_set()
    assert (cache.stats.builds, cache.stats.memory_hits) == (2, 15)
    assert compiler.journal().count("build") == 2


def test_eight_processes_of_two_threads_build_once(compiler, finish):
    """Case 41."""
    script = f"""
import threading
kernels = []
threads = [threading.Thread(target=lambda: kernels.append(cache.fetch(**request({FIELDS!r}, seconds=0.6)))) for _ in range(2)]
for t in threads: t.start()
for t in threads: t.join()
assert [k() for k in kernels] == [text_of({FIELDS!r})] * 2
print(cache.stats.builds, cache.stats.disk_hits)
"""
    outputs = [finish(p, 120).split() for p in [compiler.child(script) for _ in range(8)]]
    assert sorted(outputs) == [["0", "1"]] * 7 + [["1", "0"]]
    assert sorted(compiler.journal()) == ["build"] + ["load"] * 7
    record, obj = compiler.files()
    assert record.endswith(".json") and obj == record.replace(".json", ".o")


def test_a_fork_during_a_build_does_not_hang_the_child(compiler, finish):
    script = f"""
import os, threading, warnings
warnings.simplefilter("ignore")
inside, go = threading.Event(), threading.Event()
def build():
    inside.set(); go.wait(30)
    return Kernel("slow", "built")
t = threading.Thread(target=lambda: cache.fetch(**request({FIELDS!r}, build=build)))
t.start(); inside.wait()
pid = os.fork()
if pid == 0:
    os.environ["CUDNN_KERNELS_CACHE"] = "0"
    os._exit(0 if cache.fetch(**request({FIELDS!r})).origin == "built" else 3)
_, status = os.waitpid(pid, 0)
go.set(); t.join()
print(os.waitstatus_to_exitcode(status))
"""
    assert finish(compiler.child(script)).split() == ["0"]


class TestMessages:
    def test_a_slow_compile_says_what_it_was(self, compiler, caplog, monkeypatch):
        monkeypatch.setattr(engine, "SLOW_SECONDS", 0.05)
        fetch(compiler.request(FIELDS, seconds=0.1, label="gemm_relu bfloat16 128x256-cluster2x1 sm_90a"))
        assert [(r.levelno, r.getMessage()) for r in caplog.records if r.name == "cudnn.cache"] == [
            (logging.WARNING, "compiled gemm_relu bfloat16 128x256-cluster2x1 sm_90a in 0.1 s")
        ]

    def test_a_quick_one_and_a_hit_say_nothing(self, compiler, caplog):
        fetch(compiler.request(FIELDS))
        compiler.forget()
        fetch(compiler.request(FIELDS))
        assert [r for r in caplog.records if r.name == "cudnn.cache"] == []

    def test_debug_tells_hits_misses_and_why(self, compiler, caplog, package):
        caplog.set_level(logging.DEBUG, logger="cudnn.cache")
        fetch(compiler.request(FIELDS))
        fetch(compiler.request(FIELDS))
        compiler.forget()
        fetch(compiler.request(FIELDS))
        (package / "relu" / "epilogue.py").write_text("SLOPE = 0.1\n")
        compiler.forget()
        fetch(compiler.request(FIELDS))
        text = "\n".join(r.getMessage() for r in caplog.records if r.name == "cudnn.cache")
        for part in (
            "miss (never built for this directory)",
            "memory hit",
            "disk hit, loaded in",
            "miss (stored for another source of",
            "thirdparty_gemm.relu.epilogue",
        ):
            assert part in text

    def test_the_variable_prints_them(self, compiler, finish):
        process = compiler.child(f"for _ in range(2): cache.fetch(**request({FIELDS!r}))", env={"CUDNN_KERNELS_LOG": "debug"})
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "[cudnn.cache] DEBUG relu 128x128: miss (never built for this directory), compiling" in err
        assert "[cudnn.cache] DEBUG relu 128x128: memory hit" in err


def test_importing_it_loads_nothing_heavy():
    code = "import sys, cudnn.cache; print(sorted({m.partition('.')[0] for m in sys.modules} & {'torch','numpy','jax','cutlass','cuda','tvm_ffi','platformdirs','filelock','importlib_metadata','rich'}))"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": ":".join(p for p in sys.path if p), "PATH": "/usr/bin"}, check=True
    )
    assert out.stdout.strip() == "[]"
