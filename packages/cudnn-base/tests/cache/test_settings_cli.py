"""The two environment variables, and the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cudnn.cache as cache
from cudnn.cache import cli, settings


def test_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDNN_KERNELS_CACHE", "0")
    assert settings.directory() is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for value in ("", "1", " "):
        monkeypatch.setenv("CUDNN_KERNELS_CACHE", value)
        assert settings.directory() == tmp_path / "cudnn-kernels"
    monkeypatch.delenv("CUDNN_KERNELS_CACHE")
    assert settings.directory() == tmp_path / "cudnn-kernels"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CUDNN_KERNELS_CACHE", "~/mine")
    assert settings.directory() == tmp_path / "mine"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDNN_KERNELS_CACHE", "near")
    assert settings.directory() == Path.cwd() / "near"


@pytest.mark.parametrize(
    ("text", "value"), [("", 4 << 30), ("0", 0), ("12345", 12345), ("500M", 500 << 20), ("2 GiB", 2 << 30), ("1tb", 1 << 40), ("3k", 3 << 10)]
)
def test_max_bytes(monkeypatch, text, value):
    monkeypatch.setenv("CUDNN_KERNELS_CACHE_MAX_BYTES", text)
    assert settings.max_bytes() == value


@pytest.mark.parametrize("text", ["lots", "-1", "1.5G", "10X"])
def test_max_bytes_refuses(monkeypatch, text):
    monkeypatch.setenv("CUDNN_KERNELS_CACHE_MAX_BYTES", text)
    with pytest.raises(ValueError, match="CUDNN_KERNELS_CACHE_MAX_BYTES: found .* needs a whole number of bytes"):
        settings.max_bytes()


def test_info_path_clear(compiler, capsys):
    request = compiler.request({"n": 1})
    cache.fetch(request.pop("fields"), request.pop("sources"), **request)
    assert cli.main(["path"]) == 0
    assert capsys.readouterr().out == f"{compiler.directory}\n"
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert str(compiler.directory) in out and "kernels    1" in out and "at most 4.0 GiB" in out
    assert cli.main(["info", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"directory": str(compiler.directory), "entries": 1, "bytes": cache.info().bytes, "max_bytes": 4 << 30}
    assert cli.main(["clear"]) == 0
    assert capsys.readouterr().out.startswith("Removed 1 kernels")
    assert compiler.files() == []


@pytest.mark.parametrize("command", ["info", "clear"])
def test_a_wrong_setting_is_an_error_message(monkeypatch, capsys, command):
    monkeypatch.setenv("CUDNN_KERNELS_CACHE_MAX_BYTES", "lots")
    assert cli.main([command]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("error: CUDNN_KERNELS_CACHE_MAX_BYTES: found 'lots'")


@pytest.mark.parametrize("command", ["info", "clear"])
def test_a_file_in_place_of_the_directory(monkeypatch, capsys, tmp_path, command):
    file = tmp_path / "file"
    file.write_text("mine")
    monkeypatch.setenv("CUDNN_KERNELS_CACHE", str(file))
    assert cli.main([command]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err == f"error: CUDNN_KERNELS_CACHE: {file} is not a directory; name one, or unset the variable\n"
    assert file.read_text() == "mine"


def test_off(monkeypatch, capsys):
    monkeypatch.setenv("CUDNN_KERNELS_CACHE", "0")
    assert cli.main(["path"]) == 1
    assert cli.main(["info"]) == 0
    assert cli.main(["clear"]) == 0
    assert capsys.readouterr().out.count("off") == 3


def test_info_reads_well(compiler):
    text = str(cache.info())
    assert text.startswith(f"disk     {compiler.directory}: 0 kernels") and "builds 0" in text
