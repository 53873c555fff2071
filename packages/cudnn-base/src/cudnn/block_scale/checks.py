"""Checks of scale factor tensors, on metadata alone."""

from __future__ import annotations

from typing import NamedTuple

from cudnn.block_scale.formats import FP4
from cudnn.block_scale.layout import ATOM, LOGICAL_ORDER, ScaleLayout
from cudnn.fp4 import logical_geometry
from cudnn.tensors import Metadata


class ScaleForm(NamedTuple):
    """What the shape of a six-axis tensor says: which form it has, and the extents R', K' and L."""

    logical: bool
    row_atoms: int
    block_atoms: int
    batches: int

    @property
    def stride(self) -> tuple[int, ...]:
        """The strides that belong to the form."""
        physical = (self.row_atoms * self.block_atoms * ATOM, self.block_atoms * ATOM, ATOM, 16, 4, 1)
        return tuple(physical[axis] for axis in LOGICAL_ORDER) if self.logical else physical


def scale_form(shape: tuple[int, ...]) -> ScaleForm | None:
    """The form of a scale factor tensor by its shape alone; None where it has neither."""
    if len(shape) != 6:
        return None
    if shape[:2] == (32, 4) and shape[3] == 4:
        return ScaleForm(True, shape[2], shape[4], shape[5])
    if shape[3:] == (32, 4, 4):
        return ScaleForm(False, shape[1], shape[2], shape[0])
    return None


def wanted_text(layout: ScaleLayout) -> str:
    """What a scale factor tensor has to look like, for messages."""
    return f"needs {layout.logical_shape} or {layout.physical_shape} for {layout.rows} x {layout.columns} x {layout.batches} and sf_vec_size {layout.vec}"


def check_scale_stride(name: str, meta: Metadata, form: ScaleForm) -> None:
    """ValueError unless a scale factor tensor of ``form`` has the form's strides; those of unit axes say nothing."""
    if any(extent > 1 and step != wanted for extent, step, wanted in zip(meta.shape, meta.stride, form.stride, strict=True)):
        raise ValueError(
            f"{name}: found stride {meta.stride} for shape {meta.shape}, needs {form.stride}; the scale factors of 128 rows and 4 blocks lie together"
        )


def check_scale_shape(name: str, meta: Metadata, layout: ScaleLayout) -> ScaleForm:
    """The form of scale factors that have one of the two for ``layout``; ValueError otherwise."""
    form = scale_form(meta.shape)
    if form is None or (form.row_atoms, form.block_atoms, form.batches) != (layout.row_atoms, layout.block_atoms, layout.batches):
        raise ValueError(f"{name}: found shape {meta.shape}, {wanted_text(layout)}")
    return form


def check_scales(name: str, meta: Metadata, layout: ScaleLayout) -> ScaleForm:
    """The form of scale factors that have the shape and the strides of one of the two for ``layout``; ValueError otherwise."""
    form = check_scale_shape(name, meta, layout)
    check_scale_stride(name, meta, form)
    return form


def unpacked(meta: Metadata) -> Metadata:
    """Bytes (uint8) as operands stand for packed 4-bit floats."""
    if meta.dtype != "uint8":
        return meta
    shape, stride = logical_geometry(meta.shape, meta.stride)
    return meta._replace(dtype=FP4, shape=shape, stride=stride)
