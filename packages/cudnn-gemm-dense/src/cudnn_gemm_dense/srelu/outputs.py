"""What GEMM + squared ReLU and its gradient have in common behind their product: D in a plain dtype or quantised with scale factors, and amax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn.block_scale import ScaleLayout, format_of
from cudnn.datatypes import dtype_name
from cudnn.gemm_layout import GemmLayout, Rule
from cudnn.gemm_operation import sample_metadata
from cudnn.gemm_scratch import dense_bytes
from cudnn.reference import cast, merge_amax, quantize_blocks
from cudnn.wrapper_calls import Arguments, Output
from cudnn_gemm_dense.operation import DenseOperation
from cudnn_gemm_dense.scale_factors import FP8, amax_output, read_scales, sfd_output


class SquaredReluOperation(DenseOperation):
    """``sfa``, ``sfb``, ``sfd``, ``norm_const``: the samples of the block-scaled mode. An fp8 D is quantised; any other leaves SFD and norm_const alone."""

    def __init__(self, rules: list[Rule], samples: list[tuple[str, Any]], scales: Mapping[str, Any], sf_vec_size: int, **options: Any) -> None:
        name = type(self).__name__
        self._scales = read_scales(name, scales)
        sfd, norm_const = scales["sfd_tensor"], scales["norm_const_tensor"]
        d = next(t for tensor, t in samples if tensor == "d_tensor")
        quantizes = sfd is not None and norm_const is not None and sample_metadata(name, "d_tensor", d).dtype in FP8
        if quantizes:
            rules = [*rules, Rule("sfd_tensor", None), Rule("norm_const_tensor", (1,) * max(len(getattr(norm_const, "shape", ())), 1))]
            samples = [*samples, ("sfd_tensor", sfd), ("norm_const_tensor", norm_const)]
        scaled = [(i, tensor, scales[tensor]) for i, tensor in enumerate(("sfa_tensor", "sfb_tensor")) if scales[tensor] is not None]
        super().__init__(samples, GemmLayout(rules, compact=False), scales=self._scales, scaled=scaled, sf_vec_size=sf_vec_size, **options)
        self.sf_vec_size = sf_vec_size
        if quantizes:
            place = self._layout.names.index("sfd_tensor")
            self._factors[place] = "m", "n", sf_vec_size
            self._views = {place: dense_bytes, place + 1: _flat}

    @property
    def _quantized_by(self) -> dict[str, Any]:
        """Options of the kernel about D's scale factors."""
        scale = self._dtype("sfd_tensor")
        return {} if scale is None else {"scale_dtype": scale, "scale_vec": self.sf_vec_size}

    def _finish_reference(self, tensors: Mapping[str, Any], y: Any) -> None:
        """Store ``y`` (M, N, L) as D, and amax and SFD where they are asked for."""
        d = tensors["d_tensor"]
        if "amax_tensor" in tensors:
            merge_amax(tensors["amax_tensor"], y)
        if "sfd_tensor" in tensors:
            quantize_rows(y, d, tensors["sfd_tensor"], tensors["norm_const_tensor"], self.sf_vec_size)
        else:
            d.copy_(cast(y, d.dtype))


def _flat(t: Any) -> Any:
    return t.reshape(-1)


def quantize_rows(y: Any, d: Any, sfd: Any, norm_const: Any, vec: int) -> None:
    """D and its scale factors from ``y`` (M, N, L). Factors of rows and blocks that do not exist stay as they are."""
    import torch

    rows, columns, batches = y.shape
    layout = ScaleLayout(rows, columns, batches, vec)
    data, scales = quantize_blocks(y.permute(2, 0, 1), format_of(dtype_name(d.dtype), dtype_name(sfd.dtype), vec), norm_const)
    d.copy_(data.permute(1, 2, 0))
    batch, row, block = torch.meshgrid(*(torch.arange(extent, device=y.device) for extent in (batches, rows, layout.blocks)), indexing="ij")
    dense_bytes(sfd)[layout.offset(row, block, batch)] = scales.view(torch.uint8)


def scale_outputs(tensors: Arguments, d: Output, options: Arguments) -> dict[str, Output]:
    """amax and SFD, where the published wrappers have them."""
    found = {"amax_tensor": amax_output(tensors, d, ("bfloat16", "float16", "float32"), (1,)), "sfd_tensor": sfd_output(tensors, d, options)}
    return {name: output for name, output in found.items() if output is not None}
