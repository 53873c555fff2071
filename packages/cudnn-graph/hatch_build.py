# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""Builds the extension ``cudnn_graph._ext`` for wheels and editable installs.

One call of the system's C++17 compiler (``CXX``, else ``c++``, ``g++`` or ``clang++``; ``CXXFLAGS`` and ``LDFLAGS`` are honoured) and the headers of
pybind11: neither CUDA nor cuDNN is needed here, the library is opened at run time.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

EXTENSION = "_ext"
PACKAGE = "cudnn_graph"


def find_compiler() -> list[str]:
    """The compiler's command line, or a RuntimeError that says how to give one."""
    given = os.environ.get("CXX")
    if given:
        return shlex.split(given)
    for name in ("c++", "g++", "clang++"):
        found = shutil.which(name)
        if found:
            return [found]
    raise RuntimeError(
        "building cudnn-graph needs a C++17 compiler: none of c++, g++, clang++ is on PATH and CXX is not set (for example: apt-get install g++)"
    )


def compile_extension(sources: list[Path], output: Path) -> None:
    """Compile and link ``sources`` into ``output``, which appears only when it is complete."""
    import pybind11

    partial = output.with_name(f".{output.name}.{os.getpid()}")
    command = [
        *find_compiler(),
        *("-O2", "-std=c++17", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra"),
        f"-I{sysconfig.get_path('include')}",
        f"-I{pybind11.get_include()}",
        *shlex.split(os.environ.get("CXXFLAGS", "")),
        *map(str, sources),
        *("-o", str(partial)),
        *shlex.split(os.environ.get("LDFLAGS", "")),
        *("-Wl,-s", "-ldl", "-pthread"),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"building {PACKAGE}.{EXTENSION} failed\n{shlex.join(command)}\n{done.stdout}{done.stderr}")
        os.replace(partial, output)
    finally:
        partial.unlink(missing_ok=True)


class CustomBuildHook(BuildHookInterface):
    """Adds the compiled extension to the wheel, or puts it beside the sources for an editable install."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        sources = sorted((root / "cpp").glob("*.cpp"))
        filename = EXTENSION + sysconfig.get_config_var("EXT_SUFFIX")
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if version == "editable":
            # The .pth file of an editable install points at src/, so the module must lie in the package's own folder there.
            output = root / "src" / PACKAGE / filename
            inputs = [*sources, *(root / "cpp").glob("*.hpp"), Path(__file__)]
            # Installers run this twice, for the metadata and for the wheel.
            if not output.exists() or output.stat().st_mtime < max(path.stat().st_mtime for path in inputs):
                compile_extension(sources, output)
            return
        # A folder of its own: two builds from one checkout must not write to the same file.
        self._folder = Path(tempfile.mkdtemp(prefix="cudnn-graph-build-"))
        output = self._folder / filename
        compile_extension(sources, output)
        build_data["force_include"][str(output)] = f"{PACKAGE}/{filename}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        folder = getattr(self, "_folder", None)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
