"""How products of block-scaled operands are measured: bfloat16 activations by weights in MXFP8, MXFP4 and NVFP4, and both operands in MXFP8, against what one does without.

Without, weights are dequantised at every call, as they are when they are kept in the small format, and multiplied by cuBLAS; torch.compile makes one kernel of the dequantisation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cudnn.bench import Benchmark, Candidate, HostPath, Shape, dense
from cudnn.bench.spec import Inputs
from cudnn_gemm_dense.gemm.bench import Call, Config, compiled, name_of

if TYPE_CHECKING:
    import torch

WEIGHTS = {"mxfp8": "weights in MXFP8", "mxfp4": "weights in MXFP4", "nvfp4": "weights in NVFP4"}
SHAPES = {"rows": tuple((m, 8192, 8192) for m in (1, 16, 64, 128, 4096, 16384)), "large": ((4096, 4096, 4096), (16384, 4096, 7168))}


def _inputs(shape: Shape, dtype: str, device: torch.device, generator: torch.Generator) -> dict[str, Any]:
    """a (M, K) and for each format (data (N, K), blocked scale factors), quantised from the same numbers; A in MXFP8 too."""
    from cudnn.block_scale import FORMATS
    from cudnn.reference import quantize_blocks, scales_to_blocked

    m, n, k = shape
    a = dense.random_matrix(m, k, dtype, device, generator)
    b = dense.random_matrix(n, k, dtype, device, generator, scale=k**-0.5)
    found: dict[str, Any] = {"a": a}
    for name, matrix, kind in (("a-mxfp8", a, "mxfp8"), *((f"b-{kind}", b, kind) for kind in WEIGHTS)):
        data, scales = quantize_blocks(matrix, FORMATS[kind])
        # The factors in memory row by row as well, as torch code would keep them.
        found[name] = (data, scales_to_blocked(scales), scales)
    return found


def _vec(kind: str) -> int:
    from cudnn.block_scale import FORMATS

    return FORMATS[kind].vec


def _bind(inputs: Inputs, kind: str = "mxfp8", both: bool = False, config: Config = None) -> Call:
    import torch

    from cudnn_gemm_dense.gemm.api import Gemm

    b, sfb, _ = inputs[f"b-{kind}"]
    a, sfa, _ = inputs[f"a-{kind}"] if both else (inputs["a"], None, None)
    a, b = a.unsqueeze(-1), b.unsqueeze(-1)
    d = torch.empty(a.shape[0], b.shape[0], 1, device=a.device, dtype=inputs["a"].dtype)
    operation = compiled(Gemm(a, b, d, sample_sfa=sfa, sample_sfb=sfb, sf_vec_size=_vec(kind), config=config))
    workspace = torch.empty(operation.workspace_bytes(), dtype=torch.uint8, device=a.device)

    def call() -> torch.Tensor:
        operation.execute(a, b, d, sfa_tensor=sfa, sfb_tensor=sfb, workspace=workspace)
        return d

    return call


def _output(kind: str, both: bool = False) -> Callable[[torch.Tensor], dict[str, torch.Tensor]]:
    name = f"{kind} by {kind}" if both else kind
    return lambda d: {name: d.squeeze(-1)}


def _ours(config: Config) -> Candidate:
    return Candidate(
        name_of(config),
        "cudnn gemm, weights in MXFP8, converted where the default rule says",
        lambda inputs: _bind(inputs, config=config),
        _output("mxfp8"),
        in_place=True,
    )


def _extents(inputs: Inputs, kind: str) -> tuple[int, int, int]:
    (m, k), n = inputs["a"].shape, inputs[f"b-{kind}"][0].shape[0]
    return m, n, k


def _inside(name: str, kind: str) -> Candidate:
    """Weights converted inside the kernel, whatever the number of rows."""

    def bind(inputs: Inputs) -> Call:
        from cudnn_gemm_dense.configs import SWAPPED, choose

        return _bind(inputs, kind, config=choose(SWAPPED, *_extents(inputs, kind), 1).as_dict())

    return Candidate(name, f"cudnn gemm, {WEIGHTS[kind]}, converted inside the kernel", bind, _output(kind), whole=False, in_place=True)


def _default(name: str, kind: str) -> Candidate:
    """Weights converted where the default rule says."""
    return Candidate(name, f"cudnn gemm, {WEIGHTS[kind]}", lambda inputs: _bind(inputs, kind), _output(kind), whole=False, in_place=True)


def _in_front(name: str, kind: str) -> Candidate:
    """Weights converted by a kernel in front, whatever the number of rows."""

    def bind(inputs: Inputs) -> Call:
        from cudnn.cutedsl.gemm.problem import GemmProblem
        from cudnn_gemm_dense.configs import choose
        from cudnn_gemm_dense.gemm.options import GemmOptions
        from cudnn_gemm_dense.operation import fitting_configs

        configs = fitting_configs(GemmProblem("bfloat16", "bfloat16"), GemmOptions("bfloat16").footprint)
        return _bind(inputs, kind, config=choose(configs, *_extents(inputs, kind), 1).as_dict())

    return Candidate(name, f"cudnn gemm, {WEIGHTS[kind]}, converted by a kernel in front", bind, _output(kind), whole=False, in_place=True)


def _dequantized(data: torch.Tensor, scales: torch.Tensor, table: torch.Tensor, vec: int) -> torch.Tensor:
    """(N, K) in bfloat16, in plain torch: what a compiler can make one kernel of. ``table``: the values of 4-bit codes."""
    import torch

    if data.dtype == torch.uint8:
        values = table[torch.stack((data & 15, data >> 4), -1).flatten(-2).long()]
    else:
        values = data.float()
    return (values.view(values.shape[0], -1, vec) * scales.float().unsqueeze(-1)).flatten(1).to(torch.bfloat16)


def _bind_unfused(inputs: Inputs, kind: str, both: bool = False, compile: bool = True) -> Call:
    import torch

    from cudnn.fp4 import E2M1_VALUES

    vec = _vec(kind)
    # Else the compiler gives up on one function after eight shapes, and runs it eagerly.
    if compile:
        torch.compiler.reset()
    widen = torch.compile(_dequantized, dynamic=False) if compile else _dequantized
    table = torch.tensor(E2M1_VALUES, device=inputs["a"].device)

    def arguments(name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
        data, _, scales = inputs[name]
        packed = data.dtype == torch.float4_e2m1fn_x2
        # Compilers know neither packed numbers nor e8m0.
        factors = scales.float().to(torch.bfloat16) if scales.dtype == torch.float8_e8m0fnu else scales
        return (data.view(torch.uint8) if packed else data), factors, table, vec

    b, a = arguments(f"b-{kind}"), arguments(f"a-{kind}") if both else None
    return lambda: torch.matmul(inputs["a"] if a is None else widen(*a), widen(*b).t())


def _bind_plain(inputs: Inputs, multiply: str) -> Call:
    """The product alone, of weights that have been converted before."""
    import torch

    from cudnn_gemm_dense.gemm.api import Gemm

    a, b = inputs["a"], _wide(inputs, "b-mxfp8").to(torch.bfloat16)
    if multiply == "cublas":
        return lambda: torch.matmul(a, b.t())
    d = torch.empty(a.shape[0], b.shape[0], 1, device=a.device, dtype=a.dtype)
    operation = compiled(Gemm(a.unsqueeze(-1), b.unsqueeze(-1), d))

    def call() -> torch.Tensor:
        operation.execute(a.unsqueeze(-1), b.unsqueeze(-1), d)
        return d.squeeze(-1)

    return call


def _wide(inputs: Inputs, name: str) -> torch.Tensor:
    from cudnn.reference import dequantize_blocks

    data, _, scales = inputs[name]
    return dequantize_blocks(data, scales, _vec(name.partition("-")[2]))


def _reference(inputs: Inputs) -> dict[str, torch.Tensor]:
    from cudnn.reference import full_float32

    with full_float32():
        found = {kind: inputs["a"].float() @ _wide(inputs, f"b-{kind}").t() for kind in WEIGHTS}
        return {**found, "mxfp8 by mxfp8": _wide(inputs, "a-mxfp8") @ _wide(inputs, "b-mxfp8").t()}


def _baseline(inputs: Inputs) -> dict[str, torch.Tensor]:
    found = {kind: _bind_unfused(inputs, kind, compile=False)() for kind in WEIGHTS}
    return {**found, "mxfp8 by mxfp8": _bind_unfused(inputs, "mxfp8", both=True, compile=False)()}


def _bind_wrapper(inputs: Inputs) -> Call:
    from cudnn_gemm_dense.gemm.api import gemm_wrapper

    a, (b, sfb, _) = inputs["a"].unsqueeze(-1), inputs["b-mxfp8"]
    b = b.unsqueeze(-1)
    return lambda: gemm_wrapper(a, b, sfb_tensor=sfb)


BENCH = Benchmark(
    op="gemm_block_scaled",
    title="GEMM of block-scaled operands",
    axes=dense.AXES,
    shapes=SHAPES,
    inputs=_inputs,
    ours=_ours,
    peers=(
        _in_front("ours-in-front", "mxfp8"),
        _inside("ours-inside", "mxfp8"),
        _inside("ours-inside-nvfp4", "nvfp4"),
        _default("ours-mxfp4", "mxfp4"),
        _default("ours-nvfp4", "nvfp4"),
        Candidate(
            "ours-both", "cudnn gemm, both operands in MXFP8", lambda inputs: _bind(inputs, both=True), _output("mxfp8", True), whole=False, in_place=True
        ),
        Candidate(
            "ours-plain", "cudnn gemm, weights converted before", lambda inputs: _bind_plain(inputs, "ours"), _output("mxfp8"), whole=False, in_place=True
        ),
        Candidate("cublas", "cuBLAS matmul (torch), weights converted before", lambda inputs: _bind_plain(inputs, "cublas"), _output("mxfp8"), whole=False),
        Candidate(
            "torch-compile", "torch.compile'd dequantisation of MXFP8 weights, then cuBLAS", lambda inputs: _bind_unfused(inputs, "mxfp8"), _output("mxfp8")
        ),
        Candidate("torch-compile-nvfp4", "the same of NVFP4 weights", lambda inputs: _bind_unfused(inputs, "nvfp4"), _output("nvfp4"), whole=False),
        Candidate(
            "torch-compile-both", "the same of both operands in MXFP8", lambda inputs: _bind_unfused(inputs, "mxfp8", True), _output("mxfp8", True), whole=False
        ),
    ),
    reference=_reference,
    baseline=_baseline,
    flops=dense.gemm_flops,
    # Weights and their factors once, as small as they come; activations and result in 16 bits.
    bytes=lambda shape, dtype: 2.0 * (shape[0] * shape[2] + shape[0] * shape[1]) + shape[1] * shape[2] * (1 + 1 / 32),
    dtypes=("bfloat16",),
    host_paths=(HostPath("Gemm.execute", _bind), HostPath("gemm_wrapper", _bind_wrapper)),
    host_shape=(128, 128, 128),
)
