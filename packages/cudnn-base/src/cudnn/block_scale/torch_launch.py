"""Launches of the quantiser and its inverse for torch tensors: whatever their strides, extents and addresses are."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from cudnn.block_scale.formats import Format
from cudnn.block_scale.layout import ScaleLayout, ceil_div
from cudnn.datatypes import dtype_name, torch_dtype
from cudnn.streams import launch_handle

UNIT = 8  # elements that kernels read or write side by side


@lru_cache(maxsize=128)
def _kernel(spec: Any) -> Any:
    return spec.build()


def run(spec: Any, device: torch.device, *arguments: Any) -> None:
    """Launch the kernel of ``spec`` on the device's current stream."""
    with torch.cuda.device(device):
        _kernel(spec)(*arguments, launch_handle(None, "torch", device))


def quantize_on_device(x: Tensor, norm: Tensor | None, fmt: Format, rows: bool, columns: bool, blocked: bool) -> list[tuple[Tensor, Tensor]]:
    """(elements, scale factors) of x (L, M, K) for each direction, as bytes: (L, M, K) or (L, K, M), and the buffer of the blocked layout or (L, M, blocks) or (L, K, blocks)."""
    from cudnn.cutedsl.quantize import QuantizeSpec

    batches, m, k = x.shape
    packed_columns = columns and fmt.packed == 2
    m_padded, k_padded = ceil_div(m, UNIT) * UNIT if packed_columns else m, ceil_div(k, UNIT) * UNIT
    if (m_padded, k_padded) != (m, k):
        padded = x.new_zeros(batches, m_padded, k_padded)
        padded[:, :m, :k] = x
        x = padded
    elif x.stride(2) != 1 or not _aligned(x, 16 // x.itemsize):
        x = x.clone(memory_format=torch.contiguous_format)
    tensors, found = [x.permute(1, 2, 0)], []
    for wanted, turned in ((rows, False), (columns, True)):
        if not wanted:
            continue
        lines, extent = (k_padded, m_padded) if turned else (m_padded, k_padded)
        layout = ScaleLayout(lines, extent, batches, fmt.vec)
        in_order = turned and fmt.packed == 1  # elements lie as x does
        data = x.new_empty((batches, extent, lines) if in_order else (batches, lines, extent // fmt.packed), dtype=torch.uint8)
        tensors.append(data.permute(1, 2, 0))
        if blocked:
            scales = x.new_empty(layout.physical_shape, dtype=torch.uint8)
            tensors.append(scales.view(-1))
        else:
            scales = x.new_empty((batches, layout.blocks, lines) if turned else (batches, lines, layout.blocks), dtype=torch.uint8)
            tensors.append(scales.permute((2, 1, 0) if turned else (1, 2, 0)))
            scales = (scales.mT if turned else scales)[:, : k if turned else m, : ceil_div(m if turned else k, fmt.vec)]
        data = data.mT if in_order else data
        found.append((data[:, : k if turned else m, : (m if turned else k) // fmt.packed], scales))
    if norm is not None:
        tensors.append(norm)
    spec = QuantizeSpec(dtype_name(x.dtype), fmt.element, fmt.scale, fmt.vec, rows, columns, blocked, norm is not None)
    run(spec, x.device, tuple(tensors))
    return found


def dequantize_on_device(data: Tensor, scales: Tensor, norm: Tensor | None, fmt: Format, blocked: bool, dtype: str, turned: bool) -> Tensor:
    """(L, M, K) of bytes (L, M, K) or packed (L, M, K / 2), in memory as ``turned`` says."""
    from cudnn.cutedsl.dequantize import DequantizeSpec

    batches, m, stored = data.shape
    k = stored * fmt.packed
    # From here on (L, lines, inner) with inner contiguous.
    lines = data.mT if turned else data
    inner, bytes_inner = (m, m) if turned else (k, stored)
    inner_padded = ceil_div(inner, UNIT) * UNIT
    if inner_padded != inner or lines.stride(2) != 1 or not _aligned(lines, UNIT // fmt.packed):
        padded = lines.new_zeros(batches, lines.shape[1], inner_padded // fmt.packed)
        padded[:, :, :bytes_inner] = lines
        lines = padded
    out = lines.new_empty((batches, lines.shape[1], inner_padded), dtype=torch_dtype(dtype))
    order = (2, 1, 0) if turned else (1, 2, 0)
    if blocked:
        factors = _blocked_bytes(scales)
    else:
        factors = scales.reshape(batches, m, -1)
        if turned and inner_padded != inner:
            factors = torch.nn.functional.pad(factors, (0, 0, 0, inner_padded - inner))
        factors = factors.permute(1, 2, 0)
    spec = DequantizeSpec(fmt.element, fmt.scale, fmt.vec, dtype, not turned, blocked, norm is not None)
    run(spec, data.device, lines.permute(order), factors, out.permute(order), *(() if norm is None else (norm,)))
    out = out[:, :, :inner]
    return out.mT if turned else out


def _blocked_bytes(scales: Tensor) -> Tensor:
    """The buffer of blocked scale factors in either form, from an address on 16 bytes."""
    if scales.shape[3:] != (32, 4, 4):  # logical: the physical form, permuted
        scales = scales.permute(5, 2, 4, 0, 1, 3)
    scales = scales.contiguous().view(-1)
    return scales.clone() if scales.data_ptr() % 16 else scales


def _aligned(t: Tensor, unit: int) -> bool:
    """Whether a (L, lines, elements) tensor starts on 16 bytes, and each line on ``unit`` elements."""
    return t.data_ptr() % 16 == 0 and not any(step % unit for extent, step in zip(t.shape[:2], t.stride()[:2], strict=True) if extent > 1)
