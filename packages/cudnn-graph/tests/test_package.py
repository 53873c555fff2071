"""The distribution as such: its manifest, its metadata and what importing it brings in."""

from __future__ import annotations

import pytest

from cudnn.testing.distribution import DistributionTests
from cudnn_graph._family import FAMILY


class TestDistribution(DistributionTests):
    family = FAMILY

    def test_every_target_of_the_manifest_exists(self) -> None:
        pytest.importorskip("torch", reason="some of the names are operators of torch")
        super().test_every_target_of_the_manifest_exists()
