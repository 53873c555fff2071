# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""Plans of libcudnn on the GPU: captured graphs, threads, devices, kernel caches, and planning for a device that is only described."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from cudnn_graph import enums as e
from cudnn_graph.graph import pygraph

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

HALF, FLOAT = e.data_type.HALF, e.data_type.FLOAT


@pytest.fixture(autouse=True)
def hopper() -> None:
    """Skips where the graphs cannot run."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")


def linear(m: int = 256, k: int = 128, n: int = 192, **options: Any) -> tuple[pygraph, dict[str, Any]]:
    """A graph of relu(a b), not built yet, and its buffers by name."""
    g = pygraph("linear", io_data_type=HALF, intermediate_data_type=FLOAT, compute_data_type=FLOAT, **options)
    a, b = g.tensor([1, m, k], name="a"), g.tensor([1, k, n], name="b")
    g.relu(g.matmul(a, b)).set_output(True).set_name("c")
    return g, {name: torch.randn(1, *extents, device="cuda").half() for name, extents in (("a", (m, k)), ("b", (k, n)), ("c", (m, n)))}


def reference(pack: dict[str, Any]) -> Any:
    return torch.relu(pack["a"].float() @ pack["b"].float())


def check(pack: dict[str, Any]) -> None:
    found, expected = pack["c"].double(), reference(pack).double()
    assert ((found - expected).norm() / expected.norm()).item() <= 1e-3


def test_captured_graphs_keep_their_workspace() -> None:
    """Capture a plan, run one with a larger workspace, replay the first."""
    small, pack = linear(64, 64, 64)
    large, other = linear(2048, 4096, 2048)
    small.build()
    large.build()
    small.execute(pack)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        small.execute(pack)
    for _ in range(3):
        large.execute(other)
        filler = torch.full((1 << 24,), 255, dtype=torch.uint8, device="cuda")
        pack["a"].normal_()
        pack["c"].zero_()
        captured.replay()
        torch.cuda.synchronize()
        check(pack)
        check(other)
        del filler


def test_a_fresh_thread_can_execute() -> None:
    g, pack = linear()
    g.build()
    failures: list[BaseException] = []
    addresses = {name: value.data_ptr() for name, value in pack.items()}
    workspace = torch.empty(max(g.get_workspace_size(), 1), dtype=torch.uint8, device="cuda")

    def work() -> None:
        try:
            # Only addresses: nothing in this thread has touched CUDA before.
            g.execute(addresses, workspace.data_ptr())
        except BaseException as error:
            failures.append(error)

    torch.cuda.synchronize()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failures, failures
    torch.cuda.synchronize()
    check(pack)


def test_many_threads_share_a_plan() -> None:
    g, _ = linear()
    g.build()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(20):
                    _, pack = linear()
                    g.execute(pack)
                    check(pack)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_two_devices_in_one_process() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    from cudnn_graph.handle import default_handle

    torch.cuda.set_device(0)
    g, pack = linear()
    g.execute(pack)
    check(pack)
    elsewhere = {name: value.to("cuda:1") for name, value in pack.items()}
    elsewhere["c"].zero_()
    g.execute(elsewhere)
    torch.cuda.synchronize(1)
    check(elsewhere)
    assert torch.cuda.current_device() == 0
    assert default_handle(0) is not default_handle(1) and (default_handle(0).ordinal, default_handle(1).ordinal) == (0, 1)
    fresh = pygraph("second", io_data_type=HALF, intermediate_data_type=FLOAT, compute_data_type=FLOAT)
    a, b = fresh.tensor_like(elsewhere["a"], name="a"), fresh.tensor_like(elsewhere["b"], name="b")
    fresh.relu(fresh.matmul(a, b)).set_output(True).set_name("c")
    elsewhere["c"].zero_()
    fresh.execute(elsewhere)
    torch.cuda.synchronize(1)
    check(elsewhere)
    assert torch.cuda.current_device() == 0


def test_dynamic_shapes_share_kernels(record_property: Any) -> None:
    from cudnn_graph.kernel_cache import create_kernel_cache

    cache = create_kernel_cache()
    sizes = []
    for m in (128, 256, 384):
        g, pack = linear(m, kernel_cache=cache, is_dynamic_shape_enabled=True)
        g.build()
        g.execute(pack)
        check(pack)
        sizes.append(len(cache.serialize()))
    assert sizes[0] > 1000
    record_property("kernel cache bytes", sizes)
    copy = create_kernel_cache()
    copy.deserialize(cache.serialize())
    g, pack = linear(512, kernel_cache=copy, is_dynamic_shape_enabled=True)
    g.execute(pack)
    check(pack)


def test_planning_for_a_described_device() -> None:
    from cudnn_graph.device_properties import create_device_properties

    text = create_device_properties(0).serialize()
    assert json.loads(text)
    g, pack = linear(device_property=create_device_properties(text))
    g.build()
    g.execute(pack)
    check(pack)
