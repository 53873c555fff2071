# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""What the library computes wrongly is refused before it gets there, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cudnn_graph import enums as e
from cudnn_graph.errors import cudnnGraphNotSupportedError
from cudnn_graph.graph import pygraph
from cudnn_graph.lowering import lower
from cudnn_graph.lowering.known_bad import wrong_plan

INT8, INT32, FLOAT = e.data_type.INT8, e.data_type.INT32, e.data_type.FLOAT
COMPILED, PRECOMPILED = (e.behavior_note.RUNTIME_COMPILATION,), ()


def lowered(build: Callable[[pygraph], Any], version: int = 91900) -> Any:
    g = pygraph("g", io_data_type=e.data_type.HALF, intermediate_data_type=FLOAT, compute_data_type=FLOAT)
    build(g).set_output(True)
    g.validate()
    return lower(g, version)


@pytest.mark.parametrize(
    "shape, other, seen",
    [
        ([4, 32, 64], [1, 32, 1], [1, 32, 1]),
        ([4, 32, 8, 8], [1, 32, 1, 1], [1, 32, 1]),
        ([4, 32, 64, 2], [4, 1, 64, 1], None),
    ],
)
def test_columns_repeated_over_a_batch(shape: list[int], other: list[int], seen: list[int] | None) -> None:
    def build(g: pygraph) -> Any:
        return g.add(g.tensor(shape, name="x"), g.tensor(other, name="y"))

    if seen is None:
        # Four axes that cannot be merged: the library declines by itself.
        lowered(build)
        return
    with pytest.raises(cudnnGraphNotSupportedError, match=r"node 'add.0': cuDNN repeats tensor 'y' \(uid 2\), which it sees as ") as caught:
        lowered(build)
    assert f"sees as {seen}, wrongly over [4, 32, 64]" in str(caught.value)


def test_results_without_the_last_axis() -> None:
    with pytest.raises(cudnnGraphNotSupportedError, match=r"cuDNN repeats tensor 'exp.0::OUT_0' .* sees as \[1, 32, 1\], wrongly over \[1, 32, 64\]"):
        lowered(lambda g: g.mul(g.tensor([32, 64]), g.exp(g.tensor([32, 1]))))
    lowered(lambda g: g.mul(g.tensor([32, 64]), g.exp(g.tensor([1, 64]))))
    lowered(lambda g: g.mul(g.tensor([32, 64]), g.exp(g.tensor([1, 1]))))


@pytest.mark.parametrize("other", [[4, 32, 64], [1, 32, 64], [4, 1, 64], [4, 32, 1], [4, 1, 1], [1, 1, 64], [1, 1, 1], [64], [1]], ids=str)
def test_what_is_repeated_right(other: list[int]) -> None:
    lowered(lambda g: g.add(g.tensor([4, 32, 64]), g.tensor(other)))
    # Behind a matmul nothing is refused.
    lowered(lambda g: g.add(g.matmul(g.tensor([4, 32, 16]), g.tensor([4, 16, 64])), g.tensor(other)))
    lowered(lambda g: g.add(g.matmul(g.tensor([4, 32, 16]), g.tensor([4, 16, 64])), g.tensor([1, 32, 1])))


def test_scalars_are_no_tensors_to_repeat() -> None:
    lowered(lambda g: g.mul(g.tensor([4, 32, 64]), 0.5))


def test_gather() -> None:
    def build(g: pygraph) -> Any:
        index, starts = g.tensor([1, 8, 1], data_type=INT32), g.tensor([2, 1, 1], data_type=INT32)
        weight = g.tensor([2, 16, 24], [384, 1, 16])
        return g.moe_grouped_matmul(g.tensor([1, 8, 16]), weight, starts, token_index=index, mode=e.moe_grouped_matmul_mode.GATHER)

    with pytest.raises(cudnnGraphNotSupportedError, match=r"with cuDNN 9.19.0 mode GATHER reads outside its tensors; no version is known to compute it"):
        lowered(build)


def test_boundaries_of_groups_need_a_newer_library() -> None:
    def build(g: pygraph) -> Any:
        return g.moe_grouped_matmul(g.tensor([1, 8, 16]), g.tensor([2, 16, 24], [384, 1, 16]), g.tensor([3, 1, 1], data_type=INT32))

    with pytest.raises(cudnnGraphNotSupportedError, match="with anything but one start for each of 2 experts needs cuDNN 9.22.0 or newer"):
        lowered(build)
    lowered(build, 92200)


def convolution(y: Any, x: Any = INT8) -> pygraph:
    g = pygraph("g", io_data_type=INT8, compute_data_type=INT32)
    image, weight = g.tensor([2, 32, 8, 8], [2048, 1, 256, 32], x), g.tensor([64, 32, 3, 3], [288, 1, 96, 32], x)
    g.conv_fprop(image, weight, padding=[1, 1], stride=[1, 1], dilation=[1, 1]).set_output(True).set_data_type(y)
    g.validate()
    return g


def test_precompiled_engines_for_int8_convolutions() -> None:
    assert (
        wrong_plan(convolution(INT32), PRECOMPILED) == "node 'conv_fprop.0' (conv_fprop): cuDNN's precompiled engines give wrong INT32 results for INT8 images"
    )
    assert wrong_plan(convolution(INT32), COMPILED) is None
    assert wrong_plan(convolution(INT8), PRECOMPILED) is None
    assert wrong_plan(convolution(FLOAT), PRECOMPILED) is None
    assert wrong_plan(convolution(e.data_type.HALF, e.data_type.HALF), PRECOMPILED) is None
