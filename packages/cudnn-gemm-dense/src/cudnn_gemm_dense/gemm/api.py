"""Plain GEMM: the class `Gemm` and the wrapper `gemm_wrapper`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

from cudnn import checks
from cudnn.cutedsl.epilogue.size import Footprint
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.datatypes import torch_dtype
from cudnn.gemm_layout import GemmLayout, Rule
from cudnn.gemm_operation import OPERAND_DTYPES, Scalars, Tensors
from cudnn.reference import cast
from cudnn.tuple_dict import TupleDict
from cudnn.wrapper_calls import Arguments, Output, WrapperCalls, matrix_output
from cudnn_gemm_dense.gemm.options import GemmOptions, gemm_spec
from cudnn_gemm_dense.gemm.reference import gemm_reference
from cudnn_gemm_dense.operation import DenseOperation, kernel_choices
from cudnn_gemm_dense.scale_factors import (
    SCALE_DTYPES,
    check_fp4_majors,
    check_modes,
    check_operands,
    check_scale_dtypes,
    kernel_dtypes,
    operand_scales,
    read_scales,
    require_scales,
)

if TYPE_CHECKING:
    import torch

    from cudnn.cutedsl.compile import KernelSpec

__all__ = ["Gemm", "gemm_wrapper", "precompile_specs"]

D_DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
VECTOR_DTYPES = ("float32", "float16", "bfloat16")


class Gemm(DenseOperation):
    """D = alpha * A Bᵀ + bias + addend per batch, summed and added in float32, rounded once.

    Tensors (all three axes present; L = 1 is a trailing unit axis):

    =============  ==============  ==============================  =================================================================
    name           shape           contiguous axis                 dtypes
    =============  ==============  ==============================  =================================================================
    a_tensor       (M, K, L)       k or m                          float16, bfloat16, float32 (as TF32), float8_e4m3fn, float8_e5m2, float4_e2m1fn
    b_tensor       (N, K, L)       k or n                          as A, or quantised beside a 16-bit A
    sfa, sfb       blocked         of either form                  float8_e8m0fnu, float8_e4m3fn; optional
    d_tensor       (M, N, L)       n or m                          float32, float16, bfloat16, float8_e4m3fn, float8_e5m2 (saturating)
    addend_tensor  (M, N, L)       as D                            float32, float16, bfloat16
    bias_tensor    (N,), (N, L)    any strides                     float32, float16, bfloat16
    =============  ==============  ==============================  =================================================================

    Matrices may have padded pitches; their addresses and the steps between their lines are multiples of 16 bytes. Extents, alpha and pointers are run-time values. M = 0, N = 0 or L = 0 does
    nothing; K = 0 writes bias + addend. D may be the addend itself.

    fp8 and float32 operands that are not contiguous along K are transposed into scratch memory first, rows x K x L elements each (`workspace_bytes`).

    Args:
        sample_a, sample_b, sample_d: tensors or ``TensorDesc``; only their metadata is read.
        sample_bias, sample_addend: None where there is none.
        sample_sfa, sample_sfb: scale factors of MXFP8, MXFP4 or NVFP4 operands, ``sf_vec_size`` elements along K each: of both, or of B alone beside a bfloat16 or float16 A. Such operands are
            converted in the kernel, or into scratch memory first, 2 x rows x K x L bytes each (`workspace_bytes` counts the most).
        alpha: what ``execute`` takes where it is given none.
        acc_dtype: dtype of the sums: float32 (None).
        mma_tiler_mn, cluster_shape_mn: hints without effect on results; None or two positive integers.
        backend: ``"auto"`` (kernel for CUDA tensors, reference for CPU tensors), ``"sm90"`` or ``"reference"``.
        config: a ``GemmConfig`` or a dict of its fields: build and run this one instead of the default set.
    """

    op = "gemm"
    _swaps = True

    def __init__(
        self,
        sample_a: Any,
        sample_b: Any,
        sample_d: Any,
        sample_bias: Any = None,
        alpha: float = 1.0,
        acc_dtype: Any = None,
        mma_tiler_mn: tuple[int, int] | None = None,
        cluster_shape_mn: tuple[int, int] | None = None,
        *,
        sample_addend: Any = None,
        sample_sfa: Any = None,
        sample_sfb: Any = None,
        sf_vec_size: int = 32,
        backend: str = "auto",
        config: GemmConfig | Mapping[str, object] | None = None,
    ) -> None:
        rules = [Rule("a_tensor", ("m", "k", "l"), "a"), Rule("b_tensor", ("n", "k", "l"), "b"), Rule("d_tensor", ("m", "n", "l"), "out")]
        samples = [("a_tensor", sample_a), ("b_tensor", sample_b), ("d_tensor", sample_d)]
        if sample_addend is not None:
            rules.append(Rule("addend_tensor", ("m", "n", "l"), "out"))
            samples.append(("addend_tensor", sample_addend))
        if sample_bias is not None:
            rules.append(Rule("bias_tensor", ("n", "l")[: max(len(getattr(sample_bias, "shape", ())), 1)]))
            samples.append(("bias_tensor", sample_bias))
        self._scales = read_scales("Gemm", {"sfa_tensor": sample_sfa, "sfb_tensor": sample_sfb})
        self.sf_vec_size = checks.as_integer("sf_vec_size", sf_vec_size) if self._scales is not None else 0
        scaled = [(i, name, t) for i, name, t in ((0, "sfa_tensor", sample_sfa), (1, "sfb_tensor", sample_sfb)) if t is not None]
        layout = GemmLayout(rules, compact=False, whole_lines=False)
        super().__init__(samples, layout, scales=self._scales, scaled=scaled, sf_vec_size=self.sf_vec_size, backend=backend, config=config)
        self._has_addend, self._has_bias = sample_addend is not None, sample_bias is not None
        self._bare = self._scales is None and not self._has_addend and not self._has_bias
        self.alpha = checks.as_scalar("alpha", alpha)
        self.acc_dtype = checks.required_dtype("acc_dtype", "float32" if acc_dtype is None else acc_dtype)
        checks.check_free_hints(mma_tiler_mn, cluster_shape_mn)

    def _constructor_arguments(self) -> dict[str, Any]:
        scaled = {} if self._scales is None else {"sf_vec_size": self.sf_vec_size}
        return {"alpha": self.alpha, "acc_dtype": self.acc_dtype, **scaled, "backend": self.backend, "config": self.config}

    def _check(self) -> tuple[GemmProblem, GemmOptions, dict[str, str]]:
        metas, scales = self._samples, self._scales
        a, b = metas[0].dtype, metas[1].dtype
        check_operands(a, [("b_tensor", b)], scales, (*OPERAND_DTYPES, "float32"))
        if scales is not None:
            require_scales(scales, operand_scales(a))
            if self.sf_vec_size not in (16, 32):
                raise ValueError(f"sf_vec_size: found {self.sf_vec_size}, needs 16 or 32")
            check_scale_dtypes(scales, ("sfa_tensor", "sfb_tensor"), SCALE_DTYPES)
            check_modes([("sfa_tensor", a), ("sfb_tensor", b)], scales, self.sf_vec_size)
        checks.check_dtype("acc_dtype", self.acc_dtype, ("float32",))
        d, addend, bias = (self._dtype(name) for name in ("d_tensor", "addend_tensor", "bias_tensor"))
        checks.check_dtype("d_tensor", d, D_DTYPES)
        for name, dtype in (("addend_tensor", addend), ("bias_tensor", bias)):
            if dtype is not None:
                checks.check_dtype(name, dtype, VECTOR_DTYPES)
        self._layout.extents(metas)
        majors = self._layout.majors(metas)
        check_fp4_majors([("a_tensor", a, majors["a"]), ("b_tensor", b, majors["b"])])
        self._layout.check_lines(metas, majors)
        self._check_extents(metas)
        problem = GemmProblem(*kernel_dtypes(a, b, scales), "float32", majors["a"], majors["b"])
        bias_rank = 1 if bias is None else len(metas[self._layout.names.index("bias_tensor")].shape)
        return problem, GemmOptions(d, majors["out"], addend, bias, bias_rank), majors

    def _spec(self, problem: GemmProblem, options: GemmOptions, config: GemmConfig) -> KernelSpec:
        return gemm_spec(problem, options.swapped if config.swap else options, config)

    def _footprint(self, options: GemmOptions) -> Footprint:
        return options.footprint

    def execute(
        self,
        a_tensor: Any,
        b_tensor: Any,
        d_tensor: Any,
        bias_tensor: Any = None,
        alpha: float | None = None,
        current_stream: Any = None,
        *,
        addend_tensor: Any = None,
        sfa_tensor: Any = None,
        sfb_tensor: Any = None,
        workspace: Any = None,
    ) -> None:
        """Write D. On CUDA tensors this launches one kernel (two or three where an operand is transposed first) and returns without waiting.

        Args:
            a_tensor, b_tensor, d_tensor, bias_tensor, addend_tensor: as the samples in dtype, major and kind of device; extents are free.
            sfa_tensor, sfb_tensor: as the samples, or None as they were.
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
        if (addend_tensor is not None) != self._has_addend or (bias_tensor is not None) != self._has_bias:
            raise ValueError(f"addend_tensor, bias_tensor: found {_given(addend_tensor, bias_tensor)}, needs them given or None as the samples were")
        if self._bare and sfa_tensor is sfb_tensor is None:
            self._run((a_tensor, b_tensor, d_tensor), (alpha,), current_stream, workspace)
            return
        scales = self._given({"sfa_tensor": sfa_tensor, "sfb_tensor": sfb_tensor})
        optional = [t for t in (addend_tensor, bias_tensor) if t is not None]
        self._run((a_tensor, b_tensor, d_tensor, *optional, *scales), (alpha,), current_stream, workspace)

    def _reference(self, tensors: Tensors, scalars: Scalars) -> None:
        t = dict(zip(self._layout.names, tensors, strict=False))
        d = gemm_reference(t["a_tensor"], t["b_tensor"], scalars[0], bias=t.get("bias_tensor"), addend=t.get("addend_tensor"))
        t["d_tensor"].copy_(cast(d, t["d_tensor"].dtype))

    def _call_traced(self, tensors: Tensors, scalars: Scalars) -> None:
        t = dict(zip(self._layout.names, tensors, strict=True))
        outputs = {"d_tensor": t.pop("d_tensor")}
        CALLS.execute_traced(self, t, outputs, scalars[0])


def _given(addend: Any, bias: Any) -> str:
    return " and ".join(f"{name} {'None' if t is None else 'given'}" for name, t in (("addend_tensor", addend), ("bias_tensor", bias)))


def gemm_wrapper(
    a_tensor: torch.Tensor,
    b_tensor: torch.Tensor,
    *,
    bias_tensor: torch.Tensor | None = None,
    alpha: float = 1.0,
    d_dtype: Any = None,
    d_major: str = "n",
    acc_dtype: Any = None,
    mma_tiler_mn: tuple[int, int] | None = None,
    cluster_shape_mn: tuple[int, int] | None = None,
    stream: Any = None,
    addend_tensor: torch.Tensor | None = None,
    sfa_tensor: torch.Tensor | None = None,
    sfb_tensor: torch.Tensor | None = None,
    sf_vec_size: int = 32,
    backend: str = "auto",
    config: GemmConfig | Mapping[str, object] | None = None,
) -> TupleDict:
    """`Gemm` in one call: allocates D and keeps the compiled object for later calls of the same dtypes and majors.

    Args:
        a_tensor: (M, K, L).
        b_tensor: (N, K, L).
        bias_tensor: (N,) or (N, L), added to every row; None for none.
        alpha: factor on the product.
        d_dtype: dtype of D in any spelling; None is A's, and bfloat16 for fp8 operands.
        d_major: the contiguous axis of D: ``"n"`` or ``"m"``.
        addend_tensor: (M, N, L), contiguous along the same axis as D; None for none.
        sfa_tensor, sfb_tensor, sf_vec_size: scale factors of block-scaled operands, see `Gemm`.
        stream: where to launch; None is torch's current stream on the tensors' device. With another stream than the current one D is allocated there, and all tensors are recorded on both,
            so that none is recycled while the kernel needs it; the caller still waits for that stream before using them.

    The other arguments, and the tensors' dtypes and layouts: see `Gemm`.

    Returns:
        TupleDict with ``d_tensor`` (M, N, L). Not differentiable: it carries no gradient. Under torch.compile this is the one operator ``cudnn::gemm``.

    Raises:
        As ``Gemm.check_support``, before anything is allocated.
    """
    if type(alpha) is not float:
        alpha = checks.as_scalar("alpha", alpha)
    tensors = {
        "a_tensor": a_tensor,
        "b_tensor": b_tensor,
        "bias_tensor": bias_tensor,
        "addend_tensor": addend_tensor,
        "sfa_tensor": sfa_tensor,
        "sfb_tensor": sfb_tensor,
    }
    options = {
        "d_dtype": d_dtype,
        "d_major": d_major,
        "acc_dtype": acc_dtype,
        "mma_tiler_mn": mma_tiler_mn,
        "cluster_shape_mn": cluster_shape_mn,
        "sf_vec_size": sf_vec_size,
        "backend": backend,
        "config": config,
    }
    return TupleDict(CALLS(tensors, {"alpha": alpha}, options, stream))


def _outputs(tensors: Arguments, options: Arguments) -> dict[str, Output]:
    a, b = tensors["a_tensor"], tensors["b_tensor"]
    for name, t, axes in (("a_tensor", a, "(M, K, L)"), ("b_tensor", b, "(N, K, L)")):
        checks.check_rank(name, t, axes)
    checks.check_major("d_major", options["d_major"])
    dtype = options["d_dtype"]
    if dtype is None:
        dtype = a.dtype if a.dtype.itemsize > 1 else "bfloat16"
    return {"d_tensor": matrix_output((a.shape[0], b.shape[0], a.shape[2]), options["d_major"], torch_dtype(checks.required_dtype("d_dtype", dtype)))}


def _build(tensors: Arguments, outputs: Arguments, options: Arguments) -> Gemm:
    return Gemm(
        tensors["a_tensor"],
        tensors["b_tensor"],
        outputs["d_tensor"],
        tensors["bias_tensor"],
        sample_addend=tensors["addend_tensor"],
        sample_sfa=tensors["sfa_tensor"],
        sample_sfb=tensors["sfb_tensor"],
        **{name: options[name] for name in ("acc_dtype", "mma_tiler_mn", "cluster_shape_mn", "sf_vec_size", "backend", "config")},
    )


def _operators() -> tuple[Any, Any]:
    from cudnn_gemm_dense.gemm import torch_ops

    return torch_ops.gemm, torch_ops.gemm_out


CALLS = WrapperCalls("gemm", gemm_wrapper, Gemm, _outputs, _build, _operators)


def precompile_specs() -> list[KernelSpec]:
    """The kernels worth having before the first call: 16-bit products in every arrangement of operands, as linear layers and their gradients use them."""
    found = []
    for dtype in ("float16", "bfloat16"):
        cases = [(majors, GemmOptions(dtype)) for majors in product("km", "kn")]
        cases += [
            (("k", "k"), GemmOptions("float32")),
            (("k", "k"), GemmOptions(dtype, bias_dtype=dtype)),
            (("k", "n"), GemmOptions(dtype, addend_dtype=dtype)),
        ]
        for (a_major, b_major), options in cases:
            problem = GemmProblem(dtype, dtype, "float32", a_major, b_major)
            for seen, config in kernel_choices(problem, options.footprint, swaps=True):
                found.append(gemm_spec(seen, options.swapped if config.swap else options, config))
    return found
