"""What this distribution brings, as plain data. Importing this module imports nothing but `cudnn.family`."""

from __future__ import annotations

from cudnn.family import Family

FAMILY = Family(name="gemm_grouped", distribution="cudnn-gemm-grouped")
