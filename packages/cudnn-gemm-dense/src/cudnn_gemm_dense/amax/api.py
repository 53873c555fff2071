"""GEMM + amax: the class `GemmAmax` and the wrapper `gemm_amax_wrapper`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

from cudnn import checks
from cudnn.cutedsl.epilogue.size import Footprint
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.datatypes import torch_dtype
from cudnn.fp4 import encode_e2m1, pack_fp4
from cudnn.gemm_layout import GemmLayout, Rule
from cudnn.gemm_operation import OPERAND_DTYPES, Scalars, Tensors
from cudnn.gemm_scratch import as_bytes
from cudnn.reference import cast, merge_amax
from cudnn.tuple_dict import TupleDict
from cudnn.wrapper_calls import Arguments, Output, WrapperCalls, matrix_output
from cudnn_gemm_dense import scale_factors
from cudnn_gemm_dense.amax import block_scaled
from cudnn_gemm_dense.gemm.options import GemmOptions, gemm_spec
from cudnn_gemm_dense.gemm.reference import gemm_reference
from cudnn_gemm_dense.operation import DenseOperation, kernel_choices
from cudnn_gemm_dense.scale_factors import FP4, FP8

if TYPE_CHECKING:
    import torch

    from cudnn.cutedsl.compile import KernelSpec

__all__ = ["GemmAmax", "GemmAmaxSm100", "gemm_amax_wrapper", "gemm_amax_wrapper_sm100", "precompile_specs"]

C_DTYPES = ("float32", "float16", "bfloat16", *FP8)


class GemmAmax(DenseOperation):
    """C = A Bᵀ per batch, and amax = max(amax, the largest magnitude of A Bᵀ over all rows, columns and batches).

    amax is taken in float32, before C is rounded, and merged into what the buffer holds: fill it with -inf or 0 before each call. The maximum is exact and the same in any order; NaN in C does
    not count, and one in the buffer stays.

    Tensors (all three axes present; L = 1 is a trailing unit axis):

    ===========  =====================  ====================  =======================================================
    name         shape                  compact strides       dtypes
    ===========  =====================  ====================  =======================================================
    a_tensor     (M, K, L)              k-major or m-major    float16, bfloat16, float8_e4m3fn, float8_e5m2, float4_e2m1fn
    b_tensor     (N, K, L)              k-major or n-major    as A, or quantised beside a 16-bit A
    sfa, sfb     blocked, six axes      of either form        float8_e8m0fnu, float8_e4m3fn; int8 for e8m0
    c_tensor     (M, N, L)              n-major or m-major    float32, float16, bfloat16; saturating fp8, float4_e2m1fn
    amax_tensor  (1, 1, 1) or fewer     any                   float32
    ===========  =====================  ====================  =======================================================

    The contiguous extent of each matrix is a multiple of 16 bytes, and its address too. Extents and pointers are run-time values. M = 0, N = 0 or L = 0 does nothing; K = 0 writes zeros.

    fp8 C is for 16-bit and 4-bit operands, a packed 4-bit C, (M, N/2, L) n-major, for 4-bit ones. 4-bit operands are k-major and packed, (rows, K/2, L), and may come as uint8.

    fp8 operands without scale factors that are not contiguous along K are transposed into scratch memory first, rows x K x L bytes each; operands with scale factors are converted into it, 2 x rows x K x L
    bytes each (`workspace_bytes`).

    Args:
        sample_a, sample_b, sample_c, sample_amax: tensors or ``TensorDesc``; only their metadata is read.
        sample_sfa, sample_sfb: scale factors of MXFP8, MXFP4 or NVFP4 operands, ``sf_vec_size`` elements along K each: of both, or of B alone beside a bfloat16 or float16 A.
        acc_dtype: dtype of the sums, float32.
        mma_tiler_mn, cluster_shape_mn: hints; checked against the published values (tile (128, 128) or (128, 256); cluster entries 1, 2 or 4), and without effect on results.
        backend: ``"auto"`` (kernel for CUDA tensors, reference for CPU tensors), ``"sm90"`` or ``"reference"``.
        config: a ``GemmConfig`` or a dict of its fields: build and run this one instead of the default set.
    """

    op = "gemm_amax"

    def __init__(
        self,
        sample_a: Any,
        sample_b: Any,
        sample_sfa: Any = None,
        sample_sfb: Any = None,
        sample_c: Any = None,
        sample_amax: Any = None,
        acc_dtype: Any = "float32",
        mma_tiler_mn: tuple[int, int] = (128, 128),
        cluster_shape_mn: tuple[int, int] = (1, 1),
        sf_vec_size: int = 32,
        *,
        backend: str = "auto",
        config: GemmConfig | Mapping[str, object] | None = None,
    ) -> None:
        rank = len(getattr(sample_amax, "shape", ())) or 1
        rules = (
            Rule("a_tensor", ("m", "k", "l"), "a"),
            Rule("b_tensor", ("n", "k", "l"), "b"),
            Rule("c_tensor", ("m", "n", "l"), "out"),
            Rule("amax_tensor", (1,) * rank),
        )
        samples = [("a_tensor", sample_a), ("b_tensor", sample_b), ("c_tensor", sample_c), ("amax_tensor", sample_amax)]
        self._scales = scale_factors.read_scales("GemmAmax", {"sfa_tensor": sample_sfa, "sfb_tensor": sample_sfb})
        self.sf_vec_size = checks.as_integer("sf_vec_size", sf_vec_size)
        scaled = [(i, name, t) for i, name, t in ((0, "sfa_tensor", sample_sfa), (1, "sfb_tensor", sample_sfb)) if t is not None]
        super().__init__(
            samples, GemmLayout(rules, compact=True), scales=self._scales, scaled=scaled, sf_vec_size=self.sf_vec_size, backend=backend, config=config
        )
        if scaled:
            self._packed |= {2}
            self._samples = self._unpacked(self._samples)
        if self._samples[2].dtype == FP4:
            self._views[2] = as_bytes
        if not self._samples[3].shape:
            self._samples = (*self._samples[:3], self._samples[3]._replace(shape=(1,), stride=(1,)), *self._samples[4:])
        self.acc_dtype = checks.required_dtype("acc_dtype", acc_dtype)
        self.mma_tiler_mn = checks.as_pair("mma_tiler_mn", mma_tiler_mn)
        self.cluster_shape_mn = checks.as_pair("cluster_shape_mn", cluster_shape_mn)

    def _constructor_arguments(self) -> dict[str, Any]:
        return {
            "acc_dtype": self.acc_dtype,
            "mma_tiler_mn": self.mma_tiler_mn,
            "cluster_shape_mn": self.cluster_shape_mn,
            "sf_vec_size": self.sf_vec_size,
            "backend": self.backend,
            "config": self.config,
        }

    def _check(self) -> tuple[GemmProblem, GemmOptions, dict[str, str]]:
        scales, metas = self._scales, self._samples
        a, b, c, amax = (meta.dtype for meta in metas[:4])
        mixed = scale_factors.check_operands(a, [("b_tensor", b)], scales, OPERAND_DTYPES, block_scaled.OPERAND_DTYPES)
        if scales is not None:
            block_scaled.check_dtypes(a, b, scales, self.sf_vec_size)
        if scales is None or mixed:
            checks.check_dtype("c_tensor", c, C_DTYPES)
        else:
            block_scaled.check_c_dtype(a, c)
        if c in FP8 and a in FP8:
            raise NotImplementedError(f"c_tensor: {c} with {a} operands is not implemented; use float32, float16 or bfloat16")
        checks.check_dtype("acc_dtype", self.acc_dtype, ("float32",))
        checks.check_dtype("amax_tensor", amax, ("float32",))
        extents = self._layout.extents(metas)
        if scales is not None:
            block_scaled.check_scales(scales, extents, self.sf_vec_size)
        majors = self._layout.majors(metas)
        if scales is not None:
            block_scaled.check_majors(a, b, c, majors)
        tile, cluster = self.mma_tiler_mn, self.cluster_shape_mn
        if not set(tile) <= {128, 256}:
            raise ValueError(f"mma_tiler_mn: found {tile}, needs 128 or 256 for both entries")
        if tile[0] == 256:
            raise NotImplementedError(f"mma_tiler_mn: {tile} is not implemented; use (128, 128) or (128, 256)")
        if scales is not None:
            block_scaled.check_rest(a, c, majors, extents, tile, self.sf_vec_size)
        if not set(cluster) <= {1, 2, 4}:
            raise ValueError(f"cluster_shape_mn: found {cluster}, needs 1, 2 or 4 for both entries")
        self._layout.check_lines(metas, majors)
        return (
            GemmProblem(*scale_factors.kernel_dtypes(a, b, scales), "float32", majors["a"], majors["b"]),
            GemmOptions(c, majors["out"], amax_rank=len(metas[3].shape)),
            majors,
        )

    def _spec(self, problem: GemmProblem, options: GemmOptions, config: GemmConfig) -> KernelSpec:
        return gemm_spec(problem, options, config, "gemm_amax")

    def _footprint(self, options: GemmOptions) -> Footprint:
        return options.footprint

    @property
    def _constant_scalars(self) -> Scalars:
        return (1.0,)

    def execute(
        self,
        a_tensor: Any,
        b_tensor: Any,
        sfa_tensor: Any = None,
        sfb_tensor: Any = None,
        c_tensor: Any = None,
        amax_tensor: Any = None,
        current_stream: Any = None,
        *,
        workspace: Any = None,
    ) -> None:
        """Write C and merge the largest magnitude into amax. On CUDA tensors this launches one kernel (two or three where an operand is transposed first) and returns without waiting.

        Args:
            a_tensor, b_tensor, c_tensor, amax_tensor: as the samples in dtype, major and kind of device; extents are free.
            sfa_tensor, sfb_tensor: as the samples, or None as they were.
            current_stream: a CUstream, torch stream or raw handle; None is torch's current stream on the tensors' device. CPU tensors have no stream, and it is not looked at.
            workspace: uint8 scratch memory, see ``workspace_bytes``; None takes it from torch's allocator on the launch stream.

        Raises:
            RuntimeError: not compiled.
            ValueError: a tensor differs from what the object was compiled for, the tensors do not fit each other, an address is not a multiple of 16 bytes.
        """
        plain = self._scales is None and sfa_tensor is sfb_tensor is None
        scales = () if plain else self._given({"sfa_tensor": sfa_tensor, "sfb_tensor": sfb_tensor})
        if amax_tensor is not None and not amax_tensor.shape:
            amax_tensor = amax_tensor.reshape(1)
        self._run((a_tensor, b_tensor, c_tensor, amax_tensor, *scales), self._constant_scalars, current_stream, workspace)

    def _reference(self, tensors: Tensors, scalars: Scalars) -> None:
        a, b, c, amax = tensors
        product_ = gemm_reference(a, b)
        if 2 in self._views:
            as_bytes(c).copy_(pack_fp4(encode_e2m1(product_), 1))
        else:
            c.copy_(cast(product_, c.dtype))
        merge_amax(amax, product_)

    def _call_traced(self, tensors: Tensors, scalars: Scalars) -> None:
        named = dict(zip(self._layout.names, tensors, strict=True))
        outputs = {name: named.pop(name) for name in ("c_tensor", "amax_tensor")}
        CALLS.execute_traced(self, named, outputs)


def gemm_amax_wrapper(
    a_tensor: torch.Tensor,
    b_tensor: torch.Tensor,
    sfa_tensor: torch.Tensor | None = None,
    sfb_tensor: torch.Tensor | None = None,
    c_major: str = "n",
    c_dtype: Any = "float32",
    acc_dtype: Any = "float32",
    mma_tiler_mn: tuple[int, int] = (128, 128),
    cluster_shape_mn: tuple[int, int] = (1, 1),
    sf_vec_size: int = 32,
    stream: Any = None,
    *,
    backend: str = "auto",
    config: GemmConfig | Mapping[str, object] | None = None,
) -> TupleDict:
    """`GemmAmax` in one call: allocates the outputs, amax filled with -inf, and keeps the compiled object for later calls of the same dtypes and majors.

    Args:
        a_tensor: (M, K, L).
        b_tensor: (N, K, L).
        c_major: the contiguous axis of C: ``"n"`` or ``"m"``.
        c_dtype: dtype of C, in any spelling.
        stream: where to launch; None is torch's current stream on the tensors' device. With another stream than the current one the outputs are allocated there, and all tensors are recorded on
            both, so that none is recycled while the kernel needs it; the caller still waits for that stream before using them.

    The other arguments, and the tensors' dtypes and layouts: see `GemmAmax`.

    Returns:
        TupleDict with ``c_tensor`` (M, N, L) and ``amax_tensor`` (1, 1, 1) in float32. Not differentiable: they carry no gradient. Under torch.compile this is the one operator
        ``cudnn::gemm_amax``.

    Raises:
        As ``GemmAmax.check_support``, before anything is allocated.
    """
    tensors = {"a_tensor": a_tensor, "b_tensor": b_tensor, "sfa_tensor": sfa_tensor, "sfb_tensor": sfb_tensor}
    options = {
        "c_major": c_major,
        "c_dtype": c_dtype,
        "acc_dtype": acc_dtype,
        "mma_tiler_mn": mma_tiler_mn,
        "cluster_shape_mn": cluster_shape_mn,
        "sf_vec_size": sf_vec_size,
        "backend": backend,
        "config": config,
    }
    return TupleDict(CALLS(tensors, {}, options, stream))


def _outputs(tensors: Arguments, options: Arguments) -> dict[str, Output]:
    a, b = tensors["a_tensor"], tensors["b_tensor"]
    for name, t, axes in (("a_tensor", a, "(M, K, L)"), ("b_tensor", b, "(N, K, L)")):
        checks.check_rank(name, t, axes)
    checks.check_major("c_major", options["c_major"])
    dtype = checks.required_dtype("c_dtype", options["c_dtype"])
    rows, columns = a.shape[0], b.shape[0]
    if dtype in (FP4, "uint8"):  # two in a byte
        rows, columns = (rows, columns // 2) if options["c_major"] == "n" else (rows // 2, columns)
    c = matrix_output((rows, columns, a.shape[2]), options["c_major"], torch_dtype(dtype))
    return {"c_tensor": c, "amax_tensor": Output((1, 1, 1), (1, 1, 1), torch_dtype("float32"), float("-inf"))}


def _build(tensors: Arguments, outputs: Arguments, options: Arguments) -> GemmAmax:
    return GemmAmax(
        tensors["a_tensor"],
        tensors["b_tensor"],
        tensors["sfa_tensor"],
        tensors["sfb_tensor"],
        outputs["c_tensor"],
        outputs["amax_tensor"],
        **{name: options[name] for name in ("acc_dtype", "mma_tiler_mn", "cluster_shape_mn", "sf_vec_size", "backend", "config")},
    )


def _operators() -> tuple[Any, Any]:
    from cudnn_gemm_dense.amax import torch_ops

    return torch_ops.gemm_amax, torch_ops.gemm_amax_out


CALLS = WrapperCalls("gemm_amax", gemm_amax_wrapper, GemmAmax, _outputs, _build, _operators, has_alpha=False)

# The published names.
GemmAmaxSm100 = GemmAmax
gemm_amax_wrapper_sm100 = gemm_amax_wrapper


def precompile_specs() -> list[KernelSpec]:
    """The kernels worth having before the first call: 16-bit products of row-major tensors, with the wrapper's amax."""
    found = []
    for dtype, c_dtype in product(("float16", "bfloat16"), ("same", "float32")):
        options = GemmOptions(dtype if c_dtype == "same" else c_dtype, amax_rank=3)
        problem = GemmProblem(dtype, dtype)
        found += [gemm_spec(seen, options, config, "gemm_amax") for seen, config in kernel_choices(problem, options.footprint)]
    return found
