"""A fresh seed for every test, printed with a failure; PYTEST_SEED=N repeats one."""

from __future__ import annotations

import os
import threading
import types

import pytest


@pytest.fixture(autouse=True)
def seed() -> int:
    import torch

    value = int(os.environ.get("PYTEST_SEED") or int.from_bytes(os.urandom(4), "little"))
    print(f"PYTEST_SEED={value}")
    torch.manual_seed(value)
    return value


@pytest.fixture
def stub(monkeypatch):
    """CPU tensors go where CUDA tensors would; kernels are counted, and computed by the reference. Yields (what was built, what ran)."""
    import cudnn.dsl_check
    import cudnn.gemm_operation
    from cudnn.cutedsl.compile import KernelSpec
    from cudnn.cutedsl.dequantize import DequantizeSpec
    from cudnn.cutedsl.transpose import TransposeSpec
    from cudnn.gemm_operation import GemmOperation, Launch

    built, launched = [], []

    def build(spec):
        threading.Event().wait(0.02)
        built.append(spec)

    def launch_for(self, extents, device_index):
        found = original(self, extents, device_index)
        if found.extents is None:
            return found

        def run(tensors, scalars, stream):
            launched.append((extents, found.config, stream))
            self._run_reference(tensors, scalars, stream)

        return Launch(None, otherwise=run)

    original = GemmOperation._launch_for
    monkeypatch.setattr(KernelSpec, "build", build)
    monkeypatch.setenv("CUDNN_KERNELS_COMPILE_JOBS", "1")
    monkeypatch.setattr(TransposeSpec, "build", build)
    monkeypatch.setattr(DequantizeSpec, "build", build)
    monkeypatch.setattr(cudnn.dsl_check, "require_dsl", lambda *_, **__: None)
    monkeypatch.setattr(cudnn.gemm_operation, "select_backend", lambda backend, tensors: "sm90")
    monkeypatch.setattr(cudnn.gemm_operation, "require_arch", lambda *_: None)
    monkeypatch.setitem(cudnn.gemm_operation.DEVICES, "sm90", "cpu")
    monkeypatch.setattr(
        cudnn.gemm_operation, "device_info", lambda _: types.SimpleNamespace(sm_count=132, resident_clusters=lambda *_: None, device_name="a device")
    )
    monkeypatch.setattr(GemmOperation, "_launch_for", launch_for)
    return built, launched


@pytest.fixture
def pretend(monkeypatch):
    """CPU tensors go the way of CUDA tensors, down to the calls of kernels, on an H200 that is not there. What is built is the test's own business."""
    import torch

    import cudnn.dsl_check
    import cudnn.gemm_operation as operation
    from cudnn.tuning import table

    monkeypatch.setenv("CUDNN_KERNELS_CACHE", "0")
    monkeypatch.setattr(table, "_session", {})
    monkeypatch.setattr(table, "_files", {})
    monkeypatch.setattr(cudnn.dsl_check, "require_dsl", lambda *_, **__: None)
    monkeypatch.setattr(operation, "select_backend", lambda backend, tensors: "sm90")
    monkeypatch.setattr(operation, "require_arch", lambda *_: None)
    monkeypatch.setitem(operation.DEVICES, "sm90", "cpu")
    monkeypatch.setattr(operation, "device_info", lambda _: types.SimpleNamespace(sm_count=132, resident_clusters=lambda *_: None, device_name="NVIDIA H200"))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: -1)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: -1, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0, raising=False)


@pytest.fixture
def fresh(monkeypatch):
    """Forgets, for one test, what the wrappers remember: call it with their ``CALLS``."""
    from cudnn import wrapper_calls
    from cudnn.memo import Memo

    def forget(*calls):
        for one in calls:
            monkeypatch.setattr(one, "_plans", Memo(wrapper_calls.PLANS))
            monkeypatch.setattr(one, "_objects", Memo(wrapper_calls.OBJECTS))

    return forget
