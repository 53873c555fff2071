"""Where gate and up lie among the tensors of the gated operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cudnn.gemm_layout import GemmLayout, Rule
from cudnn.reference import GLU_LAYOUTS

B_NAMES = ("b_tensor",), ("b_tensor[0] (gate)", "b_tensor[1] (up)")
B_PARTS = {"interleaved32": "single", "concatenated": "halves", "separate": "pair"}


def check_glu_layout(glu_layout: Any) -> None:
    if glu_layout not in GLU_LAYOUTS:
        raise ValueError(f"glu_layout: found {glu_layout!r}, needs one of {', '.join(map(repr, GLU_LAYOUTS))}")


def named_b(b: Any, glu_layout: str) -> list[tuple[str, Any]]:
    """(name, tensor) of B: one, or the pair (gate, up) where the weights are separate. ValueError where the number does not suit the layout."""
    if glu_layout != "separate":
        if isinstance(b, (tuple, list)):
            raise ValueError(f'b_tensor: found {len(b)} tensors with glu_layout="{glu_layout}", needs one; pass glu_layout="separate" for the pair (gate, up)')
        return [("b_tensor", b)]
    if not isinstance(b, (tuple, list)) or len(b) != 2:
        found = f"{len(b)} tensors" if isinstance(b, (tuple, list)) else f"one {type(b).__name__}"
        raise ValueError(f'b_tensor: found {found} with glu_layout="separate", needs the pair (gate, up) of (N/2, K, L) tensors')
    return list(zip(B_NAMES[1], b, strict=True))


def named_sfb(sfb: Any, glu_layout: str) -> list[tuple[str, Any]]:
    """(name, tensor) of B's scale factors: one, or those of the pair (gate, up) where the weights are separate. ValueError where the number does not suit the layout."""
    if glu_layout != "separate" or sfb is None:
        if isinstance(sfb, (tuple, list)):
            raise ValueError(f'sfb_tensor: found {len(sfb)} tensors with glu_layout="{glu_layout}", needs one')
        return [("sfb_tensor", sfb)]
    if not isinstance(sfb, (tuple, list)) or len(sfb) != 2:
        raise ValueError('sfb_tensor: found one tensor with glu_layout="separate", needs the pair of scale factors of (gate, up)')
    return [(f"sfb_tensor[{i}]", half) for i, half in enumerate(sfb)]


def forward_layout(glu_layout: str, *, compact: bool, ab12: bool = True) -> GemmLayout:
    """Rules of A, B, AB12 and C. Whole halves of B and AB12 are boxes of memory of their own."""
    split = None if glu_layout == "interleaved32" else "n"
    names = B_NAMES[glu_layout == "separate"]
    b = [Rule(name, ("n/2" if len(names) == 2 else "n", "k", "l"), "b", split if len(names) == 1 else None) for name in names]
    outputs = [Rule("ab12_tensor", ("m", "n", "l"), "out", split)] if ab12 else []
    return GemmLayout((Rule("a_tensor", ("m", "k", "l"), "a"), *b, *outputs, Rule("c_tensor", ("m", "n/2", "l"), "out")), compact=compact)


def check_columns(n: int, glu_layout: str) -> None:
    """ValueError unless N, of B's rows, suits the layout."""
    if glu_layout == "interleaved32" and n % 64:
        raise ValueError(
            f'b_tensor: found N = {n} rows with glu_layout="interleaved32", needs a multiple of 64 (blocks of 32 up and 32 gate rows); pad both halves to a multiple of 32, '
            'or pass them whole with glu_layout="concatenated" or "separate"'
        )


def rows_of_b(metas: Sequence[Any]) -> int:
    """N, from one B or from gate and up."""
    return sum(meta.shape[0] for meta in metas)
