"""What a result has to say about where it was measured: device, clocks, versions, source."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

_FIELDS = {
    "driver": "driver_version",
    "sm_mhz": "clocks.sm",
    "memory_mhz": "clocks.mem",
    "sm_max_mhz": "clocks.max.sm",
    "power_w": "power.draw",
    "power_limit_w": "power.limit",
    "temperature_c": "temperature.gpu",
}
_PACKAGES = ("torch", "triton", "nvidia-cutlass-dsl", "apache-tvm-ffi", "quack-kernels", "sgl-deep-gemm", "nvidia-cublas", "nvidia-cublas-cu12", "matplotlib")


def gpu_state(device: Any) -> dict[str, Any]:
    """Driver, clocks, power and temperature of a torch CUDA device now; empty where nvidia-smi cannot tell."""
    import torch

    try:
        properties = torch.cuda.get_device_properties(device)
        which = f"GPU-{properties.uuid}" if getattr(properties, "uuid", None) else str(torch.device(device).index or 0)
        command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS.values())}", "--format=csv,noheader,nounits", "-i", which]
        line = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip().splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError, RuntimeError):
        return {}
    values = [value.strip() for value in line.split(",")]
    return {name: _number(value) for name, value in zip(_FIELDS, values, strict=False)}


def _number(text: str) -> Any:
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        return text


def describe_device(device: Any) -> dict[str, Any]:
    """Name, compute capability, multiprocessors, memory and L2 bytes of a torch CUDA device, and the fixed part of ``gpu_state``."""
    import torch

    properties = torch.cuda.get_device_properties(device)
    state = gpu_state(device)
    return {
        "name": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": getattr(properties, "L2_cache_size", 0),
        **{name: state[name] for name in ("driver", "sm_max_mhz", "power_limit_w") if name in state},
    }


def versions() -> dict[str, str]:
    """Versions of ours and of everything that is timed beside it."""
    from cudnn._version import __version__

    found = {"cudnn-base": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    try:
        import torch

        found["cuda"] = str(torch.version.cuda)
    except ImportError:
        pass
    return found


def source_revision() -> str | None:
    """The git commit of the source tree this runs from, with "-dirty" where tracked files differ; None outside a checkout."""
    here = Path(__file__).resolve().parent
    if not any((parent / ".git").exists() for parent in here.parents):
        return None
    try:
        options = {"cwd": here, "capture_output": True, "text": True, "timeout": 20, "check": True, "env": {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}}
        commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], **options).stdout.strip()  # type: ignore[call-overload]
        changed = subprocess.run(["git", "status", "--porcelain", "--untracked-files=no"], **options).stdout.strip()  # type: ignore[call-overload]
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}-dirty" if changed else commit
