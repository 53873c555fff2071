# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""Handles: identity, streams, destruction, and the default handles of threads."""

from __future__ import annotations


def test_a_handle_is_an_identity_with_a_cached_stream(fake_cudnn) -> None:
    result = fake_cudnn.run("""
a, b = create_handle(), create_handle()
result = [a == a, a == b, len({a, b}), failure(int, a)[0][0], get_stream(a), ext.get_stream(a.backend_handle)]
set_stream(a, 64); set_stream(handle=a, stream=64); set_stream(a, 80)
result += [get_stream(a), ext.get_stream(a.backend_handle), get_stream(b), log(), repr(a).startswith("Handle(0x"), "stream=80" in repr(a)]
""")
    assert result[:6] == [True, False, 2, "TypeError", 0, 0]
    # The second of two equal streams reaches the library no more.
    assert result[6:] == [80, 80, 0, [{"stream": 64}, {"stream": 80}], True, True]


def test_destroying_is_idempotent_and_leaves_a_handle_without_stream(fake_cudnn) -> None:
    result = fake_cudnn.run("""
h = create_handle()
set_stream(h, 64)
destroy_handle(h); destroy_handle(h)
result = [h.backend_handle, get_stream(h), repr(h)]
set_stream(h, 96)
result += [get_stream(h), log(), to_backend_handle(h)]
""")
    assert result[:3] == [None, None, "Handle(destroyed, cuda:?, stream=None)"]
    assert result[3:] == [96, [{"stream": 64}], None]


def test_only_handles_are_accepted(fake_cudnn) -> None:
    result = fake_cudnn.run("""
h = create_handle()
result = [failure(destroy_handle, 5), failure(set_stream, 5, 0), failure(get_stream, None), failure(to_backend_handle, h.backend_handle),
          to_backend_handle(None), to_backend_handle(h) == h.backend_handle, failure(set_stream, h, "fast"), failure(lambda: h.device),
          failure(pygraph, handle=17)]
""")
    assert [kinds[0] for kinds, _ in result[:4]] == ["TypeError"] * 4
    assert "raw backend handles are no longer accepted" in result[3][1]
    assert result[4:6] == [None, True]
    assert result[6][0][0] == "TypeError"
    assert result[7][0][0] == "RuntimeError" and "without the ordinal of its device" in result[7][1]


def test_streams_of_other_spellings(fake_cudnn) -> None:
    result = fake_cudnn.run("""
class Stream:
    def __cuda_stream__(self):
        return (0, 112)
h = create_handle()
set_stream(h, Stream())
result = [get_stream(h), ext.get_stream(h.backend_handle)]
""")
    assert result == [112, 112]


def test_default_handles_belong_to_a_thread_and_outlive_it(fake_cudnn) -> None:
    result = fake_cudnn.run("""
import threading, gc
import cudnn_graph.handle as module
mine = default_handle()
seen = []
def work():
    seen.append(default_handle())
    seen.append(default_handle())
    seen.append(default_handle(3))
for _ in range(3):
    thread = threading.Thread(target=work); thread.start(); thread.join(); del thread; gc.collect()
first, again, other = seen[:3]
result = [mine is default_handle(), first is again, first is mine, first is other, len({id(h) for h in seen}), first.backend_handle is not None,
          sorted(ordinal for ordinal, handles in module._pool.items() if handles)]
destroy_default_handles()
result += [mine.backend_handle, default_handle() is mine, default_handle().backend_handle is not None]
""")
    # Threads that follow one another share the handles that the first one left, on each device.
    assert result[:6] == [True, True, False, False, 2, True]
    assert result[6] == [-1, 3]
    assert result[7:] == [None, False, True]


def test_threads_at_the_same_time_have_different_handles(fake_cudnn) -> None:
    result = fake_cudnn.run("""
import threading
barrier = threading.Barrier(4)
seen = []
def work():
    seen.append(default_handle())
    barrier.wait()
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
result = len({id(h) for h in seen})
""")
    assert result == 4


def test_nothing_is_said_at_exit_with_handles_and_plans_alive(fake_cudnn) -> None:
    # run() checks that the interpreter ends with status 0 and an empty stderr.
    assert fake_cudnn.run("""
kept = [create_handle(), default_handle()]
g = matmul_graph(handle=kept[0])
g.build()
import sys
sys.kept_for_later = (kept, g)
result = 1
""") == 1


def test_without_a_device_the_error_says_so(real_cudnn) -> None:
    import pytest

    from cudnn_graph.handle import create_handle

    if real_cudnn.current_context()[1] >= 0:
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(RuntimeError, match=r"no cuDNN handle can be made on the current device: cudnnCreate: status \d+ \(CUDNN_STATUS_\w+\)"):
        create_handle()
