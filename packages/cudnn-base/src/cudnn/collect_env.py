"""A report of everything that matters for a bug report: `python -m cudnn collect-env [--json]`, also `python -m cudnn.collect_env`.

Standard library only, no network, and no probe can make another one fail: what cannot be found out is left out or says why. Frameworks and libcudnn are asked in
a child process, so that one that crashes on import is reported instead of taking the report with it.
"""

from __future__ import annotations

import ctypes.util
import glob
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

TITLE = "### cuDNN frontend environment report"

Section = dict[str, str]

_PACKAGE_PREFIXES = ("nvidia-", "cuda-", "cudnn", "torch", "triton", "jax", "transformer-engine", "flashinfer", "onnxruntime", "tensorrt", "apache-tvm-ffi")
_PACKAGE_NAMES = frozenset({"numpy", "ninja", "nanobind", "pybind11", "looseversion", "importlib-metadata", "platformdirs", "filelock", "rich", "matplotlib"})
_VARIABLE_PREFIXES = ("CUDNN_", "CUDA_", "NVIDIA_", "TORCH_", "PYTORCH_", "NVTE_", "CUTE_DSL_", "TVM_FFI_", "JAX_", "XLA_")
_VARIABLE_NAMES = frozenset({"LD_LIBRARY_PATH", "LD_PRELOAD", "PATH", "VIRTUAL_ENV", "CONDA_PREFIX"})
# A report is meant to be pasted in public.
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY", re.IGNORECASE)
_LIBRARIES = ("libcudnn", "libcublas", "libcublasLt", "libcudart", "libnvrtc", "libcuda")

_TORCH_PROBE = """
import json, re, torch
report = {"version": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None, "gpus": []}
if torch.cuda.is_available():
    for index in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(index)
        report["gpus"].append([p.name, f"{p.major}.{p.minor}", p.multi_processor_count, p.total_memory])
report["maps"] = sorted({line.split()[-1] for line in open("/proc/self/maps") if re.search(r"/lib(cudnn|cublas|cudart|nvrtc|cuda)[^/]*$", line)})
print(json.dumps(report))
"""

_CUDNN_PROBE = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.cudnnGetVersion.restype = ctypes.c_size_t
print(library.cudnnGetVersion())
"""


def collect_env_info() -> dict[str, Section]:
    """The report, section by section in a fixed order: {section: {key: value}}. Never raises; empty sections are included."""
    torch = _guarded(_ask_torch, {})
    sections: dict[str, Callable[[], Section]] = {
        "cuDNN Frontend": _package,
        "Kernel Families": _families,
        "CuTe DSL": _dsl,
        "Python / Platform": _platform,
        "GPU / Driver": lambda: _gpus(torch),
        "CUDA Toolkit": _toolkit,
        "PyTorch": lambda: {key: str(torch[key]) for key in ("version", "cuda", "cudnn", "error") if torch.get(key) is not None},
        "GPU Libraries: loaded vs on disk": lambda: _libraries(torch),
        "Relevant Packages": _packages,
        "Environment Variables": _variables,
        "GPU Topology": _topology,
    }
    return {title: _section(probe) for title, probe in sections.items()}


def format_report(report: dict[str, Section]) -> str:
    """The report as text; empty sections are left out."""
    lines = [TITLE]
    for title, section in report.items():
        if not section:
            continue
        lines += ["", f"==== {title} ===="]
        width = max(len(key) for key in section)
        for key, value in section.items():
            first, *rest = value.splitlines() or [""]
            lines.append(f"{key:<{width}}  {first}".rstrip())
            lines += [f"{'':<{width}}  {line}".rstrip() for line in rest]
    return "\n".join(lines) + "\n"


def describe_devices() -> list[str]:
    """One line for each GPU, from the driver's own tool where it is there; empty where there is no GPU."""
    section = _section(lambda: _gpus({}))
    if not any(key.startswith("GPU ") for key in section) and glob.glob("/dev/nvidia[0-9]*"):
        section = _section(lambda: _gpus(_ask_torch()))
    return [f"{key}: {value}" for key, value in section.items() if key.startswith("GPU ")]


def main(argv: list[str] | None = None) -> int:
    """Print the report, as JSON with --json. Arguments default to sys.argv."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m cudnn collect-env", description="Print a report of the environment for a bug report.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    report = collect_env_info()
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if arguments.json else format_report(report))
    return 0


def _guarded(probe: Callable[[], Any], default: Any = None) -> Any:
    try:
        return probe()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"} if isinstance(default, dict) else default


def _section(probe: Callable[[], Section]) -> Section:
    found = _guarded(probe, {})
    return {str(key): str(value) for key, value in found.items() if value not in (None, "")}


def _run(*command: str, timeout: float = 60) -> str:
    """What a command prints, stripped; "" when it is not there or fails."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    return done.stdout.strip() if done.returncode == 0 else ""


def _package() -> Section:
    import cudnn

    section = {"version": cudnn.__version__, "package": os.path.dirname(cudnn.__file__ or "")}
    installed = _version("cudnn-base")
    section["pip version"] = installed or "not installed as a distribution"
    if installed and installed != cudnn.__version__:
        section["pip version"] += f" (does not match the imported {cudnn.__version__}: another copy is first on the path)"
    frontend = _version("nvidia-cudnn-frontend")
    if frontend:
        from cudnn.registry import frontend_warning

        section["conflict"] = frontend_warning(frontend)
    extension = _guarded(lambda: importlib.util.find_spec("cudnn_graph._ext"))
    section["extension"] = getattr(extension, "origin", None) or "none (it comes with cudnn-graph)"
    library = _guarded(_find_libcudnn, "")
    section["libcudnn"] = library or "not found"
    if library:
        section["libcudnn version"] = _guarded(lambda: _run(sys.executable, "-c", _CUDNN_PROBE, library), "") or "cannot be loaded"
    return section


def _families() -> Section:
    from cudnn import registry

    section = {}
    for status in registry.families():
        reason = f": {status.reason}" if status.reason else ""
        section[status.name] = f"{status.distribution} {status.version}, {status.state}{reason}"
    for distribution in registry.missing_distributions():
        section[distribution] = "not installed"
    return section


def _dsl() -> Section:
    from cudnn import dsl_check

    found = dsl_check.dsl_distributions()
    return {**found, "state": dsl_check.dsl_problem() or "consistent"} if found else {}


def _platform() -> Section:
    in_environment = sys.prefix != sys.base_prefix
    container = os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv")
    return {
        "python": sys.version.replace("\n", " "),
        "executable": sys.executable,
        "venv": sys.prefix if in_environment else "no",
        "platform": platform.platform(),
        "libc": " ".join(platform.libc_ver()),
        "OS": _guarded(lambda: platform.freedesktop_os_release().get("PRETTY_NAME", ""), ""),
        "container": "yes" if container else "no",
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
    }


def _gpus(torch: dict) -> Section:
    section = {"driver": _run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0]}
    section["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
    gpus = torch.get("gpus") or []
    for index, (name, capability, processors, memory) in enumerate(gpus):
        section[f"GPU {index}"] = f"{name}, compute capability {capability}, {processors} SMs, {memory / 2**30:.1f} GiB"
    if not gpus:
        for line in _run("nvidia-smi", "--query-gpu=index,name,compute_cap,memory.total", "--format=csv,noheader").splitlines():
            number, name, capability, memory = (part.strip() for part in line.split(",", 3))
            section[f"GPU {number}"] = f"{name}, compute capability {capability}, {memory}"
    if not any(key.startswith("GPU ") for key in section):
        section["GPUs"] = "none found"
    return section


def _toolkit() -> Section:
    nvcc = shutil.which("nvcc") or ""
    version = re.search(r"release ([\d.]+)", _run("nvcc", "--version") if nvcc else "")
    return {
        "nvcc": nvcc,
        "nvcc version": version.group(1) if version else "",
        "CUDA_HOME": os.environ.get("CUDA_HOME", ""),
        "CUDA_PATH": os.environ.get("CUDA_PATH", ""),
    }


def _ask_torch() -> dict:
    if importlib.util.find_spec("torch") is None:
        return {}
    done = subprocess.run([sys.executable, "-c", _TORCH_PROBE], capture_output=True, text=True, timeout=180, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return {"version": _version("torch"), "error": f"import fails: {last}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def _libraries(torch: dict) -> Section:
    loaded = set(torch.get("maps") or [])
    with open("/proc/self/maps") as maps:
        loaded |= {line.split()[-1] for line in maps if "/" in line}
    roots = [*filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))]
    roots += glob.glob(os.path.join(sysconfig.get_path("purelib"), "nvidia", "*", "lib"))
    spec = _guarded(lambda: importlib.util.find_spec("torch"))
    if spec is not None and spec.origin:
        roots.append(os.path.join(os.path.dirname(spec.origin), "lib"))
    roots += [os.path.join(home, "lib64") for name in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(name))]
    cached = re.findall(r"=> (\S+)", _run("/sbin/ldconfig", "-p") or _run("ldconfig", "-p"))
    section = {}
    for library in _LIBRARIES:
        pattern = re.compile(rf"/{library}\.so(\.|$)")
        on_disk = {path for root in roots for path in glob.glob(os.path.join(root, f"{library}.so*"))} | {path for path in cached if pattern.search(path)}
        in_process = sorted(path for path in loaded if pattern.search(path))
        if on_disk or in_process:
            section[f"{library} loaded"] = "\n".join(in_process) or "no"
            section[f"{library} on disk"] = "\n".join(sorted(on_disk)) or "no"
    return section


def _packages() -> Section:
    section = {}
    for distribution in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        if name in section or not (name.startswith(_PACKAGE_PREFIXES) or name in _PACKAGE_NAMES):
            continue
        section[name] = distribution.version
        if name in ("torch", "transformer-engine"):
            pins = [requirement for requirement in distribution.requires or () if "cudnn" in requirement]
            section[name] += f" (declares {', '.join(pins)})" if pins else ""
    return dict(sorted(section.items()))


def _variables() -> Section:
    chosen = {name: value for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLE_PREFIXES) or name in _VARIABLE_NAMES}
    return {name: "(hidden)" if _SECRET.search(name) else value for name, value in chosen.items()}


def _topology() -> Section:
    matrix = _run("nvidia-smi", "topo", "-m")
    return {"matrix": "\n" + matrix} if matrix else {}


def _find_libcudnn() -> str:
    """The libcudnn that the search order picks: LD_LIBRARY_PATH, the wheels' folders, then the system's loader. Nothing is loaded."""
    for folder in filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)):
        for name in ("libcudnn.so.9", "libcudnn.so"):
            if os.path.exists(path := os.path.join(folder, name)):
                return path
    site = Path(sysconfig.get_path("purelib"))
    for wheel in ("cudnn", "cudnn_jit"):
        found = sorted((site / "nvidia" / wheel / "lib").glob("libcudnn.so.*[0-9]"))
        if found:
            return str(found[0])
    return ctypes.util.find_library("cudnn") or ""


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
