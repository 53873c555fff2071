"""Peers that may not be installed, and what a result says about the machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cudnn.bench import environment, peers

IDENTITY = 'def semantic_value_key(value, seen):\n    if value is None:\n        return value\n    raise TypeError(\n        f"epilogue fn depends on {value!r}, which has no key"\n    )\n'


@pytest.fixture
def quack(tmp_path, monkeypatch):
    """A make-believe QuACK with the refusal."""
    package = tmp_path / "site" / "quack"
    (package / "gemm_runtime").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "gemm_runtime" / "__init__.py").write_text("")
    (package / "gemm_runtime" / "identity.py").write_text(IDENTITY)
    (package / "gemm_interface.py").write_text("from quack.gemm_runtime.identity import semantic_value_key\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("CUDNN_KERNELS_CACHE", str(tmp_path / "cache"))
    peers.quack.cache_clear()
    yield package
    peers.quack.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "quack"]:
        del sys.modules[name]


def test_quack_runs_from_a_copy_and_the_installed_one_stays(quack):
    gemm = peers.quack()
    key = gemm.semantic_value_key(object(), set())
    assert key == ("opaque", "builtins", "object", "")
    assert gemm.semantic_value_key(None, set()) is None
    assert (quack / "gemm_runtime" / "identity.py").read_text() == IDENTITY
    assert not gemm.__file__.startswith(str(quack))
    # Its compile workers are children of this process.
    code = "from quack.gemm_runtime.identity import semantic_value_key as k; print(k(object(), set())[0])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "opaque"
    assert peers.quack_missing() is None


def test_a_quack_without_the_refusal_is_used_as_it_is(quack, tmp_path):
    (quack / "gemm_runtime" / "identity.py").write_text("semantic_value_key = None\n")
    assert peers.quack_copy(quack, tmp_path) is None
    assert peers.quack().__file__ == str(quack / "gemm_interface.py")


def test_the_copy_is_made_once_and_anew_when_the_installed_one_changes(quack, tmp_path):
    root = tmp_path / "copies"
    root.mkdir()
    first = peers.quack_copy(quack, root)
    assert peers.quack_copy(quack, root) == first and len(list(root.iterdir())) == 1
    (quack / "gemm_runtime" / "identity.py").write_text(IDENTITY + "NEW = 1\n")
    second = peers.quack_copy(quack, root)
    assert second != first and "NEW = 1" in (second / "quack" / "gemm_runtime" / "identity.py").read_text()


def test_absent_and_broken_peers(monkeypatch, tmp_path):
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    assert peers.quack_missing() == "not installed (pip install quack-kernels)"
    assert peers.deep_gemm_missing() == "not installed (pip install sgl-deep-gemm)"
    monkeypatch.undo()
    (tmp_path / "deep_gemm.py").write_text("raise OSError('libnvrtc.so.12: cannot open shared object file')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    peers.deep_gemm.cache_clear()
    assert peers.deep_gemm_missing() == "import failed: OSError: libnvrtc.so.12: cannot open shared object file"
    peers.deep_gemm.cache_clear()


def test_versions_and_source():
    found = environment.versions()
    assert found["python"] == sys.version.split()[0] and "cudnn-base" in found
    revision = environment.source_revision()
    assert revision is None or len(revision.removesuffix("-dirty")) == 12


def test_gpu_state_reads_nvidia_smi(monkeypatch, tmp_path):
    torch = pytest.importorskip("torch", reason="asks torch for the device")
    from types import SimpleNamespace

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="12-34"))
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\necho "$@" > "$(dirname "$0")/asked"\necho "580.159.04, 1755, 3201, 1980, 612.34, 700.00, [N/A]"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    state = environment.gpu_state("cuda:0")
    assert state == {
        "driver": "580.159.04",
        "sm_mhz": 1755,
        "memory_mhz": 3201,
        "sm_max_mhz": 1980,
        "power_w": 612.34,
        "power_limit_w": 700.0,
        "temperature_c": "[N/A]",
    }
    assert "-i GPU-12-34" in (tmp_path / "asked").read_text()
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert environment.gpu_state("cuda:0") == {}
