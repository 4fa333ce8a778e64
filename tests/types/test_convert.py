import collections
import dataclasses
import pickle
import typing

import attrs
import ml_dtypes
import numpy as np
import pytest

from fedcore.errors import ParseError, TypeMismatch
from fedcore.types import as_dtype, container_class, parse_type, register_container, to_type


class Pair(typing.NamedTuple):
    x: object
    y: object


@attrs.frozen
class Point:
    x: object


@dataclasses.dataclass
class Batch:
    x: object


class FakeShape:
    """As tf.TensorShape."""

    def __init__(self, sizes):
        self.rank = None if sizes is None else len(sizes)
        self.sizes = sizes

    def as_list(self):
        return list(self.sizes)


class FakeDType:
    """As tf.DType."""

    def __init__(self, name):
        self.name = name

    @property
    def as_numpy_dtype(self):
        raise KeyError(self.name)  # as tf.variant's does


class FakeSpec:
    """As tf.TensorSpec."""

    def __init__(self, sizes, name):
        self.shape = FakeShape(sizes)
        self.dtype = FakeDType(name)


class FakeDataset:
    def __init__(self, element_spec):
        self.element_spec = element_spec


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (np.int64, "int64"),
        (np.dtype("float16"), "float16"),
        (int, "int32"),
        (float, "float32"),
        (bool, "bool"),
        (bytes, "str"),
        (ml_dtypes.bfloat16, "bfloat16"),
        ("{int32}@CLIENTS", "{int32}@CLIENTS"),
        ((np.float32, [2, None]), "float32[2,?]"),
        ((np.float32, ()), "float32"),
        ((FakeDType("string"), FakeShape(None)), "str[...]"),
        ((np.float32, np.int32), "<float32,int32>"),
        ((), "<>"),
        ({"b": np.int32, "a": (np.int32, [1])}, "<b=int32,a=int32[1]>"),
        (collections.OrderedDict(a=np.int32), "OrderedDict<a=int32>"),
        ([np.int32, str], "list<int32,str>"),
        (np.zeros((2, 3)), "float64[2,3]"),
        (np.float32(1), "float32"),
        (np.array(["a"]), "str[1]"),
        (FakeSpec([None, 3], "float32"), "float32[?,3]"),
        (FakeSpec(None, "bfloat16"), "bfloat16[...]"),
        (FakeDataset({"x": FakeSpec([], "int32")}), "<x=int32>*"),
    ],
)
def test_what_users_write_for_types(x, text):
    assert to_type(x) == parse_type(text)


@pytest.mark.parametrize("x", [Pair(np.int32, str), Point(np.int32), Batch(np.int32)])
def test_objects_keep_their_class_by_name(x):
    type_ = to_type(x)
    assert type_.container == f"{type(x).__module__}.{type(x).__qualname__}"
    assert container_class(type_.container) is type(x)


def test_a_class_that_no_one_registered_is_not_found():
    assert container_class("my.module.Point") is None


def test_the_class_defined_last_is_found():
    first, second = (type("Same", (), {}) for _ in range(2))
    assert register_container(first) == register_container(second)
    assert container_class(register_container(second)) is second


@pytest.mark.parametrize("x", [None, object(), 3, [None], {"x": None}, {1: np.int32}, FakeDType("variant")])
def test_what_stands_for_no_type_is_refused(x):
    with pytest.raises(TypeMismatch):
        to_type(x)


@pytest.mark.parametrize("name", ["datetime64", "string", "Float32", ""])
def test_as_dtype_refuses_other_names(name):
    with pytest.raises(TypeError, match="is not a dtype"):
        as_dtype(name)


def test_bits_are_what_an_element_takes_on_the_wire():
    assert [as_dtype(name).bits for name in ["bool", "bfloat16", "complex64", "str"]] == [1, 16, 64, None]


def test_types_and_parse_errors_pickle():
    type_ = to_type([{"x": np.int32}])
    assert pickle.loads(pickle.dumps(type_)) == type_
    with pytest.raises(ParseError) as caught:
        parse_type("<")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(("struct", "key"), [({1: "int32"}, "1"), ({"a": {None: "int32"}}, "None")])
def test_a_key_that_is_no_text_is_refused(struct, key):
    with pytest.raises(TypeMismatch, match=f"elements of a struct are named by str; the key {key} is not one"):
        to_type(struct)
