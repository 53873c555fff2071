"""How the quantisers are measured. All they do is move memory: what counts is the share of the floor, the time in which a copy moves the same bytes.

x is (M, K). Results are judged by what they stand for, dequantised.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from cudnn.bench import Benchmark, Candidate, HostPath
from cudnn.bench.dense import random_matrix
from cudnn.bench.spec import Inputs, Shape
from cudnn.block_scale.formats import MXFP4, MXFP8, NVFP4, Format
from cudnn.datatypes import itemsize_bits

if TYPE_CHECKING:
    import torch

Call = Callable[[], Any]
Config = Mapping[str, object] | None

SHAPES: dict[str, tuple[Shape, ...]] = {"large": ((4096, 4096), (8192, 8192), (16384, 7168), (16384, 28672)), "small": ((64, 8192), (512, 4096))}
AXES = {"row": ("row",), "col": ("col",), "both": ("row", "col")}


def _inputs(shape: Shape, dtype: str, device: torch.device, generator: torch.Generator) -> dict[str, Any]:
    return {"x": random_matrix(shape[0], shape[1], dtype, device, generator)}


def _quantize_bytes(fmt: Format, axis: str, shape: Shape, dtype: str) -> float:
    """x once, and elements and scale factors once for each direction."""
    count = shape[0] * shape[1]
    return count * itemsize_bits(dtype) / 8 + len(AXES[axis]) * count * (fmt.bits / 8 + 1 / fmt.vec)


def _bind(fmt: Format, axis: str, inputs: Inputs) -> Call:
    from cudnn.block_scale.torch_ops import block_scale_quantize

    x = inputs["x"]
    return lambda: block_scale_quantize(x, fmt.name, axis=axis)


def _meant(fmt: Format, axis: str, result: Any) -> dict[str, torch.Tensor]:
    """What the results stand for, in the order of x."""
    import torch

    from cudnn.block_scale.torch_ops import block_scale_dequantize

    found = {}
    for direction, data, scales in zip(AXES[axis], list(result)[::2], list(result)[1::2], strict=True):
        wide = block_scale_dequantize(data, scales, fmt.name, dtype=torch.float32)
        found[direction] = wide.mT if direction == "col" else wide
    return found


def _reference(axis: str, inputs: Inputs) -> dict[str, torch.Tensor]:
    return {direction: inputs["x"].float() for direction in AXES[axis]}


def _baseline(fmt: Format, axis: str, inputs: Inputs) -> dict[str, torch.Tensor]:
    """What quantising costs in accuracy, by the reference."""
    from cudnn.reference import dequantize_blocks, quantize_blocks

    x = inputs["x"]
    found = {}
    for direction in AXES[axis]:
        wide = dequantize_blocks(*quantize_blocks(x.mT if direction == "col" else x, fmt), fmt.vec)
        found[direction] = wide.mT if direction == "col" else wide
    return found


def _ours(fmt: Format, axis: str, config: Config) -> Candidate:
    def bind(inputs: Inputs) -> Call:
        if config is not None:
            raise ValueError("block_scale_quantize: found a configuration, the quantiser takes none")
        return _bind(fmt, axis, inputs)

    return Candidate("ours", "cudnn block_scale_quantize, one kernel", bind, partial(_meant, fmt, axis))


def _torchao_missing() -> str | None:
    return None if importlib.util.find_spec("torchao") is not None else "not installed (pip install torchao)"


def _bind_torchao(fmt: Format, axis: str, inputs: Inputs) -> Call:
    """torchao's conversion, rounding scale factors as ours, and its layout of scale factors, under torch.compile."""
    import torch
    from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize
    from torchao.prototype.mx_formats.utils import to_blocked

    from cudnn.block_scale import ScaleLayout
    from cudnn.datatypes import torch_dtype

    element, scale = torch_dtype(fmt.element), torch_dtype(fmt.scale)

    def convert(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scales, data = nvfp4_quantize(y) if fmt is NVFP4 else to_mx(y, element, fmt.vec, ScaleCalculationMode.RCEIL)
        return data, to_blocked(scales.view(y.shape[0], -1))

    def whole(x: torch.Tensor) -> list[torch.Tensor]:
        return [t for direction in AXES[axis] for t in convert(x.t().contiguous() if direction == "col" else x)]

    torch.compiler.reset()
    compiled, x = torch.compile(whole, dynamic=False), inputs["x"]

    def call() -> list[torch.Tensor]:
        found = compiled(x)
        for i, direction in enumerate(AXES[axis]):
            rows, columns = (x.shape[1], x.shape[0]) if direction == "col" else (x.shape[0], x.shape[1])
            layout = ScaleLayout(rows, columns, 1, fmt.vec)
            found[2 * i] = found[2 * i].view(torch.uint8).view(element)
            found[2 * i + 1] = found[2 * i + 1].view(torch.uint8).view(layout.physical_shape).view(scale)
        return found

    return call


def _quantize_bench(fmt: Format, axis: str) -> Benchmark:
    direction = {"row": "rows", "col": "columns", "both": "rows and columns"}[axis]
    return Benchmark(
        op=f"quantize_{fmt.name}_{axis}",
        title=f"Quantise to {fmt.name.upper()} along {direction}",
        axes=("M", "K"),
        shapes=SHAPES,
        inputs=_inputs,
        ours=partial(_ours, fmt, axis),
        peers=(
            Candidate(
                "torchao", "torchao's conversion and layout, torch.compile'd", partial(_bind_torchao, fmt, axis), partial(_meant, fmt, axis), _torchao_missing
            ),
        ),
        reference=partial(_reference, axis),
        baseline=partial(_baseline, fmt, axis),
        flops=lambda shape: 0.0,
        bytes=partial(_quantize_bytes, fmt, axis),
        dtypes=("bfloat16", "float16", "float32"),
        host_paths=(HostPath("block_scale_quantize", partial(_bind, fmt, axis)),),
        host_shape=(128, 128),
    )


def _quantised(fmt: Format, shape: Shape, dtype: str, device: torch.device, generator: torch.Generator) -> dict[str, Any]:
    from cudnn.reference import quantize_blocks, scales_to_blocked

    data, scales = quantize_blocks(random_matrix(shape[0], shape[1], "float32", device, generator), fmt)
    return {"data": data, "scales": scales_to_blocked(scales), "plain": scales, "dtype": dtype}


def _bind_dequantize(inputs: Inputs) -> Call:
    from cudnn.block_scale.torch_ops import block_scale_dequantize

    data, scales, dtype = inputs["data"], inputs["scales"], inputs["dtype"]
    return lambda: block_scale_dequantize(data, scales, dtype=dtype)


def _ours_dequantize(config: Config) -> Candidate:
    def bind(inputs: Inputs) -> Call:
        if config is not None:
            raise ValueError("block_scale_dequantize: found a configuration, the kernel takes none")
        return _bind_dequantize(inputs)

    return Candidate("ours", "cudnn block_scale_dequantize, one kernel", bind, lambda wide: {"wide": wide})


def _plain(fmt: Format, inputs: Inputs) -> torch.Tensor:
    from cudnn.datatypes import torch_dtype
    from cudnn.reference import dequantize_blocks

    return dequantize_blocks(inputs["data"], inputs["plain"], fmt.vec, dtype=torch_dtype(inputs["dtype"]))


def _bind_compiled(fmt: Format, inputs: Inputs) -> Call:
    import torch

    torch.compiler.reset()
    compiled = torch.compile(partial(_plain, fmt, inputs), dynamic=False)
    return lambda: compiled()


def _dequantize_bench(fmt: Format) -> Benchmark:
    def reference(inputs: Inputs) -> dict[str, torch.Tensor]:
        from cudnn.reference import dequantize_blocks

        return {"wide": dequantize_blocks(inputs["data"], inputs["plain"], fmt.vec)}

    def moved(shape: Shape, dtype: str) -> float:
        return shape[0] * shape[1] * (itemsize_bits(dtype) / 8 + fmt.bits / 8 + 1 / fmt.vec)

    return Benchmark(
        op=f"dequantize_{fmt.name}",
        title=f"Convert {fmt.name.upper()} to ordinary floats",
        axes=("M", "K"),
        shapes=SHAPES,
        inputs=partial(_quantised, fmt),
        ours=_ours_dequantize,
        peers=(
            Candidate(
                "torch-compile", "the same with plain scale factors in torch, torch.compile'd", partial(_bind_compiled, fmt), lambda wide: {"wide": wide}
            ),
        ),
        reference=reference,
        # Where the products are exact nothing is lost; the bound is that of rounding to the dtype once.
        baseline=lambda inputs: {"wide": _plain(fmt, inputs) * (1 + 2.0**-9)},
        flops=lambda shape: 0.0,
        bytes=moved,
        dtypes=("bfloat16", "float16", "float32"),
        host_paths=(HostPath("block_scale_dequantize", _bind_dequantize),),
        host_shape=(128, 128),
    )


FORMATS = (MXFP8, MXFP4, NVFP4)
BENCHES = (*(_quantize_bench(fmt, axis) for fmt in FORMATS for axis in AXES), *(_dequantize_bench(fmt) for fmt in FORMATS))
