import sys
import types

import pytest

from cudnn import streams
from cudnn.streams import as_torch_stream, launch_handle, launch_stream, record_streams, stream_context

torch = pytest.importorskip("torch")


class Stream:
    """Stands for torch.cuda.Stream; ids of streams are their handles."""

    device_type = 1

    def __init__(self, stream_id=None, device_index=0, device_type=1):
        self.cuda_stream = self.stream_id = stream_id
        self.device_index = device_index

    def __eq__(self, other):
        return (self.cuda_stream, self.device_index) == (other.cuda_stream, other.device_index)

    __hash__ = None


class ExternalStream(Stream):
    def __init__(self, handle, device=None):
        super().__init__(handle, Torch.cuda.device_now if device is None else device)


class Torch(types.ModuleType):
    """Stands for a torch with CUDA: device 0 is current, its current stream is 700, device 1's the default one."""

    class cuda:
        device_now = 0
        current = {0: 700, 1: 0}
        queries = 0
        Stream, ExternalStream = Stream, ExternalStream
        is_available = is_initialized = staticmethod(lambda: True)

        @classmethod
        def current_device(cls):
            return cls.device_now

        @classmethod
        def _index(cls, device):
            cls.queries += 1
            return cls.device_now if device is None else device

        @classmethod
        def current_stream(cls, device=None):
            index = cls._index(device)
            return Stream(cls.current[index], index)

        @classmethod
        def default_stream(cls, device=None):
            return Stream(0, cls._index(device))

        class stream:
            def __init__(self, stream):
                self.stream = stream

            def __enter__(self):
                cuda = Torch.cuda
                self.before = cuda.device_now, cuda.current[self.stream.device_index]
                cuda.device_now, cuda.current[self.stream.device_index] = self.stream.device_index, self.stream.cuda_stream

            def __exit__(self, *exc):
                Torch.cuda.device_now, Torch.cuda.current[self.stream.device_index] = self.before

    Stream = Stream
    _C = types.SimpleNamespace()
    device = staticmethod(torch.device)


class Tensor:
    """Stands for a torch tensor; notes what is done on which stream."""

    def __init__(self, place="cuda:0", contiguous=True):
        self.device, self.contiguous_, self.log = torch.device(place), contiguous, []

    is_cuda = property(lambda self: self.device.type == "cuda")

    def record_stream(self, stream):
        self.log.append(("record", stream.cuda_stream, stream.device_index))

    def is_contiguous(self):
        return self.contiguous_

    def _act(self, what):
        cuda = Torch.cuda
        self.log.append((what, cuda.current[self.device.index]) if self.is_cuda else (what,))

    def contiguous(self):
        self._act("contiguous")
        return Tensor(str(self.device))

    def copy_(self, src):
        self._act("copy")


class CUstream:
    """Stands for cuda.bindings.driver.CUstream."""

    def __init__(self, handle):
        self.handle = handle

    def __int__(self):
        return self.handle


class Protocol:
    """An object of the CUDA stream protocol."""

    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return 0, self.handle


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", Torch("torch"))
    monkeypatch.setattr(Torch.cuda, "current", {0: 700, 1: 0})
    monkeypatch.setattr(Torch.cuda, "device_now", 0)
    monkeypatch.setattr(Torch.cuda, "queries", 0)
    return Torch.cuda


def spellings(handle):
    return [handle, CUstream(handle), Protocol(handle)]


@pytest.mark.parametrize("handle", [0, 1])
def test_handles_0_and_1_are_torchs_default_stream(handle, fake):
    """Case 29."""
    assert streams.DEFAULT_STREAM_HANDLES == frozenset({0, 1})
    for stream in spellings(handle):
        for place, index in ((None, 0), (1, 1), ("cuda:1", 1), (torch.device("cuda", 1), 1)):
            found = as_torch_stream(stream, place)
            assert (type(found), found.cuda_stream, found.device_index) == (Stream, 0, index)
        assert launch_handle(stream, "torch", 0) == 0 == launch_handle(stream, "jax", None)


@pytest.mark.parametrize("stream", spellings(2))
def test_per_thread_stream_is_refused_before_torch_is_asked(stream, fake):
    for call in (as_torch_stream, launch_stream, stream_context, lambda s: launch_handle(s, "torch", 0), lambda s: record_streams([Tensor()], s)):
        with pytest.raises(ValueError, match="cudaStreamPerThread"):
            call(stream)
    assert fake.queries == 0


def test_as_torch_stream(fake):
    for stream in spellings(700):
        assert type(as_torch_stream(stream)) is Stream  # the current stream itself
        assert type(as_torch_stream(stream, 1)) is ExternalStream  # not current on device 1
    for stream in spellings(800):
        found = as_torch_stream(stream, 1)
        assert (type(found), found.cuda_stream, found.device_index) == (ExternalStream, 800, 1)
    own = Stream(900, 1)
    assert as_torch_stream(own) is own and as_torch_stream(own, "cuda:1") is own
    with pytest.raises(ValueError, match="stream is on cuda:1 but must be on cuda:0"):
        as_torch_stream(own, 0)
    with pytest.raises(TypeError, match="stream is a NoneType, needs a CUstream"):
        as_torch_stream(None)
    for wrong in ("0", 1.5, True, [], object()):
        with pytest.raises(TypeError, match=f"stream is a {type(wrong).__name__}, needs"):
            as_torch_stream(wrong)
    with pytest.raises(ValueError, match="-1 is negative"):
        as_torch_stream(-1)


def test_launch_stream(fake):
    assert launch_stream(None) == Stream(700, 0) and launch_stream(None, 1) == Stream(0, 1)
    assert type(launch_stream(CUstream(800))) is ExternalStream


def test_launch_handle(fake):
    assert launch_handle(None, "torch", None) == 700 and launch_handle(None, "torch", "cuda:1") == 0
    assert launch_handle(None, "jax", None) == 0 == launch_handle(None, "unknown", 1)
    for stream in (*spellings(800), Stream(800, 0)):
        assert launch_handle(stream, "torch", 0) == 800
    with pytest.raises(ValueError, match="must be on cuda:1"):
        launch_handle(Stream(800, 0), "torch", torch.device("cuda", 1))
    with pytest.raises(TypeError, match="stream is a str"):
        launch_handle("800")


def test_launch_handle_prefers_the_raw_query(fake, monkeypatch):
    monkeypatch.setattr(Torch._C, "_cuda_getCurrentRawStream", lambda index: 5000 + index, raising=False)
    assert launch_handle(None, "torch", 1) == 5001 and fake.queries == 0
    assert launch_handle(None, "torch", None) == 700  # no device named: the public way


def test_launch_handle_without_cuda(fake, monkeypatch):
    monkeypatch.setattr(fake, "is_initialized", lambda: False)
    monkeypatch.setattr(fake, "is_available", lambda: False)
    assert launch_handle(None, "torch", "cpu") == 0 and fake.queries == 0


def current(fake):
    return fake.device_now, fake.current[fake.device_now]


def test_stream_context(fake):
    for left_alone in (None, 700, CUstream(700), Stream(700, 0)):
        for verify in (False, True):
            with stream_context(left_alone, 0, verify_current=verify):
                assert current(fake) == (0, 700)
    for stream in (*spellings(800), Stream(800, 0)):
        for verify in (False, True):
            with stream_context(stream, 0, verify_current=verify):
                assert current(fake) == (0, 800)
            assert current(fake) == (0, 700)
    with stream_context(0, 0):
        assert current(fake) == (0, 0)
    with stream_context(1, 1):  # the default stream is current on device 1 already
        assert current(fake) == (0, 700)
    with stream_context(800, 1):
        assert current(fake) == (1, 800)
    assert current(fake) == (0, 700) and fake.current == {0: 700, 1: 0}
    with pytest.raises(ValueError, match="must be on cuda:0"):
        stream_context(Stream(800, 1), 0)


def test_record_streams(fake):
    """Case 30: always recorded, for the current stream too."""
    a, b, host = Tensor(), Tensor("cuda:1"), Tensor("cpu")
    record_streams([a, None, host, b], None)
    assert (a.log, b.log, host.log) == ([("record", 700, 0)], [("record", 0, 1)], [])
    record_streams([a], CUstream(800))
    record_streams([a], 0, "cuda:0")
    assert a.log[1:] == [("record", 800, 0), ("record", 0, 0)]


def test_contiguous_on_stream(fake):
    plain = Tensor()
    assert streams.contiguous_on_stream(plain, 800) is plain and plain.log == []
    assert streams.contiguous_on_stream(None, 800) is None
    strided = Tensor(contiguous=False)
    assert streams.contiguous_on_stream(strided, 800) is not strided
    assert strided.log == [("record", 800, 0), ("contiguous", 800)]
    strided = Tensor(contiguous=False)
    streams.contiguous_on_stream(strided, None)
    assert strided.log == [("record", 700, 0), ("contiguous", 700)]
    host = Tensor("cpu", contiguous=False)
    streams.contiguous_on_stream(host, None)
    assert host.log == [("contiguous",)]


def test_copy_into_on_stream(fake):
    dst, src = Tensor("cuda:1"), Tensor("cuda:1")
    streams.copy_into_on_stream(dst, src, Stream(800, 1))
    assert dst.log == [("record", 800, 1), ("copy", 800)] and src.log == [("record", 800, 1)]
    host = Tensor("cpu")
    streams.copy_into_on_stream(host, Tensor("cpu"), None)
    assert host.log == [("copy",)]


def test_device_neutral_stream_of_torch(fake, monkeypatch):
    class Neutral:
        device, stream_id, device_index, device_type = torch.device("cuda:1"), 900, 1, 1

    monkeypatch.setattr(sys.modules["torch"], "Stream", (Stream, Neutral), raising=False)
    found = as_torch_stream(Neutral(), 1)
    assert (type(found), found.cuda_stream, found.device_index) == (Stream, 900, 1)
    assert launch_handle(Neutral(), "torch", 1) == 900
    Neutral.device = torch.device("cpu")
    with pytest.raises(ValueError, match="stream is on cpu, needs a CUDA stream"):
        as_torch_stream(Neutral())


def test_real_torch_on_the_host(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", torch)
    t = torch.arange(6).view(2, 3).t()
    assert torch.equal(streams.contiguous_on_stream(t, None), t) and streams.contiguous_on_stream(t, None).is_contiguous()
    out = torch.empty(3, 2, dtype=torch.int64)
    streams.copy_into_on_stream(out, t, None)
    assert torch.equal(out, t)
    record_streams([t, None], None)
    with stream_context(None):
        pass


def test_custream():
    driver = pytest.importorskip("cuda.bindings.driver")
    stream = streams.as_custream(4096)
    assert isinstance(stream, driver.CUstream) and int(stream) == 4096 == launch_handle(stream)


def test_custream_without_cuda_bindings(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(ImportError, match=r"needs cuda-bindings: pip install 'cudnn-base\[cutedsl\]'"):
        streams.as_custream(0)


def test_published_path():
    import cudnn._torch_stream as published
    from cudnn import device

    for name in published.__all__:
        assert getattr(published, name) is getattr(device if name == "device_context" else streams, name)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", torch)
    side = torch.cuda.Stream()
    assert launch_handle(None, "torch", torch.device("cuda", 0)) == torch.cuda.current_stream(0).cuda_stream == 0
    with torch.cuda.stream(side):
        assert launch_handle(None, "torch", torch.device("cuda", 0)) == side.cuda_stream == launch_handle(None)
        assert as_torch_stream(side.cuda_stream) == side and as_torch_stream(0) == torch.cuda.default_stream()
        with stream_context(0):
            assert torch.cuda.current_stream() == torch.cuda.default_stream()
        assert torch.cuda.current_stream() == side
    assert as_torch_stream(side.cuda_stream).cuda_stream == side.cuda_stream
    # A copy made on the side stream of memory that is dropped at once: the allocator must not hand it out before the copy is done.
    x = torch.full((1 << 22,), 3.0, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
    out = torch.empty_like(x)
    streams.copy_into_on_stream(out, x, side.cuda_stream)
    del x
    poison = [torch.full((1 << 22,), -1.0, device="cuda") for _ in range(4)]
    torch.cuda.synchronize()
    assert out.eq(3.0).all() and len(poison) == 4
