"""What both classes of projection + RoPE + MXFP8 have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cudnn.block_scale import MXFP8
from cudnn.cutedsl.dequantize import DequantizeSpec
from cudnn.cutedsl.epilogue.size import Footprint
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.gemm_layout import Extents
from cudnn.gemm_operation import Launch, Scalars, Tensors
from cudnn.streams import stream_context
from cudnn.workspace import WorkspaceCarver, ws_align
from cudnn_gemm_dense.operation import DenseOperation, unfit_reason
from cudnn_gemm_dense.proj_rope_mxfp8.options import CONFIGS, FOOTPRINT, ProjRopeOptions, proj_rope_spec
from cudnn_gemm_dense.proj_rope_mxfp8.reference import proj_rope_mxfp8, widened
from cudnn_gemm_dense.proj_rope_mxfp8.shapes import OUTPUTS, ProjRopeLayout

if TYPE_CHECKING:
    from cudnn.cutedsl.compile import KernelSpec
    from cudnn.wrapper_calls import WrapperCalls


WIDEN = DequantizeSpec(MXFP8.element, MXFP8.scale, MXFP8.vec, "bfloat16", blocked=False)
"""The kernel that writes MXFP8 operands to scratch memory in bfloat16."""


def default_configs(problem: GemmProblem) -> tuple[GemmConfig, ...]:
    """The configurations to build where the caller gives none."""
    return tuple(config for config in CONFIGS if unfit_reason(problem, FOOTPRINT, config) is None)


class ProjRope(DenseOperation):
    """One GEMM, x (T, K) by w (192 H, K): the kernel sees both with a third axis of one element, and all other tensors as they are."""

    op = "gemm_proj_rope_mxfp8"
    _layout: ProjRopeLayout

    def __init__(self, samples: Mapping[str, Any], layout: ProjRopeLayout, *, backend: str, config: GemmConfig | Mapping[str, object] | None) -> None:
        super().__init__([(name, samples[name]) for name in layout.names], layout, backend=backend, config=config)  # type: ignore[arg-type]

    @staticmethod
    @abstractmethod
    def _calls() -> WrapperCalls:
        """The class's wrapper."""

    def _constructor_arguments(self) -> dict[str, Any]:
        return {"backend": self.backend, "config": self.config}

    def _check(self) -> tuple[GemmProblem, ProjRopeOptions, dict[str, str]]:
        layout = self._layout
        layout.check_dtypes(self._samples)
        layout.check_heads(layout.extents(self._samples))
        majors = layout.majors(self._samples)
        layout.check_lines(self._samples, majors)
        return GemmProblem("bfloat16", "bfloat16", "float32", majors["a"], majors["b"]), ProjRopeOptions(), majors

    def _spec(self, problem: GemmProblem, options: ProjRopeOptions, config: GemmConfig) -> KernelSpec:
        return proj_rope_spec(problem, options, config)

    def _footprint(self, options: ProjRopeOptions) -> Footprint:
        return FOOTPRINT

    def _default_configs(self, problem: GemmProblem, options: ProjRopeOptions) -> tuple[GemmConfig, ...]:
        return default_configs(problem)

    @property
    def _takes_as_given(self) -> bool:
        return False

    @property
    def _constant_scalars(self) -> Scalars:
        # Kernels are compiled for one scalar at least.
        return (0.0,)

    def _kernels(self) -> dict[GemmConfig, Callable[..., None]]:
        if self._layout.scaled:
            self._widen = WIDEN.build()
        return super()._kernels()

    def _scratch_bytes(self, config: GemmConfig, extents: Extents) -> int:
        copies = (extents.m, extents.n) if self._layout.scaled else ()
        return super()._scratch_bytes(config, extents) + sum(ws_align(2 * rows * extents.k) for rows in copies)

    def _launch(self, launch: Launch, tensors: Tensors, scalars: Scalars, handle: int, stream: Any, workspace: Any) -> None:
        x, w, *rest = tensors
        if self._layout.scaled:
            *rest, x_scale, w_scale = rest
            x, w = self._widened(launch, ((x, x_scale), (w, w_scale)), handle, stream, workspace)
            launch = launch._replace(scratch_bytes=0)
        rows = w if self._layout.w_out_in else w.t()
        super()._launch(launch, (x.unsqueeze(-1), rows.unsqueeze(-1), *rest), scalars, handle, stream, workspace)

    def _widened(self, launch: Launch, operands: Sequence[tuple[Any, Any]], handle: int, stream: Any, workspace: Any) -> list[Any]:
        """(values, scales) in bfloat16, out of ``workspace`` or out of memory of the launch stream."""
        import torch

        device = operands[0][0].device
        with stream_context(stream, device), torch.no_grad():
            if workspace is None:
                workspace = torch.empty(launch.scratch_bytes, dtype=torch.uint8, device=device)
            elif workspace.device != device:
                raise ValueError(f"workspace is on {workspace.device}, needs {device}, the device of the operands")
            carver = WorkspaceCarver(workspace, launch.scratch_bytes, type(self).__name__, align=16)
            found = []
            for code, scale in operands:
                found.append(carver.take(code.numel(), torch.bfloat16).view(code.shape))
                self._widen(code.view(torch.uint8).unsqueeze(-1), scale.unsqueeze(-1), found[-1].unsqueeze(-1), handle)
        return found

    def _reference(self, tensors: Tensors, scalars: Scalars) -> None:
        x, w, cos, sin, *outputs = tensors
        if self._layout.scaled:
            *outputs, x_scale, w_scale = outputs
            x, w = widened(x, x_scale), widened(w, w_scale)
        for target, found in zip(outputs, proj_rope_mxfp8(x, w, cos, sin, self._layout.w_out_in), strict=True):
            target.copy_(found)

    def _call_traced(self, tensors: Tensors, scalars: Scalars) -> None:
        named = dict(zip(self._layout.names, tensors, strict=True))
        outputs = {name: named.pop(name) for name in OUTPUTS}
        self._calls().execute_traced(self, named, outputs)
