"""The tensor of the graph IR: a description (dims, strides, dtype, role), never storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cudnn_graph.dtypes import to_library_dtype
from cudnn_graph.enums import data_type, scalar_type, tensor_reordering
from cudnn_graph.errors import describe

if TYPE_CHECKING:
    from cudnn_graph.graph import pygraph
    from cudnn_graph.nodes import Node

UNSET_UID = -1


def row_major(dim: Sequence[int]) -> tuple[int, ...]:
    """Packed strides in elements with the last axis innermost."""
    stride = [1] * len(dim)
    for axis in range(len(dim) - 2, -1, -1):
        stride[axis] = stride[axis + 1] * max(dim[axis + 1], 1)
    return tuple(stride)


def packed_like(dim: Sequence[int], order_of: Sequence[int]) -> tuple[int, ...]:
    """Packed strides for ``dim`` whose axes are ordered in memory as the strides ``order_of`` order theirs."""
    order = sorted(range(len(dim)), key=lambda axis: (order_of[axis], -axis))
    stride = [1] * len(dim)
    running = 1
    for axis in order:
        stride[axis] = running
        running *= max(dim[axis], 1)
    return tuple(stride)


def channels_last(dim: Sequence[int]) -> tuple[int, ...]:
    """Packed strides with axis 1 innermost, then the last axis, ..., axis 0 outermost (NHWC for NCHW dims)."""
    if len(dim) < 2:
        return row_major(dim)
    stride = [1] * len(dim)
    running = max(dim[1], 1)
    for axis in [*range(len(dim) - 1, 1, -1), 0]:
        stride[axis] = running
        running *= max(dim[axis], 1)
    return tuple(stride)


def int_tuple(value: Any, what: str) -> tuple[int, ...]:
    """``value`` as a tuple of ints, or a TypeError that says what it was for."""
    try:
        items = list(value)
    except TypeError:
        raise TypeError(f"{what} must be a sequence of ints, got {value!r}") from None
    result = []
    for item in items:
        if isinstance(item, bool) or not hasattr(item, "__index__"):
            raise TypeError(f"{what} must be a sequence of ints, got {value!r} (element {item!r} is a {type(item).__name__})")
        result.append(item.__index__())
    return tuple(result)


class Tensor:
    """One edge of the graph.

    Equality and hash are identity, so tensors stay valid dictionary keys when they are renamed or get another uid.
    Setters return the tensor and raise RuntimeError once the graph is frozen.

    Attributes that engines read (all properties): ``name``, ``uid``, ``dim``, ``stride`` (in elements), ``data_type`` (resolved after
    ``validate``), ``is_virtual``, ``is_pass_by_value``, ``reordering_type``, ``ragged_offset``, ``ragged_offset_multiplier``,
    ``alignment_value``, ``scalar_value`` and ``scalar_kind`` (of ``tensor_scalar``), ``bound`` (the framework tensor given as an operand), ``device`` (where the template or operand lives, "cuda:0", or None),
    ``producer`` (``(node, port)`` or None), ``dim_assigned`` / ``stride_assigned`` / ``uid_assigned`` (set by the user rather than inferred).
    """

    __slots__ = (
        "_graph",
        "_name",
        "_uid",
        "_dim",
        "_stride",
        "_data_type",
        "_is_virtual",
        "_is_pass_by_value",
        "_ragged_offset",
        "_ragged_offset_multiplier",
        "_reordering_type",
        "_alignment_value",
        "scalar_value",
        "scalar_kind",
        "bound",
        "device",
        "producer",
        "dim_assigned",
        "stride_assigned",
        "data_type_assigned",
        "uid_assigned",
        "__weakref__",
    )

    def __init__(self, graph: pygraph, name: str, *, is_virtual: bool = False, is_pass_by_value: bool = False) -> None:
        self._graph = graph
        self._name = name
        self._uid = UNSET_UID
        self._dim: tuple[int, ...] | None = None
        self._stride: tuple[int, ...] | None = None
        self._data_type: data_type | None = None
        self._is_virtual = bool(is_virtual)
        self._is_pass_by_value = bool(is_pass_by_value)
        self._ragged_offset: Tensor | None = None
        self._ragged_offset_multiplier = 1
        self._reordering_type = tensor_reordering.NONE
        self._alignment_value = 1
        self.scalar_value: int | float | None = None
        self.scalar_kind: scalar_type | None = None
        self.bound: Any = None
        self.device: str | None = None
        self.producer: tuple[Node, str] | None = None
        self.dim_assigned = False
        self.stride_assigned = False
        self.data_type_assigned = False
        self.uid_assigned = False

    # What engines read.

    @property
    def graph(self) -> pygraph:
        return self._graph

    @property
    def name(self) -> str:
        return self._name

    @property
    def uid(self) -> int:
        return self._uid

    @property
    def dim(self) -> tuple[int, ...] | None:
        return self._dim

    @property
    def stride(self) -> tuple[int, ...] | None:
        return self._stride

    @property
    def data_type(self) -> data_type:
        return data_type.NOT_SET if self._data_type is None else self._data_type

    @property
    def is_virtual(self) -> bool:
        return self._is_virtual

    @property
    def is_pass_by_value(self) -> bool:
        return self._is_pass_by_value

    @property
    def reordering_type(self) -> tensor_reordering:
        return self._reordering_type

    @property
    def ragged_offset(self) -> Tensor | None:
        return self._ragged_offset

    @property
    def ragged_offset_multiplier(self) -> int:
        return self._ragged_offset_multiplier

    @property
    def alignment_value(self) -> int:
        return self._alignment_value

    # Published getters.

    def get_name(self) -> str:
        """Label of the tensor."""
        return self._name

    def get_uid(self) -> int:
        """Number that identifies the tensor in ``execute``."""
        return self._uid

    def get_dim(self) -> list[int]:
        """A copy of the extents; empty when they are not known yet."""
        return list(self._dim or ())

    def get_stride(self) -> list[int]:
        """A copy of the strides in elements; empty when they are not known yet."""
        return list(self._stride or ())

    def get_data_type(self) -> data_type | None:
        """The ``cudnn.data_type``; NOT_SET before it is known, None for a ``tensor_scalar`` before ``validate``."""
        if self._data_type is None and self.scalar_kind is not None:
            return None
        return self.data_type

    def get_is_virtual(self) -> bool:
        """True when the tensor lives only inside the graph."""
        return self._is_virtual

    def get_is_pass_by_value(self) -> bool:
        """True when the value is read from the host at every execute."""
        return self._is_pass_by_value

    def get_reordering_type(self) -> tensor_reordering:
        """Memory permutation on top of the strides."""
        return self._reordering_type

    def get_ragged_offset(self) -> Tensor | None:
        """Offset tensor of a variable-length layout."""
        return self._ragged_offset

    def get_ragged_offset_multiplier(self) -> int:
        """Number of elements one unit of the ragged offset stands for."""
        return self._ragged_offset_multiplier

    def get_alignment_value(self) -> int:
        """Promise that the values of this tensor are multiples of this number."""
        return self._alignment_value

    # Published setters.

    def set_name(self, name: str) -> Tensor:
        """Rename; names are labels and need not be unique. ValueError for anything but a string."""
        self._before_change("set_name")
        self._name = check_name(name)
        return self

    def set_uid(self, uid: int) -> Tensor:
        """Give the tensor a number of the caller's choice (>= 0). ValueError when another tensor was given it already."""
        self._before_change("set_uid")
        self._graph._assign_uid(self, uid)
        return self

    def set_dim(self, dim: Sequence[int]) -> Tensor:
        """Set the extents. Strides that were not set by the caller follow: row-major for an input, inferred by ``validate`` for a result."""
        self._before_change("set_dim")
        self._dim = check_dim(dim, self._name)
        self.dim_assigned = True
        if self.producer is None and not self.stride_assigned:
            self._stride = row_major(self._dim)
        return self

    def set_stride(self, stride: Sequence[int]) -> Tensor:
        """Set the strides, in elements."""
        self._before_change("set_stride")
        self._stride = check_stride(stride, self._name)
        self.stride_assigned = True
        return self

    def set_data_type(self, dtype: Any) -> Tensor:
        """Set the element type: a ``cudnn.data_type``, a torch dtype, or a canonical name."""
        self._before_change("set_data_type")
        resolved = to_library_dtype(dtype)
        self._data_type = None if resolved is data_type.NOT_SET else resolved
        self.data_type_assigned = self._data_type is not None
        return self

    def set_is_virtual(self, value: bool) -> Tensor:
        """True: the tensor lives only inside the graph and needs no buffer."""
        self._before_change("set_is_virtual")
        self._is_virtual = check_bool(value, "set_is_virtual", self._name)
        return self

    def set_output(self, value: bool) -> Tensor:
        """True: the tensor is written to a buffer of the caller (``is_virtual`` becomes False)."""
        self._before_change("set_output")
        self._is_virtual = not check_bool(value, "set_output", self._name)
        return self

    def set_is_pass_by_value(self, value: bool) -> Tensor:
        """True: the value is read from host memory at every execute."""
        self._before_change("set_is_pass_by_value")
        self._is_pass_by_value = check_bool(value, "set_is_pass_by_value", self._name)
        return self

    def set_reordering_type(self, value: tensor_reordering) -> Tensor:
        """Set the memory permutation on top of the strides."""
        self._before_change("set_reordering_type")
        if not isinstance(value, tensor_reordering):
            raise TypeError(f"reordering_type of tensor '{self._name}' must be a cudnn.tensor_reordering, got {value!r}")
        self._reordering_type = value
        return self

    def set_ragged_offset(self, offset: Tensor) -> Tensor:
        """Variable-length layout: ``offset`` has dims [B+1, 1, 1, 1], INT32 or INT64, and counts elements times the multiplier."""
        self._before_change("set_ragged_offset")
        if offset is not None:
            if not isinstance(offset, Tensor):
                raise TypeError(f"ragged_offset of tensor '{self._name}' must be a graph tensor, got {type(offset).__name__}")
            if offset._graph is not self._graph:
                raise ValueError(f"ragged_offset {describe(offset)} belongs to another graph than tensor '{self._name}'")
        self._ragged_offset = offset
        return self

    def set_ragged_offset_multiplier(self, value: int) -> Tensor:
        """Number of elements one unit of the ragged offset stands for (>= 1)."""
        self._before_change("set_ragged_offset_multiplier")
        self._ragged_offset_multiplier = check_positive(value, "ragged_offset_multiplier", self._name)
        return self

    def set_alignment_value(self, value: int) -> Tensor:
        """Promise that all VALUES of the tensor are multiples of ``value`` (row offsets of grouped matmuls). ValueError below 1."""
        self._before_change("set_alignment_value")
        self._alignment_value = check_positive(value, "alignment_value", self._name)
        return self

    # What inference writes.

    def infer_dim(self, dim: Sequence[int]) -> None:
        """Write inferred extents unless the caller set them."""
        if not self.dim_assigned:
            self._dim = tuple(dim)

    def infer_stride(self, stride: Sequence[int]) -> None:
        """Write inferred strides unless the caller set them."""
        if not self.stride_assigned:
            self._stride = tuple(stride)

    def infer_data_type(self, dtype: data_type) -> None:
        """Write an inferred element type unless the caller set one."""
        if not self.data_type_assigned:
            self._data_type = dtype

    def reset_inferred(self) -> None:
        """Forget everything that the caller did not set, so that inference can run again."""
        if not self.dim_assigned:
            self._dim = None
        if not self.stride_assigned:
            self._stride = row_major(self._dim) if self.producer is None and self._dim is not None else None
        if not self.data_type_assigned:
            self._data_type = None

    def _before_change(self, method: str) -> None:
        self._graph._before_change(f"{method} on tensor '{self._name}'")

    def __repr__(self) -> str:
        role = "virtual" if self._is_virtual else "by value" if self._is_pass_by_value else "buffer"
        dim = list(self._dim) if self._dim is not None else None
        stride = list(self._stride) if self._stride is not None else None
        return f"Tensor(name={self._name!r}, uid={self._uid}, dim={dim}, stride={stride}, data_type={self.data_type.name}, {role})"


def check_name(name: Any) -> str:
    """A valid tensor or node name, or ValueError."""
    if not isinstance(name, str):
        raise ValueError(f"a name must be a string, got {name!r}")
    return name


def check_dim(dim: Sequence[int], name: str) -> tuple[int, ...]:
    """Extents as a tuple of positive ints, or ValueError."""
    result = int_tuple(dim, f"dim of tensor '{name}'")
    if any(extent < 1 for extent in result):
        raise ValueError(f"dim of tensor '{name}' must hold positive extents, got {list(result)}")
    return result


def check_stride(stride: Sequence[int], name: str) -> tuple[int, ...]:
    """Strides as a tuple of ints >= 0, or ValueError."""
    result = int_tuple(stride, f"stride of tensor '{name}'")
    if any(step < 0 for step in result):
        raise ValueError(f"stride of tensor '{name}' must not be negative, got {list(result)}")
    return result


def check_bool(value: Any, what: str, name: str) -> bool:
    """``value`` when it is a bool, else TypeError."""
    if not isinstance(value, bool):
        raise TypeError(f"{what} of tensor '{name}' needs a bool, got {value!r}")
    return value


def check_positive(value: Any, what: str, name: str) -> int:
    """``value`` when it is an int >= 1. TypeError for other types, ValueError below 1."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{what} of tensor '{name}' must be an int, got {value!r}")
    number = value.__index__()
    if number < 1:
        raise ValueError(f"{what} of tensor '{name}' must be at least 1, got {number}")
    return number
