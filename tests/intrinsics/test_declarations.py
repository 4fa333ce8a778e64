import pytest

import fedcore as fc
from fedcore import intrinsics
from fedcore.errors import FedcoreError, TracingError, TypeMismatch
from fedcore.ir import registered

INTS = fc.FederatedType("int32", fc.CLIENTS)


@pytest.mark.parametrize("name", sorted(registered()))
def test_an_intrinsic_says_in_one_sentence_what_it_does(name):
    first = (registered()[name].__doc__ or "").strip().split("\n")[0]
    assert first
    assert first.rstrip()[-1] in ".;"


@pytest.mark.parametrize("name", sorted(n for n, op in registered().items() if op.level == "placed"))
def test_a_placed_intrinsic_is_a_public_name(name):
    assert getattr(fc, name) is registered()[name]


def test_an_intrinsic_called_from_python_says_where_it_belongs():
    with pytest.raises(
        TracingError, match=r"federated_sum stands outside a computation: call it in the body of a function"
    ):
        fc.federated_sum([1, 2])


def test_generic_zero_called_from_python_says_where_it_belongs():
    with pytest.raises(TracingError, match="generic_zero stands outside a computation"):
        fc.generic_zero("int32")


def test_a_name_is_declared_once():
    with pytest.raises(FedcoreError, match=r"'federated_sum' is declared already, by `federated_sum`"):

        @fc.intrinsic("(value: T -> T)")
        def federated_sum(value):
            return value


def traced(body, *types):
    return fc.federated_computation(body, *types)


def test_a_mean_of_integers_is_refused_with_both_sides():
    with pytest.raises(TypeMismatch) as raised:
        traced(lambda x: fc.federated_mean(x), INTS)
    text = str(raised.value)
    assert text.startswith("federated_mean: `value` does not fit\n")
    assert "argument   has    {int32}@CLIENTS" in text
    assert "T must be inexact" in text


def test_a_sum_of_a_server_value_shows_the_placement_that_is_wanted():
    with pytest.raises(TypeMismatch, match=r"signature  wants  \{int32\}@CLIENTS\n  argument   has    int32@SERVER\n"):
        traced(lambda x: fc.federated_sum(x), fc.FederatedType("int32", fc.SERVER))


def test_a_placement_that_is_none_is_refused():
    with pytest.raises(TypeMismatch, match=r"`placement` is a placement \(fc\.SERVER or fc\.CLIENTS\), not 'mars'"):
        traced(lambda: fc.federated_value(1, "mars"))


def test_a_missing_argument_is_named():
    with pytest.raises(TracingError, match=r"federated_map\(fn, arg\): missing a required argument: 'arg'"):
        traced(lambda x: fc.federated_map(lambda y: y), INTS)


def test_a_lambda_of_too_many_parameters_is_refused():
    with pytest.raises(TracingError, match=r"takes 2 parameters \(a, b\), but is given int32"):
        traced(lambda x: fc.federated_map(lambda a, b: a, x), INTS)


@pytest.mark.parametrize(
    ("type_", "says"),
    [
        (fc.TensorType("int32", (None,)), r"int32\[\?\] has unknown dimensions, so its zero is not known"),
        ({"a": "str"}, "only numbers have a zero; a is str"),
    ],
)
def test_what_has_no_zero_is_refused(type_, says):
    with pytest.raises(TypeMismatch, match=says):
        traced(lambda x: fc.federated_map(lambda y: fc.generic_zero(type_), x), INTS)


def test_a_tuple_of_client_values_is_zipped_when_mapped():
    computation = traced(lambda x, y: fc.federated_map(lambda a, b: a + b, (x, y)), INTS, INTS)
    assert "federated_zip" in [op.kind for op in computation.module.main.operations]
    assert computation([1, 2], [10, 20]) == [11, 22]


def test_the_import_of_an_intrinsic_in_its_folder_makes_it_a_name_of_fc():
    assert "federated_zip" in intrinsics.NAMES
    assert set(intrinsics.NAMES) <= set(dir(fc))
    for name in intrinsics.NAMES:
        assert getattr(fc, name) is getattr(intrinsics, name)
