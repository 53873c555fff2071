"""Grouped GEMM + gated activation with weights by pointers: `DiscreteGroupedGemmSwiglu` and `discrete_grouped_gemm_swiglu_wrapper`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.grouped.calls import GroupedCalls
from cudnn.grouped.checks import OPERAND_DTYPES
from cudnn.grouped.configs import default_configs
from cudnn.grouped.options import B_PARTS, GluOptions, kernel_spec
from cudnn.grouped.outputs import by_pointers, check_cd_major, rows_output, weight_rows
from cudnn.grouped.rows import GluRows, glu_scalars
from cudnn.tuple_dict import TupleDict
from cudnn.wrapper_calls import Arguments, Output
from cudnn_gemm_discrete.checks import GLU, check_discrete, no_scales

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from cudnn.cutedsl.compile import KernelSpec

    Pointers: TypeAlias = torch.Tensor | Sequence[torch.Tensor]

__all__ = [
    "DiscreteGroupedGemmSwiglu",
    "DiscreteGroupedGemmSwigluSm100",
    "discrete_grouped_gemm_swiglu_wrapper",
    "discrete_grouped_gemm_swiglu_wrapper_sm100",
    "precompile_specs",
]

BIAS_DTYPES = ("bfloat16", "float16")


class DiscreteGroupedGemmSwiglu(GluRows):
    """C = alpha[e] * A[m] · B[e][j] + bias[j, e] for the rows m of each group e, and D = prob[m] * act(g, u) of C's halves gate g and up u, taken before C is rounded. The weights of each expert lie anywhere.

    ``act_func`` is ``"swiglu"``: u g sigmoid(g), or ``"geglu"``: (u' + linear_offset) g' sigmoid(a g') with g' = min(g, high) and u' = max(min(u, high), low). gate and up are the halves of n that
    ``glu_layout`` names: ``"interleaved32"`` (the published layout: blocks of 32 in turn, gate first; n is a multiple of 64), ``"concatenated"`` ([gate | up]), ``"separate"`` (``b_ptrs`` is the pair of the
    gates' and the ups' addresses; C and the bias are [gate | up]), or ``"alternating"`` (row by row in turn, gate first).

    Group e has the rows from ``padded_offsets[e - 1]`` (0 for the first) up to ``padded_offsets[e]``, of any number. Rows from the last end on are neither read nor written.

    ==============  ============  ==============================  ===========================================================
    name            shape         strides                         dtypes
    ==============  ============  ==============================  ===========================================================
    a_tensor        (M, K, 1)     (K, 1, M K)                     bfloat16, float16
    b_ptrs          (E,)          (1,)                            int64: addresses of matrices (n, k), or with "n" (k, n)
    padded_offsets  (E,)          (1,)                            int32
    alpha_tensor    (E,)          (1,)                            float32
    prob_tensor     (M, 1, 1)                                     float32; optional, ones without it
    bias_tensor     (n, E)        (1, n)                          bfloat16, float16; optional
    c_tensor        (M, n, 1)     (n, 1, M n)                     bfloat16, float16, float32
    d_tensor        (M, n/2, 1)   (n/2, 1, M n/2)                 bfloat16, float16, float32
    ==============  ============  ==============================  ===========================================================

    Contiguous extents and addresses are multiples of 16 bytes. Extents, offsets, addresses, factors and the scalars of geglu are run-time values. A small kernel writes a tensor map for each expert first, into a
    workspace of 128 bytes for each (256 for two halves).

    Args:
        sample_a, sample_c, sample_d, sample_padded_offsets, sample_alpha, sample_bias, sample_prob: tensors or ``TensorDesc``; only their metadata is read.
        num_experts, b_shape, b_dtype: E, (n, k) or (n, k, 1), and the weights' dtype, A's.
        acc_dtype: float32 (None).
        mma_tiler_mn, cluster_shape_mn, vector_f32, use_dynamic_sched: hints; the first two are checked against the published values. Results do not depend on them.
        m_aligned: the published 256; groups need not keep it.
        act_func: ``"swiglu"`` or ``"geglu"``.
        b_major: which axis of the weights is contiguous, ``"k"`` or ``"n"``.
        sample_sfa, sample_d_col, sample_sfd_row, sample_sfd_col, sample_amax, sample_norm_const, discrete_col_sfd: belong to block-scaled operands; None or False with 16-bit ones, where ``sf_vec_size`` is not
            looked at.
        glu_layout: where gate and up lie.
        backend: ``"auto"`` (kernel for CUDA tensors, reference for CPU tensors, whose pointers are addresses of the host), ``"sm90"`` or ``"reference"``.
        config: a ``GemmConfig`` or a dict of its fields: build and run this one instead of the default set.
    """

    op = "discrete_grouped_gemm_swiglu"

    def __init__(
        self,
        sample_a: Any,
        num_experts: int,
        b_shape: tuple[int, ...],
        b_dtype: Any,
        sample_c: Any,
        sample_d: Any,
        sample_sfa: Any,
        sample_padded_offsets: Any,
        sample_alpha: Any,
        sample_d_col: Any = None,
        sample_bias: Any = None,
        sample_sfd_row: Any = None,
        sample_sfd_col: Any = None,
        sample_amax: Any = None,
        sample_norm_const: Any = None,
        sample_prob: Any = None,
        acc_dtype: Any = None,
        mma_tiler_mn: tuple[int, int] = (256, 256),
        cluster_shape_mn: tuple[int, int] | None = None,
        sf_vec_size: int = 16,
        vector_f32: bool = False,
        m_aligned: int = 256,
        discrete_col_sfd: bool = False,
        act_func: str = "swiglu",
        b_major: str = "k",
        use_dynamic_sched: bool = False,
        *,
        glu_layout: str = "interleaved32",
        backend: str = "auto",
        config: GemmConfig | Mapping[str, object] | None = None,
    ) -> None:
        scales = {
            "sample_sfa": sample_sfa,
            "sample_d_col": sample_d_col,
            "sample_sfd_row": sample_sfd_row,
            "sample_sfd_col": sample_sfd_col,
            "sample_amax": sample_amax,
            "sample_norm_const": sample_norm_const,
            "discrete_col_sfd": discrete_col_sfd,
        }
        no_scales("DiscreteGroupedGemmSwiglu", sample_a, scales)
        check_discrete(
            self.op,
            sample_a,
            num_experts,
            sample_padded_offsets,
            acc_dtype=acc_dtype,
            m_aligned=m_aligned,
            b_major=b_major,
            tile=mma_tiler_mn,
            cluster=cluster_shape_mn,
        )
        if sample_c is None:
            raise ValueError("c_tensor is required, found None")
        super().__init__(
            sample_a,
            None,
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
            bias_dtypes=BIAS_DTYPES,
        )
        self._arguments = {
            "sample_sfa": None,
            "num_experts": num_experts,
            "b_shape": b_shape,
            "b_dtype": b_dtype,
            "mma_tiler_mn": mma_tiler_mn,
            "cluster_shape_mn": cluster_shape_mn,
            "act_func": act_func,
            "b_major": b_major,
            "glu_layout": glu_layout,
            "backend": backend,
            "config": self.config,
        }

    def _constructor_arguments(self) -> dict[str, Any]:
        return self._arguments

    def _calls(self) -> GroupedCalls:
        return CALLS

    def execute(
        self,
        a_tensor: Any,
        b_ptrs: Any = None,
        c_tensor: Any = None,
        d_tensor: Any = None,
        sfa_tensor: Any = None,
        sfb_ptrs: Any = None,
        padded_offsets: Any = None,
        alpha_tensor: Any = None,
        bias_tensor: Any = None,
        d_col_tensor: Any = None,
        sfd_row_tensor: Any = None,
        sfd_col_tensor: Any = None,
        amax_tensor: Any = None,
        norm_const_tensor: Any = None,
        prob_tensor: Any = None,
        linear_offset: float | None = None,
        geglu_alpha: float = GLU["geglu_alpha"],
        glu_clamp_max: float = GLU["glu_clamp_max"],
        glu_clamp_min: float = GLU["glu_clamp_min"],
        current_stream: Any = None,
        *,
        workspace: Any = None,
    ) -> None:
        """Write C and D. On CUDA tensors this launches two kernels and returns without waiting.

        Args:
            a_tensor, b_ptrs, c_tensor, d_tensor, padded_offsets, alpha_tensor, bias_tensor, prob_tensor: as the samples in dtype, layout, presence and kind of device; extents are free. The memory behind
                ``b_ptrs`` must stay until the kernel has run.
            linear_offset, geglu_alpha, glu_clamp_max, glu_clamp_min: offset (None is 1), a, high and low of geglu; not looked at by swiglu.
            current_stream: a CUstream, torch stream or raw handle; None is torch's current stream on the tensors' device. CPU tensors have no stream, and it is not looked at.
            workspace: uint8 scratch memory, see ``workspace_bytes``; None takes it from torch's allocator on the launch stream.

        Raises:
            RuntimeError: not compiled.
            ValueError: a tensor differs from what the object was compiled for, the tensors do not fit each other, an address is not a multiple of 16 bytes; scale factors.
        """
        scales = {
            "sfa_tensor": sfa_tensor,
            "sfb_ptrs": sfb_ptrs,
            "d_col_tensor": d_col_tensor,
            "sfd_row_tensor": sfd_row_tensor,
            "sfd_col_tensor": sfd_col_tensor,
            "amax_tensor": amax_tensor,
            "norm_const_tensor": norm_const_tensor,
        }
        no_scales("DiscreteGroupedGemmSwiglu.execute", None, scales)
        self._execute(
            a_tensor,
            self._given_weights(None, b_ptrs),
            padded_offsets,
            c_tensor,
            d_tensor,
            alpha_tensor,
            prob_tensor,
            bias_tensor,
            glu_scalars(linear_offset, self.activation, geglu_alpha, glu_clamp_max, glu_clamp_min),
            current_stream,
            workspace,
        )


def discrete_grouped_gemm_swiglu_wrapper(
    a_tensor: torch.Tensor,
    b_ptrs: Pointers,
    sfa_tensor: torch.Tensor | None,
    sfb_ptrs: torch.Tensor | None,
    padded_offsets: torch.Tensor,
    alpha_tensor: torch.Tensor,
    n: int,
    b_dtype: Any,
    bias_tensor: torch.Tensor | None = None,
    norm_const_tensor: torch.Tensor | None = None,
    prob_tensor: torch.Tensor | None = None,
    acc_dtype: Any = None,
    c_dtype: Any = None,
    d_dtype: Any = None,
    cd_major: str = "n",
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    sf_vec_size: int = 16,
    vector_f32: bool = False,
    m_aligned: int = 256,
    discrete_col_sfd: bool = False,
    act_func: str = "swiglu",
    b_major: str = "k",
    linear_offset: float | None = None,
    geglu_alpha: float = GLU["geglu_alpha"],
    glu_clamp_max: float = GLU["glu_clamp_max"],
    glu_clamp_min: float = GLU["glu_clamp_min"],
    use_dynamic_sched: bool = False,
    current_stream: Any = None,
    *,
    glu_layout: str = "interleaved32",
    backend: str = "auto",
    config: GemmConfig | Mapping[str, object] | None = None,
) -> TupleDict:
    """`DiscreteGroupedGemmSwiglu` in one call: allocates the outputs and keeps the compiled object for later calls of the same dtypes and layouts.

    Args:
        sfa_tensor, sfb_ptrs, norm_const_tensor: None with 16-bit operands.
        n, b_dtype: gate and up rows of a weight together, and its dtype.
        c_dtype, d_dtype: dtypes of the outputs in any spelling; None is bfloat16.
        cd_major: "n".
        current_stream: where to launch; None is torch's current stream on the tensors' device. With another stream than the current one the outputs are allocated there, and all tensors are recorded on both; the
            caller still waits for that stream before using them.

    The other arguments, and the tensors' dtypes and layouts: see `DiscreteGroupedGemmSwiglu`.

    Returns:
        TupleDict with ``c_tensor`` (M, n, 1), ``d_tensor`` (M, n/2, 1), and ``d_col_tensor``, ``amax_tensor``, ``sfd_row_tensor`` and ``sfd_col_tensor``, None with 16-bit operands. Rows from the last end on hold
        anything. Not differentiable. Under torch.compile this is the operator ``cudnn::discrete_grouped_gemm_swiglu``.

    Raises:
        As ``DiscreteGroupedGemmSwiglu.check_support``, before anything is allocated.
    """
    scales = {"sfa_tensor": sfa_tensor, "sfb_ptrs": sfb_ptrs, "norm_const_tensor": norm_const_tensor, "discrete_col_sfd": discrete_col_sfd}
    no_scales("discrete_grouped_gemm_swiglu_wrapper", a_tensor, scales)
    tensors = {
        "a_tensor": a_tensor,
        "b_ptrs": b_ptrs,
        "padded_offsets": padded_offsets,
        "alpha_tensor": alpha_tensor,
        "bias_tensor": bias_tensor,
        "prob_tensor": prob_tensor,
    }
    options = {
        "n": n,
        "b_dtype": b_dtype,
        "acc_dtype": acc_dtype,
        "c_dtype": c_dtype,
        "d_dtype": d_dtype,
        "cd_major": cd_major,
        "mma_tiler_mn": mma_tiler_mn,
        "cluster_shape_mn": cluster_shape_mn,
        "m_aligned": m_aligned,
        "act_func": act_func,
        "b_major": b_major,
        "glu_layout": glu_layout,
        "backend": backend,
        "config": config,
    }
    scalars = dict(zip(SCALARS, glu_scalars(linear_offset, act_func, geglu_alpha, glu_clamp_max, glu_clamp_min), strict=True))
    made = CALLS(tensors, scalars, options, current_stream)
    return TupleDict(c_tensor=made["c_tensor"], d_tensor=made["d_tensor"], d_col_tensor=None, amax_tensor=None, sfd_row_tensor=None, sfd_col_tensor=None)


def _outputs(tensors: Arguments, options: Arguments) -> dict[str, Output]:
    a = tensors["a_tensor"]
    if len(a.shape) != 3:
        raise ValueError(f"a_tensor: found shape {tuple(a.shape)}, needs (M, K, 1); append a unit axis with a_tensor.unsqueeze(-1)")
    check_cd_major(options["cd_major"])
    for name in ("b_ptrs", "padded_offsets", "alpha_tensor"):
        if tensors.get(name) is None:
            raise ValueError(f"{name} is required, found None")
    n = weight_rows(a, None, options["n"], n_major=False)
    return {"c_tensor": rows_output(a, n, options["c_dtype"], "c_dtype"), "d_tensor": rows_output(a, n // 2, options["d_dtype"], "d_dtype")}


def _build(tensors: Arguments, outputs: Arguments, options: Arguments) -> DiscreteGroupedGemmSwiglu:
    return DiscreteGroupedGemmSwiglu(
        tensors["a_tensor"],
        sample_c=outputs["c_tensor"],
        sample_d=outputs["d_tensor"],
        sample_sfa=None,
        sample_padded_offsets=tensors["padded_offsets"],
        sample_alpha=tensors["alpha_tensor"],
        sample_bias=tensors.get("bias_tensor"),
        sample_prob=tensors.get("prob_tensor"),
        **by_pointers(tensors, options["n"], options["b_dtype"]),
        **{
            name: options[name]
            for name in ("acc_dtype", "mma_tiler_mn", "cluster_shape_mn", "m_aligned", "act_func", "b_major", "glu_layout", "backend", "config")
        },
    )


def _operator() -> Any:
    from cudnn_gemm_discrete.swiglu import torch_ops

    return torch_ops.discrete_grouped_gemm_swiglu


SCALARS = ("linear_offset", "geglu_alpha", "glu_clamp_max", "glu_clamp_min")

CALLS = GroupedCalls(
    "discrete_grouped_gemm_swiglu",
    DiscreteGroupedGemmSwiglu,
    _outputs,
    _build,
    _operator,
    scalars=SCALARS,
    class_written=("c_tensor", "d_tensor"),
    wrapper=discrete_grouped_gemm_swiglu_wrapper,
)

# The published names.
DiscreteGroupedGemmSwigluSm100 = DiscreteGroupedGemmSwiglu
discrete_grouped_gemm_swiglu_wrapper_sm100 = discrete_grouped_gemm_swiglu_wrapper


def precompile_specs() -> list[KernelSpec]:
    """The kernels worth having before the first call: every layout of gate and up, with and without factors of rows."""
    found = []
    for dtype, layout, prob in product(OPERAND_DTYPES, B_PARTS, (False, True)):
        problem = GemmProblem(dtype, dtype, b_parts=B_PARTS[layout], grouping="rows", b_pointers=True, unit_axes=True)
        options = GluOptions(dtype, dtype, glu_layout=layout, prob=prob)
        found += [kernel_spec("discrete_grouped_gemm_swiglu", problem, options, config) for config in default_configs(problem, options.footprint)]
    return found
