"""What a computation may return: values of one client, values that all clients share, constants, nothing at all."""

import numpy as np
import pytest

import fedcore as fc
from fedcore import context
from fedcore.errors import TypeMismatch
from fedcore.runtime.reports.result_difference import difference

C, S = fc.CLIENTS, fc.SERVER
XS, SV, SHARED = fc.FederatedType("float32", C), fc.FederatedType("float32", S), fc.FederatedType("float32", C, True)
PAIR, SHARED_PAIR = (fc.FederatedType(("float32", "int32"), *at) for at in ((S,), (C, True)))
NOTHING = fc.StructType([])
PLACED = fc.StructType([("a", XS), ("b", SV), ("c", fc.StructType([("d", SHARED), ("e", XS)]))])
NAMED = fc.StructType([("a", "float32"), ("b", "int32")])

of_each = fc.federated_computation(lambda x: x, XS)
of_named = fc.federated_computation(lambda p: p, fc.FederatedType(NAMED, S))
twice = fc.federated_computation(lambda x: (x, x), fc.FederatedType("float32[?]", C))


@pytest.fixture(scope="module", params=[fc.runtime.local, fc.runtime.reference], ids=lambda make: make.__name__)
def runtime(request):
    made = request.param(default_num_clients=0)
    yield made
    made.close()


def summed_up(value, x):
    """The value beside what is computed from it, at a later level too."""
    total = fc.federated_sum(fc.federated_map(lambda a, b: a + b, (value, x)))
    return value, total, fc.federated_map(lambda a, b: a + b, (value, fc.federated_broadcast(total)))


GIVEN = [1.0, 2.0]
RETURNED = {
    # One value for all clients: constants, what is broadcast, parameters, and elements of them.
    "a constant": (lambda: fc.federated_value(1, C), [], [], 1),
    "a constant beside a client value": (lambda x: (fc.federated_value(1, C), x), [XS], [GIVEN], (1, GIVEN)),
    "a constant beside a sum": (lambda x: (fc.federated_value(1, C), fc.federated_sum(x)), [XS], [GIVEN], (1, 3.0)),
    "text": (lambda x: (fc.federated_value("a", C), x), [XS], [GIVEN], (b"a", GIVEN)),
    "no clients": (lambda x: (fc.federated_value(1, C), fc.federated_sum(x)), [XS], [[]], (1, 0.0)),
    "broadcast to no clients": (lambda s, x: (fc.federated_broadcast(s), x), [SV, XS], [1.0, []], (1.0, [])),
    "broadcast alone": (lambda s: fc.federated_broadcast(s), [SV], [1.0], 1.0),
    "an element of a broadcast": (
        lambda s, x: (fc.federated_broadcast(s)[0], x), [PAIR, XS], [(1.0, 2), GIVEN], (1.0, GIVEN)),
    "elements of a broadcast": (
        lambda s, x: (fc.federated_broadcast(s)[0:2], x), [PAIR, XS], [(1.0, 2), GIVEN], ((1.0, 2), GIVEN)),
    "an element of what is broadcast later": (
        lambda x: (fc.federated_broadcast(fc.federated_sum((x, x)))[1], x), [XS], [GIVEN], (3.0, GIVEN)),
    "an element of a constant": (
        lambda x: (fc.federated_value((1, (2, ())), C)[1], x), [XS], [GIVEN], ((2, ()), GIVEN)),
    "a broadcast constant and its element": (
        lambda x: (fc.federated_broadcast(v := fc.federated_value((7, 8), S))[1], fc.federated_broadcast(v), x),
        [XS], [GIVEN], (8, (7, 8), GIVEN)),
    "a parameter": (lambda a, x: (a, fc.federated_sum(x)), [SHARED, XS], [1.0, GIVEN], (1.0, 3.0)),
    "a parameter and no clients": (lambda a: a, [SHARED], [1.0], 1.0),
    "a parameter's elements": (
        lambda a, x: (a[0], a[1], a, x), [SHARED_PAIR, XS], [(1.0, 2), GIVEN], (1.0, 2, (1.0, 2), GIVEN)),
    "an unplaced parameter at the clients": (
        lambda u, x: (fc.federated_value((u, (2, ())), C)[1], u, x), ["float32", XS], [5.0, GIVEN],
        ((2, ()), 5.0, GIVEN)),
    "what is computed with too": (
        lambda s, x: summed_up(fc.federated_broadcast(s)[0], x), [PAIR, XS], [(1.0, 2), GIVEN], (1.0, 5.0, [6.0, 6.0])),
    "a constant computed with too": (
        lambda x: summed_up(fc.federated_value(1.0, C), x), [XS], [GIVEN], (1.0, 5.0, [6.0, 6.0])),
    # As a value of each, where a computation inside says so.
    "of each": (lambda s, x: (of_each(fc.federated_broadcast(s)), x), [SV, XS], [1.0, GIVEN], ([1.0, 1.0], GIVEN)),
    "of each and for all": (lambda a, x: (of_each(a), a, x), [SHARED, XS], [1.0, GIVEN], ([1.0, 1.0], 1.0, GIVEN)),
    "under other names": (lambda p: (of_named(p), p), [PAIR], [(1.0, 2)], ({"a": 1.0, "b": 2}, (1.0, 2))),
    "of a narrower shape": (
        lambda v: twice(v), [fc.FederatedType("float32[2]", C)], [[GIVEN]], ([np.array(GIVEN, "f4")],) * 2),
    # Beside one another, twice, unplaced.
    "twice": (lambda x: (x, (x, fc.federated_sum(x), fc.federated_sum(x))), [XS], [GIVEN], (GIVEN, (GIVEN, 3.0, 3.0))),
    "unplaced beside placed": (lambda u, x: (1, u, u + 1, x), ["float32", XS], [3.0, GIVEN], (1, 3.0, 4.0, GIVEN)),
    "unplaced beside the server's": (lambda s: (1, s, ()), [SV], [1.0], (1, 1.0, ())),
    "structs of placed values": (
        lambda p: (p.c, fc.federated_sum(p.a), p), [PLACED], [{"a": GIVEN, "b": 3.0, "c": {"d": 4.0, "e": GIVEN}}],
        ({"d": 4.0, "e": GIVEN}, 3.0, {"a": GIVEN, "b": 3.0, "c": {"d": 4.0, "e": GIVEN}})),
    # Empty structs.
    "nothing": (lambda x: (), [XS], [GIVEN], ()),
    "nothing beside a value": (lambda x: ((), x), [XS], [GIVEN], ((), GIVEN)),
    "nothing at the clients": (lambda x: (fc.federated_value((), C), x), [XS], [GIVEN], ((), GIVEN)),
    "nothing of each": (lambda x: (x, x), [fc.FederatedType(NOTHING, C)], [[(), ()]], ([(), ()],) * 2),
    "nothing sent": (
        lambda s, x: (fc.federated_broadcast(s), x), [fc.FederatedType(NOTHING, S), XS], [(), GIVEN], ((), GIVEN)),
    "a sum of nothing": (lambda x: fc.federated_sum(x), [fc.FederatedType(NOTHING, C)], [[(), ()]], ()),
    "a sum of nothing, mapped": (
        lambda x: fc.federated_sum(fc.federated_map(lambda v: ((), v), x)), [XS], [GIVEN], ((), 3.0)),
    "an aggregate of nothing": (
        lambda x: fc.federated_aggregate(x, (), lambda a, v: a, lambda a, b: a, lambda a: 3), [XS], [GIVEN], 3),
}  # fmt: skip


@pytest.mark.parametrize("case", RETURNED)
def test_a_result_is_given_as_its_type_says(case, runtime):
    body, types, arguments, wanted = RETURNED[case]
    with fc.use(runtime):
        found = fc.federated_computation(body, *types)(*arguments)
    assert difference(found, _typed(wanted)) is None


def _typed(value):
    """Python's numbers in the dtypes that they have in the language."""
    if isinstance(value, dict):
        return {k: _typed(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_typed, value))
    return {int: np.int32, float: np.float32}.get(type(value), lambda x: x)(value)


def test_a_client_scalar_that_is_passed_on_is_a_scalar(runtime):
    both = fc.federated_computation(lambda x, y: (x, y), XS, fc.FederatedType("str", C))
    with fc.use(runtime):
        (number,), (text,) = both([1.0], ["a"])
    assert type(number) is np.float32
    assert type(text) is bytes


def test_a_constant_that_all_clients_share_crosses_nothing():
    shared = fc.federated_computation(lambda x: (fc.federated_value((7, "a"), C), fc.federated_sum(x)), XS)
    with fc.use(fc.runtime.local(workers_per_device=1)):
        assert shared([1.0, 2.0]) == ((7, b"a"), 3.0)
        assert context.last_report().broadcast_bits == 0


def test_nothing_collects_nothing():
    with pytest.raises(TypeMismatch, match="federated_collect: a value of type <> holds no tensors"):
        fc.federated_computation(lambda x: fc.sequence_sum(fc.federated_collect(x, 3)), fc.FederatedType(NOTHING, C))
