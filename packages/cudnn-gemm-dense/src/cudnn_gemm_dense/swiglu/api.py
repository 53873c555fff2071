"""GEMM + SwiGLU: the class `GemmSwiglu` and the wrapper `gemm_swiglu_wrapper`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from cudnn import checks
from cudnn.cutedsl.epilogue.size import Footprint
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.cutedsl.transpose import TransposeSpec
from cudnn.datatypes import dtype_name, torch_dtype
from cudnn.gemm_layout import GemmLayout, Rule
from cudnn.gemm_operation import Scalars, Tensors, pack
from cudnn.reference import GLU_LAYOUTS
from cudnn.tensor_desc import TensorDesc
from cudnn.tensors import Metadata
from cudnn.tuple_dict import TupleDict
from cudnn.wrapper_calls import Arguments, Output, WrapperCalls, describe, matrix_output
from cudnn_gemm_dense.operation import DenseOperation, kernel_choices
from cudnn_gemm_dense.scale_factors import FP8, amax_output, block_size, kernel_dtypes, read_scales, scale_output
from cudnn_gemm_dense.swiglu.block_scaled import check_block_scaled
from cudnn_gemm_dense.swiglu.kernel import swiglu_spec
from cudnn_gemm_dense.swiglu.options import SwigluOptions
from cudnn_gemm_dense.swiglu.shapes import B_PARTS, check_columns, check_glu_layout, forward_layout, named_b, named_sfb, rows_of_b

if TYPE_CHECKING:
    import torch

    from cudnn.cutedsl.compile import KernelSpec

__all__ = ["GemmSwiglu", "GemmSwigluSm100", "gemm_swiglu_wrapper", "gemm_swiglu_wrapper_sm100", "precompile_specs"]

OPERAND_DTYPES = {
    "float32": ("float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2"),
    "float16": ("float16", "float8_e4m3fn", "float8_e5m2"),
}
AB12_DTYPES = {"float32": ("float32", "float16", "bfloat16"), "float16": ("float16", "bfloat16")}
C_DTYPES = ("float16", "bfloat16")
TILE_N = tuple(range(32, 257, 32))


class GemmSwiglu(DenseOperation):
    """S = alpha * A Bᵀ per batch, AB12 = S, C = up * gate * sigmoid(gate).

    up and gate are the halves of S's columns that ``glu_layout`` names, and the activation is taken of S before it is rounded to AB12's dtype:

    - ``"interleaved32"`` (the default, the published layout): blocks of 32 columns in turn, up first. C[:, 32 b + j] joins up S[:, 64 b + j] and gate
      S[:, 64 b + 32 + j]. N is a multiple of 64.
    - ``"concatenated"``: B's rows, and so AB12's columns, are [gate | up].
    - ``"separate"``: ``b_tensor`` is the pair (gate, up), each (N/2, K, L); AB12 is [gate | up].

    Tensors (all three axes present; L = 1 is a trailing unit axis):

    | name     | shape       | compact strides    | dtypes                                                   |
    |----------|-------------|--------------------|----------------------------------------------------------|
    | a_tensor | (M, K, L)   | k-major or m-major | float16, bfloat16, float32, float8_e4m3fn, float8_e5m2   |
    | b_tensor | (N, K, L)   | k-major or n-major | as A                                                     |
    | ab12     | (M, N, L)   | n-major or m-major | float32, float16, bfloat16 (float16 sums: the last two)  |
    | c        | (M, N/2, L) | as AB12            | float16, bfloat16                                        |

    The contiguous extent of each is a multiple of 16 bytes, and its address too. On compute capability 9.0 a kernel runs, on CPU tensors the reference.

    The matrix units take float32 operands as TF32, without the lower 13 bits (the reference keeps them). fp8 products are summed in float32 every 128 along K. float16 sums are for float16 and fp8
    operands; S is then what float16 holds, and so is the error.

    fp8 and float32 operands that are not k-major are transposed into scratch memory first: rows * K * L elements each, K rounded up to 16 bytes (``workspace_bytes``).

    A compiled object is bound to dtypes, majors and configuration, not to extents: ``execute`` takes any M, N, K, L, which the tensors agree on, and any alpha.
    M = 0, N = 0 or L = 0 does nothing; K = 0 writes zeros.

    Args:
        sample_a, sample_b, sample_ab12, sample_c: tensors or ``TensorDesc``; only their metadata is read.
        alpha: kept for the published signature; ``execute`` has its own, with the default 1.0.
        acc_dtype: dtype of the sums, float32 or float16.
        mma_tiler_mn, cluster_shape_mn: hints; checked against the published values (tile 128 or 256 by a multiple of 32 up to 256; cluster (1, 1) for
            tiles of 128 rows), and without effect on results. None for the cluster takes (2, 2) or (1, 1).
        sample_sfa, sample_sfb: scale factors of MXFP8, MXFP4 or NVFP4 operands, ``sf_vec_size`` elements along K each: of both, or of B alone beside a bfloat16 or float16 A; of separate weights the
            pair. Such operands are converted in the kernel, or into scratch memory first, 2 x rows x K x L bytes each. C may be float32 then, and AB12 of 4-bit operands fp8 (saturating), as published.
        sample_amax: the largest magnitude of C before rounding is merged into it; with scale factors alone, and needed for 4-bit operands with a bfloat16 C.
        sample_sfc, sample_norm_const: checked, and without a use, as an fp8 C is refused.
        vector_f32, ab12_stages: hints without effect.
        glu_layout: where gate and up lie.
        backend: ``"auto"`` (kernel for CUDA tensors, reference for CPU tensors), ``"sm90"`` or ``"reference"``.
        config: a ``GemmConfig`` or a dict of its fields: build and run this one instead of the default set.
    """

    op = "gemm_swiglu"

    def __init__(
        self,
        sample_a: Any,
        sample_b: Any,
        sample_ab12: Any,
        sample_c: Any,
        alpha: float = 1.0,
        acc_dtype: Any = "float32",
        mma_tiler_mn: tuple[int, int] = (128, 128),
        cluster_shape_mn: tuple[int, int] | None = None,
        sample_sfa: Any = None,
        sample_sfb: Any = None,
        sample_amax: Any = None,
        sample_sfc: Any = None,
        sample_norm_const: Any = None,
        sf_vec_size: int = 16,
        vector_f32: bool = False,
        ab12_stages: int = 4,
        *,
        glu_layout: str = "interleaved32",
        backend: str = "auto",
        config: GemmConfig | Mapping[str, object] | None = None,
    ) -> None:
        check_glu_layout(glu_layout)
        halves = named_b(sample_b, glu_layout)
        samples = [("a_tensor", sample_a), *halves, ("ab12_tensor", sample_ab12), ("c_tensor", sample_c)]
        factors = named_sfb(sample_sfb, glu_layout)
        scales = {"sfa_tensor": sample_sfa, **dict(factors), "amax_tensor": sample_amax, "sfc_tensor": sample_sfc, "norm_const_tensor": sample_norm_const}
        self._scales = read_scales("GemmSwiglu", scales)
        self.sf_vec_size = checks.as_integer("sf_vec_size", sf_vec_size) if self._scales is not None else 0
        layout = forward_layout(glu_layout, compact=True)
        if sample_amax is not None:
            layout = GemmLayout((*layout.rules, Rule("amax_tensor", (1,) * max(len(getattr(sample_amax, "shape", ())), 1))), compact=True)
            samples.append(("amax_tensor", sample_amax))
        scaled = [(i, name, t) for i, (name, t) in enumerate((("sfa_tensor", sample_sfa), *factors)) if t is not None]
        super().__init__(
            samples, layout, operands=1 + len(halves), scales=self._scales, scaled=scaled, sf_vec_size=self.sf_vec_size, backend=backend, config=config
        )
        self.alpha = checks.as_scalar("alpha", alpha)
        self.acc_dtype = checks.required_dtype("acc_dtype", acc_dtype)
        self.mma_tiler_mn = checks.as_pair("mma_tiler_mn", mma_tiler_mn)
        default_cluster = (2, 2) if self.mma_tiler_mn[0] == 256 else (1, 1)
        self.cluster_shape_mn = default_cluster if cluster_shape_mn is None else checks.as_pair("cluster_shape_mn", cluster_shape_mn)
        self.vector_f32 = bool(vector_f32)
        self.ab12_stages = checks.as_integer("ab12_stages", ab12_stages)
        self.glu_layout = glu_layout

    def _constructor_arguments(self) -> dict[str, Any]:
        return {
            "acc_dtype": self.acc_dtype,
            "mma_tiler_mn": self.mma_tiler_mn,
            "cluster_shape_mn": self.cluster_shape_mn,
            **({"sf_vec_size": self.sf_vec_size} if self._scales is not None else {}),
            "glu_layout": self.glu_layout,
            "backend": self.backend,
            "config": self.config,
        }

    def _check(self) -> tuple[GemmProblem, SwigluOptions, dict[str, str]]:
        metas = self._samples
        a, b, ab12, c = (metas[i].dtype for i in (0, 1, self._operands, self._operands + 1))
        hints = self.mma_tiler_mn, self.cluster_shape_mn
        if self._scales is not None:
            majors = check_block_scaled(self._layout, self._operands, metas, self._scales, self.sf_vec_size, self.acc_dtype, *hints, self.glu_layout)
        else:
            self._layout.extents(metas)
            majors = self._layout.majors(metas)
            self._check_dtypes()
            checks.check_tile_and_cluster(*hints, tile_n=TILE_N, single_cta_cluster=True)
            self._check_extents(metas)
            self._layout.check_lines(metas, majors)
        problem = GemmProblem(*kernel_dtypes(a, b, self._scales), self.acc_dtype, majors["a"], majors["b"], B_PARTS[self.glu_layout])
        amax_rank = len(metas[self._operands + 2].shape) if "amax_tensor" in self._layout.names else 0
        return problem, SwigluOptions(ab12, c, majors["out"], self.glu_layout, amax_rank=amax_rank), majors

    def _check_dtypes(self) -> None:
        a, *halves, ab12, c = (meta.dtype for meta in self._samples)
        checks.check_dtype("a_tensor", a, OPERAND_DTYPES["float32"])
        checks.check_dtype("acc_dtype", self.acc_dtype, tuple(AB12_DTYPES))
        fp8_ab12 = self.acc_dtype == "float32" and ab12 in ("float8_e4m3fn", "float8_e5m2")
        if not fp8_ab12:
            checks.check_dtype("ab12_tensor", ab12, AB12_DTYPES[self.acc_dtype], f" with acc_dtype {self.acc_dtype}")
        checks.check_dtype("a_tensor", a, OPERAND_DTYPES[self.acc_dtype], f" with acc_dtype {self.acc_dtype}")
        if fp8_ab12:
            raise NotImplementedError(f"ab12_tensor: {ab12} is not implemented with float32 sums; use one of {', '.join(AB12_DTYPES['float32'])}")
        checks.check_dtype("c_tensor", c, C_DTYPES)
        for name, b in zip(self._layout.names[1:], halves, strict=False):
            if b != a:
                raise ValueError(f"{name}: found dtype {b} while a_tensor has {a}, needs equal dtypes; cast one, under autocast by hand")

    def _check_extents(self, metas: Sequence[Metadata]) -> None:
        check_columns(rows_of_b(metas[1 : self._operands]), self.glu_layout)
        super()._check_extents(metas)

    def _spec(self, problem: GemmProblem, options: SwigluOptions, config: GemmConfig) -> KernelSpec:
        return swiglu_spec(problem, options, config)

    def _footprint(self, options: SwigluOptions) -> Footprint:
        return options.footprint

    def execute(
        self,
        a_tensor: Any,
        b_tensor: Any,
        ab12_tensor: Any,
        c_tensor: Any,
        sfa_tensor: Any = None,
        sfb_tensor: Any = None,
        amax_tensor: Any = None,
        sfc_tensor: Any = None,
        norm_const_tensor: Any = None,
        alpha: float = 1.0,
        current_stream: Any = None,
        *,
        workspace: Any = None,
    ) -> None:
        """Write AB12 and C. On CUDA tensors this launches one kernel and returns: no allocation, no wait, nothing read from the device. Operands that have to be transposed first add a kernel each,
        and scratch memory.

        Args:
            a_tensor, b_tensor, ab12_tensor, c_tensor: as the samples in dtype, major and kind of device; extents are free.
            sfa_tensor, sfb_tensor, amax_tensor, sfc_tensor, norm_const_tensor: as the samples, or None as they were.
            alpha: factor on the product, a number on the host.
            current_stream: a CUstream, torch stream or raw handle; None is torch's current stream on the tensors' device. 0 is the legacy default stream.
                CPU tensors have no stream, and it is not looked at.
            workspace: scratch memory of ``workspace_bytes()``: uint8, contiguous, on the tensors' device. None takes it from torch's allocator on the launch stream. Not looked at where no operand
                is transposed.

        Raises:
            RuntimeError: not compiled.
            ValueError: a tensor differs from what the object was compiled for, the tensors do not fit each other, an address is not a multiple of 16 bytes.
        """
        if type(alpha) is not float:
            alpha = checks.as_scalar("alpha", alpha)
        scales: Tensors = ()
        if self._scales is not None or not (sfa_tensor is sfb_tensor is amax_tensor is sfc_tensor is norm_const_tensor is None):
            outputs = {"amax_tensor": amax_tensor, "sfc_tensor": sfc_tensor, "norm_const_tensor": norm_const_tensor}
            scales = self._given({**outputs, "sfa_tensor": sfa_tensor, "sfb_tensor": sfb_tensor})
        if self.glu_layout == "separate" or type(b_tensor) in (tuple, list):
            halves = [half for _, half in named_b(b_tensor, self.glu_layout)]
            self._run((a_tensor, *halves, ab12_tensor, c_tensor, *scales), (alpha,), current_stream, workspace)
        else:
            self._run((a_tensor, b_tensor, ab12_tensor, c_tensor, *scales), (alpha,), current_stream, workspace)

    def _reference(self, tensors: Tensors, scalars: Scalars) -> None:
        from cudnn_gemm_dense.swiglu.reference import run_reference

        a, *halves = tensors[: self._operands]
        ab12, c, *amax = tensors[self._operands :]
        b = halves if len(halves) == 2 else halves[0]
        run_reference(a, b, ab12, c, scalars[0], glu_layout=self.glu_layout, acc_dtype=self.acc_dtype, amax=amax[0] if amax else None)

    def _call_traced(self, tensors: Tensors, scalars: Scalars) -> None:
        named = pack([name.partition(" ")[0] for name in self._layout.names], tensors)
        outputs: dict[str, Any] = {name: named.pop(name) for name in ("ab12_tensor", "c_tensor", "amax_tensor") if name in named}
        CALLS.execute_traced(self, named, outputs, scalars[0])


def gemm_swiglu_wrapper(
    a_tensor: torch.Tensor,
    b_tensor: torch.Tensor | Sequence[torch.Tensor],
    alpha: float = 1.0,
    c_major: str = "n",
    ab12_dtype: Any = "float32",
    c_dtype: Any = "float16",
    acc_dtype: Any = "float32",
    mma_tiler_mn: tuple[int, int] = (128, 128),
    cluster_shape_mn: tuple[int, int] | None = None,
    sfa_tensor: torch.Tensor | None = None,
    sfb_tensor: torch.Tensor | None = None,
    norm_const_tensor: torch.Tensor | None = None,
    sf_vec_size: int = 16,
    vector_f32: bool = False,
    ab12_stages: int = 4,
    stream: Any = None,
    *,
    glu_layout: str = "interleaved32",
    backend: str = "auto",
    config: GemmConfig | Mapping[str, object] | None = None,
) -> TupleDict:
    """`GemmSwiglu` in one call: allocates the outputs and keeps the compiled object for later calls of the same dtypes and majors.

    Args:
        a_tensor: (M, K, L).
        b_tensor: (N, K, L), or the pair (gate, up), each (N/2, K, L), with ``glu_layout="separate"``.
        alpha: factor on the product.
        c_major: the contiguous axis of both outputs: ``"n"`` or ``"m"``.
        ab12_dtype, c_dtype: dtypes of the outputs, in any spelling.
        stream: where to launch; None is torch's current stream on the tensors' device. With another stream than the current one the outputs are allocated there,
            and all tensors are recorded on both, so that none is recycled while the kernel needs it; the caller still waits for that stream before using them.

    The other arguments, and the tensors' dtypes and layouts: see `GemmSwiglu`.

    Returns:
        TupleDict with ``ab12_tensor`` (M, N, L), ``c_tensor`` (M, N/2, L), ``sfc_tensor`` None, and ``amax_tensor`` (1, 1, 1) for 4-bit operands with a bfloat16 C, else None. Not differentiable: the outputs carry no
        gradient. Under torch.compile this is the one operator ``cudnn::gemm_swiglu``.

    Raises:
        As ``GemmSwiglu.check_support``, before anything is allocated.
    """
    if type(alpha) is not float:
        alpha = checks.as_scalar("alpha", alpha)
    tensors = {"a_tensor": a_tensor, "b_tensor": b_tensor, "sfa_tensor": sfa_tensor, "sfb_tensor": sfb_tensor, "norm_const_tensor": norm_const_tensor}
    options = {
        "c_major": c_major,
        "ab12_dtype": ab12_dtype,
        "c_dtype": c_dtype,
        "acc_dtype": acc_dtype,
        "mma_tiler_mn": mma_tiler_mn,
        "cluster_shape_mn": cluster_shape_mn,
        "sf_vec_size": sf_vec_size,
        "vector_f32": vector_f32,
        "ab12_stages": ab12_stages,
        "glu_layout": glu_layout,
        "backend": backend,
        "config": config,
    }
    made = CALLS(tensors, {"alpha": alpha}, options, stream)
    amax = made.pop("amax_tensor", None)
    return TupleDict(**made, sfc_tensor=None, amax_tensor=amax)


def _outputs(tensors: Arguments, options: Arguments) -> dict[str, Output]:
    a = tensors["a_tensor"]
    halves = named_b(tensors["b_tensor"], options["glu_layout"])
    checks.check_rank("a_tensor", a, "(M, K, L)")
    for name, half in halves:
        checks.check_rank(name, half, "(N, K, L)")
    checks.check_major("c_major", options["c_major"])
    n = rows_of_b([half for _, half in halves])
    found = {
        f"{name}_tensor": matrix_output(
            (a.shape[0], columns, a.shape[2]), options["c_major"], torch_dtype(checks.required_dtype(f"{name}_dtype", options[f"{name}_dtype"]))
        )
        for name, columns in (("ab12", n), ("c", n // 2))
    }
    amax = amax_output(tensors, found["c_tensor"], ("bfloat16",), (1, 1, 1))
    return found if amax is None else {**found, "amax_tensor": amax}


def _build(tensors: Arguments, outputs: Arguments, options: Arguments) -> GemmSwiglu:
    return GemmSwiglu(
        tensors["a_tensor"],
        tensors["b_tensor"],
        outputs["ab12_tensor"],
        outputs["c_tensor"],
        sample_sfa=tensors["sfa_tensor"],
        sample_sfb=tensors["sfb_tensor"],
        sample_amax=outputs.get("amax_tensor"),
        sample_sfc=_describe_sfc(tensors, outputs["c_tensor"], options),
        sample_norm_const=tensors["norm_const_tensor"],
        **{name: value for name, value in options.items() if name not in ("c_major", "ab12_dtype", "c_dtype")},
    )


def _describe_sfc(tensors: Arguments, c: TensorDesc, options: Arguments) -> TensorDesc | None:
    """What the published wrapper allocates for the scale factors of an fp8 C, which is refused afterwards."""
    if tensors["sfa_tensor"] is None or tensors["sfb_tensor"] is None or dtype_name(c.dtype) not in FP8:
        return None
    rows, columns, batches = c.shape
    return describe(scale_output(rows, columns, batches, block_size(options["sf_vec_size"]), "float8_e8m0fnu"), "sfc_tensor", c.device)


def _operators() -> tuple[Any, Any]:
    from cudnn_gemm_dense.swiglu import torch_ops

    return torch_ops.gemm_swiglu, torch_ops.gemm_swiglu_out


CALLS = WrapperCalls("gemm_swiglu", gemm_swiglu_wrapper, GemmSwiglu, _outputs, _build, _operators)

# The published names.
GemmSwigluSm100 = GemmSwiglu
gemm_swiglu_wrapper_sm100 = gemm_swiglu_wrapper


def precompile_specs() -> list[KernelSpec | TransposeSpec]:
    """The kernels worth having before the first call: what feed-forward layers use, in every layout of gate and up."""
    cases: list[tuple[GemmProblem, SwigluOptions]] = []

    def add(dtype: str, outputs: tuple[str, str], layout: str, majors: tuple[str, str, str] = ("k", "k", "n"), acc_dtype: str = "float32") -> None:
        cases.append((GemmProblem(dtype, dtype, acc_dtype, *majors[:2], B_PARTS[layout]), SwigluOptions(*outputs, majors[2], layout)))

    for dtype in ("bfloat16", "float16"):
        for layout in GLU_LAYOUTS:
            add(dtype, (dtype, dtype), layout)
        # The dtypes of the published defaults.
        add(dtype, ("float32", dtype), "interleaved32")
        add(dtype, ("float32", "float16"), "interleaved32")
    for majors in product("km", "kn", "nm"):
        add("bfloat16", ("bfloat16", "bfloat16"), "interleaved32", majors)
    # The kernel sees 8-bit and 32-bit operands k-major, whatever they were.
    for dtype in (*FP8, "float32"):
        for outputs in (("bfloat16", "bfloat16"), ("float32", "float16")):
            add(dtype, outputs, "interleaved32")
    for layout in GLU_LAYOUTS[1:]:
        add("float8_e4m3fn", ("bfloat16", "bfloat16"), layout)
    for dtype in ("float16", *FP8):
        add(dtype, ("float16", "float16"), "interleaved32", acc_dtype="float16")
    # 4-bit operands, which reach the kernel in bfloat16.
    cases.append((GemmProblem("bfloat16", "bfloat16"), SwigluOptions("bfloat16", "bfloat16", amax_rank=3)))
    kernels = [swiglu_spec(seen, options, config) for problem, options in dict.fromkeys(cases) for seen, config in kernel_choices(problem, options.footprint)]
    return [*kernels, *(TransposeSpec(dtype) for dtype in (*FP8, "float32"))]
