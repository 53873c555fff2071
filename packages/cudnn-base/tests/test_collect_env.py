"""The environment report and the command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import cudnn
from cudnn import __main__ as command_line
from cudnn import collect_env

SECTIONS = [
    "cuDNN Frontend",
    "Kernel Families",
    "CuTe DSL",
    "Python / Platform",
    "GPU / Driver",
    "CUDA Toolkit",
    "PyTorch",
    "GPU Libraries: loaded vs on disk",
    "Relevant Packages",
    "Environment Variables",
    "GPU Topology",
]


def python(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=240)


def test_the_report_has_every_section_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDNN_KERNELS_CACHE", "/somewhere")
    monkeypatch.setenv("NVIDIA_API_KEY", "a secret")
    report = collect_env.collect_env_info()
    assert list(report) == SECTIONS
    assert report["cuDNN Frontend"]["version"] == cudnn.__version__
    assert report["Python / Platform"]["executable"] == sys.executable
    assert report["Environment Variables"]["CUDNN_KERNELS_CACHE"] == "/somewhere"
    assert report["Environment Variables"]["NVIDIA_API_KEY"] == "(hidden)"
    assert report["Relevant Packages"]["cudnn-base"] == cudnn.__version__
    assert all(isinstance(value, str) for section in report.values() for value in section.values())


def test_every_installed_family_is_in_the_report() -> None:
    from cudnn import registry

    section = collect_env.collect_env_info()["Kernel Families"]
    for status in registry.families():
        assert section[status.name].startswith(f"{status.distribution} {status.version}, {status.state}")
    for distribution in registry.missing_distributions():
        assert section[distribution] == "not installed"
    assert len(section) >= 4


def test_text_leaves_out_empty_sections_and_keeps_lines_aligned() -> None:
    text = collect_env.format_report({"One": {"a": "1", "longer": "two\nlines"}, "Empty": {}, "Last": {"b": "3"}})
    assert text == ("### cuDNN frontend environment report\n\n==== One ====\na       1\nlonger  two\n        lines\n\n==== Last ====\nb  3\n")


def test_no_probe_can_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise OSError("no such thing here")

    for name in ("_run", "_version", "_find_libcudnn"):
        monkeypatch.setattr(collect_env, name, broken)
    monkeypatch.setattr(collect_env.subprocess, "run", broken)
    monkeypatch.setattr(collect_env.importlib.metadata, "distributions", broken)
    report = collect_env.collect_env_info()
    assert list(report) == SECTIONS
    assert report["Relevant Packages"] == {"error": "OSError: no such thing here"}
    assert collect_env.format_report(report).startswith(collect_env.TITLE)


@pytest.mark.parametrize("command", [("-m", "cudnn.collect_env", "--json"), ("-m", "cudnn", "collect-env", "--json")])
def test_json(command: tuple[str, ...]) -> None:
    done = python(*command)
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)) == SECTIONS


def test_it_imports_the_standard_library_and_cudnn_only() -> None:
    code = (
        "import sys, cudnn.collect_env as c; c.collect_env_info()\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'torch', 'jax', 'numpy', 'cutlass', 'tvm_ffi', 'cuda'}))"
    )
    done = python("-c", code)
    assert done.stdout.strip() == "[]", done.stderr


def test_overview_lists_families_versions_and_devices(capsys: pytest.CaptureFixture) -> None:
    assert command_line.main([]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"cudnn {cudnn.__version__}\n")
    for distribution in ("cudnn-gemm-dense", "cudnn-gemm-grouped", "cudnn-gemm-discrete", "cudnn-graph"):
        assert distribution in output
    assert "GPU 0: " in output or "no CUDA device" in output


def test_commands(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command_line.main(["--help"]) == 0
    assert "collect-env" in capsys.readouterr().out
    assert command_line.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == cudnn.__version__
    assert command_line.main(["no-such-command"]) == 2
    assert "unknown command 'no-such-command'" in capsys.readouterr().err
    monkeypatch.setitem(command_line._COMMANDS, "later", ("cudnn.later.cli", "is not there"))
    assert "later" not in command_line.available_commands()
    assert command_line.main(["later"]) == 2
    monkeypatch.setitem(command_line._COMMANDS, "given", ("cudnn.collect_env", "is there"))
    monkeypatch.setattr(collect_env, "main", lambda arguments: 7 if arguments == ["--x"] else 1)
    assert command_line.main(["given", "--x"]) == 7
