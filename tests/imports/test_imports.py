"""What `import cudnn` and the modules of the packages may bring in, and what it costs."""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "packages").glob("*/src/*/**/*.py"))
HEAVY = (
    "torch",
    "jax",
    "jaxlib",
    "numpy",
    "cutlass",
    "nvidia_cutlass_dsl",
    "cuda",
    "tvm_ffi",
    "triton",
    "importlib_metadata",
    "platformdirs",
    "filelock",
    "dataclasses",
)
DSL = {"cutlass", "tvm_ffi", "nvidia_cutlass_dsl", "cuda"}
FRAMEWORKS = {"torch", "jax", "jaxlib"}
FAMILIES = ("cudnn_gemm_dense", "cudnn_gemm_grouped", "cudnn_gemm_discrete", "cudnn_graph")

BLOCK = """
import sys
class Blocked:
    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] in {blocked!r}:
            raise ImportError("blocked: " + fullname)
sys.meta_path.insert(0, Blocked())
"""


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_with_everything_heavy_blocked() -> None:
    families = tuple(name for name in FAMILIES)
    output = python(
        BLOCK.format(blocked=(*HEAVY, *families)) + "import cudnn; print(cudnn.__version__, sorted(m for m in sys.modules if m.startswith('cudnn_')))"
    )
    assert output.endswith("[]")


def test_import_leaves_nothing_heavy_behind() -> None:
    # Compared with before: an environment may load things at start, as the DSL's own .pth file does.
    output = python("import sys; before = set(sys.modules); import cudnn; print(*sorted(set(sys.modules) - before))")
    added = {name.partition(".")[0] for name in output.split()}
    assert "cudnn" in added and not added & {*HEAVY, *FAMILIES}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_manifest_imports_only_the_record(family: str) -> None:
    code = f"import sys, cudnn.family; before = set(sys.modules); import {family}._family; print(sorted(set(sys.modules) - before))"
    assert python(code) == str([family, f"{family}._family"])


def test_import_time() -> None:
    # Interleaved, so that a busy machine weighs on both alike.
    bare, ours = [], []
    for _ in range(15):
        for times, code in ((bare, "pass"), (ours, "import cudnn")):
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            times.append(time.perf_counter() - started)
    added = (statistics.median(ours) - statistics.median(bare)) * 1000
    assert added < 30, f"import cudnn adds {added:.1f} ms to the bare interpreter's {statistics.median(bare) * 1000:.1f} ms"


def modules_at_top(path: Path) -> Iterator[str]:
    """The modules that importing a file imports: not those inside functions, nor those for type checkers only."""
    waiting: list[ast.stmt] = list(ast.parse(path.read_text()).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} is a relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for field in ("body", "orelse", "finalbody", "handlers"):
                waiting += getattr(node, field, [])


def tops(path: Path) -> set[str]:
    return {module.partition(".")[0] for module in modules_at_top(path)}


def kernel_side(path: Path) -> bool:
    """Modules that the DSL traces."""
    return "cutedsl" in path.parts or path.name in ("kernel.py", "epilogue.py", "fusions.py")


def label(path: Path) -> str:
    return str(path.relative_to(ROOT / "packages"))


def test_there_are_sources_on_both_sides() -> None:
    assert sum(kernel_side(path) for path in SOURCES) > 10 and sum(not kernel_side(path) for path in SOURCES) > 30


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT / "packages").with_suffix("").parts[2:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in SOURCES}


def reached(path: Path) -> set[str]:
    """Top-level packages that importing a file imports, directly or through our own modules."""
    found: set[str] = set()
    waiting, seen = [path], {path}
    while waiting:
        for name in modules_at_top(waiting.pop()):
            found.add(name.partition(".")[0])
            # Importing a module imports its parents first; a name that is an attribute and no module has none.
            parents = [".".join(name.split(".")[:depth]) for depth in range(1, name.count(".") + 2)]
            new = {MODULES[parent] for parent in parents if parent in MODULES} - seen
            waiting += new
            seen |= new
    return found


@pytest.mark.parametrize("path", [path for path in SOURCES if not kernel_side(path)], ids=label)
def test_host_modules_reach_no_dsl_at_module_top(path: Path) -> None:
    assert reached(path) & DSL == set()


def test_the_core_can_be_configured_without_the_dsl() -> None:
    assert any(kernel_side(path) and reached(path) & DSL for path in SOURCES)
    for name in ("config", "problem"):
        assert reached(MODULES[f"cudnn.cutedsl.gemm.{name}"]) & DSL == set()


@pytest.mark.parametrize("path", [path for path in SOURCES if kernel_side(path)], ids=label)
def test_kernel_modules_import_no_framework(path: Path) -> None:
    imported = {name.partition(".")[0] for node in ast.walk(ast.parse(path.read_text())) for name in imported_names(node)}
    assert imported & FRAMEWORKS == set()


def imported_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


@pytest.mark.parametrize("path", [path for path in SOURCES if "cutedsl" in path.parts and "cudnn" in path.parts], ids=label)
def test_the_core_depends_on_little_of_base(path: Path) -> None:
    allowed = {"cutedsl", "block_scale", "datatypes", "tensors", "cache", "errors", "device", "dsl_check"}
    used = {name.split(".")[1] for node in ast.walk(ast.parse(path.read_text())) for name in imported_names(node) if name.startswith("cudnn.")}
    assert used <= allowed
    assert not any(name.startswith("cudnn_") for node in ast.walk(ast.parse(path.read_text())) for name in imported_names(node))


@pytest.mark.parametrize("path", [path for path in SOURCES if path.parent.parent.name == "src" or "cudnn-base" in path.parts], ids=label)
def test_base_and_top_level_modules_of_a_family_import_no_other_family(path: Path) -> None:
    own = label(path).split("/")[2]
    others = {module for module in tops(path) if module.startswith("cudnn_")} - {own}
    assert others == set()


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in SOURCES
        if "cudnn-base" in path.parts and not kernel_side(path) and not {"reference", "testing"} & set(path.parts) and not path.stem.startswith("torch_")
    ],
    ids=label,
)
def test_base_imports_no_framework_at_module_top(path: Path) -> None:
    assert tops(path) & (FRAMEWORKS | {"numpy", "importlib_metadata", "platformdirs", "filelock", "rich", "matplotlib"}) == set()


def test_the_dsl_stays_out_until_a_compile() -> None:
    pytest.importorskip("torch", reason="the check uses CPU tensors")
    pytest.importorskip("cudnn_gemm_dense", reason="the check calls gemm_swiglu_wrapper")
    output = python("""
import sys, torch
from cudnn import gemm_swiglu_wrapper
a = torch.randn(16, 32, 1).to(torch.bfloat16)
b = torch.randn(64, 32, 1).to(torch.bfloat16)
gemm_swiglu_wrapper(a.transpose(0, 1).contiguous().transpose(0, 1), b.transpose(0, 1).contiguous().transpose(0, 1), c_dtype=torch.bfloat16)
print([m for m in ("cutlass", "tvm_ffi") if m in sys.modules])
""")
    assert output == "[]"
