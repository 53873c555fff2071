"""What the first call of an operation costs: compiled now, loaded from disk, and the calls after it.

    python benchmarks/first_call.py --json benchmarks/results/nvidia-h200/first_call.json

Each number comes from fresh processes, one after the other: a cold one with an empty cache directory, then warm ones that share it. Imports (torch, the
DSL, cudnn), the CUDA context and the inputs are made first and reported apart. On a machine without a GPU the kernel is built or loaded and not called.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

CHILD = """
import json, time

def since(start):
    return time.perf_counter() - start

report = {}
start = time.perf_counter(); import torch; report["import_torch_s"] = since(start)
start = time.perf_counter(); import cutlass.cute, tvm_ffi; report["import_dsl_s"] = since(start)
start = time.perf_counter(); import cudnn; report["import_cudnn_s"] = since(start)
start = time.perf_counter(); from cudnn_gemm_dense.swiglu.api import gemm_swiglu_wrapper, precompile_specs; report["import_operation_s"] = since(start)
import cudnn.cache

if torch.cuda.is_available():
    a, b = (torch.randn(rows, 4096, 1, device="cuda").bfloat16() for rows in (512, 8192))
    torch.matmul(a[..., 0], b[..., 0].t())
    torch.cuda.synchronize()

    def call():
        gemm_swiglu_wrapper(a, b, ab12_dtype=torch.bfloat16, c_dtype=torch.bfloat16)
        torch.cuda.synchronize()
else:
    def call():
        precompile_specs()[0].build()

start = time.perf_counter(); call(); report["first_call_s"] = since(start)
start = time.perf_counter(); call(); report["second_call_s"] = since(start)
report["cache"] = cudnn.cache.stats.snapshot()
print(json.dumps(report))
"""


def run(directory: str) -> dict:
    """The report of one fresh process whose compile cache is ``directory``."""
    environment = {**os.environ, "CUDNN_KERNELS_CACHE": directory}
    done = subprocess.run([sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    from cudnn.bench import environment

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=5, help="warm processes, of which the median is taken (default 5)")
    parser.add_argument("--json", metavar="FILE", help="write the result")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        cold = run(directory)
        warm = [run(directory) for _ in range(arguments.processes)]
    assert cold["cache"]["builds"] > 0 and all(report["cache"]["builds"] == 0 for report in warm), "a warm process compiled"
    median = {name: statistics.median(report[name] for report in warm) for name in warm[0] if name != "cache"}
    import torch

    gpu = torch.cuda.is_available()
    result = {
        "what": "gemm_swiglu_wrapper, bfloat16, 512 x 8192 x 4096" if gpu else "one gemm_swiglu kernel built or loaded, not called (no GPU)",
        "device": environment.describe_device("cuda:0") if gpu else None,
        "versions": environment.versions(),
        "cold": cold,
        "warm_median": median,
        "warm": warm,
    }
    print(f"{result['what']}")
    print(f"cold: {cold['first_call_s']:.2f} s, of which {cold['cache']['build_seconds']:.2f} s compile {cold['cache']['builds']} kernels")
    print(f"warm disk: {median['first_call_s'] * 1e3:.0f} ms after imports ({median['import_torch_s']:.2f} s torch, {median['import_dsl_s']:.2f} s DSL, "
          f"{median['import_cudnn_s'] * 1e3:.0f} ms cudnn, {median['import_operation_s'] * 1e3:.0f} ms the operation)")  # fmt: skip
    print(f"second call: {median['second_call_s'] * 1e6:.0f} us")
    if arguments.json:
        os.makedirs(os.path.dirname(arguments.json) or ".", exist_ok=True)
        with open(arguments.json, "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
