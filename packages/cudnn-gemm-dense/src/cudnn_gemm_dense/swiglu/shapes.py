"""How the tensors of GEMM + SwiGLU have to fit each other and the gate/up layout, on metadata alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from cudnn import checks
from cudnn.tensor_desc import TensorDesc
from cudnn.tensors import Metadata, is_jax_array, metadata, require_torch_like

A_MODES, B_MODES, OUT_MODES = ("m", "k"), ("n", "k"), ("m", "n")
B_NAMES = ("b_tensor",), ("b_tensor[0] (gate)", "b_tensor[1] (up)")
B_PARTS = {"interleaved32": "single", "concatenated": "halves", "separate": "pair"}


class Extents(NamedTuple):
    m: int
    n: int
    k: int
    batches: int


class Majors(NamedTuple):
    """The contiguous axis of A, of B, and of both outputs."""

    a: str
    b: str
    out: str


class SwigluTensors(NamedTuple):
    """Metadata of A, of B (two entries, gate and up, where the weights are separate), of AB12 and C."""

    a: Metadata
    b: tuple[Metadata, ...]
    ab12: Metadata
    c: Metadata
    glu_layout: str

    @classmethod
    def of(cls, read: Callable[[str, Any], Metadata], a: Any, b: Any, ab12: Any, c: Any, glu_layout: str) -> SwigluTensors:
        """From four tensors (``b`` a pair where the layout is "separate"); ``read`` takes a name and a tensor."""
        first = read("a_tensor", a)
        halves = tuple(read(name, half) for name, half in name_b(b, glu_layout))
        return cls(first, halves, read("ab12_tensor", ab12), read("c_tensor", c), glu_layout)

    @property
    def b_parts(self) -> str:
        return B_PARTS[self.glu_layout]

    @property
    def halves(self) -> int:
        """Into how many parts the N axis of AB12 falls: two where gate and up are whole halves."""
        return 1 if self.glu_layout == "interleaved32" else 2

    def named_b(self) -> Iterator[tuple[str, Metadata]]:
        return zip(B_NAMES[self.glu_layout == "separate"], self.b, strict=True)

    def named(self) -> list[tuple[str, Metadata]]:
        return [("a_tensor", self.a), *self.named_b(), ("ab12_tensor", self.ab12), ("c_tensor", self.c)]

    def check_shapes(self) -> Extents:
        """ValueError unless ranks and shapes fit each other. Returns the extents."""
        checks.check_rank("a_tensor", self.a, "(M, K, L)")
        m, k, batches = self.a.shape
        for name, b in self.named_b():
            rows = "N/2" if self.glu_layout == "separate" else "N"
            checks.check_rank(name, b, f"({rows}, K, L)")
            checks.check_shape(name, b, (b.shape[0], k, batches), f"({rows}, K, L)", "with K and L of a_tensor")
        if len(self.b) == 2:
            checks.check_shape("b_tensor[1] (up)", self.b[1], self.b[0].shape, "(N/2, K, L)", "as b_tensor[0] (gate)")
        n = sum(b.shape[0] for b in self.b)
        if n % 2:
            raise ValueError(f"b_tensor: found N = {n} rows, needs an even number: a gate column and an up column for each column of c_tensor")
        checks.check_shape("ab12_tensor", self.ab12, (m, n, batches), "(M, N, L)", "with M and L of a_tensor and N of b_tensor")
        checks.check_shape("c_tensor", self.c, (m, n // 2, batches), "(M, N/2, L)", "with M and L of a_tensor and N of b_tensor")
        return Extents(m, n, k, batches)

    def majors(self, bound: Majors | None = None) -> Majors:
        """The majors of the tensors, which must be compact, and those of AB12 and C equal. With ``bound`` they must be those.

        Raises:
            ValueError: a tensor is not compact, the outputs differ, or a tensor has another major than ``bound``.
        """
        if bound is not None:
            for name, meta, modes, major in self._placed(bound):
                if major not in checks.compact_majors(name, meta, modes):
                    raise ValueError(
                        f"{name}: found strides {meta.stride} for shape {meta.shape}, needs compact {major}-major ones, which the object was compiled for; "
                        "compile another object for these"
                    )
            return bound
        a = checks.pick_major("a_tensor", self.a, A_MODES)
        b = [set(checks.compact_majors(name, half, B_MODES)) for name, half in self.named_b()]
        common_b = [major for major in reversed(B_MODES) if all(major in found for found in b)]
        if not common_b:
            raise ValueError(
                f"b_tensor[0] (gate) and b_tensor[1] (up): found strides {self.b[0].stride} and {self.b[1].stride}, needs both k-major or both n-major"
            )
        ab12, c = (checks.compact_majors(name, meta, OUT_MODES) for name, meta in (("ab12_tensor", self.ab12), ("c_tensor", self.c)))
        common = [major for major in reversed(OUT_MODES) if major in ab12 and major in c]
        if not common:
            raise ValueError(
                f"ab12_tensor and c_tensor: found strides {self.ab12.stride} ({ab12[0]}-major) and {self.c.stride} ({c[0]}-major), needs the same major for both"
            )
        # Where unit axes leave a major open, the one that keeps the 16-byte rule is meant.
        choices = [Majors(a, major_b, out) for out in common for major_b in common_b]
        return next((majors for majors in choices if self._contiguous_problem(majors) is None), choices[0])

    def check_extents(self, majors: Majors) -> None:
        """ValueError unless N suits the layout and every contiguous extent is a multiple of 16 bytes."""
        n = self.ab12.shape[1]
        if self.glu_layout == "interleaved32" and n % 64:
            raise ValueError(
                f'b_tensor: found N = {n} rows with glu_layout="interleaved32", needs a multiple of 64 (blocks of 32 up and 32 gate rows); pad both halves to a multiple of 32, '
                'or pass them whole with glu_layout="concatenated" or "separate"'
            )
        problem = self._contiguous_problem(majors)
        if problem is not None:
            raise ValueError(problem)

    def _placed(self, majors: Majors) -> list[tuple[str, Metadata, tuple[str, str], str]]:
        return [
            ("a_tensor", self.a, A_MODES, majors.a),
            *((name, half, B_MODES, majors.b) for name, half in self.named_b()),
            ("ab12_tensor", self.ab12, OUT_MODES, majors.out),
            ("c_tensor", self.c, OUT_MODES, majors.out),
        ]

    def _contiguous_problem(self, majors: Majors) -> str | None:
        for name, meta, modes, major in self._placed(majors):
            # Two halves of one tensor are two boxes of memory, and each has to start on 16 bytes.
            split = major == "n" and self.halves == 2 and (name == "ab12_tensor" or (name == "b_tensor" and self.glu_layout == "concatenated"))
            problem = checks.contiguous_problem(name, meta, major, modes, 2 if split else 1)
            if problem is not None:
                return problem
        return None


def name_b(b: Any, glu_layout: str) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of B: one, or the pair (gate, up) where the weights are separate. ValueError where the number does not suit the layout."""
    if glu_layout != "separate":
        if isinstance(b, (tuple, list)):
            raise ValueError(f'b_tensor: found {len(b)} tensors with glu_layout="{glu_layout}", needs one; pass glu_layout="separate" for the pair (gate, up)')
        return zip(B_NAMES[0], (b,), strict=True)
    if not isinstance(b, (tuple, list)) or len(b) != 2:
        found = f"{len(b)} tensors" if isinstance(b, (tuple, list)) else f"one {type(b).__name__}"
        raise ValueError(f'b_tensor: found {found} with glu_layout="separate", needs the pair (gate, up) of (N/2, K, L) tensors')
    return zip(B_NAMES[1], b, strict=True)


def describe(name: str, dtype: str, shape: tuple[int, int, int], major: str, device: Any) -> TensorDesc:
    """Description of a compact output of ``shape`` (M, columns, L)."""
    rows, columns, _ = shape
    stride = (columns, 1, rows * columns) if major == "n" else (1, rows, rows * columns)
    return TensorDesc(dtype, shape, stride, (1, 0, 2) if major == "n" else (0, 1, 2), device, name=name)


def sample_metadata(name: str, t: Any) -> Metadata:
    """Metadata of a sample tensor; ValueError naming it for what is none, and for jax arrays."""
    if is_jax_array(t):
        require_torch_like("GemmSwiglu", [(name, t)])
    try:
        return metadata(t)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
