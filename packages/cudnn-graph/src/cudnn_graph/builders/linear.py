"""Matrix multiplication, convolution, reduction and statistics node methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cudnn_graph.builders.base import BuilderBase, positional_orders
from cudnn_graph.enums import convolution_mode as conv_mode
from cudnn_graph.enums import moe_grouped_matmul_mode, reduction_mode
from cudnn_graph.nodes import NodeType
from cudnn_graph.tensor import Tensor, int_tuple


def _conv_orders(first: str, second: str) -> tuple[str, ...]:
    return (
        f"{first} {second} padding stride dilation convolution_mode",
        f"{first} {second} pre_padding post_padding stride dilation convolution_mode",
        f"{first} {second} padding pre_padding post_padding stride dilation convolution_mode",
    )


def _conv_complete(named: Mapping[str, Any]) -> bool:
    given = {key for key, value in named.items() if value is not None}
    return {"stride", "dilation"} <= given and ("padding" in given) != bool({"pre_padding", "post_padding"} & given)


def _conv_params(op: str, padding: Any, pre_padding: Any, post_padding: Any, stride: Any, dilation: Any, mode: Any) -> dict[str, Any]:
    if padding is not None and (pre_padding is not None or post_padding is not None):
        raise TypeError(f"{op}() takes either padding or pre_padding and post_padding, not both")
    if padding is not None:
        pre_padding = post_padding = padding
    missing = [n for n, v in (("pre_padding", pre_padding), ("post_padding", post_padding), ("stride", stride), ("dilation", dilation)) if v is None]
    if missing:
        raise TypeError(
            f"{op}() needs {', '.join(missing)}" + (" (padding sets both paddings)" if "pre_padding" in missing or "post_padding" in missing else "")
        )
    if not isinstance(mode, conv_mode):
        raise TypeError(f"{op}(): convolution_mode must be a convolution_mode, got {mode!r}")
    params = {
        "pre_padding": int_tuple(pre_padding, f"{op}: pre_padding"),
        "post_padding": int_tuple(post_padding, f"{op}: post_padding"),
        "stride": int_tuple(stride, f"{op}: stride"),
        "dilation": int_tuple(dilation, f"{op}: dilation"),
    }
    for key, smallest in (("pre_padding", 0), ("post_padding", 0), ("stride", 1), ("dilation", 1)):
        if any(value < smallest for value in params[key]):
            raise ValueError(f"{op}(): {key} must hold values of at least {smallest}, got {list(params[key])}")
    return {**params, "convolution_mode": mode}


class LinearMethods(BuilderBase):
    """The matmul, convolution, reduction and statistics methods of :class:`cudnn.pygraph`."""

    def matmul(self, A: Any, B: Any, compute_data_type: Any = None, padding: float = 0.0, name: str = "", *, out_dims: Any = None) -> Tensor:
        """C = A B for A [..., M, K] and B [..., K, N]; batch dims broadcast (equal or 1). C [..., M, N] is row-major unless its stride is set.

        ``padding`` is the value that stands for elements outside a tensor with M, N or K overrides.
        validate() raises ValueError for unequal K or batch dims that do not broadcast.
        """
        if isinstance(padding, bool) or not isinstance(padding, (int, float)):
            raise TypeError(f"matmul(): padding must be a number, got {padding!r}")
        params = {"padding": float(padding)}
        return self._add_node(
            "matmul", NodeType.MATMUL, {"A": A, "B": B}, ["C"], params=params, name=name, compute_data_type=compute_data_type, out_dims=out_dims
        )[0]

    @positional_orders(*_conv_orders("image", "weight"), complete=_conv_complete)
    def conv_fprop(
        self,
        image: Any,
        weight: Any,
        padding: Sequence[int] | None = None,
        pre_padding: Sequence[int] | None = None,
        post_padding: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        dilation: Sequence[int] | None = None,
        convolution_mode: conv_mode = conv_mode.CROSS_CORRELATION,
        name: str = "",
        compute_data_type: Any = None,
        out_dims: Any = None,
    ) -> Tensor:
        """Convolution of image [N, C, spatial...] with weight [K, C / groups, filter...] -> Y [N, K, out...].

        out = 1 + (in + pre + post - dilation * (filter - 1) - 1) // stride in every spatial axis. Y is channels-last unless its stride is set.
        ``padding`` (both sides) or ``pre_padding`` and ``post_padding``, ``stride`` and ``dilation`` have one int for each spatial axis and are required.
        """
        params = _conv_params("conv_fprop", padding, pre_padding, post_padding, stride, dilation, convolution_mode)
        return self._add_node(
            "conv_fprop",
            NodeType.CONV_FPROP,
            {"X": image, "W": weight},
            ["Y"],
            params=params,
            name=name,
            compute_data_type=compute_data_type,
            out_dims=out_dims,
        )[0]

    @positional_orders(*_conv_orders("loss", "filter"), complete=_conv_complete)
    def conv_dgrad(
        self,
        loss: Any,
        filter: Any,
        padding: Sequence[int] | None = None,
        pre_padding: Sequence[int] | None = None,
        post_padding: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        dilation: Sequence[int] | None = None,
        convolution_mode: conv_mode = conv_mode.CROSS_CORRELATION,
        name: str = "",
        compute_data_type: Any = None,
        out_dims: Any = None,
    ) -> Tensor:
        """Gradient of :meth:`conv_fprop` for its image -> DX. A strided convolution or one in groups needs ``set_dim`` on DX."""
        params = _conv_params("conv_dgrad", padding, pre_padding, post_padding, stride, dilation, convolution_mode)
        return self._add_node(
            "conv_dgrad",
            NodeType.CONV_DGRAD,
            {"DY": loss, "W": filter},
            ["DX"],
            params=params,
            name=name,
            compute_data_type=compute_data_type,
            out_dims=out_dims,
        )[0]

    @positional_orders(*_conv_orders("image", "loss"), complete=_conv_complete)
    def conv_wgrad(
        self,
        image: Any,
        loss: Any,
        padding: Sequence[int] | None = None,
        pre_padding: Sequence[int] | None = None,
        post_padding: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        dilation: Sequence[int] | None = None,
        convolution_mode: conv_mode = conv_mode.CROSS_CORRELATION,
        name: str = "",
        compute_data_type: Any = None,
        out_dims: Any = None,
    ) -> Tensor:
        """Gradient of :meth:`conv_fprop` for its weight -> DW, whose dims must be set (``set_dim`` or ``out_dims``)."""
        params = _conv_params("conv_wgrad", padding, pre_padding, post_padding, stride, dilation, convolution_mode)
        return self._add_node(
            "conv_wgrad",
            NodeType.CONV_WGRAD,
            {"X": image, "DY": loss},
            ["DW"],
            params=params,
            name=name,
            compute_data_type=compute_data_type,
            out_dims=out_dims,
        )[0]

    def genstats(self, input: Any, *, name: str = "", compute_data_type: Any = None, out_dims: Any = None) -> list[Tensor]:
        """[SUM, SQ_SUM]: per channel, the sums of the input [N, C, spatial...] and of its squares, FLOAT [1, C, 1...]."""
        return self._add_node("genstats", NodeType.GENSTATS, {"X": input}, ["SUM", "SQ_SUM"], name=name, compute_data_type=compute_data_type, out_dims=out_dims)

    @positional_orders("input mode group_offset", "input group_offset mode")
    def reduction(
        self, input: Any, mode: reduction_mode, group_offset: Any = None, *, name: str = "", compute_data_type: Any = None, out_dims: Any = None
    ) -> Tensor:
        """Reduce the axes whose extent is 1 in the output. The output's dims must be set (``set_dim`` or ``out_dims``)."""
        if not isinstance(mode, reduction_mode):
            raise TypeError(f"reduction(): mode must be a cudnn.reduction_mode, got {mode!r}")
        return self._add_node(
            "reduction",
            NodeType.REDUCTION,
            {"IN_0": input, "GROUP_OFFSET": group_offset},
            ["OUT_0"],
            params={"mode": mode},
            optional=["GROUP_OFFSET"],
            name=name,
            compute_data_type=compute_data_type,
            out_dims=out_dims,
        )[0]

    @positional_orders("token weight first_token_offset token_index token_ks mode")
    def moe_grouped_matmul(
        self,
        token: Any,
        weight: Any,
        first_token_offset: Any,
        token_index: Any = None,
        token_ks: Any = None,
        mode: moe_grouped_matmul_mode = moe_grouped_matmul_mode.NONE,
        compute_data_type: Any = "float32",
        top_k: int = 0,
        *,
        top_k_scores: Any = None,
        name: str = "",
        out_dims: Any = None,
    ) -> Tensor:
        """One matmul per group of token rows: token [1, T, K], weight [E, K, N] -> [1, M, N].

        ``first_token_offset`` INT32 is [G, 1, 1] with the first row of every group, or [G + 1, 1, 1] with the boundaries; G is a multiple of E.
        GATHER: row i of the input is token[token_index[i]]. SCATTER: row i of the result goes to row token_index[i] * top_k + token_ks[i].
        """
        if not isinstance(mode, moe_grouped_matmul_mode):
            raise TypeError(f"moe_grouped_matmul(): mode must be a cudnn.moe_grouped_matmul_mode, got {mode!r}")
        if isinstance(top_k, bool) or not hasattr(top_k, "__index__"):
            raise TypeError(f"moe_grouped_matmul(): top_k must be an int, got {top_k!r}")
        inputs = {
            "TOKEN": token,
            "WEIGHT": weight,
            "FIRST_TOKEN_OFFSET": first_token_offset,
            "TOKEN_INDEX": token_index,
            "TOKEN_KS": token_ks,
            "TOP_K_SCORES": top_k_scores,
        }
        return self._add_node(
            "moe_grouped_matmul",
            NodeType.MOE_GROUPED_MATMUL,
            inputs,
            ["OUT_0"],
            params={"mode": mode, "top_k": top_k.__index__()},
            optional=["TOKEN_INDEX", "TOKEN_KS", "TOP_K_SCORES"],
            name=name,
            compute_data_type=compute_data_type,
            out_dims=out_dims,
        )[0]

    def moe_grouped_matmul_bwd(
        self, doutput: Any, token: Any, first_token_offset: Any, compute_data_type: Any = "float32", *, name: str = "", out_dims: Any = None
    ) -> Tensor:
        """Weight gradient of :meth:`moe_grouped_matmul`: token_gᵀ doutput_g for every group -> dweight [E, K, N], E the number of groups."""
        return self._add_node(
            "moe_grouped_matmul_bwd",
            NodeType.MOE_GROUPED_MATMUL_BWD,
            {"DOUTPUT": doutput, "TOKEN": token, "FIRST_TOKEN_OFFSET": first_token_offset},
            ["dweight"],
            name=name,
            compute_data_type=compute_data_type,
            out_dims=out_dims,
        )[0]
