"""The tests that every distribution of kernels should pass: its manifest, its metadata and what importing it brings in.

A family's test file names the family and inherits them; one by others does the same::

    class TestDistribution(DistributionTests):
        family = FAMILY
"""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import cudnn
from cudnn import registry
from cudnn.family import Family


class DistributionTests:
    """Give ``family``, and ``first_party = False`` for a distribution with its own versions."""

    family: Family
    first_party = True

    def test_the_entry_point_leads_to_the_manifest(self) -> None:
        points = [point for point in importlib.metadata.entry_points(group="cudnn.kernels") if point.name == self.family.name]
        # Two, and they agree, where an editable install lies beside another.
        assert points and len({point.value for point in points}) == 1
        assert points[0].load() is self.family

    def test_the_registry_finds_it_usable(self) -> None:
        version = importlib.metadata.version(self.family.distribution)
        if self.first_party:
            assert version == cudnn.__version__
        status = next(status for status in registry.families() if status.name == self.family.name)
        assert (status.state, status.reason, status.version, status.first_party) == ("ok", "", version, self.first_party)
        assert set(self.family.names) <= set(dir(cudnn))

    def test_every_target_of_the_manifest_exists(self) -> None:
        for path, names in self.family.targets().items():
            for name, target in names.items():
                module, _, attribute = target.partition(":")
                value = importlib.import_module(module)
                value = getattr(value, attribute) if attribute else value
                assert getattr(importlib.import_module(f"cudnn.{path}" if path else "cudnn"), name) is value
        for module in self.family.operations:
            assert callable(importlib.import_module(module).precompile_specs)

    def test_it_is_typed_and_its_package_imports_nothing(self) -> None:
        (package,) = {point.value.partition(".")[0] for point in importlib.metadata.entry_points(group="cudnn.kernels") if point.name == self.family.name}
        file = importlib.import_module(package).__file__
        assert file is not None and (Path(file).parent / "py.typed").is_file()
        code = f"import sys; before = set(sys.modules); import {package}; print(*sorted(set(sys.modules) - before - {{'__future__'}}))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert done.stdout.strip() == package, done.stdout + done.stderr
