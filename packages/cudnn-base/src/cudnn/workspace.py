"""Scratch memory that the caller owns: sizes, views into it, and the check that buffers do not overlap."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cudnn.datatypes import _is_torch_dtype, itemsize_bits, torch_dtype
from cudnn.tensors import _read_dlpack, get_data_ptr, get_strides, is_torch_tensor

__all__ = ["WORKSPACE_ALIGNMENT", "WorkspaceCarver", "check_buffers_disjoint", "tensor_byte_span", "ws_align"]

WORKSPACE_ALIGNMENT = 128
"""Bytes; every part of a workspace starts at a multiple of it, counted from the start of the workspace."""


def ws_align(nbytes: int) -> int:
    """`nbytes` rounded up to a multiple of 128."""
    return -(-nbytes // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT


class WorkspaceCarver:
    """Cuts a caller's workspace into typed views, without allocating.

    Args:
        workspace: a contiguous torch tensor; its data type does not matter.
        required: bytes that the owner needs.
        owner: who needs it, for messages.
        align: alignment of the workspace's own address in bytes.

    Raises:
        ValueError: no workspace, or one that is not contiguous, too small or misaligned; checked in this order.
        TypeError: something that has no views as a torch tensor has.
    """

    def __init__(self, workspace: Any, required: int, owner: str, *, align: int = 16) -> None:
        if workspace is None:
            raise ValueError(f"{owner} requires a {required}-byte workspace, found None; pass a contiguous uint8 tensor on the device of the operands")
        if not all(callable(getattr(workspace, method, None)) for method in ("view", "data_ptr", "is_contiguous", "numel", "element_size")):
            raise TypeError(f"{owner}: workspace is a {type(workspace).__name__}, needs a torch tensor of {required} bytes")
        if not workspace.is_contiguous():
            raise ValueError(f"{owner}: workspace is not contiguous (strides {tuple(workspace.stride())}), needs {required} contiguous bytes")
        size = workspace.numel() * workspace.element_size()
        if size < required:
            raise ValueError(f"{owner}: workspace has {size} bytes, needs {required}")
        address = workspace.data_ptr()
        if address % align:
            raise ValueError(f"{owner}: workspace address {address:#x} is {address % align} bytes past a multiple of {align}, needs {align}-byte alignment")
        import torch

        self._owner = owner
        self._bytes = workspace.view(-1).view(torch.uint8)
        self._size = size
        self._address = address
        self._offset = 0

    def take(self, numel: int, dtype: Any) -> Any:
        """The next 1-D view of `numel` elements, at a multiple of 128 bytes from the start of the workspace.

        Raises:
            ValueError: not enough bytes are left, or the address does not suit the data type.
        """
        if not _is_torch_dtype(dtype):
            dtype = torch_dtype(dtype)
        start = ws_align(self._offset)
        end = start + numel * dtype.itemsize
        if numel < 0 or end > self._size:
            raise ValueError(f"{self._owner}: {numel} elements of {dtype} at byte {start} end at byte {end}, beyond the {self._size} bytes of the workspace")
        if (self._address + start) % dtype.itemsize:
            raise ValueError(f"{self._owner}: workspace address {self._address + start:#x} is no multiple of the {dtype.itemsize} bytes of {dtype}")
        self._offset = end
        return self._bytes[start:end].view(dtype)

    def remaining(self) -> Any:
        """What is left, as uint8, from the next multiple of 128 bytes on; empty when nothing is left."""
        return self._bytes[min(ws_align(self._offset), self._size) :]


def tensor_byte_span(t: Any) -> tuple[int, int]:
    """Half-open interval of the addresses that a tensor touches, gaps included. Empty: both ends are its address. Negative strides reach down.

    Raises:
        ValueError: a tensor without memory.
    """
    shape, stride, bits = _stored_layout(t)
    address = get_data_ptr(t)
    if 0 in shape:
        return address, address
    steps = [(extent - 1) * step for extent, step in zip(shape, stride, strict=True)]
    low = sum(step for step in steps if step < 0)
    high = sum(step for step in steps if step > 0) + 1
    return address + low * bits // 8, address - (-high * bits // 8)


def _stored_layout(t: Any) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Shape, strides and bits of the elements as they are stored."""
    if is_torch_tensor(t):
        return tuple(t.shape), tuple(t.stride()), 8 * t.element_size()
    itemsize = getattr(t.dtype, "itemsize", None)
    if isinstance(itemsize, int):
        return tuple(t.shape), get_strides(t), 8 * itemsize
    seen = _read_dlpack(t)
    return seen.shape, seen.stride, itemsize_bits(seen.name) * seen.lanes


def check_buffers_disjoint(writers: Iterable[tuple[str, Any]], readers: Iterable[tuple[str, Any]], *, what: str = "the kernels") -> None:
    """ValueError naming both and their address ranges when a written tensor may share memory with another one given.

    Each writer is held against all readers and the other writers by their spans; two readers may overlap. Entries that are None are skipped.
    """
    written = [(name, *tensor_byte_span(t)) for name, t in writers if t is not None]
    read = [(name, *tensor_byte_span(t)) for name, t in readers if t is not None]
    for i, (name, low, high) in enumerate(written):
        for other, other_low, other_high in (*written[i + 1 :], *read):
            if max(low, other_low) < min(high, other_high):
                raise ValueError(
                    f"{name} [{low:#x}, {high:#x}) overlaps {other} [{other_low:#x}, {other_high:#x}): {what} write {name}, so it needs memory of its own"
                )
