"""What a caller may bind to the tensors of a graph at execute, and the checks on it.

The checks cost well under a microsecond a tensor for contiguous torch tensors; they turn what would be a crash of the process into a ValueError.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cudnn import datatypes
from cudnn.tensors import metadata
from cudnn_graph.dtypes import bits
from cudnn_graph.enums import data_type
from cudnn_graph.errors import describe

if TYPE_CHECKING:
    from cudnn_graph.tensor import Tensor

CPU = -1
UNKNOWN_DEVICE = None


def span_elements(dim: Sequence[int], stride: Sequence[int]) -> int:
    """Number of elements from the first to the last one addressed, inclusive."""
    return 1 + sum((extent - 1) * step for extent, step in zip(dim, stride, strict=True)) if all(dim) else 0


class BufferSpec:
    """What one tensor of the graph needs of its buffer."""

    __slots__ = ("tensor", "uid", "name", "by_value", "span", "span_bytes", "_torch_dtypes")

    def __init__(self, tensor: Tensor, dim: Sequence[int] | None = None, stride: Sequence[int] | None = None) -> None:
        self.tensor = tensor
        self.uid = tensor.uid
        self.name = tensor.name
        # A host template of several elements counts as pass-by-value in the IR, but it is a buffer like any other to every engine.
        self.by_value = tensor.is_pass_by_value and all(extent == 1 for extent in tensor.dim)
        span = span_elements(tensor.dim if dim is None else dim, tensor.stride if stride is None else stride)
        self.span_bytes = (span * bits(tensor.data_type) + 7) // 8
        self._torch_dtypes: tuple[Any, ...] | None = None
        # torch counts a packed pair of 4-bit floats as one element.
        self.span = self.span_bytes if tensor.data_type is data_type.FP4_E2M1 else span

    def torch_dtypes(self) -> tuple[Any, ...]:
        """The torch dtypes whose memory may stand for this tensor: its own, and plain bytes for types that torch's arithmetic lacks or stores as bytes."""
        if self._torch_dtypes is None:
            torch = sys.modules["torch"]
            own = datatypes._cudnn_to_torch_data_type(self.tensor.data_type)
            allowed = [] if own is None else [own]
            if bits(self.tensor.data_type) <= 8 or own is None:
                allowed += [torch.uint8, torch.int8]
            self._torch_dtypes = tuple(allowed)
        return self._torch_dtypes

    def check_torch(self, value: Any) -> int:
        """The device ordinal (-1: host) of a torch tensor that fits. ValueError when it does not."""
        if value.dtype not in (self._torch_dtypes or self.torch_dtypes()):
            raise ValueError(f"tensor {describe(self.tensor)} is {self.tensor.data_type.name}, but its buffer is {value.dtype}; needs {self.torch_dtypes()[0]}")
        if value.numel() < self.span or not value.is_contiguous():
            self._check_bytes(value.untyped_storage().nbytes() - value.storage_offset() * value.element_size())
        return value.get_device()

    def _check_bytes(self, available: int) -> None:
        if available < self.span_bytes:
            t = self.tensor
            raise ValueError(f"tensor {describe(t)} with stride {list(t.stride)} spans {self.span_bytes} bytes, but its buffer holds {available} bytes")

    def check_other(self, value: Any) -> int | None:
        """As :meth:`check_torch` for everything that is no torch tensor. Of an address nothing is known: None."""
        kind = type(value)
        if kind is float or (kind is bool and self.by_value):
            if not self.by_value:
                raise ValueError(f"tensor {describe(self.tensor)} needs a buffer, got the number {value}; only pass-by-value tensors take numbers")
            return CPU
        if isinstance(value, int):
            if self.by_value:
                raise ValueError(
                    f"pass-by-value tensor {describe(self.tensor)} got the int {value}, which may be a value or an address: pass a float or a host tensor"
                )
            if value == 0 and self.span:
                raise ValueError(f"tensor {describe(self.tensor)} got the null address")
            return UNKNOWN_DEVICE
        if not hasattr(value, "__dlpack__"):
            raise ValueError(f"tensor {describe(self.tensor)} needs a DLPack object or an address (int), got {type(value).__name__}")
        seen = metadata(value)
        name = datatypes.dtype_name(self.tensor.data_type)
        if seen.dtype not in (name, "uint8", "int8") or (seen.dtype != name and bits(self.tensor.data_type) > 8):
            raise ValueError(f"tensor {describe(self.tensor)} is {self.tensor.data_type.name}, but its buffer is {seen.dtype}")
        span = span_elements(seen.shape, seen.stride)
        self._check_bytes((span * datatypes.itemsize_bits(seen.dtype) + 7) // 8)
        if seen.device_type == "cuda":
            return 0 if seen.device_index is None else seen.device_index
        return CPU


class BufferTable:
    """The tensors of a frozen graph that need a buffer or a value at execute."""

    __slots__ = ("specs", "uids", "_names", "_tensors", "bound")

    def __init__(self, tensors: Sequence[Tensor], used: set[int], shapes: Mapping[int, tuple] | None = None) -> None:
        needed = [t for t in tensors if t.uid in used and not t.is_virtual and t.scalar_value is None]
        self.specs = tuple(BufferSpec(t, *(shapes or {}).get(t.uid, ())) for t in needed)
        self.uids = frozenset(t.uid for t in needed)
        self._tensors = {t.uid: t for t in tensors}
        self._names: dict[str, list[int]] = {}
        for t in tensors:
            self._names.setdefault(t.name, []).append(t.uid)
        self.bound = {t.uid: t.bound for t in needed if t.bound is not None}

    def uid_of(self, key: Any) -> int:
        """The uid for a key of the caller's dictionary that is no Tensor of this graph."""
        if isinstance(key, str):
            uids = self._names.get(key)
            if uids is None:
                raise ValueError(f"variant pack: the graph has no tensor named '{key}'")
            if len(uids) > 1:
                raise ValueError(f"variant pack: name '{key}' is ambiguous (uids {', '.join(map(str, uids))}); use the tensor or its uid")
            return uids[0]
        if hasattr(key, "__index__") and not isinstance(key, bool):
            return key.__index__()
        raise ValueError(f"variant pack: a key is a graph tensor, a name or a uid, got {type(key).__name__}")

    def positions(self) -> dict[Any, int]:
        """Every key a caller may use for a tensor that needs a buffer (the tensor, its uid, its name where only one has it) -> index in ``specs``."""
        result: dict[Any, int] = {}
        for index, spec in enumerate(self.specs):
            result[spec.tensor] = result[spec.uid] = index
            if len(self._names[spec.name]) == 1:
                result[spec.name] = index
        return result

    def reject(self, uid: int) -> ValueError:
        """The error for a uid in the variant pack that takes no buffer."""
        tensor = self._tensors.get(uid)
        if tensor is None:
            return ValueError(f"variant pack: the graph has no tensor with uid {uid}")
        if tensor.is_virtual:
            return ValueError(f"variant pack: tensor {describe(tensor)} is virtual and has no buffer; call set_output(True) on it before validate()")
        if tensor.scalar_value is not None:
            return ValueError(f"variant pack: tensor {describe(tensor)} is a scalar whose value is kept in the graph")
        return ValueError(f"variant pack: tensor {describe(tensor)} is used by no node")


def missing_buffer(spec: BufferSpec) -> ValueError:
    """The error for a tensor that got nothing."""
    return ValueError(f"missing a buffer for tensor uid {spec.uid} ('{spec.name}')")
