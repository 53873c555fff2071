"""Checks that all grouped operations share, on metadata alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cudnn import checks
from cudnn.datatypes import dtype_name
from cudnn.tensors import Device, Metadata, metadata

OPERAND_DTYPES = ("bfloat16", "float16")
BLOCK_SCALED_DTYPES = ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "uint8")
OUTPUT_DTYPES = ("bfloat16", "float16", "float32")
MAX_EXPERTS = 1024
ALIGNED = 256


def check_hints(tile: Any, cluster: Any, *, tile_n: Sequence[int], cluster_rows: bool = True, cluster_max: int = 16) -> None:
    """ValueError unless ``mma_tiler_mn`` and ``cluster_shape_mn`` are of the published values. Results do not depend on them.

    ``cluster_rows``: whether a cluster's tiles have to be 128 or 256 rows together; ``cluster_max``: the most along one axis.
    """
    tile = checks.as_pair("mma_tiler_mn", tile)
    if tile[0] not in (128, 256):
        raise ValueError(f"mma_tiler_mn: found {tile}, needs a first entry of 128 or 256")
    if tile[1] not in tile_n:
        raise ValueError(f"mma_tiler_mn: found {tile}, needs a second entry out of {', '.join(map(str, tile_n))}")
    if cluster is None:
        return
    cluster = checks.as_pair("cluster_shape_mn", cluster)
    checks.check_cluster(tile, cluster, single_cta_cluster=False)
    if max(cluster) > cluster_max:
        raise ValueError(f"cluster_shape_mn: found {cluster}, needs at most {cluster_max} along each axis")
    if cluster_rows and cluster[0] // (tile[0] // 128) * tile[0] not in (128, 256):
        raise ValueError(f"cluster_shape_mn: found {cluster} with mma_tiler_mn {tile}, needs {'2' if tile[0] == 256 else '1 or 2'} as its first entry")


def check_options(acc_dtype: Any, m_aligned: Any, b_major: Any) -> None:
    """ValueError unless sums are float32, ``m_aligned`` is the published 256 and ``b_major`` is "k" or "n"."""
    found = "float32" if acc_dtype is None else checks.required_dtype("acc_dtype", acc_dtype)
    checks.check_dtype("acc_dtype", found, ("float32",))
    if checks.as_integer("m_aligned", m_aligned) != ALIGNED:
        raise ValueError(f"m_aligned: found {m_aligned}, needs {ALIGNED}; groups of any length are taken whatever it says")
    if b_major not in ("k", "n"):
        raise ValueError(f"b_major: found {b_major!r}, needs 'k' or 'n'")


def check_experts(experts: int) -> None:
    if not 1 <= experts <= MAX_EXPERTS:
        raise ValueError(f"padded_offsets: found {experts} groups, needs 1 to {MAX_EXPERTS}")


def weights_given(dense: Any, pointers: Any, n: Any, b_dtype: Any, *, dense_name: str = "b_tensor", extent_name: str = "n") -> bool:
    """Whether weights come by pointers. ValueError unless exactly one way is chosen, with what it needs and nothing else."""
    if dense is None and pointers is None:
        raise ValueError(f"Must provide either {dense_name} (dense mode) or b_ptrs (pointer mode), found neither")
    if dense is not None and pointers is not None:
        raise ValueError(f"Provide either {dense_name} (dense mode) or b_ptrs (pointer mode), found both")
    if dense is not None:
        if n is not None or b_dtype is not None:
            raise ValueError(f"Dense mode forbids {extent_name} and b_dtype, found {extent_name}={n}, b_dtype={b_dtype}; {dense_name} says both")
        return False
    if n is None or b_dtype is None:
        raise ValueError(f"b_ptrs: pointer mode needs {extent_name} and b_dtype, found {extent_name}={n}, b_dtype={b_dtype}")
    return True


def check_pointers(name: str, pointers: Any, experts: int, device_type: str, device_index: int | None) -> None:
    """ValueError unless ``pointers`` is a contiguous int64 tensor (E,) on the operands' device."""
    if isinstance(pointers, Metadata):
        meta = pointers
    else:
        try:
            meta = metadata(pointers)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    if len(meta.shape) != 1:
        raise ValueError(f"{name}: found shape {meta.shape}, needs one axis (E,), an address for each group")
    if meta.dtype != "int64":
        raise ValueError(f"{name} must be int64, found {meta.dtype}")
    if meta.shape[0] != experts:
        raise ValueError(f"{name} length mismatch: found {meta.shape[0]} addresses, needs {experts}, one for each group")
    if meta.shape[0] > 1 and meta.stride[0] != 1:
        raise ValueError(f"{name}: found stride {meta.stride[0]}, needs contiguous addresses")
    if (meta.device_type, meta.device_index) != (device_type, device_index):
        raise ValueError(
            f"{name} is on {Device(meta.device_type, meta.device_index)}, needs the device of a_tensor, {Device(device_type, device_index)}; move it there"
        )


def operand_family(a: Any, b: Any, op: str) -> None:
    """ValueError for operands of no family or of two; NotImplementedError for block-scaled ones."""
    names = [dtype_name(t) if t is not None else None for t in (a, b)]
    kinds = ["16" if name in OPERAND_DTYPES else "bs" if name in BLOCK_SCALED_DTYPES else None for name in names]
    for name, kind, which in zip(names, kinds, ("a_tensor", "b_tensor"), strict=True):
        if kind is None:
            raise ValueError(f"{which}: found dtype {name}, needs {' or '.join(OPERAND_DTYPES)}; cast it")
    if kinds[0] != kinds[1]:
        raise ValueError(f"a_tensor and b_tensor: found mixed dtype families {names[0]} and {names[1]}, needs equal dtypes; cast one, under autocast by hand")
    if kinds[0] == "bs":
        raise NotImplementedError(
            f"{op}: block-scaled operands ({names[0]}) are not implemented yet; dequantise a_tensor and b_tensor to bfloat16 and leave the scale arguments out"
        )
    if names[0] != names[1]:
        raise ValueError(f"b_tensor: found dtype {names[1]} while a_tensor has {names[0]}, needs equal dtypes; cast one, under autocast by hand")


def forbid_scales(op: str, given: dict[str, Any]) -> None:
    """ValueError naming what of ``given`` is set: scale factors and what goes with them belong to block-scaled operands."""
    found = []
    for name, value in given.items():  # in every call, where a comprehension would be one more function
        if value is not None and value is not False:
            found.append(name)
    if found:
        raise ValueError(f"{op}: BF16 forbids scale control: found {', '.join(found)}; leave {'it' if len(found) == 1 else 'them'} out with 16-bit operands")


def finite(name: str, value: Any, *, positive: bool = False) -> float:
    """A finite float; ValueError otherwise."""
    found = checks.as_scalar(name, value)
    if not math.isfinite(found) or (positive and found <= 0):
        raise ValueError(f"{name}: found {found}, needs a finite number{' above 0' if positive else ''}")
    return found
