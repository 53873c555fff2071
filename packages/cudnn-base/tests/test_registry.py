"""The registry against made-up distributions, each case in an interpreter of its own that sees nothing else."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

VERSION = "0.1.0"
DENSE_MANIFEST = """
from cudnn.family import Family
FAMILY = Family(
    name="gemm_dense", distribution="cudnn-gemm-dense",
    names={"GemmSwiglu": "cudnn_gemm_dense.api:GemmSwiglu", "GemmSwigluSm100": "cudnn_gemm_dense.api:GemmSwiglu",
           "gemm_swiglu_wrapper": "cudnn_gemm_dense.api:wrapper", "gemm_swiglu_wrapper_sm100": "cudnn_gemm_dense.api:wrapper"},
    namespaces={"gemm.cutedsl.dense.swiglu": {"GemmSwiglu": "cudnn_gemm_dense.api:GemmSwiglu", "GemmSwigluSm100": "cudnn_gemm_dense.api:GemmSwiglu"},
                "ops": {"interleave_gate_up": "cudnn_gemm_dense.api:interleave"}},
    operations=("cudnn_gemm_dense.api",),
)
"""
DENSE_API = """
class GemmSwiglu: pass
def wrapper(): return "wrapper"
def interleave(): return "interleave"
"""


class Site:
    """A folder in the role of site-packages, holding cudnn, what it depends on, and the distributions a test adds."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        for module in ("cudnn", "importlib_metadata", "zipp", "lazy_importer", "typing_extensions", "platformdirs", "filelock"):
            spec = importlib.util.find_spec(module)
            if spec is not None and spec.origin is not None:
                source = Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)
                (root / source.name).symlink_to(source)
        self.add("cudnn-base", VERSION)

    def add(self, distribution: str, version: str, entries: dict[str, str] | None = None, files: dict[str, str] | None = None) -> None:
        """Install a distribution."""
        info = self.root / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        if entries:
            lines = "".join(f"{name} = {value}\n" for name, value in entries.items())
            (info / "entry_points.txt").write_text(f"[cudnn.kernels]\n{lines}")
        for name, text in (files or {}).items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def add_dense(self, version: str = VERSION, api: str = DENSE_API, manifest: str = DENSE_MANIFEST) -> None:
        files = {"cudnn_gemm_dense/__init__.py": "", "cudnn_gemm_dense/_family.py": manifest, "cudnn_gemm_dense/api.py": api}
        self.add("cudnn-gemm-dense", version, {"gemm_dense": "cudnn_gemm_dense._family:FAMILY"}, files)

    def add_other(self, distribution: str, names: dict[str, str], *, family: str | None = None, body: str = "value = object()\n", **fields: object) -> None:
        """Install a family by someone else, whose module api has `body`."""
        package = distribution.replace("-", "_")
        family = family or package
        targets = {name: f"{package}.{target}" for name, target in names.items()}
        arguments = "".join(f", {key}={value!r}" for key, value in fields.items())
        manifest = f"from cudnn.family import Family\nFAMILY = Family(name={family!r}, distribution={distribution!r}, names={targets!r}{arguments})\n"
        files = {f"{package}/__init__.py": "", f"{package}/_family.py": manifest, f"{package}/api.py": body}
        self.add(distribution, "1.0", {family: f"{package}._family:FAMILY"}, files)

    def run(self, code: str, *, warnings: str = "error", **environment: str) -> str:
        """What `code` prints in a fresh interpreter that has only this folder."""
        variables = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "CUDNN_KERNELS"))}
        variables |= {"PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1", **environment}
        done = subprocess.run(
            [sys.executable, "-S", "-W", warnings, "-c", PRELUDE + textwrap.dedent(code)],
            env=variables,
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        self.stderr = done.stderr
        return done.stdout.strip()


PRELUDE = """
import sys, json, importlib
import cudnn
from cudnn import registry
def raised(action):
    try:
        action()
    except BaseException as error:
        return error
    raise SystemExit("nothing was raised")
def states():
    return {status.distribution: status.state for status in registry.families()}
def reason(distribution):
    return next(status.reason for status in registry.families() if status.distribution == distribution)
"""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


def test_nothing_installed(site: Site) -> None:
    output = site.run("""
        print(registry.families(), registry.missing_distributions(), registry.operations())
        print("GemmSwiglu" in dir(cudnn), "TupleDict" in dir(cudnn))
        error = raised(lambda: cudnn.GemmSwiglu)
        print(type(error).__name__, isinstance(error, ImportError), error.distribution)
        print(error)
        print(registry.available("GemmSwiglu"), registry.available("NoSuchName"), registry.available("ops.interleave_gate_up"))
        """)
    lines = output.splitlines()
    assert lines[0] == "[] ['cudnn-gemm-dense', 'cudnn-gemm-grouped', 'cudnn-gemm-discrete', 'cudnn-graph'] [('base', 'cudnn.block_scale.api')]"
    assert lines[1:] == [
        "False True",
        "KernelUnavailableError True cudnn-gemm-dense",
        "cudnn.GemmSwiglu is provided by cudnn-gemm-dense, which is not installed. Install it with: pip install cudnn-gemm-dense",
        "False False False",
    ]


def test_from_import_keeps_the_message_of_a_missing_distribution(site: Site) -> None:
    output = site.run("""
        def act():
            from cudnn import gemm_swiglu_wrapper_sm100
        print(raised(act))
        print(type(raised(lambda: hasattr(cudnn, "gemm_swiglu_wrapper_sm100"))).__name__)
        """)
    assert output.splitlines() == [
        "cudnn.gemm_swiglu_wrapper_sm100 is provided by cudnn-gemm-dense, which is not installed. Install it with: pip install cudnn-gemm-dense",
        "KernelUnavailableError",
    ]


def test_names_resolve_once_and_aliases_are_the_same_object(site: Site) -> None:
    site.add_dense()
    output = site.run("""
        print("cudnn_gemm_dense" in sys.modules, "cudnn_gemm_dense.api" in sys.modules)
        assert {"GemmSwiglu", "gemm_swiglu_wrapper", "ops", "gemm"} <= set(dir(cudnn))
        print("cudnn_gemm_dense.api" in sys.modules)
        from cudnn import GemmSwiglu, GemmSwigluSm100
        from cudnn.gemm.cutedsl.dense.swiglu import GemmSwigluSm100 as by_path
        print(GemmSwiglu is GemmSwigluSm100 is by_path, GemmSwiglu.__module__, "GemmSwiglu" in vars(cudnn))
        print(cudnn.gemm_swiglu_wrapper(), cudnn.ops.interleave_gate_up(), states(), registry.operations())
        """)
    assert output.splitlines() == [
        "False False",
        "False",
        "True cudnn_gemm_dense.api True",
        "wrapper interleave {'cudnn-gemm-dense': 'ok'} [('gemm_dense', 'cudnn_gemm_dense.api'), ('base', 'cudnn.block_scale.api')]",
    ]


def test_looking_up_a_first_party_name_loads_no_other_manifest(site: Site) -> None:
    site.add_dense()
    site.add_other("acme-kernels", {"acme": "api:value"})
    assert site.run('cudnn.GemmSwiglu; print("acme_kernels" in sys.modules); cudnn.acme; print("acme_kernels.api" in sys.modules)') == "False\nTrue"


@pytest.mark.parametrize("name", ["_private", "__wrapped__", "__file_name__"])
def test_underscore_names_are_refused_without_reading_metadata(site: Site, name: str) -> None:
    output = site.run(f"""
        before = "importlib_metadata" in sys.modules
        error = raised(lambda: getattr(cudnn, {name!r}))
        print(before, type(error).__name__, error, "importlib_metadata" in sys.modules)
        """)
    assert output == f"False AttributeError module 'cudnn' has no attribute {name!r} False"


def test_unknown_name_suggests_close_ones(site: Site) -> None:
    site.add_dense()
    output = site.run('error = raised(lambda: cudnn.GemmSwigluu); print(type(error).__name__, error); print(hasattr(cudnn, "nothing_like_it"))').splitlines()
    assert output[0].startswith("AttributeError module 'cudnn' has no attribute 'GemmSwigluu'; did you mean GemmSwiglu or ")
    assert output[1] == "False"


def test_synthesised_paths(site: Site) -> None:
    site.add_dense()
    output = site.run("""
        import cudnn.gemm.cutedsl.dense.swiglu
        print(cudnn.gemm.cutedsl.dense.swiglu.GemmSwiglu is cudnn.GemmSwiglu)
        from cudnn.gemm.cutedsl import dense
        print(dense.__name__, [name for name in dir(dense) if name[0] != "_"], [name for name in dir(dense.swiglu) if name[0] != "_"])
        from cudnn.ops import *
        print(type(raised(lambda: dense.relu)).__name__, raised(lambda: dense.relu))
        print(repr(raised(lambda: importlib.import_module("cudnn.gemm.cutedsl.dense.relu"))))
        print(repr(raised(lambda: importlib.import_module("cudnn.no_such"))))
        import cudnn.jax, cudnn.torch
        print("jax" in sys.modules, "torch" in sys.modules, "jax" in dir(cudnn), "torch" in dir(cudnn), "ops" in dir(cudnn))
        """)
    assert output.splitlines() == [
        "True",
        "cudnn.gemm.cutedsl.dense ['swiglu'] ['GemmSwiglu', 'GemmSwigluSm100']",
        "AttributeError module 'cudnn.gemm.cutedsl.dense' has no attribute 'relu'",
        "ModuleNotFoundError(\"No module named 'cudnn.gemm.cutedsl.dense.relu'\")",
        "ModuleNotFoundError(\"No module named 'cudnn.no_such'\")",
        "False False False False True",
    ]


def test_synthesised_paths_of_a_missing_distribution(site: Site) -> None:
    output = site.run("""
        for statement in ("from cudnn.gemm.cutedsl.dense.swiglu import GemmSwigluSm100", "import cudnn.gemm.cutedsl.dense.swiglu", "from cudnn.ops import interleave_gate_up"):
            error = raised(lambda: exec(statement))
            print(type(error).__name__, error)
        """)
    assert output.splitlines() == [
        "KernelUnavailableError cudnn.gemm.cutedsl.dense.swiglu is provided by cudnn-gemm-dense, which is not installed. Install it with: pip install cudnn-gemm-dense",
        "KernelUnavailableError cudnn.gemm.cutedsl.dense.swiglu is provided by cudnn-gemm-dense, which is not installed. Install it with: pip install cudnn-gemm-dense",
        "KernelUnavailableError cudnn.ops.interleave_gate_up is provided by cudnn-gemm-dense, which is not installed. Install it with: pip install cudnn-gemm-dense",
    ]


def test_pickle_uses_the_real_module(site: Site) -> None:
    site.add_dense()
    assert site.run("import pickle; print(b'cudnn_gemm_dense.api' in pickle.dumps(cudnn.GemmSwigluSm100))") == "True"


@pytest.mark.parametrize(
    ("api", "state", "needed"),
    [
        ("import torch\n", "missing-dependency", ["requires the 'torch' module, which is not installed", 'pip install "cudnn-base[torch]"']),
        ("import some_tool.part\n", "missing-dependency", ["requires the 'some_tool' module", "pip install --upgrade cudnn-gemm-dense"]),
        ("import cutlass.cute\n", "missing-dependency", ["requires optional dependencies", 'pip install "cudnn-base[cutedsl]"', "No module named 'cutlass'"]),
        ("import tvm_ffi\n", "missing-dependency", ["requires optional dependencies", 'pip install "cudnn-base[cutedsl]"', "No module named 'tvm_ffi'"]),
        ("def broken(:\n", "broken", ["SyntaxError", "cudnn-gemm-dense 0.1.0", "pip install --force-reinstall --no-deps cudnn-gemm-dense"]),
        ("raise ValueError('no luck')\n", "broken", ["ValueError: no luck", "cudnn_gemm_dense.api:GemmSwiglu"]),
        ("raise ValueError('CUDNN_KERNELS_LOG: found 7')\n", "broken", ["cudnn.GemmSwiglu cannot be loaded: CUDNN_KERNELS_LOG: found 7"]),
        ("wrapper = 1\n", "broken", ["AttributeError", "GemmSwiglu"]),
        ("import cudnn_gemm_dense.gone\n", "broken", ["No module named 'cudnn_gemm_dense.gone'", "--force-reinstall"]),
        (
            "try:\n    import numpy_like\nexcept ImportError:\n    raise RuntimeError('wrapped')\n",
            "missing-dependency",
            ["requires the 'numpy_like' module", "wrapped"],
        ),
    ],
)
def test_a_module_that_cannot_be_imported(site: Site, api: str, state: str, needed: list[str]) -> None:
    site.add_dense(api=api)
    output = site.run("""
        error = raised(lambda: cudnn.GemmSwiglu)
        print(json.dumps([type(error).__name__, str(error), type(error.__cause__).__name__, states(), reason("cudnn-gemm-dense"), "GemmSwiglu" in dir(cudnn)]))
        print(type(raised(lambda: cudnn.GemmSwiglu)).__name__)
        """)
    kind, message, cause, states, reason, listed = json.loads(output.splitlines()[0])
    assert kind == output.splitlines()[1] == "KernelUnavailableError"
    assert message.startswith("cudnn.GemmSwiglu ")
    for fragment in needed:
        assert fragment in message
    assert cause != "NoneType"
    assert states == {"cudnn-gemm-dense": state}
    assert reason == message
    assert not listed


def test_a_name_that_fails_leaves_the_others_usable(site: Site) -> None:
    site.add_dense(api="def wrapper(): return 'fine'\n")
    output = site.run("""
        raised(lambda: cudnn.GemmSwiglu)
        print(cudnn.gemm_swiglu_wrapper(), "gemm_swiglu_wrapper" in dir(cudnn), "GemmSwiglu" in dir(cudnn))
        """)
    assert output == "fine True False"


@pytest.mark.parametrize("version", ["0.2.0", "0.10.1", "1.1.0"])
def test_another_minor_version_is_incompatible(site: Site, version: str) -> None:
    site.add_dense(version=version)
    output = site.run('print(states()); print(raised(lambda: cudnn.GemmSwiglu)); print("cudnn_gemm_dense" in sys.modules, "GemmSwiglu" in dir(cudnn))')
    assert output.splitlines() == [
        "{'cudnn-gemm-dense': 'incompatible'}",
        f"cudnn.GemmSwiglu is provided by cudnn-gemm-dense {version}, which is incompatible: found cudnn-gemm-dense {version}, this cudnn-base 0.1.0 needs "
        'cudnn-gemm-dense 0.1.*. Install a matching version with: pip install --upgrade "cudnn-gemm-dense==0.1.*"',
        "False False",
    ]


def test_another_patch_version_is_fine(site: Site) -> None:
    site.add_dense(version="0.1.7")
    assert site.run("print(states(), cudnn.GemmSwiglu.__name__)") == "{'cudnn-gemm-dense': 'ok'} GemmSwiglu"


def test_an_older_manifest_without_a_name(site: Site) -> None:
    site.add_dense(manifest='from cudnn.family import Family\nFAMILY = Family(name="gemm_dense", distribution="cudnn-gemm-dense")\n')
    output = site.run("print(raised(lambda: cudnn.GemmSwiglu)); print(states())")
    assert "that version does not provide the name" in output and 'pip install --upgrade "cudnn-gemm-dense==0.1.*"' in output


@pytest.mark.parametrize(
    ("manifest", "needed"),
    [
        ("raise OSError('disk')\n", "OSError: disk"),
        ("FAMILY = 3\n", "is a int, needs a cudnn.family.Family"),
        ("from cudnn.family import Family\nFAMILY = Family(name='other', distribution='cudnn-gemm-dense')\n", "they must agree"),
    ],
)
def test_a_broken_first_party_manifest(site: Site, manifest: str, needed: str) -> None:
    site.add_dense(manifest=manifest)
    site.add_other("acme-kernels", {"acme": "api:value"})
    output = site.run("print(raised(lambda: cudnn.GemmSwiglu)); print(states()); cudnn.acme; print(cudnn.__version__)")
    assert needed in output.splitlines()[0] and "cudnn-gemm-dense 0.1.0, which is broken" in output.splitlines()[0]
    assert output.splitlines()[1:] == ["{'cudnn-gemm-dense': 'broken', 'acme-kernels': 'ok'}", VERSION]


def test_installed_without_its_entry_point(site: Site) -> None:
    site.add("cudnn-gemm-dense", VERSION)
    output = site.run("print(states()); print(raised(lambda: cudnn.GemmSwiglu))")
    assert output.splitlines()[0] == "{'cudnn-gemm-dense': 'broken'}"
    assert "is broken: it is installed without its entry point in the group cudnn.kernels" in output


def test_disabled(site: Site) -> None:
    site.add_dense()
    site.add_other("acme-kernels", {"acme": "api:value"})
    code = """
        print(states(), "GemmSwiglu" in dir(cudnn))
        print(raised(lambda: cudnn.GemmSwiglu))
        print(hasattr(cudnn, "acme"))
        import os
        del os.environ["CUDNN_KERNELS_DISABLE"]
        registry.refresh()
        print(states(), cudnn.GemmSwiglu.__name__, hasattr(cudnn, "acme"))
        """
    output = site.run(code, CUDNN_KERNELS_DISABLE="gemm_dense, acme-kernels").splitlines()
    assert output[0] == "{'cudnn-gemm-dense': 'disabled', 'acme-kernels': 'disabled'} False"
    assert "which is disabled: disabled by CUDNN_KERNELS_DISABLE=gemm_dense, acme-kernels" in output[1]
    assert output[2:] == ["False", "{'cudnn-gemm-dense': 'ok', 'acme-kernels': 'ok'} GemmSwiglu True"]


def test_eager(site: Site) -> None:
    site.add_dense()
    site.add_other("acme-kernels", {"acme": "api:value"}, namespaces={"ops": {"extra": "acme_kernels.api:value"}})
    base_is_whole = importlib.util.find_spec("cudnn.api_base") is not None
    assert base_is_whole
    code = "print('cudnn_gemm_dense.api' in sys.modules, 'acme_kernels.api' in sys.modules, 'extra' in vars(sys.modules['cudnn.ops']))"
    assert site.run(code, CUDNN_KERNELS_EAGER="1") == "True True True"
    assert site.run("print('cudnn_gemm_dense.api' in sys.modules)", CUDNN_KERNELS_EAGER="0") == "False"


def test_eager_raises_what_is_wrong(site: Site) -> None:
    site.add_dense(api="import torch\n")
    with pytest.raises(AssertionError, match="requires the 'torch' module, which is not installed"):
        site.run("pass", CUDNN_KERNELS_EAGER="1")


def test_missing_requirement_of_a_manifest(site: Site) -> None:
    site.add_other("acme-kernels", {"acme": "api:value"}, requires=("torch", "no_such_thing"))
    output = site.run("print(states()); print(raised(lambda: cudnn.acme)); print('acme' in dir(cudnn))").splitlines()
    assert output == [
        "{'acme-kernels': 'missing-dependency'}",
        "cudnn.acme is provided by acme-kernels 1.0, which lacks a dependency: it needs torch, no_such_thing, which are not installed. "
        'Install it with: pip install "cudnn-base[torch]" no_such_thing',
        "False",
    ]


def test_another_family_api(site: Site) -> None:
    site.add_other("acme-kernels", {"acme": "api:value"}, api=99)
    output = site.run("print(states(), hasattr(cudnn, 'acme')); print(reason('acme-kernels'))", warnings="ignore").splitlines()
    assert output == [
        "{'acme-kernels': 'incompatible'} False",
        "it is written for family API 99, this cudnn-base 0.1.0 has family API 1",
    ]


def test_a_broken_family_affects_nobody_and_is_warned_about_once(site: Site) -> None:
    site.add_dense()
    site.add("bad-kernels", "3.1", {"bad": "bad_kernels._family:FAMILY"}, {"bad_kernels/__init__.py": "1/0\n"})
    site.add("gone-kernels", "3.2", {"gone": "gone_kernels._family:FAMILY"})
    site.add_other("acme-kernels", {"acme": "api:value"})
    output = site.run("""
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            print(cudnn.acme is not None, cudnn.GemmSwiglu.__name__, states())
            error = raised(lambda: cudnn.zzz9)
            registry.families()
        for warning in caught:
            print(warning.category.__name__, warning.message)
        print(type(error).__name__, error)
        """).splitlines()
    assert output == [
        "True GemmSwiglu {'cudnn-gemm-dense': 'ok', 'acme-kernels': 'ok', 'bad-kernels': 'broken', 'gone-kernels': 'broken'}",
        "RuntimeWarning kernel family 'bad' of bad-kernels 3.1: its manifest bad_kernels._family:FAMILY cannot be loaded: ZeroDivisionError: division by zero",
        "RuntimeWarning kernel family 'gone' of gone-kernels 3.2: its manifest gone_kernels._family:FAMILY cannot be loaded: "
        "ModuleNotFoundError: No module named 'gone_kernels'",
        "AttributeError module 'cudnn' has no attribute 'zzz9'; the names of these kernel families are not known: "
        "'bad' of bad-kernels (broken), 'gone' of gone-kernels (broken)",
    ]


def test_two_others_with_one_name(site: Site) -> None:
    site.add_other("acme-kernels", {"fused": "api:value", "acme": "api:value"})
    site.add_other("zeta-kernels", {"fused": "api:value", "zeta": "api:value"})
    output = site.run(
        """
        print(raised(lambda: cudnn.fused))
        print(cudnn.acme is not None, cudnn.zeta is not None, "fused" in dir(cudnn), "acme" in dir(cudnn), states())
        print(reason("acme-kernels"))
        """,
        warnings="ignore",
    ).splitlines()
    assert output == [
        "cudnn.fused is provided by acme-kernels 1.0 and by zeta-kernels 1.0; neither is used. Uninstall one of them, or hide one with CUDNN_KERNELS_DISABLE.",
        "True True False True {'acme-kernels': 'ok', 'zeta-kernels': 'ok'}",
        "cudnn.fused is also provided by zeta-kernels; neither is used",
    ]
    hidden = site.run("print(cudnn.fused is cudnn.acme)", CUDNN_KERNELS_DISABLE="zeta_kernels")
    assert hidden == "True"


def test_two_others_with_one_family_name(site: Site) -> None:
    site.add_other("acme-kernels", {"acme": "api:value"}, family="same")
    site.add_other("zeta-kernels", {"zeta": "api:value"}, family="same")
    output = site.run("print(states()); print(raised(lambda: cudnn.acme))", warnings="ignore").splitlines()
    assert output == [
        "{'acme-kernels': 'duplicate', 'zeta-kernels': 'duplicate'}",
        "cudnn.acme is provided by acme-kernels 1.0, which clashes with another distribution: the family name 'same' is also used by zeta-kernels; "
        "neither is used. Uninstall one of them",
    ]


@pytest.mark.parametrize("installed", [True, False])
def test_first_party_names_cannot_be_taken(site: Site, installed: bool) -> None:
    if installed:
        site.add_dense()
    names = {"GemmSwiglu": "api:value", "TupleDict": "api:value", "cache": "api:value", "acme": "api:value"}
    site.add_other("acme-kernels", names, namespaces={"ops": {"interleave_gate_up": "acme_kernels.api:value", "mine": "acme_kernels.api:value"}})
    output = site.run(
        """
        import acme_kernels.api
        print(cudnn.acme is acme_kernels.api.value, cudnn.ops.mine is cudnn.acme)
        print(reason("acme-kernels"))
        for get in (lambda: cudnn.GemmSwiglu, lambda: cudnn.ops.interleave_gate_up):
            try:
                print(get() is not cudnn.acme)
            except ImportError as error:
                print("cudnn-gemm-dense" in str(error))
        print(cudnn.cache.__name__, cudnn.TupleDict is not cudnn.acme)
        """,
        warnings="ignore",
    ).splitlines()
    assert output[0] == "True True"
    for name, owner in (
        ("GemmSwiglu", "cudnn-gemm-dense"),
        ("TupleDict", "cudnn-base"),
        ("cache", "cudnn-base"),
        ("ops.interleave_gate_up", "cudnn-gemm-dense"),
    ):
        assert f"cudnn.{name} belongs to {owner} and is not taken from acme-kernels" in output[1]
    assert output[2:] == ["True", "True", "cudnn.cache True"]


def test_first_party_family_names_cannot_be_taken(site: Site) -> None:
    site.add_other("acme-kernels", {"acme": "api:value"}, family="gemm_dense")
    output = site.run(
        "print(states(), hasattr(cudnn, 'acme')); print(reason('acme-kernels')); print(raised(lambda: cudnn.GemmSwiglu))", warnings="ignore"
    ).splitlines()
    assert output[0] == "{'acme-kernels': 'duplicate'} False"
    assert output[1] == "the family name 'gemm_dense' belongs to cudnn-gemm-dense; ignored"
    assert "which is not installed" in output[2]


def test_other_families_may_add_paths(site: Site) -> None:
    site.add_other("acme-kernels", {}, namespaces={"conv.direct": {"conv2d": "acme_kernels.api:value"}, "gemm.ops": {"special": "acme_kernels.api:value"}})
    output = site.run("""
        from cudnn.conv.direct import conv2d
        from cudnn.gemm import ops
        print(ops.__name__, ops.special is conv2d, "conv" in dir(cudnn), [name for name in dir(cudnn.gemm) if name[0] != "_"])
        print(type(raised(lambda: cudnn.conv.transposed)).__name__)
        """)
    assert output.splitlines() == ["cudnn.gemm.ops True True ['ops']", "AttributeError"]


def test_a_real_module_wins_over_a_path(site: Site) -> None:
    site.add_other("acme-kernels", {}, namespaces={"errors": {"x": "acme_kernels.api:value"}})
    output = site.run("import cudnn.errors; print(hasattr(cudnn.errors, 'KernelUnavailableError'), hasattr(cudnn.errors, 'x'))", warnings="ignore")
    assert output == "True False"


def test_installed_and_removed_while_running(site: Site, tmp_path: Path) -> None:
    site.add_dense()
    output = site.run("""
        import shutil
        from pathlib import Path
        root = Path(sys.path[1] if sys.path[0] == "" else sys.path[0])
        print(states(), "GemmSwiglu" in dir(cudnn))
        for path in root.glob("cudnn_gemm_dense*"):
            shutil.rmtree(path)
        importlib.invalidate_caches()
        print(raised(lambda: cudnn.GemmSwiglu))
        registry.refresh()
        print(raised(lambda: cudnn.GemmSwiglu))
        """).splitlines()
    assert output[0] == "{'cudnn-gemm-dense': 'ok'} True"
    assert "cudnn-gemm-dense was removed while this process ran. Call cudnn.registry.refresh()" in output[1]
    assert output[2].endswith("which is not installed. Install it with: pip install cudnn-gemm-dense")


def test_refresh_finds_what_was_installed_and_forgets_what_was_stored(site: Site) -> None:
    site.add_other("acme-kernels", {"acme": "api:value"})
    output = site.run("""
        from pathlib import Path
        print(cudnn.acme is not None, hasattr(cudnn, "late"))
        manifest = Path(sys.modules["acme_kernels._family"].__file__)
        manifest.write_text(manifest.read_text().replace("'acme':", "'late':"))
        del sys.modules["acme_kernels._family"]
        registry.refresh()
        print(hasattr(cudnn, "acme"), hasattr(cudnn, "late"))
        """)
    assert output.splitlines() == ["True False", "False True"]


def test_many_threads_look_up_at_once(site: Site) -> None:
    # Each module takes a while and itself asks cudnn for another name while its import lock is held: a registry that held its own lock meanwhile would hang here.
    slow = "import time\ntime.sleep(0.05)\nfrom cudnn import TupleDict, other_{other}\nvalue = object()\nother = object()\n"
    for index in range(4):
        body = slow.format(other=(index + 1) % 4)
        site.add_other(f"acme-{index}", {f"name_{index}": "api:value", f"other_{index}": "side:value"}, body=body)
        (site.root / f"acme_{index}/side.py").write_text("value = object()\n")
    site.add_dense(api="import time\ntime.sleep(0.05)\n" + DENSE_API)
    output = site.run("""
        import threading
        barrier = threading.Barrier(40)
        names = [f"name_{index}" for index in range(4)] + ["GemmSwiglu"]
        found = {name: set() for name in names}
        failures = []
        def look(name):
            barrier.wait()
            try:
                found[name].add(id(getattr(cudnn, name)))
                dir(cudnn)
            except BaseException as error:
                failures.append(repr(error))
        threads = [threading.Thread(target=look, args=(names[index % 5],)) for index in range(40)]
        for thread in threads: thread.start()
        for thread in threads: thread.join(30)
        print(failures, [len(ids) for ids in found.values()], any(thread.is_alive() for thread in threads))
        """)
    assert output == "[] [1, 1, 1, 1, 1] False"


def test_warning_about_the_frontend_comes_once_at_the_first_lookup(site: Site) -> None:
    site.add_dense()
    site.add("nvidia-cudnn-frontend", "1.32.0")
    output = site.run("""
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cudnn.errors, cudnn.__version__
            print(len(caught))
            cudnn.GemmSwiglu, cudnn.gemm_swiglu_wrapper, hasattr(cudnn, "zzz9")
        print(len(caught), caught[0].category.__name__, caught[0].filename, caught[0].message)
        """).splitlines()
    assert output[0] == "0"
    assert output[1].startswith("1 RuntimeWarning <string> nvidia-cudnn-frontend 1.32.0 and cudnn-base 0.1.0 are both installed.")
    assert "pip uninstall nvidia-cudnn-frontend cudnn-base" in output[1]


def test_the_report_tells_of_the_frontend(site: Site) -> None:
    site.add("nvidia-cudnn-frontend", "1.32.0")
    output = site.run("from cudnn.collect_env import _package; print(_package()['conflict'])")
    assert output.startswith("nvidia-cudnn-frontend 1.32.0 and cudnn-base 0.1.0 are both installed.")


def test_same_distribution_twice_on_the_path(site: Site, tmp_path: Path) -> None:
    site.add_other("acme-kernels", {"acme": "api:value"}, body="value = 'first'\n")
    second = Site(tmp_path / "second")
    second.add_other("acme-kernels", {"acme": "api:value"}, body="value = 'second'\n")
    assert site.run("print(states(), cudnn.acme)", PYTHONPATH=f"{site.root}{os.pathsep}{second.root}") == "{'acme-kernels': 'ok'} first"


def test_reload_keeps_one_finder(site: Site) -> None:
    code = """
        importlib.reload(cudnn)
        del sys.modules["cudnn"], sys.modules["cudnn._namespaces"]
        import cudnn
        print(sum(getattr(finder, "__module__", "") == "cudnn._namespaces" for finder in sys.meta_path))
        """
    assert site.run(code) == "1"
