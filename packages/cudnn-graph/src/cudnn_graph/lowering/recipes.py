# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""Steps -> recipes of operation descriptors, and values -> recipes of tensor descriptors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cudnn_graph.constants import (
    CONVOLUTION,
    DATA_TYPE,
    MOE,
    NORM_PHASE,
    POINTWISE,
    REDUCTION,
    RESHAPE,
    Attr,
    Desc,
    Misc,
    Norm,
    NormPhase,
    Pointwise,
    Type,
)
from cudnn_graph.enums import data_type, reshape_mode
from cudnn_graph.errors import cudnnGraphNotSupportedError
from cudnn_graph.lowering.records import Recipe, Ref, Step, Value
from cudnn_graph.lowering.scalars import scalar_bytes
from cudnn_graph.nodes import NodeType

Attributes = list[tuple[int, int, Any]]

FLOAT_MAX = 3.4028234663852886e38
DOUBLE_MAX = 1.7976931348623157e308

_D = Type.BACKEND_DESCRIPTOR


def tensor_recipe(value: Value) -> Recipe:
    """The descriptor of one tensor."""
    attributes: Attributes = [
        (Attr.TENSOR_DATA_TYPE, Type.DATA_TYPE, DATA_TYPE[value.dtype]),
        (Attr.TENSOR_DIMENSIONS, Type.INT64, list(value.dims)),
        (Attr.TENSOR_STRIDES, Type.INT64, list(value.strides)),
        (Attr.TENSOR_UNIQUE_ID, Type.INT64, value.uid),
        (Attr.TENSOR_BYTE_ALIGNMENT, Type.INT64, value.alignment),
        (Attr.TENSOR_IS_VIRTUAL, Type.BOOLEAN, value.is_virtual),
        (Attr.TENSOR_IS_BY_VALUE, Type.BOOLEAN, value.is_by_value),
    ]
    if value.reordering != Misc.TENSOR_REORDERING_NONE:
        attributes.append((Attr.TENSOR_REORDERING_MODE, Type.TENSOR_REORDERING_MODE, value.reordering))
    if value.ragged_offset is not None:
        attributes.append((Attr.TENSOR_RAGGED_OFFSET_DESC, _D, Ref(value.ragged_offset.uid)))
        if value.ragged_multiplier != 1:
            attributes.append((Attr.TENSOR_RAGGED_OFFSET_MULTIPLIER, Type.INT64, value.ragged_multiplier))
    if value.is_constant:
        attributes.append((Attr.TENSOR_CONSTANT_VALUE, Type.VOID_PTR, scalar_bytes(value.scalar, value.dtype, value.name)))
    return Recipe(f"tensor '{value.name}' (uid {value.uid})", Desc.TENSOR, attributes)


def operation_recipe(step: Step) -> Recipe:
    """The descriptor of one operation. cudnnGraphNotSupportedError for node types that the library has nothing for."""
    make = _MAKERS.get(step.kind)
    if make is None:
        raise cudnnGraphNotSupportedError(f"node '{step.label}': cuDNN has no operation for {step.kind.name} nodes")
    kind, attributes = make(step)
    return Recipe(f"node '{step.label}' ({step.kind.name})", kind, attributes)


def _input(step: Step, attribute: int, port: str) -> Attributes:
    """The attribute for a port, or nothing when the port is absent."""
    value = step.inputs.get(port)
    return [] if value is None else [(attribute, _D, Ref(value.uid))]


def _output(step: Step, attribute: int, port: str) -> Attributes:
    value = step.outputs.get(port)
    return [] if value is None else [(attribute, _D, Ref(value.uid))]


def _compute(step: Step, attribute: int) -> tuple[int, int, int]:
    return (attribute, Type.DATA_TYPE, DATA_TYPE[step.compute])


def _real(step: Step) -> int:
    """Type of alpha and beta."""
    return Type.DOUBLE if step.compute is data_type.DOUBLE else Type.FLOAT


def _helper(step: Step, kind: int, attributes: Attributes) -> Recipe:
    return Recipe(f"node '{step.label}' ({step.kind.name})", kind, attributes)


def _pointwise(step: Step) -> tuple[int, Attributes]:
    mode = POINTWISE[step.params["mode"]]
    attributes: Attributes = [(Attr.POINTWISE_MODE, Type.POINTWISE_MODE, mode), _compute(step, Attr.POINTWISE_MATH_PREC)]
    params = step.params
    if mode in (Pointwise.RELU_FWD, Pointwise.RELU_BWD):
        largest = FLOAT_MAX if step.compute is data_type.FLOAT else DOUBLE_MAX
        attributes += [
            (Attr.POINTWISE_NAN_PROPAGATION, Type.NAN_PROPOGATION, Misc.PROPAGATE_NAN),
            (Attr.POINTWISE_RELU_LOWER_CLIP, Type.DOUBLE, _given(params, "lower_clip", 0.0)),
            (Attr.POINTWISE_RELU_UPPER_CLIP, Type.DOUBLE, _given(params, "upper_clip", largest)),
            (Attr.POINTWISE_RELU_LOWER_CLIP_SLOPE, Type.DOUBLE, _given(params, "negative_slope", 0.0)),
        ]
    elif mode in (Pointwise.ELU_FWD, Pointwise.ELU_BWD):
        attributes.append((Attr.POINTWISE_ELU_ALPHA, Type.DOUBLE, 1.0))
    elif mode in (Pointwise.SOFTPLUS_FWD, Pointwise.SOFTPLUS_BWD):
        attributes.append((Attr.POINTWISE_SOFTPLUS_BETA, Type.DOUBLE, 1.0))
    elif mode in (Pointwise.SWISH_FWD, Pointwise.SWISH_BWD):
        attributes.append((Attr.POINTWISE_SWISH_BETA, Type.DOUBLE, _given(params, "swish_beta", 1.0)))
    elif mode == Pointwise.GEN_INDEX:
        attributes.append((Attr.POINTWISE_AXIS, Type.INT64, params.get("axis", -1)))
    helper = _helper(step, Desc.POINTWISE, attributes)

    if Pointwise.RELU_BWD <= mode <= Pointwise.GELU_APPROX_TANH_BWD:
        ports = [("IN_0", Attr.OPERATION_POINTWISE_DYDESC), ("IN_1", Attr.OPERATION_POINTWISE_XDESC)]
        result = Attr.OPERATION_POINTWISE_DXDESC
    else:
        ports = [
            ("IN_0", Attr.OPERATION_POINTWISE_XDESC),
            ("IN_1", Attr.OPERATION_POINTWISE_BDESC),
            ("IN_2", Attr.OPERATION_POINTWISE_TDESC),
        ]
        result = Attr.OPERATION_POINTWISE_YDESC
    operation: Attributes = [(Attr.OPERATION_POINTWISE_PW_DESCRIPTOR, _D, helper)]
    for port, attribute in ports:
        operation += _input(step, attribute, port)
    operation += _output(step, result, "OUT_0")
    operation.append((Attr.OPERATION_POINTWISE_ALPHA1, _real(step), 1.0))
    if "IN_1" in step.inputs and result == Attr.OPERATION_POINTWISE_YDESC:
        operation.append((Attr.OPERATION_POINTWISE_ALPHA2, _real(step), 1.0))
    return Desc.OPERATION_POINTWISE, operation


def _given(params: Any, key: str, default: float) -> float:
    value = params.get(key)
    return default if value is None else float(value)


def _matmul(step: Step) -> tuple[int, Attributes]:
    attributes: Attributes = [_compute(step, Attr.MATMUL_COMP_TYPE)]
    if step.params.get("padding", 0.0) != 0.0:
        attributes.append((Attr.MATMUL_PADDING_VALUE, Type.DOUBLE, step.params["padding"]))
    return Desc.OPERATION_MATMUL, [
        *_input(step, Attr.OPERATION_MATMUL_ADESC, "A"),
        *_input(step, Attr.OPERATION_MATMUL_BDESC, "B"),
        *_output(step, Attr.OPERATION_MATMUL_CDESC, "C"),
        *_input(step, Attr.OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, "M_OVERRIDE"),
        *_input(step, Attr.OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, "N_OVERRIDE"),
        *_input(step, Attr.OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, "K_OVERRIDE"),
        (Attr.OPERATION_MATMUL_DESC, _D, _helper(step, Desc.MATMUL, attributes)),
    ]


def _convolution_helper(step: Step) -> Recipe:
    params = step.params
    return _helper(
        step,
        Desc.CONVOLUTION,
        [
            _compute(step, Attr.CONVOLUTION_COMP_TYPE),
            (Attr.CONVOLUTION_CONV_MODE, Type.CONVOLUTION_MODE, CONVOLUTION[params["convolution_mode"]]),
            (Attr.CONVOLUTION_SPATIAL_DIMS, Type.INT64, len(params["stride"])),
            (Attr.CONVOLUTION_PRE_PADDINGS, Type.INT64, list(params["pre_padding"])),
            (Attr.CONVOLUTION_POST_PADDINGS, Type.INT64, list(params["post_padding"])),
            (Attr.CONVOLUTION_FILTER_STRIDES, Type.INT64, list(params["stride"])),
            (Attr.CONVOLUTION_DILATIONS, Type.INT64, list(params["dilation"])),
        ],
    )


def _conv_fprop(step: Step) -> tuple[int, Attributes]:
    return Desc.OPERATION_CONVOLUTION_FORWARD, [
        (Attr.OPERATION_CONVOLUTION_FORWARD_CONV_DESC, _D, _convolution_helper(step)),
        *_input(step, Attr.OPERATION_CONVOLUTION_FORWARD_X, "X"),
        *_input(step, Attr.OPERATION_CONVOLUTION_FORWARD_W, "W"),
        *_output(step, Attr.OPERATION_CONVOLUTION_FORWARD_Y, "Y"),
        (Attr.OPERATION_CONVOLUTION_FORWARD_ALPHA, _real(step), 1.0),
        (Attr.OPERATION_CONVOLUTION_FORWARD_BETA, _real(step), 0.0),
    ]


def _conv_dgrad(step: Step) -> tuple[int, Attributes]:
    return Desc.OPERATION_CONVOLUTION_BACKWARD_DATA, [
        (Attr.OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, _D, _convolution_helper(step)),
        *_input(step, Attr.OPERATION_CONVOLUTION_BWD_DATA_W, "W"),
        *_output(step, Attr.OPERATION_CONVOLUTION_BWD_DATA_DX, "DX"),
        *_input(step, Attr.OPERATION_CONVOLUTION_BWD_DATA_DY, "DY"),
        (Attr.OPERATION_CONVOLUTION_BWD_DATA_ALPHA, _real(step), 1.0),
        (Attr.OPERATION_CONVOLUTION_BWD_DATA_BETA, _real(step), 0.0),
    ]


def _conv_wgrad(step: Step) -> tuple[int, Attributes]:
    return Desc.OPERATION_CONVOLUTION_BACKWARD_FILTER, [
        (Attr.OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, _D, _convolution_helper(step)),
        *_output(step, Attr.OPERATION_CONVOLUTION_BWD_FILTER_DW, "DW"),
        *_input(step, Attr.OPERATION_CONVOLUTION_BWD_FILTER_X, "X"),
        *_input(step, Attr.OPERATION_CONVOLUTION_BWD_FILTER_DY, "DY"),
        (Attr.OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, _real(step), 1.0),
        (Attr.OPERATION_CONVOLUTION_BWD_FILTER_BETA, _real(step), 0.0),
    ]


def _genstats(step: Step) -> tuple[int, Attributes]:
    return Desc.OPERATION_GEN_STATS, [
        (Attr.OPERATION_GENSTATS_MODE, Type.GENSTATS_MODE, Misc.GENSTATS_SUM_SQSUM),
        _compute(step, Attr.OPERATION_GENSTATS_MATH_PREC),
        *_input(step, Attr.OPERATION_GENSTATS_XDESC, "X"),
        *_output(step, Attr.OPERATION_GENSTATS_SUMDESC, "SUM"),
        *_output(step, Attr.OPERATION_GENSTATS_SQSUMDESC, "SQ_SUM"),
    ]


def _reduction(step: Step) -> tuple[int, Attributes]:
    helper = _helper(
        step,
        Desc.REDUCTION,
        [
            (Attr.REDUCTION_OPERATOR, Type.REDUCTION_OPERATOR_TYPE, REDUCTION[step.params["mode"]]),
            _compute(step, Attr.REDUCTION_COMP_TYPE),
        ],
    )
    return Desc.OPERATION_REDUCTION, [
        *_input(step, Attr.OPERATION_REDUCTION_XDESC, "IN_0"),
        *_output(step, Attr.OPERATION_REDUCTION_YDESC, "OUT_0"),
        (Attr.OPERATION_REDUCTION_DESC, _D, helper),
        *_input(step, Attr.OPERATION_REDUCTION_GROUP_OFFSET_DESC, "GROUP_OFFSET"),
    ]


_NORMS = {
    NodeType.LAYERNORM: Norm.LAYER,
    NodeType.INSTANCENORM: Norm.INSTANCE,
    NodeType.BATCHNORM: Norm.BATCH,
    NodeType.BATCHNORM_INFERENCE: Norm.BATCH,
    NodeType.RMSNORM: Norm.RMS,
    NodeType.ADALAYERNORM: Norm.ADA_LAYER,
    NodeType.LAYERNORM_BWD: Norm.LAYER,
    NodeType.INSTANCENORM_BWD: Norm.INSTANCE,
    NodeType.BATCHNORM_BWD: Norm.BATCH,
    NodeType.RMSNORM_BWD: Norm.RMS,
    NodeType.ADALAYERNORM_BWD: Norm.ADA_LAYER,
}


def _peers(step: Step, attribute: int) -> Attributes:
    ports = [port for port in step.inputs if port.startswith("PEER_STAT_")]
    return [(attribute, _D, [Ref(step.inputs[port].uid) for port in ports])] if ports else []


def _norm_forward(step: Step) -> tuple[int, Attributes]:
    if step.kind is NodeType.BATCHNORM_INFERENCE:
        phase = NormPhase.INFERENCE
        statistics = [
            *_input(step, Attr.OPERATION_NORM_FWD_MEAN_DESC, "MEAN"),
            *_input(step, Attr.OPERATION_NORM_FWD_INV_VARIANCE_DESC, "INV_VARIANCE"),
        ]
    else:
        phase = NormPhase.TRAINING if step.kind is NodeType.BATCHNORM else NORM_PHASE[step.params["norm_forward_phase"]]
        statistics = [
            *_output(step, Attr.OPERATION_NORM_FWD_MEAN_DESC, "MEAN"),
            *_output(step, Attr.OPERATION_NORM_FWD_INV_VARIANCE_DESC, "INV_VARIANCE"),
        ]
    return Desc.OPERATION_NORM_FORWARD, [
        (Attr.OPERATION_NORM_FWD_MODE, Type.NORM_MODE, _NORMS[step.kind]),
        (Attr.OPERATION_NORM_FWD_PHASE, Type.NORM_FWD_PHASE, phase),
        *_input(step, Attr.OPERATION_NORM_FWD_XDESC, "X"),
        *statistics,
        *_input(step, Attr.OPERATION_NORM_FWD_SCALE_DESC, "SCALE"),
        *_input(step, Attr.OPERATION_NORM_FWD_BIAS_DESC, "BIAS"),
        *_input(step, Attr.OPERATION_NORM_FWD_EPSILON_DESC, "EPSILON"),
        *_input(step, Attr.OPERATION_NORM_FWD_EXP_AVG_FACTOR_DESC, "MOMENTUM"),
        *_input(step, Attr.OPERATION_NORM_FWD_INPUT_RUNNING_MEAN_DESC, "IN_RUNNING_MEAN"),
        *_input(step, Attr.OPERATION_NORM_FWD_INPUT_RUNNING_VAR_DESC, "IN_RUNNING_VAR"),
        *_output(step, Attr.OPERATION_NORM_FWD_OUTPUT_RUNNING_MEAN_DESC, "NEXT_RUNNING_MEAN"),
        *_output(step, Attr.OPERATION_NORM_FWD_OUTPUT_RUNNING_VAR_DESC, "NEXT_RUNNING_VAR"),
        *_output(step, Attr.OPERATION_NORM_FWD_YDESC, "Y"),
        *_peers(step, Attr.OPERATION_NORM_FWD_PEER_STAT_DESCS),
    ]


def _norm_backward(step: Step) -> tuple[int, Attributes]:
    return Desc.OPERATION_NORM_BACKWARD, [
        (Attr.OPERATION_NORM_BWD_MODE, Type.NORM_MODE, _NORMS[step.kind]),
        *_input(step, Attr.OPERATION_NORM_BWD_XDESC, "X"),
        *_input(step, Attr.OPERATION_NORM_BWD_MEAN_DESC, "MEAN"),
        *_input(step, Attr.OPERATION_NORM_BWD_INV_VARIANCE_DESC, "INV_VARIANCE"),
        *_input(step, Attr.OPERATION_NORM_BWD_DYDESC, "DY"),
        *_input(step, Attr.OPERATION_NORM_BWD_SCALE_DESC, "SCALE"),
        *_input(step, Attr.OPERATION_NORM_BWD_EPSILON_DESC, "EPSILON"),
        *(_output(step, Attr.OPERATION_NORM_BWD_DSCALE_DESC, "DSCALE") or _output(step, Attr.OPERATION_NORM_BWD_DSCALE_DESC, "Dscale")),
        *(_output(step, Attr.OPERATION_NORM_BWD_DBIAS_DESC, "DBIAS") or _output(step, Attr.OPERATION_NORM_BWD_DBIAS_DESC, "Dbias")),
        *_output(step, Attr.OPERATION_NORM_BWD_DXDESC, "DX"),
        *_peers(step, Attr.OPERATION_NORM_BWD_PEER_STAT_DESCS),
    ]


def _reshape(step: Step) -> tuple[int, Attributes]:
    attributes = [*_input(step, Attr.OPERATION_RESHAPE_XDESC, "IN_0"), *_output(step, Attr.OPERATION_RESHAPE_YDESC, "OUT_0")]
    # The attribute exists from 9.22 on; older libraries only know views.
    if step.params["reshape_mode"] is not reshape_mode.VIEW_ONLY:
        attributes.append((Attr.OPERATION_RESHAPE_MODE, Type.RESHAPE_MODE, RESHAPE[step.params["reshape_mode"]]))
    return Desc.OPERATION_RESHAPE, attributes


def _transpose(step: Step) -> tuple[int, Attributes]:
    return Desc.OPERATION_TRANSPOSE, [
        *_input(step, Attr.OPERATION_TRANSPOSE_XDESC, "IN_0"),
        *_output(step, Attr.OPERATION_TRANSPOSE_YDESC, "OUT_0"),
        (Attr.OPERATION_TRANSPOSE_PERMUTATION, Type.INT64, list(step.params["permutation"])),
    ]


def _slice(step: Step) -> tuple[int, Attributes]:
    return Desc.OPERATION_SLICE, [
        *_input(step, Attr.OPERATION_SLICE_XDESC, "IN_0"),
        *_output(step, Attr.OPERATION_SLICE_YDESC, "OUT_0"),
        (Attr.OPERATION_SLICE_START_INDICES, Type.INT64, list(step.params["start"])),
        (Attr.OPERATION_SLICE_LIMIT_INDICES, Type.INT64, list(step.params["limit"])),
        (Attr.OPERATION_SLICE_STRIDES, Type.INT64, list(step.params["step"])),
    ]


def _concatenate(step: Step) -> tuple[int, Attributes]:
    attributes: Attributes = [
        (Attr.OPERATION_CONCAT_AXIS, Type.INT64, step.params["axis"]),
        (Attr.OPERATION_CONCAT_INPUT_DESCS, _D, [Ref(value.uid) for value in step.inputs.values()]),
    ]
    if step.params.get("in_place_index") is not None:
        attributes.append((Attr.OPERATION_CONCAT_INPLACE_INDEX, Type.INT64, step.params["in_place_index"]))
    return Desc.OPERATION_CONCAT, [*attributes, *_output(step, Attr.OPERATION_CONCAT_OUTPUT_DESC, "OUT_0")]


def _quantize(step: Step) -> tuple[int, Attributes]:
    return Desc.OPERATION_BLOCK_SCALE_QUANTIZE, [
        *_input(step, Attr.OPERATION_BLOCK_SCALE_QUANTIZE_XDESC, "IN_0"),
        *_output(step, Attr.OPERATION_BLOCK_SCALE_QUANTIZE_YDESC, "Y"),
        *_output(step, Attr.OPERATION_BLOCK_SCALE_QUANTIZE_SCALE_DESC, "scale"),
        _compute(step, Attr.OPERATION_BLOCK_SCALE_QUANTIZE_MATH_PREC),
        (Attr.OPERATION_BLOCK_SCALE_QUANTIZE_BLOCK_SIZE, Type.INT32, step.params["block_size"]),
    ]


def _dequantize(step: Step) -> tuple[int, Attributes]:
    attributes: Attributes = [
        *_input(step, Attr.OPERATION_BLOCK_SCALE_DEQUANTIZE_XDESC, "IN_0"),
        *_input(step, Attr.OPERATION_BLOCK_SCALE_DEQUANTIZE_SCALE_DESC, "DESCALE"),
        *_output(step, Attr.OPERATION_BLOCK_SCALE_DEQUANTIZE_YDESC, "OUT_0"),
        _compute(step, Attr.OPERATION_BLOCK_SCALE_DEQUANTIZE_MATH_PREC),
        (Attr.OPERATION_BLOCK_SCALE_DEQUANTIZE_BLOCK_SIZE, Type.INT32, list(step.params["block_size"])[-2:]),
    ]
    if step.params.get("is_negative_scale"):
        attributes.append((Attr.OPERATION_BLOCK_SCALE_DEQUANTIZE_NEG_SCALE, Type.BOOLEAN, True))
    return Desc.OPERATION_BLOCK_SCALE_DEQUANTIZE, attributes


def _moe(step: Step) -> tuple[int, Attributes]:
    attributes: Attributes = [
        (Attr.OPERATION_MOE_GROUPED_MATMUL_MODE, Type.MOE_GROUPED_MATMUL_MODE, MOE[step.params["mode"]]),
        _compute(step, Attr.OPERATION_MOE_GROUPED_MATMUL_MATH_PREC),
        *_input(step, Attr.OPERATION_MOE_GROUPED_MATMUL_TOKEN_DESC, "TOKEN"),
        *_input(step, Attr.OPERATION_MOE_GROUPED_MATMUL_WEIGHT_DESC, "WEIGHT"),
        *_input(step, Attr.OPERATION_MOE_GROUPED_MATMUL_FIRST_TOKEN_OFFSET_DESC, "FIRST_TOKEN_OFFSET"),
        *_output(step, Attr.OPERATION_MOE_GROUPED_MATMUL_OUTPUT_DESC, "OUT_0"),
        *_input(step, Attr.OPERATION_MOE_GROUPED_MATMUL_TOKEN_INDEX_DESC, "TOKEN_INDEX"),
        *_input(step, Attr.OPERATION_MOE_GROUPED_MATMUL_TOKEN_KS_DESC, "TOKEN_KS"),
    ]
    if step.params.get("top_k"):
        attributes.append((Attr.OPERATION_MOE_GROUPED_MATMUL_TOP_K, Type.INT32, step.params["top_k"]))
    return Desc.OPERATION_MOE_GROUPED_MATMUL, attributes


def _moe_backward(step: Step) -> tuple[int, Attributes]:
    return Desc.OPERATION_MOE_GROUPED_MATMUL_BWD, [
        _compute(step, Attr.OPERATION_MOE_GROUPED_MATMUL_BWD_MATH_PREC),
        *_input(step, Attr.OPERATION_MOE_GROUPED_MATMUL_BWD_TOKEN_DESC, "TOKEN"),
        *_output(step, Attr.OPERATION_MOE_GROUPED_MATMUL_BWD_DWEIGHT_DESC, "dweight"),
        *_input(step, Attr.OPERATION_MOE_GROUPED_MATMUL_BWD_FIRST_TOKEN_OFFSET_DESC, "FIRST_TOKEN_OFFSET"),
        *_input(step, Attr.OPERATION_MOE_GROUPED_MATMUL_BWD_DOUTPUT_DESC, "DOUTPUT"),
    ]


_MAKERS: dict[NodeType, Callable[[Step], tuple[int, Attributes]]] = {
    NodeType.POINTWISE: _pointwise,
    NodeType.MATMUL: _matmul,
    NodeType.CONV_FPROP: _conv_fprop,
    NodeType.CONV_DGRAD: _conv_dgrad,
    NodeType.CONV_WGRAD: _conv_wgrad,
    NodeType.GENSTATS: _genstats,
    NodeType.REDUCTION: _reduction,
    NodeType.RMSNORM: _norm_forward,
    NodeType.LAYERNORM: _norm_forward,
    NodeType.ADALAYERNORM: _norm_forward,
    NodeType.INSTANCENORM: _norm_forward,
    NodeType.BATCHNORM: _norm_forward,
    NodeType.BATCHNORM_INFERENCE: _norm_forward,
    NodeType.RMSNORM_BWD: _norm_backward,
    NodeType.LAYERNORM_BWD: _norm_backward,
    NodeType.ADALAYERNORM_BWD: _norm_backward,
    NodeType.INSTANCENORM_BWD: _norm_backward,
    NodeType.BATCHNORM_BWD: _norm_backward,
    NodeType.RESHAPE: _reshape,
    NodeType.TRANSPOSE: _transpose,
    NodeType.SLICE: _slice,
    NodeType.CONCATENATE: _concatenate,
    NodeType.BLOCK_SCALE_QUANTIZE: _quantize,
    NodeType.BLOCK_SCALE_DEQUANTIZE: _dequantize,
    NodeType.MOE_GROUPED_MATMUL: _moe,
    NodeType.MOE_GROUPED_MATMUL_BWD: _moe_backward,
}
