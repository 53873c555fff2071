"""The CPU side of the packages with one framework installed.

`nox -s frameworks` names in CUDNN_FRAMEWORK the only one that its environment has; without it the tests run for each framework that is importable here, and what
is about the absence of the others is left out.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys

import pytest

import cudnn
from cudnn import registry

ONLY = os.environ.get("CUDNN_FRAMEWORK", "")
ABSENT = {"torch": ("jax", "cutlass", "tvm_ffi"), "jax": ("torch", "cutlass", "tvm_ffi")}.get(ONLY, ())


def require(module: str) -> None:
    if ONLY and module != ONLY and module in ("torch", "jax"):
        pytest.skip(f"this environment is the one for {ONLY}")
    pytest.importorskip(module, reason=f"{module} is not installed")


@pytest.mark.parametrize("module", ABSENT)
def test_the_environment_is_what_it_should_be(module: str) -> None:
    assert importlib.util.find_spec(module) is None


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_framework_that_is_imported_already_does_not_pull_in_another(framework: str) -> None:
    require(framework)
    code = f"""
import sys, {framework}
before = set(sys.modules)
import cudnn, cudnn.ops, cudnn.torch, cudnn.jax
from cudnn import registry, GemmSwiglu, gemm_swiglu_wrapper, TensorDesc, APIBase
registry.families()
added = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(sorted(added & {{"torch", "jax", "jaxlib", "cutlass", "tvm_ffi", "triton"}}))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_every_public_name_resolves_or_asks_for_its_framework() -> None:
    from cudnn._catalog import NAMES

    for status in registry.families():
        assert (status.state, status.reason) == ("ok", "")
        for path, names in status.targets().items():
            module = importlib.import_module(f"cudnn.{path}" if path else "cudnn")
            for name in names:
                assert NAMES[path][name] == status.name
                if ONLY == "torch" or not ONLY:
                    assert registry.available(f"{path}.{name}" if path else name), f"cudnn.{path}.{name}"
                    continue
                try:
                    getattr(module, name)
                except ImportError as error:
                    assert "requires the 'torch' module, which is not installed" in str(error), f"cudnn.{path}.{name}"


def test_torch_cpu_tensors_go_through_the_reference() -> None:
    require("torch")
    import torch

    m, n, k = 40, 128, 64
    a, b = torch.randn(m, k).to(torch.bfloat16), torch.randn(n, k).to(torch.bfloat16)
    result = cudnn.gemm_swiglu_wrapper(a.unsqueeze(-1), b.unsqueeze(-1), alpha=0.5, ab12_dtype=torch.float32)
    product = 0.5 * (a.double() @ b.double().T)
    up, gate = product.view(m, n // 64, 2, 32).unbind(2)
    expected = (up * gate * torch.sigmoid(gate)).reshape(m, n // 2)
    ab12, c = result["ab12_tensor"].squeeze(-1), result["c_tensor"].squeeze(-1)
    assert torch.allclose(ab12.double(), product, rtol=1e-5, atol=1e-4)
    assert (c.double() - expected).norm() <= 2**-8 * expected.norm()
    assert (expected.norm() > 0) and c.dtype is not torch.float32


def test_torch_kernel_without_the_dsl_says_what_to_install() -> None:
    require("torch")
    if importlib.util.find_spec("cutlass") is not None:
        pytest.skip("the DSL is installed here")
    _, module = registry.operations()[0]
    spec = importlib.import_module(module).precompile_specs()[0]
    with pytest.raises(ImportError, match=r'needs the CuTe DSL\..*pip install "cudnn-base\[cutedsl\]"'):
        spec.build()


def test_jax_arrays_are_described_and_refused_by_the_wrapper() -> None:
    require("jax")
    import jax.numpy as jnp

    from cudnn.tensors import metadata

    a, b = jnp.ones((16, 64, 1), jnp.bfloat16), jnp.ones((64, 64, 1), jnp.bfloat16)
    described = metadata(a)
    assert (tuple(described.shape), described.dtype) == ((16, 64, 1), "bfloat16")
    with pytest.raises(ValueError, match=r"(?i)jax"):
        cudnn.gemm_swiglu_wrapper(a, b)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_numpy_is_refused_by_the_wrapper(framework: str) -> None:
    require(framework)
    import numpy as np

    with pytest.raises(ValueError, match="^Unsupported tensor framework"):
        cudnn.gemm_swiglu_wrapper(np.ones((16, 64, 1), np.float16), np.ones((64, 64, 1), np.float16))
