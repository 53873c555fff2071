"""How projection + RoPE + MXFP8 is measured: T tokens, H heads, from bfloat16 or MXFP8 operands. What is compared is what the quantised rows and columns stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn.bench import Benchmark, Candidate, HostPath, Shape, dense
from cudnn.bench.spec import Inputs
from cudnn_gemm_dense.gemm.bench import Call, Config, compiled, name_of
from cudnn_gemm_dense.proj_rope_mxfp8.lanes import BLOCK, BLOCKS, HEAD, ROPE

if TYPE_CHECKING:
    import torch

# Queries of DeepSeek-V3: 128 heads out of 1536 features.
MLA: tuple[Shape, ...] = ((2048, 128, 1536), (4096, 128, 1536), (16384, 128, 1536))
SHORT: tuple[Shape, ...] = ((128, 128, 1536), (512, 16, 1536))


def _inputs(shape: Shape, dtype: str, device: torch.device, generator: torch.Generator) -> dict[str, Any]:
    import torch

    tokens, heads, k = shape
    angles = torch.rand(tokens, ROPE, device=device, generator=generator) * 6.28
    x = dense.random_matrix(tokens, k, "bfloat16", device, generator)
    w = dense.random_matrix(heads * HEAD, k, "bfloat16", device, generator, scale=k**-0.5)
    operands = {"x": x, "w": w}
    if dtype != "bfloat16":
        from cudnn.block_scale import MXFP8
        from cudnn.reference.block_scale import quantize_blocks

        for name, t in tuple(operands.items()):
            operands[name], scales = quantize_blocks(t, MXFP8)
            operands[f"{name}_scale"] = scales.view(torch.uint8)
    return {**operands, "cos": angles.cos().bfloat16(), "sin": angles.sin().bfloat16()}


def _wide(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """The operands in bfloat16."""
    from cudnn_gemm_dense.proj_rope_mxfp8.reference import widened

    return tuple(widened(inputs[n], inputs[f"{n}_scale"]) if f"{n}_scale" in inputs else inputs[n] for n in "xw")  # type: ignore[return-value]


def _bind(inputs: Inputs, config: Config = None) -> Call:
    import torch

    from cudnn_gemm_dense.proj_rope_mxfp8.api import GemmProjRopeMxfp8Bf16In, GemmProjRopeMxfp8Mxfp8In

    x, w, cos, sin = (inputs[name] for name in ("x", "w", "cos", "sin"))
    tokens, heads = x.shape[0], w.shape[0] // HEAD
    rows, columns = (torch.empty(tokens, heads, HEAD, dtype=torch.float8_e4m3fn, device=x.device) for _ in range(2))
    row_scales = torch.empty(tokens, heads, BLOCKS, dtype=torch.uint8, device=x.device)
    column_scales = torch.empty(tokens // BLOCK, heads, HEAD, dtype=torch.uint8, device=x.device)
    outputs = (rows, row_scales, columns, column_scales)
    operation: Any
    arguments: tuple[Any, ...]
    if "x_scale" in inputs:
        arguments = (x, inputs["x_scale"], w, inputs["w_scale"], cos, sin, *outputs)
        operation = compiled(GemmProjRopeMxfp8Mxfp8In(*arguments, config=config))
    else:
        arguments = (x, w, cos, sin, *outputs)
        operation = compiled(GemmProjRopeMxfp8Bf16In(*arguments, w_out_in=True, config=config))

    def call() -> tuple[torch.Tensor, ...]:
        operation.execute(*arguments)
        return outputs

    return call


def _named(result: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    from cudnn_gemm_dense.proj_rope_mxfp8.reference import dequantized

    return dict(zip(("row", "col"), (t.float() for t in dequantized(*result)), strict=True))


def _ours(config: Config) -> Candidate:
    return Candidate(name_of(config), "cudnn gemm_proj_rope_mxfp8", lambda inputs: _bind(inputs, config), _named, in_place=True)


def _unfused(x: torch.Tensor, w: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
    import torch

    return _finish(torch.matmul(x, w.t()), cos, sin)


def _finish(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Rotation and quantisation in operations that torch.compile joins."""
    import torch

    from cudnn_gemm_dense.proj_rope_mxfp8.reference import rotated

    tokens = q.shape[0]
    z = rotated(q.view(tokens, -1, HEAD).float(), cos, sin)

    def quantize(blocks: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
        bits = (blocks.abs().amax(axis, keepdim=True) * (1.0 / 448.0)).view(torch.int32)
        byte = (bits + 0x7FFFFF) >> 23
        values = (blocks * ((254 - byte) << 23).view(torch.float32)).to(torch.float8_e4m3fn)
        return values.reshape(z.shape), byte.squeeze(axis).to(torch.uint8)

    return *quantize(z.view(tokens, -1, BLOCKS, BLOCK), 3), *quantize(z.view(tokens // BLOCK, BLOCK, -1, HEAD), 1)


def _bind_compiled(inputs: Inputs) -> Call:
    import torch

    # Else the compiler gives up on one function after eight shapes, and runs it eagerly.
    torch.compiler.reset()
    fused = torch.compile(_unfused, dynamic=False)
    if "x_scale" not in inputs:
        return lambda: fused(inputs["x"], inputs["w"], inputs["cos"], inputs["sin"])
    scale = torch.compile(_scaled, dynamic=False)
    return lambda: fused(scale(inputs["x"], inputs["x_scale"]), scale(inputs["w"], inputs["w_scale"]), inputs["cos"], inputs["sin"])


def _scaled(code: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """MXFP8 in bfloat16, for scales that are normal numbers."""
    import torch

    power = (scale.int() << 23).view(torch.float32)
    return (code.view(*scale.shape, BLOCK).float() * power.unsqueeze(-1)).to(torch.bfloat16).view(code.shape)


def _bind_product(inputs: Inputs) -> Call:
    """The product alone, of bfloat16 operands; what is done to it for the comparison is not timed."""
    import torch

    x, w = _wide(inputs)
    return lambda: (torch.matmul(x, w.t()), inputs["cos"], inputs["sin"])


def _reference(inputs: Inputs) -> dict[str, torch.Tensor]:
    from cudnn_gemm_dense.proj_rope_mxfp8.reference import product, rotated

    z = rotated(product(*_wide(inputs), True), inputs["cos"], inputs["sin"])
    return {"row": z, "col": z}


def _baseline(inputs: Inputs) -> dict[str, torch.Tensor]:
    return _named(_unfused(*_wide(inputs), inputs["cos"], inputs["sin"]))


def _bind_wrapper(inputs: Inputs) -> Call:
    from cudnn_gemm_dense.proj_rope_mxfp8.api import gemm_proj_rope_mxfp8_wrapper

    return lambda: gemm_proj_rope_mxfp8_wrapper(**inputs)


def _flops(shape: Shape) -> float:
    tokens, heads, k = shape
    return 2.0 * tokens * heads * HEAD * k


def _bytes(shape: Shape, dtype: str) -> float:
    tokens, heads, k = shape
    operand = 2.0 if dtype == "bfloat16" else 1 + 1 / BLOCK
    return operand * (tokens + heads * HEAD) * k + 2 * 2 * tokens * ROPE + 2 * tokens * heads * HEAD * (1 + 1 / BLOCK)


BENCH = Benchmark(
    op="gemm_proj_rope_mxfp8",
    title="Projection + RoPE + MXFP8 quantisation along features and along tokens",
    axes=("T", "H", "K"),
    shapes={"mla": MLA, "short": SHORT},
    inputs=_inputs,
    ours=_ours,
    peers=(
        Candidate("torch-compile", "cuBLAS matmul, then torch.compile'd rotation and quantisation", _bind_compiled, _named),
        Candidate("cublas", "cuBLAS matmul (torch) of bfloat16 operands, alone", _bind_product, lambda result: _named(_finish(*result)), whole=False),
    ),
    reference=_reference,
    baseline=_baseline,
    flops=_flops,
    bytes=_bytes,
    dtypes=("bfloat16", "float8_e4m3fn"),
    host_paths=(HostPath("GemmProjRopeMxfp8.execute", _bind), HostPath("gemm_proj_rope_mxfp8_wrapper", _bind_wrapper)),
    host_shape=(128, 2, 128),
)
