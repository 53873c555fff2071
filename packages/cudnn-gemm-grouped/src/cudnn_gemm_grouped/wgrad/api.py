"""Weight gradients of grouped GEMMs: the class `GroupedGemmWgrad` and the wrapper `grouped_gemm_wgrad_wrapper`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from itertools import product
from typing import TYPE_CHECKING, Any

from cudnn import checks
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.cutedsl.transpose import pitch
from cudnn.datatypes import torch_dtype
from cudnn.gemm_layout import Extents
from cudnn.gemm_operation import Launch, Scalars, Tensors, sample_metadata
from cudnn.grouped.calls import GroupedCalls
from cudnn.grouped.checks import MAX_EXPERTS, OPERAND_DTYPES, OUTPUT_DTYPES, check_hints, check_options, check_pointers, forbid_scales, operand_family
from cudnn.grouped.configs import default_configs
from cudnn.grouped.layout import GroupedRule, vector
from cudnn.grouped.operation import MAP_WORDS, GroupedOperation, Samples, Scratch, validate_pointers
from cudnn.grouped.options import WgradOptions, kernel_spec
from cudnn.reference import cast
from cudnn.reference.grouped import grouped_wgrad, tensor_at
from cudnn.streams import stream_context
from cudnn.tensor_desc import TensorDesc
from cudnn.tensors import is_torch_tensor, metadata
from cudnn.tuple_dict import TupleDict
from cudnn.wrapper_calls import Arguments, Output

if TYPE_CHECKING:
    import torch

    from cudnn.cutedsl.compile import KernelSpec

__all__ = [
    "GroupedGemmWgrad",
    "GroupedGemmWgradSm100",
    "WGradInputOrder",
    "get_grouped_gemm_wgrad_workspace_size",
    "get_grouped_gemm_wgrad_workspace_size_sm100",
    "grouped_gemm_wgrad_wrapper",
    "grouped_gemm_wgrad_wrapper_sm100",
    "precompile_specs",
]

TILE_N = (64, 128, 192, 256)
SF_VEC_SIZE = 16
MAP_BYTES = 128
OUTPUT_MODES = ("dense", "discrete")
STEP_UNIT = 8  # steps of 16 bytes
OPERAND_BITS = 16
EITHER_MAJOR = ((0, 1), (1, 0))


class WGradInputOrder(str, Enum):
    """How operands whose token axis is contiguous lie in memory: as one matrix, or group after group, each a matrix of its own."""

    Tensor2D = "tensor2d"
    TensorRagged = "tensor_ragged"


def _input_order(value: Any) -> WGradInputOrder:
    try:
        return WGradInputOrder(value.value if isinstance(value, Enum) else value)
    except ValueError as error:
        raise ValueError(f"input_order: found {value!r}, needs 'tensor2d' or 'tensor_ragged'") from error


def get_grouped_gemm_wgrad_workspace_size(num_experts: int, *, output_mode: str = "dense", input_order: Any = WGradInputOrder.Tensor2D) -> int:
    """Bytes of a ``descriptor_workspace`` that serves any call: 512 for each expert, 640 with ``output_mode="discrete"``.

    Raises:
        ValueError: E below 1, an unknown mode or order.
    """
    experts = checks.as_integer("num_experts", num_experts)
    if experts < 1:
        raise ValueError(f"num_experts: found {experts}, needs at least 1")
    _check_output_mode(output_mode)
    _input_order(input_order)
    return max(MAP_BYTES * experts * (4 if output_mode == "dense" else 5), 1)


def _check_output_mode(output_mode: Any) -> None:
    if output_mode not in OUTPUT_MODES:
        raise ValueError(f"output_mode: found {output_mode!r}, needs 'dense' or 'discrete'")


class GroupedGemmWgrad(GroupedOperation):
    """W[e] = A[:, t0:t1] B[t0:t1, :] for the tokens t0 = offsets[e - 1] (0 for the first) up to t1 = offsets[e] of each group e, with float32 sums.

    Groups of any length; one of no tokens gives zeros, or with ``accumulate_on_output`` leaves what is there. Tokens from the last end on are not read.

    ==============  ==========  ======================================================  ============================
    name            shape       strides                                                 dtypes
    ==============  ==========  ======================================================  ============================
    a_tensor        (m, T)      (T, 1) or (1, m)                                        bfloat16, float16
    b_tensor        (T, n)      (1, T) or (n, 1)                                        as A
    offsets_tensor  (E,)        (1,)                                                    int32
    wgrad_tensor    (E, m, n)   (m n, n, 1)                                             bfloat16, float16, float32
    wgrad_ptrs      (E,)        addresses of E compact matrices (m, n)                  int64
    ==============  ==========  ======================================================  ============================

    Contiguous extents and addresses are multiples of 16 bytes. (1, m) and (n, 1), activations and gradients as they are, need no scratch memory; the others are copied into such an order first, into a workspace
    of their size (``workspace_bytes``). Extents, offsets and addresses are run-time values.

    ``accumulate_on_output`` adds W, rounded to the output's dtype, in that dtype. Results are the same bits every time.

    Args:
        sample_a, sample_b, sample_offsets, sample_wgrad: tensors or ``TensorDesc``; only their metadata is read. ``sample_wgrad`` is None for weight gradients by pointers.
        num_experts, wgrad_shape, wgrad_dtype, sample_wgrad_expert: E, (m, n) and the dtype of weight gradients by pointers, the last a sample of one of them; None otherwise.
        acc_dtype: float32 (None).
        mma_tiler_mn, cluster_shape_mn: hints, checked against the published values. Results do not depend on them.
        accumulate_on_output: whether W is added to what is there.
        input_order: ``"tensor2d"``, or ``"tensor_ragged"``: an operand of R rows (m or n) whose token axis is contiguous holds group after group, group e from element R * t0 on with lines of t1 - t0
            elements, a multiple of 8; an operand whose other axis is contiguous has the same bytes in both.
        sample_sfa, sample_sfb, sample_global_scale_a, sample_global_scale_b, sf_vec_size, sf_fp8_dtype_override: belong to block-scaled operands; left out with 16-bit ones.
        backend: ``"auto"`` (kernel for CUDA tensors, reference for CPU tensors), ``"sm90"`` or ``"reference"``.
        config: a ``GemmConfig`` or a dict of its fields: build and run this one instead of the default set.
    """

    op = "grouped_gemm_wgrad"

    def __init__(
        self,
        sample_a: Any,
        sample_b: Any,
        sample_sfa: Any,
        sample_sfb: Any,
        sample_offsets: Any,
        sample_wgrad: Any = None,
        sample_wgrad_expert: Any = None,
        num_experts: int | None = None,
        wgrad_shape: tuple[int, ...] | None = None,
        wgrad_dtype: Any = None,
        sample_global_scale_a: Any = None,
        sample_global_scale_b: Any = None,
        acc_dtype: Any = None,
        mma_tiler_mn: tuple[int, int] = (256, 256),
        cluster_shape_mn: tuple[int, int] | None = None,
        sf_vec_size: int = SF_VEC_SIZE,
        sf_fp8_dtype_override: Any = None,
        accumulate_on_output: bool = False,
        input_order: Any = WGradInputOrder.Tensor2D,
        *,
        backend: str = "auto",
        config: GemmConfig | Mapping[str, object] | None = None,
    ) -> None:
        forbid_scales(
            "GroupedGemmWgrad",
            {
                "sample_sfa": sample_sfa,
                "sample_sfb": sample_sfb,
                "sample_global_scale_a": sample_global_scale_a,
                "sample_global_scale_b": sample_global_scale_b,
                "sf_vec_size": sf_vec_size if sf_vec_size != SF_VEC_SIZE else None,
                "sf_fp8_dtype_override": sf_fp8_dtype_override,
            },
        )
        check_options(acc_dtype, 256, "k")
        check_hints(mma_tiler_mn, cluster_shape_mn, tile_n=TILE_N, cluster_rows=False)
        self.input_order = _input_order(input_order)
        self.accumulate_on_output = bool(accumulate_on_output)
        sample_metadata(type(self).__name__, "a_tensor", sample_a)
        samples: Samples = [
            (GroupedRule("a_tensor", ("m", "k"), EITHER_MAJOR, True), sample_a),
            (GroupedRule("b_tensor", ("k", "n"), EITHER_MAJOR, True), sample_b),
            (vector("offsets_tensor", "e"), sample_offsets),
        ]
        self.pointers = sample_wgrad is None
        self._wgrad_shape: tuple[int, ...] | None = None
        if self.pointers:
            samples.append((vector("wgrad_ptrs", "e"), self._pointer_sample(sample_a, num_experts, wgrad_shape, wgrad_dtype, sample_wgrad_expert)))
            self.wgrad_dtype = checks.required_dtype("wgrad_dtype", wgrad_dtype)
        else:
            given = {"num_experts": num_experts, "wgrad_shape": wgrad_shape, "wgrad_dtype": wgrad_dtype, "sample_wgrad_expert": sample_wgrad_expert}
            found = [name for name, value in given.items() if value is not None]
            if found:
                raise ValueError(f"Provide either sample_wgrad or num_experts, wgrad_shape and wgrad_dtype, found sample_wgrad and {', '.join(found)}")
            samples.append((GroupedRule("wgrad_tensor", ("e", "m", "n"), ((0, 1, 2),), True), sample_wgrad))
            self.wgrad_dtype = checks.required_dtype("wgrad_tensor", sample_wgrad.dtype)
        super().__init__(samples, operands=3, backend=backend, config=config)
        self._arguments = {
            "sample_sfa": None,
            "sample_sfb": None,
            "num_experts": num_experts,
            "wgrad_shape": wgrad_shape,
            "wgrad_dtype": wgrad_dtype,
            "mma_tiler_mn": mma_tiler_mn,
            "cluster_shape_mn": cluster_shape_mn,
            "accumulate_on_output": self.accumulate_on_output,
            "input_order": self.input_order.value,
            "backend": backend,
            "config": self.config,
        }

    def _pointer_sample(self, a: Any, num_experts: Any, wgrad_shape: Any, wgrad_dtype: Any, expert: Any) -> TensorDesc:
        if num_experts is None or wgrad_shape is None or wgrad_dtype is None:
            raise ValueError("Must provide either sample_wgrad, or num_experts, wgrad_shape and wgrad_dtype for weight gradients by pointers")
        experts = checks.as_integer("num_experts", num_experts)
        if not 1 <= experts <= MAX_EXPERTS:
            raise ValueError(f"num_experts: found {experts}, needs 1 to {MAX_EXPERTS}")
        self._wgrad_shape = tuple(checks.as_integer("wgrad_shape", extent) for extent in wgrad_shape)
        if expert is not None:
            meta = sample_metadata(type(self).__name__, "sample_wgrad_expert", expert)
            wanted = (self._wgrad_shape, checks.required_dtype("wgrad_dtype", wgrad_dtype))
            if (meta.shape, meta.dtype) != wanted:
                raise ValueError(
                    f"sample_wgrad_expert: found shape {meta.shape} and dtype {meta.dtype}, needs {wanted[0]} and {wanted[1]}, as wgrad_shape and wgrad_dtype say"
                )
        return TensorDesc("int64", (experts,), (1,), (0,), a.device, name="wgrad_ptrs")

    def _constructor_arguments(self) -> dict[str, Any]:
        return self._arguments

    def _calls(self) -> GroupedCalls:
        return CALLS

    def _check_tensors(self) -> None:
        operand_family(self._dtype("a_tensor"), self._dtype("b_tensor"), self.op)
        checks.check_dtype("offsets_tensor", self._dtype("offsets_tensor"), ("int32",))
        checks.check_dtype("wgrad_dtype" if self.pointers else "wgrad_tensor", self.wgrad_dtype, OUTPUT_DTYPES)

    def _check_extents(self, metas: Any) -> None:
        extents = self._layout.extents(metas)
        if not self.pointers:
            return
        unit = 128 // (32 if self.wgrad_dtype == "float32" else 16)
        if extents.n % unit:
            raise ValueError(
                f"wgrad_ptrs: found n = {extents.n} contiguous {self.wgrad_dtype} elements, so lines are not 16B aligned; needs a multiple of {unit}; pad n with zeros"
            )

    def check_support(self) -> bool:
        """True when the operation can be compiled for the samples; reads metadata only.

        Raises:
            ValueError: shapes, strides, dtypes, hints, number of groups, alignment of contiguous extents, configuration, mixed devices.
            NotImplementedError: block-scaled operands.
            RuntimeError: ``backend="sm90"`` with CPU tensors; no device of compute capability 9.0.
        """
        if self._wgrad_shape is not None:
            extents = self._layout.extents(self._samples)
            if self._wgrad_shape != (extents.m, extents.n):
                raise ValueError(f"wgrad_shape: found {self._wgrad_shape}, needs (m, n) = {(extents.m, extents.n)}, as a_tensor and b_tensor have it")
        return super().check_support()

    def _problem(self, majors: Mapping[str, str]) -> tuple[GemmProblem, WgradOptions]:
        a_major, b_major = majors["a_tensor"][-1], majors["b_tensor"][-1]
        dtype = str(self._dtype("a_tensor"))
        blocks = self.input_order is WGradInputOrder.TensorRagged and "k" in (a_major, b_major)
        # A copy starts at a multiple of 16 bytes along its contiguous axis, and groups of tokens start anywhere.
        order = (a_major, b_major) if blocks else ("m", "n")
        problem = GemmProblem(dtype, dtype, a_major=order[0], b_major=order[1], grouping="steps", step_blocks=blocks)
        return problem, WgradOptions(self.wgrad_dtype, self.accumulate_on_output, self.pointers)

    @property
    def _copied(self) -> tuple[bool, bool]:
        """Whether A and B are copied so that their token axis is not the contiguous one."""
        problem, majors = self._bound.problem, self._bound.majors  # type: ignore[union-attr]
        return majors["a_tensor"][-1] != problem.a_major, majors["b_tensor"][-1] != problem.b_major

    def _scratch_tensors(self, config: GemmConfig, extents: Extents) -> tuple[Scratch, ...]:
        problem = self._bound.problem  # type: ignore[union-attr]
        copies = zip(self._copied, (extents.m, extents.n), strict=True)
        wanted = [Scratch((extents.k, pitch(rows, OPERAND_BITS)), problem.a_dtype) for copied, rows in copies if copied and extents.k]
        if problem.step_blocks:
            wanted.append(Scratch((extents.batches, 2, MAP_WORDS), "int64"))
        if self.pointers:
            wanted.append(Scratch((extents.batches, 1, MAP_WORDS), "int64"))
        return tuple(wanted)

    def _launch(self, launch: Launch, tensors: Tensors, scalars: Scalars, handle: int, stream: Any, workspace: Any) -> None:
        if any(self._copied):
            with stream_context(stream, tensors[0].device):
                super()._launch(launch, tensors, scalars, handle, stream, workspace)
        else:
            super()._launch(launch, tensors, scalars, handle, stream, workspace)

    def _token_rows(self, tensors: Tensors, scratch: Tensors) -> tuple[Tensors, Tensors]:
        """A and B with their tokens as lines, copied where they have another order, and the scratch memory that is left."""
        import torch

        a, b = tensors
        copied_a, copied_b = self._copied
        with torch.no_grad():
            if copied_a:
                target, scratch = scratch[0], scratch[1:]
                a = target[:, : a.shape[0]].copy_(a.t()).t()
            if copied_b:
                target, scratch = scratch[0], scratch[1:]
                b = target[:, : b.shape[1]].copy_(b)
        return (a, b), scratch

    def _arrange(self, tensors: Tensors, scratch: Tensors, extents: Extents) -> tuple[Tensors, Tensors]:
        a, b, offsets, target = tensors
        if extents.k:
            (a, b), scratch = self._token_rows((a, b), scratch)
        if extents.k == 0:
            # Groups of no tokens still write zeros, and a tensor map has no extent 0. Nothing of these is read.
            a, b = (t.new_empty(STEP_UNIT * rows).as_strided(shape, stride) for t, rows, shape, stride in self._stand_ins(a, b, extents))
        if self.pointers:
            *rest, table = scratch
            return (a, b, *rest, offsets), (target, table)
        return (a, b, *scratch, offsets), (target,)

    def _stand_ins(self, a: Any, b: Any, extents: Extents) -> Any:
        problem = self._bound.problem  # type: ignore[union-attr]
        k, m, n = STEP_UNIT, extents.m, extents.n
        yield a, m, (m, k), (k, 1) if problem.a_major == "k" else (1, m)
        yield b, n, (k, n), (1, k) if problem.b_major == "k" else (n, 1)

    def execute(
        self,
        a_tensor: Any,
        b_tensor: Any,
        sfa_tensor: Any = None,
        sfb_tensor: Any = None,
        offsets_tensor: Any = None,
        wgrad_tensor: Any = None,
        wgrad_ptrs: Any = None,
        global_scale_a: Any = None,
        global_scale_b: Any = None,
        current_stream: Any = None,
        *,
        descriptor_workspace: Any = None,
        workspace: Any = None,
    ) -> None:
        """Write, or add to, the weight gradients. On CUDA tensors this launches one to three kernels and returns without waiting.

        Args:
            a_tensor, b_tensor, offsets_tensor, wgrad_tensor: as the samples in dtype, layout and kind of device; extents are free.
            wgrad_ptrs: addresses where the object was made for such, whose memory must stay until the kernel has run; a tensor (E, m, n) as ``wgrad_tensor`` is taken apart.
            current_stream: a CUstream, torch stream or raw handle; None is torch's current stream on the tensors' device. CPU tensors have no stream, and it is not looked at.
            descriptor_workspace: the published name of ``workspace``; at least ``get_grouped_gemm_wgrad_workspace_size`` bytes.
            workspace: uint8 scratch memory, see ``workspace_bytes``; None takes it from torch's allocator on the launch stream.

        Raises:
            RuntimeError: not compiled.
            ValueError: a tensor differs from what the object was compiled for, the tensors do not fit each other, an address is not a multiple of 16 bytes; scale factors.
        """
        scales = {"sfa_tensor": sfa_tensor, "sfb_tensor": sfb_tensor, "global_scale_a": global_scale_a, "global_scale_b": global_scale_b}
        forbid_scales("GroupedGemmWgrad.execute", scales)
        if descriptor_workspace is not None:
            if workspace is not None:
                raise ValueError("workspace and descriptor_workspace: found both, needs one; they are two names of the same thing")
            workspace = self._checked_workspace(descriptor_workspace, offsets_tensor)
            if self._bound is not None and any(self._copied):
                workspace = None
        if self.pointers:
            if (wgrad_ptrs is None) == (wgrad_tensor is None):
                raise ValueError("Discrete execution requires wgrad_ptrs, or a wgrad_tensor (E, m, n) to be taken apart, and not both")
            target = wgrad_ptrs if wgrad_tensor is None else self._addresses(wgrad_tensor, offsets_tensor)
        else:
            if wgrad_tensor is None or wgrad_ptrs is not None:
                raise ValueError("Dense execution requires wgrad_tensor, and no wgrad_ptrs: the object was compiled for weight gradients in one tensor")
            target = wgrad_tensor
        self._run((a_tensor, b_tensor, offsets_tensor, target), (0.0,), current_stream, workspace)

    def _checked_workspace(self, workspace: Any, offsets: Any) -> Any:
        size = get_grouped_gemm_wgrad_workspace_size(len(offsets), output_mode="discrete" if self.pointers else "dense")
        if not is_torch_tensor(workspace) or checks.required_dtype("descriptor_workspace", workspace.dtype) != "uint8" or not workspace.is_contiguous():
            raise ValueError("descriptor_workspace: needs a contiguous uint8 tensor")
        if workspace.numel() < size:
            raise ValueError(f"descriptor_workspace: found {workspace.numel()} bytes, needs {size}; see get_grouped_gemm_wgrad_workspace_size")
        return workspace

    def _addresses(self, wgrad: Any, offsets: Any) -> Any:
        """Addresses of the matrices of a compact tensor (E, m, n)."""
        import torch

        meta = metadata(wgrad)
        if len(meta.shape) != 3 or meta.dtype != self.wgrad_dtype or not wgrad.is_contiguous() or wgrad.data_ptr() % 16:
            raise ValueError(
                f"wgrad_tensor: found shape {meta.shape}, strides {meta.stride}, dtype {meta.dtype}, needs a contiguous 16-byte aligned (E, m, n) tensor of {self.wgrad_dtype}"
            )
        step = meta.shape[1] * meta.shape[2] * wgrad.element_size()
        return wgrad.data_ptr() + step * torch.arange(meta.shape[0], dtype=torch.int64, device=offsets.device)

    def _bind(self, key: Any, tensors: Tensors) -> Launch:
        if self.pointers and is_torch_tensor(tensors[0]) and is_torch_tensor(tensors[2]):
            a = metadata(tensors[0])
            check_pointers("wgrad_ptrs", tensors[3], tensors[2].numel(), a.device_type, a.device_index)
        return super()._bind(key, tensors)

    def _launch_for(self, extents: Extents, device_index: int | None) -> Launch:
        if extents.k == 0 and self._bound.selected == "sm90" and 0 not in (extents.m, extents.n):  # type: ignore[union-attr]
            if self.accumulate_on_output:
                return Launch(None, otherwise=_nothing)
            if self.pointers:
                return super()._launch_for(extents._replace(k=STEP_UNIT), device_index)._replace(extents=extents)
        return super()._launch_for(extents, device_index)

    def _shown(self, visitor: Any, key: Any, launch: Launch, tensors: Tensors, scalars: Scalars, stream: Any) -> Launch | None:
        if self.pointers:
            visitor.visit(self, key, lambda: None, "its outputs are given by address, so that no other memory can be tried out")
            return launch
        return super()._shown(visitor, key, launch, tensors, scalars, stream)

    def _validate(self, tensors: Tensors, extents: Extents) -> None:
        ends = self._validate_offsets("offsets_tensor", tensors[2], extents.k, "tokens")
        self._validate_blocks(ends)
        if self.pointers:
            validate_pointers("wgrad_ptrs", tensors[3])

    def _validate_blocks(self, ends: list[int]) -> None:
        """ValueError unless blocks begin at multiples of 16 bytes, where operands have such."""
        if self._bound.problem.step_blocks:  # type: ignore[union-attr]
            for group, end in enumerate(ends):
                if end % STEP_UNIT:
                    raise ValueError(
                        f'offsets_tensor: found {end} as the end of group {group} with input_order="tensor_ragged", needs a multiple of {STEP_UNIT}: each group is a matrix with lines of whole 16 bytes'
                    )

    def _reference(self, tensors: Tensors, scalars: Scalars) -> None:
        import torch

        a, b, offsets, target = tensors
        blocks = self._bound.problem.step_blocks  # type: ignore[union-attr]
        value = grouped_wgrad(a, b, offsets, step_blocks=blocks)
        dtype = torch_dtype(self.wgrad_dtype)
        if self.pointers:
            if not a.is_cuda:
                validate_pointers("wgrad_ptrs", target)
            shape = (value.shape[1], value.shape[2])
            targets = [tensor_at(address, shape, dtype, a.device) for address in target.tolist()]
        else:
            targets = list(target)
        starts = torch.cat((offsets.new_zeros(1), offsets[:-1]))
        for one, group, present in zip(targets, value, offsets > starts, strict=True):
            if self.accumulate_on_output:
                # Added to nothing, a negative zero would change its sign.
                one.copy_(torch.where(present, one + cast(group, dtype), one))
            else:
                one.copy_(cast(group, dtype))


def _nothing(tensors: Tensors, scalars: Scalars, stream: Any) -> None:
    """There are no tokens: nothing is added."""


def grouped_gemm_wgrad_wrapper(
    a_tensor: torch.Tensor,
    b_tensor: torch.Tensor,
    sfa_tensor: torch.Tensor | None = None,
    sfb_tensor: torch.Tensor | None = None,
    offsets_tensor: torch.Tensor | None = None,
    output_mode: str = "dense",
    wgrad_tensor: torch.Tensor | None = None,
    wgrad_ptrs: torch.Tensor | None = None,
    global_scale_a: torch.Tensor | None = None,
    global_scale_b: torch.Tensor | None = None,
    acc_dtype: Any = None,
    wgrad_dtype: Any = None,
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    sf_vec_size: int = SF_VEC_SIZE,
    sf_fp8_dtype_override: Any = None,
    accumulate_on_output: bool = False,
    input_order: Any = WGradInputOrder.Tensor2D,
    current_stream: Any = None,
    *,
    descriptor_workspace: torch.Tensor | None = None,
    backend: str = "auto",
    config: GemmConfig | Mapping[str, object] | None = None,
) -> TupleDict:
    """`GroupedGemmWgrad` in one call: allocates the weight gradients where none are given and keeps the compiled object for later calls of the same dtypes and layouts.

    Args:
        offsets_tensor: required in spite of its default.
        output_mode: ``"dense"``, or ``"discrete"`` with ``wgrad_ptrs``; a ``wgrad_tensor`` (E, m, n), and one that is allocated, is the same in both.
        wgrad_tensor: written, or added to; exactly (E, m, n), contiguous. With ``accumulate_on_output`` and none given the sums begin at zero.
        wgrad_dtype: dtype of what is allocated or pointed at, in any spelling; None is bfloat16, or that of ``wgrad_tensor``.
        current_stream: where to launch; None is torch's current stream on the tensors' device. With another stream than the current one the output is allocated there, and all tensors are recorded
            on both; the caller still waits for that stream before using them.
        descriptor_workspace: scratch memory of ``get_grouped_gemm_wgrad_workspace_size`` bytes; None takes it from torch's allocator. What is copied goes elsewhere.

    The other arguments, and the tensors' dtypes and layouts: see `GroupedGemmWgrad`.

    Returns:
        TupleDict with ``wgrad_tensor`` (E, m, n), None with ``wgrad_ptrs``. Not differentiable. Under torch.compile this is the operator ``cudnn::grouped_gemm_wgrad``.

    Raises:
        As ``GroupedGemmWgrad.check_support``, before anything is allocated.
    """
    scales = {
        "sfa_tensor": sfa_tensor,
        "sfb_tensor": sfb_tensor,
        "global_scale_a": global_scale_a,
        "global_scale_b": global_scale_b,
        "sf_vec_size": sf_vec_size if sf_vec_size != SF_VEC_SIZE else None,
        "sf_fp8_dtype_override": sf_fp8_dtype_override,
    }
    forbid_scales("grouped_gemm_wgrad_wrapper", scales)
    tensors = {"a_tensor": a_tensor, "b_tensor": b_tensor, "offsets_tensor": offsets_tensor, "wgrad_tensor": wgrad_tensor, "wgrad_ptrs": wgrad_ptrs}
    options = {
        "output_mode": output_mode,
        "acc_dtype": acc_dtype,
        "wgrad_dtype": wgrad_dtype,
        "mma_tiler_mn": mma_tiler_mn,
        "cluster_shape_mn": cluster_shape_mn,
        "accumulate_on_output": accumulate_on_output,
        "input_order": _input_order(input_order).value,
        "backend": backend,
        "config": config,
    }
    extra = {} if descriptor_workspace is None else {"descriptor_workspace": descriptor_workspace}
    made = CALLS(tensors, extra, options, current_stream)
    return TupleDict(wgrad_tensor=made.get("wgrad_tensor", wgrad_tensor))


def _outputs(tensors: Arguments, options: Arguments) -> dict[str, Output]:
    a, b = tensors["a_tensor"], tensors.get("b_tensor")
    for name, t, axes in (("a_tensor", a, "(m, T)"), ("b_tensor", b, "(T, n)")):
        if len(getattr(t, "shape", ())) != 2:
            raise ValueError(f"{name}: found shape {tuple(getattr(t, 'shape', ()))}, needs {axes}")
    if tensors.get("offsets_tensor") is None:
        raise ValueError("offsets_tensor is required, found None")
    _check_output_mode(options["output_mode"])
    pointers, wgrad = tensors.get("wgrad_ptrs"), tensors.get("wgrad_tensor")
    if pointers is not None and options["output_mode"] == "dense":
        raise ValueError('wgrad_ptrs: found some with output_mode="dense", needs output_mode="discrete"')
    if pointers is not None and wgrad is not None:
        raise ValueError("wgrad_tensor and wgrad_ptrs: found both, needs one")
    if wgrad is not None:
        wanted = options["wgrad_dtype"]
        if wanted is not None and checks.required_dtype("wgrad_dtype", wanted) != checks.required_dtype("wgrad_tensor", wgrad.dtype):
            raise ValueError(f"wgrad_tensor: found dtype {wgrad.dtype}, needs wgrad_dtype {wanted}")
        return {}
    if pointers is not None:
        return {}
    m, n = a.shape[0], b.shape[1]
    dtype = torch_dtype(checks.required_dtype("wgrad_dtype", "bfloat16" if options["wgrad_dtype"] is None else options["wgrad_dtype"]))
    fill = 0.0 if options["accumulate_on_output"] else None
    return {"wgrad_tensor": Output((tensors["offsets_tensor"].shape[0], m, n), (m * n, n, 1), dtype, fill)}


def _build(tensors: Arguments, outputs: Arguments, options: Arguments) -> GroupedGemmWgrad:
    a, b, offsets = (tensors[name] for name in ("a_tensor", "b_tensor", "offsets_tensor"))
    by_pointers: dict[str, Any] = {}
    if tensors.get("wgrad_ptrs") is not None:
        device, experts = metadata(a), metadata(offsets).shape[0]
        check_pointers("wgrad_ptrs", tensors["wgrad_ptrs"], experts, device.device_type, device.device_index)
        dtype = "bfloat16" if options["wgrad_dtype"] is None else options["wgrad_dtype"]
        by_pointers = {"num_experts": experts, "wgrad_shape": (a.shape[0], b.shape[1]), "wgrad_dtype": dtype}
    return GroupedGemmWgrad(
        a,
        b,
        None,
        None,
        offsets,
        outputs.get("wgrad_tensor", tensors.get("wgrad_tensor")),
        **by_pointers,
        **{name: options[name] for name in ("acc_dtype", "mma_tiler_mn", "cluster_shape_mn", "accumulate_on_output", "input_order", "backend", "config")},
    )


def _operator() -> Any:
    from cudnn_gemm_grouped.wgrad import torch_ops

    return torch_ops.grouped_gemm_wgrad


# Addresses count as written: what lies behind them is, and torch.compile would drop a call that writes nothing.
_WRITTEN = ("wgrad_tensor", "wgrad_ptrs")

CALLS = GroupedCalls(
    "grouped_gemm_wgrad", GroupedGemmWgrad, _outputs, _build, _operator, written=_WRITTEN, class_written=_WRITTEN, wrapper=grouped_gemm_wgrad_wrapper
)

# The published names.
GroupedGemmWgradSm100 = GroupedGemmWgrad
grouped_gemm_wgrad_wrapper_sm100 = grouped_gemm_wgrad_wrapper
get_grouped_gemm_wgrad_workspace_size_sm100 = get_grouped_gemm_wgrad_workspace_size
for _flag in ("supports_canonical_layouts", "supports_bf16_canonical_layouts"):
    setattr(grouped_gemm_wgrad_wrapper, _flag, True)


def precompile_specs() -> list[KernelSpec]:
    """The kernels worth having before the first call: activations and gradients as they are, into gradients of their dtype or float32, written or added to, those in float32 by pointers too; and bfloat16 in blocks of tokens."""
    cases = []
    for dtype in OPERAND_DTYPES:
        problem = GemmProblem(dtype, dtype, a_major="m", b_major="n", grouping="steps")
        cases += [(problem, WgradOptions("float32" if wide else dtype, adds)) for wide, adds in product((False, True), (False, True))]
        cases += [(problem, WgradOptions("float32", adds, pointers=True)) for adds in (False, True)]
    blocks = GemmProblem("bfloat16", "bfloat16", a_major="k", b_major="k", grouping="steps", step_blocks=True)
    cases.append((blocks, WgradOptions("bfloat16")))
    return [kernel_spec("grouped_gemm_wgrad", problem, options, config) for problem, options in cases for config in default_configs(problem, options.footprint)]
