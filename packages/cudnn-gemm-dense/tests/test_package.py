"""The distribution as such: its manifest, its metadata and what importing it brings in."""

from __future__ import annotations

from cudnn.testing.distribution import DistributionTests
from cudnn_gemm_dense._family import FAMILY


class TestDistribution(DistributionTests):
    family = FAMILY
