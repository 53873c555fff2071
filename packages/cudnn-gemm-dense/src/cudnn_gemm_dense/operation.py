"""What the classes of the dense operations have in common beyond `cudnn.gemm_operation`: configurations, and checks of the published hints."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cudnn import checks
from cudnn.block_scale import FORMATS, MXFP4, MXFP8, NVFP4
from cudnn.block_scale.checks import unpacked
from cudnn.cutedsl.epilogue.size import Footprint
from cudnn.cutedsl.gemm.config import SLAB_COLUMNS, GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.gemm_layout import Extents, GemmLayout, Rule
from cudnn.gemm_operation import GemmOperation, Tensors
from cudnn.gemm_scratch import Scaled
from cudnn.tensors import Metadata
from cudnn_gemm_dense.configs import INSIDE, SWAPPED, candidates, choose, default_configs
from cudnn_gemm_dense.scale_factors import check_scale_shape


def fitting_configs(problem: GemmProblem, footprint: Footprint, *, swaps: bool = False) -> tuple[GemmConfig, ...]:
    """The default configurations that have room for the epilogue; ``swaps`` as of ``default_configs``. ValueError where there is none."""
    candidates = default_configs(problem, gated=footprint.slabs == 2, swaps=swaps)
    fitting = tuple(config for config in candidates if unfit_reason(problem, footprint, config) is None)
    if not fitting:
        raise ValueError(f"no default configuration for {problem}: {unfit_reason(problem, footprint, candidates[0])}")
    return fitting


def kernel_choices(problem: GemmProblem, footprint: Footprint, *, swaps: bool = False) -> list[tuple[GemmProblem, GemmConfig]]:
    """Kernels worth having for ``problem``: the default configurations; for bfloat16 that is contiguous along K also those that convert weights in a block-scaled format, with the problem as they see it. ``swaps`` as of ``default_configs``.

    Rarer ones (weights beside float16 activations, FP4 with e8m0 factors for 16, activations contiguous along M) are compiled when they are first asked for.
    """
    found = [(problem.swapped if config.swap else problem, config) for config in fitting_configs(problem, footprint, swaps=swaps)]
    if problem.b_dtype == "bfloat16" and (problem.a_major, problem.b_major) == ("k", "k"):
        for fmt in (MXFP8, MXFP4, NVFP4):
            quantized = replace(problem, b_format=fmt.name)
            choices = [(quantized.swapped, config) for config in SWAPPED] if swaps else [(quantized, INSIDE)]
            found += [(seen, config) for seen, config in choices if unfit_reason(seen, footprint, config) is None]
    return found


def unfit_reason(problem: GemmProblem, footprint: Footprint, config: GemmConfig) -> str | None:
    """None if the kernel can run ``problem`` this way beside the epilogue, else the reason why not."""
    return config.supports(problem, epilogue_bytes=footprint.bytes(config), columns_per_visit=SLAB_COLUMNS * footprint.slabs)


class DenseOperation(GemmOperation):
    """A GEMM operation of L equal problems.

    ``scales``: metadata of the samples of the block-scaled mode by name, of ``read_scales``. ``scaled``: (operand, name, sample) of the scale factors of operands, ``sf_vec_size`` elements along K
    each. 4-bit operands may come as bytes (uint8), two in one.
    """

    def __init__(
        self,
        tensors: Sequence[tuple[str, Any]],
        layout: GemmLayout,
        *,
        operands: int = 2,
        scales: Mapping[str, Metadata] | None = None,
        scaled: Sequence[tuple[int, str, Any]] = (),
        sf_vec_size: int = 0,
        backend: str,
        config: GemmConfig | Mapping[str, object] | None,
    ) -> None:
        if scaled:
            rules = (*layout.rules, *(Rule(name, None) for _, name, _ in scaled))
            layout = GemmLayout(rules, compact=layout.compact, whole_lines=layout.whole_lines)
        super().__init__([*tensors, *((name, t) for _, name, t in scaled)], layout, operands=operands, backend=backend, config=config)
        # Arguments of the block-scaled mode that are given, and whether they are read or written.
        self._scale_names = {name.partition("[")[0]: name in self._layout.names for name in scales or ()}
        self._scaled = tuple(Scaled(operand, len(tensors) + i, sf_vec_size) for i, (operand, _, _) in enumerate(scaled))
        # (rows, columns) of the matrices that tensors without axes of their own have factors for.
        self._factors: dict[int, tuple[str, str, int]] = {one.scale: ("m" if one.operand == 0 else "n", "k", one.vec) for one in self._scaled}
        self._packed = frozenset(one.operand for one in self._scaled)
        self._samples = self._unpacked(self._samples)

    def _unpacked(self, metas: Sequence[Metadata]) -> tuple[Metadata, ...]:
        """Packed 4-bit floats that come as bytes, as what they are."""
        return tuple(unpacked(meta) if i in self._packed else meta for i, meta in enumerate(metas))

    def _metas(self, tensors: Tensors) -> tuple[Metadata, ...]:
        return self._unpacked(super()._metas(tensors))

    def _check_extents(self, metas: Sequence[Metadata]) -> None:
        for one in self._scaled:
            # The converting kernel takes 16 bytes at a time.
            rule, meta = self._layout.rules[one.operand], metas[one.operand]  # type: ignore[attr-defined]
            if 0 not in meta.shape:
                major = self._layout.majors(metas)[rule.group]
                problem = checks.contiguous_problem(rule.name, meta, major, rule.modes)
                if problem is not None:
                    raise ValueError(problem)
        if self._factors:
            extents = self._layout.solve(metas)  # type: ignore[attr-defined]
            for i, (rows, columns, vec) in self._factors.items():
                parts = self._operands - 1 if rows == "n" else 1
                check_scale_shape(self._layout.names[i], metas[i], extents[rows] // parts, extents[columns], extents["l"], vec)

    def _given(self, scales: Mapping[str, Any]) -> Tensors:
        """Those that ``_run`` takes of a call's tensors of the block-scaled mode, ``scales``, which are named in the order of the layout. ValueError where one is given that was not in the samples, or is not."""
        known = self._scale_names
        found: list[Any] = []
        for name, t in scales.items():
            if (t is not None) != (name in known):
                raise ValueError(f"{name}: found {'None' if t is None else 'one'}, needs {'one' if t is None else 'None'} as in the samples")
            if t is not None and known[name]:
                found += t if isinstance(t, (tuple, list)) else (t,)
        return tuple(found)

    _swaps = False  # whether the operation's kernel can compute the transpose of its result

    @property
    def _repeats(self) -> bool:
        return True

    @abstractmethod
    def _footprint(self, options: Any) -> Footprint:
        """What of the epilogue decides its shared memory."""

    def _default_configs(self, problem: GemmProblem, options: Any) -> tuple[GemmConfig, ...]:
        footprint = self._footprint(options)
        if problem.b_format is None:
            return fitting_configs(problem, footprint, swaps=self._swaps)
        configs = fitting_configs(replace(problem, b_format=None), footprint)
        swapped = tuple(config for config in SWAPPED if self._unfit(problem.swapped, options, config) is None)
        if swapped:
            # With few rows no weights are converted in front: of the kernels behind that only those for many are needed.
            return (*configs[:2], *swapped)
        return (*configs, INSIDE) if self._unfit(problem, options, INSIDE) is None else configs

    def _choose(self, configs: Sequence[GemmConfig], extents: Extents) -> GemmConfig:
        problem = self._bound.given_problem  # type: ignore[union-attr]
        bits = 0 if problem.b_format is None else 8 // FORMATS[problem.b_format].packed
        return choose(configs, *extents, promotes=problem.promotes, bits=bits)

    def _candidates(self, problem: GemmProblem, options: Any, extents: Extents) -> tuple[GemmConfig, ...]:
        return candidates(problem, *extents, fits=lambda config: self._unfit(problem, options, config) is None)

    def _unfit(self, problem: GemmProblem, options: Any, config: GemmConfig) -> str | None:
        if config.swap and not self._swaps:
            return f"swap: needs a plain product; what {type(self).__name__} does to it goes along rows or columns"
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
