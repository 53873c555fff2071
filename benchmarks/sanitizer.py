"""Run the kernels in every schedule on small problems under NVIDIA's compute-sanitizer, and keep what it reports.

    python benchmarks/sanitizer.py --json benchmarks/results/nvidia-h200/sanitizer.json            # memcheck and racecheck
    python benchmarks/sanitizer.py --tools memcheck,racecheck,synccheck --only wgrad --jobs 8      # eight processes at a time

A case is right when its results are, and clean when the tool counts no error. The exit status is 1 if one is not. Where the tool is missing, or refuses the device, the result says so and the exit status is 2.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cudnn.bench import environment
from cudnn.cutedsl.gemm.config import GemmConfig

# One for each way through the kernel.
SCHEDULES = [
    GemmConfig(128, 256),
    GemmConfig(128, 128, 2, 1, pingpong=True),
    GemmConfig(128, 192, 1, 2, pingpong=True, raster="n"),
    GemmConfig(256, 128, 2, 2),
    GemmConfig(64, 128, split_k=2),
    GemmConfig(64, 64, split_k=8),
    GemmConfig(64, 128, k_atoms=2),
    GemmConfig(64, 32, split_k=2, k_atoms=2, swap=True),
    GemmConfig(128, 32, split_k=4, swap=True),
]
# Block-scaled weights: converted in front, by warpgroups of their own, and into registers.
SCALED = [
    GemmConfig(64, 64),
    GemmConfig(64, 128, split_k=2, convert_b=True),
    GemmConfig(128, 256, swap=True),
    GemmConfig(128, 32, split_k=2, k_groups=2, swap=True),
]
GROUPED = [
    GemmConfig(128, 128, 1, 2, pingpong=True),
    GemmConfig(128, 128, 2, 1, pingpong=True),
    GemmConfig(128, 256, 1, 2, group=16),
    GemmConfig(64, 128, k_atoms=2),
]


def _case(hooks: type, extents: tuple[int, int, int, int], **attributes: Any) -> Callable[[], Any]:
    """A function that makes (hooks, operation, inputs, outputs) on the GPU."""

    def make() -> Any:
        from cudnn.testing.conformance import GemmConformance

        one = type("Case", (hooks, GemmConformance), {"device": "cuda", **attributes})()
        inputs, outputs = one.inputs(*extents), one.outputs(*extents)
        operation = one.build(inputs, outputs)
        operation.check_support()
        return one, operation, inputs, outputs

    return make


def cases() -> dict[str, Callable[[], Any]]:
    import torch

    from cudnn_gemm_dense.conformance_scaled import ScaledHooks
    from cudnn_gemm_dense.dswiglu.conformance import DswigluHooks
    from cudnn_gemm_dense.gemm.conformance import GemmHooks
    from cudnn_gemm_dense.srelu.conformance import SreluHooks
    from cudnn_gemm_dense.swiglu.conformance import SwigluHooks
    from cudnn_gemm_discrete.conformance import SwigluHooks as DiscreteHooks
    from cudnn_gemm_grouped.conformance import DgluHooks, GluHooks, ProductHooks, WgradHooks

    dense, groups = (300, 320, 136, 2), (300, 192, 136, 5)
    found = {f"swiglu {config}": _case(SwigluHooks, dense, config=config) for config in SCHEDULES if not config.swap}
    found.update({f"product {config}": _case(GemmHooks, (40, 320, 136, 2), config=config) for config in SCHEDULES if config.swap})
    for kind in ("mxfp8", "nvfp4"):
        scaled = type("ScaledProduct", (ScaledHooks, GemmHooks), {})
        found.update({f"product {kind} {config}": _case(scaled, (40, 320, 160, 2), config=config, format=kind, mixed=True) for config in SCALED})
    fp8 = {"dtype": torch.float8_e4m3fn, "a_major": "m", "b_major": "n"}
    found["swiglu fp8, transposed"] = _case(SwigluHooks, (304, 320, 144, 2), **fp8)
    found["swiglu tf32"] = _case(SwigluHooks, dense, dtype=torch.float32)
    found["srelu"] = _case(SreluHooks, dense)
    found["dswiglu"] = _case(DswigluHooks, dense)
    found.update({f"grouped product {config}": _case(ProductHooks, groups, config=config) for config in GROUPED})
    found["grouped glu, bias"] = _case(GluHooks, groups, bias_dtype=torch.bfloat16)
    found["grouped dglu"] = _case(DgluHooks, groups)
    found["grouped dglu, atomics"] = _case(DgluHooks, groups, deterministic=False)
    found.update({f"wgrad {config}": _case(WgradHooks, (192, 320, 304, 5), config=config) for config in GROUPED})
    found["wgrad, adds"] = _case(WgradHooks, (192, 320, 304, 5), adds=True, d_dtype=torch.float32)
    found["discrete swiglu"] = _case(DiscreteHooks, groups)
    return found


def worker(name: str) -> None:
    import torch

    one, operation, inputs, outputs = cases()[name]()
    operation.compile()
    operation.execute(**inputs, **outputs)
    torch.cuda.synchronize()
    ends = inputs.get("padded_offsets")
    if ends is None or int(ends[-1]) == inputs["a_tensor"].shape[0]:
        one.check(inputs, outputs)


def build() -> None:
    """Compile everything first, in processes that no tool slows down."""
    from cudnn.cache.pool import build_all

    specs = []
    for make in cases().values():
        _, operation, _, _ = make()
        bound, configs = operation._bound, operation._configs(operation._bound.given_problem, operation._bound.options)
        specs += [one.spec for config in configs for one in bound.prepared_in(config)]
        specs += [operation._spec(bound.problem_in(config), bound.options, config) for config in configs]
    failed = [outcome for outcome in build_all(list(dict.fromkeys(specs)), arch="sm_90a") if outcome.status == "failed"]
    if failed:
        raise SystemExit(f"{failed[0].spec.label}: {failed[0].error}")


def run(tool: str, name: str, program: str) -> dict[str, Any]:
    """One case under one tool: its status, and the tool's own last lines where something is wrong."""
    started = time.time()
    command = [program, "--tool", tool, "--error-exitcode", "77", "--target-processes", "all", sys.executable, __file__, "--worker", name]
    done = subprocess.run(command, capture_output=True, text=True)
    output = done.stdout + done.stderr
    count = re.search(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard", output)
    refused = "Device not supported" in output or "not supported on this" in output
    errors = None if count is None else int(next(filter(None, count.groups())))
    status = "refused" if refused else "clean" if done.returncode == 0 and errors == 0 else "errors" if errors else "failed"
    entry: dict[str, Any] = {"case": name, "tool": tool, "status": status, "errors": errors, "seconds": round(time.time() - started, 1)}
    return entry if status == "clean" else {**entry, "output": output.splitlines()[-40:]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the result goes")
    parser.add_argument("--tools", default="memcheck,racecheck")
    parser.add_argument("--only", default="", help="the cases whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker)
        return 0
    program = shutil.which("compute-sanitizer")
    result: dict[str, Any] = {
        "what": "kernels under compute-sanitizer",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": environment.describe_device("cuda:0"),
        "versions": environment.versions(),
        "rows": [],
    }
    if program is None:
        result["missing"] = "compute-sanitizer is not on the path"
    else:
        build()
        todo = [(tool, name) for tool in arguments.tools.split(",") for name in cases() if arguments.only in name]
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for row in pool.map(lambda one: run(*one, program), todo):
                result["rows"].append(row)
                print(*(str(row[key]) for key in ("tool", "status", "errors", "seconds", "case")), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    found = {row["status"] for row in result["rows"]}
    return 2 if program is None or found <= {"refused"} else int(found != {"clean"})


if __name__ == "__main__":
    raise SystemExit(main())
