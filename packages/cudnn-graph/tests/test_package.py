"""The distribution as such: its manifest, its metadata and what importing it brings in."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import cudnn
import cudnn_graph
from cudnn import registry
from cudnn_graph._family import FAMILY


def test_manifest_and_metadata_agree() -> None:
    assert (FAMILY.name, FAMILY.distribution) == ("graph", "cudnn-graph")
    assert importlib.metadata.version("cudnn-graph") == cudnn.__version__
    points = [point for point in importlib.metadata.entry_points(group="cudnn.kernels") if point.name == "graph"]
    assert {point.value for point in points} == {"cudnn_graph._family:FAMILY"}
    assert points[0].load() is FAMILY


def test_the_registry_finds_it_usable() -> None:
    status = next(status for status in registry.families() if status.name == "graph")
    assert (status.state, status.reason, status.version, status.first_party) == ("ok", "", cudnn.__version__, True)
    assert set(FAMILY.names) <= set(dir(cudnn))


def test_every_target_of_the_manifest_exists() -> None:
    pytest.importorskip("torch", reason="some of the names are operators of torch")
    for path, names in FAMILY.targets().items():
        for name, target in names.items():
            module, _, attribute = target.partition(":")
            value = getattr(importlib.import_module(module), attribute)
            assert getattr(importlib.import_module(f"cudnn.{path}" if path else "cudnn"), name) is value
    for module in FAMILY.operations:
        assert callable(importlib.import_module(module).precompile_specs)


def test_it_is_typed_and_its_package_imports_nothing() -> None:
    assert (Path(cudnn_graph.__file__).parent / "py.typed").is_file()
    code = "import sys; before = set(sys.modules); import cudnn_graph; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() in ("['cudnn_graph']", "['__future__', 'cudnn_graph']"), done.stderr
