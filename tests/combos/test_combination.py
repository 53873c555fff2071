"""What holds for every combination of packages.

`nox -s matrix` makes one environment per combination and names it in CUDNN_COMBINATION_PYTHON and CUDNN_COMBINATION; without them the combination is the one that
this interpreter has. The checks run in the environment's own interpreter, which needs nothing but the packages.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

FAMILIES = ("cudnn-gemm-dense", "cudnn-gemm-grouped", "cudnn-gemm-discrete", "cudnn-graph")
HEAVY = (
    "torch",
    "jax",
    "jaxlib",
    "numpy",
    "cutlass",
    "nvidia_cutlass_dsl",
    "cuda",
    "tvm_ffi",
    "triton",
    "importlib_metadata",
    "platformdirs",
    "filelock",
    "dataclasses",
)
PYTHON = os.environ.get("CUDNN_COMBINATION_PYTHON", sys.executable)


def installed_here() -> set[str]:
    names = {distribution.metadata["Name"].lower().replace("_", "-") for distribution in importlib.metadata.distributions()}
    return names & set(FAMILIES)


EXPECTED = set(filter(None, os.environ["CUDNN_COMBINATION"].split(","))) if "CUDNN_COMBINATION" in os.environ else installed_here()

PRELUDE = """
import json, sys
before = set(sys.modules)
import cudnn
from cudnn._catalog import DISTRIBUTIONS, NAMES
after_import = set(sys.modules) - before
def names_of(distribution):
    return [(path, name) for path, names in NAMES.items() for name, family in names.items() if DISTRIBUTIONS[family] == distribution]
def get(path, name):
    import importlib
    module = importlib.import_module("cudnn." + path) if path else cudnn
    return getattr(module, name)
def outcome(path, name):
    try:
        value = get(path, name)
    except Exception as error:
        return [type(error).__name__, isinstance(error, ImportError), str(error)]
    return ["ok", True, type(value).__name__]
def answer(value):
    print(json.dumps(value))
"""


@cache
def ask(code: str) -> Any:
    """What `code` passes to answer(), in a fresh interpreter of the combination."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CUDNN_KERNELS") and (PYTHON == sys.executable or key != "PYTHONPATH")}
    done = subprocess.run([PYTHON, "-W", "error", "-c", PRELUDE + code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_import_brings_in_nothing_heavy_and_no_family() -> None:
    imported = ask("answer(sorted(after_import))")
    assert "cudnn" in imported
    assert [name for name in imported if name.partition(".")[0] in HEAVY] == []
    assert [name for name in imported if name.startswith("cudnn_")] == []


def test_the_registry_sees_exactly_what_is_installed() -> None:
    found, missing = ask(
        "from cudnn import registry; answer([[[s.distribution, s.version, s.state, s.reason] for s in registry.families()], registry.missing_distributions()])"
    )
    version = ask("answer(cudnn.__version__)")
    own = [entry for entry in found if entry[0] in FAMILIES]
    assert sorted(own) == sorted([name, version, "ok", ""] for name in EXPECTED)
    assert set(missing) == set(FAMILIES) - EXPECTED


def test_dir_is_the_catalogue_cut_to_what_is_installed() -> None:
    for path in ("", "ops", "torch", "jax"):
        code = f"import importlib; answer([sorted(n for n in dir(importlib.import_module('cudnn.{path}'.rstrip('.'))) if n[0] != '_'), NAMES.get({path!r}, {{}}), DISTRIBUTIONS, list(NAMES)])"
        listed, names, distributions, paths = ask(code)
        usable = {name for name, family in names.items() if distributions[family] in EXPECTED | {"cudnn-base"}}
        extra = set(listed) - usable
        # The namespaces themselves are listed where they are not empty.
        assert usable <= set(listed)
        assert extra <= {other[len(path) :].lstrip(".").partition(".")[0] for other in paths if other != path and other.startswith(path)}
        assert not extra & set(names)


@pytest.mark.parametrize("distribution", ["cudnn-base", *sorted(EXPECTED)])
def test_every_name_of_an_installed_distribution_resolves(distribution: str) -> None:
    outcomes = ask(f"answer([[path, name, outcome(path, name)] for path, name in names_of({distribution!r})])")
    for path, name, result in outcomes:
        if result[0] != "ok":
            # Without torch or the DSL a name may fail, but then with the documented error.
            assert result[0] == "KernelUnavailableError", (path, name, result)
            assert " requires " in result[2] and "pip install" in result[2], (path, name, result)
    if distribution.startswith("cudnn-gemm-"):
        # The kernel families import and check without torch and without the DSL.
        assert [(name, result) for path, name, result in outcomes if not path and result[0] != "ok"] == []


@pytest.mark.parametrize("distribution", sorted(set(FAMILIES) - EXPECTED))
def test_every_name_of_an_absent_distribution_says_what_to_install(distribution: str) -> None:
    outcomes = ask(f"answer([[path, name, outcome(path, name)] for path, name in names_of({distribution!r})])")
    for path, name, result in outcomes:
        # A path that only this distribution fills fails as a whole, when it or the first such parent is imported.
        parts = path.split(".") if path else []
        labels = {".".join(["cudnn", *parts, name]), *(".".join(["cudnn", *parts[:depth]]) for depth in range(1, len(parts) + 1))}
        accepted = {f"{label} is provided by {distribution}, which is not installed. Install it with: pip install {distribution}" for label in labels}
        assert result[:2] == ["KernelUnavailableError", True] and result[2] in accepted, (path, name, result)


def test_availability_agrees_with_access() -> None:
    code = """
from cudnn import registry
answer([[path, name, registry.available(f"{path}.{name}" if path else name), outcome(path, name)[0] == "ok"] for path, names in NAMES.items() for name in names])
"""
    for path, name, available, works in ask(code):
        assert available == works, (path, name)


@pytest.mark.parametrize("distribution", sorted(EXPECTED))
def test_using_one_family_loads_no_other(distribution: str) -> None:
    names, loaded = ask(f"""
names = [name for path, name in names_of({distribution!r}) if not path]
for name in names:
    outcome("", name)
answer([names, sorted({{m.partition(".")[0] for m in sys.modules if m.startswith("cudnn_")}})])
""")
    own = distribution.replace("-", "_")
    assert loaded == ([own] if names else [])


def test_no_two_distributions_own_one_file() -> None:
    owned = ask(f"""
import importlib.metadata
names = ["cudnn-base", *{sorted(EXPECTED)!r}]
answer([[name, [str(file) for file in importlib.metadata.files(name) or ()]] for name in names])
""")
    assert [name for name, _ in owned] == ["cudnn-base", *sorted(EXPECTED)]
    seen: dict[str, str] = {}
    for name, files in owned:
        assert files
        for file in files:
            assert seen.setdefault(file, name) == name, f"{file} is in {seen[file]} and in {name}"


@pytest.mark.parametrize("arguments", [(), ("collect-env",), ("collect-env", "--json"), ("--help",)])
def test_the_command_line_works(arguments: tuple[str, ...]) -> None:
    environment = {key: value for key, value in os.environ.items() if PYTHON == sys.executable or key != "PYTHONPATH"}
    done = subprocess.run([PYTHON, "-W", "error", "-m", "cudnn", *arguments], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    if "--help" not in arguments:
        for name in EXPECTED:
            assert name in done.stdout
