"""Which modules count as a kernel's sources."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import cudnn.cache as cache
from cudnn.cache import sources

RELU, GELU = "thirdparty_gemm.relu.epilogue", "thirdparty_gemm.gelu.epilogue"


def hashes(*names, memo=None):
    return sources.SourceIndex().hashes(list(names), memo=memo)


def test_transitive_and_no_more(package):
    found = hashes(RELU)
    assert {RELU, "thirdparty_gemm.shared", "cudnn.cutedsl.gemm.config", "cudnn.cutedsl.gemm.problem"} <= set(found)
    # Parents' __init__ and what they import are not part of a kernel, nor is the other fusion.
    assert not {"thirdparty_gemm", "thirdparty_gemm.api", GELU, "cudnn"} & set(found)
    assert all(len(sha) == 64 for sha in found.values())


def test_imports_inside_functions_and_of_submodules(package):
    assert {GELU, "thirdparty_gemm.shared", "cudnn.cutedsl.gemm.problem"} <= set(hashes(GELU))
    assert "thirdparty_gemm" not in hashes(GELU)


def test_nothing_is_imported(package):
    code = f"import sys\nfrom cudnn.cache import sources\nbefore = set(sys.modules)\nsources.hashes([{RELU!r}, {GELU!r}])\nprint(sorted(m for m in set(sys.modules) - before if m.partition('.')[0] in ('thirdparty_gemm', 'cudnn', 'cutlass', 'torch')))"
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join([str(package.parent), *(p for p in sys.path if p)]), "PATH": "/usr/bin"},
    )
    assert out.stdout.strip() == "[]"


def edit(path, text):
    path.write_text(text)


@pytest.mark.parametrize(
    ("file", "text", "changed"),
    [
        ("relu/epilogue.py", "from thirdparty_gemm.shared import FACTOR\nSLOPE = 0.5\n", {RELU}),
        ("gelu/epilogue.py", "GELU = 1\n", {GELU}),
        ("shared.py", "FACTOR = 3\n", {RELU, GELU}),
        ("api.py", "everything = 2\n", set()),
        ("__init__.py", "", set()),
    ],
)
def test_an_edit_reaches_exactly_the_kernels_made_from_it(package, file, text, changed):
    index = sources.SourceIndex()
    before = {name: index.hashes([name]) for name in (RELU, GELU)}
    edit(package / file, text)
    assert {name for name in (RELU, GELU) if index.hashes([name]) != before[name]} == changed


def test_an_edit_of_one_fusion_rebuilds_that_fusion_alone(compiler, package):
    def fetch_both():
        compiler.forget()
        for name in (RELU, GELU):
            request = compiler.request({"fusion": name}, sources=[name])
            cache.fetch(request.pop("fields"), request.pop("sources"), **request)
        return cache.stats.builds

    assert fetch_both() == 2
    assert fetch_both() == 0
    edit(package / "relu" / "epilogue.py", "SLOPE = 0.25\n")
    assert fetch_both() == 1
    edit(package / "shared.py", "FACTOR = 5\n")
    assert fetch_both() == 1  # relu's edit above removed its import of shared
    edit(package / "relu" / "epilogue.py", "from thirdparty_gemm.shared import FACTOR\n")
    assert fetch_both() == 1
    edit(package / "shared.py", "FACTOR = 6\n")
    assert fetch_both() == 2


def test_names_relative_imports_and_type_checking(tmp_path, monkeypatch):
    package = tmp_path / "thirdparty_other"
    files = {
        "__init__.py": "",
        "typing_only.py": "",
        "otherwise.py": "",
        "core/__init__.py": "from thirdparty_other.core.deep import ANSWER\n",
        "core/deep.py": "ANSWER = 42\n",
        "core/beside.py": "",
        "core/kernel.py": "from typing import TYPE_CHECKING\nfrom . import beside\nfrom ..tools import *\nif TYPE_CHECKING:\n    import thirdparty_other.typing_only\nelse:\n    import thirdparty_other.otherwise\n",
        "tools.py": "import torch\nfrom thirdparty_other.core import ANSWER\n",
    }
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert set(hashes("thirdparty_other.core.kernel")) == {
        f"thirdparty_other.{m}" for m in ("core.kernel", "core.beside", "tools", "otherwise", "core", "core.deep")
    }


def test_what_is_not_installed_counts_once_it_is(tmp_path, monkeypatch):
    (tmp_path / "thirdparty_opt.py").write_text("try:\n    import cudnn_gemm_imaginary.core\nexcept ImportError:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = hashes("thirdparty_opt")
    assert before["cudnn_gemm_imaginary.core"] == "not installed"
    (tmp_path / "cudnn_gemm_imaginary").mkdir()
    (tmp_path / "cudnn_gemm_imaginary" / "core.py").write_text("")
    assert hashes("thirdparty_opt")["cudnn_gemm_imaginary.core"] != "not installed"


def test_a_module_that_changed_after_it_was_loaded_is_not_stored_under_its_new_hash(compiler, package, caplog):
    """The loaded code is the old one; under the hash of the new file it would be served to every later process."""
    import importlib

    request = lambda: compiler.request({"fusion": "relu"}, sources=[RELU])  # noqa: E731
    fetch = lambda r: cache.fetch(r.pop("fields"), r.pop("sources"), **r)  # noqa: E731
    edit(package / "relu" / "epilogue.py", "SLOPE = 0.75\n")
    importlib.import_module(RELU)
    try:
        assert fetch(request()).origin == "built"
        assert compiler.files() == [] and cache.stats.store_failures == 1
        (message,) = (r.getMessage() for r in caplog.records if r.name == "cudnn.cache")
        assert f"{RELU} changed while this process runs" in message and "Start a new process" in message
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "thirdparty_gemm"]:
            del sys.modules[name]
    compiler.forget()
    assert fetch(request()).origin == "built"
    assert len(compiler.files()) == 2


class TestMemo:
    def test_saves_parsing_and_gives_the_same(self, package, tmp_path, monkeypatch):
        memo = tmp_path / "imports.json"
        first = hashes(RELU, GELU, memo=memo)
        assert memo.exists()
        monkeypatch.setattr(sources, "_statements", lambda source: pytest.fail("parsed although the memo knows it"))
        assert hashes(RELU, GELU, memo=memo) == first

    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"a": 3}', b'{"a": [[0, 1, 2]]}'])
    def test_damaged_costs_time_only(self, package, tmp_path, content):
        memo = tmp_path / "imports.json"
        expected = hashes(RELU)
        memo.write_bytes(content)
        assert hashes(RELU, memo=memo) == expected
        assert isinstance(json.loads(memo.read_text()), dict) and len(json.loads(memo.read_text())) >= 4

    def test_unwritable_costs_time_only(self, package, tmp_path):
        (tmp_path / "file").write_text("")
        assert hashes(RELU, memo=tmp_path / "file" / "imports.json") == hashes(RELU)

    def test_the_first_process_leaves_one_behind(self, compiler, finish):
        request = "dict(request({'fusion': 'relu'}), label='relu')"
        finish(compiler.child(f"cache.fetch(**{request})"))
        script = f"from cudnn.cache import sources\ndef refuse(source): raise SystemExit('parsed')\nsources._statements = refuse\nprint(cache.fetch(**{request}).origin)"
        assert finish(compiler.child(script)).strip() == "loaded"
