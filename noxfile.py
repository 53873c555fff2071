"""Everything that is run on this repository. `nox` runs the tests; `nox --list` shows what else there is.

Environments are shared between sessions, by folder: `tools` (no framework), `heavy` (torch and the DSL), and one each for torch alone and for JAX alone. Our own
wheels are built once into dist/ and laid over an environment as a folder on PYTHONPATH, so that each session sees exactly the packages it is about.
Sessions that need torch install it with pip and not with uv, because only pip honours the indexes and wheel folders of the machine's pip configuration.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["lint", "types", "stubs", "build", "matrix", "unit", "imports", "wheels", "examples", "frameworks", "compile"]

ROOT = Path(__file__).resolve().parent
DIST = ROOT / "dist"
ENVIRONMENTS = ROOT / ".nox"
BASE = "cudnn-base"
FAMILIES = ["cudnn-gemm-dense", "cudnn-gemm-grouped", "cudnn-gemm-discrete", "cudnn-graph"]
PACKAGES = [BASE, *FAMILIES]
PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
ARCHS = ["sm_90a"]

# A looser torch is another build of several gigabytes on some machines, and another one each month.
TORCH = "torch==2.13.0"
DSL = ["nvidia-cutlass-dsl[cu13]==4.8.1", "apache-tvm-ffi>=0.1.11,<0.2"]
BASE_REQUIREMENTS = ["importlib-metadata>=6.0", "platformdirs>=3.0", "filelock>=3.12"]
TEST_REQUIREMENTS = ["pytest>=8", "pytest-timeout", "hypothesis"]
TOOLS = [
    *TEST_REQUIREMENTS,
    *BASE_REQUIREMENTS,
    "black==26.10.1",
    "ruff==0.17.6",
    "mypy==2.4.1",
    "numpy",
    "build",
    "hatchling>=1.27",
    "editables",
    "pybind11>=2.13",
    "rich",
    "virtualenv",
]
HEAVY = [*TEST_REQUIREMENTS, *BASE_REQUIREMENTS, TORCH, "numpy", *DSL, "rich", "matplotlib", "hatchling>=1.27", "pybind11>=2.13", "editables"]

COMBINATIONS = [combination for count in range(len(FAMILIES) + 1) for combination in itertools.combinations(FAMILIES, count)]


def short(combination: tuple[str, ...]) -> str:
    """The name of a combination, such as base+gemm-dense."""
    return "+".join(["base", *(name.removeprefix("cudnn-") for name in combination)])


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Formatting, lint, and what must be equal or bounded across the repository."""
    python = shared(session, "tools", TOOLS)
    session.run(python, "-m", "black", "--check", ".")
    session.run(python, "-m", "ruff", "check", ".")
    session.run(python, "tools/check_repository.py")


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Static types of the host code, and of a program that uses the stubs."""
    python = shared(session, "tools", TOOLS)
    session.run(python, "-m", "mypy", *(f"packages/{package}/src" for package in PACKAGES))
    session.run(python, "-m", "mypy", "--follow-imports=silent", "tests/types")


@nox.session(venv_backend="none")
def stubs(session: nox.Session) -> None:
    """Compare the generated catalogue and stubs with the manifests; `nox -s stubs -- --write` writes them."""
    python = shared(session, "tools", TOOLS)
    arguments = [] if "--write" in session.posargs else ["--check"]
    session.run(python, "tools/generate_catalog.py", *arguments)


@nox.session(venv_backend="none")
def build(session: nox.Session) -> None:
    """Build the wheels into dist/, unless those there are of these sources."""
    python = shared(session, "tools", TOOLS)
    fingerprint = source_fingerprint()
    mark = DIST / "fingerprint"
    if mark.exists() and mark.read_text() == fingerprint and all(wheel_of(package) for package in PACKAGES):
        session.log("dist/ is up to date")
        return
    shutil.rmtree(DIST, ignore_errors=True)
    for package in PACKAGES:
        session.run(python, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(DIST), f"packages/{package}", silent=True)
    session.run(python, "-m", "pip", "download", "-q", "-d", str(DIST / "needed"), *BASE_REQUIREMENTS, silent=True)
    mark.write_text(fingerprint)
    session.log(f"built {', '.join(sorted(path.name for path in DIST.glob('*.whl')))}")


@nox.session(venv_backend="none", requires=["build"])
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def unit(session: nox.Session, package: str) -> None:
    """The CPU tests of one package, with base and that package alone."""
    python = shared(session, "heavy", HEAVY)
    environment = overlay(session, python, package, [BASE, package])
    session.run(python, "-m", "pytest", f"packages/{package}/tests", "-m", "not gpu and not compile", *session.posargs, env=environment)


@nox.session(venv_backend="none", requires=["build"])
@nox.parametrize("combo", COMBINATIONS, ids=[short(combination) for combination in COMBINATIONS])
def matrix(session: nox.Session, combo: tuple[str, ...]) -> None:
    """One combination of packages in a fresh environment without torch and without the DSL."""
    python = shared(session, "tools", TOOLS)
    started = time.perf_counter()
    fresh = fresh_environment(session, python, short(combo), [BASE, *combo])
    made = time.perf_counter()
    run_combination(session, python, fresh, combo)
    tested = time.perf_counter()
    if len(combo) == len(FAMILIES):
        # Taking one away must leave the rest as it was.
        session.run(python, "-m", "pip", "--python", fresh, "uninstall", "-q", "-y", combo[0], silent=True)
        run_combination(session, python, fresh, combo[1:])
    session.log(f"{short(combo)}: environment {made - started:.1f} s, tests {tested - made:.1f} s")


@nox.session(venv_backend="none", requires=["build"])
def imports(session: nox.Session) -> None:
    """What an import may and may not bring in, and how long it takes."""
    python = shared(session, "heavy", HEAVY)
    environment = overlay(session, python, "all", PACKAGES)
    session.run(python, "-m", "pytest", "tests/imports", *session.posargs, env=environment)


@nox.session(venv_backend="none", requires=["build"])
def wheels(session: nox.Session) -> None:
    """The contents of the wheels in dist/, and editable installs."""
    python = shared(session, "tools", TOOLS)
    session.run(python, "-m", "pytest", "tests/wheels", "-m", "not slow", *session.posargs, env={"CUDNN_DIST": str(DIST)})


@nox.session(venv_backend="none", requires=["build"])
def examples(session: nox.Session) -> None:
    """The examples, among them a distribution by someone else that is built, installed and used, the code in the documentation, and one problem through all families."""
    python = shared(session, "heavy", HEAVY)
    environment = overlay(session, python, "all", PACKAGES)
    session.run(python, "-m", "pytest", "tests/examples", "tests/docs", "tests/crossfamily", *session.posargs, env=environment)


@nox.session(reuse_venv=True, requires=["build"])
@nox.parametrize("framework", ["torch", "jax"], ids=["torch", "jax"])
def frameworks(session: nox.Session, framework: str) -> None:
    """Import hygiene and the CPU API with one framework installed and neither the other one nor the DSL."""
    needed = {"torch": [TORCH, "numpy"], "jax": ["jax>=0.6", "numpy"]}[framework]
    if framework == "jax" and sys.version_info < (3, 11):
        session.skip("jax >= 0.6 needs Python 3.11 or newer")
    session.install(*TEST_REQUIREMENTS, *BASE_REQUIREMENTS, *needed)
    environment = {**overlay(session, "python", "all", PACKAGES), "CUDNN_FRAMEWORK": framework}
    session.run("python", "-m", "pytest", "tests/frameworks", *session.posargs, env=environment)


@nox.session(venv_backend="none", requires=["build"])
@nox.parametrize("arch", ARCHS, ids=ARCHS)
def compile(session: nox.Session, arch: str) -> None:
    """Compile every operation in its default configurations; needs no GPU. Of the kernels those are taken that show every option with every configuration."""
    python = shared(session, "heavy", HEAVY)
    environment = {**overlay(session, python, "all", PACKAGES), "CUDNN_COMPILE_ARCH": arch}
    session.run(python, "-m", "pytest", "tests/compile", *session.posargs, env=environment)


@nox.session(venv_backend="none", requires=["build"])
def every_kernel(session: nox.Session) -> None:
    """Compile every kernel that is worth precompiling, some hundreds."""
    python = shared(session, "heavy", HEAVY)
    environment = {**overlay(session, python, "all", PACKAGES), "CUDNN_COMPILE_EVERYTHING": "1"}
    session.run(python, "-m", "pytest", "tests/compile/test_compile.py", *session.posargs, env=environment)


@nox.session(venv_backend="none", requires=["build"])
def gpu(session: nox.Session) -> None:
    """The tests that need a Hopper GPU."""
    python = shared(session, "heavy", HEAVY)
    environment = overlay(session, python, "all", PACKAGES)
    session.run(python, "-m", "pytest", "-m", "gpu", *(session.posargs or ["packages", "tests"]), env=environment)


@nox.session(reuse_venv=True)
def demo(session: nox.Session) -> None:
    """Run examples/swiglu_mlp.py; a torch that the calling Python has is used, otherwise one is installed."""
    borrowed = borrow_packages(session, ["torch"])
    if not borrowed:
        session.install(TORCH, "numpy")
    with_kernels = has_hopper()
    packages = [f"packages/{package}" for package in (BASE, "cudnn-gemm-dense")]
    if with_kernels:
        session.install(*DSL)
    session.install(*BASE_REQUIREMENTS, "rich")
    session.install("--no-deps", "--force-reinstall", *packages)
    session.run("python", "examples/swiglu_mlp.py", *session.posargs)


@nox.session(python=PYTHONS)
def pythons(session: nox.Session) -> None:
    """What needs no framework, on another Python: registry, reports, import contracts, and all five packages together."""
    session.install(*TEST_REQUIREMENTS, *BASE_REQUIREMENTS, "rich", "pybind11>=2.13")
    session.install("--no-deps", *(f"packages/{package}" for package in PACKAGES))
    # Most modules are imported by no test here; that they compile is seen all the same.
    session.run("python", "-m", "compileall", "-q", "-f", "packages", "tests", "examples", "benchmarks", env={"PYTHONPYCACHEPREFIX": session.create_tmp()})
    session.run("python", "-m", "pytest", *LIGHT_TESTS, *session.posargs)


@nox.session
def minimums(session: nox.Session) -> None:
    """The oldest dependencies that the metadata allows; `-- torch` adds the oldest torch, a large download."""
    floors = re.findall(r'"([a-z-]+)>=([\d.]+)"', (ROOT / "packages/cudnn-base/pyproject.toml").read_text().partition("[project.optional")[0])
    pins = [f"{name}=={version}" for name, version in floors if name != "hatchling"]
    if "torch" in session.posargs:
        pins.append("torch==2.9.0")
    session.install(*TEST_REQUIREMENTS, *pins, "rich")
    session.install("--no-deps", *(f"packages/{package}" for package in PACKAGES))
    session.run("python", "-m", "pytest", *LIGHT_TESTS, "packages/cudnn-base/tests/cache")


@nox.session(venv_backend="none", requires=["build"])
def sdists(session: nox.Session) -> None:
    """Build source distributions, a wheel from each, and compare it with the wheel that the tree gives."""
    python = shared(session, "tools", TOOLS)
    for package in PACKAGES:
        session.run(python, "-m", "build", "--no-isolation", "--outdir", str(DIST / "from-sdist"), f"packages/{package}", silent=True)
    session.run(python, "-m", "pytest", "tests/wheels", "-m", "slow", env={"CUDNN_DIST": str(DIST)})


@nox.session(reuse_venv=True, requires=["build"])
def conversions(session: nox.Session) -> None:
    """The quantisers beside torch's own and torchao's, which the other sessions do without."""
    session.install(*TEST_REQUIREMENTS, *BASE_REQUIREMENTS, TORCH, "numpy", "torchao", "expecttest")
    environment = overlay(session, "python", "all", PACKAGES)
    session.run("python", "-m", "pytest", "packages/cudnn-base/tests/block_scale/test_against_others.py", *session.posargs, env=environment)


@nox.session(venv_backend="none", requires=[*nox.options.sessions, "every_kernel", "conversions", "minimums", "pythons", "sdists", "docs"])
def full(session: nox.Session) -> None:
    """The default sessions, and every kernel, conversions of others, minimums, further Pythons, source distributions and the docs."""
    session.log("all of them passed")


@nox.session(reuse_venv=True)
def docs(session: nox.Session) -> None:
    """Build the documentation into site/; broken links and warnings fail."""
    session.install("mkdocs>=1.6,<2", "mkdocs-material>=9.5", "mkdocstrings[python]>=0.27")
    session.run("mkdocs", *(session.posargs or ["build", "--strict", "-q"]), env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session(venv_backend="none", requires=["build"])
def bench(session: nox.Session) -> None:
    """The benchmark command; arguments after -- are its own."""
    python = shared(session, "heavy", HEAVY)
    session.run(python, "-m", "cudnn", "bench", *session.posargs, env=overlay(session, python, "all", PACKAGES))


LIGHT_TESTS = [
    *(f"packages/cudnn-base/tests/test_{name}.py" for name in ("registry", "family", "dsl_check", "collect_env", "tuple_dict")),
    *(f"packages/{package}/tests/test_package.py" for package in ("cudnn-gemm-grouped", "cudnn-gemm-discrete", "cudnn-graph")),
    "tests/imports",
    "tests/combos",
]


def shared(session: nox.Session, name: str, requirements: list[str]) -> str:
    """The Python of an environment that several sessions share; made the first time, and anew when the requirements change."""
    folder = ENVIRONMENTS / f"{name}-{sys.version_info[0]}.{sys.version_info[1]}"
    python = str(folder / "bin" / "python")
    mark = folder / "requirements"
    if not mark.exists() or mark.read_text() != "\n".join(requirements):
        session.log(f"making {folder.relative_to(ROOT)}")
        shutil.rmtree(folder, ignore_errors=True)
        session.run(sys.executable, "-m", "virtualenv", "-q", "-p", sys.executable, str(folder), silent=True)
        session.run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *requirements, silent=True)
        mark.write_text("\n".join(requirements))
    return python


def wheel_of(package: str) -> Path | None:
    """The wheel in dist/. One with a compiled part fits one Python only, and another one's is not it."""
    found = [
        path
        for path in DIST.glob(f"{package.replace('-', '_')}-*.whl")
        if "-py3-" in path.name or f"-cp{sys.version_info[0]}{sys.version_info[1]}-" in path.name
    ]
    return found[0] if found else None


def source_fingerprint() -> str:
    """Of everything that goes into the wheels, and of the Python that builds them."""
    digest = hashlib.sha256(sys.version.encode())
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "packages"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in sorted(listed):
        path = ROOT / name
        if "/tests/" not in name and path.is_file():
            digest.update(f"{name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def overlay(session: nox.Session, python: str, name: str, packages: list[str]) -> dict[str, str]:
    """Our wheels, unpacked into a folder of their own; returns the variables that put it on the path."""
    target = ENVIRONMENTS / "overlays" / name
    shutil.rmtree(target, ignore_errors=True)
    files = [str(wheel_of(package)) for package in dict.fromkeys(packages)]
    session.run(python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(target), *files, silent=True)
    return {"PYTHONPATH": str(target)}


def fresh_environment(session: nox.Session, python: str, name: str, packages: list[str]) -> str:
    """A new virtual environment with our wheels and what base needs; returns its Python."""
    folder = ENVIRONMENTS / "matrix" / name
    shutil.rmtree(folder, ignore_errors=True)
    session.run(python, "-m", "virtualenv", "-q", "--no-pip", str(folder), silent=True)
    fresh = str(folder / "bin" / "python")
    files = [*(DIST / "needed").glob("*.whl"), *(wheel_of(package) for package in packages)]
    session.run(
        python, "-m", "pip", "--python", fresh, "install", "-q", "--disable-pip-version-check", "--no-index", "--no-deps", *map(str, files), silent=True
    )
    return fresh


def run_combination(session: nox.Session, python: str, fresh: str, families: tuple[str, ...]) -> None:
    environment = {"CUDNN_COMBINATION_PYTHON": fresh, "CUDNN_COMBINATION": ",".join(families)}
    session.run(python, "-m", "pytest", "-q", "tests/combos", *session.posargs, env=environment)


def has_hopper() -> bool:
    """Whether the driver lists a device of compute capability 9.0."""
    if shutil.which("nvidia-smi") is None:
        return False
    done = subprocess.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True, text=True)
    return "9.0" in done.stdout.split()


def borrow_packages(session: nox.Session, modules: list[str]) -> bool:
    """Make the packages of the Python that called visible in the session's environment, if it has these modules and is of the same version.

    They come after the environment's own, as with --system-site-packages, which would show those of the base interpreter and not those of an active environment.
    """
    probe = "import importlib.util, json, site, sys; print(json.dumps([sys.version_info[:2], [p for p in sys.path if p.endswith('-packages')], [importlib.util.find_spec(m) is not None for m in sys.argv[1:]]]))"
    caller = os.environ.get("CUDNN_RUN_PYTHON", sys.executable)
    version, folders, present = json.loads(subprocess.run([caller, "-c", probe, *modules], capture_output=True, text=True, check=True).stdout)
    own = json.loads(
        session.run("python", "-c", "import json, sys, sysconfig; print(json.dumps([sys.version_info[:2], sysconfig.get_path('purelib')]))", silent=True)
    )
    link = Path(own[1]) / "borrowed.pth"
    link.unlink(missing_ok=True)
    if not all(present) or version != own[0]:
        return False
    link.write_text("".join(f"import site; site.addsitedir({folder!r})\n" for folder in folders))
    session.log(f"using torch of {caller}")
    return True


if __name__ == "__main__":
    nox.main()
