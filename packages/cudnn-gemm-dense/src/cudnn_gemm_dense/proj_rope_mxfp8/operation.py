"""What both classes of projection + RoPE + MXFP8 have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cudnn.cutedsl.epilogue.size import Footprint
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.gemm_operation import Launch, Scalars, Tensors
from cudnn.gemm_scratch import Scaled
from cudnn.tensors import Metadata
from cudnn_gemm_dense.operation import DenseOperation, unfit_reason
from cudnn_gemm_dense.proj_rope_mxfp8.lanes import BLOCK
from cudnn_gemm_dense.proj_rope_mxfp8.options import CONFIGS, FOOTPRINT, ProjRopeOptions, proj_rope_spec
from cudnn_gemm_dense.proj_rope_mxfp8.reference import proj_rope_mxfp8
from cudnn_gemm_dense.proj_rope_mxfp8.shapes import OUTPUTS, ProjRopeLayout

if TYPE_CHECKING:
    from cudnn.cutedsl.compile import KernelSpec
    from cudnn.wrapper_calls import WrapperCalls


def default_configs(problem: GemmProblem) -> tuple[GemmConfig, ...]:
    """The configurations to build where the caller gives none."""
    return tuple(config for config in CONFIGS if unfit_reason(problem, FOOTPRINT, config) is None)


class ProjRope(DenseOperation):
    """One GEMM, x (T, K) by w (192 H, K): the kernel sees both with a third axis of one element, and all other tensors as they are."""

    op = "gemm_proj_rope_mxfp8"
    _layout: ProjRopeLayout

    def __init__(self, samples: Mapping[str, Any], layout: ProjRopeLayout, *, backend: str, config: GemmConfig | Mapping[str, object] | None) -> None:
        super().__init__([(name, samples[name]) for name in layout.names], layout, backend=backend, config=config)  # type: ignore[arg-type]
        if layout.scaled:
            self._scaled = tuple(Scaled(operand, layout.names.index(name), BLOCK, plain=True) for operand, name in enumerate(("x_scale", "w_scale")))

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

    def _check_extents(self, metas: Sequence[Metadata]) -> None:
        self._layout.check_heads(self._layout.extents(metas))

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

    def _launch(self, launch: Launch, tensors: Tensors, scalars: Scalars, handle: int, stream: Any, workspace: Any) -> None:
        x, w, *rest = tensors
        rows = w if self._layout.w_out_in else w.t()
        super()._launch(launch, (x.unsqueeze(-1), rows.unsqueeze(-1), *rest), scalars, handle, stream, workspace)

    def _reference(self, tensors: Tensors, scalars: Scalars) -> None:
        import torch

        x, w, cos, sin, *outputs = tensors
        x, w = x.to(torch.bfloat16), w.to(torch.bfloat16)
        for target, found in zip(outputs, proj_rope_mxfp8(x, w, cos, sin, self._layout.w_out_in), strict=True):
            target.copy_(found)

    def _call_traced(self, tensors: Tensors, scalars: Scalars) -> None:
        named = dict(zip(self._layout.names, tensors, strict=True))
        outputs = {name: named.pop(name) for name in OUTPUTS}
        self._calls().execute_traced(self, named, outputs)
