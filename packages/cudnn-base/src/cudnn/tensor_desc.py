"""`TensorDesc`: the metadata of a tensor without the tensor, with the methods that only rearrange it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["TensorDesc"]


@dataclass(frozen=True)
class TensorDesc:
    """Shape, stride, data type and device of a tensor; no storage and no arithmetic. Hashable.

    Extents and strides are in logical elements, for 4-bit floats two per stored byte.

    Args:
        dtype: data type in any spelling.
        shape: extents.
        stride: strides in elements, as many as extents.
        stride_order: axis numbers from the innermost outwards: ascending by (stride, extent), ties in axis order.
        device: with torch loaded anything that torch.device() takes; kept as given otherwise.
        interpret_uint8_as_fp4x2: a dtype of uint8 stands for packed 4-bit floats.
        name: used in messages.

    Raises:
        ValueError: the ranks of shape, stride and stride_order differ, or stride_order is no permutation.
        TypeError: torch is loaded and takes `device` for no device.
    """

    dtype: Any
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    stride_order: tuple[int, ...]
    device: Any
    interpret_uint8_as_fp4x2: bool = False
    ndim: int = field(init=False)
    name: str = ""

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "shape", tuple(self.shape))
        put(self, "stride", tuple(self.stride))
        put(self, "stride_order", tuple(self.stride_order))
        put(self, "ndim", len(self.shape))
        put(self, "device", _canonical_device(self.device))
        if len(self.stride) != self.ndim:
            raise ValueError(f"TensorDesc {self.name!r}: stride {self.stride} has rank {len(self.stride)}, needs the rank {self.ndim} of shape {self.shape}")
        if len(self.stride_order) != self.ndim:
            raise ValueError(
                f"TensorDesc {self.name!r}: stride_order {self.stride_order} has rank {len(self.stride_order)}, needs the rank {self.ndim} of shape {self.shape}"
            )
        if sorted(self.stride_order) != list(range(self.ndim)):
            raise ValueError(f"TensorDesc {self.name!r}: stride_order {self.stride_order} is no permutation of the axes 0 to {self.ndim - 1}")

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a TensorDesc of rank 0")
        return self.shape[0]

    def size(self, dim: int | None = None) -> Any:
        """One extent, or all: as torch.Size when torch is loaded, else as a tuple. IndexError for an axis out of range."""
        if dim is not None:
            return self.shape[self._normalize_dim(dim, self.ndim)]
        kind = getattr(sys.modules.get("torch"), "Size", tuple)
        return kind(self.shape)

    def permute(self, *dims: int | Sequence[int]) -> TensorDesc:
        """The axes in another order, given one by one or as a sequence. RuntimeError for a wrong number of axes or one given twice."""
        axes = [self._normalize_dim(axis, self.ndim) for axis in _flat(dims)]
        if len(axes) != self.ndim or len(set(axes)) != self.ndim:
            raise RuntimeError(f"permute needs each of the {self.ndim} axes once, found {tuple(axes)}")
        return self._with_layout((self.shape[axis] for axis in axes), (self.stride[axis] for axis in axes))

    def transpose(self, dim0: int, dim1: int) -> TensorDesc:
        """Two axes swapped."""
        axes = list(range(self.ndim))
        a, b = self._normalize_dim(dim0, self.ndim), self._normalize_dim(dim1, self.ndim)
        axes[a], axes[b] = axes[b], axes[a]
        return self.permute(axes)

    def squeeze(self, dim: int | Sequence[int] | None = None) -> TensorDesc:
        """Without the unit axes, or without those named that are unit ones. RuntimeError for an axis named twice."""
        if dim is None:
            dropped = set(range(self.ndim))
        else:
            named = [self._normalize_dim(axis, self.ndim) for axis in _flat((dim,))]
            dropped = set(named)
            if len(dropped) != len(named):
                raise RuntimeError(f"squeeze names an axis twice: {tuple(named)}")
        kept = [axis for axis in range(self.ndim) if axis not in dropped or self.shape[axis] != 1]
        return self._with_layout((self.shape[axis] for axis in kept), (self.stride[axis] for axis in kept))

    def unsqueeze(self, dim: int) -> TensorDesc:
        """A unit axis put in at `dim`, with the stride one step beyond the axis it pushes to the right; 1 at the end."""
        axis = self._normalize_dim(dim, self.ndim + 1)
        step = self.stride[axis] * self.shape[axis] if axis < self.ndim else 1
        return self._with_layout((*self.shape[:axis], 1, *self.shape[axis:]), (*self.stride[:axis], step, *self.stride[axis:]))

    def is_contiguous(self, memory_format: Any = None) -> bool:
        """torch's notion of contiguous, for torch.contiguous_format (default), preserve_format, channels_last (rank 4) and channels_last_3d (rank 5).

        Unit axes are not looked at. An empty tensor is contiguous in the first two formats. ValueError for an unknown format.
        """
        kind = "contiguous_format" if memory_format is None else str(memory_format).removeprefix("torch.")
        if kind in ("contiguous_format", "preserve_format"):
            return self._numel(self.shape) == 0 or self._is_compact(range(self.ndim - 1, -1, -1))
        orders = {"channels_last": (1, 3, 2, 0), "channels_last_3d": (1, 4, 3, 2, 0)}
        if kind not in orders:
            raise ValueError(f"memory format {memory_format!r} is unknown, needs torch.contiguous_format, preserve_format, channels_last or channels_last_3d")
        return self.ndim == len(orders[kind]) and self._is_compact(orders[kind])

    def contiguous(self) -> TensorDesc:
        """Itself when contiguous, else the row-major description of the same extents."""
        return self if self.is_contiguous() else self._with_layout(self.shape, self._compute_contiguous_stride(self.shape))

    def view(self, *shape: int | Sequence[int]) -> TensorDesc:
        """The same memory under other extents, one of which may be -1.

        Raises:
            RuntimeError: the number of elements differs or cannot be inferred, or the strides allow no such view.
        """
        wanted = self._infer_shape(tuple(_flat(shape)))
        steps = self._compute_view_stride(self.shape, self.stride, wanted)
        if steps is None:
            raise RuntimeError(f"view of shape {self.shape} with strides {self.stride} as {wanted} is not possible without a copy; use contiguous().view()")
        return self._with_layout(wanted, steps)

    def as_strided(self, size: Sequence[int], stride: Sequence[int], storage_offset: int = 0) -> TensorDesc:
        """Other extents and strides.

        Raises:
            TypeError: size or stride is no tuple or list.
            RuntimeError: their lengths differ, one holds a negative number, or the offset is not 0: a description has no storage to start elsewhere in.
        """
        if not isinstance(size, tuple | list) or not isinstance(stride, tuple | list):
            raise TypeError(f"as_strided needs size and stride as tuple or list, found {type(size).__name__} and {type(stride).__name__}")
        if storage_offset:
            raise RuntimeError(f"as_strided of a TensorDesc needs a storage_offset of 0, found {storage_offset}")
        if len(size) != len(stride):
            raise RuntimeError(f"as_strided needs size and stride of one length, found {tuple(size)} and {tuple(stride)}")
        if any(number < 0 for number in (*size, *stride)):
            raise RuntimeError(f"as_strided needs size and stride without negative numbers, found {tuple(size)} and {tuple(stride)}")
        return self._with_layout(size, stride)

    def _with_layout(self, shape: Iterable[int], stride: Iterable[int]) -> TensorDesc:
        """This description with another shape and stride, and the stride order that follows from them."""
        shape, stride = tuple(shape), tuple(stride)
        order = self._compute_stride_order(shape, stride)
        return TensorDesc(self.dtype, shape, stride, order, self.device, interpret_uint8_as_fp4x2=self.interpret_uint8_as_fp4x2, name=self.name)

    def _is_compact(self, axes_outwards: Iterable[int]) -> bool:
        expected = 1
        for axis in axes_outwards:
            if self.shape[axis] != 1:
                if self.stride[axis] != expected:
                    return False
                expected *= self.shape[axis]
        return True

    def _infer_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        total = self._numel(self.shape)
        open_axes = [axis for axis, extent in enumerate(shape) if extent == -1]
        if len(open_axes) > 1 or any(extent < -1 for extent in shape):
            raise RuntimeError(f"view needs extents of 0 or more and at most one -1, found {shape}")
        known = self._numel(extent for extent in shape if extent != -1)
        if open_axes and known and total % known == 0:
            return tuple(total // known if extent == -1 else extent for extent in shape)
        if open_axes or known != total:
            raise RuntimeError(f"view of shape {self.shape} with {total} elements as {shape} is not possible")
        return shape

    @staticmethod
    def _normalize_dim(dim: int, ndim: int) -> int:
        """`dim` counted from the front. IndexError out of range; rank 0 takes 0 and -1, as torch does."""
        bound = max(ndim, 1)
        if not -bound <= dim < bound:
            raise IndexError(f"axis {dim} is out of range, needs {-bound} to {bound - 1}")
        return dim % bound

    @staticmethod
    def _compute_stride_order(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
        """Axis numbers ascending by (stride, extent), ties in axis order."""
        return tuple(sorted(range(len(shape)), key=lambda axis: (stride[axis], shape[axis])))

    @staticmethod
    def _compute_contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
        """Row-major strides; an extent of 0 counts as 1, as in torch."""
        steps: list[int] = []
        step = 1
        for extent in reversed(shape):
            steps.append(step)
            step *= max(extent, 1)
        return tuple(reversed(steps))

    @staticmethod
    def _numel(shape: Iterable[int]) -> int:
        count = 1
        for extent in shape:
            count *= extent
        return count

    @staticmethod
    def _compute_view_stride(shape: Sequence[int], stride: Sequence[int], new_shape: Sequence[int]) -> tuple[int, ...] | None:
        """Strides of a view with other extents and as many elements; None where the memory is not laid out for it.

        Neighbouring axes that lie in memory as one are merged into a chunk, and each chunk has to be cut by whole new axes.
        """
        numel = TensorDesc._numel(shape)
        if numel == 0:
            return tuple(stride) if tuple(shape) == tuple(new_shape) else TensorDesc._compute_contiguous_stride(new_shape)
        steps = [0] * len(new_shape)
        axis = len(new_shape) - 1
        chunk = 1
        base = stride[-1] if stride else 1
        for old in range(len(shape) - 1, -1, -1):
            chunk *= shape[old]
            if old > 0 and (shape[old - 1] == 1 or stride[old - 1] == chunk * base):
                continue
            filled = 1
            while axis >= 0 and (filled < chunk or new_shape[axis] == 1):
                steps[axis] = filled * base
                filled *= new_shape[axis]
                axis -= 1
            if filled != chunk:
                return None
            if old > 0:
                chunk, base = 1, stride[old - 1]
        if not shape:
            steps = [1] * len(new_shape)
        return tuple(steps) if axis < 0 or not shape else None


def _flat(dims: Sequence[Any]) -> list[int]:
    """Axes or extents given one by one, or as one sequence."""
    return list(dims[0]) if len(dims) == 1 and isinstance(dims[0], Sequence) else list(dims)


def _canonical_device(device: Any) -> Any:
    from cudnn.tensors import Device

    torch = sys.modules.get("torch")
    kind = getattr(torch, "device", None)
    if kind is None or isinstance(device, kind | Device):
        return device
    try:
        return kind(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"TensorDesc: device {device!r} is no device of torch: {error}") from error
