"""What a GEMM computes, as far as it changes the generated code. Extents, scalars and pointers are run-time values and have no place here."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

_BITS = {"float32": 32, "float16": 16, "bfloat16": 16, "float8_e4m3fn": 8, "float8_e5m2": 8}


@dataclass(frozen=True)
class GemmProblem:
    """S = A Bᵀ with A (M, K, L) and B (N, K, L).

    ``a_major`` is ``"k"`` or ``"m"``, ``b_major`` ``"k"`` or ``"n"``: the axis with stride 1.
    ``b_parts`` says how B's rows reach the kernel:

    - ``"single"``: one tensor, rows in order.
    - ``"halves"``: one tensor of two stacked halves; a tile takes 32 rows of the first and the 32 rows of the second that belong to
      them, in turn.
    - ``"pair"``: the same from two tensors.

    ``grouping`` says what the L problems are:

    - ``"dense"``: equal ones (or a single one).
    - ``"rows"``: consecutive groups of A's rows, each with its own B; A (T, K) and the outputs are packed, and the groups' ends are a tensor on the device.
    - ``"steps"``: consecutive groups of the sum's steps; A (M, T) and B (T, N) are packed and contiguous along M and N, and each group has an output (M, N) of its own.

    ``b_pointers``: in groups of rows, every group's B is somewhere else, and their addresses are a tensor on the device. ``step_blocks``: in groups of steps, operands are contiguous along K where their major says so, and lie group
    after group, each a matrix of its own. ``unit_axes``: in groups of rows, tensors with rows are passed with a third axis of one element, and B as (N, K, L) in the place of (L, N, K).

    ``b_format``: the block-scaled format in which B reaches the kernel, as bytes and with scale factors, to become ``b_dtype`` in shared memory; None where it comes in ``b_dtype``. ``a_format``: the same of A, which becomes
    ``a_dtype`` in registers.

    ``fast_accumulation`` is about 8-bit operands, whose products the matrix cores add with fewer bits than float32 has: False takes the sum
    of every 128 products along K into float32 registers, True leaves it to the matrix cores.
    """

    a_dtype: str
    b_dtype: str
    acc_dtype: str = "float32"
    a_major: str = "k"
    b_major: str = "k"
    b_parts: str = "single"
    grouping: str = "dense"
    fast_accumulation: bool = False
    b_pointers: bool = False
    step_blocks: bool = False
    unit_axes: bool = False
    b_format: str | None = None
    a_format: str | None = None

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("a_dtype", self.a_dtype, tuple(_BITS)),
            ("b_dtype", self.b_dtype, tuple(_BITS)),
            ("acc_dtype", self.acc_dtype, ("float32", "float16")),
            ("a_major", self.a_major, ("k", "m")),
            ("b_major", self.b_major, ("k", "n")),
            ("b_parts", self.b_parts, ("single", "halves", "pair")),
            ("grouping", self.grouping, ("dense", "rows", "steps")),
        ):
            if value not in allowed:
                raise ValueError(f"GemmProblem.{name}: found {value!r}, needs one of {', '.join(map(repr, allowed))}")
        for name, value, grouping in (
            ("b_pointers", self.b_pointers, "rows"),
            ("unit_axes", self.unit_axes, "rows"),
            ("step_blocks", self.step_blocks, "steps"),
        ):
            if value and self.grouping != grouping:
                raise ValueError(f"GemmProblem.{name}: found True with grouping {self.grouping!r}, needs {grouping!r}")
        if self.grouping == "steps" and not self.step_blocks and (self.a_major, self.b_major) != ("m", "n"):
            raise ValueError(
                f"GemmProblem: found a_major {self.a_major!r} and b_major {self.b_major!r} with grouping 'steps', needs 'm' and 'n', or step_blocks"
            )

    @property
    def operand_bits(self) -> int:
        return _BITS[self.a_dtype]

    @property
    def promotes(self) -> bool:
        """Whether partial sums are added to float32 registers along the way."""
        return self.operand_bits == 8 and self.acc_dtype == "float32" and not self.fast_accumulation

    @property
    def swapped(self) -> GemmProblem:
        """The problem whose result is the transpose of this one's: Sᵀ = B Aᵀ. Of dense problems with one tensor B."""
        a_major, b_major = ("k" if self.b_major == "k" else "m"), ("k" if self.a_major == "k" else "n")
        return replace(self, a_dtype=self.b_dtype, b_dtype=self.a_dtype, a_major=a_major, b_major=b_major, a_format=self.b_format, b_format=self.a_format)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)
