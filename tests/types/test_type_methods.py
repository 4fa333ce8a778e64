"""The questions that TFF's programs ask of types."""

import collections
import copy
import pickle

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import TypeMismatch
from fedcore.types import as_dtype, parse_type

FITS = [
    ("int32[?]", "int32[3]"),
    ("int32[...]", "int32[3]"),
    ("<a=int32,b=str>", "<int32,str>"),
    ("<int32>", "list<int32>"),
    ("int32[?]*", "int32[2]*"),
    ("{int32}@CLIENTS", "int32@CLIENTS"),
    ("(int32[2] -> int32[?])", "(int32[?] -> int32[2])"),
]
KINDS = {
    "abstract": "T",
    "federated": "int32@SERVER",
    "function": "(-> int32)",
    "placement": "placement",
    "sequence": "int32*",
    "struct": "<int32>",
    "struct_with_python": "list<int32>",
    "tensor": "int32",
}


@pytest.mark.parametrize(("target", "source"), FITS)
def test_what_fits_is_assignable_one_way(target, source):
    target, source = parse_type(target), parse_type(source)
    assert target.is_assignable_from(source)
    target.check_assignable_from(source)


@pytest.mark.parametrize(("target", "source"), [FITS[0], FITS[1], FITS[4], FITS[5], FITS[6]])
def test_a_narrower_type_is_neither_assignable_nor_equivalent(target, source):
    target, source = parse_type(target), parse_type(source)
    assert not source.is_assignable_from(target)
    assert not source.is_equivalent_to(target)
    with pytest.raises(TypeMismatch, match=r"(?s)the types are not equivalent.*target  wants.*source  has"):
        target.check_equivalent_to(source)


def test_equivalent_types_may_differ_in_containers_and_identical_ones_may_not():
    have, other = parse_type("list<int32>"), parse_type("<int32>")
    assert have.is_equivalent_to(other)
    have.check_equivalent_to(other)
    assert not have.is_identical_to(other)
    assert have.is_identical_to(parse_type("list<int32>"))


def test_an_assignment_that_does_not_fit_shows_both_types():
    with pytest.raises(TypeMismatch) as caught:
        fc.TensorType(np.int32).check_assignable_from(fc.TensorType(np.int64))
    assert str(caught.value).splitlines()[:3] == [
        "the type is not assignable",
        "  target  wants  int32",
        "  source  has    int64",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_each_type_is_of_its_kind_only(kind):
    for other, text in KINDS.items():
        type_ = parse_type(text)
        is_of_kind = other == kind or (kind, other) == ("struct", "struct_with_python")
        assert getattr(type_, f"is_{kind}")() is is_of_kind
        if is_of_kind:
            getattr(type_, f"check_{kind}")()
        else:
            with pytest.raises(TypeMismatch, match="is wanted here, not"):
                getattr(type_, f"check_{kind}")()


def test_the_representations_hide_containers():
    type_ = fc.to_type({"a": [np.int32, (np.float32, [2, None])], "b": fc.SequenceType({"x": np.str_})})
    assert type_.compact_representation() == "<a=<int32,float32[2,?]>,b=<x=str>*>"
    assert type_.formatted_representation() == (
        "<\n  a=<\n    int32,\n    float32[2,?]\n  >,\n  b=<\n    x=str\n  >*\n>"
    )
    assert parse_type(type_.formatted_representation()) == parse_type(type_.compact_representation())
    function = fc.FunctionType(fc.StructType([]), fc.FederatedType([np.int32], fc.CLIENTS))
    assert function.formatted_representation() == "(<> -> {<\n  int32\n>}@CLIENTS)"


def test_elements_are_attributes():
    process = fc.FunctionType(
        {"state": fc.FederatedType({"round": np.int32, "size": np.bool_}, fc.SERVER)}, fc.StructType([("out", "str")])
    )
    assert process.parameter.state.member.round == fc.TensorType(np.int32)
    assert process.result.out == fc.TensorType(np.str_)
    assert process.parameter.state.member["size"] == fc.TensorType(np.bool_)  # the class has an attribute `size`
    with pytest.raises(AttributeError, match="StructType has no attribute or element 'weights'"):
        process.result.weights  # noqa: B018


def test_elements_as_attributes_leave_copies_alone():
    type_ = fc.StructType([("elements_of", np.int32), ("__reduce_ex__", np.int32)])
    assert copy.deepcopy(type_) == pickle.loads(pickle.dumps(type_)) == type_
    assert type_.fields() == ["elements_of", "__reduce_ex__"]


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize("container", [list, tuple, dict, collections.OrderedDict, Point])
def test_a_container_is_given_as_a_class(container):
    elements = [("x", np.int32), ("y", np.str_)] if container not in (list, tuple) else [np.int32, np.str_]
    type_ = fc.StructWithPythonType(elements, container)
    assert type_ == fc.StructWithPythonType(elements, container_type=container)
    assert type_.python_container is container
    assert parse_type(str(type_)) == type_


def test_a_plain_struct_is_a_dict_or_a_tuple():
    assert fc.to_type({"a": np.int32}).python_container is dict
    assert fc.to_type((np.int32, np.str_)).python_container is tuple


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([("a", np.int32), ("b", [np.bool_])], "<a=int32,b=list<bool>>"),
        ((("a", np.int32), ("b", (np.float32, [None]))), "<a=int32,b=float32[?]>"),
        ([("a", "int32"), np.str_], "<a=int32,str>"),
        (("a", np.int32), "<a=int32>"),
        ([("T", tf.int32)], "<T=int32>"),
        ([("dense/kernel:0", "float32")], '<"dense/kernel:0"=float32>'),
        (("float32", "int32"), "<float32,int32>"),
        ([("float32", [2])], "list<float32[2]>"),
        ((np.int32, [None]), "int32[?]"),
        ((tf.int32, tf.TensorShape([2, None])), "int32[2,?]"),
    ],
)
def test_pairs_of_names_and_types_are_a_struct(given, text):
    assert str(fc.to_type(given)) == text


def test_a_dtype_equals_what_it_is_made_of():
    dtype = fc.TensorType(np.int32, [None]).dtype
    assert all(dtype == other for other in (np.int32, np.dtype("int32"), tf.int32, "int32", as_dtype("int32")))
    assert all(dtype != other for other in (np.int64, tf.float32, "no dtype", None, 32))
    assert (dtype.type, as_dtype(str).type) == (np.int32, np.str_)
    assert hash(as_dtype(np.int32)) == hash(dtype)


def test_types_at_placements_have_shorthands():
    assert str(fc.types.at_clients(np.int32)) == "{int32}@CLIENTS"
    assert str(fc.type_at_clients(np.int32, all_equal=True)) == "int32@CLIENTS"
    assert str(fc.type_at_server({"a": np.int32})) == "<a=int32>@SERVER"
