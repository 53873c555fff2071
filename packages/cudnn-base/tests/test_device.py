import subprocess
import sys
import threading

import pytest

from cudnn import _env, device
from cudnn.device import DeviceInfo, device_info, ensure_current_context, get_compute_capability, require_arch, select_backend, sm_count
from cudnn.errors import ArchitectureError
from cudnn.tensor_desc import TensorDesc
from cudnn.tensors import Device

torch = pytest.importorskip("torch")

ATTRIBUTES = {16: 132, 38: 50 * 2**20, 75: 9, 76: 0, 97: 232448}


class Driver:
    """Stands for libcuda with two devices; the current context is per thread, context 100 + n is the primary one of device n."""

    def __init__(self, count=2, capabilities=((9, 0), (8, 6))):
        self.count, self.capabilities = count, capabilities
        self.streams = {}
        self.retained = []
        self.capture_mode, self.modules, self.function, self.asked, self.refuses = 0, 0, {}, [], None
        self._thread = threading.local()

    @property
    def stack(self):
        if not hasattr(self._thread, "stack"):
            self._thread.stack = []
        return self._thread.stack

    def cuDeviceGetCount(self, count):
        count._obj.value = self.count
        return 0

    def cuDeviceGet(self, handle, ordinal):
        handle._obj.value = ordinal
        return 0 if ordinal < self.count else 101

    def cuDeviceGetAttribute(self, value, attribute, handle):
        if attribute not in ATTRIBUTES:
            return 1
        major_minor = self.capabilities[handle.value]
        value._obj.value = {75: major_minor[0], 76: major_minor[1]}.get(attribute, ATTRIBUTES[attribute])
        return 0

    def cuDeviceGetName(self, name, size, handle):
        name.value = f"Device {handle.value}".encode()
        return 0

    def cuDevicePrimaryCtxRetain(self, context, handle):
        self.retained.append(handle.value)
        context._obj.value = 100 + handle.value
        return 0

    def cuCtxGetDevice(self, handle):
        if not self.stack:
            return 201
        handle._obj.value = self.stack[-1] % 100
        return 0

    def cuCtxSetCurrent(self, context):
        self.stack[-1:] = [context.value]
        return 0

    def cuCtxPushCurrent_v2(self, context):
        self.stack.append(context.value)
        return 0

    def cuCtxPopCurrent_v2(self, context):
        context._obj.value = self.stack.pop()
        return 0

    def cuThreadExchangeStreamCaptureMode(self, mode):
        mode._obj.value, self.capture_mode = self.capture_mode, mode._obj.value
        return 0

    def cuModuleLoadData(self, module, image):
        assert self.stack and self.capture_mode == 2 and image.endswith(b"\0")
        module._obj.value = 7
        self.modules += 1
        return 0

    def cuModuleUnload(self, module):
        assert module.value == 7
        self.modules -= 1
        return 0

    def cuModuleGetFunction(self, kernel, module, name):
        kernel._obj.value = 8
        return 0

    def cuFuncSetAttribute(self, kernel, attribute, value):
        self.function[attribute] = value
        return self.refuses == attribute

    def cuOccupancyMaxActiveClusters(self, count, kernel, config):
        config = config._obj
        assert kernel.value == 8 and config.count == 1 and config.attributes[0].id == 4 and config.stream is None
        size = config.attributes[0].value[0]
        assert list(config.grid) == [size, 1, 1] and config.shared_bytes == self.function[8]
        self.asked.append((self.stack[-1] % 100, size))
        count._obj.value = 120 // size
        return 0

    def cuStreamGetCtx(self, stream, context):
        if stream.value not in self.streams:
            return 400
        context._obj.value = self.streams[stream.value]
        return 0


@pytest.fixture
def driver(monkeypatch):
    fake = Driver()
    monkeypatch.setattr(_env, "cuda_driver", lambda: fake)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(device, "_primary_contexts", {})
    device_info.cache_clear()
    yield fake
    device_info.cache_clear()


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(_env, "cuda_driver", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    device_info.cache_clear()
    yield
    device_info.cache_clear()


def fake_cuda(*shape, place="cuda:0"):
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(*shape, device=place)


def test_properties_from_the_driver(driver):
    info = device_info(0)
    assert info is device_info(0) and info is not device_info(1) and repr(info) == "DeviceInfo(cuda:0)"
    assert (info.compute_capability, info.sm_version, info.sm_count) == ((9, 0), 90, 132)
    assert (info.shared_memory_per_block_optin, info.l2_cache_bytes, info.device_name) == (232448, 50 * 2**20, "Device 0")
    assert info.oversized_shared_memory_per_block == 0  # this driver does not know the attribute
    assert device_info(1).sm_version == 86
    assert device.cuda_is_available() and get_compute_capability(1) == (8, 6) and get_compute_capability() == (9, 0) and sm_count(1) == 132
    with pytest.raises(ArchitectureError, match="CUDA device 2 is not available; this process sees 2 CUDA devices"):
        get_compute_capability(2)


def test_clusters_that_are_resident_at_once(driver):
    """Of the device that is asked about, once for each size, under any capture, with nothing left behind."""
    info = device_info(1)
    assert [info.resident_clusters(4) for _ in range(2)] == [30, 30] and info.resident_clusters(2) == 60
    assert driver.asked == [(1, 4), (1, 2)] and (driver.capture_mode, driver.modules, driver.stack) == (0, 0, [])
    driver.refuses = 14
    assert info.resident_clusters(8) is None and (driver.capture_mode, driver.modules, driver.stack) == (0, 0, [])
    with pytest.raises(ArchitectureError, match="CUDA device 2"):
        device_info(2).resident_clusters(4)


def test_properties_are_asked_for_once(driver, monkeypatch):
    info = device_info(0)
    assert info.compute_capability == (9, 0)
    monkeypatch.setattr(driver, "cuDeviceGetAttribute", None)
    assert info.compute_capability == (9, 0)


def test_torch_is_asked_where_it_has_cuda(driver, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda ordinal: (10, ordinal))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 7)
    assert get_compute_capability() == (10, 7) and get_compute_capability(3) == (10, 3) and device.current_device() == 7


def test_without_a_gpu(no_gpu):
    assert not device.cuda_is_available() and device.current_device() == 0
    with pytest.raises(RuntimeError, match="CUDA device 0 is not available; this process sees 0 CUDA devices"):
        get_compute_capability()
    with pytest.raises(RuntimeError, match="CUDA device 3"):
        DeviceInfo(3).device_name  # noqa: B018
    with device.device_context("cuda:0"), device.device_context(None), device.device_context("cpu"):
        pass
    ensure_current_context(stream=12345, device=0)


def test_device_ordinal(driver):
    assert [device.device_ordinal(d) for d in (None, 3, "cuda:1", "cpu", torch.device("cuda", 2), torch.device("cpu"), Device("cuda", 5))] == [
        None,
        3,
        1,
        None,
        2,
        None,
        5,
    ]
    driver.stack.append(101)
    assert device.device_ordinal("cuda") == device.device_ordinal(torch.device("cuda")) == 1
    for wrong in ("mps", torch.device("meta"), object()):
        with pytest.raises(ValueError, match="is no CUDA device"):
            device.device_ordinal(wrong)


def test_architecture_gate(driver, monkeypatch):
    require_arch("GemmSwiglu", 0)
    require_arch("GemmSwiglu")
    require_arch("GemmSwiglu", 1, supported=((9, 0), (8, 6)))
    with pytest.raises(RuntimeError, match=r'GemmSwiglu needs compute capability 9\.0, found 8\.6 on cuda:1; .*backend="reference"') as caught:
        require_arch("GemmSwiglu", 1)
    assert isinstance(caught.value, ArchitectureError)
    with pytest.raises(RuntimeError, match=r"needs compute capability 9\.0 or 10\.0, found 8\.6"):
        require_arch("Op", 1, ((9, 0), (10, 0)))
    driver.stack.append(101)
    with pytest.raises(RuntimeError, match="on cuda:1"):
        require_arch("GemmSwiglu")


def test_architecture_gate_without_a_gpu(no_gpu):
    with pytest.raises(RuntimeError, match=r'GemmSwiglu needs a CUDA device of compute capability 9\.0, found no CUDA device; or pass backend="reference"'):
        require_arch("GemmSwiglu", 0)


def test_backend():
    host, gpu = torch.empty(2), fake_cuda(2)
    assert select_backend("auto", {"a": host, "b": None}) == "reference"
    assert select_backend("auto", [("a", gpu), ("b", fake_cuda(3))]) == "sm90" == select_backend("sm90", {"a": gpu})
    assert select_backend("reference", {"a": gpu}) == "reference" == select_backend("reference", {"a": host})
    assert select_backend("auto", {"a": TensorDesc("half", (2,), (1,), (0,), "cuda:0")}) == "sm90"
    with pytest.raises(ValueError, match="backend is 'sm100', needs one of 'auto', 'sm90', 'reference'"):
        select_backend("sm100", {"a": host})
    with pytest.raises(ValueError, match="at least one tensor"):
        select_backend("auto", {"a": None})
    with pytest.raises(RuntimeError, match='backend="sm90" needs CUDA tensors, found b_tensor on cpu'):
        select_backend("sm90", {"a_tensor": None, "b_tensor": host})
    with pytest.raises(ValueError, match='backend="auto" serves tensors on cuda and cpu, found a on meta'):
        select_backend("auto", {"a": torch.empty(2, device="meta")})
    for backend in device.BACKENDS:
        with pytest.raises(ValueError, match="b is on cpu but a is on cuda:0"):
            select_backend(backend, {"a": gpu, "b": host})


def test_device_context_through_the_driver(driver):
    with device.device_context(1):
        assert driver.stack == [101]
        with device.device_context("cuda:1"):
            assert driver.stack == [101]  # current already
        with pytest.raises(KeyError), device.device_context(0):
            assert driver.stack == [101, 100]
            raise KeyError
        assert driver.stack == [101]
    assert driver.stack == [] and driver.retained == [1, 0]
    with device.device_context(1):
        assert driver.retained == [1, 0]  # once per device
    with pytest.raises(ArchitectureError, match="CUDA device 5 cannot be made current"), device.device_context(5):
        pass


def test_device_context_through_torch(driver, monkeypatch):
    entered = []

    class Guard:
        def __init__(self, index):
            self.index = index

        def __enter__(self):
            entered.append(self.index)

        def __exit__(self, *exc):
            entered.append(-self.index)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device", Guard)
    with device.device_context(torch.device("cuda", 1)):
        assert entered == []
    with device.device_context(3):
        assert entered == [3]
    assert entered == [3, -3] and driver.stack == []


class TestContext:
    """The rules of ensure_current_context, in their order."""

    def test_stream_wins_over_current_context_and_device(self, driver):
        driver.streams[5000] = 101
        driver.stack.append(100)
        ensure_current_context(stream=5000, device=0)
        assert driver.stack == [101] and driver.retained == []

    @pytest.mark.parametrize("stream", [None, 0, 1, 2, 6000])
    def test_default_and_unknown_streams_decide_nothing(self, driver, stream):
        ensure_current_context(stream=stream, device=1)
        assert driver.stack == [101]

    def test_device_changes_a_context_that_is_elsewhere(self, driver):
        driver.stack.append(100)
        ensure_current_context(device=1)
        assert driver.stack == [101]

    def test_device_leaves_a_context_of_its_own(self, driver):
        driver.stack.append(301)  # not the primary context, but on device 1
        ensure_current_context(device="cuda:1")
        assert driver.stack == [301] and driver.retained == []

    def test_current_context_stays(self, driver):
        driver.stack.append(101)
        ensure_current_context()
        assert driver.stack == [101]

    def test_primary_context_of_the_current_device(self, driver):
        ensure_current_context()
        assert driver.stack == [100]

    def test_each_thread_is_bound_and_each_device_retained_once(self, driver):
        bound = []

        def work():
            ensure_current_context(device=1)
            bound.append(list(driver.stack))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert bound == [[101]] * 8 and driver.retained == [1] and driver.stack == []

    def test_absent_device_is_no_error(self, driver):
        ensure_current_context(device=9)
        assert driver.stack == []


def test_versions_are_zero_without_libraries(monkeypatch):
    def missing(*args, **kw):
        raise OSError("not here")

    monkeypatch.setattr(_env.ctypes, "CDLL", missing)
    assert _env.driver_version() == 0 and _env.runtime_version() == 0


def test_versions_are_asked_from_the_libraries(monkeypatch):
    class Library:
        def __init__(self, path, mode=None):
            if path != "libcudart.so.12" and path != "libcuda.so.1":
                raise OSError(path)

        @staticmethod
        def cudaRuntimeGetVersion(version):
            version._obj.value = 12080
            return 0

        @staticmethod
        def cuDriverGetVersion(version):
            version._obj.value = 13000
            return 0

    monkeypatch.setattr(_env.ctypes, "CDLL", Library)
    assert _env.driver_version() == 13000 and _env.runtime_version() == 12080


SCRIPT = """
import sys
sys.modules["torch"] = sys.modules["numpy"] = sys.modules["cutlass"] = sys.modules["cuda"] = None
from cudnn import _env, device, streams, tensors, workspace, api_base
assert isinstance(device.cuda_is_available(), bool)
assert isinstance(_env.driver_version(), int) and isinstance(_env.runtime_version(), int)
device.ensure_current_context()
with device.device_context(None):
    pass
assert streams.launch_handle(None, "jax") == 0 and streams.launch_handle(1, "unknown") == 0 and streams.launch_handle(4096) == 4096
assert api_base.get_device_type() in ("rubin", "blackwell")
desc = api_base.TensorDesc("float16", (2, 3), (3, 1), (1, 0), tensors.Device("cpu"))
assert desc.size() == (2, 3) and tensors.metadata(desc)[0] == "float16"
assert device.select_backend("auto", {"a": desc}) == "reference"
print(sorted(m for m in sys.modules if m.partition(".")[0] in ("torch", "numpy", "cutlass", "jax", "cuda", "tvm_ffi") and sys.modules[m]))
"""


def test_without_any_library():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_torch_and_driver_agree():
    driver = _env.cuda_driver()
    assert driver is not None and _env.driver_version() >= 12080 and _env.runtime_version() >= 12000
    info, properties = DeviceInfo(0), torch.cuda.get_device_properties(0)
    assert info._attribute(75) == properties.major and info._attribute(76) == properties.minor
    assert info._attribute(16) == properties.multi_processor_count == info.sm_count
    assert info.l2_cache_bytes == properties.L2_cache_size and info.device_name == properties.name
    if info.compute_capability == (9, 0):
        # Some multiprocessors of a chip may belong to no cluster of this size, and most belong to one.
        for size in (1, 2, 4, 8):
            assert 0.75 * info.sm_count <= info.resident_clusters(size) * size <= info.sm_count
    torch.zeros(1, device="cuda")
    bound = []

    def work():
        ensure_current_context(device=0)
        bound.append(device._context_device(driver))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert bound == [0]
