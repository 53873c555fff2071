"""GEMM + gradient of SwiGLU: the class `GemmDswiglu` and the wrapper `gemm_dswiglu_wrapper`."""

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
from cudnn.reference import GLU_LAYOUTS, cast
from cudnn.tensors import Metadata
from cudnn.tuple_dict import TupleDict
from cudnn.wrapper_calls import Arguments, Output, WrapperCalls, matrix_output
from cudnn_gemm_dense.dswiglu.options import DswigluOptions, dswiglu_spec
from cudnn_gemm_dense.dswiglu.reference import gemm_dswiglu_reference
from cudnn_gemm_dense.operation import DenseOperation, fitting_configs

if TYPE_CHECKING:
    import torch

    from cudnn.cutedsl.compile import KernelSpec

__all__ = ["GemmDswiglu", "gemm_dswiglu_wrapper", "precompile_specs"]

VALUE_DTYPES = ("float32", "float16", "bfloat16")


class GemmDswiglu(DenseOperation):
    """G = alpha * A Bᵀ per batch, the gradient of C = up * silu(gate); dAB12 = the gradient of AB12, whose halves gate and up are, and C recomputed.

    With s = sigmoid(gate): d_up = G gate s, d_gate = G up s (1 + gate (1 - s)), all in float32. gate and up are the halves of AB12's columns that ``glu_layout`` names, and their gradients lie in
    dAB12 as they lie in AB12:

    - ``"interleaved32"`` (the default, the published layout): blocks of 32 columns in turn, up first. N is a multiple of 32.
    - ``"concatenated"`` and ``"separate"``: [gate | up].

    So in the backward pass of a feed-forward layer ``out = C Wᵀ`` A is the gradient of out and B is W transposed, (N, K) = (intermediate, hidden) n-major.

    Tensors (all three axes present; L = 1 is a trailing unit axis):

    =============  =============  ================  ============================================
    name           shape          contiguous axis   dtypes
    =============  =============  ================  ============================================
    a_tensor       (M, K, L)      k or m            float16, bfloat16, float8_e4m3fn, float8_e5m2
    b_tensor       (N, K, L)      k or n            as A
    ab12_tensor    (M, 2 N, L)    n or m            float32, float16, bfloat16; read
    d_ab12_tensor  (M, 2 N, L)    as AB12           float32, float16, bfloat16
    c_tensor       (M, N, L)      as AB12           float32, float16, bfloat16; optional
    =============  =============  ================  ============================================

    Pitches may be padded. The contiguous extent of each matrix (of AB12's and dAB12's halves, where they are [gate | up]), the steps between its lines and its address are multiples of 16 bytes.
    Extents, alpha and pointers are run-time values. M = 0, N = 0 or L = 0 does nothing; K = 0 writes zeros, and C. dAB12 may be AB12 itself.

    Results are the same bits every time. fp8 operands that are not contiguous along K are transposed into scratch memory first, rows x K x L bytes each (`workspace_bytes`).

    Args:
        sample_a, sample_b, sample_ab12, sample_d_ab12: tensors or ``TensorDesc``; only their metadata is read.
        sample_c: None where C is not wanted.
        alpha: what ``execute`` takes where it is given none.
        acc_dtype: dtype of the sums: float32 (None).
        mma_tiler_mn, cluster_shape_mn: hints without effect on results; None or two positive integers.
        glu_layout: where gate and up lie.
        backend: ``"auto"`` (kernel for CUDA tensors, reference for CPU tensors), ``"sm90"`` or ``"reference"``.
        config: a ``GemmConfig`` or a dict of its fields: build and run this one instead of the default set.
    """

    op = "gemm_dswiglu"

    def __init__(
        self,
        sample_a: Any,
        sample_b: Any,
        sample_ab12: Any,
        sample_d_ab12: Any,
        sample_c: Any = None,
        alpha: float = 1.0,
        acc_dtype: Any = None,
        mma_tiler_mn: tuple[int, int] | None = None,
        cluster_shape_mn: tuple[int, int] | None = None,
        *,
        glu_layout: str = "interleaved32",
        backend: str = "auto",
        config: GemmConfig | Mapping[str, object] | None = None,
    ) -> None:
        if glu_layout not in GLU_LAYOUTS:
            raise ValueError(f"glu_layout: found {glu_layout!r}, needs one of {', '.join(map(repr, GLU_LAYOUTS))}")
        split = None if glu_layout == "interleaved32" else "n"
        rules = [
            Rule("a_tensor", ("m", "k", "l"), "a"),
            Rule("b_tensor", ("n", "k", "l"), "b"),
            Rule("ab12_tensor", ("m", "2n", "l"), "out", split),
            Rule("d_ab12_tensor", ("m", "2n", "l"), "out", split),
        ]
        samples = [(rule.name, t) for rule, t in zip(rules, (sample_a, sample_b, sample_ab12, sample_d_ab12), strict=True)]
        if sample_c is not None:
            rules.append(Rule("c_tensor", ("m", "n", "l"), "out"))
            samples.append(("c_tensor", sample_c))
        super().__init__(samples, GemmLayout(rules, compact=False), backend=backend, config=config)
        self.glu_layout = glu_layout
        self.alpha = checks.as_scalar("alpha", alpha)
        self.acc_dtype = checks.required_dtype("acc_dtype", "float32" if acc_dtype is None else acc_dtype)
        checks.check_free_hints(mma_tiler_mn, cluster_shape_mn)

    def _constructor_arguments(self) -> dict[str, Any]:
        return {"alpha": self.alpha, "acc_dtype": self.acc_dtype, "glu_layout": self.glu_layout, "backend": self.backend, "config": self.config}

    def _check(self) -> tuple[GemmProblem, DswigluOptions, dict[str, str]]:
        metas = self._samples
        self._check_operand_dtypes(OPERAND_DTYPES)
        checks.check_dtype("acc_dtype", self.acc_dtype, ("float32",))
        for name, meta in list(zip(self._layout.names, metas, strict=True))[2:]:
            checks.check_dtype(name, meta.dtype, VALUE_DTYPES)
        self._layout.extents(metas)
        majors = self._layout.majors(metas)
        self._check_extents(metas)
        self._layout.check_lines(metas, majors)
        problem = GemmProblem(metas[0].dtype, metas[1].dtype, "float32", majors["a"], majors["b"])
        return problem, DswigluOptions(metas[2].dtype, metas[3].dtype, self._dtype("c_tensor"), majors["out"], self.glu_layout), majors

    def _check_extents(self, metas: tuple[Metadata, ...]) -> None:  # type: ignore[override]
        n = metas[1].shape[0]
        if self.glu_layout == "interleaved32" and n % 32:
            raise ValueError(
                f'b_tensor: found N = {n} rows with glu_layout="interleaved32", needs a multiple of 32 (blocks of 32 up and 32 gate columns in ab12_tensor); pad N, or keep '
                'AB12 as [gate | up] with glu_layout="concatenated"'
            )

    def _spec(self, problem: GemmProblem, options: DswigluOptions, config: GemmConfig) -> KernelSpec:
        return dswiglu_spec(problem, options, config)

    def _footprint(self, options: DswigluOptions) -> Footprint:
        return options.footprint

    def execute(
        self,
        a_tensor: Any,
        b_tensor: Any,
        ab12_tensor: Any,
        d_ab12_tensor: Any,
        c_tensor: Any = None,
        alpha: float | None = None,
        current_stream: Any = None,
        *,
        workspace: Any = None,
    ) -> None:
        """Write dAB12, and C where there is one. On CUDA tensors this launches one kernel (two or three where an operand is transposed first) and returns without waiting.

        Args:
            a_tensor, b_tensor, ab12_tensor, d_ab12_tensor, c_tensor: as the samples in dtype, major and kind of device; extents are free.
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
        tensors = (a_tensor, b_tensor, ab12_tensor, d_ab12_tensor)
        if (c_tensor is not None) != (len(self._samples) == 5):
            raise ValueError(f"c_tensor: found {'None' if c_tensor is None else 'one'}, needs {'one' if c_tensor is None else 'None'} as in the samples")
        self._run(tensors if c_tensor is None else (*tensors, c_tensor), (alpha,), current_stream, workspace)

    def _reference(self, tensors: Tensors, scalars: Scalars) -> None:
        a, b, ab12, d_ab12, *c = tensors
        gradient, activated = gemm_dswiglu_reference(a, b, ab12, scalars[0], glu_layout=self.glu_layout)
        d_ab12.copy_(cast(gradient, d_ab12.dtype))
        for one in c:
            one.copy_(cast(activated, one.dtype))

    def _call_traced(self, tensors: Tensors, scalars: Scalars) -> None:
        a, b, ab12, d_ab12, *c = tensors
        outputs = {"d_ab12_tensor": d_ab12, **({"c_tensor": c[0]} if c else {})}
        CALLS.execute_traced(self, {"a_tensor": a, "b_tensor": b, "ab12_tensor": ab12}, outputs, scalars[0])


def gemm_dswiglu_wrapper(
    a_tensor: torch.Tensor,
    b_tensor: torch.Tensor,
    ab12_tensor: torch.Tensor,
    *,
    alpha: float = 1.0,
    d_dtype: Any = None,
    generate_c: bool = False,
    c_dtype: Any = None,
    d_major: str = "n",
    acc_dtype: Any = None,
    mma_tiler_mn: tuple[int, int] | None = None,
    cluster_shape_mn: tuple[int, int] | None = None,
    stream: Any = None,
    glu_layout: str = "interleaved32",
    backend: str = "auto",
    config: GemmConfig | Mapping[str, object] | None = None,
) -> TupleDict:
    """`GemmDswiglu` in one call: allocates the outputs and keeps the compiled object for later calls of the same dtypes and majors.

    Args:
        a_tensor: (M, K, L).
        b_tensor: (N, K, L).
        ab12_tensor: (M, 2 N, L), the pre-activation that the forward pass kept.
        alpha: factor on the product.
        d_dtype: dtype of dAB12, in any spelling; None is AB12's.
        generate_c: whether C is computed again.
        c_dtype: dtype of C, in any spelling; None is AB12's.
        d_major: the contiguous axis of the outputs, which has to be that of AB12: ``"n"`` or ``"m"``.
        stream: where to launch; None is torch's current stream on the tensors' device. With another stream than the current one the outputs are allocated there, and all tensors are recorded on
            both, so that none is recycled while the kernel needs it; the caller still waits for that stream before using them.

    The other arguments, and the tensors' dtypes and layouts: see `GemmDswiglu`.

    Returns:
        TupleDict with ``d_ab12_tensor`` (M, 2 N, L) and ``c_tensor`` (M, N, L), None unless ``generate_c``. Not differentiable: the outputs carry no gradient. Under torch.compile this is the one
        operator ``cudnn::gemm_dswiglu``.

    Raises:
        As ``GemmDswiglu.check_support``, before anything is allocated.
    """
    if type(alpha) is not float:
        alpha = checks.as_scalar("alpha", alpha)
    tensors = {"a_tensor": a_tensor, "b_tensor": b_tensor, "ab12_tensor": ab12_tensor}
    options = {
        "d_dtype": d_dtype,
        "generate_c": generate_c,
        "c_dtype": c_dtype,
        "d_major": d_major,
        "acc_dtype": acc_dtype,
        "mma_tiler_mn": mma_tiler_mn,
        "cluster_shape_mn": cluster_shape_mn,
        "glu_layout": glu_layout,
        "backend": backend,
        "config": config,
    }
    made = CALLS(tensors, {"alpha": alpha}, options, stream)
    return TupleDict(d_ab12_tensor=made["d_ab12_tensor"], c_tensor=made.get("c_tensor"))


def _outputs(tensors: Arguments, options: Arguments) -> dict[str, Output]:
    a, b, ab12 = tensors["a_tensor"], tensors["b_tensor"], tensors["ab12_tensor"]
    for name, t, axes in (("a_tensor", a, "(M, K, L)"), ("b_tensor", b, "(N, K, L)"), ("ab12_tensor", ab12, "(M, 2N, L)")):
        checks.check_rank(name, t, axes)
    checks.check_major("d_major", options["d_major"])
    m, n, batches = a.shape[0], b.shape[0], a.shape[2]

    def output(name: str, columns: Any) -> Output:
        dtype = options[name]
        return matrix_output((m, columns, batches), options["d_major"], torch_dtype(checks.required_dtype(name, ab12.dtype if dtype is None else dtype)))

    made = {"d_ab12_tensor": output("d_dtype", 2 * n)}
    if options["generate_c"]:
        made["c_tensor"] = output("c_dtype", n)
    return made


def _build(tensors: Arguments, outputs: Arguments, options: Arguments) -> GemmDswiglu:
    return GemmDswiglu(
        tensors["a_tensor"],
        tensors["b_tensor"],
        tensors["ab12_tensor"],
        outputs["d_ab12_tensor"],
        outputs.get("c_tensor"),
        **{name: options[name] for name in ("acc_dtype", "mma_tiler_mn", "cluster_shape_mn", "glu_layout", "backend", "config")},
    )


def _operators() -> tuple[Any, Any]:
    from cudnn_gemm_dense.dswiglu import torch_ops

    return torch_ops.gemm_dswiglu, torch_ops.gemm_dswiglu_out


CALLS = WrapperCalls("gemm_dswiglu", gemm_dswiglu_wrapper, GemmDswiglu, _outputs, _build, _operators)


def precompile_specs() -> list[KernelSpec]:
    """The kernels worth having before the first call: 16-bit backward passes of feed-forward layers, with the weight as it is (B n-major) or transposed."""
    found = []
    for dtype, b_major, layout in product(("float16", "bfloat16"), ("n", "k"), ("interleaved32", "concatenated")):
        options = DswigluOptions(dtype, dtype, glu_layout=layout)
        problem = GemmProblem(dtype, dtype, "float32", "k", b_major)
        found += [dswiglu_spec(problem, options, config) for config in fitting_configs(problem, options.footprint)]
    return found
