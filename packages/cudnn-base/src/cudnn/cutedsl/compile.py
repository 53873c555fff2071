"""From a kernel's description to something callable, without a tensor and without a GPU.

A ``KernelSpec`` is plain, hashable, picklable data; this module imports the DSL only when one is built. Extents, strides, scalars and pointers are run-time
values of the result: one build serves every M, N, K and L.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cudnn.cache import fetch, stored
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem

ARCH = "sm_90a"
SYMBOL = "kernel"


class CachedSpec(ABC):
    """A kernel as plain data: a frozen dataclass with ``op`` and ``arch`` among its fields, all of which a process that compiles for another one can be sent."""

    op: str
    arch: str

    @property
    @abstractmethod
    def label(self) -> str:
        """What it is, for log lines and tables."""

    @property
    @abstractmethod
    def sources(self) -> Sequence[str]:
        """Names of the modules it is generated from."""

    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """What the cache keys by, besides sources and versions."""

    @abstractmethod
    def compile(self) -> Compiled:
        """Compile now, past the cache."""

    def build(self) -> Callable[..., None]:
        """The kernel, from the cache or compiled now.

        Raises:
            ImportError: the DSL is missing, or an inconsistent mix of its distributions is installed.
            ValueError: the configuration does not fit the problem.
        """
        from cudnn.dsl_check import require_dsl

        require_dsl(self.op)
        result = fetch(self.fields(), self.sources, build=self.compile, dump=dump, load=load, label=self.label)
        return result.function if isinstance(result, Compiled) else result

    def stored(self) -> bool:
        """Whether ``build`` would compile nothing."""
        return stored(self.fields(), self.sources)


@dataclass(frozen=True)
class KernelSpec(CachedSpec):
    """One GEMM kernel: operation, problem, fusion, configuration, architecture.

    ``fusion`` names a function ``"module:attribute"`` that takes ``(problem, options)`` and returns the ``Epilogue``; ``options`` is frozen data with ``as_dict()``. The result of
    ``build()`` is called as ``kernel(operands, tensors, scalars, max_clusters, stream)``: tuples of tensors on the device, a tuple of floats (one that is not used where the fusion takes none), the number of clusters
    that fit on the device at once, and a raw stream handle.
    """

    op: str
    fusion: str
    problem: GemmProblem
    options: Any
    config: GemmConfig
    arch: str = ARCH

    @property
    def dtype(self) -> str:
        return self.problem.a_dtype

    @property
    def label(self) -> str:
        """Operation, what distinguishes the problem, and the configuration, for log lines and tables."""
        p = self.problem
        options = ",".join(str(v) for v in self.options.as_dict().values())
        a, b = (major if fmt is None else f"{major},{fmt}" for major, fmt in ((p.a_major, p.a_format), (p.b_major, p.b_format)))
        return f"{self.op} {p.a_dtype} {p.grouping} a:{a} b:{b} {p.b_parts} [{options}] {self.config}"

    @property
    def sources(self) -> Sequence[str]:
        return "cudnn.cutedsl.compile", "cudnn.cutedsl.gemm.sm90", self.fusion.split(":")[0]

    def fields(self) -> dict[str, Any]:
        return {
            "kernel": "gemm",
            "op": self.op,
            "fusion": self.fusion,
            "problem": self.problem.as_dict(),
            "options": self.options.as_dict(),
            "config": self.config.as_dict(),
            "arch": self.arch,
        }

    def compile(self) -> Compiled:
        return finish(_compile(self))


@dataclass(frozen=True)
class Compiled:
    """A kernel made in this process: the callable and the object file it was loaded from."""

    function: Callable[..., None]
    object_bytes: bytes


def finish(compiled: Any) -> Compiled:
    """What the DSL has compiled, as an object file and loaded from it: that is what every later process runs, and it is called with less Python in between."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "kernel.o")
        compiled.export_to_c(object_file_path=path, function_name=SYMBOL)
        return Compiled(load(path), Path(path).read_bytes())


def dump(compiled: Compiled, path: str) -> None:
    """Write the object file to ``path``."""
    Path(path).write_bytes(compiled.object_bytes)


def load(path: str) -> Callable[..., None]:
    """The kernel in the object file at ``path``."""
    import cutlass.cute as cute

    return getattr(cute.runtime.load_module(path, enable_tvm_ffi=True), SYMBOL)


def _compile(spec: KernelSpec) -> Any:
    import cutlass
    import cutlass.cute as cute

    from cudnn.cutedsl.gemm.sm90 import GemmSm90
    from cudnn.datatypes import cutlass_dtype

    p = spec.problem
    module, attribute = spec.fusion.split(":")
    epilogue = getattr(importlib.import_module(module), attribute)(p, spec.options)
    a_dtype, b_dtype = cutlass_dtype(p.a_dtype), cutlass_dtype(p.b_dtype)
    kernel = GemmSm90(p, spec.config, epilogue, a_dtype, b_dtype, cutlass_dtype(p.acc_dtype))
    extents: dict[str, Any] = {}

    def fake(spec):
        if spec is None:
            return cutlass.Int32(1)  # an extent that no tensor has
        # Pitches are checked by the host layer, which knows that an axis of one element may have any.
        stride = [cute.sym_int64() for _ in spec.axes]
        if spec.contiguous is not None:
            stride[spec.contiguous] = 1
        shape = tuple(axis if isinstance(axis, int) else extents.setdefault(axis, cute.sym_int()) for axis in spec.axes)
        align = 16 if spec.contiguous is not None else spec.dtype.width // 8
        return cute.runtime.make_fake_tensor(spec.dtype, shape, stride=tuple(stride), assumed_align=align)

    return cute.compile(
        kernel,
        tuple(fake(t) for t in kernel.operands.placed(kernel.operands.specs)),
        tuple(fake(kernel.operands.rows.caller_axes(t)) for t in epilogue.tensors),
        tuple(cutlass.Float32(1.0) for _ in range(max(epilogue.scalar_count, 1))),
        cutlass.Int32(1),
        cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=False),
        options=f"--enable-tvm-ffi --gpu-arch {spec.arch}",
    )
