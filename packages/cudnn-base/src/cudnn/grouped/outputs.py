"""The outputs that grouped wrappers allocate, in the form of A: (M, columns), or (M, columns, 1) where A has a third axis."""

from __future__ import annotations

from typing import Any

from cudnn import checks
from cudnn.datatypes import torch_dtype
from cudnn.grouped.checks import check_pointers
from cudnn.grouped.operation import is_canonical
from cudnn.tensors import metadata
from cudnn.wrapper_calls import Output


def rows_output(a: Any, columns: Any, dtype: Any, name: str, default: str = "bfloat16") -> Output:
    """A compact output with A's rows. ``dtype``: in any spelling, None for ``default``."""
    rows = a.shape[0]
    kind = torch_dtype(checks.required_dtype(name, default if dtype is None else dtype))
    if len(a.shape) == 2:
        return Output((rows, columns), (columns, 1), kind)
    return Output((rows, columns, 1), (columns, 1, rows * columns), kind)


def check_a(a: Any) -> None:
    """ValueError unless A is (M, K) or (M, K, 1)."""
    if len(a.shape) not in (2, 3):
        raise ValueError(f"a_tensor: found shape {tuple(a.shape)}, needs (M, K), or (M, K, 1) for the published kernel-facing form")


def check_cd_major(cd_major: Any) -> None:
    if cd_major != "n":
        raise ValueError(f"cd_major: found {cd_major!r}, needs 'n'")


def weight_rows(a: Any, b: Any, n: Any, *, n_major: bool) -> Any:
    """N, from weights (E, N, K), (E, K, N) where ``n_major``, or (N, K, E); from a pair of halves; or as given beside pointers."""
    if b is None:
        # torch.compile may have made it symbolic.
        return n if isinstance(n, int) else checks.as_integer("n", n)
    if isinstance(b, (tuple, list)):
        return sum(weight_rows(a, half, None, n_major=n_major) for half in b)
    if not is_canonical("b_tensor", b, a):
        return b.shape[0]
    return b.shape[2] if n_major else b.shape[1]


def by_pointers(tensors: Any, n: Any, b_dtype: Any) -> dict[str, Any]:
    """Constructor arguments for weights by pointers: num_experts, b_shape and b_dtype, None each for weights in tensors. ValueError unless the addresses are as they have to be."""
    pointers = tensors.get("b_ptrs")
    if pointers is None:
        return {"num_experts": None, "b_shape": None, "b_dtype": None}
    a, offsets = tensors["a_tensor"], metadata(tensors["padded_offsets"])
    device = metadata(a)
    experts = offsets.shape[0] if offsets.shape else 0
    pair = isinstance(pointers, (tuple, list))
    for i, one in enumerate(pointers if pair else (pointers,)):
        check_pointers(f"b_ptrs[{i}]" if pair else "b_ptrs", one, experts, device.device_type, device.device_index)
    return {"num_experts": experts, "b_shape": (checks.as_integer("n", n), a.shape[1]), "b_dtype": b_dtype}
