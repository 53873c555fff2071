"""Kernels that follow one another: each reads what the one in front wrote, and overwrites what that read."""

from __future__ import annotations

import pytest
import torch

from cudnn.testing.conformance import same_bits
from cudnn_gemm_dense.gemm.api import Gemm

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a CUDA device of compute capability 9.0")]

LENGTH, WEIGHTS = 200, 3


@pytest.mark.parametrize(
    "config",
    [
        {"tile_m": 64, "tile_n": 128, "split_k": 2},
        {"tile_m": 64, "tile_n": 64},
        {"tile_m": 128, "tile_n": 128, "cluster_m": 2, "pingpong": True},
        {"tile_m": 128, "tile_n": 256, "cluster_n": 2},
    ],
    ids=str,
)
def test_a_chain_of_products(config):
    """Two buffers in turn: each product reads what the one in front wrote, and overwrites what it read. The same bits as with the device idle in between, in eager calls and in a replayed graph."""
    torch.manual_seed(0)
    m, n = 320, 512
    weights = [torch.linalg.qr(torch.randn(n, n, device="cuda"))[0].bfloat16().unsqueeze(-1) for _ in range(WEIGHTS)]
    start = torch.randn(m, n, 1, device="cuda").bfloat16()
    buffers = start.clone(), torch.zeros_like(start)
    product = Gemm(buffers[0], weights[0], buffers[1], config=config)
    product.check_support()
    product.compile()

    def chain(wait: bool = False) -> torch.Tensor:
        buffers[0].copy_(start)
        for i in range(LENGTH):
            product.execute(buffers[i % 2], weights[i % WEIGHTS], buffers[1 - i % 2])
            if wait:
                torch.cuda.synchronize()
        return buffers[LENGTH % 2].clone()

    expected = chain(wait=True)
    assert torch.isfinite(expected.float()).all() and 0.5 < expected.float().std() / start.float().std() < 1.5
    for _ in range(5):
        assert same_bits(chain(), expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = chain()
    for _ in range(5):
        found.zero_()
        graph.replay()
        assert same_bits(found, expected)
