"""The quantisers on a GPU: equal to the CPU in every bit, whatever the strides and extents; streams, graph capture, devices, torch.compile."""

from __future__ import annotations

import random

import pytest

import cudnn.ops as ops
from cudnn.block_scale import FORMATS, named_format

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a CUDA device of compute capability 9.0"),
]


def even(low: int, high: int) -> int:
    return 2 * random.randint(low // 2, high // 2)


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found.shape, found.stride(), found.dtype) == (expected.shape, expected.stride(), expected.dtype)
    assert torch.equal(found.cpu().contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))


def inputs() -> list[torch.Tensor]:
    """On the CPU: compact, ragged, with gaps, transposed, misaligned, with batches, a single row and column of blocks."""
    wide = torch.randn(3, 300, 520).bfloat16()
    return [
        torch.randn(256, 512).bfloat16(),
        torch.randn(2, 128, 128),
        wide[:, : even(2, 300), : even(2, 520)],
        wide[1, 12::2, 1 : 1 + even(2, 500)],
        wide.mT[:2, : even(2, 520), : even(2, 300)],
        torch.randn(2, 3, even(2, 200), even(2, 200)).half(),
        torch.randn(2, 64),
    ]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("scale_layout", ["blocked", "plain"])
def test_equal_to_the_cpu(format, scale_layout):
    for x in inputs():
        norm = random.choice([None, 3.0, torch.tensor([random.uniform(0.1, 50)])])
        on_gpu = norm.cuda() if isinstance(norm, torch.Tensor) else norm
        axis = random.choice(["row", "col", "both"])
        found = ops.block_scale_quantize(x.cuda(), format, axis=axis, scale_layout=scale_layout, norm_const=on_gpu)
        expected = ops.block_scale_quantize(x, format, axis=axis, scale_layout=scale_layout, norm_const=norm)
        assert list(found.keys()) == list(expected.keys())
        for name, t in found.items():
            same(t, expected[name])
        for direction in {"row", "col"} if axis == "both" else {axis}:
            pairs = [(r[f"data_{direction}"], r[f"scales_{direction}"]) for r in (found, expected)]
            dtype = random.choice([torch.bfloat16, torch.float16, torch.float32])
            back, wanted = (
                ops.block_scale_dequantize(*pair, format, scale_layout=scale_layout, norm_const=c, dtype=dtype)
                for pair, c in zip(pairs, (on_gpu, norm), strict=True)
            )
            same(back, wanted)


@pytest.mark.parametrize("format", ["mxfp8", "nvfp4"])
def test_views_of_gpu_memory(format):
    wide = torch.randn(3, 300, 520, device="cuda").bfloat16()
    for x in (wide[:, 4:204, 8:264], wide[1, ::3, 3:259], wide.mT[0], wide.permute(2, 0, 1)[:256, :, :256], wide[:, :128, :1].expand(-1, -1, 64)):
        x = x[..., : x.shape[-2] // 2 * 2, : x.shape[-1] // 2 * 2]
        found, expected = ops.block_scale_quantize(x, format, axis="row"), ops.block_scale_quantize(x.cpu(), format, axis="row")
        for name, t in found.items():
            same(t, expected[name])


def test_padding_is_zero_and_has_no_effect():
    from cudnn.block_scale import ScaleLayout

    x = torch.randn(130, 40, device="cuda")
    for format in ("mxfp8", "nvfp4"):
        fmt = named_format(format)
        data, scales = ops.block_scale_quantize(x, format)
        layout = ScaleLayout(130, 40, 1, fmt.vec)
        used = torch.zeros(layout.entries, dtype=torch.bool, device="cuda")
        rows, blocks = torch.meshgrid(torch.arange(130), torch.arange(layout.blocks), indexing="ij")
        used[layout.offset(rows, blocks).reshape(-1).cuda()] = True
        raw = scales.view(torch.uint8).view(-1)
        assert not raw[~used].any()
        back = ops.block_scale_dequantize(data, scales)
        raw[~used] = 0xFF
        assert torch.equal(ops.block_scale_dequantize(data, scales), back) and not back.isnan().any()


def test_side_stream_and_replay():
    x = torch.randn(512, 1024, device="cuda").bfloat16()
    expected = ops.block_scale_quantize(x, "nvfp4", axis="both")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = ops.block_scale_quantize(x, "nvfp4", axis="both")
    torch.cuda.current_stream().wait_stream(stream)
    for name, t in found.items():
        same(t, expected[name].cpu())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = ops.block_scale_quantize(x, "mxfp8", axis="both", norm_const=2.0)
        back = ops.block_scale_dequantize(captured["data_row"], captured["scales_row"], norm_const=2.0)
    for _ in range(2):
        x.normal_()
        graph.replay()
        expected = ops.block_scale_quantize(x.cpu(), "mxfp8", axis="both", norm_const=2.0)
        for name, t in captured.items():
            same(t, expected[name])
        same(back, ops.block_scale_dequantize(expected["data_row"], expected["scales_row"], norm_const=2.0))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_second_device():
    x = torch.randn(64, 256, device="cuda:1").bfloat16()
    found, expected = ops.block_scale_quantize(x), ops.block_scale_quantize(x.cpu())
    assert torch.cuda.current_device() == 0 and found["data_row"].device == x.device
    for name, t in found.items():
        same(t, expected[name])


def test_repeats_are_the_same_bits():
    x = torch.randn(777, 1000, device="cuda").bfloat16()
    first = ops.block_scale_quantize(x, "mxfp4", axis="row")
    for _ in range(20):
        for name, t in ops.block_scale_quantize(x, "mxfp4", axis="row").items():
            same(t, first[name].cpu())


@pytest.mark.parametrize("format", ["mxfp8", "nvfp4"])
def test_opcheck(format):
    from cudnn.block_scale.torch_ops import dequantize_op, quantize_op, to_blocked_op

    x, norm = torch.randn(2, 34, 72, device="cuda"), torch.tensor([2.0], device="cuda")
    for blocked in (True, False):
        torch.library.opcheck(quantize_op, (x, norm, format, True, True, blocked))
        data, scales, *_ = quantize_op(x, None, format, True, True, blocked)
        torch.library.opcheck(dequantize_op, (data, scales, norm, format, blocked, "bfloat16"))
        if not blocked:
            torch.library.opcheck(to_blocked_op, (scales,))


def test_torch_compile():
    def function(x):
        found = ops.block_scale_quantize(x * 2, "mxfp8", axis="both")
        # torch 2.11 traces the values of the result, but does not unpack it.
        return *found.values(), ops.block_scale_dequantize(found["data_col"], found["scales_col"]) + 1

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True)
    for shape in ((256, 512), (96, 136), (40, 64)):
        x = torch.randn(shape, device="cuda").bfloat16()
        for found, expected in zip(compiled(x), function(x), strict=True):
            same(found, expected.cpu())
