"""`cudnn.torch.SwigluMLP`: the feed-forward layer of Llama and its relatives as a module."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from cudnn_gemm_dense.mlp.ops import swiglu_mlp

__all__ = ["SwigluMLP"]


class SwigluMLP(nn.Module):
    """out = down_proj(up_proj(x) * silu(gate_proj(x))), computed by `cudnn.gemm.ops.swiglu_mlp`.

    Parameters have the names and shapes of Llama's own layer (``gate_proj.weight`` and ``up_proj.weight`` (I, H), ``down_proj.weight`` (H, I)), so checkpoints load as they are. The three projections
    are ``torch.nn.Linear`` modules that hold the weights; their own forward is not called.

    Args:
        hidden: H, features of the input and of the output; a multiple of 8.
        intermediate: I, features in between; a multiple of 8.
        device, dtype: of the parameters, as for ``torch.nn.Linear``. The layer computes in bfloat16 or float16: parameters of another dtype need torch.autocast.

    Raises:
        ValueError: ``hidden`` or ``intermediate`` is no positive multiple of 8.
    """

    def __init__(self, hidden: int, intermediate: int, *, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        for name, extent in (("hidden", hidden), ("intermediate", intermediate)):
            if extent <= 0 or extent % 8:
                raise ValueError(f"SwigluMLP: {name} is {extent}, needs a positive multiple of 8")
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False, device=device, dtype=dtype)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False, device=device, dtype=dtype)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False, device=device, dtype=dtype)

    @classmethod
    def from_linears(cls, gate_proj: nn.Linear, up_proj: nn.Linear, down_proj: nn.Linear) -> SwigluMLP:
        """A layer around the weights of three linear modules, which it shares: nothing is copied, and an optimizer that has them goes on.

        Raises:
            ValueError: a module has a bias, or the shapes do not fit each other.
        """
        for name, linear in (("gate_proj", gate_proj), ("up_proj", up_proj), ("down_proj", down_proj)):
            if linear.bias is not None:
                raise ValueError(f"SwigluMLP.from_linears: {name} has a bias, needs bias=False")
        hidden, intermediate = gate_proj.in_features, gate_proj.out_features
        found = (up_proj.in_features, up_proj.out_features, down_proj.in_features, down_proj.out_features)
        if found != (hidden, intermediate, intermediate, hidden):
            raise ValueError(
                f"SwigluMLP.from_linears: up_proj is {found[0]} -> {found[1]} and down_proj {found[2]} -> {found[3]}, needs {hidden} -> {intermediate} and "
                f"{intermediate} -> {hidden} beside a gate_proj of {hidden} -> {intermediate}"
            )
        layer = cls(hidden, intermediate, device="meta")
        layer.gate_proj, layer.up_proj, layer.down_proj = gate_proj, up_proj, down_proj
        layer.train(gate_proj.training)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        """(..., H) from (..., H)."""
        return swiglu_mlp(x, self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight)

    def extra_repr(self) -> str:
        return f"hidden={self.gate_proj.in_features}, intermediate={self.gate_proj.out_features}"
