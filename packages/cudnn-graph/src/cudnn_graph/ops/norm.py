"""RMS and layer normalization as torch operators: ``cudnn.ops.rms_norm``, ``cudnn.ops.layer_norm``.

The operators behind them, ``torch.ops.cudnn.{rmsnorm, rmsnorm_bwd, layernorm, layernorm_bwd}``, take rows as (rows, hidden, 1, 1), have fake
implementations and gradients, and run on cuDNN for CUDA tensors and on the reference engine for CPU tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import torch

from cudnn_graph.enums import data_type, norm_forward_phase
from cudnn_graph.graph import pygraph
from cudnn_graph.ops.graph_store import GraphStore, declare

__all__ = ["layer_norm", "rms_norm"]

_STORE = GraphStore()
_FLOATING = (torch.float16, torch.bfloat16, torch.float32)


class _UIDs(IntEnum):
    """Uids of every graph here; they stay, so that a stored graph runs on a uid -> tensor map."""

    X = 1
    SCALE = 2
    BIAS = 3
    EPSILON = 4
    Y = 100
    INV_VAR = 101
    DY = 200
    DX = 201
    DSCALE = 202
    DBIAS = 203


class _LayerNormUIDs(IntEnum):
    """As :class:`_UIDs`, with the mean in between."""

    X = 1
    SCALE = 2
    BIAS = 3
    EPSILON = 4
    Y = 100
    MEAN = 101
    INV_VAR = 102
    DY = 200
    DX = 201
    DSCALE = 202
    DBIAS = 203


def _key(tag: str, *tensors: torch.Tensor | None) -> tuple:
    return (tag, *(None if t is None else (t.shape, t.stride(), t.dtype) for t in tensors))


def _epsilon(graph: pygraph, uid: int) -> object:
    return graph.tensor([1, 1, 1, 1], data_type=data_type.FLOAT, is_pass_by_value=True, name="epsilon", uid=uid)


def _output(tensor: object, uid: int, like: torch.Tensor) -> None:
    tensor.set_output(True).set_uid(uid).set_dim(tuple(like.shape)).set_stride(tuple(like.stride())).set_data_type(like.dtype)


def _check_rows(x: torch.Tensor, op: str) -> None:
    if x.dim() != 4 or x.shape[2:] != (1, 1) or not x.is_contiguous():
        raise ValueError(f"{op}: x has shape {tuple(x.shape)} and stride {tuple(x.stride())}; needs a contiguous (rows, hidden, 1, 1)")
    if x.dtype not in _FLOATING:
        raise ValueError(f"{op}: x is {x.dtype}; needs float16, bfloat16 or float32")


def _check_like(name: str, tensor: torch.Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device, op: str) -> None:
    if tuple(tensor.shape) != tuple(shape) or tensor.dtype is not dtype or tensor.device != device or not tensor.is_contiguous():
        raise ValueError(
            f"{op}: {name} is {tensor.dtype} of shape {tuple(tensor.shape)} and stride {tuple(tensor.stride())} on {tensor.device}; "
            f"needs a contiguous {dtype} of shape {tuple(shape)} on {device}"
        )


def _stats(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty((x.shape[0], 1, 1, 1), dtype=torch.float32)


# RMS norm.


@torch.library.custom_op("cudnn::rmsnorm", mutates_args=())
def _rmsnorm(x: torch.Tensor, scale: torch.Tensor, eps: float, bias: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    _check_rows(x, "cudnn::rmsnorm")
    for name, tensor in (("scale", scale), ("bias", bias)):
        if tensor is not None:
            _check_like(name, tensor, (1, x.shape[1], 1, 1), x.dtype, x.device, "cudnn::rmsnorm")
    y, inv_var = torch.empty_like(x), _stats(x)
    if x.numel() == 0:
        return y, inv_var

    def describe(graph: pygraph) -> None:
        out, inv = graph.rmsnorm(
            norm_forward_phase=norm_forward_phase.TRAINING,
            input=declare(graph, _UIDs.X, x, "x"),
            scale=declare(graph, _UIDs.SCALE, scale, "scale"),
            bias=None if bias is None else declare(graph, _UIDs.BIAS, bias, "bias"),
            epsilon=_epsilon(graph, _UIDs.EPSILON),
        )
        _output(out, _UIDs.Y, y)
        _output(inv, _UIDs.INV_VAR, inv_var)

    buffers = {_UIDs.X.value: x, _UIDs.SCALE.value: scale, _UIDs.EPSILON.value: float(eps), _UIDs.Y.value: y, _UIDs.INV_VAR.value: inv_var}
    if bias is not None:
        buffers[_UIDs.BIAS.value] = bias
    _STORE.get(_key("rmsnorm", x, scale, bias), x.device, describe).execute(buffers)
    return y, inv_var


@_rmsnorm.register_fake
def _(x: torch.Tensor, scale: torch.Tensor, eps: float, bias: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), _stats(x)


@torch.library.custom_op("cudnn::rmsnorm_bwd", mutates_args=())
def _rmsnorm_bwd(
    dy: torch.Tensor, x: torch.Tensor, scale: torch.Tensor, inv_var: torch.Tensor, has_dbias: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    op = "cudnn::rmsnorm_bwd"
    _check_rows(x, op)
    _check_like("dy", dy, x.shape, x.dtype, x.device, op)
    _check_like("scale", scale, (1, x.shape[1], 1, 1), x.dtype, x.device, op)
    _check_like("inv_var", inv_var, (x.shape[0], 1, 1, 1), torch.float32, x.device, op)
    dx, dscale = torch.empty_like(x), torch.empty_like(scale)
    dbias = torch.empty_like(scale) if has_dbias else scale.new_empty((0,))
    if x.numel() == 0:
        return dx, dscale.zero_(), dbias.zero_()

    def describe(graph: pygraph) -> None:
        outputs = graph.rmsnorm_backward(
            grad=declare(graph, _UIDs.DY, dy, "dy"),
            input=declare(graph, _UIDs.X, x, "x"),
            scale=declare(graph, _UIDs.SCALE, scale, "scale"),
            inv_variance=declare(graph, _UIDs.INV_VAR, inv_var, "inv_var"),
            has_dbias=has_dbias,
        )
        _output(outputs[0], _UIDs.DX, dx)
        _output(outputs[1], _UIDs.DSCALE, dscale)
        if has_dbias:
            _output(outputs[2], _UIDs.DBIAS, dbias)

    u = _UIDs
    buffers = {u.DY.value: dy, u.X.value: x, u.SCALE.value: scale, u.INV_VAR.value: inv_var, u.DX.value: dx, u.DSCALE.value: dscale}
    if has_dbias:
        buffers[u.DBIAS.value] = dbias
    _STORE.get((*_key("rmsnorm_bwd", dy, x, scale), has_dbias), x.device, describe).execute(buffers)
    return dx, dscale, dbias


@_rmsnorm_bwd.register_fake
def _(
    dy: torch.Tensor, x: torch.Tensor, scale: torch.Tensor, inv_var: torch.Tensor, has_dbias: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), torch.empty_like(scale), torch.empty_like(scale) if has_dbias else scale.new_empty((0,))


def _rmsnorm_setup(ctx: object, inputs: tuple, output: tuple) -> None:
    x, scale, _, bias = inputs
    ctx.save_for_backward(x, scale, output[1])
    ctx.has_bias = bias is not None


def _rmsnorm_backward(ctx: object, dy: torch.Tensor, _: torch.Tensor) -> tuple:
    x, scale, inv_var = ctx.saved_tensors
    dx, dscale, dbias = torch.ops.cudnn.rmsnorm_bwd(dy.contiguous(), x, scale, inv_var, ctx.has_bias)
    return dx, dscale, None, dbias if ctx.has_bias else None


_rmsnorm.register_autograd(_rmsnorm_backward, setup_context=_rmsnorm_setup)


# Layer norm.


@torch.library.custom_op("cudnn::layernorm", mutates_args=())
def _layernorm(x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    _check_rows(x, "cudnn::layernorm")
    for name, tensor in (("scale", scale), ("bias", bias)):
        _check_like(name, tensor, (1, x.shape[1], 1, 1), torch.float32, x.device, "cudnn::layernorm")
    y, mean, inv_var = torch.empty_like(x), _stats(x), _stats(x)
    if x.numel() == 0:
        return y, mean, inv_var
    u = _LayerNormUIDs

    def describe(graph: pygraph) -> None:
        out, mean_out, inv_out = graph.layernorm(
            norm_forward_phase=norm_forward_phase.TRAINING,
            input=declare(graph, u.X, x, "x"),
            scale=declare(graph, u.SCALE, scale, "scale"),
            bias=declare(graph, u.BIAS, bias, "bias"),
            epsilon=_epsilon(graph, u.EPSILON),
        )
        _output(out, u.Y, y)
        _output(mean_out, u.MEAN, mean)
        _output(inv_out, u.INV_VAR, inv_var)

    buffers = {u.X.value: x, u.SCALE.value: scale, u.BIAS.value: bias, u.EPSILON.value: float(eps)}
    buffers |= {u.Y.value: y, u.MEAN.value: mean, u.INV_VAR.value: inv_var}
    _STORE.get(_key("layernorm", x, scale, bias), x.device, describe).execute(buffers)
    return y, mean, inv_var


@_layernorm.register_fake
def _(x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), _stats(x), _stats(x)


@torch.library.custom_op("cudnn::layernorm_bwd", mutates_args=())
def _layernorm_bwd(
    dy: torch.Tensor, x: torch.Tensor, scale: torch.Tensor, mean: torch.Tensor, inv_var: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    op = "cudnn::layernorm_bwd"
    _check_rows(x, op)
    _check_like("dy", dy, x.shape, x.dtype, x.device, op)
    _check_like("scale", scale, (1, x.shape[1], 1, 1), torch.float32, x.device, op)
    for name, tensor in (("mean", mean), ("inv_var", inv_var)):
        _check_like(name, tensor, (x.shape[0], 1, 1, 1), torch.float32, x.device, op)
    dx, dscale, dbias = torch.empty_like(x), torch.empty_like(scale), torch.empty_like(scale)
    if x.numel() == 0:
        return dx, dscale.zero_(), dbias.zero_()
    u = _LayerNormUIDs

    def describe(graph: pygraph) -> None:
        outputs = graph.layernorm_backward(
            grad=declare(graph, u.DY, dy, "dy"),
            input=declare(graph, u.X, x, "x"),
            scale=declare(graph, u.SCALE, scale, "scale"),
            mean=declare(graph, u.MEAN, mean, "mean"),
            inv_variance=declare(graph, u.INV_VAR, inv_var, "inv_var"),
        )
        for tensor, uid, like in zip(outputs, (u.DX, u.DSCALE, u.DBIAS), (dx, dscale, dbias), strict=True):
            _output(tensor, uid, like)

    buffers = {u.DY.value: dy, u.X.value: x, u.SCALE.value: scale, u.MEAN.value: mean, u.INV_VAR.value: inv_var}
    buffers |= {u.DX.value: dx, u.DSCALE.value: dscale, u.DBIAS.value: dbias}
    _STORE.get(_key("layernorm_bwd", dy, x, scale), x.device, describe).execute(buffers)
    return dx, dscale, dbias


@_layernorm_bwd.register_fake
def _(dy: torch.Tensor, x: torch.Tensor, scale: torch.Tensor, mean: torch.Tensor, inv_var: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), torch.empty_like(scale), torch.empty_like(scale)


def _layernorm_setup(ctx: object, inputs: tuple, output: tuple) -> None:
    x, scale, _, _ = inputs
    ctx.save_for_backward(x, scale, output[1], output[2])


def _layernorm_backward(ctx: object, dy: torch.Tensor, *_: torch.Tensor) -> tuple:
    x, scale, mean, inv_var = ctx.saved_tensors
    dx, dscale, dbias = torch.ops.cudnn.layernorm_bwd(dy.contiguous(), x, scale, mean, inv_var)
    return dx, dscale, dbias, None


_layernorm.register_autograd(_layernorm_backward, setup_context=_layernorm_setup)


# Public functions.


def _rows(input: torch.Tensor, hidden: int) -> torch.Tensor:
    return input.reshape(-1, hidden, 1, 1).contiguous()


def _parameter(name: str, tensor: torch.Tensor | None, input: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """A weight or bias as (1, hidden, 1, 1) of the dtype that the operator takes."""
    if tensor is None:
        return None
    hidden = input.shape[-1]
    if tuple(tensor.shape) != (hidden,):
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, needs ({hidden},), the last extent of input {tuple(input.shape)}")
    if tensor.device != input.device:
        raise ValueError(f"{name} is on {tensor.device} but input is on {input.device}; move one of them")
    if tensor.dtype is not dtype:
        if not (dtype is torch.float32 and tensor.dtype in _FLOATING) and not torch.is_autocast_enabled(input.device.type):
            raise ValueError(f"{name} is {tensor.dtype} but input is {input.dtype}; convert one of them: {name}.to(input.dtype), or run under torch.autocast")
        tensor = tensor.to(dtype)
    return tensor.reshape(1, hidden, 1, 1).contiguous()


def _check_input(input: torch.Tensor) -> None:
    if input.dim() < 1:
        raise ValueError("input is a scalar; needs at least one axis, the one to normalize")
    if input.dtype not in _FLOATING:
        raise ValueError(f"input is {input.dtype}; needs float16, bfloat16 or float32")
    if input.shape[-1] == 0:
        raise ValueError(f"input has shape {tuple(input.shape)}; the last axis, over which it is normalized, must not be empty")


def rms_norm(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, eps: float = 1e-5) -> torch.Tensor:
    """input / sqrt(mean(input²) + eps) * weight + bias, over the last axis. Differentiable in input, weight and bias.

    Args:
        input: (..., hidden) in float16, bfloat16 or float32, on CUDA (cuDNN) or CPU (reference engine).
        weight: (hidden,) in the input's dtype.
        bias: (hidden,) in the input's dtype, or None.
        eps: added to the mean square.

    Returns:
        Tensor of the input's shape and dtype. No rows give no rows.

    Raises:
        ValueError: shapes, dtypes or devices that do not fit (under autocast other floating dtypes of weight and bias are converted).
        cudnnGraphNotSupportedError: cuDNN has no plan for the problem.
    """
    _check_input(input)
    scale = _parameter("weight", weight, input, input.dtype)
    shift = _parameter("bias", bias, input, input.dtype)
    y, _ = torch.ops.cudnn.rmsnorm(_rows(input, input.shape[-1]), scale, eps, shift)
    return y.reshape(input.shape)


def layer_norm(
    input: torch.Tensor, normalized_shape: int | Sequence[int], weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, eps: float = 1e-5
) -> torch.Tensor:
    """(input - mean) / sqrt(variance + eps) * weight + bias, over the last axis. Differentiable in input, weight and bias.

    Args:
        input: (..., hidden) in float16, bfloat16 or float32, on CUDA (cuDNN) or CPU (reference engine).
        normalized_shape: hidden, or a sequence that holds it alone.
        weight: (hidden,) in float16, bfloat16 or float32, used in float32; None = ones.
        bias: as weight; None = zeros.
        eps: added to the variance.

    Returns:
        Tensor of the input's shape and dtype. No rows give no rows.

    Raises:
        NotImplementedError: ``normalized_shape`` of more than one extent.
        ValueError: shapes, dtypes or devices that do not fit.
        cudnnGraphNotSupportedError: cuDNN has no plan for the problem.
    """
    _check_input(input)
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if len(shape) != 1:
        raise NotImplementedError(f"normalized_shape {shape} has {len(shape)} extents; only the last axis is normalized here: flatten the others into it")
    hidden = input.shape[-1]
    if shape[0] != hidden:
        raise ValueError(f"normalized_shape {shape} does not match the last extent of input {tuple(input.shape)}")
    scale = _parameter("weight", weight, input, torch.float32)
    shift = _parameter("bias", bias, input, torch.float32)
    if scale is None:
        scale = torch.ones((1, hidden, 1, 1), dtype=torch.float32, device=input.device)
    if shift is None:
        shift = torch.zeros((1, hidden, 1, 1), dtype=torch.float32, device=input.device)
    y, _, _ = torch.ops.cudnn.layernorm(_rows(input, hidden), scale, shift, eps)
    return y.reshape(input.shape)
