"""GEMM + SwiGLU: the class `GemmSwiglu` and the wrapper `gemm_swiglu_wrapper`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from cudnn import checks
from cudnn.api_base import APIBase
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.datatypes import torch_dtype
from cudnn.device import require_arch, select_backend
from cudnn.reference import GLU_LAYOUTS
from cudnn.streams import as_torch_stream, launch_handle, record_streams, stream_context
from cudnn.tensors import check_alignment, check_same_device, is_jax_array, is_torch_tensor, metadata
from cudnn.tuple_dict import TupleDict
from cudnn_gemm_dense.configs import choose, default_configs, unfit_reason
from cudnn_gemm_dense.runtime import Memo
from cudnn_gemm_dense.swiglu.arguments import Options, describe_outputs, is_hashable, tensor_key
from cudnn_gemm_dense.swiglu.block_scaled import ScaleOperands, check_block_scaled
from cudnn_gemm_dense.swiglu.options import SwigluOptions
from cudnn_gemm_dense.swiglu.shapes import B_PARTS, Extents, Majors, SwigluTensors, name_b, sample_metadata

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
KERNEL_DTYPES = ("float16", "bfloat16")
TILE_N = tuple(range(32, 257, 32))

LAUNCHES = 1024  # extents that one object remembers
PLANS = 1024  # calls that the wrapper remembers
OBJECTS = 256  # compiled objects that the wrapper keeps

# run(a, b, ab12, c, alpha, stream), and whether it is the kernel, which needs aligned addresses and a stream handle.
Launch = tuple[Callable[..., None], bool]


class GemmSwiglu(APIBase):
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

    The contiguous extent of each is a multiple of 16 bytes, and its address too. On compute capability 9.0 the kernel takes float16 and bfloat16
    operands with float32 sums; CPU tensors go to the reference, which takes all of the table.

    A compiled object is bound to dtypes, majors and configuration, not to extents: ``execute`` takes any M, N, K, L, which the tensors agree on, and any alpha.
    M = 0, N = 0 or L = 0 does nothing; K = 0 writes zeros.

    Args:
        sample_a, sample_b, sample_ab12, sample_c: tensors or ``TensorDesc``; only their metadata is read.
        alpha: kept for the published signature; ``execute`` has its own, with the default 1.0.
        acc_dtype: dtype of the sums, float32 or float16.
        mma_tiler_mn, cluster_shape_mn: hints; checked against the published values (tile 128 or 256 by a multiple of 32 up to 256; cluster (1, 1) for
            tiles of 128 rows), and without effect on results. None for the cluster takes (2, 2) or (1, 1).
        sample_sfa, sample_sfb, sample_amax, sample_sfc, sample_norm_const, sf_vec_size, vector_f32, ab12_stages: the block-scaled mode, which is entered when
            any sample of these is given. The arguments are checked; the mode itself raises NotImplementedError.
        glu_layout: where gate and up lie.
        backend: ``"auto"`` (kernel for CUDA tensors, reference for CPU tensors), ``"sm90"`` or ``"reference"``.
        config: a ``GemmConfig`` or a dict of its fields: build and run this one instead of the default set.
    """

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
        super().__init__()
        if glu_layout not in GLU_LAYOUTS:
            raise ValueError(f"glu_layout: found {glu_layout!r}, needs one of {', '.join(map(repr, GLU_LAYOUTS))}")
        self._tensors = SwigluTensors.of(sample_metadata, sample_a, sample_b, sample_ab12, sample_c, glu_layout)
        self._scales = ScaleOperands.of(sample_sfa, sample_sfb, sample_amax, sample_sfc, sample_norm_const, sf_vec_size)
        self.alpha = checks.as_scalar("alpha", alpha)
        self.acc_dtype = checks.required_dtype("acc_dtype", acc_dtype)
        self.mma_tiler_mn = checks.as_pair("mma_tiler_mn", mma_tiler_mn)
        default_cluster = (2, 2) if self.mma_tiler_mn[0] == 256 else (1, 1)
        self.cluster_shape_mn = default_cluster if cluster_shape_mn is None else checks.as_pair("cluster_shape_mn", cluster_shape_mn)
        self.vector_f32 = bool(vector_f32)
        self.ab12_stages = checks.as_integer("ab12_stages", ab12_stages)
        self.glu_layout = glu_layout
        self.backend = backend
        self.config = None if config is None else GemmConfig.of(config)
        self._bound: Majors | None = None
        self._problem: GemmProblem | None = None
        self._options: SwigluOptions | None = None
        self._selected: str | None = None
        self._launches: Memo = Memo(LAUNCHES)

    def check_support(self) -> bool:
        """True when the operation can be compiled for the samples; reads metadata only.

        Raises:
            ValueError: shapes, strides, dtypes, hints, alignment of contiguous extents, N, configuration, mixed devices; in this order.
            NotImplementedError: fp8 AB12 with float32 sums; block-scaled operands; on the kernel also fp8 and float32 operands and float16 sums.
            RuntimeError: ``backend="sm90"`` with CPU tensors; no device of compute capability 9.0.
        """
        t = self._tensors
        t.check_shapes()
        if self._scales is not None:
            check_block_scaled(t, self._scales, self.acc_dtype, self.mma_tiler_mn, self.cluster_shape_mn)
            raise NotImplementedError(
                "gemm_swiglu: block-scaled operands (sfa_tensor, sfb_tensor, amax_tensor, sfc_tensor, norm_const_tensor) are not implemented yet; dequantise A and B to "
                "bfloat16 and leave the scale arguments at None"
            )
        majors = t.majors()
        self._check_dtypes()
        checks.check_tile_and_cluster(self.mma_tiler_mn, self.cluster_shape_mn, tile_n=TILE_N, single_cta_cluster=True)
        t.check_extents(majors)
        problem = GemmProblem(t.a.dtype, t.b[0].dtype, self.acc_dtype, majors.a, majors.b, t.b_parts)
        options = SwigluOptions(t.ab12.dtype, t.c.dtype, majors.out, self.glu_layout)
        if self.config is not None:
            reason = unfit_reason(problem, self.config, gated=True)
            if reason is not None:
                raise ValueError(f"config: {reason}")
        selected = select_backend(self.backend, t.named())
        if selected == "sm90":
            self._check_kernel_serves(problem)
            require_arch("gemm_swiglu", t.a.device_index)
        self._bound, self._problem, self._options, self._selected = majors, problem, options, selected
        self._is_supported = True
        return True

    def _check_dtypes(self) -> None:
        t = self._tensors
        checks.check_dtype("a_tensor", t.a.dtype, OPERAND_DTYPES["float32"])
        checks.check_dtype("acc_dtype", self.acc_dtype, tuple(AB12_DTYPES))
        fp8_ab12 = self.acc_dtype == "float32" and t.ab12.dtype in ("float8_e4m3fn", "float8_e5m2")
        if not fp8_ab12:
            checks.check_dtype("ab12_tensor", t.ab12.dtype, AB12_DTYPES[self.acc_dtype], f" with acc_dtype {self.acc_dtype}")
        checks.check_dtype("a_tensor", t.a.dtype, OPERAND_DTYPES[self.acc_dtype], f" with acc_dtype {self.acc_dtype}")
        if fp8_ab12:
            raise NotImplementedError(f"ab12_tensor: {t.ab12.dtype} is not implemented with float32 sums; use one of {', '.join(AB12_DTYPES['float32'])}")
        checks.check_dtype("c_tensor", t.c.dtype, C_DTYPES)
        for name, b in t.named_b():
            if b.dtype != t.a.dtype:
                raise ValueError(f"{name}: found dtype {b.dtype} while a_tensor has {t.a.dtype}, needs equal dtypes; cast one, under autocast by hand")

    def _check_kernel_serves(self, problem: GemmProblem) -> None:
        if problem.acc_dtype != "float32":
            missing = f"acc_dtype {problem.acc_dtype}"
        elif problem.a_dtype not in KERNEL_DTYPES:
            missing = f"{problem.a_dtype} operands"
        else:
            return
        raise NotImplementedError(
            f"gemm_swiglu: {missing} not implemented yet by the kernel for compute capability 9.0, which takes {' and '.join(KERNEL_DTYPES)} with float32 sums; "
            'cast, or pass backend="reference"'
        )

    @property
    def selected_backend(self) -> str | None:
        """What runs: "sm90" (the kernel) or "reference"; None before ``check_support`` has passed."""
        return self._selected

    def compile(self) -> None:
        """Build the kernels (or take them from the cache). Does nothing when that has been done; safe to call from several threads.

        Raises:
            Whatever ``check_support`` raises, if it has not passed yet.
            ImportError: the kernel is needed and the CuTe DSL is not installed.
        """
        if self._compiled_kernel is not None:
            return
        with self._compile_lock:
            if self._compiled_kernel is None:
                self._ensure_support_checked()
                self._compiled_kernel = self._kernels() if self._selected == "sm90" else {}

    def _kernels(self) -> dict[GemmConfig, Callable[..., None]]:
        from cudnn.dsl_check import require_dsl

        require_dsl("GemmSwiglu.compile")
        from cudnn_gemm_dense.swiglu.kernel import build_swiglu

        configs = (self.config,) if self.config is not None else default_configs(self._problem, gated=True)
        return {config: build_swiglu(self._problem, self._options, config) for config in configs}

    def workspace_bytes(self) -> int:
        """Bytes of scratch memory ``execute`` needs: 0."""
        return 0

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
        """Write AB12 and C. On CUDA tensors this launches one kernel and returns: no allocation, no wait, nothing read from the device.

        Args:
            a_tensor, b_tensor, ab12_tensor, c_tensor: as the samples in dtype, major and kind of device; extents are free.
            sfa_tensor, sfb_tensor, amax_tensor, sfc_tensor, norm_const_tensor: None, as the samples.
            alpha: factor on the product, a number on the host.
            current_stream: a CUstream, torch stream or raw handle; None is torch's current stream on the tensors' device. 0 is the legacy default stream.
                CPU tensors have no stream, and it is not looked at.
            workspace: not needed (``workspace_bytes()`` is 0) and not looked at.

        Raises:
            RuntimeError: not compiled.
            ValueError: a tensor differs from what the object was compiled for, the tensors do not fit each other, an address is not a multiple of 16 bytes.
        """
        import torch

        if self._compiled_kernel is None:
            raise RuntimeError("GemmSwiglu: kernel not compiled; call compile() first, or call the object, which compiles when needed")
        if type(alpha) is not float:
            alpha = checks.as_scalar("alpha", alpha)
        if not (sfa_tensor is sfb_tensor is amax_tensor is sfc_tensor is norm_const_tensor is None):
            raise ValueError("sfa_tensor, sfb_tensor, amax_tensor, sfc_tensor, norm_const_tensor: found one that is given, needs None as in the samples")
        if torch.compiler.is_compiling() or (type(a_tensor) is not torch.Tensor and type(a_tensor) is not torch.nn.Parameter):
            self._execute_other(a_tensor, b_tensor, ab12_tensor, c_tensor, alpha, current_stream)
            return
        try:
            if self.glu_layout == "separate":
                gate, up = b_tensor = tuple(b_tensor)
                device = gate.get_device()
                half = (up.shape, up.stride(), up.dtype, up.get_device())
            else:
                gate = up = b_tensor
                device = gate.get_device()
                half = None
            key = (
                (a_tensor.shape, a_tensor.stride(), a_tensor.dtype, a_tensor.get_device()),
                (gate.shape, gate.stride(), gate.dtype, device),
                (ab12_tensor.shape, ab12_tensor.stride(), ab12_tensor.dtype, ab12_tensor.get_device()),
                (c_tensor.shape, c_tensor.stride(), c_tensor.dtype, c_tensor.get_device()),
                half,
            )
            launch = self._launches.get(key)
        except (AttributeError, RuntimeError, TypeError, ValueError):
            key = launch = None  # no strided torch tensors; what they are is told below
        if launch is None:
            launch = self._bind(key, a_tensor, b_tensor, ab12_tensor, c_tensor)
        run, on_kernel = launch
        if not on_kernel:
            run(a_tensor, b_tensor, ab12_tensor, c_tensor, alpha, current_stream)
            return
        if (a_tensor.data_ptr() | gate.data_ptr() | up.data_ptr() | ab12_tensor.data_ptr() | c_tensor.data_ptr()) & 15:
            for name, t in (("a_tensor", a_tensor), *name_b(b_tensor, self.glu_layout), ("ab12_tensor", ab12_tensor), ("c_tensor", c_tensor)):
                check_alignment(name, t)
        stream = launch_handle(current_stream, "torch", device)
        if device == torch.cuda.current_device():
            run(a_tensor, b_tensor, ab12_tensor, c_tensor, alpha, stream)
        else:
            with torch.cuda.device(device):
                run(a_tensor, b_tensor, ab12_tensor, c_tensor, alpha, stream)

    def _bind(self, key: Any, a: Any, b: Any, ab12: Any, c: Any) -> Launch:
        """Check these tensors against what the object was compiled for, and find what runs for their extents."""
        checks.require_tensors("GemmSwiglu.execute", [("a_tensor", a), *name_b(b, self.glu_layout), ("ab12_tensor", ab12), ("c_tensor", c)])
        t = SwigluTensors.of(lambda _, x: metadata(x), a, b, ab12, c, self.glu_layout)
        for (name, found), (_, sample) in zip(t.named(), self._tensors.named(), strict=True):
            if found.dtype != sample.dtype:
                raise ValueError(
                    f"{name}: found dtype {found.dtype}, needs {sample.dtype}, which the object was compiled for; cast it, or compile another object"
                )
        extents = t.check_shapes()
        t.majors(self._bound)
        t.check_extents(self._bound)
        check_same_device([("a_tensor", a), *name_b(b, self.glu_layout), ("ab12_tensor", ab12), ("c_tensor", c)])
        kind = self._tensors.a.device_type
        if t.a.device_type != kind and self.backend != "reference":
            raise ValueError(f"a_tensor is on {t.a.device_type}, needs {kind}, which the object was compiled for; move the tensors, or compile another object")
        launch = self._launch_for(extents, t.a.device_index)
        return launch if key is None else self._launches.keep(key, launch)

    def _launch_for(self, extents: Extents, device_index: int | None) -> Launch:
        if 0 in (extents.m, extents.n, extents.batches):
            return _nothing, False
        if extents.k == 0:
            return _write_zeros, False
        if self._selected == "reference":
            return self._run_reference, False
        require_arch("gemm_swiglu", device_index)
        return self._compiled_kernel[choose(tuple(self._compiled_kernel), *extents)], True

    def _run_reference(self, a: Any, b: Any, ab12: Any, c: Any, alpha: float, stream: Any) -> None:
        from cudnn_gemm_dense.swiglu.reference import run_reference

        with stream_context(stream if a.is_cuda else None, a.device):
            run_reference(a, b, ab12, c, alpha, glu_layout=self.glu_layout, acc_dtype=self.acc_dtype)

    def _execute_other(self, a: Any, b: Any, ab12: Any, c: Any, alpha: float, stream: Any) -> None:
        """What is no plain torch tensor: traced by torch.compile, fake, a subclass, or another library's object with DLPack."""
        import torch

        from cudnn_gemm_dense.swiglu import torch_ops

        if torch.compiler.is_compiling() or isinstance(a, torch.Tensor):
            if stream is not None:
                raise ValueError("current_stream: found one in a call that is traced, needs None: it runs on the current stream")
            torch_ops.gemm_swiglu_out(
                a, torch_ops.as_list(b), ab12, c, alpha, self.acc_dtype, self.glu_layout, self.backend, torch_ops.config_text(self.config)
            )
            return
        tensors = [("a_tensor", a), *name_b(b, self.glu_layout), ("ab12_tensor", ab12), ("c_tensor", c)]
        if any(is_jax_array(t) or not hasattr(t, "__dlpack__") for _, t in tensors):
            checks.require_tensors("GemmSwiglu.execute", tensors)
        a, *halves, ab12, c = (t if is_torch_tensor(t) else torch.from_dlpack(t) for _, t in tensors)
        self.execute(a, halves if len(halves) == 2 else halves[0], ab12, c, alpha=alpha, current_stream=stream)


def _nothing(a: Any, b: Any, ab12: Any, c: Any, alpha: float, stream: Any) -> None:
    """M, N or L is 0: the outputs are empty."""


def _write_zeros(a: Any, b: Any, ab12: Any, c: Any, alpha: float, stream: Any) -> None:
    """K is 0: the sums are empty."""
    import torch

    with torch.no_grad(), stream_context(stream if ab12.is_cuda else None, ab12.device):
        ab12.zero_()
        c.zero_()


_plans: Memo = Memo(PLANS)
_objects: Memo = Memo(OBJECTS)


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
        TupleDict with ``ab12_tensor`` (M, N, L), ``c_tensor`` (M, N/2, L), ``sfc_tensor`` None, ``amax_tensor`` None. Not differentiable: the outputs carry no
        gradient. Under torch.compile this is the one operator ``cudnn::gemm_swiglu``.

    Raises:
        As ``GemmSwiglu.check_support``, before anything is allocated.
    """
    try:
        import torch
    except ModuleNotFoundError:
        # Without torch no argument can be torch's: say what is wrong with it rather than that torch is missing.
        checks.require_tensors("gemm_swiglu_wrapper", [("a_tensor", a_tensor)])
        raise

    if type(alpha) is not float:
        alpha = checks.as_scalar("alpha", alpha)
    options = (c_major, ab12_dtype, c_dtype, acc_dtype, mma_tiler_mn, cluster_shape_mn, sf_vec_size, vector_f32, ab12_stages, glu_layout, backend, config)
    scales = (sfa_tensor, sfb_tensor, norm_const_tensor)
    if torch.compiler.is_compiling() or (type(a_tensor) is not torch.Tensor and type(a_tensor) is not torch.nn.Parameter):
        return _wrap_other(a_tensor, b_tensor, scales, alpha, options, stream)
    try:
        plan = _plans.get((tensor_key(a_tensor, b_tensor), options)) if scales == (None, None, None) else None
    except (AttributeError, RuntimeError, TypeError):
        plan = None  # no strided torch tensors, or an option given as a list or dict
    if plan is None:
        plan = _find_plan(a_tensor, b_tensor, scales, options)
    op, (ab12_shape, ab12_stride, ab12_type), (c_shape, c_stride, c_type) = plan
    device = a_tensor.device
    if stream is not None:
        stream = _other_stream(stream, device)
    if stream is None:
        ab12_tensor = torch.empty_strided(ab12_shape, ab12_stride, dtype=ab12_type, device=device)
        c_tensor = torch.empty_strided(c_shape, c_stride, dtype=c_type, device=device)
        op.execute(a_tensor=a_tensor, b_tensor=b_tensor, ab12_tensor=ab12_tensor, c_tensor=c_tensor, alpha=alpha, current_stream=None)
    else:
        with torch.cuda.stream(stream):
            ab12_tensor = torch.empty_strided(ab12_shape, ab12_stride, dtype=ab12_type, device=device)
            c_tensor = torch.empty_strided(c_shape, c_stride, dtype=c_type, device=device)
        op.execute(a_tensor=a_tensor, b_tensor=b_tensor, ab12_tensor=ab12_tensor, c_tensor=c_tensor, alpha=alpha, current_stream=stream)
        # The inputs belong to the streams they were made on, the outputs to the launch stream; the kernel and the caller use them on the other one.
        record_streams((a_tensor, *(b_tensor if isinstance(b_tensor, (tuple, list)) else (b_tensor,))), stream)
        record_streams((ab12_tensor, c_tensor), None)
    return TupleDict(ab12_tensor=ab12_tensor, c_tensor=c_tensor, sfc_tensor=None, amax_tensor=None)


def _other_stream(stream: Any, device: torch.device) -> torch.cuda.Stream | None:
    """The stream to launch on where it is not the current one of ``device``. CPU tensors have none."""
    import torch

    if device.type != "cuda":
        return None
    found = as_torch_stream(stream, device)
    return None if found == torch.cuda.current_stream(device) else found


class _Plan(NamedTuple):
    """What a repeated wrapper call needs: the compiled object, and shape, strides and dtype of each output."""

    op: GemmSwiglu
    ab12: tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
    c: tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


def shared(op: GemmSwiglu) -> GemmSwiglu:
    """Check ``op`` and return the compiled object for its dtypes, majors and configuration: an earlier one, or itself.

    Hints and extents have been checked then, and change nothing.
    """
    op.check_support()
    op = _objects.keep((op._problem, op._options, op._selected, op.backend, op.config), op)
    op.compile()
    return op


def _find_plan(a: Any, b: Any, scales: tuple[Any, Any, Any], given: tuple[Any, ...]) -> _Plan:
    """Check the call, find or compile the object that serves it, and remember both."""
    options = Options.of(given)
    checks.require_tensors("gemm_swiglu_wrapper", [("a_tensor", a), *name_b(b, options.glu_layout)])
    key = (tensor_key(a, b), options)
    if scales == (None, None, None):
        plan = _plans.get(key)
        if plan is not None:
            return plan
    ab12, c, sfc, amax = describe_outputs(a, b, scales, options)
    op = GemmSwiglu(
        a,
        b,
        ab12,
        c,
        1.0,
        options.acc_dtype,
        options.mma_tiler_mn,
        options.cluster_shape_mn,
        scales[0],
        scales[1],
        amax,
        sfc,
        scales[2],
        options.sf_vec_size,
        options.vector_f32,
        options.ab12_stages,
        glu_layout=options.glu_layout,
        backend=options.backend,
        config=options.config,
    )
    op = shared(op)
    plan = _Plan(op, *((desc.shape, desc.stride, torch_dtype(desc.dtype)) for desc in (ab12, c)))
    _plans.keep((key[0], given) if is_hashable(given) else key, plan)
    return plan


def _wrap_other(a: Any, b: Any, scales: tuple[Any, Any, Any], alpha: float, given: tuple[Any, ...], stream: Any) -> TupleDict:
    """The wrapper for what is no plain torch tensor: traced by torch.compile, fake, or a subclass. Others are refused."""
    import torch

    from cudnn_gemm_dense.swiglu import torch_ops

    if scales != (None, None, None) or not (torch.compiler.is_compiling() or isinstance(a, torch.Tensor)):
        _find_plan(a, b, scales, given)  # raises
    if stream is not None:
        raise ValueError("stream: found one in a call that is traced, needs None: it runs on the current stream")
    *rest, config = given
    # NOTE: torch.compile takes a dict as part of a constant, but no frozen dataclass.
    fields = config.as_dict() if isinstance(config, GemmConfig) else config
    ab12, c = torch_ops.gemm_swiglu(a, torch_ops.as_list(b), alpha, *torch_ops.encode((*rest, fields)))
    return TupleDict(ab12_tensor=ab12, c_tensor=c, sfc_tensor=None, amax_tensor=None)


# The published names.
GemmSwigluSm100 = GemmSwiglu
gemm_swiglu_wrapper_sm100 = gemm_swiglu_wrapper


def precompile_specs() -> list[KernelSpec]:
    """The kernels worth having before the first call: what feed-forward layers use, in every layout of gate and up."""
    from cudnn_gemm_dense.swiglu.kernel import swiglu_spec

    found = []
    for dtype, layout in product(KERNEL_DTYPES, GLU_LAYOUTS):
        # (majors of A, B and the outputs; dtypes of AB12 and C): inference and training in row-major tensors, and the dtypes of the published defaults.
        cases = [(("k", "k", "n"), outputs) for outputs in ((dtype, dtype), ("float32", dtype), ("float32", "float16"))]
        if layout == "interleaved32":
            cases += [(majors, (dtype, dtype)) for majors in product("km", "kn", "nm") if majors != ("k", "k", "n")]
        for (a_major, b_major, out_major), (ab12_dtype, c_dtype) in dict.fromkeys(cases):
            problem = GemmProblem(dtype, dtype, "float32", a_major, b_major, B_PARTS[layout])
            found += [swiglu_spec(problem, SwigluOptions(ab12_dtype, c_dtype, out_major, layout), config) for config in default_configs(problem, gated=True)]
    return found
