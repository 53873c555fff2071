"""Projection + RoPE + MXFP8: the classes `GemmProjRopeMxfp8Bf16In` and `GemmProjRopeMxfp8Mxfp8In` and the wrapper `gemm_proj_rope_mxfp8_wrapper`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cudnn import checks
from cudnn.block_scale import MXFP8
from cudnn.cutedsl.dequantize import DequantizeSpec
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.datatypes import dtype_name, torch_dtype
from cudnn.streams import contiguous_on_stream
from cudnn.tuple_dict import TupleDict
from cudnn.wrapper_calls import Arguments, Output, WrapperCalls
from cudnn_gemm_dense.proj_rope_mxfp8.lanes import BLOCK, BLOCKS, HEAD
from cudnn_gemm_dense.proj_rope_mxfp8.operation import ProjRope, default_configs
from cudnn_gemm_dense.proj_rope_mxfp8.options import ProjRopeOptions, proj_rope_spec
from cudnn_gemm_dense.proj_rope_mxfp8.reference import gemm_proj_rope_mxfp8_reference
from cudnn_gemm_dense.proj_rope_mxfp8.shapes import OUTPUTS, ProjRopeLayout

if TYPE_CHECKING:
    import torch

    from cudnn.cutedsl.compile import KernelSpec

__all__ = [
    "GemmProjRopeMxfp8Bf16In",
    "GemmProjRopeMxfp8Bf16InSm100",
    "GemmProjRopeMxfp8Mxfp8In",
    "GemmProjRopeMxfp8Mxfp8InSm100",
    "gemm_proj_rope_mxfp8_reference",
    "gemm_proj_rope_mxfp8_wrapper",
    "gemm_proj_rope_mxfp8_wrapper_sm100",
    "precompile_specs",
]


class GemmProjRopeMxfp8Bf16In(ProjRope):
    """Heads of 192 features, rotated and quantised in both directions, from bfloat16 operands.

    With q[t, h, f] the sum over k of x[t, k] * w[192 h + f, k], summed in float32 and rounded to bfloat16, and i = 0 ... 31:

        z[f]       = q[f]                                                          f < 128
        z[128 + i] = q[128 + 2 i] * cos[t, i]      - q[129 + 2 i] * sin[t, i]
        z[160 + i] = q[128 + 2 i] * sin[t, 32 + i] + q[129 + 2 i] * cos[t, 32 + i]

    in float32, and for every block of 32 features of a token (row), and of 32 tokens of a feature (col), with a its largest magnitude:

        scale = the next power of two from a / 448 on, as the byte 127 + its exponent; 0 for a block of zeros
        value = z / scale in float8_e4m3fn, to nearest even

    A NaN makes its blocks NaN, scale (byte 255) and values.

    Tensors, all contiguous (H is the number of heads; T a multiple of 128, K one of 8):

    ===============  ====================================================  ==============
    name             shape                                                 dtype
    ===============  ====================================================  ==============
    x                (T, K)                                                bfloat16
    w                (192 H, K) where ``w_out_in``, else (K, 192 H)        bfloat16
    cos, sin         (T, 64)                                               bfloat16
    out_fp8_row      (T, H, 192)                                           float8_e4m3fn
    out_scales_row   (T, H, 6): [t, h, f // 32]                            uint8
    out_fp8_col      (T, H, 192)                                           float8_e4m3fn
    out_scales_col   (T/32, H, 192): [t // 32, h, f]                       uint8
    ===============  ====================================================  ==============

    Addresses of all but the scales are multiples of 16 bytes. w is read in place either way. Extents and pointers are run-time values. T = 0 or H = 0 does nothing; K = 0 writes zeros.

    Args:
        sample_x, sample_w, sample_cos, sample_sin, sample_out_fp8_row, sample_out_scales_row, sample_out_fp8_col, sample_out_scales_col: tensors or ``TensorDesc``; only their metadata is read.
        w_out_in: whether output features come first in w.
        backend: ``"auto"`` (kernel for CUDA tensors, reference for CPU tensors), ``"sm90"`` or ``"reference"``.
        config: a ``GemmConfig`` or a dict of its fields: build and run this one instead of the default set. ``tile_n`` is 192, one head.
    """

    def __init__(
        self,
        sample_x: Any,
        sample_w: Any,
        sample_cos: Any,
        sample_sin: Any,
        sample_out_fp8_row: Any,
        sample_out_scales_row: Any,
        sample_out_fp8_col: Any,
        sample_out_scales_col: Any,
        w_out_in: bool = False,
        *,
        backend: str = "auto",
        config: GemmConfig | Mapping[str, object] | None = None,
    ) -> None:
        samples = {
            "x": sample_x,
            "w": sample_w,
            "cos": sample_cos,
            "sin": sample_sin,
            "out_fp8_row": sample_out_fp8_row,
            "out_scales_row": sample_out_scales_row,
            "out_fp8_col": sample_out_fp8_col,
            "out_scales_col": sample_out_scales_col,
        }
        super().__init__(samples, ProjRopeLayout(scaled=False, w_out_in=bool(w_out_in)), backend=backend, config=config)

    @staticmethod
    def _calls() -> WrapperCalls:
        return BF16_CALLS

    def _constructor_arguments(self) -> dict[str, Any]:
        return {"w_out_in": self._layout.w_out_in, **super()._constructor_arguments()}

    def execute(
        self,
        x: Any,
        w: Any,
        cos: Any,
        sin: Any,
        out_fp8_row: Any,
        out_scales_row: Any,
        out_fp8_col: Any,
        out_scales_col: Any,
        current_stream: Any = None,
        *,
        workspace: Any = None,
    ) -> None:
        """Write the four outputs. On CUDA tensors this launches one kernel and returns without waiting.

        Args:
            x, w, cos, sin, out_fp8_row, out_scales_row, out_fp8_col, out_scales_col: as the samples in dtype, layout and kind of device; extents are free.
            current_stream: a CUstream, torch stream or raw handle; None is torch's current stream on the tensors' device. CPU tensors have no stream, and it is not looked at.
            workspace: not needed, see ``workspace_bytes``.

        Raises:
            RuntimeError: not compiled.
            ValueError: a tensor differs from what the object was compiled for, the tensors do not fit each other, an address is not a multiple of 16 bytes.
        """
        self._run((x, w, cos, sin, out_fp8_row, out_scales_row, out_fp8_col, out_scales_col), self._constant_scalars, current_stream, workspace)


class GemmProjRopeMxfp8Mxfp8In(ProjRope):
    """As `GemmProjRopeMxfp8Bf16In`, from MXFP8 operands: x = x_code * 2^(x_scale - 127) for every 32 values along K, and w alike. Their products with the scales are exact in bfloat16 within its range.

    Tensors, all contiguous (H even, T a multiple of 128, K one of 32):

    ===============  ================  ==============
    name             shape             dtype
    ===============  ================  ==============
    x_code           (T, K)            float8_e4m3fn
    x_scale          (T, K/32)         uint8
    w_code           (192 H, K)        float8_e4m3fn
    w_scale          (192 H, K/32)     uint8
    ===============  ================  ==============

    and cos, sin and the outputs as there. Both operands are written to scratch memory in bfloat16 first: 2 (T + 192 H) K bytes (`workspace_bytes`).

    Args:
        sample_x_code, sample_x_scale, sample_w_code, sample_w_scale, sample_cos, sample_sin, sample_out_fp8_row, sample_out_scales_row, sample_out_fp8_col, sample_out_scales_col: tensors or
            ``TensorDesc``; only their metadata is read.
        backend, config: as there.
    """

    def __init__(
        self,
        sample_x_code: Any,
        sample_x_scale: Any,
        sample_w_code: Any,
        sample_w_scale: Any,
        sample_cos: Any,
        sample_sin: Any,
        sample_out_fp8_row: Any,
        sample_out_scales_row: Any,
        sample_out_fp8_col: Any,
        sample_out_scales_col: Any,
        *,
        backend: str = "auto",
        config: GemmConfig | Mapping[str, object] | None = None,
    ) -> None:
        samples = {
            "x_code": sample_x_code,
            "w_code": sample_w_code,
            "cos": sample_cos,
            "sin": sample_sin,
            "out_fp8_row": sample_out_fp8_row,
            "out_scales_row": sample_out_scales_row,
            "out_fp8_col": sample_out_fp8_col,
            "out_scales_col": sample_out_scales_col,
            "x_scale": sample_x_scale,
            "w_scale": sample_w_scale,
        }
        super().__init__(samples, ProjRopeLayout(scaled=True, w_out_in=True), backend=backend, config=config)

    @staticmethod
    def _calls() -> WrapperCalls:
        return MXFP8_CALLS

    def execute(
        self,
        x_code: Any,
        x_scale: Any,
        w_code: Any,
        w_scale: Any,
        cos: Any,
        sin: Any,
        out_fp8_row: Any,
        out_scales_row: Any,
        out_fp8_col: Any,
        out_scales_col: Any,
        current_stream: Any = None,
        *,
        workspace: Any = None,
    ) -> None:
        """Write the four outputs. On CUDA tensors this launches three kernels and returns without waiting.

        Args:
            x_code, x_scale, w_code, w_scale, cos, sin, out_fp8_row, out_scales_row, out_fp8_col, out_scales_col: as the samples in dtype, layout and kind of device; extents are free.
            current_stream: a CUstream, torch stream or raw handle; None is torch's current stream on the tensors' device. CPU tensors have no stream, and it is not looked at.
            workspace: uint8 scratch memory, see ``workspace_bytes``; None takes it from torch's allocator on the launch stream.

        Raises:
            RuntimeError: not compiled.
            ValueError: a tensor differs from what the object was compiled for, the tensors do not fit each other, an address is not a multiple of 16 bytes.
        """
        outputs = (out_fp8_row, out_scales_row, out_fp8_col, out_scales_col)
        self._run((x_code, w_code, cos, sin, *outputs, x_scale, w_scale), self._constant_scalars, current_stream, workspace)


def gemm_proj_rope_mxfp8_wrapper(
    x: torch.Tensor,
    w: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    x_scale: torch.Tensor | None = None,
    w_scale: torch.Tensor | None = None,
    w_out_in: bool = True,
    stream: Any = None,
    *,
    backend: str = "auto",
    config: GemmConfig | Mapping[str, object] | None = None,
) -> TupleDict:
    """`GemmProjRopeMxfp8Bf16In` or, for float8_e4m3fn operands, `GemmProjRopeMxfp8Mxfp8In` in one call: allocates the outputs and keeps the compiled object for later calls.

    Args:
        x: (T, K), bfloat16 or float8_e4m3fn.
        w: (192 H, K) where ``w_out_in``, else (K, 192 H), of x's dtype.
        cos, sin: (T, 64), bfloat16.
        x_scale: (T, K/32), uint8, the scales of x; float8_e4m3fn needs them, bfloat16 takes none.
        w_scale: (192 H, K/32) where ``w_out_in``, else (K/32, 192 H), uint8.
        w_out_in: whether output features come first in w and w_scale. bfloat16 weights are read in place either way; float8_e4m3fn ones are copied into the other order where it is False.
        stream: where to launch; None is torch's current stream on the tensors' device. With another stream than the current one the outputs are allocated there, and all tensors are recorded on both,
            so that none is recycled while the kernel needs it; the caller still waits for that stream before using them.

    The other arguments, and what is computed: see the classes.

    Returns:
        TupleDict with ``out_fp8_row`` (T, H, 192), ``out_scales_row`` (T, H, 6), ``out_fp8_col`` (T, H, 192), ``out_scales_col`` (T/32, H, 192). Not differentiable: the outputs carry no gradient. Under
        torch.compile this is the one operator ``cudnn::gemm_proj_rope_mxfp8_bf16_in`` or ``cudnn::gemm_proj_rope_mxfp8_mxfp8_in``.

    Raises:
        ValueError: tensors that are not torch's; dtypes that this project does not know; as ``check_support`` of the class, before anything is allocated.
        AssertionError: x and w of different dtypes; bfloat16 with scales; float8_e4m3fn without both; another dtype.
    """
    given = {"x": x, "w": w, "cos": cos, "sin": sin}
    try:
        import torch
    except ModuleNotFoundError:
        checks.require_tensors("gemm_proj_rope_mxfp8_wrapper", list(given.items()))
        raise
    for name, t in given.items():
        if not isinstance(t, torch.Tensor):
            checks.require_tensors("gemm_proj_rope_mxfp8_wrapper", [(name, t)])
    if x.dtype != w.dtype:
        raise AssertionError(f"x and w must share a dtype, found {x.dtype} and {w.dtype}; cast one")
    options = {"backend": backend, "config": config}
    if x.dtype == torch.bfloat16:
        if x_scale is not None or w_scale is not None:
            raise AssertionError("bfloat16 x and w must not be given MXFP8 scales, found x_scale or w_scale; leave both out")
        return TupleDict(**BF16_CALLS(given, {}, {"w_out_in": bool(w_out_in), **options}, stream))
    if x.dtype != torch.float8_e4m3fn:
        if dtype_name(x.dtype) is None:
            raise ValueError(f"x: found dtype {x.dtype}, needs bfloat16 or float8_e4m3fn; cast it")
        raise AssertionError(f"x and w must be bfloat16, or float8_e4m3fn with scales, found {x.dtype}; cast both")
    if x_scale is None or w_scale is None:
        raise AssertionError(f"float8_e4m3fn x and w require x_scale and w_scale, found {'neither' if x_scale is w_scale else 'one'}")
    if not w_out_in:
        for name, t in (("w", w), ("w_scale", w_scale)):
            if not isinstance(t, torch.Tensor) or t.dim() != 2:
                raise ValueError(f"{name}: found {tuple(t.shape) if isinstance(t, torch.Tensor) else type(t).__name__}, needs a torch tensor with two axes")
        # torch.compile traces no streams.
        w, w_scale = (t.t().contiguous() if stream is None else contiguous_on_stream(t.t(), stream) for t in (w, w_scale))
    return TupleDict(**MXFP8_CALLS({"x_code": x, "x_scale": x_scale, "w_code": w, "w_scale": w_scale, "cos": cos, "sin": sin}, {}, options, stream))


def _bf16_in(x: torch.Tensor, w: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, w_out_in: bool, backend: str, config: Any) -> TupleDict:
    return gemm_proj_rope_mxfp8_wrapper(x, w, cos, sin, w_out_in=w_out_in, backend=backend, config=config)


def _mxfp8_in(
    x_code: torch.Tensor, x_scale: torch.Tensor, w_code: torch.Tensor, w_scale: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, backend: str, config: Any
) -> TupleDict:
    return gemm_proj_rope_mxfp8_wrapper(x_code, w_code, cos, sin, x_scale, w_scale, backend=backend, config=config)


def _outputs_of(x: Any, w: Any, features: int) -> dict[str, Output]:
    for name, t in (("x", x), ("w", w)):
        if len(t.shape) != 2:
            raise ValueError(f"{name}: found shape {tuple(t.shape)}, needs two axes")
    t, heads = x.shape[0], w.shape[features] // HEAD
    shapes = dict(zip(OUTPUTS, ((t, heads, HEAD), (t, heads, BLOCKS), (t, heads, HEAD), (t // BLOCK, heads, HEAD)), strict=True))
    return {name: Output(shape, (shape[1] * shape[2], shape[2], 1), torch_dtype(OUTPUTS[name])) for name, shape in shapes.items()}


def _bf16_outputs(tensors: Arguments, options: Arguments) -> dict[str, Output]:
    return _outputs_of(tensors["x"], tensors["w"], 0 if options["w_out_in"] else 1)


def _mxfp8_outputs(tensors: Arguments, options: Arguments) -> dict[str, Output]:
    return _outputs_of(tensors["x_code"], tensors["w_code"], 0)


def _build_bf16(tensors: Arguments, outputs: Arguments, options: Arguments) -> GemmProjRopeMxfp8Bf16In:
    return GemmProjRopeMxfp8Bf16In(*(tensors[name] for name in BF16_INPUTS), *outputs.values(), **options)


def _build_mxfp8(tensors: Arguments, outputs: Arguments, options: Arguments) -> GemmProjRopeMxfp8Mxfp8In:
    return GemmProjRopeMxfp8Mxfp8In(*(tensors[name] for name in MXFP8_INPUTS), *outputs.values(), **options)


def _bf16_operators() -> tuple[Any, Any]:
    from cudnn_gemm_dense.proj_rope_mxfp8 import torch_ops

    return torch_ops.bf16_in, torch_ops.bf16_in_out


def _mxfp8_operators() -> tuple[Any, Any]:
    from cudnn_gemm_dense.proj_rope_mxfp8 import torch_ops

    return torch_ops.mxfp8_in, torch_ops.mxfp8_in_out


BF16_INPUTS = ("x", "w", "cos", "sin")
MXFP8_INPUTS = ("x_code", "x_scale", "w_code", "w_scale", "cos", "sin")
BF16_CALLS = WrapperCalls(
    "gemm_proj_rope_mxfp8_bf16_in", _bf16_in, GemmProjRopeMxfp8Bf16In, _bf16_outputs, _build_bf16, _bf16_operators, has_alpha=False, operands=BF16_INPUTS
)
MXFP8_CALLS = WrapperCalls(
    "gemm_proj_rope_mxfp8_mxfp8_in", _mxfp8_in, GemmProjRopeMxfp8Mxfp8In, _mxfp8_outputs, _build_mxfp8, _mxfp8_operators, has_alpha=False, operands=MXFP8_INPUTS
)

# The published names.
GemmProjRopeMxfp8Bf16InSm100 = GemmProjRopeMxfp8Bf16In
GemmProjRopeMxfp8Mxfp8InSm100 = GemmProjRopeMxfp8Mxfp8In
gemm_proj_rope_mxfp8_wrapper_sm100 = gemm_proj_rope_mxfp8_wrapper


def precompile_specs() -> list[KernelSpec | DequantizeSpec]:
    """The kernels worth having before the first call: weights in either order, and what MXFP8 operands need in front."""
    widen = DequantizeSpec(MXFP8.element, MXFP8.scale, MXFP8.vec, "bfloat16", blocked=False)
    problems = (GemmProblem("bfloat16", "bfloat16", b_major=major) for major in ("k", "n"))
    return [widen, *(proj_rope_spec(problem, ProjRopeOptions(), config) for problem in problems for config in default_configs(problem))]
