# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""Asks libcudnn what it plans and compiles for an H200, on a machine without GPU and driver.

    python tools/plan_without_gpu.py [pattern]

Goes through the graphs of packages/cudnn-graph/tests/test_graph_gpu.py whose names match the pattern and prints for each one the plan that was compiled, or why there is none; the exit
status is 1 when a graph that should run has no plan, or one that should be declined has. Nothing is executed: numbers need a GPU.

Needs a C compiler, torch, cudnn-base, cudnn-graph, and the wheels nvidia-cudnn-cu13, nvidia-cublas and nvidia-cuda-nvrtc of one CUDA release. libcudnn wants to open libcuda.so.1 before it
compiles a kernel, so an empty one is made for this process: queries of devices fail in it, everything else does nothing. Engines over cuBLASLt are missing from the answers.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import types
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GRAPHS = ROOT / "packages/cudnn-graph/tests/test_graph_gpu.py"
READY = "CUDNN_PLAN_WITHOUT_GPU"

H200 = {
    "maxGridSize": [2147483647, 65535, 65535],
    "maxBlockSize": [1024, 1024, 64],
    "regsPerBlock": 65536,
    "multiProcessorCount": 132,
    "warpSize": 32,
    "maxSharedMemoryPerBlock": 49152,
    "maxSharedMemoryPerBlockOptin": 232448,
    "reservedSharedMemoryPerBlock": 1024,
    "maxRegistersPerSM": 65536,
    "maxCtasPerSM": 32,
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048,
    "pciDeviceId": 0,
    "isTccDriver": 0,
    "supportCoopLaunch": 1,
    "totalGlobalMem": 150109880320,
    "smClockRateKHz": 1980000,
    "memClockRateKHz": 3201000,
    "l2CacheSize": 62914560,
    "deviceVer": 900,
    "driverVer": 13000,
    "cudaDeviceId": 0,
    "deviceName": "NVIDIA H200",
}

# Of the driver's functions these say that they worked; kernels are "loaded" by them. All others say that there is no device (100).
WORKING = re.compile(r"cu(Module|Func|Library|Kernel|Occupancy|Mem|Launch|Tensor|Stream|Event)")
OWN = """
#include <dlfcn.h>
#include <stdint.h>
int cuDriverGetVersion(int* version) { *version = 13000; return 0; }
int cuDeviceGetCount(int* count) { *count = 0; return 0; }
int cuGetErrorString(int error, const char** text) { *text = "no driver"; return 0; }
int cuGetErrorName(int error, const char** text) { *text = "no driver"; return 0; }
int cuGetProcAddress(const char* name, void** symbol, int version, uint64_t flags) { *symbol = dlsym(RTLD_DEFAULT, name); return *symbol ? 0 : 500; }
int cuGetProcAddress_v2(const char* name, void** symbol, int version, uint64_t flags, int* found) {
    *symbol = dlsym(RTLD_DEFAULT, name);
    if (found) *found = *symbol ? 0 : 1;
    return *symbol ? 0 : 500;
}
int cuOccupancyMaxActiveClusters(int* count) { *count = 16; return 0; }
int cuOccupancyMaxPotentialClusterSize(int* size) { *size = 16; return 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count) { *count = 16; return 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* count) { *count = 16; return 0; }
"""


def library_folders() -> list[Path]:
    """The folders of the wheels' libraries."""
    spec = find_spec("nvidia")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("needs the wheels nvidia-cudnn-cu13, nvidia-cublas and nvidia-cuda-nvrtc")
    return sorted({path.parent for root in spec.submodule_search_locations for path in Path(root).rglob("*.so.*")})


def make_driver(folder: Path, libraries: list[Path]) -> None:
    """libcuda.so.1 with every function whose name occurs in the libraries."""
    names: set[str] = set()
    for directory in libraries:
        for library in directory.glob("*.so.*"):
            names.update(match.decode() for match in re.findall(rb"(?<![A-Za-z0-9_])cu[A-Z][a-z][A-Za-z0-9_]{3,60}(?=\0)", library.read_bytes()))
    defined = set(re.findall(r"int (cu\w+)\(", OWN))
    empty = "".join(f"int {name}(void) {{ return {0 if WORKING.match(name) else 100}; }}\n" for name in sorted(names - defined))
    source = folder / "driver.c"
    source.write_text(OWN + empty)
    subprocess.run(["cc", "-w", "-shared", "-fPIC", str(source), "-o", str(folder / "libcuda.so.1"), "-Wl,-soname,libcuda.so.1"], check=True)


def graphs() -> types.ModuleType:
    """The module of the GPU tests with its tensors on the CPU: only their metadata are used."""
    module = types.ModuleType("graphs")
    sys.modules["graphs"] = module
    exec(compile(GRAPHS.read_text().replace('device="cuda"', 'device="cpu"'), str(GRAPHS), "exec"), module.__dict__)
    return module


def main() -> int:
    """Plan every graph of the tables."""
    import cudnn

    device = cudnn.create_device_properties(json.dumps(H200))
    module = graphs()
    pattern = re.compile(sys.argv[1] if len(sys.argv) > 1 else "")
    wrong = 0
    for table, should_plan in (("RUNS", True), ("DECLINED", False), ("REFUSED", False)):
        for name, build in getattr(module, table).items():
            if not pattern.search(name):
                continue
            problem = module.Problem(backend="cudnn", device_property=device)
            build(problem)
            try:
                problem.graph.build()
            except (cudnn.cudnnGraphNotSupportedError, RuntimeError) as error:
                planned, text = False, " ".join(str(error).split())
            else:
                planned, text = True, problem.graph.get_plan_name_at_index(problem.graph.inspect()["selected_plan"])
            wrong += planned is not should_plan
            print(f"{'' if planned is should_plan else 'UNEXPECTED '}{table} {name}: {text}", flush=True)
    print(f"cuDNN {cudnn.backend_version_string()}: {wrong} unexpected")
    return 1 if wrong else 0


if __name__ == "__main__":
    if os.environ.get(READY):
        sys.exit(main())
    with tempfile.TemporaryDirectory() as made:
        folders = library_folders()
        make_driver(Path(made), folders)
        path = os.pathsep.join([made, *map(str, folders), os.environ.get("LD_LIBRARY_PATH", "")])
        sys.exit(subprocess.run([sys.executable, *sys.argv], env={**os.environ, READY: "1", "LD_LIBRARY_PATH": path, "CUDA_VISIBLE_DEVICES": ""}).returncode)
