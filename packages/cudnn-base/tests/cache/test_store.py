"""What can go wrong on disk: damage, foreign files, killed writers, full and unwritable directories, and the bound on size."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import time

import pytest

import cudnn.cache as cache
from cudnn.cache import engine, keys

FIELDS = {"family": "thirdparty", "fusion": "relu", "arch": "sm_90a"}


def fetch(request):
    return cache.fetch(request.pop("fields"), request.pop("sources"), **request)


def entry(compiler):
    """(object, JSON) paths of the only entry."""
    record, obj = (compiler.directory / "v1" / name for name in compiler.files())
    return obj, record


def warnings_of(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "cudnn.cache" and r.levelno >= logging.WARNING]


class TestDamage:
    """Case 42."""

    @pytest.mark.parametrize(
        ("harm", "reason"),
        [
            (lambda obj, record: obj.write_bytes(obj.read_bytes()[:-7]), "object has 1993 bytes, its JSON says 2000"),
            (lambda obj, record: obj.write_bytes(b""), "object has 0 bytes, its JSON says 2000"),
            (lambda obj, record: obj.write_bytes(b"y" + obj.read_bytes()[1:]), "object does not match its hash"),
            (lambda obj, record: obj.unlink(), "object not readable: No such file or directory"),
            (lambda obj, record: record.write_text(record.read_text()[: record.stat().st_size // 2]), "damaged JSON"),
            (lambda obj, record: record.write_bytes(b"\xff\x00\xfe"), "damaged JSON"),
            (lambda obj, record: record.write_text("[]"), "damaged JSON"),
            (lambda obj, record: record.write_text(""), "damaged JSON"),
        ],
        ids=["truncated", "empty", "flipped byte", "object gone", "JSON truncated", "JSON binary", "JSON of another shape", "JSON empty"],
    )
    def test_is_seen_and_repaired(self, compiler, caplog, harm, reason):
        fetch(compiler.request(FIELDS))
        harm(*entry(compiler))
        compiler.forget()
        assert fetch(compiler.request(FIELDS))() == compiler.text_of(FIELDS)
        assert (cache.stats.builds, cache.stats.invalid_entries, cache.stats.disk_hits) == (1, 1, 0)
        (message,) = warnings_of(caplog)
        assert reason in message and "relu 128x128" in message
        compiler.forget()
        with cache.refuse_builds():
            assert fetch(compiler.request(FIELDS)).origin == "loaded"

    def test_an_object_without_json_is_no_entry(self, compiler):
        fetch(compiler.request(FIELDS))
        entry(compiler)[1].unlink()
        compiler.forget()
        assert fetch(compiler.request(FIELDS)).origin == "built"
        assert cache.stats.invalid_entries == 0
        assert len(compiler.files()) == 2

    def test_an_object_the_loader_refuses_is_built_anew(self, compiler, caplog):
        fetch(compiler.request(FIELDS))
        compiler.forget()

        def load(path):
            raise OSError("undefined symbol: cuda_dialect_init")

        assert fetch(compiler.request(FIELDS, load=load)).origin == "built"
        assert cache.stats.invalid_entries == 1
        assert "refused by the loader: OSError: undefined symbol: cuda_dialect_init" in warnings_of(caplog)[0]

    def test_a_foreign_architecture_under_our_name(self, compiler, caplog):
        foreign = {**FIELDS, "arch": "sm_100a"}
        fetch(compiler.request(foreign))
        obj, record = entry(compiler)
        name = keys.file_key(keys.identity(FIELDS, ["thirdparty_gemm.relu.epilogue"]))
        obj.rename(obj.with_name(f"{name}.o"))
        record.rename(record.with_name(f"{name}.json"))
        compiler.forget()
        assert fetch(compiler.request(FIELDS))() == compiler.text_of(FIELDS)
        assert (cache.stats.builds, cache.stats.invalid_entries) == (1, 1)
        assert "another kernel, architecture or version" in warnings_of(caplog)[0]
        assert json.loads(entry(compiler)[1].read_text())["identity"]["fields"]["arch"] == "sm_90a"

    def test_two_architectures_side_by_side(self, compiler):
        fields = [{**FIELDS, "arch": arch} for arch in ("sm_90a", "sm_100a", "sm_90")]
        for _ in range(2):
            for f in fields:
                assert fetch(compiler.request(f))() == compiler.text_of(f)
            compiler.forget()
        assert len(compiler.files()) == 6 and compiler.journal() == ["build"] * 3 + ["load"] * 3


class TestVersions:
    def test_two_versions_of_ours_in_one_directory(self, compiler, monkeypatch):
        for version, builds in (("0.1.0", 1), ("0.2.0", 1), ("0.1.0", 0), ("0.2.0", 0)):
            monkeypatch.setattr(keys, "__version__", version)
            compiler.forget()
            assert fetch(compiler.request(FIELDS))() == compiler.text_of(FIELDS)
            assert cache.stats.builds == builds, version
        assert len(compiler.files()) == 4

    def test_every_dsl_distribution_counts(self, compiler, tmp_path, monkeypatch):
        site = tmp_path / "dsl"
        monkeypatch.syspath_prepend(str(site))
        builds = []
        for installed in (
            ["nvidia_cutlass_dsl-4.9.0", "nvidia_cutlass_dsl_libs_base-4.9.0", "apache_tvm_ffi-0.1.11"],
            ["nvidia_cutlass_dsl-4.9.0", "nvidia_cutlass_dsl_libs_base-4.9.1", "apache_tvm_ffi-0.1.11"],
            ["nvidia_cutlass_dsl-4.9.0", "nvidia_cutlass_dsl_libs_base-4.9.1", "apache_tvm_ffi-0.1.12"],
            ["nvidia_cutlass_dsl-4.9.0", "nvidia_cutlass_dsl_libs_base-4.9.0", "apache_tvm_ffi-0.1.11"],
        ):
            for old in site.glob("*"):
                old.rmdir()
            for name in installed:
                (site / f"{name}.dist-info").mkdir(parents=True)
            keys._distributions.cache_clear()
            compiler.forget()
            fetch(compiler.request(FIELDS))
            builds.append(cache.stats.builds)
        keys._distributions.cache_clear()
        assert builds == [1, 1, 1, 0]

    def test_versions_are_those_installed(self):
        from importlib.metadata import distributions, version

        ours = keys.versions()
        for name in {d.metadata["Name"].lower().replace("_", "-") for d in distributions() if d.metadata["Name"]}:
            if name.startswith(("nvidia-cutlass-dsl", "apache-tvm-ffi")):
                assert ours[name] == version(name)
        assert ours["python"].endswith(f"-{sys.version_info[0]}.{sys.version_info[1]}")

    def test_settings_of_the_dsl_that_change_code_are_part_of_the_key(self, compiler, monkeypatch):
        fetch(compiler.request(FIELDS))
        monkeypatch.setenv("CUTE_DSL_ENABLE_ASSERTIONS", "1")
        fetch(compiler.request(FIELDS))
        assert cache.stats.builds == 2
        monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
        monkeypatch.setenv("CUTE_DSL_LOG_LEVEL", "10")
        fetch(compiler.request(FIELDS))
        assert cache.stats.builds == 2


class TestKilled:
    def wait_for(self, path, seconds=30):
        end = time.monotonic() + seconds
        while not path.exists():
            assert time.monotonic() < end, f"{path} did not appear"
            time.sleep(0.01)

    def test_in_mid_compile(self, compiler, tmp_path):
        script = f"def build():\n    open({str(tmp_path / 'inside')!r}, 'w'); time.sleep(600)\ncache.fetch(**request({FIELDS!r}, build=build))"
        child = compiler.child(script)
        self.wait_for(tmp_path / "inside")
        child.send_signal(signal.SIGKILL)
        child.communicate()
        started = time.monotonic()
        assert fetch(compiler.request(FIELDS))() == compiler.text_of(FIELDS)
        assert time.monotonic() - started < 10, "the dead process's lock was waited for"
        assert len(compiler.files()) == 2

    def test_in_mid_write(self, compiler, tmp_path):
        script = f"""
def dump(kernel, path):
    with open(path, "wb") as f:
        f.write(b"half"); f.flush()
        open({str(tmp_path / 'inside')!r}, "w"); time.sleep(600)
cache.fetch(**request({FIELDS!r}, dump=dump))
"""
        child = compiler.child(script)
        self.wait_for(tmp_path / "inside")
        child.send_signal(signal.SIGKILL)
        child.communicate()
        (partial,) = compiler.files()
        assert ".tmp" in partial
        assert fetch(compiler.request(FIELDS))() == compiler.text_of(FIELDS)
        assert cache.stats.invalid_entries == 0
        assert len(compiler.files()) == 2 and not any(".tmp" in name for name in compiler.files())

    def test_an_interrupted_write_leaves_no_file(self, compiler):
        def dump(kernel, path):
            with open(path, "wb") as f:
                f.write(b"half")
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fetch(compiler.request(FIELDS, dump=dump))
        assert compiler.files() == []


@pytest.fixture
def tmpfs(tmp_path):
    """mount(options) -> a tmpfs of its own; skips where mounting is not allowed."""
    mounted = []

    def mount(options: str):
        where = tmp_path / f"tmpfs{len(mounted)}"
        where.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(where)], capture_output=True, text=True) if os.geteuid() == 0 else None
        if done is None or done.returncode:
            pytest.skip(f"mounting a tmpfs is not permitted here: {done.stderr.strip() if done else 'not root'}")
        mounted.append(where)
        return where

    yield mount
    for where in mounted:
        subprocess.run(["umount", "-l", str(where)], check=True)


class TestFullOrUnwritable:
    def check_in_process_only(self, compiler, caplog, part):
        """Two kernels are right, compiled once each, one warning names the reason and the way out."""
        for fields in (FIELDS, {**FIELDS, "fusion": "gelu"}, FIELDS):
            assert fetch(compiler.request(fields, size=200_000))() == compiler.text_of(fields)
        assert cache.stats.builds == 2 and cache.stats.store_failures == 2
        (message,) = warnings_of(caplog)
        assert part in message and "CUDNN_KERNELS_CACHE" in message

    def test_full_disk(self, compiler, caplog, tmpfs, monkeypatch):
        full = tmpfs("size=64k")
        monkeypatch.setenv("CUDNN_KERNELS_CACHE", str(full / "cache"))
        self.check_in_process_only(compiler, caplog, "No space left on device")
        assert [p.name for p in (full / "cache" / "v1").iterdir() if p.is_file() and p.name != "imports.json"] == []

    def test_a_disk_that_fills_between_object_and_json(self, compiler, caplog, monkeypatch):
        original = os.replace

        def replace(source, target):
            if str(target).endswith(".json") and "imports" not in str(target):
                raise OSError(errno.ENOSPC, "No space left on device")
            original(source, target)

        monkeypatch.setattr(os, "replace", replace)
        self.check_in_process_only(compiler, caplog, "No space left on device")
        assert compiler.files() == []

    def test_a_writer_that_fails_in_its_own_way(self, compiler, caplog):
        def dump(kernel, path):
            open(path, "wb").close()
            raise ValueError("DSLRuntimeError: Error writing object file")

        assert fetch(compiler.request(FIELDS, dump=dump))() == compiler.text_of(FIELDS)
        assert "Error writing object file" in warnings_of(caplog)[0]
        assert compiler.files() == []

    def test_a_writer_that_writes_nothing(self, compiler, caplog):
        assert fetch(compiler.request(FIELDS, dump=lambda kernel, path: open(path, "wb").close()))() == compiler.text_of(FIELDS)
        assert "came out empty" in warnings_of(caplog)[0]
        assert compiler.files() == []

    def test_a_directory_that_cannot_be_made(self, compiler, caplog, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("not a directory")
        monkeypatch.setenv("CUDNN_KERNELS_CACHE", str(tmp_path / "file" / "cache"))
        self.check_in_process_only(compiler, caplog, "Not a directory")

    def test_a_read_only_store_still_serves(self, compiler, caplog, tmpfs, monkeypatch):
        where = tmpfs("size=4m")
        monkeypatch.setenv("CUDNN_KERNELS_CACHE", str(where / "cache"))
        fetch(compiler.request(FIELDS))
        subprocess.run(["mount", "-o", "remount,ro", str(where)], check=True)
        compiler.forget()
        assert fetch(compiler.request(FIELDS)).origin == "loaded"
        assert warnings_of(caplog) == []
        other = {**FIELDS, "fusion": "gelu"}
        assert fetch(compiler.request(other))() == compiler.text_of(other)
        (message,) = warnings_of(caplog)
        assert "Read-only file system" in message


class TestBound:
    def size_of_one(self, compiler):
        fetch(compiler.request({"n": 0}))
        size = cache.info().bytes
        cache.clear()
        cache.stats.reset()
        return size

    def age(self, compiler, n, seconds):
        """Make the entry of n look used `seconds` ago."""
        (record,) = (
            p for p in (compiler.directory / "v1").glob("*.json") if p.name != "imports.json" and json.loads(p.read_text())["identity"]["fields"] == {"n": n}
        )
        then = time.time() - seconds
        os.utime(record.with_suffix(".o"), (then, then))

    def stored(self, compiler):
        return sorted(json.loads(p.read_text())["identity"]["fields"]["n"] for p in (compiler.directory / "v1").glob("*.json") if p.name != "imports.json")

    def test_the_one_used_longest_ago_leaves(self, compiler, monkeypatch):
        one = self.size_of_one(compiler)
        monkeypatch.setenv("CUDNN_KERNELS_CACHE_MAX_BYTES", str(3 * one + 200))
        for n in (1, 2, 3):
            fetch(compiler.request({"n": n}))
            self.age(compiler, n, 1000 - n)
        assert self.stored(compiler) == [1, 2, 3] and cache.stats.evictions == 0
        engine.clear(disk=False)
        assert fetch(compiler.request({"n": 1})).origin == "loaded"  # a hit makes 1 the newest
        fetch(compiler.request({"n": 4}))
        assert self.stored(compiler) == [1, 3, 4]
        assert cache.stats.evictions == 1
        assert cache.info().bytes <= 3 * one + 200
        assert len(compiler.files()) == 6

    def test_a_kernel_larger_than_the_bound_is_not_stored(self, compiler, monkeypatch):
        fetch(compiler.request({"n": 1}))
        monkeypatch.setenv("CUDNN_KERNELS_CACHE_MAX_BYTES", "10K")
        assert fetch(compiler.request({"n": 2}, size=20_000)).origin == "built"
        assert self.stored(compiler) == [1]

    def test_no_bound(self, compiler, monkeypatch):
        monkeypatch.setenv("CUDNN_KERNELS_CACHE_MAX_BYTES", "0")
        for n in range(5):
            fetch(compiler.request({"n": n}, size=100_000))
        assert self.stored(compiler) == [0, 1, 2, 3, 4]

    def test_leftovers_of_the_dead_go_with_time(self, compiler):
        fetch(compiler.request({"n": 1}))
        directory = compiler.directory / "v1"
        lost = [directory / f"{'0' * 16}-{'1' * 32}.77-ab.tmp.o", directory / f"{'0' * 16}-{'2' * 32}.o"]
        fresh = directory / f"{'0' * 16}-{'3' * 32}.78-cd.tmp.o"
        for path in [*lost, fresh]:
            path.write_bytes(b"partial")
        for path in lost:
            os.utime(path, (time.time() - 7200,) * 2)
        fetch(compiler.request({"n": 2}))
        assert not any(p.exists() for p in lost) and fresh.exists()
        assert self.stored(compiler) == [1, 2]


class TestClear:
    def test_removes_ours_and_leaves_the_rest(self, compiler):
        fetch(compiler.request({"n": 1}))
        fetch(compiler.request({"n": 2}))
        foreign = compiler.directory / "notes.txt"
        foreign.write_text("mine")
        partial = compiler.directory / "v1" / f"{'0' * 16}-{'1' * 32}.77-ab.tmp.o"
        partial.write_bytes(b"partial")
        assert cache.clear() == 2
        assert compiler.files() == [] and foreign.read_text() == "mine"
        assert cache.info().memory_entries == 0
        fetch(compiler.request({"n": 1}))
        assert cache.stats.builds == 3

    def test_a_live_writer_keeps_its_file(self, compiler):
        kept = []

        def dump(kernel, path):
            with open(path, "wb") as f:
                f.write(b"x")
            # flock is by open file: this process's own lock stands in for another one's.
            cache.clear()
            kept.append(os.path.exists(path))

        fetch(compiler.request({"n": 1}, dump=dump))
        assert kept == [True]
        assert cache.stats.store_failures == 0 and len(compiler.files()) == 2

    def test_memory_alone(self, compiler):
        fetch(compiler.request({"n": 1}))
        assert cache.clear(disk=False) == 0
        assert fetch(compiler.request({"n": 1})).origin == "loaded"
