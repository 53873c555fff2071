"""Matrix instructions of compute capability 9.0, by operand type. The one module that subclasses parts of the DSL."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.cute.nvgpu.warpgroup.mma import MmaF8Trait, MmaOp


@dataclass(frozen=True)
class MmaTF32Op(MmaOp):
    """m64nNk8 on float32 words of which the matrix cores use the upper 19 bits. Both operands K-major, float32 sums. The DSL has no public op for it, but lowers it."""

    descriptive_name = "warpgroup TF32 MMA operation"

    def _make_trait(self, *, loc=None, ip=None, **kwargs):
        from cutlass._mlir.dialects import cute_nvgpu
        from cutlass.cute.atom import make_atom
        from cutlass.cute.core import _pack_shape

        shape = _pack_shape(self.shape_mnk, loc=loc, ip=ip)
        kind = cute_nvgpu.MmaAtomSM90Type.get(
            shape.type.attribute,
            self.a_major_mode._to_ir(),
            self.b_major_mode._to_ir(),
            cutlass.TFloat32.mlir_type,
            cutlass.TFloat32.mlir_type,
            self.acc_dtype.mlir_type,
            self.a_src._to_ir(),
        )
        return MmaF8Trait(make_atom(kind, [cutlass.Boolean(False).ir_value(loc=loc, ip=ip)], loc=loc, ip=ip))


def tiled_mma(a_dtype, b_dtype, acc_dtype, a_k_major: bool, b_k_major: bool, warpgroups: int, tile_n: int, a_in_registers: bool = False) -> cute.TiledMma:
    """``warpgroups`` x 64 rows by ``tile_n`` columns; B from shared memory, and A too unless it is in registers."""
    majors = tuple(OperandMajorMode.K if k_major else OperandMajorMode.MN for k_major in (a_k_major, b_k_major))
    source = warpgroup.OperandSource.RMEM if a_in_registers else warpgroup.OperandSource.SMEM
    if a_dtype.width == 16:
        op = warpgroup.MmaF16BF16Op(a_dtype, acc_dtype, (64, tile_n, 16), source, *majors)
    elif a_dtype.width == 8:
        op = warpgroup.MmaF8Op(a_dtype, b_dtype, acc_dtype, (64, tile_n, 32), source, *majors)
    else:
        op = MmaTF32Op(a_dtype, b_dtype, acc_dtype, (64, tile_n, 8), source, *majors)
    return cute.make_tiled_mma(cute.make_mma_atom(op), (warpgroups, 1, 1))
