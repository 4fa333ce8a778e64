"""What is refused of a call's arguments, before any work is done, on both stacks."""

import attrs
import numpy as np
import pytest

import fedcore as fc
from fedcore.errors import TypeMismatch

STRUCT = fc.to_type({"a": "int32", "b": ("float32", (2,))})


@pytest.fixture(scope="module", params=[fc.runtime.local, fc.runtime.reference], ids=lambda make: make.__name__)
def runtime(request):
    made = request.param()
    yield made
    made.close()


REFUSED = [
    ("int32", 1.5, r"x does not fit\n"),
    ("int32", 2**40, r"x does not fit\n"),
    ("int32", True, r"x does not fit\n"),
    ("bool", 1, r"x does not fit\n"),
    ("str", 1, r"x is 1, but the type is str"),
    ("float32", "a", r"x does not fit\n"),
    (("float32", (2,)), np.zeros(3, np.float32), r"wants  float32\[2\]\n.*has    float32\[3\]"),
    (("float32", (2,)), [[1.0], [1.0, 2.0]], r"x is no tensor of type float32\[2\]"),
    (STRUCT, {"a": 1}, r"the keys at x are \['a'\], but the type is <a=int32,b=float32\[2\]>"),
    (STRUCT, {"a": 1, "c": 2}, r"the keys at x are \['a', 'c'\]"),
    (STRUCT, (1,), r"there are 1 elements at x, but the type is"),
    (STRUCT, 5, r"int at x is no struct of type"),
    (STRUCT, {"a": 1, "b": np.zeros(3, np.float32)}, r"x\.b does not fit\n"),
    (fc.to_type(("int32", ("int32", "str"))), (1, (2, 3)), r"x\[1\]\[1\] is 3, but the type is str"),
    (fc.FederatedType("int32", fc.CLIENTS), 5, r"x is a client value of type \{int32\}@CLIENTS: give a list with one"),
    (fc.FederatedType("int32", fc.CLIENTS), {"a": 5}, r"give a list with one element per client, not dict"),
    (fc.FederatedType("str", fc.CLIENTS), "ab", r"give a list with one element per client, not str"),
    (fc.FederatedType("int32", fc.CLIENTS), {1, 2}, r"not set, which has no order .*\n  fix: sorted\(x\)"),
    (fc.FederatedType("str", fc.CLIENTS), frozenset("ab"), r"not frozenset, which has no order"),
    (fc.SequenceType("int32"), {1, 2}, r"x is \{1, 2\}, but a sequence .* is wanted: a dataset or a list of elements"),
    (fc.FederatedType("int32", fc.CLIENTS), [1, "a"], r"x\[1\] does not fit\n"),
    (fc.SequenceType("int32"), 5, r"x is 5, but a sequence of type int32\* is wanted"),
    (fc.SequenceType("int32"), [1, "a"], r"x\[1\] does not fit"),
]


@pytest.mark.parametrize(("type_", "value", "says"), REFUSED)
def test_an_argument_that_does_not_fit_is_refused(type_, value, says, runtime):
    @fc.federated_computation(fc.to_type(type_))
    def same(x):
        return fc.sequence_sum(x) if isinstance(x.type, fc.SequenceType) else x

    with fc.use(runtime), pytest.raises(TypeMismatch, match=says):
        same(value)


@attrs.frozen
class Pair:
    a: int
    b: object


@pytest.mark.parametrize("value", [{"b": [1.0, 2.0], "a": 1}, (1, [1.0, 2.0]), Pair(1, [1.0, 2.0])])
def test_a_struct_is_given_by_name_by_order_or_by_attribute(value, runtime):
    same = fc.federated_computation(lambda x: x, STRUCT)
    with fc.use(runtime):
        result = same(value)
    assert result["a"] == 1
    np.testing.assert_array_equal(result["b"], [1.0, 2.0])


def test_client_values_of_unequally_many_clients_are_refused(runtime):
    ints = fc.FederatedType("int32", fc.CLIENTS)
    added = fc.federated_computation(lambda x, y: x + y, ints, ints)
    with (
        fc.use(runtime),
        pytest.raises(TypeMismatch, match="the client values of a call must have equally many clients"),
    ):
        added([1, 2, 3], [1])
