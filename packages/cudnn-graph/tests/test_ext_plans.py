# Copyright 2026 The cudnn for Hopper authors
# SPDX-License-Identifier: Apache-2.0
"""The backend engine end to end against the stand-in: proposals, filters, building, execution, storing."""

from __future__ import annotations

import pytest

ENGINE_1 = "eng1_k2=5_k3=1_k14=3"


def test_heuristics_are_asked_in_order_and_give_each_configuration_once(fake_cudnn) -> None:
    result = fake_cudnn.run("""
result = []
for modes in (None, [e.heur_mode.B], [e.heur_mode.FALLBACK, e.heur_mode.A], [e.heur_mode.B, e.heur_mode.OPENSOURCE]):
    g = matmul_graph(handle=create_handle())
    g.validate(); g.build_operation_graph(); g.create_execution_plans(modes)
    result.append([g.get_plan_name_at_index(i) for i in range(g.get_execution_plan_count())])
""")
    assert result == [["eng2", ENGINE_1, "eng3", "eng0"], ["eng0"], [ENGINE_1, "eng0", "eng2", "eng3"], ["eng0"]]


def test_the_first_plan_that_compiles_is_taken(fake_cudnn) -> None:
    result = fake_cudnn.run("""
g = matmul_graph(handle=create_handle())
g.build()
index = g._chosen
result = [g.get_plan_name_at_index(index), g.get_workspace_size(), g.selected_engine is None, [n.name for n in g.get_behavior_notes()],
          [[n.name for n in p.numerical_notes] for p in g.plans], [k.name for k in g.get_engine_and_knobs_at_index(1)[1]], g.get_engine_and_knobs_at_index(1)[0]]
g.build_plans(e.build_plan_policy.ALL)
result += [[plan is not None for plan in g._plans], g._failures]
""")
    assert result[:4] == [ENGINE_1, 1000, True, ["RUNTIME_COMPILATION", "SUPPORTS_CUDA_GRAPH_NATIVE_API"]]
    # A note without a public name (99) is left out, and so is the superseded knob 3.
    assert result[4] == [[], ["TENSOR_CORE"], [], []]
    assert result[5:7] == [["TILE_SIZE", "STAGES"], 1]
    assert result[7] == [False, True, False, True]
    assert result[8] == {
        "0": "plan 'eng2': cudnnBackendFinalize (EXECUTION_PLAN) returned FAKE_REFUSED (3003): engine 2 does not take this type",
        "2": "plan 'eng3': cudnnBackendFinalize (EXECUTION_PLAN) returned FAKE_FAILED (4001): the kernel does not compile",
    }


def test_no_plan_left_lists_every_reason(fake_cudnn) -> None:
    result = fake_cudnn.run("""
g = matmul_graph(handle=create_handle())
g.validate(); g.build_operation_graph(); g.create_execution_plans()
g.deselect_engines(["eng0"]).deselect_workspace_greater_than(999)
result = [failure(g.check_support)]
g = matmul_graph(handle=create_handle(), sm_count=1)
result.append(failure(g.build))
""")
    kinds, text = result[0]
    assert kinds[:2] == ["cudnnGraphNotSupportedError", "Exception"] and "RuntimeError" not in kinds
    for part in ("No valid engine configs for matmul", "engine 2 does not take this type", "needs 1000 bytes of workspace, limit 999", "bars 'eng0'"):
        assert part in text
    assert "cuDNN proposes no engine: heuristic A: FAKE_REFUSED (3000): no engine for one multiprocessor; heuristic FALLBACK" in result[1][1]


def test_execution_passes_sorted_uids_pointers_scalars_workspace_and_stream(fake_cudnn) -> None:
    result = fake_cudnn.run("""
h = create_handle()
g = pygraph("s", io_data_type=e.data_type.HALF, compute_data_type=e.data_type.FLOAT, backend="cudnn", handle=h)
a, b = g.tensor([2, 64, 32], uid=900), g.tensor([2, 32, 48], uid=30)
p = g.tensor([1, 1, 1], is_pass_by_value=True, data_type=e.data_type.FLOAT, uid=31, name="p")
y = g.add(g.mul(g.matmul(a, b), g.tensor_scalar(2.5, e.scalar_type.RUNTIME_PARAM)), p).set_output(True).set_uid(5)
g.build()
scalar = next(t.uid for t in g.tensors.values() if t.scalar_value is not None)
set_stream(h, 4096)
g.execute({a: 16 * 5, 30: 16 * 6, y: 16 * 7, "p": 0.25}, workspace=16 * 8)
g.execute([80, 96, 112, -7.0], tensor_uids=[900, 30, 5, 31], workspace=16 * 9)
result = [scalar, log()]
""")
    scalar, (_, first, second) = result
    uids = sorted([900, 30, 31, 5, scalar])
    assert first["uids"] == uids and first["engine"] == 1 and first["stream"] == 4096
    by_uid = dict(zip(first["uids"], first["pointers"], strict=True))
    assert (by_uid[900], by_uid[30], by_uid[5]) == (80, 96, 112)
    order = [uid for uid in uids if uid in (scalar, 31)]
    assert first["values"] == [2.5 if uid == scalar else 0.25 for uid in order]
    assert second["values"] == [2.5 if uid == scalar else -7.0 for uid in order]
    assert (first["workspace"], second["workspace"]) == (128, 144)


def test_errors_of_a_call(fake_cudnn) -> None:
    result = fake_cudnn.run("""
h = create_handle()
g = matmul_graph(handle=h)
g.build()
plan, a, b, c = g._plans[g._chosen], 16, 32, 48
from cudnn_graph.engines.base import ExecutionContext as Ctx
result = [
    failure(g.execute, {"a": 16, "b": 32}, 64),
    failure(plan.execute, {1: 16, 2: 32}, Ctx(h, 0, 64)),
    failure(g.execute, {"a": 24, "b": 32, "c": 48}, 64),
    failure(plan.execute, {1: 16, 2: 32, 3: 48}, Ctx(h, 0, None)),
    failure(plan.execute, {1: 16, 2: 32, 3: 48}, Ctx(h, 0, memoryview_workspace := type("W", (), {"nbytes": 999, "data_ptr": lambda self: 64})())),
    failure(g.execute, {"a": 16, "b": 32, "c": 48}, 0xBAD0),
]
other = create_handle(); destroy_handle(other)
result.append(failure(plan.execute, {1: 16, 2: 32, 3: 48}, Ctx(other, 0, 64)))
g.execute({"a": 16, "b": 32, "c": 48}, 64)
result.append(len(log()))
""")
    missing, missing_below, misaligned, no_workspace, small_workspace, failed, destroyed, executions = result
    for kinds, text in (missing, missing_below):
        assert kinds[0] == "ValueError" and text == "missing a buffer for tensor uid 3 ('c')"
    assert misaligned[0][0] == "ValueError"
    assert misaligned[1].startswith("the buffer for tensor uid 1 ('a') starts at 0x18, which is not a multiple of 16 bytes")
    assert no_workspace == [["ValueError", "Exception", "BaseException", "object"], no_workspace[1]] and "needs a workspace of 1000 bytes" in no_workspace[1]
    assert small_workspace[0][0] == "ValueError" and "needs a workspace of 1000 bytes, the one given holds 999" in small_workspace[1]
    assert failed[0][0] == "RuntimeError" and failed[1].startswith(f"executing plan '{ENGINE_1}' failed: cudnnBackendExecute: status 5000 (FAKE_FAILED)")
    assert failed[1].endswith("the launch failed")
    assert destroyed[0][0] == "RuntimeError" and "it was destroyed" in destroyed[1]
    # None of the refused calls reached the library.
    assert executions == 1


def test_single_elements_need_the_alignment_of_one_element_only(fake_cudnn) -> None:
    result = fake_cudnn.run("""
h = create_handle()
g = pygraph(io_data_type=e.data_type.HALF, compute_data_type=e.data_type.FLOAT, backend="cudnn", handle=h)
a, s = g.tensor([1, 64, 32]), g.tensor([1, 1, 1], data_type=e.data_type.FLOAT)
y = g.mul(a, s).set_output(True)
g.build()
g.execute({a: 16, s: 36, y: 48}, 64)
result = [log()[-1]["pointers"], failure(g.execute, {a: 16, s: 34, y: 48}, 64)]
""")
    assert result[0] == [16, 36, 48]
    assert "not a multiple of 4 bytes" in result[1][1]


def test_a_handle_that_is_gone_is_replaced_when_more_plans_are_built(fake_cudnn) -> None:
    result = fake_cudnn.run("""
h = create_handle()
g = matmul_graph(handle=h)
g.build()
destroy_handle(h)
g.build_plans(e.build_plan_policy.ALL)
fresh = create_handle()
g.execute({"a": 16, "b": 32, "c": 48}, 64, handle=fresh)
result = [log()[-1]["engine"], [plan is not None for plan in g._plans]]
""")
    assert result == [1, [False, True, False, True]]


def test_explicit_engines_and_knobs(fake_cudnn) -> None:
    result = fake_cudnn.run("""
g = matmul_graph(handle=create_handle())
g.validate(); g.build_operation_graph()
result = [g.get_engine_count(), [[k.type.name, k.min_value, k.max_value, k.stride] for k in g.get_knobs_for_engine(1)], g.get_knobs_for_engine(0) == []]
g.create_execution_plan(1, {e.knob_type.STAGES: 4})
g.build_plans()
result += [g.get_plan_name_at_index(0), g.get_engine_and_knobs_at_index(0)[1] == {e.knob_type.STAGES: 4}]
result += [failure(g.create_execution_plan, 9, {}), failure(g.create_execution_plan, 1, {e.knob_type.PACK_GQA: 1}), failure(g.create_execution_plan, 1, {e.knob_type.STAGES: 101})]
""")
    count, knobs, none, name, same, unknown, foreign, out_of_range = result
    assert (count, none, name, same) == (4, True, "eng1_k14=4", True)
    assert knobs == [["TILE_SIZE", 1, 9, 2], ["STAGES", 1, 9, 2]]
    assert unknown[0][0] == "ValueError" and "cuDNN has no engine 9" in unknown[1] and "it has 4" in unknown[1]
    assert foreign[0][0] == "ValueError" and "PACK_GQA" in foreign[1]
    assert "cudnnGraphNotSupportedError" in out_of_range[0] and "the knob's value is out of range" in out_of_range[1]


def test_a_stored_plan_comes_back_and_runs(fake_cudnn) -> None:
    result = fake_cudnn.run("""
h = create_handle()
g = pygraph("s", io_data_type=e.data_type.HALF, compute_data_type=e.data_type.FLOAT, backend="cudnn", handle=h)
a, b = g.tensor([2, 64, 32]), g.tensor([2, 32, 48])
y = g.mul(g.matmul(a, b), g.tensor_scalar(-3.0, e.scalar_type.RUNTIME_PARAM)).set_output(True)
g.build()
data = g.serialize()
again = pygraph()
again.deserialize(h, data)
again.execute({a.uid: 16, b.uid: 32, y.uid: 48}, 64)
g.execute({a: 16, b: 32, y: 48}, 64)
plan = g._plans[g._chosen]
stored = json.loads(json.dumps(plan.serialize()))
from cudnn_graph.engines.registry import backend_engine
from cudnn_graph.engines.base import ExecutionContext as Ctx
config, loaded = backend_engine().load_plan(again, stored, Ctx(h))
result = [log(), again.get_workspace_size(), config.name, config.knobs == plan._config.knobs, config.behavior_notes == plan._config.behavior_notes,
          failure(backend_engine().load_plan, again, {"name": 1}, Ctx(h)), failure(backend_engine().load_plan, again, {**stored, "plan": "gibberish"}, Ctx(h))]
""")
    (loaded, original), workspace, name, knobs, notes, broken, other_version = result
    for run in (loaded, original):
        run["pointers"] = [pointer for pointer in run["pointers"] if pointer < 1 << 20]
    assert loaded == original and loaded["values"] == [-3.0]
    assert (workspace, name, knobs, notes) == (1000, ENGINE_1, True, True)
    assert broken[0][0] == "ValueError"
    assert other_version[0][0] == "cudnnGraphNotSupportedError" and "made by another version" in other_version[1] and "9.19.0" in other_version[1]


def test_a_plan_is_made_again_for_another_device_once(fake_cudnn) -> None:
    result = fake_cudnn.run("""
from cudnn_graph.engines.base import ExecutionContext as Ctx
from cudnn_graph.engines.backend_plan import BackendPlan
first, second = create_handle(), create_handle()
first._ordinal, second._ordinal = 0, 1
g = matmul_graph(handle=first)
g.build()
plan = g._plans[g._chosen]
before = fake.fake_alive()
pack = {1: 16, 2: 32, 3: 48}
for handle in (second, first, second, first):
    plan.execute(pack, Ctx(handle, 0, 64))
result = [fake.fake_alive() - before, len(plan._elsewhere), [run["engine"] for run in log()]]
""")
    assert result == [1, 1, [1, 1, 1, 1]]


def test_other_shapes_for_one_call(fake_cudnn) -> None:
    script = """
g = matmul_graph(handle=create_handle(), is_override_shape_enabled=True)
result = [failure(g.build)]
if result[0] is None:
    g.execute({"a": 16, "b": 32, "c": 48}, 64, override_uids=[3, 1], override_shapes=[[2, 8, 48], [2, 8, 32]], override_strides=[[384, 48, 1], [256, 32, 1]])
    result.append(log()[-1])
"""
    kinds, text = fake_cudnn.run(script)[0]
    assert kinds[0] == "RuntimeError" and text == "is_override_shape_enabled=True needs cuDNN 9.21.0 or newer; the loaded library is 9.19.0"
    result = fake_cudnn.run(script, FAKE_CUDNN_VERSION="92100")
    assert result[0] is None
    assert (result[1]["override_uids"], result[1]["shapes"], result[1]["strides"]) == ([3, 1], [[2, 8, 48], [2, 8, 32]], [[384, 48, 1], [256, 32, 1]])


def test_a_graph_the_library_refuses_is_not_supported(fake_cudnn) -> None:
    result = fake_cudnn.run("""
def concat(**options):
    g = pygraph("c", io_data_type=e.data_type.HALF, handle=create_handle(), **options)
    g.concatenate(inputs=[g.tensor([1, 4, 8]), g.tensor([1, 4, 8])], axis=1).set_output(True)
    return g
def average():
    g = pygraph("r", io_data_type=e.data_type.FLOAT, handle=create_handle(), backend="cudnn")
    g.reduction(g.tensor([1, 4, 8]), e.reduction_mode.AVG).set_dim([1, 4, 1]).set_output(True)
    return g
result = [failure(concat(backend="cudnn").build), failure(average().build)]
""")
    assert result[0][0][0] == "cudnnGraphNotSupportedError"
    assert "operation graph: cudnnBackendFinalize (OPERATIONGRAPH) returned FAKE_REFUSED (3001): the combination is not supported" in result[0][1]
    # What the library does not know at all is an error of the call, as published; other engines may still be asked.
    assert result[1][0][0] == "RuntimeError" and "no such reduction" in result[1][1]


def test_slices_and_transposes_of_inputs_are_views_where_the_library_has_none(fake_cudnn) -> None:
    result = fake_cudnn.run("""
h = create_handle()
g = pygraph("v", io_data_type=e.data_type.HALF, intermediate_data_type=e.data_type.FLOAT, compute_data_type=e.data_type.FLOAT, backend="cudnn", handle=h)
x, b = g.tensor([2, 64, 64], name="x"), g.tensor([2, 48, 16], name="b")
left = g.slice(x, slices=[slice(0, 2), slice(8, 40), slice(16, 64)])
y = g.matmul(left, b).set_output(True).set_name("y")
g.build()
g.execute({"x": 1024, "b": 32, "y": 48}, 64)
other = pygraph()
other.deserialize(h, g.serialize())
other.execute({"x": 1024, "b": 32, "y": 48}, 64)
both = pygraph("w", io_data_type=e.data_type.HALF, intermediate_data_type=e.data_type.FLOAT, compute_data_type=e.data_type.FLOAT, backend="cudnn", handle=h)
x2 = both.tensor([2, 16, 16], name="x")
both.matmul(x2, both.transpose(x2, [0, 2, 1])).set_output(True).set_name("y")
both.build()
both.execute({"x": 1024, "y": 48}, 64)
result = [left.uid, x.uid, b.uid, y.uid, log()[-3:], failure(g.execute, {"b": 32, "y": 48}, 64)]
""")
    view, source, b, y, (run, again, both), missing = result
    # The library is not told of a tensor that only views of it use.
    assert dict(zip(run["uids"], run["pointers"], strict=True)) == {view: 1024 + 2 * (8 * 64 + 16), b: 32, y: 48}
    assert (again["uids"], again["pointers"]) == (run["uids"], run["pointers"])
    assert sorted(both["pointers"]) == [48, 1024, 1024]
    assert missing == [["ValueError", "Exception", "BaseException", "object"], f"missing a buffer for tensor uid {source} ('x')"]


def test_kernel_caches_follow_versions_and_bind_once(fake_cudnn) -> None:
    script = """
from cudnn_graph.kernel_cache import create_kernel_cache
k = create_kernel_cache()
result = [failure(k.serialize), failure(k.size), failure(k.deserialize, 5)]
g = matmul_graph(handle=create_handle(), kernel_cache=k, is_dynamic_shape_enabled=True)
g.build()
result += [failure(k.deserialize, "{}")]
"""
    empty, size, wrong, used = fake_cudnn.run(script)
    assert empty[1].startswith("the kernel cache is empty: build a graph with it")
    assert size[1] == "size() of a kernel cache needs cuDNN 9.27.0 or newer; the loaded library is 9.19.0"
    assert wrong[0][0] == "TypeError"
    assert used[0][0] == "RuntimeError" and "in use already" in used[1]
    assert fake_cudnn.run("from cudnn_graph.kernel_cache import *\nresult = failure(create_kernel_cache)", FAKE_CUDNN_VERSION="90300")[1].startswith(
        "a kernel cache needs cuDNN 9.4.0"
    )


def test_device_properties_replace_the_handle(fake_cudnn) -> None:
    result = fake_cudnn.run("""
from cudnn_graph.device_properties import create_device_properties
described = create_device_properties("{}")
g = matmul_graph(device_property=described)
g.build()
result = [described.serialize(), g.get_workspace_size(), failure(create_device_properties, 1.5)[0][0], failure(create_device_properties, True)[0][0]]
""")
    assert result == ["{}", 1000, "TypeError", "TypeError"]


def test_a_plan_runs_in_many_threads_with_handles_of_their_own(fake_cudnn) -> None:
    result = fake_cudnn.run("""
import threading
g = matmul_graph(handle=create_handle())
g.build()
errors = []
def work(number):
    try:
        h = create_handle(); set_stream(h, number)
        for i in range(50):
            g.execute({"a": 16 * number, "b": 32, "c": 48}, 64, handle=h)
    except Exception as error:
        errors.append(repr(error))
threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
[t.start() for t in threads]; [t.join() for t in threads]
runs = [run for run in log() if "engine" in run]
result = [errors, len(runs), all(run["pointers"][0] == 16 * run["stream"] for run in runs)]
""")
    assert result == [[], 200, True]


@pytest.mark.parametrize("version, refused", [(91700, False), (91800, True), (92099, True), (92100, False)])
def test_versions_known_to_be_wrong_are_refused(fake_cudnn, version: int, refused: bool) -> None:
    result = fake_cudnn.run(
        """
def moe(dtype):
    g = pygraph("moe", io_data_type=dtype, compute_data_type=e.data_type.FLOAT, backend="cudnn", handle=create_handle())
    offsets = g.tensor([4, 1, 1], data_type=e.data_type.INT32)
    g.moe_grouped_matmul(g.tensor([1, 256, 256]), g.tensor([4, 256, 256]), offsets).set_output(True).set_data_type(e.data_type.BFLOAT16)
    return failure(g.build)
result = [moe(e.data_type.FP8_E4M3), moe(e.data_type.BFLOAT16)]
""",
        FAKE_CUDNN_VERSION=str(version),
    )
    assert result[1] is None
    if refused:
        assert result[0][0][0] == "cudnnGraphNotSupportedError"
        assert "computes only the rows of the first expert; use a version below 9.18.0 or from 9.21.0 on" in result[0][1]
    else:
        assert result[0] is None


def test_plans_for_another_architecture_need_its_description(fake_cudnn) -> None:
    result = fake_cudnn.run("""
import cudnn.device
class Hopper:
    sm_version, compute_capability = 90, (9, 0)
cudnn.device.device_info = lambda ordinal: Hopper
h = create_handle(); h._ordinal = 0; h._context = 0
result = [failure(matmul_graph(handle=h, sm_version=v).build) for v in (90, 100)]
def scaled():
    g = pygraph("q", io_data_type=e.data_type.HALF, compute_data_type=e.data_type.FLOAT, backend="cudnn", handle=h)
    y, scale = g.block_scale_quantize(g.tensor([1, 128, 64]), block_size=32)
    y.set_output(True).set_data_type(e.data_type.FP8_E4M3); scale.set_output(True).set_data_type(e.data_type.FP8_E8M0)
    return g
result.append(failure(scaled().build))
""")
    same, other, scaled = result
    assert same is None
    assert other[0][0] == "cudnnGraphNotSupportedError"
    assert "sm_version=100 asks for plans for another architecture than that of cuda:0 (90); pass device_property= as well" in other[1]
    assert "cuDNN has block-scaled operations for compute capability 10.0 and newer only, found 9.0" in scaled[1]


def test_plans_that_are_wrong_are_not_proposed(fake_cudnn) -> None:
    """Engine 0 is the one that is not compiled at run time."""
    result = fake_cudnn.run("""
def conv(output):
    g = pygraph("c", io_data_type=e.data_type.INT8, compute_data_type=e.data_type.INT32, backend="cudnn", handle=create_handle())
    x, w = g.tensor([2, 32, 8, 8], [2048, 1, 256, 32]), g.tensor([64, 32, 3, 3], [288, 1, 96, 32])
    g.conv_fprop(x, w, padding=[1, 1], stride=[1, 1], dilation=[1, 1]).set_output(True).set_data_type(output)
    return g
result = []
for output in (e.data_type.INT8, e.data_type.INT32):
    g = conv(output)
    g.create_execution_plans([e.heur_mode.FALLBACK])
    result.append([plan.name for plan in g.plans])
g = conv(e.data_type.INT32)
result += [failure(g.create_execution_plans, [e.heur_mode.B]), failure(conv(e.data_type.INT32).create_execution_plan, 0, {})]
""")
    right, wrong, none, explicit = result
    assert right == ["eng1_k2=5_k3=1_k14=3", "eng0"] and wrong == ["eng1_k2=5_k3=1_k14=3"]
    reason = "node 'conv_fprop.0' (conv_fprop): cuDNN's precompiled engines give wrong INT32 results for INT8 images"
    assert none[0][0] == "cudnnGraphNotSupportedError" and f"cuDNN proposes no engine: eng0: {reason}" in none[1]
    assert explicit == [["cudnnGraphNotSupportedError", "Exception", "BaseException", "object"], f"engine 0: {reason}"]
