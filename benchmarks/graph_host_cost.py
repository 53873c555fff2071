"""What `execute` of a built graph costs on the host, above the call of libcudnn that it makes.

    python benchmarks/graph_host_cost.py [--repeats 50] [--json FILE]

Rows, each a minimum over the repeats of the mean of 100 calls, in microseconds:

- `cudnnBackendExecute`: the library's call alone, with a variant pack made beforehand;
- `PreparedPlan.execute`: the extension, which makes the variant pack;
- `execute, addresses`: `graph.execute` with ints and an explicit handle;
- `execute, tensors`: `graph.execute` with torch tensors, the thread's default handle and torch's current stream.

The first goal is 10 microseconds between the first row and the last.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

CALLS = 100


def microseconds(call: Callable[[], Any], repeats: int) -> float:
    """Smallest mean time of a call; the device is idle at the start of every repeat, so that the queue never fills."""
    import torch

    best = float("inf")
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, (perf_counter() - start) / CALLS)
    torch.cuda.synchronize()
    return best * 1e6


def measure(repeats: int) -> dict[str, float]:
    """The rows of the table."""
    import torch

    import cudnn
    from cudnn_graph import library
    from cudnn_graph.constants import Attr, Desc, Type

    handle = cudnn.create_handle()
    g = cudnn.pygraph("matmul", io_data_type=cudnn.data_type.HALF, compute_data_type=cudnn.data_type.FLOAT)
    a, b = g.tensor([1, 64, 64]), g.tensor([1, 64, 64])
    c = g.matmul(a, b).set_output(True)
    g.build()
    tensors = {t: torch.randn(1, 64, 64, device="cuda").half() for t in (a, b, c)}
    workspace = torch.empty(max(g.get_workspace_size(), 1), dtype=torch.uint8, device="cuda")
    cudnn.set_stream(handle, torch.cuda.current_stream())
    g.execute(tensors, workspace)

    ext = library.loaded()
    plan = g._plans[g._chosen]
    addresses = {t.get_uid(): value.data_ptr() for t, value in tensors.items()}
    pack = ext.Descriptor(Desc.VARIANT_PACK)
    pack.set(Attr.VARIANT_PACK_UNIQUE_IDS, Type.INT64, list(addresses))
    pack.set(Attr.VARIANT_PACK_DATA_POINTERS, Type.VOID_PTR, list(addresses.values()))
    pack.set(Attr.VARIANT_PACK_WORKSPACE, Type.VOID_PTR, workspace.data_ptr())
    pack.finalize()
    calls = {
        "cudnnBackendExecute": functools.partial(ext.execute, handle.backend_handle, plan._plan, pack, handle.context),
        "PreparedPlan.execute": functools.partial(plan._prepared.execute, handle.backend_handle, handle.context, addresses, workspace.data_ptr()),
        "execute, addresses": functools.partial(g.execute, addresses, workspace.data_ptr(), handle),
        "execute, tensors": functools.partial(g.execute, tensors, workspace),
    }
    found = dict.fromkeys(calls, float("inf"))
    # Interleaved, so that a change of clock or load meets all rows alike.
    for _ in range(repeats):
        for name, call in calls.items():
            found[name] = min(found[name], microseconds(call, 1))
    cudnn.destroy_handle(handle)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--json", help="write the numbers to this file as well")
    options = parser.parse_args()

    import torch

    if not torch.cuda.is_available():
        raise SystemExit("needs a CUDA device")
    import cudnn
    from cudnn.bench import environment

    found = measure(options.repeats)
    base = found["cudnnBackendExecute"]
    print(f"{torch.cuda.get_device_name()}, cuDNN {cudnn.backend_version_string()}, torch {torch.__version__}")
    for name, value in found.items():
        print(f"{name:24s}{value:8.2f} us{value - base:+8.2f} us")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            about = {
                "command": " ".join(["python", *sys.argv]),
                "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "device": environment.describe_device("cuda:0"),
                "versions": environment.versions(),
                "cudnn": cudnn.backend_version(),
            }
            json.dump({**about, "microseconds": found}, file, indent=1)


if __name__ == "__main__":
    main()
