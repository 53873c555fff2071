"""What is in the wheels that `nox -s build` left in dist/ (or in the folder CUDNN_DIST names)."""

from __future__ import annotations

import configparser
import email
import os
import re
import zipfile
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DIST = Path(os.environ.get("CUDNN_DIST", ROOT / "dist"))
PACKAGES = {
    "cudnn-base": "cudnn",
    "cudnn-gemm-dense": "cudnn_gemm_dense",
    "cudnn-gemm-grouped": "cudnn_gemm_grouped",
    "cudnn-gemm-discrete": "cudnn_gemm_discrete",
    "cudnn-graph": "cudnn_graph",
}
VERSION = re.search(r'"([^"]+)"', (ROOT / "packages/cudnn-base/src/cudnn/_version.py").read_text().partition("__version__")[2]).group(1)

pytestmark = pytest.mark.skipif(not list(DIST.glob("*.whl")), reason=f"there are no wheels in {DIST}; run: nox -s build")
each_package = pytest.mark.parametrize("distribution", PACKAGES)


@cache
def wheel(distribution: str) -> dict[str, bytes]:
    """The files of a wheel."""
    found = list(DIST.glob(f"{distribution.replace('-', '_')}-*.whl"))
    assert len(found) == 1, f"found {found}, needs one wheel of {distribution} in {DIST}"
    with zipfile.ZipFile(found[0]) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def info(distribution: str, name: str) -> str:
    return wheel(distribution)[f"{distribution.replace('-', '_')}-{VERSION}.dist-info/{name}"].decode()


@each_package
def test_it_holds_every_module_of_the_source_and_nothing_else(distribution: str) -> None:
    package = PACKAGES[distribution]
    source = ROOT / "packages" / distribution / "src"
    wanted = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"}
    found = {name for name in wheel(distribution) if ".dist-info/" not in name}
    compiled = {name for name in found if name.endswith(".so")}
    assert found - compiled == wanted
    assert f"{package}/py.typed" in found and f"{package}/__init__.py" in found
    assert bool(compiled) == (distribution == "cudnn-graph")
    assert all(name.startswith(f"{package}/_ext.") for name in compiled)


@each_package
def test_its_files_equal_the_sources(distribution: str) -> None:
    source = ROOT / "packages" / distribution / "src"
    for name, content in wheel(distribution).items():
        if ".dist-info/" not in name and not name.endswith(".so"):
            assert content == (source / name).read_bytes(), name


@each_package
def test_metadata(distribution: str) -> None:
    metadata = email.message_from_string(info(distribution, "METADATA"))
    assert metadata["Name"] == distribution and metadata["Version"] == VERSION
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "Apache-2.0" and metadata["License-File"] == "LICENSE"
    requires = [requirement.replace(" ", "") for requirement in metadata.get_all("Requires-Dist") or ()]
    pin = f"=={'.'.join(VERSION.split('.')[:2])}.*"
    if distribution == "cudnn-base":
        plain = sorted(re.split("[<>=]", requirement)[0] for requirement in requires if "extra==" not in requirement)
        assert plain == ["filelock", "importlib-metadata", "platformdirs"]
        assert set(metadata.get_all("Provides-Extra")) == {"cutedsl", "torch", "jax", "cli", "bench"}
    elif distribution == "cudnn-graph":
        assert requires == [f"cudnn-base{pin}"]
    else:
        assert requires == [f"cudnn-base[cutedsl]{pin}"]


@each_package
def test_licence_and_tag(distribution: str) -> None:
    assert info(distribution, "licenses/LICENSE") == (ROOT / "LICENSE").read_text()
    tag = re.search(r"^Tag: (.+)$", info(distribution, "WHEEL"), re.MULTILINE).group(1)
    assert re.fullmatch(r"cp\d+-cp\d+-\w+" if distribution == "cudnn-graph" else "py3-none-any", tag), tag


@each_package
def test_entry_point(distribution: str) -> None:
    name = next((name for name in wheel(distribution) if name.endswith("entry_points.txt")), None)
    if distribution == "cudnn-base":
        assert name is None
        return
    parser = configparser.ConfigParser()
    parser.read_string(wheel(distribution)[name].decode())
    package = PACKAGES[distribution]
    assert {section: dict(parser[section]) for section in parser.sections()} == {"cudnn.kernels": {package.removeprefix("cudnn_"): f"{package}._family:FAMILY"}}


def test_no_file_is_in_two_wheels() -> None:
    seen: dict[str, str] = {}
    for distribution in PACKAGES:
        for name in wheel(distribution):
            assert seen.setdefault(name, distribution) == distribution, f"{name} is in {seen[name]} and in {distribution}"


@each_package
def test_no_cache_test_or_stray_file(distribution: str) -> None:
    for name in wheel(distribution):
        assert not re.search(r"__pycache__|\.pyc$|(^|/)tests/|\.orig$|~$", name), name
        assert ".." not in name.split("/") and not name.startswith("/")
