"""The pool of compiling processes, cudnn.precompile and its command, on make-believe operations."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from types import SimpleNamespace

import pytest

import cudnn.cache as cache
from cudnn.cache import pool, precompile, settings
from cudnn.cache.together import build_together

OPERATION = """
from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

import cudnn.cache


class Kernel:
    def __init__(self, text):
        self.text = text

    def __call__(self):
        return self.text


def _dump(kernel, path):
    with open(path, "w") as file:
        file.write(kernel.text)


def _load(path):
    with open(path) as file:
        return Kernel(file.read())


@dataclass(frozen=True)
class Spec:
    op: str
    dtype: str
    tile: int
    behaviour: str = "fine"
    arch: str = "sm_90a"

    @property
    def label(self):
        return f"{self.op} {self.dtype} {self.tile}"

    @property
    def _key(self):
        return {"op": self.op, "dtype": self.dtype, "tile": self.tile, "arch": self.arch}, ["thirdparty_gemm.relu.epilogue"]

    def build(self):
        return cudnn.cache.fetch(*self._key, build=self._compile, dump=_dump, load=_load, label=self.label)

    def stored(self):
        return cudnn.cache.stored(*self._key)

    def _compile(self):
        print("chatter of a compiler on standard output")
        if self.behaviour == "raises":
            raise RuntimeError("shared memory: 300000 bytes needed, 232448 available")
        if self.behaviour == "dies":
            print("LLVM ERROR: out of registers", flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.behaviour == "slow":
            time.sleep(0.5)
        return Kernel(f"{self.label} gpu={os.environ['CUDA_VISIBLE_DEVICES']!r} arch={os.environ['CUTE_DSL_ARCH']} pid={os.getpid()}")


def precompile_specs():
    return [Spec("gemm_relu", dtype, tile) for dtype in ("bfloat16", "float16") for tile in (64, 128)] + [Spec("gemm_relu", "float16", 128, arch="sm_100a")]
"""


@pytest.fixture
def operations(compiler, package, monkeypatch):
    """Two operations, as two installed families would bring them; `.set(module: text)` changes one."""
    from cudnn import registry

    (package / "relu" / "api.py").write_text(OPERATION)
    (package / "gelu" / "api.py").write_text(
        "from thirdparty_gemm.relu.api import Spec\n\n\ndef precompile_specs():\n    return [Spec('gemm_gelu', 'bfloat16', 256), Spec('gemm_gelu', 'bfloat16', 256)]\n"
    )
    monkeypatch.setattr(registry, "operations", lambda: [("thirdparty", "thirdparty_gemm.relu.api"), ("thirdparty", "thirdparty_gemm.gelu.api")])
    forget = lambda: [sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "thirdparty_gemm"]  # noqa: E731
    forget()
    from thirdparty_gemm.relu.api import Spec

    yield SimpleNamespace(Spec=Spec, **vars(compiler))
    forget()


class TestSpecs:
    def test_all_of_one_architecture_once(self, operations):
        labels = [spec.label for spec in precompile.specs()]
        assert labels == ["gemm_relu bfloat16 64", "gemm_relu bfloat16 128", "gemm_relu float16 64", "gemm_relu float16 128", "gemm_gelu bfloat16 256"]
        assert [spec.arch for spec in precompile.specs(arch="sm_100a")] == ["sm_100a"]

    def test_chosen_by_operation_and_dtype(self, operations):
        assert {spec.op for spec in precompile.specs(op="gemm_gelu")} == {"gemm_gelu"}
        assert {spec.label for spec in precompile.specs(op=["gemm_gelu", "gemm_relu"], dtype="float16")} == {"gemm_relu float16 64", "gemm_relu float16 128"}
        assert {spec.dtype for spec in precompile.specs(dtype="half")} == {"float16"}

    @pytest.mark.parametrize(
        ("wanted", "message"),
        [
            ({"op": "gemm_relo"}, "op: found 'gemm_relo', there is gemm_gelu, gemm_relu for sm_90a"),
            ({"dtype": "float8_e4m3fn"}, "dtype: found 'float8_e4m3fn', there is bfloat16, float16 for sm_90a"),
            ({"arch": "sm_80"}, "arch: found 'sm_80', the installed families have kernels for sm_100a, sm_90a"),
            ({"op": "gemm_gelu", "dtype": "float16"}, "dtype: found 'float16', there is bfloat16 for sm_90a"),
        ],
    )
    def test_what_nobody_has(self, operations, wanted, message):
        with pytest.raises(ValueError, match=message):
            precompile.specs(**wanted)

    def test_no_family(self, monkeypatch):
        from cudnn import registry

        monkeypatch.setattr(registry, "operations", lambda: [])
        with pytest.raises(ValueError, match="pip install cudnn-gemm-dense"):
            precompile.specs()


class TestPool:
    def test_workers_see_no_gpu_and_the_architecture(self, operations):
        specs = [operations.Spec("gemm_relu", "bfloat16", tile, "slow") for tile in (1, 2, 3)]
        outcomes = pool.build_all(specs, arch="sm_90a", jobs=3)
        assert [(o.spec, o.status) for o in outcomes] == [(s, "compiled") for s in specs]
        assert all(o.seconds >= 0.5 for o in outcomes)
        texts = [spec.build()() for spec in specs]
        assert all("gpu='' arch=sm_90a" in text for text in texts)
        pids = {text.rpartition("pid=")[2] for text in texts}
        assert len(pids) > 1 and str(os.getpid()) not in pids
        assert cache.stats.builds == 0 and cache.stats.disk_hits == 3

    def test_a_failure_and_a_death_stop_nothing(self, operations):
        Spec = operations.Spec
        specs = [Spec("a", "bfloat16", 1, "raises"), Spec("a", "bfloat16", 2, "dies"), Spec("a", "bfloat16", 3), Spec("a", "bfloat16", 4)]
        seen = []
        outcomes = pool.build_all(specs, arch="sm_90a", jobs=1, on_outcome=seen.append)
        assert [o.status for o in outcomes] == ["failed", "failed", "compiled", "compiled"]
        assert outcomes[0].error == "RuntimeError: shared memory: 300000 bytes needed, 232448 available" and "_compile" in outcomes[0].traceback
        assert outcomes[1].error == "the compiling process was killed by SIGSEGV: LLVM ERROR: out of registers"
        assert seen == outcomes
        assert len(operations.files()) == 4

    def test_a_spec_that_cannot_travel(self, operations):
        lost = SimpleNamespace(op="a", dtype="b", label="c", arch="sm_90a", build=lambda: None)
        (outcome,) = pool.build_all([lost], arch="sm_90a")
        assert outcome.status == "failed" and outcome.error.startswith("not picklable")

    def test_a_worker_that_lacks_the_module(self, operations, monkeypatch):
        spec = operations.Spec("a", "bfloat16", 1)
        monkeypatch.setattr(sys, "path", [p for p in sys.path if not os.path.exists(os.path.join(p, "thirdparty_gemm"))])
        (outcome,) = pool.build_all([spec], arch="sm_90a")
        assert outcome.status == "failed" and "No module named 'thirdparty_gemm'" in outcome.error

    def test_an_interruption_ends_the_workers(self, operations):
        def interrupt(outcome):
            raise KeyboardInterrupt

        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            pool.build_all([operations.Spec("a", "bfloat16", tile) for tile in range(40)], arch="sm_90a", jobs=2, on_outcome=interrupt)
        assert time.monotonic() - started < 10
        assert len(operations.files()) < 20

    def test_no_specs_no_processes(self):
        assert pool.build_all([], arch="sm_90a") == []

    def test_jobs(self, operations):
        with pytest.raises(ValueError, match="jobs: found 0, needs at least 1"):
            pool.build_all([operations.Spec("a", "bfloat16", 1)], arch="sm_90a", jobs=0)
        assert pool.default_jobs() >= 1

    def test_from_a_script_without_a_main_guard(self, operations, finish):
        script = "from thirdparty_gemm.relu.api import Spec\nfrom cudnn.cache import pool\nprint([o.status for o in pool.build_all([Spec('a', 'bfloat16', t) for t in range(2)], arch='sm_90a', jobs=2)])"
        assert finish(operations.child(script)).strip() == "['compiled', 'compiled']"

    def test_what_workers_log_is_seen_when_asked_for(self, operations, monkeypatch, capsys):
        specs = [operations.Spec("a", "bfloat16", 1)]
        pool.build_all(specs, arch="sm_90a")
        assert capsys.readouterr().err == ""
        monkeypatch.setenv("CUDNN_KERNELS_LOG", "debug")
        pool.build_all(specs, arch="sm_90a")
        assert "[cudnn.cache] DEBUG a bfloat16 1: disk hit" in capsys.readouterr().err


class TestTogether:
    @pytest.fixture
    def specs(self, operations, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "here")
        monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
        return [operations.Spec("a", "bfloat16", tile, "slow") for tile in range(8)]

    def test_other_processes_help(self, specs, monkeypatch):
        monkeypatch.setenv("CUDNN_KERNELS_COMPILE_JOBS", "3")
        texts = [kernel() for kernel in build_together(specs)]
        assert [text.split(" gpu=")[0] for text in texts] == [spec.label for spec in specs]
        own = [f"pid={os.getpid()}" in text for text in texts]
        assert own[0] and not own[-1] and cache.stats.builds == sum(own) and cache.info().entries == 8
        assert all(spec.stored() for spec in specs)
        cache.stats.reset()
        assert [kernel() for kernel in build_together(specs)] == texts and cache.stats.builds == 0

    @pytest.mark.parametrize("why", ["one job", "no store", "a store that cannot be written", "two kernels", "all stored"])
    def test_nothing_is_started_where_it_cannot_help(self, specs, monkeypatch, tmp_path, why):
        monkeypatch.setenv("CUDNN_KERNELS_COMPILE_JOBS", "1" if why == "one job" else "4")
        if why == "all stored":
            build_together(specs[:3])
            while not all(spec.stored() for spec in specs[:3]):
                time.sleep(0.05)
        monkeypatch.setattr(pool, "_Worker", lambda *_: pytest.fail("a process was started"))
        if why == "no store":
            monkeypatch.setenv("CUDNN_KERNELS_CACHE", "0")
        elif why == "a store that cannot be written":
            (tmp_path / "file").write_text("")
            monkeypatch.setenv("CUDNN_KERNELS_CACHE", str(tmp_path / "file" / "store"))
        chosen = specs[: 2 if why == "two kernels" else 3]
        assert [kernel().split(" gpu=")[0] for kernel in build_together(chosen)] == [spec.label for spec in chosen]

    def test_a_process_that_fails_changes_nothing(self, operations, specs, monkeypatch):
        monkeypatch.setenv("CUDNN_KERNELS_COMPILE_JOBS", "4")
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        assert len(build_together(specs[:4])) == 4 and cache.stats.builds == 4
        with pytest.raises(RuntimeError, match="shared memory"):
            build_together([*specs[:4], *(operations.Spec("b", "bfloat16", tile, "raises") for tile in range(3))])

    @pytest.mark.parametrize("value", ["0", "-1", "many"])
    def test_jobs_that_are_none(self, specs, monkeypatch, value):
        monkeypatch.setenv("CUDNN_KERNELS_COMPILE_JOBS", value)
        with pytest.raises(ValueError, match=f"CUDNN_KERNELS_COMPILE_JOBS: found '{value}', needs a whole number from 1 on"):
            build_together(specs)


class TestPrecompile:
    def test_then_nothing_compiles(self, operations):
        seen = []
        report = precompile.precompile(jobs=2, on_outcome=seen.append)
        assert (report.count("compiled"), report.count("cached"), report.failed) == (5, 0, [])
        assert len(seen) == 5 and report.bytes == report.added_bytes == cache.info().bytes > 0
        with cache.refuse_builds():
            for spec in precompile.specs():
                assert spec.build()().startswith(spec.label)
        assert cache.stats.memory_hits == 5 and cache.stats.builds == 0
        again = precompile.precompile("gemm_relu", load=False)
        assert (again.count("compiled"), again.count("cached"), again.added_bytes) == (0, 4, 0)

    def test_a_copied_directory_serves_a_machine_that_never_compiled(self, operations, finish, tmp_path):
        precompile.precompile(load=False)
        shutil.copytree(operations.directory, tmp_path / "shipped")
        script = "from thirdparty_gemm.relu import api\nwith cache.refuse_builds():\n    texts = [s.build()() for s in api.precompile_specs() if s.arch == 'sm_90a']\nprint(len(texts), cache.stats.builds, cache.stats.disk_hits)"
        assert finish(operations.child(script, env={"CUDNN_KERNELS_CACHE": str(tmp_path / "shipped")})).split() == ["4", "0", "4"]

    def test_an_edit_of_the_sources_compiles_again(self, operations, package):
        assert precompile.precompile(load=False).count("compiled") == 5
        (package / "shared.py").write_text("FACTOR = 9\n")
        assert precompile.precompile(load=False).count("compiled") == 5

    def test_needs_the_disk_store(self, operations, monkeypatch):
        monkeypatch.setenv("CUDNN_KERNELS_CACHE", "0")
        with pytest.raises(RuntimeError, match="CUDNN_KERNELS_CACHE=0 turns that off"):
            precompile.precompile()

    def test_report_rows(self, operations):
        rows = precompile.precompile(load=False).rows()
        assert [row[:6] for row in rows] == [("gemm_gelu", "bfloat16", 1, 1, 0, 0), ("gemm_relu", "bfloat16", 2, 2, 0, 0), ("gemm_relu", "float16", 2, 2, 0, 0)]


class TestCommand:
    def test_compiles_prints_and_counts(self, operations, capsys, tmp_path):
        assert precompile.main(["--jobs", "2", "--json", str(tmp_path / "out.json")]) == 0
        out = capsys.readouterr().out.splitlines()
        assert len([line for line in out if line.startswith("[") and "compiled" in line]) == 5
        assert out[5].split() == ["operation", "dtype", "kernels", "compiled", "cached", "failed", "seconds"]
        assert out[-2].split()[:5] == ["total", "5", "5", "0", "0"]
        assert out[-1].startswith("5 kernels in ") and str(operations.directory) in out[-1]
        written = json.loads((tmp_path / "out.json").read_text())
        assert (written["compiled"], written["cached"], len(written["kernels"]), written["arch"]) == (5, 0, 5, "sm_90a")
        assert precompile.main(["--op", "gemm_relu", "--dtype", "float16"]) == 0
        assert capsys.readouterr().out.splitlines()[-2].split()[:5] == ["total", "2", "0", "2", "0"]

    def test_a_failure_is_told_and_is_the_exit_code(self, operations, capsys, package):
        (package / "gelu" / "api.py").write_text(
            "from thirdparty_gemm.relu.api import Spec\n\n\ndef precompile_specs():\n    return [Spec('gemm_gelu', 'bfloat16', t, 'raises') for t in (1, 2)]\n"
        )
        sys.modules.pop("thirdparty_gemm.gelu.api", None)
        assert precompile.main([]) == 1
        captured = capsys.readouterr()
        assert captured.out.splitlines()[-2].split()[:5] == ["total", "6", "4", "0", "2"]
        assert captured.err.count("shared memory: 300000 bytes needed") == 1 and "and 1 more" in captured.err
        assert precompile.main(["--op", "gemm_gelu", "--verbose"]) == 1
        assert "Traceback" in capsys.readouterr().err

    def test_an_operation_that_cannot_list(self, operations, capsys, package):
        (package / "gelu" / "api.py").write_text("def precompile_specs():\n    raise KeyError('tile')\n")
        sys.modules.pop("thirdparty_gemm.gelu.api", None)
        assert precompile.main([]) == 1
        assert "an operation could not list its kernels: KeyError: 'tile'" in capsys.readouterr().err

    def test_no_cache_stores_nothing(self, operations, capsys):
        assert precompile.main(["--no-cache"]) == 0
        assert operations.files() == [] and "nothing stored" in capsys.readouterr().out

    def test_a_store_that_cannot_be_written(self, operations, capsys, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("CUDNN_KERNELS_CACHE", str(tmp_path / "file" / "cache"))
        assert precompile.main(["--op", "gemm_gelu"]) == 1
        assert "could not be stored" in capsys.readouterr().err

    def test_list(self, operations, capsys):
        assert precompile.main(["--list", "--op", "gemm_gelu"]) == 0
        assert capsys.readouterr().out == "gemm_gelu bfloat16 256\n"
        assert operations.files() == []

    def test_unknown_names_and_off(self, operations, capsys, monkeypatch):
        assert precompile.main(["--op", "nope"]) == 2
        assert "found 'nope'" in capsys.readouterr().err
        monkeypatch.setenv("CUDNN_KERNELS_CACHE", "0")
        assert precompile.main([]) == 2
        assert "nothing would be kept" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            precompile.main(["--jobs", "0"])

    def test_a_bar_on_a_terminal(self, operations, monkeypatch, capsys):
        pytest.importorskip("rich")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        assert precompile.main(["--op", "gemm_gelu"]) == 0
        out = capsys.readouterr().out
        assert "Kernels for sm_90a" in out and "gemm_gelu" in out and "1 kernels in" in out

    @pytest.mark.parametrize(("ranks", "jobs"), [(None, 8), ("", 8), ("1", 8), ("4", 2), ("64", 1), ("0", 8), ("x", 8)])
    def test_ranks_of_one_machine_share_its_cores(self, monkeypatch, ranks, jobs):
        monkeypatch.delenv("CUDNN_KERNELS_COMPILE_JOBS", raising=False)
        monkeypatch.setattr(pool, "default_jobs", lambda: 16)
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
        if ranks is not None:
            monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        assert settings.compile_jobs() == jobs
