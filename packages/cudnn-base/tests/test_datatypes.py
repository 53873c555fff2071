import enum
import gc
import subprocess
import sys
import weakref

import pytest

from cudnn import datatypes
from cudnn.datatypes import DTYPE_NAMES, data_type, dtype_name, itemsize_bits
from cudnn.errors import cudnnGraphNotSupportedError

torch = pytest.importorskip("torch")

TABLE = [
    # member, value, canonical name, torch, cutlass, DLPack (code, bits), lanes, backend
    ("NOT_SET", 0, None, None, None, (0, 0), 1, None),
    ("FLOAT", 1, "float32", "float32", "Float32", (2, 32), 1, 0),
    ("DOUBLE", 2, "float64", "float64", "Float64", (2, 64), 1, 1),
    ("HALF", 3, "float16", "float16", "Float16", (2, 16), 1, 2),
    ("INT8", 4, "int8", "int8", "Int8", (0, 8), 1, 3),
    ("INT32", 5, "int32", "int32", "Int32", (0, 32), 1, 4),
    ("INT8x4", 6, None, None, None, (0, 0), 1, 5),
    ("UINT8", 7, "uint8", "uint8", "Uint8", (1, 8), 1, 6),
    ("UINT8x4", 8, None, None, None, (0, 0), 1, 7),
    ("INT8x32", 9, None, None, None, (0, 0), 1, 8),
    ("BFLOAT16", 10, "bfloat16", "bfloat16", "BFloat16", (4, 16), 1, 9),
    ("INT64", 11, "int64", "int64", "Int64", (0, 64), 1, 10),
    ("BOOLEAN", 12, "bool", "bool", "Boolean", (6, 8), 1, 11),
    ("FP8_E4M3", 14, "float8_e4m3fn", "float8_e4m3fn", "Float8E4M3FN", (10, 8), 1, 12),
    ("FP8_E5M2", 15, "float8_e5m2", "float8_e5m2", "Float8E5M2", (12, 8), 1, 13),
    ("FAST_FLOAT_FOR_FP8", 16, None, None, None, (0, 0), 1, 14),
    ("FP8_E8M0", 17, "float8_e8m0fnu", "float8_e8m0fnu", "Float8E8M0FNU", (14, 8), 1, 15),
    ("FP8_E5M3", 18, None, None, None, (0, 0), 1, 23),
    ("FP4_E2M1", 19, "float4_e2m1fn", "float4_e2m1fn_x2", "Float4E2M1FN", (17, 4), 2, 16),
    ("INT4", 20, None, None, None, (0, 0), 1, 17),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0])
def test_table(row):
    name, value, canonical, torch_name, _, code_bits, lanes, backend = row
    member = data_type[name]
    assert member.value == value and type(member).__mro__[1] is enum.Enum
    assert dtype_name(member) == canonical
    assert datatypes._dlpack_code_bits(member) == code_bits and datatypes._dlpack_lanes(member) == lanes
    assert datatypes.backend_data_type(member) == backend
    frost = canonical if canonical and code_bits[1] >= 8 else None
    assert datatypes._cudnn_to_frost_dtype_name(member) == frost
    dtype = None if torch_name is None else getattr(torch, torch_name)
    assert datatypes._cudnn_to_torch_data_type(member) is dtype
    assert datatypes._library_type(member) is member
    if canonical:
        assert canonical in DTYPE_NAMES and itemsize_bits(member) == code_bits[1]
        assert datatypes.dlpack_name(*code_bits, lanes) == canonical
        assert datatypes.torch_dtype(canonical) is dtype and dtype_name(dtype) == canonical and dtype_name(torch_name) == canonical
        assert datatypes.torch_to_cudnn_data_type(dtype) is member is datatypes._torch_to_cudnn_data_type(dtype)
        assert datatypes._library_type(dtype) is member
        assert datatypes._buffer_dtype_to_cudnn(dtype) is member
        assert datatypes._buffer_dtype_to_cudnn(canonical) is (None if member is data_type.FP4_E2M1 else member)


def test_members_are_exactly_the_table():
    assert [(member.name, member.value) for member in data_type] == [row[:2] for row in TABLE]


@pytest.mark.parametrize("row", [row for row in TABLE if row[4]], ids=lambda row: row[0])
def test_cutlass(row):
    cutlass = pytest.importorskip("cutlass")
    _, _, canonical, torch_name, cutlass_name, *_ = row
    kind = getattr(cutlass, cutlass_name)
    assert datatypes.cutlass_dtype(canonical) is kind and dtype_name(kind) == canonical
    for flag in (False, True):
        want = cutlass.Float4E2M1FN if flag and canonical == "uint8" else kind
        for spelling in (kind, canonical, getattr(torch, torch_name)):
            assert datatypes._convert_to_cutlass_data_type(spelling, flag) is want
            assert datatypes._convert_to_cutlass_data_type_or_none(spelling, flag) is want
        assert datatypes._torch_to_cutlass_data_type(getattr(torch, torch_name), flag) is want
    assert datatypes._torch_to_cutlass_data_type(canonical) is None


def test_cutlass_conversion_errors():
    cutlass = pytest.importorskip("cutlass")
    with pytest.raises(ValueError, match="None is not a valid tensor data type"):
        datatypes._convert_to_cutlass_data_type(None)
    for unknown in ("float17", torch.complex64, object(), 3):
        with pytest.raises(ValueError, match="Unsupported tensor data type"):
            datatypes._convert_to_cutlass_data_type(unknown)
        assert datatypes._convert_to_cutlass_data_type_or_none(unknown) is None
    assert datatypes._convert_to_cutlass_data_type_or_none(None) is None
    # A DSL type without a canonical name passes as it is, and numpy's own spellings are understood here.
    assert datatypes._convert_to_cutlass_data_type(cutlass.TFloat32) is cutlass.TFloat32
    assert datatypes._dtype_name_to_cutlass_data_type("f4") is cutlass.Float32
    assert datatypes._dtype_name_to_cutlass_data_type("no such") is None


def test_numpy_spellings():
    numpy = pytest.importorskip("numpy")
    for name in ("float64", "float32", "float16", "int8", "uint8", "int32", "int64", "bool"):
        dtype = numpy.dtype(name)
        assert dtype_name(dtype) == dtype_name(dtype.type) == name and datatypes.numpy_dtype(name) == dtype
        assert datatypes._buffer_dtype_to_cudnn(dtype) == datatypes._buffer_dtype_to_cudnn(name)
    assert dtype_name(numpy.longlong) == dtype_name(numpy.dtype("q")) == "int64"
    assert dtype_name(numpy.half) == "float16"
    # Foreign byte order is other data; an abstract class or a structured dtype is none at all.
    for unknown in (numpy.dtype("float32").newbyteorder(), numpy.floating, numpy.dtype([("x", "f4")]), numpy.dtype("O"), numpy.uint16, numpy.float32(3)):
        assert dtype_name(unknown) is None


def test_ml_dtypes_spellings():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    numpy = pytest.importorskip("numpy")
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn"):
        kind = getattr(ml_dtypes, name)
        assert dtype_name(kind) == dtype_name(numpy.dtype(kind)) == name and datatypes.numpy_dtype(name) == numpy.dtype(kind)
    assert dtype_name(ml_dtypes.float8_e4m3) is None and dtype_name(ml_dtypes.int4) is None


def test_jax_spellings():
    jnp = pytest.importorskip("jax.numpy")
    for name in ("bfloat16", "float32", "float8_e4m3fn", "float8_e8m0fnu", "int32", "bool_"):
        assert dtype_name(getattr(jnp, name)) == name.rstrip("_")
        assert dtype_name(jnp.zeros(1, getattr(jnp, name)).dtype) == name.rstrip("_")


@pytest.mark.parametrize("unknown", ["float", "e4m3", "", None, float, int, True, 3, object(), [], {}, torch.complex64, torch.uint16, data_type.INT4, torch])
def test_unknown_spellings(unknown):
    assert dtype_name(unknown) is None
    with pytest.raises(ValueError, match="Unsupported tensor data type .* needs one of float32"):
        itemsize_bits(unknown)
    if not isinstance(unknown, data_type):
        with pytest.raises(cudnnGraphNotSupportedError, match="No available conversion"):
            datatypes._library_type(unknown)
    assert datatypes._buffer_dtype_to_cudnn(unknown) is None and datatypes.torch_to_cudnn_data_type(unknown) is None


def test_other_names():
    assert (dtype_name("half"), dtype_name("double"), dtype_name("float4_e2m1fnx2")) == ("float16", "float64", "float4_e2m1fn")
    assert issubclass(cudnnGraphNotSupportedError, Exception) and not issubclass(cudnnGraphNotSupportedError, (ValueError, RuntimeError, NotImplementedError))


def test_a_tensor_given_by_mistake_is_not_kept():
    """Case 68: a call that is refused leaves nothing behind."""
    size = len(datatypes._NAMES)
    t = torch.zeros(4)
    gone = weakref.ref(t)
    assert dtype_name(t) is None
    with pytest.raises(ValueError):
        itemsize_bits(t)
    del t
    gc.collect()
    assert gone() is None and len(datatypes._NAMES) <= size + 1


def test_memo_is_bounded():
    class Name(str):
        def __hash__(self):
            return id(self)

        __eq__ = object.__eq__

    kept = [Name("float32") for _ in range(2000)]
    assert all(dtype_name(name) == "float32" for name in kept)
    assert len(datatypes._NAMES) <= datatypes._NAMES_BOUND


SCRIPT = """
import sys
sys.modules["torch"] = sys.modules["numpy"] = sys.modules["cutlass"] = sys.modules["jax"] = None
from cudnn import datatypes as d
assert not d.is_torch_available() and not d.is_cutlass_available()
assert d.dtype_name("bfloat16") == "bfloat16" and d.dtype_name(d.data_type.HALF) == "float16"
assert d._cudnn_to_torch_data_type(d.data_type.FLOAT) is None and d.torch_to_cudnn_data_type("float32") is None
assert d._convert_to_cutlass_data_type("float32") is None and d._dtype_name_to_cutlass_data_type("f4") is None
for call, name in ((d.torch_dtype, "torch"), (d.cutlass_dtype, "cudnn-base[cutedsl]")):
    try:
        call("float32")
    except ImportError as error:
        assert "pip install" in str(error) and name in str(error), error
    else:
        raise AssertionError(call)
print(sorted(m for m in sys.modules if m.partition(".")[0] in ("torch", "numpy", "cutlass", "jax", "ml_dtypes", "cuda") and sys.modules[m]))
"""


def test_without_any_library():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
