"""The manifest record."""

from __future__ import annotations

import copy

import pytest

from cudnn.family import FAMILY_API, Family


def test_it_holds_what_it_was_given() -> None:
    family = Family(
        "acme",
        "acme-kernels",
        names={"fused": "acme.api:fused", "tools": "acme.tools"},
        namespaces={"ops": {"fused": "acme.ops:fused"}, "gemm.special": {"x": "acme.api:x"}},
        operations=("acme.api",),
        archs=("sm_90a",),
        requires=("torch",),
        doc="acme.md",
    )
    assert (family.name, family.distribution, family.api, family.doc) == ("acme", "acme-kernels", FAMILY_API, "acme.md")
    assert (family.operations, family.archs, family.requires) == (("acme.api",), ("sm_90a",), ("torch",))
    assert family.targets() == {"": {"fused": "acme.api:fused", "tools": "acme.tools"}, "ops": {"fused": "acme.ops:fused"}, "gemm.special": {"x": "acme.api:x"}}


def test_it_is_immutable_and_independent_of_its_arguments() -> None:
    names = {"fused": "acme.api:fused"}
    spaces = {"ops": names}
    family = Family("acme", "acme-kernels", names=names, namespaces=spaces)
    names["more"] = "acme.api:more"
    spaces["torch"] = {}
    assert family.targets() == {"": {"fused": "acme.api:fused"}, "ops": {"fused": "acme.api:fused"}}
    with pytest.raises(AttributeError, match="immutable; cannot set 'name'"):
        family.name = "other"
    with pytest.raises(AttributeError, match="immutable; cannot delete 'name'"):
        del family.name
    with pytest.raises(TypeError):
        family.names["more"] = "acme.api:more"  # type: ignore[index]
    with pytest.raises(AttributeError):
        copy.copy(family).extra = 1


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"names": {"_hidden": "a.b:c"}}, ValueError, "'_hidden' in cudnn must be an identifier that does not start with an underscore"),
        ({"names": {"two words": "a.b:c"}}, ValueError, "'two words' in cudnn must be an identifier"),
        ({"names": {"x": "a.b:"}}, ValueError, "'x' in cudnn must point at 'module:attribute' or 'module', found 'a.b:'"),
        ({"names": {"x": "a b:c"}}, ValueError, "found 'a b:c'"),
        ({"names": {"x": ""}}, ValueError, "found ''"),
        ({"names": {"x": 3}}, ValueError, "found 3"),
        ({"names": ["x"]}, TypeError, "the names of cudnn must be a mapping of public name to 'module:attribute', found list"),
        ({"namespaces": {"": {}}}, ValueError, "namespace path '' must be public identifiers joined by dots"),
        ({"namespaces": {"gemm..ops": {}}}, ValueError, "namespace path 'gemm..ops'"),
        ({"namespaces": {"_ops": {}}}, ValueError, "namespace path '_ops'"),
        ({"namespaces": {"ops": {"_x": "a:b"}}}, ValueError, "'_x' in cudnn.ops"),
        ({"operations": "acme.api"}, TypeError, "operations must be a tuple of str, found 'acme.api'"),
        ({"archs": (90,)}, TypeError, "archs must be a tuple of str"),
        ({"api": "1"}, TypeError, "api must be an int, found str"),
        ({"doc": None}, TypeError, "Family doc must be a str, found NoneType"),
    ],
)
def test_mistakes_are_named(fields: dict, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        Family("acme", "acme-kernels", **fields)
    assert text in str(caught.value)
