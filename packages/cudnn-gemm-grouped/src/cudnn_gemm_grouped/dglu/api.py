"""The gradient of grouped GEMM + gated activation: the class `GroupedGemmDglu` and the wrapper `grouped_gemm_dglu_wrapper`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.determinism import resolve
from cudnn.grouped.calls import GroupedCalls
from cudnn.grouped.checks import OPERAND_DTYPES, check_hints, check_options, finite, forbid_scales, weights_given
from cudnn.grouped.configs import default_configs
from cudnn.grouped.options import DgluOptions, kernel_spec
from cudnn.grouped.outputs import by_pointers, check_a, check_cd_major, rows_output, weight_rows
from cudnn.grouped.rows import DgluRows, glu_scalars
from cudnn.tensors import check_alignment
from cudnn.tuple_dict import TupleDict
from cudnn.workspace import check_buffers_disjoint
from cudnn.wrapper_calls import Arguments, Output

if TYPE_CHECKING:
    import torch

    from cudnn.cutedsl.compile import KernelSpec

__all__ = ["GroupedGemmDglu", "GroupedGemmDgluSm100", "grouped_gemm_dglu_wrapper", "grouped_gemm_dglu_wrapper_sm100", "precompile_specs"]

TILE_N = tuple(range(32, 257, 32))
SF_VEC_SIZE = 16
SCALARS = ("linear_offset", "geglu_alpha", "glu_clamp_max", "glu_clamp_min")
NO_EPILOGUES = (None, "none", "identity")
ACTIVATION_ALIGNMENT = 32


class GroupedGemmDglu(DgluRows):
    """G = alpha[e]² * A[m] · B[e][n] for the rows m of each group e: the gradient of D / prob of `GroupedGemmGlu`, whose C is given. D here is the gradient of C, in C's order.

    With gate g and up u of beta[e] * C, s = sigmoid(g) and p = prob[m]:

    ==========  =========================================================================  ==================================  ========================
    act_func    gradient of the gate                                                       of up                               dprob[m] += sum over n of
    ==========  =========================================================================  ==================================  ========================
    dswiglu     G p u s (1 + g (1 - s))                                                    G p g s                             G u g s
    dgeglu      [g <= high] G p s (1 + a g' (1 - s)) (u' + offset), with s = sigmoid(a g')  [low <= u <= high] G p g' s         G g' s (u' + offset)
    ==========  =========================================================================  ==================================  ========================

    where g' = min(g, high) and u' = max(min(u, high), low). dbias[e] += sum over the group's rows of D before it is rounded. activation = prob[m] times the activation, for the gradient of the
    second weight.

    Groups, forms of tensors and run-time values are those of `GroupedGemm`: A (M, K) is the gradient that comes in, B[e] (N, K) the second weight transposed, which (E, K, N) with ``b_major="n"``
    takes as it is. C and D are (M, 2N), in the layout of gate and up that ``glu_layout`` names (``"interleaved32"``: blocks of 32, gate first; ``"alternating"``: column by column, gate first; otherwise [gate | up]); prob and dprob (M,) or
    (M, 1, 1) in float32; dbias (E, 2N, 1) in bfloat16; activation (M, N). N is a multiple of 32, in the other layouts of 8.

    dprob and dbias are added to what they hold; rows of no group and groups of no rows keep it. dbias is summed in float32 in a fixed order and rounded once. dprob is summed over the tiles along N, in
    a fixed order where ``_deterministic``, else by atomic additions in float32.

    Args:
        sample_a, sample_c, sample_d_row, sample_padded_offsets, sample_alpha, sample_beta, sample_prob, sample_dprob, sample_b, sample_dbias, sample_activation: tensors or ``TensorDesc``; only their
            metadata is read. ``sample_dbias`` and ``sample_activation`` are optional; an activation goes with dgeglu and C, D and activation in A's dtype. ``sample_b`` is None for weights by pointers.
        num_experts, b_shape, b_dtype: E, (N, K) and the dtype of weights by pointers; None otherwise.
        acc_dtype: float32 (None).
        mma_tiler_mn, cluster_shape_mn, vector_f32, use_dynamic_sched: hints; the first two are checked against the published values. Results do not depend on them.
        m_aligned: the published 256; groups need not keep it.
        act_func: ``"dswiglu"`` or ``"dgeglu"``.
        b_major: which axis of B is contiguous: ``"k"``, or ``"n"`` for (E, K, N) tensors and pointers.
        epilogue_op: None, "none" or "identity".
        linear_offset, geglu_alpha, glu_clamp_max, glu_clamp_min: offset (None is 1), a, high and low of dgeglu.
        round_dgrad_to_input_dtype: round G to A's dtype first.
        sample_d_col, sample_sfa, sample_sfb, sample_sfd_row, sample_sfd_col, sample_amax, sample_norm_const, sf_vec_size, sf_fp8_dtype_override, discrete_col_sfd, situ_beta1, situ_beta2,
            use_single_group_runtime_offsets: belong to block-scaled operands; left out with 16-bit ones.
        _deterministic: None follows ``torch.use_deterministic_algorithms`` when the object is made.
        glu_layout: where gate and up lie in C and D.
        backend: ``"auto"`` (kernel for CUDA tensors, reference for CPU tensors), ``"sm90"`` or ``"reference"``.
        config: a ``GemmConfig`` or a dict of its fields: build and run this one instead of the default set.
    """

    op = "grouped_gemm_dglu"

    def __init__(
        self,
        sample_a: Any,
        sample_c: Any,
        sample_d_row: Any,
        sample_d_col: Any,
        sample_sfa: Any,
        sample_padded_offsets: Any,
        sample_alpha: Any,
        sample_beta: Any,
        sample_prob: Any,
        sample_dprob: Any,
        sample_b: Any = None,
        sample_sfb: Any = None,
        sample_dbias: Any = None,
        num_experts: int | None = None,
        b_shape: tuple[int, ...] | None = None,
        b_dtype: Any = None,
        sample_sfd_row: Any = None,
        sample_sfd_col: Any = None,
        sample_amax: Any = None,
        sample_norm_const: Any = None,
        acc_dtype: Any = None,
        mma_tiler_mn: tuple[int, int] = (256, 256),
        cluster_shape_mn: tuple[int, int] | None = None,
        sf_vec_size: int = SF_VEC_SIZE,
        sf_fp8_dtype_override: Any = None,
        vector_f32: bool = False,
        m_aligned: int = 256,
        discrete_col_sfd: bool = False,
        act_func: str = "dswiglu",
        b_major: str = "k",
        epilogue_op: str | None = None,
        use_dynamic_sched: bool = False,
        use_single_group_runtime_offsets: bool = False,
        linear_offset: float | None = None,
        geglu_alpha: float = 1.702,
        glu_clamp_max: float = 7.0,
        glu_clamp_min: float = -7.0,
        situ_beta1: float = 4.0,
        situ_beta2: float = 25.0,
        round_dgrad_to_input_dtype: bool = False,
        sample_activation: Any = None,
        _deterministic: bool | None = None,
        *,
        glu_layout: str = "interleaved32",
        backend: str = "auto",
        config: GemmConfig | Mapping[str, object] | None = None,
    ) -> None:
        forbid_scales(
            "GroupedGemmDglu",
            {
                "sample_d_col": sample_d_col,
                "sample_sfa": sample_sfa,
                "sample_sfb": sample_sfb,
                "sample_sfd_row": sample_sfd_row,
                "sample_sfd_col": sample_sfd_col,
                "sample_amax": sample_amax,
                "sample_norm_const": sample_norm_const,
                "sf_vec_size": sf_vec_size if sf_vec_size != SF_VEC_SIZE else None,
                "sf_fp8_dtype_override": sf_fp8_dtype_override,
                "discrete_col_sfd": discrete_col_sfd,
                "use_single_group_runtime_offsets": use_single_group_runtime_offsets,
                "epilogue_op": epilogue_op if epilogue_op not in NO_EPILOGUES else None,
            },
        )
        check_options(acc_dtype, m_aligned, b_major)
        check_hints(mma_tiler_mn, cluster_shape_mn, tile_n=TILE_N)
        for name, t in (("prob_tensor", sample_prob), ("dprob_tensor", sample_dprob)):
            if t is None:
                raise ValueError(f"{name} is required, found None")
        scalars = glu_scalars(linear_offset, str(act_func).removeprefix("d"), geglu_alpha, glu_clamp_max, glu_clamp_min)
        if act_func == "dgeglu":
            finite("geglu_alpha", scalars.alpha, positive=True)
            if not finite("glu_clamp_min", scalars.low) <= finite("glu_clamp_max", scalars.high):
                raise ValueError(f"glu_clamp_min and glu_clamp_max: found {scalars.low} and {scalars.high}, needs them in order")
        deterministic = resolve(_deterministic)
        super().__init__(
            sample_a,
            sample_b,
            sample_c,
            sample_d_row,
            sample_padded_offsets,
            sample_alpha,
            sample_beta,
            sample_prob,
            sample_dprob,
            sample_dbias,
            sample_activation,
            num_experts=num_experts,
            b_shape=b_shape,
            b_dtype=b_dtype,
            b_major=b_major,
            activation=act_func,
            glu_layout=glu_layout,
            scaled_c=True,
            round_dgrad=round_dgrad_to_input_dtype,
            deterministic=deterministic,
            scalars=scalars,
            n_major_tensors=True,
            backend=backend,
            config=config,
        )
        self._arguments = {
            "sample_d_col": None,
            "sample_sfa": None,
            "num_experts": num_experts,
            "b_shape": b_shape,
            "b_dtype": b_dtype,
            "mma_tiler_mn": mma_tiler_mn,
            "cluster_shape_mn": cluster_shape_mn,
            "act_func": act_func,
            "b_major": b_major,
            "linear_offset": linear_offset,
            "geglu_alpha": scalars.alpha,
            "glu_clamp_max": scalars.high,
            "glu_clamp_min": scalars.low,
            "round_dgrad_to_input_dtype": bool(round_dgrad_to_input_dtype),
            "_deterministic": deterministic,
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
        c_tensor: Any = None,
        d_row_tensor: Any = None,
        d_col_tensor: Any = None,
        sfa_tensor: Any = None,
        padded_offsets: Any = None,
        alpha_tensor: Any = None,
        beta_tensor: Any = None,
        prob_tensor: Any = None,
        dprob_tensor: Any = None,
        b_tensor: Any = None,
        sfb_tensor: Any = None,
        dbias_tensor: Any = None,
        b_ptrs: Any = None,
        sfb_ptrs: Any = None,
        sfd_row_tensor: Any = None,
        sfd_col_tensor: Any = None,
        amax_tensor: Any = None,
        norm_const_tensor: Any = None,
        current_stream: Any = None,
        activation_tensor: Any = None,
        *,
        workspace: Any = None,
    ) -> None:
        """Write D and the activation, add to dprob and dbias. On CUDA tensors this launches one to four kernels and returns without waiting.

        Args:
            a_tensor, c_tensor, d_row_tensor, padded_offsets, alpha_tensor, beta_tensor, prob_tensor, dprob_tensor, b_tensor, dbias_tensor, b_ptrs, activation_tensor: as the samples in dtype, layout,
                presence and kind of device; extents are free. The memory behind ``b_ptrs`` must stay until the kernel has run. The activation is 32-byte aligned and has memory of its own.
            current_stream: a CUstream, torch stream or raw handle; None is torch's current stream on the tensors' device. CPU tensors have no stream, and it is not looked at.
            workspace: uint8 scratch memory of ``scratch_workspace_bytes()``, 128-byte aligned, contiguous, on A's device, of its own; None takes it from torch's allocator on the launch stream.

        Raises:
            RuntimeError: not compiled.
            ValueError: a tensor differs from what the object was compiled for, the tensors do not fit each other, an address is not aligned, buffers overlap; scale factors and what goes with them.
        """
        scales = (d_col_tensor, sfa_tensor, sfb_tensor, sfb_ptrs, sfd_row_tensor, sfd_col_tensor, amax_tensor, norm_const_tensor)
        if scales != _NO_SCALES:
            names = ("d_col_tensor", "sfa_tensor", "sfb_tensor", "sfb_ptrs", "sfd_row_tensor", "sfd_col_tensor", "amax_tensor", "norm_const_tensor")
            forbid_scales("GroupedGemmDglu.execute", dict(zip(names, scales, strict=True)))
        weights = self._given_weights(b_tensor, b_ptrs)
        if activation_tensor is not None or workspace is not None:
            operands = {
                "a_tensor": a_tensor,
                "c_tensor": c_tensor,
                "d_row_tensor": d_row_tensor,
                "padded_offsets": padded_offsets,
                "alpha_tensor": alpha_tensor,
                "beta_tensor": beta_tensor,
                "prob_tensor": prob_tensor,
                "dprob_tensor": dprob_tensor,
                "dbias_tensor": dbias_tensor,
                **{f"{'b_ptrs' if self.pointers else 'b_tensor'}": weights[0]},
            }
            check_memory(activation_tensor, workspace, operands)
        self._execute(
            a_tensor,
            weights,
            padded_offsets,
            c_tensor,
            d_row_tensor,
            activation_tensor,
            alpha_tensor,
            beta_tensor,
            prob_tensor,
            dprob_tensor,
            dbias_tensor,
            self._scalars,
            current_stream,
            workspace,
        )


_NO_SCALES = (None,) * 8


def check_memory(activation: Any, workspace: Any, operands: Mapping[str, Any]) -> None:
    """ValueError unless activation and workspace have memory of their own, and the activation is aligned. Traced and fake tensors have none to check."""
    import torch

    plain = (torch.Tensor, torch.nn.Parameter)
    given = {"activation_tensor": activation, "workspace": workspace}
    if torch.compiler.is_compiling() or any(type(t) not in plain for t in (*given.values(), *operands.values()) if t is not None):
        return
    if activation is not None:
        check_alignment("activation_tensor", activation, ACTIVATION_ALIGNMENT)
    check_buffers_disjoint(given.items(), operands.items())


def grouped_gemm_dglu_wrapper(
    a_tensor: torch.Tensor,
    c_tensor: torch.Tensor | None = None,
    sfa_tensor: torch.Tensor | None = None,
    padded_offsets: torch.Tensor | None = None,
    alpha_tensor: torch.Tensor | None = None,
    beta_tensor: torch.Tensor | None = None,
    prob_tensor: torch.Tensor | None = None,
    dprob_tensor: torch.Tensor | None = None,
    b_tensor: torch.Tensor | None = None,
    sfb_tensor: torch.Tensor | None = None,
    generate_dbias: bool = False,
    b_ptrs: torch.Tensor | None = None,
    sfb_ptrs: torch.Tensor | None = None,
    n: int | None = None,
    b_dtype: Any = None,
    b_major: str = "k",
    norm_const_tensor: torch.Tensor | None = None,
    acc_dtype: Any = None,
    d_dtype: Any = None,
    cd_major: str = "n",
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    sf_vec_size: int = SF_VEC_SIZE,
    sf_fp8_dtype_override: Any = None,
    vector_f32: bool = False,
    m_aligned: int = 256,
    discrete_col_sfd: bool = False,
    act_func: str = "dswiglu",
    linear_offset: float | None = None,
    geglu_alpha: float = 1.702,
    glu_clamp_max: float = 7.0,
    glu_clamp_min: float = -7.0,
    situ_beta1: float = 4.0,
    situ_beta2: float = 25.0,
    epilogue_op: str | None = None,
    use_dynamic_sched: bool = False,
    use_single_group_runtime_offsets: bool = False,
    current_stream: Any = None,
    round_dgrad_to_input_dtype: bool = False,
    activation_tensor: torch.Tensor | None = None,
    deterministic: bool | None = None,
    *,
    glu_layout: str = "interleaved32",
    backend: str = "auto",
    config: GemmConfig | Mapping[str, object] | None = None,
) -> TupleDict:
    """`GroupedGemmDglu` in one call: allocates D and dbias and keeps the compiled object for later calls of the same dtypes and layouts.

    Args:
        c_tensor, padded_offsets, alpha_tensor, beta_tensor, prob_tensor, dprob_tensor: required in spite of their defaults. dprob is added to.
        generate_dbias: whether dbias is computed, beginning at zero.
        n, b_dtype: N and the dtype of weights by pointers; None otherwise.
        d_dtype: dtype of D in any spelling; None is bfloat16.
        cd_major: "n".
        current_stream: where to launch; None is torch's current stream on the tensors' device. With another stream than the current one the outputs are allocated there, and all tensors are
            recorded on both; the caller still waits for that stream before using them.
        activation_tensor: written; see `GroupedGemmDglu`.
        deterministic: whether dprob is summed in a fixed order; None follows ``torch.use_deterministic_algorithms``.

    The other arguments, and the tensors' dtypes and layouts: see `GroupedGemmDglu`.

    Returns:
        TupleDict with ``d_row_tensor`` (M, 2N); ``d_col_tensor`` None; ``dprob_tensor``, the caller's; ``dbias_tensor`` (E, 2N, 1) bfloat16, None unless ``generate_dbias``; ``amax_tensor``,
        ``sfd_row_tensor`` and ``sfd_col_tensor`` None; and ``activation_tensor`` where one was passed. Rows from the last end on hold anything. Not differentiable. Under torch.compile this is the
        operator ``cudnn::grouped_gemm_dglu``.

    Raises:
        As ``GroupedGemmDglu.check_support``, before anything is allocated.
    """
    tensors = {
        "a_tensor": a_tensor,
        "c_tensor": c_tensor,
        "padded_offsets": padded_offsets,
        "alpha_tensor": alpha_tensor,
        "beta_tensor": beta_tensor,
        "prob_tensor": prob_tensor,
        "dprob_tensor": dprob_tensor,
        "b_tensor": b_tensor,
        "b_ptrs": b_ptrs,
        "activation_tensor": activation_tensor,
    }
    scalars = glu_scalars(linear_offset, str(act_func).removeprefix("d"), geglu_alpha, glu_clamp_max, glu_clamp_min)
    options = {
        "generate_dbias": generate_dbias,
        "n": n,
        "b_dtype": b_dtype,
        "b_major": b_major,
        "acc_dtype": acc_dtype,
        "d_dtype": d_dtype,
        "cd_major": cd_major,
        "mma_tiler_mn": mma_tiler_mn,
        "cluster_shape_mn": cluster_shape_mn,
        "m_aligned": m_aligned,
        "act_func": act_func,
        "linear_offset": scalars.linear_offset,
        "geglu_alpha": scalars.alpha,
        "glu_clamp_max": scalars.high,
        "glu_clamp_min": scalars.low,
        "epilogue_op": epilogue_op,
        "round_dgrad_to_input_dtype": round_dgrad_to_input_dtype,
        "deterministic": resolve(deterministic),
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
    }
    forbid_scales("grouped_gemm_dglu_wrapper", scales)
    made = CALLS(tensors, {}, options, current_stream)
    result = TupleDict(
        d_row_tensor=made["d_row_tensor"],
        d_col_tensor=None,
        dprob_tensor=dprob_tensor,
        dbias_tensor=made.get("dbias_tensor"),
        amax_tensor=None,
        sfd_row_tensor=None,
        sfd_col_tensor=None,
    )
    if activation_tensor is not None:
        result["activation_tensor"] = activation_tensor
    return result


def _outputs(tensors: Arguments, options: Arguments) -> dict[str, Output]:
    a = tensors["a_tensor"]
    check_a(a)
    check_cd_major(options["cd_major"])
    weights_given(tensors.get("b_tensor"), tensors.get("b_ptrs"), options["n"], options["b_dtype"])
    for name in ("c_tensor", "padded_offsets", "alpha_tensor", "beta_tensor", "prob_tensor", "dprob_tensor"):
        if tensors.get(name) is None:
            raise ValueError(f"{name} is required, found None")
    n = weight_rows(a, tensors.get("b_tensor"), options["n"], n_major=options["b_major"] == "n")
    made = {"d_row_tensor": rows_output(a, 2 * n, options["d_dtype"], "d_dtype")}
    if options["generate_dbias"]:
        import torch

        made["dbias_tensor"] = Output((tensors["padded_offsets"].shape[0], 2 * n, 1), (2 * n, 1, 1), torch.bfloat16, 0.0)
    return made


def _build(tensors: Arguments, outputs: Arguments, options: Arguments) -> GroupedGemmDglu:
    return GroupedGemmDglu(
        tensors["a_tensor"],
        tensors["c_tensor"],
        outputs["d_row_tensor"],
        None,
        None,
        tensors["padded_offsets"],
        tensors["alpha_tensor"],
        tensors["beta_tensor"],
        tensors["prob_tensor"],
        tensors["dprob_tensor"],
        sample_b=tensors.get("b_tensor"),
        sample_dbias=outputs.get("dbias_tensor"),
        sample_activation=tensors.get("activation_tensor"),
        _deterministic=options["deterministic"],
        **by_pointers(tensors, options["n"], options["b_dtype"]),
        **{name: options[name] for name in _PASSED_ON},
    )


_PASSED_ON = (
    "acc_dtype",
    "mma_tiler_mn",
    "cluster_shape_mn",
    "m_aligned",
    "act_func",
    "b_major",
    "epilogue_op",
    "linear_offset",
    "geglu_alpha",
    "glu_clamp_max",
    "glu_clamp_min",
    "round_dgrad_to_input_dtype",
    "glu_layout",
    "backend",
    "config",
)


def _operator() -> Any:
    from cudnn_gemm_grouped.dglu import torch_ops

    return torch_ops.grouped_gemm_dglu


CALLS = GroupedCalls(
    "grouped_gemm_dglu",
    GroupedGemmDglu,
    _outputs,
    _build,
    _operator,
    numbers=("n", *SCALARS),
    written=("dprob_tensor", "activation_tensor"),
    class_written=("d_row_tensor", "dprob_tensor", "dbias_tensor", "activation_tensor"),
    wrapper=grouped_gemm_dglu_wrapper,
)

# The published names.
GroupedGemmDgluSm100 = GroupedGemmDglu
grouped_gemm_dglu_wrapper_sm100 = grouped_gemm_dglu_wrapper
for _flag in ("supports_canonical_layouts", "supports_bf16_canonical_layouts"):
    setattr(grouped_gemm_dglu_wrapper, _flag, True)


def precompile_specs() -> list[KernelSpec]:
    """The kernels worth having before the first call: both forms, with the second weight as it is (n-major) or transposed, and weights by pointers."""
    found = []
    for dtype, (unit_axes, b_major, pointers), layout, deterministic in product(
        OPERAND_DTYPES,
        ((False, "k", False), (False, "n", False), (False, "k", True), (True, "k", False), (True, "k", True)),
        ("interleaved32", "concatenated"),
        (False, True),
    ):
        if layout == "concatenated" and (unit_axes or pointers):
            continue
        problem = GemmProblem(dtype, dtype, b_major=b_major, grouping="rows", b_pointers=pointers, unit_axes=unit_axes)
        options = DgluOptions(dtype, dtype, glu_layout=layout, partials=deterministic)
        found += [kernel_spec("grouped_gemm_dglu", problem, options, config) for config in default_configs(problem, options.footprint)]
    return found
