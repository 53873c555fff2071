"""Every kernel that the installed families list compiles, without a GPU and without a tensor. `nox -s compile` runs this for each architecture."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest

from cudnn import registry

pytestmark = pytest.mark.compile
pytest.importorskip("cutlass", reason="the CuTe DSL is not installed; it is in the extra cutedsl of cudnn-base")

ARCH = os.environ.get("CUDNN_COMPILE_ARCH", "sm_90a")
# `nox -s full` compiles every kernel that is worth precompiling; the default run those that show every option with every configuration.
EVERYTHING = os.environ.get("CUDNN_COMPILE_EVERYTHING", "") == "1"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What became of each operation's kernels, all built into one empty cache by one set of processes."""
    from cudnn.cache.pool import build_all

    folder = tmp_path_factory.mktemp("cache")
    listed = {module: [spec for spec in importlib.import_module(module).precompile_specs() if spec.arch == ARCH] for _, module in registry.operations()}
    # Kernels of one operation that another one lists as well are covered once.
    every = list(dict.fromkeys(spec for specs in listed.values() for spec in specs))
    every = every if EVERYTHING else covering(every)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDNN_KERNELS_CACHE", str(folder))
        found = {outcome.spec: outcome for outcome in build_all(every, arch=ARCH)}
    # Two specs with the same kernel would be one file.
    stored = sum(outcome.status == "compiled" for outcome in found.values())
    assert len(list(folder.rglob("*.o"))) == stored, f"{stored} kernels compiled, {len(list(folder.rglob('*.o')))} stored"
    return {module: [found[spec] for spec in specs if spec in found] for module, specs in listed.items()}


def test_the_installed_dsl_is_consistent() -> None:
    from cudnn.dsl_check import require_dsl

    require_dsl("the compile tests", probe=True)


def test_every_family_with_kernels_lists_operations() -> None:
    assert [status.name for status in registry.families() if status.state != "ok"] == []
    listed = {family for family, _ in registry.operations()}
    assert {status.name for status in registry.families() if status.family is not None and status.family.archs} <= listed


def covering(specs: list[Any]) -> list[Any]:
    """A part of ``specs`` in which every value of every field of problem and options occurs with every operation and configuration that it occurs with in the whole."""

    def features(spec: Any) -> set[tuple[Any, ...]]:
        fields = {**spec.problem.as_dict(), **spec.options.as_dict()} if hasattr(spec, "problem") else {"label": spec.label}
        return {(spec.op, getattr(spec, "config", None), name, str(value)) for name, value in fields.items()}

    left = {spec: features(spec) for spec in specs}
    missing = set().union(*left.values())
    chosen = []
    while missing:
        best = max(left, key=lambda spec: len(left[spec] & missing))
        chosen.append(best)
        missing -= left.pop(best)
    return chosen


def test_the_covering_part_covers() -> None:
    specs = [spec for _, module in registry.operations() for spec in importlib.import_module(module).precompile_specs()]
    chosen = covering(specs)
    assert len(chosen) < len(specs)
    assert {spec.op for spec in chosen} == {spec.op for spec in specs}
    assert {(spec.op, getattr(spec, "config", None)) for spec in covering([s for s in specs if s.op == "gemm_swiglu"])} == {
        (spec.op, spec.config) for spec in specs if spec.op == "gemm_swiglu"
    }


@pytest.mark.parametrize(("family", "module"), registry.operations())
def test_an_operation_compiles_in_its_default_configurations(family: str, module: str, outcomes: dict[str, list[Any]]) -> None:
    specs = [spec for spec in importlib.import_module(module).precompile_specs() if spec.arch == ARCH]
    assert specs, f"{module} of {family} lists no kernel for {ARCH}"
    assert len(set(specs)) == len(specs)
    failed = [f"{outcome.spec.label}: {outcome.error}\n{outcome.traceback}" for outcome in outcomes[module] if outcome.status == "failed"]
    assert not failed, "\n".join(failed)
    # Two specs with the same kernel would show as "cached" here, and one that was not tried would be missing.
    assert {outcome.status for outcome in outcomes[module]} == {"compiled"}
    compiled = {outcome.spec for outcome in outcomes[module]}
    assert {(spec.op, getattr(spec, "config", None)) for spec in compiled} == {(spec.op, getattr(spec, "config", None)) for spec in specs}
    assert compiled == set(specs) or not EVERYTHING
