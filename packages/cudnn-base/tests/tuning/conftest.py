"""A made-up operation whose configurations differ in speed, and a made-up clock, so that everything but the timing itself runs here."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="the tuner measures through torch, which is not installed")

from cudnn import cache  # noqa: E402
from cudnn.bench.timing import Prepared  # noqa: E402
from cudnn.cutedsl.gemm.config import GemmConfig  # noqa: E402
from cudnn.tuning import state, table, tuner  # noqa: E402
from cudnn.tuning.case import Case  # noqa: E402

DEVICE = "NVIDIA H200"

# out = 2 x, or out + 2 x. What a configuration does is told by its tile, so that processes which only have the specification build the same.
KERNELS = """
from dataclasses import dataclass

from cudnn.cache import fetch
from cudnn.cutedsl.gemm.config import GemmConfig

@dataclass(frozen=True)
class Problem:
    dtype: str = "float32"
    adds: bool = False

@dataclass(frozen=True)
class Options:
    scale: float = 2.0

@dataclass(frozen=True)
class Spec:
    problem: Problem
    config: GemmConfig
    op: str = "toy"
    arch: str = "sm_90a"

    @property
    def dtype(self):
        return self.problem.dtype

    @property
    def label(self):
        return f"toy {self.config}"

    def build(self):
        def build():
            if self.config.tile_n == 96:
                raise ValueError("no room for two pipeline stages")
            return kernel(self.problem.adds, self.config.tile_n)

        def dump(built, path):
            with open(path, "w") as file:
                file.write(f"{self.problem.adds:d} {self.config.tile_n}")

        def load(path):
            with open(path) as file:
                adds, tile_n = map(int, file.read().split())
            return kernel(bool(adds), tile_n)

        fields = {"toy": self.config.as_dict(), "adds": self.problem.adds}
        return fetch(fields, ("toy_kernels",), build=build, dump=dump, load=load, label=self.label)

def kernel(adds, tile_n):
    def run(x, out):
        if tile_n == 160:
            raise RuntimeError("launch refused")
        if tile_n == 192:
            return  # writes nothing
        value = 2 * x
        if tile_n == 224:
            value[0, -1] += 0.5  # one element is off
        out.copy_(out + value if adds else value)
    return run
"""


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """A cache folder, kernels and a device of one's own, no results from before, and a warning that nothing is missing."""
    cache.clear(disk=False)
    monkeypatch.setenv("CUDNN_KERNELS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(table.VARIABLE, raising=False)
    monkeypatch.setattr(table, "_session", {})
    monkeypatch.setattr(table, "_files", {})
    monkeypatch.setattr(tuner, "device_name", lambda ordinal: DEVICE)
    yield
    assert state.active is None


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    folder = tmp_path / "modules"
    folder.mkdir()
    source = folder / "toy_kernels.py"
    source.write_text(KERNELS)
    os.utime(source, (1, 1))  # older than this process: what changes while a process runs is not stored
    monkeypatch.syspath_prepend(folder)
    sys.modules.pop("toy_kernels", None)
    import toy_kernels

    yield toy_kernels
    sys.modules.pop("toy_kernels", None)


def config(tile_n, **fields):
    return GemmConfig(128, tile_n, **fields)


class FakeClock:
    """Makes every call once, and shows ``times`` by tile_n."""

    def __init__(self, times, rough=None):
        self.times, self.rough, self.estimated, self.prepared, self.repeats = times, rough or times, [], [], None

    def estimate(self, calls):
        for call in calls:
            call()
        self.estimated.append(calls[0].config.tile_n)
        return self.rough[calls[0].config.tile_n] * (1.0 + 0.01 * (len(self.estimated) % 3))

    def prepare(self, name, calls):
        assert name == str(calls[0].config)
        self.prepared.append(calls[0].config.tile_n)
        calls[0]()
        return Prepared(calls[0], len(calls), "graph", 0.0)

    def measure(self, prepared, repeats):
        self.repeats = repeats
        return {name: [self.times[p.run.config.tile_n] * (0.9 + 0.2 * i / (repeats - 1)) for i in range(repeats)] for name, p in prepared.items()}


class Toy:
    """The operation: as a real one it shows each call to whoever is active, and then runs it."""

    DEFAULT = config(128)
    CANDIDATES = (config(64), config(128), config(256))

    def __init__(self, kernels, problem=None, candidates=CANDIDATES, default=DEFAULT, built=None, why_not=None):
        self.kernels, self.problem = kernels, problem or kernels.Problem()
        self.candidates, self.default, self.why_not = candidates, default, why_not
        self.built = built or (default,)
        self.adopted, self.ran = {}, []

    def __call__(self, x, out):
        def describe():
            rows, columns = x.shape
            return Case(
                op="toy",
                problem=self.problem,
                options=self.kernels.Options(),
                extents=(rows, columns, 8, 1),
                default=self.default,
                built=self.built,
                candidates=self.candidates,
                package="toy_kernels",
                tensors=(x, out),
                operands=1,
                spec=lambda c: self.kernels.Spec(self.problem, c),
                bind=self.bind,
                adopt=lambda c: self.adopted.__setitem__((rows, columns), c),
            )

        if state.active is not None and not state.active.visit(self, tuple(x.shape), describe, self.why_not):
            return
        used = self.adopted.get(tuple(x.shape), self.default)
        self.ran.append(used)
        self.bind(used, (x, out))()

    def bind(self, chosen, tensors):
        kernel = self.kernels.Spec(self.problem, chosen).build()

        def call():
            kernel(*tensors)

        call.config = chosen
        return call


@pytest.fixture
def toy(kernels):
    """toy(**options) -> (operation, x, out): fresh random tensors."""

    def make(rows=40, columns=24, dtype=torch.float32, **options):
        if options.pop("adds", False):
            options["problem"] = kernels.Problem(adds=True)
        return Toy(kernels, **options), torch.randn(rows, columns).to(dtype), torch.randn(rows, columns).to(dtype)

    return make


@pytest.fixture
def gpu(monkeypatch):
    """gpu(times) -> the clock that the tuner uses, and no check for a GPU."""

    def pretend(times, rough=None):
        clock = FakeClock(times, rough)
        monkeypatch.setattr(tuner, "_cuda_timer", lambda ordinal: clock)
        for module in ("cudnn.tuning.api", "cudnn.tuning.cli"):
            monkeypatch.setattr(f"{module}.require_gpu", lambda who: None)
        return clock

    return pretend


@pytest.fixture
def entry(kernels):
    """entry(**fields) -> a result of the toy."""

    def make(m=64, n=64, k=8, batches=1, best=256, problem=None, **fields):
        problem = problem or kernels.Problem()
        made = table.Entry(
            "toy", table.described(problem), table.described(kernels.Options()), table.bucket(m, n, k, batches), config(best), 10.0, config(128), 12.0
        )
        return replace(made, **fields)

    return make


@pytest.fixture
def names():
    return SimpleNamespace(config=config, device=DEVICE, FakeClock=FakeClock)
