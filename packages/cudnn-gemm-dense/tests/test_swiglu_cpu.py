"""GemmSwiglu and its wrapper on CPU tensors, where the reference engine computes; and what of the kernel's host side a stub can show."""

from __future__ import annotations

import gc
import itertools
import threading

import pytest
import torch

from cudnn import gemm_operation, wrapper_calls
from cudnn.testing.conformance import GemmConformance, same_bits
from cudnn.testing.numeric import assert_as_accurate, relative_error
from cudnn.tuple_dict import TupleDict
from cudnn_gemm_dense.operation import fitting_configs, unfit_reason
from cudnn_gemm_dense.swiglu import api
from cudnn_gemm_dense.swiglu.api import GemmSwiglu, gemm_swiglu_wrapper
from cudnn_gemm_dense.swiglu.conformance import SwigluHooks, random_compact


class TestConformance(SwigluHooks, GemmConformance):
    """bfloat16, the published layout."""


class TestConformanceConcatenated(SwigluHooks, GemmConformance):
    dtype = ab12_dtype = c_dtype = torch.float16
    glu_layout = "concatenated"
    n_step = 16
    a_major, b_major = "m", "n"
    m_step = 8


class TestConformanceSeparate(SwigluHooks, GemmConformance):
    glu_layout = "separate"
    n_step = 16
    ab12_dtype = torch.float32
    out_major = "m"
    m_step = 8


class TestConformanceFp8(SwigluHooks, GemmConformance):
    dtype = torch.float8_e4m3fn
    k_step = 16

    # torch cannot fill or compare fp8 parameters as these tests do.
    test_parameters_that_require_grad = None


def case(**attributes) -> SwigluHooks:
    hooks = SwigluHooks()
    for name, value in attributes.items():
        setattr(hooks, name, value)
    return hooks


DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("glu_layout", ["interleaved32", "concatenated", "separate"])
@pytest.mark.parametrize("majors", ["".join(majors) for majors in itertools.product("km", "kn", "nm")])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes_majors_layouts(dtype, majors, glu_layout):
    for batches, ab12_dtype, c_dtype in ((1, torch.float32, torch.float16), (3, torch.bfloat16, torch.bfloat16)):
        a_major, b_major, out_major = majors
        hooks = case(dtype=dtype, a_major=a_major, b_major=b_major, out_major=out_major, glu_layout=glu_layout, ab12_dtype=ab12_dtype, c_dtype=c_dtype)
        n = 64 if glu_layout == "interleaved32" else 32
        inputs = hooks.inputs(16, n, 48, batches)
        result = hooks.wrapper(inputs)
        reference, baseline = hooks.reference(inputs), hooks.baseline(inputs)
        for name in reference:
            assert_as_accurate(name, result[name], reference[name], baseline[name])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_float16_sums(dtype):
    hooks = case(dtype=dtype, acc_dtype="float16", ab12_dtype=torch.float16, c_dtype=torch.float16)
    inputs = hooks.inputs(24, 128, 64, 2)
    result, reference = hooks.wrapper(inputs), hooks.reference(inputs)
    assert relative_error(result["ab12_tensor"], reference["ab12_tensor"]) < 2e-3
    exact = gemm_exact(inputs, 1.0)[0]
    assert relative_error(result["ab12_tensor"], exact) < 1e-3
    assert not torch.equal(result["c_tensor"].double(), reference["c_tensor"].double())  # the reference is not rounded


def gemm_exact(inputs, alpha):
    s = alpha * torch.einsum("mkl,nkl->mnl", inputs["a_tensor"].double(), inputs["b_tensor"].double())
    pairs = s.unflatten(1, (-1, 2, 32))
    up, gate = pairs[:, :, 0].flatten(1, 2), pairs[:, :, 1].flatten(1, 2)
    return s, up * gate / (1 + torch.exp(-gate))


@pytest.mark.parametrize("alpha", [2.0, -0.5, 0.0, 1, True])
def test_alpha_is_a_run_time_value(alpha):
    hooks = case(ab12_dtype=torch.float32)
    inputs = hooks.inputs(9, 64, 40, 1)
    s, c = gemm_exact(inputs, alpha)
    before = len(api.CALLS._objects)
    result = gemm_swiglu_wrapper(**inputs, alpha=alpha, c_dtype="bfloat16")
    torch.testing.assert_close(result["ab12_tensor"].double(), s, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(result["c_tensor"].double(), c, rtol=8e-3, atol=1e-4)
    gemm_swiglu_wrapper(**inputs, alpha=alpha + 1, c_dtype="bfloat16")
    assert len(api.CALLS._objects) <= before + 1
    # The class's execute has its own alpha, 1.0 by default, whatever the constructor was given.
    ab12, out = result["ab12_tensor"], result["c_tensor"]
    op = GemmSwiglu(inputs["a_tensor"], inputs["b_tensor"], ab12, out, alpha=float(alpha))
    op(inputs["a_tensor"], inputs["b_tensor"], ab12, out)
    torch.testing.assert_close(ab12.double(), gemm_exact(inputs, 1.0)[0], rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="alpha: found a Tensor, needs a number on the host"):
        op.execute(inputs["a_tensor"], inputs["b_tensor"], ab12, out, alpha=torch.ones(()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("tile, cluster", [((128, 128), (1, 1)), ((256, 256), (2, 2))])
def test_the_published_acceptance(dtype, tile, cluster):
    """256 x 256 x 512 x 2, inputs uniform in (-2, 2), every major, within 0.01 and 0.009."""
    for a_major, b_major, out_major in itertools.product((0, 1), repeat=3):
        a, b = random_compact((256, 512, 2), a_major, torch.float32, "cpu"), random_compact((256, 512, 2), b_major, torch.float32, "cpu")
        a, b = (t.uniform_(-2, 2).to(dtype) for t in (a, b))
        ab12_dtype = torch.bfloat16 if out_major else torch.float32
        result = gemm_swiglu_wrapper(a, b, c_major="mn"[out_major], ab12_dtype=ab12_dtype, c_dtype="bfloat16", mma_tiler_mn=tile, cluster_shape_mn=cluster)
        for found, expected in zip(result, gemm_exact({"a_tensor": a, "b_tensor": b}, 1.0), strict=False):
            torch.testing.assert_close(found.double(), expected, atol=0.01, rtol=0.009)
        assert result[2] is None and result[3] is None


def test_the_result_in_its_documented_order():
    inputs = case().inputs(5, 64, 16, 1)
    result = gemm_swiglu_wrapper(**inputs)
    assert type(result) is TupleDict and list(result.keys()) == ["ab12_tensor", "c_tensor", "sfc_tensor", "amax_tensor"]
    ab12, c, sfc, amax = result
    assert ab12 is result["ab12_tensor"] is result[0] and c is result["c_tensor"] is result[1] and sfc is amax is None
    assert (ab12.dtype, c.dtype) == (torch.float32, torch.float16)  # the published defaults
    assert (ab12.stride(), c.stride()) == ((64, 1, 320), (32, 1, 160))
    m_major = gemm_swiglu_wrapper(*case().inputs(8, 64, 16, 2).values(), 1.0, "m")
    assert (m_major[0].stride(), m_major[1].stride()) == ((1, 8, 512), (1, 8, 256))


def test_published_names_are_the_same_objects():
    import cudnn_gemm_dense.swiglu as package

    assert api.GemmSwigluSm100 is api.GemmSwiglu is package.GemmSwiglu
    assert api.gemm_swiglu_wrapper_sm100 is api.gemm_swiglu_wrapper is package.gemm_swiglu_wrapper
    assert sorted(package.__all__) == ["GemmSwiglu", "GemmSwigluSm100", "gemm_swiglu_wrapper", "gemm_swiglu_wrapper_sm100"]


def test_every_spelling_of_a_dtype():
    numpy = pytest.importorskip("numpy")
    inputs = case(dtype=torch.float16).inputs(5, 64, 16, 1)
    expected = gemm_swiglu_wrapper(**inputs, ab12_dtype=torch.float16, c_dtype=torch.float16)
    for half in ("float16", "half", numpy.float16, numpy.dtype("float16"), torch.half):
        result = gemm_swiglu_wrapper(**inputs, ab12_dtype=half, c_dtype=half, acc_dtype=numpy.float32)
        assert all(same_bits(result[i], expected[i]) for i in (0, 1))
    with pytest.raises(ValueError, match="c_dtype: found None"):
        gemm_swiglu_wrapper(**inputs, c_dtype=None)
    with pytest.raises(ValueError, match="c_major: found 'k', needs 'n' or 'm'"):
        gemm_swiglu_wrapper(**inputs, c_major="k")


def test_hints_change_nothing():
    inputs = case().inputs(200, 128, 64, 2)
    expected = gemm_swiglu_wrapper(**inputs)
    objects = len(api.CALLS._objects)
    for hints in (
        {"mma_tiler_mn": (256, 128)},
        {"mma_tiler_mn": [256, 96], "cluster_shape_mn": [2, 1]},
        {"mma_tiler_mn": (128, 32), "vector_f32": True, "ab12_stages": 2, "sf_vec_size": 99},
        {"config": {"tile_m": 128, "tile_n": 64}},
    ):
        result = gemm_swiglu_wrapper(**inputs, **hints)
        assert all(same_bits(result[i], expected[i]) for i in (0, 1))
    assert len(api.CALLS._objects) <= objects + 1  # one for the config; hints share


def test_bound_to_dtypes_and_majors_and_not_to_extents():
    hooks = case()
    first, outputs = hooks.inputs(16, 64, 32, 1), {
        name: torch.empty_strided(*layout[:2], dtype=layout[2]) for name, layout in hooks.output_layouts(16, 64, 32, 1).items()
    }
    op = hooks.build(first, outputs)
    op.compile()

    def run(m=24, n=128, k=48, batches=2, inputs=None, **replaced):
        inputs = inputs or hooks.inputs(m, n, k, batches)
        outputs = {name: torch.empty_strided(*layout[:2], dtype=layout[2]) for name, layout in hooks.output_layouts(m, n, k, batches).items()}
        op.execute(**{**inputs, **outputs, **replaced})
        return inputs, outputs

    inputs, result = run()
    torch.testing.assert_close(result["ab12_tensor"].double(), gemm_exact(inputs, 1.0)[0], rtol=8e-3, atol=2e-3)
    half = case(dtype=torch.float16)
    for replaced, message in (
        ({"inputs": half.inputs(24, 128, 48, 2)}, "a_tensor: found dtype float16, needs bfloat16, which the object was compiled for"),
        ({"b_tensor": half.inputs(24, 128, 48, 2)["b_tensor"]}, "b_tensor: found dtype float16, needs bfloat16"),
        ({"ab12_tensor": torch.empty(2, 24, 128).permute(1, 2, 0)}, "ab12_tensor: found dtype float32, needs bfloat16"),
        (
            {"a_tensor": random_compact((24, 48, 2), 0, torch.bfloat16, "cpu")},
            r"a_tensor: found strides \(1, 24, 1152\) .* needs compact k-major ones, which the object was compiled for",
        ),
        ({"c_tensor": random_compact((24, 64, 2), 0, torch.bfloat16, "cpu")}, "c_tensor: found strides .* needs compact n-major"),
        ({"c_tensor": random_compact((24, 128, 2), 1, torch.bfloat16, "cpu")}, r"c_tensor: found shape \(24, 128, 2\), needs \(M, N/2, L\) = \(24, 64, 2\)"),
        ({"b_tensor": random_compact((128, 40, 2), 1, torch.bfloat16, "cpu")}, r"b_tensor: found shape \(128, 40, 2\), needs \(N, K, L\) = \(128, 48, 2\)"),
        ({"n": 96}, "b_tensor: found N = 96 rows"),
        ({"k": 36}, "a_tensor: found K = 36 contiguous bfloat16 elements"),
        ({"sfa_tensor": torch.ones(1)}, "sfa_tensor: found one, needs None"),
        ({"norm_const_tensor": torch.ones(1)}, "norm_const_tensor: found one, needs None"),
        ({"a_tensor": torch.zeros(24, 48).bfloat16()}, r"a_tensor: found shape \(24, 48\), needs three axes"),
        ({"a_tensor": None}, "GemmSwiglu.execute: a_tensor is None, needs a torch tensor"),
    ):
        with pytest.raises(ValueError, match=message):
            run(**replaced)
    run()


def test_dlpack_objects_through_the_class():
    """The class takes what exports DLPack and writes it in place."""
    numpy = pytest.importorskip("numpy")
    a, b = numpy.random.default_rng().standard_normal((6, 16, 1)).astype(numpy.float16), numpy.random.default_rng().standard_normal((64, 16, 1)).astype(
        numpy.float16
    )
    ab12, c = numpy.full((6, 64, 1), numpy.nan, numpy.float16), numpy.full((6, 32, 1), numpy.nan, numpy.float16)
    GemmSwiglu(a, b, ab12, c)(a, b, ab12, c)
    s, expected = gemm_exact({"a_tensor": torch.from_numpy(a), "b_tensor": torch.from_numpy(b)}, 1.0)
    torch.testing.assert_close(torch.from_numpy(ab12).double(), s, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(torch.from_numpy(c).double(), expected, rtol=4e-3, atol=4e-3)


def test_a_subclass_of_tensor():
    class Tagged(torch.Tensor):
        pass

    hooks = case()
    inputs = hooks.inputs(5, 64, 16, 1)
    expected = hooks.wrapper(inputs)
    tagged = {name: t.as_subclass(Tagged) for name, t in inputs.items()}
    result = hooks.wrapper(tagged)
    assert all(same_bits(result[i].as_subclass(torch.Tensor), expected[i]) for i in (0, 1))
    outputs = {name: torch.empty_strided(*layout[:2], dtype=layout[2]) for name, layout in hooks.output_layouts(5, 64, 16, 1).items()}
    hooks.build(inputs, outputs)(**tagged, **outputs)
    assert same_bits(outputs["c_tensor"], expected["c_tensor"])


def test_saved_activations_are_left_alone():
    """Case 53: the same tensor twice, after an operation that saved it; and the wrapper takes no part in autograd."""
    x = torch.randn(64, 64, 1, dtype=torch.bfloat16, requires_grad=True)
    y = x.exp()
    before = y.detach().clone()
    result = gemm_swiglu_wrapper(y, y)
    assert same_bits(y.detach(), before) and not result["c_tensor"].requires_grad
    y.sum().backward(retain_graph=True)
    first = x.grad.clone()
    y.sum().backward()
    assert torch.equal(x.grad, 2 * first) and torch.equal(first, x.detach().exp())


def test_stride_zero_and_ordinary_strides_in_either_order():
    """Case 27: a unit axis of stride 0 is the same call as one of stride 1; a broadcast batch is refused, and spoils nothing."""
    for _ in range(2):
        hooks = case()
        inputs = hooks.inputs(6, 64, 24, 1)
        expected = hooks.wrapper(inputs)
        zero = {name: t.as_strided(t.shape, (*t.stride()[:2], 0)) for name, t in inputs.items()}
        for arguments in (zero, inputs, zero):
            assert all(same_bits(hooks.wrapper(arguments)[i], expected[i]) for i in (0, 1))
        two = hooks.inputs(6, 64, 24, 2)
        broadcast = {**two, "b_tensor": two["b_tensor"][:, :, :1].expand(64, 24, 2)}
        with pytest.raises(ValueError, match=r"b_tensor: found strides \(24, 1, 0\)"):
            hooks.wrapper(broadcast)
        torch.testing.assert_close(hooks.wrapper(two)["ab12_tensor"].double(), gemm_exact(two, 1.0)[0], rtol=8e-3, atol=2e-3)


def test_dtypes_in_both_orders():
    """Case 40: equal shapes, other dtypes of operands and outputs."""
    cases = [
        (d, o, c) for d in (torch.bfloat16, torch.float16) for o in (torch.float32, torch.bfloat16, torch.float16) for c in (torch.bfloat16, torch.float16)
    ]
    for order in (cases, cases[::-1]):
        for dtype, ab12_dtype, c_dtype in order:
            hooks = case(dtype=dtype, ab12_dtype=ab12_dtype, c_dtype=c_dtype)
            inputs = hooks.inputs(10, 64, 24, 1)
            result, reference, baseline = hooks.wrapper(inputs), hooks.reference(inputs), hooks.baseline(inputs)
            assert (result[0].dtype, result[1].dtype) == (ab12_dtype, c_dtype)
            for name in reference:
                assert_as_accurate(name, result[name], reference[name], baseline[name])


def test_tables_are_bounded():
    """Case 43: 5000 distinct M through wrapper and class."""
    hooks = case(dtype=torch.float32)
    op = None
    for m in range(1, 5001):
        a, b = torch.zeros(m, 4, 0), torch.zeros(64, 4, 0)  # no batch: the metadata path alone
        ab12, c, _, _ = gemm_swiglu_wrapper(a, b)
        op = op or hooks.build({"a_tensor": a, "b_tensor": b}, {"ab12_tensor": ab12, "c_tensor": c})
        op(a, b, ab12, c)
    assert len(api.CALLS._plans) <= wrapper_calls.PLANS and len(op._launches) <= gemm_operation.LAUNCHES and len(api.CALLS._objects) <= wrapper_calls.OBJECTS


def test_refused_calls_keep_nothing_alive():
    """Case 68: ten thousand calls with a dtype that is refused."""
    a, b = torch.zeros(64, 64, 1, dtype=torch.bfloat16), torch.zeros(64, 64, 1, dtype=torch.int32)

    def refuse(times):
        for _ in range(times):
            with pytest.raises(ValueError, match="b_tensor: found dtype int32"):
                gemm_swiglu_wrapper(torch.clone(a), b)
        gc.collect()
        return sum(issubclass(type(x), torch.Tensor) for x in gc.get_objects())

    before = refuse(100)
    sizes = len(api.CALLS._plans), len(api.CALLS._objects)
    assert refuse(10000) <= before + 1
    assert (len(api.CALLS._plans), len(api.CALLS._objects)) == sizes


# The kernel's host side, with a stub in its place


@pytest.fixture(autouse=True)
def forget(fresh):
    fresh(api.CALLS)


def test_one_compile_for_every_m(stub):
    """Cases 38 and 39: extents, alpha and hints never compile; dtypes, majors and layouts do."""
    built, launched = stub
    hooks = case()
    for i, m in enumerate((1, 2, 3, 64, 127, 128, 129, 500, 1024, 5000)):
        inputs = hooks.inputs(m, 64 * (1 + i % 3), 8 * (1 + i % 5), 1 + i % 2)
        result = hooks.wrapper(inputs, alpha=1.0 + i, mma_tiler_mn=(torch.tensor(256), 128) if i % 2 else (128, 128))
        torch.testing.assert_close(result["ab12_tensor"].double(), gemm_exact(inputs, 1.0 + i)[0], rtol=8e-3, atol=2e-2)
    defaults = len(built)
    assert defaults == len(fitting_configs(built[0].problem, built[0].options.footprint)) and len(set(built)) == defaults
    assert len(launched) == 10
    hooks.ab12_dtype = torch.float32
    hooks.wrapper(hooks.inputs(24, 64, 16, 1))
    assert len(built) == 2 * defaults
    hooks.glu_layout = "concatenated"
    hooks.wrapper(hooks.inputs(24, 64, 16, 1))
    assert len(built) == 3 * defaults and built[-1].problem.b_parts == "halves"
    hooks.wrapper(hooks.inputs(40, 64, 16, 1), config={"tile_m": 128, "tile_n": 64})
    assert len(built) == 3 * defaults + 1 and (built[-1].config.tile_m, built[-1].config.tile_n) == (128, 64)


def test_no_launch_for_empty_problems(stub):
    built, launched = stub
    hooks = case()
    for extents in ((0, 64, 16, 1), (8, 0, 16, 1), (8, 64, 16, 0), (8, 64, 0, 2)):
        result = hooks.wrapper(hooks.inputs(*extents))
        assert all(not result[i].any() for i in (0, 1))
    assert launched == []
    hooks.wrapper(hooks.inputs(8, 64, 16, 1))
    assert len(launched) == 1


def test_sixteen_threads_compile_once(stub):
    """Case 44: the first call of sixteen threads; another key is not held up."""
    built, _ = stub
    inputs = case().inputs(8, 64, 16, 1)
    other = case(dtype=torch.float16)
    other_inputs = other.inputs(8, 64, 16, 1)
    gate = threading.Barrier(16)

    def work(i):
        gate.wait()
        (other.wrapper(other_inputs) if i % 4 == 0 else case().wrapper(inputs))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == len(set(built)) == 2 * len(fitting_configs(built[0].problem, built[0].options.footprint))


def test_a_failed_compile_is_tried_again(stub, monkeypatch):
    from cudnn.cutedsl.compile import KernelSpec

    inputs = case().inputs(8, 64, 16, 1)
    working = KernelSpec.build

    def broken(_):
        raise OSError("no space left")

    monkeypatch.setattr(KernelSpec, "build", broken)
    for _ in range(2):
        with pytest.raises(OSError, match="no space left"):
            case().wrapper(inputs)
    monkeypatch.setattr(KernelSpec, "build", working)
    assert case().wrapper(inputs)["c_tensor"].isfinite().all()


def test_the_wrapper_goes_through_the_class(monkeypatch):
    """check_support, compile and execute of the class are what the wrapper calls, execute by keyword."""
    calls = []
    monkeypatch.setattr(GemmSwiglu, "check_support", lambda self: calls.append("check_support") or True)
    monkeypatch.setattr(GemmSwiglu, "compile", lambda self: calls.append("compile"))
    monkeypatch.setattr(GemmSwiglu, "execute", lambda self, **arguments: calls.append(sorted(arguments)))
    inputs = case().inputs(8, 64, 16, 1)
    case().wrapper(inputs)
    case().wrapper(inputs)
    execute = sorted(["a_tensor", "ab12_tensor", "alpha", "b_tensor", "c_tensor", "current_stream", "norm_const_tensor", "sfa_tensor", "sfb_tensor"])
    assert calls == ["check_support", "compile", execute, execute]


def test_kernels_without_the_dsl(monkeypatch):
    """Decisions: the family imports, checks and runs on CPU; compile() for a GPU is an ImportError with the pip line."""
    import cudnn.dsl_check

    monkeypatch.setattr(cudnn.dsl_check, "_remembered_problem", lambda: f"It is not installed. Install it with: {cudnn.dsl_check.INSTALL}")
    monkeypatch.setattr(gemm_operation, "select_backend", lambda backend, tensors: "sm90")
    monkeypatch.setattr(gemm_operation, "require_arch", lambda *_: None)
    inputs = case().inputs(8, 64, 16, 1)
    with pytest.raises(ImportError, match="GemmSwiglu.compile needs the CuTe DSL.*pip install"):
        case().build(inputs, {"ab12_tensor": torch.zeros(8, 64, 1).bfloat16(), "c_tensor": torch.zeros(8, 32, 1).bfloat16()}).compile()


# torch


@pytest.mark.parametrize("glu_layout", ["interleaved32", "separate"])
def test_opcheck(glu_layout):
    from cudnn.torch_operators import encode

    functional, writing = api.CALLS.operators()
    hooks = case(glu_layout=glu_layout)
    inputs = hooks.inputs(24, 64, 16, 2)
    names, flat = wrapper_calls.flatten(inputs)
    given = {"c_major": "n", "ab12_dtype": torch.float32, "c_dtype": "bfloat16", "glu_layout": glu_layout}
    torch.library.opcheck(functional, (flat, 0.5, encode(tuple(names), tuple(given.items()))))
    outputs = {name: torch.empty_strided(*layout[:2], dtype=layout[2]) for name, layout in hooks.output_layouts(24, 64, 16, 2).items()}
    op = hooks.build(inputs, outputs)
    op.compile()
    torch.library.opcheck(writing, (flat, list(outputs.values()), 0.5, encode((tuple(names), tuple(outputs)), op._traced_arguments)))


def test_traced_options():
    """Everything the wrapper takes reaches the operator, config objects and alpha too; a stream has no place in a traced call."""
    from cudnn.cutedsl.gemm.config import GemmConfig

    hooks = case()
    inputs = hooks.inputs(24, 64, 16, 2)
    for options in (
        {"alpha": 0.25},
        {"config": GemmConfig(tile_m=128, tile_n=64)},
        {"config": {"tile_m": 128}},
        {"mma_tiler_mn": [256, 128]},
        {"backend": "reference"},
    ):
        torch._dynamo.reset()
        traced = torch.compile(lambda options=options: hooks.wrapper(inputs, **options)["c_tensor"], fullgraph=True, backend="aot_eager")()
        assert same_bits(traced, hooks.wrapper(inputs, **options)["c_tensor"])
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode, pytest.raises(ValueError, match="stream: found one in a call that is traced"):
        hooks.wrapper({name: mode.from_tensor(t) for name, t in inputs.items()}, stream=0)


def test_precompile_specs():
    specs = api.precompile_specs()
    assert len(set(specs)) == len(specs) > 20
    transposes = [s for s in specs if s.op == "transpose"]
    narrow = ("float8_e4m3fn", "float8_e5m2", "float32")
    assert specs[-3:] == transposes and tuple(s.dtype for s in transposes) == narrow
    specs = specs[:-3]
    assert {s.op for s in specs} == {"gemm_swiglu"} and {s.problem.a_dtype for s in specs} == {"bfloat16", "float16", *narrow}
    assert {(s.problem.a_major, s.problem.b_major) for s in specs if s.problem.a_dtype in narrow} == {("k", "k")}
    assert {s.problem.a_dtype for s in specs if s.problem.acc_dtype == "float16"} == {"float16", *narrow[:2]}
    assert {s.problem.b_parts for s in specs} == {"single", "halves", "pair"}
    assert {(s.problem.a_major, s.problem.b_major, s.options.out_major) for s in specs} == set(itertools.product("km", "kn", "nm"))
    assert all(unfit_reason(s.problem, s.options.footprint, s.config) is None for s in specs)
    # What the published defaults need is among them.
    assert any((s.options.ab12_dtype, s.options.c_dtype, s.problem.b_parts) == ("float32", "float16", "single") for s in specs)
