"""Real kernels through the compile cache: what an edit invalidates, what a later process loads. No GPU needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("cutlass", reason="compiles kernels with the CuTe DSL")

# Someone else's fusion, on the core of cudnn-base alone.
ACME = """
from dataclasses import asdict, dataclass

from cudnn.cutedsl.gemm.problem import GemmProblem


@dataclass(frozen=True)
class Options:
    dtype: str

    def as_dict(self):
        return asdict(self)


def acme(problem, options):
    from cudnn.cutedsl.epilogue.plain import Plain
    from cudnn.datatypes import cutlass_dtype

    return Plain(cutlass_dtype(options.dtype), row_contiguous=True)
"""

SCRIPT = """
import cudnn.cache as cache
from acme_fusion import Options
from cudnn.cutedsl.compile import KernelSpec
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn_gemm_dense.swiglu.kernel import swiglu_spec
from cudnn_gemm_dense.swiglu.options import SwigluOptions

problem = GemmProblem("bfloat16", "bfloat16")
config = GemmConfig(tile_m=128, tile_n=128)
counts = []
for spec in (swiglu_spec(problem, SwigluOptions("bfloat16", "bfloat16"), config), KernelSpec("acme", "acme_fusion:acme", problem, Options("bfloat16"), config)):
    before = cache.stats.builds
    assert callable(spec.build())
    counts.append(cache.stats.builds - before)
print(*counts)
"""


@pytest.mark.compile
@pytest.mark.slow
def test_an_edit_of_one_fusion_compiles_that_one_and_an_edit_of_the_core_all(tmp_path):
    site = tmp_path / "site"
    for package in ("cudnn", "cudnn_gemm_dense"):
        shutil.copytree(Path(find_spec(package).origin).parent, site / package, ignore=shutil.ignore_patterns("__pycache__"))
    (site / "acme_fusion.py").write_text(ACME)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *(p for p in sys.path if p)]), "CUDNN_KERNELS_CACHE": str(tmp_path / "cache")}

    def compiled() -> list[int]:
        """(swiglu, acme): how many kernels a fresh process compiled."""
        done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, timeout=300)
        assert done.returncode == 0, done.stderr
        return [int(word) for word in done.stdout.split()]

    def edit(name: str) -> None:
        with open(site / name, "a") as file:
            file.write("\n# edited\n")

    assert compiled() == [1, 1]
    assert compiled() == [0, 0]
    edit("cudnn_gemm_dense/swiglu/epilogue.py")
    assert compiled() == [1, 0]
    edit("acme_fusion.py")
    assert compiled() == [0, 1]
    edit("cudnn_gemm_dense/swiglu/api.py")  # the host side
    assert compiled() == [0, 0]
    edit("cudnn/cutedsl/gemm/sm90.py")
    assert compiled() == [1, 1]
