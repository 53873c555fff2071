"""The whole way from a call to a kernel on a machine without a GPU: CPU tensors go where CUDA tensors would.

In the place of each kernel stands a check of what it is given against what the compiled one declares (rank, dtype, contiguous axis, alignment, equal extents, number of scalars), which is what a launch
on a GPU compares; then the reference computes. So wrong orders, missing scratch memory and views that a kernel would refuse are found here. Needs torch and the DSL.
"""

from __future__ import annotations

import gc
import importlib
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from cudnn.block_scale import FP4, ScaleLayout
from cudnn.cutedsl.compile import KernelSpec
from cudnn.cutedsl.dequantize import DequantizeSpec
from cudnn.cutedsl.transpose import TransposeSpec
from cudnn.datatypes import torch_dtype
from cudnn.gemm_operation import DEVICES, GemmOperation, Launch
from cudnn.memo import Memo
from cudnn.reference import dequantize_blocks, dequantize_operand
from cudnn.testing.conformance import GemmConformance
from cudnn.testing.declared import checked, kind
from cudnn.wrapper_calls import OBJECTS, PLANS, WrapperCalls

SMS = 132


class CheckedKernel:
    """What stands for the kernel of ``spec``. ``calls`` counts."""

    def __init__(self, spec: KernelSpec) -> None:
        from cudnn.cutedsl.gemm.sm90 import GemmSm90
        from cudnn.datatypes import cutlass_dtype

        p = spec.problem
        module, attribute = spec.fusion.split(":")
        epilogue = getattr(importlib.import_module(module), attribute)(p, spec.options)
        kernel = GemmSm90(p, spec.config, epilogue, cutlass_dtype(p.a_dtype), cutlass_dtype(p.b_dtype), cutlass_dtype(p.acc_dtype))
        self.spec, self.calls = spec, 0
        self.operands = tuple(kernel.operands.placed(kernel.operands.specs))
        self.others = tuple(kernel.operands.rows.caller_axes(t) for t in epilogue.tensors)
        self.scalars = max(epilogue.scalar_count, 1)

    def __call__(self, operands: Any, others: Any, scalars: Any, clusters: int, handle: int) -> None:
        self.calls += 1
        assert clusters == self.spec.config.resident_clusters(SMS) and handle == 0
        assert len(scalars) == self.scalars and all(type(value) is float for value in scalars), f"{self.spec.label}: scalars {scalars}, needs {self.scalars}"
        extents: dict[str, int] = {}
        for what, given, declared in (("operand", operands, self.operands), ("tensor", others, self.others)):
            assert type(given) is tuple and len(given) == len(declared), f"{self.spec.label}: {len(given)} {what}s, needs {len(declared)}"
            for i, (t, wanted) in enumerate(zip(given, declared, strict=True)):
                self._check(f"{self.spec.label}: {what} {i}", t, wanted, extents)

    @staticmethod
    def _check(name: str, t: Any, wanted: Any, extents: dict[str, int]) -> None:
        if wanted is None:
            assert type(t) is int, f"{name} is a {type(t).__name__}, needs an extent"
            return
        assert isinstance(t, torch.Tensor) and t.dim() == len(wanted.axes), f"{name}: found {getattr(t, 'shape', t)}, needs axes {wanted.axes}"
        assert kind(t.dtype) == kind(wanted.dtype), f"{name}: found {t.dtype}, needs {wanted.dtype}"
        for axis, extent in zip(wanted.axes, t.shape, strict=True):
            known = axis if isinstance(axis, int) else extents.setdefault(axis, extent)
            assert extent == known, f"{name}: found shape {tuple(t.shape)} for axes {wanted.axes}, needs {axis} = {known}"
        align = 16 if wanted.contiguous is not None else t.dtype.itemsize
        assert t.data_ptr() % align == 0, f"{name}: address {t.data_ptr():#x}, needs a multiple of {align}"
        if wanted.contiguous is None:
            return
        assert t.stride(wanted.contiguous) == 1, f"{name}: strides {t.stride()} for axes {wanted.axes}, needs 1 along {wanted.axes[wanted.contiguous]}"
        for axis, (extent, step) in enumerate(zip(t.shape, t.stride(), strict=True)):
            if axis != wanted.contiguous and extent > 1:
                assert step * t.dtype.itemsize % 16 == 0, f"{name}: strides {t.stride()}, needs lines that start at multiples of 16 bytes"


def transposing(spec: TransposeSpec) -> Callable[..., None]:
    """What stands for the kernel that copies an operand."""

    def transpose(source: torch.Tensor, target: torch.Tensor, handle: int) -> None:
        bits = torch.uint8 if source.dtype.itemsize == 1 else torch.int32
        target.view(bits).copy_(source.view(bits))

    return checked(spec, transpose)


def dequantizing(spec: DequantizeSpec) -> Callable[..., None]:
    """What stands for the kernel that converts an operand."""

    def dequantize(source: torch.Tensor, scales: torch.Tensor, target: torch.Tensor, handle: int) -> None:
        data = source if spec.element == FP4 else source.view(torch_dtype(spec.element))
        if spec.blocked:
            rows, columns, batches = target.shape
            layout = ScaleLayout(rows, columns, batches, spec.vec)
            assert scales.numel() == layout.entries, f"{spec.label}: {scales.numel()} scale factors, needs {layout.entries}"
            target.copy_(dequantize_operand(data, scales.view(torch_dtype(spec.scale)).view(layout.physical_shape), spec.vec))
        else:
            assert scales.shape[1] == -(-target.shape[1] // spec.vec), f"{spec.label}: scale factors {tuple(scales.shape)} for {tuple(target.shape)}"
            target[:, :, 0] = dequantize_blocks(data[:, :, 0], scales[:, :, 0], spec.vec)

    return checked(spec, dequantize)


@contextmanager
def pretend_hopper(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[CheckedKernel]]:
    """Inside, operations with ``backend="auto"`` take CPU tensors for those of a Hopper GPU. Yields the kernels built so far."""
    import cudnn.dsl_check
    import cudnn.gemm_operation as operation

    built: list[CheckedKernel] = []
    given: list[tuple[Any, ...]] = []  # the tensors of the call under way, where the kernel is given others

    def build(spec: KernelSpec) -> CheckedKernel:
        built.append(CheckedKernel(spec))
        return built[-1]

    def launch_in(self: GemmOperation, *arguments: Any) -> Launch:
        launch = original_launch_in(self, *arguments)
        kernel: Callable[..., None] = launch.kernel  # type: ignore[assignment]

        def run(operands: Any, others: Any, scalars: Any, clusters: int, handle: int) -> None:
            kernel(operands, others, scalars, clusters, handle)
            self._run_reference(given[0] if given else (*operands, *others), scalars, None)

        return launch._replace(kernel=run)

    def remembering(launch: Callable[..., None]) -> Callable[..., None]:
        def call(self: GemmOperation, found: Launch, tensors: Any, *rest: Any) -> None:
            given.append(tensors)
            try:
                launch(self, found, tensors, *rest)
            finally:
                given.pop()

        return call

    original_launch_in = GemmOperation._launch_in
    with monkeypatch.context() as patch:
        patch.setenv("CUDNN_KERNELS_COMPILE_JOBS", "1")
        patch.setenv("CUDNN_KERNELS_TUNED", "0")
        patch.setattr(KernelSpec, "build", build)
        patch.setattr(TransposeSpec, "build", transposing)
        patch.setattr(DequantizeSpec, "build", dequantizing)
        patch.setattr(cudnn.dsl_check, "require_dsl", lambda *_, **__: None)
        patch.setattr(operation, "select_backend", lambda backend, tensors: "reference" if backend == "reference" else "sm90")
        patch.setattr(operation, "require_arch", lambda *_: None)
        patch.setitem(DEVICES, "sm90", "cpu")
        patch.setattr(operation, "device_info", lambda _: types.SimpleNamespace(sm_count=SMS, resident_clusters=lambda *_: None, device_name="a Hopper GPU"))
        patch.setattr(torch.cuda, "current_device", lambda: -1)
        patch.setattr(torch._C, "_cuda_getDevice", lambda: -1, raising=False)
        patch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0, raising=False)
        patch.setattr(GemmOperation, "_launch_in", launch_in)
        for cls in [found for found in _kinds(GemmOperation) if "_launch" in vars(found)]:
            patch.setattr(cls, "_launch", remembering(cls._launch))
        for calls in [found for found in gc.get_objects() if issubclass(type(found), WrapperCalls)]:
            # What wrappers remember is of the devices that there are.
            patch.setattr(calls, "_plans", Memo(PLANS))
            patch.setattr(calls, "_objects", Memo(OBJECTS))
        yield built


def _kinds(cls: Any) -> Iterator[Any]:
    """The class and all that are derived from it."""
    yield cls
    for derived in cls.__subclasses__():
        yield from _kinds(derived)


def rehearse(case: GemmConformance, monkeypatch: pytest.MonkeyPatch) -> None:
    """Class and wrapper, first and repeated calls, other extents and empty ones, and a workspace of the caller. Rows behind the last group hold anything."""
    with pretend_hopper(monkeypatch) as kernels:
        op: Any = None
        for m, n, k, groups in ((40, 3, 8, 3), (136, 2, 9, 4), (0, 2, 3, 2), (8, 1, 0, 2), (16, 1, 1, 1)):
            extents = m * case.m_step, n * case.n_step, k * case.k_step, groups
            inputs, outputs, own = case.inputs(*extents), case.outputs(*extents), case.outputs(*extents)
            if op is None:
                op = case.build(inputs, outputs)
                op.compile()
                assert op.selected_backend == "sm90" and len(kernels) == len(op._compiled_kernel)
            op.execute(**inputs, **outputs)
            sized = case.build(inputs, outputs)
            op.execute(**inputs, **own, workspace=_aligned(sized.workspace_bytes()))
            found = [outputs, own, case.wrapper(inputs), case.wrapper(inputs)]
            if hasattr(case, "filled"):  # quantised outputs have a comparison of their own
                for result in (found[0], found[-1]) if m and k else ():
                    case.check(inputs, result)
                continue
            for name, wanted in case.reference(inputs).items() if m else ():
                for result in found:
                    _assert_close(f"{name} at {extents}", result[name], wanted, inputs)
        assert sum(kernel.calls for kernel in kernels) >= 12


def _aligned(size: int) -> torch.Tensor:
    memory = torch.empty(size + 128, dtype=torch.uint8)
    return memory[-memory.data_ptr() % 128 :][:size]


def _assert_close(name: str, found: torch.Tensor, wanted: torch.Tensor, inputs: Any) -> None:
    ends, a = inputs.get("padded_offsets"), inputs["a_tensor"]
    if ends is not None and found.shape[0] == a.shape[0]:
        found, wanted = found[: ends[-1]], wanted[: ends[-1]]
    error, size = (found.double() - wanted.double()).norm(), wanted.double().norm()
    assert torch.isfinite(error) and error <= 2**-7 * size + 1e-6, f"{name}: error {error:.3g} of {size:.3g}"
