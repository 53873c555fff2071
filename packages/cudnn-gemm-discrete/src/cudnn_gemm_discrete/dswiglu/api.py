"""The gradient of grouped GEMM + gated activation with weights by pointers: `DiscreteGroupedGemmDswiglu` and `discrete_grouped_gemm_dswiglu_wrapper`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.determinism import resolve
from cudnn.grouped.calls import GroupedCalls
from cudnn.grouped.checks import OPERAND_DTYPES
from cudnn.grouped.configs import default_configs
from cudnn.grouped.options import DgluOptions, kernel_spec
from cudnn.grouped.outputs import by_pointers, check_cd_major, rows_output, weight_rows
from cudnn.grouped.rows import DgluRows, glu_scalars
from cudnn.tuple_dict import TupleDict
from cudnn.wrapper_calls import Arguments, Output
from cudnn_gemm_discrete.checks import GLU, check_discrete, no_scales

if TYPE_CHECKING:
    import torch

    from cudnn.cutedsl.compile import KernelSpec

__all__ = [
    "DiscreteGroupedGemmDswiglu",
    "DiscreteGroupedGemmDswigluSm100",
    "discrete_grouped_gemm_dswiglu_wrapper",
    "discrete_grouped_gemm_dswiglu_wrapper_sm100",
    "precompile_specs",
]

EPILOGUES = (None, "none", "identity", "relu", "srelu")


class DiscreteGroupedGemmDswiglu(DgluRows):
    """G = alpha[e]² * A[m] · B[e][j] for the rows m of each group e: the gradient of D / prob of `DiscreteGroupedGemmSwiglu`, whose C is given. D here is the gradient of C, in C's order.

    With gate g, up u and p = prob[m]:

    - ``"dswiglu"``, g and u of beta[e] * C, s = sigmoid(g): gradient of the gate G p u s (1 + g (1 - s)), of up G p g s; dprob[m] += sum over j of G u g s.
    - ``"dgeglu"``, g and u of C itself (beta is not looked at), g' = min(g, high), u' = max(min(u, high), low), s = sigmoid(a g'): [g <= high] G p s (1 + a g' (1 - s)) (u' + offset) and
      [low <= u <= high] G p g' s; dprob[m] += sum over j of G g' s (u' + offset).

    dbias[e] += sum over the group's rows of D before it is rounded.

    ==============  ============  ==============================  ===========================================================
    name            shape         strides                         dtypes
    ==============  ============  ==============================  ===========================================================
    a_tensor        (M, K, 1)     (K, 1, M K)                     bfloat16, float16: the gradient that comes in
    b_ptrs          (E,)          (1,)                            int64: addresses of matrices (n, k), or with "n" (k, n)
    c_tensor        (M, 2n, 1)    (2n, 1, 2 M n)                  bfloat16, float16, float32; read
    d_row_tensor    (M, 2n, 1)    (2n, 1, 2 M n)                  bfloat16, float16, float32
    padded_offsets  (E,)          (1,)                            int32
    alpha, beta     (E,)          (1,)                            float32
    prob, dprob     (M, 1, 1)                                     float32
    dbias_tensor    (E, 2n, 1)    (2n, 1, 1)                      bfloat16; optional
    ==============  ============  ==============================  ===========================================================

    Groups, run-time values and the workspace are as in `DiscreteGroupedGemmSwiglu`; the workspace has besides, in float32, a line of 2n sums for each 64 rows and expert where there is dbias, and a line of M sums for
    each tile along n where ``deterministic``. n is a multiple of 32 with ``glu_layout="interleaved32"``, of 8 otherwise. dprob and dbias are added to what they hold; dbias is summed in a fixed order, dprob
    where ``deterministic``.

    Args:
        sample_a, sample_c, sample_d_row, sample_padded_offsets, sample_alpha, sample_beta, sample_prob, sample_dprob, sample_dbias: tensors or ``TensorDesc``; only their metadata is read.
        num_experts, b_shape, b_dtype: E, (n, k) or (n, k, 1), and the weights' dtype, A's.
        acc_dtype: float32 (None).
        mma_tiler_mn, cluster_shape_mn, vector_f32, use_dynamic_sched: hints; the first two are checked against the published values. Results do not depend on them.
        m_aligned: the published 256; groups need not keep it.
        act_func: ``"dswiglu"`` or ``"dgeglu"``.
        b_major: which axis of the weights is contiguous, ``"k"`` or ``"n"``.
        epilogue_op: None, "none", "identity", "relu" or "srelu", without effect, as published.
        sample_d_col, sample_sfa, sample_sfd_row, sample_sfd_col, sample_amax, sample_norm_const, discrete_col_sfd: belong to block-scaled operands; None or False with 16-bit ones, where ``sf_vec_size`` is not
            looked at.
        glu_layout: where gate and up lie in C and D.
        deterministic: None follows ``torch.use_deterministic_algorithms`` when the object is made.
        backend: ``"auto"`` (kernel for CUDA tensors, reference for CPU tensors, whose pointers are addresses of the host), ``"sm90"`` or ``"reference"``.
        config: a ``GemmConfig`` or a dict of its fields: build and run this one instead of the default set.
    """

    op = "discrete_grouped_gemm_dswiglu"

    def __init__(
        self,
        sample_a: Any,
        num_experts: int,
        b_shape: tuple[int, ...],
        b_dtype: Any,
        sample_c: Any,
        sample_d_row: Any,
        sample_d_col: Any,
        sample_sfa: Any,
        sample_padded_offsets: Any,
        sample_alpha: Any,
        sample_beta: Any,
        sample_prob: Any,
        sample_dprob: Any,
        sample_dbias: Any = None,
        sample_sfd_row: Any = None,
        sample_sfd_col: Any = None,
        sample_amax: Any = None,
        sample_norm_const: Any = None,
        acc_dtype: Any = None,
        mma_tiler_mn: tuple[int, int] = (256, 256),
        cluster_shape_mn: tuple[int, int] | None = None,
        sf_vec_size: int = 16,
        vector_f32: bool = False,
        m_aligned: int = 256,
        discrete_col_sfd: bool = False,
        act_func: str = "dswiglu",
        b_major: str = "k",
        epilogue_op: str | None = None,
        use_dynamic_sched: bool = False,
        *,
        glu_layout: str = "interleaved32",
        deterministic: bool | None = None,
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
        no_scales("DiscreteGroupedGemmDswiglu", sample_a, scales)
        if epilogue_op not in EPILOGUES:
            raise ValueError(f"epilogue_op: found {epilogue_op!r}, needs one of {', '.join(map(repr, EPILOGUES))}")
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
        for name, t in (("c_tensor", sample_c), ("beta_tensor", sample_beta), ("prob_tensor", sample_prob), ("dprob_tensor", sample_dprob)):
            if t is None:
                raise ValueError(f"{name} is required, found None")
        fixed_order = resolve(deterministic)
        super().__init__(
            sample_a,
            None,
            sample_c,
            sample_d_row,
            sample_padded_offsets,
            sample_alpha,
            sample_beta,
            sample_prob,
            sample_dprob,
            sample_dbias,
            None,
            num_experts=num_experts,
            b_shape=b_shape,
            b_dtype=b_dtype,
            b_major=b_major,
            activation=act_func,
            glu_layout=glu_layout,
            scaled_c=act_func == "dswiglu",
            round_dgrad=False,
            deterministic=fixed_order,
            scalars=None,
            n_major_tensors=False,
            backend=backend,
            config=config,
        )
        self._arguments = {
            "sample_sfa": None,
            "sample_d_col": None,
            "num_experts": num_experts,
            "b_shape": b_shape,
            "b_dtype": b_dtype,
            "mma_tiler_mn": mma_tiler_mn,
            "cluster_shape_mn": cluster_shape_mn,
            "act_func": act_func,
            "b_major": b_major,
            "epilogue_op": epilogue_op,
            "glu_layout": glu_layout,
            "deterministic": fixed_order,
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
        d_row_tensor: Any = None,
        d_col_tensor: Any = None,
        sfa_tensor: Any = None,
        sfb_ptrs: Any = None,
        padded_offsets: Any = None,
        alpha_tensor: Any = None,
        beta_tensor: Any = None,
        prob_tensor: Any = None,
        dprob_tensor: Any = None,
        dbias_tensor: Any = None,
        sfd_row_tensor: Any = None,
        sfd_col_tensor: Any = None,
        amax_tensor: Any = None,
        norm_const_tensor: Any = None,
        linear_offset: float | None = None,
        geglu_alpha: float = GLU["geglu_alpha"],
        glu_clamp_max: float = GLU["glu_clamp_max"],
        glu_clamp_min: float = GLU["glu_clamp_min"],
        current_stream: Any = None,
        *,
        workspace: Any = None,
    ) -> None:
        """Write D, add to dprob and dbias. On CUDA tensors this launches two to four kernels and returns without waiting.

        Args:
            a_tensor, b_ptrs, c_tensor, d_row_tensor, padded_offsets, alpha_tensor, beta_tensor, prob_tensor, dprob_tensor, dbias_tensor: as the samples in dtype, layout, presence and kind of device; extents are
                free. The memory behind ``b_ptrs`` must stay until the kernel has run.
            linear_offset, geglu_alpha, glu_clamp_max, glu_clamp_min: offset (None is 1), a, high and low of dgeglu; not looked at by dswiglu.
            current_stream: a CUstream, torch stream or raw handle; None is torch's current stream on the tensors' device. CPU tensors have no stream, and it is not looked at.
            workspace: uint8 scratch memory, see ``workspace_bytes``; None takes it from torch's allocator on the launch stream.

        Raises:
            RuntimeError: not compiled.
            ValueError: a tensor differs from what the object was compiled for, the tensors do not fit each other, an address is not a multiple of 16 bytes; scale factors.
        """
        scales = {
            "d_col_tensor": d_col_tensor,
            "sfa_tensor": sfa_tensor,
            "sfb_ptrs": sfb_ptrs,
            "sfd_row_tensor": sfd_row_tensor,
            "sfd_col_tensor": sfd_col_tensor,
            "amax_tensor": amax_tensor,
            "norm_const_tensor": norm_const_tensor,
        }
        no_scales("DiscreteGroupedGemmDswiglu.execute", None, scales)
        self._execute(
            a_tensor,
            self._given_weights(None, b_ptrs),
            padded_offsets,
            c_tensor,
            d_row_tensor,
            None,
            alpha_tensor,
            beta_tensor,
            prob_tensor,
            dprob_tensor,
            dbias_tensor,
            glu_scalars(linear_offset, self.activation, geglu_alpha, glu_clamp_max, glu_clamp_min),
            current_stream,
            workspace,
        )


def discrete_grouped_gemm_dswiglu_wrapper(
    a_tensor: torch.Tensor,
    b_ptrs: torch.Tensor,
    c_tensor: torch.Tensor,
    sfa_tensor: torch.Tensor | None,
    sfb_ptrs: torch.Tensor | None,
    padded_offsets: torch.Tensor,
    alpha_tensor: torch.Tensor,
    beta_tensor: torch.Tensor,
    prob_tensor: torch.Tensor,
    dprob_tensor: torch.Tensor,
    n: int,
    b_dtype: Any,
    generate_dbias: bool = False,
    norm_const_tensor: torch.Tensor | None = None,
    acc_dtype: Any = None,
    d_dtype: Any = None,
    cd_major: str = "n",
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    sf_vec_size: int = 16,
    vector_f32: bool = False,
    m_aligned: int = 256,
    discrete_col_sfd: bool = False,
    act_func: str = "dswiglu",
    b_major: str = "k",
    epilogue_op: str | None = None,
    linear_offset: float | None = None,
    geglu_alpha: float = GLU["geglu_alpha"],
    glu_clamp_max: float = GLU["glu_clamp_max"],
    glu_clamp_min: float = GLU["glu_clamp_min"],
    use_dynamic_sched: bool = False,
    current_stream: Any = None,
    *,
    glu_layout: str = "interleaved32",
    deterministic: bool | None = None,
    backend: str = "auto",
    config: GemmConfig | Mapping[str, object] | None = None,
) -> TupleDict:
    """`DiscreteGroupedGemmDswiglu` in one call: allocates D and dbias and keeps the compiled object for later calls of the same dtypes and layouts.

    Args:
        sfa_tensor, sfb_ptrs, norm_const_tensor: None with 16-bit operands.
        dprob_tensor: added to.
        n, b_dtype: rows of a weight and its dtype.
        generate_dbias: whether dbias is computed, beginning at zero.
        d_dtype: dtype of D in any spelling; None is bfloat16.
        cd_major: "n".
        current_stream: where to launch; None is torch's current stream on the tensors' device. With another stream than the current one the outputs are allocated there, and all tensors are recorded on both; the
            caller still waits for that stream before using them.

    The other arguments, and the tensors' dtypes and layouts: see `DiscreteGroupedGemmDswiglu`.

    Returns:
        TupleDict with ``d_row_tensor`` (M, 2n, 1); ``d_col_tensor`` None; ``dprob_tensor``, the caller's; ``dbias_tensor`` (E, 2n, 1) bfloat16, None unless ``generate_dbias``; ``amax_tensor``, ``sfd_row_tensor`` and
        ``sfd_col_tensor`` None. Rows from the last end on hold anything. Not differentiable. Under torch.compile this is the operator ``cudnn::discrete_grouped_gemm_dswiglu``.

    Raises:
        As ``DiscreteGroupedGemmDswiglu.check_support``, before anything is allocated.
    """
    scales = {"sfa_tensor": sfa_tensor, "sfb_ptrs": sfb_ptrs, "norm_const_tensor": norm_const_tensor, "discrete_col_sfd": discrete_col_sfd}
    no_scales("discrete_grouped_gemm_dswiglu_wrapper", a_tensor, scales)
    tensors = {
        "a_tensor": a_tensor,
        "b_ptrs": b_ptrs,
        "c_tensor": c_tensor,
        "padded_offsets": padded_offsets,
        "alpha_tensor": alpha_tensor,
        "beta_tensor": beta_tensor,
        "prob_tensor": prob_tensor,
        "dprob_tensor": dprob_tensor,
    }
    options = {
        "n": n,
        "b_dtype": b_dtype,
        "generate_dbias": generate_dbias,
        "acc_dtype": acc_dtype,
        "d_dtype": d_dtype,
        "cd_major": cd_major,
        "mma_tiler_mn": mma_tiler_mn,
        "cluster_shape_mn": cluster_shape_mn,
        "m_aligned": m_aligned,
        "act_func": act_func,
        "b_major": b_major,
        "epilogue_op": epilogue_op,
        "glu_layout": glu_layout,
        "deterministic": resolve(deterministic),
        "backend": backend,
        "config": config,
    }
    scalars = dict(zip(SCALARS, glu_scalars(linear_offset, str(act_func).removeprefix("d"), geglu_alpha, glu_clamp_max, glu_clamp_min), strict=True))
    made = CALLS(tensors, scalars, options, current_stream)
    return TupleDict(
        d_row_tensor=made["d_row_tensor"],
        d_col_tensor=None,
        dprob_tensor=dprob_tensor,
        dbias_tensor=made.get("dbias_tensor"),
        amax_tensor=None,
        sfd_row_tensor=None,
        sfd_col_tensor=None,
    )


def _outputs(tensors: Arguments, options: Arguments) -> dict[str, Output]:
    import torch

    a = tensors["a_tensor"]
    if len(a.shape) != 3:
        raise ValueError(f"a_tensor: found shape {tuple(a.shape)}, needs (M, K, 1); append a unit axis with a_tensor.unsqueeze(-1)")
    check_cd_major(options["cd_major"])
    for name in ("b_ptrs", "c_tensor", "padded_offsets", "alpha_tensor", "beta_tensor", "prob_tensor", "dprob_tensor"):
        if tensors.get(name) is None:
            raise ValueError(f"{name} is required, found None")
    n = weight_rows(a, None, options["n"], n_major=False)
    made = {"d_row_tensor": rows_output(a, 2 * n, options["d_dtype"], "d_dtype")}
    if options["generate_dbias"]:
        made["dbias_tensor"] = Output((tensors["padded_offsets"].shape[0], 2 * n, 1), (2 * n, 1, 1), torch.bfloat16, 0.0)
    return made


def _build(tensors: Arguments, outputs: Arguments, options: Arguments) -> DiscreteGroupedGemmDswiglu:
    return DiscreteGroupedGemmDswiglu(
        tensors["a_tensor"],
        sample_c=tensors["c_tensor"],
        sample_d_row=outputs["d_row_tensor"],
        sample_d_col=None,
        sample_sfa=None,
        sample_padded_offsets=tensors["padded_offsets"],
        sample_alpha=tensors["alpha_tensor"],
        sample_beta=tensors["beta_tensor"],
        sample_prob=tensors["prob_tensor"],
        sample_dprob=tensors["dprob_tensor"],
        sample_dbias=outputs.get("dbias_tensor"),
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
    "glu_layout",
    "deterministic",
    "backend",
    "config",
)


def _operator() -> Any:
    from cudnn_gemm_discrete.dswiglu import torch_ops

    return torch_ops.discrete_grouped_gemm_dswiglu


SCALARS = ("linear_offset", "geglu_alpha", "glu_clamp_max", "glu_clamp_min")

CALLS = GroupedCalls(
    "discrete_grouped_gemm_dswiglu",
    DiscreteGroupedGemmDswiglu,
    _outputs,
    _build,
    _operator,
    scalars=SCALARS,
    written=("dprob_tensor",),
    class_written=("d_row_tensor", "dprob_tensor", "dbias_tensor"),
    wrapper=discrete_grouped_gemm_dswiglu_wrapper,
)

# The published names.
DiscreteGroupedGemmDswigluSm100 = DiscreteGroupedGemmDswiglu
discrete_grouped_gemm_dswiglu_wrapper_sm100 = discrete_grouped_gemm_dswiglu_wrapper


def precompile_specs() -> list[KernelSpec]:
    """The kernels worth having before the first call: weights as they are (n-major) or transposed, dprob in any order or a fixed one."""
    found = []
    for dtype, b_major, deterministic in product(OPERAND_DTYPES, ("k", "n"), (False, True)):
        problem = GemmProblem(dtype, dtype, b_major=b_major, grouping="rows", b_pointers=True, unit_axes=True)
        options = DgluOptions(dtype, dtype, partials=deterministic)
        found += [kernel_spec("discrete_grouped_gemm_dswiglu", problem, options, config) for config in default_configs(problem, options.footprint)]
    return found
