"""Normalization node methods, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cudnn_graph.builders.base import BuilderBase, positional_orders
from cudnn_graph.enums import norm_forward_phase as phase_type
from cudnn_graph.nodes import NodeType
from cudnn_graph.tensor import Tensor

_FORWARD_ORDERS = ("norm_forward_phase input scale bias epsilon", "input scale bias epsilon norm_forward_phase")


def _check_phase(op: str, phase: Any) -> phase_type:
    if not isinstance(phase, phase_type):
        raise TypeError(f"{op}(): norm_forward_phase must be a cudnn.norm_forward_phase, got {phase!r}")
    if phase is phase_type.NOT_SET:
        raise ValueError(f"{op}(): norm_forward_phase must be INFERENCE or TRAINING, got NOT_SET")
    return phase


class NormMethods(BuilderBase):
    """The normalization methods of :class:`cudnn.pygraph`.

    ``epsilon`` and ``momentum`` are pass-by-value FLOAT tensors of dims [1, 1, 1, 1], or Python numbers.
    """

    def _norm(self, op: str, node_type: NodeType, phase: Any, inputs: dict[str, Any], optional: Sequence[str], stats: Sequence[str], **keywords: Any) -> list:
        phase = _check_phase(op, phase)
        training = phase is phase_type.TRAINING
        outputs = ["Y", *(stats if training else ())]
        made = self._add_node(op, node_type, inputs, outputs, params={"norm_forward_phase": phase}, optional=optional, **keywords)
        return made if training else [made[0], *(None for _ in stats)]

    def _norm_backward(self, op: str, node_type: NodeType, inputs: dict[str, Any], optional: Sequence[str], **keywords: Any) -> list:
        names = ["DSCALE", "DBIAS"] if inputs["SCALE"] is not None else []
        made = self._add_node(op, node_type, inputs, ["DX", *names], optional=optional, **keywords)
        return made if names else [made[0], None, None]

    @positional_orders(*_FORWARD_ORDERS)
    def rmsnorm(
        self,
        norm_forward_phase: phase_type,
        input: Any,
        scale: Any = None,
        bias: Any = None,
        epsilon: Any = None,
        *,
        name: str = "",
        compute_data_type: Any = None,
        out_dims: Any = None,
    ) -> list[Tensor | None]:
        """[Y, inv_var]: Y = input * inv_var * scale + bias, inv_var = 1 / sqrt(mean(input²) + epsilon) (None in INFERENCE).

        The mean goes over the axes where the scale's extent is not 1; without a scale over all but axis 0.
        """
        return self._norm(
            "rmsnorm",
            NodeType.RMSNORM,
            norm_forward_phase,
            {"X": input, "SCALE": scale, "BIAS": bias, "EPSILON": epsilon},
            ["SCALE", "BIAS"],
            ["INV_VARIANCE"],
            name=name,
            compute_data_type=compute_data_type,
            out_dims=out_dims,
        )

    @positional_orders("grad input scale inv_variance has_dbias")
    def rmsnorm_backward(
        self,
        grad: Any,
        input: Any,
        scale: Any = None,
        inv_variance: Any = None,
        has_dbias: bool = True,
        *,
        name: str = "",
        compute_data_type: Any = None,
        out_dims: Any = None,
    ) -> list[Tensor | None]:
        """[DX, DScale, DBias] of :meth:`rmsnorm`; DScale and DBias are None without a scale, DBias without ``has_dbias``."""
        if not isinstance(has_dbias, bool):
            raise TypeError(f"rmsnorm_backward(): has_dbias must be a bool, got {has_dbias!r}")
        outputs = ["DX"]
        if scale is not None:
            outputs += ["Dscale", "Dbias"] if has_dbias else ["Dscale"]
        made = self._add_node(
            "rmsnorm_backward",
            NodeType.RMSNORM_BWD,
            {"DY": grad, "X": input, "SCALE": scale, "INV_VARIANCE": inv_variance},
            outputs,
            params={"has_dbias": has_dbias},
            optional=["SCALE"],
            name=name,
            compute_data_type=compute_data_type,
            out_dims=out_dims,
        )
        return [*made, *(None for _ in range(3 - len(made)))]

    @positional_orders(*_FORWARD_ORDERS)
    def layernorm(
        self,
        norm_forward_phase: phase_type,
        input: Any,
        scale: Any = None,
        bias: Any = None,
        epsilon: Any = None,
        *,
        name: str = "",
        compute_data_type: Any = None,
        out_dims: Any = None,
    ) -> list[Tensor | None]:
        """[Y, mean, inv_var]: Y = (input - mean) * inv_var * scale + bias, inv_var = 1 / sqrt(variance + epsilon); the statistics are None in INFERENCE.

        The statistics go over the axes where the scale's extent is not 1; without a scale over all but axis 0.
        """
        return self._norm(
            "layernorm",
            NodeType.LAYERNORM,
            norm_forward_phase,
            {"X": input, "SCALE": scale, "BIAS": bias, "EPSILON": epsilon},
            ["SCALE", "BIAS"],
            ["MEAN", "INV_VARIANCE"],
            name=name,
            compute_data_type=compute_data_type,
            out_dims=out_dims,
        )

    @positional_orders("grad input scale mean inv_variance")
    def layernorm_backward(
        self,
        grad: Any,
        input: Any,
        scale: Any = None,
        mean: Any = None,
        inv_variance: Any = None,
        *,
        name: str = "",
        compute_data_type: Any = None,
        out_dims: Any = None,
    ) -> list[Tensor | None]:
        """[DX, DScale, DBias] of :meth:`layernorm`; DScale and DBias are None without a scale."""
        inputs = {"DY": grad, "X": input, "SCALE": scale, "MEAN": mean, "INV_VARIANCE": inv_variance}
        return self._norm_backward(
            "layernorm_backward", NodeType.LAYERNORM_BWD, inputs, ["SCALE"], name=name, compute_data_type=compute_data_type, out_dims=out_dims
        )

    @positional_orders(*_FORWARD_ORDERS)
    def adalayernorm(
        self,
        norm_forward_phase: phase_type,
        input: Any,
        scale: Any,
        bias: Any = None,
        epsilon: Any = None,
        *,
        name: str = "",
        compute_data_type: Any = None,
        out_dims: Any = None,
    ) -> list[Tensor | None]:
        """:meth:`layernorm` with a scale and bias of their own for every sample (extent of axis 0 as the input's)."""
        return self._norm(
            "adalayernorm",
            NodeType.ADALAYERNORM,
            norm_forward_phase,
            {"X": input, "SCALE": scale, "BIAS": bias, "EPSILON": epsilon},
            ["BIAS"],
            ["MEAN", "INV_VARIANCE"],
            name=name,
            compute_data_type=compute_data_type,
            out_dims=out_dims,
        )

    @positional_orders("grad input scale mean inv_variance")
    def adalayernorm_backward(
        self,
        grad: Any,
        input: Any,
        scale: Any,
        mean: Any = None,
        inv_variance: Any = None,
        *,
        name: str = "",
        compute_data_type: Any = None,
        out_dims: Any = None,
    ) -> list[Tensor | None]:
        """[DX, DScale, DBias] of :meth:`adalayernorm`."""
        inputs = {"DY": grad, "X": input, "SCALE": scale, "MEAN": mean, "INV_VARIANCE": inv_variance}
        return self._norm_backward(
            "adalayernorm_backward", NodeType.ADALAYERNORM_BWD, inputs, (), name=name, compute_data_type=compute_data_type, out_dims=out_dims
        )

    @positional_orders(*_FORWARD_ORDERS)
    def instancenorm(
        self,
        norm_forward_phase: phase_type,
        input: Any,
        scale: Any,
        bias: Any,
        epsilon: Any,
        *,
        name: str = "",
        compute_data_type: Any = None,
        out_dims: Any = None,
    ) -> list[Tensor | None]:
        """[Y, mean, inv_var] as :meth:`layernorm`, with statistics over the spatial axes: [N, C, 1...]. Scale and bias are [1, C, 1...]."""
        return self._norm(
            "instancenorm",
            NodeType.INSTANCENORM,
            norm_forward_phase,
            {"X": input, "SCALE": scale, "BIAS": bias, "EPSILON": epsilon},
            (),
            ["MEAN", "INV_VARIANCE"],
            name=name,
            compute_data_type=compute_data_type,
            out_dims=out_dims,
        )

    @positional_orders("grad input scale mean inv_variance")
    def instancenorm_backward(
        self,
        grad: Any,
        input: Any,
        scale: Any,
        mean: Any = None,
        inv_variance: Any = None,
        *,
        name: str = "",
        compute_data_type: Any = None,
        out_dims: Any = None,
    ) -> list[Tensor]:
        """[DX, DScale, DBias] of :meth:`instancenorm`."""
        inputs = {"DY": grad, "X": input, "SCALE": scale, "MEAN": mean, "INV_VARIANCE": inv_variance}
        return self._norm_backward(
            "instancenorm_backward",
            NodeType.INSTANCENORM_BWD,
            inputs,
            ["MEAN", "INV_VARIANCE"],
            name=name,
            compute_data_type=compute_data_type,
            out_dims=out_dims,
        )

    @positional_orders("input scale bias in_running_mean in_running_var epsilon momentum peer_stats")
    def batchnorm(
        self,
        input: Any,
        scale: Any,
        bias: Any,
        in_running_mean: Any = None,
        in_running_var: Any = None,
        epsilon: Any = None,
        momentum: Any = None,
        peer_stats: Sequence[Any] = (),
        *,
        name: str = "",
        compute_data_type: Any = None,
        out_dims: Any = None,
    ) -> list[Tensor | None]:
        """[Y, mean, inv_var, next_running_mean, next_running_var] for training; statistics per channel, FLOAT [1, C, 1...].

        next_running = (1 - momentum) * running + momentum * batch statistic (the unbiased variance). The last two are None without running inputs.
        """
        running = [in_running_mean is not None, in_running_var is not None]
        if any(running) != all(running):
            raise TypeError("batchnorm() needs both in_running_mean and in_running_var, or neither")
        if any(running) and momentum is None:
            raise TypeError("batchnorm() needs momentum to update the running statistics")
        inputs = {
            "X": input,
            "SCALE": scale,
            "BIAS": bias,
            "IN_RUNNING_MEAN": in_running_mean,
            "IN_RUNNING_VAR": in_running_var,
            "EPSILON": epsilon,
            "MOMENTUM": momentum,
            **{f"PEER_STAT_{i}": peer for i, peer in enumerate(peer_stats)},
        }
        outputs = ["Y", "MEAN", "INV_VARIANCE", *(["NEXT_RUNNING_MEAN", "NEXT_RUNNING_VAR"] if any(running) else [])]
        made = self._add_node(
            "batchnorm",
            NodeType.BATCHNORM,
            inputs,
            outputs,
            optional=["IN_RUNNING_MEAN", "IN_RUNNING_VAR", "MOMENTUM"],
            name=name,
            compute_data_type=compute_data_type,
            out_dims=out_dims,
        )
        return [*made, *(None for _ in range(5 - len(made)))]

    @positional_orders("input mean inv_variance scale bias")
    def batchnorm_inference(
        self, input: Any, mean: Any, inv_variance: Any, scale: Any, bias: Any, *, name: str = "", compute_data_type: Any = None, out_dims: Any = None
    ) -> Tensor:
        """Y = (input - mean) * inv_variance * scale + bias, all per channel."""
        inputs = {"X": input, "MEAN": mean, "INV_VARIANCE": inv_variance, "SCALE": scale, "BIAS": bias}
        return self._add_node(
            "batchnorm_inference",
            NodeType.BATCHNORM_INFERENCE,
            inputs,
            ["Y"],
            name=name,
            compute_data_type=compute_data_type,
            out_dims=out_dims,
        )[0]

    @positional_orders("grad input scale mean inv_variance peer_stats")
    def batchnorm_backward(
        self,
        grad: Any,
        input: Any,
        scale: Any,
        mean: Any,
        inv_variance: Any,
        peer_stats: Sequence[Any] = (),
        *,
        name: str = "",
        compute_data_type: Any = None,
        out_dims: Any = None,
    ) -> list[Tensor]:
        """[DX, DScale, DBias] of :meth:`batchnorm`."""
        inputs = {
            "DY": grad,
            "X": input,
            "SCALE": scale,
            "MEAN": mean,
            "INV_VARIANCE": inv_variance,
            **{f"PEER_STAT_{i}": peer for i, peer in enumerate(peer_stats)},
        }
        return self._norm_backward("batchnorm_backward", NodeType.BATCHNORM_BWD, inputs, (), name=name, compute_data_type=compute_data_type, out_dims=out_dims)
