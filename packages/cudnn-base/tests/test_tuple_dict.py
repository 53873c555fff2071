import copy
import pickle

import pytest

from cudnn.tuple_dict import TupleDict


def make():
    return TupleDict(c_tensor="C", d_tensor="D", amax_tensor=None)


def test_unpacks_values_in_order():
    td = make()
    c, d, amax = td
    assert (c, d, amax) == ("C", "D", None)
    assert list(td) == ["C", "D", None]
    assert list(reversed(td)) == [None, "D", "C"]


def test_position_and_key():
    td = make()
    assert td[0] == "C" and td[2] is None and td["d_tensor"] == "D"
    assert td[False] == "C" and td[True] == "D"
    with pytest.raises(IndexError, match=r"index 3 .*3 items"):
        td[3]
    with pytest.raises(IndexError, match=r"index -1 .*3 items"):
        td[-1]
    with pytest.raises(KeyError, match="absent"):
        td["absent"]


def test_keys_added_later_have_no_position():
    td = make()
    td["late"] = 7
    assert list(td) == ["C", "D", None]
    assert len(td) == 4 and "late" in td and td["late"] == 7 and td.get("late") == 7
    assert list(td.keys()) == ["c_tensor", "d_tensor", "amax_tensor", "late"]
    assert list(td.values())[-1] == 7 and ("late", 7) in td.items()
    with pytest.raises(IndexError, match="3 items"):
        td[3]


def test_behaves_as_a_dict_by_key():
    td = make()
    plain = {"c_tensor": "C", "d_tensor": "D", "amax_tensor": None}
    assert td == plain and plain == td and td != {**plain, "x": 1}
    assert dict(td) == plain and dict(**td) == plain and {**td} == plain
    assert td.get(0) is None and 0 not in td
    assert type(td.copy()) is dict and td.copy() == plain
    with pytest.raises(TypeError, match="unhashable"):
        hash(td)


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda td: pickle.loads(pickle.dumps(td))])
def test_copy_and_pickle_keep_type_and_order(clone):
    td = make()
    td["late"] = 7
    twin = clone(td)
    assert type(twin) is TupleDict and twin is not td
    assert twin == td and list(twin) == ["C", "D", None] and twin["late"] == 7
    twin["c_tensor"] = "changed"
    assert td["c_tensor"] == "C" and twin[0] == "changed"


def test_construction_like_dict():
    assert list(TupleDict([("b", 1), ("a", 2)])) == [1, 2]
    assert list(TupleDict({"b": 1}, a=2)) == [1, 2]
    assert list(TupleDict()) == []
    made = TupleDict.fromkeys(["x", "y"], 0)
    assert type(made) is TupleDict and list(made) == [0, 0] and made[1] == 0


def test_published_path():
    import cudnn._tupledict
    import cudnn.api_base

    assert cudnn._tupledict.TupleDict is TupleDict is cudnn.api_base.TupleDict
