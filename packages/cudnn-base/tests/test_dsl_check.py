"""Installs of the CuTe DSL that do not fit together, made of stub distributions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cudnn import dsl_check
from cudnn.errors import KernelUnavailableError

PARTS = ("nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-core", "nvidia-cutlass-dsl-libs-cu12")
REQUIRES = {
    "nvidia-cutlass-dsl": ["nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-cu12", 'nvidia-cutlass-dsl-libs-cu13 ; extra == "cu13"'],
    "nvidia-cutlass-dsl-libs-base": ["nvidia-cutlass-dsl-libs-core", "typing-extensions"],
}
STUB = {
    "cutlass/__init__.py": "Float32 = object()\n",
    "cutlass/cute/__init__.py": "def compile(): pass\n",
    "cutlass/cute/arch.py": "def mbarrier_init(): pass\n",
    "cutlass/cute/nvgpu/__init__.py": "",
    "cutlass/cute/nvgpu/warpgroup.py": "class MmaF16BF16Op: pass\n",
    "cutlass/cute/nvgpu/cpasync.py": "class CopyBulkTensorTileG2SOp: pass\n",
    "cutlass/_mlir/__init__.py": "",
    "cutlass/_mlir/ir.py": "class Context: pass\n",
}


def install(root: Path, versions: dict[str, str], files: dict[str, str] | None = None) -> None:
    """Write distributions of these versions; the files belong to libs-core, and are recorded there with their sizes."""
    for path, text in (files or {}).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    for name, version in versions.items():
        info = root / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        requires = "".join(f"Requires-Dist: {requirement}\n" for requirement in REQUIRES.get(name, ()))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}")
        owned = files if files and name.endswith("libs-core") else {}
        (info / "RECORD").write_text("".join(f"{path},sha256=x,{len(text)}\n" for path, text in owned.items()))


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is the whole path, and no DSL imported or remembered."""
    import importlib_metadata  # noqa: F401  (it must be imported before the path is taken away)

    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "cutlass"}
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    dsl_check._remembered_problem.cache_clear()
    yield tmp_path
    for name in list(sys.modules):
        if name.partition(".")[0] == "cutlass":
            del sys.modules[name]
    sys.modules.update(kept)
    dsl_check._remembered_problem.cache_clear()


def same(version: str) -> dict[str, str]:
    return dict.fromkeys(PARTS, version)


def test_absent(alone: Path) -> None:
    with pytest.raises(ImportError) as caught:
        dsl_check.require_dsl("GemmSwiglu.compile")
    assert isinstance(caught.value, KernelUnavailableError) and caught.value.name == "cutlass"
    assert str(caught.value) == (
        'GemmSwiglu.compile needs the CuTe DSL. The CuTe DSL (nvidia-cutlass-dsl) is not installed. Install it with: pip install "cudnn-base[cutedsl]"'
    )


def test_consistent(alone: Path) -> None:
    install(alone, same("4.8.1"), STUB)
    assert dsl_check.dsl_distributions() == same("4.8.1")
    assert dsl_check.dsl_problem() is None
    dsl_check.require_dsl("GemmSwiglu.compile", probe=True)
    assert Path(sys.modules["cutlass"].__file__ or "").is_relative_to(alone)


def test_without_a_probe_the_dsl_is_not_imported(alone: Path) -> None:
    install(alone, same("4.8.1"), STUB)
    dsl_check.require_dsl("GemmSwiglu.compile")
    assert "cutlass" not in sys.modules


REINSTALL = "pip install --force-reinstall --no-cache-dir --no-deps nvidia-cutlass-dsl==4.8.1 nvidia-cutlass-dsl-libs-base==4.8.1"


def mixed(root: Path) -> None:
    install(root, {**same("4.8.1"), "nvidia-cutlass-dsl-libs-base": "4.7.0"}, STUB)


def no_main(root: Path) -> None:
    install(root, dict.fromkeys(PARTS[1:], "4.8.1"), STUB)


def no_core(root: Path) -> None:
    install(root, {name: version for name, version in same("4.8.1").items() if not name.endswith("-core")}, STUB)


def overwritten(root: Path) -> None:
    install(root, same("4.8.1"), STUB)
    (root / "cutlass/cute/arch.py").write_text("# of another version\n")


def deleted(root: Path) -> None:
    install(root, same("4.8.1"), STUB)
    (root / "cutlass/cute/nvgpu/warpgroup.py").unlink()


@pytest.mark.parametrize(
    ("break_it", "needed"),
    [
        (mixed, ["mixed from several versions: nvidia-cutlass-dsl is 4.8.1, but nvidia-cutlass-dsl-libs-base 4.7.0", REINSTALL]),
        (no_main, ["nvidia-cutlass-dsl is missing although its libraries are installed", REINSTALL]),
        (no_core, ["nvidia-cutlass-dsl 4.8.1 is installed without nvidia-cutlass-dsl-libs-core", REINSTALL]),
        (overwritten, ["The files of nvidia-cutlass-dsl-libs-core are not those", "cutlass/cute/arch.py has 21 bytes instead of 26", REINSTALL]),
        (deleted, ["The files of nvidia-cutlass-dsl-libs-core are not those", "cutlass/cute/nvgpu/warpgroup.py is missing", REINSTALL]),
        (lambda root: install(root, same("4.7.9"), STUB), ["Found nvidia-cutlass-dsl 4.7.9, the kernels need >= 4.8.1 and < 5", "pip install --upgrade"]),
        (lambda root: install(root, same("5.0.0"), STUB), ["Found nvidia-cutlass-dsl 5.0.0, the kernels need >= 4.8.1 and < 5", "pip install --upgrade"]),
    ],
)
def test_inconsistent(alone: Path, break_it: Callable[[Path], None], needed: list[str]) -> None:
    break_it(alone)
    with pytest.raises(ImportError) as caught:
        dsl_check.require_dsl("GemmSwiglu.compile")
    for fragment in needed:
        assert fragment in str(caught.value)
    assert "cutlass" not in sys.modules


@pytest.mark.parametrize(
    ("path", "text", "needed"),
    [
        (
            "cutlass/cute/nvgpu/warpgroup.py",
            "",
            "cutlass.cute.nvgpu.warpgroup.MmaF16BF16Op, a part of nvidia-cutlass-dsl-libs-core 4.8.1, cannot be used (AttributeError",
        ),
        ("cutlass/_mlir/ir.py", "raise TypeError('incompatible function arguments')", "cutlass._mlir.ir.Context, a part of nvidia-cutlass-dsl-libs-base 4.8.1"),
    ],
)
def test_right_version_with_a_missing_attribute(alone: Path, path: str, text: str, needed: str) -> None:
    install(alone, same("4.8.1"), {**STUB, path: text})
    dsl_check.require_dsl("GemmSwiglu.compile")
    with pytest.raises(ImportError) as caught:
        dsl_check.require_dsl("GemmSwiglu.compile", probe=True)
    assert needed in str(caught.value) and REINSTALL in str(caught.value)


def test_known_bad(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(dsl_check.KNOWN_BAD, "4.9.0", "its stores are wrong")
    install(alone, same("4.9.0"), STUB)
    problem = dsl_check.dsl_problem()
    assert problem == 'nvidia-cutlass-dsl 4.9.0 cannot be used: its stores are wrong. Install another version with: pip install "cudnn-base[cutedsl]" --upgrade'
