# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""The extension's descriptors: values in and out, lifetimes, and errors with everything the library says."""

from __future__ import annotations

import pytest


def test_attributes_go_in_and_come_out(fake_cudnn) -> None:
    result = fake_cudnn.run("""
d = ext.Descriptor(17)
d.set(902, 3, [2, 3, 2**40]); d.set(901, 1, 9); d.set(907, 2, True); d.set(5000, 2, [True, False]); d.set(5001, 4, [0.5, -2.0]); d.set(5002, 5, 1e300)
d.set(5003, 6, [16, 2**63]); d.set(5004, 23, (7, -8)); d.set(5005, 24, "text"); d.set(5006, 0, 48)
result = [d.get(902, 3), d.get(901, 1), d.get(907, 2), d.get(5000, 2), d.get(5001, 4), d.get(5002, 5), d.get(5003, 6), d.get(5004, 23),
          d.get(5005, 24).decode(), d.get(5006, 0), d.count(902, 3), d.get(902, 3, 2), d.type, d.finalized]
same = d.finalize()
result += [same is d, d.finalized]
""")
    assert result[:10] == [[2, 3, 2**40], [9], [True], [True, False], [0.5, -2.0], [1e300], [16, 2**63], [7, -8], "text", [48]]
    assert result[10:] == [3, [2, 3], 17, False, True, True]


def test_a_failed_call_carries_status_text_and_the_librarys_own_words(fake_cudnn) -> None:
    result = fake_cudnn.run("""
def caught(call):
    try:
        call()
    except ext.BackendError as error:
        return [isinstance(error, RuntimeError), error.status, error.status_text, error.last_error, error.call, error.descriptor_type, error.attribute, str(error)]
reduction = ext.Descriptor(21); reduction.set(1600, 18, 5)
tensor = ext.Descriptor(17)
result = [caught(reduction.finalize), caught(lambda: tensor.get(902, 3))]
""")
    assert result[0] == [
        True,
        3000,
        "FAKE_REFUSED",
        "no such reduction",
        "cudnnBackendFinalize",
        21,
        None,
        "cudnnBackendFinalize on a descriptor of type 21: status 3000 (FAKE_REFUSED): no such reduction",
    ]
    assert result[1][1] == 2000 and result[1][4:7] == ["cudnnBackendGetAttribute", 17, 902]
    assert result[1][7].endswith("on a descriptor of type 17, attribute 902: status 2000 (FAKE_REFUSED): the attribute was not set")


def test_descriptors_live_as_long_as_something_needs_them(fake_cudnn) -> None:
    result = fake_cudnn.run("""
import gc
def make():
    parent = ext.Descriptor(19)
    parent.set(1520, 15, ext.Descriptor(17))
    parent.set(1521, 15, [ext.Descriptor(17), ext.Descriptor(17)])
    return parent
counts = [fake.fake_alive()]
parent = make(); gc.collect(); counts.append(fake.fake_alive())
parent.set(1521, 15, [ext.Descriptor(17)]); gc.collect(); counts.append(fake.fake_alive())
del parent; gc.collect(); counts.append(fake.fake_alive())
for _ in range(50):
    try:
        d = ext.Descriptor(21); d.set(1600, 18, 6); d.finalize()
    except RuntimeError:
        pass
del d; gc.collect(); counts.append(fake.fake_alive())
result = counts
""")
    assert result == [0, 4, 3, 0, 0]


def test_values_of_the_wrong_type_are_refused(fake_cudnn) -> None:
    result = fake_cudnn.run("""
d = ext.Descriptor(17)
result = [failure(d.set, 902, 3, ["x"]), failure(d.set, 902, 3, 1.5), failure(d.set, 902, 26, 1), failure(d.get, 902, 15), failure(d.set, 1, 15, 3)]
""")
    for kinds, _ in result:
        assert kinds[0] in ("TypeError", "RuntimeError"), kinds
    assert "FRACTION" in result[2][1] and "get_descriptors" in result[3][1]


def test_the_messages_of_the_package_name_descriptor_and_attribute(fake_cudnn) -> None:
    result = fake_cudnn.run("""
from cudnn_graph.descriptors import DescriptorBuilder, backend_error
from cudnn_graph.lowering.records import Recipe, Ref
from cudnn_graph.constants import Attr, Desc, Type
tensors = {7: Recipe("tensor 'x' (uid 7)", Desc.TENSOR, [(Attr.TENSOR_STRIDES, Type.INT64, [4, -1, 1])])}
builder = DescriptorBuilder(tensors, ext.Descriptor, ext.BackendError)
bad = Recipe("node 'r' (REDUCTION)", Desc.REDUCTION, [(Attr.REDUCTION_OPERATOR, Type.REDUCTION_OPERATOR_TYPE, 6)])
result = [failure(builder.make, Recipe("node 'p'", Desc.OPERATION_POINTWISE, [(Attr.OPERATION_POINTWISE_XDESC, Type.BACKEND_DESCRIPTOR, Ref(7))])),
          failure(builder.make, bad)]
""")
    assert result[0][0] == ["RuntimeError", "Exception", "BaseException", "object"]
    assert result[0][1] == "tensor 'x' (uid 7): cudnnBackendFinalize (TENSOR) returned FAKE_REFUSED (2000): a stride is negative"
    assert result[1][0] == ["RuntimeError", "Exception", "BaseException", "object"]
    assert result[1][1] == "node 'r' (REDUCTION): cudnnBackendFinalize (REDUCTION) returned FAKE_REFUSED (3000): no such reduction"


def test_one_descriptor_per_tensor(fake_cudnn) -> None:
    result = fake_cudnn.run("""
from cudnn_graph.descriptors import make_operation_graph
from cudnn_graph.lowering import lower
made = []
def factory(kind):
    made.append(kind)
    return ext.Descriptor(kind)
g = pygraph(io_data_type=e.data_type.FLOAT)
x = g.tensor([1, 4, 8])
y = g.add(g.mul(x, x), x); y.set_output(True)
g.validate()
make_operation_graph(lower(g, 91900), factory, ext.BackendError)
result = made
""")
    assert (result.count(17), result.count(0), result.count(13), result.count(15)) == (3, 2, 2, 1)


def test_finalize_may_be_asked_for_in_two_threads(fake_cudnn) -> None:
    result = fake_cudnn.run("""
import threading
errors = []
def work():
    try:
        for _ in range(200):
            d = ext.Descriptor(17); d.set(903, 3, [1]); d.finalize(); d.get(903, 3)
    except Exception as error:
        errors.append(repr(error))
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
result = [errors, fake.fake_alive()]
""")
    assert result == [[], 0]


@pytest.mark.parametrize("bad", ["'x' * 3", "None", "object()"])
def test_create_needs_a_number(fake_cudnn, bad: str) -> None:
    assert fake_cudnn.run(f"result = failure(ext.Descriptor, {bad})")[0][0] == "TypeError"
