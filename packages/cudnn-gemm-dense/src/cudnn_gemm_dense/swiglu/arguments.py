"""The arguments of `gemm_swiglu_wrapper` in one spelling, what a repeated call is recognised by, and the outputs that a call has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from cudnn import checks
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.tensor_desc import TensorDesc
from cudnn_gemm_dense.swiglu.block_scaled import scale_shapes
from cudnn_gemm_dense.swiglu.shapes import OUT_MODES, describe, name_b, sample_metadata

if TYPE_CHECKING:
    import torch


class Options(NamedTuple):
    """The wrapper's arguments that are neither tensors nor run-time values, in one spelling."""

    c_major: str
    ab12_dtype: str
    c_dtype: str
    acc_dtype: str
    mma_tiler_mn: tuple[int, int]
    cluster_shape_mn: tuple[int, int] | None
    sf_vec_size: int
    vector_f32: bool
    ab12_stages: int
    glu_layout: str
    backend: str
    config: GemmConfig | None

    @classmethod
    def of(cls, options: tuple[Any, ...]) -> Options:
        """From the arguments as given; ValueError naming the first that is none of its kind."""
        o = cls._make(options)
        if o.c_major not in OUT_MODES:
            raise ValueError(f"c_major: found {o.c_major!r}, needs 'n' or 'm'")
        return o._replace(
            ab12_dtype=checks.required_dtype("ab12_dtype", o.ab12_dtype),
            c_dtype=checks.required_dtype("c_dtype", o.c_dtype),
            acc_dtype=checks.required_dtype("acc_dtype", o.acc_dtype),
            mma_tiler_mn=checks.as_pair("mma_tiler_mn", o.mma_tiler_mn),
            cluster_shape_mn=None if o.cluster_shape_mn is None else checks.as_pair("cluster_shape_mn", o.cluster_shape_mn),
            sf_vec_size=checks.as_integer("sf_vec_size", o.sf_vec_size),
            vector_f32=bool(o.vector_f32),
            ab12_stages=checks.as_integer("ab12_stages", o.ab12_stages),
            config=None if o.config is None else GemmConfig.of(o.config),
        )


def tensor_key(a: torch.Tensor, b: Any) -> tuple[Any, ...]:
    """What of A and B (a tensor, or a pair) decides how a call runs."""
    if isinstance(b, (tuple, list)):
        return (a.shape, a.stride(), a.dtype, a.get_device(), *((half.shape, half.stride(), half.dtype, half.get_device()) for half in b))
    return a.shape, a.stride(), a.dtype, a.get_device(), b.shape, b.stride(), b.dtype, b.get_device()


def is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def describe_outputs(a: Any, b: Any, scales: tuple[Any, Any, Any], options: Options) -> tuple[Any, Any, Any, Any]:
    """Descriptions of AB12 and C, and in the block-scaled mode of SFC and amax where the published wrapper allocates them."""
    halves = name_b(b, options.glu_layout)
    t = [(name, sample_metadata(name, x)) for name, x in (("a_tensor", a), *halves)]
    for name, meta in t:
        checks.check_rank(name, meta, "(M, K, L)" if name == "a_tensor" else "(N, K, L)")
    m, _, batches = t[0][1].shape
    n = sum(meta.shape[0] for _, meta in t[1:])
    ab12, c = (
        describe(name, dtype, (m, columns, batches), options.c_major, a.device)
        for name, dtype, columns in (("ab12_tensor", options.ab12_dtype, n), ("c_tensor", options.c_dtype, n // 2))
    )
    sfc = amax = None
    if scales[0] is not None and scales[1] is not None:
        if options.c_dtype in ("float8_e4m3fn", "float8_e5m2"):
            shape = scale_shapes(m, n // 2, batches, max(options.sf_vec_size, 1))[1]
            sfc = TensorDesc("float8_e8m0fnu", shape, TensorDesc._compute_contiguous_stride(shape), tuple(range(5, -1, -1)), a.device, name="sfc_tensor")
        elif t[0][1].dtype in ("float4_e2m1fn", "uint8") and options.c_dtype == "bfloat16":
            amax = TensorDesc("float32", (1,), (1,), (0,), a.device, name="amax_tensor")
    return ab12, c, sfc, amax
