"""`fc.to_value` and the protocol of typed objects."""

import numpy as np
import pytest

import fedcore as fc
from fedcore.errors import TracingError, TypeMismatch


def result_type(body, *types):
    return str(fc.federated_computation(body, *types).type_signature.result)


@pytest.mark.parametrize(
    ("given", "type_", "text"),
    [
        (7, None, "int32"),
        (7, np.int64, "int64"),
        (np.zeros([2], np.float32), (np.float32, [None]), "float32[2]"),
        ({"a": 1, "b": (1.5, "x")}, None, "<a=int32,b=<float32,str>>"),
        ({"a": 1, "b": 2}, [("a", np.int8), ("b", np.float32)], "<a=int8,b=float32>"),
    ],
)
def test_a_constant_becomes_a_value_of_the_type(given, type_, text):
    assert result_type(lambda: fc.to_value(given, type_)) == text


def test_a_value_stays_what_it_is():
    fc.federated_computation(lambda x: x if fc.to_value(x, None) is x else None, np.int32)


def test_a_function_becomes_a_value():
    add = fc.tf_computation(lambda x: x + 1)
    assert result_type(lambda x: fc.to_value(add, None, parameter_type_hint=np.int32)(x), np.int32) == "int32"
    assert result_type(lambda x: fc.to_value(add, fc.FunctionType(np.int8, np.int8))(x), np.int8) == "int8"


def test_a_struct_of_placed_values_is_zipped_if_asked():
    at = fc.types.at_clients(np.int32)
    want = fc.types.at_clients([("a", np.int32), ("b", np.int32)])
    assert (
        result_type(lambda x, y: fc.to_value({"a": x, "b": y}, want, zip_if_needed=True), at, at)
        == "{<a=int32,b=int32>}@CLIENTS"
    )
    with pytest.raises(TypeMismatch, match="to_value: the value does not fit"):
        result_type(lambda x, y: fc.to_value({"a": x, "b": y}, want), at, at)


def test_values_are_made_in_computations_only():
    with pytest.raises(TracingError, match="to_value is used outside a computation"):
        fc.to_value(7)


def test_computations_and_values_are_typed_objects():
    computation = fc.federated_computation(lambda x: x if isinstance(x, fc.TypedObject) else None, np.int32)
    assert isinstance(computation, fc.TypedObject)
    assert not isinstance(7, fc.TypedObject)

    class Untyped(fc.TypedObject):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Untyped()
