# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""The one-step way through execute, with a stand-in for libcudnn and a class that behaves as torch's tensors do: what it runs, and what it leaves alone."""

from __future__ import annotations

SETUP = """
import sys, types
from cudnn_graph.handle import Handle
from cudnn_graph.tensor import Tensor

class Storage:
    def __init__(self, nbytes):
        self.bytes = nbytes
    def nbytes(self):
        return self.bytes

class Buffer:
    def __init__(self, address, numel, dtype="half", device=0, contiguous=True, storage=None, offset=0):
        self.address, self.count, self.dtype, self.device, self.contiguous, self.offset = address, numel, dtype, device, contiguous, offset
        self.storage = Storage(2 * numel if storage is None else storage)
        self.nbytes = numel
    def data_ptr(self):
        return self.address
    def numel(self):
        return self.count
    def is_contiguous(self):
        return self.contiguous
    def get_device(self):
        return self.device
    def element_size(self):
        return 2
    def storage_offset(self):
        return self.offset
    def untyped_storage(self):
        return self.storage

g = matmul_graph(handle=create_handle())
g.build()
plan = g._plans[g._chosen]
a, b, c = (g.find_tensor(name) for name in "abc")
needs = [ext.Requirement(s.uid, s.by_value, s.span, s.span_bytes, ["half", "other"]) for s in g._table.specs]
handle = Handle(g.handle.backend_handle, 0, 0)
handle._context = 0
launcher = ext.Launcher(plan._prepared, g._table.positions(), Tensor, needs, [Buffer], Handle, 0, 1000)
asked = []
def settle(ordinal):
    asked.append(ordinal)
    return handle
def allocate(size, for_handle):
    asked.append([size, for_handle is handle])
    return Buffer(1 << 20, size)
def good():
    return {a: Buffer(256, 2 * 64 * 32), b.uid: Buffer(512, 2 * 32 * 48), "c": Buffer(768, 2 * 64 * 48)}
def attempt(buffers, workspace=64, given=None):
    before = len(log())
    done = launcher.execute(buffers, workspace, handle if given is None else given, settle, allocate)
    assert done == (len(log()) == before + 1)
    return done
"""


def test_it_runs_what_fits(fake_cudnn) -> None:
    result = fake_cudnn.run(SETUP + """
done = [attempt(good()), attempt({1: 256, 2: 512, 3: 768})]
wide = good()
wide[a] = Buffer(256, 2 * 64 * 32, contiguous=False, storage=8192 + 32, offset=16)
done.append(attempt(wide))
done.append(attempt({**good(), a.uid: Buffer(1024, 2 * 64 * 32)}))
done.append(launcher.execute(good(), None, None, settle, allocate))
done.append(attempt(good(), Buffer(4096, 1000)))
result = [done, [(run["uids"], run["pointers"], run["workspace"]) for run in log() if "uids" in run], asked]
""")
    done, runs, asked = result
    assert done == [True] * 6
    uids = [1, 2, 3]
    assert runs[:3] == [[uids, [256, 512, 768], 64]] * 3
    assert runs[3:] == [[uids, [1024, 512, 768], 64], [uids, [256, 512, 768], 1 << 20], [uids, [256, 512, 768], 4096]]
    assert asked == [0, [1000, True]]


def test_it_leaves_alone_what_does_not(fake_cudnn) -> None:
    result = fake_cudnn.run(SETUP + """
class Other(Buffer):
    pass
def but(key, value):
    buffers = good()
    buffers[key] = value
    return buffers
short = Buffer(256, 2 * 64 * 32 - 1)
cases = {
    "dtype": but(a, Buffer(256, 2 * 64 * 32, dtype="float")), "short": but(a, short),
    "storage": but(a, Buffer(256, 2 * 64 * 32, contiguous=False, storage=8191)),
    "offset": but(a, Buffer(256, 2 * 64 * 32, contiguous=False, storage=8192, offset=1)),
    "host": but(a, Buffer(256, 2 * 64 * 32, device=-1)), "two devices": but(a, Buffer(256, 2 * 64 * 32, device=1)),
    "null": but(a, Buffer(0, 2 * 64 * 32)), "null address": but(a, 0), "huge address": but(a, 1 << 70), "number": but(a, 1.5), "none": but(a, None),
    "subclass": but(a, Other(256, 2 * 64 * 32)), "virtual or unknown uid": but(99, 16), "unknown name": but("x", 16), "bool": but(True, 16), "float key": but(1.0, 16),
    "other graph": but(matmul_graph().find_tensor("a"), 16), "missing": {a: Buffer(256, 2 * 64 * 32), "c": Buffer(768, 2 * 64 * 48)}, "empty": {}, "list": [1, 2, 3],
}
elsewhere = {t: Buffer(256, 2 * 64 * 48, device=1) for t in (a, b, c)}
gone = Handle(None, 0, None)
unknown = Handle(g.handle.backend_handle, None, 0)
other = Handle(g.handle.backend_handle, 1, 0)
class Mine(Handle):
    __slots__ = ()
result = {name: attempt(buffers) for name, buffers in cases.items()}
result["other device"] = attempt(elsewhere)
for name, one in (("destroyed", gone), ("unknown device", unknown), ("handle of another device", other), ("int", 5), ("subclass of Handle", Mine(handle.backend_handle, 0, 0))):
    result[name] = attempt(good(), given=one)
result["workspace short"] = attempt(good(), Buffer(4096, 999))
result["workspace of another kind"] = attempt(good(), bytearray(1000))
""")
    assert result and not any(result.values()), result


def test_errors_pass_and_misaligned_buffers_are_named(fake_cudnn) -> None:
    result = fake_cudnn.run(SETUP + """
def broken(ordinal):
    raise KeyError("settle")
class Angry(Buffer):
    def get_device(self):
        raise KeyError("device")
angry = ext.Launcher(plan._prepared, g._table.positions(), Tensor, needs, [Angry], Handle, 0, 1000)
result = [
    failure(launcher.execute, good(), 64, None, broken, allocate),
    failure(angry.execute, {a: Angry(256, 2 * 64 * 32)}, 64, handle, settle, allocate),
    failure(launcher.execute, {1: 257, 2: 512, 3: 768}, 64, handle, settle, allocate),
    failure(launcher.execute, {1: 256, 2: 512, 3: 768}, 0xBAD0, handle, settle, allocate),
]
g._launcher = launcher
g.execute({1: 256, 2: 512, 3: 768}, 64, handle)
result.append(failure(g.execute, {1: 256, 2: 512, 3: 768}, 0xBAD0, handle))
result.append(failure(g.execute, {1: 256, 2: 512}, 64, handle))
g.select_plan(g._chosen)
result.append(g._launcher is None)
""")
    settle, device, misaligned, failed, shown, missing, reset = result
    assert settle == [["KeyError", "LookupError", "Exception", "BaseException", "object"], "'settle'"]
    assert device[1] == "'device'"
    assert misaligned[0][0] == "ValueError" and "tensor uid 1 ('a') starts at 0x101, which is not a multiple of 16 bytes" in misaligned[1]
    assert failed[0][0] == "BackendError" and "the launch failed" in failed[1]
    assert shown[0][0] == "RuntimeError" and shown[1].startswith("executing plan 'eng1_k2=5_k3=1_k14=3' failed: cudnnBackendExecute: status 5000")
    assert missing[1] == "missing a buffer for tensor uid 3 ('c')"
    assert reset is True


def test_execute_makes_it_on_its_first_run_and_again_when_torch_comes_in(fake_cudnn) -> None:
    result = fake_cudnn.run("""
from cudnn_graph.handle import Handle
h = create_handle()
g = matmul_graph(handle=h)
g.build()
plan = g._plans[g._chosen]
result = [g._launcher is None]
made = []
real = type(plan).launcher
type(plan).launcher = lambda self, table: made.append(1) or real(self, table)
g.execute({1: 256, 2: 512, 3: 768}, 64)
plan._ordinal = 0
g.execute({1: 256, 2: 512, 3: 768}, 64)
first = g._launcher
g.execute({1: 256, 2: 512, 3: 768}, 64)
result += [first is not None, g._launcher is first, g._launcher_knows_torch]
import torch
g.execute({1: 256, 2: 512, 3: 768}, 64)
result += [g._launcher_knows_torch, g._launcher is not first, len([run for run in log() if "uids" in run])]
""")
    assert result[:2] == [True, True] and result[2] is True and result[3] is False
    assert result[4] is True and result[5] is True and result[6] == 4
