"""What the classes of the dense operations have in common beyond `cudnn.gemm_operation`: configurations, and checks of the published hints."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from cudnn import checks
from cudnn.cutedsl.epilogue.size import Footprint
from cudnn.cutedsl.gemm.config import SLAB_COLUMNS, GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.gemm_layout import Extents
from cudnn.gemm_operation import GemmOperation
from cudnn_gemm_dense.configs import candidates, choose, default_configs


def fitting_configs(problem: GemmProblem, footprint: Footprint) -> tuple[GemmConfig, ...]:
    """The default configurations that have room for the epilogue. ValueError where there is none."""
    candidates = default_configs(problem, gated=footprint.slabs == 2)
    fitting = tuple(config for config in candidates if unfit_reason(problem, footprint, config) is None)
    if not fitting:
        raise ValueError(f"no default configuration for {problem}: {unfit_reason(problem, footprint, candidates[0])}")
    return fitting


def unfit_reason(problem: GemmProblem, footprint: Footprint, config: GemmConfig) -> str | None:
    """None if the kernel can run ``problem`` this way beside the epilogue, else the reason why not."""
    return config.supports(problem, epilogue_bytes=footprint.bytes(config), columns_per_visit=SLAB_COLUMNS * footprint.slabs)


class DenseOperation(GemmOperation):
    """A GEMM operation of L equal problems."""

    @abstractmethod
    def _footprint(self, options: Any) -> Footprint:
        """What of the epilogue decides its shared memory."""

    def _default_configs(self, problem: GemmProblem, options: Any) -> tuple[GemmConfig, ...]:
        return fitting_configs(problem, self._footprint(options))

    def _choose(self, configs: Sequence[GemmConfig], extents: Extents) -> GemmConfig:
        return choose(configs, *extents)

    def _candidates(self, problem: GemmProblem, options: Any, extents: Extents) -> tuple[GemmConfig, ...]:
        return candidates(problem, *extents, fits=lambda config: self._unfit(problem, options, config) is None)

    def _unfit(self, problem: GemmProblem, options: Any, config: GemmConfig) -> str | None:
        return unfit_reason(problem, self._footprint(options), config)

    def _dtype(self, name: str) -> str | None:
        """Dtype of the sample called ``name``; None where there is none."""
        found = [meta.dtype for known, meta in zip(self._layout.names, self._samples, strict=True) if known == name]
        return found[0] if found else None

    def _check_operand_dtypes(self, allowed: Sequence[str]) -> None:
        a = self._samples[0].dtype
        checks.check_dtype("a_tensor", a, allowed)
        for name, meta in list(zip(self._layout.names, self._samples, strict=True))[1 : self._operands]:
            if meta.dtype != a:
                raise ValueError(f"{name}: found dtype {meta.dtype} while a_tensor has {a}, needs equal dtypes; cast one, under autocast by hand")
