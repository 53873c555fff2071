# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""What a message says when cuDNN proposes no engine without giving a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cudnn_graph import enums as e
from cudnn_graph.graph import pygraph
from cudnn_graph.lowering import lower
from cudnn_graph.lowering.hints import hints

FLOAT, INT32, BOOL = e.data_type.FLOAT, e.data_type.INT32, e.data_type.BOOLEAN
ADD = e.reduction_mode.ADD
NHWC = [512, 1, 128, 32]


def found(build: Callable[[pygraph], Any]) -> list[str]:
    g = pygraph("g", io_data_type=e.data_type.HALF, intermediate_data_type=FLOAT, compute_data_type=FLOAT)
    made = build(g)
    for tensor in made if isinstance(made, list | tuple) else [made]:
        tensor.set_output(True)
    g.validate()
    return hints(g, lower(g, 91900))


def grouped(g: pygraph, weight_stride: list[int], mode: e.moe_grouped_matmul_mode) -> Any:
    more = {}
    if mode is not e.moe_grouped_matmul_mode.NONE:
        more = {name: g.tensor([1, 8, 1], data_type=INT32) for name in ("token_index", "token_ks")} | {"top_k": 2}
    offsets = g.tensor([2, 1, 1], data_type=INT32)
    return g.moe_grouped_matmul(g.tensor([1, 8, 16]), g.tensor([2, 16, 24], weight_stride), offsets, mode=mode, **more)


MODE = e.moe_grouped_matmul_mode


@pytest.mark.parametrize(
    "build, parts",
    [
        (lambda g: g.reduction(g.exp(g.tensor([2, 3, 4])), ADD, out_dims=[2, 3, 1]), ["'reduction.0' (reduction) runs only behind a matmul or a convolution"]),
        (lambda g: g.genstats(g.tensor([8, 32, 4, 4], NHWC)), ["'genstats.0' (genstats) runs only behind a convolution"]),
        (lambda g: g.reshape(g.tensor([2, 3, 4]), out_dims=[2, 12, 1]), ["'reshape.0' (reshape) does not run by itself"]),
        (lambda g: g.concatenate(inputs=[g.tensor([2, 3, 4]), g.tensor([2, 3, 4])], axis=1), ["'concatenate.0' (concatenate) does not run by itself"]),
        (lambda g: grouped(g, [384, 24, 1], MODE.NONE), ["needs a weight with stride 1 along K (axis 1); 'tensor_2' (uid 3, dim [2, 16, 24]) has stride"]),
        (lambda g: grouped(g, [384, 1, 16], MODE.SCATTER), ["mode SCATTER does not run"]),
        (
            lambda g: g.binary_select(g.tensor([2, 3, 4]), g.tensor([2, 3, 4]), g.tensor([2, 3, 1], data_type=BOOL)),
            ["'binary_select.0' (binary_select) needs a mask with the last extent of its output; 'tensor_2'"],
        ),
        (
            lambda g: g.add(g.tensor([2, 3, 4]), g.tensor([2, 3, 4], [12, 1, 3])),
            ["lie in memory in one order of axes", "'tensor_1' [2, 3, 4] with stride [12, 1, 3]"],
        ),
        (lambda g: g.relu(g.tensor([2, 3, 4], [24, 8, 2])), ["the innermost packed: 'tensor_0' [2, 3, 4] with stride [24, 8, 2]"]),
        (
            lambda g: g.relu(g.tensor([2, 3, 4, 5], [1000, 200, 40, 1])).set_stride([60, 20, 5, 1]),
            ["cannot be seen as ones of rank 3: 'tensor_0' [2, 3, 4, 5] with stride [1000, 200, 40, 1]"],
        ),
    ],
)
def test_known_reasons(build: Callable[[pygraph], Any], parts: list[str]) -> None:
    (hint,) = found(build)
    for part in parts:
        assert part in hint


def test_what_runs_has_none() -> None:
    def conv(g: pygraph) -> list[Any]:
        y = g.conv_fprop(g.tensor([8, 32, 4, 4], NHWC), g.tensor([64, 32, 3, 3], [288, 1, 96, 32]), padding=[1, 1], stride=[1, 1], dilation=[1, 1])
        return [y, *g.genstats(y)]

    assert found(conv) == []
    assert found(lambda g: g.reduction(g.matmul(g.tensor([2, 8, 16]), g.tensor([2, 16, 8])), ADD, out_dims=[2, 8, 1])) == []
    assert found(lambda g: g.add(g.tensor([8, 32, 4, 4], NHWC), g.tensor([1, 32, 1, 1]))) == []
    assert found(lambda g: grouped(g, [384, 1, 16], MODE.NONE)) == []
