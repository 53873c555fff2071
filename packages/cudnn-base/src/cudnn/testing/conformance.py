"""What every GEMM fusion has to hold, as test classes to inherit. Needs pytest and torch.

    class TestMyOpCpu(GemmConformance):
        device = "cpu"
        def inputs(self, m, n, k, batches): ...

`GemmConformance` runs on any device, `GemmConformanceCuda` adds what only a GPU can show.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch

from cudnn.api_base import APIBase
from cudnn.testing.numeric import assert_as_accurate
from cudnn.testing.poison import Poisoned

Tensors = Mapping[str, Any]  # argument name -> tensor, or a tuple of tensors


def flat(tensors: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor), pairs of tensors one by one."""
    for name, value in tensors.items():
        if isinstance(value, tuple):
            yield from ((f"{name}[{i}]", t) for i, t in enumerate(value))
        else:
            yield name, value


def mapped(function: Callable[[torch.Tensor], Any], tensors: Tensors) -> dict[str, Any]:
    """``function`` of every tensor, in the same arrangement."""
    return {name: tuple(function(t) for t in value) if isinstance(value, tuple) else function(value) for name, value in tensors.items()}


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal in every bit, shape and dtype; NaN equals NaN of the same bits."""
    view = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.dtype.itemsize]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.contiguous().view(view), b.contiguous().view(view))


def spoilt(t: torch.Tensor) -> torch.Tensor:
    """As ``t``, full of NaN; of zeros where its dtype has none; packed 4-bit numbers, of large ones."""
    if t.dtype == torch.float4_e2m1fn_x2:
        return torch.full_like(t.view(torch.uint8), 0x77).view(t.dtype)
    return torch.full_like(t, float("nan") if t.dtype.is_floating_point else 0)


def changed(t: torch.Tensor) -> torch.Tensor:
    """Something that follows from ``t``."""
    return t * 2 if t.dtype.itemsize > 1 else t.clone()


def parameter(t: torch.Tensor) -> torch.Tensor:
    """As a parameter that requires grad; integers, which cannot, as they are."""
    return torch.nn.Parameter(t) if t.dtype.is_floating_point else t


def at_offset(t: torch.Tensor, elements: int) -> torch.Tensor:
    """The same values and strides, as a view that starts ``elements`` into a larger buffer, spoilt around it."""
    span = 0 if 0 in t.shape else 1 + sum((extent - 1) * step for extent, step in zip(t.shape, t.stride(), strict=True))
    buffer = spoilt(torch.empty(elements + span + 64, dtype=t.dtype, device=t.device))
    view = buffer.as_strided(t.shape, t.stride(), elements)
    view.copy_(t)
    return view


class GemmConformance:
    """Tests that a fusion inherits. A subclass gives the six hooks; names of inputs and outputs are the arguments of ``execute``."""

    device = "cpu"
    dtype = torch.bfloat16
    m_step, n_step, k_step = 1, 64, 8  # what M, N and K have to be multiples of
    repeats = 10
    slack: float | None = None  # of `assert_as_accurate`, for sums that are coarser than float32
    initial: Mapping[str, float] = {}  # what outputs hold before a call that adds to them; the others hold NaN
    unaligned: tuple[str, ...] = ()  # tensors whose address may be any
    dynamic_rows: tuple[int, ...] = (24, 40, 136, 56)  # M of calls that have to share a graph

    def inputs(self, m: int, n: int, k: int, batches: int) -> dict[str, Any]:
        """Fresh random inputs of unit scale, as ``execute`` takes them."""
        raise NotImplementedError

    def output_layouts(self, m: int, n: int, k: int, batches: int) -> dict[str, tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]:
        """Shape, strides and dtype of each output of ``execute``."""
        raise NotImplementedError

    def build(self, inputs: Tensors, outputs: Tensors) -> APIBase:
        """The operation for these samples, not compiled."""
        raise NotImplementedError

    def wrapper(self, inputs: Tensors, **options: Any) -> Mapping[str, torch.Tensor]:
        """The wrapper's result, with the same names and dtypes of outputs."""
        raise NotImplementedError

    def reference(self, inputs: Tensors) -> dict[str, torch.Tensor]:
        """Outputs in float32 or float64, not rounded."""
        raise NotImplementedError

    def baseline(self, inputs: Tensors) -> dict[str, torch.Tensor]:
        """Outputs by torch's own operations in the working dtype."""
        raise NotImplementedError

    def terms(self, inputs: Tensors) -> dict[str, torch.Tensor]:
        """For outputs whose elements are sums that can cancel: ``terms`` of `assert_as_accurate`."""
        return {}

    # Helpers

    def poisoned(self, *extents: int) -> dict[str, Poisoned]:
        found = {name: Poisoned(shape, stride, dtype, self.device) for name, (shape, stride, dtype) in self.output_layouts(*extents).items()}
        for name, value in self.initial.items():
            found[name].tensor.fill_(value)
        return found

    def scratch_bytes(self, *extents: int) -> int:
        """What ``workspace_bytes`` has to say."""
        return 0

    def outputs(self, *extents: int) -> dict[str, torch.Tensor]:
        return {name: poisoned.tensor for name, poisoned in self.poisoned(*extents).items()}

    def compiled(self, *extents: int) -> APIBase:
        op = self.build(self.inputs(*extents), self.outputs(*extents))
        assert op.check_support() is True
        op.compile()
        return op

    def check(self, inputs: Tensors, outputs: Tensors) -> None:
        """The outputs are right for the inputs."""
        self.compare(outputs, self.reference(inputs), self.baseline(inputs), self.terms(inputs))

    def compare(self, outputs: Tensors, reference: Tensors, baseline: Tensors, terms: Tensors | None = None) -> None:
        for name in reference:
            assert_as_accurate(name, outputs[name], reference[name], baseline[name], slack=self.slack, terms=(terms or {}).get(name))

    def settled(self, name: str, t: torch.Tensor) -> torch.Tensor:
        """An output of ``poisoned`` with what no call writes as the wrapper leaves it."""
        return t

    def ragged(self) -> list[tuple[int, int, int, int]]:
        """Extents with tails in every direction, a fresh choice each time."""

        def pick(low: int, high: int, step: int) -> int:
            return step * int(torch.randint(low, high + 1, ()))

        found = [(self.m_step, self.n_step, self.k_step, 1), (129 * self.m_step, 3 * self.n_step, 9 * self.k_step, 2)]
        return found + [(pick(1, 400 // self.m_step, self.m_step), pick(1, 7, self.n_step), pick(1, 40, self.k_step), pick(1, 3, 1)) for _ in range(6)]

    def synchronize(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()

    # Tests

    def test_tails_into_poisoned_outputs(self) -> None:
        """One object serves all extents; every element is written, and nothing around the outputs."""
        op = self.compiled(16, self.n_step, 2 * self.k_step, 1)
        for extents in self.ragged():
            inputs, poisoned = self.inputs(*extents), self.poisoned(*extents)
            outputs = {name: p.tensor for name, p in poisoned.items()}
            assert op.execute(**inputs, **outputs) is None
            for name, p in poisoned.items():
                p.check(f"{name} at {extents}")
            self.check(inputs, outputs)

    @pytest.mark.parametrize("axis", ["m", "n", "batches"])
    def test_empty_outputs(self, axis: str) -> None:
        """Nothing to do, no launch, and the next call is right."""
        extents = {"m": 24, "n": self.n_step, "k": 2 * self.k_step, "batches": 2} | {axis: 0}
        op = self.compiled(16, self.n_step, 2 * self.k_step, 1)
        empty = tuple(extents.values())
        op.execute(**self.inputs(*empty), **self.outputs(*empty))
        result = self.wrapper(self.inputs(*empty))
        for name, (shape, _, dtype) in self.output_layouts(*empty).items():
            assert tuple(result[name].shape) == shape and result[name].dtype == dtype
        self.synchronize()
        inputs, outputs = self.inputs(24, self.n_step, 2 * self.k_step, 2), self.outputs(24, self.n_step, 2 * self.k_step, 2)
        op.execute(**inputs, **outputs)
        self.check(inputs, outputs)

    def test_k_of_zero_writes_what_an_empty_sum_gives(self) -> None:
        op = self.compiled(16, self.n_step, 2 * self.k_step, 1)
        extents = (24, self.n_step, 0, 2)
        inputs, poisoned = self.inputs(*extents), self.poisoned(*extents)
        op.execute(**inputs, **{name: p.tensor for name, p in poisoned.items()})
        reference, wrapped = self.reference(inputs), self.wrapper(inputs)
        self.check(inputs, {name: p.tensor for name, p in poisoned.items()})
        for name, p in poisoned.items():
            p.check(name)
            assert name not in reference or reference[name].float().any() or not p.tensor.float().any()
            assert same_bits(wrapped[name], self.settled(name, p.tensor))

    def test_views_with_a_storage_offset(self) -> None:
        extents = (40, 2 * self.n_step, 4 * self.k_step, 2)
        op = self.compiled(*extents)
        inputs = self.inputs(*extents)
        shifted = mapped(lambda t: at_offset(t, 3 * 16 // t.dtype.itemsize), inputs)
        assert all(t.storage_offset() for _, t in flat(shifted))
        plain, moved = self.outputs(*extents), self.outputs(*extents)
        op.execute(**inputs, **plain)
        op.execute(**shifted, **moved)
        self.check(inputs, plain)
        for name, t in plain.items():
            assert same_bits(t, moved[name]), f"{name} differs when the inputs are views"

    def test_wrapper_and_class_agree_bit_for_bit(self) -> None:
        for extents in self.ragged()[:4]:
            inputs, outputs = self.inputs(*extents), self.outputs(*extents)
            self.build(inputs, outputs)(**inputs, **outputs)
            result = self.wrapper(inputs)
            for name, (shape, stride, dtype) in self.output_layouts(*extents).items():
                assert tuple(result[name].shape) == shape and result[name].dtype == dtype
                assert result[name].stride() == stride
                assert same_bits(result[name], outputs[name])

    def test_repeats_are_bit_identical_and_leave_the_inputs_alone(self) -> None:
        extents = (200, 5 * self.n_step, 17 * self.k_step, 2)
        op, inputs = self.compiled(*extents), self.inputs(*extents)
        before = mapped(torch.clone, inputs)
        first = self.outputs(*extents)
        op.execute(**inputs, **first)
        again = self.outputs(*extents)
        for repeat in range(self.repeats):
            for name, t in again.items():
                t.fill_(self.initial.get(name, float("nan")))
            op.execute(**inputs, **again)
            assert all(same_bits(first[name], again[name]) for name in first), f"repeat {repeat} differs"
        for (name, t), (_, old) in zip(flat(inputs), flat(before), strict=True):
            assert same_bits(t, old), f"{name} was written"

    def test_execute_before_compile_is_refused(self) -> None:
        extents = (16, self.n_step, 2 * self.k_step, 1)
        inputs, outputs = self.inputs(*extents), self.outputs(*extents)
        op = self.build(inputs, outputs)
        with pytest.raises(RuntimeError, match="not compiled"):
            op.execute(**inputs, **outputs)
        assert op.workspace_bytes() == op.scratch_workspace_bytes() == self.scratch_bytes(*extents)
        op(**inputs, **outputs)
        self.check(inputs, outputs)

    def test_parameters_that_require_grad(self) -> None:
        """Case 54: accepted, in and outside no_grad, and the result carries no gradient."""
        extents = (16, self.n_step, 2 * self.k_step, 1)
        inputs = mapped(parameter, self.inputs(*extents))
        plain = mapped(torch.Tensor.detach, inputs)
        expected = self.wrapper(plain)
        for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
            with mode():
                result, outputs = self.wrapper(inputs), self.outputs(*extents)
                self.build(inputs, outputs)(**inputs, **outputs)
                for name, t in outputs.items():
                    assert not result[name].requires_grad
                    assert same_bits(result[name], expected[name]) and same_bits(t, expected[name])

    def test_fake_tensors(self) -> None:
        """Shapes, strides and dtypes without any data."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        extents = (24, self.n_step, 2 * self.k_step, 2)
        inputs = self.inputs(*extents)
        with FakeTensorMode() as mode:
            fakes = mapped(mode.from_tensor, inputs)
            result = self.wrapper(fakes)
            for name, (shape, stride, dtype) in self.output_layouts(*extents).items():
                fake = result[name]
                assert (tuple(fake.shape), fake.stride(), fake.dtype, fake.device.type) == (shape, stride, dtype, self.device.partition(":")[0])
            fake_outputs = mapped(mode.from_tensor, self.outputs(*extents))
            assert self.build(fakes, fake_outputs).check_support()

    @pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
    def test_torch_compile_of_the_wrapper(self, dynamic: bool) -> None:
        """Case 51: one graph without a break, and with a dynamic M one graph for all of them."""
        import torch._dynamo.testing

        torch._dynamo.reset()
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

        def layer(inputs):
            result = self.wrapper(inputs)
            return {name: changed(t) for name, t in result.items() if t is not None}

        compiled = torch.compile(layer, fullgraph=True, dynamic=True if dynamic else None, backend=counter)
        sizes = self.dynamic_rows if dynamic else (24, 24)
        graphs = []
        for m in sizes:
            inputs = self.inputs(m, 2 * self.n_step, 4 * self.k_step, 2)
            expected, result = layer(inputs), compiled(inputs)
            for name, t in expected.items():
                assert same_bits(result[name], t) and result[name].stride() == t.stride()
            graphs.append(counter.frame_count)
        # With dynamic=True torch analyses a call with a float argument twice, so that the first count may be two.
        assert graphs[0] in ((1, 2) if dynamic else (1,)) and set(graphs) == {graphs[0]}

    def test_torch_compile_of_the_class(self) -> None:
        import torch._dynamo

        torch._dynamo.reset()
        extents = (24, 2 * self.n_step, 4 * self.k_step, 2)
        op = self.compiled(*extents)

        def layer(inputs, outputs):
            op.execute(**inputs, **outputs)
            return {name: changed(t) for name, t in outputs.items()}

        inputs, eager, traced = self.inputs(*extents), self.outputs(*extents), self.outputs(*extents)
        expected = layer(inputs, eager)
        result = torch.compile(layer, fullgraph=True, backend="aot_eager")(inputs, traced)
        for name, t in eager.items():
            assert same_bits(traced[name], t) and same_bits(result[name], expected[name])

    def test_first_calls_of_sixteen_threads(self) -> None:
        """Cases 44 and 66: threads that never did CUDA work, all at once."""
        extents = (48, 2 * self.n_step, 4 * self.k_step, 1)
        inputs = [self.inputs(*extents) for _ in range(16)]
        self.synchronize()
        results: list[Any] = [None] * 16
        gate = threading.Barrier(16)

        def work(i: int) -> None:
            try:
                gate.wait()
                results[i] = self.wrapper(inputs[i])
                self.synchronize()
            except BaseException as error:  # reported by the test's own thread
                results[i] = error

        threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for i, result in enumerate(results):
            if isinstance(result, BaseException):
                raise result
            self.check(inputs[i], result)


class GemmConformanceCuda(GemmConformance):
    """What only a GPU can show: addresses, streams, the life of memory, graphs, a second device."""

    device = "cuda"
    repeats = 100

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if not cls.device.startswith("cuda"):
            raise TypeError(f"{cls.__name__}: found device {cls.device!r}, needs one of CUDA; a class in front of GemmConformanceCuda sets another")

    def busy(self, milliseconds: float = 20.0) -> None:
        """Keep the current stream occupied."""
        torch.cuda._sleep(int(milliseconds * 2e6))

    def test_misaligned_addresses_are_refused(self) -> None:
        """Case 26: a ValueError before any launch that names the tensor; the process goes on."""
        extents = (40, 2 * self.n_step, 4 * self.k_step, 1)
        op, inputs, outputs = self.compiled(*extents), self.inputs(*extents), self.outputs(*extents)
        for arguments, others in ((inputs, outputs), (outputs, inputs)):
            for name, value in arguments.items():
                shifted = mapped(lambda t: at_offset(t, 1), {name: value})
                if name in self.unaligned:
                    continue
                with pytest.raises(ValueError, match=rf"{name}.*needs (16|32)-byte alignment"):
                    op.execute(**{**arguments, **shifted}, **others)
                if arguments is inputs:
                    with pytest.raises(ValueError, match=rf"{name}.*needs (16|32)-byte alignment"):
                        self.wrapper({**arguments, **shifted})
        op.execute(**inputs, **outputs)
        self.check(inputs, outputs)

    def test_side_stream_without_an_argument(self) -> None:
        """Case 28: the current stream of the tensors' device, also right after a slow producer."""
        extents = (64, 2 * self.n_step, 8 * self.k_step, 1)
        op, source = self.compiled(*extents), self.inputs(*extents)
        expected = self.wrapper(source)
        torch.cuda.synchronize()
        for _ in range(8):
            with torch.cuda.stream(torch.cuda.Stream()):
                inputs, outputs = mapped(spoilt, source), self.outputs(*extents)
                self.busy(5)
                for (_, t), (_, value) in zip(flat(inputs), flat(source), strict=True):
                    t.copy_(value)
                op.execute(**inputs, **outputs)
                wrapped = self.wrapper(inputs)
                torch.cuda.current_stream().synchronize()
            for name, t in outputs.items():
                assert same_bits(t, expected[name]) and same_bits(wrapped[name], expected[name])

    def test_handle_zero_is_the_default_stream(self) -> None:
        """Case 29, and every other spelling of a stream."""
        extents = (64, 2 * self.n_step, 8 * self.k_step, 1)
        op, source = self.compiled(*extents), self.inputs(*extents)
        expected = self.wrapper(source)
        side = torch.cuda.Stream()
        torch.cuda.synchronize()
        for stream in (0, torch.cuda.default_stream(), side, side.cuda_stream):
            owner = side if stream in (side, side.cuda_stream) else torch.cuda.default_stream()
            inputs, outputs = mapped(spoilt, source), self.outputs(*extents)
            torch.cuda.synchronize()
            with torch.cuda.stream(owner):
                self.busy(5)
                for (_, t), (_, value) in zip(flat(inputs), flat(source), strict=True):
                    t.copy_(value)
            op.execute(**inputs, **outputs, current_stream=stream)
            wrapped = self.wrapper(inputs, stream=stream)
            owner.synchronize()
            for name, t in outputs.items():
                assert same_bits(t, expected[name]) and same_bits(wrapped[name], expected[name])

    def test_memory_lives_until_the_launch_stream_is_done(self) -> None:
        """Case 30: inputs dropped, and results poisoned over, while the launch stream is held back."""
        extents = (512, 4 * self.n_step, 32 * self.k_step, 1)
        source = self.inputs(*extents)
        expected = self.wrapper(source)
        side = torch.cuda.Stream()
        for _ in range(3):
            inputs = mapped(torch.clone, source)
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                self.busy(30)
            result = self.wrapper(inputs, stream=side)
            del inputs
            poison = [mapped(spoilt, source) for _ in range(2)]
            poison += [{name: spoilt(expected[name]) for name in self.output_layouts(*extents)} for _ in range(2)]
            side.synchronize()
            torch.cuda.synchronize()
            for name in self.output_layouts(*extents):
                assert same_bits(result[name], expected[name])
            del result, poison

    @pytest.mark.parametrize("through", ["class", "wrapper"])
    def test_graph_capture_and_replay_with_other_values(self, through: str) -> None:
        """Cases 31 and 54: several calls in one graph, parameters that require grad, replayed on changed inputs."""
        extents = (72, 2 * self.n_step, 8 * self.k_step, 1)
        op = self.compiled(*extents)
        sets = [mapped(parameter, self.inputs(*extents)) for _ in range(3)]
        outputs = [self.outputs(*extents) for _ in sets]
        self.wrapper(sets[0])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            for i, inputs in enumerate(sets):
                if through == "class":
                    op.execute(**inputs, **outputs[i])
                else:
                    outputs[i] = dict(self.wrapper(inputs).items())
        for _ in range(3):
            for inputs in sets:
                fresh = self.inputs(*extents)
                for (_, t), (_, other) in zip(flat(inputs), flat(fresh), strict=True):
                    t.data.copy_(other)
            if through == "class":
                for made in outputs:
                    for name, value in self.initial.items():
                        made[name].fill_(value)
            graph.replay()
            torch.cuda.synchronize()
            for inputs, found in zip(sets, outputs, strict=True):
                expected = self.wrapper(inputs)
                for name in self.output_layouts(*extents):
                    assert same_bits(found[name], expected[name]), f"{name}: replay differs from eager"

    def test_second_device(self) -> None:
        """Case 67: tensors decide the device, and the current one stays as it is."""
        if torch.cuda.device_count() < 2:
            pytest.skip("needs two CUDA devices")
        extents = (72, 2 * self.n_step, 8 * self.k_step, 1)
        op, inputs = self.compiled(*extents), self.inputs(*extents)
        expected = self.wrapper(inputs)
        with torch.cuda.device(0):
            moved = mapped(lambda t: t.to("cuda:1"), inputs)
            outputs = {name: t.to("cuda:1") for name, t in self.outputs(*extents).items()}
            op.execute(**moved, **outputs)
            wrapped = self.wrapper(moved)
            assert torch.cuda.current_device() == 0
            torch.cuda.synchronize(1)
        for name, t in outputs.items():
            assert wrapped[name].device == torch.device("cuda:1")
            assert same_bits(t.cpu(), expected[name].cpu()) and same_bits(wrapped[name].cpu(), expected[name].cpu())

    def test_mixed_devices_are_refused(self) -> None:
        """Case 62."""
        extents = (16, self.n_step, 2 * self.k_step, 1)
        op, inputs, outputs = self.compiled(*extents), self.inputs(*extents), self.outputs(*extents)
        for name in (*inputs, *outputs):
            arguments = {**inputs, **outputs}
            arguments[name] = mapped(lambda t: t.cpu(), {name: arguments[name]})[name]
            with pytest.raises(ValueError, match="is on (cpu|cuda:0)"):
                op.execute(**arguments)
        with pytest.raises(ValueError, match="is on (cpu|cuda:0)"):
            op.execute(**mapped(lambda t: t.cpu(), inputs), **mapped(lambda t: t.cpu(), outputs))
        op.execute(**inputs, **outputs)
        self.check(inputs, outputs)
