"""What the classes of grouped operations share: scratch memory, validation of what the device knows, and for groups of rows the tensors themselves."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from cudnn import checks
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.datatypes import itemsize_bits, torch_dtype
from cudnn.gemm_layout import Extents
from cudnn.gemm_operation import GemmOperation, Launch, Scalars, Tensors, pack, sample_metadata
from cudnn.grouped.checks import (
    MAX_EXPERTS,
    OUTPUT_DTYPES,
    check_experts,
    check_pointers,
    operand_family,
    weights_given,
)
from cudnn.grouped.configs import candidates, choose, default_configs, unfit_reason
from cudnn.grouped.layout import GroupedLayout, GroupedRule, vector
from cudnn.grouped.options import B_PARTS, HALVES, Options, kernel_spec
from cudnn.reference import GROUPED_GLU_LAYOUTS
from cudnn.reference.grouped import offset_problem, tensor_at
from cudnn.streams import stream_context
from cudnn.tensor_desc import TensorDesc
from cudnn.tensors import Metadata, is_torch_tensor, metadata
from cudnn.workspace import WorkspaceCarver, ws_align

if TYPE_CHECKING:
    from cudnn.cutedsl.compile import KernelSpec

VALIDATE = "CUDNN_KERNELS_VALIDATE"
MAP_WORDS = 16  # int64 words of one tensor map

Samples = list[tuple[GroupedRule, Any]]


class Scratch(NamedTuple):
    """One tensor of scratch memory."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        return prod(self.shape) * itemsize_bits(self.dtype) // 8


class KernelCall(NamedTuple):
    """A kernel and what it is given, but for scalars and stream."""

    kernel: Callable[..., None]
    operands: Tensors
    others: Tensors
    clusters: int


class GroupedOperation(GemmOperation):
    """A GEMM of groups whose ends, int32 (E,), only the device knows. See ``GemmOperation``."""

    layout_class: ClassVar[type[GroupedLayout]] = GroupedLayout

    def __init__(self, samples: Samples, *, operands: int, backend: str, config: GemmConfig | Mapping[str, object] | None) -> None:
        super().__init__(
            [(rule.name, t) for rule, t in samples], self.layout_class([rule for rule, _ in samples]), operands=operands, backend=backend, config=config
        )
        self._validates = os.environ.get(VALIDATE, "0") not in ("", "0")

    # What a subclass says about itself.

    @abstractmethod
    def _problem(self, majors: Mapping[str, str]) -> tuple[GemmProblem, Options]:
        """What is computed, after all checks."""

    def _check_tensors(self) -> None:
        """Checks of dtypes and of extents beyond the layout's, in the samples."""

    def _scratch_tensors(self, config: GemmConfig, extents: Extents) -> tuple[Scratch, ...]:
        """What the kernel needs besides the caller's tensors."""
        return ()

    @abstractmethod
    def _arrange(self, tensors: Tensors, scratch: Tensors, extents: Extents) -> tuple[Tensors, Tensors]:
        """(operands, others) as the kernel takes them."""

    @abstractmethod
    def _validate(self, tensors: Tensors, extents: Extents) -> None:
        """Read what the device knows and raise ValueError naming the group where it is wrong."""

    # What ``GemmOperation`` asks.

    def _check(self) -> tuple[GemmProblem, Options, dict[str, str]]:
        metas = self._samples
        self._check_tensors()
        extents = self._layout.extents(metas)
        check_experts(extents.batches)
        self._check_extents(metas)
        majors = self._layout.majors(metas)
        self._layout.check_lines(metas, majors)
        return (*self._problem(majors), majors)

    def _spec(self, problem: GemmProblem, options: Options, config: GemmConfig) -> KernelSpec:
        return kernel_spec(self.op, problem, options, config)

    def _default_configs(self, problem: GemmProblem, options: Options) -> tuple[GemmConfig, ...]:
        return default_configs(problem, options.footprint)

    def _choose(self, configs: Sequence[GemmConfig], extents: Extents) -> GemmConfig:
        return choose(self._bound.problem, configs, extents)  # type: ignore[union-attr]

    def _candidates(self, problem: GemmProblem, options: Options, extents: Extents) -> tuple[GemmConfig, ...]:
        return candidates(problem, options.footprint)

    def _unfit(self, problem: GemmProblem, options: Options, config: GemmConfig) -> str | None:
        return unfit_reason(problem, options.footprint, config)

    def _kernel_scalars(self, scalars: Mapping[str, Any]) -> Scalars:
        """What the kernel takes for the run-time scalars of ``execute``."""
        return (0.0,)

    def _scalars_of_calls(self) -> Callable[[Mapping[str, Any]], Scalars]:
        return self._kernel_scalars

    def kernel_call(self, tensors: Mapping[str, Any]) -> KernelCall | None:
        """What runs for tensors by name that a call has been made with. None where that is more than a kernel on tensors that are views of them: scratch memory, checks of values, no kernel."""
        names = self._layout.names
        if self.selected_backend != "sm90" or self._validates or not all(name in tensors for name in names):
            return None
        given = tuple(tensors[name] for name in names)
        launch = self._launches.get(tuple([(t.shape, t.stride(), t.dtype, t.get_device()) for t in given]))
        if launch is None or launch.kernel is None or launch.scratch_bytes:
            return None
        operands, others = self._arrange(given, (), launch.extents)  # type: ignore[arg-type]
        return KernelCall(launch.kernel, operands, others, launch.clusters)

    def _call_traced(self, tensors: Tensors, scalars: Scalars) -> None:
        self._calls().execute_traced(self, pack(self._layout.names, tensors), scalars)

    @abstractmethod
    def _calls(self) -> Any:
        """The ``GroupedCalls`` of the operation's wrapper."""

    def identity(self) -> tuple[Any, ...]:
        return *super().identity(), self._validates

    @property
    def _takes_as_given(self) -> bool:
        return not self._validates

    @property
    def _repeats(self) -> bool:
        # What is looked at in another order is no more than ``_launch`` does.
        return not self._validates

    def _scratch_bytes(self, config: GemmConfig, extents: Extents) -> int:
        return sum(ws_align(one.bytes) for one in self._scratch_tensors(config, extents))

    def _dtype(self, name: str) -> str | None:
        """Dtype of the sample called ``name``; None where there is none."""
        found = [meta.dtype for known, meta in zip(self._layout.names, self._samples, strict=True) if known == name]
        return found[0] if found else None

    # A call.

    def _launch(self, launch: Launch, tensors: Tensors, scalars: Scalars, handle: int, stream: Any, workspace: Any) -> None:
        if self._validates:
            self._validate_now(tensors, launch.extents, stream)  # type: ignore[arg-type]
        scratch: Tensors = ()
        if launch.scratch_bytes:
            scratch = self._take_scratch(launch, tensors[0].device, stream, workspace)
        operands, others = self._arrange(tensors, scratch, launch.extents)  # type: ignore[arg-type]
        launch.kernel(operands, others, scalars, launch.clusters, handle)  # type: ignore[misc]

    def _take_scratch(self, launch: Launch, device: Any, stream: Any, workspace: Any) -> Tensors:
        import torch

        wanted = self._scratch_tensors(launch.config, launch.extents)  # type: ignore[arg-type]
        if workspace is None:
            with stream_context(stream, device):
                return tuple(torch.empty(one.shape, dtype=torch_dtype(one.dtype), device=device) for one in wanted)
        if workspace.device != device:
            raise ValueError(f"workspace is on {workspace.device}, needs {device}, the device of the operands")
        carver = WorkspaceCarver(workspace, launch.scratch_bytes, type(self).__name__, align=128)
        return tuple(carver.take(prod(one.shape), one.dtype).view(one.shape) for one in wanted)

    def _validate_now(self, tensors: Tensors, extents: Extents, stream: Any) -> None:
        import torch

        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"{type(self).__name__}: {VALIDATE} reads offsets and pointers back from the device, which a stream that is captured cannot do; unset it, or validate before capturing"
            )
        with stream_context(stream, tensors[0].device):
            self._validate(tensors, extents)

    def _validate_offsets(self, name: str, offsets: Any, extent: int, rows: str) -> list[int]:
        ends = offsets.tolist()
        problem = offset_problem(ends, extent)
        if problem is not None:
            raise ValueError(f"{name}: {problem}")
        if ends[-1] < extent:
            self._logger.warning("%s: the last end is %d, of %d %s; those behind it belong to no group and are left alone", name, ends[-1], extent, rows)
        return ends


def validate_pointers(name: str, pointers: Any) -> None:
    """ValueError naming the group unless every address is a multiple of 16 bytes and not null."""
    for group, address in enumerate(pointers.tolist()):
        if address == 0 or address % 16:
            what = "a null pointer" if address == 0 else f"{address & (1 << 64) - 1:#x}, {address % 16} bytes past a multiple of 16"
            raise ValueError(f"{name}: found {what} for group {group}, needs the 16-byte aligned address of its matrix")


class Weights(NamedTuple):
    """How a class is given its weights. ``pointers``: by address; ``pair``: as gate and up; ``names``: of the tensors; ``rules``, ``samples``: one for each."""

    pointers: bool
    names: tuple[str, ...]
    rules: tuple[GroupedRule, ...]
    samples: tuple[Any, ...]
    b_dtypes: tuple[Any, ...]


class RowsOperation(GroupedOperation):
    """Groups of rows: A (M, K), and for each group B[e] (N, K).

    ``rest``: outputs and vectors, made by ``rules`` of this class, in the order in which the kernel takes them.
    """

    def __init__(
        self,
        sample_a: Any,
        sample_b: Any,
        sample_padded_offsets: Any,
        rest: Samples,
        *,
        num_experts: Any,
        b_shape: Any,
        b_dtype: Any,
        b_major: str,
        glu_layout: str = "interleaved32",
        n_major_tensors: bool = False,
        backend: str,
        config: GemmConfig | Mapping[str, object] | None,
    ) -> None:
        self.glu_layout, self.b_major, self._layout_of_b = glu_layout, b_major, glu_layout
        owner = type(self).__name__
        for name, t in (
            ("a_tensor", sample_a),
            *(("b_tensor", one) for one in (sample_b if isinstance(sample_b, (tuple, list)) else (sample_b,)) if one is not None),
        ):
            sample_metadata(owner, name, t)
        self.unit_axes = rank_of("a_tensor", sample_a) == 3
        weights = self._weights(sample_a, sample_b, num_experts, b_shape, b_dtype, n_major_tensors)
        self.pointers = weights.pointers
        self._b_names, self._b_dtypes = weights.names, weights.b_dtypes
        self.b_dtype = weights.b_dtypes[0]
        self._b_shape = tuple(b_shape) if b_shape is not None else None
        a = GroupedRule("a_tensor", ("m", "k", 1), ((2, 0, 1),), True) if self.unit_axes else GroupedRule("a_tensor", ("m", "k"), ((0, 1),), True)
        samples = [(a, sample_a), *zip(weights.rules, weights.samples, strict=True), (vector("padded_offsets", "e"), sample_padded_offsets), *rest]
        super().__init__(samples, operands=2 + len(weights.names), backend=backend, config=config)
        self._b_order = self._order_of_b()

    def _weights(self, a: Any, b: Any, num_experts: Any, b_shape: Any, b_dtype: Any, n_major_tensors: bool) -> Weights:
        if self.glu_layout not in GROUPED_GLU_LAYOUTS:
            raise ValueError(f"glu_layout: found {self.glu_layout!r}, needs one of {', '.join(map(repr, GROUPED_GLU_LAYOUTS))}")
        pair = self.glu_layout == "separate"
        pointers = b is None
        base = "b_ptrs" if pointers else "b_tensor"
        names = (f"{base}[0]", f"{base}[1]") if pair else (base,)
        if pointers:
            if num_experts is None or b_shape is None or b_dtype is None:
                raise ValueError("Must provide either sample_b, or num_experts, b_shape and b_dtype for weights by pointers")
            experts = checks.as_integer("num_experts", num_experts)
            if not 1 <= experts <= MAX_EXPERTS:
                raise ValueError(f"num_experts: found {experts}, needs 1 to {MAX_EXPERTS}")
            sample = TensorDesc("int64", (experts,), (1,), (0,), a.device, name=base)
            return Weights(True, names, tuple(vector(name, "e") for name in names), (sample,) * len(names), (b_dtype,) * len(names))
        if b_shape is not None or b_dtype is not None:
            raise ValueError(f"Provide either sample_b or b_shape and b_dtype, found both (b_shape={b_shape}, b_dtype={b_dtype})")
        if num_experts is not None:
            raise ValueError(f"Dense mode forbids num_experts, found {num_experts}; sample_b says it")
        tensors = name_weights("b_tensor", b, self.glu_layout)
        return Weights(
            False,
            names,
            tuple(self._b_rule(name, t, a, n_major_tensors) for name, t in zip(names, tensors, strict=True)),
            tensors,
            tuple(t.dtype for t in tensors),
        )

    def _b_rule(self, name: str, t: Any, a: Any, n_major: bool) -> GroupedRule:
        """(E, N, K), with ``n_major`` and b_major="n" (E, K, N), or (N, K, E) with the axes in memory in the order E, N, K."""
        rows = "n/2" if self.glu_layout == "separate" else "n"
        if not is_canonical(name, t, a):
            if n_major and self.b_major == "n":
                raise ValueError(
                    f'{name}: found strides {tuple(metadata(t).stride)} with b_major="n", needs a contiguous (E, K, N) tensor; legacy (N, K, E) ones are k-major'
                )
            return GroupedRule(name, (rows, "k", "e"), ((2, 0, 1),), True)
        if n_major and self.b_major == "n":
            return GroupedRule(name, ("e", "k", rows), ((0, 1, 2),), True)
        return GroupedRule(name, ("e", rows, "k"), ((0, 1, 2),), True)

    # Rules of the other tensors.

    @staticmethod
    def matrix_rule(name: str, columns: str, unit_axes: bool, halves: int = 1) -> GroupedRule:
        """A matrix with A's rows."""
        return GroupedRule(name, ("m", columns, 1), ((2, 0, 1),), True, halves) if unit_axes else GroupedRule(name, ("m", columns), ((0, 1),), True, halves)

    @staticmethod
    def rows_rule(name: str, unit_axes: bool) -> GroupedRule:
        """A factor for each of A's rows."""
        return GroupedRule(name, ("m", 1, 1), ((0, 1, 2),)) if unit_axes else vector(name, "m")

    @staticmethod
    def bias_rule(name: str) -> GroupedRule:
        return GroupedRule(name, ("n", "e"), ((1, 0),))

    # Checks.

    def _check_tensors(self) -> None:
        for dtype in self._b_dtypes:
            operand_family(self._samples[0].dtype, dtype, self.op)
        for name, wanted in (
            ("padded_offsets", "int32"),
            ("alpha_tensor", "float32"),
            ("beta_tensor", "float32"),
            ("prob_tensor", "float32"),
            ("dprob_tensor", "float32"),
        ):
            found = self._dtype(name)
            if found is not None:
                checks.check_dtype(name, found, (wanted,))
        for name in self._b_names if self.pointers else ():
            checks.check_dtype(name, self._dtype(name), ("int64",))

    def _check_output_dtypes(self, names: Sequence[str], allowed: Sequence[str] = OUTPUT_DTYPES) -> None:
        for name in names:
            found = self._dtype(name)
            if found is not None:
                checks.check_dtype(name, found, allowed)

    def _check_extents(self, metas: Sequence[Metadata]) -> None:
        extents = self._layout.extents(metas)
        self._check_columns(extents.n)
        if self.pointers and self.b_major == "n":
            unit, half = 8, 2 if self.glu_layout in HALVES else 1
            if extents.n % (unit * half):
                raise ValueError(f'b_ptrs: found N = {extents.n} with b_major="n", so lines are not 16B aligned; needs a multiple of {unit * half}')

    def _check_columns(self, n: int) -> None:
        """ValueError unless N suits the operation."""

    def check_support(self) -> bool:
        """True when the operation can be compiled for the samples; reads metadata only.

        Raises:
            ValueError: shapes, strides, dtypes, hints, number of groups, alignment of contiguous extents, configuration, mixed devices.
            NotImplementedError: block-scaled operands.
            RuntimeError: ``backend="sm90"`` with CPU tensors; no device of compute capability 9.0.
        """
        if self._b_shape is not None:
            self._check_b_shape()
        return super().check_support()

    def _check_b_shape(self) -> None:
        shape = self._b_shape
        extents = self._layout.extents(self._samples)
        if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] != 1):  # type: ignore[arg-type]
            raise ValueError(f"b_shape: found {shape}, needs (n, k) or (n, k, 1)")
        if (shape[0], shape[1]) != (extents.n, extents.k):  # type: ignore[index]
            raise ValueError(f"b_shape: found {shape}, needs (N, K) = {(extents.n, extents.k)}, as a_tensor and the outputs have it")

    def _row_problem(self, b_parts: str | None = None) -> GemmProblem:
        dtype = str(self._samples[0].dtype)
        n_major = self.b_major == "n" and (self.pointers or self._layout.rules[1].axes[1] == "k")  # type: ignore[attr-defined]
        return GemmProblem(
            dtype,
            dtype,
            b_major="n" if n_major else "k",
            b_parts=B_PARTS[self.glu_layout] if b_parts is None else b_parts,
            grouping="rows",
            b_pointers=self.pointers,
            unit_axes=self.unit_axes,
        )

    # A call.

    def _given_weights(self, b_tensor: Any, b_ptrs: Any) -> tuple[Any, ...]:
        """B as ``_run`` takes it. ValueError unless it comes in the way the object was compiled for."""
        if self.pointers:
            if b_ptrs is None or b_tensor is not None:
                raise ValueError("Discrete execution requires b_ptrs, and no b_tensor: the object was compiled for weights by pointers")
            return name_weights("b_ptrs", b_ptrs, self._layout_of_b)
        if b_tensor is None or b_ptrs is not None:
            raise ValueError("Dense execution requires b_tensor, and no b_ptrs: the object was compiled for weights in one tensor")
        return name_weights("b_tensor", b_tensor, self._layout_of_b)

    def _bind(self, key: Any, tensors: Tensors) -> Launch:
        if self.pointers and is_torch_tensor(tensors[0]) and is_torch_tensor(tensors[self._operands - 1]):
            a, experts = metadata(tensors[0]), tensors[self._operands - 1].numel()
            for name, pointers in zip(self._b_names, tensors[1 : self._operands - 1], strict=True):
                check_pointers(name, pointers, experts, a.device_type, a.device_index)
        return super()._bind(key, tensors)

    def _maps(self, extents: Extents) -> tuple[Scratch, ...]:
        """Room for the tensor maps of weights by pointers."""
        parts = 1 if self._bound.problem.b_parts == "single" else 2  # type: ignore[union-attr]
        return (Scratch((extents.batches, parts, MAP_WORDS), "int64"),) if self.pointers else ()

    def _scratch_tensors(self, config: GemmConfig, extents: Extents) -> tuple[Scratch, ...]:
        return self._maps(extents)

    def _arrange(self, tensors: Tensors, scratch: Tensors, extents: Extents) -> tuple[Tensors, Tensors]:
        count = self._operands
        if self.pointers:
            a, *pointers, offsets = tensors[:count]
            table, *scratch = scratch  # type: ignore[assignment]
            operands: Tensors = (a, *pointers, extents.n, table, offsets)
        else:
            operands = tensors[:count]
            if self._b_order is not None:
                a, *b, offsets = operands
                operands = (a, *(t.permute(self._b_order) for t in b), offsets)
        return operands, (*tensors[count:], *scratch)

    @property
    def _takes_as_given(self) -> bool:
        return self._b_order is None and super()._takes_as_given

    def _order_of_b(self) -> tuple[int, ...] | None:
        """How B's axes are looked at where the kernel expects another order beside A's: (N, K, E) where A has a unit axis, else (E, N, K). None where it is as expected."""
        if self.pointers:
            return None
        axes = [str(axis).partition("/")[0] for axis in self._layout.rules[1].axes]  # type: ignore[attr-defined]
        wanted = ("n", "k", "e") if self.unit_axes else ("e", "n", "k")
        order = tuple(axes.index(axis) for axis in wanted)
        return None if order == (0, 1, 2) else order

    def _validate(self, tensors: Tensors, extents: Extents) -> None:
        self._validate_offsets("padded_offsets", tensors[self._operands - 1], extents.m, "rows")
        if self.pointers:
            for name, pointers in zip(self._b_names, tensors[1 : self._operands - 1], strict=True):
                validate_pointers(name, pointers)

    # The reference.

    def _reference_operands(self, tensors: Tensors) -> tuple[Any, Any, Any]:
        """A (M, K), B (a tensor (E, N, K) or a list of matrices, gate first where there are two), offsets."""
        import torch

        a, *weights, offsets = tensors[: self._operands]
        a = a[..., 0] if self.unit_axes else a
        if self.pointers:
            parts = [self._matrices_at(name, pointers, a, tensors) for name, pointers in zip(self._b_names, weights, strict=True)]
            return a, parts[0] if len(parts) == 1 else [torch.cat(pair) for pair in zip(*parts, strict=True)], offsets
        axes = [str(axis).partition("/")[0] for axis in self._layout.rules[1].axes]  # type: ignore[attr-defined]
        views = [t.permute([axes.index(axis) for axis in "enk"]) for t in weights]
        return a, views[0] if len(views) == 1 else torch.cat(views, 1), offsets

    def _matrices_at(self, name: str, pointers: Any, a: Any, tensors: Tensors) -> list[Any]:
        n, k = self._layout.extents([metadata(t) for t in tensors]).n, a.shape[1]
        rows = n // 2 if self.glu_layout == "separate" else n
        shape = (rows, k) if self.b_major == "k" else (k, rows)
        if not a.is_cuda and 0 not in shape:
            validate_pointers(name, pointers)
        found = [tensor_at(address, shape, a.dtype, a.device) for address in pointers.tolist()]
        return found if self.b_major == "k" else [t.t() for t in found]


def rank_of(name: str, t: Any) -> int:
    rank = len(getattr(t, "shape", ()))
    if rank not in (2, 3):
        raise ValueError(f"{name}: found shape {tuple(getattr(t, 'shape', ()))}, needs (M, K), or (M, K, 1) for the published kernel-facing form")
    return rank


def is_canonical(name: str, t: Any, a: Any) -> bool:
    """Whether weights are (E, N, K) or (E, K, N) rather than (N, K, E): their last axis, and no other, has stride 1. Empty ones, whose strides say nothing, are in the form of ``a``."""
    shape = tuple(t.shape)
    if len(shape) != 3:
        raise ValueError(f"{name}: found shape {shape}, needs three axes (E, N, K), or (N, K, E) with K contiguous")
    if 0 in shape:
        return len(a.shape) == 2
    # Not through ``metadata``: torch.compile traces this.
    stride = t.stride if isinstance(t.stride, tuple) else t.stride()
    outer = [0 if extent == 1 else step for extent, step in zip(shape[:2], stride[:2], strict=True)]
    return (stride[2] == 1 or (shape[2] == 1 and stride[1] != 1)) and 1 not in outer


def name_weights(name: str, b: Any, glu_layout: str) -> tuple[Any, ...]:
    """One tensor, or the pair (gate, up) where the weights are separate. ValueError where the number does not suit the layout."""
    if glu_layout != "separate":
        if isinstance(b, (tuple, list)):
            raise ValueError(f'{name}: found {len(b)} tensors with glu_layout="{glu_layout}", needs one; pass glu_layout="separate" for the pair (gate, up)')
        return (b,)
    if not isinstance(b, (tuple, list)) or len(b) != 2:
        found = f"{len(b)} tensors" if isinstance(b, (tuple, list)) else f"one {type(b).__name__}"
        raise ValueError(f'{name}: found {found} with glu_layout="separate", needs the pair (gate, up)')
    return tuple(b)


__all__ = ["GroupedOperation", "RowsOperation", "Samples", "Scratch", "name_weights", "validate_pointers", "weights_given"]
