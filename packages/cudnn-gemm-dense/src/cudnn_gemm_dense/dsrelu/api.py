"""GEMM + gradient of squared ReLU: the class `GemmDsrelu` and the wrapper `gemm_dsrelu_wrapper`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

from cudnn import checks, determinism
from cudnn.cutedsl.epilogue.size import Footprint
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.datatypes import torch_dtype
from cudnn.gemm_layout import Extents, Rule
from cudnn.gemm_operation import Scalars, Tensors
from cudnn.tuple_dict import TupleDict
from cudnn.wrapper_calls import Arguments, Output, WrapperCalls, matrix_output
from cudnn_gemm_dense.operation import kernel_choices
from cudnn_gemm_dense.scale_factors import kernel_dtypes
from cudnn_gemm_dense.srelu.checks import check_all, default_cluster
from cudnn_gemm_dense.srelu.options import DsreluOptions, dsrelu_spec
from cudnn_gemm_dense.srelu.outputs import SquaredReluOperation, scale_outputs
from cudnn_gemm_dense.srelu.reference import gemm_dsrelu_reference

if TYPE_CHECKING:
    import torch

    from cudnn.cutedsl.compile import KernelSpec

__all__ = ["GemmDsrelu", "GemmDsreluSm100", "gemm_dsrelu_wrapper", "gemm_dsrelu_wrapper_sm100", "precompile_specs"]

C_DTYPES = ("float16", "bfloat16", "float32")


class GemmDsrelu(SquaredReluOperation):
    """G = alpha * A Bᵀ per batch, D = 2 relu(G) * C * prob, dprob += the sum over n of relu(G)² * C, and amax = max(amax, the largest magnitude of D before rounding).

    C is an input: where it is the gradient of ``prob * relu(G)²``, D is the gradient of G and what is added to dprob is that of prob. All arithmetic is in float32.

    Tensors (all three axes present; L = 1 is a trailing unit axis):

    ============  ===========  ==================  ============================================
    name          shape        contiguous axis     dtypes
    ============  ===========  ==================  ============================================
    a_tensor      (M, K, L)    k or m              float16, bfloat16, float8_e4m3fn, float8_e5m2, float4_e2m1fn
    b_tensor      (N, K, L)    k or n              as A, or quantised beside a 16-bit A
    sfa, sfb      blocked      of either form      float8_e8m0fnu, float8_e4m3fn; optional
    sfd           blocked      of either form      float8_e8m0fnu, written with an fp8 D
    norm_const    (1,)         any                 float32, read with an fp8 D
    c_tensor      (M, N, L)    n or m              float16, bfloat16, float32; read
    d_tensor      (M, N, L)    as C                float16, bfloat16, float32; quantised fp8
    prob_tensor   (M, 1, L)    any strides         float32; read
    dprob_tensor  (M, 1, L)    any strides         float32; added to, so fill it with zeros before
    amax_tensor   (1,)         any                 float32; optional
    ============  ===========  ==================  ============================================

    Pitches may be padded. The contiguous extent of each matrix, the steps between its lines and its address are multiples of 16 bytes. Extents, alpha and pointers are run-time values. M = 0,
    N = 0 or L = 0 does nothing; K = 0 writes zeros to D and leaves dprob.

    Scratch memory (`workspace_bytes`): for a deterministic dprob 4 * M * L bytes for each tile along N; fp8 operands that are not contiguous along K are transposed into scratch memory, rows x K x L
    bytes each.

    Args:
        sample_a, sample_b, sample_c, sample_d, sample_dprob, sample_prob: tensors or ``TensorDesc``; only their metadata is read.
        sample_sfa, sample_sfb: scale factors of MXFP8, MXFP4 or NVFP4 operands, ``sf_vec_size`` elements along K each: of both, or of B alone beside a bfloat16 or float16 A. Such operands are
            converted in the kernel, or into scratch memory first, 2 x rows x K x L bytes each (`workspace_bytes` counts the most).
        sample_sfd, sample_norm_const: an fp8 D is quantised: SF = max |D| of 32 columns * (1 / limit) * norm_const, rounded up to a power of two, and D * norm_const / SF is stored. Both are needed with an
            fp8 D, which 4-bit operands do not give, and left alone with any other.
        vector_f32: a hint without effect.
        sample_amax: None where the largest magnitude is not wanted.
        alpha: what ``execute`` takes where it is given none.
        acc_dtype: dtype of the sums, float32.
        mma_tiler_mn, cluster_shape_mn: hints; checked against the published values (tile 128 or 256 by 64, 128, 192 or 256; cluster entries 1, 2 or 4, the first even for tiles of 256 rows), and without
            effect on results. None for the cluster takes (2, 1) or (1, 1).
        deterministic: True sums dprob in a fixed order, the same bits every time; False adds the tiles' sums as they come; None follows ``torch.use_deterministic_algorithms`` as it is now.
        backend: ``"auto"`` (kernel for CUDA tensors, reference for CPU tensors), ``"sm90"`` or ``"reference"``.
        config: a ``GemmConfig`` or a dict of its fields: build and run this one instead of the default set.
    """

    op = "gemm_dsrelu"

    def __init__(
        self,
        sample_a: Any,
        sample_b: Any,
        sample_c: Any,
        sample_d: Any,
        sample_dprob: Any,
        sample_sfa: Any = None,
        sample_sfb: Any = None,
        sample_prob: Any = None,
        sample_sfd: Any = None,
        sample_amax: Any = None,
        sample_norm_const: Any = None,
        alpha: float = 1.0,
        acc_dtype: Any = "float32",
        mma_tiler_mn: tuple[int, int] = (256, 256),
        cluster_shape_mn: tuple[int, int] | None = None,
        sf_vec_size: int = 16,
        vector_f32: bool = False,
        *,
        deterministic: bool | None = None,
        backend: str = "auto",
        config: GemmConfig | Mapping[str, object] | None = None,
    ) -> None:
        rules = [
            Rule("a_tensor", ("m", "k", "l"), "a"),
            Rule("b_tensor", ("n", "k", "l"), "b"),
            Rule("c_tensor", ("m", "n", "l"), "out"),
            Rule("d_tensor", ("m", "n", "l"), "out"),
            Rule("prob_tensor", ("m", 1, "l")),
            Rule("dprob_tensor", ("m", 1, "l")),
        ]
        given = (sample_a, sample_b, sample_c, sample_d, sample_prob, sample_dprob)
        samples = [(rule.name, t) for rule, t in zip(rules, given, strict=True)]
        if sample_amax is not None:
            rules.append(Rule("amax_tensor", (1,) * max(len(getattr(sample_amax, "shape", ())), 1)))
            samples.append(("amax_tensor", sample_amax))
        scales = {"sfa_tensor": sample_sfa, "sfb_tensor": sample_sfb, "sfd_tensor": sample_sfd, "norm_const_tensor": sample_norm_const}
        super().__init__(rules, samples, scales, checks.as_integer("sf_vec_size", sf_vec_size), backend=backend, config=config)
        self.alpha = checks.as_scalar("alpha", alpha)
        self.acc_dtype = checks.required_dtype("acc_dtype", acc_dtype)
        self.mma_tiler_mn = checks.as_pair("mma_tiler_mn", mma_tiler_mn)
        self.cluster_shape_mn = default_cluster(self.mma_tiler_mn) if cluster_shape_mn is None else checks.as_pair("cluster_shape_mn", cluster_shape_mn)
        self.vector_f32 = bool(vector_f32)
        self.deterministic = determinism.resolve(deterministic)

    def _constructor_arguments(self) -> dict[str, Any]:
        return {
            "alpha": self.alpha,
            "acc_dtype": self.acc_dtype,
            "mma_tiler_mn": self.mma_tiler_mn,
            "cluster_shape_mn": self.cluster_shape_mn,
            "sf_vec_size": self.sf_vec_size,
            "deterministic": self.deterministic,
            "backend": self.backend,
            "config": self.config,
        }

    def _check(self) -> tuple[GemmProblem, DsreluOptions, dict[str, str]]:
        metas = dict(zip(self._layout.names, self._samples, strict=True))
        majors = check_all(self._layout, metas, self._scales, self.sf_vec_size, self.acc_dtype, (self.mma_tiler_mn, self.cluster_shape_mn), C_DTYPES)
        problem = GemmProblem(*kernel_dtypes(metas["a_tensor"].dtype, metas["b_tensor"].dtype, self._scales), "float32", majors["a"], majors["b"])
        amax_rank = len(metas["amax_tensor"].shape) if "amax_tensor" in metas else 0
        return (
            problem,
            DsreluOptions(metas["c_tensor"].dtype, metas["d_tensor"].dtype, majors["out"], self.deterministic, amax_rank, **self._quantized_by),
            majors,
        )

    def _spec(self, problem: GemmProblem, options: DsreluOptions, config: GemmConfig) -> KernelSpec:
        return dsrelu_spec(problem, options, config)

    def _footprint(self, options: DsreluOptions) -> Footprint:
        return options.footprint

    def _partials(self, options: DsreluOptions, config: GemmConfig, extents: Extents) -> tuple[tuple[int, int, int], ...]:
        return ((-(-extents.n // config.tile_n), extents.m, extents.batches),) if options.deterministic else ()

    def execute(
        self,
        a_tensor: Any,
        b_tensor: Any,
        c_tensor: Any,
        d_tensor: Any,
        dprob_tensor: Any,
        sfa_tensor: Any = None,
        sfb_tensor: Any = None,
        prob_tensor: Any = None,
        sfd_tensor: Any = None,
        amax_tensor: Any = None,
        norm_const_tensor: Any = None,
        alpha: float | None = None,
        current_stream: Any = None,
        *,
        workspace: Any = None,
    ) -> None:
        """Write D, add to dprob, and merge the largest magnitude of D into amax where there is one. On CUDA tensors this launches one kernel, and one more for each transposed operand and for a
        deterministic dprob, and returns without waiting.

        Args:
            a_tensor, b_tensor, c_tensor, d_tensor, dprob_tensor, prob_tensor, amax_tensor: as the samples in dtype, major and kind of device; extents are free.
            sfa_tensor, sfb_tensor, sfd_tensor, norm_const_tensor: as the samples, or None as they were.
            alpha: factor on the product, a number on the host; None is the constructor's.
            current_stream: a CUstream, torch stream or raw handle; None is torch's current stream on the tensors' device. CPU tensors have no stream, and it is not looked at.
            workspace: uint8 scratch memory, see ``workspace_bytes``; None takes it from torch's allocator on the launch stream.

        Raises:
            RuntimeError: not compiled.
            ValueError: a tensor differs from what the object was compiled for, the tensors do not fit each other, an address is not a multiple of 16 bytes.
        """
        if alpha is None:
            alpha = self.alpha
        elif type(alpha) is not float:
            alpha = checks.as_scalar("alpha", alpha)
        scales: Tensors = ()
        if self._scales is not None or not (sfa_tensor is sfb_tensor is sfd_tensor is norm_const_tensor is None):
            scales = self._given({"sfd_tensor": sfd_tensor, "norm_const_tensor": norm_const_tensor, "sfa_tensor": sfa_tensor, "sfb_tensor": sfb_tensor})
        tensors = (a_tensor, b_tensor, c_tensor, d_tensor, prob_tensor, dprob_tensor)
        if (amax_tensor is not None) != ("amax_tensor" in self._layout.names):
            raise ValueError(
                f"amax_tensor: found {'None' if amax_tensor is None else 'one'}, needs {'one' if amax_tensor is None else 'None'} as in the samples"
            )
        self._run((*tensors, *(() if amax_tensor is None else (amax_tensor,)), *scales), (alpha,), current_stream, workspace)

    def _reference(self, tensors: Tensors, scalars: Scalars) -> None:
        t = dict(zip(self._layout.names, tensors, strict=False))
        y, sums = gemm_dsrelu_reference(t["a_tensor"], t["b_tensor"], t["c_tensor"], t["prob_tensor"], scalars[0])
        t["dprob_tensor"].add_(sums)
        self._finish_reference(t, y)

    def _call_traced(self, tensors: Tensors, scalars: Scalars) -> None:
        named = dict(zip(self._layout.names, tensors, strict=True))
        outputs: dict[str, Any] = {name: named.pop(name) for name in ("d_tensor", "dprob_tensor", "amax_tensor", "sfd_tensor") if name in named}
        CALLS.execute_traced(self, named, outputs, scalars[0])


def gemm_dsrelu_wrapper(
    a_tensor: torch.Tensor,
    b_tensor: torch.Tensor,
    c_tensor: torch.Tensor,
    sfa_tensor: torch.Tensor | None = None,
    sfb_tensor: torch.Tensor | None = None,
    prob_tensor: torch.Tensor | None = None,
    alpha: float = 1.0,
    d_major: str = "n",
    d_dtype: Any = "bfloat16",
    acc_dtype: Any = "float32",
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    norm_const_tensor: torch.Tensor | None = None,
    sf_vec_size: int = 16,
    vector_f32: bool = False,
    stream: Any = None,
    *,
    deterministic: bool | None = None,
    backend: str = "auto",
    config: GemmConfig | Mapping[str, object] | None = None,
) -> TupleDict:
    """`GemmDsrelu` in one call: allocates the outputs, dprob filled with zeros, and keeps the compiled object for later calls of the same dtypes and majors.

    Args:
        a_tensor: (M, K, L).
        b_tensor: (N, K, L).
        c_tensor: (M, N, L), what relu(G) is multiplied with.
        prob_tensor: (M, 1, L) in float32, a factor per row; required.
        alpha: factor on the product.
        d_major: the contiguous axis of D, which has to be that of C: ``"n"`` or ``"m"``.
        d_dtype: dtype of D, in any spelling.
        deterministic: as for `GemmDsrelu`; None follows ``torch.use_deterministic_algorithms`` at each call.
        stream: where to launch; None is torch's current stream on the tensors' device. With another stream than the current one the outputs are allocated there, and all tensors are recorded on
            both, so that none is recycled while the kernel needs it; the caller still waits for that stream before using them.

    The other arguments, and the tensors' dtypes and layouts: see `GemmDsrelu`.

    Returns:
        TupleDict with ``d_tensor`` (M, N, L), ``dprob_tensor`` (M, 1, L) in float32, ``amax_tensor`` (1,) for 4-bit operands with a D that is not fp8, else None, ``sfd_tensor`` with an fp8 D, else None. Not differentiable: the outputs carry no gradient. Under
        torch.compile this is the one operator ``cudnn::gemm_dsrelu``.

    Raises:
        As ``GemmDsrelu.check_support``, before anything is allocated.
    """
    if type(alpha) is not float:
        alpha = checks.as_scalar("alpha", alpha)
    tensors = {
        "a_tensor": a_tensor,
        "b_tensor": b_tensor,
        "c_tensor": c_tensor,
        "sfa_tensor": sfa_tensor,
        "sfb_tensor": sfb_tensor,
        "prob_tensor": prob_tensor,
        "norm_const_tensor": norm_const_tensor,
    }
    options = {
        "d_major": d_major,
        "d_dtype": d_dtype,
        "acc_dtype": acc_dtype,
        "mma_tiler_mn": mma_tiler_mn,
        "cluster_shape_mn": cluster_shape_mn,
        "sf_vec_size": sf_vec_size,
        "vector_f32": vector_f32,
        "deterministic": determinism.resolve(deterministic),
        "backend": backend,
        "config": config,
    }
    made = CALLS(tensors, {"alpha": alpha}, options, stream)
    amax, sfd = made.pop("amax_tensor", None), made.pop("sfd_tensor", None)
    return TupleDict(**made, amax_tensor=amax, sfd_tensor=sfd)


def _outputs(tensors: Arguments, options: Arguments) -> dict[str, Output]:
    a, b = tensors["a_tensor"], tensors["b_tensor"]
    for name, t, axes in (("a_tensor", a, "(M, K, L)"), ("b_tensor", b, "(N, K, L)")):
        checks.check_rank(name, t, axes)
    checks.check_major("d_major", options["d_major"])
    m, batches = a.shape[0], a.shape[2]
    d = matrix_output((m, b.shape[0], batches), options["d_major"], torch_dtype(checks.required_dtype("d_dtype", options["d_dtype"])))
    dprob = Output((m, 1, batches), (batches, batches, 1), torch_dtype("float32"), 0.0)
    return {"d_tensor": d, "dprob_tensor": dprob, **scale_outputs(tensors, d, options)}


def _build(tensors: Arguments, outputs: Arguments, options: Arguments) -> GemmDsrelu:
    return GemmDsrelu(
        tensors["a_tensor"],
        tensors["b_tensor"],
        tensors["c_tensor"],
        outputs["d_tensor"],
        outputs["dprob_tensor"],
        tensors["sfa_tensor"],
        tensors["sfb_tensor"],
        tensors["prob_tensor"],
        sample_sfd=outputs.get("sfd_tensor"),
        sample_amax=outputs.get("amax_tensor"),
        sample_norm_const=tensors["norm_const_tensor"],
        **{name: value for name, value in options.items() if name not in ("d_major", "d_dtype")},
    )


def _operators() -> tuple[Any, Any]:
    from cudnn_gemm_dense.dsrelu import torch_ops

    return torch_ops.gemm_dsrelu, torch_ops.gemm_dsrelu_out


CALLS = WrapperCalls("gemm_dsrelu", gemm_dsrelu_wrapper, GemmDsrelu, _outputs, _build, _operators)

# The published names.
GemmDsreluSm100 = GemmDsrelu
gemm_dsrelu_wrapper_sm100 = gemm_dsrelu_wrapper


def precompile_specs() -> list[KernelSpec]:
    """The kernels worth having before the first call: 16-bit products of row-major tensors, which those of block-scaled ones are as well, both ways to sum dprob, and D quantised to MXFP8."""
    found = []
    choices = [DsreluOptions(dtype, dtype, deterministic=deterministic) for dtype, deterministic in product(("float16", "bfloat16"), (False, True))]
    for options in (*choices, DsreluOptions("bfloat16", "float8_e4m3fn", scale_dtype="float8_e8m0fnu", scale_vec=32)):
        problem = GemmProblem(options.c_dtype, options.c_dtype)
        found += [dsrelu_spec(seen, options, config) for seen, config in kernel_choices(problem, options.footprint)]
    return found
