"""Host checks that the operations of every family share. Everything here works on metadata; nothing reads a tensor's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cudnn.datatypes import dtype_name, itemsize_bits
from cudnn.tensors import Metadata, require_torch_like


def require_tensors(op: str, tensors: Sequence[tuple[str, Any]]) -> None:
    """ValueError unless all of the (name, tensor) pairs are torch tensors."""
    for name, t in tensors:
        if t is None:
            raise ValueError(f"{op}: {name} is None, needs a torch tensor")
    require_torch_like(op, tensors)


def check_rank(name: str, meta: Metadata, axes: str) -> None:
    """ValueError unless the tensor has the three axes named in ``axes``."""
    if len(meta.shape) != 3:
        raise ValueError(f"{name}: found shape {meta.shape}, needs three axes {axes}; for L = 1 append a unit axis with {name}.unsqueeze(-1)")


def check_shape(name: str, meta: Metadata, expected: tuple[int, ...], axes: str, because: str) -> None:
    """ValueError unless the shape is ``expected``; ``because`` says where it comes from."""
    if meta.shape != expected:
        raise ValueError(f"{name}: found shape {meta.shape}, needs {axes} = {expected} {because}")


def compact_majors(name: str, meta: Metadata, modes: tuple[str, str]) -> tuple[str, ...]:
    """The majors in which a (rows, columns, L) tensor is compact, the usual one first: ``modes[1]`` has strides (columns, 1, rows * columns), ``modes[0]`` has
    (1, rows, rows * columns). Strides of unit axes say nothing, and those of an empty tensor nothing at all.

    Raises:
        ValueError: neither fits.
    """
    rows, columns, _ = meta.shape
    if 0 in meta.shape:
        return modes[1], modes[0]
    layouts = {modes[1]: (columns, 1, rows * columns), modes[0]: (1, rows, rows * columns)}
    found = tuple(
        mode
        for mode, steps in layouts.items()
        if all(extent == 1 or step == wanted for extent, step, wanted in zip(meta.shape, meta.stride, steps, strict=True))
    )
    if not found:
        raise ValueError(
            f"{name}: found strides {meta.stride} for shape {meta.shape}, needs {' or '.join(f'{steps} ({mode}-major)' for mode, steps in layouts.items())}; "
            f"copy it into one of these, for example {name}.permute(2, 0, 1).contiguous().permute(1, 2, 0)"
        )
    return found


def pitched_majors(name: str, meta: Metadata, modes: tuple[str, str]) -> tuple[str, ...]:
    """The majors that a (rows, columns, L) tensor may be taken to have, the usual one first: ``modes[1]`` has stride 1 along columns, ``modes[0]`` along rows. Lines may be apart by any
    pitch, and batches are outermost. Strides of unit axes say nothing, and those of an empty tensor nothing at all.

    Raises:
        ValueError: neither fits.
    """
    if 0 in meta.shape:
        return modes[1], modes[0]

    def fits(inner: int) -> bool:
        reach = 1
        for axis in (inner, 1 - inner, 2):
            if meta.shape[axis] > 1:
                if meta.stride[axis] < reach or (axis == inner and meta.stride[axis] != 1):
                    return False
                reach = meta.stride[axis] * (meta.shape[axis] - 1) + reach
        return True

    found = tuple(modes[inner] for inner in (1, 0) if fits(inner))
    if not found:
        raise ValueError(
            f"{name}: found strides {meta.stride} for shape {meta.shape}, needs stride 1 along {modes[1].upper()} or {modes[0].upper()}, lines that do not overlap, and batches outermost; "
            f"copy it, for example {name}.permute(2, 0, 1).contiguous().permute(1, 2, 0)"
        )
    return found


def contiguous_problem(name: str, meta: Metadata, major: str, modes: tuple[str, str], parts: int = 1) -> str | None:
    """None if the contiguous extent (each of its ``parts``) is a multiple of 16 bytes, else what is wrong with it.

    TMA steps between lines in multiples of 16 bytes, and a line of a compact tensor is as long as its contiguous extent.
    """
    extent = meta.shape[modes.index(major)]
    unit = 128 // itemsize_bits(meta.dtype)
    if extent % (unit * parts) == 0:
        return None
    each = f"{extent // parts} in each half, " if parts == 2 else ""
    return (
        f"{name}: found {major.upper()} = {extent} contiguous {meta.dtype} elements ({each}so lines have a stride of {extent * itemsize_bits(meta.dtype) // 8} bytes), "
        f"needs a multiple of {unit}{' in each half' if parts == 2 else ''} (16 bytes); pad {major.upper()} with zeros"
    )


def pick_major(name: str, meta: Metadata, modes: tuple[str, str], parts: int = 1) -> str:
    """The major a tensor is taken to have: where a unit axis leaves both open, the one whose contiguous extent keeps the 16-byte rule."""
    found = compact_majors(name, meta, modes)
    return next((major for major in found if contiguous_problem(name, meta, major, modes, parts) is None), found[0])


def required_dtype(name: str, value: Any) -> str:
    """Canonical name of a dtype argument; ValueError for None and for what is no dtype."""
    found = dtype_name(value)
    if found is None:
        raise ValueError(f"{name}: found {value!r}, needs a dtype of torch, numpy, jax or the CuTe DSL, or its name, such as 'bfloat16'")
    return found


def check_dtype(name: str, found: str | None, allowed: Sequence[str], why: str = "") -> None:
    """ValueError unless ``found`` is one of ``allowed``. ``name`` is a tensor, or an argument that ends in ``_dtype``."""
    if found not in allowed:
        remedy = "" if name.endswith("_dtype") else "; cast it"  # an argument is chosen, a tensor can be cast
        raise ValueError(f"{name}: found dtype {found}, needs {' or '.join(allowed)}{why}{remedy}")


def as_integer(name: str, value: Any) -> int:
    """An int from an int, a NumPy integer, or a one-element integer tensor. ValueError for anything else."""
    try:
        return value.__index__()
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name}: found {value!r} of type {type(value).__name__}, needs an integer") from error


def as_pair(name: str, value: Any) -> tuple[int, int]:
    """Two ints from any sequence of two integers. ValueError for anything else."""
    try:
        first, second = value
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: found {value!r}, needs two integers (along M, along N)") from error
    return as_integer(name, first), as_integer(name, second)


def as_scalar(name: str, value: Any) -> float:
    """A float from a Python or NumPy number. ValueError for tensors, whose value would have to be fetched from the device."""
    if type(value) is float:
        return value
    if hasattr(value, "__dlpack__") and getattr(value, "shape", ()) != () or type(value).__module__.partition(".")[0] in ("torch", "jax", "jaxlib"):
        raise ValueError(
            f"{name}: found a {type(value).__name__}, needs a number on the host; take it out with .item() where the wait for the device is acceptable"
        )
    try:
        if isinstance(value, (str, bytes, bytearray)):
            raise TypeError("text is no number")
        return float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: found {value!r}, needs a number") from error
    except OverflowError as error:
        raise ValueError(f"{name}: found a number beyond the range of float64, needs one that a float holds") from error


def check_tile_and_cluster(tile: tuple[int, int], cluster: tuple[int, int], *, tile_n: Sequence[int], single_cta_cluster: bool) -> None:
    """ValueError unless the hints ``mma_tiler_mn`` and ``cluster_shape_mn`` are of the published values. Results do not depend on them."""
    if tile[0] not in (128, 256):
        raise ValueError(f"mma_tiler_mn: found {tile}, needs a first entry of 128 or 256")
    if tile[1] not in tile_n:
        raise ValueError(f"mma_tiler_mn: found {tile}, needs a second entry out of {', '.join(map(str, tile_n))}")
    check_cluster(tile, cluster, single_cta_cluster=single_cta_cluster)


def check_cluster(tile: tuple[int, int], cluster: tuple[int, int], *, single_cta_cluster: bool) -> None:
    """The cluster half of ``check_tile_and_cluster``."""
    if tile[0] == 256 and cluster[0] % 2:
        raise ValueError(f"cluster_shape_mn: found {cluster} with mma_tiler_mn {tile}, needs an even first entry for tiles of 256 rows")
    if any(extent < 1 or extent & (extent - 1) for extent in cluster) or cluster[0] * cluster[1] > 16:
        raise ValueError(f"cluster_shape_mn: found {cluster}, needs powers of two with a product of at most 16")
    if single_cta_cluster and tile[0] == 128 and cluster != (1, 1):
        raise ValueError(f"cluster_shape_mn: found {cluster} with mma_tiler_mn {tile}, needs (1, 1) for tiles of 128 rows, or tiles of 256 rows")


def check_major(name: str, value: Any) -> None:
    """ValueError unless the major of an output (M, N, L) is "n" or "m"."""
    if value not in ("n", "m"):
        raise ValueError(f"{name}: found {value!r}, needs 'n' or 'm'")


def check_free_hints(mma_tiler_mn: Any, cluster_shape_mn: Any) -> None:
    """ValueError unless the hints ``mma_tiler_mn`` and ``cluster_shape_mn`` are None or two positive integers each: those of operations without published values."""
    for name, value in (("mma_tiler_mn", mma_tiler_mn), ("cluster_shape_mn", cluster_shape_mn)):
        if value is not None and min(as_pair(name, value)) < 1:
            raise ValueError(f"{name}: found {value}, needs two positive integers, or None")
