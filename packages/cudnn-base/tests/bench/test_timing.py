"""The CUDA clock's arithmetic and order, on a simulated device. What it shows on a real one is for the benchmarks to say."""

from __future__ import annotations

import contextlib
import statistics
from types import SimpleNamespace

import pytest

from cudnn.bench import timing


class Device:
    """A device whose clock only calls move: each knows its microseconds. Stands for the part of torch that the timer uses."""

    def __init__(self, capture_fails_for=()):
        self.now, self.log, self.capturing, self.fails = 0.0, [], None, set(capture_fails_for)
        cuda = SimpleNamespace(Event=self.event, CUDAGraph=self.new_graph, graph=self.graph, synchronize=lambda device: None, _sleep=self.sleep)
        self.torch = SimpleNamespace(cuda=cuda, device=lambda name: name)

    def call(self, name, us):
        def run():
            if self.capturing is not None:
                if name in self.fails:
                    raise RuntimeError("operation not permitted when stream is capturing\nmore")
                self.capturing.append(run)
                return
            self.now += us
            self.log.append(name)

        return run

    def sleep(self, cycles):
        assert cycles > 0
        self.now += cycles / timing._CYCLES_PER_US

    def event(self, enable_timing):
        assert enable_timing
        made = SimpleNamespace(at=None, synchronize=lambda: None)
        made.record = lambda: setattr(made, "at", self.now)
        made.elapsed_time = lambda other: (other.at - made.at) / 1e3
        return made

    def new_graph(self):
        held = SimpleNamespace(calls=[])
        held.replay = lambda: [call() for call in held.calls]
        return held

    @contextlib.contextmanager
    def graph(self, held, capture_error_mode):
        self.capturing = held.calls
        try:
            yield
        finally:
            self.capturing = None


@pytest.fixture
def make():
    def build(**options):
        device = Device(**options)
        timer = timing.CudaTimer.__new__(timing.CudaTimer)
        timer._torch, timer.device = device.torch, "cuda:0"
        return device, timer

    return build


def test_microseconds_per_call_whatever_the_number_of_calls(make):
    device, timer = make()
    short, long = (timer.prepare(name, [device.call(name, us) for _ in range(3)]) for name, us in (("short", 20.0), ("long", 5000.0)))
    assert (short.method, short.calls, short.calls % 3) == ("graph", 63, 0)
    assert long.calls == 3
    times = timer.measure({"short": short, "long": long}, 20)
    assert {name: statistics.median(values) for name, values in times.items()} == {"short": pytest.approx(20.0), "long": pytest.approx(5000.0)}
    assert all(len(values) == 20 for values in times.values())


def test_turns_are_interleaved_in_another_order_each_round(make):
    device, timer = make()
    prepared = {name: timing.Prepared(device.call(name, 1.0), 1, "graph", 0.0) for name in "abc"}
    timer.measure(prepared, 40)
    rounds = ["".join(device.log[i : i + 3]) for i in range(0, 3 * 41, 3)]
    assert len(device.log) == 3 * 41 and rounds[0] == "abc"
    assert all(sorted(turns) == ["a", "b", "c"] for turns in rounds) and len(set(rounds)) == 6


def test_every_set_of_inputs_takes_its_turn(make):
    device, timer = make()
    prepared = timer.prepare("x", [device.call(str(i), 400.0) for i in range(4)])
    device.log.clear()
    prepared.run()
    assert device.log == ["0", "1", "2", "3"]


def test_what_cannot_be_captured_is_launched_behind_a_delay(make):
    device, timer = make(capture_fails_for=("peer",))
    prepared = timer.prepare("peer", [device.call("peer", 50.0)])
    assert prepared.method == "events" and prepared.note == "no graph capture: RuntimeError: operation not permitted when stream is capturing"
    assert prepared.cover_us > 0
    assert statistics.median(timer.measure({"peer": prepared}, 20)["peer"]) == pytest.approx(50.0)


def test_rates_are_the_best_matmul_and_both_directions_of_a_copy(monkeypatch, make):
    device, timer = make()
    # 2 x 1024**3 operations in 10 us are 214.7 TFLOP/s; 2 x 2048**3 in 100 us are 171.8.
    monkeypatch.setattr(timing, "_matmul", lambda extent, dtype, where: device.call(str(extent), {1024: 10.0, 2048: 100.0}[extent]))
    monkeypatch.setattr(timing, "_copy", lambda count, where: device.call("copy", 500.0))
    rates = timing.measure_rates(timer, "bfloat16", "cuda:0", extents=(1024, 2048), copy_bytes=1_000_000_000)
    assert rates == {"matmul_tflops": pytest.approx(2 * 1024**3 / 10 / 1e6), "copy_tb_s": pytest.approx(4.0)}


def test_the_device_is_kept_busy_for_about_as_long_as_asked(make):
    device, timer = make()
    prepared = timing.Prepared(device.call("x", 1000.0), 1, "graph", 0.0)
    timer.keep_busy(prepared, 1000.0, seconds=0.1)
    assert device.now == pytest.approx(1e5)
    timer.keep_busy(prepared, 1e9, seconds=0.1)
    assert device.now == pytest.approx(1e5 + 1000.0)


def test_host_cost_is_per_call(make):
    import time

    device, timer = make()
    times = timer.host("x", lambda: time.sleep(0.001), blocks=5, calls=4)
    assert len(times) == 5 and all(us >= 1000 for us in times)
