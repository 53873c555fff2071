# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""The numbers of the C ABI: against the library's header where one is installed, and against what must hold anywhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cudnn_graph import constants, library
from cudnn_graph.enums import behavior_note, data_type, heur_mode, knob_type, moe_grouped_matmul_mode, numerical_note, reduction_mode

HEADERS = [
    header
    for root in library.package_roots()
    for wheel in ("cudnn_jit", "cudnn")
    for header in (Path(root) / "nvidia" / wheel / "include" / "cudnn_graph.h",)
    if header.is_file()
]


def members(table: type) -> dict[str, int]:
    return {name: value for name, value in vars(table).items() if not name.startswith("_")}


def enum_values(header: Path) -> dict[str, int]:
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", header.read_text(encoding="utf-8", errors="replace"), flags=re.DOTALL)
    return {name: int(value) for name, value in re.findall(r"\b(CUDNN_\w+)(?:\s+CUDNN_DEPRECATED_ENUM)?\s*=\s*(-?\d+)", text)}


def header_version(header: Path) -> int:
    text = header.with_name("cudnn_version.h").read_text(encoding="utf-8")
    major, minor, patch = (int(re.search(rf"#define CUDNN_{part} (\d+)", text).group(1)) for part in ("MAJOR", "MINOR", "PATCHLEVEL"))
    return major * 10000 + minor * 100 + patch


@pytest.mark.skipif(not HEADERS, reason="no wheel with cudnn_graph.h is installed (nvidia-cudnn-jit-cu13, nvidia-cudnn-cu13)")
@pytest.mark.parametrize("header", HEADERS, ids=lambda header: header.parent.parent.name)
def test_every_number_is_that_of_the_header(header: Path) -> None:
    known = enum_values(header)
    assert len(known) > 300
    version = header_version(header)
    compared = 0
    missing = []
    for table in constants.TABLES:
        prefix, suffix = table._header
        for name, value in members(table).items():
            full = f"{prefix}{name}{suffix}"
            if full in known:
                assert known[full] == value, full
                compared += 1
            else:
                missing.append(full)
    if version >= 92700:
        # Only what came later than the header may be absent from it.
        assert set(missing) <= {"CUDNN_ATTR_EXECUTION_PLAN_CUDA_GRAPH_RETENTION", "CUDNN_TYPE_CUDA_GRAPH_RETENTION"}
    assert compared > 350


def test_the_extension_knows_the_same_numbers() -> None:
    try:
        own = library.extension().constants
    except library.LibraryError as error:
        pytest.skip(str(error))
    assert len(own) >= 15
    for path, value in own.items():
        table, name = path.split(".")
        assert getattr(getattr(constants, table), name) == value, path


@pytest.mark.parametrize("table", constants.TABLES, ids=lambda table: table.__name__)
def test_no_number_is_used_twice_in_one_enum(table: type) -> None:
    values = members(table)
    if table is not constants.Misc:
        assert len(set(values.values())) == len(values)
    assert values


def test_public_enums_translate_completely() -> None:
    assert set(constants.DATA_TYPE) == set(data_type) - {data_type.NOT_SET}
    assert (constants.DATA_TYPE[data_type.HALF], constants.DATA_TYPE[data_type.BFLOAT16], constants.DATA_TYPE[data_type.FP8_E5M3]) == (2, 9, 23)
    assert set(constants.REDUCTION) == set(reduction_mode) - {reduction_mode.NOT_SET}
    assert constants.REDUCTION[reduction_mode.AMAX] == 4
    assert constants.HEUR_MODE == {heur_mode.A: 3, heur_mode.B: 1, heur_mode.FALLBACK: 2}
    assert set(constants.MOE) == set(moe_grouped_matmul_mode) - {moe_grouped_matmul_mode.COMBINE}
    assert {kind for kind in knob_type if kind not in constants.KNOB} == {kind for kind in knob_type if kind.value == 0 or kind.value >= 1000}
    # The published knob numbers: public value -> the library's.
    for public, number in {1: 1, 3: 4, 4: 11, 8: 15, 9: 17, 14: 27, 18: 31, 19: 33, 29: 43, 31: 45, 32: 26}.items():
        assert constants.KNOB[knob_type(public)] == number
    assert len(set(constants.KNOB.values())) == len(constants.KNOB)
    # Notes are the library's numbers plus one.
    assert (numerical_note.TENSOR_CORE.value, behavior_note.RUNTIME_COMPILATION.value) == (1, 1)


@pytest.mark.parametrize(
    "method, number",
    [
        *zip(
            "abs ceil cos exp floor log neg rsqrt sin sqrt tan erf identity reciprocal".split(),
            (10, 11, 12, 13, 14, 15, 16, 17, 18, 4, 19, 20, 21, 22),
            strict=True,
        ),
        *zip("add mul sub div add_square logical_and logical_or bias scale max min mod pow".split(), (0, 1, 9, 6, 5, 400, 401, 0, 1, 3, 2, 7, 8), strict=True),
        *zip("relu tanh sigmoid elu gelu softplus swish gelu_approx_tanh".split(), range(100, 108), strict=True),
        *zip("cmp_eq cmp_neq cmp_gt cmp_ge cmp_lt cmp_le".split(), range(300, 306), strict=True),
        *zip((f"{name}_backward" for name in "relu tanh sigmoid elu gelu softplus swish gelu_approx_tanh".split()), range(200, 208), strict=True),
        ("leaky_relu", 100),
        ("leaky_relu_backward", 200),
        ("gen_index", 501),
        ("logical_not", 402),
        ("binary_select", 601),
    ],
)
def test_pointwise_modes(method: str, number: int) -> None:
    assert constants.POINTWISE[method] == number


def test_every_pointwise_method_of_the_graph_has_a_mode() -> None:
    from cudnn_graph.builders.pointwise import PointwiseMethods

    methods = {name for name in vars(PointwiseMethods) if not name.startswith("_")}
    assert methods == set(constants.POINTWISE)


def test_name_of() -> None:
    assert constants.name_of(constants.Attr, 1523) == "OPERATION_MATMUL_DESC"
    assert constants.name_of(constants.Desc, 123456) == "123456"
