"""How a GEMM runs: tile, cluster, schedule. Results never depend on it. No DSL import, so that tuners and support checks stay cheap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from operator import index

from cudnn.block_scale.formats import FORMATS
from cudnn.cutedsl.gemm.problem import GemmProblem

SHARED_BYTES = 232448  # shared memory of a CTA on compute capability 9.0
TILE_K_BYTES = 128  # one swizzle atom along K
BARRIER_BYTES = 1536  # mbarriers (a kibibyte in front of the aligned buffers, the rest behind them) and alignment
MAX_STAGES = 12
MAX_ACCUMULATORS = 192  # float32 registers of one thread that a tile may take
GROUPED_ACCUMULATORS = 32  # the same beside a second set of consumers
SLAB_ROWS, SLAB_COLUMNS = 64, 32  # what one warpgroup hands to one TMA store


@dataclass(frozen=True)
class GemmConfig:
    """One way to run a problem.

    - ``tile_m``, ``tile_n``: rows and columns of D one tile covers. Cooperative: two consumer warpgroups share a tile. Pingpong: each has
      its own and one's epilogue runs beside the other's mainloop.
    - ``cluster_m``, ``cluster_n``: CTAs per cluster along M and N; B is multicast along M, A along N.
    - ``split_k``: CTAs that share a tile's sum, a cluster of their own; they add their parts in shared memory, always in the same order. For few tiles and a long K.
    - ``raster``: ``"m"`` or ``"n"``, the direction in which neighbouring CTAs walk; ``group``: how many tiles wide a walk is before it
      turns, so that what it reads stays in L2.
    - ``k_atoms``: one step along K is this many times 128 bytes. Two or more make a small tile's reads long enough for device memory to serve whole pages.
    - ``convert_b``: a B with scale factors is converted inside the kernel, by warpgroups of their own, instead of by a kernel in front: it is read once, as small as it comes. For tiles of 64x128.
    - ``k_groups``: 1 or 2 sets of consumers in a CTA that take the steps along K in turn and add their sums in the end: where weights are converted into registers, one set waits while the other converts.
    - ``swap``: Dᵀ = B Aᵀ: ``tile_m`` and ``cluster_m`` count columns of D, ``tile_n`` and ``cluster_n`` rows, and ``raster`` "m" walks along the columns. Tiles may so be as narrow as 32 rows. A B with scale factors is converted
      inside the kernel, into registers, once for ``tile_n`` rows of activations; that is for tiles of 128 weights.
    - ``stages``: the most stages of the operand pipeline, at least 2; what shared memory leaves after the epilogue bounds it. None sets
      no other bound.
    """

    tile_m: int = 128
    tile_n: int = 256
    cluster_m: int = 1
    cluster_n: int = 1
    pingpong: bool = False
    split_k: int = 1
    raster: str = "m"
    group: int = 8
    stages: int | None = None
    k_atoms: int = 1
    k_groups: int = 1
    convert_b: bool = False
    swap: bool = False

    @classmethod
    def of(cls, value: GemmConfig | Mapping[str, object]) -> GemmConfig:
        """A config from itself or from a mapping of its fields; an unknown field raises ValueError."""
        if isinstance(value, GemmConfig):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(f"config: found {type(value).__name__}, needs a GemmConfig, a dict of its fields, or None")
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(value) - known)
        if unknown:
            raise ValueError(f"config: unknown field {', '.join(map(repr, unknown))}; the fields are {', '.join(sorted(known))}")
        return cls(**{name: _field(name, given) for name, given in value.items()})  # type: ignore[arg-type]

    @property
    def consumer_warpgroups(self) -> int:
        return 1 if self.tile_m == 64 and not self.pingpong else 2

    @property
    def converts_inside(self) -> bool:
        """Whether a B with scale factors reaches the kernel as it comes."""
        return self.convert_b or self.swap

    @property
    def converter_warpgroups(self) -> int:
        """Warpgroups that convert B, in turn."""
        return 3 if self.convert_b else 0

    @property
    def cluster_size(self) -> int:
        return self.cluster_m * self.cluster_n * self.split_k

    def resident_clusters(self, sms: int) -> int:
        """Clusters that a device of ``sms`` multiprocessors holds at once, each CTA of one on a multiprocessor of its own.

        Multiprocessors come in pairs, so clusters of two always fill a device; groups of more than two have remainders (an H200 holds 30 to 32 clusters of four on 132; `cudnn.device` asks the driver).
        """
        clusters = sms // self.cluster_size
        return max(clusters if self.cluster_size <= 2 else clusters - 1, 1)

    @property
    def rows_per_warpgroup(self) -> int:
        return self.tile_m if self.pingpong else self.tile_m // self.consumer_warpgroups

    @property
    def exchange_bytes(self) -> int:
        """Shared memory for a partial sum of another CTA that shares the tile."""
        return self.tile_m * self.tile_n * 4 if self.split_k > 1 else 0

    @property
    def join_bytes(self) -> int:
        """Shared memory for the partial sum of the second set of consumers."""
        return self.tile_m * self.tile_n * 4 if self.k_groups > 1 else 0

    def stage_bytes(self, problem: GemmProblem) -> int:
        """Bytes of operands in one pipeline stage."""
        if self.swap and problem.a_format is not None:
            # A as it comes alone, and a word of scale factors for each of its rows.
            return self.tile_m * (TILE_K_BYTES * 8 // problem.operand_bits // FORMATS[problem.a_format].packed + 4) + self.tile_n * TILE_K_BYTES
        bytes_ = (self.tile_m + self.tile_n) * TILE_K_BYTES * self.k_atoms
        if self.convert_b and problem.b_format is not None:
            # B as it comes, beside B as it is multiplied, and a word of scale factors for each of its rows.
            bytes_ += self.tile_n * (TILE_K_BYTES * 8 // problem.operand_bits // FORMATS[problem.b_format].packed + 4)
        return bytes_

    def stages_for(self, problem: GemmProblem, epilogue_bytes: int) -> int:
        """Pipeline depth: as many stages as fit beside ``epilogue_bytes`` of the epilogue, MAX_STAGES at most."""
        # B's bytes lie behind the epilogue's barriers, in a swizzle, so that those take a kibibyte of their own.
        barriers = BARRIER_BYTES + (1024 if self.convert_b else 0)
        fit = (SHARED_BYTES - barriers - epilogue_bytes - self.exchange_bytes - self.join_bytes) // self.stage_bytes(problem)
        return min(self.stages or MAX_STAGES, fit, MAX_STAGES)

    def supports(self, problem: GemmProblem, *, epilogue_bytes: int = 0, columns_per_visit: int = SLAB_COLUMNS) -> str | None:
        """None if the kernel can run ``problem`` this way, else the reason why not."""
        if self.tile_m not in (64, 128, 256):
            return f"tile_m: found {self.tile_m}, needs 64, 128 or 256"
        if self.tile_n % columns_per_visit or not columns_per_visit <= self.tile_n <= 256:
            return f"tile_n: found {self.tile_n}, needs a multiple of {columns_per_visit} from {columns_per_visit} to 256"
        if self.raster not in ("m", "n"):
            return f"raster: found {self.raster!r}, needs 'm' or 'n'"
        if self.group < 1:
            return f"group: found {self.group}, needs at least 1"
        if self.cluster_m not in (1, 2, 4) or self.cluster_n not in (1, 2, 4) or self.cluster_m * self.cluster_n > 4:
            return f"cluster: found {self.cluster_m}x{self.cluster_n}, needs 1, 2 or 4 each and at most 4 CTAs together"
        if self.k_atoms not in (1, 2, 4):
            return f"k_atoms: found {self.k_atoms}, needs 1, 2 or 4"
        if self.k_groups not in (1, 2):
            return f"k_groups: found {self.k_groups}, needs 1 or 2"
        if self.k_groups > 1 and problem.a_format is None:
            return "k_groups > 1: needs weights with scale factors that are converted into registers (swap)"
        if self.convert_b and self.swap:
            return "convert_b and swap: two ways to convert the same B; give one"
        if self.convert_b != (problem.b_format is not None):
            return (
                "convert_b: needs an operand B with scale factors, contiguous along K"
                if self.convert_b
                else "convert_b: needs to be True for a B in a block-scaled format"
            )
        if self.convert_b and ((self.tile_m, self.tile_n) != (64, 128) or self.pingpong or self.k_atoms > 1 or self.cluster_m * self.cluster_n > 1):
            # Scale factors come for 128 rows of B at a time; 256 leave too few registers beside four warpgroups.
            return "convert_b: needs tiles of 64x128, the cooperative schedule, clusters of 1x1 and k_atoms 1: warpgroups that convert take the place of a second consumer"
        if self.convert_b and (problem.operand_bits != 16 or problem.b_parts != "single" or problem.grouping != "dense" or problem.b_major != "k"):
            return "convert_b: needs 16-bit products of one weight tensor that is contiguous along K, without groups"
        quantized = problem.a_format is not None
        if quantized and not self.swap:
            return "swap: needs to be True for an A in a block-scaled format"
        if self.swap and (problem.b_parts != "single" or problem.grouping != "dense"):
            return "swap: needs one weight tensor, without groups"
        if quantized and (self.tile_m != 128 or self.pingpong or self.k_atoms > 1 or self.cluster_n > 1):
            return "swap: weights with scale factors need tiles of 128 of them (tile_m), the cooperative schedule, cluster_n 1 and k_atoms 1: their factors come for 128 weights and 64 elements along K at a time"
        if quantized and (problem.operand_bits != 16 or problem.a_major != "k"):
            return "swap: weights with scale factors need 16-bit products, and to be contiguous along K"
        if problem.promotes and self.k_atoms > 1:
            return "k_atoms > 1: 8-bit operands with full accumulation take their sums every 128 elements"
        if problem.promotes and self.pingpong:
            return (
                "pingpong: 8-bit operands with full accumulation need the cooperative schedule, where one warpgroup's additions run beside the other's products"
            )
        if problem.operand_bits != 16 and (problem.a_major, problem.b_major) != ("k", "k"):
            return f"majors {problem.a_major} and {problem.b_major}: the matrix cores read {problem.a_dtype} along K only; transpose the operand first"
        if self.split_k not in (1, 2, 4, 8):
            return f"split_k: found {self.split_k}, needs 1, 2, 4 or 8"
        if self.split_k > 1 and problem.grouping != "dense":
            return f"split_k > 1 shares equal sums, not those of groups (grouping {problem.grouping!r})"
        if self.split_k > 1 and problem.acc_dtype != "float32":
            return f"split_k > 1 adds float32 sums, not {problem.acc_dtype}"
        if self.split_k > 1 and (self.pingpong or self.cluster_m * self.cluster_n > 1):
            return "split_k > 1 goes with the cooperative schedule and clusters of 1x1: the CTAs that share a tile are its cluster"
        # 256 accumulators a thread are the whole register file; above 192 the epilogue would spill.
        accumulators = self.rows_per_warpgroup * self.tile_n // 128
        accumulators *= 2 if problem.promotes else 1
        most = MAX_ACCUMULATORS if self.k_groups == 1 else GROUPED_ACCUMULATORS
        if accumulators > most:
            return f"tile {self.tile_m}x{self.tile_n} needs {accumulators} accumulators a thread in this schedule; the register file holds {most} beside the epilogue"
        if problem.b_parts != "single" and self.tile_n // SLAB_COLUMNS % (2 * self.cluster_m):
            return f"tile_n {self.tile_n} with cluster_m {self.cluster_m}: the 32-row pieces of two weight halves do not divide among the cluster's CTAs"
        if self.stages is not None and self.stages < 2:
            return f"stages: found {self.stages}, needs at least 2"
        if self.stages_for(problem, epilogue_bytes) < 2:
            return f"tile {self.tile_m}x{self.tile_n} leaves no room for two pipeline stages beside {epilogue_bytes} bytes of epilogue"
        return None

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.tile_m}x{self.tile_n}{'-pingpong' if self.pingpong else ''}-cluster{self.cluster_m}x{self.cluster_n}{f'-split{self.split_k}' if self.split_k > 1 else ''}-{self.raster}{self.group}{f'-k{self.k_atoms}' if self.k_atoms > 1 else ''}{f'-groups{self.k_groups}' if self.k_groups > 1 else ''}{'-convert' if self.convert_b else ''}{'-swap' if self.swap else ''}"


def _field(name: str, given: object) -> object:
    """The value of a field, NumPy's integers as Python's; ValueError for another type."""
    kind: type = {"pingpong": bool, "convert_b": bool, "swap": bool, "raster": str}.get(name, int)
    if kind is int and given is None and name == "stages":
        return None
    if kind is int and not isinstance(given, bool):
        try:
            return index(given)  # type: ignore[arg-type]
        except TypeError:
            pass
    elif isinstance(given, kind) and kind is not int:
        return given
    raise ValueError(f"config: {name}: found {given!r} of type {type(given).__name__}, needs {'an integer' if kind is int else f'a {kind.__name__}'}")
