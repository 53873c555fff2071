"""A made-up operation on CPU tensors and a made-up clock, so that everything but the timing itself runs here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cudnn.bench import Benchmark, Candidate, HostPath
from cudnn.bench.timing import Prepared

try:
    import torch
except ImportError:  # each module of tests that needs it skips
    torch = None

# Microseconds per call that the made-up clock shows.
TIMES = {"ours": 100.0, "ours[tile=64]": 80.0, "eager": 150.0, "half": 60.0, "broken": 1.0}


class FakeTimer:
    """Makes every call once, and shows TIMES with a spread of 10 % around the median."""

    def __init__(self, times=TIMES):
        self.times, self.prepared, self.order = times, [], []

    def prepare(self, name, calls):
        self.prepared.append((name, len(calls)))

        def run():
            for call in calls:
                call()

        run()
        return Prepared(run, len(calls), "graph", 0.0)

    def measure(self, prepared, repeats):
        for candidate in prepared.values():
            candidate.run()
        self.order.append(list(prepared))
        return {name: [self.times.get(name, 10.0) * (0.9 + 0.2 * i / (repeats - 1)) for i in range(repeats)] for name in prepared}

    def keep_busy(self, prepared, us):
        self.order.append((prepared.calls, us))

    def host(self, name, call):
        call()
        return [6.0, 5.0, 9.0]


def _inputs(shape, dtype, device, generator):
    m, k = shape
    return {"x": torch.randn(m, k, generator=generator, device=device).to(getattr(torch, dtype))}


def _candidate(name, compute, **options):
    def bind(inputs):
        out = torch.empty_like(inputs["x"])

        def call():
            out.copy_(compute(inputs["x"]))
            return out

        return call

    return Candidate(name, f"{name} of the toy", bind, lambda out: {"y": out}, in_place=True, **options)


def _raise(inputs):
    raise MemoryError("no room for 3 stages")


def _broken(x):
    return x * 2.1


def _nan(x):
    y = x * 2
    y[0, 0] = float("nan")
    return y


def _only_once():
    """A peer whose first call is right and whose later ones write nothing."""

    def bind(inputs):
        out = inputs["x"] * 2
        return lambda: out

    return Candidate("frozen", "writes once", bind, lambda out: {"y": out}, in_place=True)


@pytest.fixture
def toy():
    """y = 2 x, with right, wrong, failing, missing and partial peers."""

    def ours(config):
        return _candidate("ours" if config is None else f"ours[{','.join(f'{k}={v}' for k, v in config.items())}]", lambda x: x * 2)

    peers = {
        "eager": _candidate("eager", lambda x: x + x),
        "half": _candidate("half", lambda x: x * 2, whole=False),
        "broken": _candidate("broken", _broken),
        "nan": _candidate("nan", _nan),
        "raises": Candidate("raises", "raises", _raise, lambda out: {"y": out}),
        "frozen": _only_once(),
        "absent": _candidate("absent", lambda x: x, missing=lambda: "not installed (pip install absent)"),
    }
    bench = Benchmark(
        op="toy_double",
        title="Doubling",
        axes=("M", "K"),
        shapes={"large": ((64, 32), (32, 64)), "small-m": ((1, 64),)},
        inputs=_inputs,
        ours=ours,
        peers=tuple(peers.values()),
        reference=lambda inputs: {"y": inputs["x"].float() * 2},
        # The working dtype's own error is zero for a doubling; this one is what rounding a third would cost.
        baseline=lambda inputs: {"y": (inputs["x"].float() * 2 * (1 + 2**-9)).to(inputs["x"].dtype)},
        flops=lambda shape: 1e9 * shape[0],
        bytes=lambda shape, dtype: 1e6 * shape[1],
        host_paths=(
            HostPath("Toy.execute", lambda inputs: lambda: inputs["x"] * 2),
            HostPath("absent call", lambda inputs: None, lambda: "absent"),
            HostPath("raising call", _raise),
        ),
        host_shape=(1, 1),
    )
    return SimpleNamespace(bench=bench, peers=peers, ours=ours)


RATES = {"matmul_tflops": 500.0, "copy_tb_s": 4.0}


@pytest.fixture
def measured(toy):
    """measured(names, shapes=..., dtype=...) -> (rows, timer): rows as a run on a GPU would have them."""
    from cudnn.bench import run

    def measure(names=("eager", "half"), shapes="large", dtype="bfloat16", configs=(), timer=None, seed=3):
        timer = timer or FakeTimer()
        candidates, _ = run.choose(toy.bench, list(names), configs)
        state = {"sm_mhz": 1755, "power_w": 610.5}
        rows = [
            run.measure_shape(toy.bench, group, shape, dtype, candidates, timer, device="cpu", repeats=21, rates=RATES, seed=seed, state=lambda: state)
            for group, shape in toy.bench.parse_shapes(shapes)
        ]
        return rows, timer

    return measure


@pytest.fixture
def result(toy, measured):
    """result(names, ...) -> the JSON data of a whole run."""
    from cudnn.bench import run

    def make(names=("eager", "half"), date=None, times=None, device="NVIDIA H200", **options):
        rows, timer = measured(names, timer=FakeTimer({**TIMES, **(times or {})}), **options)
        host = run.measure_host(toy.bench.host_paths, {"x": torch.ones(1, 1)}, timer)
        made = run.result(
            toy.bench,
            rows,
            host,
            device={"name": device, "driver": "580.1"},
            versions={"cudnn-base": "0.1.0", "torch": "2.11.0", "cuda": "13.0"},
            rates={rows[0]["dtype"]: RATES},
            repeats=21,
            left_out={"absent": "not installed (pip install absent)"},
            command="python -m cudnn bench run toy_double",
        )
        return {**made, **({"date": date} if date else {})}

    return make
