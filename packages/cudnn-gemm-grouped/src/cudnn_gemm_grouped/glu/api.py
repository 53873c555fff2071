"""Grouped GEMM + gated activation: the class `GroupedGemmGlu` and the wrapper `grouped_gemm_glu_wrapper`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.gemm_operation import Scalars
from cudnn.grouped.calls import GroupedCalls
from cudnn.grouped.checks import OPERAND_DTYPES, check_hints, check_options, forbid_scales, weights_given
from cudnn.grouped.configs import default_configs
from cudnn.grouped.options import B_PARTS, GluOptions, kernel_spec
from cudnn.grouped.outputs import by_pointers, check_a, check_cd_major, rows_output, weight_rows
from cudnn.grouped.rows import GluRows, glu_scalars
from cudnn.tuple_dict import TupleDict
from cudnn.wrapper_calls import Arguments, Output

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from cudnn.cutedsl.compile import KernelSpec

    Weights: TypeAlias = torch.Tensor | Sequence[torch.Tensor]

__all__ = ["GroupedGemmGlu", "GroupedGemmGluSm100", "grouped_gemm_glu_wrapper", "grouped_gemm_glu_wrapper_sm100", "precompile_specs"]

TILE_N = (64, 128, 192, 256)
# Values of arguments that belong to block-scaled operands; anything else than these is refused with 16-bit ones.
SF_VEC_SIZE, GEGLU_ALPHA, CLAMP_MAX, CLAMP_MIN = 16, 1.702, 7.0, -7.0


class GroupedGemmGlu(GluRows):
    """C = alpha[e] * A[m] · B[e][n] + bias[n, e] for the rows m of each group e, and D = prob[m] * act(g, u) of C's halves gate g and up u, taken before C is rounded.

    ``act_func`` is ``"swiglu"``: u g sigmoid(g), or ``"geglu"``, the form of the gpt-oss models: (u' + linear_offset) g' sigmoid(1.702 g') with g' = min(g, 7) and u' = max(min(u, 7), -7).

    gate and up are the halves of N that ``glu_layout`` names:

    - ``"interleaved32"`` (the default, the published layout): blocks of 32 columns in turn, gate first. D[:, 32 b + j] joins gate C[:, 64 b + j] and up C[:, 64 b + 32 + j]. N is a multiple of 64.
    - ``"concatenated"``: B's rows, and so C's columns and the bias, are [gate | up].
    - ``"separate"``: ``b_tensor`` (or ``b_ptrs``) is the pair (gate, up), each (E, N/2, K); C and the bias are [gate | up].
    - ``"alternating"``: B's rows, and so C's columns and the bias, take turns, gate first: D[:, i] joins gate C[:, 2 i] and up C[:, 2 i + 1], as gpt-oss models have it.

    Groups, forms of tensors and run-time values are those of `GroupedGemm`; B is contiguous along K, but for pointers with ``b_major="n"``. D is (M, N/2), C (M, N), bias (N, E) with strides (1, N).
    N/2 is a multiple of 8 in the other layouts.

    Args:
        sample_a, sample_c, sample_d, sample_padded_offsets, sample_alpha, sample_b, sample_bias, sample_prob: tensors or ``TensorDesc``; only their metadata is read. ``sample_c`` is None unless
            ``generate_c``; ``sample_b`` is None for weights by pointers.
        num_experts, b_shape, b_dtype: E, (N, K) and the dtype of weights by pointers; None otherwise.
        acc_dtype: float32 (None).
        mma_tiler_mn, cluster_shape_mn, vector_f32, use_dynamic_sched: hints; the first two are checked against the published values. Results do not depend on them.
        m_aligned: the published 256; groups need not keep it.
        act_func: ``"swiglu"`` or ``"geglu"``.
        b_major: ``"k"`` or ``"n"``; looked at for weights by pointers.
        generate_c: whether C is stored.
        sample_sfa, sample_sfb, sample_d_col, sample_sfd_row, sample_sfd_col, sample_amax, sample_norm_const, sf_vec_size, sf_fp8_dtype_override, discrete_col_sfd, situ_beta1,
            use_single_group_runtime_offsets, sample_scheduler_counter: belong to block-scaled operands; left out with 16-bit ones.
        glu_layout: where gate and up lie.
        backend: ``"auto"`` (kernel for CUDA tensors, reference for CPU tensors), ``"sm90"`` or ``"reference"``.
        config: a ``GemmConfig`` or a dict of its fields: build and run this one instead of the default set.
    """

    op = "grouped_gemm_glu"

    def __init__(
        self,
        sample_a: Any,
        sample_c: Any,
        sample_d: Any,
        sample_sfa: Any,
        sample_padded_offsets: Any,
        sample_alpha: Any,
        sample_d_col: Any = None,
        sample_b: Any = None,
        sample_sfb: Any = None,
        sample_bias: Any = None,
        num_experts: int | None = None,
        b_shape: tuple[int, ...] | None = None,
        b_dtype: Any = None,
        sample_sfd_row: Any = None,
        sample_sfd_col: Any = None,
        sample_amax: Any = None,
        sample_norm_const: Any = None,
        sample_prob: Any = None,
        acc_dtype: Any = None,
        mma_tiler_mn: tuple[int, int] = (256, 256),
        cluster_shape_mn: tuple[int, int] | None = None,
        sf_vec_size: int = SF_VEC_SIZE,
        sf_fp8_dtype_override: Any = None,
        vector_f32: bool = False,
        m_aligned: int = 256,
        discrete_col_sfd: bool = False,
        act_func: str = "swiglu",
        situ_beta1: float = 4.0,
        b_major: str = "k",
        use_dynamic_sched: bool = False,
        use_single_group_runtime_offsets: bool = False,
        generate_c: bool = False,
        *,
        sample_scheduler_counter: Any = None,
        glu_layout: str = "interleaved32",
        backend: str = "auto",
        config: GemmConfig | Mapping[str, object] | None = None,
    ) -> None:
        forbid_scales(
            "GroupedGemmGlu",
            {
                "sample_sfa": sample_sfa,
                "sample_sfb": sample_sfb,
                "sample_d_col": sample_d_col,
                "sample_sfd_row": sample_sfd_row,
                "sample_sfd_col": sample_sfd_col,
                "sample_amax": sample_amax,
                "sample_norm_const": sample_norm_const,
                "sf_vec_size": sf_vec_size if sf_vec_size != SF_VEC_SIZE else None,
                "sf_fp8_dtype_override": sf_fp8_dtype_override,
                "discrete_col_sfd": discrete_col_sfd,
                "use_single_group_runtime_offsets": use_single_group_runtime_offsets,
                "sample_scheduler_counter": sample_scheduler_counter,
            },
        )
        check_options(acc_dtype, m_aligned, b_major)
        check_hints(mma_tiler_mn, cluster_shape_mn, tile_n=TILE_N)
        if sample_prob is None:
            raise ValueError("prob_tensor is required, found None; pass ones where rows have no factor")
        if generate_c == (sample_c is None):
            raise ValueError(
                f"sample_c: found {'None' if sample_c is None else 'one'} with generate_c={generate_c}, needs {'one' if sample_c is None else 'None'}"
            )
        super().__init__(
            sample_a,
            sample_b,
            sample_c,
            sample_d,
            sample_padded_offsets,
            sample_alpha,
            sample_prob,
            sample_bias,
            num_experts=num_experts,
            b_shape=b_shape,
            b_dtype=b_dtype,
            b_major=b_major,
            activation=act_func,
            glu_layout=glu_layout,
            backend=backend,
            config=config,
        )
        self.generate_c = bool(generate_c)
        self._arguments = {
            "sample_sfa": None,
            "num_experts": num_experts,
            "b_shape": b_shape,
            "b_dtype": b_dtype,
            "mma_tiler_mn": mma_tiler_mn,
            "cluster_shape_mn": cluster_shape_mn,
            "act_func": act_func,
            "b_major": b_major,
            "generate_c": self.generate_c,
            "glu_layout": glu_layout,
            "backend": backend,
            "config": self.config,
        }

    def _constructor_arguments(self) -> dict[str, Any]:
        return {**self._arguments, **({} if self.generate_c else {"sample_c": None})}

    def _kernel_scalars(self, scalars: Mapping[str, Any]) -> Scalars:
        return glu_scalars(scalars["linear_offset"], "geglu") if self.activation == "geglu" else (0.0,)

    def _calls(self) -> GroupedCalls:
        return CALLS

    def execute(
        self,
        a_tensor: Any,
        c_tensor: Any = None,
        d_tensor: Any = None,
        sfa_tensor: Any = None,
        padded_offsets: Any = None,
        alpha_tensor: Any = None,
        b_tensor: Any = None,
        sfb_tensor: Any = None,
        bias_tensor: Any = None,
        b_ptrs: Any = None,
        sfb_ptrs: Any = None,
        d_col_tensor: Any = None,
        sfd_row_tensor: Any = None,
        sfd_col_tensor: Any = None,
        amax_tensor: Any = None,
        norm_const_tensor: Any = None,
        prob_tensor: Any = None,
        linear_offset: float | None = None,
        geglu_alpha: float = GEGLU_ALPHA,
        glu_clamp_max: float = CLAMP_MAX,
        glu_clamp_min: float = CLAMP_MIN,
        situ_beta1: float = 4.0,
        situ_beta2: float = 25.0,
        current_stream: Any = None,
        *,
        scheduler_counter_tensor: Any = None,
        workspace: Any = None,
    ) -> None:
        """Write D, and C where the samples had one. On CUDA tensors this launches one kernel (two with weights by pointers) and returns without waiting.

        Args:
            a_tensor, c_tensor, d_tensor, padded_offsets, alpha_tensor, b_tensor, bias_tensor, b_ptrs, prob_tensor: as the samples in dtype, layout, presence and kind of device; extents are free.
                The memory behind ``b_ptrs`` must stay until the kernel has run.
            linear_offset: of geglu; None is 1. A run-time value, not looked at by swiglu.
            geglu_alpha, glu_clamp_max, glu_clamp_min: 1.702, 7 and -7 with 16-bit operands.
            current_stream: a CUstream, torch stream or raw handle; None is torch's current stream on the tensors' device. CPU tensors have no stream, and it is not looked at.
            workspace: uint8 scratch memory, see ``workspace_bytes`` (128 bytes for each expert and weight tensor with weights by pointers, else none); None takes it from torch's allocator on the
                launch stream.

        Raises:
            RuntimeError: not compiled.
            ValueError: a tensor differs from what the object was compiled for, the tensors do not fit each other, an address is not a multiple of 16 bytes; scale factors and what goes with them.
        """
        scales = (sfa_tensor, sfb_tensor, sfb_ptrs, d_col_tensor, sfd_row_tensor, sfd_col_tensor, amax_tensor, norm_const_tensor, scheduler_counter_tensor)
        if scales != _NO_SCALES or (geglu_alpha, glu_clamp_max, glu_clamp_min) != (GEGLU_ALPHA, CLAMP_MAX, CLAMP_MIN):
            names = (
                "sfa_tensor",
                "sfb_tensor",
                "sfb_ptrs",
                "d_col_tensor",
                "sfd_row_tensor",
                "sfd_col_tensor",
                "amax_tensor",
                "norm_const_tensor",
                "scheduler_counter_tensor",
            )
            forbid_scales("GroupedGemmGlu.execute", {**dict(zip(names, scales, strict=True)), **_changed_scalars(geglu_alpha, glu_clamp_max, glu_clamp_min)})
        self._execute(
            a_tensor,
            self._given_weights(b_tensor, b_ptrs),
            padded_offsets,
            c_tensor,
            d_tensor,
            alpha_tensor,
            prob_tensor,
            bias_tensor,
            _USUAL[self.activation] if linear_offset is None else glu_scalars(linear_offset, self.activation),
            current_stream,
            workspace,
        )


_NO_SCALES = (None,) * 9
_USUAL = {activation: glu_scalars(None, activation) for activation in ("swiglu", "geglu")}


def _changed_scalars(alpha: Any, high: Any, low: Any) -> dict[str, Any]:
    """Those of geglu's constants that are not the published ones."""
    if (alpha, high, low) == (GEGLU_ALPHA, CLAMP_MAX, CLAMP_MIN):
        return {}
    given = {"geglu_alpha": (alpha, GEGLU_ALPHA), "glu_clamp_max": (high, CLAMP_MAX), "glu_clamp_min": (low, CLAMP_MIN)}
    return {name: value for name, (value, usual) in given.items() if value != usual}


def grouped_gemm_glu_wrapper(
    a_tensor: torch.Tensor,
    sfa_tensor: torch.Tensor | None = None,
    padded_offsets: torch.Tensor | None = None,
    alpha_tensor: torch.Tensor | None = None,
    b_tensor: Weights | None = None,
    sfb_tensor: torch.Tensor | None = None,
    bias_tensor: torch.Tensor | None = None,
    b_ptrs: Weights | None = None,
    sfb_ptrs: torch.Tensor | None = None,
    n: int | None = None,
    b_dtype: Any = None,
    b_major: str = "k",
    norm_const_tensor: torch.Tensor | None = None,
    prob_tensor: torch.Tensor | None = None,
    acc_dtype: Any = None,
    c_dtype: Any = None,
    d_dtype: Any = None,
    cd_major: str = "n",
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    sf_vec_size: int = SF_VEC_SIZE,
    vector_f32: bool = False,
    m_aligned: int = 256,
    discrete_col_sfd: bool = False,
    act_func: str = "swiglu",
    linear_offset: float | None = None,
    geglu_alpha: float = GEGLU_ALPHA,
    glu_clamp_max: float = CLAMP_MAX,
    glu_clamp_min: float = CLAMP_MIN,
    situ_beta1: float = 4.0,
    situ_beta2: float = 25.0,
    use_dynamic_sched: bool = False,
    use_single_group_runtime_offsets: bool = False,
    current_stream: Any = None,
    generate_c: bool = False,
    sf_fp8_dtype_override: Any = None,
    *,
    scheduler_counter_tensor: torch.Tensor | None = None,
    glu_layout: str = "interleaved32",
    backend: str = "auto",
    config: GemmConfig | Mapping[str, object] | None = None,
) -> TupleDict:
    """`GroupedGemmGlu` in one call: allocates the outputs and keeps the compiled object for later calls of the same dtypes and layouts.

    Args:
        padded_offsets, alpha_tensor, prob_tensor: required in spite of their defaults.
        n, b_dtype: N (gate and up together) and the dtype of weights by pointers; None otherwise.
        c_dtype, d_dtype: dtypes of the outputs in any spelling; None is bfloat16.
        cd_major: "n".
        linear_offset: of geglu; None is 1. A run-time value.
        current_stream: where to launch; None is torch's current stream on the tensors' device. With another stream than the current one the outputs are allocated there, and all tensors are
            recorded on both; the caller still waits for that stream before using them.
        generate_c: whether C is computed too.

    The other arguments, and the tensors' dtypes and layouts: see `GroupedGemmGlu`.

    Returns:
        TupleDict with ``c_tensor`` (M, N), None unless ``generate_c``; ``d_tensor`` (M, N/2); ``d_col_tensor``, ``amax_tensor``, ``sfd_row_tensor`` and ``sfd_col_tensor``, None with 16-bit operands.
        Tensors have a third axis where A has. Rows from the last end on hold anything. Not differentiable. Under torch.compile this is the operator ``cudnn::grouped_gemm_glu``.

    Raises:
        As ``GroupedGemmGlu.check_support``, before anything is allocated.
    """
    tensors = {
        "a_tensor": a_tensor,
        "padded_offsets": padded_offsets,
        "alpha_tensor": alpha_tensor,
        "b_tensor": b_tensor,
        "bias_tensor": bias_tensor,
        "b_ptrs": b_ptrs,
        "prob_tensor": prob_tensor,
    }
    options = {
        "n": n,
        "b_dtype": b_dtype,
        "b_major": b_major,
        "acc_dtype": acc_dtype,
        "c_dtype": c_dtype,
        "d_dtype": d_dtype,
        "cd_major": cd_major,
        "mma_tiler_mn": mma_tiler_mn,
        "cluster_shape_mn": cluster_shape_mn,
        "m_aligned": m_aligned,
        "act_func": act_func,
        "generate_c": generate_c,
        "glu_layout": glu_layout,
        "backend": backend,
        "config": config,
    }
    scales = {
        "sfa_tensor": sfa_tensor,
        "sfb_tensor": sfb_tensor,
        "sfb_ptrs": sfb_ptrs,
        "norm_const_tensor": norm_const_tensor,
        "sf_vec_size": sf_vec_size if sf_vec_size != SF_VEC_SIZE else None,
        "discrete_col_sfd": discrete_col_sfd,
        "use_single_group_runtime_offsets": use_single_group_runtime_offsets,
        "sf_fp8_dtype_override": sf_fp8_dtype_override,
        "scheduler_counter_tensor": scheduler_counter_tensor,
        **_changed_scalars(geglu_alpha, glu_clamp_max, glu_clamp_min),
    }
    forbid_scales("grouped_gemm_glu_wrapper", scales)
    scalars = {"linear_offset": glu_scalars(linear_offset, act_func).linear_offset}
    made = CALLS(tensors, scalars, options, current_stream)
    return TupleDict(c_tensor=made.get("c_tensor"), d_tensor=made["d_tensor"], d_col_tensor=None, amax_tensor=None, sfd_row_tensor=None, sfd_col_tensor=None)


def _outputs(tensors: Arguments, options: Arguments) -> dict[str, Output]:
    a = tensors["a_tensor"]
    check_a(a)
    check_cd_major(options["cd_major"])
    weights_given(tensors.get("b_tensor"), tensors.get("b_ptrs"), options["n"], options["b_dtype"])
    for name in ("padded_offsets", "alpha_tensor", "prob_tensor"):
        if tensors.get(name) is None:
            raise ValueError(f"{name} is required, found None")
    n = weight_rows(a, tensors.get("b_tensor"), options["n"], n_major=False)
    made = {"c_tensor": rows_output(a, n, options["c_dtype"], "c_dtype")} if options["generate_c"] else {}
    made["d_tensor"] = rows_output(a, n // 2, options["d_dtype"], "d_dtype")
    return made


def _build(tensors: Arguments, outputs: Arguments, options: Arguments) -> GroupedGemmGlu:
    return GroupedGemmGlu(
        tensors["a_tensor"],
        outputs.get("c_tensor"),
        outputs["d_tensor"],
        None,
        tensors["padded_offsets"],
        tensors["alpha_tensor"],
        sample_b=tensors.get("b_tensor"),
        sample_bias=tensors.get("bias_tensor"),
        sample_prob=tensors["prob_tensor"],
        **by_pointers(tensors, options["n"], options["b_dtype"]),
        **{
            name: options[name]
            for name in ("acc_dtype", "mma_tiler_mn", "cluster_shape_mn", "m_aligned", "act_func", "b_major", "generate_c", "glu_layout", "backend", "config")
        },
    )


def _operator() -> Any:
    from cudnn_gemm_grouped.glu import torch_ops

    return torch_ops.grouped_gemm_glu


CALLS = GroupedCalls(
    "grouped_gemm_glu",
    GroupedGemmGlu,
    _outputs,
    _build,
    _operator,
    scalars=("linear_offset",),
    class_written=("c_tensor", "d_tensor"),
    wrapper=grouped_gemm_glu_wrapper,
)

# The published names.
GroupedGemmGluSm100 = GroupedGemmGlu
grouped_gemm_glu_wrapper_sm100 = grouped_gemm_glu_wrapper
for _flag in ("supports_canonical_layouts", "supports_bf16_canonical_layouts", "supports_external_scheduler_counter"):
    setattr(grouped_gemm_glu_wrapper, _flag, True)


def precompile_specs() -> list[KernelSpec]:
    """The kernels worth having before the first call: every layout of gate and up, for inference and for training; the published form; and weights by pointers."""
    found = []
    for dtype, (layout, pointers, unit_axes), keeps_c in product(
        OPERAND_DTYPES,
        (
            ("interleaved32", False, False),
            ("concatenated", False, False),
            ("separate", False, False),
            ("interleaved32", True, False),
            ("interleaved32", False, True),
            ("interleaved32", True, True),
        ),
        (False, True),
    ):
        problem = GemmProblem(dtype, dtype, b_parts=B_PARTS[layout], grouping="rows", b_pointers=pointers, unit_axes=unit_axes)
        options = GluOptions(dtype, dtype if keeps_c else None, glu_layout=layout)
        found += [kernel_spec("grouped_gemm_glu", problem, options, config) for config in default_configs(problem, options.footprint)]
    return found
