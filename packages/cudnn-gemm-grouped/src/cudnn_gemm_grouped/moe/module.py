"""`cudnn.torch.GroupedSwigluMLP`: the experts of a mixture as a module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cudnn.grouped.checks import MAX_EXPERTS
from cudnn.reference import GROUPED_GLU_LAYOUTS
from cudnn_gemm_grouped.moe.checks import DEFAULT_SCALARS, check_activation
from cudnn_gemm_grouped.moe.layer import moe_mlp

__all__ = ["GroupedSwigluMLP"]

OFFSET, ALPHA, HIGH, LOW = DEFAULT_SCALARS


class GroupedSwigluMLP(nn.Module):
    """The gated feed-forward layers of E experts, computed by `cudnn.ops.moe_mlp`.

    Parameters, with their weights stored as (E, features, inputs) or with ``transposed`` as (E, inputs, features):

    - ``gate_up_proj`` (E, 2 I, H) in the order that ``glu_layout`` names, or with ``"separate"`` ``gate_proj`` and ``up_proj`` (E, I, H);
    - ``down_proj`` (E, H, I);
    - with ``bias`` ``gate_up_proj_bias`` (E, 2 I), [gate | up] where the weights are separate, and ``down_proj_bias`` (E, H).

    The names are those of the experts in Hugging Face transformers, so their state dicts load as they are. The layer computes in bfloat16 or float16: parameters of another dtype need torch.autocast. It works under
    torch.compile with any number of tokens, in activation checkpointing, and with ``fully_shard``.

    Args:
        num_experts: E, from 1 to 1024.
        hidden: H, features of the input and of the output; a multiple of 8.
        intermediate: I, features in between; a multiple of 8, with ``glu_layout="interleaved32"`` of 32.
        glu_layout: ``"concatenated"``, ``"interleaved32"``, ``"alternating"`` or ``"separate"``, see `cudnn.ops.grouped_gemm_glu`.
        transposed: whether weights are stored with their inputs as rows.
        bias: whether there are biases.
        act_func: ``"swiglu"`` or ``"geglu"``.
        linear_offset, geglu_alpha, glu_clamp_max, glu_clamp_min: of geglu.
        device, dtype: of the parameters.

    Raises:
        ValueError: an extent, layout or activation that the kernels do not take.
    """

    gate_up_proj_bias: nn.Parameter | None
    down_proj_bias: nn.Parameter | None

    def __init__(
        self,
        num_experts: int,
        hidden: int,
        intermediate: int,
        *,
        glu_layout: str = "concatenated",
        transposed: bool = False,
        bias: bool = False,
        act_func: str = "swiglu",
        linear_offset: float = OFFSET,
        geglu_alpha: float = ALPHA,
        glu_clamp_max: float = HIGH,
        glu_clamp_min: float = LOW,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if glu_layout not in GROUPED_GLU_LAYOUTS:
            raise ValueError(f"GroupedSwigluMLP: glu_layout is {glu_layout!r}, needs one of {', '.join(map(repr, GROUPED_GLU_LAYOUTS))}")
        step = 32 if glu_layout == "interleaved32" else 8
        for name, extent, unit in (("hidden", hidden, 8), ("intermediate", intermediate, step)):
            if extent <= 0 or extent % unit:
                raise ValueError(f"GroupedSwigluMLP: {name} is {extent}, needs a positive multiple of {unit}")
        if not 1 <= num_experts <= MAX_EXPERTS:
            raise ValueError(f"GroupedSwigluMLP: num_experts is {num_experts}, needs 1 to {MAX_EXPERTS}")
        self.num_experts, self.hidden, self.intermediate = num_experts, hidden, intermediate
        self.glu_layout, self.transposed, self.act_func = glu_layout, bool(transposed), act_func
        self.scalars = tuple(check_activation("GroupedSwigluMLP", act_func, (linear_offset, geglu_alpha, glu_clamp_max, glu_clamp_min)))

        def weight(features: int, inputs: int) -> nn.Parameter:
            shape = (inputs, features) if transposed else (features, inputs)
            return nn.Parameter(torch.empty(num_experts, *shape, device=device, dtype=dtype))

        if glu_layout == "separate":
            self.gate_proj, self.up_proj = weight(intermediate, hidden), weight(intermediate, hidden)
        else:
            self.gate_up_proj = weight(2 * intermediate, hidden)
        self.down_proj = weight(hidden, intermediate)
        for name, features in (("gate_up_proj_bias", 2 * intermediate), ("down_proj_bias", hidden)):
            self.register_parameter(name, nn.Parameter(torch.empty(num_experts, features, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As ``torch.nn.Linear`` begins: uniform between the inverse roots of the number of inputs."""
        for name, parameter in self.named_parameters():
            bound = (self.intermediate if name.startswith("down") else self.hidden) ** -0.5
            nn.init.uniform_(parameter, -bound, bound)

    def forward(
        self,
        x: Tensor,
        top_k_index: Tensor | None = None,
        top_k_weights: Tensor | None = None,
        *,
        offsets: Tensor | None = None,
        prob: Tensor | None = None,
        deterministic: bool | None = None,
    ) -> Tensor:
        """(..., H) from x (..., H) and the choice of each token, ``top_k_index`` and ``top_k_weights`` (..., k); or (S, H) from rows sorted by expert with ``offsets`` (E,), the ends of the groups, and ``prob`` (S,)."""
        offset, alpha, high, low = self.scalars
        return moe_mlp(
            x,
            (self.gate_proj, self.up_proj) if self.glu_layout == "separate" else self.gate_up_proj,
            self.down_proj,
            top_k_index=top_k_index,
            top_k_weights=top_k_weights,
            offsets=offsets,
            prob=prob,
            gate_up_bias=self.gate_up_proj_bias,
            down_bias=self.down_proj_bias,
            act_func=self.act_func,
            glu_layout=self.glu_layout,
            transposed=self.transposed,
            linear_offset=offset,
            geglu_alpha=alpha,
            glu_clamp_max=high,
            glu_clamp_min=low,
            deterministic=deterministic,
        )

    def extra_repr(self) -> str:
        form = f"glu_layout={self.glu_layout!r}, transposed={self.transposed}, act_func={self.act_func!r}"
        return f"num_experts={self.num_experts}, hidden={self.hidden}, intermediate={self.intermediate}, {form}"
