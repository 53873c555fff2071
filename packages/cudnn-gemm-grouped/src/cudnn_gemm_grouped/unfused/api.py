"""Grouped GEMM: the class `GroupedGemm` and the wrapper `grouped_gemm_wrapper`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.gemm_operation import Scalars, Tensors, sample_metadata
from cudnn.grouped.calls import GroupedCalls
from cudnn.grouped.checks import OPERAND_DTYPES, check_hints, check_options, weights_given
from cudnn.grouped.configs import default_configs
from cudnn.grouped.layout import vector
from cudnn.grouped.operation import RowsOperation, Samples
from cudnn.grouped.options import ProductOptions, kernel_spec
from cudnn.grouped.outputs import by_pointers, check_a, check_cd_major, rows_output, weight_rows
from cudnn.grouped.rows import check_presence, write_rows
from cudnn.reference.grouped import grouped_gemm
from cudnn.tuple_dict import TupleDict
from cudnn.wrapper_calls import Arguments, Output

if TYPE_CHECKING:
    import torch

    from cudnn.cutedsl.compile import KernelSpec

__all__ = ["GroupedGemm", "GroupedGemmSm100", "grouped_gemm_wrapper", "grouped_gemm_wrapper_sm100", "precompile_specs"]

TILE_N = tuple(range(32, 257, 32))


class GroupedGemm(RowsOperation):
    """x = alpha[e] * A[m] · B[e][n] for the rows m of each group e; C = x and D = prob[m] * x, or with a bias C = D = x + prob[m] * bias[n, e].

    Group e has the rows from ``padded_offsets[e - 1]`` (0 for the first) up to ``padded_offsets[e]``, which only the device needs to know: groups of any length, none at all included. Rows
    from the last end on are neither read nor written, so that a buffer may be longer than its content.

    Tensors, in one of two forms that A's rank decides:

    ==============  ================  ===========================================  ============================
    name            canonical         published ("legacy"), strides                dtypes
    ==============  ================  ===========================================  ============================
    a_tensor        (M, K)            (M, K, 1), (K, 1, M K)                       bfloat16, float16
    b_tensor        (E, N, K)         (N, K, E), (K, 1, N K)                       as A
    b_tensor        (E, K, N)         with ``b_major="n"``                         as A
    b_ptrs          (E,)              addresses of E matrices (N, K), or (K, N)    int64
    padded_offsets  (E,)              (E,)                                         int32
    alpha_tensor    (E,)              (E,)                                         float32
    prob_tensor     (M,)              (M, 1, 1)                                    float32
    bias_tensor     (N, E), (1, N)    (N, E), (1, N)                               bfloat16, float16, float32
    c, d            (M, N)            (M, N, 1), (N, 1, M N)                       bfloat16, float16, float32
    ==============  ================  ===========================================  ============================

    All are compact; contiguous extents and addresses of A, B, C and D are multiples of 16 bytes, N is a multiple of 32, E from 1 to 1024. Extents, offsets, addresses and factors are run-time
    values: one compiled object serves all of them, and CUDA graphs may be replayed with others.

    Args:
        sample_a, sample_c, sample_d, sample_padded_offsets, sample_alpha, sample_b, sample_bias, sample_prob: tensors or ``TensorDesc``; only their metadata is read. ``sample_c`` is None unless
            ``generate_c``; ``sample_b`` is None for weights by pointers.
        num_experts, b_shape, b_dtype: E, (N, K) and the dtype of weights by pointers; None otherwise.
        acc_dtype: float32 (None).
        mma_tiler_mn, cluster_shape_mn, vector_f32, use_dynamic_sched: hints; the first two are checked against the published values. Results do not depend on them.
        m_aligned: the published 256; groups need not keep it.
        generate_c: whether C is stored.
        b_major: which axis of B is contiguous: ``"k"``, or ``"n"`` for (E, K, N) tensors and pointers.
        backend: ``"auto"`` (kernel for CUDA tensors, reference for CPU tensors), ``"sm90"`` or ``"reference"``.
        config: a ``GemmConfig`` or a dict of its fields: build and run this one instead of the default set.
    """

    op = "grouped_gemm"

    def __init__(
        self,
        sample_a: Any,
        sample_c: Any,
        sample_d: Any,
        sample_padded_offsets: Any,
        sample_alpha: Any,
        sample_b: Any = None,
        sample_bias: Any = None,
        sample_prob: Any = None,
        num_experts: int | None = None,
        b_shape: tuple[int, ...] | None = None,
        b_dtype: Any = None,
        acc_dtype: Any = None,
        mma_tiler_mn: tuple[int, int] = (256, 256),
        cluster_shape_mn: tuple[int, int] | None = None,
        vector_f32: bool = False,
        m_aligned: int = 256,
        generate_c: bool = False,
        b_major: str = "k",
        use_dynamic_sched: bool = False,
        *,
        backend: str = "auto",
        config: GemmConfig | Mapping[str, object] | None = None,
    ) -> None:
        check_options(acc_dtype, m_aligned, b_major)
        check_hints(mma_tiler_mn, cluster_shape_mn, tile_n=TILE_N)
        if sample_prob is None:
            raise ValueError("prob_tensor is required, found None; pass ones where rows have no factor")
        if generate_c == (sample_c is None):
            raise ValueError(
                f"sample_c: found {'None' if sample_c is None else 'one'} with generate_c={generate_c}, needs {'one' if sample_c is None else 'None'}"
            )
        sample_metadata(type(self).__name__, "a_tensor", sample_a)
        unit = len(sample_a.shape) == 3
        rest: Samples = [(self.matrix_rule("d_tensor", "n", unit), sample_d)]
        if generate_c:
            rest.append((self.matrix_rule("c_tensor", "n", unit), sample_c))
        rest += [(vector("alpha_tensor", "e"), sample_alpha), (self.rows_rule("prob_tensor", unit), sample_prob)]
        if sample_bias is not None:
            rest.append((self.bias_rule("bias_tensor"), sample_bias))
        super().__init__(
            sample_a,
            sample_b,
            sample_padded_offsets,
            rest,
            num_experts=num_experts,
            b_shape=b_shape,
            b_dtype=b_dtype,
            b_major=b_major,
            n_major_tensors=True,
            backend=backend,
            config=config,
        )
        self.generate_c = bool(generate_c)
        self._has_bias = sample_bias is not None
        self._arguments = {
            "num_experts": num_experts,
            "b_shape": b_shape,
            "b_dtype": b_dtype,
            "mma_tiler_mn": mma_tiler_mn,
            "cluster_shape_mn": cluster_shape_mn,
            "generate_c": self.generate_c,
            "b_major": b_major,
            "backend": backend,
            "config": self.config,
        }

    def _constructor_arguments(self) -> dict[str, Any]:
        return {**self._arguments, **({} if self.generate_c else {"sample_c": None})}

    def _calls(self) -> GroupedCalls:
        return CALLS

    def _check_tensors(self) -> None:
        super()._check_tensors()
        self._check_output_dtypes(("c_tensor", "d_tensor", "bias_tensor"))

    def _check_columns(self, n: int) -> None:
        if n % 32:
            raise ValueError(f"b_tensor: found N = {n}, needs a multiple of 32; pad N with zeros")

    def _problem(self, majors: Mapping[str, str]) -> tuple[GemmProblem, ProductOptions]:
        return self._row_problem(), ProductOptions(str(self._dtype("d_tensor")), self._dtype("c_tensor"), self._dtype("bias_tensor"))

    def execute(
        self,
        a_tensor: Any,
        c_tensor: Any = None,
        d_tensor: Any = None,
        padded_offsets: Any = None,
        alpha_tensor: Any = None,
        b_tensor: Any = None,
        b_ptrs: Any = None,
        bias_tensor: Any = None,
        prob_tensor: Any = None,
        current_stream: Any = None,
        *,
        workspace: Any = None,
    ) -> None:
        """Write D, and C where the samples had one. On CUDA tensors this launches one kernel (two with weights by pointers) and returns without waiting.

        Args:
            a_tensor, c_tensor, d_tensor, padded_offsets, alpha_tensor, b_tensor, b_ptrs, bias_tensor, prob_tensor: as the samples in dtype, layout, presence and kind of device; extents are free.
                The memory behind ``b_ptrs`` must stay until the kernel has run.
            current_stream: a CUstream, torch stream or raw handle; None is torch's current stream on the tensors' device. CPU tensors have no stream, and it is not looked at.
            workspace: uint8 scratch memory, see ``workspace_bytes`` (128 bytes for each expert with weights by pointers, else none); None takes it from torch's allocator on the launch stream.

        Raises:
            RuntimeError: not compiled.
            ValueError: a tensor differs from what the object was compiled for, the tensors do not fit each other, an address is not a multiple of 16 bytes.
        """
        if self.generate_c is (c_tensor is None) or self._has_bias is (bias_tensor is None):
            check_presence("c_tensor", c_tensor, self.generate_c)
            check_presence("bias_tensor", bias_tensor, self._has_bias)
        tensors = [a_tensor, *self._given_weights(b_tensor, b_ptrs), padded_offsets, d_tensor]
        if c_tensor is not None:
            tensors.append(c_tensor)
        tensors += [alpha_tensor, prob_tensor]
        if bias_tensor is not None:
            tensors.append(bias_tensor)
        self._run(tuple(tensors), (0.0,), current_stream, workspace)

    def _reference(self, tensors: Tensors, scalars: Scalars) -> None:
        a, b, offsets = self._reference_operands(tensors)
        given = dict(zip(self._layout.names, tensors, strict=True))
        c, d = grouped_gemm(a, b, offsets, given["alpha_tensor"], given["prob_tensor"].reshape(-1), given.get("bias_tensor"))
        write_rows(given["d_tensor"], d, offsets)
        if self.generate_c:
            write_rows(given["c_tensor"], c, offsets)


def grouped_gemm_wrapper(
    a_tensor: torch.Tensor,
    padded_offsets: torch.Tensor,
    alpha_tensor: torch.Tensor,
    b_tensor: torch.Tensor | None = None,
    bias_tensor: torch.Tensor | None = None,
    b_ptrs: torch.Tensor | None = None,
    n: int | None = None,
    b_dtype: Any = None,
    b_major: str = "k",
    prob_tensor: torch.Tensor | None = None,
    acc_dtype: Any = None,
    c_dtype: Any = None,
    d_dtype: Any = None,
    c_tensor: torch.Tensor | None = None,
    d_tensor: torch.Tensor | None = None,
    cd_major: str = "n",
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    vector_f32: bool = False,
    m_aligned: int = 256,
    generate_c: bool = False,
    use_dynamic_sched: bool = False,
    current_stream: Any = None,
    *,
    backend: str = "auto",
    config: GemmConfig | Mapping[str, object] | None = None,
) -> TupleDict:
    """`GroupedGemm` in one call: allocates the outputs and keeps the compiled object for later calls of the same dtypes and layouts.

    Args:
        n, b_dtype: N and the dtype of weights by pointers; None otherwise.
        prob_tensor: required in spite of its default.
        c_dtype, d_dtype: dtypes of the outputs in any spelling; None is bfloat16.
        c_tensor, d_tensor: written instead of new outputs; exactly of the shape, strides, dtype and device that those would have.
        cd_major: "n".
        current_stream: where to launch; None is torch's current stream on the tensors' device. With another stream than the current one the outputs are allocated there, and all tensors are
            recorded on both; the caller still waits for that stream before using them.

    The other arguments, and the tensors' dtypes and layouts: see `GroupedGemm`.

    Returns:
        TupleDict with ``d_tensor`` (M, N) or (M, N, 1), and ``c_tensor``, None unless ``generate_c``. Rows from the last end on hold anything. Not differentiable. Under torch.compile this is the
        operator ``cudnn::grouped_gemm``.

    Raises:
        As ``GroupedGemm.check_support``, before anything is allocated.
    """
    tensors = {
        "a_tensor": a_tensor,
        "padded_offsets": padded_offsets,
        "alpha_tensor": alpha_tensor,
        "b_tensor": b_tensor,
        "bias_tensor": bias_tensor,
        "b_ptrs": b_ptrs,
        "prob_tensor": prob_tensor,
        "c_tensor": c_tensor,
        "d_tensor": d_tensor,
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
        "generate_c": generate_c,
        "backend": backend,
        "config": config,
    }
    made = CALLS(tensors, {}, options, current_stream)
    return TupleDict(d_tensor=made.get("d_tensor", d_tensor), c_tensor=made.get("c_tensor", c_tensor))


def _outputs(tensors: Arguments, options: Arguments) -> dict[str, Output]:
    a = tensors["a_tensor"]
    check_a(a)
    check_cd_major(options["cd_major"])
    weights_given(tensors.get("b_tensor"), tensors.get("b_ptrs"), options["n"], options["b_dtype"])
    if tensors.get("prob_tensor") is None:
        raise ValueError("prob_tensor is required, found None; pass ones where rows have no factor")
    if tensors.get("c_tensor") is not None and not options["generate_c"]:
        raise ValueError("c_tensor: found one with generate_c=False, needs None, or generate_c=True")
    n = weight_rows(a, tensors.get("b_tensor"), options["n"], n_major=options["b_major"] == "n")
    made = {"d_tensor": rows_output(a, n, options["d_dtype"], "d_dtype")}
    if options["generate_c"]:
        made["c_tensor"] = rows_output(a, n, options["c_dtype"], "c_dtype")
    return {name: output for name, output in made.items() if not _is_given(name, output, tensors)}


def _is_given(name: str, output: Output, tensors: Arguments) -> bool:
    """Whether the caller brought this output. ValueError unless it is as the wrapper would make it."""
    given = tensors.get(name)
    if given is None:
        return False
    found = (tuple(given.shape), tuple(given.stride()), given.dtype, given.device)
    wanted = (tuple(output.shape), tuple(output.stride), output.dtype, tensors["a_tensor"].device)
    for what, one, other in zip(("shape", "strides", "dtype", "device"), found, wanted, strict=True):
        if one != other:
            raise ValueError(f"{name}: found {what} {one}, needs {other}")
    return True


def _build(tensors: Arguments, outputs: Arguments, options: Arguments) -> GroupedGemm:
    return GroupedGemm(
        tensors["a_tensor"],
        outputs.get("c_tensor", tensors.get("c_tensor")),
        outputs.get("d_tensor", tensors.get("d_tensor")),
        tensors["padded_offsets"],
        tensors["alpha_tensor"],
        tensors.get("b_tensor"),
        tensors.get("bias_tensor"),
        tensors.get("prob_tensor"),
        **by_pointers(tensors, options["n"], options["b_dtype"]),
        **{name: options[name] for name in ("acc_dtype", "mma_tiler_mn", "cluster_shape_mn", "m_aligned", "generate_c", "b_major", "backend", "config")},
    )


def _operator() -> Any:
    from cudnn_gemm_grouped.unfused import torch_ops

    return torch_ops.grouped_gemm


CALLS = GroupedCalls(
    "grouped_gemm",
    GroupedGemm,
    _outputs,
    _build,
    _operator,
    written=("c_tensor", "d_tensor"),
    class_written=("c_tensor", "d_tensor"),
    wrapper=grouped_gemm_wrapper,
)

# The published names.
GroupedGemmSm100 = GroupedGemm
grouped_gemm_wrapper_sm100 = grouped_gemm_wrapper
grouped_gemm_wrapper.supports_bf16_canonical_layouts = True  # type: ignore[attr-defined]


def precompile_specs() -> list[KernelSpec]:
    """The kernels worth having before the first call: both forms, weights in one tensor or by pointers, output in the operands' dtype."""
    found = []
    for dtype, unit_axes, (b_major, pointers) in product(OPERAND_DTYPES, (False, True), (("k", False), ("n", False), ("k", True))):
        if unit_axes and b_major == "n":
            continue
        problem = GemmProblem(dtype, dtype, b_major=b_major, grouping="rows", b_pointers=pointers, unit_axes=unit_axes)
        options = ProductOptions(dtype)
        found += [kernel_spec("grouped_gemm", problem, options, config) for config in default_configs(problem, options.footprint)]
    return found
