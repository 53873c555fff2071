"""Node methods that move elements (reshape, slice, transpose, concatenate) and the block-scale conversions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cudnn_graph.builders.base import BuilderBase, positional_orders
from cudnn_graph.enums import reshape_mode as reshape_kind
from cudnn_graph.nodes import NodeType
from cudnn_graph.tensor import Tensor, int_tuple


class StructuralMethods(BuilderBase):
    """The structural and block-scale methods of :class:`cudnn.pygraph`."""

    @positional_orders("input reshape_mode")
    def reshape(self, input: Any, reshape_mode: reshape_kind = reshape_kind.VIEW_ONLY, *, name: str = "", out_dims: Any = None) -> Tensor:
        """The input with other dims, given by ``set_dim`` or ``out_dims``.

        VIEW_ONLY describes the memory of the input anew (the output's strides say how); LOGICAL keeps the row-major order of the elements.
        """
        if not isinstance(reshape_mode, reshape_kind):
            raise TypeError(f"reshape(): reshape_mode must be a cudnn.reshape_mode, got {reshape_mode!r}")
        return self._add_node("reshape", NodeType.RESHAPE, {"IN_0": input}, ["OUT_0"], params={"reshape_mode": reshape_mode}, name=name, out_dims=out_dims)[0]

    @positional_orders("input slices")
    def slice(self, input: Any, slices: Sequence[slice], *, name: str = "", compute_data_type: Any = None, out_dims: Any = None) -> Tensor:
        """input[slices]: one Python slice object for every axis. The dtype is the input's."""
        if not isinstance(slices, (list, tuple)) or not all(isinstance(part, slice) for part in slices):
            raise TypeError(f"slice(): slices must be a list of slice objects, one for each axis, got {slices!r}")
        params = {"slices": tuple((part.start, part.stop, part.step) for part in slices)}
        return self._add_node(
            "slice", NodeType.SLICE, {"IN_0": input}, ["OUT_0"], params=params, name=name, compute_data_type=compute_data_type, out_dims=out_dims
        )[0]

    @positional_orders("input permutation")
    def transpose(self, input: Any, permutation: Sequence[int], *, name: str = "", compute_data_type: Any = None, out_dims: Any = None) -> Tensor:
        """The input with permuted axes: dim i of the result is dim permutation[i] of the input."""
        params = {"permutation": int_tuple(permutation, "transpose: permutation")}
        return self._add_node(
            "transpose", NodeType.TRANSPOSE, {"IN_0": input}, ["OUT_0"], params=params, name=name, compute_data_type=compute_data_type, out_dims=out_dims
        )[0]

    def concatenate(self, *, inputs: Sequence[Any], axis: int, in_place_index: int | None = None, name: str = "", out_dims: Any = None) -> Tensor:
        """The inputs side by side along ``axis``. ``in_place_index``: the input that already lies inside the output's buffer and is not copied."""
        if not isinstance(inputs, (list, tuple)) or not inputs:
            raise TypeError(f"concatenate(): inputs must be a non-empty list of tensors, got {inputs!r}")
        if isinstance(axis, bool) or not hasattr(axis, "__index__"):
            raise TypeError(f"concatenate(): axis must be an int, got {axis!r}")
        if in_place_index is not None:
            if isinstance(in_place_index, bool) or not hasattr(in_place_index, "__index__"):
                raise TypeError(f"concatenate(): in_place_index must be an int or None, got {in_place_index!r}")
            if not 0 <= in_place_index < len(inputs):
                raise ValueError(f"concatenate(): in_place_index {in_place_index} is not the index of one of {len(inputs)} inputs")
            in_place_index = in_place_index.__index__()
        ports = {f"IN_{i}": operand for i, operand in enumerate(inputs)}
        params = {"axis": axis.__index__(), "in_place_index": in_place_index}
        return self._add_node("concatenate", NodeType.CONCATENATE, ports, ["OUT_0"], params=params, name=name, out_dims=out_dims)[0]

    @positional_orders("input block_size axis transpose group_offset", "input group_offset block_size axis transpose")
    def block_scale_quantize(
        self,
        input: Any,
        block_size: int,
        axis: int | None = None,
        transpose: bool = False,
        group_offset: Any = None,
        *,
        name: str = "",
        compute_data_type: Any = None,
        out_dims: Any = None,
    ) -> list[Tensor]:
        """[Y, scale]: blocks of ``block_size`` elements along ``axis`` (default: the last) share one scale factor; Y = input / scale in Y's dtype."""
        if isinstance(block_size, bool) or not hasattr(block_size, "__index__"):
            raise TypeError(f"block_scale_quantize(): block_size must be an int, got {block_size!r}")
        if block_size < 1:
            raise ValueError(f"block_scale_quantize(): block_size must be at least 1, got {block_size}")
        if axis is not None and (isinstance(axis, bool) or not hasattr(axis, "__index__")):
            raise TypeError(f"block_scale_quantize(): axis must be an int or None, got {axis!r}")
        if not isinstance(transpose, bool):
            raise TypeError(f"block_scale_quantize(): transpose must be a bool, got {transpose!r}")
        params = {"block_size": block_size.__index__(), "axis": None if axis is None else axis.__index__(), "transpose": transpose}
        return self._add_node(
            "block_scale_quantize",
            NodeType.BLOCK_SCALE_QUANTIZE,
            {"IN_0": input, "GROUP_OFFSET": group_offset},
            ["Y", "scale"],
            params=params,
            optional=["GROUP_OFFSET"],
            name=name,
            compute_data_type=compute_data_type,
            out_dims=out_dims,
        )

    @positional_orders("input descale block_size is_negative_scale")
    def block_scale_dequantize(
        self,
        input: Any,
        descale: Any,
        block_size: int | Sequence[int],
        is_negative_scale: bool = False,
        *,
        name: str = "",
        compute_data_type: Any = None,
        out_dims: Any = None,
    ) -> Tensor:
        """input * descale, every scale factor serving a block of ``block_size`` elements (one int for each axis, or for the last axes)."""
        if not isinstance(is_negative_scale, bool):
            raise TypeError(f"block_scale_dequantize(): is_negative_scale must be a bool, got {is_negative_scale!r}")
        sizes = int_tuple(block_size if isinstance(block_size, (list, tuple)) else (block_size,), "block_scale_dequantize: block_size")
        if any(size < 1 for size in sizes):
            raise ValueError(f"block_scale_dequantize(): block_size must hold values of at least 1, got {list(sizes)}")
        params = {"block_size": sizes, "is_negative_scale": is_negative_scale}
        return self._add_node(
            "block_scale_dequantize",
            NodeType.BLOCK_SCALE_DEQUANTIZE,
            {"IN_0": input, "DESCALE": descale},
            ["OUT_0"],
            params=params,
            name=name,
            compute_data_type=compute_data_type,
            out_dims=out_dims,
        )[0]
