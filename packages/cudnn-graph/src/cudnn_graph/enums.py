"""Public enumerations of the graph API. Plain ``enum.Enum``; the numbers are part of the interface.

``data_type`` itself belongs to :mod:`cudnn.datatypes`; it is re-exported here.
The numbers that libcudnn uses for the same notions are not these: see :mod:`cudnn_graph.constants`.
"""

from __future__ import annotations

from enum import Enum

from cudnn.datatypes import data_type

__all__ = [
    "FRONTEND_KNOB_TYPE_BASE",
    "attention_implementation",
    "behavior_note",
    "build_plan_policy",
    "convolution_mode",
    "cuda_graph_retention",
    "data_type",
    "diagonal_alignment",
    "heur_mode",
    "is_frontend_knob_type",
    "knob_type",
    "moe_grouped_matmul_mode",
    "norm_forward_phase",
    "numerical_note",
    "reduction_mode",
    "reshape_mode",
    "scalar_type",
    "tensor_reordering",
]


class tensor_reordering(Enum):
    """How the elements of a tensor are permuted in memory on top of its strides."""

    NONE = 0
    INT8x32 = 1
    F16x16 = 2
    F8_128x4 = 3


class heur_mode(Enum):
    """Which heuristic proposes execution plans. A: fast decision; B: slower, often better; FALLBACK: plans that work in most cases."""

    A = 0
    B = 1
    FALLBACK = 2
    OPENSOURCE = 3


class build_plan_policy(Enum):
    """HEURISTICS_CHOICE builds the first plan that compiles, ALL builds every plan."""

    HEURISTICS_CHOICE = 0
    ALL = 1


class norm_forward_phase(Enum):
    """TRAINING also returns the statistics that the backward pass needs."""

    NOT_SET = 0
    INFERENCE = 1
    TRAINING = 2


class reduction_mode(Enum):
    """Operation of a ``reduction`` node."""

    NOT_SET = 0
    ADD = 1
    MUL = 2
    MIN = 3
    MAX = 4
    AMAX = 5
    AVG = 6
    NORM1 = 7
    NORM2 = 8
    MUL_NO_ZEROS = 9


class convolution_mode(Enum):
    """CONVOLUTION flips the filter, CROSS_CORRELATION (what torch computes) does not."""

    CONVOLUTION = 1
    CROSS_CORRELATION = 2


class diagonal_alignment(Enum):
    """Corner of the score matrix at which the attention band starts."""

    TOP_LEFT = 0
    BOTTOM_RIGHT = 1


class attention_implementation(Enum):
    """How an attention node is lowered."""

    AUTO = 0
    COMPOSITE = 1
    UNIFIED = 2


class moe_grouped_matmul_mode(Enum):
    """How the token rows of a grouped matmul are addressed."""

    NONE = 1
    GATHER = 2
    SCATTER = 3
    COMBINE = 4


class scalar_type(Enum):
    """RUNTIME_PARAM: read at every execute. COMPILE_TIME_CONST: part of the plan."""

    RUNTIME_PARAM = 0
    COMPILE_TIME_CONST = 1


class reshape_mode(Enum):
    """VIEW_ONLY reinterprets memory, LOGICAL keeps the row-major order of elements."""

    VIEW_ONLY = 1
    LOGICAL = 2


class cuda_graph_retention(Enum):
    """Whether a plan keeps resources for CUDA graphs made from it."""

    PER_GRAPH = 0
    NONE = 1


class numerical_note(Enum):
    """Numerical properties of an engine (the backend's number plus one)."""

    TENSOR_CORE = 1
    DOWN_CONVERT_INPUTS = 2
    REDUCED_PRECISION_REDUCTION = 3
    FFT = 4
    NONDETERMINISTIC = 5
    WINOGRAD = 6
    WINOGRAD_TILE_4x4 = 7
    WINOGRAD_TILE_6x6 = 8
    WINOGRAD_TILE_13x13 = 9
    STRICT_NAN_PROP = 10


class behavior_note(Enum):
    """Behavioural properties of an engine (the backend's number plus one)."""

    RUNTIME_COMPILATION = 1
    REQUIRES_FILTER_INT8x32_REORDER = 2
    REQUIRES_BIAS_INT8x32_REORDER = 3
    SUPPORTS_CUDA_GRAPH_NATIVE_API = 4
    CUBLASLT_DEPENDENCY = 5


class knob_type(Enum):
    """Tuning knobs. Values from 1000 up exist in Python engines only (:func:`is_frontend_knob_type`)."""

    NOT_SET = 0
    SWIZZLE = 1
    TILE_SIZE = 2
    EDGE = 3
    MULTIPLY = 4
    SPLIT_K_BUF = 5
    TILEK = 6
    STAGES = 7
    REDUCTION_MODE = 8
    SPLIT_K_SLC = 9
    IDX_MODE = 10
    SPECFILT = 11
    KERNEL_CFG = 12
    WORKSPACE = 13
    TILE_CGA_M = 14
    TILE_CGA_N = 15
    BLOCK_SIZE = 16
    OCCUPANCY = 17
    ARRAY_SIZE_PER_THREAD = 18
    SPLIT_COLS = 19
    TILE_ROWS = 20
    TILE_COLS = 21
    LOAD_SIZE = 22
    CTA_COUNT = 23
    STREAM_K = 24
    SPLIT_P_SLC = 25
    TILE_M = 26
    TILE_N = 27
    WARP_SPEC_CFG = 28
    SWAP_AB = 29
    INPUT_TMA_ENABLE = 30
    OUTPUT_TMA_ENABLE = 31
    TILE_CGA = 32
    SCHED_POLICY = 1000
    PACK_GQA = 1001
    SPLIT_KV = 1002
    PIPELINE_ARCH = 1003
    MMA_TILE_M = 1004
    MMA_TILE_N = 1005
    MMA_TILE_K = 1006
    CTA_GROUP = 1007
    WARPS_M = 1008
    WARPS_N = 1009


FRONTEND_KNOB_TYPE_BASE = 1000


def is_frontend_knob_type(kt: knob_type) -> bool:
    """True for knobs that only Python engines understand."""
    return kt.value >= FRONTEND_KNOB_TYPE_BASE
