"""Launch kernels of interest once each, for Nsight Compute; peers on the same problem beside ours.

    ncu --clock-control none --profile-from-start off --set full -o profile python benchmarks/profile_cases.py
    ncu --import profile.ncu-rep --page details
    ncu --import profile.ncu-rep --page source --csv                       # samples of every instruction
    python benchmarks/profile_cases.py --list

Each case is made and called once before the call that is profiled, so compilation and first touches are in none of the numbers.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

WIDE = (8192, 28672, 8192)
Call = Callable[[], Any]


def _generator() -> Any:
    import torch

    return torch.Generator(device="cuda").manual_seed(1)


def product(shape: tuple[int, int, int], cublas: bool = False, **config: Any) -> Callable[[], Call]:
    """A bfloat16 product, in our default configuration or in ``config``, or by cuBLAS."""

    def make() -> Call:
        import torch

        from cudnn_gemm_dense.gemm import bench

        inputs = bench.operands(shape, "bfloat16", torch.device("cuda"), _generator())
        return (lambda: torch.matmul(inputs["a"], inputs["b"].t())) if cublas else bench.bind_gemm(inputs, config or None)

    return make


def product_fp8(size: int, cublas: bool = False) -> Callable[[], Call]:
    """A product of e4m3 operands with full accumulation."""

    def make() -> Call:
        import torch

        from cudnn.bench import dense
        from cudnn_gemm_dense.gemm import bench

        device, generator = torch.device("cuda"), _generator()
        inputs = {name: dense.random_matrix(size, size, "float8_e4m3fn", device, generator) for name in ("a", "b")}
        one = torch.ones((), device=device)
        if cublas:
            return lambda: torch._scaled_mm(inputs["a"], inputs["b"].t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=False)
        return bench.bind_gemm(inputs)

    return make


def block_scaled(rows: int, kind: str, **config: Any) -> Callable[[], Call]:
    """bfloat16 activations by weights of format ``kind``, converted into registers."""

    def make() -> Call:
        import torch

        from cudnn_gemm_dense.block_scaled import bench

        inputs = bench._inputs((rows, 8192, 8192), "bfloat16", torch.device("cuda"), _generator())
        return bench._bind(inputs, kind, config={"tile_m": 128, "swap": True, **config})

    return make


CASES: dict[str, Callable[[], Call]] = {
    "16 rows by MXFP8": block_scaled(16, "mxfp8", tile_n=32, split_k=2),
    "16 rows by NVFP4": block_scaled(16, "nvfp4", tile_n=32, split_k=2),
    "16 rows by MXFP8, two sets of consumers": block_scaled(16, "mxfp8", tile_n=32, split_k=2, k_groups=2),
    "64 rows by MXFP8": block_scaled(64, "mxfp8", tile_n=64, split_k=2),
    **{f"{rows} rows{', cuBLAS' if cublas else ''}": product((rows, 8192, 8192), cublas) for rows in (64, 128) for cublas in (False, True)},
    "fp8": product_fp8(8192),
    "fp8, cuBLASLt": product_fp8(8192, cublas=True),
    "wide": product(WIDE),
    "wide, 256x192": product(WIDE, tile_m=256, tile_n=192, cluster_m=2, group=4),
    "wide, cuBLAS": product(WIDE, cublas=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="the cases whose name contains this")
    parser.add_argument("--list", action="store_true", help="name the cases")
    arguments = parser.parse_args()
    chosen = {name: make for name, make in CASES.items() if arguments.only in name}
    if arguments.list:
        print(*chosen, sep="\n")
        return
    import torch

    profiler = torch.cuda.cudart()
    for name, make in chosen.items():
        call = make()
        call()
        torch.cuda.synchronize()
        profiler.cudaProfilerStart()
        call()
        torch.cuda.synchronize()
        profiler.cudaProfilerStop()
        print(name, flush=True)
        del call
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
