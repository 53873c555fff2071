"""How many clusters of CTAs a device holds at once, asked of the driver.

The multiprocessors of a cluster lie in one graphics processing cluster (GPC) of the chip, and chips of one product differ in how many are left in each: of two H200, both of 132, one holds 32 clusters of four and the other 30. A
persistent kernel launched with more would run the rest by themselves at the end, and take twice as long. Source: CUDA driver API, ``cuOccupancyMaxActiveClusters``.
"""

from __future__ import annotations

import ctypes
from typing import Any

# A kernel of no work: what counts is its launch.
PTX = b".version 7.8\n.target sm_90\n.address_size 64\n.visible .entry probe()\n{\n ret;\n}\n\0"
THREADS = 384

# CUfunction_attribute, CUlaunchAttributeID and CUstreamCaptureMode of the driver.
_MAX_DYNAMIC_SHARED, _SHARED_CARVEOUT, _NON_PORTABLE_CLUSTER = 8, 9, 14
_CLUSTER_DIMENSION = 4
_RELAXED = 2


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint), ("padding", ctypes.c_uint), ("value", ctypes.c_uint * 16)]


class _Config(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    ]


def resident_clusters(driver: Any, cluster_size: int, shared_bytes: int) -> int | None:
    """Clusters of ``cluster_size`` CTAs, each of ``shared_bytes`` dynamic shared memory, that the current context's device holds at once. None where the driver does not say."""
    # Loading a module may be what a capture on this thread forbids; it is no part of what is captured.
    mode = ctypes.c_int(_RELAXED)
    if driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) != 0:
        return None
    module = ctypes.c_void_p()
    try:
        if driver.cuModuleLoadData(ctypes.byref(module), PTX) != 0:
            return None
        try:
            return _of_module(driver, module, cluster_size, shared_bytes)
        finally:
            driver.cuModuleUnload(module)
    finally:
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def _of_module(driver: Any, module: ctypes.c_void_p, cluster_size: int, shared_bytes: int) -> int | None:
    kernel, count = ctypes.c_void_p(), ctypes.c_int(0)
    if driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"probe") != 0:
        return None
    for attribute, value in ((_MAX_DYNAMIC_SHARED, shared_bytes), (_SHARED_CARVEOUT, 100), (_NON_PORTABLE_CLUSTER, 1)):
        if driver.cuFuncSetAttribute(kernel, attribute, value) != 0:
            return None
    dimension = _Attribute(id=_CLUSTER_DIMENSION, value=(cluster_size, 1, 1))
    config = _Config(grid=(cluster_size, 1, 1), block=(THREADS, 1, 1), shared_bytes=shared_bytes, stream=None, attributes=ctypes.pointer(dimension), count=1)
    return count.value if driver.cuOccupancyMaxActiveClusters(ctypes.byref(count), kernel, ctypes.byref(config)) == 0 and count.value > 0 else None
